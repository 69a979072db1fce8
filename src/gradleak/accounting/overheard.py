"""Messages that a library logs while it computes, heard by the caller in place of the terminal."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Ear(logging.Filter):
    """Keeps the messages of one thread and lets those of others pass."""

    def __init__(self) -> None:
        super().__init__()
        self.thread, self.messages = threading.get_ident(), list[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.thread != self.thread:
            return True
        self.messages.append(record.getMessage())
        return False


@contextmanager
def overheard(logger: str) -> Iterator[list[str]]:
    """While active, what this thread logs to a logger goes into the list, and nowhere else.

    Args:
        logger: its name.
    """
    ear, log = _Ear(), logging.getLogger(logger)
    log.addFilter(ear)
    try:
        yield ear.messages
    finally:
        log.removeFilter(ear)
