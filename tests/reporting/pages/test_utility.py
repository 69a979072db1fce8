"""Utility beside privacy: credit, warnings and what an epsilon holds for, from made-up findings."""

from __future__ import annotations

from typing import Any

import pytest

from gradleak.reporting.blocks import Small, Table, Tag
from gradleak.reporting.context import Context
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.utility import epsilon_terms, page, warnings
from gradleak.results import Evidence, Finding, Leakier, Outcome, Record, Score, Status, UnknownFinding
from gradleak.results.findings.utility import ReleaseSize, Replacement, SentUpdate, Standing, UtilityFinding


def score(name: str, value: float | None, **fields: Any) -> Score:
    return Score(
        name=name,
        value=value,
        unit=fields.pop("unit", "share"),
        leakier=Leakier.NEITHER,
        evidence=fields.pop("evidence", Evidence.ESTIMATE),
        n=200,
        outcome=fields.pop("outcome", Outcome.CONVERGED),
        note=fields.pop("note", ""),
        **fields,
    )


def found(
    name: str,
    value: float,
    interval: tuple[float, float],
    *,
    standing: Standing | None = Standing.ABOVE,
    defenses: list[dict[str, Any]] | None = None,
    more: tuple[Score, ...] = (),
    **fields: Any,
) -> UtilityFinding:
    """The finding of one scenario."""
    worth = score("test_accuracy", value, interval=interval, details={"blind": 0.13, "seeds": [0, 1, 2]})
    return UtilityFinding(
        item=f"{name}/utility",
        audit="utility",
        scenario=name,
        standing=standing,
        release={"use": "Release", "defenses": defenses or []},
        scores=(worth, *more),
        **fields,
    )


def row(one: UtilityFinding, *others: Finding) -> dict[str, Any]:
    """The cells of its row by the heading."""
    section = page([one], Context(record=Record.of([one, *others])))
    assert section is not None
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    return {column.label: cell for column, cell in zip(table.columns, table.rows[0], strict=True)}


SIGN = found("sign", 0.75, (0.46, 0.92), defenses=[{"use": "Sign"}])


def test_a_reference_that_learned_nothing_is_no_measure() -> None:
    told = warnings([found("undefended", 0.28, (0.131, 0.49)), SIGN])
    assert len(told) == 2
    assert "undefended, the reference without a defense, is itself near the best answer" in told[0]
    assert "sign does better than undefended" in told[1]
    assert warnings([found("undefended", 0.93, (0.9, 0.95)), SIGN]) == []
    (one,) = warnings([found("undefended", 0.93, (0.1, 1.0), standing=Standing.UNRESOLVED)])
    assert "cannot be told from the best answer that ignores the input (10 % to 100 % holds 13 %)" in one.replace(
        "\u00a0", " "
    )
    assert "No undefended training" in warnings([SIGN])[0]
    assert warnings([]) == []


@pytest.mark.parametrize(
    ("standing", "shown"),
    [
        (Standing.ABOVE, "yes"),
        (Standing.NOT_ABOVE, "no"),
        (Standing.UNRESOLVED, "not resolvable"),
        (None, "no"),  # nothing was trained
    ],
)
def test_credit_has_three_answers(standing: Standing | None, shown: str) -> None:
    assert row(found("a", 0.2, (0.1, 0.3), standing=standing))["Credit"] == shown


def test_privacy_and_utility_of_the_same_release_need_no_warning() -> None:
    attacked = (ReleaseSize(examples=16, noise_std=0.5),)
    same = found("a", 0.9, (0.8, 0.95), attacked=attacked, trained=ReleaseSize(examples=16, noise_std=0.5))
    assert warnings([same]) == []
    other = same.but(trained=ReleaseSize(examples=16, noise_std=0.25))
    (told,) = warnings([other])
    assert "(16 examples, noise std 0.5 against 16 examples, noise std 0.25)" in told
    assert row(other)["Trained through"] == "16 examples, noise std 0.25"
    two = same.but(attacked=(*attacked, ReleaseSize(examples=1)))
    assert row(two)["Attacked"] == "1 example or 16 examples, noise std 0.5"


def test_what_attacks_reached_stands_beside_whatever_their_kind() -> None:
    tried = [
        UnknownFinding(kind="tried", item=f"a/{place}", audit="x", scenario=scenario, scores=(error,))
        for place, (scenario, error) in enumerate(
            [
                ("a", score("pixel_rmse", 0.3, unit="pixel_rmse", evidence=Evidence.ATTACK)),
                ("a", score("pixel_rmse", 0.2, unit="pixel_rmse", evidence=Evidence.ATTACK)),
                ("a", score("pixel_rmse", 0.1, unit="pixel_rmse", evidence=Evidence.EXACT)),
                ("b", score("pixel_rmse", 0.0, unit="pixel_rmse", evidence=Evidence.ATTACK)),
            ]
        )
    ]
    assert row(found("a", 0.9, (0.8, 0.95)), *tried)["Smallest pixel RMSE reached"].value == 0.2


def test_a_row_tells_all_that_was_measured() -> None:
    details = {"delta": 1e-5, "rounds": 2, "sampling": "none", "adjacency": "add_or_remove", "unit": "example"}
    epsilon = score("pld_epsilon", 1.9, unit="epsilon", evidence=Evidence.UPPER_BOUND, details=details)
    one = found(
        "a",
        0.9,
        (0.8, 0.95),
        more=(epsilon,),
        training={"learning_rate": 0.5},
        closeness=SentUpdate(kept_share=0.1, cosine=0.31, probes=3),
        replaced=(Replacement(name="3", was="BatchNorm2d(16)", now="GroupNorm(16, 16)", erases=True),),
    )
    cells = row(one)
    assert cells["Learning rate"] == "0.5"
    assert cells["Rows, seeds"] == "200, 3"
    assert (cells["Blind answer"], cells["Kept share"]) == ("13\u00a0%", "10\u00a0%")
    assert cells["Cosine to the true update"] == "0.31"
    assert cells["Layers replaced"] == "3: BatchNorm2d by GroupNorm, which erases its input"
    assert cells["Epsilon"][2] == Small(
        "δ = 10⁻⁵, takes part in 2 rounds, no sampling, add or remove, hides one example"
    )
    assert cells["Utility on test rows"][1] == Small("accuracy")
    assert not any(isinstance(cell, Tag) for cell in cells.values())


def test_a_release_without_a_guarantee_has_no_epsilon_and_says_why() -> None:
    none = score("pld_epsilon", None, unit="epsilon", outcome=Outcome.NOT_INFORMATIVE, note="none: heuristic")
    one = found("a", 0.9, (0.8, 0.95), more=(none,))
    assert row(one)["Epsilon"] == "none"
    report = assemble(Record.of([one]))
    for shown in (render_html(report), render_markdown(report)):
        assert "Utility beside privacy" in shown
        assert "a: none: heuristic" in shown


def test_a_refused_scenario_has_its_reason() -> None:
    refused = UtilityFinding(
        item="a/utility",
        audit="utility",
        scenario="a",
        status=Status.REFUSED,
        outcome=Outcome.UNSUPPORTED,
        note="no way",
    )
    cells = row(refused)
    assert (cells["Credit"], cells["Rows, seeds"], cells["Epsilon"].text) == ("no", "0, 0", "–")  # noqa: RUF001
    assert "a: no way" in render_markdown(assemble(Record.of([refused])))


def test_an_epsilon_says_what_it_holds_for() -> None:
    details = {
        "delta": 1e-5,
        "rounds": 100,
        "steps_per_round": 2,
        "sampling": "Poisson, rate 0.01",
        "adjacency": "add_or_remove",
        "unit": "example",
    }
    assert epsilon_terms(score("pld_epsilon", 1.9, unit="epsilon", details=details)) == (
        "δ = 10⁻⁵, takes part in 100 rounds of 2 steps, Poisson sampling at rate 0.01, add or remove, hides one example"
    )
    none = score("pld_epsilon", None, unit="epsilon", outcome=Outcome.NOT_INFORMATIVE)
    assert epsilon_terms(none) == epsilon_terms(None) == ""
