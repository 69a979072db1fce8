"""Null controls at tiny size, and what their nulls and planted leaks are made of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution
from torch import nn

from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError, VerdictKind
from studies import NullControls
from studies.null_audits import AuditSetting, Network
from studies.null_audits import Nothing as Empty
from studies.null_cells import Count, Judged, false_leaks, missed, table
from studies.null_data import Data, part, unlike
from studies.null_epsilon import DELTA, LaplaceShift, RandomizedResponse, Released, SampledGaussian, judged
from studies.null_games import GameSetting, Kind, Nothing
from studies.null_releases import Division, FixedUpdate, IgnoresInputs
from studies.null_swaps import Swap


def _quiet(line: str) -> None:
    del line


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (SampledGaussian(), privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.5)),
        (SampledGaussian().broken(), privacy_loss_distribution.from_gaussian_mechanism(0.5, sampling_prob=0.5)),
        (LaplaceShift(pure=2.0), privacy_loss_distribution.from_laplace_mechanism(0.5)),
        (
            RandomizedResponse(pure=1.0),
            privacy_loss_distribution.from_randomized_response(2.0 / (1.0 + math.e), num_buckets=2),
        ),
    ],
    ids=["sampled", "sampled, broken", "Laplace", "randomized response"],
)
def test_the_epsilon_of_a_mechanism_is_that_of_an_accountant(
    mechanism: SampledGaussian | LaplaceShift | RandomizedResponse,
    law: privacy_loss_distribution.PrivacyLossDistribution,
) -> None:
    assert mechanism.epsilon() == pytest.approx(law.get_epsilon_for_delta(DELTA), rel=1e-3)


def test_a_true_claim_is_kept_and_half_of_the_noise_breaks_it() -> None:
    true, claimed = LaplaceShift(pure=2.0), LaplaceShift(pure=2.0).epsilon()
    kept = judged(true, true.title, claimed, 500, {"seed": 0, "run": 0})
    assert (kept.planted, kept.verdict) == (False, VerdictKind.INCONCLUSIVE)
    assert 0.0 < (kept.noted["CorrectedThresholdEpsilon on statistic"] or 0.0) < claimed
    # A bound that holds for Gaussians alone is none here.
    assert not any(name.startswith("GaussianFit") for name in kept.noted)
    broken = judged(true.broken(), true.title, claimed, 5000, {"seed": 0, "run": 0})
    assert (broken.planted, broken.verdict, broken.reason) == (True, VerdictKind.LEAKS, "claim_broken")


def test_a_release_of_one_hypothesis_twice_has_an_epsilon_of_0() -> None:
    assert Released(twice=True).epsilon() == 0.0
    assert Released(std=1.0).epsilon() < Released(std=0.5).epsilon()


def test_counts_leave_out_what_no_control_bears_out_and_miss_nothing() -> None:
    def one(verdict: VerdictKind, *, planted: bool = False, control: bool | None = True) -> Judged:
        return Judged(group="x", planted=planted, verdict=verdict, reason="because", control=control)

    every = [
        one(VerdictKind.LEAKS),
        one(VerdictKind.INCONCLUSIVE),
        one(VerdictKind.INCONCLUSIVE, control=False),
        one(VerdictKind.LEAKS, planted=True),
        one(VerdictKind.INCONCLUSIVE, planted=True, control=False),
    ]
    assert (false_leaks("x", every).hits, false_leaks("x", every).trials) == (1, 2)
    assert (missed("x", every).hits, missed("x", every).trials) == (1, 2)
    null, planted = table("title", every).rows
    assert null[:2] + null[-1:] == ["x", "3", "because 2"]
    assert planted[0] == "planted: x"
    # Clopper and Pearson: 1 - 0.025^(1/100).
    assert Count(name="x", hits=0, trials=100).text == "0 of 100 (0.0 to 3.6 %)"


def test_a_fixed_update_holds_nothing_of_the_batch_and_division_reads_off_what_does() -> None:
    rows = Data.ROWS.draw(4, torch.Generator().manual_seed(0))
    domain = rows.domain
    assert isinstance(domain, Domain)
    objective = Objective.from_module(nn.Linear(8, 10))
    plain = Release(FedSGD())
    first, second = part(rows, 0, 1), part(rows, 1, 2)
    update = plain(objective, first, torch.Generator())
    fixed = Release(FedSGD(), [FixedUpdate(tensors=update.tensors)])
    assert torch.equal(fixed(objective, second, torch.Generator()).tensors["weight"], update.tensors["weight"])
    known = HonestButCurious().disclose(objective, plain, first)
    claim = Division()(update, known, generator=torch.Generator())
    assert claim.inputs is not None
    assert torch.allclose(claim.inputs, first.inputs, atol=1e-5)
    biased = HonestButCurious().disclose(Objective.from_module(IgnoresInputs(10)), plain, first)
    with pytest.raises(UnsupportedError, match="expected a first layer that is linear and has a bias"):
        Division()(update, biased, generator=torch.Generator())


def test_public_rows_hold_no_copy_of_a_private_one() -> None:
    rows = Data.ALIKE.draw(5, torch.Generator().manual_seed(0))
    twice = Batch(torch.cat([rows.inputs, rows.inputs[:2]]), torch.cat([rows.targets, rows.targets[:2]]), rows.domain)
    assert torch.equal(unlike(twice, part(rows, 0, 2)).inputs, rows.inputs[2:])


def test_another_batch_as_the_claim_is_a_leak_of_rows_that_are_alike_and_not_beside_public_ones() -> None:
    counts = [Swap(data=Data.ALIKE, batch=1, public=public).taken(10, 0).hits for public in (False, True)]
    assert counts[0] >= 8
    assert counts[1] == 0


@pytest.mark.parametrize(("nothing", "leaks"), [(Empty.SWAPPED, False), (None, True)])
def test_an_audit_calls_an_undefended_release_a_leak_and_a_swapped_one_none(nothing: Empty | None, leaks: bool) -> None:
    setting = AuditSetting(
        data=Data.DIGITS, network=Network.RELU, attack="division", nothing=nothing, batch=1, number=1
    )
    (found,) = setting.judged(0)
    assert (found.leaks, found.planted, found.control) == (leaks, leaks, True)


@pytest.mark.slow
def test_a_leak_is_found_among_releases_that_carry_nothing() -> None:
    setting = AuditSetting(
        data=Data.SIGNALS, network=Network.TANH, attack="gauss_newton", nothing=None, batch=1, number=1, among=True
    )
    assert [(one.planted, one.leaks) for one in setting.judged(0)] == [(False, False), (True, True), (False, False)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(Kind))
def test_a_game_finds_what_moves_the_inputs_and_nothing_where_it_is_shuffled(kind: Kind) -> None:
    planted, shuffled = (GameSetting(kind=kind, nothing=way, number=1).play(0) for way in (None, Nothing.SHUFFLED))
    assert (planted.verdict, planted.control) == (VerdictKind.LEAKS, True)
    assert (shuffled.verdict, shuffled.control) == (VerdictKind.INCONCLUSIVE, True)


@pytest.mark.slow
def test_a_killed_study_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    cells = str(tmp_path / "cells.jsonl")
    small = {"audits": 6, "planted_audits": 3, "games": 4, "planted_games": 1, "runs": 1, "broken_runs": 1, "swaps": 2}
    first = NullControls(cells=cells, **small).run(say=_quiet)
    written = Path(cells).stat().st_size
    again = NullControls(cells=cells, **small).run(say=_quiet)
    assert Path(cells).stat().st_size == written
    assert [table.rows for table in first.tables] == [table.rows for table in again.tables]
    named = {finding.quantity: finding for finding in first.findings}
    assert named["undefended releases: missed"].ours == 0.0
    assert named["reconstruction audits: false leaks"].n == 6 + 2
    assert np.isclose(named["epsilon: false leaks"].n, 48)
