"""LAVP against attacks: coefficients, cells, conditions, and the bound on descent, at tiny size."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from gradleak.attacks import SquaredError
from gradleak.core import Batch, Domain, Objective
from gradleak.models import Activation, mlp
from gradleak.results import InputError
from studies import LAVPConditions, LAVPDescent, LAVPQuality
from studies.lavp_cells import (
    MSE,
    RELATIVE,
    SSIM,
    ST_LPIPS,
    Architecture,
    Attempt,
    Client,
    Descent,
    FirstWeights,
    contrast_of,
)
from studies.lavp_conditions import BASE, conditions
from studies.lavp_descent import DescentStep, Matches


def _quiet(line: str) -> None:
    del line


def test_the_contrast_is_the_error_of_the_best_constant_a_channel() -> None:
    inputs = torch.zeros(2, 1, 2, 2)
    inputs[1, 0, 0] = 1.0
    batch = Batch(inputs, torch.tensor([0, 1]), Domain.image(channels=1, height=2, width=2))
    assert contrast_of(batch) == pytest.approx([0.0, 0.25])


def test_each_condition_differs_from_the_base_in_one_thing() -> None:
    cells = conditions(500, 300)
    base = cells[0]
    assert base.name == BASE
    assert len({one.name for one in cells}) == len(cells)
    for one in cells[1:]:
        changes = sum(
            getattr(own, name) != getattr(other, name)
            for own, other in ((one.client, base.client), (one.attempt, base.attempt))
            for name in own.__dataclass_fields__
        )
        assert changes + (one.images != base.images) + (one.times != base.times) == 1


def test_clients_are_drawn_as_they_say() -> None:
    batch = Batch(torch.rand(2, 1, 8, 8), torch.tensor([0, 1]), Domain.image(channels=1, height=8, width=8))
    own = Client().objective(batch, None, seed=0)
    assert max(float(tensor.abs().max()) for tensor in own.params.values()) > 0.45
    torchs = Client(weights=FirstWeights.TORCH).objective(batch, None, seed=0)
    assert float(torchs.params["9.weight"].abs().max()) < 0.3
    assert Client(network=Architecture.MLP).objective(batch, batch, seed=0).size == 64 * 128 + 128 * 65 + 64 + 650
    # Without steps the others change nothing; with steps they do.
    same = Client().objective(batch, batch, seed=0)
    moved = Client(training_steps=2).objective(batch, batch, seed=0)
    assert all(torch.equal(same.params[name], own.params[name]) for name in own.params)
    assert any(not torch.equal(moved.params[name], own.params[name]) for name in own.params)


def test_iterations_of_l_bfgs_are_its_inner_steps() -> None:
    assert Attempt(descent=Descent.LBFGS, iterations=500).attack(SquaredError()).stages[0].iterations == 25
    assert Attempt(iterations=500).attack(SquaredError()).stages[0].iterations == 500


def test_a_step_holds_where_the_loss_falls_by_what_was_promised() -> None:
    step = DescentStep(before=1.0, after=0.7, promised=0.25)
    assert step.holds
    assert step.share == pytest.approx(1.2)
    assert not replace(step, after=0.8).holds
    assert replace(step, promised=0.0).share is None


def test_a_step_is_the_theorems_and_the_norm_is_that_of_the_derivative() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = mlp(features=4, hidden=(3,), classes=2, activation=Activation.TANH, generator=generator)
    inputs = torch.rand(2, 1, 2, 2, generator=generator)
    batch = Batch(inputs, torch.tensor([0, 1]), Domain.image(channels=1, height=2, width=2))
    model = nn.Sequential(nn.Flatten(), layers)
    matches = Matches(Objective.from_module(model), batch)
    truth = matches.batch.inputs
    assert matches.losses(truth).tolist() == [0.0, 0.0]
    guess = truth + 0.01

    def shared(inputs: torch.Tensor) -> torch.Tensor:
        params = {name: tensor.clone().requires_grad_() for name, tensor in matches.objective.params.items()}
        loss = matches.objective.loss(params, Batch(inputs, matches.batch.targets[:1]))
        found = torch.autograd.grad(loss, list(params.values()), create_graph=True)
        return torch.cat([tensor.reshape(-1) for tensor in found])

    jacobian = torch.autograd.functional.jacobian(shared, guess[:1]).reshape(-1, 4)
    norms = matches.norms(guess)
    assert float(norms[0]) == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-5)
    gap = shared(guess[:1]).detach() - shared(truth[:1]).detach()
    slope = 2 * jacobian.T @ gap
    (one, _), end = matches.steps(guess, norms)
    assert one.before == pytest.approx(float(gap @ gap))
    assert one.promised == pytest.approx(float(slope @ slope) / (4 * float(norms[0]) ** 2))
    assert torch.allclose(end[0].flatten(), guess[0].flatten() - slope / (2 * norms[0] ** 2))
    # So near to the truth the gradient is linear enough: the theorem holds.
    assert one.holds
    assert one.share is not None
    assert 1.0 <= one.share < 3.0


@pytest.mark.slow
def test_studies_at_tiny_size_have_every_column_and_go_on_from_their_cells(
    tiny_images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = str(tmp_path / "cells.jsonl")
    study = LAVPConditions(
        images=tiny_images, axes=("weights", "attack: other starts"), count=4, iterations=2, training_steps=1,
        training_images=4, resamples=20, cells=cells,
    )  # fmt: skip
    result = study.run(say=_quiet)
    assert set(result.details) == {BASE, "weights: torch's", "weights: trained", "attack: other starts"}
    base, other = result.details[BASE], result.details["attack: other starts"]
    assert base["proxies"] == other["proxies"]
    assert base["qualities"]["l2"][MSE] != other["qualities"]["l2"][MSE]
    assert base["qualities"]["l2"][RELATIVE][0] == pytest.approx(base["qualities"]["l2"][MSE][0] / base["contrast"][0])
    assert base["qualities"]["l2"][SSIM][0] is None  # six pixels a side are too few
    assert any("from other starts" in finding.quantity for finding in result.findings)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr("studies.lavp_cells._proxies_of", refuse)
    monkeypatch.setattr("studies.lavp_cells._scored", refuse)
    assert study.run(say=_quiet).details == result.details
    with pytest.raises(InputError, match="axes: expected any of base, images: digits"):
        replace(study, axes=("weight",))


@pytest.mark.slow
def test_quality_has_the_perceptual_column_and_scatter_plots(tmp_path: Path) -> None:
    study = LAVPQuality(count=3, iterations=2, architectures=(Architecture.LENET,), jobs=1, resamples=20)
    result = study.run(say=_quiet)
    (cell,) = result.details.values()
    column = cell["qualities"]["cosine"][ST_LPIPS]
    # Without the package's weights there is no number, never a wrong one.
    installed = find_spec("stlpips_pytorch") is not None
    assert all(0 < value < 1.5 for value in column) if installed else column == [None] * 3
    assert [table.columns[4] for table in result.tables] == [ST_LPIPS, ST_LPIPS]
    assert {row[0] for row in result.tables[0].rows} >= {"lavp_fusion", "lavp_l2_min", "gradient_norm"}
    result.write(tmp_path)
    assert (tmp_path / "lavp-lenet.svg").read_text(encoding="utf-8").startswith("<svg")


@pytest.mark.slow
def test_the_descent_study_counts_steps_and_images(tmp_path: Path) -> None:
    study = LAVPDescent(
        count=3, bounded=2, iterations=3, spacing=2, steps=3, distances=(0.01,), activations=(Activation.SIGMOID,),
        resamples=20, cells=str(tmp_path / "cells.jsonl"),
    )  # fmt: skip
    result = study.run(say=_quiet)
    bound = result.details["bound"]["sigmoid"]
    assert [len(row) for row in bound["descent"]] == [3, 3]
    assert {name: [len(row) for row in rows] for name, rows in bound["attack"].items()} == {
        "at the point": [2, 2],
        "at the truth": [2, 2],
    }
    near = result.details["local"][0]
    assert all(last < first for first, last in zip(near["first"], near["last"], strict=True))
    assert study.run(say=_quiet).details == result.details
