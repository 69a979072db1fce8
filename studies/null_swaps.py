"""Claims that are another batch of the same population, as perfect as can be: how often the rule for leaks takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gradleak.core import Reconstruction, derive_generator
from gradleak.results import Outcome, Score, Thresholds
from gradleak.scoring import blind_baseline, chance_pixel_rmse, score_images
from studies.null_cells import Count
from studies.null_data import Data, part, unlike
from studies.store import Store
from studies.study import Say

SIZES = (1, 4, 16)
PUBLIC = 200
THRESHOLDS = Thresholds()


@dataclass(frozen=True, kw_only=True)
class Swap:
    """One population, with a batch of so many examples, and public rows or none.

    Attributes:
        data: the population.
        batch: examples of the truth, and of the claim.
        public: whether public rows are known.
    """

    data: Data
    batch: int
    public: bool

    def taken(self, runs: int, seed: int) -> Count:
        """Number of claims that count as *leaks*.

        Args:
            runs: how many are made.
            seed: of the draws.
        """
        hits = sum(self._leaks(seed, run) for run in range(runs))
        name = f"{self.data}, batch of {self.batch}, {PUBLIC if self.public else 'no'} public rows"
        return Count(name=name, hits=hits, trials=runs)

    def _leaks(self, seed: int, run: int) -> bool:
        generator = derive_generator(seed, "null swap", self.data, str(self.batch), str(run))
        rows, size = self.data.draw(2 * self.batch + PUBLIC, generator), self.batch
        truth, other = part(rows, 0, size), part(rows, size, 2 * size)
        public = unlike(part(rows, 2 * size, 2 * size + PUBLIC), truth) if self.public else None
        claim = Reconstruction(inputs=other.inputs, targets=None, loss=None, outcome=Outcome.CONVERGED)
        errors = _by_example(score_images(claim, truth))
        blind = _by_example(blind_baseline(truth, public=public))
        # Luck is slow to draw, and few claims come so far.
        if not THRESHOLDS.rebuilt(errors, blind):
            return False
        luck = chance_pixel_rmse(truth, public=public, generator=generator, share=THRESHOLDS.baseline_ratio, draws=300)
        return THRESHOLDS.leaks(errors, blind, [] if luck is None else luck.details["limits"])


def swaps(runs: int, *, seed: int, store: Store, say: Say) -> list[Count]:
    """Number of claims of another batch that count as *leaks*, by population, size and public rows.

    Args:
        runs: claims of each.
        seed: of the draws.
        store: of single counts.
        say: is told what is done.
    """
    found = []
    for data in Data:
        for size in SIZES:
            for public in (False, True):
                swap = Swap(data=data, batch=size, public=public)
                key = {"null": "swap", "of": repr(swap), "runs": runs, "seed": seed}
                found.append(store.kept(key, Count, partial(swap.taken, runs, seed)))
        say(f"another batch as the claim, {data}: {runs} of each size")
    return found


def _by_example(scores: Sequence[Score]) -> list[float | None]:
    return list(next(score for score in scores if score.name == "pixel_rmse").details["per_example"])


__all__ = ["SIZES", "Swap", "swaps"]
