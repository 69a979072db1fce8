"""Distance of a candidate's update from the one that was seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch import Tensor

from gradleak.core import Objective
from gradleak.results import DENG_2021, Citation, InputError, NonNegative, Settings

Rows = Sequence[Tensor]
"""An update, one tensor a parameter."""

SMALL, LARGE = 1e-20, 1e20
"""Squares between these are far from under- and overflow in single precision, sums of many of them included."""

SMALLEST_TENSOR = 1e-6
"""Tensors whose root mean square is this share of the largest one's, or less, hold round-off alone."""

Slope = Callable[[Rows], tuple[Tensor, list[Tensor]]]
"""The distance of a candidate from a fixed target, and its derivative by the candidate."""


class Matching(Settings, ABC):
    """A distance between two updates; pure and safe under torch.func transforms.

    Authors write `__call__`; `against` has a default by automatic differentiation, and a formula in its place saves
    passes over the update, which on a network of millions of parameters take as long as its gradient.
    """

    citations: tuple[Citation, ...] = ()

    @abstractmethod
    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The distance, a scalar of at least 0.

        Args:
            candidate: the released mean of the current guess, flat (P,).
            target: the update that was seen, flat (P,), not zero.
        """

    def against(self, target: Rows) -> Slope:
        """The same distance from one target, with its derivative by the candidate; tensors of any shapes."""
        seen = torch.cat([entry.reshape(-1) for entry in target])

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            flat = torch.cat([entry.reshape(-1) for entry in candidate])
            derivative, value = torch.func.grad_and_value(lambda guess: self(guess, seen))(flat)
            pieces = derivative.split([entry.numel() for entry in candidate])
            return value, [piece.reshape(entry.shape) for piece, entry in zip(pieces, candidate, strict=True)]

        return slope

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        """The same distance of updates that are lists of tensors; pure, and without a decision that a compiler minds.

        What compiled attacks differentiate: a formula in place of the default makes no flat copy of an update.
        """
        return self(*(torch.cat([entry.reshape(-1) for entry in rows]) for rows in (candidate, target)))

    def bind(self, objective: Objective) -> Matching:
        """The same distance for the parameters of this model; what it says about layers becomes numbers.

        Raises:
            InputError: if it names a layer that the model does not have.
        """
        del objective
        return self

    def at_round_off(self, residual: float) -> float:
        """The distance that a relative residual ‖g − g*‖ / ‖g*‖ as small as floating point allows leaves."""
        return residual**2

    def looked_at(self, target: Tensor) -> Tensor:
        """The target (P,) with zeros where this distance does not look; all of it unless a distance says otherwise."""
        return target


@dataclass(frozen=True, kw_only=True)
class SquaredError(Matching):
    """‖g − g*‖² / ‖g*‖²: the relative squared residual.

    The division makes the number independent of the update's scale, so that the tiny gradients of a converged model do
    not read as a small residual; 1 is what g = 0 reaches.

    **Source**: Zhang et al. 2023, equation 1, and Zhu et al. 2019, equation 4, without the division.
    """

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The relative squared residual."""
        scale = target.abs().max()
        return ((candidate - target) / scale).square().sum() / (target / scale).square().sum()

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        """The relative squared residual."""
        scale = _largest(target)
        gap = [(guess - seen) / scale for guess, seen in zip(candidate, target, strict=True)]
        return _sum_of_squares(gap) / _sum_of_squares([seen / scale for seen in target])

    def against(self, target: Rows) -> Slope:
        """The relative squared residual and 2 (g − g*) / ‖g*‖²."""
        scale = _largest(target)
        norm = _squared([entry / scale for entry in target])
        ordinary = bool((scale**2 > SMALL) & (scale**2 < LARGE))
        if ordinary:
            norm, scale = norm * scale**2, torch.ones_like(scale)
        factor = 2 / (norm * scale)

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            gap = [guess - seen for guess, seen in zip(candidate, target, strict=True)]
            if not ordinary:  # the square of a tiny or huge scale is no number in single precision
                gap = [entry.div_(scale) for entry in gap]
            value = _squared(gap) / norm
            return value, [entry.mul_(factor) for entry in gap]

        return slope


@dataclass(frozen=True, kw_only=True)
class CosineDistance(Matching):
    """1 − cos(g, g*), between 0 and 2; a positive scale of either does not matter.

    Computed as ½‖g/‖g‖ − g*/‖g*‖‖², the same number without the loss of digits near 0. A zero candidate has distance 1
    and derivative 0.

    **Source**: Geiping et al. 2020, equation 4.

    Examples:
        >>> import torch
        >>> distance = CosineDistance()
        >>> float(distance(torch.tensor([0.0, 2.0]), torch.tensor([3.0, 0.0])))
        1.0
        >>> float(distance(torch.tensor([2.0, 0.0]), torch.tensor([3.0, 0.0])))
        0.0
    """

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """One minus the cosine."""
        scale = target.abs().max()
        unit = target / scale
        unit = unit / unit.square().sum().sqrt()
        # The largest entry is a constant divisor: it keeps squares away from under- and overflow.
        size = candidate.detach().abs().max()
        nothing = size == 0
        scaled = candidate / torch.where(nothing, 1.0, size)
        squared = scaled.square().sum()
        direction = scaled * torch.rsqrt(torch.where(nothing, 1.0, squared))
        return torch.where(nothing, 1.0, 0.5 * (direction - unit).square().sum())

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        """One minus the cosine; a candidate beyond 1e±18 times the target counts as zero or is not finite."""
        scale = _largest(target)
        length = _sum_of_squares([seen / scale for seen in target]).sqrt() * scale
        scaled = [guess / scale for guess in candidate]
        squared = _sum_of_squares(scaled)
        nothing = squared == 0
        inverse = torch.rsqrt(torch.where(nothing, 1.0, squared))
        gap = [guess * inverse - seen / length for guess, seen in zip(scaled, target, strict=True)]
        return torch.where(nothing, 1.0, 0.5 * _sum_of_squares(gap))

    def against(self, target: Rows) -> Slope:
        """1 − c and (c ĝ − ĝ*) / ‖g‖, hats for unit vectors; from d = ĝ − ĝ*, whose digits survive near c = 1."""
        found = _unit(target)
        if found is None:
            raise InputError("CosineDistance.against: expected a target that is not zero")
        unit = found[0]

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            squared = _squared(candidate)
            if bool((squared > SMALL) & (squared < LARGE)):
                norm, direction = float(squared.sqrt()), candidate
                inverse = 1 / norm
            else:  # zero, not finite, or squares that are no numbers
                found = _unit(candidate)
                if found is None:
                    return candidate[0].new_ones(()), [torch.zeros_like(entry) for entry in candidate]
                direction, norm = found[0], float(found[1])
                inverse = 1.0
            # Few passes over the update: on a large network each takes a twentieth of its gradient.
            gap = [torch.add(seen, guess, alpha=-inverse) for guess, seen in zip(direction, unit, strict=True)]
            value = 0.5 * _squared(gap)
            factor = -float(value) * inverse / norm
            return value, [
                entry.mul_(-1 / norm).add_(guess, alpha=factor) for entry, guess in zip(gap, direction, strict=True)
            ]

        return slope


@dataclass(frozen=True, kw_only=True)
class AbsoluteError(Matching):
    """‖g − g*‖₁ / ‖g*‖₁: the relative absolute residual, the likelihood of Laplace noise.

    1 is what g = 0 reaches. Entries that are far off count less than by squares.
    """

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The relative absolute residual."""
        scale = target.abs().max()
        return ((candidate - target) / scale).abs().sum() / (target / scale).abs().sum()

    def at_round_off(self, residual: float) -> float:
        """The relative residual itself."""
        return residual


@dataclass(frozen=True, kw_only=True)
class SquaredAndAbsoluteError(Matching):
    """‖g − g*‖² / ‖g*‖² + a · ‖g − g*‖₁ / ‖g*‖₁: squares see the large entries, absolute values the many small ones.

    **Source**: Deng et al. 2021 (TAG), equation 5: ‖·‖₂ + α(layer) ‖·‖₁. Deviations: both terms are relative to what
    g = 0 reaches, and squares take the place of the norm; weights that differ by layer are `LayerWeights`.

    Attributes:
        absolute: a, at least 0.

    Raises:
        InputError: for a negative weight.
    """

    citations = (DENG_2021,)

    absolute: NonNegative = 0.1

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The sum of both relative residuals."""
        scale = target.abs().max()
        gap = (candidate - target) / scale
        seen = target / scale
        return gap.square().sum() / seen.square().sum() + self.absolute * gap.abs().sum() / seen.abs().sum()

    def at_round_off(self, residual: float) -> float:
        """True if both terms are at round-off."""
        return residual**2 + self.absolute * residual


@dataclass(frozen=True, kw_only=True)
class LayerwiseError(Matching):
    """Mean over tensors l of w_l (‖g_l − g*_l‖² / ‖g*_l‖² + a ‖g_l − g*_l‖₁ / ‖g*_l‖₁).

    Each tensor counts relative to its own size, so that the scale of the weights decides nothing: in a network that starts
    at a small scale nearly all of ‖g*‖² lies in the head, which says little of the words. Tensors whose entries are below
    1e-6 of the largest ones' (root mean square) are round-off, and left out.

    **Source**: Deng et al. 2021 (TAG), equation 5, whose α(layer) weighs layers by their place; here by their size, too.
    Without `relative` Σ_l ‖g_l − g*_l‖² + a w_l ‖g_l − g*_l‖₁, over ‖g*‖², as in breaching's code.

    Attributes:
        absolute: a, at least 0.
        fading: whether w_l falls from 1 for the first tensor to 1/L for the last of L; else w_l is 1.
        relative: whether tensors count relative to their size.

    Raises:
        InputError: for a negative weight; when it is called before it is bound to a model.
    """

    citations = (DENG_2021,)

    absolute: NonNegative = 0.1
    fading: bool = True
    relative: bool = True

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """Nothing: layers have to be bound to a model first."""
        raise InputError("LayerwiseError: expected a bound distance; call bind(objective) first, as the engine does")

    def bind(self, objective: Objective) -> Matching:
        """For the tensors of a model."""
        sizes = tuple(tensor.numel() for tensor in objective.params.values())
        return _Layerwise(absolute=self.absolute, fading=self.fading, relative=self.relative, sizes=sizes)

    def at_round_off(self, residual: float) -> float:
        """The squares alone, which is less than both terms."""
        return residual**2 / 2


@dataclass(frozen=True, kw_only=True)
class _Layerwise(LayerwiseError):
    sizes: tuple[int, ...]

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        return self.between(candidate.split(self.sizes), target.split(self.sizes))

    def bind(self, objective: Objective) -> Matching:
        return self

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        by_square, by_length = self._weights(target)
        gaps = [guess - seen for guess, seen in zip(candidate, target, strict=True)]
        scale = _largest(target)
        squared = torch.stack([(gap / scale).square().sum() for gap in gaps])
        return (by_square * squared + by_length * torch.stack([(gap / scale).abs().sum() for gap in gaps])).sum()

    def against(self, target: Rows) -> Slope:
        by_square, by_length = self._weights(target)
        scale = _largest(target)

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            value, derivative = by_square.new_zeros(()), []
            for place, (guess, seen) in enumerate(zip(candidate, target, strict=True)):
                gap = (guess - seen) / scale
                square, length = by_square[place], by_length[place]
                value = value + square * gap.square().sum() + length * gap.abs().sum()
                derivative.append((2 * square * gap + length * gap.sign()) / scale)
            return value, derivative

        return slope

    def _weights(self, target: Rows) -> tuple[Tensor, Tensor]:
        """Weights of squares and of absolute values of each tensor (L,), where the largest entry of the target is 1."""
        scale = _largest(target)
        squares = torch.stack([(entry / scale).square().sum() for entry in target])
        count = len(target)
        fading = torch.arange(count, 0, -1, device=squares.device, dtype=squares.dtype) / count
        fading = fading if self.fading else torch.ones_like(squares)
        if not self.relative:
            whole = squares.sum()
            return torch.ones_like(squares) / whole, fading * self.absolute / (whole * scale)
        means = squares / squares.new_tensor([entry.numel() for entry in target])
        heard = means > means.amax() * SMALLEST_TENSOR**2
        lengths = torch.stack([(entry / scale).abs().sum() for entry in target])
        weights = torch.where(heard, fading / count, 0.0)
        return weights / torch.where(heard, squares, 1.0), weights * self.absolute / torch.where(heard, lengths, 1.0)


@dataclass(frozen=True, kw_only=True)
class SharedEntries(Matching):
    """Another distance over the entries in which the update is not zero.

    For updates that were pruned or shared in part by a client whose defense the adversary does not know: what was not
    sent is not matched. A zero that was sent is left out, too.

    Attributes:
        matching: the distance.
    """

    matching: Matching

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The distance over shared entries."""
        return self.matching(torch.where(target != 0, candidate, 0.0), target)

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        """The distance over shared entries."""
        return self.matching.between(_masked(candidate, [entry != 0 for entry in target]), target)

    def against(self, target: Rows) -> Slope:
        """The distance over shared entries and its derivative, zero elsewhere."""
        masks = [entry != 0 for entry in target]
        inner = self.matching.against(target)

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            value, derivative = inner(_masked(candidate, masks))
            return value, _masked(derivative, masks)

        return slope

    def bind(self, objective: Objective) -> Matching:
        """With the inner distance bound."""
        return SharedEntries(matching=self.matching.bind(objective))

    def looked_at(self, target: Tensor) -> Tensor:
        """As the inner distance."""
        return self.matching.looked_at(target)

    def at_round_off(self, residual: float) -> float:
        """As the inner distance."""
        return self.matching.at_round_off(residual)


@dataclass(frozen=True, kw_only=True)
class LayerWeights(Matching):
    """Another distance between updates whose tensors were multiplied by weights first.

    With `SquaredError` a weight w multiplies the squares of its layer by w². 0 leaves a layer out.

    Attributes:
        matching: the distance.
        weights: by parameter name, or by a layer's name for all of its parameters; the longest name that fits counts.
        default: the weight of all others.

    Raises:
        InputError: for a negative weight; when bound, for a name that the model does not have.
    """

    matching: Matching
    weights: Mapping[str, NonNegative]
    default: NonNegative = 1.0

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """Nothing: layers have to be bound to a model first."""
        raise InputError("LayerWeights: expected a bound distance; call bind(objective) first, as the engine does")

    def bind(self, objective: Objective) -> Matching:
        """With one weight a parameter."""
        for name in self.weights:
            if not any(_belongs(parameter, name) for parameter in objective.params):
                near = get_close_matches(name, _layers(objective), n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise InputError(
                    f"LayerWeights.weights: expected names of layers or parameters of the model, got {name!r}{hint}"
                )
        factors = []
        for parameter in objective.params:
            fitting = [name for name in self.weights if _belongs(parameter, name)]
            factors.append(self.weights[max(fitting, key=len)] if fitting else self.default)
        sizes = [tensor.numel() for tensor in objective.params.values()]
        return _Weighted(matching=self.matching.bind(objective), factors=tuple(factors), sizes=tuple(sizes))


@dataclass(frozen=True, kw_only=True)
class _Weighted(Matching):
    """A distance after multiplication by one factor a parameter."""

    matching: Matching
    factors: tuple[float, ...]
    sizes: tuple[int, ...]

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        return self.matching(self._flat(candidate), self._flat(target))

    def _flat(self, flat: Tensor) -> Tensor:
        return torch.cat([piece * factor for piece, factor in zip(flat.split(self.sizes), self.factors, strict=True)])

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        return self.matching.between(self._scaled(candidate), self._scaled(target))

    def against(self, target: Rows) -> Slope:
        inner = self.matching.against(self._scaled(target))

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            value, derivative = inner(self._scaled(candidate))
            return value, self._scaled(derivative)

        return slope

    def looked_at(self, target: Tensor) -> Tensor:
        return self.matching.looked_at(self._flat(target))

    def _scaled(self, rows: Rows) -> list[Tensor]:
        return [entry * factor for entry, factor in zip(rows, self.factors, strict=True)]

    def at_round_off(self, residual: float) -> float:
        return self.matching.at_round_off(residual)


def _masked(rows: Rows, masks: Rows) -> list[Tensor]:
    return [torch.where(mask, entry, 0.0) for entry, mask in zip(rows, masks, strict=True)]


def _belongs(parameter: str, name: str) -> bool:
    return parameter == name or parameter.startswith(name + ".")


def _layers(objective: Objective) -> list[str]:
    return sorted({*objective.params, *(name.rpartition(".")[0] for name in objective.params)} - {""})


def _largest(rows: Rows) -> Tensor:
    return torch.stack([entry.abs().max() for entry in rows if entry.numel()]).max()


def _squared(rows: Rows) -> Tensor:
    """‖·‖², one pass a tensor without a copy."""
    flat = [entry.reshape(-1) for entry in rows]
    return torch.stack([torch.dot(entry, entry) for entry in flat]).sum()


def _sum_of_squares(rows: Rows) -> Tensor:
    """‖·‖², differentiable twice and safe under torch.func transforms."""
    return torch.stack([entry.square().sum() for entry in rows]).sum()


def _unit(rows: Rows) -> tuple[list[Tensor], Tensor] | None:
    """The unit vector and the norm, or None for the zero vector; squares are taken after division by the largest."""
    size = _largest(rows)
    if not bool(size != 0):
        return None
    scaled = [entry / size for entry in rows]
    norm = _squared(scaled).sqrt()
    return [entry.div_(norm) for entry in scaled], size * norm
