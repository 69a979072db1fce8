"""Sentences behind an encoder: attention outputs from the feed-forward net, then whole sentences from a linear system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks.text.encoder_block import EncoderBlock
from gradleak.attacks.text.readers import Span

_STEPS = 20
# A false pair is given up when its residual is above these after so many steps.
_GIVE_UP = {2: 0.17, 4: 0.09, 7: 0.03}
# Shares outside that count as none: true pairs end far below the slack of the span, false ones at 0.004 and more.
_LEAST_ACCEPTED, _LARGEST_ACCEPTED = 3e-5, 0.03
_ANCHORS = 4
_CHUNK = 250
# Weight of the rows that say how many tokens stand at a place, beside those of attention.
_WEIGHT = 3.0
# A word of a sentence that was found may occur again, but new words lead to new sentences sooner.
_USED = 0.15
# Relative distance of inputs of words that could be taken for each other.
_NEAR = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Words at places that the first inputs allow.

    Attributes:
        words: ids (n,).
        places: (n,).
        inputs: of the first block (n, width), float64.
        first: ids that stand first and nowhere else, such as [CLS].
        last: ids that end a sentence and stand nowhere else, such as [SEP].
    """

    words: Tensor
    places: Tensor
    inputs: Tensor
    first: frozenset[int] = frozenset()
    last: frozenset[int] = frozenset()


class PairTest:
    """Test of single pairs: is there an attention output with which the feed-forward net stays in the span of its gradient?

    For a pair with input x it minimizes over α the share of f(x, C α) outside of U by Levenberg-Marquardt, f the input of the
    second matrix, C and U the row spaces of the gradients of attention's output and of that matrix. True pairs reach round-off
    in a few steps, which also gives their exact attention output without their sentence; false ones stall.
    """

    def __init__(self, block: EncoderBlock, contexts: Span, hidden: Span) -> None:
        """Take the block and the spans.

        Args:
            block: the first block.
            contexts: row space of the gradient of attention's output, C.
            hidden: row space of the gradient of the feed-forward net's second matrix, U.
        """
        self.block, self.contexts, self.hidden = block, contexts.basis, hidden.basis
        self.accept = min(max(2 * hidden.slack, _LEAST_ACCEPTED), _LARGEST_ACCEPTED)
        self.goal = self.accept / 30
        self.mixed = block.out[0] @ self.contexts
        self.scaled = block.up[0] * block.norm[0]
        self.steps = 0

    def outside(self, values: Tensor) -> Tensor:
        """Share of each row (n, hidden) outside of U."""
        shares: Tensor = (values - (values @ self.hidden) @ self.hidden.T).norm(dim=1) / values.norm(dim=1)
        return shares

    def __call__(self, x: Tensor, start: Tensor) -> tuple[Tensor, float]:
        """The attention output (width,) and the share outside of U that is left.

        Args:
            x: input (width,).
            start: attention output (width,) to begin with.
        """
        alpha = self.contexts.T @ start
        damping, polished = 1e-3, False
        state = self._state(x, alpha)
        for step in range(1, _STEPS + 1):
            left, slope = state.left, self._slope(state)
            inside = self.hidden.T @ slope
            normal = slope.T @ slope - inside.T @ inside
            downhill = slope.T @ left
            size = normal.diagonal().mean()
            self.steps += 1
            before = state.share
            for _ in range(6):
                shifted = normal + damping * size * torch.eye(len(alpha), dtype=alpha.dtype)
                trial = alpha - torch.linalg.solve(shifted, downhill)
                after = self._state(x, trial)
                if after.share < before:
                    break
                damping = max(8 * damping, 1e-6)
            else:
                break
            alpha, state, damping = trial, after, max(damping / 20, 1e-14)
            if state.share < self.goal:
                # One step more: the error of the attention output falls with it.
                if polished:
                    break
                polished = True
            elif state.share > _GIVE_UP.get(step, 1.0) or state.share > 0.97 * before:
                break
        return self.contexts @ alpha, state.share

    def _state(self, x: Tensor, alpha: Tensor) -> _State:
        block = self.block
        total = x + self.mixed @ alpha + block.out[1]
        centered = total - total.mean()
        inverse = float((centered.square().mean() + block.norm[2]).rsqrt())
        before = self.scaled @ (inverse * centered) + block.up[0] @ block.norm[1] + block.up[1]
        values = block.curve(before)
        left = values - self.hidden @ (self.hidden.T @ values)
        return _State(centered, inverse, before, left, float(left.norm() / values.norm()))

    def _slope(self, state: _State) -> Tensor:
        """Derivative of the feed-forward values by α, (hidden, rank)."""
        before = state.before.requires_grad_()
        (rise,) = torch.autograd.grad(self.block.curve(before).sum(), before)
        state.before.requires_grad_(False)
        moved = self.mixed - self.mixed.mean(dim=0)
        center, inverse = state.centered, state.inverse
        moved = inverse * (moved - torch.outer(center, center @ moved) * (inverse**2 / len(center)))
        return (self.scaled @ moved) * rise[:, None]


@dataclass(frozen=True, eq=False)
class _State:
    centered: Tensor
    inverse: float
    before: Tensor
    left: Tensor
    share: float


@dataclass(kw_only=True, eq=False)
class SentenceSolver:
    """Sentences of a batch behind an encoder, one after the other, with a certificate when all are found.

    From one pair whose attention output c is known, the rest of its sentence is a linear system: with z_i = 1 where pair i is
    in the sentence, Σ_i z_i exp(q·k_i) (v_i - c) = 0 for each head, since the denominator of the softmax cancels. Its
    non-negative solution is 0 or 1. The sentence counts where one pass of it through the block stays in U, token by token,
    which a single wrong word breaks. All are found when their lengths add up to the rank of U.

    Attributes:
        block: the first block.
        pairs: candidates.
        test: of pairs.
        tokens: number of tokens of the batch, the rank of U.
        most_steps: of all pair tests together.
        rivals: whether other words, or another order, of a sentence that was found would count as well.
    """

    block: EncoderBlock
    pairs: Pairs
    test: PairTest
    tokens: int
    most_steps: int = 4000
    systems: int = field(default=0, init=False)
    rivals: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Prepare queries, keys and values of all candidates, and the rows on places."""
        self.query, self.key, self.value = (part.contiguous() for part in self.block.split(self.pairs.inputs))
        words, places = self.pairs.words.tolist(), self.pairs.places.tolist()
        self.length = max(places, default=-1) + 1
        self.ends = torch.tensor([word in self.pairs.last for word in words])
        self.starts = torch.tensor([word in self.pairs.first for word in words])
        counts = torch.bincount(self.pairs.places, minlength=self.length).double()
        self.share = 1.0 / counts[self.pairs.places] if words else torch.zeros(0, dtype=torch.float64)
        self.rows, self.sums = self._place_rows(words, places)

    def _place_rows(self, words: Sequence[int], places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Rows on z: one token stands at place 0, and as many at a place as before it, less those that ended there."""
        if not self.pairs.last:
            rows = np.zeros((1, len(words)))
            rows[0, [place == 0 for place in places]] = 1.0
            return rows, np.ones(1)
        rows = np.zeros((self.length + 1, len(words)))
        for index, (word, place) in enumerate(zip(words, places, strict=True)):
            rows[place, index] += 1.0
            if word not in self.pairs.last:
                rows[place + 1, index] -= 1.0
        # The last row: nothing but an end stands at the last place.
        rows[-1] = -rows[-1]
        sums = np.zeros(self.length + 1)
        sums[0] = 1.0
        return rows, sums

    def run(self) -> list[list[int]]:
        """Ids of the sentences that were found."""
        found: list[list[int]] = []
        weights = self.share.clone()
        tried: set[int] = set()
        used: set[int] = set()
        taken: set[int] = set()
        while sum(len(sentence) for sentence in found) < self.tokens and self.test.steps < self.most_steps:
            new = torch.tensor([word not in used for word in self.pairs.words.tolist()])
            weights = torch.where(new | self.starts | self.ends, 1.0, _USED) * self.share
            left = [
                index
                for index in range(len(self.pairs.words))
                if index not in tried and index not in taken and not bool(self.starts[index])
            ]
            if not left:
                break
            chosen = sorted(left, key=lambda index: (not bool(new[index]), int(self.pairs.places[index])))[:_CHUNK]
            guesses = self._contexts(chosen, weights)
            shares = self.test.outside(self.block.hidden(self.pairs.inputs[chosen], guesses))
            shares = shares + 0.5 * (~new[chosen]).double()
            for rank in shares.argsort().tolist():
                index = chosen[rank]
                tried.add(index)
                context, share = self.test(self.pairs.inputs[index], guesses[rank])
                if share < self.test.accept:
                    sentence = self._grow(index, context)
                    ids: list[int] = [] if sentence is None else self.pairs.words[sentence].tolist()
                    if sentence is not None and ids not in found:
                        found.append(ids)
                        taken.update(sentence)
                        used.update(ids)
                        self.rivals = self.rivals or self._has_rival(sentence)
                        break
                if self.test.steps >= self.most_steps:
                    break
        return found

    def _contexts(self, indices: Sequence[int], weights: Tensor) -> Tensor:
        """Attention outputs of these pairs over all candidates with weights."""
        kept = (weights > 0).nonzero()[:, 0]
        scores = self.query[:, list(indices)] @ self.key[:, kept].transpose(1, 2) + weights[kept].log()
        return (scores.softmax(dim=2) @ self.value[:, kept]).transpose(0, 1).reshape(len(indices), -1)

    def _attention_rows(self, index: int, context: Tensor) -> np.ndarray:
        """Rows on z of a pair whose attention output is known, (width, n)."""
        scores = (self.query[:, index : index + 1] @ self.key.transpose(1, 2))[:, 0]
        raised = (scores - scores.max(dim=1, keepdim=True).values).exp()
        rows = raised[:, :, None] * (self.value - context.reshape(len(raised), 1, -1))
        rows = rows / rows.norm(dim=(1, 2), keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        flat: np.ndarray = (rows.permute(0, 2, 1).reshape(self.block.width, -1) * len(self.pairs.words) ** 0.5).numpy()
        return flat

    def _solve(self, anchors: Sequence[tuple[int, Tensor]]) -> Tensor:
        """Share of each pair in the sentence of the anchors."""
        rows = [self._attention_rows(index, context) for index, context in anchors]
        fixed = np.zeros((len(anchors), len(self.pairs.words)))
        for row, (index, _) in enumerate(anchors):
            fixed[row, index] = 1.0
        matrix = np.concatenate([*rows, _WEIGHT * self.rows, _WEIGHT * fixed])
        goal = np.concatenate(
            [np.zeros(sum(len(part) for part in rows)), _WEIGHT * self.sums, _WEIGHT * np.ones(len(anchors))]
        )
        self.systems += 1
        return torch.from_numpy(nonnegative_least_squares(matrix, goal))

    def _read(self, shares: Tensor) -> list[int] | None:
        """The pair with the largest share at each place, up to the end of the sentence; None if a place has no pair."""
        if bool(self.ends.any()):
            last = int(self.pairs.places[int(torch.where(self.ends, shares, -1.0).argmax())])
        else:
            last = int(self.pairs.places[shares > 0.5].max()) if bool((shares > 0.5).any()) else 0
        chosen = []
        for place in range(last + 1):
            here = (self.pairs.places == place).nonzero()[:, 0]
            if not len(here):
                return None
            chosen.append(int(here[shares[here].argmax()]))
        return chosen

    def _grow(self, index: int, context: Tensor) -> list[int] | None:
        """The pairs of the sentence of an anchor, or None where no sentence passes; further tokens of it become anchors."""
        anchors = [(index, context)]
        for _ in range(_ANCHORS):
            shares = self._solve(anchors)
            sentence = self._read(shares)
            if sentence is None:
                return None
            if self._passes(sentence):
                return sentence
            known = {anchor for anchor, _ in anchors}
            order = sorted(
                (i for i in sentence if i not in known and not bool(self.starts[i])), key=lambda i: -float(shares[i])
            )
            for other in order[:3]:
                guess, share = self.test(self.pairs.inputs[other], self._contexts([other], shares.clamp_min(0.0))[0])
                if share < self.test.accept:
                    anchors.append((other, guess))
                    break
            else:
                return None
        return None

    def _passes(self, sentence: Sequence[int]) -> bool:
        inputs = self.pairs.inputs[list(sentence)]
        return float(self.test.outside(self.block.hidden(inputs, self.block.context(inputs))).max()) < self.test.accept

    def _has_rival(self, sentence: Sequence[int]) -> bool:
        """True if a sentence passes too with a word of nearly the same input, or with two words in each other's places."""
        inputs, words, places = self.pairs.inputs[list(sentence)], self.pairs.words.tolist(), self.pairs.places.tolist()
        near = torch.cdist(inputs, self.pairs.inputs) < _NEAR * inputs.norm(dim=1, keepdim=True)
        known = {pair: index for index, pair in enumerate(zip(words, places, strict=True))}
        trials = []
        for place, index in near.nonzero().tolist():
            word, there = words[sentence[place]], places[index]
            if there == place and words[index] != word:
                trials.append({place: index})
            elif words[index] == word and place != there < len(sentence):
                # The same word at another place: the word there takes this one.
                other = words[sentence[there]]
                if other != word and (other, place) in known:
                    trials.append({there: index, place: known[other, place]})
        return any(self._passes([trial.get(place, index) for place, index in enumerate(sentence)]) for trial in trials)


def nonnegative_least_squares(matrix: np.ndarray, goal: np.ndarray, *, most: int = 400) -> np.ndarray:
    """The x >= 0 that minimizes ‖matrix x - goal‖, where few entries of x are positive.

    Args:
        matrix: (m, n).
        goal: (m,).
        most: entries that are tried.

    Cost: a least-squares problem on the positive entries for each of them.

    Source: Lawson and Hanson 1974, chapter 23.

    Examples:
        >>> nonnegative_least_squares(np.eye(2), np.array([1.0, -1.0])).tolist()
        [1.0, 0.0]
    """
    solution = np.zeros(matrix.shape[1])
    sizes = np.linalg.norm(matrix, axis=0) + np.finfo(float).tiny
    size = float(np.linalg.norm(goal))
    positive: list[int] = []
    rest = goal.copy()
    for _ in range(most):
        rise = matrix.T @ rest / sizes
        rise[positive] = -1.0
        entry = int(rise.argmax())
        if rise[entry] <= 1e-11 * size:
            break
        positive.append(entry)
        trial = np.zeros(0)
        while positive:
            trial = np.linalg.lstsq(matrix[:, positive], goal, rcond=None)[0]
            if trial.min() > 0:
                break
            before = solution[positive]
            falling = trial <= 0
            step = float(np.min(before[falling] / np.maximum(before[falling] - trial[falling], np.finfo(float).tiny)))
            moved = before + step * (trial - before)
            solution[:] = 0.0
            positive = [place for place, value in zip(positive, moved, strict=True) if value > 1e-13]
            solution[positive] = moved[moved > 1e-13]
        solution[:] = 0.0
        if positive:
            solution[positive] = trial
        rest = goal - matrix @ solution
        if np.linalg.norm(rest) < 1e-13 * size:
            break
    return solution
