"""Scores of rebuilt sentences on token ids: exact, in place, bag, ROUGE, Google BLEU; guessers who have no update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, pairwise

import scipy
import torch
from torch import Tensor

from gradleak.results import InputError, check_count
from gradleak.scoring.pairing import Pairing

UNCLAIMED = -1
GUESS_LEVEL = 0.99
FEWEST_GUESSES = 100
BAG_GUESSERS = ("bag in random order", "bag in order of pairs")
"""The guessers who know the words of each sentence, without their order."""
_LONGEST_GRAM = 4

Ids = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Shares of the truth that were found and of the claim that is right.

    Attributes:
        recall: matched parts over the parts of the truth; 0 where it has none.
        precision: matched parts over the parts of the claim; 0 where it has none.
    """

    recall: float
    precision: float

    @property
    def f(self) -> float:
        """Harmonic mean of both; 0 where both are."""
        total = self.recall + self.precision
        return 2 * self.recall * self.precision / total if total else 0.0

    @classmethod
    def of(cls, matched: int, truth: int, claim: int) -> Overlap:
        """The shares of these counts."""
        return cls(recall=matched / max(truth, 1), precision=matched / max(claim, 1))


def rouge_n(truth: Ids, claim: Ids, n: int) -> Overlap:
    """ROUGE-n on token ids: shared runs of n tokens, each counted as often as it occurs in both.

    Token ids know no language: the tokenizer of the usual package drops every letter but a to z, so that two identical
    Russian sentences have 0 there. A run with a place that is not claimed is no claim.

    Args:
        truth: ids in order; places of -1 are left out.
        claim: ids in order, -1 where nothing is claimed.
        n: length of a run.

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 2; values as rouge-score 0.1.2 has
    them for tokens that it keeps.

    Examples:
        >>> rouge_n([1, 2, 3, 4], [1, 2, 4], 2)
        Overlap(recall=0.3333333333333333, precision=0.5)
    """
    check_count("rouge_n.n", n)
    left, right = _runs(_there(truth), n), _runs(claim, n)
    return Overlap.of((left & right).total(), left.total(), right.total())


def rouge_l(truth: Ids, claim: Ids) -> Overlap:
    """ROUGE-L on token ids: the longest sequence that both hold in this order, gaps allowed.

    Args:
        truth: ids in order; places of -1 are left out, as in the claim.
        claim: ids in order.

    Source: Lin 2004, section 3; the longest common sequence by bits of whole numbers, Hyyrö 2004.

    Cost: an operation on numbers of as many bits as the truth is long, for each token of the claim.

    Examples:
        >>> rouge_l([1, 2, 3, 4], [2, 1, 4]).recall
        0.5
    """
    truth, claimed = _there(truth), _there(claim)
    places: dict[int, int] = {}
    for place, token in enumerate(truth):
        places[token] = places.get(token, 0) | 1 << place
    every = (1 << len(truth)) - 1
    left = every
    for token in claimed:
        here = left & places.get(token, 0)
        left = ((left + here) | (left - here)) & every
    return Overlap.of(len(truth) - left.bit_count(), len(truth), len(claimed))


def google_bleu(truth: Ids, claim: Ids) -> float:
    """Google BLEU: the smaller of recall and precision over all runs of 1 to 4 tokens together.

    Args:
        truth: ids in order; places of -1 are left out.
        claim: ids in order, -1 where nothing is claimed.

    Source: Wu et al. 2016, "Google's Neural Machine Translation System", section 4; values as `sentence_gleu` of nltk.

    Examples:
        >>> google_bleu([1, 2, 3, 4], [1, 2, 4])
        0.4
    """
    held = _there(truth)
    runs = [(_runs(held, n), _runs(claim, n)) for n in range(1, _LONGEST_GRAM + 1)]
    matched = sum((left & right).total() for left, right in runs)
    largest = max(sum(left.total() for left, _ in runs), sum(right.total() for _, right in runs))
    return matched / max(largest, 1)


def bag_overlap(truths: Iterable[Ids], claims: Iterable[Ids]) -> Overlap:
    """Shares of the words of a batch, each as often as it stands there, whatever their order and sentence.

    Args:
        truths: ids of each sentence; -1 is no word.
        claims: ids of each claimed sentence, or one bag; -1 is no claim.
    """
    left, right = Counter(chain.from_iterable(truths)), Counter(chain.from_iterable(claims))
    del left[UNCLAIMED], right[UNCLAIMED]
    return Overlap.of((left & right).total(), left.total(), right.total())


def feature_mse(truth: Tensor, claim: Tensor) -> float:
    """Mean squared difference of the features that a model gives to the true and to the claimed sentence.

    Args:
        truth: features of any shape, for instance of the last layer.
        claim: of the same shape.

    Raises:
        InputError: the shapes differ.
    """
    if truth.shape != claim.shape:
        raise InputError(f"feature_mse: expected features of shape {tuple(truth.shape)}, got {tuple(claim.shape)}")
    return float((truth.double() - claim.double()).square().mean())


@dataclass(frozen=True, kw_only=True)
class SentenceScore:
    """All scores of one sentence; of ordinary tokens alone.

    Attributes:
        exact: every ordinary token is in place, and none is claimed besides.
        in_place: share of the ordinary tokens that are claimed at their place.
        tokens: number of ordinary tokens.
        rouge_1: shared words.
        rouge_2: shared pairs of neighbors.
        rouge_l: longest common sequence.
        google_bleu: shared runs of 1 to 4 tokens.
    """

    exact: bool
    in_place: float
    tokens: int
    rouge_1: Overlap
    rouge_2: Overlap
    rouge_l: Overlap
    google_bleu: float


def score_sentence(truth: Ids, claim: Ids | None, *, apart: Collection[int] = ()) -> SentenceScore:
    """The scores of a claim on one sentence.

    Args:
        truth: ids in order; -1 where there is no token, as for padding that a mask hides.
        claim: ids in order, -1 where nothing is claimed; None for no claim.
        apart: ids that are no content: special tokens and padding. They count neither as found nor as missed.

    Examples:
        >>> score = score_sentence([101, 7, 8, 9, 102], [101, 7, 9, 9, 102], apart={101, 102})
        >>> score.exact, round(score.in_place, 3), score.rouge_1.recall
        (False, 0.667, 0.6666666666666666)
    """
    guess = claim if claim is not None else ()
    places = [place for place, token in enumerate(truth) if token != UNCLAIMED and token not in apart]
    words, wordless = [truth[place] for place in places], set(range(len(truth))).difference(places)
    # Nothing is left open at a place that has no word: the words around it are neighbors in the claim as in the truth.
    said = [
        token
        for place, token in enumerate(guess)
        if token not in apart and not (token == UNCLAIMED and place in wordless)
    ]
    right = sum(place < len(guess) and guess[place] == truth[place] for place in places)
    return SentenceScore(
        exact=bool(words) and right == len(words) == len(_there(said)),
        in_place=right / max(len(words), 1),
        tokens=len(words),
        rouge_1=rouge_n(words, said, 1),
        rouge_2=rouge_n(words, said, 2),
        rouge_l=rouge_l(words, said),
        google_bleu=google_bleu(words, said),
    )


@dataclass(frozen=True, kw_only=True)
class ScoredSentences:
    """Scores of a batch of sentences, each held against the claim that was paired with it.

    Attributes:
        pairing: of claims and true sentences.
        sentences: scores by true sentence; all zero where no claim was left for it.
    """

    pairing: Pairing
    sentences: tuple[SentenceScore, ...]


def score_sentences(truths: Sequence[Ids], claims: Sequence[Ids], *, apart: Collection[int] = ()) -> ScoredSentences:
    """The scores of claims that come in no order, paired one to one with the true sentences.

    The pairing maximizes the sum of exact sentences, then of tokens in place, then of ROUGE-L: whoever claims a sentence
    does not know which of the batch it is.

    Args:
        truths: ids of each true sentence.
        claims: ids of each claimed sentence, as many or not.
        apart: as in `score_sentence`.

    Cost: b times m longest common sequences for b sentences and m claims.
    """
    table = [[score_sentence(truth, claim, apart=apart) for claim in claims] for truth in truths]
    claim_of: list[int | None] = [None] * len(truths)
    if claims and truths:
        gain = torch.tensor(
            [[100 * score.exact + 10 * score.in_place + score.rouge_l.f for score in row] for row in table]
        )
        for truth, claim in zip(*scipy.optimize.linear_sum_assignment(gain.numpy(), maximize=True), strict=True):
            claim_of[int(truth)] = int(claim)
    nothing = [score_sentence(truth, None, apart=apart) for truth in truths]
    return ScoredSentences(
        pairing=Pairing(claim_of=tuple(claim_of)),
        sentences=tuple(nothing[row] if claim is None else table[row][claim] for row, claim in enumerate(claim_of)),
    )


@dataclass(frozen=True, kw_only=True)
class GuessLevels:
    """Levels that guessers reach who have not seen the update.

    Attributes:
        means: by guesser and score, the mean over sentences and draws (recall of ROUGE).
        limit: share in place that a guesser's best sentence of the batch exceeds in 1 % of draws, the largest of all guessers.
        draws: guesses of each.
    """

    means: Mapping[str, Mapping[str, float]]
    limit: float
    draws: int

    def best(self, score: str, *, bag_known: bool = True) -> tuple[str, float]:
        """The guesser with the largest mean of a score, and that mean.

        Args:
            score: a name of `SentenceScore`.
            bag_known: count those who know the words of each sentence, where there are some.
        """
        known = [guesser for guesser in self.means if bag_known or guesser not in BAG_GUESSERS]
        name = max(known, key=lambda guesser: self.means[guesser][score])
        return name, self.means[name][score]


@dataclass(frozen=True, kw_only=True, eq=False)
class Guessers:
    """Adversaries who know public text and the number of tokens of each sentence, and nothing of the update.

    Attributes:
        public: ids of public sentences, without special tokens.
        size: number of words in the vocabulary.

    Raises:
        InputError: for no public tokens or an empty vocabulary.
    """

    public: Sequence[Ids]
    size: int

    def __post_init__(self) -> None:
        """Check that there is something to count."""
        check_count("Guessers.size", self.size)
        if not any(len(sentence) for sentence in self.public):
            raise InputError("Guessers.public: expected at least one token, got none")

    def limit(self, truths: Sequence[Ids], *, generator: torch.Generator, draws: int = 200) -> float:
        """The share in place that a guesser's best sentence of the batch exceeds in 1 % of draws, the largest of all guessers.

        That of `levels`, without the other scores.

        Args:
            truths: ordinary ids of each true sentence.
            generator: draws the guesses.
            draws: guesses of each guesser at all sentences.

        Cost: guessers times draws times words.
        """
        check_count("Guessers.limit.draws", draws, least=FEWEST_GUESSES)
        limit = 0.0
        for guess in self._guessers.values():
            largest = [
                max(_in_place(truth, guess(truth, generator)) for truth in truths if len(truth)) for _ in range(draws)
            ]
            limit = max(limit, float(torch.tensor(largest).quantile(GUESS_LEVEL, interpolation="higher")))
        return limit

    @cached_property
    def _guessers(self) -> Mapping[str, Callable[[Ids, torch.Generator], Ids]]:
        return {
            "most frequent word": lambda truth, _: [self._frequent] * len(truth),
            "unigram draw": self._draw,
            "bigram greedy": lambda truth, _: self._chain(len(truth)),
            "another sentence": self._another,
            "random words": lambda truth, rng: torch.randint(self.size, (len(truth),), generator=rng).tolist(),
        }

    @cached_property
    def _counts(self) -> Counter[int]:
        return Counter(chain.from_iterable(self.public))

    @cached_property
    def _next(self) -> dict[int, Counter[int]]:
        following: dict[int, Counter[int]] = {}
        for sentence in self.public:
            for left, right in pairwise(sentence):
                following.setdefault(left, Counter())[right] += 1
        return following

    def levels(
        self, truths: Sequence[Ids], *, generator: torch.Generator, draws: int = 200, bag_known: bool = False
    ) -> GuessLevels:
        """The scores that guessers reach at these sentences.

        They are: the most frequent word everywhere, words drawn by frequency, the chain of most frequent followers, another
        public sentence, uniform words; and where the bag is known, its words in random order, and in the order of frequent
        pairs. A bag alone has ROUGE-1 = 1: what it says of order is in the rest.

        Args:
            truths: ordinary ids of each true sentence.
            generator: draws the guesses.
            draws: guesses of each guesser at all sentences.
            bag_known: add the guessers who know the words of each sentence.

        Raises:
            InputError: for no sentence, an empty one, or fewer than 100 draws.

        Cost: guessers times draws times sentences, each a longest common sequence: 10 s for 200 sentences of 20 tokens at
        100 draws.
        """
        check_count("Guessers.levels.draws", draws, least=FEWEST_GUESSES)
        if not truths or not all(len(truth) for truth in truths):
            raise InputError("Guessers.levels: expected sentences of at least one token")
        guessers = dict(self._guessers)
        if bag_known:
            guessers |= dict(zip(BAG_GUESSERS, (_shuffled, self._ordered), strict=True))
        means: dict[str, dict[str, float]] = {}
        limit = 0.0
        for name, guess in guessers.items():
            rows = [[score_sentence(truth, guess(truth, generator)) for truth in truths] for _ in range(draws)]
            largest = torch.tensor([max(score.in_place for score in row) for row in rows])
            limit = max(limit, float(largest.quantile(GUESS_LEVEL, interpolation="higher")))
            means[name] = _means([score for row in rows for score in row])
        return GuessLevels(means=means, limit=limit, draws=draws)

    @cached_property
    def _frequent(self) -> int:
        return min(self._counts, key=lambda token: (-self._counts[token], token))

    @cached_property
    def _weights(self) -> tuple[list[int], Tensor]:
        words = sorted(self._counts)
        return words, torch.tensor([float(self._counts[word]) for word in words])

    def _draw(self, truth: Ids, generator: torch.Generator) -> Ids:
        words, weights = self._weights
        places = torch.multinomial(weights, len(truth), replacement=True, generator=generator)
        return [words[place] for place in places.tolist()]

    def _chain(self, length: int) -> Ids:
        starts = Counter(sentence[0] for sentence in self.public if len(sentence))
        words = [_first(starts)]
        while len(words) < length:
            following = self._next.get(words[-1])
            words.append(_first(following) if following else self._frequent)
        return words

    def _another(self, truth: Ids, generator: torch.Generator) -> Ids:
        filled = [sentence for sentence in self.public if len(sentence)]
        chosen = filled[int(torch.randint(len(filled), (1,), generator=generator))]
        times = -(-len(truth) // len(chosen))
        return (list(chosen) * times)[: len(truth)]

    def _ordered(self, truth: Ids, generator: torch.Generator) -> Ids:
        left = list(_shuffled(truth, generator))
        words: list[int] = []
        while left:
            following = self._next.get(words[-1], Counter()) if words else Counter()
            place = max(range(len(left)), key=lambda index: following[left[index]])
            words.append(left.pop(place))
        return words


def _in_place(truth: Ids, guess: Ids) -> float:
    return sum(left == right for left, right in zip(truth, guess, strict=False)) / max(len(truth), 1)


def _there(ids: Ids) -> Ids:
    """The ids without places of none."""
    return [one for one in ids if one != UNCLAIMED]


def _runs(ids: Ids, n: int) -> Counter[tuple[int, ...]]:
    runs = zip(*(ids[start:] for start in range(n)), strict=False)
    return Counter(run for run in runs if UNCLAIMED not in run)


def _first(counts: Counter[int]) -> int:
    return min(counts, key=lambda token: (-counts[token], token))


def _shuffled(truth: Ids, generator: torch.Generator) -> Ids:
    return [truth[place] for place in torch.randperm(len(truth), generator=generator).tolist()]


def _means(scores: Sequence[SentenceScore]) -> dict[str, float]:
    """The mean of each score by name; of overlaps their recall."""
    means = {}
    for entry in fields(SentenceScore):
        if entry.name == "tokens":
            continue
        values = [getattr(score, entry.name) for score in scores]
        numbers = [value.recall if isinstance(value, Overlap) else float(value) for value in values]
        means[entry.name] = sum(numbers) / len(numbers)
    return means
