"""Every defense on many updates at once, against one release after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy import stats
from tests.training.releases.released_batches import (
    ROWS,
    Halved,
    at_once,
    batches,
    classifier,
    generator,
    named,
    objective,
    one_by_one,
    rows,
    size,
)
from torch import Tensor

from gradleak.core import Batch, Defense, Guarantee, Release, UpdateDefense
from gradleak.defenses import (
    DPSGD,
    AdversarialPerturbation,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
    SpectralNoise,
    TopK,
)
from gradleak.protocols import FedSGD
from gradleak.results import InputError, UnsupportedError
from gradleak.training import BatchReleases
from gradleak.training.releases.finishing import Finishing

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


class Doubting(UpdateDefense):
    """Deterministic, but it looks at a number: no batching rule."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor * (2 if float(tensor.abs().sum()) > 0.05 else 3) for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> None:
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return self.mean(update)


DEFENSES: list[list[Defense]] = [
    [],
    [Clip(0.2)],
    [ClipPerExample(0.3)],
    [ClipPerExample(0.5), ClipPerExample(0.2)],
    [ClipPerLayer(0.1)],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="per_example")],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum", expected_batch_size=7.5)],
    [GaussianNoise(std=0.1)],
    [GaussianNoise(std=0.1), Prune(0.6), LaplaceNoise(scale=0.2), Clip(0.5)],
    [LayerNoise(std={"0": 0.1})],
    [DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum"), LayerNoise(std={"2": 0.2}), GaussianNoise(std=0.1)],
    [Prune(0.6)],
    [Prune(0.6, by="layer")],
    [Quantize(bits=4)],
    [Quantize(bits=4, stochastic=False)],
    [RandomSparsify(0.4)],
    [Sign()],
    [TopK(0.3, by="tensor")],
    [SpectralNoise(norm=0.3)],
    [AdversarialPerturbation(classifier=classifier(), gamma=0.1, alpha=0.03)],
    [AdversarialPerturbation(classifier=classifier(), target=1), Prune(0.5)],
    [Halved()],
    [ClipPerExample(0.3), Doubting(), GaussianNoise(std=0.1)],
]


@pytest.mark.parametrize("defenses", DEFENSES, ids=named)
@pytest.mark.parametrize("examples", [1, 4])
def test_every_defense_gives_what_one_release_after_another_gives(defenses: list[Defense], examples: int) -> None:
    loss, release, index = objective(), Release(FedSGD(), defenses), batches(examples)
    releases = BatchReleases(loss, release, rows())
    found = at_once(releases, index)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, one_by_one(loss, release, rows(), index), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("noise", ["per_example", "sum"])
def test_dp_sgd_draws_the_law_of_its_convention(noise: str) -> None:
    sigma, examples, trials = 0.5, 16, 400
    defense = DPSGD(clip_norm=0.3, noise_std=sigma, noise=noise)
    index = torch.randint(ROWS, (1, examples), generator=generator(2)).repeat(trials, 1)
    loss = objective()
    found = at_once(BatchReleases(loss, Release(FedSGD(), [defense]), rows()), index)
    quiet = at_once(BatchReleases(loss, Release(FedSGD(), [ClipPerExample(0.3)]), rows()), index)
    std = sigma / 4 if noise == "per_example" else sigma / 16
    values = ((found - quiet) / std).reshape(-1).numpy()
    assert values.std() == pytest.approx(1, abs=5 / np.sqrt(2 * values.size))
    assert stats.kstest(values, "norm").pvalue > 1e-3
    # Independent from batch to batch and from entry to entry.
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / np.sqrt(values.size)


def test_many_perturbed_at_once_are_those_perturbed_one_by_one() -> None:
    updates = torch.randn(9, size(), generator=generator(7), dtype=torch.float64)
    values = torch.randint(2, (9, 4), generator=generator(8))
    for target in (None, 0):
        defense = AdversarialPerturbation(classifier=classifier(), target=target, gamma=0.1, alpha=0.03)
        singles = [
            defense.mean({"g": row}, Batch(torch.zeros(4, 1), torch.zeros(4), sensitive=value))["g"]
            for row, value in zip(updates, values, strict=True)
        ]
        found = defense.many(updates, None if target is not None else values)
        torch.testing.assert_close(found, torch.stack(singles), rtol=1e-12, atol=1e-12)
        assert float((found - updates).abs().max()) > 0.05
    with pytest.raises(UnsupportedError, match="sensitive variable"):
        AdversarialPerturbation(classifier=classifier()).many(updates, None)


@pytest.mark.parametrize("defense", [Sign(), Prune(0.5), Quantize(bits=4), GaussianNoise(std=0.1)], ids=named)
def test_no_defense_makes_numbers_of_an_update_that_is_none(defense: Defense) -> None:
    loss, index = objective(), batches()
    finish = Finishing(objective=loss, release=Release(FedSGD(), [defense]), rows=rows(), examples=4)
    updates = torch.randn(len(index), size(), generator=generator(), dtype=torch.float64)
    assert bool(torch.isfinite(finish(updates, index, generator())).all())
    updates[3, 0] = torch.nan
    with pytest.raises(InputError, match=r"got NaN or infinity in 0\.weight"):
        finish(updates, index, generator())
