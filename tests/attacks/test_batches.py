"""Batches: rows come back in another order, labels repeat, and a score is read beside that of a wrong pairing."""

from __future__ import annotations

import pytest
import torch

from gradleak.attacks import IDLG, Blind, GaussNewton, SignRule
from gradleak.core import Batch, HonestButCurious, Reconstruction
from gradleak.results import Outcome, Score
from gradleak.scoring import score_images
from tests.attacks.setting import ROW, Setting, rows, setting, small_net

GIVEN = HonestButCurious(targets=True)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _scores(case: Setting, found: Reconstruction) -> dict[str, Score]:
    return {score.name: score for score in score_images(found, case.truth)}


def _in_order(case: Setting, found: Reconstruction) -> float:
    """The largest error of a row if the order of the claim were that of the batch."""
    return float((found.inputs - case.truth.inputs).abs().amax(dim=1).max())


@pytest.mark.parametrize("activation", ["tanh", "sigmoid"])
@pytest.mark.parametrize(
    "targets", [(0, 2), (2, 0, 1), (1, 1), (1, 0, 1), (2, 1, 1, 0), (0, 0, 1, 2, 1)], ids=lambda t: "".join(map(str, t))
)
def test_gauss_newton_finds_every_row_of_a_batch(targets: tuple[int, ...], activation: str) -> None:
    case = setting(small_net(activation), rows(*targets), threat=GIVEN)
    found = GaussNewton(starts=4, max_steps=15, warm_iterations=60)(case.update, case.knowledge, generator=_generator())
    scores = _scores(case, found)
    assert found.outcome is Outcome.CONVERGED
    assert scores["exact_hits"].value == 1.0
    assert max(scores["pixel_rmse"].details["per_example"]) < 1e-8
    assert scores["label_accuracy"].value == 1.0
    # As far as different rows lie apart: two numbers uniform in [0, 1] differ by 0.41 in root mean square.
    assert 0.25 < scores["wrong_pairing_rmse"].value < 0.55


def test_rows_with_one_label_come_back_in_any_order() -> None:
    """U31."""
    case = setting(small_net(), rows(1, 1, 1), threat=GIVEN)
    orders = set()
    for seed in range(4):
        found = GaussNewton(max_steps=15, warm_iterations=60)(case.update, case.knowledge, generator=_generator(seed))
        scores = _scores(case, found)
        orders.add(tuple(scores["pixel_rmse"].details["claim_of"]))
        assert scores["exact_hits"].value == 1.0
        # Unpaired, the same claim would pass for a failure.
        if orders != {(0, 1, 2)} and scores["pixel_rmse"].details["claim_of"] != [0, 1, 2]:
            assert _in_order(case, found) > 0.1
    assert len(orders) > 1


def test_the_order_of_the_private_rows_changes_nothing() -> None:
    """U31."""
    truth = rows(1, 0, 1)
    order = [2, 0, 1]
    case = setting(small_net(), truth, threat=GIVEN)
    permuted = setting(small_net(), Batch(truth.inputs[order], truth.targets[order], ROW), threat=GIVEN)
    assert all(torch.allclose(case.update.tensors[name], t, atol=1e-15) for name, t in permuted.update.tensors.items())
    first, second = (
        _scores(one, GaussNewton()(one.update, one.knowledge, generator=_generator())) for one in (case, permuted)
    )
    assert first["exact_hits"].value == second["exact_hits"].value == 1.0


def test_labels_that_are_not_disclosed_belong_to_their_rows() -> None:
    case = setting(small_net(), rows(1, 0, 1))
    found = GaussNewton(max_steps=25, starts=1)(case.update, case.knowledge, generator=_generator())
    scores = _scores(case, found)
    assert scores["exact_hits"].value == 1.0
    assert scores["label_accuracy"].value == 1.0
    assert scores["label_accuracy"].details["matching"] == "paired"


def test_a_row_that_is_there_twice_is_found_twice() -> None:
    """U31."""
    truth = rows(1, 0, 1)
    inputs = truth.inputs.clone()
    inputs[2] = inputs[0]
    case = setting(small_net(), Batch(inputs, truth.targets, ROW), threat=GIVEN)
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    scores = _scores(case, found)
    # To first order the two copies can move against each other: the update does not tell them apart.
    assert found.outcome in (Outcome.CONVERGED, Outcome.NOT_IDENTIFIABLE)
    assert scores["exact_hits"].value == 1.0
    errors = scores["pixel_rmse"].details["per_example"]
    # Moving the two copies apart changes the mean gradient to second order only, so they are known to the root of what
    # a single row is known to.
    assert errors[1] < 1e-12
    assert 1e-10 < max(errors[0], errors[2]) < 1e-5
    # Each copy is right on either place, so only pairs of different rows count as wrong.
    assert scores["wrong_pairing_rmse"].value > 0.25


def test_l_bfgs_finds_a_batch() -> None:
    case = setting(small_net("sigmoid"), rows(0, 2), threat=GIVEN)
    found = IDLG(iterations=20, restarts=3, restart_after=20)(case.update, case.knowledge, generator=_generator())
    scores = _scores(case, found)
    assert scores["exact_hits"].value == 1.0
    assert max(scores["pixel_rmse"].details["per_example"]) < 1e-6


def test_batches_go_in_lockstep() -> None:
    cases = [setting(small_net("sigmoid"), rows(0, 2, seed=seed), threat=GIVEN) for seed in (0, 5)]
    objective = cases[0].knowledge.objective
    shared = [GIVEN.disclose(objective, case.knowledge.release, case.truth) for case in cases]
    attack = IDLG(iterations=15, restarts=3, restart_after=20)
    found = attack.many([case.update for case in cases], shared, generators=[_generator(), _generator()])
    assert all(one.details["group"] == 2 for one in found)
    assert [_scores(case, one)["exact_hits"].value for case, one in zip(cases, found, strict=True)] == [1.0, 1.0]


def test_guessing_blindly_is_no_better_than_a_wrong_pairing() -> None:
    case = setting(small_net(), rows(1, 0, 1), threat=GIVEN)
    blind = _scores(case, Blind()(case.update, case.knowledge, generator=_generator()))
    errors = blind["pixel_rmse"].details["per_example"]
    # All claims are the same, so it does not matter which is held against which row.
    assert blind["wrong_pairing_rmse"].value == pytest.approx(sum(errors) / 3, rel=1e-9)


@pytest.mark.parametrize(("targets", "seed"), [((0, 0, 1, 2, 1), 2), ((2, 2, 2), 1)])
def test_batches_with_repeats_are_attacked_without_their_labels(targets: tuple[int, ...], seed: int) -> None:
    case = setting(small_net(), rows(*targets))
    rule = SignRule()(case.update, case.knowledge)
    assert rule.targets is None or sorted(rule.targets.tolist()) == sorted(targets)
    found = GaussNewton(max_steps=12, starts=1)(case.update, case.knowledge, generator=_generator(seed))
    scores = _scores(case, found)
    assert found.inputs.shape == (len(targets), 12)
    assert all(value is not None for value in scores["pixel_rmse"].details["per_example"])
    # The classes are known long before the rows: the claimed counts are the true ones.
    claimed = found.targets.argmax(dim=1) if found.targets.is_floating_point() else found.targets
    assert sorted(claimed.tolist()) == sorted(targets)
