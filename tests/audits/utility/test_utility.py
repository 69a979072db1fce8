"""The section `[utility]` of a plan: models trained through every release, beside what it gives away."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from gradleak.auditing import Plan, estimate, run_plan
from gradleak.auditing.plan_reader import PlanReader
from gradleak.audits.base import Site
from gradleak.audits.utility import UtilityAudit
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.results import (
    Evidence,
    Grounds,
    InputError,
    Leakier,
    Outcome,
    PlanError,
    Record,
    Score,
    Status,
    Verdict,
    VerdictKind,
)
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.findings.utility import ReleaseSize, UtilityFinding

PLAN = """
name = "small"
seed = 3

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 1

[utility]
data = { use = "scikit_digits", count = 400 }
test_rows = 100
rounds = 30
batch_size = 50
learning_rate = 0.5
seeds = 3

[[scenarios]]
name = "undefended"

[[scenarios]]
name = "private"
defenses = [{ use = "DPSGD", clip_norm = 1.0, noise_std = 1.0, noise = "sum" }]
"""


def content(**changes: Any) -> dict[str, Any]:
    table = tomllib.loads(PLAN)
    table["utility"] |= changes
    return table


def made(table: dict[str, Any]) -> Plan:
    """The plan of this audit alone."""
    reader = PlanReader(folder=Path(), seed=table["seed"], content=table)
    batches, _ = reader.batches(table["data"])
    site = Site(
        name=table["name"],
        seed=table["seed"],
        objective=reader.objective(table["model"], table.get("objective", {})),
        batches=batches,
        scenarios=[reader.scenario(spec, place, len(batches)) for place, spec in enumerate(table["scenarios"])],
    )
    audits = list(UtilityAudit.read(table, replace(reader, private=batches, about=site)))
    return Plan(site=site, audits=audits, source=table)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A plan of two scenarios, carried out with two learning rates to choose from."""
    table = content(rounds=12, momentum=0.8, learning_rates=[0.5, 1.0])
    del table["utility"]["learning_rate"]
    plan, folder = made(table), tmp_path_factory.mktemp("utility") / "run"
    run_plan(plan, folder, jobs=1)
    return plan, folder


def test_every_scenario_has_its_utility_in_the_record(small: tuple[Plan, Path]) -> None:
    plan, folder = small
    record = Record.load(folder)
    names = [finding.item for finding in record.findings]
    assert names == ["undefended/utility", "private/utility"]
    undefended, private = record.findings
    assert isinstance(undefended, UtilityFinding)
    assert isinstance(private, UtilityFinding)
    worth = undefended.worth
    assert worth is not None
    assert worth.name == "test_accuracy"
    assert (worth.value or 0.0) > 0.6
    assert worth.interval is not None
    assert worth.interval[0] < (worth.value or 0.0)
    assert undefended.credit
    assert undefended.value("pld_epsilon") is None
    assert private.epsilon is not None
    assert (private.epsilon.value or 0.0) > 1
    assert "4 settings were tried" in private.epsilon.note
    assert "the best of 2 learning rates was chosen on private rows" in private.epsilon.note
    assert (private.kind, private.audit, private.subject) == ("utility", "utility", None)
    assert (private.status, private.outcome) == (Status.DONE, Outcome.CONVERGED)
    assert private.training["rounds"] == 12
    assert private.training["learning_rate"] in (0.5, 1.0)
    assert private.trained is not None
    assert private.trained.examples == 50
    assert private.trained.noise_std == pytest.approx(0.02)
    assert private.attacked == (ReleaseSize(examples=1, noise_std=1.0),)
    assert len(private.runs) == 3
    assert list(UtilityAudit.judge([undefended, private], Grounds(findings=record.findings))) == []
    # Two runs of one plan are equal, and a finished one is read back.
    assert run_plan(plan, folder, jobs=1).canonical() == record.canonical()


def test_what_stands_side_by_side_says_of_which_release_it_is(small: tuple[Plan, Path]) -> None:
    """Epsilon with its terms, the learning rate, and privacy and utility of different releases."""
    report = assemble(Record.load(small[1]))
    page, text = render_html(report), render_markdown(report)
    for shown in (page, text):
        assert "Utility beside privacy" in shown
        assert (
            "undefended: what was attacked and what was trained through are different releases (1 example against "
            in shown
        )
        assert "(1 example, noise std 1 against 50 examples, noise std 0.02)" in shown
        # 300 training rows are six batches of 50: twice in twelve rounds.
        assert "δ = 10⁻⁵, takes part in 2 rounds, no sampling, add or remove, hides one example" in shown
        assert "4 settings were tried on the private data" in shown
        assert "the best of 2 learning rates was chosen on private rows" in shown
    assert "none \\[" not in text


def test_the_clients_of_secure_aggregation_make_up_the_batch() -> None:
    table = content(rounds=4, seeds=1, batch_size=6)
    protocol = {"use": "SecureAggregation", "protocol": {"use": "FedSGD"}, "examples": [2, 4], "clients": 10}
    table["data"] |= {"count": 6, "batch_size": 6}
    table["scenarios"] = [{"name": "sum of 2", "protocol": protocol}]
    ((found,),) = [one.run(made(table).site, Path()) for one in made(table).audits[0].tasks(made(table).site)]
    assert found.worth.value is not None
    for changes, given in (
        ({"batch_size": 5}, "of 5;"),
        ({"batch_size": None, "sampling_rate": 0.1}, "Poisson sample"),
    ):
        wrong = {key: value for key, value in (table["utility"] | changes).items() if value is not None}
        plan = made(table | {"utility": wrong})
        with pytest.raises(InputError, match="write batch_size = 6") as caught:
            plan.audits[0].check(plan.site)
        assert given in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_release_that_the_model_refuses_is_refused_by_name() -> None:
    table = content(rounds=2, seeds=1)
    table["model"] = {"use": "tests.audits.utility.test_utility:normalized"}
    table["objective"] = {"mode": "train"}
    table["data"] |= {"count": 2, "batch_size": 2}
    table["scenarios"] = [{"name": "clipped", "defenses": [{"use": "ClipPerExample", "max_norm": 1.0}]}]

    def done() -> UtilityFinding:
        plan = made(table)
        (task,) = plan.audits[0].tasks(plan.site)
        (found,) = task.run(plan.site, Path())
        assert isinstance(found, UtilityFinding)
        return found

    refused = done()
    assert (refused.status, refused.outcome, refused.scores) == (Status.REFUSED, Outcome.UNSUPPORTED, ())
    assert "GroupNorm" in refused.note
    table["utility"]["replacement"] = {"channels_per_group": 4}
    found = done()
    assert found.replaced[0].was.startswith("BatchNorm1d(8")
    assert found.replaced[0].values == 4
    assert found.scores[0].name == "test_accuracy"


def normalized(generator: object) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 10))


def test_the_plan_costs_more_with_utility_and_its_digest_knows_of_it() -> None:
    plan, longer = (made(content(rounds=rounds)) for rounds in (30, 60))
    assert estimate(longer) - estimate(plan) == 3 * 30 * 2 * 3
    assert plan.digest() != longer.digest()
    reader = PlanReader(folder=Path(), seed=3, content={})
    assert list(UtilityAudit.read({}, reader)) == []


def test_private_rows_are_no_part_of_the_digest() -> None:
    plan, other = (made(content(data={"use": "scikit_digits", "count": 400, "first": first})) for first in (0, 1000))
    audit, another = plan.audits[0], other.audits[0]
    assert isinstance(audit, UtilityAudit)
    assert isinstance(another, UtilityAudit)
    swapped = replace(audit, task=replace(audit.task, train=another.task.train, test=another.task.test))
    assert replace(plan, audits=[swapped]).digest() == plan.digest()
    assert len(list(audit.private())) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 3}, "utility: unknown key 'round'; did you mean 'rounds'"),
        ({"learning_rate": "fast"}, "utility.learning_rate: expected a finite positive number, got 'fast'"),
        ({"sampling_rate": 0.1}, "one of batch_size and sampling_rate"),
        ({"test_rows": 400}, "test_rows from 1 to 399"),
        ({"seeds": 0}, "utility.seeds: expected a whole number of at least 1"),
        ({"data": {"use": "scikit_digit"}}, "did you mean 'scikit_digits'"),
        ({"replacement": {"channels": 3}}, "utility.replacement: unknown key 'channels'"),
    ],
)
def test_a_bad_section_is_one_clear_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        made(content(**changes))
    assert message in str(caught.value)


def test_what_is_missing_is_named() -> None:
    for key, message in (
        ("data", "expected data"),
        ("test_rows", "test_rows too"),
        ("learning_rate", "learning_rates to"),
    ):
        table = content()
        del table["utility"][key]
        with pytest.raises(PlanError, match=message):
            made(table)


def test_a_run_without_an_attack_is_finished(tmp_path: Path) -> None:
    record = run_plan(made(content(rounds=2, seeds=1)), tmp_path, jobs=1)
    assert record.complete
    assert [(one.item, one.reason, one.tested) for one in record.verdicts] == [("run", "no_attack_ran", False)]
    before = (tmp_path / "record.jsonl").read_bytes()
    run_plan(made(content(rounds=2, seeds=1)), tmp_path, jobs=1)
    assert (tmp_path / "record.jsonl").read_bytes() == before


def test_utility_is_drawn_against_what_is_given_away(small: tuple[Plan, Path]) -> None:
    found = [one for one in Record.load(small[1]).findings if isinstance(one, UtilityFinding)]
    error = Score(name="pixel_rmse", value=0.02, unit="pixel_rmse", leakier=Leakier.LOWER, evidence=Evidence.ATTACK)
    attacks = [
        ReconstructionFinding(item=f"{one.scenario}/gn", audit="gn", scenario=one.scenario, scores=(error,))
        for one in found
    ]
    bounded = Verdict(
        item="private", scenario="private", verdict=VerdictKind.BOUNDED, reason="dp_bound", explanation=""
    )
    page = render_html(assemble(Record.of([*found, *attacks], [bounded])))
    # Of epsilon there is a single point.
    assert page.count("Utility against what is given away") == 1
    assert "smallest pixel RMSE reached" in page
    assert "epsilon of the training" not in page
    assert ">bounded<" in page
    alone = render_html(assemble(Record.of(found, [bounded])))
    assert "Utility against what is given away" not in alone


def test_utility_of_some_scenarios_leaves_the_others_out() -> None:
    plan = made(content(scenarios=["private"]))
    assert [task.name for audit in plan.audits for task in audit.tasks(plan.site)] == ["utility/private"]
    assert plan.audits[0].resolved()["scenarios"] == ["private"]
    with pytest.raises(PlanError, match=r"utility: unknown scenario .privat.; did you mean .private."):
        made(content(scenarios=["privat"]))
