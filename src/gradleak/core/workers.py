"""Pieces of work that do not depend on each other, in this process or in several, each on one thread."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from gradleak.core.threads import one_thread

R = TypeVar("R")


def in_processes(calls: Sequence[Callable[[], R]], *, jobs: int, ordered: bool = True) -> Generator[R]:
    """The results of the calls as they are done; whoever stops early has to close the iterator.

    Worker processes end with this one, however it ends, and leave Ctrl-C to it.

    Args:
        calls: pieces of work; a worker gets a copy, functions of the calling script included.
        jobs: how many processes; one for the calls one after the other in this process.
        ordered: whether in the order of the calls, or of their ends.
    """
    if jobs == 1 or len(calls) <= 1:
        with one_thread(), threadpool_limits(limits=1):
            for call in calls:
                yield call()
        return
    in_main = threading.current_thread() is threading.main_thread()
    watched = {"initializer": _END_WITH_PARENT, "initargs": (os.getpid(), in_main)}
    with parallel_config(backend="loky", inner_max_num_threads=1, **watched):
        pool = Parallel(n_jobs=min(jobs, len(calls)), return_as="generator" if ordered else "generator_unordered")
    yield from pool(delayed(_alone)(call) for call in calls)


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
