"""Target of one example, from the classifier's whole gradient: is the label as hard as the attacker takes it to be?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.labels.head import Head

# Confidence of a label under the assumption of hard labels, where the update cannot show that they are.
UNCHECKED = 0.9
# By so much the target of the label exceeds the next one where it is clear: smoothing and mixing leave it less.
_CLEAR = 0.5
# Standard deviations of a target that a conclusion has to stand away from.
_SIGMAS = 4.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The target T of one example as far as an update shows it, v = p − T at the logits.

    Attributes:
        label: its largest entry; None where the update does not show it.
        share: that entry, 1 for a hard label; None where the scale of the update is hidden.
        soft: whether no entry stands out: labels are mixed or soft.
    """

    label: int | None = None
    share: float | None = None
    soft: bool = False


def seen_target(head: Head, bias: Tensor | None, weight: Tensor | None, *, scaled: bool) -> Seen:
    """The target behind the gradient of one example, whatever smoothing is in it.

    With ∂L/∂b = v and ∂L/∂W = v hᵀ the input h of the layer is known, hence its probabilities p, hence T = p − v: no
    loss has to be assumed for it but cross entropy with some target. What ∂L/∂W is off from such a product (noise,
    pruning, local steps) tells how far T can be off. Where the scale of the update is hidden, a hard label is held
    against it: v has to be a multiple of p − onehot. Without a bias gradient nothing is seen.

    Args:
        head: the layer.
        bias: ∂L/∂b (c,), divided by the known factor of the update, or None.
        weight: ∂L/∂W (c, d), the same, or None.
        scaled: whether that factor is known.

    Returns:
        What is seen; without label where the update is too far from one example's gradient, or shows too little.
    """
    square = 0.0 if bias is None else float(bias.square().sum())
    if bias is None or weight is None or square == 0:
        return Seen()
    features = weight.T @ bias / square
    rest = float((weight - torch.outer(bias, features)).square().mean().sqrt())
    p = torch.softmax(head.weight @ features + head.bias, dim=0)
    # Noise of the size of what is left over, on the inputs and so on the logits, and on the bias gradient itself.
    off = float(head.weight.norm(dim=1).max()) * rest / math.sqrt(square)
    off = (off * (1 + float(features.norm())) / 2 + rest) * _SIGMAS
    if not math.isfinite(off) or off > _CLEAR / 2:
        return Seen()
    if scaled:
        return _read(p - bias, off)
    return _of_hidden_scale(p, bias, off)


def _read(target: Tensor, off: float) -> Seen:
    first, second = target.topk(2).values.tolist()
    if first - second - off < _CLEAR:
        return Seen(soft=first - second + off < _CLEAR)
    return Seen(label=int(target.argmax()), share=first)


def _of_hidden_scale(p: Tensor, bias: Tensor, off: float) -> Seen:
    """The label y where v is a multiple of p − onehot(y); two classes fit any, so that they show nothing."""
    label = int(bias.argmin())
    size = -float(bias[label]) / max(1 - float(p[label]), 1e-12)
    wrong = (bias - size * p).index_fill(0, torch.tensor([label]), 0.0).abs().max()
    return Seen(label=label) if len(p) > 2 and float(wrong) <= min(0.02 + off, 0.1) * size else Seen()
