"""Classes in an order, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier

from gradleak.attacks.inference import (
    Classifier,
    FittedClassifier,
    FittedOrdinal,
    LogisticRegression,
    Ordinal,
    RandomForest,
)
from gradleak.attacks.inference.classifier import Floats, Labels, Rows
from gradleak.core import derive_seed


class FittedTable(FittedClassifier):
    def __init__(self, above: Floats) -> None:
        super().__init__(classes=2, width=1)
        self.above = above

    def _shares(self, features: Rows) -> Floats:
        return np.stack([1 - self.above, self.above], axis=1)

    def _log_posterior(self, features: Rows) -> Floats:
        return np.log(self._shares(features))


@dataclass(frozen=True, kw_only=True)
class Table(Classifier):
    """Answers P(a > i) by a table: the question is told by how many labels are above it."""

    table: tuple[tuple[float, ...], ...]

    def weight(self, rows: int) -> int:
        return 10

    def _fit(self, features: Rows, labels: Labels, classes: int, seed: int) -> FittedClassifier:
        question = len(self.table[0]) - int(labels.sum())
        return FittedTable(np.array([row[question] for row in self.table]))


def test_differences_are_clipped_divided_and_counted() -> None:
    """P(a > 0), P(a > 1), P(a > 2) of three rows; the second contradicts itself once, the third is sure of the end."""
    base = Table(table=((0.9, 0.5, 0.2), (0.6, 0.8, 0.1), (1.0, 1.0, 1.0)))
    fitted = Ordinal(base=base).fit(np.zeros((4, 1)), np.arange(4), 4, 0)
    assert isinstance(fitted, FittedOrdinal)
    rows = np.zeros((3, 1))
    expected = np.array([[0.1, 0.4, 0.3, 0.2], [0.4 / 1.2, 0.0, 0.7 / 1.2, 0.1 / 1.2], [0.0, 0.0, 0.0, 1.0]])
    np.testing.assert_allclose(fitted.shares(rows), expected, atol=1e-12)
    found = fitted.posterior(rows)
    np.testing.assert_allclose(np.exp(found.log_posterior), (10 * expected + 1) / 14, atol=1e-12)
    np.testing.assert_array_equal(found.log_posterior, fitted.log_posterior(rows))
    assert found.share_clipped == 1 / 12
    assert found.rows_clipped == 1 / 3


def test_no_row_has_no_share() -> None:
    fitted = Ordinal().fit(np.arange(9.0)[:, None], np.arange(9) % 3, 3, 0)
    assert isinstance(fitted, FittedOrdinal)
    found = fitted.posterior(np.zeros((0, 1)))
    assert found.log_posterior.shape == (0, 3)
    assert found.share_clipped is None
    assert found.rows_clipped is None


def test_forests_in_an_order_are_differences_of_votes() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((120, 3)), np.arange(120) % 4
    rows[:, 0] += labels
    held = rng.standard_normal((40, 3)) + 1.5
    seed = derive_seed(derive_seed(7, "ordinal"), "fit") % 2**32
    above = np.stack(
        [
            RandomForestClassifier(30, random_state=seed).fit(rows, labels > place).predict_proba(held)[:, 1]
            for place in range(3)
        ],
        axis=1,
    )
    raw = np.stack([1 - above[:, 0], above[:, 0] - above[:, 1], above[:, 1] - above[:, 2], above[:, 2]], axis=1)
    kept = np.maximum(raw, 0) / np.maximum(raw, 0).sum(axis=1, keepdims=True)
    fitted = Ordinal(base=RandomForest(trees=30)).fit(rows, labels, 4, 7)
    assert isinstance(fitted, FittedOrdinal)
    found = fitted.posterior(held)
    np.testing.assert_allclose(np.exp(found.log_posterior), (30 * kept + 1) / 34, rtol=1e-9)
    assert found.share_clipped == pytest.approx((raw < -1e-12).mean())
    assert found.share_clipped > 0


def test_a_middle_class_without_a_shadow_update_gets_nothing() -> None:
    rng = np.random.default_rng(0)
    rows, labels = rng.standard_normal((90, 3)), np.arange(90) % 3 * 2
    fitted = Ordinal().fit(rows, labels, 5, 0)
    assert (fitted.shares(rng.standard_normal((50, 3)))[:, [1, 3]] == 0).all()
    assert fitted.notes == ("no shadow update of class 1, 3",)


def test_the_order_helps_where_it_is_there() -> None:
    """A proportional-odds world: one number says how far up; the ordinal model is nearer to the truth's bin."""
    rng = np.random.default_rng(1)

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.arange(n) % 5
        return labels[:, None] + 0.5 * rng.standard_normal((n, 1)), labels

    rows, labels = draw(400)
    held, right = draw(300)
    found = Ordinal(base=LogisticRegression()).fit(rows, labels, 5, 0).log_posterior(held).argmax(axis=1)
    # The best rule errs where the noise passes half a bin: 1 − (4/5)·2·Φ(−1) = 0.746 right.
    assert (found == right).mean() == pytest.approx(0.746, abs=0.06)
    assert (np.abs(found - right) <= 1).mean() > 0.97
