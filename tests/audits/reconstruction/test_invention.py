"""What the update says of a generator's picture stands in the line of the attack, and where it leads is a claim too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.auditing.generator_models import generator_plan
from torch import nn

from gradleak.attacks import DGL, GIAS, Attack, Blind, Inversion, Latents
from gradleak.auditing import Controls, Plan, estimate, judge, run_plan
from gradleak.audits.reconstruction import ReconstructionAudit, controls
from gradleak.audits.reconstruction.controls import NOISE, NegativeControl, PositiveControl
from gradleak.audits.reconstruction.task import CheckedClaim, check_estimate, claim_support
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
)
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.reporting import write_html, write_json, write_markdown
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.results import Outcome, PlanError, Record, Status, VerdictKind
from gradleak.results.findings.reconstruction import ReconstructionFinding

DOMAIN = Domain.image(channels=1, height=4, width=4)


class _Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = mlp(
            features=16, hidden=(24, 12), classes=3, activation="tanh", generator=torch.Generator().manual_seed(1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x.flatten(1))
        return out


class _Gray(nn.Module):
    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return 0.5 + 0.01 * latents.reshape(-1, 1, 4, 4).tanh()


@pytest.fixture(scope="module")
def case() -> tuple[Batch, Update, Knowledge]:
    objective, release = Objective.from_module(_Flat()), Release(FedSGD())
    truth = Batch(torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([2]), DOMAIN)
    update = release(objective, truth, torch.Generator())
    images = ImageGenerator(module=_Gray(), latent_shape=(16,), domain=DOMAIN, source="gray")
    return truth, update, HonestButCurious(targets=True, generator=images).disclose(objective, release, truth)


def _claim(inputs: torch.Tensor | None) -> Reconstruction:
    return Reconstruction(inputs=inputs, targets=torch.tensor([2]), loss=0.1, outcome=Outcome.BUDGET_SPENT)


def test_a_generator_s_claim_comes_with_what_the_update_says_of_it(case: tuple[Batch, Update, Knowledge]) -> None:
    truth, update, known = case
    away = torch.where(truth.inputs > 0.5, -0.25, 0.25)
    checked = claim_support(GIAS(), _claim(truth.inputs + away), update, known)
    assert checked is not None
    assert checked.sentence.startswith("contradicted: ")
    assert checked.facts["moved_pixel_rmse"] == pytest.approx([0.25], rel=0.1)
    assert json.loads(json.dumps(checked.facts)) == checked.facts
    assert checked.refined is not None
    assert checked.plain_gradients == checked.refined.plain_gradients > 100
    checked = claim_support(Inversion(variables=Latents()), _claim(truth.inputs), update, known)
    assert checked is not None
    assert checked.sentence == "supported: the claim explains the update to within round-off"
    # The claim and 16 alternatives; there was nothing to refine.
    assert (checked.refined, checked.plain_gradients) == (None, 17)


def test_attacks_without_a_generator_are_left_alone(case: tuple[Batch, Update, Knowledge]) -> None:
    truth, update, known = case
    for attack in (DGL(), Blind(), Inversion()):
        assert claim_support(attack, _claim(truth.inputs), update, known) is None
        assert check_estimate(attack, known) == 0
    assert claim_support(GIAS(), _claim(None), update, known) is None
    del truth


def test_a_refusal_is_said(case: tuple[Batch, Update, Knowledge], monkeypatch: pytest.MonkeyPatch) -> None:
    from gradleak.attacks import InventionCheck
    from gradleak.results import UnsupportedError

    def refuse(*_: Any, **__: Any) -> None:
        raise UnsupportedError("signs before noise")

    monkeypatch.setattr(InventionCheck, "__call__", refuse)
    truth, update, known = case
    checked = claim_support(GIAS(), _claim(truth.inputs), update, known)
    assert checked is not None
    assert checked.sentence == "the support of the update for the claim could not be checked: signs before noise"
    assert (checked.facts, checked.refined, checked.plain_gradients) == ({}, None, 0)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Record]:
    plan = generator_plan(pictures=True)
    return plan, run_plan(plan, tmp_path_factory.mktemp("audited"), jobs=1)


def _found(record: Record) -> list[ReconstructionFinding]:
    return [one for one in record.findings if isinstance(one, ReconstructionFinding)]


def _both(record: Record, scenario: str) -> tuple[ReconstructionFinding, ReconstructionFinding]:
    first, second = (one for one in _found(record) if one.scenario == scenario)
    return first, second


def _gias(plan: Plan) -> Attack:
    return next(audit.attacks["gias"] for audit in plan.audits if isinstance(audit, ReconstructionAudit))


def _controlled(plan: Plan) -> Plan:
    return replace(plan, site=replace(plan.site, controls=Controls()))


@pytest.mark.parametrize("scenario", ["once", "trained"])
def test_the_refined_picture_is_scored_as_a_claim_of_its_own(audited: tuple[Plan, Record], scenario: str) -> None:
    """The generator knows no digit and its claim is far off; the update alone leads from there to the digit."""
    plan, record = audited
    claim, refined = _both(record, scenario)
    assert (refined.item, refined.attack) == (f"{claim.item}/refined", "gias refined without the generator")
    assert (refined.refines, refined.settings["use"]) == ("gias", "InventionCheck")
    assert refined.subject == claim.subject
    groups = {row["item"]: row["group"] for row in record.lines if row["type"] == "finding"}
    assert groups[refined.item] == groups[claim.item]
    assert refined.outcome is Outcome.CONVERGED
    assert refined.loss == pytest.approx(refined.details["relative_residual"] ** 2)
    assert refined.details["relative_residual"] < 1e-5 < 0.5 < claim.details["relative_residual"]
    # What it goes by: labels as the attack had them, and the picture that it began with.
    assert refined.labels == claim.labels == "recovered"
    assert refined.details["information"][:-1] == claim.details["information"]
    assert "labels were disclosed" not in refined.note
    assert "what the update gives away is in the refined picture" in claim.note
    assert (claim.support, claim.details["support"]["support"]) == ("contradicted", "contradicted")
    errors = {one.item: one.value("pixel_rmse") for one in (claim, refined)}
    assert errors[refined.item] < 1e-6 < 0.3 < errors[claim.item]
    seen = np.asarray(Image.open(record.path.parent / refined.picture)) / 255
    truth = plan.site.batches[0].domain.to_pixels(plan.site.batches[0].inputs)[0, 0].numpy()
    np.testing.assert_allclose(seen, truth, atol=0.5 / 255 + 1e-6)
    (verdict,) = (verdict for verdict in record.verdicts if verdict.item == f"{scenario}/example 0")
    assert (verdict.verdict, verdict.reason) == (VerdictKind.LEAKS, "attack_reached_threshold")
    assert verdict.details["best_attack"] == refined.attack


def test_a_report_shows_it_and_its_cost(audited: tuple[Plan, Record], tmp_path: Path) -> None:
    _, record = audited
    for name, write in (("html", write_html), ("md", write_markdown), ("json", write_json)):
        write(record, tmp_path / f"report.{name}")
        assert "gias refined without the generator" in (tmp_path / f"report.{name}").read_text(encoding="utf-8")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "reached by gias refined without the generator" in page
    assert page.count("data:image/png") >= 5
    spent = sum(one.plain_gradients or 0 for one in _found(record))
    checks = sum(one.details["support"]["plain_gradients"] for one in _found(record) if "support" in one.details)
    assert spent > checks > 3000
    assert f"{spent:,.0f} plain gradients" in page


def test_the_cost_of_a_check_without_a_refined_claim_is_not_lost(audited: tuple[Plan, Record]) -> None:
    _, record = audited
    claim = _both(record, "once")[0].but(check_plain_gradients=12345.0, seconds=3600.0)
    assert claim.plain_gradients is not None
    text = render_markdown(assemble(Record.of([claim])))
    assert f"{12345 + claim.plain_gradients:,.0f} plain gradients" in text
    assert "1 h" in text


def test_the_estimate_counts_checks_and_controls(audited: tuple[Plan, Record]) -> None:
    plan, record = audited
    claim, refined = _both(record, "once")
    site, attack = plan.site, _gias(plan)
    knowledge = site.knowledge(site.scenarios[0], 0)
    gias, check = attack.estimate(knowledge), check_estimate(attack, knowledge)
    assert claim.plain_gradients == gias
    # An upper bound: conjugate gradients may end early.
    assert refined.plain_gradients is not None
    assert 0.1 * check < refined.plain_gradients <= check
    trained = site.knowledge(site.scenarios[1], 0)
    more = check_estimate(attack, trained)
    assert (_both(record, "trained")[1].plain_gradients or 0.0) <= more
    bare = estimate(plan)
    # The attack's rule reads three local steps as their average gradient.
    rest = bare - (2 * gias + check + more)
    assert 0 < rest < 200
    planted = PositiveControl(audit="reconstruction", name="gias", attack=attack).cost(site)
    assert planted > gias + 100
    assert estimate(_controlled(plan)) - bare == pytest.approx(planted + gias + check)


def test_a_refined_claim_stands_and_falls_with_the_controls_of_its_attack(audited: tuple[Plan, Record]) -> None:
    plan, record = audited
    refused = ReconstructionFinding(
        item="control/negative/gias", audit="reconstruction", attack="gias", status=Status.REFUSED, control=NOISE
    )
    verdicts = {one.item: one for one in judge(plan.audits, [*record.findings, refused], plan.site.thresholds)}
    assert verdicts["once/example 0"].reason == "control_not_run"
    failed = refused.but(status=Status.DONE, control=NOISE.model_copy(update={"passed": False}))
    verdicts = {one.item: one for one in judge(plan.audits, [*record.findings, failed], plan.site.thresholds)}
    assert verdicts["once/example 0"].reason == "control_failed"


@pytest.mark.parametrize("exact", [True, False])
def test_controls_count_the_refined_claim_as_audits_do(
    exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _controlled(generator_plan())

    def refined(attack: Attack, found: Reconstruction, update: Update, knowledge: Knowledge) -> CheckedClaim:
        del attack, update, knowledge
        inputs = plan.site.batches[0].inputs if exact else found.inputs
        return CheckedClaim(sentence="", refined=replace(found, inputs=inputs), plain_gradients=1000.0, seconds=0.0)

    monkeypatch.setattr(controls, "claim_support", refined)
    (found,) = NegativeControl(audit="reconstruction", name="gias", attack=_gias(plan))(plan.site, tmp_path)
    assert found.control is not None
    assert found.draws is not None
    # From noise: an attack whose refined claims rebuild the batch cannot be believed.
    assert (found.control.passed, found.draws.hits) == ((False, 3) if exact else (True, 0))
    assert found.refined_pixel_rmse is not None
    assert found.refined_pixel_rmse == 0.0 if exact else found.refined_pixel_rmse > 0.1
    assert found.plain_gradients is not None
    assert found.plain_gradients > found.draws.tried * 1000


def test_a_planted_leak_that_only_the_refinement_finds_is_found(tmp_path: Path) -> None:
    plan = _controlled(generator_plan())
    (found,) = PositiveControl(audit="reconstruction", name="gias", attack=_gias(plan))(plan.site, tmp_path)
    own = found.value("pixel_rmse")
    assert own is not None
    assert own > 0.04  # not half of what a blind guess has: its own picture is no leak
    assert found.control is not None
    assert own > 0.5 * found.control.baseline
    assert found.refined_pixel_rmse is not None
    assert found.refined_pixel_rmse < 1e-3
    assert found.control.passed


def test_the_name_of_a_refined_claim_is_taken() -> None:
    with pytest.raises(PlanError, match="refined claims; choose another"):
        generator_plan(attacks={"a refined without the generator": {"use": "GIAS"}}, scenarios=[{"name": "once"}])


def test_both_adversaries_of_a_defended_release_have_one(tmp_path: Path) -> None:
    scenario = {"name": "clipped", "defenses": [{"use": "Clip", "max_norm": 0.05}], "attacks": {"gias": "all"}}
    record = run_plan(generator_plan(scenarios=[scenario]), tmp_path / "out", jobs=1)
    found = {one.item: one.adversary for one in _found(record) if one.refines}
    assert found == {
        "clipped/example 0/gias/refined": "adaptive",
        "clipped/example 0/gias/static/refined": "static",
    }
    section = render_markdown(assemble(record)).split("side by side")[1].split("###")[0]
    row = next(line for line in section.splitlines() if "gias refined without the generator" in line)
    assert "not run" not in row


def test_all_lines_of_a_group_come_again_if_one_is_lost(audited: tuple[Plan, Record], tmp_path: Path) -> None:
    plan, record = audited
    kept = [json.dumps(record.run)]
    kept += [json.dumps(line) for line in record.lines if line["item"] != "once/example 0/gias/refined"]
    assert record.path is not None
    (tmp_path / ".private-data").write_bytes((record.path.parent / ".private-data").read_bytes())
    (tmp_path / "record.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
    assert run_plan(plan, tmp_path, jobs=1).canonical() == record.canonical()
