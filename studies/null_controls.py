"""Does a verdict stay silent where nothing leaks, and speak where something does?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gradleak.core import describe, one_thread
from gradleak.results import CLOPPER_PEARSON_1934, Citation, check_count
from studies.null_audits import null_audits, planted_audits
from studies.null_cells import LIMIT, Count, false_leaks, missed, table
from studies.null_epsilon import broken_claims, by_method, null_bounds
from studies.null_games import null_games, planted_games
from studies.null_swaps import swaps
from studies.store import Store
from studies.study import Say, Study, StudyResult, Table


@dataclass(frozen=True, kw_only=True)
class NullControls(Study):
    """False *leaks* where nothing leaks, and missed ones where something was planted, counted through whole audits.

    Reconstruction audits of releases that carry nothing of their batch, with attacks that find the planted leak of the
    same audit; inference games on shuffled attributes, drowned updates and updates drawn beforehand; claims about the
    epsilon of mechanisms of which it is known. Beside them what has to be found: undefended releases, attributes that move
    the inputs, mechanisms with half of their noise. Intervals are Clopper and Pearson's at 95 %.

    The last table is of the rule for leaks alone: an adversary who claims another batch of the same population without an
    error. Where rows are nearly alike and no public rows are known, such a claim is as near as a rebuilt example.

    Attributes:
        audits: null reconstruction audits.
        planted_audits: undefended ones.
        games: null inference games.
        planted_games: games with something to find.
        runs: of each mechanism and number of trials; 48 of these.
        broken_runs: of each mechanism with half of its noise.
        swaps: claims of another batch, of each population, size, and with and without public rows.
        cells: file of single results, so that a killed study goes on; None for none.
        seed: of all draws.
    """

    name: ClassVar[str] = "null_controls"
    source: ClassVar[str] = "no paper: the verdicts of gradleak themselves"
    citations: ClassVar[tuple[Citation, ...]] = (CLOPPER_PEARSON_1934,)

    audits: int = 300
    planted_audits: int = 100
    games: int = 200
    planted_games: int = 40
    runs: int = 45
    broken_runs: int = 12
    swaps: int = 300
    cells: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("audits", "planted_audits", "games", "planted_games", "runs", "broken_runs", "swaps"):
            check_count(f"NullControls.{name}", getattr(self, name))

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about 25 minutes of one core."""
        with Store(self.cells) as store, one_thread():
            bounds = null_bounds(self.runs, seed=self.seed, store=store, say=say)
            broken = broken_claims(self.broken_runs, seed=self.seed, store=store, say=say)
            games = null_games(self.games, seed=self.seed, store=store, say=say)
            found = planted_games(self.planted_games, seed=self.seed, store=store, say=say)
            audits = null_audits(self.audits, seed=self.seed, store=store, say=say)
            rebuilt = planted_audits(self.planted_audits, seed=self.seed, store=store, say=say)
            claims = swaps(self.swaps, seed=self.seed, store=store, say=say)
        methods = [
            Count(name=f"{one.name}: bounds above epsilon", hits=one.hits, trials=one.trials)
            for one in by_method(bounds)
        ]
        false = [
            false_leaks("reconstruction audits", [*audits, *rebuilt]),
            false_leaks("games", games),
            false_leaks("epsilon", bounds),
        ]
        lost = [missed("undefended releases", rebuilt), missed("planted games", found), missed("broken noise", broken)]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[count.finding() for count in (*false, *lost, *methods, *claims)],
            conclusion=_conclude(false, lost, methods, claims),
            details={"audits": describe([*audits, *rebuilt]), "games": describe([*games, *found])},
            tables=[
                table("Reconstruction audits", [*audits, *rebuilt]),
                table("Inference games", [*games, *found]),
                table("Claims about epsilon", [*bounds, *broken]),
                _plain("Bounds above epsilon, by method", methods),
                _plain("Another batch as the claim: leaks by the rule alone", claims),
            ],
        )


def _plain(title: str, counts: Sequence[Count]) -> Table:
    return Table(title=title, columns=("of", "count (95 %)"), rows=[[count.name, count.text] for count in counts])


def _conclude(
    false: Sequence[Count], lost: Sequence[Count], methods: Sequence[Count], claims: Sequence[Count]
) -> list[str]:
    lines = [f"{count.name}: {count.text}, {_held(count)}." for count in (*false, *methods)]
    lines += [f"{count.name}: {count.text}." for count in lost]
    above = [count.name for count in claims if count.rate > LIMIT]
    return [
        *lines,
        f"A claim of another batch counts as a leak in more than 5 % of draws: {'; '.join(above) or 'nowhere'}.",
    ]


def _held(count: Count) -> str:
    return "at most 5 %" if count.rate <= LIMIT else "MORE THAN 5 %"


__all__ = ["NullControls"]
