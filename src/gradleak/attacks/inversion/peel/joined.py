"""Networks with skip connections: every unit's input is affine in earlier ones, and layers are solved from the head down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from gradleak.attacks.inversion.peel.activations import Activation, Map
from gradleak.attacks.inversion.peel.network import ASKER, BranchingError, Chain, Reader, Stage, read_graph
from gradleak.attacks.inversion.peel.peeling import (
    INACTIVE,
    Behind,
    Peeled,
    Shared,
    facts,
    in_pixels,
    peel,
    through,
    undetermined,
)
from gradleak.attacks.inversion.peel.systems import Equations, Estimate, Solution, System, weight_equations
from gradleak.core import Domain, Objective
from gradleak.results import UnsupportedError

_CONDITION = 1e6


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """Part of an activation's input that comes from one earlier value.

    Attributes:
        source: number of the value: 0 for the example, then outputs of activations in order.
        stage: the weighted layer on the way, or None where the value is added as it is.
    """

    source: int
    stage: Stage | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Join:
    """The input of one activation as an affine map of layers' outputs and of earlier values.

    Attributes:
        terms: what it is a sum of.
        total: the map, of one tensor (*shape) a term.
        shapes: of these.
        activation: behind it.
    """

    terms: Sequence[Term]
    total: Map
    shapes: Sequence[tuple[int, ...]]
    activation: Activation

    def inputs(self, values: Sequence[Tensor]) -> Tensor:
        """The activation's input for the tensors of the terms, (*shape) each."""
        return self.total(*(value[None] for value in values))[0]

    def back(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """Gradients at the tensors of the terms, for one at the activation's input."""
        zeros = [torch.zeros(1, *shape, dtype=gradient.dtype, device=gradient.device) for shape in self.shapes]
        pulled = torch.func.vjp(self.total, *zeros)[1](gradient[None])
        return tuple(part[0] for part in pulled)


@dataclass(frozen=True, kw_only=True, eq=False)
class Joined:
    """A network of layers that read earlier values, and sums of what they make of them.

    Attributes:
        joins: of value 1, 2, ... in order; value 0 is the example.
        head: the last layer, which reads one value.
        source: number of that value.
        shapes: of the values.
        scale: factor of each pixel on its way to value 0.
        shift: what is added there.
    """

    joins: Sequence[Join]
    head: Stage
    source: int
    shapes: Sequence[tuple[int, ...]]
    scale: Tensor
    shift: Tensor

    def from_pixels(self, domain: Domain) -> Joined:
        """The network with pixels scaled to [0, 1] as the unknowns."""
        low, high = domain.bounds(self.scale)
        shape = self.shapes[0]
        return replace(self, scale=(high - low).expand(shape), shift=low.expand(shape))


def peel_joined(net: Joined, shared: Shared, delta: Tensor, relative: float, *, max_unknowns: int) -> Peeled:
    """The example behind the gradient of one, value by value from the head down; arguments as of `peel`.

    A value is solved from the gradients of the weights that read it, and from the known inputs of activations that it goes into.
    Where a sum holds an earlier value that is not known yet, both are solved together.
    """
    work = _Values(net, shared, relative, max_unknowns)
    work.read(net.source, net.head, delta)
    layers: list[dict[str, Any]] = []
    for number in range(len(net.shapes) - 1, -1, -1):
        solved = work.solve(number)
        if isinstance(solved, str):
            return Peeled(layers=layers, stopped=solved)
        solution, system, inactive = solved
        layers.append(facts(work.name(number), solution, work.behind.get(number), 0))
        if number == 0:
            return Peeled(solution=solution, system=system, inactive=inactive, layers=layers)
        if not bool(torch.isfinite(solution.stds).all()):
            return Peeled(layers=layers, stopped=undetermined(work.name(number), solution))
        if not work.go_through(number, solution):
            return Peeled(layers=layers, stopped=INACTIVE.format(work.name(number)))
    raise AssertionError("a network has an example")


class _Values:
    """Knowledge of the values of a network, from the last one down."""

    def __init__(self, net: Joined, shared: Shared, relative: float, max_unknowns: int) -> None:
        self.net, self.shared, self.relative, self.max_unknowns = net, shared, relative, max_unknowns
        self.known: dict[int, Estimate] = {}
        self.behind: dict[int, Behind] = {}
        self.readers: dict[int, list[tuple[Stage, Tensor]]] = {}
        self.gradients: dict[int, Tensor] = {}

    def name(self, number: int) -> str:
        """Names of the weights that read a value."""
        return ", ".join(stage.weight for stage, _ in self.readers.get(number, ())) or f"value {number}"

    def read(self, number: int, stage: Stage, delta: Tensor) -> None:
        """Note that a layer with this gradient at its output reads a value."""
        self.readers.setdefault(number, []).append((stage, delta))
        self._add(number, stage.below(delta))

    def go_through(self, number: int, solution: Solution) -> bool:
        """From a value to the input of its activation, and to gradients of what goes into that; False where all is off."""
        shape = self.net.shapes[number]
        value = Estimate(values=solution.values.reshape(shape), stds=solution.stds.reshape(shape))
        self.known[number] = value
        join = self.net.joins[number - 1]
        behind = through(join.activation, value, self.gradients[number])
        self.behind[number] = behind
        for term, gradient in zip(join.terms, join.back(behind.gradient), strict=True):
            if term.stage is None:
                self._add(term.source, gradient)
            else:
                self.read(term.source, term.stage, gradient)
        return bool(behind.gradient.any())

    def _add(self, number: int, gradient: Tensor) -> None:
        shape = self.net.shapes[number]
        self.gradients[number] = self.gradients.get(
            number, torch.zeros_like(gradient.reshape(shape))
        ) + gradient.reshape(shape)

    def solve(self, number: int) -> tuple[Solution, System, Equations | None] | str:
        """A value, its equations, and rows of units that are off, or why it cannot be had."""
        size, first = self._size(number), number == 0
        most_open = 0.1 if first else None
        weights = self._weights(number)
        alone = System(weights=weights[0] if weights else [], outputs=_stacked([_dense(part) for part in weights[1:]]))
        if weights and not self.shared.noisy:
            solution = alone.solve(size, most_open)
            if solution.rank == size and solution.condition < _CONDITION:
                return solution, alone, None
        behind = [one for one in self.behind if any(term.source == number for term in self.net.joins[one - 1].terms)]
        if not behind and weights:
            return alone.solve(size, most_open), alone, None
        lacking = self._lacking(number, behind)
        total = size + sum(map(self._size, lacking))
        if total > self.max_unknowns:
            return (
                f"the gradients of {self.name(number)} do not determine its input, and {total} unknowns of the sums that it goes "
                f"into are more than max_unknowns={self.max_unknowns}"
            )
        unknown = [number, *lacking]
        told, closed = zip(*(self._outputs(one, unknown) for one in behind), strict=True)
        if not lacking:
            outputs = _stacked([*told, *(_dense(part) for part in weights[1:])])
            system = System(weights=weights[0] if weights else [], outputs=outputs)
            return system.solve(size, most_open), system, _stacked(closed) if first else None
        rows, place = list(told), 0
        for one in unknown:
            rows += [_padded(_dense(part), place, total) for part in self._weights(one)]
            place += self._size(one)
        system = System(weights=[], outputs=_stacked(rows))
        return _head_of(system.solve(total, most_open), size), system, None

    def _lacking(self, number: int, behind: Sequence[int]) -> list[int]:
        found: list[int] = []
        for one in behind:
            found += [
                term.source
                for term in self.net.joins[one - 1].terms
                if term.source != number and term.source not in self.known and term.source not in found
            ]
        return found

    def _size(self, number: int) -> int:
        return math.prod(self.net.shapes[number])

    def _unit(self, number: int) -> tuple[Tensor, Tensor]:
        """Factor and shift from the unknowns of a value to itself."""
        if number == 0:
            return self.net.scale, self.net.shift
        one = torch.ones(self.net.shapes[number], dtype=self.net.scale.dtype, device=self.net.scale.device)
        return one, torch.zeros_like(one)

    def _weights(self, number: int) -> list[list[Equations]]:
        scale, shift = self._unit(number)
        found = []
        for stage, delta in self.readers.get(number, ()):
            gradient = self.shared.gradients.get(stage.weight)
            if gradient is None or not bool(delta.any()):
                continue
            std = self.shared.std(stage.weight, self.relative)
            within = replace(
                stage,
                scale=stage.scale * scale.reshape(stage.shape),
                shift=stage.scale * shift.reshape(stage.shape) + stage.shift,
            )
            found.append(in_pixels(weight_equations(stage.layer, stage.shape, delta, gradient, std), within))
        return found

    def _outputs(self, one: int, unknown: Sequence[int]) -> tuple[Equations, Equations]:
        """Equations of the known inputs of an activation for unknown values, stacked, and rows of units that are off."""
        behind = self.behind[one]
        matrix, offset = self._matrix(one, unknown)
        variances = behind.known.stds.reshape(-1).square()
        if self.shared.noisy:
            # What was solved and goes into the sum, too, is off by its own.
            for source in {term.source for term in self.net.joins[one - 1].terms} - set(unknown):
                variances = (
                    variances + self._matrix(one, [source])[0].square() @ self.known[source].stds.reshape(-1).square()
                )
        told = behind.told.reshape(-1)
        closed = ~told & ~behind.doubtful.reshape(-1)
        stds = variances[told].sqrt()
        if not self.shared.noisy and len(stds):
            stds = torch.full_like(stds, float(stds.square().mean().sqrt().clamp(min=1e-300)))
        right = (behind.known.values.reshape(-1) - offset)[told]
        return (
            Equations(matrix=matrix[told] / stds[:, None], right=(right / stds)[:, None]),
            Equations(matrix=matrix[closed], right=-offset[closed][:, None]),
        )

    def _matrix(self, one: int, unknown: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Derivative of the input of an activation by stacked unknown values, and the input where these are zero."""
        join = self.net.joins[one - 1]
        sizes = [self._size(number) for number in unknown]

        def inputs(flat: Tensor) -> Tensor:
            parts = dict(zip(unknown, flat.split(sizes), strict=True))
            values = []
            for term in join.terms:
                scale, shift = self._unit(term.source)
                value = shift
                if term.source in parts:
                    value = parts[term.source].reshape(scale.shape) * scale + shift
                elif term.source in self.known:
                    value = self.known[term.source].values
                if term.stage is not None:
                    stage = term.stage
                    value = stage.layer((value.reshape(stage.shape) * stage.scale + stage.shift)[None])[0]
                values.append(value)
            return join.inputs(values).reshape(-1)

        zero = torch.zeros(sum(sizes), dtype=torch.float64, device=self.net.scale.device)
        offset = inputs(zero)
        return (torch.func.vmap(inputs)(torch.eye(len(zero)).to(zero)) - offset).T, offset


def _dense(parts: Sequence[Equations]) -> Equations:
    """Equations of one channel after the other as one system."""
    return Equations(
        matrix=torch.block_diag(*(part.matrix for part in parts)), right=torch.cat([part.right for part in parts])
    )


def _padded(part: Equations, place: int, total: int) -> Equations:
    """The equations among more unknowns, of which their own begin at a place."""
    matrix = part.matrix.new_zeros(len(part.matrix), total)
    matrix[:, place : place + part.matrix.shape[1]] = part.matrix
    return replace(part, matrix=matrix)


def _stacked(parts: Sequence[Equations]) -> Equations | None:
    """All equations one below the other; None without any."""
    if not parts:
        return None
    return Equations(matrix=torch.cat([part.matrix for part in parts]), right=torch.cat([part.right for part in parts]))


def _head_of(solution: Solution, size: int) -> Solution:
    """The first entries of a solution, and what is open there."""
    basis = solution.open[:size]
    loose = basis.new_zeros(size, 0)
    if basis.numel():
        left, sizes, _ = torch.linalg.svd(basis, full_matrices=False)
        loose = left[:, sizes > 1e-6]
    return replace(
        solution, values=solution.values[:size], stds=solution.stds[:size], open=loose, rank=size - loose.shape[1]
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """A network that can be read from the head down.

    Attributes:
        chain: its layers one after the other, the head last; of a network with skip connections in any order.
        joined: a network with skip connections, or None.
    """

    chain: Chain
    joined: Joined | None = None

    @property
    def rectified(self) -> bool:
        """True if some units can be off."""
        parts: Sequence[Stage | Join] = self.chain.stages if self.joined is None else self.joined.joins
        return any(part.activation is not None and part.activation.flat_below is not None for part in parts)

    def peel(self, domain: Domain, shared: Shared, delta: Tensor, relative: float, *, max_unknowns: int) -> Peeled:
        """The example behind the gradient of one; arguments as of `peel`."""
        if self.joined is None:
            return peel(self.chain.from_pixels(domain), shared, delta, relative, max_unknowns=max_unknowns)
        return peel_joined(self.joined.from_pixels(domain), shared, delta, relative, max_unknowns=max_unknowns)


def read_network(objective: Objective, domain: Domain) -> Network:
    """A network as a chain of layers, or, where branches are joined, as sums.

    Args:
        objective: of the client.
        domain: shape of an example.

    Raises:
        UnsupportedError: naming the part of a network that is neither.

    **Cost**: a few forward passes of one example.
    """
    reader = read_graph(objective, domain)
    try:
        return Network(chain=reader.chain())
    except BranchingError:
        return _Joiner(reader).network()


class _Joiner:
    """Values of a traced network, and what they are sums of."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.head = reader.head()
        before: set[fx.Node] = {self.head}
        for node in reversed(reader.nodes):
            if node in before:
                before.update(node.all_input_nodes)
        moving = reader.moving()
        self.nodes = [node for node in reader.nodes if node in moving and node in before]
        reader.check_behind(
            reader.nodes[reader.nodes.index(self.head) + 1 :], [node for node in moving if node is not self.head]
        )
        self.values = [node for node in self.nodes if node.op == "placeholder" or reader.activation(node) is not None]

    def network(self) -> Network:
        """The network, its head apart."""
        joins = [self._join(node) for node in self.values[1:]]
        source, head = self._stage(self.head)
        stages = [*(term.stage for join in joins for term in join.terms if term.stage is not None), head]
        shapes = [self._shape(node) for node in self.values]
        ones = torch.ones(shapes[0], dtype=torch.float64, device=head.scale.device)
        joined = Joined(joins=joins, head=head, source=source, shapes=shapes, scale=ones, shift=0 * ones)
        return Network(chain=self.reader.cut(self.head, stages), joined=joined)

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        return tuple(self.reader.values[node].shape[1:])

    def _reached(self, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
        """Values and layers' outputs from which a node is computed, and the nodes in between, in order."""
        bounds, between, open_ = set[fx.Node](), set[fx.Node](), [node]
        while open_:
            one = open_.pop()
            if one in self.values or self.reader.layer(one) is not None:
                bounds.add(one)
            elif one not in between:
                between.add(one)
                open_ += [other for other in one.all_input_nodes if other in self.nodes]
        return [one for one in self.nodes if one in bounds], [one for one in self.nodes if one in between]

    def _stage(self, node: fx.Node) -> tuple[int, Stage]:
        """The value that a layer reads, and the layer."""
        (given,) = (other for other in node.all_input_nodes if other in self.nodes)
        bounds, between = self._reached(given)
        if len(bounds) != 1 or bounds[0] not in self.values:
            raise UnsupportedError(
                f"{ASKER} needs layers that read one activation each where branches are joined, got {node.name}, which reads "
                f"{', '.join(one.name for one in bounds)}; use GaussNewton"
            )
        return self.values.index(bounds[0]), self.reader.stage(node, bounds[0], between)

    def _join(self, node: fx.Node) -> Join:
        reader = self.reader
        (given,) = (other for other in node.all_input_nodes if other in self.nodes)
        bounds, between = self._reached(given)

        def total(*tensors: Tensor) -> Tensor:
            values = {**reader.values, **dict(zip(bounds, tensors, strict=True))}
            for one in between:
                values[one] = reader.run(one, values)
            made: Tensor = values[given]
            return made

        shapes = [self._shape(one) for one in bounds]
        reader.check_affine(total, [(1, *shape) for shape in shapes], between)
        terms = []
        for one in bounds:
            source, stage = self._stage(one) if reader.layer(one) is not None else (self.values.index(one), None)
            terms.append(Term(source=source, stage=stage))
        bend = reader.activation(node)
        assert bend is not None
        return Join(terms=terms, total=total, shapes=shapes, activation=bend)
