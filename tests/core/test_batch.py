from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.core import Batch, Domain
from gradleak.results import InputError

IMAGES = torch.rand(3, 1, 4, 4)
LABELS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        ([[1.0]], LABELS, "expected torch tensors, got list and Tensor; convert with torch.as_tensor"),
        (IMAGES[:0], LABELS[:0], r"at least one example, got \(0, 1, 4, 4\)"),
        (torch.rand(16), LABELS, r"a single example needs a leading axis: inputs\[None\]"),
        (IMAGES[0], LABELS[0], r"needs a leading axis on both: inputs\[None\], targets\[None\]"),
        (IMAGES, LABELS[:2], r"expected 3 rows like inputs, got \(2,\)"),
    ],
)
def test_wrong_shapes_are_refused_with_a_remedy(inputs: Any, targets: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Batch(inputs, targets)


def test_the_domain_and_the_sensitive_variable_must_fit() -> None:
    with pytest.raises(InputError, match=r"expected \(b, 3, 4, 4\) from the domain, got \(3, 1, 4, 4\)"):
        Batch(IMAGES, LABELS, Domain.image(channels=3, height=4, width=4))
    for wrong in (torch.zeros(2), torch.tensor(1)):
        with pytest.raises(InputError, match=r"Batch.sensitive: expected 3 rows"):
            Batch(IMAGES, LABELS, sensitive=wrong)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_named_by_example(bad: float) -> None:
    inputs = IMAGES.clone()
    inputs[1, 0, 2, 3] = bad
    with pytest.raises(InputError, match=r"Batch.inputs: expected finite numbers, got NaN or infinity in example 1"):
        Batch(inputs, LABELS).validate()
    targets = torch.tensor([0.0, 1.0, bad])
    with pytest.raises(InputError, match=r"Batch.targets: .* in example 2"):
        Batch(IMAGES, targets).validate()
    batch = Batch(IMAGES, LABELS)
    assert batch.validate() is batch


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_integer_images_are_refused_and_never_cast_in_silence(dtype: torch.dtype) -> None:
    batch = Batch((IMAGES * 255).to(dtype), LABELS)
    assert batch.to(torch.float64).inputs.dtype == dtype
    with pytest.raises(InputError, match=r"expected floating point numbers, got torch\.\w+; scale images with"):
        batch.to(torch.float64).validate()


def test_parts_and_casts_keep_everything_else() -> None:
    domain = Domain.image(channels=1, height=4, width=4)
    batch = Batch(IMAGES, LABELS, domain, sensitive=torch.tensor([1, 0, 1]))
    one = batch.example(1)
    assert one.size == 1
    assert torch.equal(one.inputs, IMAGES[1:2])
    assert torch.equal(one.targets, LABELS[1:2])
    assert one.sensitive is not None
    assert torch.equal(one.sensitive, torch.tensor([0]))
    assert one.domain is domain
    for outside in (3, -1):
        with pytest.raises(InputError, match="expected an index from 0 to 2"):
            batch.example(outside)
    double = batch.to(torch.float64)
    assert double.inputs.dtype == torch.float64
    assert double.targets.dtype == torch.int64
    assert Batch(IMAGES, torch.rand(3)).to(torch.float64).targets.dtype == torch.float64
    other = batch.with_inputs(IMAGES + 1)
    assert torch.equal(other.inputs, IMAGES + 1)
    assert other.targets is batch.targets


def test_the_printed_form_holds_no_data() -> None:
    batch = Batch(torch.full((1, 2), 0.123), torch.tensor([7]), sensitive=torch.tensor([5]))
    assert repr(batch) == "Batch(inputs (1, 2) float32, targets (1,) int64, sensitive (1,) int64)"


def test_a_batch_can_be_built_under_transforms() -> None:
    def total(inputs: Tensor) -> Tensor:
        return Batch(inputs, LABELS).inputs.sum()

    assert torch.equal(torch.func.vmap(torch.func.grad(total))(torch.rand(2, 3, 5)), torch.ones(2, 3, 5))
