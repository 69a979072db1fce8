"""Sentences from the spans of gradients: prefixes behind a decoder, attention outputs behind an encoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.text.encoder_block import read_encoder_block
from gradleak.attacks.text.encoder_sentences import Pairs, PairTest, SentenceSolver
from gradleak.attacks.text.prefixes import (
    Spans,
    candidate_words,
    distinct_prefixes,
    grow_prefixes,
    spans_of,
    whole_sentences,
)
from gradleak.attacks.text.readers import Reach, Reader, Taps, find_readers
from gradleak.attacks.text.used_rows import noise_std, places_reached, used_rows
from gradleak.core import NO_TOKEN, Batch, Knowledge, Mode, Objective, Reconstruction, TokenTables, Update, UpdateKind
from gradleak.results import DAGER_2024, Citation, InputError, Outcome, UnsupportedError

_MOST_CLAIMS = 256
# Entries of the gradient by which sentences are compared.
_COMPARED = 20_000
# Another sentence explains as much: squared distances in errors of an entry, and relative to what a sentence explains.
_CLEAR, _ALIKE = 64.0, 1e-8


@dataclass(frozen=True, kw_only=True)
class SpanSearch(Attack):
    """Whole sentences of a batch, exactly, where it has fewer tokens than a token has numbers.

    The gradient of a linear layer is Σ δ xᵀ, so that its rows span the inputs x of the batch's tokens while these are fewer
    than the layer's inputs. Words at places whose first input lies in the span of query, key and value are candidates (key
    alone loses a dimension a sentence, query the first place of a decoder). Then:

    - **decoders**: prefixes grow by every candidate of the next place and stay while the inputs of the first block's further
      layers lie in their spans; the second matrix of the feed-forward net has room for four times as many tokens;
    - **encoders** that normalize after the skip connection: the feed-forward net gives the attention output of a candidate
      (`PairTest`), and that one its sentence, by a linear system (`SentenceSolver`).

    Layers are found from what the model computes (`find_readers`), so that names and classes make no difference. The words to
    try are those of the table's gradient (`used_rows`), or all. Adapters of low rank (LoRA) are such layers: Aᵀ spans x, and
    before the first step, when B = 0, the gradient of B spans A x, which a word at a place fits or not just as well. Both have
    room for fewer tokens than their rank (times the adapters that read x, for A), so that rank 8 hides longer sentences from
    this attack, not from others. Where an encoder's feed-forward net has none, every combination of candidates is tried.

    Outcomes: `converged` with the certificate that the sentences' tokens are as many as the span of the widest layer counts,
    the sentences as many as the batch has, where that is known (equal ones, and those that another begins with, count once),
    and no words of like embeddings, or at places that the model holds alike, fit as well; `not_identifiable` where only some
    sentences were found, or none: no span is left where tokens are as many as numbers, and under noise, half precision or
    pruning it drowns. Then nothing, or less, is claimed.

    **Assumptions**: one gradient, or few local steps (they blur the spans), weights of the first block shared, no dropout. A
    decoder's last token is not read by a causal loss and is not claimed.

    **Cost**: counted in multiplications, divided by those of a gradient: the embedding of every word tried at every place,
    then passes of prefixes through the first block, or steps of pair tests.

    **Source**: Petrov et al. 2024 (DAGER) for spans, candidates and prefixes; values beside queries and keys, the feed-forward
    net as test, ranks by their largest gap, encoders by attention outputs, and adapters before their first step are ours.

    Attributes:
        most_steps: steps of pair tests at most, behind an encoder.
    """

    name: ClassVar[str] = "span_search"
    needs: ClassVar[tuple[str, ...]] = ("objective", "domain")
    citations: ClassVar[tuple[Citation, ...]] = (DAGER_2024,)
    claims_tokens: ClassVar[bool] = True
    on_processor: ClassVar[bool] = True
    summary: ClassVar[str] = "Sentences whose tokens lie in the spans of the first layers' gradients."

    most_steps: int = 4000

    def __post_init__(self) -> None:
        """Check the number of steps."""
        super().__post_init__()
        if self.most_steps < 1:
            raise InputError(f"SpanSearch.most_steps: expected at least 1, got {self.most_steps}")

    def _check(self, knowledge: Knowledge) -> None:
        domain, objective = knowledge.domain, knowledge.objective
        assert domain is not None
        assert objective is not None
        tables = objective.token_tables(domain.shape[0])
        if tables is None:
            raise UnsupportedError(
                "the attack span_search needs a model that looks ids up in an nn.Embedding, got none"
            )
        own = [
            name
            for reader in find_readers(_network(objective), tables.size, domain.shape[0])
            if reader.reach is Reach.OWN
            for name in reader.weights
        ]
        if not set(own) & set(objective.params):
            raise UnsupportedError(
                "the attack span_search reads the gradients of the layers that read single tokens, and "
                + (f"{', '.join(own)} are frozen and not shared" if own else "no linear layer does before attention")
                + "; use an attack that matches the rest of the update"
            )
        if knowledge.lengths is None:
            return
        # Sentences that begin with the same token share its input.
        shared = len(knowledge.lengths) - 1 if domain.vocabulary and 0 in domain.vocabulary.places.values() else 0
        tokens = int(knowledge.lengths.sum()) - shared
        if tokens >= tables.width:
            raise UnsupportedError(
                f"the attack span_search needs fewer tokens than a token has numbers ({tables.width}), got {tokens}: their "
                "inputs span everything"
            )

    def estimate(self, knowledge: Knowledge) -> float:
        """About a hundred plain gradients: 5 to 250 were seen."""
        return 100.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        objective, domain = knowledge.objective, knowledge.domain
        assert objective is not None
        assert domain is not None
        tables = objective.token_tables(domain.shape[0])
        assert tables is not None
        model = _network(objective)
        length = places_reached(update, knowledge, tables, domain.shape[0])
        eps = max(torch.finfo(dtype).eps for dtype in (update.dtype, objective.dtype))
        readers = find_readers(model, tables.size, domain.shape[0])
        gradients = update.tensors
        stds = {
            name: math.hypot(noise_std(knowledge, name) or 0.0, _lost_digits(update, objective.params[name]))
            for name in gradients
        }
        spans = spans_of(readers, gradients, eps=eps, std=stds)
        spent = _Work(objective=objective, readers=readers, tokens=spans.tokens or length)
        if all(span.full for _, span in spans.own):
            return _nothing(
                "what the first layers read spans everything: as many tokens as numbers, or noise, rounding or pruning that "
                "hides the rank"
            )
        taps = Taps(model=model)
        words = used_rows(update, knowledge)[tables.word].rows if tables.word in gradients else None
        candidates = candidate_words(taps, spans, torch.arange(tables.size) if words is None else words, length)
        found: Sequence[Sequence[int]]
        decodes = not any(reader.reach is Reach.ALL for reader in readers)
        rivals = False
        if decodes:
            found = grow_prefixes(taps, spans, candidates)
        else:
            found, rivals = self._encoder(model, knowledge, tables, readers, spans, candidates, taps, spent)
        spent.passed(taps)
        if not found:
            return _nothing(
                f"no sentence fits the spans ({spans.rank} dimensions), or too many candidates do",
                spent.plain_gradients,
            )
        size = knowledge.batch_size
        if size is not None and len(found) > size:
            if len(found) > _MOST_CLAIMS:
                return _nothing(
                    f"{len(found)} sentences fit the spans, and the batch has {size}", spent.plain_gradients
                )
            found, replaceable, passed = matching_sentences(found, size, spans, update, objective)
            rivals = rivals or replaceable
            spent.plain_gradients += passed / spent.tokens
        count = distinct_prefixes(found) if decodes else sum(len(sentence) for sentence in found)
        if spans.tokens != count:
            doubt = f"{sum(map(len, found))} tokens are claimed where the spans count {spans.tokens or 'more than they can'}"
        elif size is not None and len(found) < size:
            more = ", or its beginning," if decodes else ""
            doubt = f"the batch has {size} sentences: others are equal to one that is claimed{more} or left no trace"
        elif not spans.clear:
            doubt = "the spans end without a clear gap, so that their count of tokens is no certificate"
        else:
            doubt = "other words, or another order, fit the spans as well" if rivals else ""
        told = doubt or "the sentences' tokens are as many as the spans count, where equal sentences count once"
        if decodes and objective.loss_name == "causal_lm":
            told += "; the last token of a sentence is only predicted, and not claimed"
        return _claimed(found, domain.shape[0], told, not doubt, spans, spent.plain_gradients)

    def _encoder(
        self,
        model: nn.Module,
        knowledge: Knowledge,
        tables: TokenTables,
        readers: Sequence[Reader],
        spans: Spans,
        candidates: Sequence[Tensor],
        taps: Taps,
        spent: _Work,
    ) -> tuple[Sequence[Sequence[int]], bool]:
        """Ids of sentences, and whether others fit as well."""
        assert knowledge.domain is not None
        special = {} if knowledge.domain.vocabulary is None else knowledge.domain.vocabulary.places
        last = frozenset(token for token, place in special.items() if place == -1)
        by_name = {reader.weights[0]: span for reader, span in spans.mixed}
        block = read_encoder_block(model, readers, tables.size, knowledge.domain.shape[0])
        contexts, hidden = (by_name.get(name) for name in block.names)
        if contexts is None or hidden is None or hidden.full:
            sentences = whole_sentences(taps, spans, candidates, last)
            # Exchanged words move what is read later by too little to tell: more sentences than were sent tell none.
            return ([] if len(sentences) > (knowledge.batch_size or len(sentences)) else sentences), False
        # A LayerNorm before it takes one more dimension.
        if hidden.rank >= block.width - 1:
            return [], False
        words, places, inputs = [], [], []
        for place, kept in enumerate(candidates):
            if not len(kept):
                continue
            ids = torch.cat([kept.new_zeros(len(kept), place), kept[:, None]], dim=1)
            inputs.append(taps.inputs(ids, [block.reader.layer])[0][:, place].double())
            words.append(kept)
            places.append(torch.full_like(kept, place))
        if not words:
            return [], False
        pairs = Pairs(
            words=torch.cat(words),
            places=torch.cat(places),
            inputs=torch.cat(inputs),
            first=frozenset(token for token, place in special.items() if place == 0),
            last=last,
        )
        test = PairTest(block, contexts, hidden)
        solver = SentenceSolver(block=block, pairs=pairs, test=test, tokens=hidden.rank, most_steps=self.most_steps)
        found = solver.run()
        spent.add(test.steps * 4.0 * hidden.basis.shape[0] * contexts.rank**2)
        spent.add(solver.systems * 60.0 * block.width * len(pairs.words))
        return found, solver.rivals


@dataclass(kw_only=True, eq=False)
class _Work:
    """Multiplications done, in units of those of a gradient on the batch."""

    objective: Objective
    readers: Sequence[Reader]
    tokens: int
    plain_gradients: float = 0.0

    def _entries(self, readers: Sequence[Reader]) -> int:
        tensors = {**self.objective.frozen, **self.objective.params}
        return sum(tensors[name].numel() for reader in readers for name in reader.weights if name in tensors)

    def add(self, multiplications: float) -> None:
        """Count multiplications."""
        self.plain_gradients += multiplications / max(3.0 * self._entries(self.readers) * self.tokens, 1.0)

    def passed(self, taps: Taps) -> None:
        """Count tokens that went through the first block."""
        self.add(float(taps.cost) * self._entries(self.readers[:4]))


def _network(objective: Objective) -> nn.Module:
    """The model without dropout; the client's own mode is left as it is."""
    return objective.in_mode(Mode.EVAL).parts(nn.Module)[0]


def _lost_digits(update: Update, parameter: Tensor) -> float:
    """Standard deviation of what is lost where a change of weights is the difference of two rounded ones; 0 for a gradient."""
    if update.kind is UpdateKind.GRADIENT:
        return 0.0
    eps = torch.finfo(parameter.dtype).eps
    return 0.3 * eps * float(parameter.double().square().mean().sqrt())


def _nothing(reason: str, spent: float = 0.0) -> Reconstruction:
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=None,
        outcome=Outcome.NOT_IDENTIFIABLE,
        plain_gradients=spent,
        note=f"nothing is claimed: {reason}",
    )


def matching_sentences(
    found: Sequence[Sequence[int]], size: int, spans: Spans, update: Update, objective: Objective
) -> tuple[list[Sequence[int]], bool, int]:
    """The sentences, as many as the batch has, whose gradients together give that of the first block best.

    The update is a sum over sentences, each with one of the classes: one sentence after the other is taken, that whose
    gradients explain most of what those taken so far leave of it.

    Args:
        found: ids of more sentences than the batch has.
        size: of the batch.
        spans: their layers are compared.
        update: aligned with the model.
        objective: of the client.

    Returns:
        The sentences, whether one that is left out could stand for one of them, and how many tokens went through a gradient.
    """
    names = [name for reader, _ in (*spans.own, *spans.mixed) for name in reader.weights if name in update.tensors]
    goal = torch.cat([update.tensors[name].double().flatten() for name in names])
    kept = torch.randperm(len(goal), generator=torch.Generator().manual_seed(0))[:_COMPARED]
    columns: list[list[Tensor]] = []
    passed = 0
    for sentence in found:
        ids = torch.tensor([list(sentence)])
        outputs = objective.outputs(objective.params, ids)
        by_place = isinstance(outputs, Tensor) and outputs.dim() == 3
        targets = [ids] if by_place else [torch.tensor([label]) for label in range(outputs.shape[-1])]
        columns.append([])
        for target in targets:
            gradient = objective.gradient(objective.params, Batch(ids, target))
            columns[-1].append(torch.cat([gradient[name].double().flatten() for name in names])[kept])
            passed += len(sentence)
    # All of it happens in the span of the gradients.
    basis, _ = torch.linalg.qr(torch.stack([column for own in columns for column in own], dim=1))
    left = basis.T @ goal[kept]
    whole, missed = left, float((goal[kept] - basis @ left).square().sum())
    rest = reduced = [basis.T @ torch.stack(own, dim=1) for own in columns]
    chosen: list[int] = []
    for _ in range(size):
        bases = [_column_space(own) for own in rest]
        shares = [-1.0 if place in chosen else float((own.T @ left).norm()) for place, own in enumerate(bases)]
        best = max(range(len(found)), key=shares.__getitem__)
        chosen.append(best)
        left = left - bases[best] @ (bases[best].T @ left)
        rest = [own - bases[best] @ (bases[best].T @ own) for own in rest]
    error = (missed + float(left.square().sum())) / len(kept)
    return [found[place] for place in sorted(chosen)], _replaceable(reduced, whole, chosen, error), passed


def _replaceable(columns: Sequence[Tensor], whole: Tensor, chosen: Sequence[int], error: float) -> bool:
    """True if one that was not chosen explains what one of the chosen does, but for a squared error of an entry."""
    others = [place for place in range(len(columns)) if place not in chosen]
    for place in chosen if others else ():
        basis = _column_space(
            torch.cat([columns[one] for one in chosen if one != place] or [whole.new_zeros(len(whole), 1)], 1)
        )
        left = whole - basis @ (basis.T @ whole)
        least = float(left.square().sum())
        for other in (place, *others):
            own = _column_space(columns[other] - basis @ (basis.T @ columns[other]))
            rest = float((left - own @ (own.T @ left)).square().sum())
            if other == place:
                least = rest + max(_CLEAR * error, _ALIKE * (least - rest))
            elif rest <= least:
                return True
    return False


def _column_space(matrix: Tensor) -> Tensor:
    """Orthonormal basis of the columns; those that are multiples of others, but for rounding, count once."""
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    basis: Tensor = left[:, values > 1e-6 * values[0].clamp_min(torch.finfo(matrix.dtype).tiny)]
    return basis


def _claimed(
    sentences: Sequence[Sequence[int]], length: int, told: str, complete: bool, spans: Spans, spent: float
) -> Reconstruction:
    tokens = torch.full((len(sentences), length), NO_TOKEN)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = torch.tensor(sentence)
    number = sum(len(sentence) for sentence in sentences)
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=None,
        outcome=Outcome.CONVERGED if complete else Outcome.NOT_IDENTIFIABLE,
        tokens=tokens,
        bag=tokens[tokens != NO_TOKEN].sort().values,
        plain_gradients=spent,
        note=told,
        details={"tokens": number, "rank": spans.rank, "complete": complete},
    )
