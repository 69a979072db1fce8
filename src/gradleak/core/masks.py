"""Draws inside a model: dropout masks and the like come from a seed, and the global generators stay as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


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
