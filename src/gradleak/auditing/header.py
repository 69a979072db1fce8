"""The header of a record: versions, settings, methods, the key of private data, and behavior of code at a few inputs."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import platform
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradleak.auditing.device import device_name
from gradleak.auditing.fingerprint import Reading, fingerprint
from gradleak.auditing.plan import Plan
from gradleak.auditing.whose_code import STATED, stated_versions
from gradleak.audits.base import Scenario
from gradleak.audits.base.rows import few
from gradleak.core import Batch, Objective, Release, derive_generator, one_thread
from gradleak.results import Citation, GradleakError
from gradleak.results.errors import record_stays
from gradleak.results.files import write_file
from gradleak.results.score import jsonable

PRIVATE_FILE = ".private-data"


@dataclass(frozen=True, kw_only=True)
class DataKey:
    """A random key, and a print of the private data under it.

    Attributes:
        key: hexadecimal.
        hash: of the data that it was made for; None for a new key.
    """

    key: str
    hash: str | None

    @classmethod
    def of(cls, folder: Path) -> DataKey:
        """The key that lies beside a record; a new one, kept nowhere yet, where there is none.

        Raises:
            PlanError: if the file is damaged.
        """
        file = folder / PRIVATE_FILE
        if not file.exists():
            return cls(key=secrets.token_hex(16), hash=None)
        try:
            known = json.loads(file.read_bytes())
            key, print_ = known["key"], known["hash"]
        except (ValueError, KeyError, TypeError, RecursionError):
            key = print_ = None
        if not isinstance(key, str) or not isinstance(print_, str):
            raise record_stays(file, "expected the key of the private data of the record beside it, got something else")
        return cls(key=key, hash=print_)

    def keep(self, folder: Path, data: object) -> None:
        """Write the key, and the print of these data under it."""
        write_file(folder / PRIVATE_FILE, json.dumps({"key": self.key, "hash": fingerprint(self.key, data)}))

    def fits(self, data: object) -> bool:
        """True if the key was made for these data."""
        return self.hash == fingerprint(self.key, data)

    def check(self, folder: Path, data: object) -> None:
        """Compare private data with those of the record in the folder.

        Raises:
            PlanError: if they are others, or the key is gone, so that nobody can tell.
        """
        if self.hash is None:
            raise record_stays(
                folder / PRIVATE_FILE,
                "expected the key of the private data of the record beside it, got no such file, so that nobody can tell whether "
                "the record is about these data",
            )
        if not self.fits(data):
            raise record_stays(folder, "the record there is about other data or other updates")

    def sealed(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """A header with a checksum under the key: whoever edits the header, and its checksum with it, cannot make this one."""
        content = {
            key: value for key, value in header.items() if key not in ("type", "schema", "checksum", "keyed_checksum")
        }
        text = json.dumps(content, allow_nan=False, sort_keys=True).encode()
        return content | {"keyed_checksum": hmac.new(self.key.encode(), text, hashlib.sha256).hexdigest()[:32]}

    def check_header(self, file: Path, header: Mapping[str, Any]) -> None:
        """Compare a header with its checksum under the key.

        Raises:
            PlanError: if one of the two was changed.
        """
        if header.get("keyed_checksum") != self.sealed(header)["keyed_checksum"]:
            raise record_stays(
                file,
                f"the header of the record and {PRIVATE_FILE} beside it do not belong together: one of the two was edited, or is "
                "that of another run",
            )

    def hidden(self, numbers: Sequence[float], place: str) -> str:
        """Numbers that nobody reads without the key.

        Args:
            numbers: any.
            place: what they are, once under a key.
        """
        return self._mixed(struct.pack(f"<{len(numbers)}d", *numbers), place).hex()

    def shown(self, text: str, place: str) -> list[float]:
        """The numbers that `hidden` made this text of.

        Raises:
            ValueError: for another text.
        """
        content = bytes.fromhex(text)
        if len(content) % 8:
            raise ValueError("expected numbers of eight bytes")
        return list(struct.unpack(f"<{len(content) // 8}d", self._mixed(content, place)))

    def _mixed(self, content: bytes, place: str) -> bytes:
        stream = hashlib.shake_256(f"{self.key} {place}".encode()).digest(len(content))
        return bytes(one ^ other for one, other in zip(content, stream, strict=True))


BATCHES = 4
DIRECTIONS = 3
# Entries that are projected at once, which bounds the memory.
PIECE = 1 << 20
# What processors may differ by at a well-conditioned point; a map that rounds, or jumps, is given ten times what it moves by.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3}
COARSE = 5e-2
NUDGES = {torch.float64: 1e-15, torch.float32: 1e-6}
COARSE_NUDGE = 1e-2
# What a user's model or loss may raise on rows that it was not made for; such a probe is left out.
_REFUSALS = (
    GradleakError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
)
Numbers = list[float]


@dataclass(frozen=True, kw_only=True)
class Behavior:
    """Values at the probes: norm and a few projections of each tensor.

    Attributes:
        seeded: by what was computed, at seeded rows.
        private: the same at audited rows.
        tolerance: by what was computed, the relative difference up to which two values count as equal.
    """

    seeded: Mapping[str, Numbers]
    private: Mapping[str, Numbers]
    tolerance: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan) -> Behavior:
        """The values of a plan; about three gradients a scenario, and five outputs."""
        site = plan.site
        own = (audit.probed() for audit in plan.audits)
        rows = [few(batch) for batch in (*site.batches[:BATCHES], *own) if batch is not None]
        # The draws of the client's random layers are a secret.
        told = site.objective.redrawn
        with one_thread():
            drawn = _drawn(rows[0], told) if rows else None
            seeded = {} if drawn is None else _values(told, drawn, site.scenarios)
            tolerance = {} if drawn is None else _tolerances(told, drawn, site.scenarios, seeded)
            private = {
                f"rows {place}: {name}": numbers
                for place, batch in enumerate(rows)
                for name, numbers in _values(site.objective, batch, [] if place else site.scenarios).items()
            }
        return cls(seeded=seeded, private=private, tolerance=tolerance)

    def to_dict(self, key: DataKey, nonce: str) -> dict[str, Any]:
        """The entry of a header.

        Args:
            key: hides what is private.
            nonce: other than in any header before.
        """
        return {
            "seeded": dict(self.seeded),
            "hidden": {name: key.hidden(numbers, f"{nonce} {name}") for name, numbers in self.private.items()},
            "relative_tolerance": dict(self.tolerance),
            "nonce": nonce,
        }

    def difference(self, stored: Any, key: DataKey) -> str | None:
        """The first value that is another one than in a header, in words; None where all agree."""
        try:
            hidden = {name: key.shown(text, f"{stored['nonce']} {name}") for name, text in stored["hidden"].items()}
            # A record holds None for NaN, and texts for infinities.
            seeded = {
                name: [float("nan" if one is None else one) for one in numbers]
                for name, numbers in stored["seeded"].items()
            }
            pairs = [(self.seeded, seeded), (self.private, hidden)]
            tolerance = {name: float(number) for name, number in stored["relative_tolerance"].items()}
            for now, before in pairs:
                for name in {**before, **now}:
                    allowed = tolerance.get(name.split(": ")[-1], self._plain)
                    apart = _apart(now.get(name), before.get(name))
                    if not apart <= allowed:
                        far = f"{apart:.2g} apart" if name in now and name in before else "there only once"
                        return f"{name}: {far}, relative difference of at most {allowed:.2g} expected"
        except (ValueError, KeyError, TypeError, AttributeError):
            return "the header holds no proper values"
        return None

    @property
    def _plain(self) -> float:
        return max(self.tolerance.values(), default=COARSE)


def _drawn(like: Batch, objective: Objective) -> Batch | None:
    """Seeded rows of the form of a batch; nothing of their values is that of the batch. None for inputs that are no numbers."""
    tokens = like.domain is not None and like.domain.vocabulary is not None
    if not like.inputs.is_floating_point() and not tokens:
        return None
    generator = derive_generator(0, "rows that behavior is compared at")
    inputs = torch.rand(like.inputs.shape, generator=generator, dtype=torch.float64)
    if tokens:
        assert like.domain is not None
        inputs = like.domain.middle(inputs, len(inputs))
    elif like.domain is not None:
        low, high = (end.cpu() for end in like.domain.bounds(inputs))
        inputs = low + (high - low) * inputs
    inputs = inputs.to(objective.device) if tokens else inputs.to(objective.device, objective.dtype)
    found = _tried(partial(_output, objective, inputs))
    by_class = isinstance(found, Tensor) and found.dim() > 1 and not like.targets.is_floating_point()

    def whole(shaped: Tensor, below: int) -> Tensor:
        return torch.randint(below, tuple(shaped.shape), generator=generator).to(objective.device, shaped.dtype)

    targets = whole(like.targets, max(2, int(found.shape[1])) if by_class else 2)
    return Batch(inputs, targets, like.domain, None if like.sensitive is None else whole(like.sensitive, 2))


def _values(objective: Objective, rows: Batch, scenarios: Sequence[Scenario]) -> dict[str, Numbers]:
    """Numbers of what can be computed: the output, the loss, and the mean of the release of each scenario."""
    batch = rows.to(objective.dtype)
    computed: dict[str, Callable[[], Any]] = {
        "output": partial(_output, objective, batch.inputs),
        "loss": partial(objective.loss, objective.params, batch),
    }
    for scenario in scenarios:
        computed[f"mean of {scenario.name}"] = partial(_mean, scenario.release, objective, batch)
    found = {name: _tried(compute) for name, compute in computed.items()}
    return {name: _numbers(value.detach()) for name, value in found.items() if isinstance(value, Tensor)}


def _mean(release: Release, objective: Objective, batch: Batch) -> Tensor:
    return objective.flatten(release.mean(objective, objective.params, batch))


def _output(objective: Objective, inputs: Tensor) -> Any:
    with torch.no_grad():
        outputs = objective.outputs(objective.params, inputs)
    tensors = list(_tensors(outputs))
    return outputs if isinstance(outputs, Tensor) else torch.cat([one.reshape(-1).double() for one in tensors])


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(one)


def _tried(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except _REFUSALS:
        return None


def _numbers(value: Tensor) -> Numbers:
    """Norm and projections on seeded directions: a few numbers that move when any entry does."""
    flat = value.reshape(-1).cpu().double()
    generator = derive_generator(0, "directions that behavior is compared along")
    along = torch.zeros(DIRECTIONS, dtype=torch.float64)
    for piece in flat.split(PIECE):
        along += torch.randn(DIRECTIONS, piece.numel(), generator=generator).double() @ piece
    return [float(flat.norm()), *along.tolist()]


def _tolerances(
    objective: Objective, rows: Batch, scenarios: Sequence[Scenario], values: Mapping[str, Numbers]
) -> dict[str, float]:
    """Relative differences that do not count: ten times what round-off in the inputs makes, where that is more."""
    nudge = NUDGES.get(objective.dtype, COARSE_NUDGE)
    moved = _values(objective, replace(rows, inputs=rows.inputs * (1 + nudge), domain=None), scenarios)
    least = TOLERANCES.get(objective.dtype, COARSE)
    return {name: max(least, 10 * _apart(numbers, moved.get(name))) for name, numbers in values.items()}


def _apart(one: Sequence[float] | None, other: Sequence[float] | None) -> float:
    """The relative difference of two lists of numbers that begin with a norm; infinite for lists of other lengths."""
    if one is None or other is None or len(one) != len(other):
        return float("inf")
    largest = max(abs(one[0]), abs(other[0]))
    gaps = [0.0 if a == b or (a != a and b != b) else abs(a - b) for a, b in zip(one, other, strict=True)]
    if not any(gaps):
        return 0.0
    return (
        max(gaps) / largest if all(gap < float("inf") for gap in gaps) and 0 < largest < float("inf") else float("inf")
    )


def header(
    plan: Plan,
    groups: Sequence[str],
    *,
    costs: Sequence[float],
    reading: Reading,
    behavior: Behavior,
    key: DataKey,
    shard: str | None = None,
    device: torch.device | None = None,
) -> dict[str, Any]:
    """The run line of a record.

    Args:
        plan: what is done.
        groups: the names of the groups of the record, in their order.
        costs: of the first groups, the tasks: expected, in plain gradients.
        reading: of the plan.
        behavior: of the plan.
        key: of its private data.
        shard: the share of the tasks that is done, None for all.
        device: where the tasks compute; None for where the plan's tensors are.
    """
    place = plan.site.objective.device if device is None else device
    content = {
        "gradleak": stated_versions()["gradleak"],
        "plan_digest": reading.digest,
        "unread": list(reading.unread),
        "name": plan.site.name,
        "seed": plan.site.seed,
        "plan": plan.resolved(),
        "thresholds": plan.site.thresholds.to_dict(),
        "groups": list(groups),
        # Of all whose code is part of the digest by its name alone.
        "versions": {name: stated_versions()[name] for name in STATED.values()} | {"python": platform.python_version()},
        "host": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "command": " ".join(sys.argv),
        }
        | ({"accelerator": name} if (name := device_name(place)) else {}),
        # Of the kind alone: which of several equal ones it was is of no account.
        "device": place.type,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": _git_commit(),
        "threads": 1,
        "estimate": {"plain_gradients": sum(costs), "of_groups": list(costs)},
        "refusals": [str(refusal) for refusal in plan.refusals()],
        "citations": [
            {"key": citation.key, "text": citation.text(), "bibtex": citation.bibtex()} for citation in citations(plan)
        ],
        "behavior": behavior.to_dict(key, secrets.token_hex(8)),
    } | ({} if shard is None else {"shard": shard})
    return key.sealed(jsonable(content))


def citations(plan: Plan) -> list[Citation]:
    """The sources of every method that a plan uses, once each: of its audits' parts, its protocols and its defenses."""
    found: dict[str, Citation] = {}
    parts = [part for audit in plan.audits for part in audit.parts()]
    releases = [scenario.release for scenario in plan.site.scenarios]
    for source in _methods([*parts, *releases], seen=set()):
        for citation in getattr(source, "citations", ()):
            found[citation.key] = citation
    return list(found.values())


def _methods(values: Iterable[Any], seen: set[int]) -> Iterator[Any]:
    """Every object among the values and in their fields, lists and tables, in their order."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _methods(value.values(), seen)
        elif isinstance(value, list | tuple):
            yield from _methods(value, seen)
        elif callable(getattr(type(value), "identity_in_plans", None)):
            # Such as makes models of a plan: not whatever it could read.
            yield from _methods([value.identity_in_plans()], seen)
        elif (is_dataclass(value) or hasattr(value, "citations")) and id(value) not in seen:
            seen.add(id(value))
            yield value
            if is_dataclass(value) and not isinstance(value, type):
                yield from _methods([getattr(value, entry.name) for entry in fields(value)], seen)


def _git_commit() -> str | None:
    """The commit of the folder the run was started in, or None outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
