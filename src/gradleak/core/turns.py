"""Turns: what changes the state of the whole process for a while is done by one thread after the other.

Torch, numpy and Python keep one of these for all threads: the global random generators, the default dtype, switches of
kernels, filters of warnings, the threads of BLAS. Two threads that change and restore them in alternation read each
other's, and leave them changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

from gradleak.core.randomness import global_generators

P = ParamSpec("P")
R = TypeVar("R")

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
