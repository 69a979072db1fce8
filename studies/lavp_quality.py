"""Does LAVP foresee how well an attack rebuilds an image?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from gradleak.core import describe
from gradleak.reporting.drawing import MARKERS, SERIES
from gradleak.results import HONG_2024, Citation
from studies.correlations import (
    Floats,
    mean_interval,
    paired,
    spearman,
    spearmans,
)
from studies.lavp_cells import (
    COSINE,
    L2,
    LOSS,
    MSE,
    PSNR,
    RELATIVE,
    SSIM,
    ST_LPIPS,
    Architecture,
    Attempt,
    Client,
    Images,
    LAVPCell,
    cell_of,
)
from studies.panels import panels
from studies.private_images import draw_images
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import known, median, shown, shown_with

_COLUMNS = (MSE, PSNR, SSIM, ST_LPIPS, LOSS, RELATIVE)
PAPER = {
    "gradient_norm": "0.35 and -0.28 (MSE, by model)",
    "lavp_l2_max": "absolute value mostly above 0.5",
    "lavp_cosine_max": "absolute value about 0.8 for cosine",
    "lavp_cosine_min": "absolute value about 0.8 for cosine",
    "lavp_fusion": "above the gradient norm in most cases (table 3)",
}


@dataclass(frozen=True, kw_only=True)
class LAVPQuality(Study):
    """Spearman correlation of vulnerability proxies with reconstruction quality, within each architecture.

    For every image the closed-form proxies are computed at the truth, an attack of each loss runs on the undefended
    gradient (labels disclosed, no prior, box), and the correlation over images is taken; intervals are percentile
    bootstraps over images. The average over architectures stands beside. Qualities are MSE, PSNR, SSIM, ST-LPIPS, the
    attack's own final loss, and the MSE over that of the image's best constant color; a scatter plot an architecture
    shows the MSE over gradient norm, maximum and minimum, as figure 2 of the paper does.

    **Source**: Hong et al. 2024, tables 1 to 3 and figure 2, there on LeNet, ResNet and others with trained and untrained
    weights; deviations: small untrained networks, so that the smallest eigenvalue is exact; ST-LPIPS in place of LPIPS,
    whose trunk is not available offline (it needs images of at least 21 pixels a side).

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        count: images.
        iterations: Adam steps of each attack, all images in lockstep.
        architectures: which networks.
        resnet_width: channels of the first stage of the ResNet; its whole spectrum at 3×32×32 takes minutes an image
            at 16.
        largest: images of more numbers have maxima and gradient norm alone, which need no whole spectrum.
        seed: of images, weights and starts.
        jobs: worker processes for the spectra.
        resamples: bootstrap resamples.
        cells: file that keeps proxies and qualities as soon as they are computed.
    """

    name: ClassVar[str] = "lavp_quality"
    source: ClassVar[str] = "tables 1 to 3 and figure 2"
    citations: ClassVar[tuple[Citation, ...]] = (HONG_2024,)

    images: str | None = None
    only: str | None = None
    count: int = 30
    iterations: int = 500
    architectures: Sequence[Architecture] = tuple(Architecture)
    resnet_width: int = 16
    largest: int = 3072
    seed: int = 0
    jobs: int = 2
    resamples: int = 2000
    cells: str | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; minutes for MNIST, tens of minutes for 32×32 color images on two cores."""
        images = Images(batch=draw_images(self.images, count=self.count, seed=self.seed, only=self.only))
        attempt = Attempt(iterations=self.iterations)
        cells: dict[str, LAVPCell] = {}
        with Store(self.cells) as store:
            for architecture in map(Architecture, self.architectures):
                client = Client(network=architecture, width=self.resnet_width)
                cell = cell_of(client, attempt, images, store, seed=self.seed, jobs=self.jobs, largest=self.largest)
                cells[architecture.value] = cell
                ends = ", ".join(f"{loss} {shown(median(own[MSE]), '.2g')}" for loss, own in cell.qualities.items())
                say(f"{architecture.value}: median MSE by attack: {ends}")
        findings = {
            (proxy, loss): self._findings(proxy, loss, cells)
            for loss in (L2, COSINE)
            for proxy in next(iter(cells.values())).proxies
        }
        flat = [finding for row in findings.values() for finding in row.values()]
        return StudyResult(
            study=self.name,
            settings={name: value for name, value in describe(self).items() if name != "cells"},
            findings=flat,
            conclusion=_conclude(flat),
            details={name: asdict(cell) for name, cell in cells.items()},
            tables=[_table(loss, findings) for loss in (L2, COSINE)],
            figures={f"lavp-{name}": scatter(name, cell) for name, cell in cells.items()},
        )

    def _findings(self, proxy: str, loss: str, cells: Mapping[str, LAVPCell]) -> dict[str, Finding]:
        rows = {}
        for quality in _COLUMNS:
            by_model: dict[str, Floats] = {
                name: paired(cell.proxies[proxy], cell.qualities[loss][quality]) for name, cell in cells.items()
            }
            values = {name: spearman(pair) for name, pair in by_model.items()}
            found = known(list(values.values()))
            rows[quality] = Finding(
                quantity=f"{loss} attack: Spearman of {proxy} with {quality}, mean over architectures",
                ours=float(np.mean(found)) if found else None,
                paper=PAPER.get(proxy, "") if quality == MSE else "",
                interval=mean_interval(list(by_model.values()), spearmans, resamples=self.resamples, seed=self.seed),
                n=sum(len(pair) for pair in by_model.values()),
                note=", ".join(f"{name} {shown(value, '.2f')}" for name, value in values.items()),
            )
        return rows


def scatter(name: str, cell: LAVPCell) -> str:
    """MSE over gradient norm and both ends of the spectrum, an attack a row, both axes logarithmic, as an SVG file."""
    proxies = [
        (loss, [one for one in ("gradient_norm", f"lavp_{loss}_max", f"lavp_{loss}_min") if one in cell.proxies])
        for loss in cell.qualities
    ]

    def paint(grid: Any) -> None:
        for line, (loss, names) in zip(grid, proxies, strict=True):
            for place, (axes, proxy) in enumerate(zip(line, names, strict=True)):
                points = paired(cell.proxies[proxy], cell.qualities[loss][MSE])
                points = points[(points > 0).all(axis=1)]
                axes.plot(
                    points[:, 0],
                    points[:, 1],
                    linestyle="",
                    marker=MARKERS[place],
                    markersize=3.5,
                    color=SERIES[place],
                    alpha=0.8,
                )
                if len(points):
                    axes.set_xscale("log")
                    axes.set_yscale("log")
                else:
                    axes.text(0.5, 0.5, "no positive values", ha="center", transform=axes.transAxes)
                axes.set_title(f"Spearman {shown(spearman(points), '.2f')}", fontsize=9)
                axes.set_xlabel(proxy.replace("_", " "))
                axes.set_ylabel(f"MSE, {loss} attack")

    columns = max(len(names) for _, names in proxies)
    what = "MSE of the reconstructed images over gradient norm and ends of the spectrum of the Hessian, log scales."
    return panels(
        len(proxies), columns, (2.9 * columns, 2.6 * len(proxies)), paint, prefix="lavp", title=name, description=what
    )


def _table(loss: str, findings: Mapping[tuple[str, str], Mapping[str, Finding]]) -> Table:
    rows = [
        [proxy, *(shown_with(row[quality].ours, row[quality].interval, ".2f") for quality in _COLUMNS)]
        for (proxy, own), row in findings.items()
        if own == loss
    ]
    return Table(title=f"{loss} attack: Spearman, mean over architectures", columns=("proxy", *_COLUMNS), rows=rows)


def _conclude(findings: Sequence[Finding]) -> list[str]:
    """One sentence a proxy: its sign with MSE under both attacks, and whether the interval excludes 0."""
    lines = []
    for finding in findings:
        if "with mse" not in finding.quantity or finding.ours is None or finding.interval is None:
            continue
        low, high = finding.interval
        clear = "clearly" if low > 0 or high < 0 else "not clearly"
        sign = "positive" if finding.ours > 0 else "negative"
        what = finding.quantity.removesuffix(", mean over architectures")
        lines.append(f"{what}: {sign} ({finding.ours:.2f}), {clear} different from 0.")
    return lines


__all__ = ["LAVPQuality", "scatter"]
