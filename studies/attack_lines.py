"""Lines and rows of the attack table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradleak.attacks import Blind
from gradleak.core import Batch
from gradleak.results import median
from gradleak.scoring import blind_baseline
from studies.study import Finding
from studies.summaries import median_interval, shown

BASELINE = "best guess without the update, chosen with the truth"


@dataclass(frozen=True, kw_only=True)
class Line:
    """Result of one attack on one image.

    Attributes:
        image: its place among the study's images.
        mse: in pixels scaled to [0, 1], or None where nothing was claimed.
        ssim: or None.
        exact: whether the image was hit exactly.
        outcome: of the attack.
        labels: where the label came from.
        iterations: of the chosen start.
        counted: plain gradients by the attack's rule.
        measured: processor time over that of a plain gradient; None where the attack was resumed.
        note: why there is no claim.
        st_lpips: or None.
        loss: matching loss of the claim, or None.
        history: (plain gradients, matching loss so far) at a few places of the search.
        support: what `InventionCheck` says of the claim; "" where it was not asked.
        moved: by how much the claim moved there (pixel RMSE), or None.
        residual: relative residual of the claim there, or None.
    """

    image: int
    mse: float | None
    ssim: float | None
    exact: bool
    outcome: str
    labels: str
    iterations: int
    counted: float
    measured: float | None
    note: str = ""
    st_lpips: float | None = None
    loss: float | None = None
    history: Sequence[Sequence[float]] = ()
    support: str = ""
    moved: float | None = None
    residual: float | None = None

    def __post_init__(self) -> None:
        """A history that was read back from JSON equals the one that was written."""
        object.__setattr__(self, "history", tuple(tuple(place) for place in self.history))

    @property
    def psnr(self) -> float | None:
        """In dB; infinite for equal images."""
        if self.mse is None:
            return None
        return math.inf if self.mse == 0 else -10 * math.log10(self.mse)


@dataclass(frozen=True)
class Row:
    """One attack on one network."""

    network: str
    attack: str
    labels: str
    lines: Sequence[Line]

    columns: ClassVar[tuple[str, ...]] = (
        "network", "attack", "labels", "n", "PSNR (dB)", "smallest to largest", "SSIM", "MSE", "exact hits",
        "plain gradients", "measured", "ended",
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Network and attack."""
        return f"{self.network}, {self.attack}"

    def values(self, name: str) -> list[float]:
        """The values of one quantity, ascending; None left out."""
        return sorted(value for line in self.lines if (value := getattr(line, name)) is not None)

    def median(self, name: str) -> float | None:
        """The median, of each quantity by itself; None without a value."""
        return median(self.values(name))

    def finding(self) -> Finding:
        """The median PSNR with its interval."""
        values = self.values("psnr")
        return Finding(
            quantity=f"{self.title}: median PSNR (dB)",
            ours=self.median("psnr"),
            interval=median_interval(values),
            n=len(values),
            note=next((line.note for line in self.lines if line.note), ""),
        )

    def cells(self) -> list[str]:
        """The row as it is printed, by `columns`."""
        values = self.values("psnr")
        counted, measured = self.median("counted"), self.median("measured")
        ends = sorted({line.outcome for line in self.lines})
        return [
            self.network,
            self.attack,
            self.labels,
            str(len(self.lines)),
            shown(self.median("psnr"), ".1f"),
            f"{values[0]:.1f} to {values[-1]:.1f}" if values else "-",
            shown(self.median("ssim"), ".3f"),
            shown(self.median("mse"), ".2g"),
            f"{sum(line.exact for line in self.lines)} of {len(self.lines)}",
            shown(counted, ",.0f"),
            shown(measured, ",.0f"),
            ", ".join(f"{sum(line.outcome == end for line in self.lines)} {end}" for end in ends),
        ]

    def sentence(self) -> str:
        """A line of progress."""
        psnr, counted = shown(self.median("psnr"), ".1f"), shown(self.median("counted"), ",.0f")
        return f"{self.title}: median PSNR {psnr} dB of {len(self.lines)} images for {counted} plain gradients"


def conclude(rows: Sequence[Row]) -> list[str]:
    """Network by network: the best attack, exact hits, and who is no better than blind."""
    lines = []
    for network in dict.fromkeys(row.network for row in rows):
        mine = [row for row in rows if row.network == network and row.median("psnr") is not None]
        blind = next(row for row in mine if row.attack == BASELINE).median("psnr")
        real = [row for row in mine if row.attack not in (BASELINE, Blind.name)]
        if not real or blind is None:
            continue
        best = max(real, key=lambda row: row.median("psnr") or -math.inf)
        hits = [f"{row.attack} {sum(line.exact for line in row.lines)} of {len(row.lines)}" for row in real
                if any(line.exact for line in row.lines)]  # fmt: skip
        poor = [row.attack for row in real if (row.median("psnr") or -math.inf) <= blind]
        text = (
            f"{network}: best is {best.attack} with a median PSNR of {best.median('psnr'):.1f} dB, {blind:.1f} dB without "
            f"the update; exact hits: {', '.join(hits) or 'none'}"
        )
        lines.append(text + (f"; no better than without the update: {', '.join(poor)}." if poor else "."))
    return lines


def blind_lines(examples: Sequence[Batch]) -> list[Line]:
    """The best guess without the update, chosen with the truth, image by image.

    Args:
        examples: one image each.
    """
    lines = []
    for image, example in enumerate(examples):
        values = {score.name: score.value for score in blind_baseline(example)}
        lines.append(
            Line(
                image=image,
                mse=values["mse"],
                ssim=values["ssim"],
                exact=values["exact_hits"] == 1.0,
                outcome="-",
                labels="-",
                iterations=0,
                counted=0.0,
                measured=None,
            )
        )
    return lines
