"""One target as the search sees it: the release map, the update, and what is known about the labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.matching import Matching
from gradleak.attacks.inversion.reading import (
    LabelSource,
    LocalTraining,
    Reading,
    draws_of,
    known_facts,
    known_law,
    likely,
    mean_release,
    stds,
)
from gradleak.attacks.inversion.sentences import Sentences, as_numbers, foretold, has_sentences
from gradleak.attacks.inversion.targets import TargetForm, form_of, not_had, target_form
from gradleak.attacks.inversion.variables import Part, PixelsAndLabels, Space, Variables
from gradleak.attacks.labels import recover_labels
from gradleak.attacks.labels.reading import why_unreadable
from gradleak.core import (
    HALF,
    Batch,
    BatchDefense,
    DiagonalGaussian,
    ImageGenerator,
    Knowledge,
    LayerStatistics,
    Objective,
    Reconstruction,
    Release,
    Update,
)
from gradleak.core.defense import Noise
from gradleak.core.objective import Tensors
from gradleak.results import KnowledgeError, Outcome, UnsupportedError

NEEDS = ("objective", "protocol", "batch_size", "domain")
"""What every inversion needs to know."""

# Entries of an update that are compared at a time.
PIECE = 2**22
OPTIMIZED_LABELS = "labels were optimized together with the inputs"
FORETOLD = "targets are the words themselves, unknown like them"


class LabelPolicy(StrEnum):
    """Treatment of labels that are not disclosed; disclosed ones are always used."""

    RECOVER = "recover"
    OPTIMIZE = "optimize"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fit of a claim to the update, without the truth.

    Attributes:
        relative_residual: ‖g − g*‖ / ‖g*‖.
        scale: s that minimizes ‖s g − g*‖; None for a claim whose release is zero.
        cosine: of g and g*.
    """

    relative_residual: float
    scale: float | None
    cosine: float

    @property
    def note(self) -> str:
        """Note where the direction is explained and the length is not: possible causes for the reader."""
        # A direction that is missed by an angle leaves the length as uncertain as its sine.
        missed = math.sqrt(max(1 - self.cosine**2, 0.0))
        if self.scale is None or self.cosine < 0.99 or abs(self.scale - 1) <= max(0.01, 5 * missed):
            return ""
        return (
            f"the claim explains the direction of the update, which is {self.scale:.4g} times as long: another "
            "reduction, learning rate or loss scale than stated"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Find inputs (and labels) whose released mean is the update.

    Attributes:
        objective: in the dtype of the search.
        release: protocol and known defenses, as a guess is put through them; without those that are read backward.
        target: the update, flat (P,), in the dtype of the search.
        update_dtype: the dtype in which the update came, which sets its round-off.
        labels: given labels (b, ...), or None where they are unknowns.
        source: where the labels come from.
        space: sizes of the unknowns.
        variables: the unknowns.
        noise: the law of the noise on the release.
        note: how the labels were had.
        label_confidence: of recovered labels, else None.
        statistics: disclosed BatchNorm statistics of the private batch, by layer, or None.
        reading: how the update is read: the last defenses backward.
        draws: objectives over which the release of a guess is averaged: the objective, or several draws of its noise.
        stated: the release as it is known, where `release` only approximates it; None where both are one.
        information: what the attack goes by besides the update, in words.
    """

    objective: Objective
    release: Release
    target: Tensor
    update_dtype: torch.dtype
    labels: Tensor | None
    source: LabelSource
    space: Space
    variables: Variables
    noise: Noise
    note: str
    reading: Reading
    draws: Sequence[Objective]
    label_confidence: float | None = None
    statistics: Mapping[str, LayerStatistics] | None = None
    stated: Release | None = None
    information: Sequence[str] = ()

    @classmethod
    def pose(
        cls,
        update: Update,
        knowledge: Knowledge,
        *,
        pixels: Variables,
        policy: LabelPolicy,
        dtype: torch.dtype | None = None,
        local_training: LocalTraining = LocalTraining.UNROLLED,
        words: Tensor | None = None,
    ) -> Problem:
        """The problem of one aligned update.

        Args:
            update: aligned, finite, not zero.
            knowledge: with objective, protocol, batch size and domain.
            pixels: how inputs are searched.
            policy: what to do about labels that are not disclosed.
            dtype: of the search; None for the objective's own.
            local_training: how several local steps are read.
            words: targets (b, T) of a language model that nobody told, as they were read before.

        Raises:
            KnowledgeError: if labels are neither disclosed nor recoverable nor optimizable, or a conditional generator
                needs classes and the update does not give them.
            UnsupportedError: if labels would be unknowns of a model whose output is not one vector an example, or for
                a release without a derivative to follow (signs), or that no average gradient stands for.
        """
        told, sentences = knowledge, None
        if pixels.reads_tokens:
            knowledge.require(NEEDS, asker="gradient inversion")
            assert knowledge.objective is not None
            typed = knowledge if dtype is None else replace(knowledge, objective=knowledge.objective.to(dtype))
            sentences = Sentences.of(typed, update, from_table=pixels.from_table, targets=words)
            assert sentences.update is not None
            update, knowledge = sentences.update, sentences.knowledge
        reading = readable(knowledge)
        assert knowledge.objective is not None
        assert knowledge.domain is not None
        assert knowledge.batch_size is not None
        objective = knowledge.objective if dtype is None else knowledge.objective.to(dtype)
        release = local_training.release(reading.release, objective, knowledge.batch_size)
        # Labels are looked for with batches of any size.
        any_size = replace(knowledge, objective=objective if sentences is None else objective.at_embeddings())
        form: TargetForm | None
        if sentences is not None and (sentences.foretold or words is not None):
            labels, source, note, confidence = words, LabelSource.WORDS, FORETOLD, None
            form = sentences.word_weights if words is None else None
        else:
            labels, source, note, confidence = _labels(update, knowledge if sentences is None else any_size, policy)
            form = target_form(any_size) if labels is None else None
        if labels is not None:
            labels = labels.to(objective.device)
            labels = labels.to(objective.dtype) if labels.is_floating_point() else labels
        if pixels.needs_generator:
            _check_condition(knowledge, labels, note)
        space = Space(
            domain=knowledge.domain,
            batch_size=knowledge.batch_size,
            targets=form,
            dtype=objective.dtype,
            device=objective.device,
            generator=knowledge.generator if pixels.needs_generator else None,
            sentences=sentences,
        )
        draws = draws_of(knowledge, objective, labels)
        stated = None if release is reading.release or release == reading.release else reading.release
        return cls(
            objective=objective,
            release=release,
            target=objective.flatten(update.tensors).to(objective.device, objective.dtype),
            update_dtype=update.dtype,
            labels=labels,
            source=source,
            space=space,
            variables=pixels if labels is not None else PixelsAndLabels(pixels=pixels),
            noise=known_law(reading.release, objective, knowledge.batch_size),
            note=note,
            reading=reading,
            draws=draws,
            label_confidence=confidence,
            statistics=knowledge.statistics,
            stated=stated,
            information=[
                *known_facts(told, labels=source.value, first_order=stated is not None, draws=len(draws)),
                *([reading.words] if reading.words else []),
                *([f"generator: {space.generator.source}"] if space.generator is not None else []),
                *([] if sentences is None else sentences.facts),
            ],
        )

    @property
    def unknowns(self) -> int:
        """The number of unknowns, 0 where every place of every sentence is known."""
        return self.variables.bounds(self.space)[0].numel()

    def nothing_to_match(self) -> Reconstruction:
        """The claim where all that would be matched is zero."""
        return Reconstruction(
            inputs=None,
            targets=None,
            loss=None,
            outcome=Outcome.NO_SIGNAL,
            note="every entry of the update that the matching looks at is zero; this is no evidence of safety",
            details=self.facts(),
        )

    def released(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The released mean (P,) of a guess; pure and safe under torch.func transforms."""
        return self._mean(self.release, inputs, targets)

    def released_tensors(self, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        """The released mean of a guess by parameter name; pure and safe under torch.func transforms."""
        return self._tensors(self.release, inputs, targets)

    @property
    def after_gradient(self) -> Callable[[Tensors], Tensors] | None:
        """Function that the defenses apply to the plain gradient; None where the release is not one of one gradient."""
        return self.release.after_gradient if len(self.draws) == 1 else None

    def _tensors(self, release: Release, inputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return mean_release(release, self.draws, Batch(inputs, targets))

    def _mean(self, release: Release, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.flatten(self._tensors(release, inputs, targets))

    def mean(self, flat: Tensor, labels: Tensor | None) -> Tensor:
        """The released mean (P,) at flat unknowns (n,)."""
        return self.released(*self.variables.decode(self.space, flat, labels))

    def read(self, released: Tensor) -> Tensor:
        """Part of a guess's release (P,) that is held against the update; see `Reading`. Pure."""
        return self.reading.read_flat(released, self.target)

    def relative_residual(self, flat: Tensor) -> float:
        """‖read(g(z)) − g*‖ / ‖g*‖ at flat unknowns (n,), with g the release as it is known."""
        return self.fit(flat).relative_residual

    def fit(self, flat: Tensor) -> Fit:
        """Fit of the release of flat unknowns (n,), as it is known, to the update."""
        return self.fit_of(*self.variables.decode(self.space, flat, self.labels))

    def fit_of(self, inputs: Tensor, targets: Tensor) -> Fit:
        """Fit of the release of a guess, as it is known, to the update."""
        with torch.no_grad():
            released = self.read(self._mean(self.stated or self.release, inputs, targets))
        target, released = self.target.cpu(), released.cpu()
        scale = target.abs().max().double()
        squared = along = 0.0
        lengths, gaps = [], []
        # Piece by piece, since a large update is not to be there four more times, in double precision: the squares of tiny and
        # huge ones are no numbers in others.
        for seen, made in zip(target.split(PIECE), released.split(PIECE), strict=True):
            seen, made = seen.double() / scale, made.double() / scale
            squared += float(made @ made)
            along += float(made @ seen)
            lengths.append(float(seen.norm()))
            gaps.append(float((made - seen).norm()))
        norm = math.hypot(*lengths)
        return Fit(
            relative_residual=math.hypot(*gaps) / norm,
            scale=along / squared if squared > 0 and math.isfinite(squared) else None,
            cosine=along / (squared**0.5 * norm) if squared > 0 else 0.0,
        )

    def sentences(self, inputs: Tensor, targets: Tensor) -> dict[str, Any]:
        """Claim of the ids that embeddings (b, T, d) are read as, and of their bag; empty where the examples are numbers."""
        if self.space.sentences is None:
            return {}
        return self.space.sentences.claim(self.space.sentences.words(inputs, targets))

    @property
    def alike(self) -> list[list[int]]:
        """Places of the batch that the update does not tell apart: one label in one mini-batch, one list a kind."""
        size = self.space.batch_size
        parts = self.release.protocol.mini_batch_weights(size) or [(slice(0, size), 1.0)]
        kinds: dict[tuple[int, ...], list[int]] = {}
        labels = torch.zeros(size, dtype=torch.int64)
        if self.labels is not None:
            labels = torch.unique(self.labels.detach().cpu(), dim=0, return_inverse=True)[1]
        for number, (part, _) in enumerate(parts):
            for place in range(part.start, part.stop):
                kinds.setdefault((number, int(labels[place])), []).append(place)
        return list(kinds.values())

    @property
    def release_cost(self) -> float:
        """Cost of one released mean, in plain gradients of the batch."""
        return self.release.protocol.plain_gradients(self.space.batch_size) * len(self.draws)

    @property
    def round_off(self) -> float:
        """The relative residual that floating point alone leaves.

        16 units of round-off of the format that the update was computed in; one unit of half precision, since 16 of
        those are a tenth of the update, and a search that stopped there would give away what is still to be gained.
        """
        units = {dtype: 1 if dtype in HALF else 16 for dtype in (self.update_dtype, self.objective.dtype)}
        return max(count * torch.finfo(dtype).eps for dtype, count in units.items())

    @property
    def noise_std(self) -> Tensor | None:
        """The std of the known noise by entry (P,), never quite zero (`stds`), or None."""
        return stds(self.noise, self.objective) if self.reading.keeps_scale else None

    @property
    def noisy_entries(self) -> int:
        """Number of entries of the update that carry known noise and are told by it, not only bounded."""
        if not isinstance(self.noise, DiagonalGaussian) or not self.reading.keeps_scale:
            return 0
        params = self.objective.params
        noisy = {
            name: torch.full_like(tensor, self.noise.std[name] > 0, dtype=torch.bool) for name, tensor in params.items()
        }
        mask = torch.cat([noisy[name].reshape(-1) for name in params])
        return int((mask & self.reading.known_entries(self.target)).sum())

    def likely(self, matching: Matching) -> Matching:
        """The distance as the known law of the noise asks for it, bound to the model."""
        law = self.noise if self.reading.keeps_scale else None
        return likely(matching, self.reading.release, law, self.objective)

    def facts(self) -> dict[str, Any]:
        """JSON-ready facts for `Reconstruction.details`."""
        facts: dict[str, Any] = {"labels": self.source.value, "information": list(self.information)}
        if self.stated is not None:
            facts["local_training"] = LocalTraining.AVERAGE_GRADIENT.value
        if self.label_confidence is not None:
            facts["label_confidence"] = self.label_confidence
        if self.space.generator is not None:
            facts["generator"] = self.space.generator.describe()
        return facts


def readable(knowledge: Knowledge) -> Reading:
    """Reading of the release by an adversary who knows it.

    Raises:
        KnowledgeError: naming what inversion needs and the threat model does not disclose.
        UnsupportedError: for a defense without a derivative that noise or another map hides, or one that no guess
            determines.
    """
    knowledge.require(NEEDS, asker="gradient inversion")
    assert knowledge.objective is not None
    reading = Reading.of(knowledge.release, knowledge.objective)
    followed = reading.release.defenses
    clients = reading.release.protocol.clients_added
    inside = () if clients is None else clients.defenses
    flat = [type(defense).__name__ for defense in (*inside, *followed) if defense.flat]
    last = type(followed[-1]).__name__ if followed else "the sum of clients"
    if flat:
        raise UnsupportedError(
            f"gradient inversion: expected a release whose derivative can be followed or whose last defenses can be read "
            f"backward, got {' and '.join(flat)} before {last}; the derivative is zero almost "
            "everywhere, which is no evidence of safety: run the attack under HonestButCurious(defenses=False)"
        )
    hidden = [type(d).__name__ for d in followed if isinstance(d, BatchDefense) and d.needs_sensitive]
    if hidden:
        raise UnsupportedError(
            "gradient inversion: expected a release that inputs and labels determine, got "
            f"{' and '.join(hidden)} before {type(followed[-1]).__name__}; it reads the sensitive variable, an unknown to "
            "the adversary; run the attack under HonestButCurious(defenses=False), which takes the update for an "
            "undefended one"
        )
    return reading


def check_labels(knowledge: Knowledge, policy: LabelPolicy) -> None:
    """Refuse labels that no update of this model and loss gives and that the search cannot find either.

    Raises:
        KnowledgeError: for a loss whose labels are not disclosed, cannot be read, and have no form that is searched.
    """
    if knowledge.targets is not None or (has_sentences(knowledge) and foretold(knowledge)):
        return
    knowledge = as_numbers(knowledge)
    assert knowledge.objective is not None
    loss = knowledge.objective.loss_name
    if form_of(loss) is not None:
        return
    reason = why_unreadable(knowledge) if policy is LabelPolicy.RECOVER else ""
    if reason or policy is LabelPolicy.OPTIMIZE:
        raise not_had(loss, f": {reason}" if reason else "")


def check_generator(knowledge: Knowledge, variables: Variables, policy: LabelPolicy) -> None:
    """Refuse variables behind a generator that is not there, has no weights to search, or needs classes that are unknowns.

    Raises:
        KnowledgeError: naming what is missing.
        UnsupportedError: for a generator without the weights that are to be searched, or without a class that is disclosed.
    """
    if not variables.needs_generator:
        return
    knowledge.require(("generator",), asker=f"gradient inversion with {type(variables).__name__}")
    assert knowledge.generator is not None
    if Part.WEIGHTS in variables.parts and not knowledge.generator.weights:
        raise UnsupportedError(
            f"gradient inversion with {type(variables).__name__}: expected a generator with weights to search, got one "
            "without parameters; register them as parameters, or search latents alone (GGL)"
        )
    if policy is LabelPolicy.OPTIMIZE and knowledge.targets is None and knowledge.generator.conditional:
        raise KnowledgeError(_needs_classes("labels are to be optimized"))
    _check_condition(knowledge, knowledge.targets, "", known=False)


def _check_condition(knowledge: Knowledge, labels: Tensor | None, note: str, *, known: bool = True) -> None:
    """Refuse a conditional generator without one class an example, or with one that it does not know."""
    if knowledge.generator is None or not knowledge.generator.conditional:
        return
    if labels is None:
        if known:
            # Nothing was optimized yet, and nothing will be.
            because = note.removeprefix(OPTIMIZED_LABELS).removeprefix(": ")
            raise KnowledgeError(_needs_classes(because or "they are to be optimized together with the inputs"))
    elif labels.dim() != 1 or labels.is_floating_point():
        raise KnowledgeError(_needs_classes(f"targets are {labels.dtype} of shape {tuple(labels.shape)}"))
    else:
        _check_classes(knowledge.generator, labels)


def _check_classes(generator: ImageGenerator, labels: Tensor) -> None:
    """Refuse classes that the generator does not know: under vmap some modules would make a picture of none."""
    latents = torch.zeros(len(labels), *generator.latent_shape, dtype=generator.dtype, device=generator.device)
    try:
        with torch.no_grad():
            generator(latents, labels=labels.to(generator.device, torch.int64))
    except (RuntimeError, LookupError, ValueError) as error:
        raise UnsupportedError(
            f"gradient inversion: expected a generator that takes the classes {sorted(set(labels.tolist()))}, got "
            f"{type(error).__name__}: {str(error).splitlines()[0]}; its classes have to be those of the model"
        ) from error


def _needs_classes(because: str) -> str:
    return (
        f"a conditional generator needs one class an example, and there is none: {because}; disclose targets in the threat "
        "model, or use a generator without conditions"
    )


def _labels(
    update: Update, knowledge: Knowledge, policy: LabelPolicy
) -> tuple[Tensor | None, LabelSource, str, float | None]:
    assert knowledge.objective is not None
    if knowledge.targets is not None:
        return knowledge.targets, LabelSource.DISCLOSED, "labels were disclosed to the attack", None
    loss = knowledge.objective.loss_name
    if policy is LabelPolicy.RECOVER:
        found = recover_labels(update, knowledge)
        if found.targets is not None:
            note = "; ".join(text for text in (found.note, _unknown_order(found.targets, knowledge)) if text)
            return found.targets, LabelSource.RECOVERED, note, found.confidence
        because = f": {found.note}"
    else:
        because = ""
    if form_of(loss) is None:
        raise not_had(loss, because)
    return None, LabelSource.OPTIMIZED, f"{OPTIMIZED_LABELS}{because}", None


def _unknown_order(labels: Tensor, knowledge: Knowledge) -> str:
    """Note that recovered labels, which come as counts, may stand in other mini-batches than the client's."""
    assert knowledge.protocol is not None
    assert knowledge.batch_size is not None
    parts = knowledge.protocol.mini_batch_weights(knowledge.batch_size)
    if len(labels.unique()) < 2 or parts is None or len(parts) < 2:
        return ""
    return "their order, and so which mini-batch holds which label, is not known: they were taken in ascending order"
