"""The private data behind an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.core.domain import Domain
from gradleak.core.vocabulary import Vocabulary
from gradleak.results import InputError

NO_TOKEN = -1
"""In place of the id where there is no token: padding that a mask hides, and places that a claim leaves open."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs and targets of one client step, with their domain; the truth that an audit is about.

    Only shapes are checked on construction, so that a batch can be built under `torch.func` transforms; `validate`
    checks the values too.

    Attributes:
        inputs: (b, *shape) in model-input units; for tokens ids (b, T), whole numbers, with -1 where there is no token: the
            places that an attention mask hides. A model that takes no mask gets its padding id like any other token.
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

    def __repr__(self) -> str:
        """One line: shapes, types and the kind of data; not the numbers."""
        told = [f"{name} {tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for name, one in self._parts()]
        return f"Batch({', '.join([*told, *([] if self.domain is None else [str(self.domain.kind.value)])])})"

    def _parts(self) -> Iterator[tuple[str, Tensor]]:
        yield "inputs", self.inputs
        yield "targets", self.targets
        if self.sensitive is not None:
            yield "sensitive", self.sensitive

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

    @classmethod
    def from_encoding(
        cls, encoding: Mapping[str, Tensor], targets: Tensor | None = None, *, vocabulary: Vocabulary | None = None
    ) -> Batch:
        """The batch of a tokenizer's output: a dict with `input_ids`, and `attention_mask` where there is padding.

        Args:
            encoding: of tensors (b, T), as a Hugging Face tokenizer returns with `return_tensors="pt"`. `labels` in it are
                the targets where no others are given; `token_type_ids` have to be 0 throughout.
            targets: as the loss takes them: classes (b,), or ids (b, T) with -100 where none counts. None without `labels`
                stands for the ids themselves, as causal language models have it.
            vocabulary: of the model; None leaves the domain open.

        Raises:
            InputError: if `input_ids` are missing, sizes disagree, or there is an input of another kind.
        """
        known = ("input_ids", "attention_mask", "token_type_ids", "labels")
        parts = {key: torch.as_tensor(value) for key, value in dict(encoding).items() if value is not None}
        further = [
            key for key, value in parts.items() if key not in known or (key == "token_type_ids" and bool(value.any()))
        ]
        if "input_ids" not in parts or further:
            got = (
                f"{further[0]} that say something"
                if further and "input_ids" in parts
                else ", ".join(parts) or "nothing"
            )
            hint = "wrap the model in a module whose forward(input_ids, attention_mask) makes its further inputs"
            if "pixel_values" in parts:
                hint = "images are a pair, (encoding['pixel_values'], labels)"
            raise InputError(
                f"Batch.from_encoding: expected input_ids with an attention_mask and nothing else, got {got}; {hint}"
            )
        ids = parts["input_ids"].to(torch.int64)
        if not bool((ids == parts["input_ids"]).all()):
            raise InputError(
                "Batch.from_encoding: expected whole numbers in input_ids, got fractions; pass embeddings as inputs of "
                "objective.at_embeddings()"
            )
        mask = parts.get("attention_mask", torch.ones_like(ids))
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise InputError(
                "Batch.from_encoding: expected an attention_mask of 1 for a token and 0 for padding, got other values, as in "
                "a mask that is added to scores; pass mask == 0 for that one"
            )
        if ids.dim() != 2 or mask.shape != ids.shape:
            raise InputError(
                f"Batch.from_encoding: expected input_ids (b, T) and a mask like it, got {tuple(ids.shape)} and "
                f"{tuple(mask.shape)}; use padding=True, return_tensors='pt'"
            )
        inputs = torch.where(mask != 0, ids, torch.full_like(ids, NO_TOKEN))
        targets = parts.get("labels") if targets is None else torch.as_tensor(targets)
        targets = torch.where(mask != 0, ids, torch.full_like(ids, -100)) if targets is None else targets
        return cls(inputs, targets, None if vocabulary is None else Domain.tokens(vocabulary, ids.shape[1]))

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each sentence (b,), padding at its end left out; a truth, for scoring alone.

        Raises:
            InputError: if the examples are no tokens.
        """
        vocabulary = self.declared_domain().vocabulary
        if vocabulary is None:
            raise InputError("batch.lengths: expected ids of tokens, got examples of another kind")
        padding = NO_TOKEN if vocabulary.padding is None else vocabulary.padding
        there = (self.inputs >= 0) & (self.inputs != padding)
        places = torch.arange(1, self.inputs.shape[1] + 1, device=self.inputs.device)
        return (there * places).amax(dim=1)

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
        if self.domain is not None and self.domain.vocabulary is not None:
            self._check_ids(self.domain.vocabulary)
        elif not self.inputs.is_floating_point():
            hint = "scale images with inputs.float() / 255 and state the domain"
            if self.inputs.dim() == 2 and self.inputs.dtype is not torch.uint8:
                hint = (
                    "ids of tokens need a domain, Batch(ids, targets, Domain.tokens(vocabulary, length)), and columns of a table "
                    "inputs.float()"
                )
            raise InputError(f"Batch.inputs: expected floating point numbers, got {self.inputs.dtype}; {hint}")
        return self

    def _check_ids(self, vocabulary: Vocabulary) -> None:
        empty = (self.inputs == NO_TOKEN).all(dim=1).nonzero()[:, 0].tolist()
        if empty:
            raise InputError(
                f"Batch.inputs: expected at least one token in every sentence, got none in example {empty[0]} (all -1: padding "
                "that a mask hides); leave it out"
            )
        low, high = int(self.inputs.min()), int(self.inputs.max())
        if low < NO_TOKEN or high >= vocabulary.size:
            raise InputError(
                f"Batch.inputs: expected ids from 0 to {vocabulary.size - 1} (the vocabulary), or -1 for no token, got values "
                f"from {low} to {high}; use the tokenizer of the model, or state the right vocabulary"
            )

    def example(self, index: int) -> Batch:
        """The batch that holds only example `index`, from 0.

        Raises:
            InputError: if there is no such example.
        """
        if not 0 <= index < self.size:
            raise InputError(f"Batch.example: expected an index from 0 to {self.size - 1}, got {index}")
        return self.rows(slice(index, index + 1))

    def rows(self, places: slice | Tensor) -> Batch:
        """The batch of the examples at these places, in their order."""
        sensitive = None if self.sensitive is None else self.sensitive[places]
        return Batch(self.inputs[places], self.targets[places], self.domain, sensitive)

    def with_inputs(self, inputs: Tensor) -> Batch:
        """A copy with other inputs of the same shape."""
        return replace(self, inputs=inputs)

    def to(self, dtype: torch.dtype) -> Batch:
        """A copy with floating point tensors in another dtype; integers stay."""
        inputs = self.inputs.to(dtype) if self.inputs.is_floating_point() else self.inputs
        targets = self.targets.to(dtype) if self.targets.is_floating_point() else self.targets
        return replace(self, inputs=inputs, targets=targets)
