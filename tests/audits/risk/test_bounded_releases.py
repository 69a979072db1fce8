"""Verdicts on releases that a bound on every attacker holds for, in whole runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.auditing.conftest import SMALL_PLAN
from tests.auditing.small_model import small_mlp, substitute_gradient_model, tiny_gradients

import gradleak as gl
from gradleak.auditing import Plan, build_plan, run_plan
from gradleak.models import mlp
from gradleak.results import InputError, Record, Status, VerdictKind
from gradleak.risk import BayesianCramerRao

VAN_TREES = {
    "use": "BayesianCramerRao",
    "unit": "pixel_rmse",
    "samples": 16,
    "public": {"use": "scikit_digits", "count": 200},
}


def plan(model: str = "small_mlp", *, std: float = 0.3, measure: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """Two digits under noise, one of them attacked, without controls."""
    content = tomllib.loads(SMALL_PLAN) | {
        "model": {"use": f"tests.auditing.small_model:{model}"},
        "measures": {
            "van_trees": measure or VAN_TREES,
            "influence": {"use": "InversionInfluence", "unit": "pixel_rmse"},
        },
        "attacks": {"gauss_newton": {"use": "GaussNewton", "max_steps": 3, "starts": 1}},
        "controls": {"positive": False, "negative": False},
        "scenarios": [
            {"name": "noisy", "attacks": {"gauss_newton": [0]}, "perfect_attacker": {"below": 0.05}}
            | ({"defenses": [{"use": "GaussianNoise", "std": std}]} if std else {})
        ],
    }
    return build_plan(content | changes, folder=Path())


def bounds(record: Record) -> dict[str, Any]:
    return {item: score for item, score in record.scores if score.name == "bayesian_cramer_rao"}


def risks(record: Record, part: str) -> list[Any]:
    return [one for one in record.findings if one.item.endswith(f"/{part}")]


def test_noise_that_bounds_every_attacker_is_bounded(tmp_path: Path) -> None:
    record = run_plan(plan(), tmp_path / "out", jobs=1)
    found = bounds(record)
    assert set(found) == {"noisy/example 0/setting", "noisy/example 1/setting"}
    assert all(score.evidence == "lower_bound" and score.value > 0.1 for score in found.values())
    assert {verdict.verdict for verdict in record.verdicts} == {VerdictKind.BOUNDED}
    assert "Gaussian fitted to" in record.verdicts[-1].explanation
    assert "not a worst case" in record.verdicts[-1].explanation


@pytest.mark.parametrize("std", [0.0, 1e-3])
def test_too_little_noise_is_not_bounded(std: float, tmp_path: Path) -> None:
    record = run_plan(plan(std=std), tmp_path / "out", jobs=1)
    assert record.verdicts[0].verdict is VerdictKind.LEAKS
    assert record.verdicts[1].verdict is VerdictKind.INCONCLUSIVE
    assert "van Trees bound" in record.verdicts[1].explanation


CHANCE = {"use": "ReconstructionProbability", "candidates": 1000}
DP = {"use": "DPSGD", "clip_norm": 1.0, "noise_std": 1.0, "noise": "sum"}


def private_plan(defenses: list[dict[str, Any]], *, model: str = "relu_mlp", **fields: Any) -> Plan:
    scenario = {"name": "noisy", "attacks": {"gauss_newton": [0]}, "defenses": defenses}
    return plan(model, measure={**CHANCE, **fields}, scenarios=[scenario])


def test_differential_privacy_bounds_a_release_that_jumps(tmp_path: Path) -> None:
    record = run_plan(private_plan([DP]), tmp_path / "out", jobs=1)
    [first, second] = [score for _, score in record.scores if score.name == "reconstruction_probability"]
    assert first == second
    assert first.evidence == "upper_bound"
    assert first.value == pytest.approx(0.0183, abs=1e-4)  # Φ(1 + Φ⁻¹(1/1000))
    assert {verdict.verdict for verdict in record.verdicts} == {VerdictKind.BOUNDED}
    assert record.verdicts[0].reason == "dp_bound"
    assert "one of 1000 candidates" in record.verdicts[-1].explanation
    assert record.run["thresholds"]["reconstruction_probability"] == 0.05
    cited = {citation["key"] for citation in record.run["citations"]}
    assert {"balle2022informed", "hayes2023bounding", "kaissis2023rero", "dong2022gdp"} <= cited


@pytest.mark.parametrize(
    ("defenses", "reason"),
    [
        (
            [{"use": "GaussianNoise", "std": 1.0}],
            "no bound on the part of one example or client",
        ),  # the same noise, no clip
        ([{"use": "Prune", "ratio": 0.99}], "heuristic"),
        ([DP | {"noise_std": 0.5}], "is above the limit of 0.05"),
    ],
)
def test_noise_without_a_clip_is_not_bounded(defenses: list[dict[str, Any]], reason: str, tmp_path: Path) -> None:
    record = run_plan(private_plan(defenses), tmp_path / "out", jobs=1)
    assert VerdictKind.BOUNDED not in {verdict.verdict for verdict in record.verdicts}
    assert reason in record.verdicts[1].explanation


def test_differential_privacy_needs_no_derivative_and_public_examples_make_its_prior(tmp_path: Path) -> None:
    public = {"use": "scikit_digits", "count": 1700}
    wrong = plan(
        "substitute_gradient_model",
        measures={"chance": {"use": "ReconstructionProbability", "within": 0.05, "public": public}},
        thresholds={"pixel_rmse": 0.05, "reconstruction_probability": 0.1},
        attacks={},
        scenarios=[{"name": "noisy", "defenses": [DP | {"noise_std": 40.0}]}],
    )
    record = run_plan(wrong, tmp_path / "out", jobs=1)
    assert risks(record, "derivative")[0].derivative.check == "wrong"
    assert {verdict.verdict for verdict in record.verdicts} == {VerdictKind.BOUNDED}
    assert "public examples, κ at 95% confidence" in record.verdicts[0].explanation


def test_copies_of_an_example_hide_each_other_less() -> None:
    rows = torch.rand(1, 12, generator=torch.Generator().manual_seed(0)).expand(8, 12)
    domain = gl.Domain(shape=(12,), low=0.0, high=1.0, kind="tabular")
    model = mlp(features=12, classes=2, hidden=(4,), activation="tanh", generator=torch.Generator().manual_seed(0))
    release = gl.Release(gl.FedSGD(), [gl.DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")])
    measure = gl.risk.ReconstructionProbability(candidates=10**6)
    apart = measure(gl.Objective.from_module(model), release, batch_size=8)
    assert apart.value is not None
    assert apart.value < 0.05
    record = gl.audit(
        model,
        gl.Batch(rows, torch.zeros(8, dtype=torch.long), domain),
        release=release,
        measures=[measure],
        attacks={},
        options=gl.AuditOptions(quiet=True),
    )
    assert record.verdicts[-1].verdict is VerdictKind.INCONCLUSIVE
    (score,) = [score for _, score in record.scores if score.name == measure.name]
    assert score.details["mu"] == 4.0
    assert score.value == 1.0  # 8 Φ(4 + Φ⁻¹(8e-6)) is more


def test_an_isotropic_prior_and_a_network_that_jumps(tmp_path: Path) -> None:
    isotropic = {"use": "BayesianCramerRao", "unit": "pixel_rmse", "samples": 16, "prior_std": 0.3}
    noisy = [{"name": "noisy", "examples": [0], "defenses": [{"use": "GaussianNoise", "std": 0.3}]}]
    alone: dict[str, Any] = {"measure": isotropic, "scenarios": noisy, "attacks": {}}
    smooth = run_plan(plan(**alone), tmp_path / "smooth", jobs=1)
    assert "isotropic Gaussian, mean 0.5 and std 0.3 of the valid range" in smooth.verdicts[0].explanation
    jumps = run_plan(plan("relu_mlp", **alone), tmp_path / "jumps", jobs=1)
    assert {score.evidence.value for score in bounds(jumps).values()} == {"estimate"}
    assert {verdict.verdict for verdict in jumps.verdicts} == {VerdictKind.INCONCLUSIVE}
    assert "an estimate, no bound" in jumps.verdicts[0].explanation


def test_a_wrong_second_derivative_stands_in_the_verdict(tmp_path: Path) -> None:
    model = substitute_gradient_model(generator=torch.Generator().manual_seed(0))
    batch = plan().site.batches[0]
    record = gl.audit(
        model,
        batch,
        release=gl.Release(gl.FedSGD(), [gl.GaussianNoise(std=0.3)]),
        attacks={"gauss_newton": gl.GaussNewton(max_steps=3, starts=1)},
        measures=[gl.InversionInfluence(), gl.GradientNorm(), BayesianCramerRao(prior_std=0.3, unit="pixel_rmse")],
        out=tmp_path / "out",
        options=gl.AuditOptions(quiet=True),
    )
    (check,) = risks(record, "derivative")
    assert (check.status, check.derivative.check) == (Status.REFUSED, "wrong")
    assert record.verdicts[0].reason == "wrong_derivative"
    assert "the derivative of this release is not what differences of its values say" in record.verdicts[0].explanation
    assert record.verdicts[-1].verdict is not VerdictKind.BOUNDED


def test_a_measure_is_a_measure(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="measures: expected a list of measures"):
        gl.audit(small_mlp(generator=torch.Generator()), plan().site.batches[0], measures=[gl.InversionInfluence])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_client_in_half_precision_states_what_it_flushed(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_gradients(generator=torch.Generator().manual_seed(0)).to(dtype)
    attacks = {"gauss_newton": gl.GaussNewton(max_steps=8, starts=1)}
    record = gl.audit(
        model, plan().site.batches[0], attacks=attacks, out=tmp_path / "out", options=gl.AuditOptions(quiet=True)
    )
    (line,) = [one for one in record.findings if one.kind == "released"]
    facts = line.to_dict()["precision"]
    assert facts["dtype"] == str(dtype).removeprefix("torch.")
    first = facts["tensors"]["1.0.weight"]
    black = float((plan().site.batches[0].inputs == 0).float().mean())  # zero in any format
    if dtype is torch.float16:
        assert first["subnormal"] + first["zero"] > 0.95
        assert facts["subnormal"] > 0.3
    else:  # the range of float32
        assert first["subnormal"] == 0
        assert first["zero"] == pytest.approx(black, abs=0.02)
    gl.write_markdown(record, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert f"the update came in {facts['dtype']}" in text
    attack = next(one for one in record.findings if one.item.endswith("/gauss_newton"))
    assert "computed in float32" in attack.note
