"""Two hypotheses about a release, and what an auditor who sees it makes of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch

from gradleak.privacy.lower_bounds import TrialScores
from gradleak.results import Score


class Statistic(StrEnum):
    """Statistic of a released update: one number, larger where the alternative is likelier."""

    DISTANCE = "distance"
    """‖u - u₀‖₂, how far the update is from the one without noise under the null hypothesis."""
    LIKELIHOOD_RATIO = "likelihood_ratio"
    """log p(u | H1) - log p(u | H0), of the exact laws: no test separates better."""
    MATCHED_FILTER = "matched_filter"
    """The likelihood ratio as if the noise were Gaussian of one standard deviation, where its law is not known."""


class HypothesisPair(ABC):
    """Two hypotheses about a release, H0 and H1: for instance a record, and the record with another attribute.

    A user's own pair subclasses this and writes `trials`, which draws releases under each hypothesis and reduces each to
    one number or several. Everything after it (bounds on epsilon, histograms, records of a run) is then as for the pairs
    that gradleak has: `audit_pair(pair, ...)`.

    Whatever is chosen by looking at releases (a threshold, a direction) belongs to the estimator; a statistic may depend
    on anything but on the releases that are counted.

    Examples:
        >>> class Coin(HypothesisPair):
        ...     def trials(self, count, *, generator):
        ...         toss = torch.rand(2, count, generator=generator, dtype=torch.float64)
        ...         answers = (toss < torch.tensor([[0.25], [0.75]])).double().numpy()
        ...         return {"answer": TrialScores(null=answers[0], alternative=answers[1], name="answer")}
        >>> found = Coin().trials(1000, generator=torch.Generator().manual_seed(0))
        >>> bool(found["answer"].null.mean() < 0.5 < found["answer"].alternative.mean())
        True
    """

    @abstractmethod
    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        """The statistics of so many releases under H0 and as many under H1, by name.

        Args:
            count: releases a hypothesis; independent of each other.
            generator: the only source of randomness.
        """

    def theory(self, *, delta: float) -> list[Score]:
        """Known values of the epsilon of this pair without a trial; nothing unless a pair says otherwise.

        Args:
            delta: δ, between 0 and 1.
        """
        return []

    @property
    def facts(self) -> Mapping[str, Any]:
        """Description of the pair for a record, JSON-ready and without a private value."""
        return {}
