"""BatchNorm replaced by GroupNorm, so that every example has a gradient of its own; and layers that erase their input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.results import Count, Settings

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_INSTANCE_NORM = nn.modules.instancenorm._InstanceNorm


@dataclass(frozen=True, kw_only=True)
class ReplacedLayer:
    """A layer that another one stands in for.

    Attributes:
        name: where it stands in the model.
        was: the layer of the model, as torch prints it.
        now: the layer in its place.
        values: how many numbers of one example the new layer normalizes together; None where the layer was not reached.
    """

    name: str
    was: str
    now: str
    values: int | None = None

    @property
    def erases(self) -> bool:
        """True if nothing of its input gets through: one number, less its own mean, is 0."""
        return self.values == 1


@dataclass(frozen=True, kw_only=True)
class GroupNormForBatchNorm(Settings):
    """A copy of a model with GroupNorm in the place of every BatchNorm, and the list of what was replaced.

    BatchNorm in train mode lets examples depend on each other, so that none has a gradient of its own and per-example
    defenses are refused. GroupNorm normalizes groups of channels of one example. Scale and shift of the BatchNorm are
    taken over; its running statistics are dropped, so that a model that was trained with them has to be trained again.

    A group holds the smallest divisor of the number of channels that is at least `channels_per_group`, or all channels
    where there are fewer. Small groups erase the signal where maps are small: of two numbers a group lets only the sign
    of their difference through, of one nothing. Dividing the channels by gcd(32, channels), as is common, leaves
    groups of one channel for up to 32 channels.

    **Source**: Wu and He 2018, group normalization (16 channels a group is one of their two defaults).

    Attributes:
        channels_per_group: fewest channels of a group, where there are so many.

    Raises:
        InputError: for fewer than 1.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU())
        >>> other, layers = GroupNormForBatchNorm()(model)
        >>> layers[0].now.startswith("GroupNorm(2, 32")
        True
    """

    channels_per_group: Count = 16

    def __call__(self, model: nn.Module, inputs: Tensor | None = None) -> tuple[nn.Module, tuple[ReplacedLayer, ...]]:
        """The copy and its replaced layers, in the order of the model.

        Args:
            model: left as it is.
            inputs: (b, *shape), to count how many numbers each new layer normalizes together; None for not.
        """
        copied = copy.deepcopy(model)
        replaced: dict[str, tuple[str, nn.GroupNorm]] = {}
        if isinstance(copied, _BATCH_NORM):
            layer = self._in_place_of(copied)
            copied, replaced[""] = layer, (repr(model), layer)
        for name, part in list(copied.named_modules()):
            for child, layer in list(part.named_children()):
                if isinstance(layer, _BATCH_NORM):
                    new = self._in_place_of(layer)
                    setattr(part, child, new)
                    replaced[f"{name}.{child}".removeprefix(".")] = (repr(layer), new)
        values = values_normalized(copied, inputs) if inputs is not None else {}
        return copied, tuple(
            ReplacedLayer(name=name, was=was, now=repr(new), values=values.get(name))
            for name, (was, new) in replaced.items()
        )

    def _in_place_of(self, layer: nn.Module) -> nn.GroupNorm:
        assert isinstance(layer, _BATCH_NORM)
        channels = layer.num_features
        wanted = min(self.channels_per_group, channels)
        size = next(size for size in range(wanted, channels + 1) if channels % size == 0)
        like = layer.weight if layer.affine else layer.running_mean
        new = nn.GroupNorm(channels // size, channels, eps=layer.eps, affine=layer.affine)
        if like is not None:
            new = new.to(like.device, like.dtype)
        if layer.affine:
            with torch.no_grad():
                new.weight.copy_(layer.weight)
                new.bias.copy_(layer.bias)
            new.weight.requires_grad_(layer.weight.requires_grad)
            new.bias.requires_grad_(layer.bias.requires_grad)
        return new.train(layer.training)


def values_normalized(model: nn.Module, inputs: Tensor) -> dict[str, int]:
    """Number of entries of one example that every GroupNorm, InstanceNorm and LayerNorm normalizes together, by name.

    One forward pass in eval mode, without gradients; layers that are not reached are left out, and what the model
    refuses ends the count (torch refuses InstanceNorm over single numbers, and inputs of another shape).

    Args:
        model: left as it is, but for what its own code does in a forward pass.
        inputs: (b, *shape); two rows are enough.
    """
    found: dict[str, int] = {}
    with _watched(model, found), torch.no_grad():
        try:
            model(inputs)
        except (RuntimeError, ValueError):
            return found
    return found


@contextmanager
def _watched(model: nn.Module, found: dict[str, int]) -> Iterator[None]:
    kinds: Mapping[type[nn.Module], Callable[[Any, Tensor], int]] = {
        nn.GroupNorm: lambda layer, x: x[0].numel() // layer.num_groups,
        _INSTANCE_NORM: lambda layer, x: math.prod(x.shape[2:]),
        nn.LayerNorm: lambda layer, x: math.prod(layer.normalized_shape),
    }
    modes = {part: part.training for part in model.modules()}
    handles = []

    def counted(name: str, count: Callable[[Any, Tensor], int]) -> Any:
        def note(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            number = count(layer, args[0])
            found[name] = min(number, found.get(name, number))

        return note

    for name, part in model.named_modules():
        for kind, count in kinds.items():
            if isinstance(part, kind):
                handles.append(part.register_forward_pre_hook(counted(name, count)))
    model.eval()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for part, mode in modes.items():
            part.training = mode
