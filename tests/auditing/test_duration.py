from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.auditing import load_plan
from gradleak.auditing.duration import Duration, duration
from gradleak.auditing.run import tasks
from gradleak.cli.progress import TimeLeft


def test_every_task_has_a_time_and_all_together_are_said_in_words(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    found = duration(plan)
    assert list(found.tasks) == [task.name for task in tasks(plan)]
    assert all(seconds >= 0 for seconds in found.tasks.values())
    assert sum(found.headlines.values()) == pytest.approx(sum(found.tasks.values()))
    # A second or two of a small network, starting and reports.
    assert 5 < found.seconds < 120
    assert str(Duration(tasks={"a": 100.0}, headlines={})) == "about 2 minutes of one core"


def test_the_time_left_goes_by_what_was_expected_then_by_what_was_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gradleak.cli.progress.time.monotonic", lambda: now[0])
    left = TimeLeft({"a": 10.0, "b": 60.0, "c": 30.0}, workers=2)
    assert left.after(0, 3, "started") == "0:00:50 left"
    now[0] = 20.0
    # Ten expected seconds took twenty.
    assert left.after(1, 3, "a") == "0:03:00 left"
    now[0] = 70.0
    assert left.after(2, 3, "b") == "0:00:30 left"
    assert left.after(3, 3, "c") == ""
    resumed = TimeLeft({"a": 10.0, "b": 10.0})
    assert resumed.after(1, 2, "resumed") == "0:00:10 left"
    assert TimeLeft({}).after(1, 2, "a") == ""
