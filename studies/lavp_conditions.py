"""Conditions under which LAVP foresees how well an attack rebuilds an image: one thing changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gradleak.core import Batch, Domain, describe
from gradleak.datasets import mnist_digits
from gradleak.models import Activation
from gradleak.reporting.drawing import INK, MARKERS, SERIES
from gradleak.results import HONG_2024, Citation, check_count
from studies.correlations import (
    Floats,
    mean_interval,
    paired,
    partial_spearman,
    partial_spearmans,
    spearman,
    spearmans,
)
from studies.lavp_cells import (
    COSINE,
    L2,
    LOSS,
    MSE,
    RELATIVE,
    Architecture,
    Attempt,
    Client,
    Descent,
    FirstWeights,
    Images,
    LAVPCell,
    cell_of,
)
from studies.panels import panels
from studies.private_images import draw_images
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table, chosen
from studies.summaries import median, shown, shown_with

BASE, NORM = "base", "gradient_norm"
_PROXIES = {L2: ("lavp_l2_max", "lavp_l2_min"), COSINE: ("lavp_cosine_max", "lavp_cosine_min")}
_PAPER = "0.5 or more in absolute value (table 1), at most 0.64 on CIFAR-10 (figure 2)"
_MAXIMA = (("L2 attack", L2, "lavp_l2_max"), ("cosine attack", COSINE, "lavp_cosine_max"))


@dataclass(frozen=True, kw_only=True)
class LAVPCondition:
    """A cell that differs from the base in one thing.

    Attributes:
        name: axis and value.
        client: who releases.
        attempt: the attack.
        images: which images: "base", "digits", "gray" or "large".
        times: how many times as many images.
    """

    name: str
    client: Client
    attempt: Attempt
    images: str = BASE
    times: int = 1


def conditions(iterations: int, training: int) -> list[LAVPCondition]:
    """The base and one cell a change of it, in order; the longest last.

    Args:
        iterations: of the attack in the base.
        training: Adam steps of the cell with a trained network.
    """
    client, attempt = Client(width=8), Attempt(iterations=iterations)

    def of(name: str, **changes: Any) -> LAVPCondition:
        mine = {key: value for key, value in changes.items() if key in Client.__dataclass_fields__}
        theirs = {key: value for key, value in changes.items() if key in Attempt.__dataclass_fields__}
        rest = {key: value for key, value in changes.items() if key not in mine and key not in theirs}
        return LAVPCondition(name=name, client=replace(client, **mine), attempt=replace(attempt, **theirs), **rest)

    return [
        of(BASE),
        of("images: digits", images="digits"),
        of("images: gray", images="gray"),
        of("weights: torch's", weights=FirstWeights.TORCH),
        of("weights: trained", training_steps=training),
        of("activation: tanh", activation=Activation.TANH),
        of("activation: ReLU", activation=Activation.RELU),
        of("attack: other starts", start=1),
        of("attack: signed Adam, decaying", descent=Descent.SIGNED),
        of("attack: total variation 1e-3", total_variation=1e-3),
        of("attack: L-BFGS", descent=Descent.LBFGS),
        of("attack: a fifth of the iterations", iterations=max(1, iterations // 5)),
        of("attack: three times the iterations", iterations=3 * iterations),
        of("network: MLP", network=Architecture.MLP),
        of("network: ResNet-8", network=Architecture.RESNET),
        of("images: three times as many", times=3),
        of("images: 32x32", images="large"),
    ]


@dataclass(frozen=True, kw_only=True)
class LAVPConditions(Study):
    """Spearman of LAVP with the error of the attack of its own loss, in a base cell and with one thing changed at a time.

    The base is the setting in which `lavp_quality` finds nothing: color images, LeNet with sigmoids and weights
    uniform(−0.5, 0.5), untrained, Adam for 500 iterations with labels disclosed, box, no prior. Images are means over 2×2
    pixels, so that a whole spectrum takes a second; a cell of the full size has maxima alone. Beside the correlation with
    the error stands the one with the attack's own final loss, what both are once the ranks of the image's contrast are
    taken out (images of little contrast have small errors whoever guesses), and how far the spectra of the images lie
    apart. The base attacked from other starts says how much of an error is the image's and how much the start's: no proxy
    can correlate better with an error than the root of what the error has in common with itself.

    **Source**: Hong et al. 2024, table 1 (correlations by model, data and loss) and the appendix on the final loss. Our copy
    has neither the experimental section nor the attack's optimizer, iterations and prior.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y).
        only: name of a boolean array in that file that selects images.
        axes: names of cells to compute besides the base, each whole or up to its colon; empty for all.
        count: images.
        iterations: of the attack in the base.
        training_steps: of the cell with a trained network.
        training_images: other images of the file that it is trained on.
        largest: images of more numbers have no minima.
        seed: of images, weights and starts.
        jobs: worker processes for the spectra.
        resamples: bootstrap resamples.
        cells: file that keeps what was computed.
    """

    name: ClassVar[str] = "lavp_conditions"
    source: ClassVar[str] = "table 1 and the appendix on the final loss"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)

    images: str
    only: str | None = None
    axes: Sequence[str] = ()
    count: int = 30
    iterations: int = 500
    training_steps: int = 300
    training_images: int = 100
    largest: int = 1024
    seed: int = 0
    jobs: int = 1
    resamples: int = 2000
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts and the names of axes."""
        check_count("LAVPConditions.count", self.count, least=3)
        self._conditions()

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about 20 minutes of one core with the defaults."""
        cells: dict[str, LAVPCell] = {}
        with Store(self.cells) as store:
            for one in self._conditions():
                cell = cell_of(
                    one.client,
                    one.attempt,
                    self._images(one),
                    store,
                    seed=self.seed,
                    jobs=self.jobs,
                    largest=self.largest,
                )
                cells[one.name] = cell
                said = ", ".join(
                    f"{name} {shown(_spearman(cell, loss, proxy, MSE), '.2f')}" for name, loss, proxy in _MAXIMA
                )
                say(f"{one.name}: {said}")
        findings = [finding for name, cell in cells.items() for finding in self._findings(name, cell)]
        return StudyResult(
            study=self.name,
            settings={name: value for name, value in describe(self).items() if name != "cells"},
            findings=[*findings, *self._repeated(cells)],
            conclusion=_conclude(findings, self._repeated(cells)),
            details={name: asdict(cell) for name, cell in cells.items()},
            tables=[_table(loss, cells, self._interval) for loss in (L2, COSINE)],
            figures={"lavp-conditions": _figure(cells, self._interval)},
        )

    def _conditions(self) -> list[LAVPCondition]:
        every = {one.name: one for one in conditions(self.iterations, self.training_steps)}
        return [every[name] for name in chosen(list(every), self.axes, "LAVPConditions.axes")]

    def _images(self, one: LAVPCondition) -> Images:
        count = one.times * self.count
        if one.images == "digits":
            return Images(batch=mnist_digits(count=count, seed=self.seed))
        total = count + (self.training_images if one.client.training_steps else 0)
        shrink = 1 if one.images == "large" else 2
        drawn = draw_images(self.images, count=total, seed=self.seed, only=self.only, shrink=shrink)
        batch = drawn.rows(slice(count))
        others = drawn.rows(slice(count, None)) if total > count else None
        if one.images == "gray":
            gray = batch.inputs.mean(dim=1, keepdim=True)
            batch = Batch(gray, batch.targets, Domain.image(channels=1, height=gray.shape[2], width=gray.shape[3]))
        return Images(batch=batch, others=others)

    def _interval(self, rows: Floats, rule: Callable[[Floats], Floats] = spearmans) -> tuple[float, float] | None:
        return mean_interval([rows], rule, resamples=self.resamples, seed=self.seed)

    def _findings(self, name: str, cell: LAVPCell) -> list[Finding]:
        found = []
        for loss, proxies in _PROXIES.items():
            ends = f"median MSE {shown(median(cell.qualities[loss][MSE]), '.2g')}"
            for proxy in (NORM, *proxies):
                if proxy not in cell.proxies:
                    continue
                # Records are small: what is of the maxima alone stands for them, the rest in the details.
                for quality in (MSE, LOSS) if proxy == proxies[0] else (MSE,):
                    rows = paired(cell.proxies[proxy], cell.qualities[loss][quality])
                    found.append(
                        Finding(
                            quantity=f"{name}, {loss} attack: Spearman of {proxy} with {quality}",
                            ours=spearman(rows),
                            interval=self._interval(rows),
                            paper=_PAPER if quality == MSE and proxy in proxies else "",
                            n=len(rows),
                            note=ends,
                        )
                    )
                if proxy != proxies[0]:
                    continue
                for taken, values in (("contrast", cell.contrast), ("gradient norm", cell.proxies[NORM])):
                    rows = paired(cell.proxies[proxy], cell.qualities[loss][MSE], values)
                    found.append(
                        Finding(
                            quantity=f"{name}, {loss} attack: Spearman of {proxy} with mse, {taken} taken out",
                            ours=partial_spearman(rows),
                            interval=self._interval(rows, partial_spearmans),
                            n=len(rows),
                            note=f"{taken} and mse: {shown(spearman(rows[:, [2, 1]]), '.2f')}; {taken} and {proxy}: "
                            f"{shown(spearman(rows[:, [2, 0]]), '.2f')}",
                        )
                    )
        return found

    def _repeated(self, cells: dict[str, LAVPCell]) -> list[Finding]:
        """Errors of the base against those from other starts."""
        other = cells.get("attack: other starts")
        if other is None:
            return []
        found = []
        for loss in (L2, COSINE):
            rows = paired(cells[BASE].qualities[loss][MSE], other.qualities[loss][MSE])
            found.append(
                Finding(
                    quantity=f"base, {loss} attack: Spearman of the mse with that from other starts",
                    ours=spearman(rows),
                    interval=self._interval(rows),
                    n=len(rows),
                    note="what of an error is the image's",
                )
            )
        return found


def _spearman(cell: LAVPCell, loss: str, proxy: str, quality: str) -> float | None:
    return spearman(paired(cell.proxies[proxy], cell.qualities[loss][quality]))


def _table(loss: str, cells: dict[str, LAVPCell], interval: Callable[..., tuple[float, float] | None]) -> Table:
    largest, smallest = _PROXIES[loss]
    columns = (
        "cell", "median MSE", "median relative MSE", "spread of the maximum", "maximum with MSE", "contrast taken out",
        "gradient norm taken out", "with the final loss", "minimum with MSE", "gradient norm with MSE", "contrast with MSE",
    )  # fmt: skip
    rows = []
    for name, cell in cells.items():
        own = cell.qualities[loss]
        held = paired(cell.proxies[largest], own[MSE], cell.contrast)
        scaled = paired(cell.proxies[largest], own[MSE], cell.proxies[NORM])
        spectrum = np.array([value for value in cell.proxies[largest] if value], dtype=float)
        spread = float(np.quantile(spectrum, 0.9) / np.quantile(spectrum, 0.1)) if len(spectrum) else None

        def told(proxy: str, quality: str, own: dict[str, list[float | None]] = own, cell: LAVPCell = cell) -> str:
            if proxy not in cell.proxies:
                return "-"
            points = paired(cell.proxies[proxy], own[quality])
            return shown_with(spearman(points), interval(points), ".2f")

        rows.append(
            [
                name,
                shown(median(own[MSE]), ".2g"),
                shown(median(own[RELATIVE]), ".2g"),
                shown(spread, ".2g"),
                told(largest, MSE),
                shown_with(partial_spearman(held), interval(held, partial_spearmans), ".2f"),
                shown_with(partial_spearman(scaled), interval(scaled, partial_spearmans), ".2f"),
                told(largest, LOSS),
                told(smallest, MSE),
                told(NORM, MSE),
                shown(spearman(held[:, [2, 1]]), ".2f"),
            ]
        )
    return Table(title=f"{loss} attack (spread: 90 % over 10 % of the images)", columns=columns, rows=rows)


def _figure(cells: dict[str, LAVPCell], interval: Callable[..., tuple[float, float] | None]) -> str:
    """Spearman of the largest eigenvalue with the MSE in every cell, both attacks, with intervals."""

    def paint(grid: Any) -> None:
        axes = grid[0, 0]
        for place, (label, loss, proxy) in enumerate(_MAXIMA):
            for number, cell in enumerate(cells.values()):
                points = paired(cell.proxies[proxy], cell.qualities[loss][MSE])
                value, ends = spearman(points), interval(points)
                if value is None:
                    continue
                height = -number + 0.15 - 0.3 * place
                if ends is not None:
                    axes.plot(ends, [height, height], color=SERIES[3 * place], linewidth=1.2, alpha=0.7)
                axes.plot(
                    [value],
                    [height],
                    marker=MARKERS[place],
                    markersize=4,
                    linestyle="",
                    color=SERIES[3 * place],
                    label=label if number == 0 else None,
                )
        axes.axvline(0.0, color=INK, linewidth=0.8)
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xlim(-1.7, 1)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        axes.set_xlabel("Spearman of the largest eigenvalue with the MSE (dotted: the paper's 0.5)")
        # Tick labels are numbers in figures of this house.
        axes.set_yticks([])
        for number, name in enumerate(cells):
            axes.text(-1.65, -number, name, fontsize=8, va="center", parse_math=False)

    return panels(
        1,
        1,
        (7.4, 1.6 + 0.32 * len(cells)),
        paint,
        prefix="conditions",
        title="LAVP by condition",
        description="Rank correlation of LAVP with the error of the attack, a cell a line, with intervals of 95 percent.",
    )


def _conclude(findings: Sequence[Finding], repeated: Sequence[Finding]) -> list[str]:
    lines = []
    for loss, proxies in _PROXIES.items():
        chosen = [
            one for one in findings if one.quantity.endswith(f"{loss} attack: Spearman of {proxies[0]} with {MSE}")
        ]
        above = [one for one in chosen if one.interval is not None and one.interval[0] > 0]
        below = [one for one in chosen if one.interval is not None and one.interval[1] < 0]
        lines.append(
            f"{loss} attack, {proxies[0]} with the MSE: of {len(chosen)} cells above 0 in {len(above)} ({_names(above)}), "
            f"below 0 in {len(below)} ({_names(below)}), not told from 0 in the others."
        )
    return lines + [f"{one.quantity}: {shown_with(one.ours, one.interval, '.2f')}." for one in repeated]


def _names(findings: Sequence[Finding]) -> str:
    return "; ".join(one.quantity.rpartition(", ")[0] for one in findings) or "none"


__all__ = ["LAVPCondition", "LAVPConditions", "conditions"]
