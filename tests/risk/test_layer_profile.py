from __future__ import annotations

import json

import pytest

from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk import LayerProfile


def score(value: float | None, interval: tuple[float, float] | None = None, leakier: Leakier = Leakier.HIGHER) -> Score:
    return Score(
        name="leak",
        value=value,
        unit="nats",
        leakier=leakier,
        evidence=Evidence.ESTIMATE,
        interval=interval,
        outcome=Outcome.CONVERGED if value is not None else Outcome.NOT_FINITE,
    )


def profile(**scores: Score) -> LayerProfile:
    return LayerProfile(measure="leak", scores=scores, groups={name: (f"{name}.weight",) for name in scores})


def test_the_leakiest_comes_first_and_what_could_not_be_told_last() -> None:
    found = profile(a=score(1.0), b=score(None), c=score(3.0))
    assert found.ranked == ["c", "a", "b"]
    assert found.leakiest == "c"
    assert [line["rank"] for line in found.lines("digits")] == [2, None, 1]


def test_lower_values_rank_first_where_lower_leaks() -> None:
    found = profile(a=score(1.0, leakier=Leakier.LOWER), b=score(0.5, leakier=Leakier.LOWER))
    assert found.ranked == ["b", "a"]


def test_rivals_are_those_whose_intervals_meet_the_first() -> None:
    found = profile(a=score(3.0, (2.0, 4.0)), b=score(2.5, (1.0, 3.0)), c=score(0.5, (0.0, 1.5)), d=score(1.0))
    assert found.rivals() == ["b", "d"]
    assert profile(a=score(None)).rivals() == []
    assert profile(a=score(None)).leakiest is None


def test_lines_are_json_and_hold_the_score() -> None:
    (line,) = profile(a=score(1.0, (0.5, 2.0))).lines("digits")
    again = json.loads(json.dumps(line, allow_nan=False))
    assert Score.from_dict(again["score"]) == score(1.0, (0.5, 2.0))
    assert (again["item"], again["layer"], again["tensors"]) == ("digits", "a", ["a.weight"])


def test_refuses_scores_without_their_groups() -> None:
    with pytest.raises(InputError, match="expected one score a group"):
        LayerProfile(measure="leak", scores={"a": score(1.0)}, groups={"b": ("b.weight",)})
    with pytest.raises(InputError, match="expected one score a group"):
        LayerProfile(measure="leak", scores={}, groups={})
