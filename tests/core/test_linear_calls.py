"""What is recorded of linear layers, and what makes an output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from gradleak.core.evaluation import LinearCalls


def _layer() -> nn.Linear:
    return nn.Linear(3, 4)


def test_the_maker_of_an_output_is_the_call_that_returned_it() -> None:
    first, second = _layer(), nn.Linear(4, 2, bias=False)
    inputs = torch.ones(5, 3)
    with LinearCalls() as calls:
        outputs = second(torch.tanh(first(inputs)))
    call = calls.maker(outputs)
    assert len(calls.calls) == 2
    assert (call.weight is second.weight, call.bias) == (True, None)
    assert call.inputs.shape == (5, 4)
    assert calls.maker(outputs.clone()) is None


def test_a_result_that_was_changed_in_place_has_no_maker() -> None:
    layer = _layer()
    with torch.no_grad(), LinearCalls() as calls:
        outputs = layer(torch.ones(1, 3)).mul_(2)
    assert calls.maker(outputs) is None


def test_keyword_arguments_are_understood() -> None:
    layer = _layer()
    with LinearCalls() as calls:
        outputs = F.linear(torch.ones(2, 3), weight=layer.weight, bias=layer.bias)
    assert calls.maker(outputs).bias is layer.bias


def test_a_log_softmax_over_the_classes_is_looked_through() -> None:
    layer = _layer()
    for last in (nn.LogSoftmax(1), nn.LogSoftmax(-1), lambda x: x.log_softmax(1), lambda x: F.log_softmax(x, dim=-1)):
        with LinearCalls() as calls:
            outputs = last(layer(torch.ones(2, 3)))
        assert calls.maker(outputs) is None
        assert calls.maker(calls.before_log_softmax(outputs)).weight is layer.weight


def test_a_softmax_over_the_batch_is_not() -> None:
    layer = _layer()
    with LinearCalls() as calls:
        outputs = torch.log_softmax(layer(torch.ones(2, 3)), dim=0)
    assert calls.before_log_softmax(outputs) is outputs
