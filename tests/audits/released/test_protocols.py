"""An audit of releases other than one plain gradient, end to end."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from tests.auditing.conftest import SMALL_PLAN
from torch import nn

import gradleak as gl
from gradleak.auditing import build_plan, catalog
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.results.findings.reconstruction import ReconstructionFinding
from gradleak.results.findings.released import ReleaseFinding

QUIET = gl.AuditOptions(quiet=True)
ATTACKS = {"gauss_newton": gl.GaussNewton(max_steps=30, starts=1, warm_iterations=0)}


def case() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 4))
    return model, (torch.rand((1, 1, 6, 6), generator=torch.Generator().manual_seed(1)), torch.tensor([2]))


def released(record: gl.Record) -> ReleaseFinding:
    return next(one for one in record.findings if isinstance(one, ReleaseFinding))


def attacked(record: gl.Record) -> ReconstructionFinding:
    found = (one for one in record.findings if isinstance(one, ReconstructionFinding))
    return next(one for one in found if one.control is None)


def scores(record: gl.Record) -> dict[str, gl.Score]:
    return {score.name: score for where, score in record.scores if "control" not in where}


def test_a_fed_avg_release_leaks_and_says_what_it_was(tmp_path: Path) -> None:
    model, data = case()
    release = gl.Release(gl.FedAvg(learning_rate=0.1, epochs=3), [gl.ClipPerExample(0.5), gl.GaussianNoise(std=1e-6)])
    record = gl.audit(model, data, release=release, attacks=ATTACKS, out=tmp_path / "out", options=QUIET)
    assert record.complete
    assert all(one.status == "done" for one in record.findings), [one.note for one in record.findings]
    assert record.verdicts[-1].verdict == "leaks"
    assert released(record).gate.status == "consistent"
    assert released(record).release["protocol"]["use"] == "FedAvg"
    assert [defense["stage"] for defense in released(record).defenses] == ["example", "update"]
    found = scores(record)
    assert found["inversion_influence"].value is not None
    assert found["inversion_influence"].outcome is gl.Outcome.CONVERGED
    assert "FedAvg" in Path(gl.write_html(record, tmp_path / "report.html")).read_text(encoding="utf-8")


def test_a_delta_from_a_real_client(tmp_path: Path) -> None:
    model, (inputs, targets) = case()
    client = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.Tanh(), nn.Linear(20, 4))
    client.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(client.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(client(inputs), targets).backward()
        optimizer.step()
    final = {name: tensor.clone() for name, tensor in client.state_dict().items()}
    update = gl.Update(tensors={n: t.detach() - final[n] for n, t in model.state_dict().items()}, kind="delta")
    release = gl.Release(gl.FedAvg(learning_rate=0.1, epochs=3))
    record = gl.audit(
        model, (inputs, targets), update=update, release=release, attacks=ATTACKS, out=tmp_path / "a", options=QUIET
    )
    assert released(record).gate.status == "consistent"
    assert record.verdicts[-1].verdict == "leaks"
    wrong = gl.Release(gl.FedAvg(learning_rate=0.1, epochs=2))
    record = gl.audit(
        model, (inputs, targets), update=update, release=wrong, attacks=ATTACKS, out=tmp_path / "b", options=QUIET
    )
    assert record.verdicts[-1].reason == "inconsistent_update"
    assert "A client with epochs=3 would fit" in record.verdicts[-1].explanation


def test_an_assumed_learning_rate_is_printed_as_assumed_with_its_sensitivity(tmp_path: Path) -> None:
    model, data = case()
    release = gl.Release(gl.FedAvg(learning_rate=0.2, epochs=2))
    threat = gl.HonestButCurious(protocol=gl.FedAvg(learning_rate=0.1, epochs=2))
    attacks = {"inverting_gradients": gl.InvertingGradients(iterations=60, local_training="average_gradient")}
    record = gl.audit(model, data, release=release, threat=threat, attacks=attacks, out=tmp_path / "out", options=QUIET)
    assert released(record).knowledge["assumed"] == ["protocol"]
    attack = attacked(record)
    assert "the client's protocol is not known; assumed was FedAvg(learning_rate=0.1" in attack.note
    assert "smallest for learning_rate=0.2: the assumption looks wrong" in attack.note
    rows = attack.details["assumed_protocol"]
    assert [row["protocol"]["learning_rate"] for row in rows[:2]] == [0.1, 0.025]
    assert min(rows, key=lambda row: row["relative_residual"])["protocol"]["learning_rate"] == 0.2
    for write, name in ((gl.write_html, "report.html"), (gl.write_markdown, "report.md")):
        page = Path(write(record, tmp_path / name)).read_text(encoding="utf-8")
        for character, plain in {"\u202f": " ", "\u00a0": " ", "\\": ""}.items():
            page = page.replace(character, plain)
        assert "assumed, not known: FedAvg(learning_rate = 0.1" in page
        assert "the gradient" not in page


@pytest.mark.parametrize("factor", [65536.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_l2_and_cosine_attacks_agree_on_a_scaled_update(tmp_path: Path, factor: float) -> None:
    """U27: the scale is reported and stops every verdict; divided by it, the update leaks by both."""
    model, data = case()
    sent = gl.Release(gl.FedSGD())(gl.Objective.from_module(model), gl.Batch(*data), torch.Generator())
    scaled = gl.Update(tensors={name: factor * tensor for name, tensor in sent.tensors.items()})
    verdicts = {}
    for number, (name, attack) in enumerate(
        {"l2": ATTACKS["gauss_newton"], "cosine": gl.InvertingGradients(iterations=150, total_variation=0.0)}.items()
    ):
        record = gl.audit(model, data, update=scaled, attacks={name: attack}, out=tmp_path / f"{number}", options=QUIET)
        verdicts[name] = record.verdicts[-1]
    assert {verdict.verdict for verdict in verdicts.values()} == {"inconclusive"}
    assert {verdict.reason for verdict in verdicts.values()} == {"inconsistent_update"}
    assert all(f"divide the update by {factor:g}" in verdict.explanation for verdict in verdicts.values())


def test_a_pruned_update_leaks(tmp_path: Path) -> None:
    model, data = case()
    release = gl.Release(gl.FedSGD(), [gl.Prune(0.5)])
    record = gl.audit(model, data, release=release, attacks=ATTACKS, out=tmp_path / "out", options=QUIET)
    assert record.verdicts[-1].verdict == "leaks"


def test_signs_are_inconclusive_never_safe(tmp_path: Path) -> None:
    model, data = case()
    release = gl.Release(gl.FedSGD(), [gl.Sign()])
    record = gl.audit(model, data, release=release, attacks=ATTACKS, out=tmp_path / "out", options=QUIET)
    verdict = record.verdicts[-1]
    assert verdict.verdict == "inconclusive"
    assert verdict.reason == "no_attack_reached_threshold"
    assert "no evidence of safety" in verdict.explanation
    assert released(record).gate.status == "consistent"
    closed = [score for name, score in scores(record).items() if name.startswith(("inversion", "gaussian"))]
    assert all(score.value is None and score.outcome is gl.Outcome.NOT_INFORMATIVE for score in closed)


def test_a_model_that_mixes_examples_is_one_clear_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 20), nn.BatchNorm1d(20), nn.Tanh(), nn.Linear(20, 4))
    inputs, targets = torch.rand((2, 1, 6, 6), generator=torch.Generator().manual_seed(1)), torch.tensor([2, 0])
    release = gl.Release(gl.FedSGD(), [gl.ClipPerExample(0.5)])
    options = gl.AuditOptions(quiet=True)
    with pytest.raises(gl.GradleakError, match="normalizes by the batch in 2"):
        gl.audit(
            model,
            (inputs, targets),
            mode="train",
            release=release,
            attacks=ATTACKS,
            out=tmp_path / "out",
            options=options,
        )
    assert not (tmp_path / "out").exists()


def test_a_plan_file_names_them() -> None:
    text = (
        SMALL_PLAN.split("[[scenarios]]")[0]
        + """
[[scenarios]]
name = "local"
protocol = { use = "FedAvg", learning_rate = 0.1, epochs = 2, batch_size = 1 }
defenses = [{ use = "ClipPerExample", max_norm = 0.5 }, { use = "Prune", ratio = 0.5, by = "layer" }, { use = "Sign" }]
"""
    )
    (scenario,) = build_plan(tomllib.loads(text), folder=Path()).site.scenarios
    assert scenario.release == gl.Release(
        gl.FedAvg(learning_rate=0.1, epochs=2, batch_size=1),
        (gl.ClipPerExample(0.5), gl.Prune(0.5, by="layer"), gl.Sign()),
    )
    with pytest.raises(gl.GradleakError, match=r"learning_rat.*did you mean 'learning_rate'"):
        build_plan(tomllib.loads(text.replace("learning_rate", "learning_rat")), folder=Path())
    assert "PruneBy" not in catalog()["defenses"]


def test_a_plan_file_names_an_assumed_protocol_and_how_local_steps_are_read() -> None:
    text = (
        SMALL_PLAN.split("[[scenarios]]")[0]
        + """
[threat]
use = "HonestButCurious"
protocol = { use = "FedAvg", learning_rate = 0.2, epochs = 3 }

[attacks.aga]
use = "InvertingGradients"
local_training = "average_gradient"

[[scenarios]]
name = "adam"
protocol = { use = "LocalAdam", learning_rate = 0.01, epochs = 2 }
attacks = { aga = "all" }
"""
    )
    plan = build_plan(tomllib.loads(text), folder=Path())
    attacks = next(audit.attacks for audit in plan.audits if isinstance(audit, ReconstructionAudit))
    assert plan.site.threat == gl.HonestButCurious(protocol=gl.FedAvg(learning_rate=0.2, epochs=3))
    assert attacks["aga"].local_training is gl.attacks.LocalTraining.AVERAGE_GRADIENT
    assert plan.site.scenarios[0].release.protocol == gl.protocols.LocalAdam(learning_rate=0.01, epochs=2)
    with pytest.raises(gl.GradleakError, match="local_training"):
        build_plan(tomllib.loads(text.replace("average_gradient", "averaged")), folder=Path())
