"""First block of an encoder as a function of inputs and attention outputs, read from a model and checked against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks.text.readers import Reach, Reader, first_tensor, outer_layers
from gradleak.results import UnsupportedError

_CURVES: Sequence[Callable[[Tensor], Tensor]] = (
    F.gelu,
    partial(F.gelu, approximate="tanh"),
    F.relu,
    F.silu,
    torch.tanh,
)
_LENGTH = 6
# Of the block computed here and by the model in half precision; single precision leaves 1e-6.
_MISFIT = 3e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class EncoderBlock:
    """Attention, its output, a skip connection, a LayerNorm, and the first half of the feed-forward net.

    All tensors are float64. Weights are (outputs, inputs).

    Attributes:
        query, key, value, out, up: weight and bias of each linear layer.
        norm: weight, bias and epsilon of the LayerNorm between.
        heads: of the attention.
        curve: the activation.
        reader: layer whose input is the block's input.
        names: names of the weights whose gradients are read: those of query, key and value, of the output, and of the second
            matrix of the feed-forward net.
    """

    query: tuple[Tensor, Tensor]
    key: tuple[Tensor, Tensor]
    value: tuple[Tensor, Tensor]
    out: tuple[Tensor, Tensor]
    up: tuple[Tensor, Tensor]
    norm: tuple[Tensor, Tensor, float]
    heads: int
    curve: Callable[[Tensor], Tensor]
    reader: Reader
    names: tuple[str, str]

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.out[0].shape[0]

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (heads, n, width / heads) of inputs (n, width); queries are scaled."""
        query, key, value = (
            F.linear(x, *layer).reshape(len(x), self.heads, -1).transpose(0, 1)
            for layer in (self.query, self.key, self.value)
        )
        return query / (self.width // self.heads) ** 0.5, key, value

    def context(self, x: Tensor) -> Tensor:
        """Attention outputs (n, width) of one sentence with inputs (n, width)."""
        query, key, value = self.split(x)
        return ((query @ key.transpose(1, 2)).softmax(dim=2) @ value).transpose(0, 1).reshape(len(x), -1)

    def hidden(self, x: Tensor, context: Tensor) -> Tensor:
        """Inputs of the second matrix of the feed-forward net (n, hidden), given inputs and attention outputs."""
        weight, bias, eps = self.norm
        middle = F.layer_norm(x + F.linear(context, *self.out), (self.width,), weight, bias, eps)
        return self.curve(F.linear(middle, *self.up))


def read_encoder_block(model: nn.Module, readers: Sequence[Reader], words: int, length: int) -> EncoderBlock:
    """The first block of an encoder that normalizes after its skip connections, as BERT does.

    Layers are found by the order of their calls, the LayerNorm by its output, heads and activation by trying which of them
    give what the model computes; the whole is compared with the model on drawn ids.

    Args:
        model: called with ids (b, T) alone.
        readers: of `find_readers`.
        words: size of the vocabulary.
        length: longest sentence that the model takes.

    Raises:
        UnsupportedError: naming the part that is missing or different.

    Cost: one forward pass on a sentence of at most six tokens.
    """
    layers = outer_layers(model, readers)
    own = [pair for pair in layers if pair[0].reach is Reach.OWN]
    mixed = [pair for pair in layers if pair[0].reach is Reach.ALL]
    if len(own) != 1:
        raise UnsupportedError(f"expected one input of query, key and value before any attention, got {len(own)}")
    (first, names) = own[0]
    attention = dict(model.named_modules()).get(first.layer)
    try:
        if isinstance(attention, nn.MultiheadAttention):
            projections = [_halves(attention.in_proj_weight, attention.in_proj_bias)]
            out, out_name = _pair(attention.out_proj.weight, attention.out_proj.bias), f"{first.layer}.out_proj.weight"
        else:
            projections = [_linear(model, name, first.width) for name in names]
            outer, out_name = mixed[0], mixed[0][0].weights[0]
            out, mixed = _linear(model, outer[1][0], outer[0].width), mixed[1:]
        up, down = mixed[0][0], mixed[1][0]
        upper = _linear(model, mixed[0][1][0], up.width)
    except (IndexError, TypeError) as error:
        raise UnsupportedError("expected attention with an output layer and a feed-forward net behind it") from error
    stacked = torch.cat([weight for weight, _ in projections]), torch.cat([bias for _, bias in projections])
    width = first.width
    if stacked[0].shape != (3 * width, width):
        raise UnsupportedError(
            f"expected query, key and value of {width} numbers each, got {stacked[0].shape[0]} outputs together "
            "(grouped attention is not read)"
        )
    query, key, value = zip(stacked[0].split(width), stacked[1].split(width), strict=True)

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(words, (1, min(_LENGTH, length)), generator=generator)
    x, middle, hidden, norms = _seen(model, ids, first.layer, up.layer, down.layer)
    norm = next((norms[name] for name in norms if torch.allclose(norms[name][0], middle, rtol=1e-4, atol=1e-5)), None)
    if norm is None:
        raise UnsupportedError("expected a LayerNorm between attention and feed-forward net, as BERT has it, got none")
    layer = norm[1]
    scale = layer.weight.detach().double()
    shift = torch.zeros_like(scale) if layer.bias is None else layer.bias.detach().double()
    blocks = [
        EncoderBlock(
            query=query,
            key=key,
            value=value,
            out=out,
            up=upper,
            norm=(scale, shift, layer.eps),
            heads=heads,
            curve=curve,
            reader=first,
            names=(out_name, down.weights[0]),
        )
        for heads in range(1, width + 1)
        if width % heads == 0
        for curve in _CURVES
    ]
    # Small weights attend nearly alike whatever the number of heads: the best of them, not one that is near enough.
    misfits = [float((block.hidden(x, block.context(x)) - hidden).norm() / hidden.norm()) for block in blocks]
    best = min(range(len(blocks)), key=misfits.__getitem__)
    if misfits[best] < _MISFIT:
        return blocks[best]
    raise UnsupportedError(
        "the first block is not attention with a skip connection, a LayerNorm behind it and a feed-forward net (an encoder that "
        "normalizes before attention, relative places and gated nets are not read)"
    )


def _pair(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    matrix = weight.detach().double()
    return matrix, torch.zeros(len(matrix), dtype=torch.float64) if bias is None else bias.detach().double()


def _halves(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    if weight is None:
        raise UnsupportedError("expected query, key and value of one width in nn.MultiheadAttention")
    return _pair(weight, bias)


@torch.no_grad()
def _linear(model: nn.Module, name: str, width: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear layer, or of one with adapters, as its answers say."""
    part = model.get_submodule(name)
    weight = part._parameters.get("weight")
    if weight is not None and weight.shape[1] == width and isinstance(part, nn.Linear):
        return _pair(weight, part._parameters.get("bias"))
    some = next(part.parameters())
    zero = part(torch.zeros(1, width, dtype=some.dtype, device=some.device))
    units = part(torch.eye(width, dtype=some.dtype, device=some.device))
    return (units - zero).T.double(), zero[0].double()


@torch.no_grad()
def _seen(
    model: nn.Module, ids: Tensor, first: str, up: str, down: str
) -> tuple[Tensor, Tensor, Tensor, dict[str, tuple[Tensor, nn.LayerNorm]]]:
    """Inputs of three layers for one sentence (T, ...), float64, and the output of every LayerNorm up to the last of them."""
    inputs: dict[str, Tensor] = {}
    norms: dict[str, tuple[Tensor, nn.LayerNorm]] = {}

    def hook(name: str) -> Any:
        def watch(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
            if name in (first, up, down) and name not in inputs:
                inputs[name] = first_tensor(args, kwargs)[0].double()
            if isinstance(module, nn.LayerNorm) and down not in inputs:
                norms[name] = (output[0].double(), module)

        return watch

    handles = [part.register_forward_hook(hook(name), with_kwargs=True) for name, part in model.named_modules()]
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return inputs[first], inputs[up], inputs[down], norms
