"""What a command reads and what it writes: every wrong one ends in a line, and nothing that was there is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.auditing.conftest import SMALL_PLAN
from tests.cli.command import called
from tests.cli.test_view import record


def refused(*arguments: str) -> str:
    """The one line that a command ends with."""
    ended = called(*arguments)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("gradleak: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr.strip()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    record().save(folder)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("check", "{}"),
        ("audit", "{}", "--out", "x"),
        ("merge", "{}", "a", "--out", "x"),
        ("advise", "{}", "--utility", "0.5", "--out", "x"),
        ("train-generator", "{}", "--out", "g.safetensors"),
    ],
)
def test_a_folder_and_another_encoding_are_named_once_and_without_a_bar(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    def said(place: Path) -> str:
        return refused(*(one.format(place) for one in command))

    assert said(tmp_path).startswith(f"gradleak: {tmp_path}: expected a ")
    assert said(tmp_path).endswith("(TOML), got a folder")
    file = tmp_path / "plan.toml"
    file.write_text(SMALL_PLAN, encoding="utf-16")
    assert said(file) == f"gradleak: {file}: expected UTF-8 text, got UTF-16; save it as UTF-8"


@pytest.mark.parametrize("arguments", [("report", ""), ("audit", "plan.toml", "--out="), ("view", "", "--no-open")])
def test_an_empty_argument_is_not_the_folder_of_the_command(arguments: tuple[str, ...]) -> None:
    assert "is a variable of the shell not set?" in refused(*arguments)


def test_a_page_replaces_neither_record_nor_plan_and_has_the_format_of_its_name(run: Path, tmp_path: Path) -> None:
    file = run / "record.jsonl"
    held = file.read_bytes()
    assert "would replace" in refused("report", str(run), "--out", str(file))
    page = tmp_path / "page.md"
    page.symlink_to(file)
    assert "would replace" in refused("diff", str(run), str(run), "--out", str(page))
    page.unlink()
    assert file.read_bytes() == held
    assert refused("report", str(run), "--out", str(run)).endswith(
        f"--out: expected the name of a file, got the folder {run}"
    )
    assert called("report", str(run), "--out", str(page)).returncode == 0
    assert page.read_text(encoding="utf-8").startswith("# ")


def test_the_files_of_an_audit_replace_nothing_and_are_looked_at_before_it(tmp_path: Path) -> None:
    plan, mine = tmp_path / "plan.toml", tmp_path / "report.md"
    plan.write_text(SMALL_PLAN, encoding="utf-8")
    mine.write_text("mine", encoding="utf-8")
    audit = ("audit", str(plan), "--out")
    assert "with report.md, which the reports would replace" in refused(*audit, str(tmp_path))
    out = str(tmp_path / "out")
    assert "would replace" in refused(*audit, out, "--junit", str(plan))
    assert "expected the name of a file, got the folder" in refused(*audit, out, "--sarif", str(tmp_path))
    assert mine.read_text(encoding="utf-8") == "mine"
    assert plan.read_text(encoding="utf-8") == SMALL_PLAN


def test_what_is_unknown_is_shown_in_part() -> None:
    assert len(refused("explain", "x" * 5000)) < 200
