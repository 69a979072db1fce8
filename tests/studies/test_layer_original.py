"""Original information by layer at tiny size, and its correlation with measures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from gradleak.attacks import DLG, Attack, GaussNewton, InvertingGradients
from gradleak.attacks.attack import Monitor
from gradleak.core import (
    Batch,
    Domain,
    DomainKind,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
    describe,
)
from gradleak.models import Activation, mlp
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from studies import LayerInversion, LayerNetwork, LayerOriginal
from studies.layer_correlation import correlate
from studies.layer_original_cells import Swapped, Workbench, shrunk
from studies.layer_original_findings import LayerRow, conclude_ceiling
from studies.store import Store


def _quiet(line: str) -> None:
    del line


@dataclass(frozen=True, kw_only=True)
class _SizeOfUpdate(Attack):
    """Claims the size of the update as every entry of the input, so that claims tell updates apart."""

    name: ClassVar[str] = "size_of_update"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "for tests"

    def estimate(self, knowledge: Knowledge) -> float:
        del knowledge
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        del knowledge, generator, monitor
        size = sum(float(tensor.abs().sum()) for tensor in update.tensors.values())
        return Reconstruction(
            inputs=torch.full((1, 4), size), targets=None, loss=None, outcome=Outcome.BUDGET_SPENT, details={}
        )


def _claims(attack: Attack, updates: Sequence[Update], facts: Sequence[Knowledge]) -> list[float]:
    found = attack.many(updates, facts, generators=[torch.Generator().manual_seed(0) for _ in updates])
    return [float(one.inputs[0, 0]) for one in found if one.inputs is not None]


def test_swapped_claims_are_those_of_the_next_example() -> None:
    objective, release = (
        Objective.from_module(mlp(features=4, hidden=(3,), classes=2, activation="tanh")),
        Release(FedSGD()),
    )
    domain = Domain(shape=(4,), kind=DomainKind.TABULAR)
    rows = Batch(torch.rand((3, 4), generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0]), domain)
    examples = [rows.example(place) for place in range(3)]
    updates = [release(objective, one, torch.Generator()) for one in examples]
    facts = [HonestButCurious().disclose(objective, release, one) for one in examples]
    own = _claims(_SizeOfUpdate(), updates, facts)
    assert len(set(own)) == 3
    assert _claims(Swapped(attack=_SizeOfUpdate()), updates, facts) == [own[1], own[2], own[0]]


def test_networks_of_another_scale_do_not_make_a_correlation() -> None:
    # Nothing goes together within a network; one network has more of both.
    random = np.random.default_rng(1)
    low, high = random.uniform(1, 2, (2, 40)), random.uniform(10, 20, (2, 40))
    found = correlate(
        "", ["a"] * 40 + ["b"] * 40, [*low[0], *high[0]], [*low[1], *high[1]], resamples=200, seed=0
    )  # fmt: skip
    assert found is not None
    assert found.pearson is not None
    assert found.pearson_raw is not None
    assert found.pearson_raw > 0.8 > 0.3 > abs(found.pearson)
    assert found.pearson_interval is not None
    assert found.within_interval is not None
    assert found.pearson_interval[0] < 0 < found.pearson_interval[1]
    assert found.within == pytest.approx(np.mean([stats.spearmanr(*one)[0] for one in (low, high)]))
    few = correlate("", ["a"] * 4, [1.0, 2.0, 3.0, 5.0], [1.0, 2.0, 4.0, 6.0], resamples=100, seed=0)
    assert few is not None
    assert few.pearson_interval is None
    assert few.spearman == pytest.approx(1.0)
    assert correlate("", ["a"] * 2, [1.0, 2.0], [1.0, 2.0], resamples=100, seed=0) is None


@pytest.mark.slow
def test_a_profile_with_its_controls_and_again_from_its_cells(tmp_path: Path) -> None:
    cells = tmp_path / "cells.jsonl"
    study = LayerOriginal(
        networks=(LayerNetwork.LENET5,),
        side=28,
        count=3,
        sizes=(2,),
        iterations=2,
        block=2,
        samples=2,
        norm_images=1,
        posterior_images=1,
        posterior_entries=2_100_000,
        resamples=100,
        cells=str(cells),
    )
    result = study.run(say=_quiet)
    assert "figures 4, 6 and 8" in result.figures["layer_original"]
    rows = result.details["rows"]
    assert [row["layers"] for row in rows] == ["conv1 + conv2", "conv2 + fc1", "fc1 + fc2", "fc2 + fc3"]
    # 1 channel: 6·25 + 6 and 16·150 + 16.
    assert rows[0]["entries"] == 156 + 2416
    for row in rows:
        assert row["nats"] == pytest.approx([2 * math.pi**2 * (1 - (1 - one) ** 2) for one in row["ssim"]])
    # A is too large for the posterior error but for the first set, where no more can be left than was there before.
    precisions = [row["measures"]["posterior precision"] for row in rows]
    assert precisions[0] > 1 / 0.3
    assert precisions[1:] == [None] * 3
    # Columns of the same A: no sum of squares is beyond what the largest column and row allow.
    norms = rows[0]["measures"]
    assert norms["one norm"] > 0
    assert norms["inf norm"] > 0
    assert norms["frobenius norm per root entry"] == pytest.approx(norms["frobenius norm"] / math.sqrt(2572))
    controls = result.details["controls"]["lenet5"]
    assert [len(controls[name]) for name in ("attack", "gradient of another image", "blind")] == [3, 3, 3]
    assert controls["attack"] != controls["gradient of another image"]
    assert "rank" in next(one.note for one in result.findings if "best other" in one.quantity)
    written = cells.read_text(encoding="utf-8")
    # One block: the third image would be alone.
    assert sum(json.loads(line)["key"]["what"] == "claims" for line in written.splitlines()[1:]) == 4 + 3
    assert study.run(say=_quiet).markdown() == result.markdown()
    assert cells.read_text(encoding="utf-8") == written


def test_one_image_has_no_other_to_be_swapped_with() -> None:
    with pytest.raises(InputError, match="at least two images"):
        LayerOriginal(count=1)


def test_images_are_shrunk_by_means_over_blocks() -> None:
    pixels = torch.rand((2, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    batch = Batch(pixels, torch.tensor([0, 1]), Domain.image(channels=3, height=8, width=8))
    smaller = shrunk(batch, 4)
    blocks = pixels.numpy().reshape(2, 3, 4, 2, 4, 2).mean(axis=(3, 5))
    np.testing.assert_allclose(smaller.inputs.numpy(), blocks, rtol=1e-6)
    assert smaller.domain is not None
    assert smaller.domain.shape == (3, 4, 4)
    assert shrunk(batch, 8) is batch
    with pytest.raises(InputError, match="divides 8, got 3"):
        shrunk(batch, 3)


def test_attacks_by_name_search_as_long_as_they_are_told() -> None:
    # The default is what it was before there was a choice, so that its cells are found again.
    plain = LayerInversion.INVERTING_GRADIENTS.attack(iterations=7, total_variation=0.5, starts=1)
    assert describe(plain) == describe(InvertingGradients(iterations=7, total_variation=0.5))
    dlg = LayerInversion("dlg").attack(iterations=7, total_variation=0.5, starts=3)
    assert isinstance(dlg, DLG)
    assert (dlg.iterations, dlg.restarts) == (7, 3)
    newton = LayerInversion("gauss_newton").attack(iterations=7, total_variation=0.5, starts=2)
    assert isinstance(newton, GaussNewton)
    assert (newton.max_steps, newton.starts) == (7, 2)


def _bench(study: LayerOriginal) -> Workbench:
    images, others = study._images()
    return study._bench(LayerNetwork.LENET5, images, others, Store(None))


def test_an_activation_changes_the_gradients_and_the_keys_but_not_the_weights() -> None:
    relu = _bench(LayerOriginal(count=2, side=28))
    tanh = _bench(LayerOriginal(count=2, side=28, activation=Activation.TANH))
    # The keys of networks with ReLU name no activation, as before there was a choice.
    assert set(relu.identity) == {"classes", "weights", "training_steps", "training_images"}
    assert dict(tanh.identity) == {**relu.identity, "activation": "tanh"}
    image = relu.images.example(0)
    assert image.inputs.shape == (1, 1, 28, 28)
    assert relu.entries("conv1 + conv2") > image.inputs.numel()
    for name, weights in relu.objective.params.items():
        assert torch.equal(weights, tanh.objective.params[name])
    losses = [float(one.objective.loss(one.objective.params, image)) for one in (relu, tanh)]
    parts = tanh.objective.params
    hidden = torch.conv2d(image.inputs, parts["conv1.weight"], parts["conv1.bias"])
    hidden = F.max_pool2d(hidden.tanh(), 2)
    hidden = F.max_pool2d(torch.conv2d(hidden, parts["conv2.weight"], parts["conv2.bias"]).tanh(), 2).flatten(1)
    for layer in ("fc1", "fc2"):
        hidden = F.linear(hidden, parts[f"{layer}.weight"], parts[f"{layer}.bias"]).tanh()
    logits = F.linear(hidden, parts["fc3.weight"], parts["fc3.bias"])
    assert losses[1] == pytest.approx(float(F.cross_entropy(logits, image.targets)), rel=1e-5)
    assert losses[0] != losses[1]


def _row(layers: str, nats: float) -> LayerRow:
    return LayerRow(
        network="n",
        layers=layers,
        count=2,
        entries=9,
        nats=[nats] * 2,
        against_blind=[nats] * 2,
        ssim=[1.0] * 2,
        measures={},
    )


def test_no_order_is_read_where_every_set_gives_all_or_a_part_gives_more_than_the_whole() -> None:
    most = 2 * math.pi**2
    (full,) = conclude_ceiling([_row("a + b", most), _row("b + c", 0.99 * most)], {"n": {"attack": [most]}})
    assert "every set gives at least 95% of the 19.7 nats" in full
    (beyond,) = conclude_ceiling([_row("a + b", 9.0), _row("b + c", 5.0)], {"n": {"attack": [6.0, 6.5]}})
    assert "more from a + b than from all layers (6.25 nats)" in beyond
    (some,) = conclude_ceiling([_row("a + b", most), _row("b + c", 5.0)], {"n": {"attack": [most]}})
    assert "a + b gives at least" in some
    assert conclude_ceiling([_row("a + b", 6.0), _row("b + c", 5.0)], {"n": {"attack": [6.0]}}) == []


@pytest.mark.parametrize(("channels", "entries"), [(1, 17_038), (3, 3 * 300 + 12 + 2 * 3612 + 588 * 10 + 10)])
def test_the_strided_lenet_is_the_smooth_one_of_the_inversion_papers(channels: int, entries: int) -> None:
    image = Batch(
        torch.rand((1, channels, 28, 28), generator=torch.Generator().manual_seed(0)),
        torch.tensor([3]),
        Domain.image(channels=channels, height=28, width=28),
    )
    found = LayerNetwork.STRIDED_LENET.objective(image, 10, 0, Activation.SIGMOID)
    assert found.size == entries
    for tensor in found.params.values():
        assert float(tensor.abs().max()) <= 0.5
    weights = found.params["0.weight"]
    # Uniform(−0.5, 0.5) has a standard deviation of 0.289.
    assert float(weights.std()) == pytest.approx(0.289, abs=0.03)
    again = LayerNetwork.STRIDED_LENET.objective(image, 10, 1, Activation.SIGMOID)
    assert not torch.equal(again.params["0.weight"], weights)
