"""Work of a process: threads of torch, turns for what changes its state, and pieces of work in several processes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from threading import Thread
from typing import ParamSpec, TypeVar

import torch
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from gradleak.core.randomness import global_generators


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside, the caller's number after it: results must not depend on the machine's cores.

    Torch keeps a number for each thread of the process, and one for threads to come; the others and those to come have
    theirs inside too.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    # Whichever thread says a number last gives it to threads to come.
    other = Thread(target=torch.set_num_threads, args=(before,))
    other.start()
    other.join()
    try:
        yield
    finally:
        torch.set_num_threads(before)


P = ParamSpec("P")
R = TypeVar("R")

_MEMORY = "/dev/shm"
# Containers often have 64 MB.
_MEMORY_LEAST = 2**31
_WHOLE_RUN = threading.RLock()
# Held for one call of a model, a fit or the like, by a run and by threads that it starts: nobody who holds it may wait
# for another thread.
ONE_CALL = threading.RLock()


def in_turn(function: Callable[P, R]) -> Callable[P, R]:
    """The function, such as a whole audit, by one thread of the process after the other; global generators stay put."""

    @wraps(function)
    def waiting(*args: P.args, **kwargs: P.kwargs) -> R:
        with _WHOLE_RUN, global_generators():
            return function(*args, **kwargs)

    return waiting


class WhileUsed:
    """A state of the process that all its users want alike: the first one changes it, the last one puts it back.

    Args:
        change: makes the context in which the state is changed.
    """

    def __init__(self, change: Callable[[], AbstractContextManager[object]]) -> None:
        self._change = change
        self._lock = threading.Lock()
        self._users = 0
        self._changed = ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """The changed state inside."""
        with self._lock:
            if self._users == 0:
                self._changed.enter_context(self._change())
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._changed.close()


def in_processes(
    calls: Sequence[Callable[[], R]],
    *,
    jobs: int,
    ordered: bool = True,
    shared: int | None = None,
    apart: bool = False,
) -> Generator[R]:
    """The results of the calls as they are done; whoever stops early has to close the iterator.

    Worker processes end with this one, however it ends, and leave Ctrl-C to it.

    Args:
        calls: pieces of work; a worker gets a copy, functions of the calling script included.
        jobs: how many processes; one for the calls one after the other in this process.
        ordered: whether in the order of the calls, or of their ends.
        shared: size in bytes from which an array of NumPy goes to all of them once, in memory that they share, where the
            system has enough of that; None for never.
        apart: whether a single call goes to another process, too.

    Raises:
        BrokenProcessPool: if a process ended in the middle of a call.
        PicklingError: if a call cannot be sent to another process.
    """
    if jobs == 1 or (len(calls) <= 1 and not apart):
        with one_thread(), threadpool_limits(limits=1):
            for call in calls:
                yield call()
        return
    # For one job joblib has no process.
    pool = _pool(max(2, min(jobs, len(calls))), ordered=ordered, shared=shared)
    yield from pool(delayed(_alone)(call) for call in calls)


@contextmanager
def processes_begun(load: Callable[[], object], *, jobs: int, shared: int | None = None) -> Iterator[None]:
    """Worker processes for `in_processes`, which start beside the work inside; they are ready after it.

    Args:
        load: what each does first, such as imports.
        jobs: how many; fewer than two are none.
        shared: as of `in_processes`.
    """
    if jobs < 2:
        yield
        return
    loads = _pool(jobs, ordered=False, shared=shared)(delayed(_alone)(load) for _ in range(jobs))
    try:
        yield
    finally:
        # Also where the work failed: joblib is loud when processes are ended at their start.
        for _ in loads:
            pass


def _pool(jobs: int, *, ordered: bool, shared: int | None) -> Parallel:
    in_main = threading.current_thread() is threading.main_thread()
    watched = {"initializer": _END_WITH_PARENT, "initargs": (os.getpid(), in_main)}
    # Rows may be private: never in a file on a disk, which is what joblib falls back to.
    memory = {"temp_folder": _MEMORY, "max_nbytes": shared} if shared and _has_memory() else {"max_nbytes": None}
    with parallel_config(backend="loky", inner_max_num_threads=1, **memory, **watched):
        return Parallel(n_jobs=jobs, return_as="generator" if ordered else "generator_unordered")


def _has_memory() -> bool:
    """True if this system has a folder in memory with room to spare."""
    try:
        return shutil.disk_usage(_MEMORY).free >= _MEMORY_LEAST and os.access(_MEMORY, os.W_OK)
    except OSError:
        return False


def _alone(call: Callable[[], R]) -> R:
    with one_thread():
        return call()


def _ending_with_parent() -> Callable[[int, bool], None]:
    """Make the first function that a worker calls.

    A function within a function is sent to the worker as its code, so that the worker need not import torch before it.
    """

    def end_with_parent(parent: int, by_system: bool) -> None:
        import ctypes
        import os
        import signal
        import sys
        import threading
        import time

        # The parent gets it as well, and decides.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if by_system and sys.platform == "linux":
            # PR_SET_PDEATHSIG: at once, even within a long call that holds the interpreter. The system means the thread
            # that started this process, so that only the main one will do.
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(0.2)
            os._exit(1)

        # Elsewhere a process keeps the number of a parent that has ended.
        if os.name == "posix":
            threading.Thread(target=watch, daemon=True).start()

    return end_with_parent


# One object, by which joblib knows its pool again.
_END_WITH_PARENT = _ending_with_parent()
