"""A model whose parameters stand in two parts, so that entries of a layer, not whole layers alone, can be protected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from gradleak.results import InputError

OPEN, PROTECTED = "open", "protected"


class TwoParts(nn.Module):
    """The same function of the inputs, whose shared tensors are the open and the protected entries of each of its tensors.

    The names of the shared tensors begin with `open.` and `protected.`, so that they are two layers to
    `VisibleLayers.of(objective, "open")` and `LayerNoise(std={"protected": 0.1})`. What it computes, and every entry of its
    gradient, is as in the model; only the order of the entries is another.
    """

    def __init__(self, model: nn.Module, protected: Mapping[str, Tensor]) -> None:
        """Part the tensors.

        Args:
            model: whose parameters are parted; it stays as it is, and is used inside with its values at this time.
            protected: by name of every parameter, which entries are protected: bool, of its shape.

        Raises:
            InputError: for masks that are not those of the parameters.
        """
        super().__init__()
        params = dict(model.named_parameters())
        shapes = {name: tuple(tensor.shape) for name, tensor in params.items()}
        given = {name: tuple(mask.shape) for name, mask in protected.items()}
        if shapes != given or any(mask.dtype != torch.bool for mask in protected.values()):
            raise InputError(f"TwoParts.protected: expected a bool mask a parameter, {shapes}, got {given}")
        self._shapes = shapes
        self.open, self.protected = nn.ParameterDict(), nn.ParameterDict()
        self._inner = [model]
        for place, (name, tensor) in enumerate(params.items()):
            flat, mask = tensor.detach().reshape(-1), protected[name].reshape(-1)
            for part, chosen in ((self.open, ~mask), (self.protected, mask)):
                if bool(chosen.any()):
                    part[f"tensor{place}"] = nn.Parameter(flat[chosen].clone())
            # Where in (open entries, protected entries) each entry stands.
            order = torch.cat([(~mask).nonzero()[:, 0], mask.nonzero()[:, 0]])
            self.register_buffer(f"place{place}", torch.argsort(order))

    def forward(self, inputs: Tensor) -> Tensor:
        """Output of the model for the inputs."""
        merged = {}
        for place, (name, shape) in enumerate(self._shapes.items()):
            parts = [part[f"tensor{place}"] for part in (self.open, self.protected) if f"tensor{place}" in part]
            merged[name] = torch.cat(parts)[getattr(self, f"place{place}")].reshape(shape)
        outputs: Tensor = torch.func.functional_call(self._inner[0], merged, (inputs,))
        return outputs


def choose_entries(
    groups: Mapping[str, Sequence[str]],
    params: Mapping[str, Tensor],
    order: Sequence[str],
    *,
    count: int,
    generator: torch.Generator,
    apart: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Exactly `count` entries: whole layers in this order while they fit, and of the next one random entries.

    Args:
        groups: names of the tensors of every layer.
        params: tensors by name.
        order: layers, the ones to protect first in front.
        count: how many entries.
        generator: of the draw within a layer.
        apart: masks of entries that are not to be chosen.

    Returns:
        A bool mask a tensor, of its shape.

    Raises:
        InputError: where there are fewer entries to choose from.

    Examples:
        >>> params = {"a.weight": torch.zeros(3), "b.weight": torch.zeros(5)}
        >>> groups = {"a": ["a.weight"], "b": ["b.weight"]}
        >>> found = choose_entries(groups, params, ["a", "b"], count=4, generator=torch.Generator().manual_seed(0))
        >>> {name: int(mask.sum()) for name, mask in found.items()}
        {'a.weight': 3, 'b.weight': 1}
    """
    chosen = {name: torch.zeros(tensor.numel(), dtype=torch.bool) for name, tensor in params.items()}
    free = {name: torch.ones_like(mask) for name, mask in chosen.items()}
    if apart is not None:
        free = {name: ~apart[name].reshape(-1) for name in free}
    left = count
    for layer in order:
        places = [(name, int(place)) for name in groups[layer] for place in free[name].nonzero()[:, 0]]
        if len(places) > left:
            drawn = torch.randperm(len(places), generator=generator)[:left].tolist()
            places = [places[number] for number in drawn]
        for name, place in places:
            chosen[name][place] = True
        left -= len(places)
    if left:
        raise InputError(f"choose_entries: expected {count} entries to choose from, got {count - left}")
    return {name: mask.reshape(params[name].shape) for name, mask in chosen.items()}


def scattered_entries(
    params: Mapping[str, Tensor], *, count: int, generator: torch.Generator, apart: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """So many entries drawn uniformly from all layers together.

    Args:
        params: tensors by name.
        count: how many entries.
        generator: of the draw.
        apart: masks of entries that are not to be chosen.

    Raises:
        InputError: where there are fewer entries to choose from.
    """
    everything = {"all": list(params)}
    return choose_entries(everything, params, ["all"], count=count, generator=generator, apart=apart)


__all__ = ["OPEN", "PROTECTED", "TwoParts", "choose_entries", "scattered_entries"]
