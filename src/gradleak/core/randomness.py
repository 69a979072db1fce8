"""Explicit randomness: one generator an item, derived from the run's seed and the item's name."""

from __future__ import annotations

import hashlib

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
