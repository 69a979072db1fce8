"""Peak memory of operations on a model of 79 MB, in sizes of the model; a process for each, so only when asked for.

    python -m benchmarks memory
    python -m benchmarks.memory docs/explanation/memory.json     the numbers of docs/explanation/scale.md

What a process holds before counts for nothing: Python, torch, gradleak and what torch loads at its first derivative. The
model itself, which the caller has, counts once. Every operation is given as little memory for its blocks as the model takes.
Linux only: the peak is set back through /proc.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradleak as gl
from benchmarks.measure import Row
from gradleak.auditing.default_plan import default_plan
from gradleak.auditing.run import preflight
from gradleak.models import mlp

# Sizes of the model beside the stated budget, which is one more.
AIM = 4.0
SIDE = 32
HIDDEN = (4096, 1700)
ITERATIONS = 5


@dataclass(frozen=True, kw_only=True)
class Case:
    """One image and a model of two wide layers.

    Attributes:
        model: of 19.6 million parameters.
    """

    model: nn.Module

    @cached_property
    def size(self) -> int:
        """Bytes of the model."""
        return sum(one.numel() * one.element_size() for one in self.model.parameters())

    @cached_property
    def batch(self) -> gl.Batch:
        image = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        return gl.Batch(image, torch.tensor([3]), gl.Domain.image(channels=3, height=SIDE, width=SIDE))

    @cached_property
    def objective(self) -> gl.Objective:
        return gl.Objective.from_module(self.model)

    @cached_property
    def release(self) -> gl.Release:
        return gl.Release(gl.FedSGD())

    @cached_property
    def update(self) -> gl.Update:
        return self.release(self.objective, self.batch, torch.Generator().manual_seed(0))

    @cached_property
    def attack(self) -> gl.InvertingGradients:
        return gl.InvertingGradients(iterations=ITERATIONS, restarts=1)

    def plan(self) -> gl.Plan:
        return default_plan(
            self.model,
            self.batch,
            loss="cross_entropy",
            mode="eval",
            release=None,
            attacks={"inverting": self.attack},
            measures=[gl.risk.GradientNorm()],
        )

    def attacked(self) -> object:
        knowledge = gl.HonestButCurious().disclose(self.objective, self.release, self.batch)
        return self.attack(self.update, knowledge, generator=torch.Generator().manual_seed(0))

    def audited(self, attacks: Mapping[str, Any]) -> object:
        options = gl.AuditOptions(quiet=True, jobs=1, max_bytes=self.size)
        with tempfile.TemporaryDirectory() as folder:
            return gl.audit(
                self.model,
                self.batch,
                attacks=attacks,
                measures=[gl.risk.GradientNorm()],
                out=folder,
                options=options,
            )


OPERATIONS: Mapping[str, Callable[[Case], object]] = {
    "a plain gradient in torch": lambda case: torch.autograd.grad(
        nn.functional.cross_entropy(case.model(case.batch.inputs), case.batch.targets), list(case.model.parameters())
    ),
    "Objective.from_module": lambda case: case.objective,
    "a gradient": lambda case: case.objective.gradient(case.objective.params, case.batch),
    "a release": lambda case: case.update,
    "GradientNorm": lambda case: gl.risk.GradientNorm()(gl.Exposure(case.objective, case.batch, case.release)),
    "InvertingGradients, 5 iterations": Case.attacked,
    "what a plan refuses": lambda case: preflight(case.plan()),
    "the digest of a plan": lambda case: case.plan().reading(),
    "an audit, GradientNorm alone": lambda case: case.audited({}),
    "an audit, GradientNorm and 5 iterations": lambda case: case.audited({"inverting": case.attack}),
}


def one(name: str) -> float:
    """Peak memory of an operation in this process, in sizes of the model, the model itself included."""
    torch.set_num_threads(1)
    torch.func.grad(torch.sum)(torch.zeros(1))
    layers = mlp(features=3 * SIDE**2, hidden=HIDDEN, classes=10, activation="tanh")
    case = Case(model=nn.Sequential(nn.Flatten(), layers))
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    OPERATIONS[name](case)
    return 1 + (_status("VmHWM") - before) / case.size


def _status(key: str) -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return 1024 * float(line.split()[1])


def measured() -> Iterator[tuple[str, float]]:
    """Every operation with its peak."""
    for name in OPERATIONS:
        command = [sys.executable, "-m", "benchmarks.memory", "--one", name]
        yield name, float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def run() -> Iterator[Row]:
    for name, sizes in measured():
        yield Row(name=name, ratio=sizes, aim=AIM + 1, unit="sizes of the model")


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        print(one(sys.argv[2]))
    else:
        found = dict(measured())
        held = {"torch": torch.__version__, "threads": 1, "model MB": 78.3, "sizes": found}
        Path(sys.argv[1]).write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
