"""Tables of embeddings behind a model of tokens, found from what it computes, and the model as a function of embeddings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradleak.core.batch import NO_TOKEN
from gradleak.core.vocabulary import Vocabulary
from gradleak.results import InputError, UnsupportedError

_MASK = "attention_mask"
# Ids that a probe is made of: few, so that they fit a table of any size.
_PROBES = 64


@dataclass(frozen=True, kw_only=True)
class TokenTables:
    """The tables of a model of tokens, by the names of their weights in `Objective.params` or, unless shared, `frozen`.

    Attributes:
        word: the table that the ids are looked up in, (V, width).
        size: its number of rows, V.
        width: numbers of an embedding, d.
        position: the table that is looked up by place, or None where there is none (rotary or fixed positions).
        offset: the row of the first place there.
        others: further tables that are looked up (token types).
        tied: whether the word table is used a second time, as the weight of a head, which moves rows of words that were
            not read.
        shared: whether the update holds the word table.
        padding: the id that the word table holds fixed for padding (`padding_idx`), or None.
    """

    word: str
    size: int
    width: int
    position: str | None = None
    offset: int = 0
    others: Sequence[str] = ()
    tied: bool = False
    shared: bool = True
    padding: int | None = None


def arguments(module: nn.Module, inputs: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """The arguments of a module for a batch of inputs: these alone, or ids with the mask that `NO_TOKEN` stands for.

    A mask is passed only where a place is without a token, so that a batch without padding is computed as it would be alone.

    Args:
        module: called with the inputs, and with `attention_mask` (b, T) where there is padding.
        inputs: (b, *shape); ids are int64.

    Raises:
        InputError: for places without a token where the module takes no mask.
    """
    if inputs.is_floating_point() or inputs.dim() != 2:
        return (inputs,), {}
    there = inputs != NO_TOKEN
    # Inside of vmap nobody knows the values.
    hidden = _is_batched(inputs)
    takes = _takes_mask(module)
    if (hidden and not takes) or (not hidden and bool(there.all())):
        return (inputs,), {}
    if not takes:
        raise InputError(
            f"the model takes no {_MASK}, so that it cannot leave places without a token (-1) out; put its padding id there, or "
            f"give its forward an argument {_MASK}"
        )
    filled = torch.where(there, inputs, torch.full_like(inputs, padding_of(module)))
    return (filled,), {_MASK: there.to(inputs.dtype)}


def _is_batched(tensor: Tensor) -> bool:
    """True inside of vmap, also where `grad` wraps the tensor once more."""
    wraps = torch._C._functorch
    while wraps.is_functorch_wrapped_tensor(tensor):
        if wraps.is_batchedtensor(tensor):
            return True
        tensor = wraps.get_unwrapped(tensor)
    return False


def _takes_mask(module: nn.Module) -> bool:
    """True if a model takes a mask, or hands any argument on to one that does, as adapters do."""
    parameters = inspect.signature(module.forward).parameters
    hands_on = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return _MASK in parameters or (hands_on and any(_takes_mask(child) for child in module.children()))


def logits_of(outputs: Any) -> Any:
    """The logits of what a model returned, for outputs of Hugging Face; anything else stays."""
    found = None if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    return found if isinstance(found, Tensor) else outputs


def padding_of(module: nn.Module) -> int:
    """The id that a model of tokens fills up with, by its embedding or its configuration; 0 where neither says so."""
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    largest = max(tables, key=lambda part: part.num_embeddings, default=None)
    stated = getattr(getattr(module, "config", None), "pad_token_id", None)
    own = None if largest is None else largest.padding_idx
    return int(own if own is not None else stated if isinstance(stated, int) else 0)


class _Lookups(TorchFunctionMode):
    """While active, records the lookups in tables and which tensors anything else was computed from."""

    def __init__(self, tables: Mapping[int, str]) -> None:
        super().__init__()
        self.tables, self.calls, self.used = tables, [], set[str]()

    calls: list[tuple[str, Tensor]]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through, and note what is of interest."""
        result = func(*args, **(kwargs or {}))
        if func is F.embedding:
            name = self.tables.get(id(_argument(args, kwargs, 1, "weight")))
            if name is not None:
                self.calls.append((name, _argument(args, kwargs, 0, "input")))
        elif isinstance(result, Tensor):
            self.used |= {self.tables[id(one)] for one in (*args, *(kwargs or {}).values()) if id(one) in self.tables}
        return result


def find_tables(
    run: Callable[[Tensor], Any], tensors: Mapping[str, Tensor], module: nn.Module, shared: Sequence[str], length: int
) -> TokenTables | None:
    """The tables of a model of tokens, from two runs on made-up ids; None where ids are looked up in no `nn.Embedding`.

    The word table is the one whose lookups follow the ids, the position table the one that is looked up by 0, 1, 2, ... or
    from another offset on, whatever the ids.

    Args:
        run: evaluates the model on ids (1, T).
        tensors: its weights by name, the very tensors that `run` uses.
        module: the model.
        shared: the names that an update holds.
        length: T.

    Cost: two forward passes.
    """
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    if not embeddings:
        return None
    most = min(_PROBES, max(part.num_embeddings for part in embeddings))
    kept_apart = {part.padding_idx for part in embeddings}
    while most > 1:
        ids = torch.tensor([one for one in range(most) if one not in kept_apart] or [0])
        places = torch.arange(length)
        recorders, probes = [], []
        try:
            for shift in (1, 3):
                probe = ids[(places * places + shift * places + shift) % len(ids)][None]
                device = next(iter(tensors.values())).device
                with torch.no_grad(), _Lookups({id(tensor): name for name, tensor in tensors.items()}) as recorder:
                    run(probe.to(device))
                recorders.append(recorder)
                probes.append(probe)
        except IndexError:  # more ids than this table has, as many as another one
            most //= 2
            continue
        found = _read(recorders, probes, tensors, shared)
        if found is not None and found.position is None:
            # A slice of a table in place of a lookup.
            own = {f"{path}.weight".removeprefix(".") for path, part in module.named_modules() if part in embeddings}
            shapes = {name: tensors[name].shape for name in (recorders[0].used & own) - {found.word, *found.others}}
            sliced = [name for name, (rows, width) in shapes.items() if rows >= length and width == found.width]
            found = replace(found, position=sliced[0]) if len(sliced) == 1 else found
        fixed = [part.padding_idx for part in embeddings if found is not None and part.num_embeddings == found.size]
        return found if found is None else replace(found, padding=next((one for one in fixed if one is not None), None))
    return None


def _read(
    recorders: Sequence[_Lookups], probes: Sequence[Tensor], tensors: Mapping[str, Tensor], shared: Sequence[str]
) -> TokenTables | None:
    pairs = list(zip(*(recorder.calls for recorder in recorders), strict=False))
    word = position = None
    offset, others = 0, []
    for (name, first), (_, second) in pairs:
        if _same(first, probes[0]) and _same(second, probes[1]):
            word = word or name
            continue
        row = first.reshape(-1, first.shape[-1])[0] if first.dim() else first.reshape(1)
        steps = row - torch.arange(row.numel(), device=row.device)
        by_place = row.numel() == probes[0].numel() > 1 and bool((steps == steps[0]).all())
        if position is None and by_place and torch.equal(first, second):
            position, offset = name, int(steps[0])
        else:
            others.append(name)
    if word is None:
        return None
    size, width = tensors[word].shape
    return TokenTables(
        word=word,
        size=size,
        width=width,
        position=position,
        offset=offset,
        others=tuple(dict.fromkeys(others)),
        tied=word in recorders[0].used,
        shared=word in shared,
    )


def _same(first: Tensor, second: Tensor) -> bool:
    return first.numel() == second.numel() and bool((first.reshape(-1).cpu() == second.reshape(-1)).all())


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any] | None, place: int, name: str) -> Any:
    return args[place] if len(args) > place else (kwargs or {}).get(name)


def check_vocabulary(vocabulary: Vocabulary, ids: Tensor, find: Callable[[int], TokenTables | None]) -> None:
    """Refuse a vocabulary that is not that of the model, or ids that are not in both.

    A smaller one that has all ids is taken: tables are often filled up to a round number of rows.

    Args:
        vocabulary: that the batch states.
        ids: (b, T).
        find: the tables of the model for sentences of a length.

    Raises:
        InputError: with the sizes of both, and what to state.
    """
    try:
        tables = find(ids.shape[1])
    except InputError:  # a run of the model on the ids themselves says more
        return
    high = int(ids.max())
    if tables is None or high < vocabulary.size <= tables.size:
        return
    hint = f"state that of the model's own tokenizer, Vocabulary.of_file(its vocabulary), or Vocabulary(size={tables.size})"
    if high >= tables.size:
        hint = "make the ids with the model's own tokenizer"
    raise InputError(
        f"batch.domain: expected a vocabulary of at most {tables.size} ids (the rows of {tables.word}) with every id of the "
        f"batch, got one of {vocabulary.size} ids, and ids up to {high}; {hint}"
    )


@dataclass(frozen=True, eq=False)
class AtEmbeddings:
    """A model of tokens as a function of the embeddings of words.

    Attributes:
        tables: of the model.
        ids: (b, T) whose rows of the table get the gradient of the lookup; None for no gradient of the table by it.
        padding: the id that the model fills up with.
        start: the rows of the table (b, T, d) behind the ids: what is added to them goes with them where the table is trained.
    """

    tables: TokenTables
    ids: Tensor | None
    padding: int
    start: Tensor | None = None

    @classmethod
    def of(
        cls, tables: TokenTables | None, module: nn.Module, ids: Tensor | None, weights: Mapping[str, Tensor]
    ) -> AtEmbeddings:
        """A model at embeddings, of these ids.

        Raises:
            UnsupportedError: if the model looks ids up in no `nn.Embedding`.
        """
        if tables is None:
            raise UnsupportedError(
                "at_embeddings: expected a model that looks ids up in an nn.Embedding, got one that does not; pass inputs "
                "that can be differentiated"
            )
        found = cls(tables, None if ids is None else ids.detach().clone(), padding_of(module))
        return found if ids is None else replace(found, start=found.rows(weights[tables.word].detach(), ids))

    def rows(self, table: Tensor, ids: Tensor) -> Tensor:
        """The rows of the word table (b, T, d) for ids (b, T); those of the padding where there is no token."""
        return table[torch.where(ids != NO_TOKEN, ids, torch.full_like(ids, self.padding))]

    def ids_for(self, embeddings: Tensor) -> Tensor:
        """The ids that the model is called with for embeddings (b, T, d).

        Raises:
            UnsupportedError: for another number of sentences or places than the ids have.
        """
        if self.ids is None:
            # Padding is told from other ids by some models.
            filler = next(one for one in range(self.tables.size) if one != self.padding)
            return torch.full(embeddings.shape[:2], filler, device=embeddings.device)
        if self.ids.shape != embeddings.shape[:2]:
            raise UnsupportedError(
                f"at_embeddings: expected embeddings for ids of shape {tuple(self.ids.shape)}, got "
                f"{tuple(embeddings.shape)}; the ids are those of the whole batch, whose examples cannot be taken one by one"
            )
        return self.ids.to(embeddings.device)

    def of_example(self, place: Tensor | None) -> AtEmbeddings:
        """The same for one example of the batch, by its place (a number, which vmap may go over), or for whichever ids."""
        if self.ids is None or self.start is None or place is None:
            return replace(self, ids=None, start=None)
        return replace(self, ids=self.ids[place][None], start=self.start[place][None])

    def within(self, table: Tensor, embeddings: Tensor) -> TorchFunctionMode:
        """While active, the lookup of words gives these embeddings, with the gradient that the table has of it.

        Args:
            table: the word table that is in place, the very tensor.
            embeddings: (b, T, d).
        """
        return _Replaced(table, embeddings, self.start)


class _Replaced(TorchFunctionMode):
    def __init__(self, table: Tensor, embeddings: Tensor, start: Tensor | None) -> None:
        super().__init__()
        self.table, self.embeddings, self.start = table, embeddings, start

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through, but for the lookup."""
        result = func(*args, **(kwargs or {}))
        ours = func is F.embedding and _argument(args, kwargs, 1, "weight") is self.table
        if not ours or result.shape != self.embeddings.shape:
            return result
        if self.start is None:
            return self.embeddings
        return result + (self.embeddings - self.start.to(self.embeddings))
