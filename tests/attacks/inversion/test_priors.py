"""Priors against numbers worked out by hand and by plain modules of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import (
    BatchNormStatistics,
    GroupConsistency,
    Guess,
    MeanSquare,
    Statistics,
    TotalVariation,
    Translation,
)
from gradleak.core import (
    Batch,
    Domain,
    DomainKind,
    LayerStatistics,
    Objective,
    batch_norm_statistics,
    running_statistics,
    watch_batch_norm,
)
from gradleak.results import InputError


def test_an_image_by_hand() -> None:
    image = torch.tensor([[[[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]]])
    # Along rows: |1| |2| |0| |0|, mean 3/4; along columns: |2| |1| |1|, mean 4/3.
    domain = Domain.image(channels=1, height=2, width=3)
    assert float(TotalVariation(weight=1.0)(Guess(inputs=image, domain=domain))) == pytest.approx(3 / 4 + 4 / 3)
    assert float(TotalVariation(weight=0.5)(Guess(inputs=image, domain=domain))) == pytest.approx((3 / 4 + 4 / 3) / 2)


def test_channels_and_examples_are_averaged() -> None:
    ramp = torch.arange(4.0).reshape(1, 1, 1, 4).expand(2, 3, 5, 4).clone()
    ramp[1] *= 3
    domain = Domain.image(channels=3, height=5, width=4)
    assert float(TotalVariation(weight=1.0)(Guess(inputs=ramp, domain=domain))) == pytest.approx((1 + 3) / 2)


def test_a_signal_has_one_axis_and_a_table_none() -> None:
    numbers = torch.tensor([[[0.0, 2.0, 3.0]]])
    signal = Domain(shape=(1, 3), kind=DomainKind.SIGNAL)
    assert float(TotalVariation(weight=1.0)(Guess(inputs=numbers, domain=signal))) == pytest.approx(1.5)
    table = Domain(shape=(1, 3), kind=DomainKind.TABULAR)
    assert float(TotalVariation(weight=1.0)(Guess(inputs=numbers, domain=table))) == 0.0


def test_an_image_of_one_pixel_has_none() -> None:
    domain = Domain.image(channels=1, height=1, width=1)
    assert float(TotalVariation(weight=1.0)(Guess(inputs=torch.ones(1, 1, 1, 1), domain=domain))) == 0.0


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(InputError, match="at least 0"):
        TotalVariation(weight=-1.0)


def test_the_definitions_of_published_codes_are_this_one() -> None:
    """Inverting Gradients and GradAttack: mean |dx| + mean |dy|, written out as they have it."""
    x = torch.rand(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))
    dx = (x[:, :, :, :-1] - x[:, :, :, 1:]).abs().mean()
    dy = (x[:, :, :-1, :] - x[:, :, 1:, :]).abs().mean()
    domain = Domain.image(channels=3, height=7, width=9)
    torch.testing.assert_close(TotalVariation(weight=1.0)(Guess(inputs=x, domain=domain)), dx + dy)


def test_the_energy_by_hand() -> None:
    numbers = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
    domain = Domain(shape=(2,), kind=DomainKind.TABULAR)
    assert float(MeanSquare(weight=2.0)(Guess(inputs=numbers, domain=domain))) == pytest.approx(2.0 * 14 / 4)


class Normalized(nn.Module):
    """Two convolutions and a linear layer, each before a BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.second, self.two = nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)
        self.head, self.three = nn.Linear(2 * 4 * 3, 5), nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.two(self.second(self.one(self.first(x)).relu()))
        return self.three(self.head(x.flatten(1)))


IMAGE = Domain.image(channels=1, height=8, width=7)


def _normalized(mode: str) -> tuple[Normalized, Objective, Batch]:
    with torch.random.fork_rng():
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        net = Normalized().double()
    generator = torch.Generator().manual_seed(1)
    for part in (net.one, net.two, net.three):
        part.running_mean.copy_(torch.randn(part.num_features, generator=generator))
        part.running_var.copy_(torch.rand(part.num_features, generator=generator) + 0.5)
    inputs = torch.rand(4, 1, 8, 7, generator=generator, dtype=torch.float64)
    return net, Objective.from_module(net, mode=mode), Batch(inputs, torch.tensor([0, 1, 2, 3]), IMAGE)


def _entering(net: Normalized, inputs: torch.Tensor, *, train: bool) -> dict[str, torch.Tensor]:
    """What enters the BatchNorm layers, channels first and all else in a row; without any hook."""
    net.train(train)
    one = net.first(inputs)
    two = net.second(net.one(one).relu())
    three = net.head(net.two(two).flatten(1))
    return {name: t.detach().transpose(0, 1).flatten(1) for name, t in {"one": one, "two": two, "three": three}.items()}


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_norm_statistics_by_plain_modules(mode: str) -> None:
    net, objective, batch = _normalized(mode)
    expected = running_statistics(objective)
    with watch_batch_norm(objective) as layers:
        objective.outputs(objective.params, batch.inputs)
    found = BatchNormStatistics(weight=0.3)(Guess(inputs=batch.inputs, domain=IMAGE, layers=layers, expected=expected))
    total = 0.0
    remembered = {name: (part.running_mean.clone(), part.running_var.clone()) for name, part in net.named_children()
                  if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)}  # fmt: skip
    for name, values in _entering(net, batch.inputs, train=mode == "train").items():
        mean, variance = remembered[name]
        total += float((values.mean(1) - mean).norm() + (values.var(1, unbiased=False) - variance).norm())
    assert set(expected) == {"one", "two", "three"}
    assert float(found) == pytest.approx(0.3 * total, rel=1e-12)


def test_exact_statistics_are_at_zero_with_a_finite_slope() -> None:
    _, objective, batch = _normalized("train")
    known = batch_norm_statistics(objective, batch.inputs)

    def penalty(inputs: torch.Tensor) -> torch.Tensor:
        with watch_batch_norm(objective) as layers:
            objective.outputs(objective.params, inputs)
        return BatchNormStatistics(weight=1.0, statistics=Statistics.KNOWN)(
            Guess(inputs=inputs, domain=IMAGE, layers=layers, expected=known)
        )

    slope, value = torch.func.grad_and_value(penalty)(batch.inputs)
    assert float(value) == 0.0
    assert torch.isfinite(slope).all()
    assert float(penalty(batch.inputs + 0.1)) > 0


def test_a_layer_without_a_counterpart_does_not_count() -> None:
    layers = {"a": LayerStatistics(mean=torch.zeros(2), variance=torch.ones(2))}
    expected = {"b": LayerStatistics(mean=torch.ones(2), variance=torch.ones(2))}
    guess = Guess(inputs=torch.zeros(1, 1, 8, 7), domain=IMAGE, layers=layers, expected=expected)
    assert float(BatchNormStatistics(weight=1.0)(guess)) == 0.0


def test_statistics_go_by_their_names() -> None:
    assert BatchNormStatistics(weight=1.0, statistics="known").statistics is Statistics.KNOWN
    with pytest.raises(InputError, match="expected one of running, inferred, known, got 'exact'"):
        BatchNormStatistics(weight=1.0, statistics="exact")
    with pytest.raises(InputError, match="absence of this prior"):
        BatchNormStatistics(weight=1.0, statistics="inferred")


def test_the_consensus_is_the_mean_after_registration_and_pulls_to_it() -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, 1, 8, 7, generator=generator)
    starts = torch.stack([image, image, image.roll(1, dims=-1)])
    plain, registered = GroupConsistency(weight=2.0), GroupConsistency(weight=2.0, registration=Translation())
    torch.testing.assert_close(plain.consensus(starts, IMAGE), starts.mean(dim=0).expand_as(starts))
    torch.testing.assert_close(registered.consensus(starts, IMAGE), image.expand_as(starts))
    guess = Guess(inputs=image + 0.5, domain=IMAGE, consensus=image)
    assert float(plain(guess)) == pytest.approx(2.0 * 0.25, rel=1e-5)
    assert float(plain(Guess(inputs=image, domain=IMAGE))) == 0.0


def test_a_consensus_is_due_from_its_share_on_and_then_at_intervals() -> None:
    prior = GroupConsistency(weight=1.0, every=10, begin=0.25)
    assert [n for n in range(101) if prior.due(n, 100)] == [25, 35, 45, 55, 65, 75, 85, 95]
    # Never before the first evaluation, when the starts are noise that has seen no update.
    assert [n for n in range(7) if GroupConsistency(weight=1.0, every=3, begin=0.0).due(n, 6)] == [3, 6]
    with pytest.raises(InputError, match=r"GroupConsistency\.begin: expected a number from 0 to below 1"):
        GroupConsistency(weight=1.0, begin=1.0)


def test_examples_that_the_update_does_not_tell_apart_are_put_in_one_order_first() -> None:
    """Otherwise the mean of two starts would be a mixture of different examples."""
    first = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    order = [1, 0, 2, 3]  # the second start has the two examples of one label the other way round
    starts = torch.stack([first, first[order] + 0.01])
    prior = GroupConsistency(weight=1.0)
    agreed = prior.consensus(starts, IMAGE, [[0, 1], [2], [3]])
    torch.testing.assert_close(agreed[0], first + 0.005)
    torch.testing.assert_close(agreed[1], first[order] + 0.005)
    # Places of different labels are never exchanged, however near their images are.
    mixed = prior.consensus(starts, IMAGE, [[0], [1], [2, 3]])
    torch.testing.assert_close(mixed[0, 0], (first[0] + first[1]) / 2 + 0.005)
