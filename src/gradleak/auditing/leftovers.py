"""Shared memory of a run that was killed together with the process that would have freed it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradleak.results.files import write_file

_NOTE = ".process"
# Joblib's semaphores and memory maps, with the number of the process that made them.
_NAMES = ("sem.loky-{}-*", "joblib_memmapping_folder_{}_*")


@contextmanager
def freed_by_next_run(folder: Path) -> Iterator[None]:
    """A note in the folder of a run says whose shared memory is to be freed, until the end; an older note is followed.

    A process that joblib starts frees it after a kill, unless that is killed too, as with a whole group or by a
    scheduler.

    Args:
        folder: of the run, in which no other run is going on.
    """
    if sys.platform != "linux":
        yield
        return
    note = folder / _NOTE
    host = platform.node()
    if note.exists():
        with note.open(encoding="utf-8", errors="replace") as file:
            number, _, where = file.read(1000).partition(" ")
        # A container has numbers of its own, and memory that others may share.
        if where == host and number.isdecimal() and not _lives(int(number[:10])):
            _free(number)
    write_file(note, f"{os.getpid()} {host}")
    yield
    note.unlink(missing_ok=True)


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
