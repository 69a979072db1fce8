"""Levenberg-Marquardt: exact where the theory says so, and silent about success where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradleak.attacks import GaussNewton
from gradleak.core import Batch, Domain, HonestButCurious, Update
from gradleak.defenses import Clip, GaussianNoise
from gradleak.models import initialize_uniform, lenet_i2f, linear_model, mlp
from gradleak.results import Outcome
from tests.attacks.setting import DIGIT, ROW, lenet, rows, setting, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("seed", range(12))
def test_table_rows_are_found_exactly_with_recovered_labels(seed: int) -> None:
    label = seed % 3
    case = setting(small_net(seed=seed), rows(label, seed=seed))
    found = GaussNewton()(case.update, case.knowledge, generator=_generator(seed))
    assert found.outcome is Outcome.CONVERGED
    assert found.targets.tolist() == [label]
    assert found.details["labels"] == "recovered"
    assert found.details["relative_residual"] < 1e-13
    assert case.error(found.inputs) < 1e-20
    assert found.loss == min(found.history) == found.history[-1]


def test_a_float32_update_is_inverted_to_its_round_off() -> None:
    case = setting(small_net(), rows(1), dtype=torch.float32)
    assert case.update.dtype is torch.float32
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.inputs.dtype is torch.float64
    assert case.error(found.inputs) < 1e-10


def test_an_image_on_a_small_lenet_is_found_beyond_100_db() -> None:
    truth = Batch(
        torch.rand(1, 1, 12, 12, generator=_generator()),
        torch.tensor([3]),
        Domain.image(channels=1, height=12, width=12),
    )
    case = setting(lenet_i2f(size=12, generator=_generator()), truth)
    found = GaussNewton(max_steps=12)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.iterations <= 10
    assert found.details["starts"] == 1
    assert case.error(found.inputs) < 1e-20


@pytest.mark.slow
def test_a_digit_on_the_lenet_is_found_beyond_100_db(shared: Path) -> None:
    model, truth = lenet(shared, "lenet_sigmoid_uniform", "sigmoid")
    case = setting(model, truth)
    found = GaussNewton(max_steps=12)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.iterations <= 10
    assert found.details["starts"] == 1
    assert case.error(found.inputs) < 1e-20


def test_a_batch_with_disclosed_labels_is_found() -> None:
    case = setting(small_net(), rows(0, 2), threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=6, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "disclosed"
    assert found.targets.tolist() == [0, 2]
    assert found.outcome is Outcome.CONVERGED
    assert "order" not in found.note
    assert case.error(found.inputs) < 1e-16


def test_examples_of_one_label_come_in_any_order() -> None:
    case = setting(small_net(), rows(2, 2), threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=20, warm_iterations=0)(case.update, case.knowledge, generator=_generator())
    if found.outcome is Outcome.CONVERGED:
        assert "the order of examples with the same label is not identifiable" in found.note
        swapped = case.error(found.inputs.flip(0))
        assert min(swapped, case.error(found.inputs)) < 1e-16
    else:
        assert found.outcome in (Outcome.PLATEAU, Outcome.BUDGET_SPENT)


def test_labels_that_cannot_be_recovered_are_optimized() -> None:
    mixed = Batch(rows(0).inputs, torch.tensor([[0.5, 0.3, 0.2]]), rows(0).domain)
    case = setting(small_net(), mixed)
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert found.details["unknowns"] == 12 + 3
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-12
    torch.testing.assert_close(found.targets, mixed.targets.double(), atol=1e-6, rtol=0)


def test_regression_with_disclosed_targets() -> None:
    truth = Batch(rows(0).inputs, torch.tensor([[0.5, 0.3, 0.2]]), rows(0).domain)
    case = setting(small_net(), truth, loss="mse", threat=HonestButCurious(targets=True))
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < 1e-16


def test_a_clipped_update_is_inverted_through_the_clipping() -> None:
    case = setting(small_net(), rows(2), defenses=[Clip(0.01)])
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-16
    # An adversary that does not know of the clipping cannot explain the update, and does not claim to.
    unaware = setting(small_net(), rows(2), defenses=[Clip(0.01)], threat=HonestButCurious(defenses=False))
    found = GaussNewton(starts=2, warm_iterations=50)(unaware.update, unaware.knowledge, generator=_generator())
    assert found.outcome is not Outcome.CONVERGED
    assert found.details["relative_residual"] > 0.1


def test_known_noise_sets_the_floor_and_unknown_noise_is_not_success() -> None:
    noise = [GaussianNoise(std=1e-4)]
    case = setting(small_net(), rows(2), defenses=noise)
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.details["at_floor"]
    assert 0 < case.error(found.inputs) < 1e-5
    # The residual at the minimizer has P - n degrees of freedom: about 1 in units of the noise.
    squared = found.loss * sum(float(t.square().sum()) for t in case.update.tensors.values())
    assert squared / (1e-8 * (995 - 12)) == pytest.approx(1.0, abs=0.2)
    unaware = setting(small_net(), rows(2), defenses=noise, threat=HonestButCurious(defenses=False))
    found = GaussNewton(starts=1)(unaware.update, unaware.knowledge, generator=_generator())
    assert found.outcome is Outcome.PLATEAU
    assert case.error(found.inputs) < 1e-5


def test_clip_and_noise_together() -> None:
    case = setting(small_net(), rows(2), defenses=[Clip(0.5), GaussianNoise(std=1e-5)])
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-4


def test_the_linear_model_gives_its_input_away() -> None:
    truth = Batch(torch.rand(1, 1, 28, 28, generator=_generator(3)), torch.tensor([4]), DIGIT)
    case = setting(linear_model(features=784, classes=10), truth, dtype=torch.float32)
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert case.error(found.inputs) < 1e-12


def test_tiny_gradients_of_a_converged_model_are_not_a_small_residual() -> None:
    case = setting(small_net(), rows(1))
    tiny = {name: 1e-9 * torch.randn(t.shape, generator=_generator(), dtype=t.dtype)
            for name, t in case.update.tensors.items()}  # fmt: skip
    found = GaussNewton(max_steps=8, warm_iterations=50)(Update(tensors=tiny), case.knowledge, generator=_generator())
    assert found.outcome is not Outcome.CONVERGED
    assert found.details["relative_residual"] > 0.5


def test_dead_units_give_nothing_to_follow() -> None:
    # Biases far below zero: every unit is off everywhere in the box, and only the last bias has a gradient.
    net = initialize_uniform(small_net("relu"), generator=_generator())
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
        net[2].bias.fill_(-100.0)
    case = setting(net, rows(1))
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator())
    assert "zero everywhere in the update" in found.note
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "a random input already explains" in found.note
    assert case.error(found.inputs) > 1e-3


def test_noise_that_drowns_everything_leaves_nothing_to_identify() -> None:
    case = setting(small_net(), rows(1), defenses=[GaussianNoise(std=100.0)])
    found = GaussNewton(max_steps=5, starts=1)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.details["labels"] == "optimized"


def test_a_relu_network_is_not_refused_and_the_warm_start_helps() -> None:
    case = setting(small_net("relu", seed=3), rows(1, seed=3))
    found = GaussNewton(starts=4, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert found.inputs is not None
    assert case.error(found.inputs) < 1e-2


def test_the_second_start_waits_for_the_first_to_fail() -> None:
    case = setting(small_net(), rows(1))
    assert GaussNewton(starts=5)(case.update, case.knowledge, generator=_generator()).details["starts"] == 1
    cut = GaussNewton(starts=2, max_steps=1, warm_iterations=50)(case.update, case.knowledge, generator=_generator())
    assert cut.outcome is Outcome.BUDGET_SPENT
    assert cut.details["starts"] == 2
    assert cut.loss == min(cut.details["start_losses"])


def test_too_many_unknowns_for_a_matrix_take_krylov_steps() -> None:
    case = setting(small_net(), rows(1))
    found = GaussNewton(max_unknowns=10)(case.update, case.knowledge, generator=_generator())
    assert "KrylovSteps" in str(found.details)
    assert case.error(found.inputs) < 1e-16


def test_the_cost_is_counted_by_the_documented_rule() -> None:
    case = setting(small_net(), rows(1))
    found = GaussNewton()(case.update, case.knowledge, generator=_generator())
    assert found.details["products"] == 12 * found.iterations
    assert found.plain_gradients == found.details["releases"] + 2 * found.details["products"]
    assert GaussNewton(max_steps=10).estimate(case.knowledge) == 10 * (2 * 12 + 3)


def test_progress_is_told() -> None:
    case, calls = setting(small_net(), rows(1)), []
    found = GaussNewton(max_steps=9)(
        case.update, case.knowledge, generator=_generator(), progress=lambda *call: calls.append(call)
    )
    assert [call[0] for call in calls] == list(range(1, found.iterations + 1))
    assert calls[-1][1] == 18


def test_the_floor_knows_the_round_off_of_a_saturated_softmax() -> None:
    """Where p is almost 1, p - 1 cancels: the float32 gradient is far less exact than eps, and that is not a failure."""
    model = mlp(features=12, hidden=(32, 16), classes=3, activation="tanh", generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        model[4].bias.copy_(torch.tensor([0.0, 12.0, 0.0]))
    truth = Batch(torch.rand((1, 12), generator=torch.Generator().manual_seed(5)), torch.tensor([1]), ROW)
    case = setting(model, truth, dtype=torch.float32)
    found = GaussNewton(starts=1)(case.update, case.knowledge, generator=torch.Generator().manual_seed(0))
    assert found.outcome is Outcome.CONVERGED
    assert found.details["relative_residual"] > 16 * torch.finfo(torch.float32).eps
    assert case.error(found.inputs) < 1e-4
