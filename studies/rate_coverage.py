"""Study: how often the interval of a true-positive rate at a small false-positive rate holds the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from gradleak.core import describe
from gradleak.results import LI_2024, Citation, Outcome, check_count, check_not_negative, check_share, member
from gradleak.scoring import score_posteriors
from gradleak.scoring.roc import rate_interval
from studies.study import Finding, Say, Study, StudyResult, Table

Floats = NDArray[np.float64]


class ScoreLaw(StrEnum):
    """Law of the adversary's log odds: value 1 lies a distance above value 0."""

    NORMAL = "normal"
    TIES = "ties"
    HEAVY = "heavy"

    def drawn(self, distances: Floats, random: np.random.Generator) -> Floats:
        """Log odds, one a trial, for distances of 0 or more."""
        noise = (
            random.standard_t(2, len(distances)) if self is ScoreLaw.HEAVY else random.standard_normal(len(distances))
        )
        found: Floats = noise + distances
        # Half steps: a forest of few trees gives few different posteriors.
        return np.round(2.0 * found) / 2.0 if self is ScoreLaw.TIES else found

    def rate(self, distance: float, share: float) -> float:
        """The true-positive rate at a false-positive rate, with ties accepted by lot."""
        law = scipy.stats.t(2) if self is ScoreLaw.HEAVY else scipy.stats.norm()
        if self is not ScoreLaw.TIES:
            return float(law.sf(law.isf(share) - distance))
        edges = np.arange(-20.25, 25.0, 0.5)
        false, true = law.sf(edges)[::-1], law.sf(edges - distance)[::-1]
        return float(np.interp(share, false, true))


@dataclass(frozen=True, kw_only=True)
class RateCoverage(Study):
    """Coverage of the 95 % interval of `tpr_at_fpr`, by simulation of games whose true rate is known.

    A trial has one of two values in equal shares, and the adversary's log odds are normal, heavy-tailed (Student's t with two
    degrees of freedom) or normal in steps of a half, with many ties. Each cell is a law, a distance, a number of trials and a
    false-positive rate: `runs` games are played, and the intervals that hold the rate are counted. Where too few false
    positives are expected, no rate is told, and the cell says so.

    **Source**: ours; the rate is a metric of Li et al. 2024, section 5.1.2, who give no intervals.

    Attributes:
        laws: of the log odds.
        distances: between the two values, at least 0 each.
        trials: in a game.
        rates: false-positive rates.
        runs: games a cell.
        confidence: of the intervals.
        seed: of all draws.
    """

    name: ClassVar[str] = "rate_coverage"
    source: ClassVar[str] = "a metric of section 5.1.2"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    laws: Sequence[ScoreLaw] = tuple(ScoreLaw)
    distances: Sequence[float] = (0.0, 1.0, 3.0)
    trials: Sequence[int] = (1000, 5000)
    rates: Sequence[float] = (0.01, 0.1)
    runs: int = 500
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: naming the setting.
        """
        check_count("RateCoverage.runs", self.runs)
        check_share("RateCoverage.confidence", self.confidence)
        for count in self.trials:
            check_count("RateCoverage.trials", count)
        for distance in self.distances:
            check_not_negative("RateCoverage.distances", distance)
        for rate in self.rates:
            check_share("RateCoverage.rates", rate)
        for law in self.laws:
            member("RateCoverage.laws", ScoreLaw, law)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; a minute of one core."""
        findings: list[Finding] = []
        rows: list[list[str]] = []
        for law in map(ScoreLaw, self.laws):
            for distance in self.distances:
                for count in self.trials:
                    for rate, held, told, width in self._cell(law, distance, count):
                        truth = law.rate(distance, rate)
                        setting = f"{law.value}, distance {distance:g}, {count:,} trials, FPR {rate:g}"
                        share = held / told if told else None
                        interval = rate_interval(held, told) if told else None
                        note = (
                            f"true rate {truth:.3f}, mean width {width:.3f}"
                            if told
                            else "not resolvable: too few negatives"
                        )
                        findings.append(
                            Finding(quantity=f"coverage, {setting}", ours=share, interval=interval, n=told, note=note)
                        )
                        shown = ["-", "-"] if share is None else [f"{share:.1%}", f"{width:.3f}"]
                        rows.append([law.value, f"{distance:g}", f"{count:,}", f"{rate:g}", f"{truth:.3f}", *shown])
                    say(f"{law.value}, distance {distance:g}, {count:,} trials: {self.runs} games")
        columns = ("log odds", "distance", "trials", "FPR", "true rate", "intervals that hold it", "mean width")
        title = f"Intervals of {self.confidence:.0%}, {self.runs} games a cell"
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=self._conclude(findings),
            details={},
            tables=[Table(title=title, columns=columns, rows=rows)],
        )

    def _cell(self, law: ScoreLaw, distance: float, count: int) -> list[tuple[float, int, int, float]]:
        """By rate: how many intervals hold it, of how many that were told, and their mean width."""
        random = np.random.default_rng((self.seed, list(ScoreLaw).index(law), round(1e6 * distance), count))
        truths = [law.rate(distance, rate) for rate in self.rates]
        held, told, width = ([0] * len(truths), [0] * len(truths), [0.0] * len(truths))
        for _ in range(self.runs):
            values = random.permutation(np.arange(count) % 2)
            odds = law.drawn(distance * values, random)
            scores = score_posteriors(
                np.stack([np.zeros(count), odds], axis=1), values, blind=0.5, false_positive_rates=self.rates,
                confidence=self.confidence,
            )[3:]  # fmt: skip
            for place, (score, truth) in enumerate(zip(scores, truths, strict=True)):
                if score.outcome is Outcome.CONVERGED and score.interval is not None:
                    low, high = score.interval
                    told[place] += 1
                    held[place] += low <= truth <= high
                    width[place] += high - low
        return [
            (rate, hits, games, total / games if games else 0.0)
            for rate, hits, games, total in zip(self.rates, held, told, width, strict=True)
        ]

    def _conclude(self, findings: Sequence[Finding]) -> list[str]:
        known = [finding for finding in findings if finding.ours is not None]
        if not known:
            return ["No rate is resolvable with so few trials."]
        shares = [finding.ours or 0.0 for finding in known]
        short = [one.quantity for one in known if one.interval is not None and one.interval[1] < self.confidence]
        said = [
            f"Intervals of {self.confidence:.0%} hold the rate in {min(shares):.1%} to {max(shares):.1%} of games, by cell."
        ]
        return [*said, f"Short beyond chance: {'; '.join(short)}." if short else "No cell is short beyond chance."]


__all__ = ["RateCoverage", "ScoreLaw"]
