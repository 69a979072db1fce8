"""Clipping at magnitudes whose squares are no numbers of the format."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.defenses import DPSGD, Clip, ClipPerExample, ClipPerLayer, ClipTensorsPerExample, Quantize

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

GROUPS = {
    "all": [["0.weight", "0.bias", "1.weight"]],
    "layer": [["0.weight", "0.bias"], ["1.weight"]],
    "tensor": [["0.weight"], ["0.bias"], ["1.weight"]],
}
RULES = {
    "Clip": (Clip, "all", False),
    "ClipPerLayer": (ClipPerLayer, "layer", False),
    "ClipPerExample": (ClipPerExample, "all", True),
    "ClipTensorsPerExample": (lambda norm: ClipTensorsPerExample(3**0.5 * norm), "tensor", True),
    "DPSGD": (lambda norm: DPSGD(clip_norm=norm, noise_std=1.0, noise="sum"), "all", True),
}


def _update(scale: float, dtype: torch.dtype) -> dict[str, Tensor]:
    """Two rows of very different length; `scale` is that of the longer one."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"0.weight": (3, 4), "0.bias": (3,), "1.weight": (2, 3)}
    rows = {name: torch.randn(2, *shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    lengths = torch.tensor([1.0, 1e-3], dtype=torch.float64)
    return {
        name: (tensor * scale * lengths.reshape(2, *[1] * (tensor.dim() - 1))).to(dtype)
        for name, tensor in rows.items()
    }


def _in_numpy(update: dict[str, Tensor], max_norm: float, groups: list[list[str]]) -> dict[str, np.ndarray]:
    """min(1, C/‖g‖) in float64, where none of these magnitudes is extreme."""
    wide = {name: tensor.double().numpy() for name, tensor in update.items()}
    made = {}
    for names in groups:
        norm = np.sqrt(sum((wide[name] ** 2).sum() for name in names))
        made |= {name: wide[name] * min(1.0, max_norm / norm) for name in names}
    return made


@pytest.mark.parametrize("share", [0.1, 10.0], ids=["bites", "idle"])
@pytest.mark.parametrize(
    ("scale", "dtype"),
    [(1e-30, torch.float32), (1e-3, torch.float32), (1e4, torch.float32), (1e25, torch.float32), (1e36, torch.float32),
     (1e25, torch.bfloat16), (1e-30, torch.bfloat16), (3e3, torch.float16)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("rule", RULES)
def test_every_clip_is_that_of_float64(rule: str, scale: float, dtype: torch.dtype, share: float) -> None:
    make, groups, by_row = RULES[rule]
    rows, max_norm = _update(scale, dtype), share * scale
    each = [{name: tensor[place] for name, tensor in rows.items()} for place in range(2)]
    if by_row:
        found = make(max_norm).mean(rows)
        made = [{name: tensor[place] for name, tensor in found.items()} for place in range(2)]
    else:
        made = [make(max_norm).mean(row) for row in each]
    for place, row in enumerate(each):
        for name, expected in _in_numpy(row, max_norm, GROUPS[groups]).items():
            np.testing.assert_allclose(
                made[place][name].double().numpy(), expected, rtol=8 * torch.finfo(dtype).eps, atol=0
            )
            assert made[place][name].dtype == dtype


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_derivative_is_that_of_float64(scale: float) -> None:
    g = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * scale
    max_norm = 0.3 * float(g.norm())
    unit = g / g.norm()
    expected = max_norm / g.norm() * (torch.eye(5, dtype=torch.float64) - torch.outer(unit, unit))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        found = jacobian(lambda v: Clip(max_norm).mean({"w": v})["w"])(g.float())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_norm_that_a_quantizer_spans_is_that_of_float64(scale: float) -> None:
    tensor = torch.randn(6, generator=torch.Generator().manual_seed(2)) * scale
    wide = tensor.double().numpy()
    step = np.linalg.norm(wide) / 7
    rounded = Quantize(bits=4, range="norm", stochastic=False).mean({"w": tensor})["w"]
    np.testing.assert_allclose(rounded.double().numpy(), np.round(wide / step) * step, rtol=1e-5)
