"""Study: inference of attributes, properties, proportions and users, by batch size, rounds and public rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from gradleak.attacks.inference import MaxPooling
from gradleak.core import derive_seed, describe
from gradleak.data import Encoding, Split
from gradleak.datasets import constructed_users
from gradleak.games import AttributeGame, DistributionGame, InferenceGame, Knows, PropertyGame, UserGame
from gradleak.models import mlp
from gradleak.results import LI_2024, Citation, InputError
from studies.census import census
from studies.datasets import speech_digits
from studies.game_cells import SCORES, Cell, facts, play
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import shown


class RiskGame(StrEnum):
    """Games of the study."""

    ATTRIBUTE = "attribute"
    PROPERTY = "property"
    DISTRIBUTION = "distribution"
    USER = "user"
    SPEAKER = "speaker"


# Of section 5.2, figures 2 and 11: Adult, and CREMA-D for users.
PAPER: Mapping[tuple[RiskGame, str], str] = {
    (RiskGame.ATTRIBUTE, "auroc"): "0.9991",
    (RiskGame.ATTRIBUTE, "tpr_at_fpr"): "0.9823",
    (RiskGame.PROPERTY, "auroc"): "0.9919",
    (RiskGame.DISTRIBUTION, "auroc"): "0.8848",
    (RiskGame.USER, "auroc"): "0.6808 (CREMA-D)",
    (RiskGame.SPEAKER, "auroc"): "0.6808 (CREMA-D)",
}
DEFAULT_BATCH: Mapping[RiskGame, int] = {
    RiskGame.ATTRIBUTE: 16, RiskGame.PROPERTY: 16, RiskGame.DISTRIBUTION: 128, RiskGame.USER: 8, RiskGame.SPEAKER: 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InferenceRisk(Study):
    """AUROC, TPR at 1 % FPR, success rate and advantage of the four inference attacks, undefended.

    Attribute, property and distributional inference of gender on the Adult census (a perceptron 32-16), user inference on
    constructed users (digits in 45 hands, **synthetic**) with m = 5 and on six speakers of digits with m = 3, where every
    way to part them into three private and three public ones is a play. Every game is played at several batch sizes, and
    property inference with fewer public rows too.

    **Source**: Li et al. 2024, section 5, figures 2, 3, 5 and 11. Deviations: the census has 32,561 rows; users are
    constructed ones and speakers of digits in place of CREMA-D's.

    Attributes:
        games: which games.
        batch_sizes: for every game, beside its own (16, 128 or 8); sizes that its rows do not allow are left out.
        public_rows: for property inference, beside 1,000.
        private_rows: of the games on Adult.
        trials: of the games on Adult.
        user_trials: of user inference.
        shadow_batches: a round.
        rounds: of training, all of them observed.
        encoding: of the categories of the census, "one_hot" or "codes".
        standardized: whether its inputs have mean 0 and variance 1 over all rows; with codes, probably what the paper had.
        seeds: plays of every game at its own batch size; the others have one.
        speech: npz file of the speech set, or None to leave the speakers out.
        jobs: processes.
        seed: everything derives from it.
        cells: file that keeps every game as soon as it ends, and beside it, in a folder with its name and `_seeds`, every
            seed; both have to go when the code changes, the file alone when only scores do.
        compute: False to tabulate what `cells` has and compute nothing.
    """

    name: ClassVar[str] = "inference_risk"
    source: ClassVar[str] = "figures 2, 3, 5 and 11"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    games: Sequence[RiskGame] = tuple(RiskGame)
    batch_sizes: Sequence[int] = (1, 4, 16, 64)
    public_rows: Sequence[int] = (100, 300, 3000, 5000)
    private_rows: int = 5000
    trials: int = 5000
    user_trials: int = 1000
    shadow_batches: int = 5000
    rounds: int = 10
    encoding: Encoding = Encoding.ONE_HOT
    standardized: bool = False
    seeds: int = 5
    speech: str | None = None
    jobs: int = 1
    seed: int = 0
    cells: str | None = None
    compute: bool = True

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; half a minute of one core a seed of property inference, with the defaults hours in all."""
        with Store(self.cells) as store:
            rows = list(self._played(store, say))
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for row in rows for finding in row.findings()],
            conclusion=_conclude(rows),
            details={row.title: facts({"static": row.played}) for row in rows},
            tables=[_table(rows)],
        )

    def _played(self, store: Store, say: Say) -> Iterator[_Played]:
        for kind in map(RiskGame, self.games):
            if kind is RiskGame.SPEAKER and self.speech is None:
                continue
            for row in self._of(kind):
                cell = self._play(row, store)
                if cell is not None:
                    say(
                        f"{row.title}: {', '.join(f'{name} {cell.text(name)}' for name in SCORES)} ({cell.seconds:.0f} s)"
                    )
                    yield replace(row, cell=cell)

    def _of(self, kind: RiskGame) -> list[_Played]:
        """The plays of a game, its own batch size first."""
        own = DEFAULT_BATCH[kind]
        sizes = [own, *(size for size in self.batch_sizes if size != own)]
        found = [
            _Played(kind=kind, batch_size=size, public_rows=1000, seeds=self.seeds if size == own else 1)
            for size in sizes
        ]
        if kind is RiskGame.SPEAKER:
            # A speaker has 100 recordings, and a trial needs 2k of them.
            found = [replace(row, seeds=1) for row in found if row.batch_size <= 32]
        if kind is RiskGame.PROPERTY:
            found += [_Played(kind=kind, batch_size=own, public_rows=count, seeds=1) for count in self.public_rows]
        return found

    def _play(self, row: _Played, store: Store) -> Cell | None:
        seeds = [derive_seed(self.seed, row.kind.value, str(number)) for number in range(row.seeds)]
        if row.kind is RiskGame.SPEAKER:
            return self._speakers(row.batch_size, store)
        played = play(store, self._game(row), seeds, jobs=self.jobs, compute=self.compute)
        return None if played is None else played[str(Knows.STATIC)]

    def _game(self, row: _Played) -> InferenceGame:
        shared: dict[str, Any] = {
            "batch_size": row.batch_size,
            "rounds": self.rounds,
            "shadow_batches": self.shadow_batches,
            "adversaries": (Knows.STATIC,),
        }
        if row.kind is RiskGame.USER:
            return UserGame(
                constructed_users(users=45, rows=128, seed=self.seed),
                model=_Perceptron(features=784, hidden=(64, 64), classes=10, flat=True),
                trials=self.user_trials,
                features=MaxPooling(kernel=10),
                **shared,
            )
        kinds: dict[RiskGame, type[AttributeGame] | type[PropertyGame] | type[DistributionGame]] = {
            RiskGame.ATTRIBUTE: AttributeGame, RiskGame.PROPERTY: PropertyGame, RiskGame.DISTRIBUTION: DistributionGame,
        }  # fmt: skip
        population = census(
            keep_sensitive=row.kind is RiskGame.ATTRIBUTE, encoding=self.encoding, standardized=self.standardized
        )
        return kinds[row.kind](
            population,
            model=_Perceptron(features=population.inputs.shape[1], hidden=(32, 16), classes=2),
            trials=self.trials,
            private_rows=self.private_rows,
            public_rows=row.public_rows,
            features=MaxPooling(kernel=3),
            **shared,
        )

    def _speakers(self, batch_size: int, store: Store) -> Cell | None:
        """All ways to part six speakers into three private and three public ones, pooled by their mean."""
        if self.speech is None:
            raise InputError("inference_risk.speech: expected the npz file of the speech set, got none")
        population = speech_digits(Path(self.speech))
        assert population.users is not None
        speakers = population.users.unique().tolist()
        found: list[Cell] = []
        for number, private in enumerate(itertools.combinations(speakers, len(speakers) // 2)):
            public = [speaker for speaker in speakers if speaker not in private]
            game = UserGame(
                population,
                model=_Perceptron(features=population.inputs.shape[1], hidden=(64, 64), classes=10),
                split=Split.of_users(population, private=list(private), public=public, test=[]),
                batch_size=batch_size,
                candidates=len(private),
                private_users=len(private),
                public_users=len(public),
                rounds=self.rounds,
                trials=self.user_trials,
                shadow_batches=self.shadow_batches,
                features=MaxPooling(kernel=10),
                adversaries=(Knows.STATIC,),
            )
            seeds = [derive_seed(self.seed, RiskGame.SPEAKER.value, str(number), *map(str, private))]
            played = play(store, game, seeds, jobs=self.jobs, compute=self.compute)
            if played is None:
                return None
            found.append(played[str(Knows.STATIC)])
        return _pooled(found)


@dataclass(frozen=True, kw_only=True)
class _Perceptron:
    """Makes the perceptron of the paper."""

    features: int
    hidden: tuple[int, ...]
    classes: int
    flat: bool = False

    def __call__(self, generator: torch.Generator) -> nn.Module:
        inner = mlp(
            features=self.features, hidden=self.hidden, classes=self.classes, activation="relu", generator=generator
        )
        return nn.Sequential(nn.Flatten(), inner) if self.flat else inner


@dataclass(frozen=True, kw_only=True)
class _Played:
    """A game at one batch size and number of public rows."""

    kind: RiskGame
    batch_size: int
    public_rows: int
    seeds: int
    cell: Cell | None = None

    @property
    def played(self) -> Cell:
        assert self.cell is not None
        return self.cell

    @property
    def own(self) -> bool:
        return self.batch_size == DEFAULT_BATCH[self.kind] and self.public_rows == 1000

    @property
    def title(self) -> str:
        rows = f", {self.public_rows} public rows" if self.public_rows != 1000 else ""
        return f"{self.kind.value} inference, k = {self.batch_size}{rows}"

    def findings(self) -> list[Finding]:
        names = SCORES if self.own else ("auroc", "advantage")
        papers = {name: PAPER.get((self.kind, name), "") if self.own else "" for name in names}
        if self.kind is RiskGame.PROPERTY and self.public_rows == 100:
            papers["auroc"] = "0.92"
        return [self.played.finding(self.title, name, papers[name], self.seeds) for name in names]


def _pooled(cells: Sequence[Cell]) -> Cell:
    """Means over plays, with the smallest and largest value of a play as the range."""
    scores: dict[str, tuple[float | None, float | None, float | None]] = {}
    for name in SCORES:
        values = [value for cell in cells if (value := cell.value(name)) is not None]
        scores[name] = (sum(values) / len(values), min(values), max(values)) if values else (None, None, None)
    single = {name: _means([cell.single[name] for cell in cells]) for name in cells[0].single}
    first = {name: _means([cell.first[name] for cell in cells]) for name in cells[0].first}
    return replace(
        cells[0],
        scores=scores,
        single=single,
        first=first,
        seconds=sum(cell.seconds for cell in cells),
        note=f"mean of {len(cells)} splits of the speakers; the range is that of single splits, not an interval",
    )


def _means(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """AUROC and advantage, means of those that have a value."""
    areas = [area for area, _ in pairs if area is not None]
    gains = [gain for _, gain in pairs if gain is not None]
    return sum(areas) / len(areas) if areas else None, sum(gains) / len(gains) if gains else None


def _table(rows: Sequence[_Played]) -> Table:
    columns = ("game", "k", "public rows", "seeds", "p*", "AUROC", "TPR at 1 % FPR", "success rate", "advantage",
               "AUROC over seeds: standard deviation (range)", "AUROC from the first 1, 2, 5 rounds",
               "best single round: AUROC, advantage", "seconds")  # fmt: skip
    lines = []
    for row in rows:
        area, gain = row.played.best_round
        single = f"{shown(area, '.3f')}, {shown(gain, '.3f')}"
        lines.append(
            [row.kind.value, str(row.batch_size), str(row.public_rows), str(row.seeds), f"{row.played.blind:.3f}",
             *(row.played.text(name) for name in SCORES), row.played.spread("auroc"),
             ", ".join(shown(found, ".3f") for count, (found, _) in row.played.first.items() if count != "10"),
             single, f"{row.played.seconds:.0f}"]
        )  # fmt: skip
    return Table(title="Inference from gradients, undefended", columns=columns, rows=lines)


def _conclude(rows: Sequence[_Played]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = sorted((row for row in rows if row.kind is kind and row.public_rows == 1000), key=lambda r: r.batch_size)
        areas = [(row.batch_size, row.played.value("auroc")) for row in mine]
        known = [(size, area) for size, area in areas if area is not None]
        if len(known) > 1:
            grows = all(later[1] >= earlier[1] - 0.01 for earlier, later in itertools.pairwise(known))
            text = ", ".join(f"{area:.3f} at k = {size}" for size, area in known)
            lines.append(
                f"{kind.value}: AUROC {text}: {'grows' if grows else 'does not grow throughout'} with the batch."
            )
        own = next((row for row in mine if row.own), None)
        if own is not None and own.played.value("auroc") is not None and own.played.best_round[0] is not None:
            area, best = own.played.value("auroc"), own.played.best_round[0]
            beats = "beat" if (area or 0.0) > best else "do not beat"
            lines.append(f"{kind.value}: all rounds ({area:.3f}) {beats} the best single one ({best:.3f}).")
    return lines


__all__ = ["InferenceRisk", "RiskGame"]
