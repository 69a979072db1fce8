from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.defenses import Prune, TopK
from gradleak.results import InputError


def update() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"0.weight": (6, 5), "0.bias": (6,), "2.weight": (3, 6), "2.bias": (3,)}
    scales = {"0.weight": 1.0, "0.bias": 0.1, "2.weight": 10.0, "2.bias": 10.0}
    return {
        name: scales[name] * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def flat(tensors: dict[str, Tensor], names: list[str] | None = None) -> np.ndarray[Any, Any]:
    return np.concatenate([tensors[name].numpy().reshape(-1) for name in names or tensors])


def largest(values: np.ndarray[Any, Any], share: float) -> np.ndarray[Any, Any]:
    kept = np.zeros_like(values)
    places = np.argpartition(-np.abs(values), int(np.ceil(share * values.size - 1e-9)) - 1)
    places = places[: int(np.ceil(share * values.size - 1e-9))]
    kept[places] = values[places]
    return kept


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 1.0])
def test_the_largest_entries_of_each_group_stay(share: float) -> None:
    given = update()
    groups = {
        "global": [list(given)],
        "layer": [["0.weight", "0.bias"], ["2.weight", "2.bias"]],
        "tensor": [[name] for name in given],
    }
    for by, lists in groups.items():
        found = TopK(share, by=by).mean(given)
        for names in lists:
            assert np.array_equal(flat(found, names), largest(flat(given, names), share))


def test_it_is_pruning_that_says_what_stays() -> None:
    given = update()
    for share in (0.2, 0.25, 0.4):
        kept, pruned = TopK(share).mean(given), Prune(1 - share).mean(given)
        assert all(torch.equal(kept[name], pruned[name]) for name in given)


def test_something_always_stays() -> None:
    found = TopK(1e-9).mean(update())
    assert sum(int(tensor.count_nonzero()) for tensor in found.values()) == 1
    assert all(int(tensor.count_nonzero()) == 1 for tensor in TopK(1e-9, by="tensor").mean(update()).values())


@pytest.mark.parametrize("share", [0.0, 1.1, -0.5, float("nan"), "half", True])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(InputError, match=r"TopK.share: expected a number above 0 and at most 1"):
        TopK(share)


def test_an_unknown_group_is_refused() -> None:
    with pytest.raises(InputError, match=r"TopK.by: expected one of global, layer, tensor, got 'model'"):
        TopK(0.5, by="model")
