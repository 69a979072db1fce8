"""Activation checkpointing switched off for the length of a computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

_NAMES = ("CheckpointFunction", "_checkpoint_without_reentrant_generator")


class _CallAtOnce:
    """In place of the reentrant form: the checkpointed function, called."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _do_nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """In place of the non-reentrant form: nothing before the checkpointed function and nothing after it."""
    yield


@contextmanager
def without_checkpointing() -> Iterator[None]:
    """`torch.utils.checkpoint.checkpoint` computes the same values and keeps its activations.

    Neither of its forms works inside `torch.func` transforms, and the reentrant one refuses `autograd.grad`. Models
    call it by whatever name they imported it under, so its two implementations are exchanged, and put back afterwards.
    """
    before = {name: getattr(torch_checkpoint, name) for name in _NAMES if hasattr(torch_checkpoint, name)}
    for name, substitute in zip(_NAMES, (_CallAtOnce, _do_nothing_around), strict=True):
        if name in before:
            setattr(torch_checkpoint, name, substitute)
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(torch_checkpoint, name, original)
