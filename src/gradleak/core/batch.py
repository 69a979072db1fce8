"""The private data behind an update."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.core.domain import Domain
from gradleak.results import InputError


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs and targets of one client step, with their domain; the truth that an audit is about.

    Only shapes are checked on construction, so that a batch can be built under `torch.func` transforms; `validate`
    checks the values too.

    Attributes:
        inputs: (b, *shape) in model-input units.
        targets: class indices (b,), class probabilities (b, c), or regression targets (b, ...).
        domain: shape, range and normalization of an example, or None for unknown.
        sensitive: the sensitive variable of each example, (b,), for inference games, or None.

    Raises:
        InputError: for an empty batch or sizes that disagree.
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    domain: Domain | None = None
    sensitive: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the shapes."""
        if not isinstance(self.inputs, Tensor) or not isinstance(self.targets, Tensor):
            raise InputError(
                f"Batch: expected torch tensors, got {type(self.inputs).__name__} and {type(self.targets).__name__}; "
                "convert with torch.as_tensor"
            )
        if self.inputs.dim() < 2 or self.inputs.shape[0] == 0:
            raise InputError(
                f"Batch.inputs: expected (b, ...) with at least one example, got {tuple(self.inputs.shape)}; "
                "a single example needs a leading axis: inputs[None]"
            )
        if self.targets.dim() == 0 or self.targets.shape[0] != self.inputs.shape[0]:
            raise InputError(
                f"Batch.targets: expected {self.inputs.shape[0]} rows like inputs, got {tuple(self.targets.shape)}; "
                "a single example needs a leading axis on both: inputs[None], targets[None]"
            )
        if self.sensitive is not None and self.sensitive.shape[:1] != self.inputs.shape[:1]:
            raise InputError(
                f"Batch.sensitive: expected {self.inputs.shape[0]} rows, got {tuple(self.sensitive.shape)}; "
                "pass one value of the sensitive variable an example"
            )
        if self.domain is not None:
            self.domain.check(self.inputs)

    @property
    def size(self) -> int:
        """The number of examples, b."""
        return int(self.inputs.shape[0])

    def declared_domain(self) -> Domain:
        """The domain of this batch, for whoever states errors in pixels.

        Raises:
            InputError: if there is none.
        """
        if self.domain is None:
            raise InputError(
                "batch.domain: expected a declared domain (shape, range, normalization), got None; errors in pixels "
                "mean nothing without it. Pass Batch(..., domain=Domain.image(...)), or Domain.guess(inputs) and say so"
            )
        return self.domain

    def validate(self) -> Batch:
        """This batch, after checking that its values are finite.

        Raises:
            InputError: naming the first example with a NaN or infinite value.
        """
        for name, tensor in (("inputs", self.inputs), ("targets", self.targets)):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                rows = (~torch.isfinite(tensor.reshape(self.size, -1))).any(dim=1).nonzero()
                raise InputError(
                    f"Batch.{name}: expected finite numbers, got NaN or infinity in example {int(rows[0])}; "
                    "clean the data first"
                )
        if not self.inputs.is_floating_point():
            raise InputError(
                f"Batch.inputs: expected floating point numbers, got {self.inputs.dtype}; "
                "scale images with inputs.float() / 255 and state the domain"
            )
        return self

    def example(self, index: int) -> Batch:
        """The batch that holds only example `index`, from 0.

        Raises:
            InputError: if there is no such example.
        """
        if not 0 <= index < self.size:
            raise InputError(f"Batch.example: expected an index from 0 to {self.size - 1}, got {index}")
        place = slice(index, index + 1)
        sensitive = None if self.sensitive is None else self.sensitive[place]
        return Batch(self.inputs[place], self.targets[place], self.domain, sensitive)

    def with_inputs(self, inputs: Tensor) -> Batch:
        """A copy with other inputs of the same shape."""
        return replace(self, inputs=inputs)

    def to(self, dtype: torch.dtype) -> Batch:
        """A copy with floating point tensors in another dtype; integers stay (`validate` refuses integer inputs)."""
        inputs = self.inputs.to(dtype) if self.inputs.is_floating_point() else self.inputs
        targets = self.targets.to(dtype) if self.targets.is_floating_point() else self.targets
        return replace(self, inputs=inputs, targets=targets)
