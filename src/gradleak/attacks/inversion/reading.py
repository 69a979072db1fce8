"""An update as an attack reads it: local training, masks, the information of its entries, and their likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.matching import AbsoluteError, LayerWeights, Matching, Rows, Slope, SquaredError
from gradleak.attacks.labels import recover_labels
from gradleak.core import (
    Batch,
    BatchDefense,
    Bounds,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Knowledge,
    Laplace,
    Mode,
    Noise,
    NotGaussian,
    Objective,
    Release,
    Update,
    UpdateDefense,
    derive_seed,
    describe,
)
from gradleak.core.objective import Tensors
from gradleak.protocols.average_gradient import AverageGradient, proportional, weights_of


class LocalTraining(StrEnum):
    """Local steps that a guess is put through before it is compared with an update.

    `unrolled`: the client's own steps, differentiated through all of them (the federated averaging operator of Geiping
    et al. 2020). Exact; one evaluation costs as many gradients as the client took.

    `average_gradient` (AGA): all local gradients taken at the shared parameters θ₀, so that an evaluation costs one
    plain gradient whatever the number of steps. See `AverageGradient` for the formula and for when it is exact.
    """

    UNROLLED = "unrolled"
    AVERAGE_GRADIENT = "average_gradient"

    def release(self, release: Release, objective: Objective, examples: int) -> Release:
        """The release whose mean a guess is put through: this one, or its first-order stand-in.

        Defenses stay as they are and act on the whole update, at its own scale: a clip that bit on the delta bites
        here, and noise keeps its std.

        Args:
            release: as it is known or assumed.
            objective: of the client; its mode decides whether mini-batches can be merged.
            examples: b, the number of examples of the batch.

        Raises:
            UnsupportedError: for `average_gradient` and a protocol that no average gradient stands for.
        """
        if self is LocalTraining.UNROLLED or release.protocol.shares_gradient:
            return release
        together = objective.mode is Mode.EVAL and proportional(weights_of(release.protocol, examples))
        return replace(
            release, protocol=AverageGradient(protocol=release.protocol, examples=examples, together=together)
        )


class LabelSource(StrEnum):
    """Source of the labels of a reconstruction."""

    DISCLOSED = "disclosed"
    RECOVERED = "recovered"
    OPTIMIZED = "optimized"
    WORDS = "words"


DRAWS = 8
"""Draws of a model's own noise over which an adversary who does not know the client's averages."""


def draws_of(knowledge: Knowledge, objective: Objective, targets: Tensor | None = None) -> Sequence[Objective]:
    """The objectives whose mean gradient a guess is put through.

    The objective alone where the model draws nothing, or where the client's own draw is disclosed. Else several draws: the
    client's is one of many, and the mean gradient is nearest to all of them on average.

    Args:
        knowledge: without a domain only layers that are known to draw are seen.
        objective: as disclosed, in the dtype of the search.
        targets: labels (b, ...) where they are known, so that a loss that draws is seen, too.

    **Cost**: one forward pass.
    """
    if knowledge.masks is not None or not _draws(knowledge, objective, targets):
        return [objective]
    seeds = [derive_seed(objective.mask_seed, "draw", str(number)) for number in range(DRAWS)]
    return [replace(objective, mask_seed=seed) for seed in seeds]


def mean_release(release: Release, draws: Sequence[Objective], batch: Batch) -> Tensors:
    """The released mean of a guess over the draws, by parameter name; pure and safe under torch.func transforms."""
    made = [release.mean(objective, objective.params, batch) for objective in draws]
    if len(made) == 1:
        return made[0]
    return {name: torch.stack([one[name] for one in made]).mean(dim=0) for name in made[0]}


def _draws(knowledge: Knowledge, objective: Objective, targets: Tensor | None) -> bool:
    if knowledge.domain is None:
        return bool(objective.random_layers)
    some = next(iter({**objective.params, **objective.frozen}.values()))
    low, high = knowledge.domain.bounds(some)
    middle = ((low + high) / 2).expand(knowledge.batch_size or 1, *knowledge.domain.shape)
    return objective.draws(middle.clone(), targets)


def known_facts(knowledge: Knowledge, *, labels: str, first_order: bool, draws: int = 1) -> list[str]:
    """Knowledge that every inversion uses: update rule, defenses, labels, and the form of an example.

    Args:
        knowledge: all that the adversary knows.
        labels: where the labels come from: "disclosed", "recovered" or "optimized".
        first_order: whether local steps are read as the average gradient.
        draws: over how many draws of the model's random layers the release of a guess is averaged.
    """
    rule = in_words(describe(knowledge.protocol))
    facts = [f"update rule: {rule}"]
    if "protocol" in (knowledge.assumed or ()):
        facts[0] += ", assumed, not known"
    if first_order:
        facts[0] += ", read as the average gradient"
    if knowledge.defenses is None:
        facts.append("defenses: none assumed, since they are not known")
    elif knowledge.defenses:
        facts.append(f"defenses: {', '.join(in_words(describe(defense)) for defense in knowledge.defenses)}")
    if knowledge.masks is not None:
        facts.append("masks of random layers: the client's own, disclosed")
    elif draws > 1:
        facts.append(f"masks of random layers: not known; the mean over {draws} draws of its own")
    facts.append(f"labels: {labels}")
    guessed = knowledge.domain is not None and knowledge.domain.guessed
    tokens = knowledge.domain is not None and knowledge.domain.vocabulary is not None
    form = "vocabulary and padded length of a sentence" if tokens else "shape, range and normalization of an example"
    form += ", guessed from the data themselves" if guessed else ""
    facts.append(f"{form}, and the number of examples")
    return facts


def claimed_labels(update: Update, knowledge: Knowledge) -> tuple[Tensor | None, str, str]:
    """Labels that are disclosed or recovered, where they come from, and that in words; for attacks that solve without them.

    Args:
        update: aligned with the model.
        knowledge: of the adversary.
    """
    if knowledge.targets is not None:
        return knowledge.targets.clone(), LabelSource.DISCLOSED.value, "labels were disclosed to the attack"
    found = recover_labels(update, knowledge)
    if found.targets is None:
        return None, "not needed", "labels are not claimed, and not needed"
    return found.targets, LabelSource.RECOVERED.value, found.note


def in_words(described: Any) -> str:
    """A description made by `describe`, as a call: Name(argument=value, ...)."""
    if isinstance(described, Mapping):
        values = {key: in_words(value) for key, value in described.items() if key != "use"}
        inside = ", ".join(f"{key}={value}" for key, value in values.items())
        return f"{described['use']}({inside})" if "use" in described else f"{{{inside}}}"
    if isinstance(described, list):
        return f"[{', '.join(map(in_words, described))}]"
    return f"{described:g}" if isinstance(described, float) else str(described)


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


LEAST_STD = 1e-2
"""Entries with less noise than this share of the least noisy ones, or with none, weigh as if they had so much."""


def known_law(release: Release, objective: Objective, examples: int) -> Noise:
    """The law of the noise on an update; that of Laplace noise alone as the Gaussian one of its variance.

    The error of an adversary who matches squares depends on the variance only, to first order.

    Args:
        release: as it is known, without the defenses that are read backward.
        objective: of the client.
        examples: of the batch.
    """
    law = release.noise(objective, examples=examples)
    scale = laplace_scale(release, objective.params)
    if isinstance(law, NotGaussian) and scale is not None:
        return DiagonalGaussian(std=dict.fromkeys(objective.params, scale * 2**0.5))
    return law


def laplace_scale(release: Release, shapes: Mapping[str, torch.Tensor]) -> float | None:
    """The scale b where the release ends in Laplace noise and has no other noise, else None."""
    last = release.defenses[-1] if release.defenses else None
    law = last.noise(shapes) if isinstance(last, UpdateDefense) else None
    if not isinstance(law, Laplace):
        return None
    # Other noise under it makes a law that is neither.
    return law.scale if all(_silent(defense, shapes) for defense in release.defenses[:-1]) else None


def stds(law: Noise, objective: Objective) -> torch.Tensor | None:
    """The std of every shared entry (P,) for weights, none below `LEAST_STD` of the least; None without Gaussian noise."""
    if not isinstance(law, DiagonalGaussian):
        return None
    noisy = [std for std in law.std.values() if std > 0]
    if not noisy:
        return None
    least = LEAST_STD * min(noisy)
    entries = {name: torch.full_like(tensor, max(law.std[name], least)) for name, tensor in objective.params.items()}
    return objective.flatten(entries)


def likely(matching: Matching, release: Release, law: Noise, objective: Objective) -> Matching:
    """A distance as the law of the noise asks for it, bound to the model.

    Gaussian noise whose std differs by layer divides every layer by its std. Under Laplace noise the likelihood is that
    of absolute errors, which take the place of `SquaredError`; for many entries they halve the squared error. Noise of one
    std changes nothing: squares are its likelihood, and a cosine leaves out the scale alone.

    Args:
        matching: as the attack has it, not bound.
        release: as it is known.
        law: of the noise.
        objective: of the client.
    """
    if isinstance(matching, SquaredError) and laplace_scale(release, objective.params) is not None:
        matching = AbsoluteError()
    if isinstance(law, DiagonalGaussian):
        noisy = [std for std in law.std.values() if std > 0]
        if noisy and len(set(law.std.values())) > 1:
            least = min(noisy)
            weights = {name: least / max(std, LEAST_STD * least) for name, std in law.std.items()}
            matching = LayerWeights(matching=matching, weights=weights)
    return matching.bind(objective)


def _silent(defense: Defense, shapes: Mapping[str, torch.Tensor]) -> bool:
    """True if a defense adds nothing at random."""
    if isinstance(defense, UpdateDefense):
        return defense.noise(shapes) is None
    return isinstance(defense, ExampleDefense) and not defense.closes
