"""Behavior of a plan's code at a few inputs: what a digest cannot see is seen here, as far as the probes reach.

Model output, loss and the mean of every release are taken at seeded inputs, whose values anyone may read, and at a few of the
audited rows, whose values are hidden under the key of the private data. They are never hashed, but compared within a stated
relative tolerance, so that other processors, which round otherwise, agree. What code does elsewhere is not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradleak.auditing.data_key import DataKey
from gradleak.auditing.plan import Plan
from gradleak.audits.base import Scenario
from gradleak.audits.base.own_rows import few
from gradleak.core import Batch, Objective, Release, derive_generator, one_thread
from gradleak.results import GradleakError

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
    if not like.inputs.is_floating_point():
        return None
    generator = derive_generator(0, "rows that behavior is compared at")
    inputs = torch.rand(like.inputs.shape, generator=generator, dtype=torch.float64)
    if like.domain is not None:
        low, high = (end.cpu() for end in like.domain.bounds(inputs))
        inputs = low + (high - low) * inputs
    inputs = inputs.to(objective.device, objective.dtype)
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
