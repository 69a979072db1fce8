"""Attack of an adversary who knows the rule of spectral noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.ended import ENDED_BY_LIMIT
from gradleak.attacks.inversion.gauss_newton.residual_system import PLAIN_GRADIENTS_PER_PRODUCT
from gradleak.attacks.inversion.sentences import has_sentences
from gradleak.core import Batch, Domain, DomainKind, Exposure, Knowledge, MovedAlong, Reconstruction, Release, Update
from gradleak.operators import GradientJacobian
from gradleak.results import KnowledgeError, UnsupportedError

ROUNDS = 2
"""How often the directions are computed anew."""

SPHERE_STARTS = 32
SPHERE_STEPS = 200
KEPT_STEPS = 4
"""Steps that a search which begins near its end is left with."""

OUTSIDE = 10.0
"""What a unit of range beyond the box costs, in units of total variation."""


def spectral_noise(knowledge: Knowledge) -> MovedAlong | None:
    """The rule of the last defense that is known, where it moves an update along such directions; else None."""
    assert knowledge.objective is not None
    last = knowledge.release.defenses[-1] if knowledge.release.defenses else None
    rule = None if last is None else last.effect(knowledge.objective.params)
    return rule if isinstance(rule, MovedAlong) and rule.norm != 0 else None


def refuse_rule(knowledge: Knowledge) -> None:
    """Refuse sentences behind a rule of spectral noise, which is undone by a prior of numbers.

    Raises:
        UnsupportedError: where the rule is known.
    """
    if has_sentences(knowledge) and spectral_noise(knowledge) is not None:
        raise UnsupportedError(
            "gauss_newton: expected numbers where spectral noise is to be undone, got sentences; run the attack under "
            "HonestButCurious(defenses=False)"
        )


class SharedLimit:
    """A limit in plain gradients that the searches and the spectra between them share.

    A search may take what the later ones need not: of these, each keeps `KEPT_STEPS` steps, or an equal share where that
    is less.

    Args:
        limit: plain gradients, or None.
        spectrum: what a spectrum costs, at most.
        step: what a step costs.
        release: what a look at a guess costs.
    """

    def __init__(self, limit: float | None, *, spectrum: float, step: float, release: float) -> None:
        self.limit = limit
        self._release = release
        self._spectrum = spectrum
        self._step = step
        self._spent = 0.0
        self._searches = 0

    @classmethod
    def of(cls, knowledge: Knowledge, *, limit: float | None, step: float, release: float) -> SharedLimit:
        """The limit where the last known defense is spectral noise."""
        rule = spectral_noise(knowledge)
        assert rule is not None
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        unknowns = knowledge.domain.size * knowledge.batch_size
        # The directions are those of one draw of a network that is noisy, a look at a guess averages over all of them.
        spectrum = spectrum_cost(
            unknowns, rule.directions, knowledge.release.protocol.plain_gradients(knowledge.batch_size)
        )
        return cls(limit, spectrum=spectrum, step=step, release=release)

    @property
    def least(self) -> float:
        """Below it not every search could look at a guess of its own."""
        return ROUNDS * self._spectrum + (1 + ROUNDS) * self._release

    @property
    def share(self) -> float | None:
        """Budget of the next search, or None."""
        if self.limit is None:
            return None
        later = ROUNDS - self._searches
        left = self.limit - self._spent - self._spectrum * ROUNDS
        return left - later * min(KEPT_STEPS * self._step, left / (later + 1))

    def searched(self, cost: float) -> None:
        """Count a search."""
        self._spent += cost
        self._searches += 1


def spectrum_cost(unknowns: int, directions: int, release: float) -> float:
    """Plain gradients that the directions of the noise cost at a guess.

    A product an unknown for the spectrum, one a direction, and two evaluations of the release, which costs `release`.
    """
    return release * (PLAIN_GRADIENTS_PER_PRODUCT * (unknowns + directions) + 2)


def without_spectral_noise(
    read: Callable[[Update, Knowledge, float | None], Reconstruction],
    go_on: Callable[[Update, Knowledge, Batch, float | None], Reconstruction],
    update: Update,
    knowledge: Knowledge,
    generator: torch.Generator,
    limit: SharedLimit,
) -> Reconstruction:
    """The claim of an adversary who knows that the update carries `SpectralNoise`, and its rule.

    The update is u = g(x) + c Σᵢ wᵢ uᵢ(x) with known c and rule, and unknown weights w on the unit sphere. Read as an
    undefended one it gives x + Σᵢ (c wᵢ/√λᵢ) vᵢ, to first order: wrong by a vector of known length in m directions that
    the adversary computes from its own guess. What is left to find is a sign (m = 1) or m − 1 angles, and a prior tells
    plausible inputs from others: the mean total variation of images, and how far values leave the domain's range.

    1. `read` reads the update as an undefended one, without a box (the error may lead out of it).
    2. λ, v, u at the guess; the w of least penalty: both signs for m = 1, else by Adam on the sphere from random starts.
    3. `go_on` searches from x − Σ (c wᵢ/√λᵢ) vᵢ with the update less c Σ wᵢ uᵢ. 2 and 3 are done twice.

    **Assumptions**: the noise is the last defense; a prior that tells the directions apart: for table rows only the
    range does, and where it does not the note says so. Where λ at the m-th place is close to the next, the directions at
    a wrong guess are mixed with others and the search may fail.

    **Cost**: three searches and two spectra of AᵀA.

    **Source**: ours, against our own use of Zhang et al. 2023, section 5.1.

    Args:
        read: the claim about an update under this knowledge, from random starts, for so many plain gradients at most.
        go_on: the same from a guess.
        update: aligned.
        knowledge: with defenses, of which the last is the noise.
        generator: for the weights' starts.
        limit: of all that is computed.
    """
    defenses = tuple(knowledge.defenses or ())
    rule = spectral_noise(knowledge)
    assert rule is not None
    plain = replace(knowledge, defenses=defenses[:-1])
    found = first = read(update, plain, limit.share)
    if first.inputs is None or first.targets is None:
        return first
    cost, penalty, notes = first.plain_gradients, _Penalty(plain.domain), _notes(first)
    limit.searched(first.plain_gradients)
    margin, weights = 0.0, torch.zeros(0)
    for _ in range(ROUNDS):
        try:
            directions = _Directions.at(found, plain, plain.release, rule)
        except UnsupportedError as error:
            note = "; ".join([*notes, f"read as if there were no spectral noise: {error}"])
            return replace(first, plain_gradients=cost, note=note)
        weights, margin = directions.weights(first.inputs, penalty, generator)
        place = directions.corrected(first.inputs, weights)
        quiet = replace(update, tensors=directions.without(update, weights))
        found = go_on(quiet, plain, Batch(place.to(first.inputs), first.targets, plain.domain), limit.share)
        cost += found.plain_gradients + directions.cost
        limit.searched(found.plain_gradients)
        if found.inputs is None:
            note = "; ".join([*notes, "no input explains the update without the noise"])
            return replace(first, plain_gradients=cost, note=note)
    if margin < 1e-3:
        notes.append("the prior hardly tells the directions of the noise apart")
    # The search was given the labels that the adversary had found itself.
    notes += [part for part in found.note.split("; ") if part != "labels were disclosed to the attack"]
    own = {name: first.details[name] for name in ("labels", "information") if name in first.details}
    own["information"] = [*own.get("information", []), f"the rule of {type(defenses[-1]).__name__}"]
    details = {**found.details, **own, "noise_weights": weights.tolist(), "penalty_margin": margin}
    return replace(found, plain_gradients=cost, note="; ".join(dict.fromkeys(n for n in notes if n)), details=details)


def _notes(first: Reconstruction) -> list[str]:
    """Notes of the first search that hold for the claim, too: a limit that ended it may not have ended the last."""
    return [part for part in first.note.split("; ") if part and part != ENDED_BY_LIMIT]


class _Penalty:
    """Penalty of implausible inputs: total variation of images and what lies beyond the domain's range, in pixels."""

    def __init__(self, domain: Domain | None) -> None:
        if domain is None:
            raise KnowledgeError("spectral noise: expected the domain of an example, got none")
        self._domain = domain

    def __call__(self, inputs: Tensor) -> Tensor:
        """One number a row of (s, b, *shape)."""
        pixels = self._domain.to_pixels(inputs)
        outside = (pixels.clamp(0, 1) - pixels).abs().flatten(1).mean(dim=1)
        total = OUTSIDE * outside
        if self._domain.kind is DomainKind.IMAGE:
            for axis in (-1, -2):
                total = total + pixels.diff(dim=axis).abs().flatten(1).mean(dim=1)
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class _Directions:
    """The m directions of the noise at a guess.

    Attributes:
        moves: (m, d): what a unit weight of each adds to the input that is read, c vᵢ/√λᵢ.
        images: (P, m): what it adds to the update, c uᵢ.
        names: and shapes of the update's tensors, in the order of its flat form.
        cost: in plain gradients.
    """

    moves: Tensor
    images: Tensor
    names: Sequence[tuple[str, torch.Size]]
    cost: float

    @classmethod
    def at(cls, found: Reconstruction, knowledge: Knowledge, before: Release, rule: MovedAlong) -> _Directions:
        """From the whole spectrum of the release at a claim."""
        assert knowledge.objective is not None
        assert found.inputs is not None
        assert found.targets is not None
        objective = knowledge.objective.to(torch.float64)
        batch = Batch(found.inputs.double(), found.targets, knowledge.domain)
        if batch.inputs.numel() > rule.dense_limit:
            raise UnsupportedError(f"{batch.inputs.numel()} unknowns are more than the limit for a whole spectrum")
        operator = GradientJacobian(Exposure(objective, batch, before))
        spectrum = operator.spectrum
        kept = spectrum.values > spectrum.threshold
        if not bool(kept.any()):
            raise UnsupportedError("the derivative of the release is zero")
        values = spectrum.values[kept][: rule.directions]
        vectors = spectrum.vectors[:, kept][:, : rule.directions].contiguous()
        images = operator.matmat(vectors)
        return cls(
            moves=(rule.norm * vectors / values.sqrt()).T,
            images=rule.norm * images / images.norm(dim=0),
            names=[(name, tensor.shape) for name, tensor in objective.params.items()],
            cost=spectrum_cost(
                batch.inputs.numel(), vectors.shape[1], before.protocol.plain_gradients(batch.inputs.shape[0])
            ),
        )

    def corrected(self, inputs: Tensor | None, weights: Tensor) -> Tensor:
        """Inputs without what weights (m,) or (s, m) add, (b, *shape) or (s, b, *shape)."""
        assert inputs is not None
        moved = inputs.double().reshape(-1) - weights @ self.moves
        return moved.reshape(*weights.shape[:-1], *inputs.shape)

    def without(self, update: Update, weights: Tensor) -> dict[str, Tensor]:
        """The update's tensors without what weights (m,) add."""
        pieces = (self.images @ weights).split([shape.numel() for _, shape in self.names])
        noise = {name: piece.reshape(shape) for (name, shape), piece in zip(self.names, pieces, strict=True)}
        return {name: tensor.double() - noise[name] for name, tensor in update.tensors.items()}

    def weights(self, inputs: Tensor | None, penalty: _Penalty, generator: torch.Generator) -> tuple[Tensor, float]:
        """The unit weights (m,) of least penalty, and by which share the next best is worse."""
        count = self.moves.shape[0]
        if count == 1:
            tried = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
        else:
            tried = torch.randn(SPHERE_STARTS, count, generator=generator, dtype=torch.float64, device=generator.device)
            tried = self._descended(inputs, tried, penalty)
        tried = tried.to(self.moves.device)
        costs = penalty(self.corrected(inputs, tried / tried.norm(dim=1, keepdim=True)))
        order = costs.argsort()
        best = tried[order[0]] / tried[order[0]].norm()
        # Against the mirror image: the start that came second may have found the same minimum.
        mirror = penalty(self.corrected(inputs, -best[None]))[0]
        return best, float((mirror - costs[order[0]]) / mirror.clamp(min=1e-300))

    def _descended(self, inputs: Tensor | None, start: Tensor, penalty: _Penalty) -> Tensor:
        weights = start.to(self.moves.device).requires_grad_()
        adam = torch.optim.Adam([weights], lr=0.05)
        for _ in range(SPHERE_STEPS):
            adam.zero_grad()
            with torch.enable_grad():
                unit = weights / weights.norm(dim=1, keepdim=True)
                penalty(self.corrected(inputs, unit)).sum().backward()
            adam.step()
        return weights.detach()
