"""The derivative of a gradient with respect to the input as a mixed derivative of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradleak.core import Exposure
from gradleak.core.objective import Tensors
from gradleak.operators.kernels import AffineBatchNorm, differentiable_kernels

Rows = tuple[Tensor, ...]

# The graph of both first derivatives keeps about three times what the graph of the loss keeps (measured on ResNet-18:
# 4.7, 9.4 and 14.1 MB in float32 after the loss, its input gradient and its parameter gradient), the gradient itself,
# and what a product adds for the moment.
_GRAPHS = 3
_PARAMETER_COPIES = 4


class MixedDerivative:
    """M = ∂²L/∂θ∂x (P, d) of a loss, and A = D'(∇_θL) M for a release D(∇_θL): products from one kept graph.

    M is symmetric in the order of the derivatives, so that both products are reverse over reverse on the graph of the
    two first derivatives of one evaluation of the loss: M v = ∇_θ⟨∇_xL, v⟩ and Mᵀu = ∇_x⟨∇_θL, u⟩. Without a graph,
    Mᵀu is d/ds ∇_xL(θ + s u, x), forward over reverse. D, the defenses that act on the finished gradient, is
    differentiated by itself.

    Rows of a block are products with single vectors; tensors of a block come by parameter, (k, *shape).

    Args:
        loss: (params, flat inputs) -> scalar, pure.
        params: θ by name.
        point: x, flat (d,).
        after: D on the gradient by name, or None for the identity.

    Cost: the graph takes about 1.5 plain gradients (with M v and Mᵀu on ResNet-18 2.3 and 1.8 each, against 5.0 for a
    JVP of the gradient, 3.1 for a fresh double backward and 2.6 for forward over reverse; on the 28x28 LeNet 0.9 and
    1.1, against 3.6, 2.1 and 3.0).
    """

    def __init__(
        self,
        loss: Callable[[Tensors, Tensor], Tensor],
        params: Tensors,
        point: Tensor,
        after: Callable[[Tensors], Tensors] | None = None,
    ) -> None:
        self.loss = loss
        self.params = {name: tensor.detach() for name, tensor in params.items()}
        self._point = point.detach()
        self._after = after

    @classmethod
    def of(cls, exposure: Exposure) -> MixedDerivative | None:
        """Mixed derivative of an exposure whose release is a function of the plain gradient; None otherwise.

        None too for a model that stops gradients: its gradient depends on the input in ways that the graph of its loss
        does not hold.
        """
        after = exposure.release.after_gradient
        objective, batch = exposure.objective, exposure.batch
        if after is None or objective.stops_gradients(batch):
            return None

        def loss(params: Tensors, flat: Tensor) -> Tensor:
            return objective.loss(params, batch.with_inputs(flat.reshape(batch.inputs.shape)))

        return cls(loss, objective.params, exposure.inputs, after if exposure.release.defenses else None)

    @cached_property
    def needed_bytes(self) -> int:
        """Roughly what the kept graph and one product take, from what one evaluation of the loss keeps.

        Cost: one evaluation of the loss.
        """
        sizes: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return tensor

        params, point = self._leaves()
        watched = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with differentiable_kernels(), torch.enable_grad(), watched:
            self.loss(params, point.clone())
        for tensor in params.values():
            sizes.pop(tensor.untyped_storage().data_ptr(), None)
        own = sum(tensor.numel() * tensor.element_size() for tensor in self.params.values())
        return _GRAPHS * sum(sizes.values()) + _PARAMETER_COPIES * own

    @property
    def value(self) -> Tensor:
        """The released mean D(∇_θL), flat (P,)."""
        released = self._gradient if self._after is None else self._after(self._gradient)
        return torch.cat([released[name].reshape(-1) for name in self.params]).detach()

    @property
    def gradients(self) -> Rows:
        """∇_θL by parameter, before any defense."""
        return tuple(self._gradient.values())

    def rows(self, tangents: Tensor) -> Rows:
        """M t for each row of (k, d) under vmap, by parameter: (k, *shape) each, before any defense."""
        graph = self._graph

        def one(tangent: Tensor) -> Rows:
            return _products((graph.input_gradient,), graph.leaves, (tangent[None],), False)

        # Not by `is_grads_batched`, whose older rules go through a block of convolutions example by example.
        found: Rows = torch.func.vmap(one)(tangents)
        return tuple(rows[:, 0] for rows in found)

    def push(self, tangents: Tensor, *, batched: bool, out: Tensor | None = None) -> Tensor:
        """A t for each row: (k, d) -> (k, P), into `out` if given; `batched` under vmap, else in a loop."""
        rows, parts = tangents.shape[0], self._push(tangents, batched)
        return torch.cat([part.reshape(rows, part.numel() // rows) for part in parts], dim=1, out=out)

    def pull(self, cotangents: Tensor, *, batched: bool) -> Tensor:
        """Aᵀu for each row: (k, P) -> (k, d)."""
        return self._pull(self._by_parameter(cotangents), batched)

    def normal(self, tangents: Tensor, *, batched: bool) -> Tensor:
        """AᵀA t for each row: (k, d) -> (k, d), without vectors of all parameters in between."""
        return self._pull(self._push(tangents, batched), batched)

    def pull_forward(self, cotangents: Tensor) -> Tensor:
        """Aᵀu for each row, (k, P) -> (k, d), forward over reverse: d/ds ∇_xL(θ + s u, x). No graph is kept."""
        directions = self._by_parameter(cotangents)
        if self._after is not None:
            with differentiable_kernels():
                gradient = torch.func.grad(self.loss)(self.params, self._point)
            directions = self._through_defenses(gradient, directions, adjoint=True, batched=False)

        def input_gradient(params: Tensors) -> Tensor:
            slope: Tensor = torch.func.grad(self.loss, argnums=1)(params, self._point)
            return slope

        out = cotangents.new_empty(cotangents.shape[0], self._point.numel())
        for place in range(cotangents.shape[0]):
            direction = {name: rows[place] for name, rows in zip(self.params, directions, strict=True)}
            with differentiable_kernels():
                out[place] = torch.func.jvp(input_gradient, (self.params,), (direction,))[1].detach()
        return out

    def _push(self, tangents: Tensor, batched: bool) -> Rows:
        graph = self._graph
        rows = _products((graph.input_gradient,), graph.leaves, (tangents,), batched)
        if self._after is None:
            return rows
        return self._through_defenses(self._gradient, rows, adjoint=False, batched=batched)

    def _pull(self, cotangents: Rows, batched: bool) -> Tensor:
        graph = self._graph
        if self._after is not None:
            cotangents = self._through_defenses(self._gradient, cotangents, adjoint=True, batched=batched)
        return _products(graph.gradient, (graph.point,), cotangents, batched)[0]

    def _through_defenses(self, gradient: Tensors, rows: Rows, *, adjoint: bool, batched: bool) -> Rows:
        """Rows times the derivative of the defenses at the gradient, or its adjoint."""
        after = self._after
        assert after is not None

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            direction = dict(zip(self.params, tensors, strict=True))
            if adjoint:
                moved = torch.func.vjp(after, gradient)[1](direction)[0]
            else:
                moved = torch.func.jvp(after, (gradient,), (direction,))[1]
            return tuple(moved[name] for name in self.params)

        if batched and len(rows[0]) > 1:
            return tuple(torch.func.vmap(one)(*rows))
        each = [one(*(entry[place] for entry in rows)) for place in range(len(rows[0]))]
        return tuple(torch.stack(entries) for entries in zip(*each, strict=True))

    def _by_parameter(self, flat: Tensor) -> Rows:
        """Rows (k, P) as one (k, *shape) a parameter."""
        pieces = torch.split(flat, [tensor.numel() for tensor in self.params.values()], dim=1)
        return tuple(
            piece.reshape(-1, *tensor.shape) for piece, tensor in zip(pieces, self.params.values(), strict=True)
        )

    @cached_property
    def _gradient(self) -> Tensors:
        return {name: entry.detach() for name, entry in zip(self.params, self._graph.gradient, strict=True)}

    @cached_property
    def _graph(self) -> _Graph:
        params, point = self._leaves()
        leaves = tuple(params.values())
        with differentiable_kernels(), torch.enable_grad():
            # Of a clone: a layer that works in place may not change a leaf.
            with AffineBatchNorm():
                loss = self.loss(params, point.clone())
            first = torch.autograd.grad(loss, (point, *leaves), create_graph=True, allow_unused=True)
        input_gradient, *gradient = (
            torch.zeros_like(leaf) if entry is None else entry
            for leaf, entry in zip((point, *leaves), first, strict=True)
        )
        return _Graph(point=point, leaves=leaves, input_gradient=input_gradient, gradient=tuple(gradient))

    def _leaves(self) -> tuple[Tensors, Tensor]:
        params = {name: tensor.detach().requires_grad_() for name, tensor in self.params.items()}
        return params, self._point.detach().requires_grad_()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Graph:
    """One evaluation of the loss with both first derivatives, differentiable once more."""

    point: Tensor
    leaves: Rows
    input_gradient: Tensor
    gradient: Rows


def _products(outputs: Rows, inputs: Rows, cotangents: Rows, batched: bool) -> Rows:
    """Σ cotangent · ∂output/∂input for each row of cotangents (k, *shape), as one (k, *shape) an input."""
    rows = len(cotangents[0])
    live = [place for place, output in enumerate(outputs) if output.requires_grad]
    if not live:
        return tuple(entry.new_zeros(rows, *entry.shape) for entry in inputs)

    def products(cotangents: Rows, is_batched: bool) -> Rows:
        found = torch.autograd.grad(
            [outputs[place] for place in live],
            inputs,
            [cotangents[place] for place in live],
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=is_batched,
        )
        lead = (rows,) if is_batched else ()
        return tuple(
            entry.new_zeros(*lead, *entry.shape) if product is None else product
            for entry, product in zip(inputs, found, strict=True)
        )

    if rows == 1:
        return tuple(product[None] for product in products(tuple(entry[0] for entry in cotangents), False))
    if batched:
        return products(cotangents, True)
    each = [products(tuple(entry[place] for entry in cotangents), False) for place in range(rows)]
    return tuple(torch.stack(entries) for entries in zip(*each, strict=True))
