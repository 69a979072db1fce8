"""Agreement of an update with the auditor's own, tensor by tensor, and row by row in tables of words.

A head can be nearly all of the energy of an update, so that the whole agrees although the words are other ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import scipy
import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Objective,
    Release,
    TokenTables,
    Update,
    UpdateKind,
    computed_in_half,
)
from gradleak.protocols.local_steps import LocalSteps
from gradleak.results import GradleakError

# The most that an honest tensor may be off, relative to it; arithmetic of another machine leaves far less.
RESIDUAL = 0.05
# The same under noise, of whose standard deviation it is a part.
NOISY_RESIDUAL = 0.01
# A tensor whose true value is zero is what is left of numbers that cancel, so that it counts in units of the whole update.
UNITS = 8.0
# Smallest number above zero of float16: what is smaller than half of it is flushed.
SMALLEST_HALF = 2.0**-24
# Entries that a defense sets to zero or not, by how large they are, may be so much above the smallest that stays.
THRESHOLD = 1.05
# Chance that the noise of an honest client seems too large in a tensor or row, over all of them.
TOO_MUCH = 5.7e-7
MOST_NAMED = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreement:
    """Agreement of an update with the auditor's mean in every tensor, but for what an honest one may differ by.

    Attributes:
        objective: the client's loss as the auditor believes it to be.
        release: protocol and defenses as the auditor believes them to be.
        batch: a batch that the auditor holds.
        update: as it came, aligned with the objective; it tells the format that it was computed in.
        mean: the released mean (P,) of the batch.
    """

    objective: Objective
    release: Release
    batch: Batch
    update: Update
    mean: Tensor

    def causes(self, observed: Tensor, mean: Tensor | None = None) -> list[str]:
        """Clauses on the words and tensors of an update (P,) without noise that do not agree; none where all do.

        Args:
            observed: the update, flat.
            mean: what it is compared with, the released mean by default.

        **Cost**: sums over the tensors; two releases more, once, where one of these is off.
        """
        mean = self.mean if mean is None else mean
        return [*self.words(observed, mean), *_named(self._off(observed, mean))]

    def words(self, observed: Tensor, mean: Tensor | None = None) -> list[str]:
        """Clauses on the rows of the word table that tell other words than those of the batch.

        A row that no place looks up is zero in any precision. Nothing is said where a defense sets entries to zero.
        """
        mean = self.mean if mean is None else mean
        tables = self._tables
        if tables is None or not tables.shared or self._thins or any(one.flat for one in self.release.defenses):
            return []
        seen, own = (self._table(flat.double(), tables) for flat in (observed, mean))
        looked_up = own.any(dim=1)
        rounding = UNITS * self._of_weights * self.objective.params[tables.word].detach().double().norm(dim=1)
        least = rounding.to(seen) + 1e-6 * seen.norm()
        more = (~looked_up & (seen.norm(dim=1) > least)).nonzero()[:, 0].tolist()
        fewer = (looked_up & ~seen.any(dim=1)).nonzero()[:, 0].tolist()
        # What half precision flushes is no word that is missing.
        fewer = [] if self._in_half else [row for row in fewer if float(own[row].norm()) > float(least[row])]
        return _other_words(tables.word, more, fewer)

    def holds(self, observed: Tensor, mean: Tensor | None) -> bool:
        """True if every tensor of an update agrees with a mean."""
        return mean is not None and mean.shape == observed.shape and not self.causes(observed, mean)

    def turned(self, observed: Tensor) -> Iterator[str]:
        """Clauses on the square tensors that agree after they are turned over, and do not as they are."""
        seen, own = self._by_name(observed.double()), self._by_name(self.mean.double())
        floors = self._floors(self.mean)
        for name, tensor in seen.items():
            mean = own[name]
            if tensor.dim() != 2 or tensor.shape[0] != tensor.shape[1] or tensor.shape[0] < 2:
                continue
            norms = float(tensor.norm() * mean.norm())
            if norms == 0.0 or float(mean.norm()) <= floors[name]:
                continue
            here, after = (float((one * mean).sum()) / norms for one in (tensor, tensor.T))
            if after >= 0.99 > here:
                yield f"{name} is transposed (cosine {after:.4f} after turning it, {here:.4f} before)"

    def under_noise(self, residual: Tensor, noise: DiagonalGaussian) -> tuple[list[str], list[str]]:
        """Clauses on the words, and on the tensors, in which an update is further from the mean than its noise explains.

        Args:
            residual: update less mean (P,).
            noise: as stated.
        """
        parts = self._by_name(residual)
        tables = self._tables if self._tables is not None and self._tables.shared else None
        level = TOO_MUCH / (len(parts) + (0 if tables is None else tables.size))
        found, rows = self._too_large(parts, noise, tables, level)
        if found or rows:
            found, rows = self._too_large(parts, noise, tables, level, self._rounding)
        # Where most rows are off, it is the noise that is another one.
        told = tables is not None and 0 < len(rows) <= tables.size // 2
        words = _other_rows(tables.word, rows) if tables is not None and told else []
        return words, _named(found)

    def _too_large(
        self,
        parts: Mapping[str, Tensor],
        noise: DiagonalGaussian,
        tables: TokenTables | None,
        level: float,
        rounding: Tensor | None = None,
    ) -> tuple[dict[str, float], list[int]]:
        found, rows, own = {}, [], self._by_name(self.mean.double())
        floors, drift = self._floors(self.mean), None if rounding is None else self._by_name(rounding)
        for name, part in parts.items():
            size = float(own[name].norm())
            slack = NOISY_RESIDUAL * size + floors[name] + (0.0 if drift is None else float(drift[name].norm()))
            if noise.std[name] == 0.0:
                if float(part.norm()) > slack + (RESIDUAL - NOISY_RESIDUAL) * size:
                    found[name] = float(part.norm()) / max(size, floors[name], 1e-300)
                continue
            variance = noise.std[name] ** 2 + slack**2 / part.numel()
            squares = float(part.square().sum()) / variance
            if float(scipy.stats.chi2.sf(squares, part.numel())) < level:
                found[name] = float(part.norm()) / max(size, floors[name], 1e-300)
            if tables is not None and name == tables.word:
                slacks = NOISY_RESIDUAL * own[name].norm(dim=1) + floors[name]
                slacks = slacks if drift is None else slacks + drift[name].norm(dim=1)
                by_row = part.square().sum(dim=1) / (noise.std[name] ** 2 + slacks.square() / part.shape[1])
                chances = torch.as_tensor(scipy.stats.chi2.sf(by_row.cpu().numpy(), part.shape[1]))
                rows = (chances < level).nonzero()[:, 0].tolist()
        return found, rows

    def _off(self, observed: Tensor, mean: Tensor) -> dict[str, float]:
        """By name the relative residual of the tensors that do not agree."""
        residual = observed.double() - mean.double()
        if self._thins:
            residual = self._without_threshold(residual, observed, mean)
        parts, own, floors = self._by_name(residual), self._by_name(mean.double()), self._floors(mean)

        def off(drift: Mapping[str, Tensor] | None) -> dict[str, float]:
            return {
                name: float(part.norm()) / max(float(own[name].norm()), floors[name], 1e-300)
                for name, part in parts.items()
                if float(part.norm())
                > RESIDUAL * float(own[name].norm())
                + floors[name]
                + (0.0 if drift is None else float(drift[name].norm()))
            }

        found = off(None)
        return off(self._by_name(self._rounding)) if found else found

    def _floors(self, mean: Tensor) -> dict[str, float]:
        """By name the norm of what round-off alone leaves."""
        whole = float(mean.double().norm())
        # A float16 sum of entries below the smallest number is zero.
        flushed = SMALLEST_HALF if self._in_half is torch.float16 else 0.0
        return {
            name: UNITS * (self._eps * whole + self._of_weights * float(tensor.detach().double().norm()))
            + flushed * math.sqrt(tensor.numel())
            for name, tensor in self.objective.params.items()
        }

    @cached_property
    def _in_half(self) -> torch.dtype | None:
        """The half format of any tensor of the update, or that it was made in (mixed precision makes some so)."""
        for tensor in self.update.tensors.values():
            if tensor.dtype in (torch.float16, torch.bfloat16):
                return tensor.dtype
            made = computed_in_half([tensor])
            if made is not None:
                return made
        return None

    @cached_property
    def _eps(self) -> float:
        """Unit round-off of the coarsest format that took part."""
        formats = [self.objective.dtype, *(one.dtype for one in self.update.tensors.values())]
        formats += [self._in_half] if self._in_half else []
        return max(float(torch.finfo(one).eps) for one in formats if one.is_floating_point)

    @cached_property
    def _of_weights(self) -> float:
        """Share of its weights that local training rounds a tensor by; 0 for a gradient."""
        if self.update.kind is not UpdateKind.DELTA and self.release.protocol.kind is not UpdateKind.DELTA:
            return 0.0
        protocol = self.release.protocol
        steps = protocol.steps(self.batch.size) if isinstance(protocol, LocalSteps) else 1
        single = float(torch.finfo(torch.float32).eps)
        return max(single, float(torch.finfo(self._weights_in).eps)) * math.sqrt(max(steps, 1))

    @cached_property
    def _weights_in(self) -> torch.dtype:
        """The coarsest format that holds all final weights, where a client sent these in half precision."""
        start = self.objective.flatten(self.objective.params).detach().double()
        final = start - self.objective.flatten(self.update.tensors).to(start)
        close = 4 * torch.finfo(torch.float32).eps * torch.maximum(start.abs(), final.abs())
        for half in (torch.bfloat16, torch.float16):
            if bool(((final - final.to(half).double()).abs() <= close).all()):
                return half
        return self.objective.dtype

    @cached_property
    def _rounding(self) -> Tensor:
        """Residual (P,) that round-off and draws of the model may leave, as far as a second computation shows it.

        That in single precision beside that in double precision: round-off grows on its way through deep models and
        local steps, and decides signs and steps of Adam where a gradient is zero. In train mode other dropout masks, too,
        which a client that sent its update need not share.
        """
        low = torch.float32 if self.objective.dtype is torch.float64 else self.objective.dtype
        other = torch.float32 if self.objective.dtype is torch.float64 else torch.float64
        units = UNITS * max(1.0, self._eps / float(torch.finfo(low).eps))
        found = units * self._apart(self.objective.to(other))
        if self.objective.draws(self.batch.inputs, self.batch.targets):
            found = found + 3.0 * self._apart(self.objective.redrawn)
        return found

    def _apart(self, other: Objective) -> Tensor:
        try:
            batch = self.batch.to(other.dtype)
            mean = other.flatten(self.release.mean(other, other.params, batch)).detach()
        except (GradleakError, RuntimeError, ValueError):
            return torch.zeros_like(self.mean, dtype=torch.float64)
        apart = (mean.to(self.mean.device).double() - self.mean.double()).abs()
        return torch.nan_to_num(apart, nan=0.0, posinf=0.0)

    @property
    def _thins(self) -> bool:
        return any(defense.kept_share is not None for defense in self.release.defenses)

    def _without_threshold(self, residual: Tensor, observed: Tensor, mean: Tensor) -> Tensor:
        """The residual without entries that are zero on one side and just above the threshold on the other."""
        parts = []
        for left, seen, own in zip(
            *(self._by_name(flat.double()).values() for flat in (residual, observed, mean)), strict=True
        ):
            sizes = torch.maximum(seen.abs(), own.abs())
            kept = sizes[sizes > 0]
            least = float(kept.min()) if kept.numel() else 0.0
            one_sided = ((seen == 0) != (own == 0)) & (sizes <= THRESHOLD * least)
            parts.append(torch.where(one_sided, 0.0, left).reshape(-1))
        return torch.cat(parts)

    @cached_property
    def _tables(self) -> TokenTables | None:
        inputs = self.batch.inputs
        if inputs.is_floating_point() or inputs.dim() != 2:
            return None
        try:
            return self.objective.token_tables(inputs.shape[1])
        except GradleakError:
            return None

    def _table(self, flat: Tensor, tables: TokenTables) -> Tensor:
        return self._by_name(flat)[tables.word]

    def _by_name(self, flat: Tensor) -> Mapping[str, Tensor]:
        """Tensors by name out of a flat one (P,), in its own dtype."""
        pieces = flat.split([tensor.numel() for tensor in self.objective.params.values()])
        return {
            name: piece.reshape(tensor.shape)
            for (name, tensor), piece in zip(self.objective.params.items(), pieces, strict=True)
        }


def _named(off: Mapping[str, float]) -> list[str]:
    """One clause on the tensors that do not agree, the worst first."""
    if not off:
        return []
    worst = sorted(off, key=lambda name: -off[name])
    shown = ", ".join(f"{name} (off by {off[name]:.3g} of its norm)" for name in worst[:MOST_NAMED])
    more = f" and {len(worst) - MOST_NAMED} more" if len(worst) > MOST_NAMED else ""
    return [
        f"tensors that do not agree: {shown}{more}; the whole update would hide it: probably another example of the same "
        "class, or a layer that the client computed otherwise"
    ]


def _other_words(table: str, more: Sequence[int], fewer: Sequence[int]) -> list[str]:
    found = []
    if more:
        found.append(
            f"rows {_rows(more)} of the word table {table} are not zero, though no word of the batch looks them up"
        )
    if fewer:
        found.append(f"rows {_rows(fewer)} of it are zero" if more else f"rows {_rows(fewer)} of {table} are zero")
    return [f"other words than in the stated batch: {', and '.join(found)}"] if found else []


def _other_rows(table: str, rows: Sequence[int]) -> list[str]:
    return [
        f"other words than in the stated batch: rows {_rows(rows)} of the word table {table} differ by more than the noise"
    ]


def _rows(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:MOST_NAMED]))
    return f"{shown} and {len(rows) - MOST_NAMED} more" if len(rows) > MOST_NAMED else shown
