from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradleak.defenses import Clip, ClipPerLayer
from gradleak.defenses.draws import layers
from gradleak.results import InputError

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

UPDATE = {
    "0.weight": torch.tensor([[3.0, 0.0]], dtype=torch.float64),
    "head.weight": torch.tensor([[0.1, 0.2]], dtype=torch.float64),
    "0.bias": torch.tensor([4.0], dtype=torch.float64),
}


def test_weight_and_bias_of_a_layer_share_a_norm_and_other_layers_stay() -> None:
    clipped = ClipPerLayer(1.0).mean(UPDATE)
    assert list(clipped) == list(UPDATE)
    assert clipped["0.weight"].tolist() == [[pytest.approx(0.6), 0.0]]
    assert clipped["0.bias"].tolist() == [pytest.approx(0.8)]
    assert torch.equal(clipped["head.weight"], UPDATE["head.weight"])


def test_with_one_layer_it_is_clip() -> None:
    given = {"0.weight": UPDATE["0.weight"], "0.bias": UPDATE["0.bias"]}
    one, other = ClipPerLayer(0.7).mean(given), Clip(0.7).mean(given)
    assert all(torch.equal(one[name], other[name]) for name in given)


def test_the_derivative_is_the_analytic_one_layer_by_layer() -> None:
    g = torch.randn(7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def flat(v: Tensor) -> Tensor:
        clipped = ClipPerLayer(0.3).mean({"a.weight": v[:4].reshape(2, 2), "b.weight": v[4:]})
        return torch.cat([tensor.reshape(-1) for tensor in clipped.values()])

    blocks = []
    for part in (g[:4], g[4:]):
        unit = part / part.norm()
        blocks.append(0.3 / part.norm() * (torch.eye(len(part), dtype=torch.float64) - torch.outer(unit, unit)))
    torch.testing.assert_close(torch.func.jacfwd(flat)(g), torch.block_diag(*blocks), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(torch.func.jacrev(flat)(g), torch.block_diag(*blocks), rtol=1e-12, atol=1e-14)


def test_layers_are_the_modules_that_own_the_tensors() -> None:
    names = ["a.0.weight", "a.0.bias", "a.1.weight", "cls_token", "pos"]
    assert layers(names) == {"a.0": ["a.0.weight", "a.0.bias"], "a.1": ["a.1.weight"], "": ["cls_token", "pos"]}


@pytest.mark.parametrize("max_norm", [0.0, float("nan"), "1.0", None])
def test_impossible_norms_are_refused(max_norm: Any) -> None:
    with pytest.raises(InputError, match=r"ClipPerLayer.max_norm: expected a finite positive number, got"):
        ClipPerLayer(max_norm)
