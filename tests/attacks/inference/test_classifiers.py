"""Adversary models, against scikit-learn, scipy and posteriors that are known."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax
from scipy.stats import multivariate_normal
from sklearn.covariance import LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

from gradleak.attacks.inference import (
    Classifier,
    GaussianNaiveBayes,
    GradientBoosting,
    LinearDiscriminant,
    LogisticRegression,
    MultilayerPerceptron,
    Ordinal,
    QuadraticDiscriminant,
    RandomForest,
)
from gradleak.attacks.inference.gaussian import ledoit_wolf, principal
from gradleak.core import derive_seed
from gradleak.results import InputError

ALL: list[Classifier] = [
    GaussianNaiveBayes(),
    GradientBoosting(trees=10, leaf_rows=5),
    LinearDiscriminant(),
    LogisticRegression(),
    MultilayerPerceptron(hidden=10, epochs=60, learning_rate=0.02),
    Ordinal(base=RandomForest(trees=10)),
    Ordinal(base=LogisticRegression()),
    QuadraticDiscriminant(),
    RandomForest(trees=15),
]
each = pytest.mark.parametrize("model", ALL, ids=lambda m: type(m).__name__ + type(getattr(m, "base", None)).__name__)

MEANS = np.array([[0.0, 0.0], [1.5, 0.5], [0.0, 2.0]])
COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
Rows = NDArray[np.float64]


def gaussians(n: int, classes: int = 3, seed: int = 0, noise: int = 0) -> tuple[Rows, NDArray[np.int64]]:
    """Balanced classes N(MEANS[a], COVARIANCE), and so many features of noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % classes
    rows = MEANS[labels] + rng.standard_normal((n, 2)) @ np.linalg.cholesky(COVARIANCE).T
    return np.hstack([rows, rng.standard_normal((n, noise))]), labels


def truth(rows: Rows, classes: int = 3) -> Rows:
    return log_softmax(
        np.stack([multivariate_normal(MEANS[a], COVARIANCE).logpdf(rows) for a in range(classes)], 1), axis=1
    )


def proper(logs: Rows, shape: tuple[int, int]) -> None:
    assert logs.shape == shape
    assert logs.dtype == np.float64
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs).sum(axis=1), 1.0, rtol=1e-12)


@each
@pytest.mark.parametrize("classes", [2, 3])
def test_every_model_beats_chance_and_repeats_itself(model: Classifier, classes: int) -> None:
    rows, labels = gaussians(240, classes, noise=4)
    held, right = gaussians(150, classes, seed=1, noise=4)
    fitted = model.fit(rows.astype(np.float32), labels, classes, 5)
    logs = fitted.log_posterior(held.astype(np.float32))
    proper(logs, (150, classes))
    assert (logs.argmax(axis=1) == right).mean() > 1 / classes + 0.12
    again = model.fit(rows.astype(np.float32), labels, classes, 5)
    np.testing.assert_array_equal(again.log_posterior(held.astype(np.float32)), logs)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).shares(held), fitted.shares(held))  # noqa: TID251
    np.testing.assert_allclose(fitted.shares(held).sum(axis=1), 1.0, rtol=1e-12)
    # Every row is judged by itself, and none is no difficulty.
    np.testing.assert_allclose(fitted.log_posterior(held.astype(np.float32)[:1]), logs[:1], atol=1e-9)
    assert fitted.log_posterior(held[:0]).shape == (0, classes)
    assert not fitted.notes or "ConvergenceWarning" in fitted.notes[0]


@each
def test_noise_says_nothing(model: Classifier) -> None:
    rng = np.random.default_rng(3)
    labels = np.arange(400) % 2
    fitted = model.fit(rng.standard_normal((400, 5)), labels, 2, 0)
    found = fitted.log_posterior(rng.standard_normal((600, 5)))[:, 1]
    # The standard deviation of an AUROC under the null is about 1/√(6·300) = 0.024.
    assert abs(roc_auc_score(np.arange(600) % 2, found) - 0.5) < 0.08


@each
def test_a_class_without_a_shadow_update_stays_possible(model: Classifier) -> None:
    rows, labels = gaussians(60)
    seen = labels != 1
    fitted = model.fit(rows[seen], labels[seen], 3, 0)
    logs = fitted.log_posterior(rows)
    proper(logs, (60, 3))
    assert (np.exp(logs[:, 1]) <= 1 / model.weight(int(seen.sum())) + 1e-12).all()
    assert "no shadow update of class 1" in fitted.notes
    if not isinstance(model, Ordinal):
        np.testing.assert_allclose(logs[:, 1], -np.log(model.weight(int(seen.sum())) + 3), rtol=1e-12)
    one = model.fit(rows[:3], np.array([2, 2, 2]), 3, 0)
    proper(one.log_posterior(rows), (60, 3))
    assert (one.log_posterior(rows).argmax(axis=1) == 2).all()


@each
def test_features_that_do_not_vary_are_no_obstacle(model: Classifier) -> None:
    rows, labels = gaussians(90)
    held = gaussians(30, seed=2)[0]
    constant = np.full((90, 3), 7.0)
    fitted = model.fit(np.hstack([constant, rows]), labels, 3, 0)
    plain = model.fit(rows, labels, 3, 0)
    wide = np.hstack([np.full((30, 3), -1.0), held])
    np.testing.assert_allclose(fitted.log_posterior(wide), plain.log_posterior(held), atol=1e-9)
    blind = model.fit(constant, labels, 3, 0)
    assert "no feature differs" in blind.notes[0]
    np.testing.assert_allclose(np.exp(blind.log_posterior(constant)), 1 / 3, atol=0.03)


@each
def test_hostile_numbers_stay_numbers(model: Classifier) -> None:
    """One row a class, updates of 1e-30, a class that does not vary, rows a million times as large, more features than rows."""
    rng = np.random.default_rng(0)
    for rows in (
        rng.standard_normal((3, 2)),
        1e-30 * rng.standard_normal((30, 2)),
        np.where((np.arange(30) % 3 == 0)[:, None], 0.0, rng.standard_normal((30, 2))),
        np.sign(rng.standard_normal((30, 2))),
        rng.standard_normal((9, 40)),
    ):
        fitted = model.fit(rows, np.arange(rows.shape[0]) % 3, 3, 0)
        for scale in (0.0, 1.0, 1e6, 1e30):
            proper(fitted.log_posterior(scale * rows), (rows.shape[0], 3))


@each
def test_what_cannot_be_fitted_is_refused_by_name(model: Classifier) -> None:
    rows, labels = gaussians(30)
    bad = rows.copy()
    bad[[2, 5], 1] = np.nan, np.inf
    with pytest.raises(InputError, match="got 2 of 30 rows with NaN, infinity"):
        model.fit(bad, labels, 3, 0)
    fitted = model.fit(rows, labels, 3, 0)
    with pytest.raises(InputError, match="got 2 of 30 rows"):
        fitted.log_posterior(bad)
    with pytest.raises(InputError, match=r"expected \(n, 2\) floating point"):
        fitted.log_posterior(rows[:, :1])
    with pytest.raises(InputError, match="expected 0 to 2, got 0 to 3"):
        model.fit(rows, labels + (labels == 2), 3, 0)
    with pytest.raises(InputError, match=r"labels: expected \(30,\) whole numbers"):
        model.fit(rows, labels.astype(float), 3, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one row"):
        model.fit(rows[:0], labels[:0], 3, 0)
    with pytest.raises(InputError, match="classes: expected a whole number of at least 2"):
        model.fit(rows, labels, 1, 0)
    with pytest.raises(InputError, match="seed: expected a whole number"):
        model.fit(rows, labels, 3, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("classes", [2, 3])
def test_models_are_those_of_scikit_learn(classes: int) -> None:
    """On features of mean 0 and variance 1, where standardizing changes nothing."""
    rows, labels = gaussians(200, classes, noise=3)
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    held = gaussians(80, classes, seed=1, noise=3)[0]
    seed = derive_seed(9, "fit") % 2**32
    pairs = [
        (GaussianNaiveBayes(), GaussianNB()),
        (LinearDiscriminant(shrinkage=0.0), LinearDiscriminantAnalysis(solver="lsqr")),
        (LinearDiscriminant(shrinkage=0.3), LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)),
        (QuadraticDiscriminant(regularization=0.2), QuadraticDiscriminantAnalysis(reg_param=0.2)),
        (LogisticRegression(inverse_penalty=0.7), SklearnLogistic(C=0.7)),
        (GradientBoosting(trees=20), HistGradientBoostingClassifier(max_iter=20, early_stopping=False)),
        (MultilayerPerceptron(hidden=20), MLPClassifier((20,), random_state=seed)),
    ]
    for ours, theirs in pairs:
        with np.errstate(under="ignore"):
            if isinstance(ours, MultilayerPerceptron):
                with pytest.warns(UserWarning, match="Maximum iterations"):
                    theirs.fit(rows, labels)
            else:
                theirs.fit(rows, labels)
        fitted = ours.fit(rows, labels, classes, 9)
        np.testing.assert_allclose(np.exp(fitted.log_posterior(held)), theirs.predict_proba(held), atol=2e-5)
        assert bool(fitted.notes) == isinstance(ours, MultilayerPerceptron)


def test_forests_count_votes_and_add_one() -> None:
    rows, labels = gaussians(150)
    held = gaussians(60, seed=1)[0]
    theirs = RandomForestClassifier(n_estimators=20, random_state=derive_seed(9, "fit") % 2**32).fit(rows, labels)
    votes = np.zeros((60, 3))
    for tree in theirs.estimators_:
        votes[np.arange(60), tree.predict(held).astype(int)] += 1
    fitted = RandomForest(trees=20).fit(rows, labels, 3, 9)
    np.testing.assert_allclose(np.exp(fitted.log_posterior(held)), (votes + 1) / 23, rtol=1e-12)
    np.testing.assert_allclose(fitted.shares(held), votes / 20, atol=1e-12)
    assert (votes == 0).any()


def test_leaves_of_equal_updates_split_their_vote() -> None:
    """Two values of one feature; at 0 both classes are as many: a hard vote goes one way in every tree of a tie."""
    rows = np.repeat([[0.0], [1.0]], 300, axis=0)
    labels = np.r_[np.arange(300) % 2, np.ones(300, dtype=np.int64)]
    posterior = np.exp(RandomForest().fit(rows, labels, 2, 0).log_posterior(np.array([[0.0], [1.0]])))
    assert abs(posterior[0, 0] - 0.5) < 0.05
    assert posterior[1, 1] == pytest.approx(51 / 52)


@pytest.mark.parametrize("model", [LinearDiscriminant(), QuadraticDiscriminant(regularization=1e-3)])
def test_discriminants_approach_the_known_posterior(model: Classifier) -> None:
    held = gaussians(200, seed=1)[0]
    errors = []
    for n in (300, 30000):
        fitted = model.fit(*gaussians(n), 3, 0)
        errors.append(np.abs(np.exp(fitted.log_posterior(held)) - np.exp(truth(held))).max())
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 3


def test_discriminants_of_fewer_rows_than_features_are_dense_gaussians() -> None:
    """40 features, 12 rows: against covariances written out."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((12, 40)) + np.arange(12)[:, None] % 3
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    labels = np.arange(12) % 3
    held = rng.standard_normal((20, 40))
    means = np.stack([rows[labels == a].mean(axis=0) for a in range(3)])
    within = (rows - means[labels]).T @ (rows - means[labels]) / 12
    shared = 0.6 * within + 0.4 * np.trace(within) / 40 * np.eye(40)
    linear = np.stack([multivariate_normal(mean, shared).logpdf(held) for mean in means], axis=1)
    found = LinearDiscriminant(shrinkage=0.4).fit(rows, labels, 3, 0).log_posterior(held)
    np.testing.assert_allclose(found, log_softmax(linear, axis=1), atol=1e-6)
    own = [0.7 * np.cov(rows[labels == a].T, bias=True) + 0.3 * np.eye(40) for a in range(3)]
    quadratic = np.stack([multivariate_normal(means[a], own[a]).logpdf(held) for a in range(3)], axis=1)
    found = QuadraticDiscriminant(regularization=0.3).fit(rows, labels, 3, 0).log_posterior(held)
    np.testing.assert_allclose(found, log_softmax(quadratic, axis=1), atol=1e-8)


@pytest.mark.parametrize("shape", [(50, 8), (12, 40)])
def test_the_shrinkage_is_that_of_ledoit_and_wolf(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal(shape) * np.linspace(1, 3, shape[1])
    rows -= rows.mean(axis=0)
    expected = LedoitWolf(assume_centered=True).fit(rows).shrinkage_
    assert ledoit_wolf(rows, principal(rows)[1]) == pytest.approx(expected, rel=1e-9)


def test_warnings_become_notes() -> None:
    rows, labels = gaussians(60)
    fitted = LogisticRegression(iterations=1).fit(rows, labels, 3, 0)
    assert any("ConvergenceWarning" in note for note in fitted.notes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomForest(trees=0),
        lambda: RandomForest(depth=0),
        lambda: RandomForest(leaf_rows=0),
        lambda: GaussianNaiveBayes(smoothing=-1.0),
        lambda: LinearDiscriminant(shrinkage=1.1),
        lambda: QuadraticDiscriminant(regularization=0.0),
        lambda: LogisticRegression(inverse_penalty=0.0),
        lambda: GradientBoosting(learning_rate=0.0),
        lambda: MultilayerPerceptron(hidden=0),
        lambda: Ordinal(base=Ordinal()),
        lambda: Ordinal(base=object()),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused(make: object) -> None:
    with pytest.raises(InputError, match="expected"):
        make()  # type: ignore[operator]
