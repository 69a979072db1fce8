"""Words and places of a sentence from the rows of the tables of embeddings alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import scipy
import torch
from torch import Tensor, nn

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.text.head_rows import last_word, predicted_words
from gradleak.attacks.text.table_rows import place_words, rows_outside_head
from gradleak.attacks.text.used_rows import may_miss, noise_std, used_rows
from gradleak.core import NO_TOKEN, Knowledge, Mode, Reconstruction, TokenTables, Update
from gradleak.protocols.average_gradient import without_decay
from gradleak.results import MELIS_2019, Citation, Outcome, UnsupportedError

_COST = 1.0
# A forward pass, in plain gradients.
_PASS = 1 / 3
# Half precision leaves about 1e-3; noise that a word could hide in leaves more than this.
_LARGEST_MISFIT = 0.02
_ROUNDINGS = 16.0


@dataclass(frozen=True, kw_only=True)
class TokenRows(Attack):
    """The words of a batch from the table of words, and the order of a sentence from the table of places.

    The row of a word in the gradient is the sum of what its places pass back, the row of a place the sum over the batch of
    what is passed back there: for a single sentence both tables get the gradient of their sum, so that the rows of the words
    are sums of rows of places, and which ones is read off (`place_words`). A tied table is read outside of the span of its
    head (`rows_outside_head`). Of several sentences, and without learned places, the bag of words is claimed alone.

    **Assumptions**: those of `used_rows` and `place_words`. The number of words is that of the rows of places that moved, or
    the disclosed length. A last word that a causal language model only predicts moves the head alone. Behind a single sentence
    whose words are known the model says which it is (`last_word`); of a batch it is in the bag where a head of its own tells by
    its rows what was predicted (`predicted_words`). The row of a tied head lies within the head's share, and hides it.

    Outcomes: `converged` where the rows of words are those sums but for rounding, and no word at another place is as good;
    `not_identifiable` where they are not (noise, rounding to few bits), or places pass back the same, as in a model that adds
    them up before anything bends: the words stand, their order is the nearest and may be wrong. So it is where last words may
    be missing: of a batch the head has to tell as many as it has sentences, none of which is read elsewhere. A bag alone is
    certain only where no word can be hidden: not by noise, by defenses that set numbers to zero or are not known, by half
    precision, or by the rounding of weights that were trained.

    **Cost**: two forward passes that find the tables, counted as one plain gradient; the rest is a search in rows. A head of
    its own adds the products of `predicted_words`.

    **Source**: Melis et al. 2019 for the words; places from the table of places are ours.

    Attributes:
        false_alarms: probability of naming a word or place that is not there, over a table, under known noise.
    """

    name: ClassVar[str] = "token_rows"
    needs: ClassVar[tuple[str, ...]] = ("objective", "domain")
    citations: ClassVar[tuple[Citation, ...]] = (MELIS_2019,)
    summary: ClassVar[str] = (
        "Reads the words of a batch off the table of words, and their order off the table of places."
    )
    claims_tokens: ClassVar[bool] = True
    on_processor: ClassVar[bool] = True

    false_alarms: float = 0.01

    def estimate(self, knowledge: Knowledge) -> float:
        """One plain gradient."""
        return _COST

    def _check(self, knowledge: Knowledge) -> None:
        tables = _tables(knowledge)
        if not tables.shared:
            raise UnsupportedError(
                f"the attack {self.name} reads the table of words {tables.word}, which is frozen and not shared; use an attack "
                "that matches the rest of the update"
            )

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        tables = _tables(knowledge)
        read = used_rows(update, knowledge, false_alarms=self.false_alarms)[tables.word]
        if read.rows is None:
            return _claim(read.outcome, read.note)
        domain, objective = knowledge.domain, knowledge.objective
        assert domain is not None
        assert domain.vocabulary is not None
        assert objective is not None
        if knowledge.protocol is not None and knowledge.batch_size is not None and not knowledge.defenses:
            update = without_decay(update, knowledge.protocol, knowledge.batch_size, objective.params)
        padding = domain.vocabulary.padding
        last = _last_words(update, knowledge, tables, read.rows)
        rows = torch.cat([read.rows, last.rows]).sort().values
        rows = rows if padding is None else rows[rows != padding]
        note, spent = f"{read.note}{last.note}", _COST + last.plain_gradients
        why = _no_places(tables, update, knowledge)
        places = Tensor() if why else self._places(update, knowledge, tables, domain.size)
        if not why and not len(places):
            why = f"no row of {tables.position} moves"
        if why or not len(rows):
            doubt = may_miss(update, knowledge, tables.word)
            outcome = Outcome.CONVERGED if last.told and not doubt else Outcome.NOT_IDENTIFIABLE
            told = f"{note}; the bag of words alone: {why}{doubt and f'; it may lack words: {doubt}'}"
            return _claim(outcome, told, bag=rows, spent=spent)
        # A model that takes no mask, or reads its first place, has padding in front of a sentence like any other token.
        words = update.tensors[tables.word][read.rows].double()
        if tables.tied:
            std = noise_std(knowledge, tables.word) or 0.0
            free = rows_outside_head(update.tensors[tables.word], std=std, false_alarms=self.false_alarms).free
            words, places = words @ free, places @ free
        # Places that no token stands at, in front of a sentence that is padded there.
        there = (places != 0).any(dim=1).nonzero()[:, 0]
        found = place_words(words, places[there])
        tokens = torch.full((1, domain.size), NO_TOKEN)
        tokens[0, there] = read.rows[found.words]
        end = int(there[-1]) + 1
        if last.head and end < domain.size and end == len(there):
            network = objective.in_mode(Mode.EVAL).parts(nn.Module)[0]
            word = last_word(network, last.head.removesuffix(".weight"), update.tensors[last.head], tokens[0, :end])
            last = last if word is None else last.known(word)
            note, spent = f"{read.note}{last.note}", _COST + last.plain_gradients + _PASS
        if len(last.rows) == 1 and end < domain.size:
            tokens[0, end] = last.rows[0]
        if padding is not None:
            tokens[tokens == padding] = NO_TOKEN
        rows = torch.cat([read.rows, last.rows]).unique()
        left_over = rows[~torch.isin(rows, tokens) & (rows != (NO_TOKEN if padding is None else padding))]
        # What misfit and rounding are made of hides an order that fits worse by as much.
        rounding = _ROUNDINGS * torch.finfo(update.dtype).eps
        alike = int((found.margins <= len(words) * max(found.misfit, rounding) ** 2).sum())
        # Sums of rows that depend on each other come near to others by chance.
        independent = int(torch.linalg.matrix_rank(places[there], rtol=rounding)) == len(there)
        fits = found.misfit < (_LARGEST_MISFIT if independent else rounding)
        doubt = (
            f": {alike} of them fit other words as well" if fits else ": the order is the nearest one, and may be wrong"
        )
        return _claim(
            Outcome.CONVERGED if fits and not alike and last.told else Outcome.NOT_IDENTIFIABLE,
            f"{note}; {len(there)} places, relative misfit of words and places {found.misfit:.1e}"
            + ("" if fits and not alike else doubt),
            tokens=tokens,
            bag=torch.cat([tokens[tokens != NO_TOKEN], left_over]).sort().values,
            loss=found.misfit,
            spent=spent,
            details={"misfit": found.misfit, "margins": found.margins.tolist()},
        )

    def _places(self, update: Update, knowledge: Knowledge, tables: TokenTables, length: int) -> Tensor:
        """The rows (n, d) of the places that a sentence reaches, float64."""
        assert tables.position is not None
        rows = update.tensors[tables.position][tables.offset : tables.offset + length].double()
        if knowledge.lengths is not None:
            return rows[: int(knowledge.lengths[0])]
        squares, std = rows.square().sum(dim=1), noise_std(knowledge, tables.position) or 0.0
        each = 1.0 - (1.0 - self.false_alarms) ** (1.0 / max(len(rows), 1))
        least = std**2 * float(scipy.stats.chi2.isf(each, rows.shape[1])) if std > 0.0 else 0.0
        moved = (squares > least).nonzero()[:, 0]
        return rows[: int(moved.max()) + 1] if len(moved) else rows[:0]


def _tables(knowledge: Knowledge) -> TokenTables:
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    found = knowledge.objective.token_tables(knowledge.domain.size)
    if found is None:
        raise UnsupportedError(
            "the attack token_rows reads tables of embeddings, and the model looks ids up in no nn.Embedding"
        )
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _LastWords:
    """Words that are predicted and not read, and what to say of them; not told where some may be missing.

    `head` is the name of the weight that predicts them, or "" where there is none of its own.
    """

    rows: Tensor
    note: str = ""
    told: bool = True
    plain_gradients: float = 0.0
    head: str = ""

    def known(self, word: int) -> _LastWords:
        """The one last word that fits."""
        return replace(
            self,
            rows=self.rows.new_tensor([word]),
            told=True,
            note=f"; the last word is the one whose prediction gives the gradient of {self.head}",
        )


def _last_words(update: Update, knowledge: Knowledge, tables: TokenTables, read: Tensor) -> _LastWords:
    """The words that a causal model with a head of its own predicts and never reads."""
    objective, domain, none = knowledge.objective, knowledge.domain, read[:0]
    assert objective is not None
    assert domain is not None
    if tables.tied or objective.loss_name != "causal_lm":
        return _LastWords(rows=none)
    heads = [
        name
        for name, one in update.tensors.items()
        if one.dim() == 2 and len(one) == tables.size and name != tables.word
    ]
    if len(heads) != 1:
        return _LastWords(
            rows=none, told=False, note="; a last word that is only predicted is not told: no head is shared"
        )
    (head,) = heads
    std = noise_std(knowledge, head)
    found = predicted_words(update.tensors[head], std=math.inf if std is None else std)
    entries = sum(one.numel() for one in objective.params.values())
    spent = found.multiplications / max(3.0 * entries * domain.size * (knowledge.batch_size or 1), 1.0)
    untold = _LastWords(rows=none, told=False, plain_gradients=spent, head=head)
    silent = "; a last word that is only predicted is not told: the rows of"
    if found.rows is None:
        return replace(untold, note=f"{silent} {head} do not stand apart")
    assert domain.vocabulary is not None
    rows = found.rows[~torch.isin(found.rows, read)]
    # Of a sentence one word is read and never predicted, its first, and one is predicted and never read, its last.
    unpredicted = read[~torch.isin(read, found.rows)]
    if domain.vocabulary.padding is not None:
        unpredicted = unpredicted[unpredicted != domain.vocabulary.padding]
    most = knowledge.batch_size
    if most is not None and max(len(rows), len(unpredicted)) > most:
        return replace(untold, note=f"{silent} {head} contradict the words that were read")
    note = f"; {len(rows)} more of {head} are predicted and never read" if len(rows) else ""
    # A sentence has one last word. Where fewer are told, others may be words that were read, or hide in the head.
    complete = len(rows) == most
    note += (
        ""
        if complete
        else f"; a last word that is only predicted is not told of every sentence ({len(rows)} of {most or 'some'})"
    )
    return replace(untold, rows=rows, told=complete, note=note)


def _no_places(tables: TokenTables, update: Update, knowledge: Knowledge) -> str:
    """Reason why no order can be read off, or ""."""
    if tables.position is None:
        return "the model has no table of places"
    if tables.position not in update.tensors:
        return f"the table of places {tables.position} is not shared"
    if knowledge.batch_size != 1:
        return "the rows of places are sums over the sentences of a batch"
    return ""


def _claim(
    outcome: Outcome,
    note: str,
    *,
    tokens: Tensor | None = None,
    bag: Tensor | None = None,
    loss: float | None = None,
    spent: float = _COST,
    details: dict[str, object] | None = None,
) -> Reconstruction:
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=loss,
        outcome=outcome,
        plain_gradients=spent,
        note=note,
        details=details or {},
        tokens=tokens,
        bag=bag,
    )
