"""Explicit randomness: one generator an item, derived from the run's seed and the item's name."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *names: str) -> int:
    """A 63-bit seed that depends on the run's seed and the names, and on nothing else.

    Args:
        seed: the seed of the run.
        *names: what the generator is for, for instance ("release", "noise 1e-6", "example 3").
    """
    digest = hashlib.sha256("\x1f".join([str(int(seed)), *names]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derive_generator(seed: int, *names: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator seeded with `derive_seed(seed, *names)`; the global generator is not touched."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


@contextmanager
def global_generators(seed: int | None = None) -> Iterator[None]:
    """The global generators of torch, numpy and Python are put back afterwards, whatever happens inside.

    They are for code of others that has no other source of randomness, and belong to all threads of the process.

    Args:
        seed: where they start from inside; None for where they are.
    """
    states = torch.random.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        if seed is not None:
            for generator in (torch.default_generator, *torch.cuda.default_generators[: len(devices)]):
                generator.manual_seed(seed)
            np.random.set_state(np.random.RandomState(seed % 2**32).get_state())  # noqa: NPY002, TID251
            random.setstate(random.Random(seed).getstate())
        yield
    finally:
        torch.random.set_rng_state(states[0])
        if devices:
            torch.cuda.set_rng_state_all(devices)
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
