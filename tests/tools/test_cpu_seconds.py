from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cpu_seconds import CpuSeconds


def session(fail_slow: float | None = None, file: Path | None = None) -> SimpleNamespace:
    options = {"fail_slow": fail_slow, "cpu_file": file and str(file)}
    return SimpleNamespace(config=SimpleNamespace(getoption=options.get), exitstatus=pytest.ExitCode.OK)


def ended(name: str, own: float, *, marked: bool = False, shared: tuple[tuple[str, float], ...] = ()) -> Any:
    measured = {"own": own, "shared": [list(pair) for pair in shared], "marked": marked}
    return SimpleNamespace(when="teardown", nodeid=name, user_properties=[("cpu seconds", measured)])


REPORTS = [
    ended("quick", 0.1, shared=(("an audit", 5.0),)),
    ended("slow", 60.0, marked=True),
    ended("long", 4.0),
    ended("longer", 9.0),
]


@pytest.mark.parametrize(("factor", "failed"), [(None, False), (2.5, True), (4.0, False)])
def test_a_run_fails_on_unmarked_tests_far_above_the_limit(factor: float | None, failed: bool) -> None:
    at = session(factor)
    plugin = CpuSeconds(at.config)
    for report in REPORTS:
        plugin.pytest_runtest_logreport(report)
    plugin.pytest_sessionfinish(at)
    assert (at.exitstatus == pytest.ExitCode.TESTS_FAILED) == failed


def test_those_above_the_limit_are_named_slowest_first_and_shared_fixtures_apart(tmp_path: Path) -> None:
    at = session(file=tmp_path / "cpu.json")
    plugin, lines = CpuSeconds(at.config), []
    for report in REPORTS:
        plugin.pytest_runtest_logreport(report)
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append, section=lambda _: None))
    assert lines == ["CPU time of the tests: 78 s", "   9.0 s  longer", "   4.0 s  long"]
    plugin.pytest_sessionfinish(at)
    written = json.loads((tmp_path / "cpu.json").read_text(encoding="utf-8"))
    assert written["tests"]["slow"] == 60.0
    assert written["fixtures"] == {"an audit": 5.0}
