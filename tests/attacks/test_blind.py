"""The adversary that ignores the update."""

from __future__ import annotations

import torch

from gradleak.attacks import Blind
from gradleak.core import Batch, Domain, HonestButCurious, Knowledge, Update
from tests.attacks.setting import ROW, rows, setting, small_net

DOMAIN = Domain(shape=(2, 2, 2), low=-1.0, high=3.0, mean=(0.5, 1.0), std=(2.0, 4.0))


def test_the_midpoint_in_model_units() -> None:
    update = Update(tensors={"anything": torch.zeros(3)})
    found = Blind()(update, Knowledge(batch_size=3, domain=DOMAIN), generator=torch.Generator())
    assert found.inputs.shape == (3, 2, 2, 2)
    # The middle of [-1, 3] is 1: normalized 0.25 and 0.
    assert found.inputs[:, 0].unique().tolist() == [0.25]
    assert found.inputs[:, 1].unique().tolist() == [0.0]
    assert found.details["which"] == "midpoint"
    assert found.targets is None
    assert found.loss is None


def test_the_mean_public_example_where_known() -> None:
    public = Batch(torch.rand(5, 12, generator=torch.Generator().manual_seed(9)), torch.zeros(5).long(), ROW)
    case = setting(small_net(), rows(1, 2), threat=HonestButCurious(public=public))
    found = Blind()(case.update, case.knowledge, generator=torch.Generator())
    torch.testing.assert_close(found.inputs, public.inputs.double().mean(0).expand(2, 12))
    assert found.details["which"] == "mean_public"


def test_the_update_changes_nothing() -> None:
    case = setting(small_net(), rows(1))
    other = Update(tensors={name: torch.full_like(t, torch.nan) for name, t in case.update.tensors.items()})
    first, second = (Blind()(u, case.knowledge, generator=torch.Generator()) for u in (case.update, other))
    assert torch.equal(first.inputs, second.inputs)
