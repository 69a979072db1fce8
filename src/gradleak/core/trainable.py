"""Parameters that a client can share a gradient of, parts that stop gradients, and tensors that are not finite."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gradleak.results import InputError

_FEW = 3


def check_trainable(module: nn.Module) -> tuple[str, ...]:
    """Refuse a module of which nothing is trained, and say what holds its weights; else notes on what is left out.

    Quantized layers hold integers in packed form, which are no parameters: `parameters()` does not list them.

    Raises:
        InputError: naming quantized layers, integer weights or frozen parameters.
    """
    packed = [name or type(module).__name__ for name, part in module.named_modules() if _is_packed(part)]
    if any(parameter.requires_grad for parameter in module.parameters()):
        return (f"quantized, neither trained nor shared: {_some(packed)}",) if packed else ()
    whole = [*module.named_parameters(), *module.named_buffers()]
    integers = [name for name, tensor in whole if tensor.dtype in (torch.int8, torch.uint8) and tensor.numel() > 1]
    frozen = [name for name, parameter in module.named_parameters() if parameter.is_floating_point()]
    if packed or integers:
        got = f"a quantized model, whose weights are integers without a gradient ({_some(packed or integers)}); audit the "
        got += "floating point model that the client trains, before it is converted"
    elif frozen:
        got = (
            f"{len(frozen)} that are all frozen ({_some(frozen)}); call requires_grad_(True) on what the client trains"
        )
    else:
        got = "none"
    raise InputError(f"model: expected at least one parameter with requires_grad=True, got {got}")


def _is_packed(part: nn.Module) -> bool:
    """True for the layers of `torch.ao.nn.quantized` and its like that hold weights."""
    return ".quantized" in type(part).__module__ and callable(getattr(part, "weight", None))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def non_finite(tensors: Mapping[str, Tensor]) -> str:
    """A clause that names the first tensor with entries that are not finite, and how many; "" where all are finite.

    Examples:
        >>> non_finite({"weight": torch.ones(2), "norm.running_var": torch.tensor([1.0, float("inf")])})
        'norm.running_var holds NaN or infinity in 1 of 2 entries'
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        # Formats of one byte and sparse tensors have no rule for it.
        dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
        finite = torch.isfinite(dense.float() if dense.dtype.itemsize == 1 else dense)
        if not bool(finite.all()):
            count = int((~finite).sum())
            return f"{name} holds NaN or infinity in {count} of {tensor.numel()} entries"
    return ""


Tensors = dict[str, Tensor]

_DETACH = (Tensor.detach, torch.detach)
_STOPS: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


def gradient_through_stops(
    owner: object, loss: Callable[[Tensors], Tensor], params: Mapping[str, Tensor]
) -> Tensors | None:
    """The gradient of a loss that stops gradients, differentiable in all that the loss depends on; None if it has none.

    A client's gradient takes `x.detach()`, and what is computed under `torch.no_grad()` (a frozen feature extractor),
    for constants. To the outside they are not constant: they move with the input, and with the parameters of earlier local
    steps. `torch.func` and autograd stop every derivative there, so that A would silently miss what runs through them.
    Here the loss is evaluated with nothing stopped, outside of the transform by the parameters, and once more inside of
    it with the stopped values of the first time in their places: constants to the parameters, and functions of the
    input to every transform around.

    Assumptions: both evaluations call the same functions in the same order, as a pure loss does. A `torch.autograd.
    Function` stops what it likes, and is left alone. Where a view is changed in place under `no_grad`, the gradient is
    taken in the ordinary way, without what runs through there.

    Args:
        owner: whose loss it is; whether it stops gradients is found out once.
        loss: pure, of the parameters by name.
        params: where the gradient is taken.

    Cost: one evaluation of the loss, once an owner; where gradients are stopped, one more for every gradient.
    """
    if _STOPS.get(owner) is False:
        return None
    stopped = _record(owner, lambda: loss(dict(params)))
    if not stopped:
        return None

    def replayed(inner: Tensors) -> Tensor:
        with _Replayer(stopped):
            return loss(inner)

    gradient: Tensors = torch.func.grad(replayed)(dict(params))
    return gradient


def stops_gradients(owner: object, loss: Callable[[], object]) -> bool:
    """True if a loss stops gradients anywhere; found out once an owner, by an evaluation."""
    if owner not in _STOPS:
        _record(owner, loss)
    return _STOPS.get(owner, False)


def _record(owner: object, loss: Callable[[], object]) -> list[Tensor]:
    recorder = _Recorder()
    try:
        with torch.enable_grad(), recorder:
            loss()
        if recorder.changes:
            recorder = _Recorder(clones=True)
            with torch.enable_grad(), recorder:
                loss()
    except _ViewChangedError:
        recorder.stopped = []
    except RuntimeError:
        # Not in this form, or under this transform: whoever takes the gradient meets the error, or does not.
        return []
    _STOPS[owner] = recorder.found
    return recorder.stopped


class _ViewChangedError(Exception):
    """A view of a tensor is changed in place where gradients are stopped."""


class _Stops(TorchFunctionMode):
    """Hands over every call in which the user's code stops gradients."""

    def __init__(self) -> None:
        super().__init__()
        self._disabled = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, in another way where gradients are stopped."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "_set_grad_enabled":
            func(*args, **kwargs)
            self._disabled = not torch.is_grad_enabled()
            return None
        # Inside the forward of a torch.autograd.Function gradients are disabled too, but not by the user.
        if torch.is_grad_enabled():
            if func in _DETACH:
                return self._stopped(lambda source: source.view_as(source), args, kwargs)
            self._see(func)
            return func(*args, **kwargs)
        if not self._disabled:
            return func(*args, **kwargs)
        if isinstance(kwargs.get("out"), Tensor):
            target = kwargs["out"]
            rest = {key: value for key, value in kwargs.items() if key != "out"}
            return self._changed(lambda into: into.copy_(func(*args, **rest)), target)
        if name == "__setitem__" or (name.endswith("_") and not name.startswith("__")):
            return self._changed(lambda into: func(into, *args[1:], **kwargs), args[0])
        return self._stopped(func, args, kwargs)

    def _see(self, func: Any) -> None:
        """Look at a call that stops nothing."""

    @abstractmethod
    def _stopped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of a call that is stopped."""

    @abstractmethod
    def _changed(self, change: Callable[[Tensor], Any], target: Tensor) -> Tensor:
        """The target after a change in place that is stopped."""


class _Recorder(_Stops):
    """Stops nothing, and keeps what would have been stopped, in order: results, and differences of changes in place.

    Args:
        clones: whether stopped functions work on copies, for tensors that are changed in place later on.
    """

    def __init__(self, *, clones: bool = False) -> None:
        super().__init__()
        self.stopped: list[Tensor] = []
        self.found = False
        self.changes = False
        self._clones = clones
        self._views: list[Tensor] = []

    def _see(self, func: Any) -> None:
        # The derivatives of `x.data` torch.func keeps by itself; plain autograd does not.
        self.found |= func == Tensor.data.__get__  # type: ignore[attr-defined]

    def _stopped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with torch.enable_grad():
            if self._clones:
                args, kwargs = tree_map_only(Tensor, torch.clone, (args, kwargs))
            result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                self.found = True
                self.stopped.append(tensor)
                if tensor._is_view():
                    self._views.append(tensor)
        return result

    def _changed(self, change: Callable[[Tensor], Any], target: Tensor) -> Tensor:
        if not target.is_floating_point():
            change(target)
            return target
        self.found = self.changes = True
        if any(target is view for view in self._views):
            raise _ViewChangedError
        with torch.enable_grad():
            before = target.clone()
            change(target)
            self.stopped.append(target - before)
        return target


class _Replayer(_Stops):
    """Puts what a recorder kept in the places of what is stopped."""

    def __init__(self, stopped: list[Tensor]) -> None:
        super().__init__()
        self._recorded: Iterator[Tensor] = iter(stopped)

    def _stopped(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        # Called all the same, for what it draws.
        return tree_map_only(Tensor, self._next, func(*args, **kwargs))

    def _changed(self, change: Callable[[Tensor], Any], target: Tensor) -> Tensor:
        if not target.is_floating_point():
            change(target)
            return target
        change(target.clone())
        with torch.enable_grad():
            return target.add_(self._next(target))

    def _next(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        recorded = next(self._recorded, None)
        if recorded is None or recorded.shape != tensor.shape:
            raise RuntimeError("expected a loss that calls the same functions each time, got another order of calls")
        return recorded


def refuse_inference_mode() -> None:
    """Refuse to begin where torch takes no derivatives."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "torch.inference_mode() is on, in which nothing can be differentiated; leave that block first (no_grad does no "
            "harm)"
        )


def gradient_by_autograd(
    loss: Callable[[Mapping[str, Tensor]], Tensor], params: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The gradient of a loss by name, by plain autograd; zeros for parameters that it does not depend on."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    with torch.enable_grad():
        value = loss(leaves)
    gradient = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if entry is None else entry
        for (name, leaf), entry in zip(leaves.items(), gradient, strict=True)
    }
