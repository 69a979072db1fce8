"""Accelerate: an audit of the gradient of a step in one's own training loop.

**Source**: `Accelerator` of Accelerate 1.15.
"""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import Tensor, nn

from gradleak.auditing import Decision, Gate
from gradleak.core import Domain, Release
from gradleak.defenses import Clip
from gradleak.integrations.gradients import gradient_update, joined
from gradleak.protocols import FedSGD


class LeakGate:
    """A gate between `accelerator.backward` and `optimizer.step`.

    Attributes:
        decisions: one a step.
    """

    def __init__(
        self, gate: Gate, accelerator: Accelerator, *, domain: Domain | None = None, max_norm: float | None = None
    ) -> None:
        """Look at steps.

        Args:
            gate: how leaks are judged; its model is the one of the loop.
            accelerator: of the loop.
            domain: of the inputs; None to have it guessed.
            max_norm: what `accelerator.clip_grad_norm_` was called with before, or None.
        """
        self.decisions: list[Decision] = []
        self._gate, self._accelerator, self._domain = gate, accelerator, domain
        self._release = Release(FedSGD(), [] if max_norm is None else [Clip(max_norm)])
        self._seen: list[tuple[Tensor, Tensor]] = []

    def check(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> Decision | None:
        """The decision on a step; None while gradients are still accumulated. Call it after `accelerator.backward`.

        Args:
            model: of the loop, prepared.
            inputs: of this micro-batch.
            targets: of this micro-batch.

        Raises:
            LeakRefusedError: if the gradient may not be shared.
        """
        self._seen.append((inputs, targets))
        if not self._accelerator.sync_gradients:
            return None
        seen, self._seen = self._seen, []
        inner: Any = self._accelerator.unwrap_model(model)
        scaler = self._accelerator.scaler
        # Clipping has divided by the scale already.
        scale = 1.0 if scaler is None or self._release.defenses else float(scaler.get_scale())
        update = gradient_update(inner, scale=scale)
        decision = self._gate.guard(update, joined(seen, self._domain), release=self._release, model=inner)
        self.decisions.append(decision)
        return decision
