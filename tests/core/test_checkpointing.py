from __future__ import annotations

import pytest
import torch
from torch.utils import checkpoint as module
from torch.utils.checkpoint import checkpoint

from gradleak.core.evaluation import without_checkpointing


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_function_is_called_once_and_its_graph_kept(reentrant: bool) -> None:
    calls = []

    def square(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        return x**2

    x = torch.tensor(3.0, requires_grad=True)
    with without_checkpointing():
        y = checkpoint(square, x, use_reentrant=reentrant)
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    assert len(calls) == 1
    assert float(torch.autograd.grad(slope, x)[0]) == 2.0


def test_it_is_put_back_after_an_exception() -> None:
    before = (module.CheckpointFunction, module._checkpoint_without_reentrant_generator)
    with pytest.raises(ZeroDivisionError), without_checkpointing():
        checkpoint(lambda x: x // 0, 1, use_reentrant=True)
    assert (module.CheckpointFunction, module._checkpoint_without_reentrant_generator) == before
