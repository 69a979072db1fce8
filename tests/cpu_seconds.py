"""CPU seconds of every test, and the names of the unmarked ones that take too many.

Wall time on a shared machine is noise, so the processor's time decides: of the test's process with all of its
threads, and of the processes that it started and waited for. Fixtures that several tests share are counted apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LIMIT = 3.0
"""CPU seconds that a test may take unmarked; one that takes more gets a marker or a smaller example."""

SHARED_LIMIT = 10.0
"""CPU seconds that a fixture may take that several tests share."""

_PROPERTY = "cpu seconds"


def cpu_seconds() -> float:
    """CPU time that this process has used, and its children that have ended."""
    children = os.times()
    return time.process_time() + children.children_user + children.children_system


class CpuSeconds:
    """Plugin that measures tests where they run, and reports where the session is led."""

    def __init__(self, config: pytest.Config) -> None:
        self._fail_above: float | None = config.getoption("fail_slow")
        self._file: str | None = config.getoption("cpu_file")
        self._shared: list[tuple[str, float]] = []
        self._depth = 0
        self._tests: dict[str, float] = {}
        self._fixtures: dict[str, float] = {}
        self._marked: set[str] = set()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        if fixturedef.scope == "function" or self._depth:
            return (yield)
        self._depth += 1
        begun = cpu_seconds()
        try:
            return (yield)
        finally:
            self._depth -= 1
            self._shared.append((f"{fixturedef.baseid}::{fixturedef.argname}", cpu_seconds() - begun))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._begun = cpu_seconds()
        self._shared = []
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when == "teardown":
            own = cpu_seconds() - self._begun - sum(seconds for _, seconds in self._shared)
            marked = any(item.get_closest_marker(name) for name in ("slow", "gpu", "paper", "browser", "distributed"))
            report.user_properties.append((_PROPERTY, {"own": own, "shared": self._shared, "marked": marked}))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "teardown":
            return
        for name, measured in report.user_properties:
            if name == _PROPERTY:
                self._tests[report.nodeid] = measured["own"]
                if measured["marked"]:
                    self._marked.add(report.nodeid)
                for fixture, seconds in measured["shared"]:
                    self._fixtures[fixture] = max(seconds, self._fixtures.get(fixture, 0.0))

    def _slow(self, factor: float = 1.0) -> list[tuple[float, str]]:
        tests = [
            (seconds, name)
            for name, seconds in self._tests.items()
            if name not in self._marked and seconds > LIMIT * factor
        ]
        shared = [
            (seconds, f"{name} (shared)") for name, seconds in self._fixtures.items() if seconds > SHARED_LIMIT * factor
        ]
        return sorted([*tests, *shared], reverse=True)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._file is not None and not hasattr(session.config, "workerinput"):
            Path(self._file).write_text(json.dumps({"tests": self._tests, "fixtures": self._fixtures}, indent=1))
        failed = self._fail_above is not None and bool(self._slow(self._fail_above))
        if failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        total = sum(self._tests.values()) + sum(self._fixtures.values())
        terminalreporter.write_line(f"CPU time of the tests: {total:.0f} s")
        slow = self._slow()
        if not slow:
            return
        terminalreporter.section(
            f"unmarked tests above {LIMIT:g} s of CPU time, shared fixtures above {SHARED_LIMIT:g} s"
        )
        for seconds, name in slow:
            terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
        if self._fail_above is not None:
            terminalreporter.write_line(f"The run fails on those above {self._fail_above:g} times as much.")
