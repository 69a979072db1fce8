"""Thresholds for leaking and for bounded: values of a plan, printed with every verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from gradleak.results.errors import GradleakError, PlanError
from gradleak.results.fields import Positive, Share, ShareOrAll
from gradleak.results.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Thresholds(Settings):
    """Thresholds at which an attack counts as having rebuilt an example, and at which none can be expected to.

    Attributes:
        pixel_rmse: largest error, in pixels scaled to [0, 1].
        baseline_ratio: largest share of the blind adversary's error on the same example.
        reconstruction_probability: largest chance of any attacker to rebuild an example of a release that is *bounded* by
            differential privacy.
        advantage: largest advantage that Fano's inequality may leave to any adversary of an inference game that is *bounded*.
        epsilon: in a privacy audit a release leaks whose epsilon is measured to be above it; one whose guarantee has at most
            this epsilon is *bounded*.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    called: ClassVar[str] = "thresholds"

    pixel_rmse: Share = 0.1
    baseline_ratio: ShareOrAll = 0.5
    reconstruction_probability: Share = 0.05
    advantage: Share = 0.05
    epsilon: Positive = 1.0

    def to_dict(self) -> dict[str, float]:
        """The thresholds by name."""
        return asdict(self)

    def leaks(
        self,
        errors: Sequence[float | None],
        baselines: Sequence[float | None],
        chance: Sequence[float] = (),
    ) -> bool:
        """True if at least one example is rebuilt, and not by luck alone.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind adversary by example.
            chance: below what the k-th smallest error is more than luck (`chance_pixel_rmse`); empty where luck gives
                nothing.
        """
        rebuilt = self.rebuilt(errors, baselines)
        return bool(rebuilt) and (not chance or beyond_luck(rebuilt, chance) > 0)

    def rebuilt(self, errors: Sequence[float | None], baselines: Sequence[float | None]) -> list[float]:
        """The errors of the examples that come near enough, luck aside, sorted.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind adversary by example.
        """
        return sorted(
            error
            for error, baseline in zip(errors, baselines, strict=True)
            if error is not None
            and baseline is not None
            and baseline > 0
            and error <= self.pixel_rmse
            and error <= self.baseline_ratio * baseline
        )


def beyond_luck(errors: Sequence[float], limits: Sequence[float]) -> int:
    """Number of errors that together beat luck: the least k whose k-th smallest is below its limit, or 0.

    Args:
        errors: of examples, sorted.
        limits: of `chance_pixel_rmse`.
    """
    return next((k for k, (error, limit) in enumerate(zip(errors, limits, strict=False), 1) if error < limit), 0)
