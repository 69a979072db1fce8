"""The section `[utility]` of a plan: models trained through every release, beside what it gives away."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gradleak.auditing import build_plan, estimate, run_plan
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.report import build
from gradleak.reporting.summary import summarize
from gradleak.results import InputError, PlanError, Record

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


def test_every_scenario_has_its_utility_in_record_and_reports(tmp_path: Path) -> None:
    plan = build_plan(content(), folder=tmp_path)
    record = run_plan(plan, tmp_path / "run", jobs=1)
    found = {name: score for name, score in record.scores if score.name == "test_accuracy"}
    assert list(found) == ["undefended/utility", "private/utility"]
    assert found["undefended/utility"].value > 0.6
    assert found["undefended/utility"].interval[0] < found["undefended/utility"].value
    epsilons = {name: score for name, score in record.scores if score.name == "pld_epsilon"}
    assert epsilons["undefended/utility"].value is None
    assert epsilons["private/utility"].value > 1
    assert "2 settings were tried" in epsilons["private/utility"].note
    line = next(line for line in record.items if line["item"] == "private/utility")
    assert (line["kind"], line["status"], line["outcome"]) == ("utility", "done", "converged")
    assert line["training"]["rounds"] == 30
    # Two runs of one plan are equal, and a finished one is read back.
    assert run_plan(plan, tmp_path / "run", jobs=1).canonical() == record.canonical()

    report = build(Record.load(tmp_path / "run"))
    page, text, document = render_html(report), render_markdown(report), summarize(report)
    for shown in (page, text):
        assert "Utility beside privacy" in shown
        assert "2 settings were tried on the private data" in shown
    assert "| undefended | accuracy |" in text
    views = {view["scenario"]: view for view in document["utility"]}
    assert views["undefended"]["credit"] is True
    assert views["undefended"]["epsilon"] is None
    assert views["private"]["epsilon"] == epsilons["private/utility"].value
    assert json.dumps(document)


def test_what_stands_side_by_side_says_of_which_release_it_is(tmp_path: Path) -> None:
    """Epsilon with its terms, the learning rate, and privacy and utility of different releases."""
    table = content(rounds=8, learning_rates=[0.1, 0.5])
    del table["utility"]["learning_rate"]
    report = build(run_plan(build_plan(table, folder=tmp_path), tmp_path / "run", jobs=1))
    page, text, document = render_html(report), render_markdown(report), summarize(report)
    for shown in (page, text):
        assert (
            "undefended: what was attacked and what was trained through are different releases (1 example against "
            in shown
        )
        assert "(1 example, noise std 1 against 50 examples, noise std 0.02)" in shown
        # 300 training rows are six batches of 50: twice in eight rounds.
        assert "δ = 10⁻⁵, takes part in 2 rounds, no sampling, add or remove, hides one example" in shown
        assert "4 settings were tried on the private data" in shown
        assert "the best of 2 learning rates was chosen on private rows" in shown
    assert "none \\[" not in text
    views = {view["scenario"]: view for view in document["utility"]}
    assert views["private"]["learning_rate"] in ("0.1", "0.5")
    assert views["private"]["trained_through"] == "50 examples, noise std 0.02"


def test_the_clients_of_secure_aggregation_make_up_the_batch(tmp_path: Path) -> None:
    table = content(rounds=4, seeds=1, batch_size=6)
    protocol = {"use": "SecureAggregation", "protocol": {"use": "FedSGD"}, "examples": [2, 4], "clients": 10}
    table["data"] |= {"count": 6, "batch_size": 6}
    table["scenarios"] = [{"name": "sum of 2", "protocol": protocol}]
    record = run_plan(build_plan(table, folder=tmp_path), tmp_path / "run", jobs=1)
    (score,) = [score for _, score in record.scores if score.name == "test_accuracy"]
    assert score.value is not None
    for changes, given in (
        ({"batch_size": 5}, "of 5;"),
        ({"batch_size": None, "sampling_rate": 0.1}, "Poisson sample"),
    ):
        wrong = {key: value for key, value in (table["utility"] | changes).items() if value is not None}
        with pytest.raises(InputError, match="write batch_size = 6") as caught:
            run_plan(build_plan(table | {"utility": wrong}, folder=tmp_path), tmp_path / "other", jobs=1)
        assert given in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_release_that_the_model_refuses_is_refused_by_name(tmp_path: Path) -> None:
    table = content(rounds=2, seeds=1)
    table["model"] = {"use": "tests.auditing.test_utility:normalized"}
    table["objective"] = {"mode": "train"}
    table["data"] |= {"count": 2, "batch_size": 2}
    table["scenarios"] = [{"name": "clipped", "defenses": [{"use": "ClipPerExample", "max_norm": 1.0}]}]
    plan = build_plan(table, folder=tmp_path)
    from gradleak.auditing.utility_task import UtilityTask

    (line,) = UtilityTask("clipped")(plan, tmp_path)
    assert (line["status"], line["outcome"]) == ("refused", "unsupported")
    assert "GroupNorm" in line["note"]
    table["utility"]["replacement"] = {"channels_per_group": 4}
    first, score, *_ = UtilityTask("clipped")(build_plan(table, folder=tmp_path), tmp_path)
    assert first["replaced"][0]["was"].startswith("BatchNorm1d(8")
    assert first["replaced"][0]["values"] == 4
    assert score["name"] == "test_accuracy"


def normalized(generator: object) -> Any:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 10))


def test_the_plan_costs_more_with_utility_and_its_digest_knows_of_it(tmp_path: Path) -> None:
    plan, longer = (build_plan(content(rounds=rounds), folder=tmp_path) for rounds in (30, 60))
    assert estimate(longer) - estimate(plan) == 3 * 30 * 2 * 3
    assert plan.digest() != longer.digest()
    without = {key: value for key, value in content().items() if key != "utility"}
    assert build_plan(without, folder=tmp_path).utility is None
    assert "utility" not in build_plan(without, folder=tmp_path).resolved()


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
def test_a_bad_section_is_one_clear_line(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError) as caught:
        build_plan(content(**changes), folder=tmp_path)
    assert message in str(caught.value)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for key, message in (
        ("data", "expected data"),
        ("test_rows", "test_rows too"),
        ("learning_rate", "learning_rates to"),
    ):
        table = content()
        del table["utility"][key]
        with pytest.raises(PlanError, match=message):
            build_plan(table, folder=tmp_path)
