from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from skimage.metrics import structural_similarity
from tests.risk.v_information.stated import Stated
from torch import nn

from gradleak.attacks import Blind, GaussNewton
from gradleak.attacks.attack import Monitor
from gradleak.core import (
    Batch,
    Domain,
    Exposure,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
)
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import OriginalInformation, VisibleLayers

SIDE = 12
DOMAIN = Domain.image(channels=1, height=SIDE, width=SIDE)
MOST = 2.0 * math.pi**2


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE**2, 8), nn.Sigmoid(), nn.Linear(8, 3))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.double()


def exposures(count: int = 2, side: int = SIDE) -> list[Exposure]:
    generator = torch.Generator().manual_seed(1)
    model = network() if side == SIDE else nn.Sequential(nn.Flatten(), nn.Linear(side**2, 3)).double()
    objective = Objective.from_module(model)
    domain = Domain.image(channels=1, height=side, width=side)
    inputs = torch.rand(count, 1, side, side, generator=generator, dtype=torch.float64)
    return [
        Exposure(objective, Batch(inputs[place : place + 1], torch.tensor([place % 3]), domain), Release(FedSGD()))
        for place in range(count)
    ]


def similarity(one: torch.Tensor, other: torch.Tensor) -> float:
    """Scikit-image's, with the settings of Wang et al. 2004."""
    return float(
        structural_similarity(
            one[0, 0].numpy(),
            other[0, 0].numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
        )
    )


class TestFormula:
    def test_is_the_papers_for_claims_of_known_similarity(self) -> None:
        given = exposures(2)
        claim = (given[0].batch.inputs + given[1].batch.inputs) / 2
        score = OriginalInformation(attack=Stated(claim), by={"all": ["1", "3"]})(given).scores["all"]
        found = np.array([similarity(claim, one.batch.inputs) for one in given])
        values = MOST * (1.0 - (1.0 - found) ** 2)
        assert score.value == pytest.approx(values.mean(), rel=1e-6)
        reach = scipy.stats.t.isf(0.025, 1) * values.std(ddof=1) / math.sqrt(2)
        assert score.interval == pytest.approx((values.mean() - reach, values.mean() + reach), rel=1e-5)
        blind = np.array([similarity(torch.full_like(claim, 0.5), one.batch.inputs) for one in given])
        beside = MOST * ((1.0 - blind) ** 2 - (1.0 - found) ** 2)
        assert score.details["against_blind"] == pytest.approx(beside.mean(), rel=1e-6)

    def test_the_blind_attacker_has_nothing_against_itself(self) -> None:
        profile = OriginalInformation(attack=Blind(), by="layer")(exposures(2))
        for score in profile.scores.values():
            assert score.details["against_blind"] == pytest.approx(0.0, abs=1e-12)
            assert score.value is not None

    def test_another_sigma_is_another_scale(self) -> None:
        claim = exposures(1)[0].batch.inputs
        score = OriginalInformation(attack=Stated(claim), by={"all": ["1"]}, sigma=0.5)(exposures(1)).scores["all"]
        assert score.value == pytest.approx(2.0)
        assert score.interval is None


class TestLayers:
    def test_a_first_linear_layer_holds_the_image(self) -> None:
        """Its gradient is δ xᵀ, so that every row is the image up to a factor; the head's is not."""
        measure = OriginalInformation(attack=GaussNewton(), by="layer", threat_model=HonestButCurious(targets=True))
        profile = measure(exposures(1))
        first, head = profile.scores["1"], profile.scores["3"]
        assert first.details["ssim"] == pytest.approx(1.0, abs=1e-3)
        assert first.value == pytest.approx(MOST, rel=1e-3)
        assert head.value is not None
        assert head.value < 0.8 * MOST
        assert profile.leakiest == "1"

    def test_takes_sets_of_visible_tensors(self) -> None:
        given = exposures(1)
        visible = {"biases": VisibleLayers.biases(given[0].objective)}
        profile = OriginalInformation(attack=Blind())(given, visible=visible)
        assert profile.groups == {"biases": ("1.bias", "3.bias")}

    def test_the_attack_sees_the_visible_tensors_alone(self) -> None:
        seen: list[list[str]] = []

        class Watching(Stated):
            def _recover(
                self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
            ) -> Reconstruction:
                assert knowledge.objective is not None
                assert list(update.tensors) == list(knowledge.objective.params)
                seen.append(list(update.tensors))
                return super()._recover(update, knowledge, generator, monitor)

        OriginalInformation(attack=Watching(None), by="layer")(exposures(1))
        assert seen == [["1.weight", "1.bias"], ["3.weight", "3.bias"]]


class TestAnswers:
    def test_without_a_claim_the_outcome_of_the_attack_stands(self) -> None:
        score = OriginalInformation(attack=Stated(None), by={"all": ["1"]})(exposures(2)).scores["all"]
        assert (score.value, score.outcome) == (None, Outcome.NOT_FINITE)

    def test_images_below_the_window_are_not_defined(self) -> None:
        score = OriginalInformation(attack=Blind(), by="layer")(exposures(1, side=6)).scores["1"]
        assert score.outcome is Outcome.UNSUPPORTED
        assert "not defined at this size" in score.note

    def test_a_refusal_is_told(self) -> None:
        measure = OriginalInformation(attack=Stated(None), by="layer", threat_model=HonestButCurious(domain=False))
        score = measure(exposures(1)).scores["1"]
        assert score.outcome is Outcome.UNSUPPORTED
        assert "needs domain" in score.note

    def test_refuses_what_does_not_fit(self) -> None:
        with pytest.raises(InputError, match="at least one Exposure"):
            OriginalInformation(attack=Blind())([])
        with pytest.raises(InputError, match="expected an Attack"):
            OriginalInformation(attack="dlg")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="finite positive"):
            OriginalInformation(attack=Blind(), sigma=0.0)

    def test_states_its_cost(self) -> None:
        assert OriginalInformation(attack=Stated(None), by="layer").estimate(exposures(3)) == 6.0
