"""Numbers of an accelerator against those of the processor; the same checks on a fake device, and the script that makes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from benchmarks import device as script
from benchmarks.device import CHECKS, Result

from tests.fake_device import FAKE, FakeDevice

CPU = torch.device("cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("name", CHECKS)
def test_a_gpu_computes_what_the_processor_computes(name: str) -> None:
    check, limit = CHECKS[name]
    assert check(torch.device("cuda")) <= limit


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_a_fake_device_computes_what_the_processor_computes(name: str) -> None:
    check, limit = CHECKS[name]
    with FakeDevice():
        assert check(FAKE) <= limit


@pytest.mark.slow
def test_the_script_runs_on_a_processor(tmp_path: Path) -> None:
    assert script.main(["--device", "cpu", "--quick", "--out", str(tmp_path / "cpu")]) == 0
    found = json.loads((tmp_path / "cpu.json").read_text())
    assert {row["part"] for row in found["results"]} == set(script.PARTS)
    assert found["left out"] == []
    assert (tmp_path / "cpu.md").read_text().startswith("# cpu, torch")


def one(part: str, *values: float, limit: float | None = None) -> object:
    def run(device: torch.device, quick: bool) -> Iterator[Result]:
        for value in values:
            yield Result(part=part, name="a number", value=value, unit="", limit=limit)

    return run


def test_what_came_out_stays_when_the_time_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "PARTS", {"first": (one("first", 1.0), 0.0), "second": (one("second", 2.0), 60.0)})
    script.measured(CPU, tmp_path / "of one" / "cpu", quick=False, minutes=0.5)
    found = json.loads((tmp_path / "of one" / "cpu.json").read_text())
    assert [row["value"] for row in found["results"]] == [1.0]
    assert found["left out"] == ["second"]
    assert "left out for want of time: second" in (tmp_path / "of one" / "cpu.md").read_text()


def test_after_an_error_the_other_parts_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: torch.device, quick: bool) -> Iterator[Result]:
        yield Result(part="first", name="a number", value=1.0, unit="")
        raise RuntimeError("out of memory")

    monkeypatch.setattr(script, "PARTS", {"first": (broken, 0.0), "second": (one("second", 2.0), 0.0)})
    found = script.measured(CPU, tmp_path / "cpu", quick=True, minutes=1.0)
    assert [(result.part, result.name, result.right) for result in found] == [
        ("first", "a number", True),
        ("first", "failed: RuntimeError: out of memory", False),
        ("second", "a number", True),
    ]


def test_what_is_wrong_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, code in ((0.5, 0), (2.0, 1), (float("nan"), 1)):
        monkeypatch.setattr(script, "PARTS", {"first": (one("first", value, limit=1.0), 0.0)})
        assert script.main(["--device", "cpu", "--out", str(tmp_path / "cpu")]) == code
    assert "| first | a number | nan |  | 1, **wrong** |" in (tmp_path / "cpu.md").read_text()
