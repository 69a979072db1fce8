"""What every exported measure keeps, whoever wrote it."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest
import torch
from tests.risk.cases import color, signed
from tests.tokens import sentences, tiny

import gradleak.risk
from gradleak.core import Exposure, Objective, Release
from gradleak.defenses import DPSGD, GaussianNoise
from gradleak.protocols import FedSGD
from gradleak.results import Citation, InputError, Score
from gradleak.risk import (
    BayesianCramerRao,
    FisherInformationLoss,
    GaussianReconstructionError,
    LinearizedPosteriorError,
    LipschitzBound,
    Measure,
    PeelRank,
    ReconstructionProbability,
    SettingMeasure,
)

# Arguments of the measures that have no default (or a slow one); every other one is built without arguments.
ARGUMENTS: dict[type[Measure], dict[str, Any]] = {
    FisherInformationLoss: {"std": 0.1},
    GaussianReconstructionError: {"std": 0.1},
    LinearizedPosteriorError: {"noise_std": 0.1, "prior_std": 0.3},
    LipschitzBound: {"samples": 1},
}


def _exported(base: type) -> list[Any]:
    found = [item for item in vars(gradleak.risk).values() if inspect.isclass(item) and issubclass(item, base)]
    return sorted((item for item in found if item is not base), key=lambda item: item.__name__)


MEASURES = _exported(Measure)
SETTING_MEASURES = _exported(SettingMeasure)
EXAMPLES: dict[type[SettingMeasure], SettingMeasure] = {
    BayesianCramerRao: BayesianCramerRao(noise_std=0.1, prior_std=0.3, samples=16),
    ReconstructionProbability: ReconstructionProbability(candidates=100),
}
PRIVATE = Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")])


def _build(measure: type[Measure]) -> Measure:
    return measure(**ARGUMENTS.get(measure, {}))


def _exposed(measure: type[Measure], image: Exposure) -> Exposure:
    """What it is taken of: images, one alone, or a sentence."""
    if measure is PeelRank:
        return dataclasses.replace(image, batch=image.batch.example(0))
    if not measure.reads_ids:
        return image
    objective = Objective.from_module(tiny())
    return Exposure(objective, sentences(6), Release(FedSGD(), [GaussianNoise(std=0.3)]))


def _delta(exposure: Exposure) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 1e-3 * torch.randn(exposure.objective.size, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def exposure() -> Exposure:
    return color(torch.Generator().manual_seed(0))


def test_there_are_measures() -> None:
    assert {"InversionInfluence", "InversionInfluenceLowerBound", "GradientNorm"} <= {m.__name__ for m in MEASURES}


@pytest.mark.parametrize("measure", MEASURES)
class TestMeasure:
    def test_is_documented_and_cited(self, measure: type[Measure]) -> None:
        doc = inspect.getdoc(measure) or ""
        assert doc.splitlines()[0].endswith((".", "F."))
        assert "Source:" in doc
        assert "Cost:" in doc
        assert measure.summary
        assert measure.citations
        assert all(isinstance(citation, Citation) for citation in measure.citations)
        assert measure.name == measure.name.lower().replace(" ", "_")
        assert measure.__name__ in gradleak.risk.__all__

    def test_is_frozen_with_keyword_only_fields_and_an_honest_repr(self, measure: type[Measure]) -> None:
        built = _build(measure)
        assert dataclasses.is_dataclass(measure)
        assert all(field.kw_only for field in dataclasses.fields(measure))
        assert repr(built).startswith(f"{measure.__name__}(")
        assert all(f"{field.name}=" in repr(built) for field in dataclasses.fields(measure))
        for field in dataclasses.fields(measure):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(built, field.name, None)

    def test_call_is_final_and_not_overridden(self, measure: type[Measure]) -> None:
        assert measure.__call__ is Measure.__call__

    def test_gives_a_score_that_a_record_can_hold(self, measure: type[Measure], exposure: Exposure) -> None:
        exposure = _exposed(measure, exposure)
        score = _build(measure)(exposure, delta=_delta(exposure))
        assert isinstance(score, Score)
        assert score.name == measure.name
        assert score.value is not None
        assert score.value > 0
        assert Score.from_dict(json.loads(json.dumps(score.to_dict(), allow_nan=False))) == score

    def test_gives_the_same_value_twice(self, measure: type[Measure], exposure: Exposure) -> None:
        exposure = _exposed(measure, exposure)
        first, second = (_build(measure)(exposure, delta=_delta(exposure)) for _ in range(2))
        assert first == second

    def test_refuses_a_delta_of_the_wrong_size(self, measure: type[Measure], exposure: Exposure) -> None:
        if not measure.needs_delta:
            pytest.skip("takes no perturbation")
        with pytest.raises(InputError, match=r"delta: expected \d+ entries .*, got 7"):
            _build(measure)(exposure, delta=torch.zeros(7))

    def test_never_changes_the_exposure_or_delta(self, measure: type[Measure], exposure: Exposure) -> None:
        exposure = _exposed(measure, exposure)
        delta = _delta(exposure)
        tensors = [*exposure.objective.params.values(), exposure.batch.inputs, exposure.batch.targets, delta]
        before = [tensor.clone() for tensor in tensors]
        _build(measure)(exposure, delta=delta)
        assert all(torch.equal(old, new) for old, new in zip(before, tensors, strict=True))
        assert not any(tensor.requires_grad or tensor.grad is not None for tensor in tensors)

    def test_says_in_a_word_when_there_is_no_derivative(self, measure: type[Measure], exposure: Exposure) -> None:
        exposure = _exposed(measure, exposure)
        score = _build(measure)(signed(exposure), delta=_delta(exposure))
        if measure.name == "gradient_norm":
            assert score.value is not None  # the norm of the signs, which needs no derivative
        else:
            assert score.value is None
            assert score.note


@pytest.mark.parametrize("measure", SETTING_MEASURES)
class TestSettingMeasure:
    def test_is_documented_cited_and_frozen(self, measure: type[SettingMeasure]) -> None:
        doc = inspect.getdoc(measure) or ""
        assert "Source:" in doc
        assert "Cost:" in doc
        assert measure.summary
        assert measure.citations
        assert all(isinstance(citation, Citation) for citation in measure.citations)
        assert measure.name == measure.name.lower().replace(" ", "_")
        assert measure.__name__ in gradleak.risk.__all__
        assert all(field.kw_only for field in dataclasses.fields(measure))
        assert measure.__call__ is SettingMeasure.__call__
        for field in dataclasses.fields(measure):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(EXAMPLES[measure], field.name, None)

    def test_needs_no_private_input(self, measure: type[SettingMeasure], exposure: Exposure) -> None:
        batch = exposure.batch
        release = exposure.release if measure.reads_derivative else PRIVATE
        score = EXAMPLES[measure](exposure.objective, release, targets=batch.targets[:1], domain=batch.domain)
        assert score.name == measure.name
        assert score.value is not None
        assert score.value > 0
        assert Score.from_dict(json.loads(json.dumps(score.to_dict(), allow_nan=False))) == score

    def test_says_in_a_word_when_there_is_no_derivative(
        self, measure: type[SettingMeasure], exposure: Exposure
    ) -> None:
        flat = signed(exposure)
        score = EXAMPLES[measure](
            flat.objective, flat.release, targets=exposure.batch.targets[:1], domain=exposure.batch.domain
        )
        assert score.value is None
        assert score.note
