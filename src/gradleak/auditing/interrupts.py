"""Ctrl-C during a run within a user's process, whose handlers are the user's."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
