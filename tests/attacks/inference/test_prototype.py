"""Users that were never seen: embeddings and distances."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import log_softmax

from gradleak.attacks.inference import FittedEncoder, PrototypeEncoder, distance_log_posterior
from gradleak.results import InputError

SIZE, STYLE = 120, 4
Rows = NDArray[np.float64]


def gradients(style: Rows, n: int, rng: np.random.Generator) -> Rows:
    """Updates of one user: the style moves a few directions, the batch moves all, and more strongly others."""
    fixed = np.random.default_rng(99)
    of_style, of_batch = fixed.standard_normal((STYLE, SIZE)), 3.0 * fixed.standard_normal((8, SIZE))
    return style @ of_style + rng.standard_normal((n, 8)) @ of_batch + rng.standard_normal((n, SIZE))


def shadow(users: int = 20, each: int = 25, seed: int = 0) -> tuple[Rows, NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    rows = [gradients(rng.standard_normal(STYLE), each, rng) for _ in range(users)]
    return np.concatenate(rows), np.repeat(np.arange(users), each)


def trials(fitted: FittedEncoder | None, n: int = 200, m: int = 5) -> float:
    """The share of trials in which one of m new users is recognized; without an encoder by the updates themselves."""
    rng = np.random.default_rng(5)
    right = rng.integers(m, size=n)
    styles = rng.standard_normal((n, m, STYLE))
    among = np.concatenate([gradients(style, 1, rng) for style in styles.reshape(-1, STYLE)])
    seen = np.concatenate([gradients(styles[place, right[place]], 1, rng) for place in range(n)])
    if fitted is not None:
        among, seen = fitted.embed(among), fitted.embed(seen)
    logs = distance_log_posterior(among.reshape(n, m, -1), seen)
    return float((logs.argmax(axis=1) == right).mean())


def test_users_that_were_never_seen_are_told_apart() -> None:
    rows, users = shadow()
    fitted = PrototypeEncoder(embedding=10, epochs=30).fit(rows.astype(np.float32), users, 0)
    plain, learned = trials(None), trials(fitted)
    # Guessing is right in a fifth of 200 trials, with standard deviation 0.028.
    assert learned > 0.4
    assert learned > plain + 0.05
    assert fitted.training_accuracy > 0.9
    assert (fitted.users, fitted.embedding, fitted.width) == (20, 10, SIZE)


def test_users_without_a_style_are_not() -> None:
    rng = np.random.default_rng(0)
    rows, users = rng.standard_normal((200, SIZE)), np.repeat(np.arange(10), 20)
    fitted = PrototypeEncoder(embedding=5, epochs=5).fit(rows, users, 0)
    right, n = rng.integers(5, size=400), 400
    logs = distance_log_posterior(
        fitted.embed(rng.standard_normal((5 * n, SIZE))).reshape(n, 5, -1), fitted.embed(rng.standard_normal((n, SIZE)))
    )
    assert abs((logs.argmax(axis=1) == right).mean() - 0.2) < 0.08


def test_the_same_seed_gives_the_same_encoder_and_no_other_does() -> None:
    rows, users = shadow(users=4, each=10)
    before = torch.get_rng_state()
    encoder = PrototypeEncoder(embedding=6, epochs=3)
    found = encoder.fit(rows, users, 1).embed(rows)
    assert torch.equal(before, torch.get_rng_state())
    assert found.shape == (40, 6)
    assert found.dtype == np.float64
    again = encoder.fit(rows, users * 7 + 3, 1)  # names of users are names
    np.testing.assert_array_equal(again.embed(rows), found)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again)).embed(rows), found)  # noqa: TID251
    assert not np.allclose(encoder.fit(rows, users, 2).embed(rows), found)


def test_units_and_constant_features_change_nothing() -> None:
    rows, users = shadow(users=4, each=10)
    encoder = PrototypeEncoder(embedding=6, epochs=2)
    found = encoder.fit(rows, users, 1).embed(rows)
    wide = np.hstack([1e-4 * rows + 5e-4, np.zeros((40, 3))])
    np.testing.assert_allclose(encoder.fit(wide, users, 1).embed(wide), found, atol=1e-4)
    nothing = encoder.fit(np.zeros((40, 2)), users, 1)
    assert "every embedding is the same" in nothing.notes[0]
    embedded = nothing.embed(np.zeros((3, 2)))
    np.testing.assert_allclose(np.exp(distance_log_posterior(embedded[None], embedded[:1])), 1 / 3)


def test_the_encoder_has_one_hidden_layer_and_no_head() -> None:
    rows, users = shadow(users=3, each=6)
    fitted = PrototypeEncoder(embedding=7, hidden=11, epochs=1).fit(rows, users, 0)
    shapes = [tuple(p.shape) for p in fitted._encoder.parameters()]
    assert shapes == [(11, SIZE), (11,), (7, 11), (7,)]
    assert (fitted.embed(rows) < 0).any()


def test_distances_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    candidates, observed = rng.standard_normal((6, 4, 3)), rng.standard_normal((6, 3))
    distances = np.stack([cdist(candidates[i], observed[i : i + 1])[:, 0] for i in range(6)])
    np.testing.assert_allclose(
        distance_log_posterior(candidates, observed), log_softmax(-distances, axis=1), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("candidates", "observed", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 3)), r"candidates \(n, m, e\)"),
        (np.zeros((2, 1, 3)), np.zeros((2, 3)), "m at least 2"),
        (np.zeros((2, 3, 4)), np.zeros((2, 3)), r"observed \(n, e\)"),
        (np.full((2, 3, 4), np.nan), np.zeros((2, 4)), "finite embeddings"),
    ],
)
def test_distances_of_what_are_no_embeddings_are_refused(candidates: Rows, observed: Rows, message: str) -> None:
    with pytest.raises(InputError, match=message):
        distance_log_posterior(candidates, observed)


def test_what_cannot_be_trained_is_refused_by_name() -> None:
    rows, users = shadow(users=2, each=3)
    encoder = PrototypeEncoder(epochs=1)
    with pytest.raises(InputError, match="at least two shadow users, got 1"):
        encoder.fit(rows, users * 0, 0)
    with pytest.raises(InputError, match=r"expected \(6,\) whole numbers"):
        encoder.fit(rows, users[:-1], 0)
    with pytest.raises(InputError, match="rows with NaN"):
        encoder.fit(rows * np.nan, users, 0)
    with pytest.raises(InputError, match="rows with NaN"):
        encoder.fit(rows, users, 0).embed(rows * np.inf)
    with pytest.raises(InputError, match="learning_rate below 1e\\+30"):
        PrototypeEncoder(epochs=20, learning_rate=1e30).fit(rows, users, 0)
    for settings in ({"embedding": 0}, {"hidden": 0}, {"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}):
        with pytest.raises(InputError, match=next(iter(settings))):
            PrototypeEncoder(**settings)  # type: ignore[arg-type]
