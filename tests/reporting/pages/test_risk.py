"""The page on closed-form risk, from made-up findings."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reporting.pages.made_up_risk import PRIOR, VARIANCES, bound, chance, context, digits, place, score, setting
from tests.reporting.parsed import Page

from gradleak.reporting.blocks import Block, Fold, Section, Table
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.numerals import Quantity
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.risk import page
from gradleak.reporting.pages.risk.noise import Levels, NoisePoint, noise_levels, values
from gradleak.results import Finding, Outcome, Record
from gradleak.results.findings.risk import Confirmation, Derivative, RiskFinding

HOSTILE = "<script>alert(1)</script>"


def risks(findings: list[Finding]) -> list[RiskFinding]:
    return [one for one in findings if isinstance(one, RiskFinding)]


def made(*findings: Finding) -> Section:
    found = page(risks(list(findings)), context(findings))
    assert found is not None
    return found


def part(section: Section, anchor: str) -> Section:
    return next(one for one in section.sections if one.anchor == anchor)


def table(blocks: Section | Fold) -> Table:
    def inside(some: tuple[Block, ...]) -> list[Table]:
        return [
            t for one in some for t in ([one] if isinstance(one, Table) else inside(tuple(getattr(one, "blocks", ()))))
        ]

    return inside(tuple(blocks.blocks))[0]


@pytest.fixture(scope="module")
def sample() -> list[Finding]:
    return digits()


@pytest.fixture(scope="module")
def levels(sample: list[Finding]) -> Levels:
    return noise_levels(risks(sample), context(sample))


def points(levels: Levels) -> list[NoisePoint]:
    return [point for level in levels.values() for point in level]


@pytest.fixture(scope="module")
def section(sample: list[Finding]) -> Section:
    return made(*sample)


def test_the_levels_are_those_of_the_plan(levels: Levels) -> None:
    assert list(levels) == pytest.approx([variance**0.5 for variance in VARIANCES])
    assert [len(level) for level in levels.values()] == [3] * 5


def test_the_difference_is_that_of_the_scores(sample: list[Finding], levels: Levels, section: Section) -> None:
    differences = []
    perfect = {one.item: one.value("pixel_rmse") for one in sample if one.item.endswith("/perfect_attacker")}
    for one in sample:
        value = one.value("inversion_influence")
        reached = perfect.get(one.item.replace("/risk", "/perfect_attacker"))
        if value is not None and reached is not None and value < 0.05:
            differences.append(abs(reached - value) / value)
    assert sorted(values(points(levels), "difference")) == pytest.approx(sorted(differences))
    assert len(differences) > 3
    told = str(part(section, "noise").blocks)
    assert f"({len(differences)} releases)" in told
    middle = sorted(values(points(levels), "difference"))[(len(differences) - 1) // 2]
    assert f"value={middle!r}" in told


def test_medians_of_a_level_say_how_many_stand_behind_them(
    sample: list[Finding], levels: Levels, section: Section
) -> None:
    counts = {
        name: len(values(points(levels)[:3], name)) for name in ("predicted", "perfect_attacker", "attack", "baseline")
    }
    assert counts == {"predicted": 3, "perfect_attacker": 3, "attack": 1, "baseline": 3}
    drawn = [one.value("inversion_influence") for one in sample if one.item.startswith("noise 1e-6/")]
    row = table(part(section, "noise")).rows[2]
    assert isinstance(row[4], Quantity)
    assert row[4].value == np.median([value for value in drawn if value is not None])
    assert "n = 1" in str(row[6])
    assert "n = " not in str(row[4])


def test_the_best_attack_and_the_blind_baseline_are_found_whatever_their_kind(levels: Levels) -> None:
    first, second, *_ = points(levels)
    assert first.attack == pytest.approx((first.predicted or 0.0) * 1.02)
    assert first.baseline == 0.28
    assert second.attack is None


def test_the_blind_baseline_is_that_of_the_example_that_the_attack_came_closest_to() -> None:
    from tests.reporting.pages.made_up_risk import around

    blind, tried = around("noisy", 0, 0.2)
    blind = blind.but(scores=(score("pixel_rmse", 0.1, details={"per_example": [0.1, 0.3]}),))
    tried = tried.but(scores=(score("pixel_rmse", 0.2, "attack", details={"per_example": [None, 0.2]}),))
    risk = RiskFinding(**place("noisy", 0, "risk"), noise_std=0.5)
    (point,) = points(noise_levels([risk], context([risk, blind, tried])))
    assert (point.attack, point.baseline) == (0.2, 0.3)


def test_spectra_are_shown_once_an_example(section: Section) -> None:
    spectra = table(part(section, "spectrum"))
    assert [row[0] for row in spectra.rows] == [f"example {place}" for place in range(6)]
    for row in spectra.rows:
        largest, smallest = row[4], row[5]
        assert isinstance(largest, Quantity)
        assert isinstance(smallest, Quantity)
        assert (largest.value or 0.0) > (smallest.value or 0.0) > 0
        assert "unseen" not in str(row[3])
    assert "were taken by: loop" in str(part(section, "spectrum").blocks)


def test_a_spectrum_of_another_release_of_the_example_is_told_apart(sample: list[Finding]) -> None:
    first = risks(sample)[0]
    assert first.spectrum is not None
    fewer = first.spectrum.model_copy(
        update={"eigenvalues": first.spectrum.eigenvalues[:-4] + 4 * (99.0,), "rank": 700}
    )
    other = RiskFinding(**place("clipped", 0, "risk"), spectrum=fewer)
    spectra = table(part(made(first, other), "spectrum"))
    assert [row[0] for row in spectra.rows] == ["example 0", "example 0, clipped"]
    assert "84 directions unseen" in str(spectra.rows[1][3])


def test_the_noise_that_is_needed_is_a_span(section: Section) -> None:
    told = str(part(section, "noise").blocks)
    assert "Without a defense, Gaussian noise of standard deviation" in told
    assert "depending on the example" in told


def test_the_perfect_attacker_is_a_validation(section: Section) -> None:
    (fold,) = [block for block in section.blocks if isinstance(block, Fold)]
    assert fold.title.startswith("Validation: the perfect attacker on ")
    assert "No adversary can run it" in str(fold.blocks)


def test_a_report_relies_on_a_prediction_only_where_there_is_one(section: Section) -> None:
    relies = "This report relies on **exact I²F without damping"
    assert relies in str(part(section, "noise").blocks)
    alone = str(part(made(RiskFinding(**place("a", 0, "risk"), noise_std=0.1)), "noise").blocks)
    assert relies not in alone
    assert "No measure of the plan predicts the error" in alone


def test_without_noise_there_is_nothing_to_plot_and_nothing_without_findings() -> None:
    alone = made(RiskFinding(**place("a", 0, "risk")))
    assert "so there is nothing to plot" in str(part(alone, "noise").blocks)
    assert "The record holds no spectrum." in str(part(alone, "spectrum").blocks)
    assert {one.anchor for one in alone.sections} == {"noise", "spectrum"}
    assert page([], context(digits())) is None


def test_the_weakest_bound_of_a_scenario_stands_with_its_prior_and_its_words() -> None:
    findings = [setting(0, bound(0.1875)), setting(1, bound(0.15625))]
    (row,) = table(part(made(*findings), "bounds")).rows
    assert row[0] == "noisy"
    assert "value=0.15625" in str(row[1])
    assert isinstance(row[2], Quantity)
    assert row[2].value == 0.2675
    assert row[3:] == ["0.1", "yes", PRIOR, "average over the stated prior"]
    record = Record.of(findings)
    parsed = Page(render_html(assemble(record)))
    assert {0.15625, 0.2675} <= set(parsed.numbers)
    for text in ("Lower bound on every attacker's average error", PRIOR, "not a worst case", "lower bound"):
        assert text in parsed.text
    text = render_markdown(assemble(record))
    assert "# Lower bound on every attacker's average error" in text
    assert "0.156 \\[lower bound\\]" in text


def test_a_bound_in_input_units_says_so() -> None:
    (row,) = table(part(made(setting(0, bound(0.2, unit="input"))), "bounds")).rows
    assert "input units" in str(row[1])


def test_the_largest_chance_of_a_scenario_stands_with_its_prior_and_its_privacy() -> None:
    findings = [setting(0, chance(0.03125)), setting(1, chance(0.0625))]
    parsed = Page(render_html(assemble(Record.of(findings))))
    assert {0.0625, 0.0078125, 0.03125} <= set(parsed.numbers)
    for text in ("Upper bound on every attacker's chance to rebuild an example", "one of 128 candidates", "μ = 0.5", "ε = 1.88",
                 "an average over that prior", "upper bound"):  # fmt: skip
        assert text in parsed.text
    assert "Lower bound on every attacker's average error" not in parsed.text
    text = render_markdown(assemble(Record.of(findings)))
    assert "# Upper bound on every attacker's chance to rebuild an example" in text
    assert "0.0625 \\[upper bound\\]" in text


def test_a_chance_without_a_value_says_why() -> None:
    note = f"the release has no differential privacy {HOSTILE}"
    lines = chance(None, outcome=Outcome.NOT_INFORMATIVE, note=note, details={"mu": None, "prior": HOSTILE})
    html = render_html(assemble(Record.of([setting(0, lines)])))
    assert "no differential privacy" in Page(html).text
    assert "<script>alert" not in html
    (row,) = table(part(made(setting(0, lines)), "chances")).rows
    assert isinstance(row[1], Quantity)
    assert (row[1].value, row[1].outcome, row[7]) == (None, Outcome.NOT_INFORMATIVE, "–")  # noqa: RUF001


def test_what_is_no_bound_says_so() -> None:
    jumps = bound(0.2, evidence="estimate", note="no bound: the release jumps", details={"holds_for_release": False})
    (row,) = table(part(made(setting(0, jumps)), "bounds")).rows
    assert (row[4], row[6]) == ("no", "no bound: the release jumps")
    missing = bound(None, outcome=Outcome.NOT_INFORMATIVE, details={"prior": None})
    (row,) = table(part(made(setting(0, missing)), "bounds")).rows
    assert isinstance(row[1], Quantity)
    assert (row[1].value, row[1].outcome, row[5]) == (None, Outcome.NOT_INFORMATIVE, "–")  # noqa: RUF001


def test_hostile_priors_are_text() -> None:
    hostile = bound(0.2, note=HOSTILE, details={"prior": {"origin": HOSTILE}, "noise_std": HOSTILE})
    assert "<script>alert" not in render_html(assemble(Record.of([setting(0, hostile)])))


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (Confirmation.UNCHECKED, "could not be checked by differences of values: too many kinks."),
        (Confirmation.WRONG, "its derivative is wrong, so that scores which read it have no value: too many kinks."),
        (Confirmation.CONFIRMED, ""),
    ],
)
def test_a_derivative_that_is_not_confirmed_is_told(check: Confirmation, told: str) -> None:
    one = RiskFinding(**place("noisy", 0, "derivative"), derivative=Derivative(check=check), note="too many kinks")
    text = str(made(one).blocks)
    assert told in text
    assert ("kinks" in text) == bool(told)


def test_every_measure_stands_in_a_table_with_the_reason_where_it_has_no_value() -> None:
    refused = score("vulnerability", None, outcome=Outcome.UNSUPPORTED, note="no finite derivative")
    first = risks(digits())[0].but(scores=(score("gradient_norm", 3.0, unit="gradient"), refused))
    found = table(part(made(first), "measures"))
    assert len(found.rows) == 2
    assert "unsupported" in str(found.rows[1][5])
    assert found.rows[1][6] == "no finite derivative"
