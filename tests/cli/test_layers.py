"""Layers from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak.auditing.catalog import catalog, from_python
from gradleak.cli.explain import explanation
from tests.cli.test_cli import gradleak

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


def test_layers_are_measured_and_reported(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(PLAN, encoding="utf-8")
    ended = gradleak("audit", str(plan), "--out", str(out), "--jobs", "1")
    assert ended.returncode == 0, ended.stderr
    assert "1 layer audit, 1 scenario," in ended.stderr
    assert "run: inconclusive (layers_compared)" in ended.stdout
    assert "Where it leaks" in (out / "report.html").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (out / "record.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["layer"] for line in lines if line.get("kind") == "layers"] == ["0", "2"]


def test_a_bad_section_ends_in_one_line(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        PLAN.replace("Sensitivity", "LatentInformation").replace("two_groups", "no_groups"), encoding="utf-8"
    )
    ended = gradleak("audit", str(plan), "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert ended.stderr.strip().count("\n") == 0
    assert "layers.inputs.data: cannot import" in ended.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("LatentInformation", "Mo et al. 2021"),
        ("MINE", "components"),
        ("subspace_distance", "Grassmann"),
        ("NormalizedError", "spread"),
        ("profile_layers", "which layers to protect first"),
        ("LayerAudit", "batch_size"),
    ],
)
def test_what_measures_layers_is_explained(name: str, part: str) -> None:
    assert part in explanation(name)


def test_what_measures_layers_is_listed() -> None:
    names = {"LatentInformation", "MINE", "NeighborInformation", "OriginalInformation", "SubspaceDistance"}
    assert names <= set(catalog()["layer measures"])
    assert {"profile_layers", "LayerProfile"} <= set(from_python()["measures and where it leaks (Python)"])
