"""Rows of an embedding's table that an update names: the words of a batch, without their order."""

from __future__ import annotations

from dataclasses import dataclass

import scipy
import torch
from torch import Tensor, nn

from gradleak.attacks.text.table_rows import rows_outside_head
from gradleak.core import DiagonalGaussian, Knowledge, TokenTables, Update, UpdateKind
from gradleak.protocols.average_gradient import without_decay
from gradleak.results import InputError, Outcome, check_share


@dataclass(frozen=True, kw_only=True, eq=False)
class UsedRows:
    """Rows that the gradient of one table gives away, without the truth.

    Attributes:
        rows: indices of the rows that the batch used, ascending, or None where the update does not tell.
        outcome: `converged`, `not_identifiable`, or `no_signal`.
        note: how they were had, or why not.
    """

    rows: Tensor | None
    outcome: Outcome
    note: str


def used_rows(update: Update, knowledge: Knowledge, *, false_alarms: float = 0.01) -> dict[str, UsedRows]:
    """The rows that a batch used of every `nn.Embedding` table of the model: those that its update moves.

    A row has a gradient only where its word stands in the batch, so that the table of a text model names the words of a
    client, all of them for a batch of sentences together, neither their order nor how often they occur.

    **Assumptions**: exact without noise, for a gradient and for local training alike. A word whose gradient is zero or pruned
    away is missed. Under known Gaussian noise of std s a row of w entries counts where its squared norm is above what s²χ²_w
    exceeds once in `false_alarms` tables; weak words are missed. A table that is the weight of another layer too (a tied head)
    moves everywhere; there words stand out of the span of the head's share (`rows_outside_head`) while tokens are fewer than
    dimensions. Not identifiable where they do not, where every row of another table moves, or every one but those at zero
    (weight decay, a table that `forward` multiplies with), where noise is of another kind, or defenses are not known and
    leave no row at zero. Padding with an index of its own counts as a word; a row that `padding_idx` holds fixed does not.

    Args:
        update: what the server saw; tables that it does not hold (see `VisibleLayers`) are answered with a word.
        knowledge: all that the adversary knows besides it.
        false_alarms: the probability of naming a word that is not there, over a table, under noise.

    Returns:
        By name of the table, in the order of the model.

    Raises:
        InputError: for a model without a table, or a number out of range.
        KnowledgeError: without the objective.
        InconsistentUpdateError: if the update does not fit the model.

    **Cost**: one pass over the tables; a few products of a tied one with itself.

    **Source**: Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning" (the embedding layer); the
    test under noise and tied tables are ours.

    Examples:
        >>> import torch
        >>> from gradleak.core import Objective
        >>> model = nn.Sequential(nn.Embedding(6, 3), nn.Flatten(), nn.Linear(6, 2))
        >>> knowledge = Knowledge(objective=Objective.from_module(model))
        >>> table = torch.zeros(6, 3).index_fill(0, torch.tensor([1, 4]), 0.5)
        >>> update = Update(tensors={"0.weight": table, "2.weight": torch.ones(2, 6), "2.bias": torch.ones(2)})
        >>> used_rows(update, knowledge)["0.weight"].rows.tolist()
        [1, 4]
    """
    check_share("false_alarms", false_alarms)
    knowledge.require(("objective",), asker="used_rows")
    objective = knowledge.objective
    assert objective is not None
    tables: list[str] = []
    others: set[str] = set()
    for place, part in objective._module.named_modules(remove_duplicate=False):
        table = isinstance(part, nn.Embedding | nn.EmbeddingBag)
        for local in ["weight"] if table else dict(part.named_parameters(recurse=False, remove_duplicate=False)):
            name = f"{place}.{local}".removeprefix(".")
            name = objective.tied.get(name, name)
            if table:
                tables.append(name)
            else:
                others.add(name)
    names = list(dict.fromkeys(tables))
    if not names:
        raise InputError("used_rows: expected a model with an nn.Embedding layer, got none")
    aligned = update.align(objective)
    if knowledge.protocol is not None and knowledge.batch_size is not None and not knowledge.defenses:
        aligned = without_decay(aligned, knowledge.protocol, knowledge.batch_size, objective.params)
    decays = knowledge.protocol is not None and knowledge.protocol.decay(knowledge.batch_size or 1)
    decayed = bool(decays and knowledge.defenses)
    found = {}
    for name in names:
        if name not in objective.params:
            found[name] = _unknown(f"{name} is not shared")
            continue
        std = noise_std(knowledge, name)
        if decayed:
            found[name] = _unknown(
                "weight decay moves rows that no word uses, and what it adds behind defenses is not known"
            )
        elif std is None:
            found[name] = _unknown("the noise of the release is not Gaussian, so that a row that moved proves nothing")
        elif name in others:
            found[name] = _of_tied(aligned.tensors[name], std, name, false_alarms)
        else:
            found[name] = _of_table(aligned.tensors[name], objective.params[name], std, name, false_alarms)
    return found


def may_miss(update: Update, knowledge: Knowledge, table: str) -> str:
    """Reason why the rows that moved need not be those of all words, nor of words alone; "" where there is none.

    Args:
        update: aligned with the model.
        knowledge: with the objective.
        table: name of the table.
    """
    if noise_std(knowledge, table) != 0.0:
        return "noise hides words of little weight, and may stand for others"
    if knowledge.defenses is None:
        return "the defenses are not known, and may hide words"
    if any(one.flat or one.kept_share is not None for one in knowledge.defenses):
        return "the defenses set small numbers to zero, and words of little weight with them"
    if update.dtype is torch.float16:
        return "half precision sets small numbers to zero, and words of little weight with them"
    if update.kind is not UpdateKind.GRADIENT:
        return "trained weights are rounded, which hides words of little weight"
    return ""


def noise_std(knowledge: Knowledge, name: str) -> float | None:
    """Standard deviation of the known noise on each entry of a tensor; 0 where none is known, None if it is not Gaussian.

    Args:
        knowledge: with the objective.
        name: of the tensor.
    """
    if knowledge.protocol is None or knowledge.defenses is None:
        return 0.0
    assert knowledge.objective is not None
    noise = knowledge.release.noise(knowledge.objective, examples=knowledge.batch_size)
    if noise is None:
        return 0.0
    return float(noise.std[name]) if isinstance(noise, DiagonalGaussian) else None


def places_reached(update: Update, knowledge: Knowledge, tables: TokenTables, length: int) -> int:
    """Places of the longest sentence, as the rows of the position table say, or the padded length.

    Args:
        update: aligned with the model.
        knowledge: with the objective.
        tables: of the model.
        length: padded.
    """
    if tables.position is None or tables.position not in update.tensors or noise_std(knowledge, tables.position) != 0.0:
        return length
    moved = (update.tensors[tables.position][tables.offset : tables.offset + length] != 0).any(dim=1).nonzero()
    return int(moved.max()) + 1 if len(moved) else length


def _of_tied(gradient: Tensor, std: float, name: str, false_alarms: float) -> UsedRows:
    head = rows_outside_head(gradient, std=std, false_alarms=false_alarms)
    if head.rows is None:
        return _unknown(
            f"{name} is the weight of another layer too, which moves rows that no word uses; no rows stand out of the "
            f"{head.rank} dimensions that it spans"
        )
    return UsedRows(
        rows=head.rows,
        outcome=Outcome.CONVERGED,
        note=f"{len(head.rows)} of {len(gradient)} rows of {name} lie outside of the {head.rank} dimensions that its use as "
        "a head spans; words of the batch that are only predicted may be among them",
    )


def _of_table(gradient: Tensor, table: Tensor, std: float, name: str, false_alarms: float) -> UsedRows:
    squares = gradient.double().square().sum(dim=1).cpu()
    if std > 0.0:
        each = 1.0 - (1.0 - false_alarms) ** (1.0 / len(squares))
        least = std**2 * float(scipy.stats.chi2.isf(each, gradient.shape[1]))
        moved, how = squares > least, f"above what noise of std {std:.2g} reaches"
    else:
        moved, how = squares > 0.0, "not zero"
    if not bool(moved.any()):
        return UsedRows(rows=None, outcome=Outcome.NO_SIGNAL, note=f"no row of {name} is {how}")
    # Decay leaves a row where it is that padding keeps at zero; a table of zeros it does not move at all.
    decays = (table.detach() != 0.0).any(dim=1).cpu()
    if std == 0.0 and bool(moved.all() | (decays.any() & moved[decays].all())):
        every = "every row" if bool(moved.all()) else "every row but those at zero"
        return _unknown(f"{every} of {name} moves: all of them are used, or something else than words moves them")
    rows = moved.nonzero()[:, 0]
    return UsedRows(
        rows=rows, outcome=Outcome.CONVERGED, note=f"{len(rows)} of {len(moved)} rows of {name} are {how} in the update"
    )


def _unknown(reason: str) -> UsedRows:
    return UsedRows(rows=None, outcome=Outcome.NOT_IDENTIFIABLE, note=reason)
