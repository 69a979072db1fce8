"""The global random generators, started from a seed for a while: for code that has no other source of randomness."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def globally_seeded(seed: int) -> Iterator[None]:
    """The global generators of torch, numpy and Python start from `seed` inside and are put back after.

    Code of a user's own that draws from them gives the same weights and data in every run of a plan.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002 - put back below
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        np.random.set_state(np.random.RandomState(seed % 2**32).get_state())  # noqa: NPY002, TID251
        random.setstate(random.Random(seed).getstate())
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
