"""The classifier of a model at work, and its gradient as an update gives it: what label attacks read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import LossForm, Reduction, Unreadable, loss_form
from gradleak.core import (
    DiagonalGaussian,
    Knowledge,
    MovedAlong,
    NotGaussian,
    Objective,
    Rounded,
    Scaled,
    ScaledRows,
    Thinned,
    Update,
    UpdateKind,
)
from gradleak.core.evaluation import LinearCall, LinearCalls
from gradleak.results import Outcome

# Inputs that go through the model at once in eval mode.
CHUNK = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """The linear layer whose result the model returns, with or without a log-softmax behind it, in float64.

    Attributes:
        features: its inputs (n, d).
        logits: its results (n, c).
        weight: (c, d).
        bias: (c,), zero where the layer has none.
        weight_name: name of the weight among the shared parameters; None if it is frozen, computed, or used elsewhere
            too, so that its gradient is not that of this layer alone.
        bias_name: as `weight_name`.
        log_softmax: whether the model returns the log-softmax of the logits.
    """

    features: Tensor
    logits: Tensor
    weight: Tensor
    bias: Tensor
    weight_name: str | None
    bias_name: str | None
    log_softmax: bool

    @property
    def classes(self) -> int:
        """The number of logits, c."""
        return int(self.logits.shape[1])

    @property
    def probabilities(self) -> Tensor:
        """The softmax of the logits (n, c)."""
        return torch.softmax(self.logits, dim=1)

    @property
    def decision(self) -> float:
        """Confidence of the model in the class of an input, on average: 0 for equal probabilities, 1 for one class.

        (mean of the largest probability − 1/c)/(1 − 1/c). Untrained networks with torch's own weights lie below 0.1.
        """
        even = 1 / self.classes
        return (float(self.probabilities.amax(dim=1).mean()) - even) / (1 - even)

    @property
    def decided(self) -> bool:
        """True if the model is sure of the class of most inputs, as a trained one is and an untrained one is not."""
        return self.decision > 1 / 2

    @property
    def non_negative(self) -> bool:
        """True if no input of the layer is negative, as behind a ReLU or a sigmoid."""
        return bool((self.features >= 0).all())


def run_head(objective: Objective, params: Mapping[str, Tensor], inputs: Tensor, *, together: int) -> Head | Unreadable:
    """The classifier of a model on some inputs, or why it has none.

    Args:
        objective: the model.
        params: parameters by name.
        inputs: (n, *shape), in model-input units.
        together: how many go through the model at once; it matters where BatchNorm normalizes by the batch.

    **Cost**: one forward pass an input.
    """
    heads = []
    pieces = list(inputs.split(together))
    if len(pieces) > 1 and len(pieces[-1]) < together:
        pieces.pop()  # an odd rest would be normalized by other batch statistics
    for piece in pieces:
        head = _run(objective, params, piece)
        if isinstance(head, Unreadable):
            return head
        heads.append(head)
    first = heads[0]
    return Head(
        features=torch.cat([head.features for head in heads]),
        logits=torch.cat([head.logits for head in heads]),
        weight=first.weight,
        bias=first.bias,
        weight_name=first.weight_name,
        bias_name=first.bias_name,
        log_softmax=first.log_softmax,
    )


def dummy_inputs(knowledge: Knowledge, count: int, generator: torch.Generator) -> tuple[Tensor, str]:
    """Inputs that stand for the private ones (n, *shape), and what they are.

    Public inputs where the adversary has some, else uniform noise over the valid range.
    """
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    like = next(iter(knowledge.objective.params.values()))
    if knowledge.public is not None:
        inputs = knowledge.public.inputs.detach().to(like)
        order = torch.randperm(len(inputs), generator=generator, device=generator.device)[:count]
        return inputs[order.to(inputs.device)], f"{min(count, len(inputs))} public inputs"
    noise = torch.rand((count, *knowledge.domain.shape), generator=generator, device=generator.device)
    low, high = knowledge.domain.bounds(like)
    return low + (high - low) * noise.to(like), f"{count} dummy inputs"


def batch_size_of(knowledge: Knowledge) -> int:
    """Number of dummy inputs that go through the model at once: the client's, where that makes a difference."""
    assert knowledge.objective is not None
    assert knowledge.batch_size is not None
    return max(2, knowledge.batch_size) if knowledge.objective.batch_statistics else CHUNK


def _run(objective: Objective, params: Mapping[str, Tensor], inputs: Tensor) -> Head | Unreadable:
    calls = LinearCalls()
    with torch.no_grad(), calls:
        outputs = objective.outputs(params, inputs)
    if not isinstance(outputs, Tensor):
        return Unreadable(reason=f"the model returns a {type(outputs).__name__}, not one vector of logits an example")
    logits = calls.before_log_softmax(outputs)
    call = calls.maker(logits)
    if call is None:
        return Unreadable(reason="the model's output is not made by a linear layer, whose gradient label attacks read")
    if outputs.dim() != 2:
        return Unreadable(
            reason=f"the model gives {tuple(outputs.shape[1:])} an example (a segmentation or a sequence), and label "
            "attacks read one vector of logits an example"
        )
    if outputs.shape[1] < 2:
        return Unreadable(reason="the model has one logit, which the batch's labels enter only by their mean")
    weight_name, bias_name = _names(objective, params, calls, call)
    bias = torch.zeros(outputs.shape[1]) if call.bias is None else call.bias
    return Head(
        features=call.inputs.detach().cpu().double(),
        logits=call.result.detach().cpu().double(),
        weight=call.weight.detach().cpu().double(),
        bias=bias.detach().cpu().double(),
        weight_name=weight_name,
        bias_name=bias_name,
        log_softmax=logits is not outputs,
    )


def _names(
    objective: Objective, params: Mapping[str, Tensor], calls: LinearCalls, call: LinearCall
) -> tuple[str | None, str | None]:
    """The names under which the gradients of this layer alone are shared."""
    names = {id(params[name]): name for name in objective.params}
    shared = set(objective.tied.values())
    uses = [id(tensor) for one in calls.calls for tensor in (one.weight, one.bias) if tensor is not None]

    def alone(tensor: Tensor | None) -> str | None:
        name = names.get(id(tensor))
        return None if name in shared or uses.count(id(tensor)) > 1 else name

    return alone(call.weight), alone(call.bias)


# Inputs on which the sign of the classifier's inputs is looked at.
PROBES = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The classifier's gradient as a label attack uses it, in float64.

    Attributes:
        bias: mean (for a loss that adds up: summed) gradient of the bias (c,), or None.
        weight: the same of the weight (c, d), or None.
        scaled: whether the factor in front of them is known; without it they are known up to a positive factor.
        std: std of the noise on each entry of `bias` (c,), known or apparent; of the weight where there is no bias.
        noisy: whether noise is known to be in the update.
        uneven: whether examples weigh unequally in a way that is not known: by clipping or, without a bias, by their
            features.
        spread: std of the known weights of the examples over their mean (mini-batches of different weight).
        head: the classifier on a few dummy inputs, at `params`.
        form: of the loss.
        params: where the probabilities are to be taken: the shared parameters, or halfway along a delta.
        examples: the batch size, K.
        notes: what a reader has to know.
        doubt: why no error model holds, so that nothing can be claimed; "" where one does.
    """

    bias: Tensor | None
    weight: Tensor | None
    scaled: bool
    std: Tensor
    noisy: bool
    uneven: bool
    spread: float
    head: Head
    form: LossForm
    params: Mapping[str, Tensor]
    examples: int
    notes: tuple[str, ...]
    doubt: str = ""

    @property
    def source(self) -> str:
        """Name of the layer whose gradient is read, for notes."""
        head = self.head
        names = [name for name, value in ((head.weight_name, self.weight), (head.bias_name, self.bias)) if name]
        return " and ".join(names)


def why_unreadable(knowledge: Knowledge) -> str:
    """Reason why no update of this model and loss shows labels, or "" where one may.

    **Cost**: one forward pass of two inputs, and what `loss_form` costs.
    """
    assert knowledge.objective is not None
    objective = knowledge.objective
    inputs, _ = dummy_inputs(knowledge, 2, torch.Generator().manual_seed(0))
    head = run_head(objective, objective.params, inputs, together=2)
    if isinstance(head, Unreadable):
        return head.reason
    form = loss_form(objective, head.classes, log_softmax=head.log_softmax)
    return form.reason if isinstance(form, Unreadable) else ""


def read(update: Update, knowledge: Knowledge, generator: torch.Generator) -> Reading | Unreadable:
    """The classifier's gradient behind an aligned update, or why none can be read.

    **Cost**: one forward pass of a few dummy inputs, or three where the update is a delta.
    """
    objective, examples = knowledge.objective, knowledge.batch_size
    assert objective is not None
    assert examples is not None
    inputs, _ = dummy_inputs(knowledge, PROBES, generator)
    together = max(2, min(PROBES, len(inputs)))
    head = run_head(objective, objective.params, inputs, together=together)
    if isinstance(head, Unreadable):
        return head
    form = loss_form(objective, head.classes, log_softmax=head.log_softmax)
    if isinstance(form, Unreadable):
        return form
    if head.bias_name is None and head.weight_name is None:
        return Unreadable(
            reason="the classifier's gradient is not shared by itself: it is frozen, computed, or tied to another layer"
        )
    scale = scale_of(update, knowledge, form)
    if isinstance(scale, Unreadable):
        return scale
    factor, scaled, uneven, spread, notes = scale
    names = [name for name in (head.bias_name, head.weight_name) if name is not None]
    if not any(bool(update.tensors[name].any()) for name in names):
        return Unreadable(reason=f"the gradient of {' and '.join(names)} is zero", outcome=Outcome.NO_SIGNAL)
    bias, weight = (
        None if name is None else update.tensors[name].cpu().double() / factor
        for name in (head.bias_name, head.weight_name)
    )
    std, noisy, further = _noise(update, knowledge, names[0], factor, bias)
    if bias is None:  # read along the mean input of the classifier
        std = std / head.features.mean(dim=0).norm().clamp(min=1e-12)
    params: Mapping[str, Tensor] = objective.params
    if update.kind is UpdateKind.DELTA and knowledge.defenses is not None and not knowledge.defenses:
        params = {name: tensor - update.tensors[name].to(tensor) / 2 for name, tensor in params.items()}
        head = run_head(objective, params, inputs, together=together)
        if isinstance(head, Unreadable):
            return head
    return Reading(
        bias=bias,
        weight=weight,
        scaled=scaled,
        std=std,
        noisy=noisy,
        uneven=uneven or bias is None,
        spread=spread,
        head=head,
        form=form,
        params=params,
        examples=examples,
        notes=(*notes, *further),
        doubt=_unmodeled(knowledge, update),
    )


def run_dummies(
    reading: Reading, knowledge: Knowledge, count: int, generator: torch.Generator
) -> tuple[Head, str] | Unreadable:
    """The classifier on dummy inputs where the probabilities are to be taken, and what the dummies are."""
    assert knowledge.objective is not None
    together = batch_size_of(knowledge)
    inputs, what = dummy_inputs(knowledge, max(count, together), generator)
    head = run_head(knowledge.objective, reading.params, inputs, together=together)
    return head if isinstance(head, Unreadable) else (head, what)


def scale_of(
    update: Update, knowledge: Knowledge, form: LossForm
) -> tuple[float, bool, bool, float, list[str]] | Unreadable:
    """Divisor of the update, whether it is known, whether and how examples weigh unequally, and notes."""
    examples, protocol = knowledge.batch_size, knowledge.protocol
    assert examples is not None
    notes: list[str] = []
    factor, scaled, uneven, spread = 1.0, True, False, 0.0
    if protocol is None:
        scaled = update.kind is UpdateKind.GRADIENT
    else:
        weights = protocol.mini_batch_weights(examples)
        if weights is None:
            return Unreadable(
                reason=f"the update of {type(protocol).__name__} is not a sum of gradients at known weights, so it shows no "
                "class counts"
            )
        total = sum(weight for _, weight in weights)
        factor = total if form.reduction is Reduction.MEAN else total / len(weights)
        shares = [w / (place.stop - place.start if form.reduction is Reduction.MEAN else 1) for place, w in weights]
        if max(shares) > 1.001 * min(shares):
            spread = _spread(shares, [place.stop - place.start for place, _ in weights])
            notes.append(
                f"the mini-batches weigh some examples {max(shares) / min(shares):.3g} times as much as others"
            )
        if update.kind is not protocol.kind:
            scaled = False
            notes.append(
                f"the update is a {update.kind.value} where {type(protocol).__name__} makes a {protocol.kind.value}"
            )
        if "protocol" in (knowledge.assumed or ()):
            scaled = False
        if update.kind is UpdateKind.DELTA:
            notes.append("read as the average gradient of the local steps")
    for defense in knowledge.defenses or ():
        what, effect = type(defense).__name__, defense.effect(update.tensors)
        if defense.flat and not isinstance(effect, Rounded):
            return Unreadable(reason=f"{what} leaves signs alone, and class counts need magnitudes")
        if isinstance(effect, Scaled):
            norms = [
                math.sqrt(sum(float(update.tensors[n].double().square().sum()) for n in names))
                for names in effect.groups
            ]
            noise = knowledge.release.noise(knowledge.objective, examples=examples) if knowledge.objective else None
            exact = knowledge.objective is not None and noise is None
            if exact and max(norms) < 0.999 * effect.max_norm:
                continue  # it did not bite
            scaled = False
            notes.append(f"{what} hides the scale")
        elif isinstance(effect, ScaledRows):
            scaled, uneven = False, True
            notes.append(f"{what} may weigh the examples unequally")
    return factor, scaled, uneven, spread, notes


def _noise(
    update: Update, knowledge: Knowledge, name: str, factor: float, bias: Tensor | None
) -> tuple[Tensor, bool, list[str]]:
    """The std of the noise on the entries that counts are read from, whether noise is known to be there, and notes."""
    assert knowledge.objective is not None
    values = update.tensors[name]
    classes = values.shape[0]
    noise = None
    if knowledge.defenses is not None and knowledge.protocol is not None:
        noise = knowledge.release.noise(knowledge.objective, examples=knowledge.batch_size)
    known = isinstance(noise, DiagonalGaussian)
    std = round_off(update, knowledge.objective.params[name], name) / factor
    notes: list[str] = []
    if isinstance(noise, DiagonalGaussian):
        std += noise.std[name] / factor
    elif (knowledge.defenses is None or isinstance(noise, NotGaussian)) and bias is not None:
        # Without noise the entries sum to 0.
        std += max(0.0, float(bias.sum().abs()) / math.sqrt(classes) - 1e-6 * float(bias.abs().max()))
    effects = [defense.effect(update.tensors) for defense in knowledge.defenses or ()]
    thinned = [effect for effect in effects if isinstance(effect, Thinned)]
    coarse = any(isinstance(effect, Rounded) for effect in effects)
    if (thinned or coarse) and bool(values.any()):
        near = next(group for group in thinned[-1].groups if name in group) if thinned else [name]
        kept = torch.cat([update.tensors[key].reshape(-1) for key in near]).cpu().double().abs()
        smallest = float(kept[kept > 0].min()) / factor
        if coarse:  # rounding to levels that are at most so far apart
            std = (std.square() + (smallest / 2) ** 2).sqrt()
            notes.append("quantized entries of the classifier's gradient are taken as off by half a level")
        elif not bool(values.all()):
            zero = (values.reshape(classes, -1) == 0).double().mean(dim=1).sqrt().cpu()
            std = (std.square() + (zero * smallest / math.sqrt(3)).square()).sqrt()
            notes.append("pruned entries of the classifier's gradient are taken as small")
    return std, known or isinstance(noise, NotGaussian), notes


def _spread(shares: Sequence[float], sizes: Sequence[int]) -> float:
    """The std of the weights of all examples over their mean."""
    each = torch.repeat_interleave(torch.tensor(shares, dtype=torch.float64), torch.tensor(sizes))
    return float(each.std(correction=0) / each.mean())


def round_off(update: Update, parameter: Tensor, name: str) -> Tensor:
    """Round-off of each entry (c,) of the update, or of the parameters that it is a difference of."""
    size = update.tensors[name].double().abs()
    if update.kind is UpdateKind.DELTA:
        size = size + parameter.double().abs()
    return float(torch.finfo(update.tensors[name].dtype).eps) * size.reshape(len(size), -1).amax(dim=1).cpu()


def _unmodeled(knowledge: Knowledge, update: Update) -> str:
    """Reason why no error model holds under the known defenses, or ""."""
    others = [
        type(defense).__name__
        for defense in knowledge.defenses or ()
        if isinstance(defense.effect(update.tensors), MovedAlong | None)
    ]
    return f"what {' and '.join(others)} does to counts is not modeled" if others else ""
