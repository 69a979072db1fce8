"""What an audit costs beside its numbers: imports, the first lines of the command, a gate round by round, small items.

Processor time of one thread, in seconds where it says so, and else in what torch needs to load. Times of commands are those of
new processes, with the bytecode of an earlier start.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import process_time

import torch
from torch import nn

import gradleak as gl
from benchmarks.engines import tiny
from benchmarks.measure import Row
from benchmarks.scale import _plan
from gradleak.attacks import Blind
from gradleak.auditing import Gate
from gradleak.audits.base import Audit
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.audits.risk import RiskAudit
from gradleak.models import mlp

_REPEATS = 3
_COUNTS = (40, 200)
_ROUNDS = 6
_SIDE = 8


def run() -> Iterator[Row]:
    yield from _starts()
    yield from _gate()
    yield from _items()


def _starts() -> Iterator[Row]:
    """Processor time of new processes, beyond that of one which loads torch."""
    loads = _process("-c", "import torch")
    yield Row(name="import torch", ratio=loads, unit="s")
    for name, seconds, aim in (
        ("import gradleak.auditing, beyond torch", _process("-c", "import gradleak.auditing") - loads, 1.5),
        (
            "a first derivative, beyond both",
            _process("-c", _DERIVATIVE) - _process("-c", "import gradleak.auditing"),
            None,
        ),
        ("gradleak --help", _process("-m", "gradleak", "--help"), 1.0),
        ("gradleak list, beyond torch", _process("-m", "gradleak", "list") - loads, None),
    ):
        yield Row(name=name, ratio=seconds, unit="s", aim=aim)


_DERIVATIVE = "import torch, gradleak.auditing; torch.func.grad(torch.sum)(torch.zeros(1))"


def _process(*arguments: str) -> float:
    """Median processor time of a new process."""
    found = []
    for _ in range(_REPEATS):
        before = _of_children()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        found.append(_of_children() - before)
    return median(found)


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _gate() -> Iterator[Row]:
    """A gate on one example of a small network, round by round; what its attack computes is in it."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), mlp(features=_SIDE**2, hidden=(32,), classes=10, generator=generator))
    gate, objective = Gate(model=model, on_leak="record"), gl.Objective.from_module(model)
    domain, spent, release = gl.Domain.image(channels=1, height=_SIDE, width=_SIDE), [], gl.Release(gl.FedSGD())
    for place in range(_ROUNDS):
        image = torch.rand((1, 1, _SIDE, _SIDE), generator=generator)
        batch = gl.Batch(image, torch.tensor([place]), domain)
        update = release(objective, batch, generator)
        start = process_time()
        decision = gate.decide(update, batch)
        spent.append(process_time() - start)
        assert decision.leaks
    yield Row(name="a gate, first round of a process", ratio=spent[0], unit="s")
    yield Row(name="a gate, further rounds", ratio=median(spent[1:]), unit="s", aim=0.3)


def _items() -> Iterator[Row]:
    """Time of one more example in a plan, beside that of one more task that does nothing."""
    audits: Mapping[str, Sequence[Audit]] = {
        "gate": [ReleaseAudit()],
        "gradient norm, derivative checked": [RiskAudit(measures=[gl.risk.GradientNorm()])],
        "blind attack": [ReconstructionAudit(attacks={"blind": Blind()})],
        "attack of 5 iterations": [
            ReconstructionAudit(attacks={"blind": gl.InvertingGradients(iterations=5, restarts=1)})
        ],
    }
    for name, chosen in audits.items():
        few, many = (_seconds(replace(_plan(count), audits=chosen)) for count in _COUNTS)
        each = 1000 * (many - few) / (_COUNTS[1] - _COUNTS[0])
        yield Row(name=f"one more example: {name}", ratio=each, unit="ms", aim=30.0)
    few, many = (_seconds(tiny(count)) for count in _COUNTS)
    yield Row(name="one more task that does nothing", ratio=1000 * (many - few) / (_COUNTS[1] - _COUNTS[0]), unit="ms")


def _seconds(plan: gl.Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = process_time()
        gl.run_plan(plan, Path(folder) / "out", jobs=1)
        return process_time() - start
