"""Claims of any kind against their truth: images, rows and signals by their numbers, sentences by their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradleak.core import NO_TOKEN, Batch, Domain, Objective, Reconstruction, Vocabulary
from gradleak.core.evaluation import LinearCalls
from gradleak.results import Evidence, GradleakError, InputError, Leakier, Outcome, Score, median
from gradleak.scoring.cells import score_cells
from gradleak.scoring.chance import CHANCE_LEVEL, blind_baseline, chance_pixel_rmse
from gradleak.scoring.pairing import Pairing, label_accuracy
from gradleak.scoring.reconstruction import pixels_of_truth, score_images
from gradleak.scoring.text import (
    UNCLAIMED,
    Guessers,
    GuessLevels,
    SentenceScore,
    bag_overlap,
    feature_mse,
    score_sentences,
)

_DRAWS = 100
_UNIT = "share"
# By sentence: the larger the more was found, but for the first.
_OF_SENTENCES = ("token_error", "rouge_1", "rouge_2", "rouge_l", "google_bleu")
_OF_GUESSES = ("in_place", "rouge_1", "rouge_2", "rouge_l", "google_bleu")
_OF_BAGS = ("bag_recall", "bag_precision")


def check_truth(batch: Batch) -> None:
    """Refuse a batch that no claim can be held against: without a domain, or out of its range or vocabulary.

    Raises:
        InputError: naming what is wrong.
    """
    if batch.declared_domain().vocabulary is None:
        pixels_of_truth(batch)
    elif not all(_words(batch)):
        raise InputError(
            "batch.inputs: expected at least one word in every sentence, got one of padding and special tokens alone; "
            "leave it out"
        )


def score_claim(
    reconstruction: Reconstruction, batch: Batch, *, beside: Sequence[Batch] = (), objective: Objective | None = None
) -> list[Score]:
    """The scores of a reconstruction by the kind of the truth: `score_tokens` or `score_images`, of tables `score_cells` too."""
    domain = batch.declared_domain()
    if domain.vocabulary is not None:
        return score_tokens(reconstruction, batch, objective)
    scores = score_images(reconstruction, batch, beside=beside)
    return scores if domain.columns is None else [*scores, score_cells(reconstruction, batch)]


def blind_scores(
    batch: Batch, domain: Domain | None = None, public: Tensor | None = None, *, beside: Sequence[Batch] = ()
) -> list[Score]:
    """The scores of an adversary without the update: of sentences `token_error` of one word everywhere, else `blind_baseline`.

    The word is the most frequent one of the sentence, chosen with the truth by the scorer, as the best constant of a picture
    is: deliberately strong. A sentence of a single word has none, since it would be the truth.

    Args:
        batch: the truth.
        domain: its domain; None takes that of the batch.
        public: public data of the same kind.
        beside: further batches, for the note on a range.
    """
    domain = domain or batch.declared_domain()
    if domain.vocabulary is None:
        return blind_baseline(batch, domain, public=public, beside=beside)
    errors = [
        1.0 if len(words) < 2 else 1.0 - max(map(words.count, set(words))) / len(words) for words in _words(batch)
    ]
    details = {**_listed(errors, min(errors)), "which": "most frequent word of the sentence"}
    found = partial(Score, unit=_UNIT, leakier=Leakier.LOWER, evidence=Evidence.EXACT, n=len(errors))
    return [found(name="token_error", value=min(errors), details=details)]


def luck_of(
    batch: Batch, domain: Domain, public: Tensor | None, *, generator: torch.Generator, within: float, share: float
) -> Score | None:
    """The error that guesses without the update reach by luck: `chance_pixel_rmse`, or `chance_token_error` of sentences.

    The guessers know public sentences where there are some, else the vocabulary alone (`Guessers`), and the number of words
    of each sentence.

    Args:
        batch: the truth.
        domain: its domain.
        public: public examples of the same kind, ids for sentences; None for none.
        generator: draws the guesses.
        within: largest error that is asked about.
        share: of the distance to the nearest public row.
    """
    if domain.vocabulary is None:
        return chance_pixel_rmse(batch, domain, public, generator=generator, within=within, share=share)
    ordinary = [one for one in range(domain.vocabulary.size) if domain.vocabulary.ordinary(one)]
    known = [ordinary] if public is None else [row for row in _ordinary(public, domain.vocabulary) if row]
    guessers, truths = Guessers(public=known, size=domain.vocabulary.size), _words(batch)
    reached = guessers.limit(truths, generator=generator, draws=_DRAWS)
    levels = guessers.levels(truths, generator=generator, draws=_DRAWS, bag_known=True)
    return Score(
        name="chance_token_error",
        value=1.0 - reached,
        unit=_UNIT,
        leakier=Leakier.LOWER,
        evidence=Evidence.ESTIMATE,
        n=_DRAWS,
        note="the best sentence of guessers without the update comes below in about 1 % of draws",
        details={
            "limits": [1.0 - reached] * batch.size,
            "draws": _DRAWS,
            "level": CHANCE_LEVEL,
            "public": public is not None,
            "guessers": _best_guesses(levels, bag_known=False),
            "bag_guessers": _best_guesses(levels, bag_known=True),
        },
    )


def _best_guesses(levels: GuessLevels, *, bag_known: bool) -> dict[str, dict[str, Any]]:
    """By score the mean of the best guesser, and who that is; of ROUGE the recall."""
    found = {name: levels.best(name, bag_known=bag_known) for name in _OF_GUESSES}
    return {name: {"which": which, "value": value} for name, (which, value) in found.items()}


def score_tokens(reconstruction: Reconstruction, batch: Batch, objective: Objective | None = None) -> list[Score]:
    """The scores of claimed sentences and of a claimed bag of words; what `Vocabulary.uncounted` has counts nowhere.

    By sentence, after claims and sentences were paired one to one, the value being that of the sentence that came out best:
    `token_error` (share of the words that are not in place), `rouge_1`, `rouge_2`, `rouge_l` (F; recall and precision in the
    details), `google_bleu`; `exact_hits` is the share of sentences with every word in place and none besides. Of the batch:
    `bag_recall`, `bag_precision` (words as often as they stand there, without places), from the claimed bag, or the tokens
    where there is none; the details have the number of different words, and how many of them are named. `label_accuracy` comes
    where targets are classes. With a model `feature_mse`: the mean squared difference of what goes into its last linear layer
    for the true and for the claimed sentence.

    Args:
        reconstruction: with `tokens` (b, T), `bag` (n,), both or neither.
        batch: the truth.
        objective: the model, for its features; None leaves them out.

    Returns:
        Scores with evidence "attack"; every value of what was not claimed is None.

    Cost: see `score_sentences`.
    """
    vocabulary = batch.declared_domain().vocabulary
    assert vocabulary is not None
    words, found = _words(batch), reconstruction
    claimed = found.outcome.has_value is not False
    scores: list[Score] = []
    pairing = None
    if claimed and found.tokens is not None and bool((found.tokens != UNCLAIMED).any()):
        truths = [row[:length].tolist() for row, length in zip(batch.inputs, batch.lengths.tolist(), strict=True)]
        claims = [row[: 1 + max(_said(row), default=-1)].tolist() for row in found.tokens.cpu()]
        scored = score_sentences(truths, claims, apart=vocabulary.uncounted)
        pairing = scored.pairing
        scores = _of_sentences(
            scored.sentences, found.outcome, {"claim_of": list(pairing.claim_of)} if batch.size > 1 else {}
        )
        if objective is not None:
            scores.append(_of_features(found, batch, pairing, objective))
    else:
        features = () if objective is None else ("feature_mse",)
        scores = [_nothing(name, found) for name in (*_OF_SENTENCES, "exact_hits", *features)]
    bag = found.bag if found.bag is not None else found.tokens
    if claimed and bag is not None and bool((bag != UNCLAIMED).any()):
        said = [one for one in bag.flatten().tolist() if one not in vocabulary.uncounted]
        overlap, different = bag_overlap(words, [said]), set().union(*words)
        details = {
            "aggregation": "share",
            "words": sum(map(len, words)),
            "different": len(different),
            "different_named": len(different & set(said)),
        }
        kind = partial(_share, outcome=found.outcome, n=batch.size, details=details)
        scores += [kind("bag_recall", overlap.recall), kind("bag_precision", overlap.precision)]
    else:
        scores += [_nothing(name, found) for name in _OF_BAGS]
    labels = label_accuracy(found, batch, pairing)
    return [*scores, *([labels] if labels else [])]


def _of_sentences(scored: Sequence[SentenceScore], outcome: Outcome, extra: Mapping[str, Any]) -> list[Score]:
    kind = partial(_share, outcome=outcome, n=len(scored))
    errors = [1.0 - one.in_place for one in scored]
    scores = [kind("token_error", min(errors), details={**_listed(errors, min(errors)), **extra})]
    for name in ("rouge_1", "rouge_2", "rouge_l"):
        overlaps = [getattr(one, name) for one in scored]
        values = [one.f for one in overlaps]
        details = {"recall": [one.recall for one in overlaps], "precision": [one.precision for one in overlaps]}
        scores.append(kind(name, max(values), details={**_listed(values, max(values)), **details}))
    values = [one.google_bleu for one in scored]
    scores.append(kind("google_bleu", max(values), details=_listed(values, max(values))))
    exact = [one.exact for one in scored]
    scores.append(kind("exact_hits", sum(exact) / len(exact), details={"aggregation": "share", "per_example": exact}))
    return scores


def _of_features(found: Reconstruction, batch: Batch, pairing: Pairing, objective: Objective) -> Score:
    """The distance of the last features of the claimed from those of the true sentences, the smallest of the batch."""
    vocabulary = batch.declared_domain().vocabulary
    assert found.tokens is not None
    assert vocabulary is not None
    kind = partial(_share, "feature_mse", outcome=found.outcome, n=batch.size)
    rows = [(truth, claim) for truth, claim in pairing.paired if bool((found.tokens[claim] != UNCLAIMED).any())]
    truths = batch.inputs[[truth for truth, _ in rows]]
    claims = torch.full_like(truths, NO_TOKEN)
    for place, (_, claim) in enumerate(rows):
        said = found.tokens[claim][: truths.shape[1]].to(truths)
        # No model has a row for an id that its vocabulary lacks.
        said = said.masked_fill((said < 0) | (said >= vocabulary.size), NO_TOKEN)
        claims[place, : len(said)] = said
    # A place that fills up in both is the same one, whichever way it is written.
    claims = torch.where(_filled(truths, vocabulary) & _filled(claims, vocabulary), truths, claims)
    try:
        true, made = (last_features(objective, ids) for ids in (truths, claims))
    except GradleakError as refusal:  # a model that takes no mask has no place for what is not claimed
        return kind(None, outcome=Outcome.UNSUPPORTED, note=str(refusal))
    if true is None or made is None:
        note = "the model returns no result of a linear layer, whose inputs could be compared"
        return kind(None, outcome=Outcome.UNSUPPORTED, note=note)
    if true.dim() == 3 and true.shape[:2] == truths.shape:
        # At places without a token a model has features of nothing.
        there = ~_filled(truths, vocabulary)[..., None]
        true, made = true * there, made * there
    errors: list[float | None] = [None] * batch.size
    for place, (truth, _) in enumerate(rows):
        error = feature_mse(true[place], made[place])
        errors[truth] = error if math.isfinite(error) else None
    known = [error for error in errors if error is not None]
    if not known:
        return kind(None, outcome=Outcome.NOT_FINITE, note="features are not finite")
    return kind(min(known), details={"aggregation": "worst for the client", "per_example": errors})


def last_features(objective: Objective, ids: Tensor) -> Tensor | None:
    """Inputs of the linear layer whose result a model returns, (b, k) or (b, T, k); None where there is no such layer.

    Args:
        objective: the model.
        ids: (b, T), with -1 where there is no token.

    Raises:
        InputError: if the model does not take them.

    Cost: one forward pass.
    """
    recorder = LinearCalls()
    with torch.no_grad(), recorder:
        outputs = objective.outputs(objective.params, ids)
    call = recorder.maker(outputs)
    return None if call is None else call.inputs


def _share(
    name: str,
    value: float | None,
    *,
    outcome: Outcome,
    n: int = 1,
    note: str = "",
    details: Mapping[str, Any] | None = None,
) -> Score:
    return Score(
        name=name,
        value=value,
        unit="feature²" if name == "feature_mse" else _UNIT,
        leakier=Leakier.LOWER if name in ("token_error", "feature_mse") else Leakier.HIGHER,
        evidence=Evidence.ATTACK,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )


def _nothing(name: str, found: Reconstruction) -> Score:
    if found.outcome.has_value is True:
        return _share(name, None, outcome=Outcome.UNSUPPORTED, note="the attack makes no such claim")
    return _share(name, None, outcome=found.outcome, note=found.note)


def _listed(values: Sequence[float], worst: float) -> dict[str, Any]:
    return {"aggregation": "worst for the client", "median": median(values), "per_example": list(values)}


def _said(row: Tensor) -> list[int]:
    return (row != UNCLAIMED).nonzero()[:, 0].tolist()


def _filled(ids: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Places without a token, by -1 or by the padding of the vocabulary."""
    return (ids == NO_TOKEN) | (ids == (NO_TOKEN if vocabulary.padding is None else vocabulary.padding))


def _words(batch: Batch) -> list[list[int]]:
    """The ids of each true sentence that count."""
    vocabulary = batch.declared_domain().vocabulary
    assert vocabulary is not None
    return _ordinary(batch.inputs, vocabulary)


def _ordinary(ids: Tensor, vocabulary: Vocabulary) -> list[list[int]]:
    return [[one for one in row if one >= 0 and one not in vocabulary.uncounted] for row in ids.tolist()]
