"""Flower: a client mod that audits every update before it leaves, and a server that keeps updates for an audit.

**Source**: mods and messages of Flower 1.42 (`flwr.clientapp`, `flwr.serverapp`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Error, Message
from torch import Tensor

from gradleak.auditing import Gate
from gradleak.core import Batch, Update, UpdateKind
from gradleak.results import LeakRefusedError
from gradleak.results.files import make_folder

# Flower's own codes are small; the server sees this number and the constant text.
WITHHELD = 7301


@dataclass(frozen=True, kw_only=True, eq=False)
class LeakGate:
    """A client mod: the gate sees what really leaves if it stands first in `ClientApp(mods=[...])`, before mods that add noise.

    A gate with `public` rows looks at the model that came before the client trains on it. The reply of a training message
    holds weights, whose difference to those that came is the update; where the gate's
    protocol shares gradients, what it holds is taken as a gradient. A refused reply becomes an error with a constant text.

    Attributes:
        gate: with the model and the client's release.
        batch: the client's data behind an update, or a function of the context that has them.
    """

    gate: Gate
    batch: Batch | Callable[[Any], Batch]

    def __call__(self, message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        """The reply of the client, untouched, or an error in its place."""
        if message.metadata.message_type.split(".")[0] != "train":
            return call_next(message, context)
        sent = list(message.content.array_records.values())
        if self.gate.public is not None and len(sent) == 1 and not self.gate.decide_model(tensors_of(sent[0])).passes:
            return self._withheld(message)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        records = [sent, list(reply.content.array_records.values())]
        if any(len(one) != 1 for one in records):
            counts = " and ".join(str(len(one)) for one in records)
            decision = self.gate.unclear(f"The gate expected one record of arrays each way, got {counts}.")
        else:
            start, made = tensors_of(records[0][0]), tensors_of(records[1][0])
            batch = self.batch if isinstance(self.batch, Batch) else self.batch(context)
            decision = self.gate.decide(
                update_between(start, made, self.gate.release.protocol.kind), batch, start=start
            )
        return reply if decision.passes else self._withheld(message)

    @staticmethod
    def _withheld(message: Any) -> Message:
        """An error with a constant text, in place of a reply."""
        return Message(Error(code=WITHHELD, reason=str(LeakRefusedError())), reply_to=message)


def save_updates(strategy: Any, folder: str | os.PathLike[str], *, kind: str = "delta") -> Any:
    """The strategy, which from now on saves what each client sent, and the model that it was sent before.

    In `folder` appear `round1-model.safetensors` (the numbers that went out) and `round1-NODE.safetensors` (an update each),
    for `gradleak audit PLAN --update FILE`. Aggregation stays as it is.

    Args:
        strategy: of `flwr.serverapp.strategy`; its methods are replaced on this object.
        folder: made if absent.
        kind: "delta" for clients that send weights, whose difference is saved; "gradient" for what they send as it is.
    """
    place = Path(folder)
    configure, aggregate = strategy.configure_train, strategy.aggregate_train
    sent: dict[int, dict[str, Tensor]] = {}

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        make_folder(place)
        sent[server_round] = tensors_of(arrays)
        facts = {"framework": "flower", "round": server_round, "what": "the model that was sent"}
        Update(tensors=sent[server_round], provenance=facts).save(place / f"round{server_round}-model.safetensors")
        return configure(server_round, arrays, config, grid)

    def aggregate_train(server_round: int, replies: Iterable[Any]) -> Any:
        answers = list(replies)
        start = sent.pop(server_round, {})
        for reply in answers:
            records = [] if reply.has_error() else list(reply.content.array_records.values())
            if len(records) == 1:
                node = reply.metadata.src_node_id
                update = update_between(start, tensors_of(records[0]), UpdateKind(kind))
                facts = {"framework": "flower", "round": server_round, "node": str(node)}
                whole = Update(tensors=update.tensors, kind=update.kind, provenance=facts)
                whole.save(place / f"round{server_round}-{node}.safetensors")
        return aggregate(server_round, answers)

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train
    return strategy


def tensors_of(record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the arrays of a record by name, or by place where they came as a list."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def update_between(start: Mapping[str, Tensor], made: Mapping[str, Tensor], kind: UpdateKind) -> Update:
    """The update that a client sent: initial minus final numbers, or what it sent where that is a gradient.

    Args:
        start: what came from the server.
        made: what the client answers, by the same names.
        kind: of the client's protocol.
    """
    if kind is UpdateKind.GRADIENT:
        return Update(tensors=dict(made), kind=kind)
    known = {name: start[name] for name in made if name in start and start[name].shape == made[name].shape}
    return Update(tensors={name: one - made[name] for name, one in known.items()}, kind=kind)
