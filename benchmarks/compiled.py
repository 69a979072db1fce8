"""One iteration of a compiled attack, a start, and what compiling takes; minutes, so only when asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from benchmarks.attacks import ITERATIONS, Case, lenet, residual
from benchmarks.measure import Row
from gradleak.attacks import Inversion, InvertingGradients, SearchStage


def _attack(iterations: int, starts: int, *, compiled: bool) -> Inversion:
    """Inverting Gradients with a number of iterations, compiled or not."""
    composed = InvertingGradients(iterations=iterations, restarts=starts).compose()
    (stage,) = composed.stages
    stages = (SearchStage(optimizer=stage.optimizer, iterations=iterations),)
    return replace(composed, stages=stages, compile=compiled)


def _measured(name: str, case: Case, starts: int) -> Iterator[Row]:
    before = time.perf_counter()
    _attack(1, starts, compiled=True)(case.update, case.knowledge, generator=torch.Generator())
    yield Row(name=f"{name}, to compile", ratio=time.perf_counter() - before, unit="seconds")
    for compiled in (False, True):
        short, long = (_attack(count, starts, compiled=compiled) for count in (5 * ITERATIONS, 10 * ITERATIONS))
        yield Row(
            name=f"{name}, iteration and start, {'compiled' if compiled else 'eager'}",
            ratio=case.step(short, long),
            aim=3.0 if compiled and name.startswith("ResNet") else None,
        )


def run() -> Iterator[Row]:
    yield from _measured("LeNet, one start", lenet(), 1)
    yield from _measured("LeNet, 8 starts", lenet(), 8)
    yield from _measured("ResNet-18, one start", residual(), 1)
