"""One GPU in at most eight minutes: is what it computes right, and how fast is it? Results so far stay if the time runs out.

    python -m benchmarks.device --device cuda --out results/gpu            all of it, 8 minutes at most
    python -m benchmarks.device --device cpu --quick --out results/cpu     the same at small size, in a minute

Writes OUT.json and OUT.md after every part. Correctness is held against the processor; speed is wall time on the device over that
of one plain gradient there, in the same process and dtype. No part is begun that began too late to end in time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import gradleak as gl
from benchmarks.attacks import Case, lenet, residual
from gradleak.attacks import Adam, Inversion, InvertingGradients, SearchStage
from gradleak.auditing import build_plan, device_of
from gradleak.auditing.device import device_name, on_device, wait_for
from gradleak.core import Exposure, Release
from gradleak.linalg import ConjugateGradient
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError, Record
from gradleak.risk import InversionInfluence
from gradleak.scoring import score_images

MINUTES = 8.0
# The table of gradient inversion with priors at `scale = "paper"`: images, and plain gradients each.
PAPER = 30, 72_000


@dataclass(frozen=True, kw_only=True)
class Result:
    """One line of the table.

    Attributes:
        part: what it belongs to.
        name: what was measured.
        value: the number.
        unit: of the number.
        limit: the largest value that is right; None where nothing is judged.
    """

    part: str
    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def right(self) -> bool:
        """True unless the value is above its limit, or not a number."""
        return self.limit is None or self.value <= self.limit


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference of two tensors, over the largest entry of the second."""
    return float((one.cpu().double() - other.cpu().double()).abs().max() / other.abs().max())


def attack_difference(device: torch.device) -> float:
    """Of the claims of three iterations of gradient matching (float32)."""
    case = lenet()
    attack = Inversion(stages=(SearchStage(optimizer=Adam(), iterations=3),), restarts=2)

    def claim(case: Case) -> Tensor:
        found = attack(case.update, case.knowledge, generator=generator()).inputs
        assert found is not None
        return found

    return apart(claim(on_device(case, device)), claim(case))


def operator_difference(device: torch.device) -> float:
    """Of products with A and its adjoint (float64)."""
    case = lenet()
    exposure = Exposure(case.objective, case.batch, Release(FedSGD())).to(torch.float64)
    block = torch.randn(exposure.inputs.numel(), 8, generator=generator(), dtype=torch.float64)

    def products(exposure: Exposure, block: Tensor) -> list[Tensor]:
        operator = GradientJacobian(exposure)
        there = operator.matmat(block)
        return [there, operator.adjoint_matmat(there)]

    pairs = zip(products(*on_device((exposure, block), device)), products(exposure, block), strict=True)
    return max(apart(*pair) for pair in pairs)


_SITE: Mapping[str, Any] = {"name": "device", "seed": 1, "scenarios": [{"name": "undefended", "attacks": {}}]}
_ROWS: Mapping[str, Any] = {"use": "mlp", "features": 65, "hidden": [16], "classes": 2, "activation": "tanh"}
_TOLD: Mapping[str, Any] = {"data": {"use": "adult_table"}, "target": "loan", "attribute": "gender"}
PLANS: Mapping[str, tuple[Mapping[str, Any], float]] = {
    # Shares of trials: a forest may turn on the last bit of a feature.
    "inference game": (
        {
            "model": {**_ROWS, "features": 63},
            "inference": {
                "gender": {
                    "use": "PropertyGame",
                    "population": {"use": "adult_population", "sensitive": "gender"},
                    "batch_size": 16, "rounds": 2, "learning_rate": 0.01, "private_rows": 500, "public_rows": 300,
                    "trials": 200, "shadow_batches": 200, "features": {"use": "MaxPooling", "kernel": 3},
                    "adversary": {"use": "LogisticRegression"},
                }
            },
        },
        0.05,
    ),
    "layer profile": (
        {
            "model": _ROWS,
            "layers": {"gender": {**_TOLD, "count": 60, "releases": 4, "measures": [{"use": "Sensitivity"}]}},
        },
        1e-6,
    ),
    "audit of digits": (
        {
            "model": {"use": "lenet_dlg", "size": 8, "channels": 1},
            "data": {"use": "scikit_digits", "count": 2},
            "objective": {"dtype": "float64"},
            "attacks": {"gauss_newton": {"use": "GaussNewton", "max_steps": 6}},
            "measures": {"influence": {"use": "InversionInfluence"}},
            "scenarios": [
                {"name": "undefended", "examples": [0], "attacks": {"gauss_newton": [0]}},
                {
                    "name": "noise", "examples": [1], "attacks": {},
                    "defenses": [{"use": "GaussianNoise", "std": 1e-3}],
                },
            ],
        },
        1e-4,
    ),
}  # fmt: skip


def plan_difference(name: str, device: torch.device) -> float:
    """Largest difference of the scores of a plan, over the larger of one and the score; infinite where others came out.

    Below 1e-6, where an attack is exact, sizes are round-off and count for nothing.
    """
    plan = build_plan({**_SITE, **PLANS[name][0]}, folder=Path())
    with tempfile.TemporaryDirectory() as folder:
        here = _values(gl.run_plan(plan, Path(folder) / "here", jobs=1))
        there = _values(gl.run_plan(plan, Path(folder) / "there", jobs=1, device=device))
    if here.keys() != there.keys() or any((here[key] is None) is not (there[key] is None) for key in here):
        return float("inf")
    pairs = [(one, there[key]) for key, one in here.items() if one is not None]
    return max(abs(one - other) / max(1.0, abs(one)) for one, other in pairs if other is not None)


def _values(record: Record) -> dict[tuple[str, str, str], float | None]:
    # The decibels and exactness of an exact claim are those of round-off.
    return {
        (one.item, score.name, score.unit): score.value
        for one in record.findings
        for score in one.scores
        if score.unit not in ("dB", "seconds")
    }


CHECKS: Mapping[str, tuple[Callable[[torch.device], float], float]] = {
    "attack iterations, float32": (attack_difference, 1e-4),
    "products with A and Aᵀ, float64": (operator_difference, 1e-10),
    **{name: (lambda device, name=name: plan_difference(name, device), limit) for name, (_, limit) in PLANS.items()},
}


def correctness(device: torch.device, quick: bool) -> Iterator[Result]:
    for name, (check, limit) in CHECKS.items():
        yield Result(part="correct", name=name, value=check(device), unit="relative difference", limit=limit)


def attack_speed(device: torch.device, quick: bool) -> Iterator[Result]:
    for name, make, every in (
        ("LeNet 28x28", lenet, (1, 8) if quick else (1, 8, 64, 256)),
        ("ResNet-18", residual, (1,)),
    ):
        here = make()
        case = on_device(here, device)
        single = plain_seconds(case)
        yield Result(part="speed", name=f"{name}, plain gradient", value=1e3 * single, unit="ms")
        if device.type != "cpu":
            faster = plain_seconds(here) / single
            yield Result(part="speed", name=f"{name}, plain gradient, of one core", value=faster, unit="times faster")
        for starts in every:
            short, long = (
                InvertingGradients(iterations=count, restarts=starts) for count in ((1, 2) if quick else (5, 25))
            )
            steps = long.iterations - short.iterations
            cost = wall(case, long) - wall(case, short)
            yield Result(
                part="speed",
                name=f"{name}, iteration and start, {starts} starts",
                value=cost / steps / starts / single,
                unit="plain gradients",
            )


def influence_speed(device: torch.device, quick: bool) -> Iterator[Result]:
    name, make = ("LeNet 28x28", lenet) if quick else ("ResNet-18", residual)
    case = make()
    exposure = Exposure(case.objective, case.batch, Release(FedSGD())).to(torch.float64)
    delta = 1e-3 * torch.randn(exposure.objective.size, generator=generator(), dtype=torch.float64)
    exposure, delta = on_device((exposure, delta), device)
    measure = InversionInfluence(epsilon=1.0, solver=ConjugateGradient(tolerance=1e-4))
    single = repeated(lambda: wait_for(exposure.objective.gradient(exposure.objective.params, exposure.batch)))
    measure(exposure, delta=delta)
    cost = repeated(lambda: measure(exposure, delta=delta), 1 if quick else 3)
    yield Result(part="I²F", name=f"{name}, ε = 1, conjugate gradients", value=cost / single, unit="plain gradients")


def game_speed(device: torch.device, quick: bool) -> Iterator[Result]:
    content = {**_SITE, **PLANS["inference game"][0]}
    game = content["inference"]["gender"]
    sizes = {} if quick else {"private_rows": 5000, "public_rows": 1000, "trials": 5000, "shadow_batches": 5000}
    plan = build_plan({**content, "inference": {"gender": {**game, **sizes}}}, folder=Path())
    for name, place in {"the device": device, **({} if device.type == "cpu" else {"one core": None})}.items():
        with tempfile.TemporaryDirectory() as folder:
            before = time.perf_counter()
            gl.run_plan(plan, Path(folder) / "run", jobs=1, device=place)
            took = time.perf_counter() - before
        yield Result(part="game", name=f"property game on {name}", value=took, unit="seconds")


def paper_cells(device: torch.device, quick: bool) -> Iterator[Result]:
    """The first cell of the table of priors at the paper's scale: gradient matching on ResNet-18."""
    case = on_device((lenet if quick else residual)(), device)
    images, budget = PAPER
    iterations = 4 if quick else 2000
    attack = InvertingGradients(iterations=iterations, restarts=1)
    before = time.perf_counter()
    found = attack(case.update, case.knowledge, generator=generator())
    took = time.perf_counter() - before
    psnr = next(score.value for score in score_images(found, case.batch) if score.name == "psnr")
    yield Result(part="paper", name=f"{iterations:,} iterations on one image", value=took, unit="seconds")
    yield Result(part="paper", name=f"{iterations:,} iterations, claim of noise", value=psnr or 0.0, unit="dB")
    gradients = found.plain_gradients or iterations
    hours = took / gradients * budget * images / 3600
    yield Result(
        part="paper", name=f"{images} images of {budget:,} plain gradients, extrapolated", value=hours, unit="hours"
    )


# The parts in their order, with the seconds that must be left for each to begin.
PARTS: Mapping[str, tuple[Callable[[torch.device, bool], Iterator[Result]], float]] = {
    "correct": (correctness, 10.0),
    "speed": (attack_speed, 60.0),
    "I²F": (influence_speed, 40.0),
    "game": (game_speed, 60.0),
    "paper": (paper_cells, 90.0),
}


def plain_seconds(case: Case) -> float:
    """Wall time of one plain gradient."""
    return repeated(lambda: wait_for(case.objective.gradient(case.objective.params, case.batch)))


def wall(case: Case, attack: InvertingGradients) -> float:
    """Wall time of an attack, the median of three."""
    return repeated(lambda: attack(case.update, case.knowledge, generator=generator()), 3)


def repeated(call: Callable[[], Any], times: int = 10) -> float:
    """Median wall time of calls after one that is not counted; they end by reading a number, and so are done."""
    call()
    taken = []
    for _ in range(times):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return median(taken)


def measured(device: torch.device, out: Path, *, quick: bool, minutes: float) -> list[Result]:
    """The results, written after every one of them.

    Args:
        device: where.
        out: name of the files, without their endings.
        quick: small sizes.
        minutes: no part is begun when too little of them is left.
    """
    started, results, skipped = time.perf_counter(), [], []
    out.parent.mkdir(parents=True, exist_ok=True)
    for part, (run, needed) in PARTS.items():
        left = 60 * minutes - (time.perf_counter() - started)
        if left < (1.0 if quick else needed):
            skipped.append(part)
            continue
        found = run(device, quick)
        while True:
            try:
                result = next(found)
            except StopIteration:
                break
            except (RuntimeError, GradleakError) as error:  # an accelerator is lent for minutes: the other parts go on
                result = Result(part=part, name=f"failed: {first_line(error)}", value=float("nan"), unit="", limit=0.0)
            results.append(result)
            print(
                f"{result.part}: {result.name}: {result.value:.3g} {result.unit}{'' if result.right else ' WRONG'}",
                flush=True,
            )
            _write(out, device, results, skipped, time.perf_counter() - started, quick)
            if time.perf_counter() - started > 60 * minutes:
                break
    _write(out, device, results, skipped, time.perf_counter() - started, quick)
    return results


def _write(
    out: Path, device: torch.device, results: list[Result], skipped: list[str], seconds: float, quick: bool
) -> None:
    name = device_name(device) or device.type
    facts = {"device": name, "torch": torch.__version__, "quick": quick, "seconds": seconds, "left out": skipped}
    rows = [{**asdict(result), "right": result.right} for result in results]
    out.with_suffix(".json").write_text(json.dumps({**facts, "results": rows}, indent=1, ensure_ascii=False) + "\n")
    lines = [f"# {name}, torch {torch.__version__}{', small sizes' if quick else ''}", ""]
    lines += ["| part | what | value | unit | limit |", "| --- | --- | --- | --- | --- |"]
    for one in results:
        limit = "" if one.limit is None else f"{one.limit:g}" + ("" if one.right else ", **wrong**")
        lines.append(f"| {one.part} | {one.name} | {one.value:.3g} | {one.unit} | {limit} |")
    lines += ["", f"{seconds:.0f} s" + (f"; left out for want of time: {', '.join(skipped)}" if skipped else "")]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def first_line(error: Exception) -> str:
    """Type and beginning of an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def main(given: list[str] | None = None) -> int:
    """1 if something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small sizes, which say nothing of speed")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/device"))
    chosen = parser.parse_args(given)
    results = measured(device_of(chosen.device), chosen.out, quick=chosen.quick, minutes=chosen.minutes)
    return 0 if all(result.right for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
