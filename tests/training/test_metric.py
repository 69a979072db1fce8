from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

from gradleak.results import InputError
from gradleak.training import Metric, worth
from gradleak.training.metric import constant_answers


def _logits(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns))


def test_values_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    outputs, truth = [_logits(rng, 60, 4) for _ in range(3)], rng.integers(0, 4, 60).astype(float)
    found = worth(Metric.ACCURACY, outputs, truth)
    assert found.per_seed == pytest.approx([accuracy_score(truth, given.argmax(axis=1)) for given in outputs])
    assert found.blind == max(np.bincount(truth.astype(int))) / 60

    binary = rng.integers(0, 2, 60).astype(float)
    pairs = [np.round(_logits(rng, 60, 2) + np.stack([-binary, binary], axis=1), 1) for _ in range(3)]
    found = worth(Metric.AUROC, pairs, binary)
    assert found.per_seed == pytest.approx([roc_auc_score(binary, p[:, 1] - p[:, 0]) for p in pairs])
    one_column = worth(Metric.AUROC, [pairs[0][:, 1:] - pairs[0][:, :1]], binary)
    assert one_column.value == pytest.approx(found.per_seed[0])

    numbers = rng.standard_normal(60)
    guesses = [(numbers + rng.standard_normal(60))[:, None] for _ in range(2)]
    found = worth(Metric.R2, guesses, numbers)
    assert found.per_seed == pytest.approx([r2_score(numbers, guess[:, 0]) for guess in guesses])


def test_with_one_seed_the_interval_of_an_accuracy_is_wilsons() -> None:
    right = np.arange(50) < 43
    outputs = np.stack([~right, right], axis=1).astype(float)
    found = worth(Metric.ACCURACY, [outputs], np.ones(50))
    assert found.interval == pytest.approx(tuple(scipy.stats.binomtest(43, 50).proportion_ci(method="wilson")))
    perfect = worth(Metric.ACCURACY, [outputs[:43]], np.ones(43))
    assert perfect.value == 1.0
    assert perfect.interval[0] < 0.95


def test_with_one_seed_the_interval_of_an_auroc_is_about_the_bootstraps() -> None:
    rng = np.random.default_rng(1)
    truth = (np.arange(200) % 2).astype(float)
    score = truth + rng.standard_normal(200)
    found = worth(Metric.AUROC, [score[:, None]], truth)
    draws = scipy.stats.bootstrap(
        (score, truth),
        lambda s, t: roc_auc_score(t, s),
        paired=True,
        vectorized=False,
        n_resamples=500,
        method="percentile",
        random_state=np.random.default_rng(0),
    ).confidence_interval
    assert found.interval == pytest.approx((draws.low, draws.high), abs=0.015)
    apart = worth(Metric.AUROC, [truth[:, None]], truth)
    assert apart.value == 1.0
    assert 0.9 < apart.interval[0] < 1.0


@pytest.mark.parametrize("metric", [Metric.ACCURACY, Metric.AUROC])
def test_the_interval_covers_what_all_seeds_and_rows_would_give(metric: Metric) -> None:
    """Rows differ in how hard they are, seeds in how good their model is; 95 % is promised over both."""
    rng = np.random.default_rng(2)
    inside, trials, rows, seeds = 0, 300, 80, 4

    def models(rows: int, seeds: int) -> tuple[list[np.ndarray], np.ndarray]:
        truth = (np.arange(rows) % 2).astype(float)
        margin = 1.0 + 0.7 * rng.standard_normal(rows)
        sign = np.where(truth == 1, 1.0, -1.0)
        skill = 0.3 * rng.standard_normal(seeds)
        return [(sign * (margin + s + 0.5 * rng.standard_normal(rows)))[:, None] for s in skill], truth

    many = worth(metric, *models(2000, 400)).value
    for _ in range(trials):
        low, high = worth(metric, *models(rows, seeds)).interval
        inside += low <= many <= high
    # Three standard errors below the promise.
    assert inside / trials > 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5


def test_more_seeds_that_agree_do_not_shorten_the_interval_over_rows() -> None:
    right = np.arange(100) < 80
    outputs = np.stack([~right, right], axis=1).astype(float)
    one, many = worth(Metric.ACCURACY, [outputs], np.ones(100)), worth(Metric.ACCURACY, [outputs] * 10, np.ones(100))
    assert one.interval == pytest.approx(many.interval)


def test_one_answer_for_every_row_is_recognized() -> None:
    rng = np.random.default_rng(0)
    logits = _logits(rng, 20, 3)
    assert not constant_answers(Metric.ACCURACY, logits)
    assert constant_answers(Metric.ACCURACY, logits + np.array([100.0, 0.0, 0.0]))
    assert not constant_answers(Metric.AUROC, logits[:, :2] + np.array([100.0, 0.0]))
    assert constant_answers(Metric.AUROC, np.tile([0.3, 0.1], (20, 1)))
    assert constant_answers(Metric.R2, np.full((20, 1), 3.0))


def test_what_has_no_metric_is_refused() -> None:
    outputs = np.zeros((4, 2))
    with pytest.raises(InputError, match="both classes"):
        worth(Metric.AUROC, [outputs], np.ones(4))
    with pytest.raises(InputError, match="got one value"):
        worth(Metric.R2, [outputs[:, :1]], np.ones(4))
    with pytest.raises(InputError, match="at least one seed"):
        worth(Metric.ACCURACY, [], np.ones(4))
    with pytest.raises(InputError, match="for 4 rows, got \\[3\\]"):
        worth(Metric.ACCURACY, [outputs[:3]], np.ones(4))
