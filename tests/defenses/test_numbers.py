"""Settings of every defense that are no numbers in their range are refused in one line that names the field."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradleak.defenses
from gradleak.attacks.inversion import LayerWeights, SquaredError
from gradleak.core import Defense
from gradleak.defenses import (
    DPSGD,
    AdversarialPerturbation,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    ClipTensorsPerExample,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Outpost,
    Prune,
    Quantize,
    RandomSparsify,
    Sign,
    Soteria,
    SpectralNoise,
    TopK,
    VariationalBottleneck,
)
from gradleak.results import InputError

SUM: dict[str, Any] = {"clip_norm": 1.0, "noise_std": 1.0, "noise": "sum"}
IDENTITY = nn.Identity()
NUMBERS: dict[tuple[type, str], Callable[[Any], object]] = {
    (AdversarialPerturbation, "gamma"): lambda v: AdversarialPerturbation(classifier=IDENTITY, gamma=v),
    (AdversarialPerturbation, "alpha"): lambda v: AdversarialPerturbation(classifier=IDENTITY, alpha=v),
    (AdversarialPerturbation, "steps"): lambda v: AdversarialPerturbation(classifier=IDENTITY, steps=v),
    (AdversarialPerturbation, "target"): lambda v: AdversarialPerturbation(classifier=IDENTITY, target=v),
    (Clip, "max_norm"): Clip,
    (ClipPerExample, "max_norm"): ClipPerExample,
    (ClipPerLayer, "max_norm"): ClipPerLayer,
    (ClipTensorsPerExample, "max_norm"): ClipTensorsPerExample,
    (ClipTensorsPerExample, "weights"): lambda v: ClipTensorsPerExample(1.0, weights={"0": v}),
    (DPSGD, "clip_norm"): lambda v: DPSGD(**(SUM | {"clip_norm": v})),
    (DPSGD, "noise_std"): lambda v: DPSGD(**(SUM | {"noise_std": v})),
    (DPSGD, "expected_batch_size"): lambda v: DPSGD(**SUM, expected_batch_size=v),
    (GaussianNoise, "std"): lambda v: GaussianNoise(std=v),
    (LaplaceNoise, "scale"): lambda v: LaplaceNoise(scale=v),
    (LayerNoise, "std"): lambda v: LayerNoise(std={"0": v}),
    (LayerNoise, "default"): lambda v: LayerNoise(std={}, default=v),
    (Outpost, "iteration"): lambda v: Outpost(iteration=v),
    (Outpost, "decay"): lambda v: Outpost(decay=v),
    (Outpost, "noised"): lambda v: Outpost(noised=v),
    (Outpost, "pruned"): lambda v: Outpost(pruned=v),
    (Outpost, "scale"): lambda v: Outpost(scale=v),
    (Prune, "ratio"): Prune,
    (Quantize, "bits"): lambda v: Quantize(bits=v),
    (Quantize, "limit"): lambda v: Quantize(bits=4, limit=v),
    (RandomSparsify, "share"): RandomSparsify,
    (Soteria, "share"): lambda v: Soteria(layer="0", share=v),
    (SpectralNoise, "norm"): lambda v: SpectralNoise(norm=v),
    (SpectralNoise, "directions"): lambda v: SpectralNoise(norm=1.0, directions=v),
    (SpectralNoise, "dense_limit"): lambda v: SpectralNoise(norm=1.0, dense_limit=v),
    (TopK, "share"): TopK,
    (VariationalBottleneck, "beta"): lambda v: VariationalBottleneck(beta=v),
    (VariationalBottleneck, "width"): lambda v: VariationalBottleneck(width=v),
}
FLAGS: dict[tuple[type, str], Callable[[Any], object]] = {
    (Quantize, "stochastic"): lambda v: Quantize(bits=4, stochastic=v),
    (RandomSparsify, "unbiased"): lambda v: RandomSparsify(0.5, unbiased=v),
}
OTHERS = {
    (AdversarialPerturbation, "classifier"),
    (DPSGD, "noise"),
    (Prune, "by"),
    (Quantize, "range"),
    (Soteria, "layer"),
    (TopK, "by"),
}
# Where None has a meaning.
OPEN = {(AdversarialPerturbation, "target"), (DPSGD, "expected_batch_size"), (Quantize, "limit")}
BAD = [True, False, "0.1", None, math.nan, math.inf, -1, -0.5, torch.tensor(0.1), [1.0], 1j]


def test_every_field_of_every_defense_is_looked_at() -> None:
    exported = [value for value in vars(gradleak.defenses).values() if inspect.isclass(value)]
    defenses = [value for value in exported if issubclass(value, Defense)]
    assert Sign in defenses
    fields = {(defense, name) for defense in defenses for name in inspect.signature(defense).parameters}
    assert fields == set(NUMBERS) | set(FLAGS) | OTHERS


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: f"{field[0].__name__}.{field[1]}")
def test_what_is_no_number_in_range_is_refused(field: tuple[type, str], bad: Any) -> None:
    if bad is None and field in OPEN:
        NUMBERS[field](bad)
        return
    with pytest.raises(InputError, match=rf"^{field[0].__name__}\.{field[1]}.*: expected .*, got "):
        NUMBERS[field](bad)


@pytest.mark.parametrize("bad", ["yes", "False", 1, 0, None, 0.5, math.nan], ids=repr)
@pytest.mark.parametrize("field", FLAGS, ids=lambda field: f"{field[0].__name__}.{field[1]}")
def test_what_is_no_truth_value_is_refused(field: tuple[type, str], bad: Any) -> None:
    with pytest.raises(InputError, match=rf"^{field[0].__name__}\.{field[1]}: expected True or False, got "):
        FLAGS[field](bad)
    assert {FLAGS[field](value) for value in (True, False)}


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_noise_multiplier_that_is_no_positive_number_is_refused(bad: Any) -> None:
    with pytest.raises(InputError, match=r"^DPSGD\.noise_multiplier: expected a finite positive number"):
        DPSGD.from_noise_multiplier(bad, clip_norm=1.0)
    with pytest.raises(InputError, match=r"^DPSGD\.clip_norm: expected a finite positive number"):
        DPSGD.from_noise_multiplier(1.0, clip_norm=bad)


@pytest.mark.parametrize("bad", [value for value in BAD if not isinstance(value, list)], ids=repr)
@pytest.mark.parametrize("name", ["0", "default"])
def test_weights_and_noise_of_a_layer_called_default_are_looked_at_too(name: str, bad: Any) -> None:
    with pytest.raises(InputError, match=rf"LayerNoise\.std\['{name}'\]: expected"):
        LayerNoise(std={name: bad})
    with pytest.raises(InputError, match=rf"LayerWeights\.weights\['{name}'\]: expected"):
        LayerWeights(matching=SquaredError(), weights={name: bad})
    with pytest.raises(InputError, match=r"LayerWeights\.default: expected"):
        LayerWeights(matching=SquaredError(), weights={name: 1.0}, default=bad)
