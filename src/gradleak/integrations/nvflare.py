"""NVFlare: a filter of task results that audits every update before it leaves the site.

**Source**: `DXOFilter` and events of NVFlare 2.9.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from torch import Tensor

from gradleak.auditing import Gate
from gradleak.auditing.plan_reader import PlanReader
from gradleak.core import Release, Update, UpdateKind
from gradleak.results import InputError, LeakRefusedError


class LeakGate(DXOFilter):
    """Filter of task results, with arguments that a job's JSON can hold; put it last, behind filters that add noise.

    Weights and differences of weights pass untouched or not at all: for a refused one the task ends in an error with a
    constant text. A difference is the update of local training; weights are compared with those that came with the task.
    """

    def __init__(
        self,
        model: str,
        batch: str,
        protocol: Mapping[str, Any] | None = None,
        defenses: Sequence[Mapping[str, Any]] = (),
        loss: str = "cross_entropy",
        mode: str = "eval",
        on_leak: str = "refuse",
        on_unclear: str = "warn",
        budget: str | float | None = "30s",
        log: str | None = None,
        public: str | None = None,
    ) -> None:
        """Read the arguments; model and data are made at the first update.

        Args:
            model: "package.module:name" of a function or class that makes the model.
            batch: "package.module:name" of a function that gives the site's `gradleak.Batch`.
            protocol: as in a plan file: {"use": "FedAvg", "learning_rate": 0.1}, which is also the default.
            defenses: as in a plan file.
            loss: as `gradleak.audit`.
            mode: as `gradleak.audit`.
            on_leak: "refuse", "warn" or "record".
            on_unclear: the same, where the gate cannot tell.
            budget: time for one update.
            log: file of the site for decisions.
            public: "package.module:name" of a function that gives public rows, on which the model that came is checked.
        """
        super().__init__(
            supported_data_kinds=[DataKind.WEIGHTS, DataKind.WEIGHT_DIFF],
            data_kinds_to_filter=[DataKind.WEIGHTS, DataKind.WEIGHT_DIFF],
        )
        # A job writes its components down by attributes of the arguments' names.
        self.model, self.batch, self.protocol, self.defenses = model, batch, protocol, defenses
        self.loss, self.mode, self.on_leak, self.on_unclear = loss, mode, on_leak, on_unclear
        self.budget, self.log, self.public = budget, log, public
        _check_path(model, "model")
        _check_path(batch, "batch")
        if public is not None:
            _check_path(public, "public")
        reader = PlanReader(folder=Path(), seed=0)
        stated = {"use": "FedAvg", "learning_rate": 0.1} if protocol is None else dict(protocol)
        parts = [reader.build(dict(one), "defenses", f"defenses[{place}]") for place, one in enumerate(defenses)]
        self._release = Release(reader.build(stated, "protocols", "protocol"), parts)
        self._gate: Gate | None = None
        self._start: dict[str, Tensor] | None = None

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Remember the numbers that came with a task."""
        if event_type == EventType.BEFORE_TASK_EXECUTION:
            try:
                sent = from_shareable(fl_ctx.get_prop(FLContextKey.TASK_DATA))
            except (ValueError, TypeError, AttributeError):  # a task without numbers
                return
            if sent.data_kind == DataKind.WEIGHTS:
                self._start = tensors_of(sent.data)

    def process_dxo(self, dxo: Any, shareable: Any, fl_ctx: Any) -> DXO | None:
        """None, which leaves the result as it is.

        Raises:
            LeakRefusedError: for an update that may not leave.
        """
        if self._gate is None:
            self._gate = Gate(
                model=_named(self.model)(),
                release=self._release,
                loss=self.loss,
                mode=self.mode,
                on_leak=self.on_leak,
                on_unclear=self.on_unclear,
                budget=self.budget,
                log=self.log,
                public=None if self.public is None else _named(self.public)(),
            )
        sent, kind = tensors_of(dxo.data), self._release.protocol.kind
        if self._start is None:
            decision = self._gate.unclear("No task with weights came before this update.")
        else:
            start = self._start
            if dxo.data_kind == DataKind.WEIGHT_DIFF:
                tensors = {name: -tensor for name, tensor in sent.items()}
            elif kind is UpdateKind.GRADIENT:
                tensors = sent
            else:
                tensors = {name: start[name] - tensor for name, tensor in sent.items() if name in start}
            decision = self._gate.decide(Update(tensors=tensors, kind=kind), _named(self.batch)(), start=start)
        if not decision.passes:
            raise LeakRefusedError
        return None


def tensors_of(data: Mapping[str, Any]) -> dict[str, Tensor]:
    """Copies of the numbers of a DXO by name; entries that are no numbers are left out."""
    found: dict[str, Tensor] = {}
    for name, value in data.items():
        if isinstance(value, Tensor):
            found[name] = value.detach().clone()
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub":
            found[name] = torch.from_numpy(np.array(value))
    return found


def _check_path(path: Any, what: str) -> None:
    if not isinstance(path, str) or ":" not in path:
        raise InputError(f'LeakGate.{what}: expected "package.module:name", got {path!r}')


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
