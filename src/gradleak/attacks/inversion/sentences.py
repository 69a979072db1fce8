"""Sentences as numbers: embeddings of words as the unknowns of a search, and words read back from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.targets import WordWeights
from gradleak.attacks.text.used_rows import places_reached, used_rows
from gradleak.core import (
    NO_TOKEN,
    Bounds,
    DiagonalGaussian,
    Domain,
    DomainKind,
    ExampleDefense,
    Guarantee,
    Knowledge,
    Objective,
    TokenTables,
    Update,
    UpdateDefense,
)
from gradleak.core.defense import Noise
from gradleak.core.losses import NEXT_WORD
from gradleak.core.objective import Tensors
from gradleak.results import UnsupportedError

OPEN = -2
"""In place of the id of a word that is to be found."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentences:
    """The sentences of a batch as an attack on numbers has them: embeddings at the places whose words are not known.

    Special tokens with a fixed place stand there, and places beyond a disclosed length hold none; for a single sentence the
    rows of the table of places tell the length, too. All other places are open.

    The table of words is left out of what is compared: which of its rows a guess would move is what nobody knows. Where a
    defense or local steps make the rest of the update depend on it, its part is computed as if every word stood once.

    Attributes:
        model: the loss as a function of ids.
        knowledge: with the loss as a function of embeddings (b, T, d), and the domain of these.
        update: without the table, or None where there is none yet.
        table: the embeddings of all words, (V, d), in the dtype of the model.
        known: ids (b, T), `OPEN` where a word is to be found, -1 where there is none.
        candidates: ids that may stand at an open place, ascending.
        narrowed: whether they are those of the table's rows that moved, not the vocabulary.
        allowed: ids that may stand where no lookup tells, ascending: all but those kept apart.
        foretold: whether each word is the target of the place before it, and there are no targets.
    """

    model: Objective
    knowledge: Knowledge
    update: Update | None
    table: Tensor
    known: Tensor
    candidates: Tensor
    narrowed: bool
    allowed: Tensor
    foretold: bool

    @classmethod
    def of(
        cls,
        knowledge: Knowledge,
        update: Update | None = None,
        *,
        from_table: bool = False,
        targets: Tensor | None = None,
    ) -> Sentences:
        """The sentences behind an update, or behind any update where none is given.

        Args:
            knowledge: with objective, batch size and a domain of tokens.
            update: aligned with the model.
            from_table: whether only words whose rows of a shared table moved are tried.
            targets: a guess at those that nobody told.

        Raises:
            UnsupportedError: for a model without tables, or padding under defenses of single examples or mini-batches.

        Cost: four forward passes.
        """
        objective, domain = knowledge.objective, knowledge.domain
        assert objective is not None
        assert domain is not None
        vocabulary = domain.vocabulary
        assert vocabulary is not None
        tables = objective.token_tables(domain.size)
        if tables is None:
            raise UnsupportedError(
                "gradient inversion of sentences needs a model that looks ids up in an nn.Embedding, got none"
            )
        known = _known(knowledge, update, tables)
        next_word = objective.loss_name == NEXT_WORD
        given = knowledge.targets if targets is None else targets
        if next_word and given is not None:
            # The last word is predicted alone.
            places = torch.arange(len(known)), (known != NO_TOKEN).sum(dim=1) - 1
            last = given.cpu()[places]
            known[places] = torch.where(last >= 0, last, known[places])
        table = {**objective.frozen, **objective.params}[tables.word].detach()
        ids = torch.arange(min(tables.size, vocabulary.size))
        allowed = ids[~torch.isin(ids, torch.tensor(sorted(vocabulary.apart), dtype=torch.int64))]
        candidates, narrowed = allowed, False
        if from_table and update is not None and tables.shared:
            rows = used_rows(update, knowledge)[tables.word].rows
            moved = allowed[torch.isin(allowed, rows)] if rows is not None else allowed[:0]
            narrowed = len(moved) > 0
            candidates = moved if narrowed else allowed
        at_embeddings, parts = _as_numbers(knowledge, objective, tables, known)
        seen = None
        if update is not None:
            seen = replace(update, tensors={name: update.tensors[name] for name in at_embeddings.params})
        low, high = float(table.min()), float(table.max())
        return cls(
            model=objective,
            knowledge=replace(
                parts,
                domain=Domain(
                    shape=(domain.size, tables.width), low=low, high=max(high, low + 1e-6), kind=DomainKind.SIGNAL
                ),
                public=None,
                lengths=None,
            ),
            update=seen,
            table=table,
            known=known.to(table.device),
            candidates=candidates.to(table.device),
            narrowed=narrowed,
            allowed=allowed.to(table.device),
            foretold=next_word and given is None,
        )

    @property
    def facts(self) -> list[str]:
        """Information that the search goes by besides the update, in words."""
        places = f"{len(self.open)} of {self.known.numel()} places to be found"
        return [places, *(["words of rows of the table that moved"] if self.narrowed else [])]

    @cached_property
    def open(self) -> Tensor:
        """The open places in the batch as one row of b · T, ascending."""
        return (self.known.reshape(-1) == OPEN).nonzero()[:, 0]

    @cached_property
    def spread(self) -> Tensor:
        """Mean (d,) and root mean square distance from it of the table's entries, as d + 1 numbers."""
        rows = self.table.double()
        center = rows.mean(dim=0)
        scale = (rows - center).square().mean().sqrt().clamp(min=1e-12)
        return torch.cat([center, scale[None]])

    def filled(self, rows: Tensor) -> Tensor:
        """Embeddings (b, T, d) of the batch with these (m, d) at its open places; pure, safe under torch.func."""
        base = self._base.to(rows)
        return base.index_put((self.open,), rows).reshape(*self.known.shape, -1)

    @cached_property
    def _base(self) -> Tensor:
        objective = self.knowledge.objective
        assert objective is not None
        ids = torch.where(self.known == OPEN, torch.full_like(self.known, NO_TOKEN), self.known)
        rows: Tensor = objective.embed(ids).detach().reshape(-1, self.table.shape[1])
        return rows

    @cached_property
    def unread(self) -> Tensor:
        """Mask of the open places (m,) that are predicted alone, and whose words no table tells: the last of a sentence."""
        there = (self.known != NO_TOKEN).sum(dim=1)
        last = torch.arange(self.known.shape[1], device=self.known.device) == there[:, None] - 1
        return (last & self.foretold).reshape(-1)[self.open]

    def words(self, embeddings: Tensor, targets: Tensor | None = None) -> Tensor:
        """The ids (m,) at open places whose embeddings point the same way, without their means, which a LayerNorm does not see.

        Where targets are words that nobody told, the probability of a word as a target is added to the cosine, and alone
        counts at places that are predicted alone.

        Args:
            embeddings: (b, T, d).
            targets: probabilities (b, T, V) where nobody told them; not looked at elsewhere.
        """
        rows = embeddings.reshape(-1, embeddings.shape[-1])[self.open].to(self.table)
        alike = _directions(rows) @ _directions(self.table[self.allowed]).T
        if self.foretold:
            assert targets is not None
            first = (self.open % self.known.shape[1] == 0)[:, None]
            shares = targets.flatten(0, 1)[self.open][:, self.allowed].to(alike)
            alike = alike.masked_fill(self.unread[:, None], 0.0) + shares.masked_fill(first, 0.0)
        closed = self.closed.reshape(-1, len(self.table))[self.open][:, self.allowed]
        return self.allowed[alike.masked_fill(closed, -math.inf).argmax(dim=1)]

    @cached_property
    def closed(self) -> Tensor:
        """Mask (b, T, V) of words that do not stand at a place: others than a known one, and those that no row tells."""
        known, ids = self.known.reshape(-1), torch.arange(len(self.table), device=self.table.device)
        closed = (known >= 0)[:, None] & (ids != known[:, None])
        may = torch.isin(ids, self.candidates) | (self.unread[:, None] & torch.isin(ids, self.allowed))
        return closed.index_put((self.open,), ~may).reshape(*self.known.shape, -1)

    @property
    def word_weights(self) -> WordWeights:
        """The form of targets that are words which nobody told."""
        shape = (self.known.shape[1], len(self.table))
        return WordWeights(shape=shape, closed=self.closed, there=self.known != NO_TOKEN)

    def targets_of(self, words: Tensor) -> Tensor:
        """The targets (b, T) of a language model for these words (m,) at open places: the words, -100 where there is none."""
        tokens = self.known.reshape(-1).index_copy(0, self.open, words).reshape(self.known.shape)
        return torch.where(tokens == NO_TOKEN, torch.full_like(tokens, -100), tokens)

    def claim(self, words: Tensor) -> dict[str, Tensor]:
        """Tokens (b, T) of the batch with these (m,) at its open places, and their bag: fields of a `Reconstruction`."""
        tokens = self.known.reshape(-1).index_copy(0, self.open, words).reshape(self.known.shape).cpu()
        return {"tokens": tokens, "bag": tokens[tokens != NO_TOKEN].sort().values}


def _directions(rows: Tensor) -> Tensor:
    """Rows without their mean, of length 1."""
    centered = rows - rows.mean(dim=1, keepdim=True)
    found: Tensor = centered / centered.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return found


def has_sentences(knowledge: Knowledge) -> bool:
    """True where the examples are known to be sentences."""
    return knowledge.domain is not None and knowledge.domain.vocabulary is not None


def foretold(knowledge: Knowledge) -> bool:
    """True where the targets are the words themselves, as those of a causal language model, and nobody told them."""
    objective = knowledge.objective
    return knowledge.targets is None and objective is not None and objective.loss_name == NEXT_WORD


def as_numbers(knowledge: Knowledge) -> Knowledge:
    """The knowledge with embeddings in place of sentences; itself where the examples are numbers or nothing is known."""
    domain = knowledge.domain
    if domain is None or domain.vocabulary is None or knowledge.objective is None or knowledge.batch_size is None:
        return knowledge
    return Sentences.of(knowledge).knowledge


def _known(knowledge: Knowledge, update: Update | None, tables: TokenTables) -> Tensor:
    """Ids (b, T) of what is known before any search."""
    domain, size = knowledge.domain, knowledge.batch_size
    assert domain is not None
    assert domain.vocabulary is not None
    assert size is not None
    length = domain.size
    known = torch.full((size, length), OPEN)
    lengths = None if knowledge.lengths is None else knowledge.lengths.cpu()
    if lengths is None and size == 1 and update is not None:
        reached = places_reached(update, knowledge, tables, length)
        # Rounding and pruning can leave no row of places but those of special tokens, which tells no length.
        ends = sum(where in (0, -1) for where in domain.vocabulary.places.values())
        # Of the last word, which is predicted alone, no row is looked up by the loss.
        longer = 1 if knowledge.objective is not None and knowledge.objective.loss_name == NEXT_WORD else 0
        lengths = torch.tensor([min(reached + longer, length)]) if reached > ends else None
    if lengths is not None:
        known[torch.arange(length) >= lengths[:, None]] = NO_TOKEN
    for place in (0, -1):
        fixed = [token for token, where in domain.vocabulary.places.items() if where == place]
        if len(fixed) == 1 and (place == 0 or lengths is not None):
            column = torch.zeros(size, dtype=torch.int64) if place == 0 or lengths is None else lengths - 1
            known[torch.arange(size), column] = fixed[0]
    return known


def _as_numbers(
    knowledge: Knowledge, objective: Objective, tables: TokenTables, known: Tensor
) -> tuple[Objective, Knowledge]:
    """The loss at embeddings, and the knowledge with it: without the table of words or with a defense that hides it."""
    protocol = knowledge.protocol
    defenses = tuple(knowledge.defenses or ())
    padded = bool((known == NO_TOKEN).any())
    batches = None if protocol is None else protocol.mini_batch_weights(len(known))
    apart = any(isinstance(defense, ExampleDefense) for defense in defenses) or (
        batches is not None and len(batches) > 1
    )
    if padded and apart:
        raise UnsupportedError(
            "gradient inversion of sentences: expected sentences of one length under mini-batches or defenses of single "
            "examples, got padding; audit sentences of one length"
        )
    coupled = bool(defenses) or (protocol is not None and not protocol.shares_gradient)
    whole = tables.shared and coupled and not apart
    fillers = _fillers(objective, tables, known) if whole or padded else None
    objective = objective.at_embeddings(fillers, length=known.shape[1])
    if whole:
        hidden = (*defenses, HiddenTable(names=(tables.word,)))
        return objective, replace(knowledge, objective=objective, defenses=hidden)
    if tables.shared:
        frozen = {**objective.frozen, tables.word: objective.params[tables.word]}
        params = {name: tensor for name, tensor in objective.params.items() if name != tables.word}
        objective = replace(objective, params=params, frozen=frozen)
    return objective, replace(knowledge, objective=objective)


def _fillers(objective: Objective, tables: TokenTables, known: Tensor) -> Tensor:
    """Ids (b, T) that differ from each other while there are enough, -1 where there is no token."""
    ids = torch.arange(tables.size)
    ids = ids[ids != (0 if tables.padding is None else tables.padding)]
    there = known != NO_TOKEN
    made = torch.full_like(known, NO_TOKEN)
    made[there] = ids[torch.arange(int(there.sum())) % len(ids)]
    return made.to(objective.device)


@dataclass(frozen=True, kw_only=True)
class HiddenTable(UpdateDefense):
    """Tables of words as an adversary sees them who does not know which rows a guess would move: any entry may be anything.

    It stands last among the defenses that a guess is put through, and is none of the client's.

    Attributes:
        names: of the tensors.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    names: tuple[str, ...]

    def mean(self, update: Mapping[str, Tensor]) -> Tensors:
        """The update."""
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None."""
        return None

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """The update."""
        return dict(update)

    def carry(self, noise: DiagonalGaussian) -> Noise:
        """The noise."""
        return noise

    def before(self, after: Bounds) -> Bounds:
        """Those of the update that came out, and none for the tables."""

        def open_ends(tensors: Mapping[str, Tensor], end: float) -> Tensors:
            return {
                name: torch.full_like(tensor, end) if name in self.names else tensor for name, tensor in tensors.items()
            }

        return Bounds(lower=open_ends(after.lower, -math.inf), upper=open_ends(after.upper, math.inf))
