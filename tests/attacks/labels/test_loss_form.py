"""The form of a loss against what torch says its gradient is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.attacks.labels.label_attack import LossForm, Reduction, Unreadable, loss_form
from gradleak.core import Objective

CLASSES = 5
WEIGHTS = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])


class MyLoss(nn.Module):
    """Cross entropy by another name."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (torch.logsumexp(logits, dim=1) - logits.gather(1, labels[:, None])[:, 0]).mean()


def _form(loss) -> LossForm | Unreadable:
    objective = Objective.from_module(nn.utils.skip_init(nn.Linear, 3, CLASSES), loss=loss)
    return loss_form(objective, CLASSES, log_softmax=False)


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        ("cross_entropy", Reduction.MEAN),
        (nn.CrossEntropyLoss(label_smoothing=0.2), Reduction.MEAN),
        (nn.CrossEntropyLoss(weight=WEIGHTS), Reduction.MEAN),
        (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), Reduction.MEAN),
        (nn.CrossEntropyLoss(reduction="sum"), Reduction.SUM),
        (nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"), Reduction.SUM),
        (MyLoss(), Reduction.MEAN),
        (lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.3), Reduction.MEAN),
        (nn.MultiMarginLoss(), None),
        ("mse", None),
        ("bce_with_logits", None),
        (lambda logits, labels: ((1 - torch.softmax(logits, 1).gather(1, labels[:, None])) ** 2).mean(), None),
        (lambda outputs, labels: F.cross_entropy(outputs["logits"], labels), None),
        (nn.CrossEntropyLoss(ignore_index=2), None),
        (lambda logits, labels: 3 * F.cross_entropy(logits, labels), Reduction.MEAN),
    ],
    ids=lambda value: "" if value is None else str(value).split(" at 0x")[0][:40],
)
def test_the_form_gives_the_gradient_of_any_batch(loss, reduction: Reduction | None) -> None:
    form = _form(loss)
    if reduction is None:
        assert isinstance(form, Unreadable)
        assert "the loss" in form.reason
        return
    assert isinstance(form, LossForm)
    assert form.reduction is reduction
    function = F.cross_entropy if loss == "cross_entropy" else loss
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, CLASSES, generator=generator).requires_grad_()
    labels = torch.tensor([0, 0, 3, 1, 4, 4, 2])
    (expected,) = torch.autograd.grad(function(logits, labels), logits)
    p = torch.softmax(logits.detach().double(), dim=1)
    rows = (form.factors[labels, None] * p - form.targets.T[labels]) * form.weights[labels, None]
    total = 1.0 if reduction is Reduction.SUM else form.weights[labels].sum()
    torch.testing.assert_close((rows / total).float(), expected, atol=2e-5, rtol=1e-4)


def test_a_smoothed_loss_is_not_one_hot_and_a_plain_one_is() -> None:
    assert _form("cross_entropy").one_hot
    smoothed = _form(nn.CrossEntropyLoss(label_smoothing=0.2))
    assert not smoothed.one_hot
    torch.testing.assert_close(smoothed.elsewhere, torch.full((CLASSES,), 0.04, dtype=torch.float64), atol=1e-5, rtol=0)
    assert _form(nn.CrossEntropyLoss(weight=WEIGHTS)).weighted
    assert not _form(nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum")).weighted
