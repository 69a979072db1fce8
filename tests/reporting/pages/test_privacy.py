"""The section on measured privacy loss, from lines that were made up: nothing is tried."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from gradleak.reporting.privacy_plots import epsilon_plot, histogram_plot, privacy_plots
from gradleak.reporting.privacy_view import PrivacyView, broken, noted, privacies, shown_theory
from gradleak.reporting.reading import read
from gradleak.reporting.report import build
from gradleak.reporting.summary import summarize
from tests.reporting.parsed import Page

from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.results import Evidence, Leakier, Outcome, Record, Score

Row = dict[str, Any]


def score_line(place: Mapping[str, Any], name: str, value: float | None, **more: Any) -> Row:
    beside = {key: more.pop(key) for key in ("statistic", "estimator") if key in more}
    score = Score(
        name=name,
        value=value,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence(more.pop("evidence", "lower_bound")),
        n=more.pop("n", 4000),
        **more,
    )
    return {"type": "score", **place, **beside, **score.to_dict()}


def audited(
    scenario: str,
    bound: float | None,
    *,
    pair: str = "canary, epoch 0",
    claim: float | None = 5.0,
    exact: float | None = 4.0,
    reason: str = "epsilon_above_threshold",
    **item: Any,
) -> list[Row]:
    """The lines of one pair of one audit: two statistics, a bound and an estimate, theory and histograms."""
    place = {"item": f"{scenario}/sex", "scenario": scenario, "pair": pair}
    counts = {"edges": [0.0, 1.0, 2.0, 4.0], "null": [70, 30, 0], "alternative": [10, 40, 50]}
    line = {
        "type": "item",
        "kind": "privacy",
        **place,
        "audit_name": "sex",
        "audit": {"use": "AttributeAudit"},
        "status": "done",
        "outcome": "converged",
        "note": "",
        "trials": 2000,
        "settings": "all hold together",
        "claim": {"epsilon": claim, "delta": 1e-5, "of": "a record replaced", "reason": "nothing is added"},
        "histograms": [{"statistic": name, **counts} for name in ("distance", "likelihood_ratio")],
    } | item
    details = {"largest_certifiable": 6.5, "direction": "higher_values_for_h1", "selection": "a separate split"}
    lines = [line]
    if exact is not None:
        lines.append(score_line(place, "per_attribute_epsilon", exact, evidence="exact"))
        lines.append(score_line(place, "gaussian_epsilon", 2 * exact, evidence="exact"))
    for statistic, share in (("distance", 0.5), ("likelihood_ratio", 1.0)):
        value = None if bound is None else share * bound
        outcome = Outcome.NOT_RESOLVABLE if bound is None else Outcome.CONVERGED
        lines.append(
            score_line(
                place,
                "epsilon_lower_bound",
                value,
                statistic=statistic,
                estimator="SplitThresholdEpsilon",
                interval=None if value is None else (0.9 * value, 1.2 * value),
                outcome=outcome,
                details=details,
                note="" if bound is not None else "too few trials",
            )
        )
    lines.append(
        score_line(place, "epsilon_estimate", 9.0, statistic="distance", estimator="PlugInEpsilon", evidence="estimate")
    )
    verdict = {"type": "verdict", "item": f"{scenario}/sex", "verdict": "leaks", "reason": reason, "explanation": "so"}
    lines.append(verdict | {"details": {"threshold_epsilon": 1.0}})
    return lines


def record(*groups: Sequence[Mapping[str, Any]]) -> Record:
    return Record(run={"type": "run", "name": "audits"}, lines=tuple(line for group in groups for line in group))


def views(*groups: Sequence[Mapping[str, Any]]) -> list[PrivacyView]:
    return privacies(read(record(*groups)))


def test_the_largest_bound_stands_beside_claim_theory_and_ceiling() -> None:
    (view,) = views(audited("dp", 3.0))
    assert view.label == "dp · attribute sex · canary, epoch 0"
    assert view.best is not None
    # The estimate of 9 is larger, and is no bound.
    assert (view.best.epsilon.value, view.best.statistic, view.best.largest) == (3.0, "likelihood_ratio", 6.5)
    assert (view.claim.value, view.exact.value, view.delta, view.trials) == (5.0, 4.0, 1e-5, 2000)
    assert view.best.direction == "higher values for the alternative"
    assert shown_theory([view]) == ["per_attribute_epsilon", "gaussian_epsilon"]
    assert (view.state, view.loud) == ("leaks: above the threshold", False)


@pytest.mark.parametrize(
    ("bound", "claim", "reason", "state"),
    [
        (6.0, 5.0, "claim_broken", "THE CLAIM IS BROKEN"),
        (0.5, 5.0, "claim_broken", "told apart, within the claim"),
        (0.5, None, "epsilon_above_threshold", "told apart, below the threshold"),
        (2.0, 5.0, "claim_broken", "leaks: above the threshold"),
        (0.0, 5.0, "claim_broken", "not told apart"),
        (0.0, 0.5, "epsilon_bounded", "bounded by what is claimed; not contradicted"),
        (0.5, 5.0, "control_failed", "a control failed"),
    ],
)
def test_each_pair_has_a_state_of_its_own(bound: float, claim: float | None, reason: str, state: str) -> None:
    (view,) = views(audited("dp", bound, claim=claim, reason=reason))
    assert view.state == state
    assert view.loud is (state == "THE CLAIM IS BROKEN")


def test_a_broken_claim_stands_at_the_top_of_every_report() -> None:
    groups = [audited("dp", 6.0, reason="claim_broken"), audited("fine", 0.5, reason="epsilon_within_claim")]
    assert broken(views(*groups)) == [
        "dp · attribute sex · canary, epoch 0: epsilon is at least 6, and 5 is claimed (a record replaced)."
    ]
    report = build(record(*groups))
    page = Page(render_html(report)).text
    assert page.index("The claim is broken.") < page.index("Empirical privacy loss")
    text = render_markdown(report)
    assert text.index("THE CLAIM IS BROKEN") < text.index("## Empirical privacy loss")
    assert "Largest lower bound on epsilon: 6 \\[lower bound\\] (dp · attribute sex · canary, epoch 0)" in text
    assert "So many trials can certify at most: 6.5" in text
    assert [entry["claim_broken"] for entry in summarize(report)["privacy"]] == [True, False]


def test_every_number_is_in_the_document_for_machines() -> None:
    (entry,) = summarize(build(record(audited("dp", 3.0))))["privacy"]
    assert (entry["epsilon_lower_bound"], entry["claimed_epsilon"], entry["delta"]) == (3.0, 5.0, 1e-5)
    assert entry["theory"]["per_attribute_epsilon"] == {"value": 4.0, "evidence": "exact"}
    assert [(m["statistic"], m["value"], m["evidence"]) for m in entry["measured"]] == [
        ("distance", 1.5, "lower_bound"),
        ("likelihood_ratio", 3.0, "lower_bound"),
        ("distance", 9.0, "estimate"),
    ]
    assert entry["measured"][1]["largest_certifiable"] == 6.5
    assert entry["histograms"][0]["null"] == [70, 30, 0]


def test_without_noise_there_is_infinity_and_no_figure() -> None:
    lines = audited("plain", None, claim=None, exact=None, histograms=[], reason="no_noise")
    place = {key: lines[0][key] for key in ("item", "scenario", "pair")}
    certain = score_line(
        place, "epsilon", float("inf"), statistic="the release itself", estimator="no noise", evidence="exact"
    )
    lines = [line for line in lines if not line.get("estimator")] + [certain]
    (view,) = views(lines)
    assert (view.epsilon.text, view.epsilon.evidence, view.exact.text) == ("∞", "exact", "∞")
    assert view.state == "no noise: perfectly distinguishable"
    assert privacy_plots([view]) == {}
    report = build(record(lines))
    assert "∞ \\[exact\\]" in render_markdown(report)
    assert summarize(report)["privacy"][0]["epsilon_lower_bound"] == "inf"
    json.dumps(summarize(report), allow_nan=False)
    Page(render_html(report))


def test_too_few_trials_are_words_and_no_number() -> None:
    (view,) = views(audited("dp", None, reason="not_resolvable"))
    assert (view.epsilon.text, view.epsilon.value) == ("not resolvable", None)
    report = build(record(audited("dp", None, reason="not_resolvable")))
    assert "not resolvable" in render_markdown(report)
    assert ("dp · attribute sex · canary, epoch 0", "too few trials") in noted([view])


def test_refused_and_failed_audits_have_a_row_with_the_reason() -> None:
    place = {"type": "item", "kind": "privacy", "item": "x/sex", "scenario": "x", "audit_name": "sex"}
    refused = place | {"status": "refused", "outcome": "unsupported", "note": "the model mixes examples"}
    verdict = {"type": "verdict", "item": "x/sex", "verdict": "inconclusive", "reason": "audit_refused", "details": {}}
    report = build(record([refused, verdict]))
    for text in (Page(render_html(report)).text, render_markdown(report)):
        assert "the model mixes examples" in text
        assert "refused" in text
    (view,) = views([refused, verdict])
    assert (view.epsilon.text, view.state) == ("unsupported", "refused")


def test_notes_stand_once_and_name_whom_they_are_about() -> None:
    groups = [audited("a", 3.0), audited("a", 2.0, pair="random record, epoch 0"), audited("b", 3.0)]
    assert ("all audits", "all hold together") in noted(views(*groups))
    for group in groups[:2]:
        group[0]["note"] = "of scenario a"
    groups[2][0]["note"] = "of scenario b"
    found = noted(views(*groups))
    assert ("a · attribute sex", "of scenario a") in found
    assert ("b · attribute sex · canary, epoch 0", "of scenario b") in found


def test_both_hypotheses_are_drawn_by_the_statistic_that_tells_most() -> None:
    svg = histogram_plot(views(audited("$\\sigma$", 3.0), audited("b", 1.0)))
    Page(svg)
    assert svg == histogram_plot(views(audited("$\\sigma$", 3.0), audited("b", 1.0)))
    for words in ("null hypothesis", "alternative", "log likelihood ratio", "$\\sigma$ · attribute sex"):
        assert words in svg
    assert "distance" not in svg
    assert re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", svg)) == []


@pytest.mark.parametrize(
    ("edges", "ticks"),
    [
        ([9.8, 10.4, 11.2], ["9.8", "10", "10.2", "10.4", "10.6", "10.8", "11", "11.2"]),
        ([1000.1, 1000.5, 1001.1], ["1,000.2", "1,000.4", "1,000.6", "1,000.8", "1,001"]),
        ([0.1, 0.11, 0.13], ["0.1", "0.105", "0.11", "0.115", "0.12", "0.125", "0.13"]),
    ],
)
def test_ticks_of_a_histogram_are_the_numbers_at_which_they_stand(edges: list[float], ticks: list[str]) -> None:
    histogram = {"statistic": "distance", "edges": edges, "null": [70, 30], "alternative": [10, 90]}
    page = Page(histogram_plot(views(audited("a", 3.0, histograms=[histogram]))))
    shown = [text.strip() for text in page.by_tag["text"]]
    assert shown[: shown.index("distance")] == ticks


def test_broken_claims_are_drawn_before_others_and_long_names_on_several_lines() -> None:
    quiet = [audited(f"quiet {place}", 0.5, reason="epsilon_within_claim") for place in range(6)]
    loud = audited("DP-SGD with a divisor that depends on the data", 6.0, reason="claim_broken")
    svg = histogram_plot(views(*quiet, loud))
    words = Page(svg).by_tag["text"]
    assert any("DP-SGD with a divisor" in text for text in words)
    assert not any("quiet 5" in text for text in words)
    assert max(map(len, words)) <= 42


def test_epsilon_is_drawn_against_theory_where_there_are_two_points() -> None:
    svg = epsilon_plot(views(audited("a", 3.0), audited("b", 0.0, exact=0.5)))
    Page(svg)
    for words in (
        "exact epsilon of the two hypotheses",
        "SplitThresholdEpsilon, log likelihood ratio",
        "PlugInEpsilon",
    ):
        assert words in svg
    assert epsilon_plot(views(audited("a", 3.0))) == ""
    assert epsilon_plot(views(audited("a", 3.0, exact=None), audited("b", 3.0, exact=None))) == ""


@pytest.mark.parametrize(
    "histogram",
    [
        {"statistic": "x", "edges": [0, 1], "null": [1], "alternative": [1, 2]},
        {"statistic": "x", "edges": [1, 0], "null": [1], "alternative": [1]},
        {"statistic": "x", "edges": [0, "inf"], "null": [1], "alternative": [1]},
        {"statistic": "x", "edges": "0, 1", "null": 3, "alternative": None},
        "no histogram",
        None,
    ],
)
def test_a_histogram_that_cannot_be_drawn_is_left_out(histogram: Any) -> None:
    (view,) = views(audited("a", 3.0, histograms=[histogram]))
    assert view.histograms == []
    assert histogram_plot([view]) == ""


def test_controls_of_an_audit_speak_of_its_bound() -> None:
    lines: list[Row] = []
    for kind, values, passed in (("positive", (0.4, 0.9), True), ("negative", (0.0, 0.7), False)):
        place = {"item": f"control/{kind}/sex", "audit_name": "sex"}
        lines.append({"type": "item", "kind": "control", **place, "passed": passed, "status": "done", "note": ""})
        lines += [score_line(place, "epsilon_lower_bound", value) for value in values]
    report = build(record(audited("a", 3.0), lines))
    positive, negative = report.controls
    assert positive.title == "Positive control of a privacy audit: a planted difference, sex"
    # The one that is nearest to a failure.
    assert (positive.pixel_rmse.value, negative.pixel_rmse.value) == (0.4, 0.7)
    assert [entry["epsilon_lower_bound"] for entry in summarize(report)["controls"]] == [0.4, 0.7]
    text = render_markdown(report)
    assert "**FAILED**, epsilon of at least 0.7" in text
    assert "No bound of this audit can be trusted" in text
    assert "The controls of a privacy audit speak of that audit alone" in Page(render_html(report)).text


def test_hostile_names_are_text() -> None:
    name = "<script>alert(1)</script> | $x$ *"
    report = build(record(audited(name, 3.0), audited(name + "2", 1.0, exact=1.0)))
    html = render_html(report)
    Page(html)
    assert "<script>" not in html
    assert "<script>" not in render_markdown(report)


def test_a_record_cut_short_is_read_as_far_as_it_goes() -> None:
    lines = [*audited("a", 3.0), *audited("b", 1.0)]
    for end in range(len(lines)):
        render_markdown(build(record(lines[:end])))
    bare = {"type": "item", "kind": "privacy", "item": "a/sex"}
    odd = bare | {"claim": 3, "histograms": "x", "audit": None, "scenario": None, "trials": "many"}
    (view,) = views([odd])
    assert (view.epsilon.text, view.state, view.trials) == ("–", "not judged", None)  # noqa: RUF001
    render_html(build(record([odd])))


def test_a_broken_claim_of_several_pairs_is_one_sentence_in_one_box() -> None:
    bounds = (6.0, 9.0, 7.0, 8.0)
    groups = [audited("a, b", b, pair=f"epoch {n}", reason="claim_broken") for n, b in enumerate(bounds)]
    (sentence,) = broken(views(*groups))
    assert sentence == (
        "a, b · attribute sex: epsilon is at least 9 (epoch 1), 8 (epoch 3), 7 (epoch 2) and above the claim for 1 more, and 5 "
        "is claimed (a record replaced)."
    )
    assert render_html(build(record(*groups))).count('class="callout callout-loud"') == 1


def test_a_note_on_the_same_pairs_of_all_scenarios_names_them_once() -> None:
    groups = [audited(s, 3.0, pair=p, settings=f"on {p}") for s in "ab" for p in ("canary", "random")]
    found = noted(views(*groups))
    assert ("attribute sex · canary · all scenarios", "on canary") in found
    assert ("attribute sex · random · all scenarios", "on random") in found


def test_a_report_of_audits_alone_explains_its_words_and_speaks_of_no_reconstruction() -> None:
    report = build(record(audited("dp", 3.0)))
    page, text = Page(render_html(report)), render_markdown(report)
    for shown in (page.text, text):
        assert "δ is the small chance" in shown
        assert "A canary is a record that was made to be told apart" in shown
        assert "At most certifiable is the largest bound" in shown
        assert "log likelihood ratio" in shown
        for absent in ("RMSE", "lind baseline", "No reconstruction was tried", "Attacks, "):
            assert absent not in shown
    assert ("a", {"href": "#examples"}) not in page.tags
    assert ("a", {"href": "#scores"}) in page.tags


def test_it_is_said_that_not_all_pairs_are_drawn() -> None:
    several = views(*(audited(f"s{n}", 3.0, exact=1.0 + n) for n in range(7)))
    assert "6 of 7 pairs are drawn, broken claims first" in next(iter(privacy_plots(several)))
    assert not any("are drawn" in caption for caption in privacy_plots(several[:6]))


def test_a_control_that_was_not_run_is_not_called_broken() -> None:
    place = {"item": "control/positive/sex", "audit_name": "sex"}
    line = {"type": "item", "kind": "control", **place, "passed": None, "status": "refused", "note": "too few rows"}
    report = build(record(audited("a", 3.0), [line]))
    for shown in (Page(render_html(report)).text, render_markdown(report)):
        assert "could not be run, so that nothing was checked" in shown
        assert "Too few rows" in shown
        assert "do not find what is there" not in shown
