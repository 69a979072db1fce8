"""Names of an update's tensors, read as those of a model: wrappers, adapters, a shared front, or lists without names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

from torch import Tensor

from gradleak.results import InconsistentUpdateError

# Wrappers whose names would otherwise sit in front of every parameter name, or inside of it.
WRAPPER_ATTRIBUTES = ("_orig_mod", "_module", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_NEVER_A_MODEL = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Peft puts a model two levels down, a layer below `base_layer`, and a part of its own in between for each adapter.
_ADAPTER_FRONT = ["base_model", "model"]
_ADAPTER_PARTS = ("base_layer", "default")
_MOST_ROWS = 50


class Named(Protocol):
    """The tensors of a model by name, as `Objective` has them."""

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Trainable parameters."""

    @property
    def frozen(self) -> Mapping[str, Tensor]:
        """Parameters that are not trained."""

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """Buffers."""

    @property
    def tied(self) -> Mapping[str, str]:
        """Further names of tied parameters, with the first of each."""

    @property
    def state_names(self) -> Sequence[str]:
        """Names in the order of `state_dict()`."""


def strip_prefix(name: str) -> str:
    """`name` without the prefixes that wrappers put in front of, or inside, parameter names."""
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in WRAPPER_ATTRIBUTES:
        parts = parts[1:]
    return ".".join(part for part in parts if part not in _NEVER_A_MODEL)


def bare_name(name: str) -> str:
    """`name` without any part that a wrapper may have put there, at any depth."""
    *path, last = name.split(".")
    return ".".join([*(part for part in path if part not in WRAPPER_ATTRIBUTES), last])


def base_name(name: str) -> str:
    """`name` without wrappers and without what peft adds: its front, `base_layer`, and the names of adapters.

    The name of an adapter stands behind a part `lora_...` or `modules_to_save`, and is "default" elsewhere.
    """
    parts = bare_name(name).split(".")
    if parts[:2] == _ADAPTER_FRONT and len(parts) > 2:
        parts = parts[2:]
    kept = parts[:1]
    for before, part in pairwise(parts):
        behind = before.startswith("lora_") or before == "modules_to_save"
        # `weight` is no adapter: peft's own files leave that part out.
        if not (part in _ADAPTER_PARTS or (behind and part not in ("weight", "bias"))):
            kept.append(part)
    return ".".join(part for part in kept if part != "modules_to_save")


def read_names(names: Iterable[str], model: Named) -> dict[str, str]:
    """The name of the model that each name stands for; itself where there is none.

    Tried in this order: the name as it stands; without the prefixes of wrappers; without wrapper parts at any depth; without
    what peft adds; and where no name at all was found, without a front that all names share, of the update (`model.` of a
    LightningModule) or of the model.

    Args:
        names: as they came.
        model: whose names are looked for: parameters, buffers, and further names of tied weights.

    Raises:
        InconsistentUpdateError: if a name has several readings.
    """
    names = list(names)
    known = {*model.params, *model.frozen, *model.buffers, *model.tied}
    found = _read(names, known)
    if not any(name in known for name in found.values()):
        for front in _fronts(names):
            shorter = _read([name.removeprefix(front) for name in names], known)
            if all(name in known for name in shorter.values()):
                return {name: shorter[name.removeprefix(front)] for name in names}
        for front in _fronts(known):
            longer = _read([front + name for name in names], known)
            if all(name in known for name in longer.values()):
                return {name: longer[front + name] for name in names}
    return found


def is_list(names: Iterable[str], model: Named) -> bool:
    """True if the names are places in a list ("0", "1", or "arr_0" of an npz), and none is a name of the model."""
    places = [name.removeprefix("arr_") for name in names]
    return all(place.isascii() and place.isdigit() for place in places) and not set(names) & set(model.params)


def read_list(tensors: Mapping[str, Tensor], model: Named) -> tuple[dict[str, Tensor], str]:
    """The tensors of a list by the names of the model, and in which order they were taken.

    Orders that are known: trainable parameters, all parameters, `state_dict()` with its buffers, and parameters with the
    buffers behind them. A list is taken where shapes leave one reading.

    Args:
        tensors: by place; places count, not the order in which they come.
        model: whose names they get.

    Raises:
        InconsistentUpdateError: with the shapes expected and got if no order fits, or if several do that disagree.
    """
    # By number: archives that sort by name put "10" before "2".
    listed = [tensors[name] for name in sorted(tensors, key=lambda name: int(name.removeprefix("arr_")))]
    shapes = [tuple(tensor.shape) for tensor in listed]
    # As `named_parameters` goes through a model: the state without buffers, every tied weight once.
    parameters = [name for name in model.state_names if name in model.params or name in model.frozen]
    orders = {
        "the model's parameters": list(model.params),
        "all parameters, frozen ones among them": parameters,
        "state_dict(), buffers among them": list(model.state_names),
        "the parameters, and then the buffers": [*parameters, *model.buffers],
    }
    fitting = {text: names for text, names in orders.items() if [shape for _, shape in _shapes(model, names)] == shapes}
    different = {tuple(names) for names in fitting.values()}
    if len(different) > 1:
        raise InconsistentUpdateError(
            f"a list of {len(shapes)} tensors without names fits the model in several orders: of "
            f"{'; of '.join(fitting)}; expected one reading. Save the tensors by name"
        )
    if not fitting:
        raise InconsistentUpdateError(_position_table(model, shapes))
    text, names = next(iter(fitting.items()))
    return dict(zip(names, listed, strict=True)), text


def first_of(rows: Iterable[str]) -> list[str]:
    """The rows of a table in an error, cut where they are many."""
    listed = list(rows)
    return listed if len(listed) <= _MOST_ROWS else [*listed[:_MOST_ROWS], f"and {len(listed) - _MOST_ROWS} more"]


def _read(names: Iterable[str], known: set[str]) -> dict[str, str]:
    by_form: list[dict[str, set[str]]] = []
    for form in (bare_name, base_name):
        readings: dict[str, set[str]] = {}
        for name in known:
            readings.setdefault(form(name), set()).add(name)
        by_form.append(readings)
    read: dict[str, str] = {}
    for name in names:
        exact = next((candidate for candidate in (name, strip_prefix(name)) if candidate in known), None)
        found = {exact} if exact else by_form[0].get(bare_name(name)) or by_form[1].get(base_name(name), set())
        if len(found) > 1:
            raise InconsistentUpdateError(
                f"update: {name} can be {' or '.join(sorted(found))}; expected one reading. Rename it to the one it is"
            )
        read[name] = next(iter(found), name)
    return read


def _fronts(names: Iterable[str]) -> list[str]:
    """The fronts that all names share, shortest first: "model." and "model.net." of model.net.0.weight."""
    paths = [name.split(".")[:-1] for name in names]
    fronts: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        fronts.append(f"{fronts[-1] if fronts else ''}{parts[0]}.")
    return fronts


def _shapes(model: Named, names: Iterable[str]) -> list[tuple[str, tuple[int, ...] | None]]:
    every = {**model.frozen, **model.buffers, **model.params}
    found = [(name, every.get(model.tied.get(name, name))) for name in names]
    return [(name, None if tensor is None else tuple(tensor.shape)) for name, tensor in found]


def _position_table(model: Named, shapes: Sequence[tuple[int, ...]]) -> str:
    def table(names: Iterable[str]) -> str:
        return ", ".join(first_of(f"{name} {shape}" for name, shape in _shapes(model, names)))

    state = list(model.state_names)
    other = f"; or the {len(state)} of state_dict(): {table(state)}" if state != list(model.params) else ""
    return (
        f"a list of {len(shapes)} tensors without names does not fit the model's {len(model.params)} parameters "
        f"in order: expected {table(model.params)}{other}; got {', '.join(first_of(map(str, shapes)))}. Save the tensors "
        "by name"
    )
