"""Finding of an attack on one update: the costs, the route and the scores of a claim; no pixel of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gradleak.results.finding import Attempt, NumberOrNone, Part


class Draws(Part):
    """The draws of noise behind a control.

    Attributes:
        tried: how many.
        hits: after how many of them the attack seemed to rebuild the example.
    """

    tried: int = 0
    hits: int = 0


class ReconstructionFinding(Attempt):
    """One attack on one update, or a control of it. Its scores are the errors against the truth.

    Attributes:
        settings: the attack as it was set up, described.
        loss: the final matching loss of the claim.
        iterations: of the chosen start.
        plain_gradients: what the attack cost.
        history: the matching loss on the way, thinned.
        picture: path of the reconstruction's picture beside the record, or None.
        support: of a claim out of a generator, whether the update bears it out: "supported", "contradicted", "undecided".
        check_plain_gradients: what that question cost, where no refined claim carries it.
        details: what else the attack wrote down.
        draws: of a noise control.
        refined_pixel_rmse: of a control, what the refined claim of its last draw reached.
    """

    kind: Literal["reconstruction"] = "reconstruction"
    settings: Mapping[str, Any] = {}
    loss: NumberOrNone = None
    iterations: int | None = None
    plain_gradients: NumberOrNone = None
    history: tuple[NumberOrNone, ...] = ()
    picture: str | None = None
    support: str = ""
    check_plain_gradients: NumberOrNone = None
    details: Mapping[str, Any] = {}
    draws: Draws | None = None
    refined_pixel_rmse: NumberOrNone = None

    @property
    def cost(self) -> float | None:
        """The cost of attack and check in plain gradients."""
        known = [one for one in (self.plain_gradients, self.check_plain_gradients) if one is not None]
        return sum(known) if known else None
