"""Files of runs: for their owner alone whatever the umask, whole or not there, and named where that fails; files of users."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradleak.results.errors import GradleakError, InputError, WriteError

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def expect_file(
    path: str | os.PathLike[str], what: str, *, remedy: str = "", error: type[GradleakError] = InputError
) -> Path:
    """The path of a file that is there.

    Args:
        path: that a user gave.
        what: is expected there, for the message: "a CSV file".
        remedy: what to do where it is not, for the end of the message.
        error: class of the refusal.

    Raises:
        GradleakError: of that class, with what lies there instead.
    """
    file = Path(path)
    try:
        if file.is_file():
            return file
        found = "a folder" if file.is_dir() else "a pipe or device" if file.exists() else "no such file"
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        found = "no such file"
    raise error(f"{file}: expected {what}, got {found}{remedy and f'; {remedy}'}")


def decoded(data: bytes, file: Path, *, error: type[GradleakError] = InputError) -> str:
    """The text that bytes hold in UTF-8, without the mark that some editors put before it.

    Args:
        data: content of the file.
        file: for the message.
        error: class of the refusal.

    Raises:
        GradleakError: of that class, for bytes in another encoding.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise error(f"{file}: expected UTF-8 text, got UTF-16; save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        line = data.count(b"\n", 0, wrong.start) + 1
        raise error(
            f"{file}: expected UTF-8 text, got a byte of another encoding in line {line}; save it as UTF-8"
        ) from wrong


def make_folder(path: Path) -> Path:
    """The folder, made for its owner alone where it is missing, with its parents; one that is there keeps its mode.

    Raises:
        WriteError: naming it.
    """
    with writing(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            try:
                folder.mkdir(mode=FOLDER_MODE)
            except FileExistsError:
                # Another worker was faster, or a file is in the way.
                if not folder.is_dir():
                    raise
                continue
            folder.chmod(FOLDER_MODE)
    return path


def write_file(path: Path, content: bytes | str) -> Path:
    """The file with this content, for its owner alone; it appears under its name only when it is whole and on disk.

    What is no regular file (a pipe, a terminal) is written as it is, and a link is followed.

    Args:
        path: in a folder that exists.
        content: all of it; text becomes UTF-8.

    Raises:
        WriteError: naming the file.
    """
    data = content.encode() if isinstance(content, str) else content
    with writing(path):
        target = path.resolve() if path.is_symlink() else path
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return path
        partial = partial_of(target)
        try:
            with _opened(partial, os.O_TRUNC) as handle:
                _write(handle, data)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    return path


def partial_of(path: Path) -> Path:
    """The place of a file until it is whole; a kill can leave it behind, until the next attempt or run."""
    return path.with_name(f".{path.name}.partial")


def clear_partials(folder: Path) -> None:
    """Remove what kills have left in a folder of files that were never whole, while nobody else writes there.

    Args:
        folder: of a run; folders in it are left alone, since tasks write over what they left there.
    """
    for left in folder.glob(partial_of(folder / "*").name):
        if left.is_file():
            left.unlink(missing_ok=True)


def append_to(path: Path, content: bytes) -> None:
    """Add to the end of a file, on disk before returning.

    Raises:
        WriteError: naming the file; a part of the content may stand there.
    """
    with writing(path), _opened(path, os.O_APPEND) as handle:
        _write(handle, content)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file in whatever the system says, which leaves it out where a disk is full.

    Raises:
        WriteError: in one line.
    """
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(
            f"{path}: cannot be written: {error.strerror or error}; make room, or choose another place, and run the same "
            "command again: what is finished stays"
        ) from error


def open_private(path: Path, how: int) -> int:
    """The handle of a file, made where it is missing, that is for its owner alone.

    Args:
        path: of the file.
        how: flags of `os.open`.

    Raises:
        WriteError: naming the file.
    """
    with writing(path):
        handle = os.open(path, how | os.O_CREAT | getattr(os, "O_BINARY", 0), FILE_MODE)
        # The umask can take bits of the mode away, and an older file have more of them.
        if hasattr(os, "fchmod") and stat.S_ISREG(os.fstat(handle).st_mode):
            os.fchmod(handle, FILE_MODE)
    return handle


@contextmanager
def _opened(path: Path, how: int) -> Iterator[int]:
    handle = open_private(path, os.O_WRONLY | how)
    try:
        yield handle
    finally:
        os.close(handle)


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fsync(handle)
