"""What is read of an update, against numpy, torch and scikit-learn."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.attacks.inference import (
    AllEntries,
    Features,
    LayerSummaries,
    Layout,
    MaxPooling,
    PrincipalComponents,
    RandomProjection,
    Reduction,
)
from gradleak.results import InputError

LAYOUT = Layout(sizes={"first.weight": 24, "first.bias": 5, "one": 1})
ALL: list[Features] = [
    AllEntries(),
    LayerSummaries(),
    MaxPooling(kernel=4),
    PrincipalComponents(count=3),
    RandomProjection(width=7),
]
each = pytest.mark.parametrize("features", ALL, ids=lambda features: type(features).__name__)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def updates(n: int = 20, size: int = 30, seed: int = 1) -> Tensor:
    return torch.randn(n, size, generator=generator(seed))


def fit(features: Features, rows: Tensor, layout: Layout = LAYOUT, chunk: int = 6, seed: int = 0) -> Reduction:
    return features.fit(lambda: iter(rows.split(chunk)), layout, generator(seed))


@each
def test_every_reduction_treats_rows_alone_and_repeats_itself(features: Features) -> None:
    rows = updates()
    reduce = fit(features, rows)
    found = reduce(rows)
    assert found.shape == (20, reduce.width)
    assert found.dtype == torch.float32
    assert torch.allclose(torch.cat([reduce(row[None]) for row in rows]), found, atol=1e-5)
    assert torch.equal(fit(features, rows)(rows), found)
    assert torch.equal(pickle.loads(pickle.dumps(reduce))(rows), found)  # noqa: TID251
    assert reduce(rows[:0]).shape == (0, reduce.width)
    assert torch.allclose(reduce(rows.double()), found, atol=1e-5)
    with pytest.raises(InputError, match=r"expected flat updates \(n, 30\)"):
        reduce(rows[:, :-1])


@each
def test_zero_updates_give_finite_features(features: Features) -> None:
    zero = torch.zeros(4, 30)
    assert torch.isfinite(fit(features, zero)(zero)).all()


@each
def test_rows_that_are_not_finite_do_not_pass_for_numbers(features: Features) -> None:
    """Every entry of AllEntries, and at least one feature elsewhere."""
    rows = updates()
    rows[2] = torch.nan
    reduce = fit(features, updates())
    found = reduce(rows)
    assert not torch.isfinite(found[2]).all()
    assert torch.isfinite(found[[0, 1, 3]]).all()


def no_chunks() -> Iterator[Tensor]:
    raise AssertionError("shadow updates were asked for")


@each
def test_only_who_says_so_looks_at_shadow_updates(features: Features) -> None:
    if features.needs_rows:
        with pytest.raises(AssertionError, match="asked for"):
            features.fit(no_chunks, LAYOUT, generator())
    else:
        features.fit(no_chunks, LAYOUT, generator())


@pytest.mark.parametrize(("size", "kernel"), [(30, 3), (31, 3), (32, 3), (2, 3), (29, 10), (5, 1)])
def test_max_pooling_is_that_of_torch_and_of_a_loop(size: int, kernel: int) -> None:
    rows = updates(4, size) - 1.0
    found = fit(MaxPooling(kernel=kernel), rows, Layout(sizes={"w": size}))(rows)
    assert torch.equal(found, F.max_pool1d(rows[:, None], kernel, stride=kernel, ceil_mode=True)[:, 0])
    by_hand = [[max(row[start : start + kernel]) for start in range(0, size, kernel)] for row in rows.tolist()]
    assert found.tolist() == by_hand


def test_layer_summaries_are_numpys() -> None:
    rows = updates()
    rows[:, ::3] = 0.0
    reduce = fit(LayerSummaries(quantiles=(0.1, 0.5)), rows)
    expected = []
    for _, place in LAYOUT.slices():
        x = rows[:, place].double().numpy()
        expected += [
            x.mean(1),
            x.std(1),
            x.min(1),
            x.max(1),
            np.abs(x).sum(1),
            np.linalg.norm(x, axis=1),
            (x == 0).mean(1),
        ]
        expected += [np.quantile(x, 0.1, axis=1), np.quantile(x, 0.5, axis=1)]
    assert reduce.width == 27
    np.testing.assert_allclose(reduce(rows).numpy(), np.stack(expected, axis=1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [12, 600])
def test_principal_components_are_numpys(size: int) -> None:
    """Exact for small sizes, randomized for large ones; the spectrum falls so that the directions are told apart."""
    strength = (0.5 ** torch.arange(size)).clamp_min(1e-3)
    rows = (updates(80, size) * strength) @ torch.linalg.qr(updates(size, size, 3)).Q + 3.0
    found = fit(PrincipalComponents(count=4), rows, Layout(sizes={"w": size}), chunk=17)(rows).double().numpy()
    centered = rows.double().numpy() - rows.double().numpy().mean(axis=0)
    directions = np.linalg.svd(centered, full_matrices=False)[2][:4]
    expected = centered @ directions.T
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=2e-3)


def test_beyond_the_budget_components_come_block_by_block() -> None:
    """Blocks of ten rows a component; of a world of fewer directions than are kept, nothing is lost on the way."""
    rows = updates(190, 12, 5) * 0.7 ** torch.arange(12) @ updates(12, 200, 6) + 1.0
    rows[70:] += torch.linspace(0, 2, 200)  # the means of blocks differ
    layout = Layout(sizes={"w": 200})
    small = PrincipalComponents(count=3, max_bytes=20 * 4 * 200)
    reduce = fit(small, rows, layout, chunk=7)
    assert "incremental" in reduce.notes[0]
    # The same blocks whatever the chunks; chunks that are longer than a block too.
    for chunk in (1, 90, 190):
        assert torch.allclose(fit(small, rows, layout, chunk=chunk)(rows), reduce(rows), atol=1e-4)
    whole = fit(PrincipalComponents(count=3), rows, layout)
    assert whole.notes == ()
    signs = (reduce(rows) * whole(rows)).sum(0).sign()
    assert torch.allclose(reduce(rows) * signs, whole(rows), atol=2e-3)


def test_an_update_larger_than_the_budget() -> None:
    rows = updates(40)
    found = fit(PrincipalComponents(count=2, max_bytes=8), rows, chunk=1)(rows)
    expected = fit(PrincipalComponents(count=2), rows)(rows)
    # 20 of 30 directions are kept between blocks: near, not equal.
    assert float((found * expected).sum(0).abs().min() / expected.square().sum(0).max()) > 0.8


def test_a_weak_direction_in_noise_survives_the_blocks() -> None:
    """The direction that tells the classes apart has the strength of noise in a block, and stands out in all rows."""
    signal = torch.nn.functional.normalize(updates(1, 1000, 8), dim=1)
    signs = torch.where(torch.arange(1200) % 2 == 0, 1.0, -1.0)
    rows = updates(1200, 1000, 9) + 2.0 * signs[:, None] * signal
    layout = Layout(sizes={"w": 1000})
    for features in (PrincipalComponents(count=5), PrincipalComponents(count=5, max_bytes=1000)):
        found = fit(features, rows, layout, chunk=100)(rows)
        assert float((found[:, 0] * signs).mean().abs()) > 1.5


def test_fewer_rows_than_components_give_fewer() -> None:
    rows = updates(6)
    reduce = fit(PrincipalComponents(count=50), rows)
    assert reduce.width == 5
    assert reduce.notes == ("5 principal components instead of 50: shadow updates differ in no more directions",)
    twice = fit(PrincipalComponents(count=5), rows[[0, 1, 0, 1, 0, 1, 0, 1]])
    assert twice.width == 1
    same = fit(PrincipalComponents(count=5), rows[[0, 0, 0]])
    assert same.notes == ("shadow updates do not differ: no principal component",)
    assert same(rows[:1]).tolist() == [[0.0]]


def test_principal_components_of_tiny_gradients() -> None:
    """Squares of 1e-25 are no float32."""
    rows = updates(40)
    large, tiny = (fit(PrincipalComponents(count=3), rows * scale)(rows * scale) / scale for scale in (1.0, 1e-25))
    assert torch.allclose(large, tiny, rtol=1e-3, atol=1e-4)


def test_principal_components_refuse_what_they_cannot_use() -> None:
    rows = updates()
    with pytest.raises(InputError, match="at least two shadow updates, got 1"):
        fit(PrincipalComponents(), rows[:1])
    with pytest.raises(InputError, match="at least two shadow updates, got 0"):
        PrincipalComponents().fit(lambda: iter(()), LAYOUT, generator())
    with pytest.raises(InputError, match=r"shadow updates \(c, 30\)"):
        fit(PrincipalComponents(), rows[:, :9])
    rows[7, 3] = torch.inf
    with pytest.raises(InputError, match="got 1 of a chunk of 6 with NaN or infinity"):
        fit(PrincipalComponents(), rows)


def test_random_projections_keep_lengths_on_average() -> None:
    layout = Layout(sizes={"w": 400})
    rows = updates(50, 400)
    found = fit(RandomProjection(width=200), rows, layout)(rows)
    ratio = found.square().sum(1) / rows.square().sum(1)
    # Standard deviation of a squared length is √(2/f) = 0.1 for a Gaussian projection, a little more for a sparse one.
    assert abs(float(ratio.mean()) - 1.0) < 0.1
    other = fit(RandomProjection(width=200), rows, layout, seed=1)(rows)
    assert not torch.allclose(other, found)
    # It is linear, and sparse: most of the 400 · 200 weights are 0.
    weights = fit(RandomProjection(width=200), rows, layout)(torch.eye(400))
    assert torch.allclose(rows @ weights, found, atol=1e-4)
    assert 0.03 < float((weights != 0).float().mean()) < 0.07
    wide = fit(RandomProjection(width=500), rows, layout)
    assert torch.equal(wide(rows), rows)
    assert "all are kept" in wide.notes[0]


def test_layout_is_that_of_a_flat_update() -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(7.0)}
    layout = Layout.of(tensors)
    assert layout.flatten(tensors).tolist() == [0, 1, 2, 3, 4, 5, 7]
    assert dict(layout.slices()) == {"a": slice(0, 6), "b": slice(6, 7)}
    assert pickle.loads(pickle.dumps(layout)) == layout  # noqa: TID251
    with pytest.raises(InputError, match="expected tensors"):
        layout.flatten({"a": tensors["a"]})
    with pytest.raises(InputError, match="at least one tensor"):
        Layout(sizes={})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaxPooling(kernel=0), "MaxPooling.kernel"),
        (lambda: PrincipalComponents(count=0), "PrincipalComponents.count"),
        (lambda: PrincipalComponents(max_bytes=0), "PrincipalComponents.max_bytes"),
        (lambda: RandomProjection(width=0), "RandomProjection.width"),
        (lambda: LayerSummaries(quantiles=(0.5, 1.0)), "LayerSummaries.quantiles"),
        (lambda: Layout(sizes={"w": 0}), "Layout.sizes"),
    ],
)
def test_settings_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
