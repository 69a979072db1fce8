"""The page on privacy audits, from findings that were made up: nothing is tried."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.reporting.parsed import Page

from gradleak.reporting.blocks import Figure, Note, Section
from gradleak.reporting.context import Context
from gradleak.reporting.document import summarize
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.privacy import page
from gradleak.reporting.pages.privacy.figures import figures
from gradleak.reporting.pages.privacy.view import (
    PrivacyView,
    broken,
    largest,
    noted,
    privacies,
    shown_theory,
    statistic,
)
from gradleak.results import Control, Evidence, Finding, Leakier, Outcome, Record, Score, Status, Verdict, VerdictKind
from gradleak.results.findings.privacy import Claim, Histogram, Pair, PrivacyFinding

PAIR = "canary, epoch 0"
Audit = tuple[PrivacyFinding, Verdict]


def number(name: str, value: float | None, **more: Any) -> Score:
    about = {key: more.pop(key) for key in ("pair", "statistic", "estimator") if key in more}
    return Score(
        name=name,
        value=value,
        unit="epsilon",
        leakier=Leakier.HIGHER,
        evidence=Evidence(more.pop("evidence", "lower_bound")),
        n=more.pop("n", 4000),
        about=about,
        **more,
    )


def measured(bound: float | None, *, pair: str = PAIR, exact: float | None = 4.0) -> list[Score]:
    """The scores of one pair: theory, and of two statistics a bound and an estimate."""
    scores: list[Score] = []
    if exact is not None:
        scores.append(number("per_attribute_epsilon", exact, pair=pair, evidence="exact"))
        scores.append(number("gaussian_epsilon", 2 * exact, pair=pair, evidence="exact"))
    details = {"largest_certifiable": 6.5, "direction": "higher_values_for_h1", "selection": "a separate split"}
    for name, share in (("distance", 0.5), ("likelihood_ratio", 1.0)):
        value = None if bound is None else share * bound
        scores.append(
            number(
                "epsilon_lower_bound",
                value,
                pair=pair,
                statistic=name,
                estimator="SplitThresholdEpsilon",
                interval=None if value is None else (0.9 * value, 1.2 * value),
                outcome=Outcome.NOT_RESOLVABLE if bound is None else Outcome.CONVERGED,
                details=details,
                note="" if bound is not None else "too few trials",
            )
        )
    guess = number(
        "epsilon_estimate", 9.0, pair=pair, statistic="distance", estimator="PlugInEpsilon", evidence="estimate"
    )
    return [*scores, guess]


def shares(statistic: str = "distance", edges: Sequence[float | None] = (0.0, 1.0, 2.0, 4.0), **more: Any) -> Histogram:
    counts = {"null": (70, 30, 0), "alternative": (10, 40, 50)} | more
    return Histogram(statistic=statistic, edges=tuple(edges), **counts)


BOTH = (shares("distance"), shares("likelihood_ratio"))


def audited(
    scenario: str,
    bound: float | None = None,
    *,
    bounds: dict[str, float | None] | None = None,
    claim: float | None = 5.0,
    exact: float | None = 4.0,
    reason: str = "epsilon_above_threshold",
    note: str = "",
    terms: str = "all hold together",
    histograms: Sequence[Histogram] = BOTH,
) -> Audit:
    """The finding of one audit, a bound for each pair, and the verdict on it."""
    pairs = {PAIR: bound} if bounds is None else bounds
    claimed = Claim(epsilon=claim, delta=1e-5, of="a record replaced", reason="nothing is added")
    finding = PrivacyFinding(
        item=f"{scenario}/sex",
        audit="sex",
        scenario=scenario,
        outcome=Outcome.CONVERGED,
        variety="attribute",
        method={"use": "AttributeAudit"},
        claim=claimed,
        pairs=tuple(Pair(name=name, trials=2000, note=note, histograms=tuple(histograms)) for name in pairs),
        terms=terms,
        scores=tuple(score for name, value in pairs.items() for score in measured(value, pair=name, exact=exact)),
    )
    verdict = Verdict(
        item=finding.item,
        verdict=VerdictKind.LEAKS,
        reason=reason,
        explanation="so",
        details={"threshold_epsilon": 1.0},
        audit="sex",
        scenario=scenario,
    )
    return finding, verdict


def record(*audits: Audit, beside: Sequence[Finding] = ()) -> Record:
    return Record.of([*(finding for finding, _ in audits), *beside], [verdict for _, verdict in audits], name="audits")


def views(*audits: Audit) -> list[PrivacyView]:
    return privacies([finding for finding, _ in audits], Context(record=record(*audits)))


def html(*audits: Audit) -> str:
    return render_html(assemble(record(*audits)))


def text(*audits: Audit) -> str:
    return render_markdown(assemble(record(*audits)))


def drawings(of: Sequence[PrivacyView]) -> dict[str, str]:
    """The SVG of every figure by its anchor."""
    return {one.anchor: _drawing(one) for one in figures(of)}


def _drawing(section: Section) -> str:
    (figure,) = [block for block in section.blocks if isinstance(block, Figure)]
    return figure.draw()


def test_the_largest_bound_stands_beside_claim_theory_and_ceiling() -> None:
    (view,) = views(audited("dp", 3.0))
    assert view.label == "dp · attribute sex · canary, epoch 0"
    assert view.best is not None
    # The estimate of 9 is larger, and is no bound.
    assert (view.best.value, statistic(view.best), largest(view.best)) == (3.0, "log likelihood ratio", 6.5)
    assert (view.claim.value, view.exact.value, view.terms.delta, view.pair.trials) == (5.0, 4.0, 1e-5, 2000)
    assert "| higher values for the alternative |" in text(audited("dp", 3.0))
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
    shown, written = Page(html(*groups)).text, text(*groups)
    for said in (shown, written):
        assert (
            said.lower().index("the claim is broken") < said.index("Claimed there") < said.index("Two hypotheses that")
        )
    assert (
        "Epsilon is at least: 6 \\[lower bound\\] (dp · attribute sex · canary, epoch 0, by log likelihood ratio)"
        in written
    )
    assert "so many trials can certify at most 6.5" in written
    found = page([finding for finding, _ in groups], Context(record=record(*groups)))
    assert found is not None
    assert [block.title for block in found.front if isinstance(block, Note)] == ["The claim is broken."]


def test_every_number_is_in_the_document_for_machines() -> None:
    (entry,) = summarize(assemble(record(audited("dp", 3.0))))["findings"]
    assert (entry["claim"]["epsilon"], entry["claim"]["delta"]) == (5.0, 1e-5)
    scores = entry["scores"]
    theory = next(score for score in scores if score["name"] == "per_attribute_epsilon")
    assert (theory["value"], theory["evidence"]) == (4.0, "exact")
    trials = [score for score in scores if "estimator" in score["about"]]
    assert [(score["about"]["statistic"], score["value"], score["evidence"]) for score in trials] == [
        ("distance", 1.5, "lower_bound"),
        ("likelihood_ratio", 3.0, "lower_bound"),
        ("distance", 9.0, "estimate"),
    ]
    assert trials[1]["details"]["largest_certifiable"] == 6.5
    assert entry["pairs"][0]["histograms"][0]["null"] == [70, 30, 0]


def test_without_noise_there_is_infinity_and_no_figure() -> None:
    certain = number(
        "epsilon", math.inf, pair=PAIR, statistic="the release itself", estimator="no noise", evidence="exact"
    )
    finding, verdict = audited("plain", claim=None, exact=None, histograms=(), reason="no_noise")
    audit = (finding.but(scores=(certain,)), verdict)
    (view,) = views(audit)
    assert (view.epsilon.text, view.epsilon.evidence, view.exact.text) == ("∞", "exact", "∞")
    assert view.state == "no noise: perfectly distinguishable"
    assert figures([view]) == []
    assert "∞ \\[exact\\]" in text(audit)
    document = summarize(assemble(record(audit)))
    assert document["findings"][0]["scores"][0]["value"] == "inf"
    json.dumps(document, allow_nan=False)
    Page(html(audit))


def test_too_few_trials_are_words_and_no_number() -> None:
    audit = audited("dp", None, reason="not_resolvable")
    (view,) = views(audit)
    assert (view.epsilon.text, view.epsilon.value) == ("not resolvable", None)
    assert "not resolvable" in text(audit)
    assert ("dp · attribute sex · canary, epoch 0", "too few trials") in noted([view])


def test_refused_and_failed_audits_have_a_row_with_the_reason() -> None:
    _, verdict = audited("x", reason="audit_refused")
    refused = PrivacyFinding(
        item="x/sex",
        audit="sex",
        scenario="x",
        status=Status.REFUSED,
        outcome=Outcome.UNSUPPORTED,
        note="the model mixes examples",
    )
    for said in (Page(html((refused, verdict))).text, text((refused, verdict))):
        assert "the model mixes examples" in said
        assert "refused" in said
    (view,) = views((refused, verdict))
    assert (view.epsilon.text, view.state) == ("unsupported", "refused")


def test_notes_stand_once_and_name_whom_they_are_about() -> None:
    several = {PAIR: 3.0, "random record, epoch 0": 2.0}
    found = noted(views(audited("a", bounds=several, note="of scenario a"), audited("b", 3.0, note="of scenario b")))
    assert ("all audits", "all hold together") in found
    assert ("a · attribute sex", "of scenario a") in found
    assert ("b · attribute sex · canary, epoch 0", "of scenario b") in found


def test_both_hypotheses_are_drawn_by_the_statistic_that_tells_most() -> None:
    svg = drawings(views(audited("$\\sigma$", 3.0), audited("b", 1.0)))["privacy-hypotheses"]
    Page(svg)
    assert svg == drawings(views(audited("$\\sigma$", 3.0), audited("b", 1.0)))["privacy-hypotheses"]
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
    histogram = shares(edges=edges, null=(70, 30), alternative=(10, 90))
    svg = Page(drawings(views(audited("a", 3.0, histograms=[histogram])))["privacy-hypotheses"])
    shown = [label.strip() for label in svg.by_tag["text"]]
    assert shown[: shown.index("distance")] == ticks


def test_broken_claims_are_drawn_before_others_and_long_names_on_several_lines() -> None:
    quiet = [audited(f"quiet {place}", 0.5, reason="epsilon_within_claim") for place in range(6)]
    loud = audited("DP-SGD with a divisor that depends on the data", 6.0, reason="claim_broken")
    words = Page(drawings(views(*quiet, loud))["privacy-hypotheses"]).by_tag["text"]
    assert any("DP-SGD with a divisor" in label for label in words)
    assert not any("quiet 5" in label for label in words)
    assert max(map(len, words)) <= 42


def test_epsilon_is_drawn_against_theory_where_there_are_two_points() -> None:
    svg = drawings(views(audited("a", 3.0), audited("b", 0.0, exact=0.5)))["privacy-measured"]
    Page(svg)
    for words in (
        "exact epsilon of the two hypotheses",
        "SplitThresholdEpsilon, log likelihood ratio",
        "PlugInEpsilon",
    ):
        assert words in svg
    for alone in ([audited("a", 3.0)], [audited("a", 3.0, exact=None), audited("b", 3.0, exact=None)]):
        assert [one.anchor for one in figures(views(*alone))] == ["privacy-hypotheses"]


@pytest.mark.parametrize(
    "histogram",
    [
        shares(edges=(0, 1), null=(1,), alternative=(1, 2)),
        shares(edges=(1, 0), null=(1,), alternative=(1,)),
        shares(edges=(0, math.inf), null=(1,), alternative=(1,)),
        shares(edges=(0, None), null=(1,), alternative=(1,)),
        shares(edges=(), null=(), alternative=()),
    ],
)
def test_a_histogram_that_cannot_be_drawn_is_left_out(histogram: Histogram) -> None:
    (view,) = views(audited("a", 3.0, histograms=[histogram]))
    assert view.histograms == []
    assert figures([view]) == []


def controls(*, passed: bool | None, note: str = "", **values: float) -> PrivacyFinding:
    control = Control(
        planted=False,
        title="Negative control of a privacy audit: one hypothesis twice",
        expects="bounds of 0",
        meaning="No bound of this audit can be trusted.",
        passed=passed,
        measure="epsilon_lower_bound",
    )
    return PrivacyFinding(
        item="control/negative/sex",
        audit="sex",
        note=note,
        status=Status.REFUSED if passed is None else Status.DONE,
        outcome=Outcome.UNSUPPORTED if passed is None else Outcome.CONVERGED,
        control=control,
        scores=tuple(number("epsilon_lower_bound", value) for value in values.values()),
    )


def test_controls_of_an_audit_speak_of_its_bound() -> None:
    report = assemble(record(audited("a", 3.0), beside=[controls(passed=False, first=0.7, second=0.0)]))
    # The one that is nearest to a failure stands first.
    assert [entry["epsilon_lower_bound"] for entry in summarize(report)["controls"]] == [0.7]
    for said in (Page(render_html(report)).text, render_markdown(report)):
        assert "0.7" in said
        assert "bounds of 0" in said
        assert "No bound of this audit can be trusted" in said


def test_hostile_names_are_text() -> None:
    name = "<script>alert(1)</script> | $x$ *"
    audits = [audited(name, 3.0), audited(name + "2", 1.0, exact=1.0)]
    shown = html(*audits)
    Page(shown)
    assert "<script>alert" not in shown
    assert "<script>alert" not in text(*audits)


def test_a_finding_with_nothing_in_it_has_a_row() -> None:
    bare = PrivacyFinding(item="a/sex", audit="sex")
    (view,) = privacies([bare], Context(record=Record.of([bare])))
    assert (view.epsilon.text, view.state, view.pair.trials) == ("–", "not judged", 0)  # noqa: RUF001
    render_html(assemble(Record.of([bare])))
    assert page([], Context(record=Record.of([bare]))) is None


def test_a_broken_claim_of_several_pairs_is_one_sentence_in_one_box() -> None:
    bounds = {f"epoch {n}": bound for n, bound in enumerate((6.0, 9.0, 7.0, 8.0))}
    audit = audited("a, b", bounds=bounds, reason="claim_broken")
    (sentence,) = broken(views(audit))
    assert sentence == (
        "a, b · attribute sex: epsilon is at least 9 (epoch 1), 8 (epoch 3), 7 (epoch 2) and above the claim for 1 more, and 5 "
        "is claimed (a record replaced)."
    )
    assert html(audit).count("<strong>The claim is broken.</strong>") == 1


def test_a_note_on_the_same_pairs_of_all_scenarios_names_them_once() -> None:
    both = {"canary": 3.0, "random": 3.0}
    audits = []
    for scenario in "ab":
        finding, verdict = audited(scenario, bounds=both)
        pairs = tuple(pair.but(note=f"on {pair.name}") for pair in finding.pairs)
        audits.append((finding.but(pairs=pairs), verdict))
    found = noted(views(*audits))
    assert ("attribute sex · canary · all scenarios", "on canary") in found
    assert ("attribute sex · random · all scenarios", "on random") in found


def test_a_report_of_audits_alone_explains_its_words_and_speaks_of_no_reconstruction() -> None:
    shown, written = Page(html(audited("dp", 3.0))), text(audited("dp", 3.0))
    for said in (shown.text, written):
        assert "δ is the small chance" in said
        assert "A canary is a record that was made to be told apart" in said
        assert "Largest certifiable is the largest bound" in said
        assert "log likelihood ratio" in said
        assert "The auditor knows the model, its parameters, both hypotheses" in said
        assert "A privacy audit leaks where a lower bound on epsilon lies above" in said
        for absent in ("RMSE", "lind baseline", "No reconstruction was tried", "Attacks, "):
            assert absent not in said
    assert "#scores" in [attrs.get("href") for tag, attrs in shown.tags if tag == "a"]


def test_it_is_said_that_not_all_pairs_are_drawn() -> None:
    several = views(*(audited(f"s{n}", 3.0, exact=1.0 + n) for n in range(7)))
    assert "6 of 7 pairs are drawn, broken claims first" in figures(several)[0].title
    assert not any("are drawn" in one.title for one in figures(several[:6]))


def test_a_control_that_was_not_run_is_not_called_broken() -> None:
    report = assemble(record(audited("a", 3.0), beside=[controls(passed=None, note="too few rows")]))
    for said in (Page(render_html(report)).text, render_markdown(report)):
        assert "could not be run, so that nothing was checked" in said
        assert "oo few rows" in said
        assert "No bound of this audit can be trusted" not in said


def assuming(law: str) -> Audit:
    """An audit whose largest bound assumes Gaussian noise, of a release with noise of that law."""
    finding, verdict = audited("dp", 3.0)
    first, *others = finding.scores
    scores = [
        replace(one, details={**one.details, "selection": "median; Gaussian trade-off curve assumed"})
        if one.value == 3.0
        else one
        for one in (first, *others)
    ]
    facts = {"law": law, "std": [2.0], "std_alternative": [2.0]}
    return finding.but(scores=tuple(scores), pairs=tuple(one.but(facts=facts) for one in finding.pairs)), verdict


def test_what_a_bound_assumes_stands_beside_it_with_the_largest_that_assumes_nothing() -> None:
    (plain,), (gaussian,), (other,) = (
        views(one) for one in (audited("dp", 3.0), assuming("Gaussian"), assuming("drawn"))
    )
    assert plain.reserve == ""
    assert gaussian.reserve == "if the noise is Gaussian, as it is here; 1.5 without that"
    assert other.reserve == "if the noise is Gaussian; 1.5 without that"
    assert text(assuming("drawn")).count(other.reserve) == 3


@pytest.mark.parametrize(
    ("bound", "told"),
    [(0.0, "no change shown"), (1.0, "2.72 times"), (45.8, "over 10¹⁹ times"), (970.0, "over 10⁴²¹ times")],
)
def test_factors_of_odds_keep_their_size(bound: float, told: str) -> None:
    assert f"| {told} |" in text(audited("dp", bound))
