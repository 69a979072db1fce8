"""Ctrl-C and SIGTERM end the command line at once, whatever it does; signals are real ones."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.kills import LINE, killed

ROOT = Path(__file__).parents[2]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

# What a process may be doing; each says that it has begun, and would go on for a minute.
IN_CALLBACKS = """
import weakref
def drop(reference):
    for _ in range(1000):
        pass
while True:
    thing = type("Thing", (), {})()
    reference = weakref.ref(thing, drop)
    del thing
"""
IN_A_LONG_CALL = """
import hashlib
hashlib.pbkdf2_hmac("sha256", b"word", b"salt", 60_000_000)
"""
PIPE_TAKEN = """
import signal, time
signal.set_wakeup_fd(-1)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
time.sleep(60)
"""
CATCHING_ALL = """
import time
while True:
    try:
        time.sleep(60)
    except BaseException:
        pass
"""


def _doing(what: str, *, before: str = "", pass_fds: Sequence[int] = ()) -> subprocess.Popen[str]:
    """A process of the command line that does something; its first word is already read."""
    body = "\n".join(f"    {line}" for line in what.strip().splitlines())
    code = f"""{before}
from gradleak.cli.process import carry_out
def commands():
    print(1, flush=True)
{body}
carry_out(commands)
"""
    out = subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=out, stderr=out, text=True, pass_fds=pass_fds
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


@pytest.fixture(autouse=True)
def _ctrl_c_is_not_ignored() -> Iterator[None]:
    """A test run in the background may have been started with Ctrl-C ignored, and hands that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize(
    "what", [IN_CALLBACKS, IN_A_LONG_CALL, CATCHING_ALL, PIPE_TAKEN], ids=["callbacks", "call", "catching", "pipe"]
)
def test_a_signal_ends_the_process_with_its_code_and_one_line(number: signal.Signals, what: str) -> None:
    process = _doing(what)
    time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (CODES[number], LINE)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere handlers serve for more than one signal")
def test_a_second_signal_ends_even_what_holds_the_interpreter() -> None:
    process = _doing("import ctypes\nctypes.PyDLL(None).sleep(60)")
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT  # 130 for a shell


def test_what_is_ignored_stays_ignored_and_the_other_signal_ends_the_process() -> None:
    # As behind `nohup`, or the `&` of a script.
    process = _doing(CATCHING_ALL, before="import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


def test_a_terminal_that_takes_no_line_holds_nothing_up() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b" " * 4096)
    os.set_blocking(writing, True)
    process = _doing(CATCHING_ALL, before=f"import os; os.dup2({writing}, 2)", pass_fds=[writing])
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    os.close(reading)
    os.close(writing)


@pytest.mark.slow  # in short: what a process may be doing, above
def test_killed_runs_resume_to_the_same_record() -> None:
    assert [case.faults for case in killed(range(0, 40, 5), seed=1, say=print)] == [[]] * 8
