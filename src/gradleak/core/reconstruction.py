"""Claim of an attack: inputs and targets, with the matching loss that the claim rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradleak.results import Outcome


@dataclass(frozen=True, kw_only=True, eq=False)
class Reconstruction:
    """The adversary's claim about a batch; made without the truth.

    Attributes:
        inputs: (b, *shape) in model-input units, or None where the outcome yields nothing.
        targets: class indices (b,) or probabilities (b, c), recovered, disclosed or optimized; None if unknown.
        loss: final matching loss of the chosen start, never an error against truth; None if there is no claim.
        outcome: how the search ended.
        iterations: iterations of the chosen start.
        plain_gradients: cost of the whole attack, in gradients of the same model on the same batch size, counted
            from the operations done (see the attack's docstring).
        history: matching loss of the chosen start by iteration.
        note: what a reader needs to know (how labels were had, why nothing was found).
        details: further JSON-ready facts (residual, starts, seconds).
        tokens: claimed ids (b, T) of tokens, -1 where nothing is claimed; None where no place is claimed, and for other data.
        bag: claimed ids (n,) of all tokens of the batch together, ascending, each as often as it is claimed to be there,
            without places; None where no such claim is made.
    """

    inputs: Tensor | None
    targets: Tensor | None
    loss: float | None
    outcome: Outcome
    iterations: int = 0
    plain_gradients: float = 0.0
    history: Sequence[float] = ()
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    tokens: Tensor | None = None
    bag: Tensor | None = None

    def __repr__(self) -> str:
        """The shapes of the claim and how the search ended; the claim itself may be private data."""
        made = {"inputs": self.inputs, "targets": self.targets}
        made |= {name: found for name in ("tokens", "bag") if (found := getattr(self, name)) is not None}
        shapes = ", ".join(f"{name} of shape {None if x is None else tuple(x.shape)}" for name, x in made.items())
        return (
            f"Reconstruction({shapes}, loss={self.loss}, "
            f"outcome={self.outcome.label!r}, iterations={self.iterations}, plain_gradients={self.plain_gradients:.0f}, "
            f"note={self.note!r})"
        )
