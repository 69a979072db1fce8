"""What an objective refuses, how it names its loss, and which layer it takes for the classifier."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Classifier, Domain, DomainKind, Objective
from gradleak.core.objective import LOSSES
from gradleak.results import InputError

LABELS = torch.tensor([0, 2, 1, 2])
IMAGES = torch.rand(4, 2, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
ROWS = IMAGES.flatten(1)[:, :8]


def conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, 3))


def mine(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets) * 2


def shadow(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.mean()


shadow.__qualname__ = "cross_entropy"


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        ("cross_entropy", "cross_entropy"),
        (F.cross_entropy, "cross_entropy"),
        (nn.CrossEntropyLoss(), "cross_entropy"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss(label_smoothing=0.1)"),
        (nn.CrossEntropyLoss(weight=torch.ones(3), reduction="sum"), "CrossEntropyLoss(weight=[3], reduction=sum)"),
        (F.mse_loss, "mse"),
        (nn.MSELoss(), "mse"),
        (nn.MSELoss(reduction="sum"), "MSELoss(reduction=sum)"),
        (nn.BCEWithLogitsLoss(), "bce_with_logits"),
        (nn.NLLLoss(), "nll"),
        (nn.NLLLoss(ignore_index=2), "NLLLoss(ignore_index=2)"),
        (nn.L1Loss(), "L1Loss()"),
        (mine, "mine"),
        (partial(F.cross_entropy, label_smoothing=0.1), "partial"),
        (shadow, f"{__name__}.cross_entropy"),
    ],
)
def test_a_loss_bears_a_built_in_name_only_if_it_is_that_loss(loss: Any, name: str) -> None:
    objective = Objective.from_module(nn.Linear(8, 3), loss=loss)
    assert objective.loss_name == name
    assert (name in LOSSES) == (objective._loss is LOSSES.get(name))
    targets = (
        ROWS[:, :3].clone()
        if name in ("mse", "bce_with_logits") or isinstance(loss, nn.MSELoss | nn.L1Loss)
        else LABELS
    )
    value = objective.to(torch.float64).loss({k: v.double() for k, v in objective.params.items()}, Batch(ROWS, targets))
    function = LOSSES[loss] if isinstance(loss, str) else loss
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    outputs = F.linear(ROWS, objective.params["weight"].double(), objective.params["bias"].double())
    torch.testing.assert_close(value, function(outputs, targets))


@pytest.mark.parametrize("loss", ["hinge", 3, None])
def test_an_unknown_loss_is_refused(loss: Any) -> None:
    with pytest.raises(InputError, match="expected one of cross_entropy, mse, bce_with_logits, nll or a callable, got"):
        Objective.from_module(conv(), loss=loss)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected a torch.nn.Module, got function"):
        Objective.from_module(mine)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected 'eval' or 'train', got 'test'"):
        Objective.from_module(conv(), mode="test")
    with pytest.raises(InputError, match="at least one parameter with requires_grad=True"):
        Objective.from_module(conv().requires_grad_(False))


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            torch.rand(4, 1, 6, 6),
            LABELS,
            r"shape \(4, 1, 6, 6\).*2 channels, but got 1 channels.*check the number of ch",
        ),
        (torch.rand(4, 2, 7, 7), LABELS, r"shapes cannot be multiplied.*size of an example"),
        (
            torch.rand(2, 6, 6)[None].repeat(4, 1, 1, 1),
            LABELS + 1,
            r"from 0 to 2 \(the model has 3 outputs\), got values from 1 to 3",
        ),
        (torch.rand(4, 2, 6, 6), LABELS - 1, "got values from -1 to 1"),
        ((torch.rand(4, 2, 6, 6) * 255).to(torch.uint8), LABELS, r"expected floating point numbers, got torch.uint8"),
        (torch.full((4, 2, 6, 6), math.nan), LABELS, "NaN or infinity in example 0"),
        (torch.full((4, 2, 6, 6), 3e38), LABELS, "expected a finite number, got inf"),
        (torch.rand(4, 2, 6, 6), torch.rand(4), r"fails on targets of shape \(4,\) and dtype torch.float32"),
        (torch.rand(4, 2, 6, 6), LABELS[:, None], r"fails on targets of shape \(4, 1\)"),
    ],
)
def test_bad_batches_get_one_clear_line(inputs: Tensor, targets: Tensor, message: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(48, 3))
    objective = Objective.from_module(model)
    with pytest.raises(InputError, match=message) as caught:
        objective.check(Batch(inputs, targets))
    assert "\n" not in str(caught.value)


def test_check_takes_what_is_right() -> None:
    Objective.from_module(conv()).check(Batch(IMAGES, LABELS))  # float64 data for a float32 model
    Objective.from_module(conv()).check(Batch(IMAGES.float(), torch.eye(3)[LABELS]))  # class probabilities
    segmentation = nn.Conv2d(2, 3, 1)
    pixels = torch.randint(0, 3, (4, 6, 6), generator=torch.Generator().manual_seed(0))
    pixels[0] = -100  # the index that cross entropy ignores
    Objective.from_module(segmentation).check(Batch(IMAGES.float(), pixels))
    pixels[1, 2, 3] = 3
    with pytest.raises(InputError, match="got values from 0 to 3"):
        Objective.from_module(segmentation).check(Batch(IMAGES.float(), pixels))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            nn.CrossEntropyLoss(reduction="none"),
            r"expected a scalar floating point tensor, got torch.float32 of shape \(4,\)",
        ),
        (lambda outputs, targets: F.cross_entropy(outputs, targets)[None], r"got torch.float32 of shape \(1,\)"),
        (lambda outputs, targets: 0.5, "got float"),
        (lambda outputs, targets: outputs["logits"], "fails on targets"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), None),
    ],
)
def test_a_loss_must_be_a_scalar(loss: Any, message: str | None) -> None:
    objective = Objective.from_module(conv(), loss=loss)
    if message is None:
        objective.check(Batch(IMAGES.float(), LABELS))
        with pytest.raises(InputError, match="from 0 to 2"):
            objective.check(Batch(IMAGES.float(), LABELS + 1))
    else:
        with pytest.raises(InputError, match=message):
            objective.check(Batch(IMAGES.float(), LABELS))


def test_one_example_in_train_mode_with_batch_norm_names_the_cause() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    objective = Objective.from_module(model, mode="train")
    with pytest.raises(InputError, match="BatchNorm in train mode"):
        objective.check(Batch(ROWS[:1].float(), LABELS[:1]))
    found = objective.classifier(Domain(shape=(8,), kind=DomainKind.TABULAR))
    assert found == Classifier(weight="2.weight", bias="2.bias", classes=3)


class Head(nn.Module):
    def __init__(self, after: Callable[[Tensor], Tensor] = lambda x: x, *, bias: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3, bias=bias)  # first in module order, last in the computation
        self.body = nn.Linear(8, 4)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.head(torch.tanh(self.body(x))))


def frozen_head() -> nn.Module:
    model = Head()
    model.head.requires_grad_(False)
    return model


def frozen_weight() -> nn.Module:
    model = Head()
    model.head.weight.requires_grad_(False)
    return model


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)))


def normed_head() -> nn.Module:
    model = Head()
    nn.utils.parametrizations.weight_norm(model.head)
    return model


def sequential(*after: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3), *after)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (Head, Classifier(weight="head.weight", bias="head.bias", classes=3)),
        (lambda: Head(bias=False), Classifier(weight="head.weight", bias=None, classes=3)),
        (frozen_head, Classifier(weight=None, bias=None, classes=3)),
        (frozen_weight, Classifier(weight=None, bias="head.bias", classes=3)),
        (normed_head, Classifier(weight=None, bias="head.bias", classes=3)),
        (TiedHead, Classifier(weight="inner.weight", bias="head.bias", classes=8)),
        (sequential(), Classifier(weight="2.weight", bias="2.bias", classes=3)),
        (sequential(nn.Dropout(0.5)), Classifier(weight="2.weight", bias="2.bias", classes=3)),
        (sequential(nn.Identity()), Classifier(weight="2.weight", bias="2.bias", classes=3)),
        (sequential(nn.LogSoftmax(dim=1)), None),
        (sequential(nn.ReLU(inplace=True)), None),
        (lambda: Head(lambda x: x / 2.0), None),
        (lambda: Head(lambda x: x.mul_(2.0)), None),
        (lambda: Head(lambda x: (x, x)), None),  # type: ignore[arg-type, return-value]
    ],
)
def test_the_classifier_is_the_layer_whose_result_is_returned(
    build: Callable[[], nn.Module], expected: Classifier | None
) -> None:
    objective = Objective.from_module(build())
    assert objective.classifier(Domain(shape=(8,), kind=DomainKind.TABULAR)) == expected


def test_a_domain_that_does_not_fit_is_refused() -> None:
    objective = Objective.from_module(sequential()())
    assert objective.output_shape(Domain(shape=(8,))) == (3,)
    for ask in (objective.classifier, objective.output_shape):
        with pytest.raises(
            InputError, match=r"does not accept an example of shape \(9,\).*check the shape of the domain"
        ):
            ask(Domain(shape=(9,)))
