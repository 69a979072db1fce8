"""Differences between layers on the same rows, against scipy's paired test and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from gradleak.attacks import LinearDiscriminant
from gradleak.results import InputError
from gradleak.risk import LatentInformation
from gradleak.risk.layer_profile import PairedRows


def rows(seed: int, count: int, layers: int, *, shared: float, shift: float = 0.0) -> dict[str, np.ndarray]:
    """Contributions of equal means but for the first layer's, of which `shared` is the correlation."""
    random = np.random.default_rng(seed)
    common = np.sqrt(shared) * random.standard_normal(count)
    own = np.sqrt(1.0 - shared) * random.standard_normal((layers, count))
    found = {f"layer {place}": common + own[place] for place in range(layers)}
    found["layer 0"] = found["layer 0"] + shift
    return found


def paired(values: dict[str, np.ndarray], seed: int = 0, resamples: int = 200) -> PairedRows:
    count = len(next(iter(values.values())))
    return PairedRows(values=values, clusters=np.arange(count), resamples=resamples, seed=seed)


def tells_the_leakiest_from_another(found: PairedRows) -> bool:
    means = {name: values.mean() for name, values in found.values.items()}
    first = max(means, key=lambda name: means[name])
    intervals = [found.difference(first, name)[1] for name in means if name != first]
    return any(interval is not None and interval[0] > 0.0 for interval in intervals)


def test_of_two_layers_it_is_the_paired_interval_of_scipy() -> None:
    values = rows(0, 150, 2, shared=0.8, shift=0.3)
    mean, interval = paired(values, resamples=2000).difference("layer 0", "layer 1")
    truth = scipy.stats.ttest_rel(values["layer 0"], values["layer 1"]).confidence_interval()
    assert mean == pytest.approx(float((values["layer 0"] - values["layer 1"]).mean()))
    assert interval == pytest.approx((truth.low, truth.high), rel=0.1)


@pytest.mark.parametrize("count", [2, 3, 6])
def test_of_few_rows_it_is_never_narrower_than_students(count: int) -> None:
    values = rows(1, count, 2, shared=0.5)
    _, interval = paired(values).difference("layer 0", "layer 1")
    truth = scipy.stats.ttest_rel(values["layer 0"], values["layer 1"]).confidence_interval()
    assert interval is not None
    assert interval[0] <= truth.low + 1e-12
    assert interval[1] >= truth.high - 1e-12


def test_more_layers_to_pick_from_make_it_wider_and_the_widening_too() -> None:
    values = rows(2, 60, 8, shared=0.5)
    few = paired({name: values[name] for name in ("layer 0", "layer 1")})
    many = paired(values)
    assert few.critical < many.critical
    # Tukey's for eight equally correlated layers, and Bonferroni's for 28 pairs.
    tukey = scipy.stats.studentized_range.ppf(0.95, 8, 59) / np.sqrt(2.0)
    assert many.critical == pytest.approx(tukey, rel=0.12)
    assert many.critical < scipy.stats.t.isf(0.025 / 28, 59) * 1.05
    wide = PairedRows(values=values, clusters=np.arange(60), widening=2.0, resamples=200)
    _, narrow_interval = many.difference("layer 1", "layer 2")
    mean, wide_interval = wide.difference("layer 1", "layer 2")
    assert narrow_interval is not None
    assert wide_interval is not None
    assert wide_interval[1] - mean == pytest.approx(2.0 * (narrow_interval[1] - mean))


def test_rows_that_belong_together_count_once() -> None:
    values = rows(3, 30, 2, shared=0.2, shift=0.1)
    once = paired(values).difference("layer 0", "layer 1")
    copies = PairedRows(
        values={name: np.repeat(column, 9) for name, column in values.items()},
        clusters=np.repeat(np.arange(30), 9),
        resamples=200,
    )
    assert copies.independent == 30
    again = copies.difference("layer 0", "layer 1")
    assert again[0] == pytest.approx(once[0])
    assert again[1] == pytest.approx(once[1])
    alone = PairedRows(values=values, clusters=np.zeros(30, dtype=np.int64))
    assert alone.difference("layer 0", "layer 1")[1] is None


def test_equal_layers_are_rarely_told_apart_and_a_planted_difference_is_found() -> None:
    null = [tells_the_leakiest_from_another(paired(rows(seed, 40, 3, shared=0.6), seed)) for seed in range(60)]
    planted = [
        paired(rows(seed, 40, 3, shared=0.9, shift=0.5), seed).difference("layer 0", "layer 1")[1] for seed in range(20)
    ]
    assert sum(null) <= 7  # at most 5 % expected; 8 of 60 have a probability of 1 % at most
    assert sum(interval is not None and interval[0] > 0.0 for interval in planted) >= 19


@pytest.mark.parametrize("count", [3, 8])
def test_of_few_rows_many_equal_layers_are_rarely_told_apart(count: int) -> None:
    # 28 pairs: the bootstrap alone told some apart in a third of all data of three rows.
    told = 0
    for seed in range(80):
        random = np.random.default_rng(seed)
        values = {f"layer {place}": random.normal(size=count) for place in range(8)}
        found = PairedRows(values=values, clusters=np.arange(count), seed=seed, resamples=100)
        columns = np.stack(list(values.values()), axis=1)
        first, second = np.triu_indices(8, 1)
        apart = columns[:, first] - columns[:, second]
        told += bool((np.abs(scipy.stats.ttest_1samp(apart, 0.0).statistic) > found.critical).any())
    assert told <= 9  # at most 5 % are 4; 10 have a probability of 1 % at most


def test_contributions_that_differ_by_round_off_are_not_told_apart() -> None:
    values = {"layer 0": np.full(9, 0.1) + 0.2, "layer 1": np.full(9, 0.3)}
    assert values["layer 0"][0] != values["layer 1"][0]
    assert PairedRows(values=values, clusters=np.arange(9)).difference("layer 0", "layer 1") == (0.0, (0.0, 0.0))


def test_refuses_what_does_not_fit() -> None:
    values = rows(0, 5, 2, shared=0.5)
    with pytest.raises(InputError, match="expected one of layer 0, layer 1, got 'layer 7'"):
        paired(values).difference("layer 7", "layer 1")
    with pytest.raises(InputError, match=r"expected \(4,\) numbers of 'layer 0'"):
        PairedRows(values=values, clusters=np.arange(4))
    with pytest.raises(InputError, match="expected finite numbers"):
        paired({"layer 0": np.array([1.0, np.nan])})
    with pytest.raises(InputError, match="at least 1"):
        PairedRows(values=values, clusters=np.arange(5), widening=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "layers", "shared"), [(10, 4, 0.8), (30, 2, 0.5), (30, 8, 0.9), (200, 4, 0.0)])
def test_equally_leaky_layers_are_told_apart_in_about_five_in_a_hundred(count: int, layers: int, shared: float) -> None:
    told = sum(
        tells_the_leakiest_from_another(paired(rows(seed, count, layers, shared=shared), seed, 400))
        for seed in range(400)
    )
    # 5 % of 400 are 20; with a true 6.5 % more than 36 come in one run of a hundred.
    assert told <= 36


@pytest.mark.slow
def test_an_attacker_family_on_equal_layers_is_rarely_sure_and_finds_a_planted_difference() -> None:
    """Two layers that hold the attribute in the same way, with noise of their own, and one that does not."""
    told = found = 0
    measure = LatentInformation(classifier=LinearDiscriminant(), folds=3, resamples=200)
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        labels = torch.arange(150) % 2
        noise = torch.randn(3, 150, 3, generator=generator)
        gradients = {
            "0": noise[0] + 1.5 * labels[:, None],
            "2": noise[1] + 1.5 * labels[:, None],
            "4": noise[2],
        }
        equal = measure({name: gradients[name] for name in ("0", "2")}, labels).difference("0", "2").interval
        planted = measure(gradients, labels).difference("0", "4").interval
        assert equal is not None
        assert planted is not None
        told += not equal[0] <= 0.0 <= equal[1]
        found += planted[0] > 0.0
    assert told <= 6  # 5 % are 2; 7 have a probability of 1 % at most
    assert found >= 30  # a few sure and wrong answers make the gains of some rows heavy-tailed
