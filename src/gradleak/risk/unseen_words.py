"""Directions of embeddings that a release does not show, and whether words differ by these alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.operators import GradientJacobian
from gradleak.results import Outcome, Score, UnsupportedError

# A share of a distance that round-off in the null vectors does not make.
_SEEN = 1e-5


@dataclass(frozen=True, kw_only=True)
class UnseenDirections:
    """The null space of A at the embeddings of sentences, held against the differences of words.

    LayerNorm, for instance, hides the mean of every embedding: one direction a token.

    Attributes:
        count: its dimension.
        by_place: whether it is made of directions of single places, so that sentences are told apart where words are.
        least: the smallest share of the distance between the true word of a place and another one that the release shows.
        words: other words of the vocabulary that were looked at, over all places.
    """

    count: int
    by_place: bool
    least: float
    words: int

    @property
    def tell_apart(self) -> bool:
        """True if no two sentences of the vocabulary differ by unseen directions alone, where one is the true one."""
        return self.by_place and self.least > _SEEN


def unseen_directions(exposure: Exposure, operator: GradientJacobian) -> UnseenDirections:
    """The directions of the embeddings that the release does not show, to first order.

    Args:
        exposure: of a batch of ids.
        operator: its derivative at the embeddings, whose whole spectrum is taken.

    Cost: that of the spectrum, and for every place a product of the table of words with the null vectors.
    """
    ids, vocabulary = exposure.batch.inputs, exposure.domain.vocabulary
    assert vocabulary is not None
    spectrum = operator.spectrum
    hidden = spectrum.vectors[:, spectrum.values <= spectrum.threshold]
    hidden = hidden.reshape(*ids.shape, -1, hidden.shape[1])
    ordinary = torch.tensor([one for one in range(vocabulary.size) if vocabulary.ordinary(one)], device=ids.device)
    table = word_rows(exposure, ordinary).to(hidden.dtype)
    own = exposure.objective.embed(ids).detach().to(hidden.dtype)
    least, words, alone = 1.0, 0, 0
    for row in range(ids.shape[0]):
        for place in range(ids.shape[1]):
            here = hidden[row, place]
            # A null vector of this place alone has all of its norm here.
            alone += int((torch.linalg.svdvals(here) > 1.0 - 1e-6).sum())
            if int(ids[row, place]) >= 0:
                others = table[ordinary != ids[row, place]] - own[row, place]
                least = min(least, float(_seen_share(others, here).min()))
                words += len(others)
    return UnseenDirections(count=hidden.shape[-1], by_place=alone == hidden.shape[-1], least=least, words=words)


def word_rows(exposure: Exposure, words: Tensor) -> Tensor:
    """The rows of the word table for ids (n,), (n, d).

    Args:
        exposure: of a batch of ids, behind whose model there is a table.
        words: the ids.
    """
    objective = exposure.objective
    tables = objective.token_tables(exposure.batch.inputs.shape[1])
    if tables is None:
        raise UnsupportedError("expected a model that looks ids up in an nn.Embedding, got one that does not")
    return {**objective.frozen, **objective.params}[tables.word].detach()[words]


def _seen_share(differences: Tensor, hidden: Tensor) -> Tensor:
    """The share of the norm of each difference (n, d) outside of the hidden directions (d, k); 0 for no difference."""
    whole = differences.square().sum(dim=1)
    # By differences, since their squares lose half of the digits where nearly all is hidden.
    basis, sizes, _ = torch.linalg.svd(hidden, full_matrices=False)
    basis = basis[:, sizes > 1.0 - 1e-6]
    seen = (differences - (differences @ basis) @ basis.T).square().sum(dim=1)
    return torch.where(whole > 0, seen / whole.clamp_min(torch.finfo(whole.dtype).tiny), 0.0).sqrt()


def modulo_unseen(score: Score, exposure: Exposure, operator: GradientJacobian) -> Score:
    """A score of sentences at their embeddings: its error runs over what the release shows, which is enough to tell words apart.

    A value over the range of A stays as it is, an error *modulo* the null space. Its outcome is *converged* where no word of
    the vocabulary differs from the true one at its place by unseen directions alone: the sentence is identifiable then,
    though its embeddings are not.

    Args:
        score: of a measure at the embeddings.
        exposure: of the ids.
        operator: the derivative at the embeddings.
    """
    if score.outcome is not Outcome.NOT_IDENTIFIABLE or score.value is None or not operator.has_spectrum:
        return score
    found = unseen_directions(exposure, operator)
    details = {**score.details, "least_share_of_words_seen": found.least, "unseen_by_place": found.by_place}
    if not found.tell_apart:
        why = (
            "some words differ from a true one by these directions alone"
            if found.by_place
            else "they are not of single places, so that sentences may differ by them alone"
        )
        return replace(score, note=f"{score.note}; {why}", details=details)
    note = (
        f"an error modulo {found.count} directions of the embeddings that the release does not show, by which alone no word "
        f"of the vocabulary differs from the true one at its place (each shows at least {found.least:.2g} of its distance)"
    )
    return replace(score, outcome=Outcome.CONVERGED, note=note, details=details)
