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
from gradleak.results import InputError, UnsupportedError

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
    with pytest.raises(
        InputError,
        match="expected one of cross_entropy, mse, bce_with_logits, nll, causal_lm, masked_lm or a callable, got",
    ):
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
        (torch.rand(4, 2, 6, 6), LABELS[:, None], r"expected one class an example, \(4,\), got \(4, 1\)"),
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


SOME = torch.tensor([0, 255, 1, 255])


@pytest.mark.parametrize(
    ("loss", "targets", "same"),
    [
        ("cross_entropy", torch.tensor([0, -100, 1, -100]), F.cross_entropy),
        (F.cross_entropy, torch.tensor([0, -100, 1, -100]), F.cross_entropy),
        (nn.CrossEntropyLoss(ignore_index=255), SOME, partial(F.cross_entropy, ignore_index=255)),
        (nn.CrossEntropyLoss(ignore_index=2), LABELS, partial(F.cross_entropy, ignore_index=2)),
        (nn.CrossEntropyLoss(ignore_index=-1), torch.tensor([0, -1, 1, 2]), partial(F.cross_entropy, ignore_index=-1)),
        (nn.CrossEntropyLoss(ignore_index=255, reduction="sum"), torch.full((4,), 255), lambda *_: torch.tensor(0.0)),
        (
            nn.CrossEntropyLoss(ignore_index=255, label_smoothing=0.1),
            SOME,
            partial(F.cross_entropy, ignore_index=255, label_smoothing=0.1),
        ),
        (
            nn.CrossEntropyLoss(ignore_index=255, weight=torch.tensor([1.0, 2.0, 3.0])),
            SOME,
            partial(F.cross_entropy, ignore_index=255, weight=torch.tensor([1.0, 2.0, 3.0])),
        ),
        ("nll", torch.tensor([0, -100, 1, -100]), F.nll_loss),
        (nn.NLLLoss(ignore_index=255), SOME, partial(F.nll_loss, ignore_index=255)),
        (partial(F.cross_entropy, ignore_index=255), SOME, partial(F.cross_entropy, ignore_index=255)),
    ],
)
def test_ignored_targets_follow_the_rule_of_the_loss(loss: Any, targets: Tensor, same: Callable[..., Tensor]) -> None:
    objective = Objective.from_module(nn.Linear(8, 3), loss=loss)
    batch = Batch(ROWS.float(), targets)
    objective.check(batch)
    outputs = F.linear(ROWS.float(), *objective.params.values())
    torch.testing.assert_close(objective.loss(objective.params, batch), same(outputs, targets))


def test_other_targets_and_targets_that_nothing_counts_are_refused() -> None:
    objective = Objective.from_module(nn.Linear(8, 3), loss=nn.CrossEntropyLoss(ignore_index=255))
    for targets, message in (
        (torch.tensor([0, -100, 1, 2]), r"got values from -100 to 2; .* the index that the loss ignores \(255\)"),
        (torch.tensor([0, 254, 1, 255]), "got values from 0 to 254"),
        (torch.full((4,), 255), r"expected a finite number, got nan; check whether any target counts \(not 255, class"),
        (torch.eye(3)[LABELS], "expected class indices, since it ignores the index 255, got class probabilities"),
    ):
        with pytest.raises(InputError, match=message):
            objective.check(Batch(ROWS.float(), targets))
    pixels = torch.randint(0, 3, (4, 6, 6), generator=torch.Generator().manual_seed(0))
    pixels[0, :3] = 255
    segmentation = Objective.from_module(nn.Conv2d(2, 3, 1), loss=nn.CrossEntropyLoss(ignore_index=255))
    segmentation.check(Batch(IMAGES.float(), pixels))
    pixels[1, 2, 3] = -100
    with pytest.raises(InputError, match="got values from -100 to 2"):
        segmentation.check(Batch(IMAGES.float(), pixels))
    light = Objective.from_module(nn.Linear(8, 3), loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 0.0, 0.0])))
    with pytest.raises(
        InputError, match=r"got nan; check whether any target counts \(not -100, class weight above 0\)"
    ):
        light.check(Batch(ROWS[:1].float(), LABELS[1:2]))


def test_an_attack_may_search_class_probabilities_where_an_index_is_ignored() -> None:
    """Torch refuses probabilities beside an index of 0 or more, so that attacks on unknown labels failed."""
    weight = torch.tensor([1.0, 2.0, 3.0])
    settings: dict[str, Any] = {"weight": weight, "label_smoothing": 0.1, "reduction": "sum"}
    objective = Objective.from_module(nn.Linear(8, 3), loss=nn.CrossEntropyLoss(ignore_index=2, **settings))
    soft = torch.softmax(ROWS[:, :3].float(), dim=1)
    outputs = F.linear(ROWS.float(), *objective.params.values())
    expected = F.cross_entropy(outputs, soft, **settings)
    torch.testing.assert_close(objective.loss(objective.params, Batch(ROWS.float(), soft)), expected)
    torch.testing.assert_close(objective.loss_of_outputs(outputs, soft), expected)


@pytest.mark.parametrize(
    ("layers", "mode", "inputs", "where"),
    [
        ([nn.Linear(8, 4), nn.BatchNorm1d(4)], "train", ROWS[:1], r"in 1 \(BatchNorm1d\); .*two examples"),
        (
            [nn.Linear(8, 4), nn.Sequential(nn.BatchNorm1d(3))],
            "eval",
            ROWS,
            r"in 1\.0 \(BatchNorm1d\); check the number",
        ),
        ([nn.Unflatten(1, (8, 1)), nn.InstanceNorm1d(8, affine=True)], "train", ROWS, r"in 1 \(InstanceNorm1d\)"),
        ([nn.Conv2d(2, 3, 3), nn.Conv2d(4, 3, 3)], "eval", IMAGES, r"in 1 \(Conv2d\)"),
    ],
)
def test_the_layer_that_fails_is_named(layers: list[nn.Module], mode: str, inputs: Tensor, where: str) -> None:
    objective = Objective.from_module(nn.Sequential(*layers), mode=mode)
    with pytest.raises(InputError, match=where):
        objective.check(Batch(inputs.float(), LABELS[: len(inputs)]))
    shape = tuple(inputs.shape[1:])
    if mode == "eval":
        with pytest.raises(InputError, match=where.partition(";")[0]):
            objective.output_shape(Domain(shape=shape))


class Positions(nn.Module):
    """A learned place beside the input, by a sparse table or by a plain call."""

    def __init__(self, layer: Callable[..., nn.Module] | None = None) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 4), nn.Linear(4, 3)
        self.places = nn.Embedding(5, 4, sparse=True) if layer is None else layer(5, 4, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x) + self.places(torch.tensor([[1, 2]])).sum(dim=-2)))


@pytest.mark.parametrize("layer", [nn.Embedding, partial(nn.EmbeddingBag, mode="sum")])
def test_sparse_gradients_are_computed_as_dense_ones(layer: Callable[..., nn.Module]) -> None:
    model = Positions(layer)
    objective, batch = Objective.from_module(model), Batch(ROWS.float(), LABELS)
    assert "sparse gradients of places are computed as dense ones" in objective.notes
    assert model.places.sparse
    F.cross_entropy(model(batch.inputs), LABELS).backward()
    found = objective.gradient(objective.params, batch)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad.to_dense())


class Called(Positions):
    def forward(self, x: Tensor) -> Tensor:
        places = F.embedding(torch.tensor([1, 2]), self.places.weight, sparse=True).sum(dim=0)
        return self.head(torch.tanh(self.inner(x) + places))


def test_a_sparse_gradient_of_a_plain_call_is_refused_by_name() -> None:
    objective = Objective.from_module(Called())
    with pytest.raises(UnsupportedError, match=r"got a sparse one of places\.weight.*sparse=False"):
        objective.gradient(objective.params, Batch(ROWS.float(), LABELS))


def test_inference_mode_is_refused_at_once() -> None:
    objective, batch = Objective.from_module(conv()), Batch(IMAGES.float(), LABELS)
    with torch.inference_mode():
        for attempt in (objective.check, partial(objective.gradient, objective.params)):
            with pytest.raises(InputError, match=r"inference_mode\(\) is on.*leave that block first"):
                attempt(batch)
        made = conv()
    with torch.no_grad():
        gradient = objective.gradient(objective.params, batch)
    for name, tensor in objective.gradient(objective.params, batch).items():
        assert torch.equal(tensor, gradient[name])
    assert not any(tensor.is_inference() for tensor in Objective.from_module(made).params.values())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_scripted_layer_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="1: a TorchScript module has no double derivatives here"):
        Objective.from_module(nn.Sequential(nn.Linear(8, 3), torch.jit.script(nn.LayerNorm(3))))
