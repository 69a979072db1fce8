from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk import LayerProfile
from gradleak.risk.layer_profile import PairedRows


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


def test_lower_values_rank_first_where_lower_leaks() -> None:
    found = profile(a=score(1.0, leakier=Leakier.LOWER), b=score(0.5, leakier=Leakier.LOWER))
    assert found.ranked == ["b", "a"]


def test_rivals_are_those_whose_intervals_meet_the_first() -> None:
    found = profile(a=score(3.0, (2.0, 4.0)), b=score(2.5, (1.0, 3.0)), c=score(0.5, (0.0, 1.5)), d=score(1.0))
    assert found.rivals() == ["b", "d"]
    assert profile(a=score(None)).rivals() == []
    assert profile(a=score(None)).leakiest is None


def test_refuses_scores_without_their_groups() -> None:
    with pytest.raises(InputError, match="expected one score a group"):
        LayerProfile(measure="leak", scores={"a": score(1.0)}, groups={"b": ("b.weight",)})
    with pytest.raises(InputError, match="expected one score a group"):
        LayerProfile(measure="leak", scores={}, groups={})


def rows(**values: list[float]) -> PairedRows:
    count = len(next(iter(values.values())))
    return PairedRows(
        values={name: np.array(column) for name, column in values.items()}, clusters=np.arange(count), resamples=200
    )


def with_rows(leakier: Leakier = Leakier.HIGHER) -> LayerProfile:
    """Rows that vary by far more than the layers differ, so that single intervals meet."""
    base = np.linspace(0.0, 10.0, 40)
    ripple = 0.05 * np.sin(np.arange(40.0))
    values = {"a": base, "b": base + 0.5 + ripple, "c": base + 0.5 + 0.9 * ripple}
    scores = {name: score(float(column.mean()), (2.0, 9.0), leakier) for name, column in values.items()}
    return LayerProfile(
        measure="leak",
        scores=scores,
        groups={name: (f"{name}.weight",) for name in scores},
        rows=rows(**{name: column.tolist() for name, column in values.items()}),
    )


def test_the_same_rows_tell_layers_apart_whose_intervals_meet() -> None:
    found = with_rows()
    assert found.leakiest == "b"
    assert found.rivals() == ["c"]
    assert replace(found, rows=None).rivals() == ["c", "a"]
    apart = found.difference("b", "a")
    assert apart.interval is not None
    assert 0.0 < apart.interval[0] < 0.5 < apart.interval[1]
    assert (apart.name, apart.unit, apart.n) == ("leak_difference", "nats", 40)
    assert apart.note == "b leaks more than a"
    assert found.difference("a", "b").note == "b leaks more than a"
    assert found.difference("b", "c").note == "b and c are not told apart"


def test_where_lower_values_leak_the_smaller_one_leaks_more() -> None:
    found = with_rows(Leakier.LOWER)
    assert found.difference("b", "a").note == "a leaks more than b"
    assert found.rivals() == []


def test_a_difference_without_rows_or_values_says_so() -> None:
    found = profile(a=score(3.0, (2.0, 4.0)), b=score(2.5, (1.0, 3.0)), c=score(None))
    apart = found.difference("a", "b")
    assert (apart.value, apart.interval) == (0.5, None)
    assert "does not say what single rows contribute" in apart.note
    lost = found.difference("a", "c")
    assert (lost.value, lost.outcome) == (None, Outcome.NOT_FINITE)
    with pytest.raises(InputError, match="expected one of a, b, c, got 'd'"):
        found.difference("a", "d")
    with pytest.raises(InputError, match="expected two groups"):
        found.difference("a", "a")
    with pytest.raises(InputError, match="expected rows of every group with a value"):
        replace(found, rows=rows(a=[1.0, 2.0]))
