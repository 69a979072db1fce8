from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from gradleak.auditing import load_plan
from gradleak.auditing.duration import Duration, duration
from gradleak.auditing.run import tasks
from gradleak.cli.progress import TimeLeft
from gradleak.core import Release
from gradleak.defenses import DPSGD
from gradleak.protocols import FedSGD


def test_every_task_has_a_time_and_all_together_are_said_in_words(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    found = duration(plan)
    assert list(found.tasks) == [task.name for task in tasks(plan)]
    assert all(seconds >= 0 for seconds in found.tasks.values())
    assert sum(found.headlines.values()) == pytest.approx(sum(found.tasks.values()))
    # A second or two of a small network, starting and reports.
    assert 5 < found.seconds < 120


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.0, "10 seconds"), (15.0, "10 to 30 seconds"), (50.0, "20 seconds to 2 minutes"), (200.0, "2 to 7 minutes"),
     (3000.0, "25 minutes to 1.8 hours"), (20000.0, "2.8 to 12.2 hours")],
)  # fmt: skip
def test_a_time_is_said_with_how_far_it_can_be_off(seconds: float, said: str) -> None:
    assert str(Duration(tasks={"a": seconds}, headlines={}, beside=0.0)) == f"about {said} of one core"


def test_attacks_through_a_defense_are_dearer(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    clipped = Release(FedSGD(), [DPSGD.from_noise_multiplier(1.0, clip_norm=1.0, expected_batch_size=1)])
    scenarios = [replace(one, release=clipped) for one in plan.site.scenarios]
    with mock.patch("gradleak.auditing.duration._tried", side_effect=[1.0, 6.0, 2.0]):
        found = duration(replace(plan, site=replace(plan.site, scenarios=scenarios)))
    # A gradient takes one second; a derivative through clipping three times that of one without.
    task = next(one for one in tasks(plan) if one.name.startswith("attack/"))
    assert found.tasks[task.name] == pytest.approx(3 * task.cost * task.pace, rel=0.05)


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
