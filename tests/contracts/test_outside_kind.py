"""A kind of audit of another package, found by its entry point: in plans, records, reports and `gradleak list`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import called, started

from gradleak.reporting import write_html
from gradleak.results import Record, UnknownFinding
from gradleak.results.kinds import kinds

OUTSIDE = Path(__file__).parent / "outside"
PLAN = """
name = "outside"

[model]
use = "mlp"
features = 64
hidden = [24]
classes = 10

[data]
use = "tests.auditing.small_model:flat_data"

[dead_units.relu]
most = 0.25

[[scenarios]]
name = "undefended"

[[scenarios]]
name = "pruned"
defenses = [{ use = "Prune", ratio = 0.9 }]
"""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The other package is found in this process."""
    monkeypatch.syspath_prepend(str(OUTSIDE))
    kinds.cache_clear()
    yield
    kinds.cache_clear()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    (folder / "plan.toml").write_text(PLAN, encoding="utf-8")
    done = started("audit", str(folder / "plan.toml"), "--out", str(folder / "run"), "--jobs", "1", path=OUTSIDE)
    assert done.returncode == 0, done.stderr
    assert "1 count of dead units" in done.stderr
    return folder / "run"


def test_its_findings_stand_in_every_format(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "record.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {line["item"]: line for line in lines if line.get("kind") == "dead_units"}
    assert set(found) == {"control/relu", "undefended/relu", "pruned/relu"}
    assert found["control/relu"]["control"]["passed"] is True
    assert found["undefended/relu"]["units"] == 34
    reasons = {line["item"]: line["reason"] for line in lines if line["type"] == "verdict"}
    assert reasons["undefended/relu"] == reasons["pruned/relu"] == "units_counted"
    for name in ("report.html", "report.md"):
        page = (run / name).read_text(encoding="utf-8")
        for words in ("Units without a gradient", "Most dead units", "Planted dead unit", "undefended"):
            assert words in page, (name, words)
    page = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert "Units without a gradient" in json.dumps(page)


def test_where_it_is_not_installed_the_record_is_read_and_shown_by_a_default_page(run: Path, tmp_path: Path) -> None:
    record = Record.load(run)
    found = [finding for finding in record.findings if finding.kind == "dead_units"]
    assert [type(finding) for finding in found] == [UnknownFinding] * 3
    assert record.unreadable == 0
    page = write_html(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "dead_units" in page
    assert "undefended/relu" in page
    refused = called("audit", str(run.parent / "plan.toml"), "--out", str(tmp_path / "run"))
    assert refused.returncode == 2
    assert "unknown key 'dead_units'" in refused.stderr


def test_it_is_listed_and_refuses_wrong_settings(installed: None, tmp_path: Path) -> None:
    listed = called("list")
    assert listed.returncode == 0, listed.stderr
    assert "dead_units" in listed.stdout
    assert "Counts the units of every released layer whose weights got no gradient." in listed.stdout
    for wrong, message in {
        "most = 2.0": "expected a share from 0 to 1, got 2.0",
        "mots = 0.5": "did you mean 'most'?",
    }.items():
        (tmp_path / "plan.toml").write_text(PLAN.replace("most = 0.25", wrong), encoding="utf-8")
        refused = called("audit", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "run"))
        assert refused.returncode == 2
        assert message in refused.stderr
