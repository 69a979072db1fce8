"""Updates of clients that shuffle: is one as near to the mean over orders as those that the auditor draws itself?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradleak.core import Batch, Mode, Objective, Release
from gradleak.protocols.local_steps import LocalSteps, mini_batches
from gradleak.results import GradleakError

# An update of another drawn order lies further out than all of so many once in a hundred times.
ORDERS = 99
# Of each wrong cause so many updates are drawn to see how often it would be refused, and this share has to be.
TRIALS, POWER = 25, 0.8
# Updates are held as they are up to this.
MOST_BYTES = 1 << 28
# Round-off of an update that another machine computed, relative to it.
ROUND_OFF = 1e-5
# The least spread over that of orders: directions with less count as if they had so much.
RIDGE = 1e-5
TINY = 1e-300


@dataclass(frozen=True, kw_only=True, eq=False)
class Cause:
    """One thing that the client may have done otherwise.

    Attributes:
        text: what it is.
        objective: its loss.
        release: its protocol and defenses.
        batch: its batch.
    """

    text: str
    objective: Objective
    release: Release
    batch: Batch

    def drawn(self, count: int, seed: int) -> Iterator[Tensor]:
        """Updates (P,) of so many drawn orders (and draws of defenses), in double precision."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            update = self.release(self.objective, self.batch, generator)
            yield self.objective.flatten(update.tensors).double()


@dataclass(frozen=True, kw_only=True, eq=False)
class Orders:
    """The updates of drawn orders, and how unusual among them one may be.

    How unusual an update u is says the larger of two numbers: how far it is from the mean of the others, or how near (a
    client that takes whole batches is at the mean), and how far off their span, √((u − m)ᵀ(S + εI)⁻¹(u − m)) with their
    mean m and covariance S. Orders move an update along few directions, so that a little of anything else shows. Both are
    logarithms, less their median over the drawn updates and in units of its median deviation.

    Attributes:
        rows: 99 updates (99, P), or a sketch of them.
        sketch: what makes a row of an update.
    """

    rows: Tensor
    sketch: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, release: Release, objective: Objective, batch: Batch) -> Orders:
        """The orders of a client that shuffles.

        **Cost**: 99 releases.
        """
        sketch = _sketch(objective.size)
        cause = Cause(text="", objective=objective, release=release, batch=batch)
        return cls(rows=torch.stack([sketch(row) for row in cause.drawn(ORDERS, 0)]), sketch=sketch)

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the drawn updates."""
        return self.rows.mean(dim=0)

    def hold(self, observed: Tensor) -> bool:
        """True if an update (P,) is no more unusual among the drawn ones than the most unusual of them among the others.

        For an update of another drawn order this fails once in a hundred times.
        """
        off = self.sketch(observed.double()) - self.mean
        logs = self._unusual(self._gram, (self.rows - self.mean) @ off, float(off @ off))
        return float(self._scored(logs[None])) <= float(self._scored(self._alone).max()) * (1 + 1e-6)

    @cached_property
    def _gram(self) -> Tensor:
        apart = self.rows - self.mean
        return apart @ apart.T

    @cached_property
    def _alone(self) -> Tensor:
        """Both logarithms for every drawn update among the others, (99, 2)."""
        places, found = torch.arange(len(self.rows)), []
        for i in places.tolist():
            others = places[places != i]
            gram = self._gram
            found.append(self._unusual(gram[others][:, others], gram[others, i], float(gram[i, i])))
        return torch.stack(found)

    def _unusual(self, gram: Tensor, cross: Tensor, square: float) -> Tensor:
        """Logarithms of the distance of an update from the mean of others, and of that in units of their spread.

        Args:
            gram: products of the others (n, n), all less one point.
            cross: products of them with the update (n,), less the same point.
            square: of the update less that point.
        """
        count = len(gram)
        across = gram.mean(dim=1)
        products = gram - across - across[:, None] + gram.mean()
        apart = cross - cross.mean() - across + gram.mean()
        distance = max(square - 2 * float(cross.mean()) + float(gram.mean()), 0.0)
        # Least spread in any direction: a share of what orders do, and no less than round-off.
        floor = (ROUND_OFF * float(self.mean.norm())) ** 2 + TINY
        least = RIDGE * float(products.trace()) / count + floor
        along = torch.linalg.solve(products + count * least * torch.eye(count).to(products), apart)
        spread = max(distance - float(apart @ along), 0.0) / least
        return torch.tensor([math.log(distance + least), math.log(spread + 1.0)], dtype=torch.float64)

    def _scored(self, logs: Tensor) -> Tensor:
        """Scores of how unusual updates are, from their logarithms (n, 2)."""
        middle = self._alone.median(dim=0).values
        scale = (self._alone - middle).abs().median(dim=0).values.clamp(min=1e-12)
        scores = (logs - middle) / scale
        return torch.maximum(scores[:, 0].abs(), scores[:, 1])

    def power(self, cause: Cause) -> float | None:
        """Share of the updates of a wrong cause that `hold` refuses; None where there are none to draw."""
        try:
            refused = [not self.hold(row) for row in cause.drawn(TRIALS, 1)]
        except (GradleakError, RuntimeError, ValueError):
            return None
        return sum(refused) / len(refused)


def _sketch(size: int) -> Callable[[Tensor], Tensor]:
    """Function from an update (P,) to what is kept: all, or signed sums of entries where 99 updates would not fit."""
    if ORDERS * size * 8 <= MOST_BYTES:
        return lambda row: row
    kept = MOST_BYTES // (ORDERS * 8)
    generator = torch.Generator().manual_seed(0)
    place = torch.randint(kept, (size,), generator=generator)
    sign = 2.0 * torch.randint(2, (size,), generator=generator).double() - 1
    return lambda row: torch.zeros(kept, dtype=torch.float64).index_add_(0, place, sign * row.cpu())


def powers(release: Release, objective: Objective, batch: Batch, orders: Orders) -> Mapping[str, float]:
    """By cause, the share of updates that are refused of a client that shuffles too, and does one thing otherwise.

    **Cost**: 25 releases a cause, some eight of them.
    """
    found = {cause.text: orders.power(cause) for cause in wrong_causes(release, objective, batch)}
    return {text: power for text, power in found.items() if power is not None}


def wrong_causes(release: Release, objective: Objective, batch: Batch) -> list[Cause]:
    """Clients that shuffle as this one does and do one thing otherwise: what the gate has to find to say *consistent*.

    Twice the learning rate, the epochs or the mini-batches, whole batches, momentum or none, the other mode where
    it makes a difference, and a batch in which one example is another.
    """
    here = Cause(text="", objective=objective, release=release, batch=batch)
    found = [
        replace(here, text=text, release=replace(release, protocol=protocol))
        for text, protocol in _other_protocols(release.protocol, batch.size)
    ]
    other = objective.in_mode(Mode.EVAL if objective.mode is Mode.TRAIN else Mode.TRAIN)
    if _differ(objective, other, batch):
        found.append(replace(here, text=f"{other.mode.value} mode", objective=other))
    found.append(replace(here, text="another example in one place of the batch", batch=_one_turned(batch)))
    return found


def _other_protocols(protocol: object, examples: int) -> Iterator[tuple[str, LocalSteps]]:
    if not isinstance(protocol, LocalSteps):
        return
    yield "twice the learning rate", replace(protocol, learning_rate=2 * protocol.learning_rate)
    if protocol.schedule is None:
        yield f"epochs={2 * protocol.epochs}", replace(protocol, epochs=2 * protocol.epochs)
    if len(mini_batches(examples, protocol.batch_size)) > 1:
        yield "whole batches in place of mini-batches", replace(protocol, batch_size=None)
        twice = 2 * (protocol.batch_size or examples)
        if twice < examples:
            yield f"batch_size={twice}", replace(protocol, batch_size=twice)
    momentum: dict[str, Any] = {"momentum": 0.0 if getattr(protocol, "momentum", 0.0) else 0.9}
    if "momentum" in {field.name for field in fields(protocol)} and not getattr(protocol, "nesterov", False):
        yield f"momentum={momentum['momentum']:g}", replace(protocol, **momentum)


def _one_turned(batch: Batch) -> Batch:
    """The batch with its first example turned over, its last axis backward: another one with the same numbers."""
    inputs = batch.inputs.clone()
    inputs[0] = inputs[0].flip(-1)
    return batch.with_inputs(inputs)


def _differ(first: Objective, second: Objective, batch: Batch) -> bool:
    """True if the mode of the model changes its gradient."""
    batch = batch.to(first.dtype)
    try:
        one, two = (side.flatten(side.gradient(side.params, batch)) for side in (first, second))
    except (GradleakError, RuntimeError, ValueError):
        return False
    return not torch.allclose(one, two, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
