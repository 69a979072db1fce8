"""What a run leaves when it is broken off: shared memory of a killed one, and a Ctrl-C that Python drops."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradleak.auditing import interrupts
from gradleak.auditing.interrupts import free_shared_memory, no_interrupt_lost

linux = pytest.mark.skipif(sys.platform != "linux", reason="joblib's semaphores are files on Linux alone")


def _ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def _shared(number: int) -> list[Path]:
    """What joblib would leave of this process."""
    made = [Path(f"/dev/shm/sem.loky-{number}-abc"), Path(f"/dev/shm/joblib_memmapping_folder_{number}_abc")]
    made[0].touch()
    made[1].mkdir()
    (made[1] / "array.pkl").touch()
    return made


def _remove(paths: list[Path]) -> None:
    subprocess.run(["rm", "-rf", *paths], check=True)


@linux
def test_shared_memory_of_a_killed_run_is_freed_by_the_next_one(tmp_path: Path) -> None:
    number = _ended()
    # A number that only begins like it.
    left, others = _shared(number), _shared(int(f"{number}0"))
    free_shared_memory(tmp_path, leave_note=False)
    assert all(path.exists() for path in left)  # nobody said whose they are
    (tmp_path / ".process").write_text(f"{number} {platform.node()}", encoding="utf-8")
    free_shared_memory(tmp_path, leave_note=False)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert not (tmp_path / ".process").exists()
    _remove(others)


@linux
@pytest.mark.parametrize(("ending", "stays"), [("", False), ("os._exit(0)", True)])
def test_a_process_that_shares_memory_leaves_a_note_until_its_end(ending: str, stays: bool, tmp_path: Path) -> None:
    # Without the package around it, which imports torch.
    code = f"""
import os, runpy
from pathlib import Path
runpy.run_path({interrupts.__file__!r})["free_shared_memory"](Path({str(tmp_path)!r}), leave_note=True)
print(os.getpid(), flush=True)
{ending}
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    note = tmp_path / ".process"
    assert note.exists() is stays
    assert not stays or note.read_text(encoding="utf-8") == f"{process.stdout.strip()} {platform.node()}"


@linux
@pytest.mark.parametrize("note", ["{} elsewhere", "{}", "-1 {}", "9{} {}", "../../x {}", "", "\x00"])
def test_a_note_of_another_host_or_of_nobody_frees_nothing(note: str, tmp_path: Path) -> None:
    left = _shared(_ended())
    (tmp_path / ".process").write_text(note.format(left[0].name.split("-")[1], platform.node()), encoding="utf-8")
    free_shared_memory(tmp_path, leave_note=False)
    assert all(path.exists() for path in left)
    _remove(left)


@linux
def test_the_memory_of_a_process_that_lives_stays(tmp_path: Path) -> None:
    left = _shared(os.getppid())
    (tmp_path / ".process").write_text(f"{os.getppid()} {platform.node()}", encoding="utf-8")
    free_shared_memory(tmp_path, leave_note=False)
    assert all(path.exists() for path in left)
    _remove(left)


@pytest.fixture
def raising() -> Iterator[None]:
    """Ctrl-C raises as Python has it, whatever the shell of the test said."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _drop(error: type[BaseException]) -> None:
    """Raise it where Python drops it."""

    class Thing:
        pass

    def callback(_: object) -> None:
        raise error

    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
    assert reference() is None


@pytest.mark.usefixtures("raising")
def test_an_interrupt_that_python_drops_comes_a_moment_later() -> None:
    before = sys.unraisablehook
    with no_interrupt_lost():
        _drop(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    assert sys.unraisablehook is before


@pytest.mark.usefixtures("raising")
def test_other_exceptions_that_python_drops_go_to_the_hook_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda dropped: seen.append(dropped.exc_type))
    with no_interrupt_lost():
        _drop(ZeroDivisionError)
    assert seen == [ZeroDivisionError]
