"""Reading of an update by an adversary who knows the defenses: forward through a guess, and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.inversion.matching import Matching, Rows, Slope
from gradleak.core import BatchDefense, Bounds, DiagonalGaussian, Objective, Release, UpdateDefense


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """A release in two parts: the defenses that a guess is put through, and the last ones, which are read backward.

    A defense such as pruning, a sign or a rounding tells of every entry that went in between which numbers it was
    (`before`). A guess then need not be defended in the same way, which has a derivative of zero or one that jumps: it
    has to lie within those bounds. With u for the update that was seen and v for the guess's, the adversary compares u
    not with the defended v but with

        read(v) = u + (v − clamp(v, lower, upper)),

    which is u where v is as it may be; where an entry is known, it is v itself, times what the defense multiplied it by.
    Where the scale is lost (signs), v is first scaled to the root mean square of u. Where the middle of the bounds is
    likelier than their edges (random rounding), v − clamp(v) becomes e·min(1, (e/h)²) for a distance e from the middle
    of bounds of width 2h: between the squares of a Gaussian law and bounds alone. On small networks that halves the
    error of squares, and bounds alone triple it; for rounding to nearest bounds alone leave a tenth to a third.

    Attributes:
        release: protocol and the defenses whose mean is followed.
        last: the defenses that are read backward, in the order in which they act.
        names: of the parameters, in the order of an update's tensors.
        shapes: of the parameters.
    """

    release: Release
    last: Sequence[UpdateDefense | BatchDefense]
    names: Sequence[str]
    shapes: Sequence[torch.Size]

    @classmethod
    def of(cls, release: Release, objective: Objective) -> Reading:
        """The reading of a release as it is known to the adversary."""
        defenses, last = list(release.defenses), list[UpdateDefense | BatchDefense]()
        probe = {name: tensor.detach() for name, tensor in objective.params.items()}
        while defenses:
            defense = defenses[-1]
            if not isinstance(defense, UpdateDefense | BatchDefense) or defense.before(Bounds.of(probe)) is None:
                break
            last.insert(0, defense)
            defenses.pop()
        return cls(
            release=replace(release, defenses=tuple(defenses)) if last else release,
            last=tuple(last),
            names=tuple(objective.params),
            shapes=tuple(tensor.shape for tensor in objective.params.values()),
        )

    @property
    def bounded(self) -> bool:
        """True if anything is read backward."""
        return bool(self.last)

    @property
    def keeps_scale(self) -> bool:
        """True if the update tells how long it was."""
        return all(defense.keeps_scale for defense in self.last if isinstance(defense, UpdateDefense))

    @property
    def centered(self) -> bool:
        """True if the middle of the bounds is likelier than their edges."""
        return any(defense.centered for defense in self.last if isinstance(defense, UpdateDefense))

    @property
    def words(self) -> str:
        """Description for the card of information; "" for nothing."""
        followed = [
            type(defense).__name__
            for defense in self.release.defenses
            if isinstance(defense, UpdateDefense | BatchDefense) and _bends(defense, self.names, self.shapes)
        ]
        parts = []
        if self.last:
            names = " and ".join(type(defense).__name__ for defense in self.last)
            parts.append(f"the bounds that {names} leave of every entry")
        if followed:
            parts.append(f"{' and '.join(followed)} not read backward: a guess is put through its mean")
        return "; ".join(parts)

    def bounds(self, seen: Rows) -> tuple[list[Tensor], list[Tensor]]:
        """Lower and upper bounds of the update before the last defenses; pure."""
        known = Bounds.of(dict(zip(self.names, seen, strict=True)))
        for defense in reversed(self.last):
            found = defense.before(known)
            assert found is not None
            known = found
        return [known.lower[name] for name in self.names], [known.upper[name] for name in self.names]

    def read(self, made: Rows, seen: Rows, bounds: tuple[Rows, Rows] | None = None) -> list[Tensor]:
        """Tensors to hold against the update that was seen: see the class; pure and safe under torch.func."""
        if not self.last:
            return list(made)
        lower, upper = bounds or self.bounds(seen)
        if not self.keeps_scale:
            factor = _root_mean_square(seen) / _root_mean_square(made)
            made = [entry * factor for entry in made]
        held = _centered if self.centered else _held
        return [held(*entries) for entries in zip(made, seen, lower, upper, strict=True)]

    def read_flat(self, made: Tensor, seen: Tensor) -> Tensor:
        """The same for flat updates (P,)."""
        if not self.last:
            return made
        return torch.cat([entry.reshape(-1) for entry in self.read(self.rows(made), self.rows(seen))])

    def known_entries(self, seen: Tensor) -> Tensor:
        """Mask (P,) of the entries of the flat update that are known exactly."""
        lower, upper = self.bounds(self.rows(seen))
        return torch.cat([(low == high).reshape(-1) for low, high in zip(lower, upper, strict=True)])

    def rows(self, flat: Tensor) -> list[Tensor]:
        """A flat update as tensors."""
        pieces = flat.split([shape.numel() for shape in self.shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def matching(self, matching: Matching) -> Matching:
        """A distance of a guess's update from the one that was seen, through this reading."""
        return ReadMatching(matching=matching, reading=self) if self.last else matching


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadMatching(Matching):
    """Another distance between read(v) and the update that was seen.

    Attributes:
        matching: the distance, bound to the model.
        reading: of the release.
    """

    matching: Matching
    reading: Reading

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        """The distance after reading."""
        return self.matching(self.reading.read_flat(candidate, target), target)

    def between(self, candidate: Rows, target: Rows) -> Tensor:
        """The distance after reading."""
        return self.matching.between(self.reading.read(candidate, target), target)

    def against(self, target: Rows) -> Slope:
        """The distance after reading, with its derivative through it."""
        bounds = self.reading.bounds(target)
        inner = self.matching.against(target)

        def slope(candidate: Rows) -> tuple[Tensor, list[Tensor]]:
            made, pull = torch.func.vjp(lambda *rows: self.reading.read(rows, target, bounds), *candidate)[:2]
            value, derivative = inner(made)
            return value, list(pull(derivative))

        return slope

    def at_round_off(self, residual: float) -> float:
        """As the inner distance."""
        return self.matching.at_round_off(residual)

    def looked_at(self, target: Tensor) -> Tensor:
        """As the inner distance."""
        return self.matching.looked_at(target)


def _bends(defense: UpdateDefense | BatchDefense, names: Sequence[str], shapes: Sequence[torch.Size]) -> bool:
    """True if a defense does to the entries of a tensor more than noise or a common factor (a clip) would."""
    if isinstance(defense.carry(DiagonalGaussian(std=dict.fromkeys(names, 1.0))), DiagonalGaussian):
        return False
    if isinstance(defense, BatchDefense):
        return True
    probe = {
        name: torch.linspace(-1.0, 2.0, shape.numel(), dtype=torch.float64).reshape(shape)
        for name, shape in zip(names, shapes, strict=True)
    }
    made = defense.mean(probe)
    factors = {name: (made[name] * probe[name]).sum() / probe[name].square().sum() for name in names}
    return not all(torch.allclose(made[name], factors[name] * probe[name], atol=1e-9) for name in names)


def _centered(made: Tensor, seen: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """As `_held`, with a pull to the middle of finite bounds."""
    finite = torch.isfinite(upper - lower) & (upper > lower)
    middle = torch.where(finite, (upper + lower) / 2, 0.0)
    half = torch.where(finite, (upper - lower) / 2, 1.0)
    off = made - middle
    pulled = seen + off * (off / half).square().clamp(max=1.0)
    return torch.where(finite, pulled, _held(made, seen, lower, upper))


def _held(made: Tensor, seen: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """The update u plus v − clamp(v), with derivative 1 wherever the entry is known, also at the number itself."""
    below, above = made - lower, made - upper
    # An infinite bound is never passed; the unused branch may not make a NaN of it.
    low = torch.where(torch.isfinite(lower), below, 0.0)
    high = torch.where(torch.isfinite(upper), above, 0.0)
    gap = torch.where(low < 0, low, torch.where(high > 0, high, torch.zeros_like(made)))
    known = lower == upper
    factor = torch.where(known & (lower != 0), seen / torch.where(lower != 0, lower, 1.0), 1.0)
    return torch.where(known, made * factor, seen + gap)


def _root_mean_square(rows: Rows) -> Tensor:
    squared = torch.stack([entry.square().sum() for entry in rows]).sum() / sum(entry.numel() for entry in rows)
    # A zero update has no scale.
    return torch.where(squared > 0, squared, 1.0).sqrt()
