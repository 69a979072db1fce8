"""Lightning: a callback that audits the gradient of every optimizer step.

**Source**: the order of hooks in Lightning 2.6.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gradleak.auditing import Decision, Gate
from gradleak.core import Domain, Release
from gradleak.integrations.gradients import gradient_update, joined
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError, LeakRefusedError


class LeakGate(Callback):
    """A gate on every optimizer step: the accumulated gradient before `gradient_clip_val`, which is applied afterwards.

    A refused step raises `LeakRefusedError` out of `trainer.fit`, before the optimizer moves.

    Attributes:
        decisions: one for every step that was looked at.
    """

    def __init__(
        self,
        gate: Gate,
        *,
        network: str = "model",
        read: Callable[[Any], tuple[Tensor, Tensor]] = tuple,
        domain: Domain | None = None,
        every: int = 1,
    ) -> None:
        """Look at steps.

        Args:
            gate: how leaks are judged; its model is that of the module, its loss the one of `training_step`.
            network: attribute of the LightningModule that maps inputs to what the loss takes, dotted for one further down.
            read: inputs and targets of what the data loader gives.
            domain: of the inputs; None to have it guessed.
            every: look at every so many steps, the first one among them.
        """
        super().__init__()
        self.decisions: list[Decision] = []
        self._gate, self._network, self._read, self._domain, self._every = (
            gate,
            attrgetter(network),
            read,
            domain,
            every,
        )
        self._seen: list[tuple[Tensor, Tensor]] = []
        self._steps = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Remember a micro-batch."""
        self._seen.append(self._read(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Audit the gradient of this step.

        Raises:
            LeakRefusedError: if it may not be shared.
        """
        seen, self._seen = self._seen, []
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        network = self._network(pl_module)
        scaler = getattr(getattr(trainer, "precision_plugin", None), "scaler", None)
        try:
            batch = joined(seen, self._domain)
            update = gradient_update(network, scale=1.0 if scaler is None else float(scaler.get_scale()))
        except GradleakError as refusal:
            decision = self._gate.unclear(str(refusal))
        else:
            decision = self._gate.decide(update, batch, release=Release(FedSGD()), model=network)
        self.decisions.append(decision)
        if not decision.passes:
            raise LeakRefusedError
