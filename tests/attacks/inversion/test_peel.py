"""Peeling: round-off where the equations determine the example, and nothing sold as certain where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import Peel
from gradleak.attacks.inversion.peel.attack import _contradiction
from gradleak.attacks.inversion.peel.completion import alone_on_grid
from gradleak.attacks.inversion.peel.network import read_chain
from gradleak.attacks.inversion.peel.peeling import Shared
from gradleak.attacks.inversion.peel.systems import Solution
from gradleak.core import Batch, Defense, Domain, DomainKind, HonestButCurious, Objective, Reconstruction
from gradleak.defenses import Clip, GaussianNoise, Prune
from gradleak.models import initialize_default, lenet_i2f, resnet8
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import Setting, rows, setting, small_net

SMALL = Domain.image(channels=1, height=12, width=12)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _image(domain: Domain, label: int = 3, seed: int = 1) -> Batch:
    levels = torch.randint(256, (1, *domain.shape), generator=_generator(seed))
    return Batch(domain.from_pixels(levels.double() / 255), torch.tensor([label]), domain)


def _run(case: Setting, attack: Peel | None = None) -> Reconstruction:
    return (attack or Peel())(case.update, case.knowledge, generator=_generator())


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_an_image_on_a_lenet_is_read_to_round_off_at_one_gradient(activation: str) -> None:
    case = setting(lenet_i2f(size=12, activation=activation, generator=_generator()), _image(SMALL))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert found.plain_gradients == 1
    assert found.targets is not None
    assert found.targets.tolist() == [3]
    assert case.error(found.inputs) < 1e-22
    assert found.details["relative_residual"] < 1e-12
    assert [layer["layer"] for layer in found.details["inputs_of"]] == [f"{n}.weight" for n in (9, 6, 4, 2, 0)]
    assert all(layer["null"] == 0 for layer in found.details["inputs_of"])


@pytest.mark.parametrize("seed", range(8))
def test_table_rows_are_read_to_round_off(seed: int) -> None:
    case = setting(small_net(activation="relu", seed=seed), rows(seed % 3, seed=seed))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-24


@pytest.mark.parametrize("bend", [nn.LeakyReLU(0.1), nn.ELU(0.7), nn.Softplus()], ids=repr)
def test_activations_are_inverted_in_double_precision(bend: nn.Module) -> None:
    network = nn.Sequential(nn.Linear(12, 20), bend, nn.Linear(20, 9), bend, nn.Linear(9, 3))
    case = setting(initialize_default(network, generator=_generator()).double(), rows(1))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-24


def test_a_float32_update_is_read_to_its_own_round_off() -> None:
    case = setting(lenet_i2f(size=12, activation="relu", generator=_generator()), _image(SMALL), dtype=torch.float32)
    found = _run(case)
    assert case.error(found.inputs) < 1e-10
    assert found.outcome is Outcome.CONVERGED


class _Assembled(nn.Module):
    """What a chain may hold: normalization before and behind, stride, groups, dilation, pooling before a bend, no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 24, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(24)
        self.second = nn.Conv2d(24, 16, 3, padding=2, dilation=2, groups=2)
        self.pool = nn.AvgPool2d(2, stride=1)
        self.third = nn.Linear(400, 40)
        self.head = nn.Linear(40, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first((x - 0.4) / 0.3)).relu()
        x = torch.tanh(self.pool(self.second(x)))
        x = torch.relu(self.third(x.view(x.size(0), -1)))
        logits: Tensor = self.head(x)
        return logits


def _assembled() -> nn.Module:
    network = initialize_default(_Assembled(), generator=_generator(0))
    for values, low, high, seed in (
        (network.norm.running_mean, -0.2, 0.2, 1),
        (network.norm.running_var, 0.5, 1.5, 2),
    ):
        assert values is not None
        values.uniform_(low, high, generator=_generator(seed))
    nn.init.uniform_(network.norm.weight, 0.5, 1.5, generator=_generator(3))
    return network.double()


def test_a_network_of_many_parts_is_read_in_the_units_of_its_domain() -> None:
    domain = Domain.image(channels=2, height=12, width=12, mean=(0.3, 0.6), std=(0.2, 0.4))
    case = setting(_assembled(), _image(domain))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-20


def test_a_signal_is_read_through_convolutions_of_one_axis() -> None:
    domain = Domain(shape=(2, 20), kind=DomainKind.SIGNAL)
    network = nn.Sequential(nn.Conv1d(2, 16, 5, padding="same"), nn.ELU(), nn.Flatten(), nn.Linear(320, 4)).double()
    truth = Batch(torch.rand(1, 2, 20, generator=_generator()), torch.tensor([1]), domain)
    case = setting(network, truth)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-20


def _narrow(seed: int = 0) -> nn.Module:
    """A first layer that does not determine its input."""
    network = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5))
    return initialize_default(network, generator=_generator(seed)).double()


def _smooth() -> Batch:
    """A bright square on a dark ground, on the grid of 8 bits."""
    image = torch.full((1, 1, 12, 12), 40 / 255, dtype=torch.float64)
    image[..., 3:9, 4:10] = 200 / 255
    return Batch(image, torch.tensor([2]), SMALL)


def test_what_is_left_open_is_filled_and_the_grid_certifies_it() -> None:
    case = setting(_narrow(), _smooth())
    found = _run(case)
    assert found.details["inputs_of"][-1]["null"] > 0
    assert found.outcome is Outcome.CONVERGED
    assert "256 levels" in found.note
    assert found.inputs is not None
    assert isinstance(case.truth.inputs, Tensor)
    assert torch.equal((found.inputs * 255).round(), (case.truth.inputs * 255).round())


def test_pixels_that_no_active_unit_reads_are_no_part_of_a_certificate() -> None:
    # The filled image is the true one here, and nine of its pixels could be anything.
    case = setting(_narrow(seed=3), _smooth())
    found = _run(case)
    assert found.details["relative_residual"] < 1e-12
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.note.endswith("256 levels satisfies all equations, as others may")


def _first(layer: nn.Module, made: int) -> nn.Module:
    network = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(made, 5))
    return initialize_default(network, generator=_generator(3)).double()


@pytest.mark.parametrize(
    "network",
    [
        _first(nn.Conv2d(1, 4, 1, stride=2), 144),
        _first(nn.Sequential(nn.Conv2d(1, 4, 1), nn.AvgPool2d(2)), 144),
        _first(nn.Sequential(nn.Conv2d(1, 4, 1), nn.AvgPool2d(3)), 64),
    ],
    ids=["read by none", "read in sums of four", "read in sums of nine"],
)
def test_an_image_that_is_one_of_many_on_the_grid_is_not_called_certain(network: nn.Module) -> None:
    assert _run(setting(network, _smooth())).outcome is Outcome.NOT_IDENTIFIABLE


def test_equations_fewer_than_the_grid_has_images_are_no_certificate() -> None:
    network = _first(nn.Conv2d(1, 2, 3, stride=2, padding=1), 72)
    for std in (1e-4, 1e-3):
        found = _run(setting(network, _image(SMALL), defenses=[GaussianNoise(std=std)]))
        assert found.outcome is Outcome.NOT_IDENTIFIABLE


def test_a_gradient_of_zeros_has_the_round_off_of_the_others() -> None:
    # Of a black image; 1e300 as weight of its equations overflows their squares.
    shared = Shared(gradients={"first": torch.zeros(3), "head": torch.ones(3)}, stds={}, eps=1e-16)
    assert shared.std("first") == shared.std("head") > 1e-17


def test_equations_that_contradict_each_other_are_told() -> None:
    layer = {"layer": "0.weight", "misfit": 4.2, "equations": 16, "rank": 12}
    assert "0.weight contradict each other, 4.2 times" in _contradiction(layer)
    assert not _contradiction(layer | {"misfit": 1.5})
    assert not _contradiction(layer | {"misfit": 2.1, "equations": 13})


def test_two_levels_and_few_equations_are_no_certificate() -> None:
    gram = torch.eye(8, dtype=torch.float64) * 1e8
    gram[0, 1] = gram[1, 0] = 1e8
    alike = Solution(
        values=torch.zeros(8),
        stds=torch.ones(8),
        open=torch.zeros(8, 1),
        rank=7,
        condition=1.0,
        rows=7,
        misfit=1.0,
        volume=-100.0,
    )
    # The first two pixels are read as their sum.
    assert not alone_on_grid(alike, gram, 1, 1.0)
    gram[0, 1] = gram[1, 0] = 0.0
    assert alone_on_grid(alike, gram, 1, 1.0)
    # Of 256 images on the grid some come so near by chance.
    assert not alone_on_grid(replace(alike, volume=-10.0), gram, 1, 1.0)


@pytest.mark.parametrize("attack", [Peel(), Peel(levels=0), Peel(complete=False)])
def test_an_open_direction_without_a_certificate_is_not_sold_as_certain(attack: Peel) -> None:
    # Total variation knows nothing of noise, and the grid does not mend it.
    case = setting(_narrow(), _image(SMALL))
    found = _run(case, attack)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "directions open" in found.note
    assert case.error(found.inputs) > 1e-4


@pytest.mark.parametrize("seed", range(6))
def test_under_noise_only_what_explains_the_update_is_called_converged(seed: int) -> None:
    network, truth = lenet_i2f(size=12, activation="relu", generator=_generator(seed)), _image(SMALL, seed=seed)
    for std, clear in ((1e-9, True), (1e-5, False), (1e-2, False)):
        case = setting(network, truth, defenses=[GaussianNoise(std=std)], seed=seed)
        found = _run(case)
        assert found.outcome is Outcome.CONVERGED or not clear
        if found.outcome is Outcome.CONVERGED:
            assert case.error(found.inputs) < 1e-2


def test_units_that_are_all_off_end_the_way() -> None:
    network = small_net(activation="relu")
    nn.init.constant_(network[2].get_parameter("bias"), -100.0)
    found = _run(setting(network, rows(1)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.inputs is None
    assert "active" in found.note or "zero" in found.note


def _headed(bend: nn.Module, classes: int, *tail: nn.Module, bias: bool = False) -> nn.Module:
    network = nn.Sequential(nn.Linear(12, 20), bend, nn.Linear(20, classes, bias=bias), *tail)
    return initialize_default(network, generator=_generator(0)).double()


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("bend", [nn.ReLU(), nn.Tanh()], ids=["relu", "tanh"])
def test_without_a_bias_of_the_head_the_loss_tells_the_size_and_the_label(bend: nn.Module, classes: int) -> None:
    case = setting(_headed(bend, classes), rows(1))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert found.targets is not None
    assert found.targets.tolist() == [1]
    assert case.error(found.inputs) < 1e-24


def test_targets_that_are_no_classes_have_to_be_told_for_a_head_without_bias() -> None:
    row = rows(1)
    truth = Batch(row.inputs, torch.rand(1, 3, generator=_generator()), row.domain)
    told = setting(_headed(nn.ReLU(), 3), truth, loss="mse", threat=HonestButCurious(targets=True))
    assert told.error(_run(told).inputs) < 1e-24
    found = _run(setting(_headed(nn.ReLU(), 3), truth, loss="mse"))
    assert found.inputs is None
    assert "bias is not shared" in found.note


def test_two_sizes_that_explain_the_loss_are_told() -> None:
    # Without any bias, s x has the outputs s o(x): of two classes two sizes have the gradient, both of them in the range.
    network = nn.Sequential(nn.Linear(12, 30, bias=False), nn.ReLU(), nn.Linear(30, 2, bias=False))
    network = initialize_default(network, generator=_generator(0)).double()
    with torch.no_grad():
        network[2].get_parameter("weight").mul_(100)
    found = _run(setting(network, rows(1)))
    assert found.plain_gradients == 2
    assert found.details["relative_residual"] < 1e-12
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "another size" in found.note


@pytest.mark.parametrize("bias", [True, False])
def test_what_follows_the_head_may_be_anything(bias: bool) -> None:
    case = setting(_headed(nn.ReLU(), 3, nn.LogSoftmax(dim=1), bias=bias), rows(1), loss="nll")
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert found.plain_gradients == 1
    assert case.error(found.inputs) < 1e-24


def test_half_formats_are_held_to_their_own_round_off() -> None:
    def allowed(eps: float) -> float:
        ones = {"head": torch.ones(3)}
        return Shared(gradients=ones, stds={}, eps=eps).floor(ones) / 3**0.5

    assert [allowed(eps) for eps in (2.0**-7, 2.0**-10, 2.0**-23)] == pytest.approx([2.0**-5, 0.01, 2.0**-17])


class _Residual(nn.Module):
    """A stem, a block with an identity on its skip, and one with a convolution there, with normalization everywhere."""

    def __init__(self, bend: nn.Module, channels: int = 8) -> None:
        super().__init__()
        wide = 2 * channels
        shapes = {"stem": (1, channels), "one": (channels, channels), "two": (channels, channels)}
        shapes |= {"three": (channels, wide), "four": (wide, wide)}
        for name, (given, made) in shapes.items():
            convolution = nn.Conv2d(given, made, 3, stride=2 if name == "three" else 1, padding=1, bias=False)
            self.add_module(name, nn.Sequential(convolution, nn.BatchNorm2d(made)))
        self.side = nn.Sequential(nn.Conv2d(channels, wide, 1, stride=2, bias=False), nn.BatchNorm2d(wide))
        self.bend, self.head = bend, nn.Linear(16 * wide, 5)

    def forward(self, x: Tensor) -> Tensor:
        part, bend = self.get_submodule, self.bend
        x = bend(part("stem")(x))
        x = bend(part("two")(bend(part("one")(x))) + x)
        x = bend(part("four")(bend(part("three")(x))) + self.side(x))
        logits: Tensor = self.head(x.flatten(1))
        return logits


def _residual(bend: nn.Module, channels: int = 8, seed: int = 0) -> nn.Module:
    network = initialize_default(_Residual(bend, channels), generator=_generator(seed))
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            assert part.running_mean is not None
            part.running_mean.uniform_(-0.2, 0.2, generator=_generator(seed))
    return network.double()


TINY = Domain.image(channels=1, height=8, width=8, mean=(0.4,), std=(0.3,))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bend", [nn.ReLU(), nn.Tanh()], ids=["relu", "tanh"])
def test_an_image_behind_skip_connections_is_read_to_round_off(bend: nn.Module, seed: int) -> None:
    case = setting(_residual(bend, seed=seed), _image(TINY, seed=seed))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert found.plain_gradients == 1
    assert case.error(found.inputs) < 1e-20
    # The value before the second block is read by two layers.
    assert [layer["layer"].count(".weight") for layer in found.details["inputs_of"]] == [1, 1, 2, 1, 1, 1]


def test_under_noise_both_branches_count_for_what_they_are_off() -> None:
    case = setting(_residual(nn.ReLU()), _image(TINY), defenses=[GaussianNoise(std=1e-9)])
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-8
    assert all(layer["misfit"] < 2 for layer in found.details["inputs_of"])


def test_two_values_of_a_sum_are_solved_together_where_one_alone_lacks_rank() -> None:
    # A kernel of one entry: a weight of 12 rows has 12 equations a channel for 16 pixels.
    class Narrow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 12, 1)
            self.side, self.head = nn.Conv2d(1, 12, 3, padding=1), nn.Linear(192, 5)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.second(torch.tanh(self.first(x))) + self.side(x))
            logits: Tensor = self.head(hidden.flatten(1))
            return logits

    domain = Domain.image(channels=1, height=4, width=4)
    case = setting(initialize_default(Narrow(), generator=_generator(2)).double(), _image(domain))
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-20
    assert found.details["inputs_of"][1]["equations"] == 192 + 12 * 12 + 9 * 12


def test_a_branch_that_lacks_rank_ends_the_way() -> None:
    found = _run(setting(_residual(nn.ReLU(), channels=3), _image(TINY)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.inputs is None
    assert "directions open" in found.note


class _Pooled(nn.Sequential):
    """Pooling behind an activation."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), pool, nn.Flatten(), nn.Linear(144, 3))


class _Around(nn.Module):
    """An output that the last layer is not all of."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(144, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        logits: Tensor = self.head(hidden) + hidden
        return logits


class _Twice(nn.Module):
    """One layer that is called two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(144, 144), nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.layer(x.flatten(1)).relu()).relu())
        return logits


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (resnet8(classes=3, channels=1), "pooling hides"),
        (_Around(), "goes around"),
        (_Pooled(nn.MaxPool2d(2)), "pooling hides"),
        (_Pooled(nn.AvgPool2d(2)), "pooling hides"),
        (lenet_i2f(size=12, activation="gelu"), "GELU"),
        (nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3)), "at one position"),
        (_Twice(), "called once"),
    ],
    ids=["resnet", "around", "max", "mean", "gelu", "rows", "twice"],
)
def test_networks_that_are_no_chain_are_refused_by_name(network: nn.Module, said: str) -> None:
    case = setting(network, _image(SMALL, label=1))
    with pytest.raises(UnsupportedError, match=said):
        _run(case)


@pytest.mark.parametrize("defense", [Clip(max_norm=1e-3), Prune(ratio=0.5)], ids=["clip", "prune"])
def test_releases_that_are_not_the_gradient_are_refused(defense: Defense) -> None:
    case = setting(small_net(activation="relu"), rows(1), defenses=[defense])
    with pytest.raises(UnsupportedError, match="needs the gradient itself"):
        _run(case)


@pytest.mark.parametrize("loss", ["mse", "bce_with_logits"])
def test_labels_are_not_needed(loss: str) -> None:
    targets = torch.rand(1, 3, generator=_generator())
    row = rows(1)
    case = setting(small_net(activation="relu"), Batch(row.inputs, targets, row.domain), loss=loss)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-24
    assert found.targets is None


def test_a_batch_is_refused() -> None:
    case = setting(small_net(activation="relu"), rows(1, 2, 0))
    with pytest.raises(UnsupportedError, match="one example or two apart, got 3"):
        _run(case)


def test_the_chain_computes_what_the_network_does() -> None:
    network = _assembled().eval()
    domain = Domain.image(channels=2, height=12, width=12)
    chain = read_chain(Objective.from_module(network), domain)
    stages = chain.stages
    value = torch.rand(3, 2, 12, 12, dtype=torch.float64, generator=_generator())
    image, expected = value, network(value)
    bends = [torch.relu, torch.tanh, torch.relu]
    for stage, bend in zip(stages, [*bends, torch.clone], strict=True):
        value = bend(stage.output(value.reshape(3, *stage.shape) * stage.scale + stage.shift))
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(chain.trunk(image), expected, rtol=1e-12, atol=1e-12)
