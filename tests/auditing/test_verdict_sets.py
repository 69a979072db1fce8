"""The verdict on a set speaks of the member that leaks most, also where none is shown to leak."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from gradleak.auditing.verdicts import worst_of
from gradleak.results import RUN, Subject, Verdict, VerdictKind
from tests.audits.released.evidence import attack, judged, release


def verdict(item: str, reason: str = "no_attack_reached_threshold", **details: Any) -> Verdict:
    text = f"{item}: {details}"
    return Verdict(item=item, verdict=VerdictKind.INCONCLUSIVE, reason=reason, explanation=text, details=details)


def test_the_best_attack_of_a_scenario_is_the_best_of_its_table() -> None:
    """The first release of a plan spoke for all: 0.19, where the table had 0.164."""
    errors = {"0": 0.19, "1": 0.164, "2": 0.21}
    findings = []
    for name, error in errors.items():
        about = {"subject": Subject(noun="example", name=name)}
        findings += [release(item=f"undefended/example {name}", **about)]
        findings += [attack(error, item=f"undefended/example {name}/gn", **about)]
    *_, scenario, run = judged(*findings)
    for one in (scenario, run):
        assert "undefended/example 1: The best attack (gn) ended at a pixel RMSE of 0.164." in one.explanation
        assert one.details["pixel_rmse"] == 0.164
        assert one.details["worst"] == "undefended/example 1"


@pytest.mark.parametrize(
    ("name", "values", "worst"),
    [
        ("pixel_rmse", (0.3, 0.19, 0.164), 0.164),
        ("advantage", (0.01, 0.04, 0.02), 0.04),
        ("epsilon", (0.3, 0.1, 0.9), 0.9),
    ],
)
def test_whatever_the_order(name: str, values: tuple[float, ...], worst: float) -> None:
    for order in itertools.permutations(values):
        of = worst_of("scenario", [verdict(str(value), **{name: value}) for value in order])
        assert of.details[name] == worst
        assert of.details["worst"] == str(worst)
        assert worst_of(RUN, [of, worst_of("empty", [verdict("other", **{name: None})])]).details[name] == worst


def test_what_was_never_scored_speaks_where_nothing_else_does() -> None:
    silent = verdict("silent", pixel_rmse=None)
    assert worst_of("scenario", [silent, verdict("loud", pixel_rmse=0.4)]).details["worst"] == "loud"
    assert worst_of("scenario", [silent]).details["worst"] == "silent"
    # Another reason is another story: it stays with the first that was tried.
    causes = verdict("sent", "inconsistent_update", pixel_rmse=0.3)
    assert worst_of("scenario", [causes, verdict("loud", pixel_rmse=0.2)]).reason == "inconsistent_update"


def test_of_bags_of_words_the_largest_speaks() -> None:
    """A bound beside it, whose epsilon is no evidence of a leak, spoke before: 71 % of the words, where the table had 100 %."""
    shares = {"noise": (0.71, 1.0), "undefended": (1.0, 1.0), "careless": (1.0, 0.6)}
    found = [
        verdict(name, "words_leak", bag={"attack": "rows", "recall": recall, "precision": precision})
        for name, (recall, precision) in shares.items()
    ]
    bounded = verdict("DP", "words_leak", epsilon=9.0, bag={"attack": "rows", "recall": 0.6, "precision": 1.0})
    for order in itertools.permutations([*found, bounded]):
        assert worst_of(RUN, order).details["worst"] == "undefended"
