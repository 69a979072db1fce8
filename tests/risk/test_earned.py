"""Measures called by hand: no number from a derivative that differences contradict or that is infinite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.operators.models import DetachedCube, Then, between, differences, exposure_of
from tests.operators.test_derivative_check import Scaled
from torch import Tensor, nn

from gradleak.core import Domain, Exposure, Release
from gradleak.defenses import ClipPerExample, GaussianNoise, Sign
from gradleak.operators import DerivativeCheck, GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, Outcome, Score
from gradleak.risk import (
    BayesianCramerRao,
    FisherInformationLoss,
    GaussianReconstructionError,
    GradientNorm,
    InversionInfluence,
    InversionInfluenceLowerBound,
    LinearizedPosteriorError,
    LipschitzBound,
    Measure,
    Sensitivity,
    VisibleLayers,
    Vulnerability,
    VulnerabilityFusion,
    each_example,
    mean_sensitivity,
    measure_visible,
    perturbation_directions,
)

READING: list[Measure] = [
    FisherInformationLoss(std=1e-3),
    GaussianReconstructionError(std=1e-3),
    InversionInfluence(),
    InversionInfluenceLowerBound(),
    LinearizedPosteriorError(noise_std=1e-3, prior_std=1.0),
    LipschitzBound(),
    Sensitivity(),
    Vulnerability(),
    VulnerabilityFusion(),
]
DOMAIN = Domain(shape=(4,), low=-1.0, high=1.0)


def scores(exposure: Exposure, **given: Any) -> list[Score]:
    """What every measure that reads the derivative says."""
    delta = torch.full((exposure.objective.size,), 1e-3, dtype=torch.float64)
    boxed = replace(exposure, batch=replace(exposure.batch, domain=DOMAIN))
    return [measure(boxed, delta=delta, **given) for measure in READING]


def dark(module: nn.Module) -> Exposure:
    """An input at zero, where roots and norms have no slope."""
    exposure = exposure_of(module, (4,), examples=1)
    inputs = exposure.batch.inputs.clone()
    inputs[0] = 0.0
    return replace(exposure, batch=exposure.batch.with_inputs(inputs))


WRONG: dict[str, Callable[[], nn.Module]] = {
    "kept intermediate": lambda: between(DetachedCube.apply),
    "with weights": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Scaled(), nn.Linear(4, 2)),
    "deep inside": lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), Then(DetachedCube.apply)), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_derivative_gives_no_number(name: str) -> None:
    """`FisherInformationLoss` was once 39 % too small on such a model, with evidence exact."""
    exposure = exposure_of(WRONG[name](), (4,), examples=1)
    for score in scores(exposure):
        assert (score.value, score.outcome, score.evidence) == (None, Outcome.UNSUPPORTED, Evidence.ESTIMATE)
        assert "the second derivative of layer " in score.note
        assert "(relative error " in score.note
    assert GradientNorm()(exposure).evidence is Evidence.EXACT


def test_the_same_model_with_a_right_backward_has_the_right_number() -> None:
    wrong, right = (exposure_of(between(f), (4,), examples=1) for f in (DetachedCube.apply, lambda x: x**3))
    want = float(torch.linalg.matrix_norm(differences(wrong), 2)) / 1e-3
    score = FisherInformationLoss(std=1e-3)(right)
    assert score.evidence is Evidence.EXACT
    assert score.value == pytest.approx(want, rel=1e-6)


INFINITE: dict[str, Callable[[], nn.Module]] = {
    "root": lambda: nn.Sequential(Then(lambda x: x.abs().sqrt()), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)),
    "norm": lambda: nn.Sequential(Then(lambda x: x * x.norm(dim=1, keepdim=True).sqrt()), nn.Linear(4, 2)),
    "arc cosine": lambda: nn.Sequential(Then(lambda x: (x + 1.0).clamp(-1, 1).acos()), nn.Linear(4, 2)),
}


@pytest.mark.parametrize("name", INFINITE)
def test_an_infinite_derivative_gives_a_word_for_every_measure(name: str) -> None:
    exposure = dark(INFINITE[name]())
    for score in scores(exposure):
        assert (score.value, score.outcome) == (None, Outcome.NOT_FINITE)
        assert "is infinite or NaN " in score.note
    assert perturbation_directions(GradientJacobian(exposure), 1).outcome is Outcome.NOT_FINITE


def test_whatever_takes_a_measure_says_the_same() -> None:
    wrong = exposure_of(between(DetachedCube.apply), (4,), examples=3)
    fisher = FisherInformationLoss(std=1.0)
    many = each_example(fisher, wrong)
    seen = measure_visible(wrong, {"head": VisibleLayers.of(wrong.objective, "2.weight")}, fisher).scores
    means = mean_sensitivity(wrong)
    for score in (*many, *seen.values(), *means.values()):
        assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    found = perturbation_directions(GradientJacobian(wrong), 1)
    assert (found.outcome, found.errors.numel()) == (Outcome.UNSUPPORTED, 0)
    bound = BayesianCramerRao(noise_std=0.1, prior_std=0.3, samples=16)
    van_trees = bound(wrong.objective, wrong.release, targets=wrong.batch.targets[:1], domain=DOMAIN)
    assert (van_trees.value, van_trees.outcome) == (None, Outcome.UNSUPPORTED)


@pytest.mark.parametrize("told", [Outcome.NOT_INFORMATIVE, Outcome.CONVERGED], ids=["unconfirmed", "nearly"])
def test_what_differences_do_not_confirm_is_an_estimate(told: Outcome) -> None:
    exposure = exposure_of(between(torch.tanh), (4,), examples=1)
    check = DerivativeCheck(outcome=told, note="too many kinks")
    for score in scores(exposure, operator=GradientJacobian(exposure, check=check)):
        assert score.value is not None
        assert score.evidence is Evidence.ESTIMATE
    lower = InversionInfluenceLowerBound()(
        exposure, delta=torch.ones(exposure.objective.size), operator=GradientJacobian(exposure, check=check)
    )
    assert lower.note.endswith(
        "an estimate, since its derivative was not confirmed by differences of values: too many kinks"
    )
    bound = BayesianCramerRao(noise_std=0.1, prior_std=0.3, samples=16)
    for one, evidence in ((check, Evidence.ESTIMATE), (None, Evidence.LOWER_BOUND)):
        found = bound(
            exposure.objective, exposure.release, batch_size=1, targets=exposure.batch.targets, domain=DOMAIN, check=one
        )
        assert found.evidence is evidence


def test_a_flat_release_still_says_nothing() -> None:
    exposure = replace(exposure_of(between(torch.tanh), (4,), examples=1), release=Release(FedSGD(), [Sign()]))
    for score in scores(exposure):
        assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)


def test_a_check_is_made_once_for_many_examples_and_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Exposure] = []

    def counted(exposure: Exposure, **rest: Any) -> DerivativeCheck:
        made.append(exposure)
        return DerivativeCheck(outcome=Outcome.CONVERGED, exact=True)

    monkeypatch.setattr("gradleak.operators.gradient_jacobian.check_derivative", counted)
    exposure = exposure_of(between(torch.tanh), (4,), examples=5)
    each_example(FisherInformationLoss(std=1.0), exposure)
    assert len(made) == 1
    operator = GradientJacobian(exposure)
    scores(exposure, operator=operator)
    assert len(made) == 2
    GradientNorm()(exposure)
    noisy = replace(exposure, release=Release(FedSGD(), [GaussianNoise(std=1.0)]))
    FisherInformationLoss(std=1.0)(noisy, operator=GradientJacobian(noisy, check=operator.shared_check))
    assert len(made) == 2


class Normed(nn.Module):
    """A transformer's end: a normalization with a scale, called so that no exchange sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        normed = torch.ops.aten.native_layer_norm(x, [4], self.weight, None, 1e-5)[0]
        return self.head(normed.tanh())


def test_a_wrong_rule_of_torch_that_no_exchange_sees_is_found() -> None:
    exposure = exposure_of(Normed(), (4,), examples=3)
    assert FisherInformationLoss(std=1.0)(exposure).evidence is Evidence.EXACT
    clipped = replace(exposure, release=Release(FedSGD(), [ClipPerExample(0.1)]))
    score = FisherInformationLoss(std=1.0)(clipped)
    want = float(torch.linalg.matrix_norm(differences(clipped), 2))
    if score.value is None:
        assert "the derivative of ClipPerExample is wrong (that of the model alone is right)" in score.note
    else:
        assert score.value == pytest.approx(want, rel=1e-5)


def test_single_precision_does_not_call_what_it_loses_exact() -> None:
    class Uneven(nn.Module):
        """One input of four hardly counts: its eigenvalue is 1e-8 of the others'."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * torch.tensor([1.0, 1.0, 1.0, 1e-4], dtype=x.dtype))

    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(0)
        exposure = exposure_of(Uneven(), (4,))
    wide, narrow = (GradientJacobian(exposure, dtype=dtype) for dtype in (torch.float64, torch.float32))
    delta = torch.ones(exposure.objective.size, dtype=torch.float64)
    for measure in (VulnerabilityFusion(), InversionInfluence()):
        right, lost = (measure(exposure, delta=delta.to(one.dtype), operator=one) for one in (wide, narrow))
        assert right.evidence is Evidence.EXACT
        assert right.outcome is Outcome.CONVERGED
        assert right.value is not None
        assert lost.value is not None
        assert lost.value < right.value / 2
        assert lost.outcome is Outcome.NOT_IDENTIFIABLE
        assert lost.evidence is Evidence.ESTIMATE
        assert "take dtype=torch.float64" in lost.note
