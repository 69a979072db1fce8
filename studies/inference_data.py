"""Study: the data sets of the inference games, how target and sensitive variable correlate there, and games on each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from gradleak.attacks.inference import PrototypeEncoder
from gradleak.core import derive_seed, describe
from gradleak.data import Population
from gradleak.datasets import adult_files, adult_population
from gradleak.games import InferenceGame, Knows
from gradleak.results import LI_2024, Citation
from gradleak.training import MakeModel
from studies.datasets import celeba, crema_d, german_credit, heritage_health, utkface
from studies.game_cells import Cell, facts, play
from studies.game_studies import GameStudy, Perceptron, Play, RiskGame
from studies.inference_factors import FORMS
from studies.networks import convnet9
from studies.store import Store
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import Interval, shown

_MISSING = "no file given"


@dataclass(frozen=True, kw_only=True)
class Convolutions:
    """Makes the network of the paper for faces, nine convolutions and one linear layer."""

    channels: int
    size: int
    classes: int

    def __call__(self, generator: torch.Generator) -> nn.Module:
        """A new model."""
        return convnet9(channels=self.channels, size=self.size, classes=self.classes, generator=generator)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set of table 1, or one beside it.

    Attributes:
        field: setting that names its file or folder; "" where a package carries it.
        load: rows from that, with the sensitive variable among the inputs or not.
        paper: the correlation in table 1, or "".
        hidden: layers of the perceptron; empty for convolutions.
        kernel: of the pooling.
        attribute: whether an attribute game can be played.
        users: private and public ones of the user game, and the embedding of its encoder; None where rows have no users.
        areas: AUROC of all rounds in the paper, by game; empty for a set that it lacks, on which no game is played.
    """

    field: str
    load: Callable[[Any, bool], Population]
    paper: str = ""
    hidden: tuple[int, ...] = ()
    kernel: int = 10
    attribute: bool = False
    users: tuple[int, int, int] | None = None
    areas: Mapping[RiskGame, str]


_PROPERTY, _SHARE, _USER, _ATTRIBUTE = RiskGame.PROPERTY, RiskGame.DISTRIBUTION, RiskGame.USER, RiskGame.ATTRIBUTE
_ADULT = {_ATTRIBUTE: "0.9991", _PROPERTY: "0.9919", _SHARE: "0.8848"}
# Table 1; the areas are those of section 5.2.
SETS: Mapping[str, DataSet] = {
    "Adult, 32,561 rows": DataSet(
        field="", load=lambda _, kept: adult_population(keep_sensitive=kept), paper="-0.1985", hidden=(32, 16), kernel=3,
        attribute=True, areas=_ADULT,
    ),
    "Adult, 48,842 rows": DataSet(
        field="adult", load=lambda path, kept: adult_files(path, keep_sensitive=kept), paper="-0.1985", hidden=(32, 16),
        kernel=3, attribute=True, areas=_ADULT,
    ),
    "Health": DataSet(
        field="health", load=lambda path, kept: heritage_health(path, keep_sensitive=kept), paper="-0.1123",
        hidden=(32, 16), kernel=3, attribute=True, areas={_ATTRIBUTE: "0.8122", _PROPERTY: "0.8294", _SHARE: "0.7806"},
    ),
    "CREMA-D": DataSet(
        field="crema_d", load=lambda path, _: crema_d(path), paper="-0.0133", hidden=(64, 64), users=(15, 30, 50),
        areas={_PROPERTY: "0.8970", _SHARE: "0.7572", _USER: "0.6808"},
    ),
    "CelebA": DataSet(
        field="celeba", load=lambda path, _: celeba(path), paper="0.6904", users=(150, 300, 100),
        areas={_PROPERTY: "0.9993", _SHARE: "0.9522", _USER: "0.8935"},
    ),
    "UTKFace": DataSet(
        field="utkface", load=lambda path, _: utkface(path), paper="-0.1788",
        areas={_PROPERTY: "0.9167", _SHARE: "0.7664"},
    ),
    "German credit": DataSet(
        field="german", load=lambda path, kept: german_credit(path, keep_sensitive=kept), hidden=(32, 16), kernel=3,
        attribute=True, areas={},
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InferenceData(GameStudy):
    """Table 1 with its column of correlations, the census in four forms, and games on every set whose files are given.

    The correlation is Pearson's of the places of target and sensitive variable in their lists of values, with Fisher's
    interval. Where a variable has more than two values it depends on their order, so that Cramér's V, which does not,
    stands in the note.

    **Source**: Li et al. 2024, table 1, and figure 11 for the games. Deviations: CREMA-D by log-mel statistics in place of
    988 features of openSMILE; a set is left out where no file of it is given.

    Further settings are those of `GameStudy`; its encoding is left aside.

    Attributes:
        adult: folder with `adult.data` and `adult.test`, or None.
        health: folder with `Members.csv` and `Claims.csv`, or None.
        crema_d: folder with `VideoDemographics.csv` and the recordings, or None.
        celeba: folder with the lists and the images, or None.
        utkface: folder with the images, or None.
        german: file of the German credit data, or None.
        forms: of the census that xai carries, in which the very same game is played: "one-hot", "codes",
            "standardized one-hot", "standardized codes".
        games: which games, where a set has them.
        public_rows: of the adversary, in games on rows.
        users: private and public users in place of the paper's, for small sets; empty for those.
    """

    name: ClassVar[str] = "inference_data"
    source: ClassVar[str] = "table 1 and figure 11"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    adult: str | None = None
    health: str | None = None
    crema_d: str | None = None
    celeba: str | None = None
    utkface: str | None = None
    german: str | None = None
    forms: Sequence[str] = tuple(FORMS)
    games: Sequence[RiskGame] = (RiskGame.ATTRIBUTE, RiskGame.PROPERTY, RiskGame.DISTRIBUTION, RiskGame.USER)
    public_rows: int = 1000
    users: Sequence[int] = ()

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; an hour and a half of one core with the census alone, minutes with 3 rounds of 1,000 trials."""
        rows = {name: self._rows(of) for name, of in SETS.items()}
        told = [_correlation(name, SETS[name].paper, population) for name, population in rows.items()]
        played: dict[tuple[str, RiskGame], Cell] = {}
        with Store(self.cells) as store:
            for name, kind, game in self._games(rows):
                seeds = [derive_seed(self.seed, kind.value, str(number)) for number in range(self.seeds)]
                cells = play(store, game, seeds, jobs=self.jobs, compute=self.compute)
                if cells is not None:
                    cell = played[name, kind] = cells[Knows.STATIC]
                    say(f"{name}, {kind.value} inference: AUROC {cell.text('auroc')} ({cell.seconds:.0f} s)")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[*told, *(finding for at, cell in played.items() for finding in self._findings(*at, cell))],
            conclusion=_conclude(told, played),
            details={f"{name}, {kind.value}": facts({"static": cell}) for (name, kind), cell in played.items()},
            tables=[_set_table(rows, told), _game_table(played)],
        )

    def _rows(self, of: DataSet) -> Population | None:
        path = getattr(self, of.field) if of.field else ""
        return None if path is None else of.load(path, False)

    def _games(self, rows: Mapping[str, Population | None]) -> Iterator[tuple[str, RiskGame, InferenceGame]]:
        """The games, by their label, of the census in its forms first."""
        kinds = [RiskGame(kind) for kind in self.games]
        for form in self.forms:
            for kind in kinds:
                if kind is not RiskGame.USER:
                    one = Play(
                        kind=kind, public_rows=self.public_rows, encoding=FORMS[form][0], standardized=FORMS[form][1]
                    )
                    yield f"census, {form}", kind, self.game(one)
        for name, of in SETS.items():
            population = rows[name]
            # Of a set that the paper lacks, only the correlation is told.
            if not of.field or not of.areas or population is None:
                continue
            for kind in kinds:
                if (kind is RiskGame.ATTRIBUTE and not of.attribute) or (kind is RiskGame.USER and of.users is None):
                    continue
                kept = population
                if kind is RiskGame.ATTRIBUTE:
                    kept = of.load(getattr(self, of.field), True)
                yield name, kind, self._game_of(of, kind, kept)

    def _game_of(self, of: DataSet, kind: RiskGame, rows: Population) -> InferenceGame:
        one = Play(kind=kind, public_rows=self.public_rows)
        classes = int(rows.targets.max()) + 1
        model: MakeModel
        if of.hidden:
            model = Perceptron(features=rows.inputs.shape[1], hidden=of.hidden, classes=classes)
        else:
            model = Convolutions(channels=rows.inputs.shape[1], size=rows.inputs.shape[2], classes=classes)
        if kind is not RiskGame.USER or of.users is None:
            return self.game_on(one, rows, model, kernel=of.kernel)
        private, public, embedding = of.users
        if self.users:
            private, public = self.users
        users = {"private_users": private, "public_users": public, "candidates": min(5, private)}
        encoder = PrototypeEncoder(embedding=embedding)
        return self.game_on(one, rows, model, kernel=of.kernel, of_users=users | {"encoder": encoder})

    def _findings(self, name: str, kind: RiskGame, cell: Cell) -> list[Finding]:
        areas = _ADULT if name.startswith("census") else SETS[name].areas
        return [
            cell.finding(
                f"{name}, {kind.value} inference", score, areas.get(kind, "") if score == "auroc" else "", self.seeds
            )
            for score in ("auroc", "advantage")
        ]


def pearson(targets: Sequence[int], sensitive: Sequence[int]) -> tuple[float, Interval]:
    """Pearson's correlation of two rows of whole numbers, with Fisher's interval of 95 %.

    Args:
        targets: at least four, not all the same.
        sensitive: as many, not all the same.
    """
    value = float(np.corrcoef(targets, sensitive)[0, 1])
    if abs(value) >= 1.0:
        return value, (value, value)
    middle, reach = math.atanh(value), 1.959963985 / math.sqrt(len(targets) - 3)
    return value, (math.tanh(middle - reach), math.tanh(middle + reach))


def cramers_v(targets: Sequence[int], sensitive: Sequence[int]) -> float:
    """Cramér's V of two rows of classes, from 0 to 1, whatever the order of the classes: √(χ²/(n·(min(r, c) − 1)))."""
    ours, theirs = np.unique(targets, return_inverse=True)[1], np.unique(sensitive, return_inverse=True)[1]
    counts = np.zeros((ours.max() + 1, theirs.max() + 1))
    np.add.at(counts, (ours, theirs), 1.0)
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0, keepdims=True) / counts.sum()
    excess = float(((counts - expected) ** 2 / expected).sum())
    return math.sqrt(excess / (counts.sum() * (min(counts.shape) - 1)))


def _correlation(name: str, paper: str, rows: Population | None) -> Finding:
    quantity = f"{name}: correlation of target and sensitive variable"
    if rows is None:
        return Finding(quantity=quantity, ours=None, paper=paper, note=_MISSING)
    targets, sensitive = rows.targets.tolist(), rows.sensitive.tolist()
    value, interval = pearson(targets, sensitive)
    note = f"sensitive variable in the order {', '.join(rows.values)}: the other order has the other sign"
    if len(rows.values) > 2 or max(targets) > 1:
        note = f"in the order {', '.join(rows.values)}; Cramér's V {cramers_v(targets, sensitive):.4f}"
    return Finding(quantity=quantity, ours=value, paper=paper, interval=interval, n=rows.size, note=note)


def _set_table(rows: Mapping[str, Population | None], told: Sequence[Finding]) -> Table:
    lines = []
    for (name, population), finding in zip(rows.items(), told, strict=True):
        if population is None:
            lines.append([name, "-", "-", "-", _MISSING, finding.paper or "-"])
            continue
        shape = "x".join(map(str, population.inputs.shape[1:]))
        lines.append([name, f"{population.size:,}", shape, ", ".join(population.values),
                      shown(finding.ours, ".4f"), finding.paper or "-"])  # fmt: skip
    columns = ("set", "rows", "numbers an input", "sensitive variable", "correlation", "paper")
    return Table(title="Data sets", columns=columns, rows=lines)


def _game_table(played: Mapping[tuple[str, RiskGame], Cell]) -> Table:
    columns = ("rows", "game", "p*", "AUROC", "advantage", "utility", "seconds")
    lines = [
        [name, kind.value, f"{cell.blind:.3f}", cell.text("auroc"), cell.text("advantage"), shown(cell.utility, ".3f"),
         f"{cell.seconds:.0f}"]
        for (name, kind), cell in played.items()
    ]  # fmt: skip
    return Table(title="Games", columns=columns, rows=lines)


def _conclude(told: Sequence[Finding], played: Mapping[tuple[str, RiskGame], Cell]) -> list[str]:
    lines = [
        f"{finding.quantity}: {finding.ours:.4f} (paper: {finding.paper or '-'})."
        for finding in told
        if finding.ours is not None
    ]
    for kind in dict.fromkeys(kind for _, kind in played):
        areas = {name: cell.value("auroc") for (name, of), cell in played.items() if of is kind}
        told_areas = ", ".join(f"{name} {shown(area, '.3f')}" for name, area in areas.items())
        lines.append(f"{kind.value}: AUROC {told_areas}.")
    refused = [f"{name}, {kind.value}: {cell.note}" for (name, kind), cell in played.items() if cell.note]
    return [*lines, *refused]


__all__ = ["SETS", "DataSet", "InferenceData", "cramers_v", "pearson"]
