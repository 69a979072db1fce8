"""Hugging Face transformers, with peft: a callback of the Trainer that audits the gradient of every step.

**Source**: the order of events in the `Trainer` of transformers 5.24.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from gradleak.auditing import Decision, Gate
from gradleak.core import Domain, DomainKind, Release
from gradleak.core.module_copy import private_copy, unwrap
from gradleak.defenses import Clip
from gradleak.integrations.gradients import gradient_update, joined
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError, LeakRefusedError, UnsupportedError

_EMBEDDED = "inputs_embeds"


class LogitsOf(nn.Module):
    """The model as a function of one tensor: of pixels or features by name, or of token embeddings in place of tokens."""

    def __init__(self, model: nn.Module, field: str) -> None:
        """Look at a model.

        Args:
            model: of transformers or peft; not copied.
            field: the argument that the tensor is.
        """
        super().__init__()
        self.model, self.field = model, field

    def forward(self, inputs: Tensor) -> Tensor:
        """The logits of `inputs` (b, *shape)."""
        logits: Tensor = self.model(**{self.field: inputs}).logits
        return logits


class LeakGate(TrainerCallback):
    """A gate on every optimizer step: the accumulated gradient, after `max_grad_norm`, is what a client would share.

    Batches are read by a hook on the model, since the Trainer prefetches. Tokens are audited as their embeddings (a token is
    read where its embedding is), which has to be frozen as with LoRA; padded batches, and dropout in training, are *unclear*.
    A refused step raises `LeakRefusedError` out of `trainer.train()`, before the optimizer moves.

    Attributes:
        decisions: one for every step that was looked at.
    """

    def __init__(
        self, gate: Gate, *, domain: Domain | None = None, every: int = 1, adds_micro_batches: bool = False
    ) -> None:
        """Look at steps.

        Args:
            gate: how leaks are judged; its model and release are those of the Trainer, and its loss compares logits with
                `labels`.
            domain: of pixels or features; that of embeddings is read from their table.
            every: look at every so many steps, the first one among them.
            adds_micro_batches: whether accumulated gradients are summed, not averaged, as the Trainer does for models whose
                `forward` takes `num_items_in_batch` and whose loss does not use it (peft models, for instance): the gate names
                a factor of the number of micro-batches.
        """
        self._adds = adds_micro_batches
        self.decisions: list[Decision] = []
        self._gate, self._domain, self._every = gate, domain, every
        self._seen: list[dict[str, Any]] = []
        self._steps = 0
        self._hook: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Begin to listen to the model."""
        self._hook = unwrap(model).register_forward_pre_hook(self._listen, with_kwargs=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Forget the micro-batches of the step before."""
        self._seen.clear()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Audit the gradient of this step.

        Raises:
            LeakRefusedError: if it may not be shared.
        """
        seen, self._seen = self._seen, []
        self._steps += 1
        if (self._steps - 1) % self._every:
            return
        scale = float(max(len(seen), 1)) if self._adds else 1.0
        # A sum of n means clipped to C is n times the mean clipped to C/n.
        norm = args.max_grad_norm / scale if args.max_grad_norm else 0.0
        release = Release(FedSGD(), [Clip(norm)] if norm else [])
        whole: Any = unwrap(model)
        try:
            field, domain, parts = self._parts(whole, seen)
            batch = joined(parts, domain)
            update = gradient_update(whole, front="model.", scale=scale)
        except GradleakError as refusal:
            decision = self._gate.unclear(str(refusal))
        else:
            seen_by_gate = LogitsOf(_without_table(whole) if field == _EMBEDDED else whole, field)
            decision = self._gate.decide(update, batch, release=release, model=seen_by_gate)
        self.decisions.append(decision)
        if not decision.passes:
            self.on_train_end(args, state, control)
            raise LeakRefusedError

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Stop listening."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._seen.clear()

    def _listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            self._seen.append(dict(kwargs))

    def _parts(self, model: Any, seen: list[dict[str, Any]]) -> tuple[str, Domain | None, list[tuple[Tensor, Tensor]]]:
        """The argument, its domain, and (inputs, labels) of each micro-batch."""
        name: str = model.main_input_name
        if not seen or any(name not in one or "labels" not in one for one in seen):
            raise UnsupportedError(
                f"Trainer: expected batches with {name} and labels, got {[sorted(one) for one in seen]}"
            )
        for one in seen:
            mask = one.get("attention_mask")
            if mask is not None and not bool((mask == 1).all()):
                raise UnsupportedError(
                    "Trainer: expected batches without padding, whose examples can be looked at one by one, got an attention "
                    "mask with zeros; group by length, or audit batches of one example"
                )
        if name != "input_ids":
            return name, self._domain, [(one[name], one["labels"]) for one in seen]
        table: Any = model.get_input_embeddings()
        if any(parameter.requires_grad for parameter in table.parameters()):
            raise UnsupportedError(
                "Trainer: expected frozen token embeddings (as with LoRA), got trained ones, whose gradient names the tokens "
                "of the batch outright: the rows that are not zero"
            )
        with torch.no_grad():
            parts = [(table(one[name]), one["labels"]) for one in seen]
            low, high = float(table.weight.min()), float(table.weight.max())
        domain = Domain(shape=tuple(parts[0][0].shape[1:]), low=low, high=high, kind=DomainKind.SIGNAL)
        return _EMBEDDED, domain, parts


def _without_table(model: nn.Module) -> nn.Module:
    """A copy that takes embeddings alone: the rows of its table would be the audited inputs themselves."""
    copied, _, _ = private_copy(model)
    table: Any = copied.get_input_embeddings()  # type: ignore[operator]
    copied.set_input_embeddings(nn.Embedding(1, table.embedding_dim).requires_grad_(False))  # type: ignore[operator]
    return copied
