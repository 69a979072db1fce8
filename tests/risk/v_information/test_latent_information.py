from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from gradleak.attacks import LogisticRegression, MaxPooling, RandomForest
from gradleak.core import Batch, Objective
from gradleak.core.example_gradients import example_gradients
from gradleak.results import InputError, Outcome
from gradleak.risk import Consecutive, LatentInformation
from gradleak.risk.v_information.latent_information import exponent_of, gains_of

LOGISTIC = LatentInformation(classifier=LogisticRegression(), resamples=200)


def two_gaussians(distance: float) -> float:
    """I(a; g) in nats of a fair bit and g ~ N(± distance/2, 1), by quadrature: log 2 − E log(1 + exp(−log-odds))."""
    near, far = scipy.stats.norm(distance / 2, 1), scipy.stats.norm(-distance / 2, 1)

    def missing(x: float) -> float:
        return float(near.pdf(x) * np.logaddexp(0.0, far.logpdf(x) - near.logpdf(x)))

    return math.log(2) - float(scipy.integrate.quad(missing, -12, 12)[0])


def bits(count: int, share: float = 0.5, seed: int = 0) -> torch.Tensor:
    return (torch.rand(count, generator=torch.Generator().manual_seed(seed)) < share).long()


class TestKnownInformation:
    def test_a_planted_linear_attribute_has_the_information_of_two_gaussians(self) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = bits(3000)
        shift = (2.0 * labels[:, None] - 1.0) * torch.tensor([[0.6, 0.8]])
        gradients = {"0": torch.randn(3000, 2, generator=generator) + shift}
        score = LOGISTIC(gradients, labels).scores["0"]
        truth = two_gaussians(2.0)
        assert score.interval is not None
        assert score.interval[0] < truth < score.interval[1]
        assert score.value == pytest.approx(truth, abs=0.03)
        assert score.details["bits"] == pytest.approx(score.value / math.log(2))

    def test_a_forest_finds_the_capacity_of_a_binary_symmetric_channel(self) -> None:
        labels = bits(1500)
        flipped = labels ^ bits(1500, 0.1, seed=1)
        score = LatentInformation(classifier=RandomForest(trees=10), resamples=200)(
            {"0": flipped[:, None].float()}, labels
        ).scores["0"]
        truth = math.log(2) - scipy.stats.entropy([0.1, 0.9])
        assert score.interval is not None
        assert score.interval[0] < truth < score.interval[1]
        assert score.details["accuracy"] == pytest.approx(0.9, abs=0.03)

    def test_an_attribute_that_a_layer_holds_has_all_of_its_entropy(self) -> None:
        labels = bits(300, 0.3)
        score = LOGISTIC({"0": 10.0 * labels[:, None].double()}, labels).scores["0"]
        share = float(labels.double().mean())
        assert score.details["entropy"] == pytest.approx(scipy.stats.entropy([share, 1 - share]))
        assert score.value == pytest.approx(score.details["entropy"], abs=0.02)

    def test_what_a_layer_holds_depends_on_the_family(self) -> None:
        """At zero weights the gradients are (p − y) xᵀ and p − y, with p − y = ±½: the bias knows the label alone.

        With the attribute for the first entry of x, and independent labels, an entry of the weight's gradient is 0 or ±½: a
        forest tells all of it, an attacker with log-odds linear in the gradient nothing, and nobody anything from the bias.
        """
        generator = torch.Generator().manual_seed(0)
        labels = bits(200)
        inputs = torch.randn(200, 1, generator=generator)
        inputs[:, 0] = labels
        model = torch.nn.Linear(1, 2)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        objective = Objective.from_module(model)
        gradients = example_gradients(objective, objective.params, Batch(inputs, bits(200, seed=5)))
        forest = LatentInformation(classifier=RandomForest(trees=10), folds=3, resamples=100)(gradients, labels)
        assert forest.leakiest == "weight"
        assert forest.scores["weight"].value == pytest.approx(math.log(2), abs=0.1)
        assert forest.scores["bias"].value == pytest.approx(0.0, abs=0.02)
        linear = LOGISTIC(gradients, labels)
        assert linear.scores["weight"].value == pytest.approx(0.0, abs=0.05)


class TestNull:
    def test_shuffled_attributes_have_nothing_within_the_interval_in_nearly_all_seeds(self) -> None:
        held = 0
        for seed in range(30):
            generator = torch.Generator().manual_seed(seed)
            gradients = {"0": torch.randn(120, 4, generator=generator)}
            measure = LatentInformation(classifier=LogisticRegression(), folds=3, resamples=100, seed=seed)
            score = measure(gradients, bits(120, 0.3, seed=seed + 1000)).scores["0"]
            assert score.value is not None
            assert score.interval is not None
            held += score.interval[0] <= 0.0 <= score.interval[1]
        assert held >= 29

    def test_an_unbalanced_attribute_has_nothing_but_in_the_terms_of_the_paper(self) -> None:
        labels = bits(400, 0.1)
        gradients = {"0": torch.randn(400, 2, generator=torch.Generator().manual_seed(3))}
        score = LOGISTIC(gradients, labels).scores["0"]
        assert score.value == pytest.approx(0.0, abs=0.02)
        share = float(labels.double().mean())
        from_nothing = math.log(2) - scipy.stats.entropy([share, 1 - share])
        assert score.details["with_uniform_prior"] == pytest.approx(from_nothing, abs=0.05)
        assert from_nothing > 0.3

    def test_rows_that_belong_together_are_neither_split_nor_counted_twice(self) -> None:
        """Twenty copies of every row: a forest that had seen a copy would know the attribute of the other."""
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(40, 3, generator=generator).repeat_interleave(20, dim=0)
        labels = (torch.arange(40) % 2).repeat_interleave(20)
        clusters = torch.arange(40).repeat_interleave(20)
        measure = LatentInformation(classifier=RandomForest(trees=10), folds=3, resamples=200)
        apart = measure({"0": rows}, labels, clusters=clusters).scores["0"]
        assert apart.n == 40
        assert apart.interval is not None
        assert apart.interval[0] <= 0.0
        split = measure({"0": rows}, labels).scores["0"]
        assert split.value == pytest.approx(math.log(2), abs=0.1)


class TestAnswers:
    def test_sets_of_layers_and_features(self) -> None:
        labels = bits(100)
        gradients = {
            "0": torch.randn(100, 2, 3, generator=torch.Generator().manual_seed(0)),
            "2": labels[:, None].float(),
            "4": torch.randn(100, 1, generator=torch.Generator().manual_seed(1)),
        }
        measure = LatentInformation(
            classifier=LogisticRegression(),
            features=MaxPooling(kernel=2),
            by=Consecutive(count=2),
            folds=2,
            resamples=100,
        )
        profile = measure(gradients, labels)
        assert list(profile.groups) == ["0 + 2", "2 + 4"]
        assert profile.scores["0 + 2"].details["width"] == 4

    def test_the_same_seed_gives_the_same_numbers(self) -> None:
        labels = bits(80)
        gradients = {"0": torch.randn(80, 2, generator=torch.Generator().manual_seed(0))}
        assert LOGISTIC(gradients, labels) == LOGISTIC(gradients, labels)

    def test_too_few_rows_and_numbers_that_are_none_are_words(self) -> None:
        gradients = {"0": torch.randn(40, 2), "2": torch.full((40, 1), math.nan)}
        one = LOGISTIC(gradients, torch.zeros(40, dtype=torch.long)).scores["0"]
        assert (one.value, one.outcome) == (None, Outcome.NOT_RESOLVABLE)
        few = LOGISTIC(gradients, (torch.arange(40) < 3).long()).scores["0"]
        assert "3 independent rows; 5 folds need at least 10" in few.note
        profile = LOGISTIC(gradients, torch.arange(40) % 2)
        assert profile.scores["2"].outcome is Outcome.NOT_FINITE
        assert profile.ranked == ["0", "2"]

    def test_refuses_what_does_not_fit(self) -> None:
        with pytest.raises(InputError, match=r"labels: expected \(4,\) whole numbers"):
            LOGISTIC({"0": torch.zeros(4, 1)}, torch.zeros(3, dtype=torch.long))
        with pytest.raises(InputError, match="the same number of rows"):
            LOGISTIC({"0": torch.zeros(4, 1), "1": torch.zeros(3, 1)}, torch.zeros(4, dtype=torch.long))
        with pytest.raises(InputError, match="at least one tensor"):
            LOGISTIC({}, torch.zeros(4, dtype=torch.long))
        with pytest.raises(InputError, match="at least 2"):
            LatentInformation(folds=1)
        with pytest.raises(InputError, match="expected a Consecutive, lists of texts by name or None"):
            LatentInformation(by="layer")  # type: ignore[arg-type]


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.5])
def test_gains_are_those_of_the_posterior_tempered_towards_the_law(exponent: float) -> None:
    """f[g] ∝ P (q/P)^t, normalized by hand; t = 0 is the attacker who knows the law alone, t = 1 the posterior itself."""
    law = np.array([0.7, 0.2, 0.1])
    random = np.random.default_rng(0)
    posteriors, labels = random.dirichlet([1.0, 1.0, 1.0], size=20), random.integers(0, 3, 20)
    tempered = law * (posteriors / law) ** exponent
    tempered /= tempered.sum(axis=1, keepdims=True)
    rows = np.arange(20)
    found = gains_of(np.log(posteriors), labels, law, exponent)
    np.testing.assert_allclose(found, np.log(tempered[rows, labels] / law[labels]), atol=1e-12)


def test_a_few_rows_told_wrongly_with_certainty_do_not_hide_what_is_told_of_the_others() -> None:
    """Of 100 rows 3 % or so have the other value: the few rows that judge often hold none of them.

    Whoever knows the share of wrong rows has log 2 − h(share), about 0.56 nats, and logistic regression on 100 entries is
    as sure of the wrong ones as of the others.
    """
    found = []
    for seed in range(6):
        random = torch.Generator().manual_seed(seed)
        labels = bits(100, seed=seed + 50)
        gradients = {"0": 3.0 * torch.randn(100, 100, generator=random) + 3.0 * (2.0 * labels[:, None] - 1.0)}
        wrong = bits(100, 0.03, seed=seed + 100)
        found.append(LOGISTIC(gradients, labels ^ wrong).scores["0"])
    assert all(score.details["accuracy"] > 0.9 for score in found)
    assert all(score.value is not None and score.value > 0.3 for score in found)
    assert all(score.interval is not None and score.interval[0] > 0.0 for score in found)


def test_the_exponent_of_rows_told_without_a_mistake_gives_the_smoothed_share() -> None:
    """Ten rows of each value with log-odds of ±2: Platt's target of a right one is 11/12, so that 2 t = log 11."""
    labels = np.arange(20) % 2
    odds = 2.0 * (2.0 * labels - 1.0)
    logs = -np.logaddexp(0.0, np.stack([odds, -odds], axis=1))
    assert exponent_of(logs, labels, np.array([0.5, 0.5])) == pytest.approx(math.log(11) / 2.0, abs=1e-4)
