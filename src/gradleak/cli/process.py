"""A process of the command line: how signals and known errors end it."""

from __future__ import annotations

import ctypes
import io
import os
import re
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread
from types import FrameType

BAD_INPUT = 2
# Never 1, which says that a verdict occurred.
OUR_FAULT = 70
NOBODY_READS = 141
_ENDING = (signal.SIGINT, signal.SIGTERM)


def carry_out(commands: Callable[[], object]) -> None:
    """Run a command line: a known error is printed as one line and ends with 2, a signal with 130 or 143 and a line.

    What nobody foresaw ends with 70 and its traceback, and output that nobody reads on (`| head`) with 141.

    Args:
        commands: reads the arguments of the process. What it imports itself, and not before, a signal may interrupt.
    """
    end_at_signals()
    warnings.showwarning = _as_lines()
    _print_anything()
    from gradleak.results import GradleakError, InputError

    try:
        if empty := [place for place, one in enumerate(sys.argv) if place and re.fullmatch(r"(--[a-z-]+=)?", one)]:
            # A path would be the folder of the command.
            before = " ".join(sys.argv[1 : empty[0] + 1])
            raise InputError(f"expected no empty argument, got one: {before} ''; is a variable of the shell not set?")
        commands()
    except GradleakError as error:
        _stop(str(error))
    except OSError as error:
        _stop(f"{error.filename or 'output'}: {error.strerror}" if error.errno else str(error))
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):
            sys.exit(NOBODY_READS)
        if place := _foreign(end):
            _stop(
                f"{place} ended the command with sys.exit({end.code!r}); code that a plan names has to return or to raise"
            )
        raise
    # Of a user's code anything may come.
    except BaseException:
        traceback.print_exc()
        _stop("this is a fault of gradleak, not of what it was given; please report the lines above", OUR_FAULT)


def _foreign(end: SystemExit) -> str:
    """Function and file that ended the process in place of the command line, or nothing: its code would be read as ours."""
    trace = end.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    name, code = str(trace.tb_frame.f_globals.get("__name__", "")), trace.tb_frame.f_code
    own = name.partition(".")[0] in {__name__.partition(".")[0], "typer", "click"}
    return "" if own else f"{code.co_name} in {os.path.basename(code.co_filename)}"


def end_at_signals() -> None:
    """From here on Ctrl-C and SIGTERM end this process at once, whatever it does, with 130 or 143 and a line.

    Where a long computation of a library holds Python (LAPACK's of SciPy do), a second signal ends the process at once.

    An exception would be raised wherever Python is at that moment, and is lost in callbacks of weak references, of
    which torch has many. There is nothing to wind up: records, states and pictures are whole at any moment, and workers
    end with their parent.

    For the main thread of a process of the command line alone, until its end. What is ignored stays ignored, such as
    Ctrl-C behind `nohup`.
    """
    ending = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    first = Lock()

    def end(number: int, frame: FrameType | None = None) -> None:
        if first.acquire(blocking=False):
            _end(number)

    reading, writing = os.pipe()
    if sys.platform != "win32":
        os.set_blocking(writing, False)
    # The system's half of a handler writes here at once, Python's waits for the end of a long computation.
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in ending:
        # For code that takes the pipe for itself.
        signal.signal(number, end)
        _once(number)
    Thread(target=_wait, args=(reading, ending, end), daemon=True).start()
    # For processes that this one starts: that which frees what joblib shares would say so after our line.
    sys.warnoptions.append("ignore::UserWarning")
    if sys.platform != "win32":
        # The thread gets it. A worker begins with what the main thread blocks, and would print a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


def end_by_signal() -> Callable[[], None]:
    """A function that waits for Ctrl-C or SIGTERM, which from here on end nothing by themselves, also if one came before.

    For a command that has no other end, and its main thread alone.
    """
    reading, writing = os.pipe()
    if sys.platform != "win32":
        os.set_blocking(writing, False)
    for number in _ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            # In place of what ends the process. The system's half of a handler writes into the pipe, whoever gets the signal.
            signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def wait() -> None:
        while os.read(reading, 1)[0] not in _ENDING:
            pass

    return wait


def _once(number: signal.Signals) -> None:
    """Let the handler of this signal serve for one; after it the system ends the process, without asking Python."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "sysv_signal"):
        return
    for install in (libc.signal, libc.sysv_signal):
        install.restype, install.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)
    handler = libc.signal(number, None)
    libc.sysv_signal(number, handler)


def _wait(reading: int, ending: list[signal.Signals], end: Callable[[int], None]) -> None:
    while (number := os.read(reading, 1)[0]) not in ending:
        pass
    end(number)


def _end(number: int) -> None:
    try:
        # Importing would wait for the main thread.
        children = getattr(sys.modules.get("multiprocessing"), "active_children", list)
        for worker in children():
            os.kill(worker.pid, signal.SIGKILL)
        # A progress bar hides the cursor.
        cursor = "\x1b[?25h\n" if os.isatty(2) else ""
        line = f"{cursor}interrupted; run the same command again to continue\n"
        # A terminal that Ctrl-S holds would hold the process.
        if sys.platform == "win32" or select.select([], [2], [], 1.0)[1]:
            os.write(2, line.encode())
    finally:
        os._exit(128 + number)


def _as_lines() -> Callable[..., None]:
    """A function that shows a warning as one line of the command, once, without the line of code that it comes from."""
    said: set[str] = set()

    def show(message: Warning | str, *where: object, **rest: object) -> None:
        import typer

        from gradleak.results.errors import one_line

        line = one_line(str(message))
        if line not in said:
            said.add(line)
            typer.echo(f"gradleak: warning: {line}", err=True)

    return show


def _print_anything() -> None:
    """Let a terminal of few characters show the others by their numbers, in place of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop(message: str, code: int = BAD_INPUT) -> None:
    import typer

    from gradleak.results.errors import one_line

    # The code counts where the line cannot be written.
    with suppress(OSError):
        typer.echo(f"gradleak: {one_line(message)}", err=True)
    sys.exit(code)
