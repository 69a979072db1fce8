"""Errors of claims about tables, signals and embeddings, against numpy; the same in `OriginalInformation`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.risk.v_information.stated import Stated
from torch import nn

from gradleak.attacks import Blind, GaussNewton
from gradleak.core import Batch, Domain, DomainKind, Exposure, HonestButCurious, Objective, Reconstruction, Release
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from gradleak.risk import CosineError, NormalizedError, OriginalInformation

MOST = 2.0 * math.pi**2
FEATURES = 6
TABLE = Domain(shape=(FEATURES,), low=0.0, high=4.0, kind=DomainKind.TABULAR)
SIGNAL = Domain(shape=(2, FEATURES // 2), low=-1.0, high=1.0, kind=DomainKind.SIGNAL)


def exposures(domain: Domain, count: int = 2, size: int = 1) -> list[Exposure]:
    generator = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
    for parameter in model.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    objective = Objective.from_module(model)
    made = []
    for place in range(count):
        pixels = torch.rand(size, *domain.shape, generator=generator, dtype=torch.float64)
        inputs, targets = domain.from_pixels(pixels), (torch.arange(size) + place) % 3
        made.append(Exposure(objective, Batch(inputs, targets, domain), Release(FedSGD())))
    return made


def claim_of(inputs: torch.Tensor) -> Reconstruction:
    return Reconstruction(inputs=inputs, targets=None, loss=0.0, outcome=Outcome.CONVERGED)


class TestNormalizedError:
    def test_is_the_mean_square_in_units_of_the_spread(self) -> None:
        batch = exposures(TABLE)[0].batch
        claim = batch.inputs + torch.arange(6.0, dtype=torch.float64)
        spread = (0.1, 0.2, 0.3, 0.4, 0.0, 0.5)
        found = NormalizedError(spread=spread).of_all(claim_of(claim), batch)
        kept = np.array([0, 1, 2, 3, 5])
        expected = math.sqrt(np.mean((kept / 4.0 / np.array(spread)[kept]) ** 2))
        assert found == pytest.approx([expected])

    def test_who_claims_the_mean_of_the_population_has_one(self) -> None:
        generator = torch.Generator().manual_seed(0)
        scale = torch.tensor([0.05, 0.1, 0.15, 0.02, 0.1, 0.12])
        rows = (2.0 + scale * torch.randn(4000, FEATURES, generator=generator)).double()
        public, private = Batch(rows[:2000], torch.zeros(2000), TABLE), rows[2000:2200]
        error = NormalizedError.of(public)
        claim = claim_of(rows[:2000].mean(dim=0)[None])
        found = [error.of_all(claim, Batch(row[None], torch.zeros(1), TABLE))[0] for row in private]
        squares = [value**2 for value in found if value is not None]
        assert len(squares) == 200
        assert np.mean(squares) == pytest.approx(1.0, abs=0.1)

    def test_claims_go_to_the_examples_that_they_fit(self) -> None:
        batch = exposures(TABLE, size=3)[0].batch
        claim = batch.inputs[[2, 0, 1]].clone()
        claim[0] = math.nan
        found = NormalizedError().of_all(claim_of(claim), batch)
        assert found == [pytest.approx(0.0, abs=1e-12), pytest.approx(0.0, abs=1e-12), None]

    def test_refuses_what_does_not_fit(self) -> None:
        batch = exposures(TABLE)[0].batch
        with pytest.raises(InputError, match="expected 1 or 6 numbers"):
            NormalizedError(spread=(0.1, 0.2)).obstacle(batch)
        with pytest.raises(InputError, match="one of them positive"):
            NormalizedError(spread=0.0)
        with pytest.raises(InputError, match="at least two public examples"):
            NormalizedError.of(batch)
        with pytest.raises(InputError, match=r"expected \(b, 6\) like the truth"):
            NormalizedError().of_all(claim_of(torch.zeros(1, 5)), batch)


class TestCosineError:
    def test_is_the_cosine_of_numpy_and_pairs_by_direction(self) -> None:
        batch = exposures(SIGNAL, size=2)[0].batch
        random = torch.Generator().manual_seed(5)
        claim = 7.0 * batch.inputs.flip(0) + 0.5 * torch.randn(2, 2, 3, generator=random)
        found = CosineError().of_all(claim_of(claim), batch)
        for place, value in enumerate(found):
            one, other = claim[1 - place].numpy().ravel(), batch.inputs[place].numpy().ravel()
            assert value == pytest.approx(one @ other / np.linalg.norm(one) / np.linalg.norm(other))

    def test_a_claim_of_nothing_has_no_direction(self) -> None:
        batch = exposures(SIGNAL)[0].batch
        assert CosineError().of_all(claim_of(torch.zeros(1, 2, 3)), batch) == [0.0]
        zeros = Batch(torch.zeros(2, 2, 3), torch.zeros(2), SIGNAL)
        assert "not defined for 2 examples that are zero everywhere" in CosineError().obstacle(zeros)


class TestInformation:
    @pytest.mark.parametrize("domain", [TABLE, SIGNAL], ids=["table", "signal"])
    def test_without_another_error_the_outcome_says_which_there_are(self, domain: Domain) -> None:
        score = OriginalInformation(attack=Blind(), by="layer")(exposures(domain)).scores["1"]
        assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
        assert f"not defined for {domain.kind} data; error=NormalizedError() or error=CosineError()" in score.note

    @pytest.mark.parametrize("domain", [TABLE, SIGNAL], ids=["table", "signal"])
    def test_the_first_layer_gives_a_row_away(self, domain: Domain) -> None:
        """The gradient of a first linear layer is δ xᵀ, from which a table or a signal follows as an image does."""
        measure = OriginalInformation(
            attack=GaussNewton(), by="layer", error=NormalizedError(), threat_model=HonestButCurious(targets=True)
        )
        profile = measure(exposures(domain))
        assert profile.leakiest == "1"
        assert profile.scores["1"].value == pytest.approx(MOST, rel=1e-6)
        assert profile.scores["1"].details["normalized_error"] == pytest.approx(0.0, abs=1e-4)

    def test_value_and_blind_part_follow_from_the_claims(self) -> None:
        given = exposures(TABLE)
        claim = given[0].batch.inputs + 0.4
        score = OriginalInformation(attack=Stated(claim), by={"all": ["1"]}, error=NormalizedError())(given).scores[
            "all"
        ]
        spread = 1.0 / math.sqrt(12.0)
        truths = np.stack([one.batch.inputs[0].numpy() for one in given]) / 4.0
        squares = (((claim.numpy() / 4.0 - truths) / spread) ** 2).mean(axis=1)
        floors = (((0.5 - truths) / spread) ** 2).mean(axis=1)
        assert score.value == pytest.approx(MOST * (1.0 - squares.mean()))
        assert score.details["against_blind"] == pytest.approx(MOST * (floors.mean() - squares.mean()))
        assert score.details["blind_normalized_error"] == pytest.approx(np.sqrt(floors).mean())

    @pytest.mark.parametrize("error", [NormalizedError(), CosineError()], ids=["normalized", "cosine"])
    def test_the_blind_attacker_has_nothing_against_itself(self, error: NormalizedError | CosineError) -> None:
        score = OriginalInformation(attack=Blind(), by="layer", error=error)(exposures(SIGNAL)).scores["1"]
        assert score.details["against_blind"] == pytest.approx(0.0, abs=1e-12)

    def test_refuses_another_error(self) -> None:
        with pytest.raises(InputError, match="expected a ClaimError, got 'rmse'"):
            OriginalInformation(attack=Blind(), error="rmse")  # type: ignore[arg-type]

    def test_sets_are_compared_by_release(self) -> None:
        """One attack, the same claims: the difference of any two sets is exactly 0, whatever the releases spread by."""
        profile = OriginalInformation(attack=Blind(), by="layer", error=NormalizedError())(exposures(TABLE, 3, size=2))
        difference = profile.difference("1", "3")
        assert (difference.value, difference.interval, difference.n) == (0.0, (0.0, 0.0), 3)
        assert profile.rivals() == ["3"]
