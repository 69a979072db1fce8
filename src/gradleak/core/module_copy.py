"""A private copy of a user's module: unwrapped, without hooks that watch, and stateless between calls."""

from __future__ import annotations

import copy
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.core.object_walk import walk
from gradleak.results import InputError, UnsupportedError

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_HOOK_FLAGS = (
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)
_TENSOR_TABLES = ("_parameters", "_buffers", "_modules")
# What colors a terminal: torch puts it into the messages of its loader.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
INTERNALS = frozenset(vars(nn.Module()))


def unwrap(module: nn.Module) -> nn.Module:
    """The module inside compiled, data parallel, checkpointing and per-sample gradient wrappers.

    A wrapper is known by its type, not by an attribute: a model that merely calls a part of itself `_module` is left
    whole.
    """
    while True:
        inner: Any = None
        kinds = {base.__name__ for base in type(module).__mro__}
        if "OptimizedModule" in kinds:
            inner = getattr(module, "_orig_mod", None)
        elif any("GradSampleModule" in kind for kind in kinds):
            inner = getattr(module, "_module", None)
        elif "ActivationWrapper" in kinds:
            inner = getattr(module, "_checkpoint_wrapped_module", None)
        elif isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


class Origins:
    """Tensors and arrays of the user that a copy was made from, by place; known as long as the user has them.

    They tell whether the original shares memory with private data. No copy, neither of a process nor of an attack, has any.
    """

    def __init__(self, originals: Iterable[tuple[str, Any]] = ()) -> None:
        """Refer to the originals weakly."""
        self._references = [(place, weakref.ref(original)) for place, original in originals]

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Place and original, of those that are alive."""
        found = ((place, reference()) for place, reference in self._references)
        return ((place, original) for place, original in found if original is not None)

    def without(self, places: Sequence[str]) -> Origins:
        """Those that do not lie at or below these places."""
        starts = tuple(f"{place}{mark}" for place in places for mark in (".", "[", " "))
        return Origins((place, one) for place, one in self if place not in places and not place.startswith(starts))

    def __add__(self, other: Origins) -> Origins:
        """Both together."""
        return Origins([*self, *other])

    def __reduce__(self) -> tuple[type[Origins], tuple[()]]:
        """None in a copy."""
        return Origins, ()

    def identity_in_plans(self) -> None:
        """They are no part of what a model is."""


def private_copy(module: nn.Module, noun: str = "model") -> tuple[nn.Module, tuple[str, ...], Origins]:
    """An independent copy of the module inside its wrappers, notes on what the copy left behind, and what it was made from.

    Hooks are not copied, since they would run on every evaluation and could carry the private data out; the pre-hooks
    by which `torch.nn.utils` computes a weight (pruning, weight and spectral norm) are part of the model and stay.

    Args:
        module: any module.
        noun: what messages call it, and the first step of places.

    Raises:
        InputError: if parameters have no values yet (lazy layers, the meta device).
        UnsupportedError: if the module cannot be copied or copies as itself, or has complex parameters.
    """
    _refuse_sharded(module)
    inside = unwrap(module)
    wrappers: list[str] = [f"{type(module).__name__} is taken off the model"] if inside is not module else []
    for name, parameter in inside.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter) or parameter.is_meta:
            raise InputError(
                f"model: expected parameters with values, got none in {name}; "
                "run a lazy model once, or load the weights, before the audit"
            )
        if parameter.is_complex():
            raise UnsupportedError(
                f"model: expected real parameters, got {parameter.dtype} in {name}; hold its real and imaginary parts "
                "as a real parameter (torch.view_as_real)"
            )
    for name, part in inside.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{name or 'model'}: a TorchScript module has no double derivatives here; pass the original module"
            )
    memo: dict[int, Any] = {}
    notes: list[str] = []
    try:
        for name, part in inside.named_modules():
            if _replace_hooks(part, memo):
                notes.append(f"hooks of {name or 'the model'} are not run")
            _copy_intermediate_results(part, memo)
        private = copy.deepcopy(inside, memo)
        origins = Origins(_pairs(inside, private, memo, noun))
    except (RuntimeError, TypeError, NotImplementedError, AttributeError, copy.Error) as error:
        raise UnsupportedError(
            f"the {noun} cannot be copied ({first_line(error)}); gradleak works on a private copy so that yours stays "
            "untouched. Take what cannot be copied (locks, open files, handles) out of the module's attributes"
        ) from error
    _refuse_shared(inside, private, noun)
    for parent in list(private.modules()):
        for key, child in parent._modules.items():
            if child is not None and child is not unwrap(child):
                wrappers.append(f"{type(child).__name__} is taken off {key}")
                parent._modules[key] = unwrap(child)
    for parameter in private.parameters():
        parameter.grad = None
    for name, part in private.named_modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse:
            # The same numbers, which dense operations, derivatives and files can take.
            part.sparse = False
            notes.append(f"sparse gradients of {name or 'the model'} are computed as dense ones")
    return private, (*wrappers, *notes), origins


def renamed(module: nn.Module, private: nn.Module) -> dict[str, str]:
    """For every parameter and buffer whose name changed by unwrapping, the name that it had."""
    pairs = [
        (private.named_parameters(), module.named_parameters()),
        (private.named_buffers(), module.named_buffers()),
    ]
    return {new: old for after, before in pairs for (new, _), (old, _) in zip(after, before, strict=True) if new != old}


def further_names(module: nn.Module) -> dict[str, str]:
    """For every further name of a tied parameter, the name under which `named_parameters` lists it."""
    listed = {id(parameter): name for name, parameter in module.named_parameters()}
    every = module.named_parameters(remove_duplicate=False)
    return {name: listed[id(parameter)] for name, parameter in every if listed[id(parameter)] != name}


def state_names(module: nn.Module) -> tuple[str, ...]:
    """Names of parameters and buffers in the order of `state_dict()`, tied weights under each of theirs."""
    return tuple(
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules(remove_duplicate=False)
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is not None and name not in part._non_persistent_buffers_set
    )


def batch_normalizers(module: nn.Module) -> tuple[str, ...]:
    """The names of the BatchNorm layers that normalize by the batch."""
    return tuple(
        name or type(part).__name__
        for name, part in module.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (part.training or part.running_mean is None)
    )


def random_layers(module: nn.Module) -> tuple[str, ...]:
    """The names of layers that draw random numbers in the mode that they are in.

    Torch's own, and those that say so by a true attribute `draws_in_training`.
    """

    def draws(part: nn.Module) -> bool:
        if getattr(part, "draws_in_training", False):
            return part.training
        if isinstance(part, nn.modules.dropout._DropoutNd | nn.modules.rnn.RNNBase):
            rate = part.p if isinstance(part, nn.modules.dropout._DropoutNd) else part.dropout
            return part.training and rate > 0.0
        return part.training and (isinstance(part, nn.RReLU) or float(getattr(part, "dropout_p", 0.0)) > 0.0)

    return tuple(name or type(part).__name__ for name, part in module.named_modules() if draws(part))


def ignore_running_statistics(module: nn.Module) -> None:
    """Let train-mode BatchNorm use the batch only: the same result, without writing its running statistics.

    Those writes are what fails under vmap.
    """
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
            part.track_running_stats = False


def cast_constants(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`module`, or a copy whose plain tensor attributes (neither parameters nor buffers) have another dtype.

    Attributes, and what lists and dicts among them hold.
    """

    def constants(part: nn.Module) -> list[tuple[Any, Any]]:
        places = [(holder, key) for holder, key in _plain_tensors(part) if _is_float(holder[key])]
        return [(holder, key) for holder, key in places if holder[key].dtype != dtype]

    if not any(constants(part) for part in module.modules()):
        return module
    module = copy.deepcopy(module)
    for part in module.modules():
        for holder, key in constants(part):
            holder[key] = holder[key].to(dtype)
    return module


class Attributes:
    """The plain attributes of a module tree, to be put back after a forward pass that changed them.

    A forward pass may store activations on the module (`self.features = h`). Left there, private data would travel
    with the objective to the adversary, and a result could depend on earlier calls. Tensors among them are lent as
    clones, so that those changed in place (`self.seen += x.mean()`) stay as they were; `torch.func` refuses to change
    the originals.
    """

    def __init__(self, *modules: nn.Module) -> None:
        """Note the attributes of all parts of the modules, and the contents of lists, dicts and sets among them."""
        self._modules = modules
        self._tables: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        self._sets: list[tuple[set[Any], set[Any]]] = []
        self._lent: list[tuple[Any, Any]] = []
        for module in modules:
            for part in module.modules():
                self._tables.append((vars(part), dict(vars(part))))
                self._lent += _plain_tensors(part)
                for key, value in vars(part).items():
                    if isinstance(value, dict) and (key in _TENSOR_TABLES or key not in INTERNALS):
                        self._tables.append((value, dict(value)))
                    elif isinstance(value, list):
                        self._lists.append((value, list(value)))
                    elif isinstance(value, set):
                        self._sets.append((value, set(value)))

    def __getstate__(self) -> tuple[nn.Module, ...]:
        """The modules: what was noted belongs to these very objects, so that a copy has to note its own."""
        return self._modules

    def __setstate__(self, modules: tuple[nn.Module, ...]) -> None:
        """Note the attributes of the copied modules."""
        Attributes.__init__(self, *modules)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever happens inside, the attributes are as before afterwards."""
        try:
            for holder, key in self._lent:
                holder[key] = holder[key].clone()
            yield
        finally:
            for live, saved in self._tables:
                if len(live) != len(saved) or not all(map(is_, live.values(), saved.values())):
                    live.clear()
                    live.update(saved)
            for sequence, before in self._lists:
                if len(sequence) != len(before) or not all(map(is_, sequence, before)):
                    sequence[:] = before
            for members, earlier in self._sets:
                if len(members) != len(earlier):
                    members.intersection_update(earlier)
                    members.update(earlier)


def failing_part(module: nn.Module, error: BaseException) -> str:
    """The innermost part of a module in which a forward pass failed, as ", in 3.norm (BatchNorm1d)"; empty for none."""
    names = {id(part): name for name, part in module.named_modules() if name}
    found, traceback = "", error.__traceback__
    while traceback is not None:
        part = traceback.tb_frame.f_locals.get("self")
        if id(part) in names:
            found = f", in {names[id(part)]} ({type(part).__name__})"
        traceback = traceback.tb_next
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the escape codes that color a terminal, or its type."""
    return (_ESCAPES.sub("", str(error)).strip().splitlines() or [type(error).__name__])[0]


def _pairs(module: nn.Module, private: nn.Module, memo: Mapping[int, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Place and original of every tensor and array in a copy, by the memo that the copy was made with."""
    kinds = (Tensor, np.ndarray)
    originals = {id(one): one for _, one in walk([("", module)], code=False) if issubclass(type(one), kinds)}
    sources = {id(made): original for source, made in memo.items() if (original := originals.get(source)) is not None}
    for place, made in walk([(name, private)], code=False):
        if id(made) in sources:
            yield str(place), sources[id(made)]


def _refuse_sharded(module: nn.Module) -> None:
    """Refuse a model of which this process holds a part, or none, of every parameter."""
    kinds = {"FullyShardedDataParallel", "FSDPModule"}
    for part in module.modules():
        if kinds & {base.__name__ for base in type(part).__mro__}:
            raise UnsupportedError(
                f"model: expected a whole model, got one that is sharded over processes ({type(part).__name__}); build it "
                "anew without FSDP and load get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of "
                "torch.distributed.checkpoint.state_dict"
            )


def _refuse_shared(module: nn.Module, private: nn.Module, what: str) -> None:
    """Refuse a copy of which a part or a tensor is still the original."""

    def identities(of: nn.Module) -> Iterator[tuple[str, int]]:
        for name, part in of.named_modules():
            yield name or f"the {what}", id(part)
            tensors = {
                **part._parameters,
                **part._buffers,
                **{str(key): table[key] for table, key in _plain_tensors(part)},
            }
            yield from (
                (f"{name}.{key}".removeprefix("."), tensor.data_ptr())
                for key, tensor in tensors.items()
                if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.numel()
            )

    original = {identity for _, identity in identities(module)}
    shared = next((name for name, identity in identities(private) if identity in original), None)
    if shared is not None:
        raise UnsupportedError(
            f"the {what} cannot be copied: the copy of {shared} is the original (a __deepcopy__ of its class or of one around "
            "it); gradleak works on a private copy so that yours stays untouched. Take that method out"
        )


def _replace_hooks(part: nn.Module, memo: dict[int, Any]) -> bool:
    """Make deepcopy (through its memo) give the copy of `part` only the hooks that are part of the model."""
    kept: OrderedDict[int, Callable[..., Any]] = OrderedDict(
        (key, hook)
        for key, hook in part._forward_pre_hooks.items()
        if type(hook).__module__.startswith("torch.nn.utils.")
    )
    dropped = sum(len(getattr(part, name, ())) for name in _HOOKS) - len(kept)
    for name in (*_HOOKS, *_HOOK_FLAGS):
        if name in vars(part):
            memo[id(vars(part)[name])] = OrderedDict()
    memo[id(part._forward_pre_hooks)] = copy.deepcopy(kept, memo)
    return dropped > 0


def _copy_intermediate_results(part: nn.Module, memo: dict[int, Any]) -> None:
    """Let deepcopy take results of earlier computations that are attached to the module, which it refuses by itself."""
    for value in vars(part).values():
        if isinstance(value, Tensor) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()


def _plain_tensors(part: nn.Module) -> list[tuple[Any, Any]]:
    """Places of the plain tensors of a module: (holder, key), in its attributes and in lists and dicts among them."""
    table = vars(part)
    places: list[tuple[Any, Any]] = [(table, key) for key, value in table.items() if _is_plain(value)]
    for key, value in table.items():
        if isinstance(value, dict) and key not in INTERNALS:
            places += [(value, name) for name, item in value.items() if _is_plain(item)]
        elif isinstance(value, list):
            places += [(value, at) for at, item in enumerate(value) if _is_plain(item)]
    return places


def _is_plain(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _is_float(value: Any) -> bool:
    return _is_plain(value) and bool(value.is_floating_point())
