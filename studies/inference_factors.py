"""Studies: what an inference attack depends on besides the batch: size of the model, knowledge, and kind of adversary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradleak.attacks.inference import (
    Classifier,
    GaussianNaiveBayes,
    LinearDiscriminant,
    MultilayerPerceptron,
    QuadraticDiscriminant,
    RandomForest,
)
from gradleak.core import describe
from gradleak.data import Encoding
from gradleak.games import Knows
from gradleak.results import LI_2024, Citation
from studies.game_cells import Cell, Triple, facts
from studies.game_studies import FOUR, GameStudy, Play, RiskGame
from studies.spots import Spot, spots
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import interval_between, shown, shown_with, student

_NOTHING: Triple = (None, None, None)


@dataclass(frozen=True, kw_only=True)
class InferenceModelSize(GameStudy):
    """AUROC of the four inferences by width of the model, from the first round and from all of them.

    The hidden layers are so many times as wide as the paper's, 32-16 on Adult and 64-64 for users. The change from the
    narrowest to the widest model is taken seed by seed: rows and trials of a seed are the same for every width.

    **Source**: Li et al. 2024, figures 4 and 13. Deviations: of figure 4 the property game on Adult alone, since the other
    four sets are not at hand; users are constructed ones (**synthetic**) with a perceptron in place of CelebA with
    convolutions.

    Further settings are those of `GameStudy`.

    Attributes:
        games: which games.
        widths: of the hidden layers, in terms of the paper's.
    """

    name: ClassVar[str] = "inference_model_size"
    source: ClassVar[str] = "figures 4 and 13"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    games: Sequence[RiskGame] = FOUR
    widths: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; an hour and a half of one core with the defaults, some 10 minutes with 3 rounds of 1,000 trials."""
        wanted = {
            (RiskGame(kind), width): Play(kind=RiskGame(kind), width=width)
            for kind in self.games
            for width in self.widths
        }
        played = self.play_all({_sized(*at): one for at, one in wanted.items()}, say)
        cells = {at: played[_sized(*at)][Knows.STATIC] for at in wanted if _sized(*at) in played}
        sizes = {at: self._parameters(wanted[at]) for at in cells}
        changes = {kind: _change(kind, cells) for kind in dict.fromkeys(kind for kind, _ in cells)}
        findings = [
            cell.finding(f"{_sized(*at)}, {sizes[at]:,} parameters", name, n=self.seeds)
            for at, cell in cells.items()
            for name in ("auroc", "advantage")
        ]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[*findings, *(change for change in changes.values() if change is not None)],
            conclusion=[_verdict(kind, change) for kind, change in changes.items() if change is not None],
            details={_sized(*at): facts({"static": cell}) for at, cell in cells.items()},
            tables=[_size_table(cells, sizes)],
            figures={"inference_model_size": _size_figure(cells, sizes)} if cells else {},
        )

    def _parameters(self, one: Play) -> int:
        model = self.game(one).model(torch.Generator().manual_seed(0))
        return sum(parameter.numel() for parameter in model.parameters())


def _sized(kind: RiskGame, width: float) -> str:
    return f"{kind.value} inference, width {width:g}"


def _change(kind: RiskGame, cells: Mapping[tuple[RiskGame, float], Cell]) -> Finding | None:
    """Gain of the adversary from the narrowest to the widest model, by seed."""
    widths = sorted(width for of, width in cells if of is kind)
    narrow, wide = cells[kind, widths[0]], cells[kind, widths[-1]]
    before, after = narrow.per_seed.get("auroc", ()), wide.per_seed.get("auroc", ())
    if len(widths) < 2 or len(before) < 2 or len(before) != len(after):
        return None
    gains = [late - early for early, late in zip(before, after, strict=True)]
    return Finding(
        quantity=f"{kind.value} inference: AUROC at width {widths[-1]:g} less that at width {widths[0]:g}",
        ours=sum(gains) / len(gains),
        paper="slightly above 0, mostly within the margin of error; on Adult saturated",
        interval=student(gains),
        n=len(gains),
        note="seed by seed; Student's interval",
    )


def _verdict(kind: RiskGame, change: Finding) -> str:
    assert change.ours is not None
    low, high = change.interval or (change.ours, change.ours)
    word = "grows" if low > 0 else "falls" if high < 0 else "changes by no more than seeds differ"
    told = shown_with(change.ours, change.interval, "+.3f")
    return f"{kind.value}: AUROC {word}, from the narrowest to the widest model: {told}."


def _size_table(cells: Mapping[tuple[RiskGame, float], Cell], sizes: Mapping[tuple[RiskGame, float], int]) -> Table:
    columns = ("game", "width", "parameters", "AUROC of the first round", "AUROC", "SD", "advantage", "seconds")
    rows = [
        [kind.value, f"{width:g}", f"{sizes[kind, width]:,}", _text(_first(cell, 1)), cell.text("auroc"),
         cell.spread("auroc"), cell.text("advantage"), f"{cell.seconds:.0f}"]
        for (kind, width), cell in cells.items()
    ]  # fmt: skip
    return Table(title="Inference by width of the model", columns=columns, rows=rows)


def _size_figure(cells: Mapping[tuple[RiskGame, float], Cell], sizes: Mapping[tuple[RiskGame, float], int]) -> str:
    panels: dict[str, dict[str, list[Spot]]] = {}
    for at, cell in cells.items():
        series = panels.setdefault(f"{at[0].value} inference", {})
        for name, triple in (("first round", _first(cell, 1)), ("all rounds", cell.scores.get("auroc", _NOTHING))):
            series.setdefault(name, []).append((float(sizes[at]), *triple))
    return spots(
        panels,
        x="parameters of the model",
        y="AUROC",
        title="Inference by size of the model",
        description="AUROC of four inferences over the number of parameters, from the first round and from all of them.",
        logarithmic=True,
        joined=True,
    )


@dataclass(frozen=True, kw_only=True)
class InferenceKnowledge(GameStudy):
    """AUROC of property inference by number of public rows and of observed rounds, as a grid.

    A round count of n stands for the first n rounds, combined by Bayes' rule.

    **Source**: Li et al. 2024, figure 5 (Adult, k = 16). Deviation: the census has 32,561 rows.

    Further settings are those of `GameStudy`.

    Attributes:
        public_rows: of the adversary.
    """

    name: ClassVar[str] = "inference_knowledge"
    source: ClassVar[str] = "figure 5"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    public_rows: Sequence[int] = (100, 300, 1000, 3000, 5000)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; ten minutes of one core with the defaults."""
        wanted = {f"{count} public rows": Play(kind=RiskGame.PROPERTY, public_rows=count) for count in self.public_rows}
        cells = {label: cells[Knows.STATIC] for label, cells in self.play_all(wanted, say).items()}
        counts = {label: wanted[label].public_rows for label in cells}
        rounds = list(dict.fromkeys(count for cell in cells.values() for count in cell.first))
        findings = [
            self._finding(counts[label], int(count), cell) for label, cell in cells.items() for count in cell.first
        ]
        fewest = cells[min(counts, key=counts.__getitem__)] if cells else None
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_order(fewest, min(counts.values())) if fewest is not None else [],
            details={label: facts({"static": cell}) for label, cell in cells.items()},
            tables=[
                Table(
                    title="AUROC by public rows and number of observed rounds",
                    columns=["public rows", *(f"{count} rounds" for count in rounds)],
                    rows=[
                        [str(counts[label]), *(_text(_first(cell, int(count))) for count in rounds)]
                        for label, cell in cells.items()
                    ],
                )
            ],
            figures={"inference_knowledge": _grid(cells, counts)} if cells else {},
        )

    def _finding(self, rows: int, count: int, cell: Cell) -> Finding:
        value, low, high = _first(cell, count)
        return Finding(
            quantity=f"property inference, {rows} public rows, {count} rounds: AUROC",
            ours=value,
            paper="0.92" if (rows, count) == (100, 10) else "",
            interval=interval_between(low, high),
            n=self.seeds,
        )


def _order(fewest: Cell, rows: int) -> list[str]:
    """On how many seeds all rounds beat half of them, where the adversary has the fewest rows."""
    five, ten = fewest.first_areas.get("5", ()), fewest.first_areas.get("10", ())
    if not five or not ten:
        return []
    won = sum(late > early for early, late in zip(five, ten, strict=True))
    return [f"With {rows} public rows ten rounds beat five on {won} of {len(five)} seeds (in the paper they do not)."]


def _grid(cells: Mapping[str, Cell], counts: Mapping[str, int]) -> str:
    series: dict[str, list[Spot]] = {}
    for label, cell in cells.items():
        for count in cell.first:
            # Intervals of five series upon each other would hide one another; they stand in the table.
            series.setdefault(f"{count} rounds", []).append(
                (float(counts[label]), _first(cell, int(count))[0], None, None)
            )
    return spots(
        {"property inference, k = 16": series},
        x="public rows",
        y="AUROC",
        title="Inference by knowledge",
        description="AUROC of property inference over the number of public rows, a line a number of observed rounds.",
        logarithmic=True,
        joined=True,
    )


# Of appendix B.1.
ADVERSARIES: Mapping[str, Classifier] = {
    "naive Bayes": GaussianNaiveBayes(),
    "linear discriminant": LinearDiscriminant(),
    "quadratic discriminant": QuadraticDiscriminant(),
    "perceptron, 100 units": MultilayerPerceptron(hidden=100),
    "random forest, 50 trees": RandomForest(trees=50),
}
FORMS: Mapping[str, tuple[Encoding, bool]] = {
    "one-hot": (Encoding.ONE_HOT, False),
    "codes": (Encoding.CODES, False),
    "standardized one-hot": (Encoding.ONE_HOT, True),
    "standardized codes": (Encoding.CODES, True),
}


@dataclass(frozen=True, kw_only=True)
class InferenceAdversaries(GameStudy):
    """ROC curves of attribute inference from one row by five kinds of classifiers, in several forms of the census.

    **Source**: Li et al. 2024, figure 10 and appendix B.1 (1,000 public rows, k = 1). Deviations: one round, the first,
    since it says nothing of rounds; the discriminants shrink their covariances, without which as many updates as features
    make the worst of them.

    Further settings are those of `GameStudy`; its encoding is left aside.

    Attributes:
        forms: "one-hot", "codes", "standardized one-hot", "standardized codes".
        batch_size: k.
    """

    name: ClassVar[str] = "inference_adversaries"
    source: ClassVar[str] = "figure 10"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    forms: Sequence[str] = ("one-hot", "standardized codes")
    batch_size: int = 1
    rounds: int = 1

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; five minutes of one core with the defaults."""
        wanted = {
            f"{name}, {form}": (
                form,
                name,
                Play(
                    kind=RiskGame.ATTRIBUTE, batch_size=self.batch_size, adversary=adversary,
                    encoding=FORMS[form][0], standardized=FORMS[form][1],
                ),
            )
            for form in self.forms
            for name, adversary in ADVERSARIES.items()
        }  # fmt: skip
        played = self.play_all({label: one for label, (_, _, one) in wanted.items()}, say)
        cells = {wanted[label][:2]: cells[Knows.STATIC] for label, cells in played.items()}
        findings = [finding for (form, name), cell in cells.items() for finding in self._findings(form, name, cell)]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_best(cells),
            details={f"{name}, {form}": facts({"static": cell}) for (form, name), cell in cells.items()},
            tables=[_adversary_table(cells)],
            figures={"inference_adversaries": _curves(cells)} if cells else {},
        )

    def _findings(self, form: str, name: str, cell: Cell) -> list[Finding]:
        forest = name.startswith("random forest")
        papers = {"tpr_at_fpr": "the best of the five" if forest else "below the forest"}
        label = f"attribute inference, k = {self.batch_size}, {form}, {name}"
        value, low, high = cell.curve.get("0.1", _NOTHING)
        # Where so few trials do not resolve 1 %, 10 % has to do.
        tenth = Finding(
            quantity=f"{label}: TPR at 10 % FPR",
            ours=value,
            paper=papers["tpr_at_fpr"],
            interval=interval_between(low, high),
            n=self.seeds,
        )
        found = [cell.finding(label, score, papers.get(score, ""), self.seeds) for score in ("auroc", "tpr_at_fpr")]
        return [*found, tenth]


def _curves(cells: Mapping[tuple[str, str], Cell]) -> str:
    """True-positive over false-positive rate, a panel a form of the census and a line a classifier."""
    panels: dict[str, dict[str, list[Spot]]] = {}
    for (form, name), cell in cells.items():
        curve = sorted((float(rate), triple) for rate, triple in cell.curve.items())
        # Hidden behind one another, intervals stand in the table.
        panels.setdefault(form, {})[name] = [(rate, value, None, None) for rate, (value, _, _) in curve]
    return spots(
        panels,
        x="false-positive rate",
        y="true-positive rate",
        title="Attribute inference by kind of adversary",
        description="True-positive rate over false-positive rate on a logarithmic axis, a line a classifier.",
        logarithmic=True,
        joined=True,
    )


def _adversary_table(cells: Mapping[tuple[str, str], Cell]) -> Table:
    rates = ("0.001", "0.01", "0.1")
    rows = [
        [form, name, cell.text("auroc"), *(_text(cell.curve.get(rate, _NOTHING)) for rate in rates),
         cell.text("advantage"), f"{cell.seconds:.0f}"]
        for (form, name), cell in cells.items()
    ]  # fmt: skip
    columns = [
        "census",
        "adversary",
        "AUROC",
        *(f"TPR at {float(rate):.1%} FPR" for rate in rates),
        "advantage",
        "seconds",
    ]
    return Table(title="Attribute inference by kind of adversary", columns=columns, rows=rows)


def _best(cells: Mapping[tuple[str, str], Cell]) -> list[str]:
    lines = []
    for form in dict.fromkeys(form for form, _ in cells):
        for rate in ("0.01", "0.1"):
            found = {name: cell.curve.get(rate, _NOTHING)[0] for (of, name), cell in cells.items() if of == form}
            known = {name: share for name, share in found.items() if share is not None}
            ordered = sorted(known, key=known.__getitem__, reverse=True)
            told = ", ".join(f"{name} {shown(known[name], '.3f')}" for name in ordered)
            if told:
                lines.append(f"{form}: TPR at {float(rate):.0%} FPR {told}.")
    return lines


def _first(cell: Cell, count: int) -> Triple:
    """AUROC of so many first rounds."""
    return cell.first.get(str(count), {}).get("auroc", _NOTHING)


def _text(triple: Triple) -> str:
    value, low, high = triple
    return shown_with(value, interval_between(low, high), ".3f")


__all__ = ["ADVERSARIES", "FORMS", "InferenceAdversaries", "InferenceKnowledge", "InferenceModelSize"]
