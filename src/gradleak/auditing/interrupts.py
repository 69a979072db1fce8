"""Runs that are broken off: Ctrl-C within a user's process, and shared memory of a run that was killed."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gradleak.results.files import make_folder, write_file


@contextmanager
def no_interrupt_lost() -> Iterator[None]:
    """While active, a `KeyboardInterrupt` that Python drops is raised anew, a moment later.

    Python raises it wherever the main thread is, and drops what is raised in a callback of a weak reference, of which
    torch's transforms have many. The hook for what is dropped is as before afterwards.
    """
    before = sys.unraisablehook

    def again(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            # Not here, which is still within the callback.
            threading.Timer(0.01, _interrupt).start()
        else:
            before(dropped)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    """The signal once more, to the thread that handles signals."""
    main = threading.main_thread().ident
    if sys.platform == "win32" or main is None:
        signal.raise_signal(signal.SIGINT)
    else:
        # Which ends what the thread may be waiting for, too.
        signal.pthread_kill(main, signal.SIGINT)


_NOTE = ".process"
# Joblib's semaphores and memory maps, with the number of the process that made them.
_NAMES = ("sem.loky-{}-*", "joblib_memmapping_folder_{}_*")


def free_shared_memory(folder: Path, *, leave_note: bool) -> None:
    """Free the shared memory of a process that worked in the folder of a run and was killed.

    A process that joblib starts does so after a kill, unless that is killed too, as with a whole group or by a scheduler.

    Args:
        folder: of the run, in which no other run is going on.
        leave_note: whether this process is about to share memory, so that a note with its number stays there until its
            end: joblib keeps what it shares for the next run in a process.
    """
    if sys.platform != "linux":
        return
    note, host = folder / _NOTE, platform.node()
    if note.exists():
        with note.open(encoding="utf-8", errors="replace") as file:
            number, _, where = file.read(1000).partition(" ")
        # A container has numbers of its own, and memory that others may share.
        if where == host and number.isdecimal() and len(number) <= 10 and not _lives(int(number)):
            _free(number)
            note.unlink(missing_ok=True)
    if leave_note:
        write_file(note, f"{os.getpid()} {host}")
        atexit.register(note.absolute().unlink, missing_ok=True)


@contextmanager
def noted(folder: Path, *, shares: bool) -> Iterator[None]:
    """The note of `free_shared_memory` while processes begin, in a folder that is made for it; neither stays after a refusal.

    Args:
        folder: of the run.
        shares: whether this process is about to share memory.
    """
    if not shares or (folder.exists() and not folder.is_dir()):
        yield
        return
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    make_folder(folder)
    free_shared_memory(folder, leave_note=True)
    try:
        yield
    except BaseException:
        (folder / _NOTE).unlink(missing_ok=True)
        with suppress(OSError):
            for one in missing:
                one.rmdir()
        raise


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _free(number: str) -> None:
    for place in {Path("/dev/shm"), Path(tempfile.gettempdir())}:
        for pattern in _NAMES:
            for left in place.glob(pattern.format(number)):
                if left.lstat().st_uid != os.getuid() or left.is_symlink():
                    continue
                if left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)
