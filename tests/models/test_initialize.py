import pytest
import torch
from scipy.stats import kstest
from torch import nn

from gradleak.models import (
    initialize_default,
    initialize_uniform,
    lenet_dlg,
    lenet_i2f,
    linear_model,
    mlp,
    resnet8,
    resnet18,
)
from gradleak.results.errors import InputError, UnsupportedError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def torch_builds(seed: int) -> nn.Sequential:
    """The network as torch itself constructs and draws it, its global RNG lent for the moment."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(generator(seed).get_state())
        return nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ConvTranspose2d(4, 5, 3, bias=False),
            nn.GroupNorm(5, 5),
            nn.Conv1d(5, 6, 2),
            nn.Embedding(7, 3, padding_idx=2),
            nn.LayerNorm(3),
            nn.Linear(3, 2),
            nn.Linear(2, 2, bias=False),
        )


def test_default_gives_the_bits_that_torch_draws() -> None:
    model = torch_builds(1)
    assert initialize_default(model, generator=generator(2)) is model
    expected = torch_builds(2).state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_default_resets_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2))
    model(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    initialize_default(model, generator=generator())
    assert torch.equal(model[0].running_mean, torch.zeros(2))
    assert int(model[0].num_batches_tracked) == 0


def test_default_refuses_an_unknown_layer_and_changes_nothing() -> None:
    model = nn.Sequential(torch_builds(1), nn.PReLU())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedError, match="PReLU at '1'"):
        initialize_default(model, generator=generator())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_uniform_fills_the_range() -> None:
    model = nn.Sequential(nn.utils.skip_init(nn.Linear, 60, 50), nn.utils.skip_init(nn.Linear, 50, 10))
    assert initialize_uniform(model, low=-0.5, high=0.5, generator=generator()) is model
    drawn = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    assert drawn.min() >= -0.5
    assert drawn.max() < 0.5
    assert kstest(drawn.numpy(), "uniform", args=(-0.5, 1.0)).pvalue > 0.01


def test_uniform_repeats_with_its_seed_only() -> None:
    def weights(seed: int) -> torch.Tensor:
        return initialize_uniform(nn.utils.skip_init(nn.Linear, 3, 2), generator=generator(seed)).weight

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.5), (1.0, -1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_uniform_refuses_an_empty_range(low: float, high: float) -> None:
    model = nn.utils.skip_init(nn.Linear, 1, 1)
    with pytest.raises(InputError, match="finite low < high"):
        initialize_uniform(model, low=low, high=high, generator=generator())


def test_sizes_that_are_none_and_other_generators_are_refused() -> None:
    for build, sizes, name in (
        (lenet_i2f, {"size": 0}, "size"),
        (lenet_dlg, {"channels": -1}, "channels"),
        (mlp, {"features": 3, "classes": 0}, "classes"),
        (mlp, {"features": 3, "classes": 2, "hidden": (4, 0)}, r"hidden\[1\]"),
        (linear_model, {"features": 2.5, "classes": 2}, "features"),
        (resnet8, {"classes": "10"}, "classes"),
        (resnet18, {"channels": True}, "channels"),
    ):
        with pytest.raises(InputError, match=f"{name}: expected a whole number of at least 1, got"):
            build(**sizes)
    with pytest.raises(InputError, match=r"generator: expected a torch\.Generator or None, got int"):
        linear_model(features=2, classes=2, generator=5)
