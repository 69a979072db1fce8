"""The last linear layer of a model at work: what goes into it and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.attacks.labels.label_attack import Unreadable
from gradleak.core import Knowledge, Objective
from gradleak.core.linear_calls import LinearCall, LinearCalls

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
        features=call.inputs.detach().double().cpu(),
        logits=call.result.detach().double().cpu(),
        weight=call.weight.detach().double().cpu(),
        bias=bias.detach().double().cpu(),
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
