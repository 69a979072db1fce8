"""Where it leaks, in an audit: the layers of the release of every scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradleak.auditing.layer_audit import LayerAudit
from gradleak.auditing.layer_rows import Told
from gradleak.core import Objective, Release, derive_seed
from gradleak.results import GradleakError, PlanError


@dataclass(frozen=True, kw_only=True, eq=False)
class LayersPlan:
    """One audit of layers, of the releases of some scenarios, at the plan's own parameters.

    Attributes:
        audit: rows, measures and grouping.
        scenarios: names of those that it is done for; None for all.
    """

    audit: LayerAudit
    scenarios: Sequence[str] | None = None

    def against(self, scenario: str) -> bool:
        """Whether it is done for a scenario."""
        return self.scenarios is None or scenario in self.scenarios

    def seed_of(self, seed: int, name: str) -> int:
        """The seed; the same for every scenario, so that the rows are too."""
        return derive_seed(seed, "layers", name)

    def check(self, name: str, objective: Objective, releases: Mapping[str, Release], *, seed: int) -> None:
        """Refuse rows, groups, measures and settings that cannot be measured; a few rows are released, no more.

        What a scenario alone cannot take is refused there, when its turn comes.

        Args:
            name: of the section.
            objective: the client's loss.
            releases: of the scenarios, by name.
            seed: of the plan.

        Raises:
            PlanError: with the reason.
        """
        mine = [release for scenario, release in releases.items() if self.against(scenario)]
        try:
            self.audit.check(objective, mine, seed=self.seed_of(seed, name))
        except GradleakError as refusal:
            raise PlanError(f"layers.{name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(f"layers.{name}: a first release raised {type(error).__name__}: {reason}") from error

    def estimate(self, scenarios: int, objective: Objective, *, null: bool) -> float:
        """The expected cost in plain gradients, for so many scenarios.

        Args:
            scenarios: how many.
            objective: the client's loss.
            null: whether attributes are shuffled, too.
        """
        return scenarios * self.audit.estimate(objective, null=null)

    @property
    def sensitive(self) -> bool:
        """Whether measures are about a sensitive variable, not the labels or inputs."""
        return self.audit.told is Told.SENSITIVE

    def private_data(self) -> list[Any]:
        """What its record must not be continued for when it changes."""
        rows = self.audit.rows
        return [(rows.inputs, rows.targets, rows.sensitive)]

    def resolved(self) -> dict[str, Any]:
        """What determines it, JSON-ready, without any data value."""
        return {"audit": self.audit.describe(), "scenarios": self.scenarios and list(self.scenarios)}


__all__ = ["LayersPlan"]
