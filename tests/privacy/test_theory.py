"""What is known without a trial: against dp-accounting and the numbers of the paper."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from tests.privacy.setting import objective

from gradleak.core import Release
from gradleak.defenses import DPSGD, Clip, ClipPerExample, GaussianNoise, Sign
from gradleak.privacy import per_attribute_epsilon, total_epsilons
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, Outcome


def test_per_attribute_epsilon_is_that_of_the_largest_shift() -> None:
    score = per_attribute_epsilon([0.3, 0.7, 0.0], std=0.2, delta=1e-5)
    assert score.value == pytest.approx(dp_accounting.get_epsilon_gaussian(0.2 / 0.7, 1e-5), rel=1e-6)
    assert score.details["mu"] == pytest.approx(3.5)
    assert "its 3 other values" in score.note
    same = per_attribute_epsilon([0.0], std=0.2, delta=1e-5)
    assert (same.value, same.outcome) == (0.0, Outcome.CONVERGED)
    far = per_attribute_epsilon([1e160], std=1e-160, delta=1e-5)
    assert far.value is None
    assert far.outcome is Outcome.NOT_FINITE


def test_totals_are_those_of_the_paper_and_the_exact_ones() -> None:
    release = Release(FedSGD(), [DPSGD(clip_norm=2.0, noise_std=0.1, noise="per_example")])
    found = {s.name: s for s in total_epsilons(release, objective(), examples=1, attributes=14, delta=1e-5)}
    assert found["classical_gaussian_epsilon"].value == pytest.approx(96.90, abs=0.005)
    assert found["gaussian_epsilon"].value == pytest.approx(284.39, abs=0.005)
    assert found["replaced_gaussian_epsilon"].value == pytest.approx(
        dp_accounting.get_epsilon_gaussian(0.1 / 4.0, 1e-5), rel=1e-6
    )
    assert found["classical_epsilon_share"].value == pytest.approx(96.896 / 14, rel=1e-4)
    assert found["gaussian_epsilon_share"].value == pytest.approx(284.39 / 14, rel=1e-4)
    assert {name for name, score in found.items() if score.evidence.value == "estimate"} == {
        "classical_gaussian_epsilon", "classical_epsilon_share", "gaussian_epsilon_share",
    }  # fmt: skip


def test_noise_per_example_and_on_the_sum_agree_for_one_example_alone() -> None:
    for examples, factor in ((1, 1.0), (16, 4.0)):
        values = [
            total_epsilons(
                Release(FedSGD(), [DPSGD(clip_norm=2.0, noise_std=0.1, noise=noise)]),
                objective(),
                examples=examples,
                attributes=None,
                delta=1e-5,
            )[0].value
            for noise in ("sum", "per_example")
        ]
        assert values[0] is not None
        assert values[1] is not None
        assert values[0] / values[1] == pytest.approx(factor)


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        (Release(FedSGD()), "nothing bounds"),
        (Release(FedSGD(), [Clip(1.0), GaussianNoise(std=0.1)]), "hides a client"),
        (Release(FedSGD(), [GaussianNoise(std=0.1)]), "no bound"),
        (
            Release(FedAvg(learning_rate=0.1, epochs=2), [DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum")]),
            "several noisy steps",
        ),
    ],
    ids=["nothing", "client", "noise alone", "local steps"],
)
def test_without_a_guarantee_there_is_no_total(release: Release, reason: str) -> None:
    found = total_epsilons(release, objective(), examples=1, attributes=14, delta=1e-5)
    assert len(found) == 5
    assert {score.value for score in found} == {None}
    assert all(reason in score.note for score in found)


def test_clipping_and_noise_after_it_are_a_total_too() -> None:
    release = Release(FedSGD(), [ClipPerExample(2.0), GaussianNoise(std=0.1), Sign()])
    assert total_epsilons(release, objective(), examples=1, attributes=None, delta=1e-5)[1].value == pytest.approx(
        284.39, abs=0.005
    )


@pytest.mark.parametrize(
    ("sensitivities", "std", "delta"),
    [([], 0.1, 1e-5), ([-1.0], 0.1, 1e-5), ([math.nan], 0.1, 1e-5), ([1.0], 0.0, 1e-5), ([1.0], 0.1, 1.0)],
    ids=str,
)
def test_numbers_out_of_range_are_refused(sensitivities: list[float], std: float, delta: float) -> None:
    with pytest.raises(InputError):
        per_attribute_epsilon(sensitivities, std, delta)
