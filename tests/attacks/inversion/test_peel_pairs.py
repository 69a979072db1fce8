"""Two examples behind one gradient: both to round-off where the head tells them apart, nothing where it does not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import Peel
from gradleak.core import Batch, Domain, Reconstruction
from gradleak.defenses import GaussianNoise
from gradleak.models import initialize_default, lenet_i2f, resnet8
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import Setting, rows, setting, small_net

SMALL = Domain.image(channels=1, height=12, width=12, mean=(0.4,), std=(0.3,))


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _run(case: Setting) -> Reconstruction:
    return Peel()(case.update, case.knowledge, generator=_generator())


def _apart(case: Setting, found: Reconstruction) -> float:
    """Largest error, in the better of two orders."""
    assert found.inputs is not None
    truth = case.truth.inputs
    return min(float((found.inputs.flip(0) if turn else found.inputs).sub(truth).abs().max()) for turn in (True, False))


def _wide(seed: int) -> nn.Module:
    network = nn.Sequential(nn.Linear(12, 80), nn.ReLU(), nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 4))
    return initialize_default(network, generator=_generator(seed)).double()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("labels", [(0, 2), (1, 1)], ids=["two labels", "one label"])
def test_two_rows_are_read_to_round_off(seed: int, labels: tuple[int, int]) -> None:
    case = setting(_wide(seed), rows(*labels, seed=seed))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert found.plain_gradients == 1
    assert _apart(case, found) < 1e-10


def test_two_images_on_a_lenet_are_read_to_round_off() -> None:
    levels = torch.randint(256, (2, 1, 12, 12), generator=_generator(0))
    truth = Batch(SMALL.from_pixels(levels.double() / 255), torch.tensor([3, 5]), SMALL)
    case = setting(lenet_i2f(size=12, activation="relu", generator=_generator(0)), truth)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert _apart(case, found) < 1e-8
    assert [layer["unknowns"] for layer in found.details["inputs_of"]] == [216, 216, 216, 864, 288]
    assert found.targets is None or sorted(found.targets.tolist()) == [3, 5]


@pytest.mark.parametrize("seed", range(12))
def test_what_is_called_converged_is_right(seed: int) -> None:
    # Few units: of some pairs none is active for one example alone.
    network = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 4))
    case = setting(initialize_default(network, generator=_generator(seed)).double(), rows(0, 2, seed=seed))
    found = _run(case)
    if found.outcome is Outcome.CONVERGED:
        assert _apart(case, found) < 1e-8
    else:
        assert found.outcome is Outcome.NOT_IDENTIFIABLE


def test_rays_without_witnesses_are_ambiguous() -> None:
    # All units are active for both: any two rays that hold their columns explain the head.
    network = _wide(0)
    nn.init.constant_(network[2].get_parameter("bias"), 5.0)
    found = _run(setting(network, rows(0, 2)))
    assert found.inputs is None
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "ambiguous" in found.note


def test_two_examples_under_noise_or_behind_a_sigmoid_are_not_told_apart() -> None:
    for case, said in (
        (setting(_wide(0), rows(0, 2), defenses=[GaussianNoise(std=1e-6)]), "under noise"),
        (setting(small_net(activation="sigmoid"), rows(0, 2)), "units of a ReLU"),
    ):
        found = _run(case)
        assert found.inputs is None
        assert said in found.note


def test_three_examples_and_pairs_behind_skip_connections_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="one example or two apart, got 3"):
        _run(setting(small_net(activation="relu"), rows(0, 1, 2)))
    network = resnet8(classes=3, channels=1)
    network.pool, network.linear = nn.Identity(), nn.Linear(64 * 9, 3)
    levels = torch.rand(2, 1, 12, 12, generator=_generator(), dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="chain of layers, got a skip"):
        _run(setting(network, Batch(levels, torch.tensor([0, 1]), SMALL)))
