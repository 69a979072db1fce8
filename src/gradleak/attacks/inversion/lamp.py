"""LAMP: continuous steps on embeddings in turn with moves of words that a language model likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.inversion.engine import Inversion
from gradleak.attacks.inversion.matching import CosineDistance, LayerwiseError
from gradleak.attacks.inversion.optimizers import Adam, Iterations, SearchStage
from gradleak.attacks.inversion.priors import Guess, Prior, weighted
from gradleak.attacks.inversion.problem import NEEDS, LabelPolicy, Problem
from gradleak.attacks.inversion.search import Search
from gradleak.attacks.text.language import Language, NGram
from gradleak.core import NO_TOKEN, Knowledge, Reconstruction, Update
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import (
    BALUNOVIC_2022,
    Citation,
    Count,
    Natural,
    NonNegative,
    Outcome,
    Positive,
    UnsupportedError,
)


@dataclass(frozen=True, kw_only=True)
class EmbeddingNorm(Prior):
    """weight · (mean ‖x_p‖ / length − 1)², x_p the embeddings of a guess: they are as long as words' embeddings are.

    **Source**: Balunović et al. 2022, section 4.1, where the difference is not divided by the length.

    Attributes:
        weight: at least 0.
        length: mean L2 norm of the rows of the table of words.
    """

    citations = (BALUNOVIC_2022,)

    weight: NonNegative
    length: Positive

    def __call__(self, guess: Guess) -> Tensor:
        """The weighted penalty."""
        away: Tensor = guess.inputs.norm(dim=-1).mean() / self.length - 1
        return self.weight * away.square()


@dataclass(frozen=True, kw_only=True)
class LAMP(Attack):
    """Sentences by gradient matching, whose words are moved in between to where gradient and language agree better.

    The best of many random starts goes through rounds of Adam steps on matching loss + norm of the embeddings, and after each
    through moves: two words change places, a word, a run of words, or the beginning of the sentence goes elsewhere. A move
    stays where matching loss + w · log-perplexity of the nearest words falls. Matching alone gets many words right at wrong
    places, since a gradient hardly changes where words change places.

    The adversary brings the language model (`NGram`, or any `Language`), made from text that is not the client's; the claim
    says which. Without one, pairs of words of the public sentences that the threat model discloses stand in, and without these
    moves are judged by the matching loss alone. Words, special tokens, lengths and labels as `TAG`
    has them, and so is the outcome: it is about the embeddings.

    **Source**: Balunović et al. 2022, algorithm 1: best of 500 starts, w = 0.2, 200 moves a round. Deviations: a matching loss
    and steps that do not depend on the scale of the weights, as `TAG`; n-grams in place of GPT-2 where there is no other;
    the step falls from round to round to 0.

    **Cost**: one plain gradient a start and a move, three an iteration.

    Attributes:
        starts: random starts of which the best is kept.
        rounds: of steps and moves.
        iterations: Adam steps a round.
        moves: tried after each round, a sentence drawn at random for each.
        learning_rate: of the first round, in units of the table's std.
        cosine: match by `CosineDistance`, as the paper's first form; else by `LayerwiseError`.
        norm: weight of `EmbeddingNorm`.
        perplexity: w.
        language: of the adversary; None for that of disclosed public sentences.
        from_table: whether words are those of the table's rows that moved, where it is shared.
    """

    name: ClassVar[str] = "lamp"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (BALUNOVIC_2022,)
    summary: ClassVar[str] = (
        "Gradient matching over embeddings in turn with moves of words under a language model (Balunović et al. 2022)."
    )
    claims_tokens: ClassVar[bool] = True

    starts: Count = 100
    rounds: Count = 10
    iterations: Iterations = 100
    moves: Natural = 200
    learning_rate: Positive = 0.3
    cosine: bool = False
    norm: NonNegative = 0.1
    perplexity: NonNegative = 0.2
    language: Language | None = None
    from_table: bool = True

    def compose(self, round: int = 0, length: float = 1.0) -> Inversion:
        """The continuous part of a round, for words whose embeddings are so long."""
        adam = Adam(learning_rate=self.learning_rate * (1 - round / self.rounds))
        return Inversion(
            matching=CosineDistance() if self.cosine else LayerwiseError(),
            variables=Embeddings(from_table=self.from_table),
            priors=weighted(EmbeddingNorm(weight=self.norm, length=length)),
            stages=(SearchStage(optimizer=adam, iterations=self.iterations),),
            labels=LabelPolicy.RECOVER,
        )

    def estimate(self, knowledge: Knowledge) -> float:
        """The cost in plain gradients if no round explains the update."""
        descent = self.compose().estimate(knowledge)
        release = descent / (3 * (self.iterations + 1))
        return self.rounds * (descent + self.moves * release) + self.starts * release

    def _check(self, knowledge: Knowledge) -> None:
        """As the composition; and refuse a language of fewer words than the vocabulary has."""
        self.compose()._check(knowledge)
        vocabulary = None if knowledge.domain is None else knowledge.domain.vocabulary
        if self.language is not None and vocabulary is not None and self.language.size < vocabulary.size:
            raise UnsupportedError(
                f"lamp: expected a language model of the {vocabulary.size} ids of the vocabulary, got one of "
                f"{self.language.size}; make it from ids of the same tokenizer"
            )

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        problem = Problem.pose(
            update, knowledge, pixels=Embeddings(from_table=self.from_table), policy=LabelPolicy.RECOVER
        )
        return _Rounds(replace(self, language=self._language(knowledge)), problem, generator, monitor).run()

    def _language(self, knowledge: Knowledge) -> Language | None:
        """The language model of the adversary, or pairs of words of public sentences."""
        public = knowledge.public
        vocabulary = None if public is None or public.domain is None else public.domain.vocabulary
        if self.language is not None or public is None or vocabulary is None:
            return self.language
        rows = [[word for word in row if word != NO_TOKEN] for row in public.inputs.tolist()]
        return NGram(sentences=rows, vocabulary=vocabulary.size)


class _Rounds:
    """One call of the attack."""

    def __init__(self, config: LAMP, problem: Problem, generator: torch.Generator, monitor: Monitor) -> None:
        self.config = config
        self.problem = problem
        self.generator = generator
        self.monitor = monitor
        self.matching = problem.likely(config.compose().matching)
        self.cost = 0.0
        self.tried = self.kept = 0
        sentences = problem.space.sentences
        assert sentences is not None
        self.sentences = sentences
        owners = sentences.open.cpu() // sentences.known.shape[1]
        self.rows = [rows for one in owners.unique() if len(rows := (owners == one).nonzero()[:, 0]) > 1]

    def run(self) -> Reconstruction:
        """Start, and take rounds until the update is explained."""
        config, problem = self.config, self.problem
        starts = problem.variables.initialize(problem.space, config.starts, self.generator)
        losses = [self._matched(row) for row in starts]
        point = starts[min(range(len(losses)), key=lambda place: losses[place])]
        length = float(self.sentences.table.norm(dim=1).mean().clamp(min=1e-12))
        history: list[float] = []
        best = self._descended(point, length, 0)
        found = best
        for number in range(config.rounds):
            if number > 0:
                found = self._descended(point, length, number)
            self.cost += found.plain_gradients
            history += found.history
            if found.inputs is None or found.targets is None or found.loss is None:
                break
            best = found if best.loss is None or found.loss < best.loss else best
            if found.outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE):
                break
            point = problem.variables.encode(problem.space, found.inputs, found.targets)
            if number + 1 < config.rounds:
                point = self._moved(point)
        return self._claim(best, history)

    def _descended(self, point: Tensor, length: float, number: int) -> Reconstruction:
        """The claim after the steps of a round from unknowns (n,)."""
        config = self.config
        before, planned = number * (config.iterations + 1), config.rounds * (config.iterations + 1)

        def report(done: int, _: int, loss: float) -> None:
            self.monitor(before + done, planned, loss)

        search = Search(config.compose(number, length), [self.problem], [self.generator], Monitor(progress=report))
        return search.run(point[None])[0]

    def _claim(self, found: Reconstruction, history: Sequence[float]) -> Reconstruction:
        language = self.config.language
        brought = "no language model was brought: moves were judged by the matching loss alone"
        facts = {
            **found.details,
            "starts": self.config.starts,
            "moves_tried": self.tried,
            "moves_kept": self.kept,
        }
        if language is not None:
            facts["information"] = [*facts["information"], f"language model: {language!r}"]
        return replace(
            found,
            iterations=len(history),
            plain_gradients=self.cost,
            history=history,
            note="; ".join(part for part in (found.note, "" if language is not None else brought) if part),
            details=facts,
        )

    def _matched(self, row: Tensor) -> float:
        """Matching loss of unknowns (n,)."""
        problem = self.problem
        self.cost += problem.release_cost
        with torch.no_grad(), differentiable_kernels():
            loss = float(self.matching(problem.mean(row, problem.labels), problem.target))
        return loss if loss == loss else float("inf")

    def _total(self, row: Tensor) -> float:
        """Matching loss + w · log-perplexity of the nearest words."""
        loss, language = self._matched(row), self.config.language
        if language is None or self.config.perplexity == 0:
            return loss
        guess = self.problem.variables.decode(self.problem.space, row, self.problem.labels)
        tokens = self.sentences.claim(self.sentences.words(*guess))["tokens"]
        said = [[word for word in sentence if word != NO_TOKEN] for sentence in tokens.tolist()]
        logs = [-language.log_probability(ids) / len(ids) for ids in said if ids]
        return loss + self.config.perplexity * sum(logs) / max(len(logs), 1)

    def _moved(self, point: Tensor) -> Tensor:
        """The unknowns after moves that were kept."""
        if not self.rows or not self.config.moves:
            return point
        least = self._total(point)
        for _ in range(self.config.moves):
            rows = self.rows[self._draw(len(self.rows))]
            order = self._order(len(rows))
            if order == sorted(order):
                continue
            trial = self._reordered(point, rows, rows[torch.tensor(order)])
            total = self._total(trial)
            self.tried += 1
            if total < least:
                point, least, self.kept = trial, total, self.kept + 1
        return point

    def _reordered(self, point: Tensor, rows: Tensor, taken: Tensor) -> Tensor:
        """The unknowns with what stood at some open places at others: embeddings, and targets where these are the words."""
        places, width = self.sentences.open.to(point.device), self.sentences.table.shape[1]
        rows, taken = rows.to(point.device), taken.to(point.device)
        size = len(places) * width
        embeddings, targets = point[:size].reshape(-1, width), point[size:]
        if self.sentences.foretold:
            by_place = targets.reshape(self.sentences.known.numel(), -1)
            targets = by_place.index_copy(0, places[rows], by_place[places[taken]]).reshape(-1)
        return torch.cat([embeddings.index_copy(0, rows, embeddings[taken]).reshape(-1), targets])

    def _order(self, count: int) -> list[int]:
        """Places 0 to count - 1 after a random move: a swap, a word moved, a run moved, or a beginning put last."""
        order = list(range(count))
        kind = self._draw(4)
        if kind == 0:
            first, second = self._draw(count), self._draw(count)
            order[first], order[second] = order[second], order[first]
            return order
        start = 0 if kind == 3 else self._draw(count)
        end = start + 1 if kind == 1 else start + 1 + self._draw(count - start)
        run, rest = order[start:end], order[:start] + order[end:]
        to = len(rest) if kind == 3 else self._draw(len(rest) + 1)
        return rest[:to] + run + rest[to:]

    def _draw(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.generator, device=self.generator.device))
