"""The page of runs in headless Chromium, from a server that runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from gradleak.cli.view import Answer, Viewer
from gradleak.reporting.runs import Run, render_message, render_runs
from gradleak.results import Finding, RecordWriter
from tests.cli.test_view import record
from tests.reporting.browser import LOOK, asked, needs_chromium, visited

pytestmark = [pytest.mark.browser, needs_chromium]
HEADER = {"name": "live", "plan_digest": "0", "groups": ["a", "b", "c"], "started": "2026-01-01T00:00:00Z"}


def part(name: str) -> list[Finding]:
    return [Finding(kind="dead_units", item=name, audit="release", seconds=30.0)]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[tuple[RecordWriter, Path]]:
    """A folder with a finished run, a damaged one, and one that goes on, a third of which is done."""
    folder = tmp_path / "runs"
    for name in ("finished", "torn", "live"):
        (folder / name).mkdir(parents=True)
    record().save(folder / "finished")
    torn = record().save(folder / "torn")
    torn.write_text(torn.read_text(encoding="utf-8").replace("90.0", "91.0"), encoding="utf-8")
    with RecordWriter(folder / "live" / "record.jsonl", HEADER) as writer:
        writer.write_group("a", part("a"))
        yield writer, folder


class Counting(Viewer):
    """A server that goes on with a run when the page asks how far it is."""

    writer: RecordWriter
    asked_for: list[str]

    def answer(self, route: str, query: Mapping[str, str]) -> Answer:
        """As ever, after the next part of the run is written."""
        self.asked_for.append(route)
        count = self.asked_for.count("runs.json")
        if route == "runs.json" and count in (1, 3):
            self.writer.write_group("bc"[count // 2], part("bc"[count // 2]))
            if count == 3:
                self.writer.close()
            self._runs.clear()
        return super().answer(route, query)


def test_a_run_is_followed_to_its_end(live: tuple[RecordWriter, Path], tmp_path: Path) -> None:
    """The policy that the server states lets the two scripts of the page run, and nothing is loaded but its own answers."""
    writer, folder = live
    with Counting(folder, 0) as viewer:
        viewer.writer, viewer.asked_for = writer, []
        Thread(target=viewer.serve_forever, daemon=True).start()
        # Time goes by quickly there: first for one question, then for several.
        once = visited(viewer.address, tmp_path, budget=3000)
        assert "2 of 3 parts, about 30 s left" in once
        assert re.search(r'<progress value="2" max="3"', once)
        assert 'class="sort"' in once
        shown = visited(viewer.address, tmp_path, budget=9000)
        viewer.shutdown()
    row = shown.split('<tr data-run="live"')[1].split("</tr>")[0]
    assert 'data-state="finished"' in row
    assert "<progress" not in row
    assert set(viewer.asked_for) == {"", "runs.json"}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_is_cut_off_pale_or_out_of_reach(
    live: tuple[RecordWriter, Path], width: int, dark: bool, tmp_path: Path
) -> None:
    _, folder = live
    runs = [Run.read(name, folder / name / "record.jsonl") for name in ("live", "finished", "torn")]
    for page in (
        render_runs(runs, folder, time.time()),
        render_runs([], folder, 0.0),
        render_message("No such run", "-"),
    ):
        found = asked(page, tmp_path, LOOK, width=width, dark=dark)["opened"]
        assert {name: value for name, value in found.items() if isinstance(value, list) and value} == {}
        assert found["dark"] is dark


def test_the_list_fits_a_screen_and_paper_has_no_controls(live: tuple[RecordWriter, Path], tmp_path: Path) -> None:
    """Names of plans are long, and the last column holds what runs are compared by."""
    _, folder = live
    found = [Run.read(name, folder / name / "record.jsonl") for name in ("live", "finished", "torn")]
    runs = [replace(run, title="hospital model, round 12, with a rather long name of the plan") for run in found]
    page = render_runs(runs, folder, time.time())
    script = """
        const table = document.querySelector('.scroll'), shown = one => one.checkVisibility();
        answer({ over: table.scrollWidth - table.clientWidth, titles: table.textContent.split('round 12').length - 1,
          controls: [...document.querySelectorAll('input, button:not(.sort), select')].filter(shown).length });"""
    screen = asked(page, tmp_path, script, width=1200)
    paper = asked(page.replace("@media print", "@media screen"), tmp_path, script, width=688)
    assert (screen["over"], screen["titles"]) == (0, 3)
    assert (paper["over"], paper["controls"]) == (0, 0)


def test_two_runs_are_chosen_to_be_compared(live: tuple[RecordWriter, Path], tmp_path: Path) -> None:
    _, folder = live
    runs = [Run.read(name, folder / name / "record.jsonl") for name in ("live", "finished")]
    page = render_runs(runs, folder, time.time())
    script = """
        const form = document.querySelector('form'), empty = form.checkValidity();
        for (const name of ['before', 'after']) form.querySelector(`[name=${name}][value=finished]`).checked = true;
        const asked = [...new FormData(form)].map(pair => pair.join('='));
        answer({ empty, full: form.checkValidity(), asked, action: new URL(form.action).pathname.split('/').at(-1) });"""
    found = asked(page, tmp_path, script)
    assert found == {"empty": False, "full": True, "asked": ["before=finished", "after=finished"], "action": "diff"}
