"""Cocktail party: batches unmixed by statistics, refined to round-off by the model, and nothing certain without it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import CocktailParty
from gradleak.attacks.inversion.analytic.unmixing import Span, independent
from gradleak.core import Batch, Defense, Domain, HonestButCurious, Reconstruction
from gradleak.defenses import Clip, GaussianNoise, Prune
from gradleak.models import lenet_i2f, mlp
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import Setting, setting

IMAGE = Domain.image(channels=1, height=16, width=16, mean=(0.4,), std=(0.3,))


def _patchwork(*targets: int, seed: int = 0) -> Batch:
    """Pictures of flat rectangles: their differences are sparse, as those of photographs are."""
    stream = torch.Generator().manual_seed(seed)
    pixels = torch.zeros(len(targets), 1, 16, 16)
    for picture in pixels:
        for _ in range(6):
            top, left, height, width = torch.randint(1, 10, (4,), generator=stream).tolist()
            picture[0, top : top + height, left : left + width] = torch.rand(1, generator=stream)
    return Batch(IMAGE.from_pixels(pixels), torch.tensor(targets), IMAGE)


def _net(activation: str = "tanh", classes: int = 5, hidden: tuple[int, ...] = (96,)) -> nn.Module:
    body = mlp(features=256, hidden=hidden, classes=classes, activation=activation,
               generator=torch.Generator().manual_seed(2))  # fmt: skip
    return nn.Sequential(nn.Flatten(), *body)


def _run(case: Setting, attack: CocktailParty | None = None) -> Reconstruction:
    return (attack or CocktailParty())(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))


def _error(case: Setting, found: Reconstruction) -> float:
    """Largest root mean square distance of a true example from the claim that is nearest to it, in pixels."""
    true, claimed = (IMAGE.to_pixels(inputs.double()).flatten(1) for inputs in (case.truth.inputs, _inputs(found)))
    return float(torch.cdist(true, claimed).min(dim=1).values.max()) / math.sqrt(IMAGE.size)


def _inputs(found: Reconstruction) -> Tensor:
    assert found.inputs is not None
    return found.inputs


def test_laplace_sources_are_unmixed_up_to_scale_and_order() -> None:
    stream = torch.Generator().manual_seed(0)
    uniform = torch.rand(4, 4000, generator=stream, dtype=torch.float64) - 0.5
    sources = -uniform.sign() * torch.log1p(-2 * uniform.abs())
    mixing = torch.randn(4, 4, generator=stream, dtype=torch.float64)
    matrix = independent(mixing @ sources, 3, stream)
    both = (matrix @ mixing).abs()
    both = both / both.max(dim=1, keepdim=True).values
    assert sorted(both.argmax(dim=1).tolist()) == [0, 1, 2, 3]
    assert float(both.sort(dim=1).values[:, :-1].max()) < 0.1


def test_a_span_has_the_rank_and_the_rows_of_its_matrix() -> None:
    stream = torch.Generator().manual_seed(0)
    factors = (torch.randn(*size, generator=stream, dtype=torch.float64) for size in ((30, 3), (3, 50)))
    matrix = torch.linalg.multi_dot(list(factors))
    span = Span.of(matrix, 5, 1e-12)
    assert span.rank == 3
    assert torch.allclose(span.left @ span.right, matrix)


@pytest.mark.parametrize(
    ("activation", "dtype"), [("tanh", torch.float64), ("sigmoid", torch.float32), ("relu", torch.float32)]
)
def test_a_batch_is_read_to_round_off_behind_any_activation(activation: str, dtype: torch.dtype) -> None:
    case = setting(_net(activation), _patchwork(0, 1, 1, 3), dtype=dtype)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert _error(case, found) < (1e-10 if dtype == torch.float64 else 1e-4)
    assert sorted(found.targets.tolist()) == [0, 1, 1, 3]
    assert found.details["rank"] == 4
    assert 5 + 2 < found.plain_gradients <= CocktailParty().estimate(case.knowledge) == 5 + 2 + 8 * 10


def test_statistics_alone_are_near_and_not_certain() -> None:
    case = setting(_net(), _patchwork(0, 1, 2))
    found = _run(case, CocktailParty(steps=0))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "unmixed by statistics, which are no proof" in found.note
    blind = float((IMAGE.to_pixels(case.truth.inputs) - 0.5).square().mean().sqrt())
    assert _error(case, found) < 0.5 * blind


def test_disclosed_labels_put_claims_in_their_order() -> None:
    case = setting(_net(), _patchwork(3, 0, 2), threat=HonestButCurious(targets=True))
    found = _run(case)
    assert found.targets.tolist() == [3, 0, 2]
    assert float((_inputs(found) - case.truth.inputs).abs().max()) < 1e-9


def test_examples_that_depend_on_each_other_are_not_told_apart() -> None:
    batch = _patchwork(0, 1, 2)
    batch = replace(batch, inputs=torch.cat([batch.inputs[:2], batch.inputs[1:2]]))
    found = _run(setting(_net(), batch))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.details["rank"] == 2
    assert "3 examples were expected" in found.note


@pytest.mark.parametrize("defense", [Clip(1e-3), GaussianNoise(std=1e-6)])
def test_defenses_that_leave_the_mixture_leave_statistics_and_no_certainty(defense: Defense) -> None:
    case = setting(_net(), _patchwork(0, 1, 2), defenses=[defense])
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert _error(case, found) < 0.15


def test_an_update_that_is_not_what_it_is_taken_for_is_not_certain() -> None:
    case = setting(_net(), _patchwork(0, 1, 2), defenses=[Prune(0.5)])
    found = _run(replace(case, knowledge=replace(case.knowledge, defenses=None)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    fewer = setting(_net(), _patchwork(0, 1, 2))
    found = _run(replace(fewer, knowledge=replace(fewer.knowledge, batch_size=2)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE


def test_convolutions_are_refused() -> None:
    domain = Domain.image(channels=1, height=12, width=12)
    case = setting(lenet_i2f(size=12), Batch(torch.rand(1, 1, 12, 12), torch.tensor([1]), domain))
    with pytest.raises(UnsupportedError, match="patches of it that do not overlap"):
        _run(case)
