"""Cost of each operation against parameters, inputs, batch and starts, one of them changed at a time on a ResNet-8.

    python -m benchmarks.scaling FILE.json              all points that FILE lacks; each is written as it comes
    python -m benchmarks.scaling FILE.json --minutes 3  no point begins after three minutes
    python -m benchmarks.scaling FILE.json --plot docs/explanation/scaling-cost.svg

In plain gradients of the same batch, model, dtype and process, in processor time of one thread: an iteration of
`InvertingGradients` (all starts together, float32), the largest eigenvalue of AᵀA (to 1e-3 by a single vector, and with bounds
10 % apart) and I²F at ε = λmax/1000 with bounds 5 % apart (all float64), and the whole spectrum up to 400 unknowns.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gradleak.attacks import InvertingGradients
from gradleak.core import Batch, Domain, Exposure, HonestButCurious, Objective, Release
from gradleak.linalg import GaussRadau, Gram, largest_eigenvalue_bounds
from gradleak.models import resnet8
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.risk import InversionInfluence

STEPS = 2
DENSE = 400
Numbers = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One setting.

    Attributes:
        width: channels of the first stage.
        side: of the image.
        batch: images.
        starts: of the attack.
    """

    width: int = 8
    side: int = 8
    batch: int = 1
    starts: int = 1


BASE = Point()
AXES: Mapping[str, list[Point]] = {
    "parameters": [replace(BASE, width=width) for width in (4, 8, 16, 32, 64)],
    "inputs": [replace(BASE, side=side) for side in (8, 16, 32)],
    "batch": [replace(BASE, batch=batch) for batch in (1, 2, 4, 8)],
    "starts": [replace(BASE, starts=starts) for starts in (1, 2, 4, 8, 16)],
}


def measured(point: Point, *, attack_alone: bool) -> Numbers:
    """The numbers of a setting.

    Args:
        point: the setting.
        attack_alone: whether the operations that know no starts are left out.
    """
    generator = torch.Generator().manual_seed(0)
    objective = Objective.from_module(resnet8(width=point.width, generator=generator))
    images = torch.rand(point.batch, 3, point.side, point.side, generator=generator)
    domain = Domain.image(channels=3, height=point.side, width=point.side)
    batch = Batch(images, torch.arange(point.batch) % 10, domain)
    release = Release(FedSGD())
    found: Numbers = {"parameters": objective.size, "inputs": images[0].numel(), "batch": point.batch}
    found["starts"] = point.starts
    update = release(objective, batch, generator)
    knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)

    def attack(iterations: int) -> float:
        one = InvertingGradients(iterations=iterations, restarts=point.starts)
        return spent(lambda: one(update, knowledge, generator=torch.Generator().manual_seed(1)))

    single = plain(objective, batch)
    found["plain gradient, ms"] = 1000 * single
    attack(1)
    longer, shorter = (median(attack(count) for _ in range(3)) for count in (4 * STEPS, STEPS))
    found["attack iteration"] = (longer - shorter) / (3 * STEPS) / single
    return found if attack_alone else found | _closed_forms(objective, batch, release)


def _closed_forms(objective: Objective, batch: Batch, release: Release) -> Numbers:
    double = Exposure(objective.to(torch.float64), batch.to(torch.float64), release)
    single = plain(double.objective, double.batch)
    generator = torch.Generator().manual_seed(2)
    delta = 1e-3 * torch.randn(objective.size, generator=generator, dtype=torch.float64)
    operator = GradientJacobian(double)
    operator.normal(torch.ones(operator.shape[1], 1, dtype=torch.float64))
    tops: list[float] = []

    def top() -> None:
        tops.append(float(operator.largest_eigenvalue(certify=False, tolerance=1e-3).values[0]))

    found = {"λmax to 1e-3": spent(top) / single}
    start = torch.Generator().manual_seed(0)
    found["λmax, bounds 10 % apart"] = (
        spent(lambda: largest_eigenvalue_bounds(Gram(operator), generator=start)) / single
    )
    measure = InversionInfluence(epsilon=tops[0] / 1000, solver=GaussRadau())
    found["I²F, bounds 5 % apart"] = spent(lambda: measure._measure(double, delta, operator)) / single
    if operator.shape[1] <= DENSE:
        found["whole spectrum"] = spent(GradientJacobian(double).gram_spectrum) / single
    return found


def plain(objective: Objective, batch: Batch) -> float:
    """Processor seconds of one plain gradient, the median of eleven after one that is not counted."""
    return median([spent(lambda: objective.gradient(objective.params, batch)) for _ in range(12)][1:])


def spent(call: Callable[[], Any]) -> float:
    """Processor seconds of a call."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def points() -> Iterator[tuple[str, str, Point]]:
    """Axis, name and setting of each point."""
    for axis, along in AXES.items():
        for point in along:
            yield axis, ", ".join(f"{key} {value}" for key, value in vars(point).items()), point


def read(file: Path) -> dict[str, dict[str, Numbers]]:
    """The points that a file holds, by axis and name."""
    held: dict[str, dict[str, Numbers]] = json.loads(file.read_text())["axes"] if file.exists() else {}
    return {axis: held.get(axis, {}) for axis in AXES}


def run(file: Path, minutes: float | None = None) -> list[str]:
    """Measure the points that a file lacks; returns those that were not begun.

    Args:
        file: JSON, written after every point.
        minutes: after which no point begins.
    """
    began, left = time.monotonic(), []
    for axis, name, point in points():
        held = read(file)
        if name in held[axis]:
            continue
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            left.append(f"{axis}: {name}")
            continue
        held[axis][name] = measured(point, attack_alone=axis == "starts")
        print(axis, name, held[axis][name], flush=True)
        text = json.dumps({"torch": torch.__version__, "threads": 1, "axes": held}, indent=1, ensure_ascii=False)
        file.write_text(text + "\n", encoding="utf-8")
    return left


def plot(file: Path, picture: Path) -> None:
    """A panel an axis: plain gradients that each operation costs."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gradleak"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(11, 3.4), sharey=True, layout="constrained")
    labels = {"parameters": "parameters", "inputs": "inputs of an image", "batch": "images a batch", "starts": "starts"}
    told = {key for axis in AXES for key in (axis, "plain gradient, ms")}
    for panel, (axis, held) in zip(panels, read(file).items(), strict=True):
        rows = sorted(held.values(), key=lambda row: row[axis])
        operations = dict.fromkeys(key for row in rows for key in row if key not in told)
        for place, operation in enumerate(operations):
            along = [(row[axis], row[operation]) for row in rows if operation in row]
            panel.plot(*zip(*along, strict=True), marker="o", markersize=3, color=f"C{place}", label=operation)
        panel.set(xscale="log", yscale="log", xlabel=labels[axis])
        if axis != "parameters":
            places = [int(row[axis]) for row in rows]
            panel.set_xticks(places, labels=[f"{place:,}" for place in places])
            panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("plain gradients of the batch")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(picture, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.plot is not None:
        plot(given.file, given.plot)
    elif left := run(given.file, given.minutes):
        print(f"not run, for lack of time: {'; '.join(left)}; the same command goes on")


if __name__ == "__main__":
    main()
