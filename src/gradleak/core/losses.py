"""Losses by name, how a loss is named in a record, and which targets it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core.module_copy import Origins, private_copy
from gradleak.results import InputError

Loss = Callable[[Any, Tensor], Tensor]


def _mean_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Value of `F.mse_loss`; torch has no forward derivative of that one's backward."""
    return (outputs - targets).square().mean()


def _masked_lm(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of the logits (b, T, V) at the places whose target is not -100, or whose probabilities are not all 0."""
    if not targets.is_floating_point():
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), reduction="sum") / targets.sum()


def _causal_lm(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same for the next token: the logits of a place are held against the target of the one behind it."""
    return _masked_lm(outputs[:, :-1], targets[:, 1:])


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "mse": _mean_squared_error,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "nll": F.nll_loss,
    "causal_lm": _causal_lm,
    "masked_lm": _masked_lm,
}


# Names of losses whose targets are numbers, one an output: of `LOSSES`, or beginnings of those of torch's modules.
_SQUARED_ERROR = ("mse", "MSELoss(")
_BINARY = ("bce_with_logits", "BCEWithLogitsLoss(", "BCELoss(")


def is_squared_error(name: str) -> bool:
    """True if an objective's loss is the squared error: the loss by name, or torch's module, whatever its settings."""
    return name == _SQUARED_ERROR[0] or name.startswith(_SQUARED_ERROR[1:])


def is_binary_cross_entropy(name: str) -> bool:
    """True if an objective's loss is binary cross entropy: the loss by name, or torch's modules, whatever their settings."""
    return name == _BINARY[0] or name.startswith(_BINARY[1:])


NEXT_WORD, MASKED_WORD = LANGUAGE = ("causal_lm", "masked_lm")
"""The losses of language models, whose targets are ids of tokens."""


def named_loss(loss: str | Loss) -> tuple[str, Loss, Origins]:
    """The name of a loss for the record, the function, and what a copy was made from.

    A name of `LOSSES` only for that very loss; modules are copied.
    """
    if isinstance(loss, str):
        return loss, LOSSES[loss], Origins()
    for name, function in LOSSES.items():
        if loss is function or _is_default(loss, name):
            return name, function, Origins()
    if isinstance(loss, nn.Module):
        private, _, origins = private_copy(loss, "loss")
        return _settings(loss), private.requires_grad_(False), origins
    name = getattr(loss, "__qualname__", type(loss).__qualname__)
    return (f"{loss.__module__}.{name}" if name in LOSSES else name), loss, Origins()


def ignored_index(name: str, loss: Loss) -> int | None:
    """The class index whose examples the loss leaves out, or None for a loss that takes no class indices."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index
    return -100 if name in ("cross_entropy", "nll", *LANGUAGE) else None


def check_classes(name: str, loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Refuse classes that the model does not have, and class probabilities for a loss that ignores a class index.

    Raises:
        InputError: naming the smallest and largest target that counts.
    """
    ignored = ignored_index(name, loss)
    if ignored is None:
        return
    if name in LANGUAGE and outputs.dim() != 3:
        raise InputError(
            f"loss {name!r}: expected a model with logits (b, T, V), one row a place, got outputs {tuple(outputs.shape)}, as a "
            "classifier of sentences has them; pass loss='cross_entropy' with one class a sentence, or a model with a head for "
            "words"
        )
    if targets.is_floating_point():
        if ignored >= 0:
            raise InputError(
                f"loss {name!r}: expected class indices, since it ignores the index {ignored}, got class probabilities; "
                "leave ignore_index out"
            )
        return
    if targets.dim() == 2 and name not in LANGUAGE:
        shapes = f"targets: for the loss {name!r} and outputs {tuple(outputs.shape)}"
        if outputs.dim() == 2:
            raise InputError(
                f"{shapes} expected one class an example, ({len(outputs)},), got {tuple(targets.shape)}; pass the labels, beside "
                "a tokenizer's encoding as (encoding, labels), since its ids stand for labels that it does not have"
            )
        if outputs.dim() == 3 and targets.shape == outputs.shape[:2] != outputs.shape[::2]:
            raise InputError(
                f"{shapes} expected {tuple(outputs.shape[::2])}, got {tuple(targets.shape)}, one a place; pass loss='causal_lm' "
                "or loss='masked_lm' for a language model"
            )
    counted = targets[targets != ignored]
    classes = outputs.shape[-1] if name in LANGUAGE or outputs.dim() < 2 else outputs.shape[1]
    if name in LANGUAGE and tuple(targets.shape) != tuple(outputs.shape[:-1]):
        raise InputError(
            f"targets: expected ids {tuple(outputs.shape[:-1])}, one a place (-100 where none counts), for the loss {name!r} and "
            f"logits {tuple(outputs.shape)}, got {tuple(targets.shape)}"
            + ("; classes of sentences go with loss='cross_entropy'" if targets.dim() == 1 else "")
        )
    low, high = (int(counted.min()), int(counted.max())) if counted.numel() else (0, 0)
    if low < 0 or high >= classes:
        raise InputError(
            f"targets: expected class indices from 0 to {classes - 1} (the model has {classes} outputs), got values from "
            f"{low} to {high}; check the labels or the number of outputs, or the index that the loss ignores ({ignored})"
        )


def evaluated(loss: Loss, outputs: Any, targets: Tensor) -> Tensor:
    """The loss of what a model returned.

    Class probabilities, which attacks search where labels are unknown, have no index to leave out, and torch refuses a module
    that states one of 0 or more for them.
    """
    if isinstance(loss, nn.CrossEntropyLoss) and loss.ignore_index >= 0 and targets.is_floating_point():
        return F.cross_entropy(
            outputs, targets, weight=loss.weight, reduction=loss.reduction, label_smoothing=loss.label_smoothing
        )
    return loss(outputs, targets)


def _is_default(loss: Loss, name: str) -> bool:
    """True if `loss` is torch's own of this name, a module with the settings that `LOSSES` has."""
    if name == "mse" and loss is F.mse_loss:
        return True
    kinds: Mapping[str, type[nn.Module]] = {
        "cross_entropy": nn.CrossEntropyLoss,
        "mse": nn.MSELoss,
        "bce_with_logits": nn.BCEWithLogitsLoss,
        "nll": nn.NLLLoss,
    }
    kind = kinds.get(name)
    return kind is not None and type(loss) is kind and _settings(loss) == f"{kind.__name__}()"


def _settings(loss: nn.Module) -> str:
    """The class of a loss module with those settings that differ from torch's defaults; no values of tensors."""
    defaults = {"weight": None, "pos_weight": None, "reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
    changed = []
    for key, default in defaults.items():
        value = getattr(loss, key, default)
        if isinstance(value, Tensor):
            changed.append(f"{key}={list(value.shape)}")
        elif value != default:
            changed.append(f"{key}={value}")
    return f"{type(loss).__name__}({', '.join(changed)})"


def form_of(value: Any) -> str:
    """Dtype and shape of what a loss returned, or its type, for messages."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
