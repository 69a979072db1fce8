"""Explicit randomness: one generator an item, from the run's seed and the item's name; draws inside a model from a seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def derive_seed(seed: int, *names: str) -> int:
    """A 63-bit seed that depends on the run's seed and the names, and on nothing else.

    Args:
        seed: the seed of the run.
        *names: what the generator is for, for instance ("release", "noise 1e-6", "example 3").
    """
    digest = hashlib.sha256("\x1f".join([str(int(seed)), *names]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def derive_generator(seed: int, *names: str) -> torch.Generator:
    """A fresh generator seeded with `derive_seed(seed, *names)`; the global generator is not touched.

    It is the processor's: what it draws is one on every device, and goes to the device afterwards.
    """
    return torch.Generator().manual_seed(derive_seed(seed, *names))


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


@contextmanager
def masks_of(seed: int, device: torch.device) -> Iterator[None]:
    """Random layers draw from this seed; the global generators are put back."""
    generators = _generators(device)
    before = _states(generators)
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


@contextmanager
def watch_draws(device: torch.device) -> Iterator[list[bool]]:
    """While active, whatever draws from the global generators; whether anything did is the one entry afterwards.

    The state of a generator moves with every draw, so that this sees code of any kind, whatever the chance that it
    changes a number.
    """
    drawn: list[bool] = []
    generators = _generators(device)
    before = _states(generators)
    yield drawn
    drawn.append(any(not torch.equal(one, two) for one, two in zip(before, _states(generators), strict=True)))


def _generators(device: torch.device) -> Sequence[torch.Generator]:
    """The global generators that a model on this device can draw from."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    return generators


def _states(generators: Sequence[torch.Generator]) -> list[Tensor]:
    return [generator.get_state() for generator in generators]
