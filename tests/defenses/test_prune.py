from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.core import describe
from gradleak.defenses import Prune
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


def update() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"0.weight": (6, 5), "0.bias": (6,), "2.weight": (3, 6), "2.bias": (3,), "scale": ()}
    scales = {"0.weight": 1.0, "0.bias": 1.0, "2.weight": 10.0, "2.bias": 10.0, "scale": 1.0}
    return {
        name: scales[name] * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def by_numpy(values: Tensor, ratio: float) -> np.ndarray[Any, Any]:
    kept = values.numpy().reshape(-1).copy()
    kept[np.argsort(np.abs(kept), kind="stable")[: int(ratio * kept.size + 1e-9)]] = 0.0
    return kept


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.5, 0.9, 0.99])
def test_globally_the_smallest_of_all_entries_go(ratio: float) -> None:
    given = update()
    found = torch.cat([t.reshape(-1) for t in Prune(ratio).mean(given).values()])
    assert np.array_equal(found.numpy(), by_numpy(torch.cat([t.reshape(-1) for t in given.values()]), ratio))


@pytest.mark.parametrize("ratio", [0.3, 0.5, 0.9])
def test_by_layer_weight_and_bias_of_a_module_compete(ratio: float) -> None:
    given = update()
    found = Prune(ratio, by="layer").mean(given)
    assert list(found) == list(given)
    for names in (["0.weight", "0.bias"], ["2.weight", "2.bias"], ["scale"]):
        layer = torch.cat([found[name].reshape(-1) for name in names])
        expected = by_numpy(torch.cat([given[name].reshape(-1) for name in names]), ratio)
        assert np.array_equal(layer.numpy(), expected)
    assert not bool((found["2.weight"] == 0).all()), "a large layer is pruned as well as a small one"


@pytest.mark.parametrize(("ratio", "count"), [(0.9, 1), (0.89, 2), (0.5, 5), (0.0, 10)])
def test_the_share_is_rounded_down_and_ties_are_cut_to_the_count(ratio: float, count: int) -> None:
    found = Prune(ratio).mean({"a": torch.ones(10)})["a"]
    assert found.tolist() == [0.0] * (10 - count) + [1.0] * count


def test_the_derivative_is_that_of_a_fixed_mask() -> None:
    g = torch.cat([t.reshape(-1) for t in update().values()])

    def pruned(v: Tensor) -> Tensor:
        return Prune(0.5).mean({"a": v})["a"]

    expected = torch.diag((pruned(g) != 0).double())
    assert torch.equal(torch.func.jacrev(pruned)(g), expected)
    assert torch.equal(torch.func.jacfwd(pruned)(g), expected)


def test_each_row_under_vmap_has_its_own_mask() -> None:
    rows = torch.tensor([[3.0, 1.0, 2.0], [1.0, -3.0, 2.0]])
    found = torch.func.vmap(lambda row: Prune(0.4).mean({"a": row})["a"])(rows)
    assert found.tolist() == [[3.0, 0.0, 2.0], [0.0, -3.0, 2.0]]


def test_draw_is_the_mean_and_there_is_no_noise() -> None:
    given = update()
    drawn = Prune(0.5).draw(given, torch.Generator())
    assert all(torch.equal(drawn[name], tensor) for name, tensor in Prune(0.5).mean(given).items())
    assert Prune(0.5).noise(given) is None


def test_it_is_described_by_plain_values() -> None:
    assert describe(Prune(0.5, by="layer")) == {"use": "Prune", "ratio": 0.5, "by": "layer"}
    assert Prune(0.5, "layer") == Prune(0.5, by="layer")


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan"), "0.5", None])
def test_impossible_ratios_are_refused(ratio: Any) -> None:
    with pytest.raises(InputError, match=r"Prune.ratio: expected a number from 0 to below 1, got"):
        Prune(ratio)


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(InputError, match=r"Prune.by: expected one of global, layer, got 'tensor'"):
        Prune(0.5, by="tensor")
