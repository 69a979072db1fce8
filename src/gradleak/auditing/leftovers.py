"""Shared memory of a run that was killed together with the process that would have freed it."""

from __future__ import annotations

import atexit
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from gradleak.results.files import write_file

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
