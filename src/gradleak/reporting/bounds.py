"""Bounds on every attacker over a stated prior, by scenario, and why they do or do not hold for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.reporting.numerals import Quantity, as_number, decimal, quantity
from gradleak.reporting.reading import Reading, mapping
from gradleak.results import Score

NAME = "bayesian_cramer_rao"


@dataclass(frozen=True, kw_only=True)
class BoundView:
    """The weakest bound of a scenario from one prior.

    Attributes:
        scenario: its name.
        value: the lower confidence limit, or its outcome.
        unit: the unit of the score.
        plug_in: the value at the mean of the samples, no bound.
        prior_error: what the prior alone leaves.
        prior: the prior in words, "" if not stated.
        noise_std: standard deviation of the noise that the bound is for, or None.
        holds: whether the release carries that noise; None if not stated.
        labels: over how many choices of labels the weakest was taken.
        note: what a reader needs to know.
    """

    scenario: str
    value: Quantity
    unit: str
    plug_in: Quantity
    prior_error: Quantity
    prior: str
    noise_std: float | None
    holds: bool | None
    labels: int
    note: str

    @property
    def noise(self) -> str:
        """The noise in print."""
        return decimal(self.noise_std)


def bounds(reading: Reading) -> list[BoundView]:
    """One view for every scenario, prior and unit, in file order.

    Args:
        reading: the sorted lines.
    """
    groups: dict[tuple[str, str, str], list[Score]] = {}
    for line in reading.of_kind("setting"):
        for score in reading.scores.get(str(line.get("item")), ()):
            if score.name == NAME:
                prior = str(mapping(score.details.get("prior")).get("origin") or "")
                groups.setdefault((str(line.get("scenario")), prior, score.unit), []).append(score)
    return [_view(scenario, prior, unit, scores) for (scenario, prior, unit), scores in groups.items()]


def _view(scenario: str, prior: str, unit: str, scores: Sequence[Score]) -> BoundView:
    known = [score for score in scores if score.value is not None]
    weakest = min(known, key=lambda score: score.value or 0.0) if known else scores[0]
    holds = weakest.details.get("holds_for_release")
    return BoundView(
        scenario=scenario,
        value=quantity(weakest),
        unit=unit,
        plug_in=_number(weakest, "plug_in"),
        prior_error=_number(weakest, "prior_error"),
        prior=prior,
        noise_std=as_number(weakest.details.get("noise_std")),
        holds=holds if isinstance(holds, bool) else None,
        labels=len({score.value for score in scores}),
        note=weakest.note,
    )


def _number(score: Score, key: str) -> Quantity:
    value = as_number(score.details.get(key))
    return Quantity(value=value, text=decimal(value))
