"""Utility beside privacy: credit, warnings and what an epsilon holds for, from made-up lines of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gradleak.reporting.reading import load, read
from gradleak.reporting.utility_view import UtilityView, epsilon_terms, utilities, warnings

from gradleak.reporting.numerals import Quantity, beside_blind, quantity
from gradleak.results import Evidence, Leakier, Outcome, Score


def _score(name: str, value: float | None, **fields: Any) -> Score:
    return Score(
        name=name,
        value=value,
        unit=fields.pop("unit", "share"),
        leakier=Leakier.NEITHER,
        evidence=Evidence.ESTIMATE,
        n=200,
        outcome=fields.pop("outcome", Outcome.CONVERGED),
        note="",
        **fields,
    )


def _views(folder: Path, *rows: dict[str, Any]) -> list[UtilityView]:
    """One scenario a row: name, value, interval, and what else stands in its line."""
    lines: list[dict[str, Any]] = [
        {"type": "run", "schema": 1, "gradleak": "0", "plan_digest": "0", "name": "u", "seed": 0}
    ]
    for row in rows:
        item = f"{row['name']}/utility"
        place = {"item": item, "scenario": row["name"], "example": None, "attack": None}
        release = {"use": "Release", "defenses": row.get("defenses", [])}
        lines.append({"type": "item", "kind": "utility", "status": "done", "outcome": "converged", "note": "", **place}
                     | {"release": release, "seconds": 0.0} | row.get("line", {}))  # fmt: skip
        made = _score(
            "test_accuracy", row["value"], interval=row["interval"], details={"blind": 0.13, "seeds": [0, 1, 2]}
        )
        lines.append({"type": "score", **place, **made.to_dict()})
        for other in row.get("more", ()):
            lines.append({"type": "item", "status": "done", "outcome": None, "note": "", "seconds": 0.0} | other)
    for place, line in enumerate(lines[1:]):
        line |= {"group": "all", "line": place, "of": len(lines) - 1}
    folder.mkdir(exist_ok=True)
    (folder / "record.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return utilities(read(load(folder)))


def test_a_reference_that_learned_nothing_is_no_measure(tmp_path: Path) -> None:
    undefended = {"name": "undefended", "value": 0.28, "interval": (0.131, 0.49), "line": {"standing": "above"}}
    sign = {"name": "sign", "value": 0.75, "interval": (0.46, 0.92), "defenses": [{"use": "Sign"}]}
    found = warnings(_views(tmp_path / "a", undefended, sign))
    assert len(found) == 2
    assert "undefended, the reference without a defense, is itself near the best answer" in found[0]
    assert "sign does better than undefended" in found[1]
    good = undefended | {"value": 0.93, "interval": (0.9, 0.95)}
    assert warnings(_views(tmp_path / "b", good, sign)) == []
    unresolved = good | {"interval": (0.1, 1.0), "line": {"standing": "not_resolvable"}}
    (told,) = warnings(_views(tmp_path / "d", unresolved))
    assert "cannot be told from the best answer that ignores the input (10 % to 100 % holds 13 %)" in told.replace(
        "\u00a0", " "
    )
    assert "No undefended training" in warnings(_views(tmp_path / "c", sign))[0]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ({"standing": "above", "credit": True}, "yes"),
        ({"standing": "not_above", "credit": False}, "no"),
        ({"standing": "not_resolvable", "credit": False}, "not resolvable"),
        ({"credit": True}, "yes"),  # records of before
    ],
)
def test_credit_has_three_answers(line: dict[str, Any], shown: str, tmp_path: Path) -> None:
    (view,) = _views(tmp_path, {"name": "a", "value": 0.2, "interval": (0.1, 0.3), "line": line})
    assert view.standing == shown


def test_privacy_and_utility_of_the_same_release_need_no_warning(tmp_path: Path) -> None:
    attacked = {
        "item": "a/example 0",
        "kind": "release",
        "scenario": "a",
        "example": 0,
        "batch_size": 16,
        "noise_std": 0.5,
    }
    row = {"name": "a", "value": 0.9, "interval": (0.8, 0.95), "more": [attacked]}
    row["line"] = {"standing": "above", "examples": 16, "noise_std": 0.5}
    assert warnings(_views(tmp_path / "same", row)) == []
    row["line"] = {"standing": "above", "examples": 16, "noise_std": 0.25}
    (found,) = warnings(_views(tmp_path / "other", row))
    assert "(16 examples, noise std 0.5 against 16 examples, noise std 0.25)" in found


@pytest.mark.parametrize(
    ("value", "blind", "shown"),
    [(0.3, 0.31, "0.3"), (14.2, 0.394, "above blind (14.2)"), (0.9, None, "0.9"), (1.5, None, "above the range (1.5)")],
)
def test_a_prediction_above_blind_is_said_in_words(value: float, blind: float | None, shown: str) -> None:
    made = beside_blind(quantity(_score("inversion_influence", value, unit="pixel_rmse")), Quantity(value=blind))
    assert made.text == shown
    assert made.value == value


def test_a_verdict_calls_a_batch_what_the_tables_call_it(tmp_path: Path) -> None:
    attacked = {"item": "a/example 1", "kind": "release", "scenario": "a", "example": 1, "batch_size": 2}
    _views(tmp_path, {"name": "a", "value": 0.9, "interval": (0.8, 0.95), "more": [attacked]})
    reading = read(load(tmp_path))
    assert reading.printed("Worst, a/example 1: gn rebuilt an example.") == "Worst, a/batch 1: gn rebuilt an example."
    assert reading.printed("Worst, a/example 0, one example.") == "Worst, a/example 0, one example."


def test_an_epsilon_says_what_it_holds_for() -> None:
    details = {
        "delta": 1e-5,
        "rounds": 100,
        "steps_per_round": 2,
        "sampling": "Poisson, rate 0.01",
        "adjacency": "add_or_remove",
        "unit": "example",
    }
    assert epsilon_terms(_score("pld_epsilon", 1.9, unit="epsilon", details=details)) == (
        "δ = 10⁻⁵, takes part in 100 rounds of 2 steps, Poisson sampling at rate 0.01, add or remove, hides one example"
    )
    none = _score("pld_epsilon", None, unit="epsilon", outcome=Outcome.NOT_INFORMATIVE)
    assert epsilon_terms(none) == epsilon_terms(None) == ""
