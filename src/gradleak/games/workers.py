"""Independent pieces of a game, one after the other or in several processes, with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

from gradleak.core import one_thread

T_co = TypeVar("T_co", covariant=True)


class Piece(Protocol[T_co]):
    """Piece of work that can be computed by itself, in any process."""

    def run(self) -> T_co:
        """The result."""


def in_order(pieces: Sequence[Piece[T_co]], *, jobs: int) -> Iterator[T_co]:
    """The results in the order of the pieces, as they are done; every piece on one thread.

    Args:
        pieces: with all they need.
        jobs: how many processes.
    """
    if jobs == 1 or len(pieces) <= 1:
        with one_thread(), threadpool_limits(limits=1):
            for piece in pieces:
                yield piece.run()
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=min(jobs, len(pieces)), return_as="generator")(
            delayed(_alone)(piece) for piece in pieces
        )


def _alone(piece: Piece[T_co]) -> T_co:
    torch.set_num_threads(1)
    return piece.run()
