"""The search for the weakest bounded setting at a utility."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import advise as room
from gradleak.auditing.advise import Tried, advise
from gradleak.results import Evidence, Leakier, PlanError, Score, VerdictKind
from tests.audits.utility.test_utility import PLAN


def content(**defense: Any) -> dict[str, Any]:
    table = tomllib.loads(PLAN)
    table["scenarios"][1]["defenses"][0] |= {"noise_std": [0.25, 64.0]} | defense
    return table


def worth(value: float) -> Score:
    return Score(
        name="test_accuracy",
        value=value,
        unit="share",
        leakier=Leakier.NEITHER,
        evidence=Evidence.ESTIMATE,
        interval=(value - 0.01, value + 0.01),
    )


def searched(monkeypatch: pytest.MonkeyPatch, bounded: Any, utility: Any, target: float = 0.5) -> room.Advice:
    def run(self: Any, value: float) -> Tried:
        verdict = VerdictKind.BOUNDED if bounded(value) else VerdictKind.INCONCLUSIVE
        found = Tried(value=value, verdict=verdict, utility=worth(utility(value)), unproven=not bounded(value))
        return self.tried.setdefault(value, found)

    monkeypatch.setattr("gradleak.auditing.advise._Search.run", run)
    return advise(content(), folder=Path(), utility=target, out=Path())


def test_halving_finds_the_weakest_bounded_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch, lambda value: value >= 3, lambda value: 0.9 - value / 100)
    assert found.chosen is not None
    assert found.chosen.value == 3.36
    assert len(found.tried) == 7
    assert [one.value for one in found.tried] == sorted(one.value for one in found.tried)
    assert found.open == ["between 2.83 and 3.36 nothing was tried"]
    assert str(found.tried[0]) == "0.25: inconclusive, test_accuracy 0.898 (0.888 to 0.908)"


def test_what_is_bounded_may_be_worth_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch, lambda value: value >= 3, lambda value: 0.4)
    assert found.chosen is None
    assert "what is bounded is worth less than 0.5" in found.open
    near = searched(monkeypatch, lambda value: value >= 3, lambda value: 0.505)
    assert near.chosen is not None
    assert "the interval of its utility goes below 0.5: more seeds or test rows would tell" in near.open


def test_without_order_a_grid_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    found = searched(monkeypatch, lambda value: value >= 3, lambda value: 0.9 if value > 60 or value == 4 else 0.6)
    assert any("a grid was tried" in sentence for sentence in found.open)
    assert len(found.tried) == 7


@pytest.mark.parametrize(("bounded", "said"), [(True, "is bounded already"), (False, "no end is bounded")])
def test_ends_that_agree_are_told(monkeypatch: pytest.MonkeyPatch, bounded: bool, said: str) -> None:
    found = searched(monkeypatch, lambda value: bounded, lambda value: 0.9 - value / 100)
    assert any(said in sentence for sentence in found.open)
    assert (found.chosen is not None) is bounded


def test_a_plan_needs_one_list_and_utility(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="expected one list of numbers among the scenarios, got none; write such as"):
        advise(content(noise_std=1.0), folder=tmp_path, utility=0.5, out=tmp_path)
    with pytest.raises(PlanError, match="at least two different numbers above 0 in noise_std"):
        advise(content(noise_std=[-1.0, 2.0]), folder=tmp_path, utility=0.5, out=tmp_path)
    with pytest.raises(PlanError, match=r"--utility: expected a finite number such as an accuracy of 0.8, got nan"):
        advise(content(), folder=tmp_path, utility=float("nan"), out=tmp_path)
    bare = {key: value for key, value in content().items() if key != "utility"}
    with pytest.raises(PlanError, match=r"expected a section \[utility\]"):
        advise(bare, folder=tmp_path, utility=0.5, out=tmp_path)


@pytest.mark.slow
def test_a_real_search_ends_with_what_was_found(tmp_path: Path) -> None:
    table = content(noise_std=[0.5, 2.0]) | {
        "measures": {"chance": {"use": "ReconstructionProbability", "candidates": 1000}}
    }
    table["utility"] |= {"rounds": 2, "seeds": 1}
    found = advise(table, folder=tmp_path, utility=0.0, out=tmp_path / "runs", jobs=1)
    assert found.chosen is not None
    # Φ(1/σ + Φ⁻¹(1/1000)) is 0.05 at σ = 0.692.
    assert 0.692 <= found.chosen.value < 0.75
    assert [one.bounded for one in found.tried] == sorted(one.bounded for one in found.tried)
