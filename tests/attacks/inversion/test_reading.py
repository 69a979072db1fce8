"""What an adversary who knows the defenses makes of an update, against the update that went in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from gradleak.attacks import DGL, AbsoluteError, CosineDistance, GaussNewton, InvertingGradients, SquaredError
from gradleak.attacks.inversion.reading import Reading, laplace_scale
from gradleak.core import Bounds, Defense, Guarantee, HonestButCurious, Objective, Release, UpdateDefense
from gradleak.defenses import (
    Clip,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
    TopK,
)
from gradleak.protocols import FedSGD
from gradleak.results import Outcome
from tests.attacks.setting import rows, setting, small_net

READ: dict[str, Sequence[Defense]] = {
    "prune": [Prune(0.7)],
    "prune by layer": [Prune(0.7, by="layer")],
    "prune nothing": [Prune(0.0)],
    "top k": [TopK(0.2)],
    "top k by tensor": [TopK(0.2, by="tensor")],
    "random": [RandomSparsify(0.3)],
    "random, not scaled": [RandomSparsify(0.3, unbiased=False)],
    "sign": [Sign()],
    "rounded": [Quantize(bits=4, stochastic=False)],
    "rounded at random": [Quantize(bits=4)],
    "rounded by norm": [Quantize(bits=8, range="norm")],
    "rounded to a limit": [Quantize(bits=4, stochastic=False, limit=0.01)],
    "clipped, then rounded": [Clip(0.5), Quantize(bits=5)],
    "pruned, then rounded": [Prune(0.5), Quantize(bits=5, stochastic=False)],
    "rounded, then pruned": [Quantize(bits=5), TopK(0.3)],
    "pruned, then signed": [Prune(0.5), Sign()],
}


def _generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
def test_the_update_that_went_in_lies_within_the_bounds(name: str, dtype: torch.dtype) -> None:
    defenses = READ[name]
    objective = Objective.from_module(small_net()).to(dtype)
    batch = rows(0, 2).to(dtype)
    release = Release(FedSGD(), defenses)
    reading = Reading.of(release, objective)
    assert reading.bounded
    went_in = Release(FedSGD(), reading.release.defenses).mean(objective, objective.params, batch)
    for seed in range(5):
        seen = release(objective, batch, _generator(seed))
        flat = objective.flatten(seen.tensors)
        lower, upper = reading.bounds(reading.rows(flat))
        for number, parameter in enumerate(reading.names):
            value = went_in[parameter]
            slack = 1e-6 * value.abs().max()
            assert bool((lower[number] <= value + slack).all())
            assert bool((value <= upper[number] + slack).all())
        # Held against the update, the truth has no gap but the one that random rounding leaves.
        read = reading.read_flat(objective.flatten(went_in), flat)
        if not reading.centered:
            assert float((read - flat).norm()) <= 1e-5 * float(flat.norm())


def test_bounds_tell_what_was_pruned_by_the_smallest_that_was_kept() -> None:
    update = {"w": torch.tensor([0.5, -3.0, 0.1, 2.0]), "b": torch.tensor([4.0])}
    bounds = Prune(0.5).before(Bounds.of(Prune(0.5).mean(update)))
    assert bounds.lower["w"].tolist() == [-2.0, -3.0, -2.0, 2.0]
    assert bounds.upper["w"].tolist() == [2.0, -3.0, 2.0, 2.0]
    assert bounds.known("w").tolist() == [False, True, False, True]


def test_noise_ends_what_is_read_backward() -> None:
    objective = Objective.from_module(small_net())
    noise = GaussianNoise(std=0.1)
    assert not Reading.of(Release(FedSGD(), [Prune(0.5), noise]), objective).bounded
    behind = Reading.of(Release(FedSGD(), [noise, Prune(0.5)]), objective)
    assert behind.release.defenses == (noise,)
    assert behind.last == (Prune(0.5),)


@pytest.mark.parametrize("matching", [SquaredError(), CosineDistance()], ids=["squared", "cosine"])
@pytest.mark.parametrize("name", ["prune", "random", "sign", "rounded at random"])
def test_the_slope_is_the_derivative_of_the_distance(name: str, matching: SquaredError | CosineDistance) -> None:
    objective = Objective.from_module(small_net()).to(torch.float64)
    batch = rows(1).to(torch.float64)
    release = Release(FedSGD(), READ[name])
    reading = Reading.of(release, objective)
    seen = objective.flatten(release(objective, batch, _generator()).tensors)
    guess = objective.flatten(objective.gradient(objective.params, rows(2, seed=5).to(torch.float64)))
    distance = reading.matching(matching)
    leaf = guess.clone().requires_grad_()
    value = distance(leaf, seen)
    expected = torch.autograd.grad(value, leaf)[0]
    found, slope = distance.against(reading.rows(seen))(reading.rows(guess))
    torch.testing.assert_close(found, value.detach(), rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(torch.cat([s.reshape(-1) for s in slope]), expected, rtol=1e-7, atol=1e-13)
    both = torch.func.vmap(distance, in_dims=(0, None))(torch.stack([guess, 2 * guess]), seen)
    torch.testing.assert_close(both[0], value.detach(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("name", ["prune", "top k", "random", "rounded", "rounded at random"])
def test_knowing_the_defense_helps(name: str) -> None:
    errors = {}
    for adaptive in (True, False):
        case = setting(
            small_net(), rows(1), defenses=READ[name], threat=HonestButCurious(defenses=adaptive, targets=True)
        )
        found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
        errors[adaptive] = case.error(found.inputs)
    factor = {"rounded": 0.5, "rounded at random": 0.9}.get(name, 1e-6)
    assert errors[True] < factor * errors[False]


@pytest.mark.parametrize("attack", [InvertingGradients(iterations=150), DGL(iterations=150)], ids=["cosine", "squared"])
def test_first_order_attacks_see_through_pruning(attack: InvertingGradients | DGL) -> None:
    case = setting(small_net(), rows(1), defenses=[Prune(0.8)], threat=HonestButCurious(targets=True))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < 1e-4
    assert "the bounds that Prune leave of every entry" in found.details["information"]


def test_signs_that_are_all_met_do_not_identify_the_input() -> None:
    case = setting(small_net(), rows(1), defenses=[Sign()], threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    objective = case.knowledge.objective
    assert objective is not None
    made = objective.flatten(objective.gradient(objective.params, type(case.truth)(found.inputs, found.targets)))
    opposed = made * objective.flatten(case.update.tensors) < 0
    assert float(made[opposed].norm()) < 1e-6 * float(made.norm())


def test_noise_that_differs_by_layer_is_weighed() -> None:
    """The last layer alone is quiet; squares of equal weight are drowned by the others."""
    noise = LayerNoise(std={"0": 0.05, "2": 0.05}, default=1e-5)
    errors = {}
    for adaptive in (True, False):
        case = setting(small_net(), rows(1), defenses=[noise], threat=HonestButCurious(defenses=adaptive, targets=True))
        found = DGL(iterations=300)(case.update, case.knowledge, generator=_generator())
        errors[adaptive] = case.error(found.inputs)
    assert errors[True] < 0.5 * errors[False]


def test_under_laplace_noise_absolute_errors_are_the_likelihood() -> None:
    target = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    candidate = torch.tensor([1.5, -2.0, 0.0], dtype=torch.float64)
    assert float(AbsoluteError()(candidate, target)) == pytest.approx(1.0 / 3.5)
    errors = {True: 0.0, False: 0.0}
    for seed in range(4):
        for adaptive in (True, False):
            case = setting(
                small_net(), rows(1, seed=seed), defenses=[LaplaceNoise(scale=2e-3)],
                threat=HonestButCurious(defenses=adaptive, targets=True), seed=seed,
            )  # fmt: skip
            found = DGL(iterations=200)(case.update, case.knowledge, generator=_generator())
            errors[adaptive] += case.error(found.inputs)
    assert errors[True] < errors[False]


def test_gauss_newton_knows_the_residual_that_laplace_noise_leaves() -> None:
    case = setting(small_net(), rows(1), defenses=[LaplaceNoise(scale=1e-4)], threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.details["at_floor"]


@pytest.mark.parametrize(
    "earlier", [RandomSparsify(0.5), LayerNoise(std={"0": 0.1}), GaussianNoise(std=0.1), Quantize(bits=4)], ids=repr
)
def test_laplace_noise_on_top_of_other_randomness_has_no_law_that_is_used(earlier: Defense) -> None:
    objective = Objective.from_module(small_net()).to(torch.float64)
    together = Release(FedSGD(), [earlier, LaplaceNoise(scale=1e-4)])
    assert laplace_scale(together, objective.params) is None
    assert laplace_scale(Release(FedSGD(), [Clip(1.0), LaplaceNoise(scale=1e-4)]), objective.params) == 1e-4
    case = setting(small_net(), rows(1), defenses=together.defenses, threat=HonestButCurious(targets=True))
    found = DGL(iterations=2)(case.update, case.knowledge, generator=_generator())
    assert found.inputs is not None


@dataclass(frozen=True)
class _Squared(UpdateDefense):
    """Entries times their own magnitude, by an author who did not write `before`."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor * tensor.abs() for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, torch.Tensor]) -> None:
        return None

    def draw(self, update: Mapping[str, torch.Tensor], generator: torch.Generator) -> dict[str, torch.Tensor]:
        return self.mean(update)


@pytest.mark.parametrize(
    ("defenses", "words"),
    [
        ([_Squared()], "_Squared not read backward: a guess is put through its mean"),
        (
            [_Squared(), Prune(0.5)],
            "the bounds that Prune leave of every entry; _Squared not read backward: a guess is put through its mean",
        ),
        # Noise and a common factor are followed as they are.
        ([Clip(0.5), GaussianNoise(std=0.1)], ""),
        ([LaplaceNoise(scale=0.1)], ""),
    ],
    ids=repr,
)
def test_what_is_not_read_backward_is_said(defenses: Sequence[Defense], words: str) -> None:
    objective = Objective.from_module(small_net())
    assert Reading.of(Release(FedSGD(), list(defenses)), objective).words == words
