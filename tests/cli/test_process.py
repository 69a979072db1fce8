"""How a process of the command line ends: its code says who is at fault, and every letter comes out somehow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import called
from tests.cli.test_view import record

ROOT = Path(__file__).parents[2]


def ended(what: str, *, redirected: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of the command line that does something, its streams redirected as a shell writes it."""
    code = f"from gradleak.cli.process import carry_out\ndef commands():\n    {what}\ncarry_out(commands)\n"
    return subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirected}', sys.executable, code],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        encoding="latin-1",
    )


def test_a_fault_of_our_own_is_no_verdict() -> None:
    process = ended("raise KeyError('x')")
    assert process.returncode == 70
    assert "KeyError: 'x'" in process.stderr
    assert process.stderr.endswith(
        "gradleak: this is a fault of gradleak, not of what it was given; please report the lines above\n"
    )


@pytest.mark.parametrize("code", ["", "0", "1", "'no'"])
def test_code_of_a_user_that_ends_the_command_does_not_choose_its_code(code: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"import sys\ndef forward(x):\n    sys.exit({code})\n")
    process = ended(
        "import own; own.forward(1)", PYTHONPATH=f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    )
    said = "forward in own.py ended the command with sys.exit("
    assert (process.returncode, process.stderr.count(said), "Traceback" in process.stderr) == (2, 1, False)


def test_a_terminal_of_few_characters_gets_the_others_by_number() -> None:
    process = ended("print('10\\u207b\\u2078 é')", PYTHONIOENCODING="latin-1", PYTHONUTF8="0")
    assert (process.returncode, process.stdout) == (0, "10\\u207b\\u2078 é\n")


FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")


@FULL
@pytest.mark.parametrize("redirected", ["2>/dev/full", "2>&-"])
def test_the_code_of_bad_input_stays_where_no_line_can_be_written(redirected: str) -> None:
    assert (
        ended("from gradleak.results import InputError; raise InputError('x')", redirected=redirected).returncode == 2
    )


@FULL
def test_output_without_room_is_named() -> None:
    process = ended("print('x', flush=True)", redirected=">/dev/full")
    assert (process.returncode, process.stderr) == (2, "gradleak: output: No space left on device\n")


def test_output_that_nobody_reads_on_is_no_verdict(tmp_path: Path) -> None:
    record().save(tmp_path)
    for what in ("'report', sys.argv.pop()", "'--version'"):
        command = f"import sys; sys.argv = ['gradleak', {what}]; from gradleak.cli import main; main()"
        shell = '"$0" -c "$1" "$2" | true; exit ${PIPESTATUS[0]}'
        process = subprocess.run(
            ["bash", "-c", shell, sys.executable, command, str(tmp_path)],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (process.returncode, process.stderr) == (141, "")


def test_nobody_is_asked_where_there_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    process = called("init")
    assert process.returncode == 2
    assert "expected MODEL" in process.stderr
