"""Study: gain of a generator for an attacker, latent space against pixels, at equal cost in plain gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import combinations
from typing import ClassVar

from gradleak.core import describe, one_thread
from gradleak.results import (
    FANG_2024,
    GHILDYAL_2022,
    JEON_2021,
    LI_2022,
    Citation,
    check_positive,
    member,
)
from studies.attack_lines import BASELINE, Line
from studies.generator_figures import loss_curves
from studies.generator_study import GeneratorStudy
from studies.prior_cells import (
    PriorAttack,
    PriorNetwork,
    PriorSetting,
    baseline_lines,
    capped,
    cells,
    mean,
    mean_psnr,
    paired,
    there,
)
from studies.store import Store
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import median_interval, shown

PAPER: dict[str, str] = {
    PriorAttack.IGIMS: "26.33",
    PriorAttack.GIAS: "24.41",
    PriorAttack.INVERTING_GRADIENTS: "22.88",
}
"""Mean PSNR of table 1 in dB: CIFAR-10, ResNet-18 with random weights, a DCGAN by GIML, 30 images."""


class Scale(StrEnum):
    """Size of the study: what a CPU carries, or the paper's sizes for an accelerator."""

    SMALL = "small"
    PAPER = "paper"


@dataclass(frozen=True, kw_only=True)
class GeneratorTable(GeneratorStudy):
    """A table attack × network of MSE, PSNR, SSIM and ST-LPIPS at equal cost in plain gradients, single images.

    Every attack has one update, the undefended gradient of one image in eval mode, recovers the label itself, and gets as
    many iterations as the budget buys by its own estimate: 1 plain gradient a value, 3 a derivative, and nothing for what
    the generator itself costs. IGIMS and IGIMS* have four rounds; `igims_one_round` spends the same on one, as the paper's
    rule for their number asks for at this cost. Levenberg-Marquardt starts again, warm after the first time, until the
    budget is spent (`max_plain_gradients`); on networks with ReLU it has no free gates, and steps of 30 products. Means
    are over images, of PSNR with at most 100 dB an image (nobody sees more, and an image hit exactly counts without
    carrying the mean away); exact hits are counted beside. The worst is the worst for the client: the largest PSNR and
    SSIM, the smallest MSE and ST-LPIPS.

    At the paper's scale (`scale = "paper"`) there are 30 images, ResNet-18 and 72,000 plain gradients an image, four
    rounds of IGIMS at (nearly) its own length, and every other attack at that cost: hours of a GPU. It has not been run
    with this package.

    **Source**: Fang et al. 2024, table 1 (CIFAR-10; FFHQ and ImageNet are left out). Deviations at small scale: fewer
    images, the budgets, a narrow ConvNet beside ResNet-18, generators of the size that trains on a CPU, ST-LPIPS in place
    of LPIPS, and the attacks GGL, IGIMS* and Levenberg-Marquardt beside the paper's three. At both scales IG
    has the weight of total variation 1e-6 that this paper states for it, as those behind a generator do.

    Attributes:
        count: images on the ConvNet.
        deep_count: images on ResNet-18.
        budget: plain gradients an image on the ConvNet.
        deep_budget: plain gradients an image on ResNet-18.
        networks: which networks.
        attacks: which attacks.
        scale: "small" or "paper".
    """

    name: ClassVar[str] = "generator_table"
    source: ClassVar[str] = "table 1, at small scale"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, JEON_2021, LI_2022, GHILDYAL_2022)

    count: int = 10
    deep_count: int = 3
    deep_budget: int = 6000
    networks: Sequence[PriorNetwork] = (PriorNetwork.CONVNET,)
    attacks: Sequence[PriorAttack] = (
        PriorAttack.IGIMS,
        PriorAttack.IGIMS_ONCE,
        PriorAttack.IGIMS_ADAM,
        PriorAttack.GIAS,
        PriorAttack.GGL,
        PriorAttack.INVERTING_GRADIENTS,
        PriorAttack.GAUSS_NEWTON,
    )
    scale: Scale = Scale.SMALL

    columns: ClassVar[tuple[str, ...]] = (
        "network", "attack", "prior", "n", "PSNR mean (dB)", "PSNR worst", "MSE mean", "MSE worst", "SSIM mean", "SSIM worst",
        "ST-LPIPS mean", "ST-LPIPS worst", "exact hits", "plain gradients",
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check the numbers before hours are spent.

        Raises:
            InputError: naming the setting.
        """
        super().__post_init__()
        self._check_counts("count", "deep_count")
        check_positive(f"{self.name}.deep_budget", self.deep_budget)
        member(f"{self.name}.scale", Scale, self.scale)
        self._check_members("attacks", PriorAttack)
        self._check_members("networks", PriorNetwork)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; hours of one core with the budgets of a CPU, and hours of a GPU at the paper's scale."""
        rows: list[tuple[str, str, str, list[Line]]] = []
        with Store(self.cells) as store, one_thread():
            for network in self._networks:
                setting = self._setting(network)
                rows.append((network.value, BASELINE, "-", baseline_lines(setting.examples)))
                for entrant in map(PriorAttack, self.attacks):
                    before = store.reused
                    _, lines = cells(setting, entrant, store, seed=self.seed, compute=self.compute)
                    if lines:
                        title = entrant.value
                        if max(line.counted for line in lines) > 1.001 * setting.budget:
                            title += " (beyond the budget)"
                        prior = setting.prior if entrant.needs_generator else "pixels"
                        rows.append((network.value, title, prior, lines))
                        value = shown(mean_psnr(lines), ".2f")
                        say(f"{network.value}, {entrant.value}: mean PSNR {value} dB{there(store, before)}")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[self._finding(*row) for row in rows if row[1] != BASELINE],
            conclusion=self._conclude(rows),
            details={f"{network}, {attack}": [asdict(line) for line in lines] for network, attack, _, lines in rows},
            tables=[
                Table(title="Attack by network", columns=self.columns, rows=[_cells(*row) for row in rows]),
                *self._differences(rows),
            ],
            figures=_figures(rows),
        )

    @property
    def _networks(self) -> Sequence[PriorNetwork]:
        paper = Scale(self.scale) is Scale.PAPER
        return (PriorNetwork.RESNET18,) if paper else tuple(map(PriorNetwork, self.networks))

    def _setting(self, network: PriorNetwork) -> PriorSetting:
        deep, paper = network is PriorNetwork.RESNET18, Scale(self.scale) is Scale.PAPER
        count = 30 if paper else self.deep_count if deep else self.count
        budget = 72000 if paper else self.deep_budget if deep else self.budget
        return self.setting(network, behind=self.behind(), count=count, budget=budget)

    def _finding(self, network: str, attack: str, prior: str, lines: list[Line]) -> Finding:
        """The mean PSNR; the paper's beside it for its network and data, with what else differs in the note."""
        same = network == PriorNetwork.RESNET18 and self.images is not None and "cifar10" in self.images
        values = sorted(line.psnr for line in lines if line.psnr is not None)
        note = f"mean PSNR in dB; {prior}; interval of the median: {_shown(median_interval(values))}"
        if same and attack in PAPER and Scale(self.scale) is not Scale.PAPER:
            note += "; the paper's: 30 images, larger budgets, a DCGAN"
        return Finding(
            quantity=f"{attack} on {network}",
            ours=mean_psnr(lines),
            paper=PAPER.get(attack, "") if same else "",
            n=len(values),
            note=note,
        )

    def _differences(self, rows: list[tuple[str, str, str, list[Line]]]) -> list[Table]:
        """Every attack against every later one on the same images; nothing for a single attack or image."""
        found = []
        for network in dict.fromkeys(row[0] for row in rows):
            mine = [(attack, lines) for place, attack, _, lines in rows if place == network and attack != BASELINE]
            for (one, first), (other, second) in combinations(mine, 2):
                gap = paired(first, second, seed=self.seed)
                if gap is not None:
                    median, (low, high), count = gap
                    found.append(
                        [network, f"{one} - {other}", f"{median:+.2f}", f"{low:.2f} to {high:.2f}", str(count)]
                    )
        columns = ("network", "attacks", "median difference (dB)", "95 % interval", "n")
        title = "Paired differences of PSNR (median over the same images, percentile bootstrap)"
        return [Table(title=title, columns=columns, rows=found)] if found else []

    def _conclude(self, rows: list[tuple[str, str, str, list[Line]]]) -> list[str]:
        said = ['The paper\'s sizes have not been run with this package: `scale = "paper"` needs a GPU.']
        if Scale(self.scale) is Scale.PAPER:
            said = ["The paper's sizes: 30 images, ResNet-18, 72,000 plain gradients an image."]
        for network in dict.fromkeys(row[0] for row in rows):
            mine = {attack: lines for place, attack, _, lines in rows if place == network and attack != BASELINE}
            ranked = sorted(
                ((value, attack) for attack, lines in mine.items() if (value := mean_psnr(lines)) is not None),
                reverse=True,
            )
            if ranked:
                order = ", ".join(f"{attack} {value:.1f}" for value, attack in ranked)
                said.append(f"{network}, mean PSNR in dB at equal cost: {order}.")
        scored = [line for _, attack, _, lines in rows for line in lines if attack != BASELINE and line.mse is not None]
        if scored and all(line.st_lpips is None for line in scored):
            said.append(f"No perceptual scores: {scored[0].note}.")
        return said


def _figures(rows: Sequence[tuple[str, str, str, list[Line]]]) -> dict[str, str]:
    """Losses along the way, a panel a network; attacks that match squared errors (GGL, Levenberg-Marquardt) are left out."""
    squared = (BASELINE, PriorAttack.GGL.value, PriorAttack.GAUSS_NEWTON.value)
    panels: dict[str, dict[str, list[Line]]] = {}
    for network, attack, _, lines in rows:
        if not attack.startswith(squared):
            panels.setdefault(network, {})[attack] = lines
    svg = loss_curves(panels)
    return {"generator_table_losses": svg} if svg else {}


def _worst(values: Sequence[float | None], *, largest: bool) -> float | None:
    known = [value for value in values if value is not None]
    return (max(known) if largest else min(known)) if known else None


def _cells(network: str, attack: str, prior: str, lines: Sequence[Line]) -> list[str]:
    row = [network, attack, prior, str(len(lines))]
    for name, form, largest in (
        ("psnr", ".2f", True),
        ("mse", ".2g", False),
        ("ssim", ".3f", True),
        ("st_lpips", ".3g", False),
    ):
        values = [capped(line) if name == "psnr" else getattr(line, name) for line in lines]
        row += [shown(mean(values), form), shown(_worst(values, largest=largest), form)]
    hits = sum(line.exact for line in lines)
    return [*row, f"{hits} of {len(lines)}", shown(mean([line.counted for line in lines]), ",.0f")]


def _shown(interval: tuple[float, float] | None) -> str:
    if interval is None or not all(map(math.isfinite, interval)):
        return "too few images for 95 %" if interval is None else "unbounded (exact hits)"
    return f"{interval[0]:.2f} to {interval[1]:.2f} (95 %)"


__all__ = ["GeneratorTable", "PriorAttack", "PriorNetwork", "Scale"]
