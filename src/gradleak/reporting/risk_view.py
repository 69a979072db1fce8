"""Predicted against reached error over noise levels, and the spectra behind the predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.reporting.numerals import Quantity, as_number, decimal, median, quantity
from gradleak.reporting.reading import Line, Reading, sequence
from gradleak.results import Evidence, Leakier, Outcome, Score

# The prediction is linear in the noise; beyond this pixel RMSE it is not held against the perfect attacker.
SMALL_PREDICTION = 0.05

SERIES = ("predicted", "lower_bound", "perfect_attacker", "attack", "baseline")


@dataclass(frozen=True, kw_only=True)
class NoisePoint:
    """One noisy release: what was predicted and what was reached, in pixel RMSE.

    Attributes:
        example: which example.
        scenario: which scenario.
        noise_std: standard deviation of the noise.
        predicted: exact I²F for the noise drawn.
        lower_bound: the lower bound of I²F.
        perfect_attacker: error of the validation routine that starts at the truth.
        attack: smallest error of a real attack.
        baseline: error of the blind adversary.
    """

    example: Any
    scenario: str
    noise_std: float
    predicted: float | None
    lower_bound: float | None
    perfect_attacker: float | None
    attack: float | None
    baseline: float | None

    @property
    def relative_difference(self) -> float | None:
        """|perfect − predicted| / predicted, or None."""
        if self.predicted is None or self.perfect_attacker is None or self.predicted <= 0:
            return None
        return abs(self.perfect_attacker - self.predicted) / self.predicted

    @property
    def comparable(self) -> bool:
        """Whether the prediction is small enough to be held against the perfect attacker, who did run."""
        return self.relative_difference is not None and (self.predicted or 0.0) < SMALL_PREDICTION


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """Medians over the examples of one noise level.

    Attributes:
        noise_std: standard deviation of the noise.
        scenarios: names of the scenarios of this level.
        points: the releases.
        medians: median by series, ready for print.
        counts: how many releases stand behind each median.
        compared: how many points are comparable.
        difference: their median relative difference, or None.
    """

    noise_std: float
    scenarios: Sequence[str]
    points: Sequence[NoisePoint]
    medians: Mapping[str, Quantity]
    counts: Mapping[str, int]
    compared: int
    difference: float | None

    @property
    def label(self) -> str:
        """The noise level in print."""
        return decimal(self.noise_std)

    @property
    def variance(self) -> str:
        """Its square in print."""
        return decimal(self.noise_std**2)


@dataclass(frozen=True, kw_only=True)
class NoiseStudy:
    """All noise levels, smallest first, and how well the prediction holds.

    Attributes:
        levels: the levels.
        compared: how many releases are predicted below 0.05 and were also given to the perfect attacker.
        difference: median relative difference over them, or None.
        needed: smallest and largest noise, over the undefended releases, at which the expected error of an unbiased
            attacker reaches the threshold; empty if not computed.
        limit: the 0.05.
    """

    levels: Sequence[NoiseLevel]
    compared: int
    difference: float | None
    needed: Sequence[Quantity] = ()
    limit: float = SMALL_PREDICTION

    @property
    def points(self) -> list[NoisePoint]:
        """All points of all levels."""
        return [point for level in self.levels for point in level.points]

    @property
    def levels_compared(self) -> int:
        """How many levels have comparable points."""
        return sum(level.compared > 0 for level in self.levels)


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Eigenvalues of AᵀA for one example.

    Attributes:
        example: which example.
        label: its name in print.
        eigenvalues: largest first.
        rank: how many count as non-zero, or None if not stated.
        size: d, the number of unknowns.
        entries: P, the number of shared entries, or None.
    """

    example: Any
    label: str
    eigenvalues: Sequence[float]
    rank: int | None
    size: int
    entries: int | None

    @property
    def largest(self) -> Quantity:
        """λmax in print."""
        return _exact(self.eigenvalues[0])

    @property
    def smallest(self) -> Quantity:
        """The smallest eigenvalue that counts, in print."""
        place = self.rank if self.rank else self.size
        return _exact(self.eigenvalues[min(place, self.size) - 1])

    @property
    def nullity(self) -> int | None:
        """How many directions of the input the release does not show at all."""
        return None if self.rank is None else self.size - self.rank


def noise_study(reading: Reading) -> NoiseStudy:
    """The noisy releases of a record by noise level.

    Args:
        reading: the sorted lines.
    """
    by_level: dict[float, list[NoisePoint]] = {}
    for release in reading.of_kind("release"):
        std = as_number(release.get("noise_std"))
        if std is not None and std > 0:
            by_level.setdefault(std, []).append(_point(reading, release, std))
    levels = [_level(std, by_level[std]) for std in sorted(by_level)]
    differences = _differences([point for level in levels for point in level.points])
    return NoiseStudy(levels=levels, compared=len(differences), difference=median(differences), needed=_needed(reading))


def spectra(reading: Reading) -> list[Spectrum]:
    """The distinct spectra of a record: one an example where releases share A.

    Args:
        reading: the sorted lines.
    """
    found: list[Spectrum] = []
    seen: set[tuple[Any, ...]] = set()
    for line in reading.of_kind("risk"):
        numbers = [number for number in map(as_number, sequence(line.get("eigenvalues"))) if number is not None]
        if not numbers:
            continue
        key = (str(line.get("example")), *(f"{number:.6e}" for number in (numbers[0], numbers[-1])), len(numbers))
        if key in seen:
            continue
        seen.add(key)
        # Releases of one example that have spectra of their own (another protocol, clipping) are told apart by scenario.
        rank, entries = as_number(line.get("rank")), as_number(line.get("P"))
        found.append(
            Spectrum(
                example=line.get("example"),
                label=_spectrum_label(reading, line, sum(str(line.get("example")) == place[0] for place in seen) > 1),
                eigenvalues=sorted(numbers, reverse=True),
                rank=None if rank is None else int(rank),
                size=len(numbers),
                entries=None if entries is None else int(entries),
            )
        )
    return found


def _spectrum_label(reading: Reading, line: Line, another: bool) -> str:
    if line.get("example") is None:
        return str(line.get("item"))
    label = reading.place(line.get("example"))
    return f"{label}, {line.get('scenario')}" if another and line.get("scenario") is not None else label


def predicted_score(reading: Reading, release: Line) -> Score | None:
    """The prediction that the report relies on: exact I²F at ε = 0, in pixel RMSE, for the noise drawn.

    Args:
        reading: the sorted lines.
        release: an item line of kind release.
    """
    for line in reading.beside("risk", release):
        for score in reading.scores.get(str(line.get("item")), ()):
            if score.name != "inversion_influence" or score.unit != "pixel_rmse":
                continue
            if not as_number(score.details.get("epsilon")):
                return score
    return None


def best_attack(reading: Reading, release: Line) -> tuple[Line, Score] | None:
    """The real attack with the smallest pixel RMSE on a release, or None.

    Args:
        reading: the sorted lines.
        release: an item line of kind release.
    """
    found: list[tuple[float, int, Line, Score]] = []
    for line in reading.beside("attack", release):
        score = reading.score(line, "pixel_rmse")
        if score is not None and score.value is not None:
            found.append((score.value, len(found), line, score))
    if not found:
        return None
    _, _, line, score = min(found, key=lambda entry: entry[:2])
    return line, score


def first_value(reading: Reading, kind: str, release: Line, name: str, unit: str | None = None) -> float | None:
    """The first value of a score among the items of a kind that belong to a release.

    Args:
        reading: the sorted lines.
        kind: kind of the items.
        release: an item line of kind release.
        name: name of the score.
        unit: its unit, None for any.
    """
    for line in reading.beside(kind, release):
        value = reading.value(line, name, unit)
        if value is not None:
            return value
    return None


def _needed(reading: Reading) -> list[Quantity]:
    found = [
        score
        for line in reading.of_kind("risk")
        for score in reading.scores.get(str(line.get("item")), ())
        if score.name == "noise_std_for_threshold" and score.value is not None
    ]
    found.sort(key=lambda score: score.value or 0.0)
    return [quantity(found[0]), quantity(found[-1])] if found else []


def _point(reading: Reading, release: Line, std: float) -> NoisePoint:
    predicted = predicted_score(reading, release)
    best = best_attack(reading, release)
    blind = reading.blind(release if best is None else best[0])
    return NoisePoint(
        example=release.get("example"),
        scenario=str(release.get("scenario")),
        noise_std=std,
        predicted=None if predicted is None else predicted.value,
        lower_bound=first_value(reading, "risk", release, "inversion_influence_lower_bound", "pixel_rmse"),
        perfect_attacker=first_value(reading, "perfect_attacker", release, "pixel_rmse"),
        attack=None if best is None else best[1].value,
        baseline=None if blind is None else blind.value,
    )


def _level(std: float, points: list[NoisePoint]) -> NoiseLevel:
    medians, counts = {}, {}
    for name in SERIES:
        values = [value for value in (getattr(point, name) for point in points) if value is not None]
        middle, counts[name] = median(values), len(values)
        medians[name] = Quantity(value=middle, text=decimal(middle))
    differences = _differences(points)
    return NoiseLevel(
        noise_std=std,
        scenarios=list(dict.fromkeys(point.scenario for point in points)),
        points=points,
        medians=medians,
        counts=counts,
        compared=len(differences),
        difference=median(differences),
    )


def _differences(points: list[NoisePoint]) -> list[float]:
    return [point.relative_difference for point in points if point.comparable and point.relative_difference is not None]


def _exact(value: float) -> Quantity:
    return quantity(
        Score(
            name="eigenvalue",
            value=value,
            unit="1",
            leakier=Leakier.HIGHER,
            evidence=Evidence.EXACT,
            outcome=Outcome.CONVERGED,
        )
    )
