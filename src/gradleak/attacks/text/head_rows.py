"""Words that a language model has to predict, from the rows of its head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.attacks.text.readers import Taps

_ROUNDS, _STEPS = 30, 60
# Rows of words that are predicted lie below zero, others above one half; where one lies between, nobody can tell.
_BELOW, _ABOVE, _KEPT, _NOISE = -0.05, 0.5, 0.7, 0.1
# Of a head's gradient computed here: rounding leaves less, and another last word so many times more.
_MISFIT, _CLEAR = 1e-3, 10.0


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedWords:
    """Rows of a head that targets moved.

    Attributes:
        rows: indices of the words, ascending; None where they do not stand apart.
        multiplications: work done.
    """

    rows: Tensor | None
    multiplications: float


def predicted_words(gradient: Tensor, *, std: float = 0.0) -> PredictedWords:
    """The words that are targets, from the gradient of a head that no table is tied to.

    Row v is Σ_t (p_tv - 1[v is the target t]) h_t, h_t the final states: rows of words that are no target are sums of the
    h_t with positive weights, and others leave this cone. A direction u in which the cone is positive is had from the smaller
    half of rows, which targets are not among, as the least one with g_v·u >= 1 for rows of length one; rows that follow with
    a margin join them. Targets have g_v·u < 0.

    Assumptions: fewer targets than half of the words, and at most about as many places as numbers of a state, so that there
    is such a direction. A target is missed where the direction found gives more weight to the places that predict its word
    than to those that have to: who needs all of them has to count. Nothing is told where a row has no clear side: too many
    places, noise, pruning, half precision.

    Args:
        gradient: of the head's weight (V, d).
        std: of Gaussian noise on each entry.

    Cost: a product of the gradient with itself, V d², and V n² for some tens of steps, n the rank.
    """
    rows = gradient.double()
    sizes = rows.norm(dim=1)
    there = sizes > 0
    if int(there.sum()) <= len(rows) // 2:
        return PredictedWords(rows=None, multiplications=0.0)
    rows = rows[there] / sizes[there, None]
    values, vectors = torch.linalg.eigh(rows.T @ rows)
    floor = (8 * torch.finfo(gradient.dtype).eps) ** 2 * len(rows)
    rows = rows @ vectors[:, values > floor]
    half = torch.zeros(len(rows), dtype=torch.bool)
    half[sizes[there].argsort()[: len(rows) // 2]] = True
    kept, direction, work = half, rows[half].mean(dim=0), float(gradient.numel() * gradient.shape[1])
    margins = rows @ direction
    for _ in range(_ROUNDS):
        direction, steps = _positive_on(rows[kept], direction)
        work += steps * int(kept.sum()) * rows.shape[1] ** 2
        margins = rows @ direction
        following = half | (margins > _KEPT)
        if torch.equal(following, kept):
            break
        kept = following
    # Noise may move no row across.
    blurred = std * float(direction.norm()) > _NOISE * float(sizes[there].min())
    unclear = blurred or bool((margins[half] <= 0).any()) or bool(((margins > _BELOW) & (margins < _ABOVE)).any())
    found = None if unclear else there.nonzero()[margins <= _BELOW, 0]
    return PredictedWords(rows=found, multiplications=work)


def last_word(model: nn.Module, head: str, gradient: Tensor, sentence: Tensor) -> int | None:
    """The word behind a sentence whose words are known, from the gradient of a head that no table is tied to.

    The gradient is (P - Y)ᵀH but for its scale, H the final states and P the probabilities, which the model computes from the
    sentence, and Y the targets, of which the last alone is open: the word whose gradient is proportional to that of the update.

    Args:
        model: without dropout; called with ids (1, T) alone.
        head: name of the layer.
        gradient: of its weight (V, d).
        sentence: ids (T,), T at least 1.

    Returns:
        The word; None where no gradient fits but for rounding (noise, local steps), or others fit nearly as well.

    Cost: a forward pass and a product (V, T) by (T, d).
    """
    layer = model.get_submodule(head)
    (states,) = Taps(model=model).inputs(sentence[None], [head])
    with torch.no_grad():
        chances = layer(states[0]).double().softmax(dim=1)
    states, seen = states[0].double(), gradient.double()
    known = (chances.T @ states).index_add_(0, sentence[1:], -states[:-1])
    # Squared distances of `known` less one last state, at each word, from the line of multiples of the gradient.
    left = known.square().sum() - 2 * known @ states[-1] + states[-1].square().sum()
    along = ((known * seen).sum() - seen @ states[-1]).square() / seen.square().sum()
    outside = (left - along).clamp_min(0.0) / left
    (least, second), words = outside.sqrt().topk(2, largest=False)
    return int(words[0]) if float(least) < min(_MISFIT, float(second) / _CLEAR) else None


def _positive_on(rows: Tensor, start: Tensor) -> tuple[Tensor, int]:
    """The direction u with least Σ max(0, 1 - g·u)² over rows g, by Newton's method on those below one, and its steps."""
    ridge = 1e-10 * len(rows) * torch.eye(rows.shape[1], dtype=rows.dtype)
    direction = start
    for step in range(_STEPS):
        below = rows[rows @ direction < 1]
        if not len(below):
            return direction, step
        moved = torch.linalg.solve(below.T @ below + ridge, below.sum(dim=0))
        near = float((moved - direction).norm()) < 1e-8 * float(moved.norm())
        direction = moved
        if near:
            break
    return direction, step + 1
