"""Bounds on every attacker over a stated prior, by scenario: on the mean error, and on the chance to rebuild an example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.reporting.numerals import Quantity, as_number, decimal, quantity
from gradleak.reporting.reading import Reading, mapping
from gradleak.results import Score

NAME = "bayesian_cramer_rao"
CHANCE = "reconstruction_probability"


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


@dataclass(frozen=True, kw_only=True)
class ChanceView:
    """The largest chance to rebuild an example that differential privacy leaves in a scenario, by prior.

    Attributes:
        scenario: its name.
        value: of at least one example of a release, or its outcome.
        each: of one example.
        blind: of a blind guess at it, κ.
        mu: of Gaussian differential privacy; None if not stated.
        epsilon: at `delta`; None if not stated.
        delta: None if not stated.
        within: the error that counts as rebuilt; None if not stated.
        rounds: how many releases hold the example; None if not stated.
        prior: in words, "" if not stated.
        note: what a reader needs to know.
    """

    scenario: str
    value: Quantity
    each: Quantity
    blind: Quantity
    mu: float | None
    epsilon: float | None
    delta: float | None
    within: float | None
    rounds: float | None
    prior: str
    note: str

    @property
    def privacy(self) -> str:
        """Differential privacy in print: "μ = 0.5 (ε = 1.93 at δ = 10⁻⁵)"."""
        if self.mu is None:
            return decimal(None)
        return f"μ = {decimal(self.mu)} (ε = {decimal(self.epsilon)} at δ = {decimal(self.delta)})"


def chances(reading: Reading) -> list[ChanceView]:
    """One view for every scenario, prior and error, in file order; the largest over the audited labels.

    Args:
        reading: the sorted lines.
    """
    groups: dict[tuple[str, str, float | None], list[Score]] = {}
    for line in reading.of_kind("setting"):
        for score in reading.scores.get(str(line.get("item")), ()):
            if score.name == CHANCE:
                # The public examples are counted by label, which stands in the words of the prior.
                prior = "" if _drawn(score) else _prior(score)
                within = as_number(score.details.get("within"))
                groups.setdefault((str(line.get("scenario")), prior, within), []).append(score)
    return [_chance(scenario, scores) for (scenario, _, _), scores in groups.items()]


def _chance(scenario: str, scores: Sequence[Score]) -> ChanceView:
    worst = max(scores, key=lambda score: -1.0 if score.value is None else score.value)
    facts = worst.details
    return ChanceView(
        scenario=scenario,
        value=quantity(worst),
        each=_number(worst, "each_example"),
        blind=_number(worst, "kappa"),
        mu=as_number(facts.get("mu")),
        epsilon=as_number(facts.get("epsilon")),
        delta=as_number(facts.get("delta")),
        within=as_number(facts.get("within")),
        rounds=as_number(facts.get("rounds")),
        prior=_prior(worst),
        note=worst.note,
    )


def _prior(score: Score) -> str:
    return str(mapping(score.details.get("prior")).get("origin") or "")


def _drawn(score: Score) -> bool:
    return mapping(score.details.get("prior")).get("examples") is not None


def bounds(reading: Reading) -> list[BoundView]:
    """One view for every scenario, prior and unit, in file order.

    Args:
        reading: the sorted lines.
    """
    groups: dict[tuple[str, str, str], list[Score]] = {}
    for line in reading.of_kind("setting"):
        for score in reading.scores.get(str(line.get("item")), ()):
            if score.name == NAME:
                groups.setdefault((str(line.get("scenario")), _prior(score), score.unit), []).append(score)
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
