"""A privacy audit from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak.cli.explain import explanation
from tests.cli.command import called

PLAN = """
name = "answers"

[model]
use = "mlp"
features = 2
hidden = [2]
classes = 2

[privacy.answer]
use = "tests.auditing.own_pairs:RandomizedResponse"
epsilon = 3.0
trials = 2000
claimed_epsilon = 1.0
estimators = [{ use = "SplitThresholdEpsilon" }, { use = "PlugInEpsilon" }]

[[scenarios]]
name = "coins"
"""


def test_a_broken_claim_is_printed_and_fails_the_command(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN, encoding="utf-8")
    ended = called("audit", str(plan), "--out", str(out), "--jobs", "1", "--fail-on", "leaks")
    assert ended.returncode == 1, ended.stderr
    assert "1 privacy audit, 1 scenario," in ended.stderr
    assert "run: leaks (claim_broken)" in ended.stdout
    assert "THE CLAIM IS BROKEN" in ended.stdout
    findings = json.loads((out / "report.json").read_text(encoding="utf-8"))["findings"]
    (entry,) = [one for one in findings if one["item"] == "coins/answer"]
    measured = [score for score in entry["scores"] if "estimator" in score["about"]]
    assert [score["evidence"] for score in measured] == ["lower_bound", "estimate"]
    assert 1.0 < measured[0]["value"] <= 3.0


def test_a_bad_section_ends_in_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("trials = 2000", "delta = 0"), encoding="utf-8")
    ended = called("audit", str(plan), "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert ended.stderr.strip().count("\n") == 0
    assert "privacy.answer" in ended.stderr
    assert "delta: expected a number between 0 and 1, got 0" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("AttributeAudit", "Li et al. 2024"),
        ("GaussianFitEpsilon", "Assumptions"),
        ("Canary", "iterations"),
        ("epsilon_lower_bound", "never proves one"),
        ("leaks", "lower bound on epsilon"),
    ],
)
def test_what_an_audit_is_made_of_is_explained(name: str, part: str) -> None:
    assert part in explanation(name)
