"""Findings of profiles: they hold every score, and nothing of a single row."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np

from gradleak.auditing import record_of
from gradleak.audits.layers import findings_of_profiles
from gradleak.audits.layers.measured import finding_of_profile, profile_of
from gradleak.results import Evidence, Leakier, Outcome, Score, Status
from gradleak.results.findings.layers import LayersFinding
from gradleak.risk import LayerProfile, advise
from gradleak.risk.layer_profile import PairedRows

EMPTY = LayersFinding(item="plain/audit/leak", audit="audit", scenario="plain", measure="leak")


def score(value: float | None, interval: tuple[float, float] | None = None) -> Score:
    return Score(
        name="leak",
        value=value,
        unit="nats",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ESTIMATE,
        interval=interval,
        outcome=Outcome.NOT_FINITE if value is None else Outcome.CONVERGED,
    )


def profile(**scores: Score) -> LayerProfile:
    return LayerProfile(measure="leak", scores=scores, groups={name: (f"{name}.weight",) for name in scores})


def test_a_finding_is_json_and_holds_the_scores_and_who_may_lead() -> None:
    made = profile(a=score(3.0, (2.0, 4.0)), b=score(2.5, (1.0, 3.0)), c=score(0.5, (0.0, 1.5)), d=score(None))
    finding = finding_of_profile(made, EMPTY)
    again = LayersFinding.from_dict(json.loads(json.dumps(finding.to_dict(), allow_nan=False)))
    assert again == finding
    assert {name: replace(one, about={}) for name, one in again.by_layer.items()} == made.scores
    assert [layer.rival for layer in again.layers] == [False, True, False, None]
    assert profile_of(again) == made
    assert again.value("leak", layer="b") == 2.5


def test_what_single_rows_contribute_is_in_no_finding() -> None:
    bare = profile(a=score(3.0, (2.0, 4.0)), b=score(2.5, (2.0, 3.0)))
    values = {"a": np.array([2.9, 3.0, 3.1]), "b": np.array([2.4, 2.5, 2.6])}
    rows = PairedRows(values=values, clusters=np.arange(3), confidence=0.95)
    finding = finding_of_profile(replace(bare, rows=rows), EMPTY)
    # By the same rows the two are told apart, by intervals they are not.
    assert [layer.rival for layer in finding.layers] == [False, False]
    assert [layer.rival for layer in finding_of_profile(bare, EMPTY).layers] == [False, True]
    unmarked = [layer.but(rival=None) for layer in finding.layers]
    assert unmarked == [layer.but(rival=None) for layer in finding_of_profile(bare, EMPTY).layers]
    assert finding.scores == finding_of_profile(bare, EMPTY).scores


def test_a_refusal_is_told_and_no_layer_has_a_value() -> None:
    finding = finding_of_profile(profile(a=score(None)), EMPTY, "no such release")
    assert (finding.status, finding.note, finding.outcome) == (Status.REFUSED, "no such release", Outcome.NOT_FINITE)
    assert finding.value("leak", layer="a") is None


def test_profiles_and_advice_of_ones_own_make_a_record() -> None:
    made = profile(a=score(3.0, (2.0, 4.0)), b=score(0.5, (0.0, 1.5)))
    latent = replace(made, measure="latent_information (forest)")
    told = advise([made, latent], {"a.weight": 10, "b.weight": 90})
    first, second, last = findings_of_profiles([made, latent], told, audit="own")
    assert [one.about for one in (first, second)] == ["original", "latent"]
    assert (first.item, last.item) == ("release/own/leak", "release/own/advice")
    assert last.advice is not None
    assert [(layer.name, layer.chosen) for layer in last.advice.layers] == [("a", True), ("b", False)]
    assert [verdict.reason for verdict in record_of([first, second, last]).verdicts] == ["layers_compared"] * 3
