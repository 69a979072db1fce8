"""Number of threads that torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import torch


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
