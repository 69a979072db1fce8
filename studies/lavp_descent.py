"""Premises of LAVP: the bound on the descent of the matching loss, and the loss that local optimization ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from gradleak.core import Batch, Exposure, Objective, Release, derive_generator, describe, one_thread
from gradleak.models import Activation
from gradleak.protocols import FedSGD
from gradleak.reporting.drawing import INK, MARKERS, SERIES
from gradleak.results import HONG_2024, Citation, check_count
from gradleak.risk import Vulnerability
from studies.correlations import mean_interval, paired, spearman, spearmans
from studies.lavp_cells import Architecture, Client
from studies.panels import panels
from studies.private_images import draw_images
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import median, resampled, shown, shown_with

# Whose Lipschitz constant: ‖A‖ where the step begins, or at the truth, which is what LAVP knows.
HERE, TRUTH = "at the point", "at the truth"
_ROUND_OFF = 1e-12


@dataclass(frozen=True, kw_only=True)
class DescentStep:
    """One step of gradient descent with the step size of theorem 1, held against its bound.

    Attributes:
        before: the matching loss ‖g(x) − g*‖² where it begins.
        after: where it ends.
        promised: ‖∂loss/∂x‖² / (4 L²), by which it should have fallen at least.
    """

    before: float
    after: float
    promised: float

    @property
    def holds(self) -> bool:
        """True where the loss fell by what was promised, up to round-off."""
        return self.after <= self.before - self.promised + _ROUND_OFF * self.before

    @property
    def share(self) -> float | None:
        """By how much it fell over what was promised; None where nothing was."""
        return (self.before - self.after) / self.promised if self.promised > 0.0 else None


class Matches:
    """The L2 matching loss of several examples, each against its own undefended gradient; float64.

    Args:
        objective: the network.
        batch: the truth.
    """

    def __init__(self, objective: Objective, batch: Batch) -> None:
        self.objective = objective.to(torch.float64)
        self.batch = batch.to(torch.float64)
        release, params = Release(FedSGD()), self.objective.params

        def released(inputs: Tensor, target: Tensor) -> Tensor:
            mean = release.mean(self.objective, params, Batch(inputs[None], target[None]))
            return torch.cat([tensor.reshape(-1) for tensor in mean.values()])

        def loss(inputs: Tensor, target: Tensor, shared: Tensor) -> Tensor:
            return (released(inputs, target) - shared).square().sum()

        self._shared = vmap(released)(self.batch.inputs, self.batch.targets)
        self._slope = vmap(grad_and_value(loss))
        self._loss = vmap(loss)

    def losses(self, inputs: Tensor) -> Tensor:
        """The loss of each guess, (n,)."""
        found: Tensor = self._loss(inputs, self.batch.targets, self._shared)
        return found.detach()

    def slopes(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each guess (n,) and its gradient, shaped like the guesses."""
        slope, value = self._slope(inputs, self.batch.targets, self._shared)
        return value.detach(), slope.detach()

    def norms(self, inputs: Tensor) -> Tensor:
        """‖A‖, the spectral norm of the derivative of the gradient in the input, at each guess, (n,)."""
        found = []
        for index in range(len(inputs)):
            example = Batch(inputs[index : index + 1], self.batch.targets[index : index + 1])
            exposure = Exposure(self.objective, example, Release(FedSGD()))
            value = Vulnerability(dense_limit=0, tolerance=1e-6)(exposure).value
            found.append(float("nan") if value is None else (value / 2) ** 0.5)
        return torch.tensor(found, dtype=torch.float64)

    def steps(self, inputs: Tensor, lipschitz: Tensor) -> tuple[list[DescentStep], Tensor]:
        """A step of −(1 / 2L²) ∂loss/∂x from each guess, held against the bound, and where the steps end.

        Args:
            inputs: the guesses.
            lipschitz: L of each, (n,), positive.
        """
        value, slope = self.slopes(inputs)
        wide = lipschitz.reshape(-1, *[1] * (inputs.dim() - 1))
        end = inputs - slope / (2 * wide.square())
        after = self.losses(end)
        promised = slope.flatten(1).square().sum(dim=1) / (4 * lipschitz.square())
        rows = zip(value.tolist(), after.tolist(), promised.tolist(), strict=True)
        return [DescentStep(before=before, after=then, promised=least) for before, then, least in rows], end


@dataclass(frozen=True, kw_only=True)
class BoundCell:
    """Steps of one network.

    Attributes:
        attack: by whose constant, steps from the iterates of an attack, a list an image.
        descent: steps of gradient descent with the constant at the truth, a list an image.
    """

    attack: dict[str, list[list[DescentStep]]]
    descent: list[list[DescentStep]]


@dataclass(frozen=True, kw_only=True)
class LocalCell:
    """Gradient descent that starts near the truth.

    Attributes:
        first: loss at the start, of each image.
        last: at the end.
        error: mean squared error at the end.
    """

    first: list[float]
    last: list[float]
    error: list[float]


@dataclass(frozen=True, kw_only=True)
class LAVPDescent(Study):
    """Theorem 1 on steps of real searches, and LAVP against the loss that local optimization ends with.

    The theorem: with a step size of 1/(2L²), L the Lipschitz constant of the gradient in the input, a step of gradient
    descent lowers ‖g(x) − g*‖² by at least ‖∂/∂x‖²/(4L²), provided that g is linear along the step. The bound is evaluated
    along two searches: from iterates of the attack of these studies (Adam, random start), with ‖A‖ there and with ‖A‖ at the
    truth, and along gradient descent with the step size of the truth, from the same starts. A share of steps
    that break it says where its premises end: ‖A‖ at a point is no constant of all points, and g is not linear.

    Local optimization starts at the truth plus noise and descends for a fixed number of steps, with one step size for all
    images (the smallest of the theorem's) or with each image's own. LAVP is correlated with the last loss, with that
    loss over the first one, since the loss of the start grows with LAVP by itself, and with the error.

    **Source**: Hong et al. 2024, theorem 1 and the appendix on the final loss, whose numbers our copy lacks.

    Attributes:
        images: npz file with CIFAR-10 images, taken as means over 2x2 pixels, or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        count: images of the local optimization.
        bounded: of these, images whose searches are held against the bound.
        iterations: of the attack.
        spacing: the bound is evaluated at every so many iterations.
        steps: of gradient descent, in either part.
        distances: std of the noise on the start, in pixels.
        activations: of the LeNet, whose weights are uniform(−0.5, 0.5).
        seed: of images, weights and starts.
        resamples: of bootstraps over images.
        cells: file that keeps what was computed.
    """

    name: ClassVar[str] = "lavp_descent"
    source: ClassVar[str] = "theorem 1 and the appendix on the final loss"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)

    images: str | None = None
    only: str | None = None
    count: int = 20
    bounded: int = 8
    iterations: int = 200
    spacing: int = 40
    steps: int = 100
    distances: Sequence[float] = (0.01, 0.1, 0.3)
    activations: Sequence[Activation] = (Activation.SIGMOID, Activation.TANH, Activation.RELU)
    seed: int = 0
    resamples: int = 2000
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        for name, least in (("count", 3), ("bounded", 2), ("iterations", 1), ("spacing", 1), ("steps", 1)):
            check_count(f"LAVPDescent.{name}", getattr(self, name), least=least)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about three minutes of one core with the defaults."""
        shrink = 1 if self.images is None else 2
        batch = draw_images(self.images, count=self.count, seed=self.seed, only=self.only, shrink=shrink)
        findings: list[Finding] = []
        bounds: dict[str, BoundCell] = {}
        local: dict[tuple[str, str, float], LocalCell] = {}
        constants: dict[str, list[float]] = {}
        with Store(self.cells) as store, one_thread():
            for activation in map(Activation.named, self.activations):
                name = activation.value
                client = Client(network=Architecture.LENET, activation=activation)
                key = {"study": self.name, "client": asdict(client), "content": content_of([batch]), "seed": self.seed}
                matches = Matches(client.objective(batch, None, seed=self.seed), batch)
                first = Matches(matches.objective, batch.rows(slice(self.bounded)))
                norms = store.kept({**key, "part": "norms"}, list[float], partial(_truth_norms, matches))
                constants[name] = norms
                bounds[name] = store.kept(
                    {**key, "part": "bound", "sizes": [self.bounded, self.iterations, self.spacing, self.steps]},
                    BoundCell,
                    partial(self._bound, first, torch.tensor(norms[: self.bounded], dtype=torch.float64)),
                )
                findings += self._bound_findings(name, bounds[name])
                say(f"{name}: {_told(bounds[name])}")
                for step in (TRUTH, "the same for all"):
                    for distance in self.distances:
                        local[name, step, distance] = store.kept(
                            {**key, "part": "local", "step": step, "distance": distance, "steps": self.steps},
                            LocalCell,
                            partial(self._local, matches, norms, step, distance),
                        )
        findings += [
            finding for place, cell in local.items() for finding in self._local_findings(place, cell, constants)
        ]
        return StudyResult(
            study=self.name,
            settings={name: value for name, value in describe(self).items() if name != "cells"},
            findings=findings,
            conclusion=[f"{name}: {_told(cell)}." for name, cell in bounds.items()],
            details={
                "bound": {name: asdict(cell) for name, cell in bounds.items()},
                "local": [
                    {"network": name, "step": step, "distance": distance} | asdict(cell)
                    for (name, step, distance), cell in local.items()
                ],
                "norms": constants,
            },
            tables=[_bound_table(findings), _local_table(findings)],
            figures={"lavp-descent": _figure(bounds)},
        )

    def _start(self, matches: Matches) -> Tensor:
        """Uniform guesses in the box, one an image."""
        shape = tuple(matches.batch.inputs.shape[1:])
        rows = [
            torch.rand(shape, generator=derive_generator(self.seed, "start", str(index)), dtype=torch.float64)
            for index in range(matches.batch.size)
        ]
        return torch.stack(rows)

    def _bound(self, matches: Matches, truth: Tensor) -> BoundCell:
        attack: dict[str, list[list[DescentStep]]] = {
            HERE: [[] for _ in range(matches.batch.size)],
            TRUTH: [[] for _ in range(matches.batch.size)],
        }
        guess = self._start(matches).requires_grad_()
        adam = torch.optim.Adam([guess], lr=0.1)
        for iteration in range(self.iterations):
            point = guess.detach().clone()
            if iteration % self.spacing == 0:
                for name, lipschitz in ((HERE, matches.norms(point)), (TRUTH, truth)):
                    found, _ = matches.steps(point, lipschitz)
                    for row, step in zip(attack[name], found, strict=True):
                        row.append(step)
            # Adam is an image's own: the scale of a gradient does not count, and images do not mix.
            guess.grad = matches.slopes(point)[1]
            adam.step()
            with torch.no_grad():
                guess.clamp_(0.0, 1.0)
        descent: list[list[DescentStep]] = [[] for _ in range(matches.batch.size)]
        point = self._start(matches)
        for _ in range(self.steps):
            found, point = matches.steps(point, truth)
            for row, step in zip(descent, found, strict=True):
                row.append(step)
        return BoundCell(attack=attack, descent=descent)

    def _local(self, matches: Matches, norms: Sequence[float], step: str, distance: float) -> LocalCell:
        own = torch.tensor(norms, dtype=torch.float64)
        lipschitz = own if step == TRUTH else own.max().expand_as(own)
        truth = matches.batch.inputs
        generator = derive_generator(self.seed, "noise")
        point = truth + distance * torch.randn(truth.shape, generator=generator, dtype=torch.float64)
        first = matches.losses(point)
        for _ in range(self.steps):
            _, point = matches.steps(point, lipschitz)
        error = (point - truth).square().flatten(1).mean(dim=1)
        return LocalCell(first=first.tolist(), last=matches.losses(point).tolist(), error=error.tolist())

    def _bound_findings(self, name: str, cell: BoundCell) -> list[Finding]:
        found = []
        for what, rows in _searches(cell).items():
            broken = [float(np.mean([not step.holds for step in row])) for row in rows]
            shares = [step.share for row in rows for step in row]
            low = min((share for share in shares if share is not None), default=None)
            found.append(
                Finding(
                    quantity=f"{name}, {what}: share of steps that break the bound",
                    ours=float(np.mean(broken)),
                    interval=resampled(broken, np.mean, seed=self.seed, resamples=self.resamples),
                    paper="0 where g is linear along the step (theorem 1)",
                    n=len(rows),
                    note=f"{sum(map(len, rows))} steps; fall over promise: median {shown(median(shares))}, "
                    f"smallest {shown(low)}",
                )
            )
        return found

    def _local_findings(
        self, place: tuple[str, str, float], cell: LocalCell, constants: Mapping[str, Sequence[float]]
    ) -> list[Finding]:
        name, step, distance = place
        # ‖A‖ orders images as λmax = 2‖A‖² does.
        columns: dict[str, Sequence[float]] = {
            "the first loss": cell.first,
            "the last loss": cell.last,
            "the last over the first loss": [
                last / first if first > 0 else float("nan") for first, last in zip(cell.first, cell.last, strict=True)
            ],
            "the error": cell.error,
        }
        found = []
        for what, values in columns.items():
            rows = paired(constants[name], values)
            found.append(
                Finding(
                    quantity=f"{name}, start {distance:g} from the truth, step size {step}: Spearman of LAVP with {what}",
                    ours=spearman(rows),
                    interval=mean_interval([rows], spearmans, resamples=self.resamples, seed=self.seed),
                    paper="correlated (appendix; no number in our copy)" if what == "the last loss" else "",
                    n=len(rows),
                    note=f"median {shown(median(values))}",
                )
            )
        return found


def _truth_norms(matches: Matches) -> list[float]:
    found: list[float] = matches.norms(matches.batch.inputs).tolist()
    return found


def _searches(cell: BoundCell) -> dict[str, list[list[DescentStep]]]:
    return {f"attack, L {name}": rows for name, rows in cell.attack.items()} | {
        f"gradient descent, L {TRUTH}": cell.descent
    }


def _told(cell: BoundCell) -> str:
    parts = []
    for what, rows in _searches(cell).items():
        steps = [step for row in rows for step in row]
        parts.append(f"{what}: {sum(not step.holds for step in steps)} of {len(steps)} steps break the bound")
    return "; ".join(parts)


def _bound_table(findings: Sequence[Finding]) -> Table:
    rows = [
        [one.quantity.partition(":")[0], shown_with(one.ours, one.interval, ".3f"), one.note]
        for one in findings
        if "break the bound" in one.quantity
    ]
    return Table(title="Theorem 1", columns=("search", "share of steps that break it", "steps"), rows=rows)


def _local_table(findings: Sequence[Finding]) -> Table:
    rows: dict[str, dict[str, Finding]] = {}
    for one in findings:
        head, middle, what = one.quantity.partition(": Spearman of LAVP with ")
        if middle:
            rows.setdefault(head, {})[what] = one
    columns = list(next(iter(rows.values()), {}))
    return Table(
        title="Local optimization: Spearman of LAVP (largest eigenvalue, L2)",
        columns=("start", *columns),
        rows=[
            [head, *(shown_with(row[what].ours, row[what].interval, ".2f") for what in columns)]
            for head, row in rows.items()
        ],
    )


def _figure(bounds: Mapping[str, BoundCell]) -> str:
    """Fall of the loss over what the bound promises, along gradient descent, a network a panel."""

    def paint(grid: Any) -> None:
        for axes, (name, cell) in zip(grid[0], bounds.items(), strict=True):
            for place, row in enumerate(cell.descent):
                known = [(number, step.share) for number, step in enumerate(row, start=1) if step.share is not None]
                axes.plot(*zip(*known, strict=True), color=SERIES[place % len(SERIES)], linewidth=0.8, alpha=0.8)
            for place, rows in enumerate(cell.attack.values()):
                shares = [step.share for row in rows for step in row if step.share is not None]
                axes.plot(
                    [0] * len(shares),
                    shares,
                    linestyle="",
                    marker=MARKERS[place],
                    markersize=3,
                    color=SERIES[3 * place],
                )
            axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":")
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("step of gradient descent")
            axes.set_ylabel("fall over promise")

    what = "Fall of the matching loss over the fall that theorem 1 promises; below 1 the bound is broken."
    return panels(
        1, len(bounds), (3.0 * len(bounds), 2.8), paint, prefix="descent", title="Theorem 1", description=what
    )


__all__ = ["HERE", "TRUTH", "BoundCell", "DescentStep", "LAVPDescent", "LocalCell", "Matches"]
