"""Weights of a loss that enter through linear layers and convolutions, and what goes in and comes out there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradleak.operators.windows import Window, window_of


@dataclass(frozen=True, eq=False)
class Call:
    """One application of a weight.

    Attributes:
        weight: its name.
        bias: the name of the bias that comes with it, or None.
        entered: the input of the layer.
        left: its output.
        window: the geometry of a convolution, None for a linear layer.
    """

    weight: str
    bias: str | None
    entered: Tensor
    left: Tensor
    window: Window | None


class LayerTape(TorchFunctionMode):
    """Watches which parameters enter through `linear` and `conv2d` alone; adds a probe to the output of the chosen ones.

    Args:
        params: the tensors to watch, by name.
        probes: zeros to be added to the outputs, one a call, or None to watch only.
        matrices: convolutions as matrices by place among the calls, taken in the place of torch's kernel.
    """

    def __init__(
        self,
        params: Mapping[str, Tensor],
        probes: Sequence[Tensor] | None = None,
        matrices: Mapping[int, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in params.items()}
        self._probes = probes
        self._matrices = matrices or {}
        self.calls: list[Call] = []
        self.elsewhere: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and note it where it applies a weight."""
        kwargs = kwargs or {}
        if func is F.linear or func is F.conv2d:
            read = _linear if func is F.linear else _convolution
            entered, weight, bias, window = read(*args, **kwargs)
            name = self._names.get(id(weight))
            if name is not None and id(entered) not in self._names and (func is F.linear or window is not None):
                matrix = self._matrices.get(len(self.calls))
                left = func(*args, **kwargs) if matrix is None else _by_matrix(entered, weight, bias, window, matrix)
                # A copy: the input may be changed in place later on.
                self.calls.append(Call(name, self._names.get(id(bias)), entered.clone(), left, window))
                return left if self._probes is None else left + self._probes[len(self.calls) - 1]
        result = func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        used = {self._names[id(leaf)] for leaf in leaves if id(leaf) in self._names}
        # What gives no tensor reads a shape or a dtype.
        if used and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            self.elsewhere |= used
        return result


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None, None]:
    return input, weight, bias, None


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: int = 1,
) -> tuple[Tensor, Tensor, Tensor | None, Window | None]:
    return input, weight, bias, window_of(input, weight, stride, padding, dilation, groups)


def _by_matrix(entered: Tensor, weight: Tensor, bias: Tensor | None, window: Window | None, matrix: Tensor) -> Tensor:
    assert window is not None
    left = (entered.flatten(1) @ matrix).reshape(len(entered), len(weight), *window.outputs)
    return left if bias is None else left + bias[:, None, None]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A weight that enters through linear layers or convolutions alone, with all of its applications.

    Attributes:
        weight: its name.
        bias: the name of the bias that comes with it alone, or None.
        inputs: the shapes of its inputs, one a call.
        outputs: the shapes of its outputs.
        windows: the geometry of each call of a convolution; empty for a linear layer.
    """

    weight: str
    bias: str | None
    inputs: tuple[torch.Size, ...]
    outputs: tuple[torch.Size, ...]
    windows: tuple[Window, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters whose gradients follow from inputs and output gradients."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @property
    def positions(self) -> int:
        """Number of rows that a linear layer is applied to."""
        return sum(shape.numel() // shape[-1] for shape in self.inputs)

    @property
    def tangents(self) -> int:
        """Number of entries of inputs and outputs."""
        return sum(shape.numel() for shape in (*self.inputs, *self.outputs))


def layers_of(calls: Sequence[Call], elsewhere: set[str]) -> list[Layer]:
    """The weights that are used in no other way, in the order of their first call."""
    found = []
    for weight in dict.fromkeys(call.weight for call in calls):
        own = [call for call in calls if call.weight == weight]
        windows = tuple(call.window for call in own if call.window is not None)
        if weight in elsewhere or len(windows) not in (0, len(own)):
            continue
        biases = {call.bias for call in own}
        bias = biases.pop() if len(biases) == 1 else None
        foreign = any(call.bias == bias and call.weight != weight for call in calls)
        layer = Layer(
            weight=weight,
            bias=None if foreign or bias in elsewhere else bias,
            inputs=tuple(call.entered.shape for call in own),
            outputs=tuple(call.left.shape for call in own),
            windows=windows,
        )
        found.append(layer)
    return found
