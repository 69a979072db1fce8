"""Routes of the released updates of index batches, against one release after another and plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from tests.training.releases.released_batches import (
    CLASSES,
    FEATURES,
    ROWS,
    Halved,
    at_once,
    batches,
    by_autograd,
    generator,
    named,
    net,
    objective,
    one_by_one,
    rows,
)
from torch import Tensor, nn

from gradleak.core import Batch, Defense, Objective, Release
from gradleak.data import rows_of
from gradleak.defenses import (
    DPSGD,
    Clip,
    ClipPerExample,
    GaussianNoise,
    LaplaceNoise,
    Prune,
    VariationalBottleneck,
)
from gradleak.protocols import FedAvg, FedSGD, SecureAggregation
from gradleak.results import InputError, UnsupportedError
from gradleak.training import BatchReleases, Route
from gradleak.training.releases.finishing import ExampleRows, StackedBatches
from gradleak.training.releases.linear_rows import LinearRows

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


@pytest.mark.parametrize(
    ("defenses", "route"),
    [
        ([], Route.LINEAR_LAYERS),
        ([ClipPerExample(0.3)], Route.LINEAR_LAYERS),
        ([DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum"), Prune(0.5)], Route.LINEAR_LAYERS),
        ([Halved()], Route.AVERAGED_ROWS),
    ],
    ids=named,
)
def test_linear_nets_never_form_a_row_gradient_unless_a_defense_needs_it(defenses: list[Defense], route: Route) -> None:
    # Wide enough that products of the two sides are cheaper than averages.
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    loss, release = objective(model), Release(FedSGD(), defenses)
    releases = BatchReleases(loss, release, rows())
    assert releases.route is route
    found, expected = at_once(releases, batches()), one_by_one(loss, release, rows(), batches())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


class Tied(nn.Module):
    """One weight three times, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES, bias=False)
        self.unused = nn.Parameter(torch.tensor([0.3, 0.1]))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(torch.tanh(self.first(x))))
        out: Tensor = self.last(F.linear(hidden, self.first.weight))
        return out


class Tokens(nn.Module):
    """The same layer at every position, its output changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, 9), nn.Linear(9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.inner(x).relu_()
        out: Tensor = self.outer(hidden.mean(dim=1))
        return out


def frozen() -> nn.Sequential:
    """One layer frozen, of another the weight alone."""
    model = nn.Sequential(nn.Linear(FEATURES, 7), nn.ReLU(), nn.Linear(7, 7), nn.ReLU(), nn.Linear(7, CLASSES))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


def conv() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tied": (Tied, (FEATURES,)),
    "few tokens": (Tokens, (2, FEATURES)),
    "many tokens": (Tokens, (20, FEATURES)),
    "frozen": (frozen, (FEATURES,)),
    "conv": (conv, (1, 4, 4)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("clip_norm", [None, 0.2])
def test_every_way_gives_odd_models_the_same_updates(name: str, clip_norm: float | None) -> None:
    make, shape = ODD[name]
    model = make().double()
    defenses = [] if clip_norm is None else [ClipPerExample(clip_norm)]
    loss, release, given, index = objective(model), Release(FedSGD(), defenses), rows(shape=shape), batches()
    expected = one_by_one(loss, release, given, index)
    if clip_norm is None and name != "tied":
        torch.testing.assert_close(expected, by_autograd(model, F.cross_entropy, given, index))
    linear = LinearRows.of(loss, defenses, rows_of(given, torch.tensor([0])))
    assert (linear is None) == (name == "conv")
    ways = [ExampleRows(objective=loss, defenses=defenses), linear]
    for way in ways:
        if way is not None:
            table = way.prepare(given, 5)
            torch.testing.assert_close(way.averages(table, index), expected, rtol=1e-9, atol=1e-12)  # type: ignore[arg-type]
    stacked = StackedBatches(objective=loss, protocol=FedSGD(), defenses=defenses)
    torch.testing.assert_close(stacked.averages(given, index), expected, rtol=1e-9, atol=1e-12)
    releases = BatchReleases(loss, release, given)
    assert releases.route in (Route.AVERAGED_ROWS, Route.LINEAR_LAYERS)
    torch.testing.assert_close(at_once(releases, index), expected, rtol=1e-9, atol=1e-12)


def clipped_by_hand(model: nn.Module, given: Batch, index: Tensor, clip_norm: float) -> Tensor:
    singles = by_autograd(model, F.cross_entropy, given, torch.arange(ROWS)[:, None])
    singles = singles * (clip_norm / singles.norm(dim=1)).clamp(max=1)[:, None]
    return singles[index].mean(dim=1)


def test_clipping_from_the_two_sides_is_clipping_of_gradients() -> None:
    model = Tokens().double()
    given = rows(shape=(20, FEATURES))
    linear = LinearRows.of(objective(model), [ClipPerExample(0.2)], rows_of(given, torch.tensor([0])))
    assert linear is not None
    found = linear.averages(linear.prepare(given, ROWS), batches())
    torch.testing.assert_close(found, clipped_by_hand(model, given, batches(), 0.2), rtol=1e-9, atol=1e-12)


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="sum")


def normed(outputs: Tensor, targets: Tensor) -> Tensor:
    """No mean of anything: the root of a mean."""
    return F.cross_entropy(outputs, targets).sqrt()


def two_places(outputs: Tensor, targets: Tensor) -> Tensor:
    """A segmentation of two pixels, some of which are ignored: rows weigh differently."""
    return F.cross_entropy(torch.stack([outputs, outputs.square()], dim=2), targets)


IGNORED = torch.stack([torch.arange(ROWS) % 3, torch.tensor([0, 1, -100, 2, 0, -100, 2, 0, 1, -100, 0, -100])], dim=1)
NUMBERS = torch.randn(ROWS, CLASSES, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.001, 1.0], dtype=torch.float64))
BY_ROWS = (Route.AVERAGED_ROWS, Route.LINEAR_LAYERS)
LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor | None, tuple[Route, ...]]] = {
    "mean": (F.cross_entropy, None, BY_ROWS),
    "smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), None, BY_ROWS),
    "mse": (F.mse_loss, NUMBERS, BY_ROWS),
    "sum": (summed, None, BY_ROWS),
    "weighted": (WEIGHTED, None, (Route.STACKED_BATCHES,)),
    "ignored": (two_places, IGNORED, (Route.STACKED_BATCHES,)),
    "root": (normed, None, (Route.STACKED_BATCHES,)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_no_mean_is_not_taken_for_one(name: str) -> None:
    loss, targets, routes = LOSSES[name]
    model, given = net(), rows(targets=targets)
    index = batches()
    releases = BatchReleases(objective(model, loss=loss), Release(FedSGD()), given)
    assert releases.route in routes, releases.reason
    assert ("the loss is a sum" in releases.reason) == (name == "sum")
    torch.testing.assert_close(at_once(releases, index), by_autograd(model, loss, given, index), rtol=1e-9, atol=1e-12)


def normalized() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


def dropping() -> nn.Sequential:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def centered() -> nn.Module:
    class Centered(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            out: Tensor = super().forward(input)
            return out - out.mean(dim=0)

    return Centered(FEATURES, CLASSES)


def doubting() -> nn.Module:
    class Branching(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            out: Tensor = super().forward(input)
            return out if bool(out.sum() > 0) else 2 * out

    return Branching(FEATURES, CLASSES)


BOTTLENECK = VariationalBottleneck(width=3)


def with_bottleneck() -> nn.Module:
    return BOTTLENECK.insert(nn.Linear(FEATURES, 5), nn.Linear(3, CLASSES), features=5, generator=generator(4))


MIXING: dict[str, tuple[Callable[[], nn.Module], dict[str, object], Release, Route]] = {
    "batch norm": (normalized, {"mode": "train"}, Release(FedSGD()), Route.STACKED_BATCHES),
    "batch norm in eval mode": (normalized, {}, Release(FedSGD()), Route.AVERAGED_ROWS),
    "dropout": (dropping, {"mode": "train"}, Release(FedSGD()), Route.STACKED_BATCHES),
    "dropout, clipped": (dropping, {"mode": "train"}, Release(FedSGD(), [ClipPerExample(0.2)]), Route.AVERAGED_ROWS),
    "centered": (centered, {}, Release(FedSGD()), Route.STACKED_BATCHES),
    "branching": (doubting, {}, Release(FedSGD(), [GaussianNoise(std=0.1)]), Route.LOOP),
    "bottleneck": (
        with_bottleneck,
        {"mode": "train", "loss": BOTTLENECK.loss()},
        Release(FedSGD(), [BOTTLENECK, Prune(0.5)]),
        Route.STACKED_BATCHES,
    ),
    "local steps": (net, {}, Release(FedAvg(learning_rate=0.1, epochs=2, batch_size=3)), Route.STACKED_BATCHES),
    "local steps, clipped": (
        net,
        {},
        Release(FedAvg(learning_rate=0.1, epochs=2), [ClipPerExample(0.2), Clip(0.1)]),
        Route.STACKED_BATCHES,
    ),
    "local steps with noise": (
        net,
        {},
        Release(FedAvg(learning_rate=0.1, epochs=2), [DPSGD(clip_norm=0.2, noise_std=0.1, noise="sum")]),
        Route.LOOP,
    ),
}


@pytest.mark.parametrize("name", MIXING)
def test_where_a_batch_is_more_than_its_rows(name: str) -> None:
    make, settings, release, route = MIXING[name]
    loss = objective(make(), **settings)
    releases = BatchReleases(loss, release, rows())
    assert releases.route in ((route, Route.LINEAR_LAYERS) if route is Route.AVERAGED_ROWS else (route,)), (
        releases.reason
    )
    expected = one_by_one(loss, release, rows(), batches())
    torch.testing.assert_close(at_once(releases, batches()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dropout", "dropout, clipped", "bottleneck"])
def test_batches_that_draw_masks_of_their_own_have_the_law_of_releases_with_a_new_seed_each(name: str) -> None:
    make, settings, release, _ = MIXING[name]
    release = Release(FedSGD(), [d for d in release.defenses if not isinstance(d, Prune)])
    loss = objective(make(), **settings)
    releases = BatchReleases(loss, release, rows(), own_masks=True)
    assert releases.route is Route.STACKED_BATCHES, releases.reason
    index = batches(3, 2)[1:].repeat(400, 1)
    assert len(index[0].unique()) > 1
    found = at_once(releases, index)
    given = rows_of(rows(), index[0])
    seeded = torch.stack(
        [loss.flatten(release.mean(replace(loss, mask_seed=seed), loss.params, given)) for seed in range(400)]
    )
    # Bonferroni over entries, each of which follows the law of the seeded ones.
    moving = (seeded.std(dim=0) > 1e-12).nonzero().flatten()[:40]
    assert len(moving) > 10
    worst = min(stats.ks_2samp(found[:, place].numpy(), seeded[:, place].numpy()).pvalue for place in moving)
    assert worst > 1e-3 / len(moving)
    assert len(found.unique(dim=0)) > 20
    assert torch.equal(found, at_once(releases, index))
    tight = BatchReleases(loss, release, rows(), max_bytes=1, own_masks=True)
    torch.testing.assert_close(at_once(tight, index), found, rtol=1e-9, atol=1e-12)


def test_masks_are_shared_unless_asked_for() -> None:
    loss = objective(dropping(), mode="train")
    index = batches(3, 1).repeat(5, 1)
    assert len(at_once(BatchReleases(loss, Release(FedSGD()), rows()), index).unique(dim=0)) == 1
    noise = [DPSGD(clip_norm=0.2, noise_std=0.1, noise="sum")]
    assert BatchReleases(loss, Release(FedSGD(), noise), rows(), own_masks=True).route is Route.STACKED_BATCHES
    local = Release(FedAvg(learning_rate=0.1, epochs=2), noise)
    looped = BatchReleases(loss, local, rows(), own_masks=True)
    assert looped.route is Route.LOOP
    assert len(at_once(looped, index).unique(dim=0)) == 5


def test_a_protocol_for_batches_of_one_size_only() -> None:
    loss, release = objective(), Release(SecureAggregation(protocol=FedSGD(), examples=[1, 3]))
    releases = BatchReleases(loss, release, rows())
    assert releases.route is Route.LOOP
    expected = one_by_one(loss, release, rows(), batches())
    torch.testing.assert_close(at_once(releases, batches()), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("defenses", [[], [Halved()], [DPSGD(clip_norm=0.2, noise_std=0.1, noise="sum"), Prune(0.5)]])
def test_the_budget_changes_chunks_and_no_number(defenses: list[Defense]) -> None:
    loss, release, index = objective(), Release(FedSGD(), defenses), batches(5, 40)
    large = BatchReleases(loss, release, rows())
    small = BatchReleases(loss, release, rows(), max_bytes=1)
    pieces = list(small.chunks(index, generator(3)))
    assert len(pieces) == 40
    torch.testing.assert_close(torch.cat(pieces), at_once(large, index), rtol=1e-9, atol=1e-12)
    middle = list(BatchReleases(loss, release, rows(), max_bytes=2**14).chunks(index, generator(3)))
    assert len(middle) > 1
    torch.testing.assert_close(torch.cat(middle), at_once(large, index), rtol=1e-9, atol=1e-12)


def test_without_room_for_all_rows_gradients_are_not_kept() -> None:
    loss, given = objective(conv()), rows(shape=(1, 4, 4))
    tight = BatchReleases(loss, Release(FedSGD()), given, max_bytes=2 * 8 * loss.size * (ROWS - 1))
    assert tight.route is Route.STACKED_BATCHES
    assert "exceed the budget" in tight.reason
    expected = one_by_one(loss, Release(FedSGD()), given, batches())
    torch.testing.assert_close(at_once(tight, batches()), expected, rtol=1e-9, atol=1e-12)
    # A defense of examples needs their gradients in any case.
    clipping = Release(FedSGD(), [ClipPerExample(0.2)])
    assert BatchReleases(loss, clipping, given, max_bytes=1000).route is Route.AVERAGED_ROWS


def test_same_seed_same_bits_and_no_other_generator_moves() -> None:
    defenses = [DPSGD(clip_norm=0.2, noise_std=0.1, noise="sum"), Prune(0.5), LaplaceNoise(scale=0.1)]
    releases = BatchReleases(objective(), Release(FedSGD(), defenses), rows())
    before = torch.random.get_rng_state()
    drawn = generator(3)
    first = torch.cat(list(releases.chunks(batches(), drawn)))
    assert torch.equal(first, at_once(releases, batches()))
    assert not torch.equal(first, at_once(releases, batches(), seed=4))
    assert not torch.equal(first, torch.cat(list(releases.chunks(batches(), drawn))))
    assert torch.equal(before, torch.random.get_rng_state())


def test_single_precision_updates_are_those_of_single_precision() -> None:
    loss = Objective.from_module(net().float())
    found = at_once(BatchReleases(loss, Release(FedSGD()), rows()), batches())
    assert found.dtype == torch.float32
    expected = one_by_one(loss, Release(FedSGD()), rows(), batches())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    half = BatchReleases(Objective.from_module(net().bfloat16()), Release(FedSGD()), rows())
    assert half.route is Route.LOOP
    assert at_once(half, batches()).dtype == torch.bfloat16


def test_what_is_no_batch_is_refused() -> None:
    releases = BatchReleases(objective(), Release(FedSGD()), rows())
    for index in (torch.zeros(3, dtype=torch.int64), torch.zeros(2, 3), torch.zeros(2, 0, dtype=torch.int64)):
        with pytest.raises(InputError, match="places of rows"):
            releases.chunks(index, generator())
    with pytest.raises(InputError, match="from 0 to 11, got 0 to 12"):
        releases.chunks(torch.tensor([[0, 12]]), generator())
    with pytest.raises(InputError, match=r"torch\.Generator"):
        releases.chunks(batches(), 0)  # type: ignore[arg-type]


def test_rows_and_models_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InputError, match="class indices from 0 to 2"):
        BatchReleases(objective(), Release(FedSGD()), rows(targets=torch.arange(ROWS) % 4))
    broken = rows()
    broken.inputs[5, 2] = torch.nan
    with pytest.raises(InputError, match="example 5"):
        BatchReleases(objective(), Release(FedSGD()), broken)
    clipping = Release(FedSGD(), [ClipPerExample(0.2)])
    with pytest.raises(UnsupportedError, match="normalizes by the batch"):
        BatchReleases(objective(normalized(), mode="train"), clipping, rows())
    with pytest.raises(InputError, match="BottleneckLayer"):
        BatchReleases(objective(), Release(FedSGD(), [BOTTLENECK]), rows())


def test_an_update_that_is_not_finite_is_refused() -> None:
    given = rows()
    given.inputs[3] = 1e200
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES, bias=False)).double()
    releases = BatchReleases(objective(model, loss=lambda out, y: out.square().mean()), Release(FedSGD()), given)
    with pytest.raises(InputError, match=r"infinity in 0\.weight"):
        at_once(releases, torch.full((2, 2), 3))
