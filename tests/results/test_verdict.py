from __future__ import annotations

import json

import pytest

from gradleak.results import InputError, Subject, Verdict, VerdictKind


def test_round_trip_through_json() -> None:
    verdict = Verdict(
        item="undefended/example 3",
        verdict=VerdictKind.LEAKS,
        reason="attack_reached_threshold",
        explanation="An attack without truth reached it.",
        details={"thresholds": {"pixel_rmse": 0.1}, "psnr": float("inf")},
        audit="release",
        scenario="undefended",
        subject=Subject(noun="example", name="3"),
    )
    line = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert line["verdict"] == "leaks"
    assert line["details"]["psnr"] == "inf"
    assert Verdict.from_dict(line).to_dict() == line
    assert Verdict.from_dict(line).subject == verdict.subject


@pytest.mark.parametrize(
    "change",
    [
        {"reason": -1},
        {"reason": None},
        {"item": None},
        {"details": 3},
        {"subject": "x"},
        {"subject": {"noun": 1}},
        {"audit": []},
    ],
)
def test_a_wrong_field_is_one_clear_error(change: dict[str, object]) -> None:
    line = {"item": "a", "verdict": "leaks", "reason": "r", "explanation": "e"}
    with pytest.raises(InputError, match=r"expected what Verdict\.to_dict wrote"):
        Verdict.from_dict({**line, **change})


def test_there_are_three_verdicts_and_none_is_safe() -> None:
    assert [kind.value for kind in VerdictKind] == ["leaks", "bounded", "inconclusive"]
    with pytest.raises(InputError, match="safe"):
        Verdict.from_dict({"item": "a", "verdict": "safe", "reason": "", "explanation": ""})
    with pytest.raises(InputError, match="item"):
        Verdict.from_dict({"verdict": "leaks", "reason": ""})
