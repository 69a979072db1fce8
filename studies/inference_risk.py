"""Study: inference of attributes, properties, proportions and users, by batch size, rounds and public rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from gradleak.attacks.inference import MaxPooling
from gradleak.core import derive_seed, describe
from gradleak.data import Split
from gradleak.games import Knows, UserGame
from gradleak.results import LI_2024, Citation, InputError
from studies.datasets import speech_digits
from studies.game_cells import SCORES, Cell, Triple, facts, play
from studies.game_studies import OWN_BATCH, GameStudy, Perceptron, Play, RiskGame
from studies.spots import Spot, spots
from studies.store import Store
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import known, shown

# Of section 5.2, figures 2 and 11: Adult, and CREMA-D for users.
PAPER: Mapping[tuple[RiskGame, str], str] = {
    (RiskGame.ATTRIBUTE, "auroc"): "0.9991",
    (RiskGame.ATTRIBUTE, "tpr_at_fpr"): "0.9823",
    (RiskGame.PROPERTY, "auroc"): "0.9919",
    (RiskGame.DISTRIBUTION, "auroc"): "0.8848",
    (RiskGame.USER, "auroc"): "0.6808 (CREMA-D)",
    (RiskGame.SPEAKER, "auroc"): "0.6808 (CREMA-D)",
}

# Numbers of first rounds in the table.
_SHOWN = ("1", "2", "5")


@dataclass(frozen=True, kw_only=True)
class InferenceRisk(GameStudy):
    """AUROC, TPR at 1 % FPR, success rate and advantage of the four inference attacks, undefended.

    Attribute, property and distributional inference of gender on the Adult census (a perceptron 32-16), user inference on
    constructed users (digits in 45 hands, **synthetic**) with m = 5 and on six speakers of digits with m = 3, where every
    way to part them into three private and three public ones is a play. Every game is played at several batch sizes, and
    property inference with fewer public rows too.

    **Source**: Li et al. 2024, section 5, figures 2, 3, 5 and 11. Deviations: the census has 32,561 rows; users are
    constructed ones and speakers of digits in place of CREMA-D's.

    Further settings are those of `GameStudy`.

    Attributes:
        games: which games.
        batch_sizes: for every game, beside its own (16, 128 or 8); sizes that its rows do not allow are left out.
        public_rows: for property inference, beside 1,000.
        speech: npz file of the speech set, or None to leave the speakers out.
        seeds: plays of every game at its own batch size; the others have one.
    """

    name: ClassVar[str] = "inference_risk"
    source: ClassVar[str] = "figures 2, 3, 5 and 11"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    games: Sequence[RiskGame] = tuple(RiskGame)
    batch_sizes: Sequence[int] = (1, 4, 16, 64)
    public_rows: Sequence[int] = (100, 300, 3000, 5000)
    seeds: int = 5
    speech: str | None = None

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
            figures=_figures(rows),
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
        own = OWN_BATCH[kind]
        sizes = [own, *(size for size in self.batch_sizes if size != own)]
        found = [Play(kind=kind, batch_size=size, seeds=self.seeds if size == own else 1) for size in sizes]
        if kind is RiskGame.SPEAKER:
            # A speaker has 100 recordings, and a trial needs 2k of them.
            found = [replace(one, seeds=1) for one in found if one.size <= 32]
        if kind is RiskGame.PROPERTY:
            found += [Play(kind=kind, batch_size=own, public_rows=count, seeds=1) for count in self.public_rows]
        return [_Played(of=one) for one in found]

    def _play(self, row: _Played, store: Store) -> Cell | None:
        if row.of.kind is RiskGame.SPEAKER:
            return self._speakers(row.of.size, store)
        played = self.played(store, row.of)
        return None if played is None else played[str(Knows.STATIC)]

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
                model=Perceptron(features=population.inputs.shape[1], hidden=(64, 64), classes=10),
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
class _Played:
    """A game at one batch size and number of public rows."""

    of: Play
    cell: Cell | None = None

    @property
    def played(self) -> Cell:
        assert self.cell is not None
        return self.cell

    @property
    def own(self) -> bool:
        return self.of.size == OWN_BATCH[self.of.kind] and self.of.public_rows == 1000

    @property
    def title(self) -> str:
        rows = f", {self.of.public_rows} public rows" if self.of.public_rows != 1000 else ""
        return f"{self.of.kind.value} inference, k = {self.of.size}{rows}"

    def findings(self) -> list[Finding]:
        names = SCORES if self.own else ("auroc", "advantage")
        papers = {name: PAPER.get((self.of.kind, name), "") if self.own else "" for name in names}
        if self.of.kind is RiskGame.PROPERTY and self.of.public_rows == 100:
            papers["auroc"] = "0.92"
        return [self.played.finding(self.title, name, papers[name], self.of.seeds or 1) for name in names]


def _pooled(cells: Sequence[Cell]) -> Cell:
    """Means over plays, with the smallest and largest value of a play as the range."""
    scores = {name: _middle([cell.scores[name] for cell in cells]) for name in SCORES}
    single = {name: _means([cell.single[name] for cell in cells]) for name in cells[0].single}
    first = {
        count: {name: _middle([cell.first[count][name] for cell in cells]) for name in names}
        for count, names in cells[0].first.items()
    }
    return replace(
        cells[0],
        scores=scores,
        single=single,
        first=first,
        seconds=sum(cell.seconds for cell in cells),
        note=f"mean of {len(cells)} splits of the speakers; the range is that of single splits, not an interval",
    )


def _middle(found: Sequence[Triple]) -> Triple:
    """Mean, smallest and largest of those that have a value."""
    values = known([value for value, _, _ in found])
    return (sum(values) / len(values), min(values), max(values)) if values else (None, None, None)


def _means(pairs: Sequence[tuple[float | None, float | None]]) -> tuple[float | None, float | None]:
    """AUROC and advantage, means of those that have a value."""
    areas = [area for area, _ in pairs if area is not None]
    gains = [gain for _, gain in pairs if gain is not None]
    return sum(areas) / len(areas) if areas else None, sum(gains) / len(gains) if gains else None


def _figures(rows: Sequence[_Played]) -> dict[str, str]:
    """AUROC and advantage over the batch size, as in the paper's figure 3."""
    panels: dict[str, dict[str, list[Spot]]] = {}
    for row in sorted((row for row in rows if row.of.public_rows == 1000), key=lambda row: row.of.size):
        for name in ("auroc", "advantage"):
            spot = (float(row.of.size), *row.played.scores.get(name, (None, None, None)))
            panels.setdefault(name, {}).setdefault(f"{row.of.kind.value} inference", []).append(spot)
    if not panels:
        return {}
    svg = spots(
        panels,
        x="batch size",
        y="score",
        title="Inference over the batch size",
        description="AUROC and advantage of each game over the batch size, with intervals. In the paper's figure 3 every "
        "attack gains from larger batches.",
        logarithmic=True,
        joined=True,
    )
    return {"inference_risk": svg}


def _table(rows: Sequence[_Played]) -> Table:
    columns = ("game", "k", "public rows", "seeds", "p*", "AUROC", "TPR at 1 % FPR", "success rate", "advantage",
               "AUROC over seeds: standard deviation (range)", "AUROC from the first 1, 2, 5 rounds",
               "best single round: AUROC, advantage", "seconds")  # fmt: skip
    lines = []
    for row in rows:
        area, gain = row.played.best_round
        single = f"{shown(area, '.3f')}, {shown(gain, '.3f')}"
        lines.append(
            [row.of.kind.value, str(row.of.size), str(row.of.public_rows), str(row.of.seeds), f"{row.played.blind:.3f}",
             *(row.played.text(name) for name in SCORES), row.played.spread("auroc"),
             ", ".join(shown(found["auroc"][0], ".3f") for count, found in row.played.first.items() if count in _SHOWN),
             single, f"{row.played.seconds:.0f}"]
        )  # fmt: skip
    return Table(title="Inference from gradients, undefended", columns=columns, rows=lines)


def _conclude(rows: Sequence[_Played]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(row.of.kind for row in rows):
        mine = sorted(
            (row for row in rows if row.of.kind is kind and row.of.public_rows == 1000), key=lambda r: r.of.size
        )
        areas = [(row.of.size, row.played.value("auroc")) for row in mine]
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


__all__ = ["InferenceRisk"]
