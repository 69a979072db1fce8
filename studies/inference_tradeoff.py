"""Study: advantage of property inference against what the model is worth, several settings a defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradleak.core import describe
from gradleak.games import Knows
from gradleak.results import LI_2024, Citation
from studies.game_cells import Cell, facts
from studies.game_studies import GameStudy, Play, RiskGame
from studies.privacy_utility import VALUES, WORDS, Family
from studies.spots import Spot, spots
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import shown, student

# The defenses of figure 7; their settings are those of appendix A.2.
FAMILIES = (Family.PRUNE, Family.SIGN, Family.ADVERSARIAL, Family.BOTTLENECK, Family.DP_SGD_PAPER)
# What the paper says of figure 7, which has no numbers.
CLAIMS: Mapping[tuple[Family, str], str] = {
    (Family.SIGN, "static"): "0, at no cost in utility",
    (Family.PRUNE, "adaptive"): "no meaningful privacy", (Family.SIGN, "adaptive"): "no meaningful privacy",
    (Family.ADVERSARIAL, "adaptive"): "no meaningful privacy", (Family.BOTTLENECK, "adaptive"): "no meaningful privacy",
    (Family.DP_SGD_PAPER, "adaptive"): "privacy, at the cost of utility",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InferenceTradeoff(GameStudy):
    """Advantage of property inference on Adult and AUROC of the model on held-out rows, one point a setting of a defense.

    Every adversary stands beside the utility of the very training that it watched.

    **Source**: Li et al. 2024, figure 7, with the settings of appendix A.2. Deviations: the census has 32,561 rows; the
    adversary pools, also under DP-SGD (with `components`, principal components as well).

    Further settings are those of `GameStudy`.

    Attributes:
        families: which defenses; "prune", "sign", "adversarial", "bottleneck", "dp_sgd_paper".
        values: parameters in place of those of appendix A.2, for every family; empty for those.
        components: of a principal component analysis in place of pooling, against DP-SGD; None for pooling.
    """

    name: ClassVar[str] = "inference_tradeoff"
    source: ClassVar[str] = "figure 7"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    families: Sequence[Family] = FAMILIES
    values: Sequence[float] = ()
    components: int | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; forty minutes of one core with the defaults, ten with 3 of 10 rounds and 1,000 trials."""
        wanted = {"no defense": Play(kind=RiskGame.PROPERTY, knows=(Knows.STATIC, Knows.ADAPTIVE))} | {
            _label(Family(family), value): self._one(Family(family), value)
            for family in self.families
            for value in (self.values or VALUES[Family(family)])
        }
        rows = self.play_all(wanted, say)
        findings = [finding for label, cells in rows.items() for finding in self._findings(label, wanted[label], cells)]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_conclude(rows),
            details={label: facts(cells) for label, cells in rows.items()},
            tables=[_table(rows)],
            figures={"inference_tradeoff": _figure(rows, wanted)} if rows else {},
        )

    def _one(self, family: Family, value: float) -> Play:
        return Play(
            kind=RiskGame.PROPERTY,
            family=family,
            value=value,
            components=self.components if family is Family.DP_SGD_PAPER else None,
            knows=(Knows.STATIC, Knows.ADAPTIVE),
        )

    def _findings(self, label: str, one: Play, cells: Mapping[str, Cell]) -> list[Finding]:
        found = [
            cell.finding(
                f"{label}, {who}",
                "advantage",
                "" if one.family is None else CLAIMS.get((one.family, who), ""),
                self.seeds,
            )
            for who, cell in cells.items()
        ]
        one_of_them = next(iter(cells.values()))
        worth = Finding(
            quantity=f"{label}: AUROC of the model",
            ours=one_of_them.utility,
            interval=student(one_of_them.utilities),
            n=self.seeds,
            note="Student's interval over seeds",
        )
        return [*found, worth]


def _label(family: Family, value: float) -> str:
    named, parameter = WORDS[family]
    return f"{named}, {parameter} {value:g}" if parameter else named


def _table(rows: Mapping[str, Mapping[str, Cell]]) -> Table:
    columns = ("defense", "utility", "static: advantage", "adaptive: advantage", "static: AUROC", "adaptive: AUROC")
    lines = [
        [label, shown(cells[Knows.STATIC].utility, ".3f"),
         *(cells[who].text(name) for name in ("advantage", "auroc") for who in Knows)]
        for label, cells in rows.items()
    ]  # fmt: skip
    return Table(title="Property inference against utility", columns=columns, rows=lines)


def _figure(rows: Mapping[str, Mapping[str, Cell]], wanted: Mapping[str, Play]) -> str:
    panels: dict[str, dict[str, list[Spot]]] = {}
    for label, cells in rows.items():
        family = wanted[label].family
        for who, cell in cells.items():
            series = panels.setdefault(f"{who} adversary", {})
            at = cell.value("advantage")
            if at is not None:
                name = "no defense" if family is None else WORDS[family][0]
                series.setdefault(name, []).append((at, cell.utility, None, None))
    return spots(
        panels,
        x="advantage of the adversary",
        y="AUROC of the model",
        title="Property inference against utility",
        description="AUROC of the trained model over the adversary's advantage, a point a setting; upper left is best.",
    )


def _conclude(rows: Mapping[str, Mapping[str, Cell]]) -> list[str]:
    lines = []
    for label, cells in rows.items():
        told = ", ".join(f"{who} {shown(cell.value('advantage'), '.3f')}" for who, cell in cells.items())
        utility = shown(next(iter(cells.values())).utility, ".3f")
        lines.append(f"{label}: utility {utility}, advantage {told}.")
    return lines


__all__ = ["InferenceTradeoff"]
