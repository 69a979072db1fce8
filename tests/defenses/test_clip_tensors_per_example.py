"""Per-example clipping tensor by tensor: values, derivative, bound, epsilon with noise behind it, and what attacks read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.releases.released_batches import at_once, one_by_one

from gradleak.accounting import mechanism_of
from gradleak.attacks import GaussNewton
from gradleak.attacks.labels import ConsistentLabels
from gradleak.auditing.plan_reader import PlanReader
from gradleak.core import Batch, Exposure, GaussianMechanism, HonestButCurious, Objective, Release, describe
from gradleak.defenses import DPSGD, ClipPerExample, ClipTensorsPerExample
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, Outcome
from gradleak.training.releases import BatchReleases
from gradleak.training.releases.linear_rows import LinearRows

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp


def objective() -> Objective:
    generator = torch.Generator().manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return Objective.from_module(model)


def rows(count: int) -> Batch:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    return Batch(inputs, torch.randint(3, (count,), generator=generator))


def test_each_tensor_of_each_row_is_clipped_by_a_norm_of_its_own() -> None:
    gradients = {
        "a": torch.tensor([[6.0, 8.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64),
        "b": torch.tensor([12.0, -2.0, 0.0], dtype=torch.float64),
    }
    clip = ClipTensorsPerExample(5.0, weights={"a": 4.0, "b": 3.0})
    assert clip.norms(gradients) == {"a": pytest.approx(4.0), "b": pytest.approx(3.0)}
    found = clip.mean(gradients)
    torch.testing.assert_close(found["a"], gradients["a"] * torch.tensor([[0.4], [1.0], [1.0]], dtype=torch.float64))
    torch.testing.assert_close(found["b"], torch.tensor([3.0, -2.0, 0.0], dtype=torch.float64))
    assert clip.bound == 5.0
    assert ClipTensorsPerExample(2.0).norms("abcd") == dict.fromkeys("abcd", 1.0)


def test_a_plan_file_names_it_and_a_record_gives_it_back(tmp_path: Path) -> None:
    table = {"use": "ClipTensorsPerExample", "max_norm": 2.0, "weights": {"0.weight": 3.0}}
    made = PlanReader(folder=tmp_path, seed=0).build(table, "defenses", "defenses[0]")
    assert made == ClipTensorsPerExample(2.0, weights={"0.weight": 3.0})
    assert describe(made) == table


def test_a_tensor_that_is_not_there_is_refused() -> None:
    clip = ClipTensorsPerExample(1.0, weights={"9.weight": 2.0})
    expected = (
        r"ClipTensorsPerExample.weights: expected names of tensors, got '9.weight'; the update has '0.weight', '0.bias'"
    )
    with pytest.raises(InputError, match=expected):
        Release(FedSGD(), [clip]).mean(objective(), objective().params, rows(2))


@pytest.mark.parametrize(
    "noise", [[], [DPSGD(clip_norm=0.2, noise_std=1.0, noise="sum")]], ids=["alone", "noise after"]
)
def test_the_derivative_of_the_release_is_the_analytic_one(noise: list[DPSGD]) -> None:
    """Aᵢₜ -> (Cₜ/(b‖gᵢₜ‖))(I − ĝᵢₜĝᵢₜᵀ)Aᵢₜ for the columns of example i; DP-SGD of the same C behind it changes nothing."""
    loss, batch, clip = objective(), rows(2), ClipTensorsPerExample(0.2, weights={"0.bias": 3.0})
    release = Release(FedSGD(), [clip, *noise])
    found = torch.func.jacfwd(Exposure(loss, batch, release).mean)(batch.inputs.reshape(-1))
    for place in range(2):
        alone = Exposure(loss, batch.example(place), Release(FedSGD()))
        whole, slopes = alone.released_mean(), torch.func.jacfwd(alone.mean)(alone.inputs)
        start = 0
        for name, tensor in loss.params.items():
            part = slice(start, start + tensor.numel())
            start = part.stop
            g, a, limit = whole[part], slopes[part], clip.norms(loss.params)[name]
            assert float(g.norm()) > limit
            unit = g / g.norm()
            expected = limit / (2 * g.norm()) * (a - torch.outer(unit, unit @ a))
            columns = found[part, 4 * place : 4 * place + 4]
            torch.testing.assert_close(columns, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("protocol", [FedSGD(), FedAvg(learning_rate=0.1, epochs=2)], ids=repr)
def test_noise_behind_it_is_accounted_for_by_the_root_of_the_sum_of_squares(protocol: FedSGD | FedAvg) -> None:
    def mechanism(*defenses: object) -> GaussianMechanism:
        found = mechanism_of(Release(protocol, list(defenses)), objective(), 4)  # type: ignore[arg-type]
        assert isinstance(found, GaussianMechanism)
        return found

    noise = DPSGD.from_noise_multiplier(1.1, clip_norm=0.5, expected_batch_size=4)
    assert mechanism(ClipTensorsPerExample(0.5, weights={"0.bias": 2.0}), noise) == mechanism(noise)
    assert "already bounds what an example adds by 0.25" in mechanism(ClipTensorsPerExample(0.25), noise).loose


def test_what_one_example_adds_reaches_the_bound_and_no_more() -> None:
    loss, batch = objective(), rows(3)
    gradients = {name: 1e3 * torch.stack([one] * 2) for name, one in loss.gradient(loss.params, batch).items()}
    made = ClipTensorsPerExample(0.5, weights={"2.bias": 7.0}).mean(gradients)
    norm = torch.cat([tensor.reshape(2, -1) for tensor in made.values()], dim=1).norm(dim=1)
    torch.testing.assert_close(norm, torch.full((2,), 0.5, dtype=torch.float64))


def test_attacks_follow_it_and_labels_are_read_with_caution() -> None:
    loss, batch = objective(), rows(1)
    release = Release(FedSGD(), [ClipTensorsPerExample(0.3, weights={"0.weight": 2.0})])
    update = release(loss, batch, generator=torch.Generator().manual_seed(0))
    knowledge = HonestButCurious(targets=True).disclose(loss, release, batch)
    found = GaussNewton(max_steps=40, starts=4)(update, knowledge, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.inputs, batch.inputs, rtol=1e-5, atol=1e-6)
    unknown = HonestButCurious(batch_size=True).disclose(loss, release, batch)
    labels = ConsistentLabels()(update, unknown, generator=torch.Generator().manual_seed(0))
    assert labels.outcome is not Outcome.CONVERGED or torch.equal(labels.labels, batch.targets)
    assert "ClipTensorsPerExample may weigh the examples unequally" in labels.note


def test_batches_of_games_are_those_of_one_release_after_another() -> None:
    loss, index = objective(), torch.arange(12).reshape(3, 4)
    data = replace(rows(12), sensitive=torch.zeros(12))
    clip = ClipTensorsPerExample(0.3, weights={"0.weight": 2.0})
    assert LinearRows.of(loss, [ClipPerExample(0.3)], data.example(0)) is not None
    assert LinearRows.of(loss, [clip], data.example(0)) is None
    release = Release(FedSGD(), [clip])
    found = at_once(BatchReleases(loss, release, data), index)
    torch.testing.assert_close(found, one_by_one(loss, release, data, index), rtol=1e-9, atol=1e-12)
