"""What is said beside the rows of `python -m benchmarks`, and runs in slices."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks import __main__ as program
from benchmarks import scaling
from benchmarks.comparison import beside, markdown, standing
from benchmarks.measure import Row


def _row(
    module: str, name: str, ratio: float, aim: float | None = None, unit: str = "plain gradients"
) -> dict[str, Any]:
    return {"module": module, "name": name, "ratio": ratio, "aim": aim, "unit": unit}


ROWS = [
    _row("attacks", "ResNet-18, InvertingGradients, iteration", 3.1, 4.0),
    _row("operators", "whole spectrum of AᵀA", 700.0, 700.0),
    _row("layer_gradients", "lenet5 (62,006 parameters), 512 examples", 0.5, 1.0, "plain gradients an example"),
    _row("layer_gradients", "lenet5 (62,006 parameters), 512 examples", 1.3, None, "of a loop of autograd"),
]


def test_peers_stand_beside_the_row_that_measures_the_same() -> None:
    found = {one.peer: one for one in beside(ROWS)}
    assert (found["breaching"].ours, found["breaching"].theirs) == (3.1, 4.45)
    assert found["code of the I²F paper"].ours is None  # that module was not run


def test_aims_say_met_missed_or_not_run() -> None:
    found = {one.what: one for one in standing(ROWS)}
    assert found["whole spectrum of AᵀA on the LeNet"].stands == "missed"
    assert found["operators: whole spectrum of AᵀA"].stands == "met"
    assert found["gradients by layer of single examples"].ours == 1.3
    assert found["a gate on a small model"].stands == "not run (start)"
    own = _row("start", "a gate, further rounds", 0.2, 0.3, "s")
    again = {one.what: one for one in standing([*ROWS, own])}
    assert "a gate on a small model" not in again  # the row says it
    assert again["start: a gate, further rounds"].stands == "met"


def test_the_tables_say_what_was_not_run() -> None:
    lines = list(markdown(ROWS))
    assert "| ResNet-18, InvertingGradients, iteration | 3.1 | 4.45 | breaching |" in lines
    assert "| operators | not run | 12,900 | code of the I²F paper, its exact solver |" in lines
    after = lines[lines.index("Aims") :]
    missed = [place for place, line in enumerate(after) if line.endswith("| missed |")]
    assert missed == [4, 5]


def test_a_run_goes_on_where_its_file_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def module(name: str) -> ModuleType:
        made = ModuleType(f"benchmarks.{name}", "About something.")

        def rows() -> Iterator[Row]:
            ran.append(name)
            yield Row(name=f"row of {name}", ratio=2.0, aim=1.0)

        made.run = rows  # type: ignore[attr-defined]
        return made

    for name in ("one", "two"):
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module(name))
    file = tmp_path / "results" / "some.json"
    rows, left = program.run(["one", "two"], [], file, minutes=0.0)
    assert (rows, left) == ([], ["one", "two"])
    program.run(["one"], [], file)
    rows, left = program.run(["one", "two"], program.read(file), file)
    assert (ran, left) == (["one", "two"], [])
    held = json.loads(file.read_text(encoding="utf-8"))
    assert [row["name"] for row in held["rows"]] == ["row of one", "row of two"]
    assert [one["stands"] for one in held["aims"] if one["what"].startswith("one: ")] == ["missed"]
    assert "measured outside" in held["peers"]["source"]


def test_scaling_measures_every_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "STEPS", 1)
    row = scaling.measured(scaling.Point(width=2, side=4), attack_alone=False)
    assert (row["inputs"], row["batch"]) == (48, 1)
    assert all(row[key] > 0.0 for key in ("λmax, bounds 10 % apart", "I²F, bounds 5 % apart", "whole spectrum"))


def test_scaling_goes_on_where_its_file_ends_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(point: scaling.Point, *, attack_alone: bool) -> dict[str, float]:
        told = {"parameters": 100 * point.width, "inputs": 3 * point.side**2, "batch": 1, "starts": point.starts}
        return told | {"plain gradient, ms": 1.0, "attack iteration": 2.5} | ({} if attack_alone else {"λmax": 5.0})

    axes = {"parameters": [scaling.Point(width=2), scaling.Point(width=4)], "starts": [scaling.Point(starts=2)]}
    monkeypatch.setattr(scaling, "AXES", axes)
    monkeypatch.setattr(scaling, "measured", fake)
    file, picture = tmp_path / "scaling.json", tmp_path / "scaling.svg"
    assert len(scaling.run(file, minutes=-1.0)) == 3
    assert scaling.run(file) == []
    assert [row["λmax"] for row in scaling.read(file)["parameters"].values()] == [5.0, 5.0]
    monkeypatch.setattr(scaling, "measured", lambda *_, **__: pytest.fail("measured again"))
    assert scaling.run(file) == []
    scaling.plot(file, picture)
    assert "<svg" in picture.read_text(encoding="utf-8")
