"""Target of one example, from the classifier's whole gradient: is the label as hard as the attacker takes it to be?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.labels.reading import Head

# Confidence of a label under the assumption of hard labels, where the update cannot show that they are.
UNCHECKED = 0.9
# By so much a smoothed target of the label exceeds the others where it is clear.
_CLEAR = 0.5
# Standard deviations that a conclusion has to stand away from, and what it may be off besides: at one gradient by
# round-off, over local steps, on whose way probabilities move, by more.
_SIGMAS, _ROUNDED, _MOVED = 4.0, 1e-3, 0.02


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The target T of one example as far as an update shows it, v = s(p − T) at the logits.

    Attributes:
        label: the class; None where the update does not show it.
        share: its part of a smoothed target; None for a hard one.
        unclear: whether a hard label at another scale and a smoothed one at the stated scale explain the update, and name
            two classes.
    """

    label: int | None = None
    share: float | None = None
    unclear: bool = False


def seen_target(head: Head, bias: Tensor | None, weight: Tensor | None, *, scaled: bool, at_once: bool) -> Seen:
    """The target behind the gradient of one example: hard at whatever scale, or smoothed at the stated one.

    With ∂L/∂b = v and ∂L/∂W = v hᵀ the input h of the layer is known, hence its probabilities p. A hard label y leaves
    v = s(p − onehot(y)): the entries of other classes go with p, and s does not matter (a loss that was summed, halved or
    scaled). A label that was smoothed by ε leaves p − v with other entries that are equal, ε/c. What ∂L/∂W is off from
    such a product (noise, pruning, local steps) tells how far either can be off. Of two classes any v fits a hard label
    at some scale, so that only the stated scale tells.

    Args:
        head: the layer.
        bias: ∂L/∂b (c,), divided by the known factor of the update, or None.
        weight: ∂L/∂W (c, d), the same, or None.
        scaled: whether that factor is known.
        at_once: whether the update is one gradient, and no sum over local steps.

    Returns:
        What is seen; nothing where the update is too far from one example's gradient, or has no bias gradient.
    """
    square = 0.0 if bias is None else float(bias.square().sum())
    if bias is None or weight is None or square == 0:
        return Seen()
    features = weight.T @ bias / square
    rest = float((weight - torch.outer(bias, features)).square().mean().sqrt())
    p = torch.softmax(head.weight @ features + head.bias, dim=0)
    size = float(bias.abs().max())
    # Noise of the size of what is left over, on the inputs and so on the probabilities, and on the bias gradient itself.
    noise = float(head.weight.norm(dim=1).max()) * (1 + float(features.norm())) / 2 * rest / math.sqrt(square)
    off = _SIGMAS * (noise + rest / size) + (_ROUNDED if at_once else _MOVED)
    if not off <= _CLEAR / 2:
        return Seen()
    hard = _hard(p, bias, off)
    if not scaled:
        return Seen(label=hard if len(p) > 2 else None)
    target = p - bias
    label = int(target.argmax())
    others = torch.cat([target[:label], target[label + 1 :]])
    # Beside the size of the gradient: a small one, at another scale than stated, leaves the target next to p.
    off = _SIGMAS * (noise + rest) + (_ROUNDED if at_once else _MOVED) * size
    smooth = off < size / 4 and float((others - others.mean()).abs().max()) <= off and float(others.min()) >= -off
    smooth = smooth and float(target[label] - others.mean()) >= _CLEAR + off
    if smooth and hard not in (None, label):
        return Seen(unclear=True)
    if hard is not None and (len(p) > 2 or smooth):
        return Seen(label=hard)
    return Seen(label=label, share=float(target[label])) if smooth else Seen()


def _hard(p: Tensor, bias: Tensor, off: float) -> int | None:
    """The label y where v is a positive multiple of p − onehot(y), or None."""
    label = int(bias.argmin())
    size = -float(bias[label]) / max(1 - float(p[label]), 1e-12)
    wrong = (bias - size * p).index_fill(0, torch.tensor([label]), 0.0).abs().max()
    return label if size > 0 and float(wrong) <= min(off, 0.1) * size else None
