"""Matrices of layer gradients, against a loop of plain autograd and against one release after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Defense, Objective, Release
from gradleak.defenses import Clip, ClipPerExample, LayerNoise
from gradleak.models import lenet5, text_classifier
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.training import LayerGradients, Route, batches_of_one_value, layer_gradient_blocks, layer_gradients

ROWS = 10


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits() -> tuple[nn.Module, Batch]:
    inputs = torch.rand(ROWS, 1, 16, 16, generator=generator(1), dtype=torch.float64)
    return lenet5(size=16, classes=4).double(), Batch(inputs, torch.arange(ROWS) % 4)


def texts() -> tuple[nn.Module, Batch]:
    tokens = torch.randint(7, (ROWS, 20), generator=generator(2))
    model = text_classifier(words=7, length=20, width=4).double()
    return model, Batch(F.one_hot(tokens, 7).double(), torch.arange(ROWS) % 2)


def by_autograd(model: nn.Module, rows: Batch, batches: Tensor) -> dict[str, Tensor]:
    """Loop over batches and layers."""
    made: dict[str, list[Tensor]] = {}
    for places in batches:
        model.zero_grad()
        F.cross_entropy(model(rows.inputs[places]), rows.targets[places]).backward()
        for name, layer in model.named_children():
            own = [p.grad.reshape(-1) for p in layer.parameters() if p.grad is not None]
            if own:
                made.setdefault(name, []).append(torch.cat(own))
    return {name: torch.stack(parts) for name, parts in made.items()}


def found(model: nn.Module, rows: Batch, *defenses: Defense, seed: int = 3, **settings: Any) -> LayerGradients:
    release = Release(FedSGD(), list(defenses))
    return layer_gradients(
        Objective.from_module(model),
        rows,
        release=release,
        generator=generator(seed),
        **settings,
    )


@pytest.mark.parametrize("setting", [digits, texts])
@pytest.mark.parametrize("examples", [1, 3])
def test_layers_have_the_gradients_of_a_loop(setting: Callable[[], tuple[nn.Module, Batch]], examples: int) -> None:
    model, rows = setting()
    given = None if examples == 1 else torch.randint(ROWS, (6, examples), generator=generator(4))
    made = found(model, rows, batches=given)
    places = torch.arange(ROWS)[:, None] if given is None else given
    expected = by_autograd(model, rows, places)
    assert list(made.matrices) == list(expected)
    assert torch.equal(made.batches, places)
    for layer, matrix in expected.items():
        torch.testing.assert_close(made.matrices[layer], matrix, rtol=1e-9, atol=1e-12)
    assert made.route is Route.AVERAGED_ROWS


def test_examples_are_clipped_before_the_mean_and_updates_after_it() -> None:
    model, rows = digits()
    batches = torch.randint(ROWS, (5, 4), generator=generator(5))
    singles = by_autograd(model, rows, torch.arange(ROWS)[:, None])
    norm = float(torch.cat(list(singles.values()), dim=1).norm(dim=1).median())
    scale = (norm / torch.cat(list(singles.values()), dim=1).norm(dim=1)).clamp(max=1.0)
    clipped = found(model, rows, ClipPerExample(norm), batches=batches)
    for layer, matrix in singles.items():
        expected = torch.stack([(scale[places, None] * matrix[places]).mean(0) for places in batches])
        torch.testing.assert_close(clipped.matrices[layer], expected, rtol=1e-9, atol=1e-12)
    whole = found(model, rows, Clip(norm / 10), batches=batches)
    norms = torch.cat(list(whole.matrices.values()), dim=1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, norm / 10))


def test_noise_is_on_the_named_layers_with_the_numbers_of_single_releases() -> None:
    model, rows = digits()
    batches = torch.randint(ROWS, (5, 2), generator=generator(6))
    defenses = [Clip(1.0), LayerNoise(std={"conv1": 0.1, "fc3": 0.2})]
    noisy, clean = found(model, rows, *defenses, batches=batches), found(model, rows, defenses[0], batches=batches)
    for layer, matrix in clean.matrices.items():
        assert torch.equal(noisy.matrices[layer], matrix) is (layer not in ("conv1", "fc3"))
    objective, drawn = Objective.from_module(model), generator(3)
    for number, places in enumerate(batches):
        update = Release(FedSGD(), defenses)(objective, Batch(rows.inputs[places], rows.targets[places]), drawn)
        expected = torch.cat([update.tensors["fc3.weight"].reshape(-1), update.tensors["fc3.bias"]])
        torch.testing.assert_close(noisy.matrices["fc3"][number], expected, rtol=1e-9, atol=1e-12)


def test_groups_are_put_together_in_the_order_that_is_asked_for() -> None:
    model, rows = digits()
    made = found(model, rows, groups={"two": ["fc3.bias", "conv1.weight"], "biases": ["conv1.bias", "fc3.bias"]})
    layers = found(model, rows).matrices
    first = layers["conv1"][:, : 6 * 25], layers["fc3"][:, -4:]
    assert torch.equal(made.matrices["two"], torch.cat([first[1], first[0]], dim=1))
    assert torch.equal(made.matrices["biases"], torch.cat([layers["conv1"][:, -6:], first[1]], dim=1))
    assert made.groups == {"two": ("fc3.bias", "conv1.weight"), "biases": ("conv1.bias", "fc3.bias")}


def test_parameters_of_the_model_itself_are_a_layer_too() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    rows = Batch(torch.eye(3, dtype=torch.float64), torch.arange(3))
    assert found(Scaled(), rows).matrices["(root)"].shape == (3, 1)


def test_blocks_are_the_rows_of_the_matrices() -> None:
    model, rows = digits()
    batches = torch.randint(ROWS, (40, 2), generator=generator(7))
    defenses = [Clip(1.0), LayerNoise(std={"fc1": 0.1})]
    whole = found(model, rows, *defenses, batches=batches)
    blocks = list(
        layer_gradient_blocks(
            Objective.from_module(model),
            rows,
            release=Release(FedSGD(), defenses),
            generator=generator(3),
            batches=batches,
            max_bytes=2**20,
        )
    )
    assert len(blocks) > 1
    for layer, matrix in whole.matrices.items():
        torch.testing.assert_close(torch.cat([block[layer] for block in blocks]), matrix, rtol=1e-9, atol=1e-12)


def test_matrices_beyond_the_budget_are_refused_before_any_gradient() -> None:
    model, rows = digits()
    size = sum(p.numel() for p in model.parameters())
    with pytest.raises(InputError, match=f"take {ROWS * size * 8:,} bytes .*layer_gradient_blocks"):
        found(model, rows, max_bytes=ROWS * size * 8)
    assert found(model, rows, max_bytes=ROWS * size * 8, groups={"last": ["fc3.bias"]}).matrices["last"].shape == (
        ROWS,
        4,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": {}}, "expected at least one group"),
        ({"groups": {"a": []}}, "expected names of tensors in group 'a'"),
        ({"groups": {"a": "fc3.bias"}}, "expected names of tensors in group 'a', got 'fc3.bias'"),
        ({"groups": {"a": ["fc3.b"]}}, "no shared tensor; is it 'fc3.bias'"),
        ({"batches": torch.arange(3)}, r"expected places of rows, \(n, k\) int64, got \(3,\)"),
        ({"batches": torch.tensor([[ROWS]])}, "expected places from 0 to 9, got 10 to 10"),
    ],
    ids=["none", "empty", "text", "misspelled", "flat", "range"],
)
def test_unfit_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    model, rows = digits()
    with pytest.raises(InputError, match=message):
        found(model, rows, **settings)


def test_batches_of_one_value_hold_that_value_alone_and_no_row_twice() -> None:
    sensitive = torch.randint(3, (60,), generator=generator(8))
    batches, values = batches_of_one_value(sensitive, count=4, size=8, generator=generator(9))
    assert batches.shape == (12, 8)
    assert values.bincount().tolist() == [4, 4, 4]
    assert torch.equal(sensitive[batches], values[:, None].expand(-1, 8))
    assert all(len(set(places.tolist())) == 8 for places in batches)
    again, _ = batches_of_one_value(sensitive, count=4, size=8, generator=generator(9))
    assert torch.equal(batches, again)
    with pytest.raises(InputError, match="the rows with value"):
        batches_of_one_value(sensitive, count=1, size=50, generator=generator())
    with pytest.raises(InputError, match="int64"):
        batches_of_one_value(sensitive.float(), count=1, size=1, generator=generator())
