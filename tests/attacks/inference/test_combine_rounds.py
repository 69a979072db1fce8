"""Equation 5 against Bayes' rule written out."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from gradleak.attacks.inference import combine_rounds
from gradleak.results import InputError

RNG = np.random.default_rng(0)
PRIOR = np.array([0.7, 0.2, 0.1])
# P(g_i = v | a) of three rounds, three values and three classes.
LIKELIHOOD = RNG.dirichlet(np.ones(3), size=(3, 3)).transpose(0, 2, 1)
# What a fit on balanced labels models: the posterior under a uniform prior.
BALANCED = LIKELIHOOD / LIKELIHOOD.sum(axis=2, keepdims=True)


@pytest.mark.parametrize("rounds", [[0, 1, 2], [0], [2, 1], []])
def test_it_is_bayes_rule_for_rounds_that_are_independent_given_the_class(rounds: list[int]) -> None:
    outcomes = np.array(list(product(range(3), repeat=3)))
    logs = np.log(np.stack([BALANCED[i, outcomes[:, i]] for i in range(3)]))
    found = combine_rounds(logs, np.log(PRIOR), rounds=rounds)
    for row, values in zip(found, outcomes, strict=True):
        joint = PRIOR * np.prod([LIKELIHOOD[i, values[i]] for i in rounds], axis=0)
        np.testing.assert_allclose(np.exp(row), joint / joint.sum(), rtol=1e-12)


def test_all_rounds_are_the_default_and_the_prior_need_not_add_up() -> None:
    logs = np.log(BALANCED)
    found = combine_rounds(logs, np.log(PRIOR))
    np.testing.assert_array_equal(found, combine_rounds(logs, np.log(PRIOR), rounds=[0, 1, 2]))
    np.testing.assert_allclose(combine_rounds(logs, np.log(5 * PRIOR)), found, atol=1e-12)


def test_it_is_equation_5_of_the_paper_for_posteriors_under_the_prior() -> None:
    under = BALANCED * PRIOR
    under /= under.sum(axis=2, keepdims=True)
    logs = np.log(under).sum(axis=0) - 2 * np.log(PRIOR)
    expected = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(combine_rounds(np.log(BALANCED), np.log(PRIOR))), expected, rtol=1e-12)


def test_very_sure_rounds_do_not_overflow() -> None:
    logs = np.array([[[-5000.0, 0.0]], [[0.0, -4999.0]]])
    found = combine_rounds(logs, np.zeros(2))
    np.testing.assert_allclose(np.exp(found), [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-12)


@pytest.mark.parametrize(
    ("logs", "prior", "rounds", "message"),
    [
        (np.zeros((2, 2)), np.zeros(2), None, r"log-posteriors \(r, n, m\)"),
        (np.zeros((2, 2, 3)), np.zeros(2), None, r"log-prior \(m,\)"),
        (np.full((1, 1, 2), -np.inf), np.zeros(2), None, "finite logarithms"),
        (np.zeros((1, 1, 2)), np.array([0.0, -np.inf]), None, "finite logarithms"),
        (np.zeros((2, 1, 2)), np.zeros(2), [2], "places from 0 to 1"),
        (np.zeros((2, 1, 2)), np.zeros(2), [1, 1], "each once"),
        (np.zeros((2, 1, 2)), np.zeros(2), [-1], "places from 0 to 1"),
    ],
)
def test_what_is_no_round_is_refused(
    logs: np.ndarray, prior: np.ndarray, rounds: list[int] | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        combine_rounds(logs, prior, rounds=rounds)
