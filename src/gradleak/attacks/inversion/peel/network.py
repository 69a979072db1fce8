"""A network read as a chain: weighted layers, the pointwise activation behind each, and affine maps in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from gradleak.core import Domain, Mode, Objective
from gradleak.results import UnsupportedError

Map = Callable[[Tensor], Tensor]
Weighted = nn.Linear | nn.Conv1d | nn.Conv2d

_ASKER = "the attack peel"
# Affine maps are known by their values on drawn inputs, in float64.
_ALIKE = 1e-9
_EDGE = 1e-12


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A pointwise function that is monotone where it is not flat.

    Attributes:
        value: output for an input.
        inverse: input that has a given output, where there is one alone.
        slope: derivative at the input with that output.
        flat_below: output at and below which the input is not known, and the slope is zero; None where there is none.
    """

    value: Map
    inverse: Map
    slope: Map
    flat_below: float | None = None

    def above(self, outputs: Tensor, stds: Tensor, sigmas: float) -> Tensor:
        """Mask of outputs that exceed the flat part by so many standard deviations; all where there is none."""
        if self.flat_below is None:
            return torch.ones_like(outputs, dtype=torch.bool)
        return outputs > self.flat_below + sigmas * stds


def _relu() -> Activation:
    return Activation(value=torch.relu, inverse=lambda h: h, slope=torch.ones_like, flat_below=0.0)


def _leaky(slope: float) -> Activation:
    return Activation(
        value=lambda a: F.leaky_relu(a, slope),
        inverse=lambda h: torch.where(h > 0, h, h / slope),
        slope=lambda h: torch.where(h > 0, 1.0, slope).to(h),
    )


def _elu(alpha: float) -> Activation:
    def inverse(h: Tensor) -> Tensor:
        return torch.where(h > 0, h, torch.log1p((h / alpha).clamp(min=_EDGE - 1)))

    return Activation(
        value=lambda a: F.elu(a, alpha),
        inverse=inverse,
        slope=lambda h: torch.where(h > 0, 1.0, (h + alpha).clamp(min=0)),
    )


def _sigmoid() -> Activation:
    return Activation(
        value=torch.sigmoid,
        inverse=lambda h: torch.logit(h.clamp(_EDGE, 1 - _EDGE)),
        slope=lambda h: (h * (1 - h)).clamp(min=0),
    )


def _tanh() -> Activation:
    return Activation(
        value=torch.tanh,
        inverse=lambda h: torch.atanh(h.clamp(_EDGE - 1, 1 - _EDGE)),
        slope=lambda h: (1 - h.square()).clamp(min=0),
    )


def _softplus() -> Activation:
    return Activation(
        value=F.softplus,
        inverse=lambda h: h + torch.log(-torch.expm1(-h.clamp(min=_EDGE))),
        slope=lambda h: -torch.expm1(-h.clamp(min=0)),
    )


def _activation_of(module: nn.Module) -> Activation | None:
    match module:
        case nn.ReLU():
            return _relu()
        case nn.LeakyReLU() if module.negative_slope > 0:
            return _leaky(module.negative_slope)
        case nn.ELU() if module.alpha > 0:
            return _elu(module.alpha)
        case nn.Sigmoid():
            return _sigmoid()
        case nn.Tanh():
            return _tanh()
        case nn.Softplus() if module.beta == 1:
            return _softplus()
        case _:
            return None


_FUNCTIONS: Mapping[Any, Callable[[], Activation]] = {
    torch.relu: _relu,
    F.relu: _relu,
    "relu": _relu,
    torch.sigmoid: _sigmoid,
    F.sigmoid: _sigmoid,
    "sigmoid": _sigmoid,
    torch.tanh: _tanh,
    F.tanh: _tanh,
    "tanh": _tanh,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One weighted layer, with what lies between it and the activations on both sides.

    Attributes:
        layer: the layer, in float64.
        weight: name of its weight among the parameters.
        bias: name of its bias, or None.
        given: shape of one output of the stage before, or of an example.
        shape: shape of one input of the layer.
        made: shape of one output of the layer.
        scale: factor of each entry of `given` on its way to the layer, in the layer's shape.
        shift: what is added there.
        after: affine map from the layer's output (1, *made) to the input of the activation; nothing for the last stage.
        activation: behind it; None for the last stage.
    """

    layer: Weighted
    weight: str
    bias: str | None
    given: tuple[int, ...]
    shape: tuple[int, ...]
    made: tuple[int, ...]
    scale: Tensor
    shift: Tensor
    after: Map
    activation: Activation | None

    def output(self, inputs: Tensor) -> Tensor:
        """Inputs of the activation (k, *) for inputs of the layer (k, *shape)."""
        return torch.func.vmap(lambda row: self.after(row[None])[0])(self.layer(inputs))

    def columns(self) -> tuple[Tensor, Tensor]:
        """Derivative of `output` by the layer's input, (m, n), and `output` at zero, (m,)."""
        size = int(torch.Size(self.shape).numel())
        basis = torch.eye(size, dtype=torch.float64, device=self.scale.device).reshape(size, *self.shape)
        zero = self.output(torch.zeros_like(basis[:1])).reshape(-1)
        return (self.output(basis).reshape(size, -1) - zero).T, zero

    def back(self, gradient: Tensor) -> Tensor:
        """Gradient at the layer's output (*made) for one at the activation's input."""
        start = torch.zeros(1, *self.made, dtype=gradient.dtype, device=gradient.device)
        pull = torch.func.vjp(self.after, start)[1]
        found: Tensor = pull(gradient[None])[0][0]
        return found

    def weight_gradient(self, value: Tensor, gradient: Tensor) -> Tensor:
        """Gradient of the weight for an input of the layer (*shape) and a gradient at its output (*made)."""

        def made(weight: Tensor) -> Tensor:
            output: Tensor = torch.func.functional_call(self.layer, {"weight": weight}, (value[None],))
            return output

        pull = torch.func.vjp(made, self.layer.weight.detach())[1]
        found: Tensor = pull(gradient[None])[0]
        return found

    def below(self, gradient: Tensor) -> Tensor:
        """Gradient at the output of the stage before (*given), for one at the layer's output."""
        start = torch.zeros(1, *self.shape, dtype=gradient.dtype, device=gradient.device)
        pull = torch.func.vjp(self.layer, start)[1]
        found: Tensor = pull(gradient[None])[0][0] * self.scale
        return found.reshape(self.given)


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A network as layers one after the other.

    Attributes:
        stages: the first one first; the last one is the head.
        trunk: module from an example to the head's output, in float64; its parameters have the network's names.
        tail: what the network makes of the head's output, whatever it is.
    """

    stages: Sequence[Stage]
    trunk: nn.Module
    tail: Callable[[Tensor], Any]

    def from_pixels(self, domain: Domain) -> list[Stage]:
        """The stages with pixels scaled to [0, 1] as what the first one is given."""
        first = self.stages[0]
        low, high = domain.bounds(first.scale)
        width = (high - low).reshape(first.shape)
        return [
            replace(first, scale=first.scale * width, shift=first.scale * low.reshape(first.shape) + first.shift),
            *self.stages[1:],
        ]

    def gradient(self, inputs: Tensor, delta: Tensor) -> dict[str, Tensor]:
        """Gradient of the trunk's parameters for an input (1, *shape) and a gradient at the head's output (*made).

        **Cost**: one plain gradient.
        """

        def output(params: Mapping[str, Tensor]) -> Tensor:
            made: Tensor = torch.func.functional_call(self.trunk, dict(params), (inputs,))
            return made

        pull = torch.func.vjp(output, dict(self.trunk.named_parameters()))[1]
        found: dict[str, Tensor] = pull(delta[None])[0]
        return found


def read_chain(objective: Objective, domain: Domain) -> Chain:
    """A network as a chain of stages.

    What stands between weighted layers and activations is known by what it computes: entries that are scaled and shifted one
    by one before a layer (normalization in eval mode, reshaping), any affine map behind it (normalization, average pooling).
    Behind the last layer anything may follow (the logarithm of a softmax, a temperature).

    Args:
        objective: of the client.
        domain: shape of an example.

    Raises:
        UnsupportedError: naming the part of a network that is no such chain.

    **Cost**: a few forward passes of one example.
    """
    if objective.mode is Mode.TRAIN and (objective.random_layers or objective.batch_statistics):
        parts = ", ".join((*objective.random_layers, *objective.batch_statistics))
        raise UnsupportedError(
            f"{_ASKER} needs a network that computes alike for every example, got {parts} in train mode"
        )
    network = _in_double(objective)
    try:
        graph = fx.symbolic_trace(network)
    except Exception as error:  # tracing runs a stranger's forward, which may raise anything
        raise UnsupportedError(
            f"{_ASKER} needs a forward that torch.fx can trace, got {type(error).__name__}: {error}"
        ) from error
    names = {id(tensor): name for name, tensor in network.named_parameters()}
    return _Reader(graph, names, (1, *domain.shape), objective.device).chain()


def _in_double(objective: Objective) -> nn.Module:
    network = copy.deepcopy(objective.in_mode(Mode.EVAL).parts(nn.Module)[0])
    held = {**objective.params, **objective.frozen, **objective.buffers}
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            if name in held:
                tensor.data = held[name].detach().clone()
    return network.double().requires_grad_(requires_grad=False)


class _Reader:
    """Traced nodes in the order of the calls, cut into stages."""

    def __init__(
        self, graph: fx.GraphModule, names: Mapping[int, str], shape: Sequence[int], device: torch.device
    ) -> None:
        self.graph = graph
        self.interpreter = fx.Interpreter(graph)
        self.parts = dict(graph.named_modules())
        self.names = names
        self.nodes = list(graph.graph.nodes)
        self.values: dict[fx.Node, Any] = {}
        draw = torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)
        for node in self.nodes:
            self.values[node] = draw if node.op == "placeholder" else self._run(node, self.values)

    def chain(self) -> Chain:
        """The network up to its last weighted layer, cut into stages, and what follows."""
        weighted = [node for node in self.nodes if self._layer(node) is not None]
        if not weighted:
            raise UnsupportedError(f"{_ASKER} needs linear layers or convolutions, got none")
        head = weighted[-1]
        behind = self.nodes[self.nodes.index(head) + 1 :]
        chain = self._chain(self.nodes[: self.nodes.index(head) + 1], behind)
        return Chain(stages=self._stages(chain), trunk=self._trunk(head), tail=self._map(head, behind))

    def _stages(self, chain: Sequence[fx.Node]) -> list[Stage]:
        places = [place for place, node in enumerate(chain) if self._layer(node) is not None]
        stages: list[Stage] = []
        start = 0
        for place, end in zip(places, [*places[1:], len(chain)], strict=True):
            bent = [at for at in range(place + 1, end) if self._activation(chain[at]) is not None]
            if len(bent) > 1:
                raise UnsupportedError(f"{_ASKER} needs one activation between two layers, got {len(bent)}")
            stop = bent[0] if bent else place
            stages.append(self._stage(chain, start, place, stop))
            start = stop
        used = [stage.weight for stage in stages]
        again = next((name for name in used if used.count(name) > 1), None)
        if again is not None:
            raise UnsupportedError(f"{_ASKER} needs layers that are called once, got {again} in several calls")
        return stages

    def _trunk(self, head: fx.Node) -> nn.Module:
        """The network up to the output of one node."""
        graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in self.nodes[: self.nodes.index(head) + 1]:
            made[node] = graph.node_copy(node, lambda other: made[other])
        graph.output(made[head])
        return fx.GraphModule(self.graph, graph)

    def _stage(self, chain: Sequence[fx.Node], start: int, place: int, stop: int) -> Stage:
        """The layer at `place`; the value before `chain[start]` is known, or that of an activation there."""
        node = chain[place]
        layer = self._layer(node)
        assert layer is not None
        source = chain[start] if start else chain[0]
        before = self._map(source, chain[start + 1 : place])
        given = tuple(self.values[source].shape[1:])
        shape = tuple(self.values[chain[place - 1]].shape[1:])
        scale, shift = self._entry_by_entry(before, given, shape, chain[start + 1 : place])
        after = self._map(node, chain[place + 1 : stop])
        self._check_affine(after, node, chain[place + 1 : stop])
        bent = chain[stop] if stop < len(chain) and self._activation(chain[stop]) is not None else None
        return Stage(
            layer=layer,
            weight=self.names[id(layer.weight)],
            bias=None if layer.bias is None else self.names[id(layer.bias)],
            given=given,
            shape=shape,
            made=tuple(self.values[node].shape[1:]),
            scale=scale,
            shift=shift,
            after=after,
            activation=None if bent is None else self._activation(bent),
        )

    def _chain(self, nodes: Sequence[fx.Node], behind: Sequence[fx.Node]) -> list[fx.Node]:
        """The nodes with tensors that depend on the input, each on the one before it, the last one the head."""
        reached: list[fx.Node] = []
        sources = {node for node in self.nodes if node.op == "placeholder"}
        if len(sources) != 1:
            raise UnsupportedError(f"{_ASKER} needs a network of one input, got {len(sources)}")
        moving = set(sources)
        for node in nodes:
            inputs = [other for other in node.all_input_nodes if other in moving]
            if node in sources or (inputs and isinstance(self.values[node], Tensor)):
                if node not in sources and inputs != [reached[-1]]:
                    raise _branching(node)
                reached.append(node)
                moving.add(node)
        if reached[-1] is not nodes[-1]:
            raise UnsupportedError(
                f"{_ASKER} needs a last layer that reads the input, got {nodes[-1].name}, which does not"
            )
        around = moving - {reached[-1]}
        for node in behind:
            if isinstance(self.values[node], Tensor) and any(other in around for other in node.all_input_nodes):
                raise _branching(node)
        return reached

    def _layer(self, node: fx.Node) -> Weighted | None:
        part = self.parts.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(part, nn.Linear) and self.values[node].numel() != part.out_features:
            raise UnsupportedError(
                f"{_ASKER} needs linear layers at one position, got outputs of shape {tuple(self.values[node].shape[1:])} in "
                f"{node.target}"
            )
        if isinstance(part, nn.Conv1d | nn.Conv2d) and part.padding_mode != "zeros":
            raise UnsupportedError(
                f"{_ASKER} needs convolutions padded with zeros, got {part.padding_mode!r} in {node.target}"
            )
        return part if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) else None

    def _activation(self, node: fx.Node) -> Activation | None:
        if node.op == "call_module":
            return _activation_of(self.parts[str(node.target)])
        return _FUNCTIONS[node.target]() if node.target in _FUNCTIONS else None

    def _run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda other: values[other])
        if node.op == "output":
            return args[0]
        return getattr(self.interpreter, node.op)(node.target, args, kwargs)

    def _map(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Map:
        """Function that the nodes are of the value of `source`; all else is as it was for the drawn input."""

        def mapped(value: Tensor) -> Tensor:
            values = {**self.values, source: value}
            for node in nodes:
                value = values[node] = self._run(node, values)
            return value

        return mapped

    def _entry_by_entry(
        self, before: Map, given: Sequence[int], shape: Sequence[int], nodes: Sequence[fx.Node]
    ) -> tuple[Tensor, Tensor]:
        device = next(iter(self.values.values())).device
        drawn = torch.randn(1, *given, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
        shift = before(torch.zeros_like(drawn))[0]
        scale = before(torch.ones_like(drawn))[0] - shift
        made = before(drawn)[0]
        fits = made.numel() == drawn.numel() and torch.allclose(
            made, scale * drawn.reshape(made.shape) + shift, rtol=_ALIKE, atol=_ALIKE
        )
        if not fits or not bool((scale != 0).all()):
            raise UnsupportedError(
                f"{_ASKER} needs what stands between an activation and the next layer to act on each number alone, got "
                f"{self._described(nodes)}: pooling hides which units are active; use GaussNewton"
            )
        return scale.reshape(tuple(shape)), shift.reshape(tuple(shape))

    def _check_affine(self, after: Map, node: fx.Node, nodes: Sequence[fx.Node]) -> None:
        if not nodes:
            return
        value = self.values[node]
        stream = torch.Generator().manual_seed(2)
        one, other = (
            torch.randn(value.shape, dtype=torch.float64, generator=stream).to(value.device) for _ in range(2)
        )
        zero = after(torch.zeros_like(one))
        joint = after(one - 2 * other) - zero
        if not torch.allclose(joint, after(one) - zero - 2 * (after(other) - zero), rtol=_ALIKE, atol=_ALIKE):
            raise UnsupportedError(
                f"{_ASKER} needs affine maps and activations with an inverse (ReLU, LeakyReLU, ELU, sigmoid, tanh, softplus) "
                f"behind a layer, got {self._described(nodes)}; use GaussNewton"
            )

    def _described(self, nodes: Sequence[fx.Node]) -> str:
        names = []
        for node in nodes:
            part = self.parts.get(str(node.target)) if node.op == "call_module" else None
            target = getattr(node.target, "__name__", str(node.target))
            names.append(type(part).__name__ if part is not None else target)
        return ", ".join(names) or "nothing"


def _branching(node: fx.Node) -> UnsupportedError:
    return UnsupportedError(
        f"{_ASKER} takes layers one after the other apart, and {node.name} joins two branches of the network (a skip "
        "connection or a concatenation); use GaussNewton"
    )
