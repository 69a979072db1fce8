"""An attack on one release, whatever kind of audit made it: a finding that verdicts on releases are read from."""

from __future__ import annotations

from collections.abc import Sequence

from gradleak.results.finding import Finding
from gradleak.results.score import Evidence, Score


class Attempt(Finding):
    """One attack on one release, or the reason why there was none.

    Attributes:
        attack: name of the attack in the plan.
        adversary: of a defended release, "adaptive" for who knows the defenses, "static" for who does not; else "".
        refines: name of the attack whose claim was refined, for a refined claim; else "".
        labels: how the labels were had: "recovered", "disclosed", "optimized"; None where they were not.
    """

    attack: str = ""
    adversary: str = ""
    refines: str = ""
    labels: str | None = None

    @property
    def title(self) -> str:
        """The attack, and by whom, where that makes a difference."""
        return f"{self.attack} ({self.adversary} adversary)" if self.adversary else self.attack

    @property
    def base(self) -> str:
        """The attack whose controls speak of it: a refined claim stands and falls with the one that it began with."""
        return self.refines or self.attack

    @property
    def error(self) -> Score | None:
        """The error of the reconstruction, of entries scaled to [0, 1]; None where it was not scored."""
        found = self.score("pixel_rmse")
        return found if found is not None and found.evidence is Evidence.ATTACK else None

    @property
    def errors(self) -> Sequence[float | None]:
        """The error by example, None for an example without a claim; empty where nothing was scored."""
        return by_example(self.error)

    @property
    def best(self) -> float | None:
        """The smallest error, or None."""
        return min((error for error in self.errors if error is not None), default=None)


def by_example(score: Score | None) -> Sequence[float | None]:
    """The values of a score by example; its value alone where it lists none, and none without a score."""
    if score is None:
        return ()
    listed = score.details.get("per_example")
    return (score.value,) if listed is None else tuple(listed)
