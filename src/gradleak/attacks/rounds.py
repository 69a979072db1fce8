"""Several updates of one batch at the same parameters, read as one with less noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gradleak.attacks.inversion.reading import draws_of
from gradleak.core import (
    BatchDefense,
    Bounds,
    Defense,
    ExampleDefense,
    Knowledge,
    NotGaussian,
    Update,
    UpdateDefense,
)
from gradleak.defenses.draws import mean_of
from gradleak.results import InputError, UnsupportedError


def pool_rounds(updates: Sequence[Update], knowledge: Knowledge) -> tuple[Update, Knowledge]:
    """One update that says what several of the same batch say together, and the knowledge under which it is read.

    A client whose model does not move between two rounds (it failed to get the new one, the learning rate is 0, a second
    server asks again) shares the same update with fresh randomness. The mean of R draws carries noise of std σ/√R; masks
    drawn by chance uncover what other masks hid. Of a model that draws (dropout, a bottleneck) the mean is nearer to the
    mean over draws that attacks match. Who does not know the defenses takes the mean, and its noise stays unknown.

    Defenses that draw nothing give the same update every time and hide as much after R rounds as after one; updates that
    differ then are not of one batch. Else whether the rounds are of one batch at the same parameters is for the caller to
    know. `provenance["pooling"]` of the result says what was done.

    Args:
        updates: at least one, of the same kind and tensors.
        knowledge: of the adversary, defenses included.

    Returns:
        The pooled update, and the knowledge with the defense that stands for the pooled draws.

    Raises:
        InputError: for no update, updates that differ in kind, names or shapes, or in their values though nothing in the
            release is random.
        UnsupportedError: for a random defense that is followed by another one, whose draws nobody knows how to pool, or
            whose noise local training carries on in a way that is not linear; for a model that draws before a defense
            that is read entry by entry. Inversion of several rounds at different parameters is not supported either.

    **Source**: that noise averages out over repeated releases is what composition counts (Dwork and Roth 2014, section
    3.5); ε adds up over the rounds.
    """
    if not updates:
        raise InputError("pool_rounds: expected at least one update, got none")
    first = updates[0]
    for update in updates[1:]:
        same = {name: tensor.shape for name, tensor in update.tensors.items()} == {
            name: tensor.shape for name, tensor in first.tensors.items()
        }
        if update.kind is not first.kind or not same:
            raise InputError("pool_rounds: expected updates of the same kind, names and shapes, got two that differ")
    each = [update.tensors for update in updates]
    tensors: Mapping[str, Tensor]
    if knowledge.defenses is None:
        tensors, done = _mean(each), "the mean; the defenses, and so its noise, are not known"
        return _pooled(first, tensors, done, len(updates)), knowledge
    defenses = list(knowledge.defenses)
    place = next((place for place, defense in enumerate(defenses) if _random(defense, first.tensors)), None)
    drawn = knowledge.objective is not None and len(draws_of(knowledge, knowledge.objective, knowledge.targets)) > 1
    if drawn:
        _refuse_readable(defenses, first.tensors)
    if place is not None:
        tensors, defenses[place] = _averaged(place, each, knowledge)
        done = f"the draws of {type(defenses[place]).__name__} together"
    elif drawn:
        tensors, done = _mean(each), "the mean over draws of the model"
    else:
        _refuse_different(each)
        tensors, done = dict(first.tensors), "the first; nothing in the release is random"
    return _pooled(first, tensors, done, len(updates)), replace(knowledge, defenses=tuple(defenses))


def _pooled(first: Update, tensors: Mapping[str, Tensor], done: str, rounds: int) -> Update:
    facts = {**first.provenance, "pooled_rounds": rounds, "pooling": done}
    return replace(first, tensors=dict(tensors), provenance=facts)


def _averaged(
    place: int, updates: Sequence[Mapping[str, Tensor]], knowledge: Knowledge
) -> tuple[Mapping[str, Tensor], Defense]:
    """Average of the draws of the defense at this place, and the defense under which it reads like one draw."""
    defenses = list(knowledge.defenses or ())
    defense = defenses[place]
    if any(isinstance(later, UpdateDefense | BatchDefense) for later in defenses[place + 1 :]):
        raise UnsupportedError(
            f"pool_rounds: expected the random defense last, got {type(defense).__name__} before "
            f"{type(defenses[-1]).__name__}: a mean of such updates follows no law that is known"
        )
    pooled: Defense | None = None
    tensors: Mapping[str, Tensor] = {}
    if isinstance(defense, UpdateDefense):
        found = defense.pooled(updates)
        if found is not None:
            tensors, pooled = found
    elif isinstance(defense, ExampleDefense):
        _refuse_inside_training(defense, updates[0], knowledge)
        tensors, pooled = _mean(updates), defense.pooled(len(updates))
    if pooled is None:
        raise UnsupportedError(
            f"pool_rounds: expected noise that averages out or masks that add up, got {type(defense).__name__}; "
            "attack the updates one by one"
        )
    return tensors, pooled


def _refuse_inside_training(defense: ExampleDefense, shapes: Mapping[str, Tensor], knowledge: Knowledge) -> None:
    """Refuse noise in every local step: less of it in every step is not what the mean of finished updates carries."""
    protocol = knowledge.protocol
    if protocol is not None and (protocol.shares_gradient or knowledge.batch_size is not None):
        law = protocol.noise(partial(defense.law, shapes), knowledge.batch_size or 1)
        reason = law.reason if isinstance(law, NotGaussian) else None
    else:
        reason = "it is not known in how many local steps the noise was added"
    if reason is not None:
        raise UnsupportedError(
            f"pool_rounds: expected noise of {type(defense).__name__} that averages out, but {reason}; attack the updates "
            "one by one, or withhold the defenses to take their mean (HonestButCurious(defenses=False))"
        )


def _refuse_readable(defenses: Sequence[Defense], update: Mapping[str, Tensor]) -> None:
    """Refuse a last defense that is read entry by entry: of a mean over draws of the model it says nothing."""
    acting = [defense for defense in defenses if isinstance(defense, UpdateDefense | BatchDefense)]
    if acting and acting[-1].before(Bounds.of(update)) is not None:
        raise UnsupportedError(
            f"pool_rounds: expected no {type(acting[-1]).__name__} after a model that draws (dropout, a bottleneck): a mean "
            "of such updates follows no law that is known; attack the updates one by one"
        )


def _refuse_different(updates: Sequence[Mapping[str, Tensor]]) -> None:
    """Refuse updates that differ by more than round-off."""
    first = updates[0]
    size = max(float(tensor.double().abs().max()) for tensor in first.values() if tensor.numel())
    apart = max(
        (float((one[name].double() - first[name].double()).abs().max()) for one in updates for name in first),
        default=0.0,
    )
    round_off = max(torch.finfo(tensor.dtype).eps for tensor in first.values()) ** 0.5
    if apart > round_off * size:
        raise InputError(
            f"pool_rounds: expected equal updates, since nothing in the release is random, got some that differ by up to "
            f"{apart:.3g} (largest entry {size:.3g}): they are of other batches, parameters or releases"
        )


def _mean(updates: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return dict(updates[0]) if len(updates) == 1 else mean_of(updates)


def _random(defense: Defense, shapes: Mapping[str, Tensor]) -> bool:
    if isinstance(defense, UpdateDefense | BatchDefense):
        return defense.noise(shapes) is not None
    return isinstance(defense, ExampleDefense) and defense.law(shapes, 1) is not None
