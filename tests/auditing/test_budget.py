"""A time budget: cheap evidence first, what is hopeless or too long left out and said, controls once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton, InvertingGradients
from gradleak.auditing import AuditOptions, Budget, audit
from gradleak.auditing.budget import seconds_of
from gradleak.core import Batch, Release
from gradleak.datasets import scikit_digits
from gradleak.defenses import DPSGD
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Record, Status


def model() -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return made


def batch(count: int = 1) -> Batch:
    digits = scikit_digits(count=count, seed=3)
    return Batch(digits.inputs, digits.targets, digits.domain)


def run(of: Batch, budget: Any, **arguments: Any) -> Record:
    return audit(model(), of, options=AuditOptions(quiet=True, budget=budget), **arguments)


def by_item(record: Record) -> dict[str, Any]:
    return {finding.item: finding for finding in record.findings}


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("1.5m", 90), ("2min", 120), ("500ms", 0.5), (7, 7.0)])
def test_times_are_read(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("bad", ["", "30", "s", "-3s", "\u0663s", "3 weeks", 0, -1, True, None, float("inf")])
def test_other_times_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match='expected seconds, or a text such as "30s" or "2m" with its unit, got '):
        seconds_of(bad)


def test_what_leaks_is_found_controls_are_made_once_and_the_rest_is_left_out() -> None:
    budget = Budget("60s")
    attacks = {"gauss_newton": GaussNewton(max_steps=12, starts=1), "slow": InvertingGradients(iterations=50)}
    first, second = (run(batch(), budget, attacks=attacks) for _ in range(2))
    for record in (first, second):
        assert record.verdicts[-1].verdict.value == "leaks"
        found = by_item(record)
        left = found["release/example 0/slow"]
        assert (left.status, left.outcome) == (Status.LEFT_OUT, None)
        assert left.note == "left out: another attack has rebuilt an example already"
        assert "nothing to bear out" in found["control/negative/slow"].note
    for control in ("control/positive", "control/negative/gauss_newton"):
        assert by_item(first)[control].control.passed is True
        assert "made once in this process" not in by_item(first)[control].note
        assert by_item(second)[control].control.passed is True
        assert "made once in this process" in by_item(second)[control].note


def test_no_attack_is_begun_where_the_closed_form_leaves_none_a_chance() -> None:
    release = Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")])
    record = run(batch(2), "60s", release=release)
    verdict = record.verdicts[0]
    assert (verdict.verdict.value, verdict.reason) == ("inconclusive", "no_attack_had_a_chance")
    assert "the closed form leaves an error of at least" in verdict.explanation
    assert "no evidence of safety" in verdict.explanation
    (score,) = [score for one in record.findings if (score := one.score("linearized_posterior_error")) is not None]
    errors = score.details["per_example"]
    assert min(errors) > 0.2
    # The mean of the squares over the examples is the value's own.
    assert sum(error**2 for error in errors) / 2 == pytest.approx(score.value**2)
    assert all(one.status is Status.LEFT_OUT for one in record.findings if one.item.startswith("control/"))


def test_what_would_not_end_in_time_is_left_out_and_tried_by_the_next_run(tmp_path: Path) -> None:
    attacks = {"gauss_newton": GaussNewton(max_steps=12, starts=1)}
    short = run(batch(), 1e-9, attacks=attacks, out=tmp_path, measures=[])
    attempt = by_item(short)["release/example 0/gauss_newton"]
    assert attempt.status is Status.LEFT_OUT
    assert attempt.outcome is not None
    assert attempt.outcome.label == "budget_spent"
    assert "of the budget of 1e-09 s are left" in attempt.note
    assert short.verdicts[0].reason == "left_out_by_budget"
    assert "left out: it would take about" in short.verdicts[0].explanation
    whole = audit(model(), batch(), attacks=attacks, measures=[], out=tmp_path, options=AuditOptions(quiet=True))
    assert whole.verdicts[-1].verdict.value == "leaks"
    assert not [one for one in whole.findings if one.status is Status.LEFT_OUT]
