"""A network read as a chain: weighted layers, the pointwise activation behind each, and affine maps in between."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn

from gradleak.attacks.inversion.peel.activations import FUNCTIONS, Activation, Map, activation_of
from gradleak.core import Domain, Mode, Objective
from gradleak.results import UnsupportedError

Weighted = nn.Linear | nn.Conv1d | nn.Conv2d

ASKER = "the attack peel"
# Affine maps are known by their values on drawn inputs, in float64.
_ALIKE = 1e-9


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
        """Gradient of the trunk's parameters for inputs (k, *shape) and gradients at the head's output (k, *made).

        **Cost**: one plain gradient.
        """

        def output(params: Mapping[str, Tensor]) -> Tensor:
            made: Tensor = torch.func.functional_call(self.trunk, dict(params), (inputs,))
            return made

        pull = torch.func.vjp(output, dict(self.trunk.named_parameters()))[1]
        found: dict[str, Tensor] = pull(delta.reshape(len(inputs), *self.stages[-1].made))[0]
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
    return read_graph(objective, domain).chain()


def read_graph(objective: Objective, domain: Domain) -> Reader:
    """A network's calls, traced.

    Args:
        objective: of the client.
        domain: shape of an example.

    Raises:
        UnsupportedError: for a network that computes something else each time, or that cannot be traced.
    """
    if objective.mode is Mode.TRAIN and (objective.random_layers or objective.batch_statistics):
        parts = ", ".join((*objective.random_layers, *objective.batch_statistics))
        raise UnsupportedError(
            f"{ASKER} needs a network that computes alike for every example, got {parts} in train mode"
        )
    network = _in_double(objective)
    try:
        graph = fx.symbolic_trace(network)
    except Exception as error:  # tracing runs a stranger's forward, which may raise anything
        raise UnsupportedError(
            f"{ASKER} needs a forward that torch.fx can trace, got {type(error).__name__}: {error}"
        ) from error
    names = {id(tensor): name for name, tensor in network.named_parameters()}
    return Reader(graph, names, (1, *domain.shape), objective.device)


def _in_double(objective: Objective) -> nn.Module:
    network = copy.deepcopy(objective.in_mode(Mode.EVAL).parts(nn.Module)[0])
    held = {**objective.params, **objective.frozen, **objective.buffers}
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            if name in held:
                tensor.data = held[name].detach().clone()
    return network.double().requires_grad_(requires_grad=False)


class Reader:
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
            self.values[node] = draw if node.op == "placeholder" else self.run(node, self.values)

    def chain(self) -> Chain:
        """The network up to its last weighted layer, cut into stages, and what follows."""
        head = self.head()
        place = self.nodes.index(head)
        chain = self._chain(self.nodes[: place + 1], self.nodes[place + 1 :])
        return self.cut(head, self._stages(chain))

    def head(self) -> fx.Node:
        """The last weighted layer."""
        weighted = [node for node in self.nodes if self.layer(node) is not None]
        if not weighted:
            raise UnsupportedError(f"{ASKER} needs linear layers or convolutions, got none")
        last: fx.Node = weighted[-1]
        return last

    def cut(self, head: fx.Node, stages: Sequence[Stage]) -> Chain:
        """The stages with trunk and tail of a network whose head is this node.

        Raises:
            UnsupportedError: for a layer that is called more than once.
        """
        used = [stage.weight for stage in stages]
        again = next((name for name in used if used.count(name) > 1), None)
        if again is not None:
            raise UnsupportedError(f"{ASKER} needs layers that are called once, got {again} in several calls")
        behind = self.nodes[self.nodes.index(head) + 1 :]
        return Chain(stages=stages, trunk=self._trunk(head), tail=self.map(head, behind))

    def _stages(self, chain: Sequence[fx.Node]) -> list[Stage]:
        places = [place for place, node in enumerate(chain) if self.layer(node) is not None]
        stages: list[Stage] = []
        start = 0
        for place, end in zip(places, [*places[1:], len(chain)], strict=True):
            bent = [at for at in range(place + 1, end) if self.activation(chain[at]) is not None]
            if len(bent) > 1:
                raise UnsupportedError(f"{ASKER} needs one activation between two layers, got {len(bent)}")
            stop = bent[0] if bent else place
            stages.append(self._stage(chain, start, place, stop))
            start = stop
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
        source = chain[start] if start else chain[0]
        after = self.map(node, chain[place + 1 : stop])
        self.check_affine(after, [tuple(self.values[node].shape)], chain[place + 1 : stop])
        bent = chain[stop] if stop < len(chain) else None
        return replace(
            self.stage(node, source, chain[start + 1 : place]),
            after=after,
            activation=None if bent is None else self.activation(bent),
        )

    def stage(self, node: fx.Node, source: fx.Node, between: Sequence[fx.Node]) -> Stage:
        """The layer that a node calls, on what nodes in between make of a source, without what follows."""
        layer = self.layer(node)
        assert layer is not None
        read = between[-1] if between else source
        given, shape = (tuple(self.values[one].shape[1:]) for one in (source, read))
        scale, shift = self._entry_by_entry(self.map(source, between), given, shape, between)
        return Stage(
            layer=layer,
            weight=self.names[id(layer.weight)],
            bias=None if layer.bias is None else self.names[id(layer.bias)],
            given=given,
            shape=shape,
            made=tuple(self.values[node].shape[1:]),
            scale=scale,
            shift=shift,
            after=lambda output: output,
            activation=None,
        )

    def moving(self) -> list[fx.Node]:
        """The nodes with tensors that depend on the input, in order.

        Raises:
            UnsupportedError: for a network of several inputs.
        """
        sources = [node for node in self.nodes if node.op == "placeholder"]
        if len(sources) != 1:
            raise UnsupportedError(f"{ASKER} needs a network of one input, got {len(sources)}")
        moving = dict.fromkeys(sources)
        for node in self.nodes:
            if any(other in moving for other in node.all_input_nodes) and isinstance(self.values[node], Tensor):
                moving[node] = None
        return list(moving)

    def _chain(self, nodes: Sequence[fx.Node], behind: Sequence[fx.Node]) -> list[fx.Node]:
        """The nodes with tensors that depend on the input, each on the one before it, the last one the head."""
        moving = self.moving()
        reached = [node for node in moving if node in nodes]
        if reached[-1] is not nodes[-1]:
            raise UnsupportedError(
                f"{ASKER} needs a last layer that reads the input, got {nodes[-1].name}, which does not"
            )
        for before, node in pairwise(reached):
            if [other for other in node.all_input_nodes if other in moving] != [before]:
                raise _branching(node)
        self.check_behind(behind, reached[:-1])
        return reached

    def check_behind(self, nodes: Sequence[fx.Node], around: Sequence[fx.Node]) -> None:
        """Refuse nodes behind the head that read something that goes around it.

        Raises:
            UnsupportedError: naming the node.
        """
        for node in nodes:
            if any(other in around for other in node.all_input_nodes):
                raise UnsupportedError(
                    f"{ASKER} needs an output that the last layer makes alone, and {node.name} reads what goes around it; use "
                    "GaussNewton"
                )

    def layer(self, node: fx.Node) -> Weighted | None:
        """The weighted layer that a node calls, or None."""
        part = self.parts.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(part, nn.Linear) and self.values[node].numel() != part.out_features:
            raise UnsupportedError(
                f"{ASKER} needs linear layers at one position, got outputs of shape {tuple(self.values[node].shape[1:])} in "
                f"{node.target}"
            )
        if isinstance(part, nn.Conv1d | nn.Conv2d) and part.padding_mode != "zeros":
            raise UnsupportedError(
                f"{ASKER} needs convolutions padded with zeros, got {part.padding_mode!r} in {node.target}"
            )
        return part if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d) else None

    def activation(self, node: fx.Node) -> Activation | None:
        """The activation that a node computes, or None."""
        if node.op == "call_module":
            return activation_of(self.parts[str(node.target)])
        return FUNCTIONS[node.target]() if node.target in FUNCTIONS else None

    def run(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        """Value of a node for the values of those before it."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda other: values[other])
        if node.op == "output":
            return args[0]
        return getattr(self.interpreter, node.op)(node.target, args, kwargs)

    def map(self, source: fx.Node, nodes: Sequence[fx.Node]) -> Map:
        """Function that the nodes are of the value of `source`; all else is as it was for the drawn input."""

        def mapped(value: Tensor) -> Tensor:
            values = {**self.values, source: value}
            for node in nodes:
                value = values[node] = self.run(node, values)
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
                f"{ASKER} needs what stands between an activation and the next layer to act on each number alone, got "
                f"{self._described(nodes)}: pooling hides which units are active; use GaussNewton"
            )
        return scale.reshape(tuple(shape)), shift.reshape(tuple(shape))

    def check_affine(self, made: Map, shapes: Sequence[tuple[int, ...]], nodes: Sequence[fx.Node]) -> None:
        """Refuse a map of tensors of these shapes that is not affine.

        Raises:
            UnsupportedError: naming the nodes that compute it.
        """
        if not nodes:
            return
        device = next(iter(self.values.values())).device
        stream = torch.Generator().manual_seed(2)
        one, other = (
            [torch.randn(shape, dtype=torch.float64, generator=stream).to(device) for shape in shapes] for _ in range(2)
        )
        zero = made(*(torch.zeros_like(part) for part in one))
        joint = made(*(left - 2 * right for left, right in zip(one, other, strict=True))) - zero
        if not torch.allclose(joint, made(*one) - zero - 2 * (made(*other) - zero), rtol=_ALIKE, atol=_ALIKE):
            raise UnsupportedError(
                f"{ASKER} needs affine maps and activations with an inverse (ReLU, LeakyReLU, ELU, sigmoid, tanh, softplus) "
                f"behind a layer, got {self._described(nodes)}; use GaussNewton"
            )

    def _described(self, nodes: Sequence[fx.Node]) -> str:
        names = []
        for node in nodes:
            part = self.parts.get(str(node.target)) if node.op == "call_module" else None
            target = getattr(node.target, "__name__", str(node.target))
            names.append(type(part).__name__ if part is not None else target)
        return ", ".join(names) or "nothing"


class BranchingError(UnsupportedError):
    """A network whose branches are joined."""


def _branching(node: fx.Node) -> BranchingError:
    return BranchingError(
        f"{ASKER} takes layers one after the other apart, and {node.name} joins two branches of the network (a skip "
        "connection or a concatenation); use GaussNewton"
    )
