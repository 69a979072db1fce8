"""A second device on a machine that has none: tensors of the processor that refuse what an accelerator refuses.

Inside `FakeDevice`, a tensor moved to `FAKE` says that it is there, and so does all that is computed from it. As with
CUDA, an operation on tensors of both devices fails, unless it is a number (no dimensions), an index or a copy; `numpy()`
of a tensor there fails; a generator of the processor draws nothing there. Tensors that torch makes inside of one operation
belong to nobody and are let pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Printed as a device of this kind, which no build of torch uses for itself.
FAKE = torch.device("privateuseone:0")
_HOST = torch.device("cpu")
_FACTORIES = frozenset(
    [
        "zeros",
        "ones",
        "full",
        "empty",
        "arange",
        "range",
        "linspace",
        "logspace",
        "eye",
        "rand",
        "randn",
        "randint",
        "randperm",
        "tensor",
        "as_tensor",
        "empty_strided",
        "scalar_tensor",
        "tril_indices",
        "triu_indices",
        "from_numpy",
        "hann_window",
        "normal",
    ]
)
# Draws that take a generator, and make or fill a tensor.
_DRAWS = _FACTORIES | frozenset(
    [
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "bernoulli_",
        "multinomial",
        "bernoulli",
        "poisson",
        "rand_like",
        "randn_like",
        "randint_like",
    ]
)
_STRICT = frozenset(("cat", "stack", "mm", "bmm", "addmm", "gather", "index_select", "convolution"))
_CROSSING = frozenset(("copy_", "set_", "resize_", "_has_compatible_shallow_copy_type"))


def place_of(tensor: Tensor) -> str | None:
    """The device that a tensor belongs to: "device", "host", or None for nobody's."""
    with torch._C.DisableTorchFunction():
        bare = tensor
        while torch._C._functorch.is_functorch_wrapped_tensor(bare):
            bare = torch._C._functorch.get_unwrapped(bare)
        try:
            return getattr(bare.untyped_storage(), "_place", None)
        except (NotImplementedError, RuntimeError):
            return None


def _put(tensor: Tensor, place: str | None) -> Tensor:
    with torch._C.DisableTorchFunction():
        bare = tensor
        while torch._C._functorch.is_functorch_wrapped_tensor(bare):
            bare = torch._C._functorch.get_unwrapped(bare)
        if place is not None and place_of(tensor) is None:
            bare.untyped_storage()._place = place  # type: ignore[attr-defined]
    return tensor


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _common(values: Iterable[Any]) -> str | None:
    places = {place_of(tensor) for tensor in _tensors(list(values))}
    return "device" if "device" in places else "host" if "host" in places else None


class FakeDevice:
    """Context in which there is a second device, `FAKE`.

    Args:
        double: whether it has float64, which mps has not.
    """

    def __init__(self, *, double: bool = True) -> None:
        self._modes = [_Operations(), _Functions(double=double)]
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        before = torch.from_numpy
        self._stack.callback(setattr, torch, "from_numpy", before)
        torch.from_numpy = lambda array: _put(before(array), "host")
        for mode in self._modes:
            self._stack.enter_context(mode)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        with torch._C.DisableTorchFunction():
            name = func.overloadpacket.__name__
            if name not in _CROSSING:
                self._check(name, func, given)
            found = func(*args, **(kwargs or {}))
            if name not in _CROSSING:
                place = _common(given)
                for tensor in _tensors(found):
                    _put(tensor, place)
        return found

    def _check(self, name: str, func: Any, given: list[Any]) -> None:
        indexed = name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
        first = given[:1] + given[2:] if indexed else given
        tensors = list(_tensors(first))
        there = [tensor for tensor in tensors if place_of(tensor) == "device"]
        here = [tensor for tensor in tensors if place_of(tensor) == "host"]
        if indexed and not there and any(place_of(tensor) == "device" for tensor in _tensors(given[1])):
            raise RuntimeError(
                f"{func}: indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )
        if there and any(tensor.dim() or name in _STRICT for tensor in here):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {FAKE} and cpu")
        if here and there and all(tensor.dim() == 0 for tensor in there) and any(tensor.dim() for tensor in here):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, found cpu and {FAKE}")


class _Functions(TorchFunctionMode):
    def __init__(self, *, double: bool) -> None:
        super().__init__()
        self._double = double

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "_parse_to":  # of Module.to: reads its arguments alone
            return func(*args, **kwargs)
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return FAKE if place_of(args[0]) == "device" else func(*args)
        if func == Tensor.is_cpu.__get__:  # type: ignore[attr-defined]
            return place_of(args[0]) != "device"
        if name in ("numpy", "__array__") and place_of(args[0]) == "device":
            raise TypeError(f"can't convert {FAKE} device type tensor to numpy. Use Tensor.cpu() first")
        asked = [one for one in (*args, *kwargs.values()) if _is_device(one)]
        wanted = None if not asked else "device" if torch.device(asked[0]) == FAKE else "host"
        args = tuple(_HOST if _is_device(one) else one for one in args)
        kwargs = {key: _HOST if _is_device(one) else one for key, one in kwargs.items()}
        generator = kwargs.get("generator")
        if name in ("to", "cpu", "type_as"):
            if name == "cpu":
                wanted = "host"
            elif wanted is None:
                other = next((one for one in args[1:] if isinstance(one, Tensor)), kwargs.get("other"))
                wanted = None if other is None else place_of(other) or "host"
            return self._sent(args[0], func(*args, **kwargs), wanted)
        if wanted is None and name in _FACTORIES and name != "as_tensor":
            wanted = _common(args) if name == "normal" else "host"
        if name == "as_tensor":
            given = args[0] if args else kwargs["data"]
            wanted = wanted or (_common([given]) or "host")
            found = func(*args, **kwargs)
            return self._sent(given, found, wanted) if isinstance(given, Tensor) else _put(found, wanted)
        if wanted is None:
            wanted = _common([*args, *kwargs.values()])
        if generator is not None and name in _DRAWS and wanted == "device":
            raise RuntimeError(
                f"{name}: expected a '{FAKE.type}' device type for generator but found '{generator.device}'"
            )
        found = func(*args, **kwargs)
        for tensor in _tensors(found) if name not in ("__get__", "__set__") else ():
            _put(tensor, wanted)
            self._refuse(tensor)
        return found

    def _sent(self, before: Tensor, after: Tensor, wanted: str | None) -> Tensor:
        """The tensor at another place: a copy, as between two devices."""
        if wanted is not None and wanted != (place_of(before) or "host"):
            with torch._C.DisableTorchFunction():
                if after.dtype == before.dtype:
                    # What is computed in the mode would have the place of what it was computed from.
                    with _paused():
                        after = after.clone()
            _replace(after, wanted)
        _put(after, place_of(before))
        self._refuse(after)
        return after

    def _refuse(self, tensor: Tensor) -> None:
        if not self._double and tensor.dtype == torch.float64 and place_of(tensor) == "device":
            raise TypeError("Cannot convert a tensor to float64 dtype: the fake device has no float64")


def _replace(tensor: Tensor, place: str) -> None:
    with torch._C.DisableTorchFunction():
        bare = tensor
        while torch._C._functorch.is_functorch_wrapped_tensor(bare):
            bare = torch._C._functorch.get_unwrapped(bare)
        bare.untyped_storage()._place = place  # type: ignore[attr-defined]


def _paused() -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _is_device(one: Any) -> bool:
    return isinstance(one, torch.device) or (isinstance(one, str) and one in ("cpu", str(FAKE)))
