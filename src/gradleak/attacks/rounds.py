"""Several updates of one batch at the same parameters, read as one with less noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from gradleak.core import BatchDefense, Defense, ExampleDefense, Knowledge, Update, UpdateDefense
from gradleak.defenses.draws import mean_of
from gradleak.results import InputError, UnsupportedError


def pool_rounds(updates: Sequence[Update], knowledge: Knowledge) -> tuple[Update, Knowledge]:
    """One update that says what several of the same batch say together, and the knowledge under which it is read.

    A client whose model does not move between two rounds (it failed to get the new one, the learning rate is 0, a second
    server asks again) shares the same update with fresh randomness. The mean of R draws carries noise of std σ/√R; masks
    drawn by chance uncover what other masks hid. Defenses that draw nothing give the same update every time and hide as
    much after R rounds as after one. Whether the rounds are of one batch at the same parameters is for the caller to know.

    Args:
        updates: at least one, of the same kind and tensors.
        knowledge: of the adversary, defenses included.

    Returns:
        The pooled update, and the knowledge with the defense that stands for the pooled draws.

    Raises:
        InputError: for no update, or updates that differ in kind, names or shapes.
        UnsupportedError: for a random defense that is followed by another one, or whose draws nobody knows how to pool;
            inversion of several rounds at different parameters is not supported either.

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
    defenses = list(knowledge.defenses or ())
    tensors: Mapping[str, Tensor] = dict(first.tensors)
    for place, defense in enumerate(defenses):
        if not _random(defense, tensors):
            continue
        if any(isinstance(later, UpdateDefense | BatchDefense) for later in defenses[place + 1 :]):
            raise UnsupportedError(
                f"pool_rounds: expected the random defense last, got {type(defense).__name__} before "
                f"{type(defenses[-1]).__name__}: a mean of such updates follows no law that is known"
            )
        pooled: Defense | None = None
        if isinstance(defense, UpdateDefense):
            found = defense.pooled([update.tensors for update in updates])
            if found is not None:
                tensors, pooled = found
        elif isinstance(defense, ExampleDefense):
            tensors, pooled = mean_of([update.tensors for update in updates]), defense.pooled(len(updates))
        if pooled is None:
            raise UnsupportedError(
                f"pool_rounds: expected noise that averages out or masks that add up, got {type(defense).__name__}; "
                "attack the updates one by one"
            )
        defenses[place] = pooled
    facts = {**first.provenance, "pooled_rounds": len(updates)}
    return replace(first, tensors=dict(tensors), provenance=facts), replace(
        knowledge, defenses=None if knowledge.defenses is None else tuple(defenses)
    )


def _random(defense: Defense, shapes: Mapping[str, Tensor]) -> bool:
    if isinstance(defense, UpdateDefense | BatchDefense):
        return defense.noise(shapes) is not None
    return isinstance(defense, ExampleDefense) and defense.law(shapes, 1) is not None
