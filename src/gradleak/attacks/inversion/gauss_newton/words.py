"""Words at a point where the update is explained: the nearest in the metric of the derivative, and whether others are as near."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.descent import Descent
from gradleak.attacks.inversion.gauss_newton.local_model import LocalModel
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.attacks.inversion.reading import LabelSource
from gradleak.core import NO_TOKEN
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import Outcome

MOST_ERROR = 0.01
"""A place is read where the probability that noise, or round-off, makes another word as near stays below it."""

SWEEPS = 20
"""How often all places are decided anew given the others; they settle after two or three."""

RIDGES = 10.0
"""Squared distances of words up to so many ridges are none."""


MADE_UP = 1e-9
"""A change of which embeddings leave no more than this share is none."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """The words that are read from embeddings.

    Attributes:
        claim: tokens and bag, as fields of a reconstruction.
        point: z (n,) of their own embeddings.
        errors: an upper bound of the probability that another word is as near, by open place; empty without a metric.
        squared: ‖r‖² of the sentences themselves; None where it was not computed.
        explain: whether it is at the floor.
        reordered: whether it is there, too, with two words of a sentence in each other's places.
        predicted: as `errors`, by word that is predicted alone and was read from the update.
        agree: whether the words are the targets that were taken, where these are words that nobody told.
    """

    claim: dict[str, Tensor]
    point: Tensor
    errors: Sequence[float] = ()
    squared: float | None = None
    explain: bool = False
    reordered: bool = False
    predicted: Sequence[float] = ()
    agree: bool = True

    @property
    def open_places(self) -> int:
        """Number of places at which another word is as near."""
        return sum(error > MOST_ERROR for error in [*self.errors, *self.predicted])

    @property
    def facts(self) -> dict[str, Any]:
        """JSON-ready facts for the claim."""
        return {
            "word_errors": [*self.errors, *self.predicted],
            "open_places": self.open_places,
            "words_explain": self.explain,
            "reordered_explain": self.reordered,
        }

    @property
    def judged(self) -> tuple[Outcome, str]:
        """Outcome where the embeddings explain the update, and a note."""
        if not self.errors:
            return Outcome.BUDGET_SPENT, "the update is explained; whether other words explain it was not resolved"
        if self.open_places:
            return Outcome.NOT_IDENTIFIABLE, (
                f"the update is explained, and at {self.open_places} of {len(self.errors) + len(self.predicted)} places other "
                "words explain it as well"
            )
        if not self.agree:
            return (
                Outcome.NOT_IDENTIFIABLE,
                "the update is explained by words that are not those that it was said to predict",
            )
        if not self.explain:
            return Outcome.NOT_IDENTIFIABLE, "embeddings explain the update, and the words nearest to them do not"
        if self.reordered:
            return Outcome.NOT_IDENTIFIABLE, "the words explain the update, and so they do in another order"
        return Outcome.CONVERGED, ""


def read_words(system: ResidualSystem, model: LocalModel | None, point: Tensor, *, check: bool) -> Words:
    """The words nearest to embeddings in the metric of the derivative A, place by place and then given each other.

    With S_p the Schur complement of AᵀA by everything but place p, ‖A(e − x)‖² is at least (e_w − x_p)ᵀS_p(e_w − x_p)
    whatever stands elsewhere: the first choice is the word of the least. Then ‖A(e − x)‖² itself is minimized, one place
    after the other. What a model does not see of an embedding (its mean, behind a LayerNorm) is nothing in this metric, where
    by angle or length it is a part like others.

    The distance of two words at a place is d² = (e_w − e_v)ᵀS_p(e_w − e_v), zero where the null space of A holds their
    difference together with any change elsewhere, and Σ_w Q(d_w / 2s), s the error of an entry of the update, bounds the
    probability that an error makes another word as near as the one that is claimed, to first order. Another order of the words
    is far away, where no derivative sees it: if the words explain the update, each two of a sentence change places.

    Of a language model whose targets nobody told the targets are taken as they were read, and the words have to be the same.
    The last word of a sentence is a target alone: every other one is put there.

    **Cost**: the inverse of a matrix of n × n and its eigenvalues, V·d² multiplications a place, one release for the check,
    one for each two different words of a sentence, and one for each word of the vocabulary where nobody told a model its targets.

    **Source**: ours.

    Args:
        system: of a problem with sentences.
        model: at the point, or near it; without a matrix the words are those of the smallest angle.
        point: z (n,).
        check: whether the sentences themselves are put through the release.

    Raises:
        OutOfBudgetError: if the check does not fit the limit.
    """
    problem = system.problem
    sentences = problem.space.sentences
    assert sentences is not None
    inputs, targets = problem.variables.decode(problem.space, point, problem.labels)
    gram = None if model is None else model.gram()
    if gram is None or not bool(torch.isfinite(gram).all()):
        words, errors = sentences.words(inputs, targets), torch.empty(0)
    else:
        words, errors = _nearest(system, gram, point)

    at = problem.variables.encode(problem.space, sentences.filled(sentences.table[words].to(inputs)), targets)
    squared = _squared(system, words, targets) if check else None
    explain = squared is not None and _explained(system, squared)
    found = Words(claim=sentences.claim(words), point=at, errors=errors.tolist(), squared=squared, explain=explain)
    if problem.source is LabelSource.WORDS:
        assert problem.labels is not None
        same = sentences.targets_of(words)[:, 1:] == problem.labels[:, 1:]
        found = replace(found, agree=bool(same.all()))
    if found.judged[0] is not Outcome.CONVERGED:
        return found
    if problem.source is LabelSource.WORDS and model is not None and model.is_solved:
        found = replace(found, predicted=_last_errors(system, model, at))
    orders = _orders(words.tolist(), (sentences.open // sentences.known.shape[1]).tolist())
    return replace(found, reordered=any(_explained(system, _squared(system, words[one], targets)) for one in orders))


def _last_errors(system: ResidualSystem, model: LocalModel, point: Tensor) -> list[float]:
    """Upper bounds of the probabilities that another last word is as near, whatever the embeddings; by sentence.

    The last word is a target alone, in which the release is affine: each other word is put there, and what embeddings can make
    up for is taken off the change.

    Raises:
        OutOfBudgetError: if so many releases do not fit the limit.
    """
    problem, sentences = system.problem, system.problem.space.sentences
    assert sentences is not None
    assert problem.labels is not None
    inputs, targets = problem.variables.decode(problem.space, point, problem.labels)
    errors = []
    for row, last in enumerate(((sentences.known != NO_TOKEN).sum(dim=1) - 1).tolist()):
        word = int(targets[row, last])
        others = sentences.allowed[sentences.allowed != word]
        if len(others) == len(sentences.allowed):
            continue  # a special token, whose place is public
        system.cost.spend(releases=len(others) + 1)
        squares = []
        with torch.no_grad(), differentiable_kernels():
            at = system.weighed(problem.released(inputs, targets))
            for other in others:
                changed = targets.clone()
                changed[row, last] = other
                away = system.weighed(problem.released(inputs, changed)) - at
                made_up, whole = model.correct(away), away.square().sum()
                left = whole - made_up @ model.curvature(made_up)
                squares.append(left * (left > MADE_UP * whole))
        chance = torch.special.ndtr(-torch.stack(squares).clamp(min=0).sqrt() / (2 * system.entry_std))
        errors.append(min(float(chance.sum()), 1.0))
    return errors


def _orders(words: Sequence[int], rows: Sequence[int]) -> Iterator[list[int]]:
    """Every order of open places in which two different words of one sentence changed places."""
    for first, second in combinations(range(len(words)), 2):
        if rows[first] == rows[second] and words[first] != words[second]:
            order = list(range(len(words)))
            order[first], order[second] = second, first
            yield order


def _squared(system: ResidualSystem, words: Tensor, targets: Tensor) -> float:
    """‖r‖² of the sentences with these words (m,) at open places; words that are targets change these, too."""
    problem, sentences = system.problem, system.problem.space.sentences
    assert sentences is not None
    filled = sentences.filled(sentences.table[words].to(system.target))
    if problem.source is LabelSource.WORDS:
        targets = sentences.targets_of(words)
    system.cost.spend(releases=1)
    with torch.no_grad(), differentiable_kernels():
        return float((system.weighed(problem.released(filled, targets)) - system.target).square().sum())


def _explained(system: ResidualSystem, squared: float) -> bool:
    return system.explained(squared) or squared <= _expected(system)


def better_words(system: ResidualSystem, runs: Sequence[Descent]) -> Tensor | None:
    """The embeddings z (n,) of the words that are read where the best run ended above the floor, if they explain more.

    Args:
        system: of any problem; without sentences there are no words.
        runs: that ended.

    Raises:
        OutOfBudgetError: if a look at them does not fit the limit.
    """
    run = min(runs, key=lambda one: one.loss)
    if system.problem.space.sentences is None or run.at_floor or run.best is None:
        return None
    words = read_words(system, run.model, run.best, check=True)
    better = words.squared is not None and words.squared < run.loss * system.scale**2
    return words.point if better else None


def _expected(system: ResidualSystem) -> float:
    """Square of the residual that known noise leaves where no unknown takes any of it up."""
    count = system.problem.noisy_entries if system.noisy else 0
    return count + 4 * math.sqrt(2 * count)


def _nearest(system: ResidualSystem, gram: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (m,), and the bound on their errors (m,)."""
    sentences = system.problem.space.sentences
    assert sentences is not None
    center, scale = sentences.spread[:-1], sentences.spread[-1]
    places, table = len(sentences.open), (sentences.table[sentences.candidates].double() - center) / scale
    width = table.shape[1]
    values = torch.linalg.eigvalsh(gram)
    ridge = max(len(gram) * torch.finfo(gram.dtype).eps * float(values[-1]), 1e-300)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + ridge * torch.eye(len(gram)).to(gram)))
    rows = point[: places * width].reshape(places, width)
    metrics = []
    words = torch.zeros(places, dtype=torch.int64, device=gram.device)
    for place in range(places):
        part = slice(place * width, (place + 1) * width)
        block = inverse[part, part]
        metrics.append(torch.linalg.inv((block + block.T) / 2))
        gap = table - rows[place]
        words[place] = ((gap @ metrics[place]) * gap).sum(dim=1).argmin()
    for _ in range(SWEEPS):
        before = words.clone()
        for place in range(places):
            part = slice(place * width, (place + 1) * width)
            away = (table[words] - rows).reshape(-1)
            away[part] = 0
            gap = table - rows[place]
            cost = ((gap @ gram[part, part]) * gap).sum(dim=1) + 2 * gap @ (gram[part, : len(away)] @ away)
            words[place] = cost.argmin()
        if torch.equal(before, words):
            break
    errors = []
    for place in range(places):
        gap = table - table[words[place]]
        squared = ((gap @ metrics[place]) * gap).sum(dim=1)
        squared = torch.where(squared <= RIDGES * ridge * gap.square().sum(dim=1), 0.0, squared)
        chance = torch.special.ndtr(-squared.clamp(min=0).sqrt() / (2 * system.entry_std))
        errors.append(chance.sum() - chance[words[place]])
    return sentences.candidates[words.to(sentences.candidates.device)], torch.stack(errors).clamp(max=1.0)
