"""Layers from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.auditing import load_plan
from gradleak.auditing.catalog import catalog, from_python
from gradleak.cli.explain import explanation
from gradleak.results import PlanError, Record
from tests.cli.command import called

PLAN = """
name = "layers"

[model]
use = "mlp"
features = 6
hidden = [4]
classes = 2
activation = "tanh"

[layers.inputs]
data = { use = "tests.auditing.small_population:two_groups" }
releases = 3
measures = [{ use = "Sensitivity" }]

[[scenarios]]
name = "plain"
"""


@pytest.mark.slow
def test_layers_are_measured_and_reported(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN, encoding="utf-8")
    ended = called("audit", str(plan), "--out", str(out), "--jobs", "1")
    assert ended.returncode == 0, ended.stderr
    assert "1 layer audit, 1 scenario," in ended.stderr
    assert "run: inconclusive (layers_compared)" in ended.stdout
    assert "Where it leaks" in (out / "report.html").read_text(encoding="utf-8")
    marks = [score.about for _, score in Record.load(out).scores]
    assert marks == [{"layer": "0"}, {"layer": "2"}]


def test_a_bad_section_is_refused_in_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("two_groups", "no_groups"), encoding="utf-8")
    with pytest.raises(PlanError, match=r"layers\.inputs\.data: cannot import") as refusal:
        load_plan(plan)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("LatentInformation", "Mo et al. 2021"),
        ("MINE", "components"),
        ("subspace_distance", "Grassmann"),
        ("NormalizedError", "spread"),
        ("profile_layers", "which layers to protect first"),
        ("layers", "batch_size"),
    ],
)
def test_what_measures_layers_is_explained(name: str, part: str) -> None:
    assert part in explanation(name)


def test_what_measures_layers_is_listed() -> None:
    names = {"LatentInformation", "MINE", "NeighborInformation", "OriginalInformation", "SubspaceDistance"}
    assert names <= set(catalog()["layer measures"])
    listed = from_python()
    assert {"profile_layers", "findings_of_layers", "LayerProfiles"} <= set(listed["gradleak.audits.layers (Python)"])
    assert "LayerProfile" in listed["gradleak.risk (Python)"]
