"""Gate between a client and its server: an audit of every update before it leaves, within a time budget."""

from __future__ import annotations

import copy
import json
import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.auditing.api import AuditOptions, audit
from gradleak.auditing.budget import Budget
from gradleak.core import Batch, HonestButCurious, Objective, Release, ThreatModel, Update
from gradleak.core.tensor_names import is_list, read_list, read_names
from gradleak.protocols import FedSGD
from gradleak.results import InputError, LeakRefusedError, Record, Status, Thresholds, VerdictKind
from gradleak.results.errors import WriteError, kind_of, shown
from gradleak.results.files import append_to
from gradleak.risk import Measure, SettingMeasure, check_server_model

LOGGER = logging.getLogger("gradleak.gate")
# Reasons for which a verdict reads no attack, however near it came; a gate errs on the side of a leak.
_NO_READING = ("control_not_run", "control_failed", "inconsistent_update")
# Reasons of verdicts that tell nothing of whether the update leaks, and that of a gate that could not judge.
_UNCLEAR = (
    "inconsistent_update",
    "control_failed",
    "item_failed",
    "no_attack_finished",
    "left_out_by_budget",
    "no_attack_ran",
    "wrong_derivative",
)
FAILED = "gate_failed"
SERVER_MODEL = "server_model"


class OnLeak(StrEnum):
    """Action of a gate on an update that leaks: keep it back, say so, or write it down alone."""

    REFUSE = "refuse"
    WARN = "warn"
    RECORD = "record"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Decision of a gate on one update. It stays with the client, since the reason may tell of the data.

    Attributes:
        passes: whether the update may leave.
        leaks: whether an attack rebuilt an example from it, or the model makes examples readable; None where the gate could
            not tell.
        verdict: of the audit; "" where there is none.
        reason: code of the verdict's reason, "server_model" for the model, or "gate_failed".
        explanation: in sentences.
        left_out: what the budget left no time for, or what was found hopeless, with the reasons.
        seconds: that the gate took.
        plain_gradients: that its attacks took, in gradients of the model; controls of earlier rounds left out.
    """

    passes: bool
    leaks: bool | None
    verdict: str = ""
    reason: str = ""
    explanation: str = ""
    left_out: tuple[str, ...] = ()
    seconds: float = 0.0
    plain_gradients: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Gate:
    """Audit of every update before it leaves the client.

    The update is compared with what the stated model, protocol and defenses make of the client's own batch, then the closed
    form is taken, and attacks run where that leaves them a chance and the budget time. The update, the model, the random
    generators and the flags of the process stay as they are: the gate works on copies.

    Attributes:
        model: the architecture; the numbers that the server sent are given with each update. None where callers give the
            whole model each time.
        release: how the client trains and defends; FedSGD without defenses by default.
        loss: as `gradleak.audit`.
        mode: as `gradleak.audit`.
        threat: what the server knows; as `gradleak.audit`.
        on_leak: what happens to an update that leaks.
        on_unclear: what happens where the gate cannot tell: the update is not what was stated, or time did not suffice.
        budget: time for one update, as seconds or a text such as "30s"; None for as long as it takes.
        attacks: by name; None for the default ones.
        measures: closed forms; None for the one by which an attack can be seen to be hopeless.
        public: rows like those of the client, its own or others, at least 64. With them every model that the server sent is
            checked first (`gradleak.risk.check_server_model`): one that makes single examples readable counts as a leak.
        thresholds: when an example counts as rebuilt.
        seed: of all randomness of the gate.
        log: file of the client to which every decision is appended as a line of JSON, or None.
    """

    model: nn.Module | None = None
    release: Release = field(default_factory=lambda: Release(FedSGD()))
    loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy"
    mode: str = "eval"
    threat: ThreatModel = field(default_factory=HonestButCurious)
    on_leak: OnLeak | str = OnLeak.WARN
    on_unclear: OnLeak | str = OnLeak.WARN
    budget: Budget | str | float | None = "30s"
    attacks: Mapping[str, Attack] | None = None
    measures: Sequence[Measure | SettingMeasure] | None = None
    public: Batch | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    seed: int = 0
    log: str | Path | None = None

    def __post_init__(self) -> None:
        """Read the texts."""
        for name in ("on_leak", "on_unclear"):
            value = getattr(self, name)
            if value not in tuple(OnLeak):
                raise InputError(f"Gate.{name}: expected one of {', '.join(OnLeak)}, got {shown(value)}")
            object.__setattr__(self, name, OnLeak(value))
        if self.budget is not None and not isinstance(self.budget, Budget):
            object.__setattr__(self, "budget", Budget(self.budget))
        if not isinstance(self.public, Batch | None):
            raise InputError(f"Gate.public: expected a gradleak.Batch of public rows, got {kind_of(self.public)}")
        if not isinstance(self.model, nn.Module | None):
            raise InputError(f"Gate.model: expected a torch.nn.Module, got {kind_of(self.model)}")

    def decide(
        self,
        update: Update,
        batch: Batch,
        *,
        start: Mapping[str, Tensor] | None = None,
        release: Release | None = None,
        model: nn.Module | None = None,
    ) -> Decision:
        """The decision on one update, which is also logged.

        Args:
            update: what is about to leave.
            batch: the client's data behind it, all of them.
            start: the numbers that the server sent, by name or as a list by place; None for those of `model`.
            release: in place of the gate's, where it changes by round.
            model: as it stands before the step, in place of the gate's with the numbers of `start`.
        """
        started = time.perf_counter()
        try:
            there = self.started_from(start) if model is None else model
            reason, unchecked = self._looked_at(there, batch.size)
            made = None if reason else self._audited(update, batch, there, release or self.release)
        except Exception as error:  # its text would go to the server
            explanation = f"The gate could not audit this update ({type(error).__name__}: {error})."
            return self.unclear(explanation, seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        decision = self._refusing(reason, seconds) if made is None else self._decision(made, seconds)
        decision = replace(decision, left_out=(*decision.left_out, *unchecked))
        self._say(decision)
        return decision

    def _looked_at(self, model: nn.Module, batch_size: int) -> tuple[str, tuple[str, ...]]:
        """The advice on a model, and what could not be looked at in it: its update is audited all the same."""
        try:
            return self._readable(model, batch_size), ()
        except Exception as error:  # whatever a model raises
            return "", (f"the check of the server's model ({type(error).__name__}: {error})",)

    def decide_model(
        self, start: Mapping[str, Tensor] | None = None, *, model: nn.Module | None = None, batch_size: int = 32
    ) -> Decision:
        """The decision on a model that the server sent, before a gradient of the client's data is computed.

        It does not pass where single examples would be readable and `on_leak` is to refuse. Without `public` rows it
        passes unchecked; one that passes is not logged.

        Args:
            start: the numbers that the server sent, by name or as a list by place; None for those of `model`.
            model: as it was sent, in place of the gate's with the numbers of `start`.
            batch_size: of the client.
        """
        started = time.perf_counter()
        if self.public is None:
            return Decision(
                passes=True, leaks=None, explanation="The model was not checked: the gate has no public rows."
            )
        try:
            reason = self._readable(self.started_from(start) if model is None else model, batch_size)
        except Exception as error:  # its text would go to the server
            explanation = f"The gate could not check this model ({type(error).__name__}: {error})."
            return self.unclear(explanation, seconds=time.perf_counter() - started)
        seconds = time.perf_counter() - started
        if not reason:
            return Decision(passes=True, leaks=False, reason=SERVER_MODEL, seconds=seconds)
        decision = self._refusing(reason, seconds)
        self._say(decision)
        return decision

    def unclear(self, explanation: str, *, seconds: float = 0.0) -> Decision:
        """The decision where nothing can be audited, logged like any other.

        Args:
            explanation: the reason.
            seconds: that it took to find out.
        """
        passes = self.on_unclear is not OnLeak.REFUSE
        decision = Decision(passes=passes, leaks=None, reason=FAILED, explanation=explanation, seconds=seconds)
        self._say(decision)
        return decision

    def guard(
        self,
        update: Update,
        batch: Batch,
        *,
        start: Mapping[str, Tensor] | None = None,
        release: Release | None = None,
        model: nn.Module | None = None,
    ) -> Decision:
        """The decision on one update that may leave; as `decide`.

        Raises:
            LeakRefusedError: if it may not, with a message that is always the same; the reason is in the client's log alone.
        """
        decision = self.decide(update, batch, start=start, release=release, model=model)
        if not decision.passes:
            raise LeakRefusedError
        return decision

    def started_from(self, start: Mapping[str, Tensor] | None) -> nn.Module:
        """A copy of the model with the numbers that the server sent.

        Args:
            start: by name, or by place in the order of parameters() or state_dict(); what is missing stays.

        Raises:
            InputError: for a name that the model does not have.
        """
        if self.model is None:
            raise InputError(
                "Gate.model: expected the model whose numbers the server sends, got none; write Gate(model=...)"
            )
        model = copy.deepcopy(self.model)
        if start is None:
            return model
        known = Objective.from_module(model)
        if is_list(start, known):
            start, _ = read_list(start, known)
        names = read_names(start, known)
        strange = sorted(name for name in start if names[name] not in known.state_names)
        if strange:
            raise InputError(
                f"Gate: expected the numbers of the model by its names ({', '.join(known.state_names[:3])}, ...), got "
                f"{', '.join(map(shown, strange[:3]))}"
            )
        state = {known.renamed.get(names[name], names[name]): tensor.detach() for name, tensor in start.items()}
        model.load_state_dict(state, strict=False)
        return model

    def _readable(self, model: nn.Module, batch_size: int) -> str:
        """The advice on a model that makes single examples readable; "" for others, and without public rows."""
        if self.public is None:
            return ""
        objective = Objective.from_module(model, loss=self.loss, mode=self.mode)
        return check_server_model(objective, self.public, batch_size=batch_size).advice

    def _refusing(self, reason: str, seconds: float) -> Decision:
        """The decision on a model that makes single examples readable."""
        passes = self.on_leak is not OnLeak.REFUSE
        return Decision(passes=passes, leaks=True, reason=SERVER_MODEL, explanation=f"{reason}.", seconds=seconds)

    def _audited(self, update: Update, batch: Batch, model: nn.Module, release: Release) -> Record:
        options = AuditOptions(
            # Beside a training, which has the cores.
            quiet=True,
            seed=self.seed,
            jobs=1,
            thresholds=self.thresholds,
            budget=self.budget,
            name="leak gate",
        )
        with tempfile.TemporaryDirectory(prefix="gradleak-gate-") as folder:
            return audit(
                model,
                batch,
                loss=self.loss,
                mode=self.mode,
                release=release,
                threat=self.threat,
                attacks=self.attacks,
                measures=self.measures,
                update=update,
                out=folder,
                options=options,
            )

    def _decision(self, record: Record, seconds: float) -> Decision:
        verdict = next((one for one in record.verdicts if one.scenario is not None), record.verdicts[-1])
        leaks: bool | None = verdict.verdict is VerdictKind.LEAKS
        if verdict.reason in _NO_READING and _came_near(verdict.details):
            leaks = True
        if not leaks and verdict.reason in _UNCLEAR:
            leaks = None
        action = self.on_leak if leaks else self.on_unclear if leaks is None else OnLeak.RECORD
        left_out = [one for one in record.findings if one.status is Status.LEFT_OUT and one.control is None]
        spent = (one.to_dict().get("plain_gradients") for one in record.findings if one.seconds)
        return Decision(
            passes=action is not OnLeak.REFUSE,
            leaks=leaks,
            verdict=verdict.verdict.value,
            reason=verdict.reason,
            explanation=verdict.explanation,
            left_out=tuple(f"{one.item}: {one.note.removeprefix('left out: ')}" for one in left_out),
            seconds=seconds,
            plain_gradients=sum(value for value in spent if value is not None),
        )

    def _say(self, decision: Decision) -> None:
        if decision.leaks is not False:
            action = self.on_leak if decision.leaks else self.on_unclear
            subject = "update" if decision.reason != SERVER_MODEL else "server's model"
            told = f"this {subject} leaks" if decision.leaks else "cannot tell whether this update leaks"
            kept = "" if decision.passes else "; it is kept back"
            level = logging.DEBUG if action is OnLeak.RECORD else logging.WARNING
            LOGGER.log(level, "gate: %s%s (%s). %s", told, kept, decision.reason, decision.explanation)
        if self.log is not None:
            try:
                append_to(Path(self.log), (json.dumps(asdict(decision)) + "\n").encode())
            except WriteError as error:
                # The decision stands, and the server is to learn nothing of this machine.
                LOGGER.warning("gate: the decision could not be logged: %s", error)


def _came_near(details: Mapping[str, Any]) -> bool:
    """True if an attack came as near as the limits say."""
    error, blind = details.get("pixel_rmse"), details.get("baseline_pixel_rmse")
    if error is None or blind is None:
        return False
    return bool(error <= details["threshold_pixel_rmse"] and error <= details["threshold_baseline_ratio"] * blind)
