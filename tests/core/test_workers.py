"""Worker processes: the same results, and an end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from joblib.externals.loky.backend.reduction import dumps

from gradleak.core.process import _END_WITH_PARENT, in_processes, processes_begun

ROOT = Path(__file__).parents[2]
# A parent without torch and a worker that does what workers do first. The worker says its number, and whether torch is
# there already.
PARENT = """
import subprocess, sys
code = "import os, pickle, sys, time; "
code += "first = pickle.loads(bytes.fromhex(sys.argv[1])); first(os.getppid(), {by_system}); "
code += "print(os.getpid(), 'torch' in sys.modules, flush=True); {then}"
subprocess.run([sys.executable, "-c", code, sys.argv[1]])
"""


def _parent(then: str, *, by_system: bool) -> tuple[subprocess.Popen[str], int]:
    """A process with a worker, and the worker's number."""
    code = PARENT.format(by_system=by_system, then=then)
    first = bytes(dumps(_END_WITH_PARENT)).hex()
    process = subprocess.Popen([sys.executable, "-c", code, first], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    number, torch_is_there = process.stdout.readline().split()
    assert torch_is_there == "False"
    return process, int(number)


def _is_alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
@pytest.mark.parametrize(
    ("then", "by_system"),
    [
        ("time.sleep(60)", False),
        ("time.sleep(60)", True),
        # It holds the interpreter for longer, so that no thread of the worker gets to act.
        pytest.param("sys.setswitchinterval(60)\\nwhile True: pass", True, id="busy"),
    ],
)
def test_a_worker_ends_with_a_parent_that_is_killed(then: str, by_system: bool) -> None:
    process, worker = _parent(then, by_system=by_system)
    assert _is_alive(worker)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while _is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up in /proc")
def test_ctrl_c_is_left_to_the_parent() -> None:
    process, worker = _parent("time.sleep(60)", by_system=False)
    os.kill(worker, signal.SIGINT)
    time.sleep(0.2)
    assert _is_alive(worker)
    process.kill()
    process.communicate()


def _threads(number: int) -> tuple[int, int]:
    return number, torch.get_num_threads()


def test_one_after_the_other_in_this_process_on_one_thread() -> None:
    before = torch.get_num_threads()
    calls = [partial(_threads, number) for number in range(3)]
    assert list(in_processes(calls, jobs=1)) == [(0, 1), (1, 1), (2, 1)]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_in_several_processes_in_order_on_one_thread() -> None:
    calls = [partial(_threads, number) for number in range(5)]
    assert list(in_processes(calls, jobs=2)) == [(number, 1) for number in range(5)]
    assert sorted(in_processes(calls, jobs=2, ordered=False)) == [(number, 1) for number in range(5)]


def _number() -> int:
    # Or one worker may do all.
    time.sleep(0.5)
    return os.getpid()


def _workers() -> set[int]:
    """Processes of joblib that this one has started."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    ).stdout
    return {int(line.split()[0]) for line in listed.splitlines() if "LokyProcess" in line}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks processes up as Linux lists them")
def test_processes_that_were_begun_are_those_that_work_even_after_a_failure() -> None:
    def fail() -> None:
        with processes_begun(_number, jobs=2):
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    begun = _workers()
    assert len(begun) == 2
    assert set(in_processes([_number, _number], jobs=2, ordered=False)) <= begun
