"""Running a plan: parallel equals sequential, a killed run resumes, failures are items."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradleak.attacks import Attack
from gradleak.auditing import Plan, load_plan, run_plan
from gradleak.audits.base import Scenario, Site
from gradleak.audits.released import ReleaseAudit
from gradleak.core import Update
from gradleak.results import InputError, Outcome, PlanError, Record, VerdictKind
from gradleak.results.findings.released import ReleaseFinding
from tests.auditing.broken_attack import Broken, Lucky
from tests.auditing.conftest import SMALL_PLAN
from tests.auditing.reading import attacking, attacks, controls, passed

ROOT = Path(__file__).parents[2]


def start(plan: Path, out: Path, *, jobs: int = 1) -> subprocess.Popen[bytes]:
    """An audit in a process of its own, which a test may kill."""
    command = [
        sys.executable,
        "-m",
        "gradleak",
        "audit",
        str(plan),
        "--out",
        str(out),
        "--jobs",
        str(jobs),
        "--quiet",
    ]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The small audit, uninterrupted, in this process."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "plan.toml").write_text(SMALL_PLAN, encoding="utf-8")
    return run_plan(load_plan(folder / "plan.toml"), folder / "out", jobs=1)


@pytest.fixture
def done(finished: Record, tmp_path: Path) -> Path:
    """A folder that holds what the small audit left."""
    assert finished.path is not None
    return Path(shutil.copytree(finished.path.parent, tmp_path / "out"))


def changed(plan: Plan, scenarios: list[Scenario], **further: Attack) -> Plan:
    """The plan with other scenarios, and with further attacks."""
    own = attacking(plan)
    more = replace(own, attacks={**own.attacks, **further})
    audits = [more if audit is own else audit for audit in plan.audits]
    return replace(plan, site=replace(plan.site, scenarios=scenarios), audits=audits)


def test_the_record_is_whole_and_says_leaks(finished: Record) -> None:
    assert finished.complete
    by_item = {verdict.item: verdict for verdict in finished.verdicts}
    assert by_item["undefended"].verdict is VerdictKind.LEAKS
    assert by_item["run"].verdict is VerdictKind.LEAKS
    assert passed(finished) == {
        "control/positive": True,
        "control/negative/gauss_newton": True,
        "control/negative/gauss_newton/static": True,
        "control/negative/inverting_gradients": True,
    }
    assert {one.status for one in finished.findings} == {"done"}


def test_predicted_and_reached_error_stand_side_by_side(finished: Record) -> None:
    values = {(item, score.name): score.value for item, score in finished.scores if score.unit == "pixel_rmse"}
    predicted = values[("noisy/example 0/risk", "inversion_influence")]
    reached = values[("noisy/example 0/perfect_attacker", "pixel_rmse")]
    bound = values[("noisy/example 0/risk", "inversion_influence_lower_bound")]
    assert predicted is not None
    assert reached == pytest.approx(predicted, rel=0.01)
    assert bound is not None
    assert bound < predicted


def test_progress_and_jobs_change_no_number(finished: Record, small_plan: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    record = run_plan(
        load_plan(small_plan), tmp_path / "out", jobs=2, progress=lambda done, all_, _: seen.append((done, all_))
    )
    assert record.canonical() == finished.canonical()
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]


def test_running_again_adds_nothing(small_plan: Path, done: Path) -> None:
    before = (done / "record.jsonl").read_bytes()
    run_plan(load_plan(small_plan), done, jobs=1)
    assert (done / "record.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "cut", [pytest.param(0.1, marks=pytest.mark.slow), 0.35, pytest.param(0.6, marks=pytest.mark.slow), 0.97]
)
def test_a_torn_record_resumes_to_the_same_record(
    finished: Record, small_plan: Path, tmp_path: Path, cut: float
) -> None:
    assert finished.path is not None
    whole = finished.path.read_bytes()
    torn = Path(shutil.copytree(finished.path.parent, tmp_path / "out"))
    (torn / "record.jsonl").write_bytes(whole[: int(len(whole) * cut)])
    record = run_plan(load_plan(small_plan), torn, jobs=1)
    assert record.canonical() == finished.canonical()
    lines = (torn / "record.jsonl").read_text(encoding="utf-8").splitlines()
    places = [(json.loads(line).get("group"), json.loads(line).get("line")) for line in lines]
    assert len(places) == len(set(places))


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.2, 1.5, 3.0, 4.0, 5.0])
def test_kill_nine_resumes_to_the_same_record(finished: Record, small_plan: Path, tmp_path: Path, wait: float) -> None:
    out = tmp_path / "out"
    process = start(small_plan, out, jobs=2)
    time.sleep(wait)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert start(small_plan, out).wait() == 0
    assert Record.load(out).canonical() == finished.canonical()


@pytest.mark.slow  # in short: records that are torn, above
def test_killed_once_resumes_to_the_same_record(finished: Record, small_plan: Path, tmp_path: Path) -> None:
    """Killed as soon as the record holds its first group."""
    out = tmp_path / "out"
    process = start(small_plan, out)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (out / "record.jsonl").exists() and (out / "record.jsonl").read_bytes().count(b"\n") > 1:
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert run_plan(load_plan(small_plan), out, jobs=1).canonical() == finished.canonical()


def test_another_plans_record_is_refused_and_kept(small_plan: Path, done: Path) -> None:
    plan = load_plan(small_plan)
    before = (done / "record.jsonl").read_bytes()
    with pytest.raises(PlanError, match="nothing was written"):
        run_plan(replace(plan, site=replace(plan.site, seed=99)), done, jobs=1)
    assert (done / "record.jsonl").read_bytes() == before


def test_bad_input_is_refused_before_anything_is_written(small_plan: Path, tmp_path: Path) -> None:
    plan = load_plan(small_plan)
    first, second = plan.site.batches
    bad = replace(first, targets=torch.tensor([10]))
    with pytest.raises(InputError, match="class indices from 0 to 9"):
        run_plan(replace(plan, site=replace(plan.site, batches=[bad, second])), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_file_in_place_of_the_folder_is_refused(small_plan: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="expected a folder"):
        run_plan(load_plan(small_plan), tmp_path / "out", jobs=1)
    assert (tmp_path / "out").read_text(encoding="utf-8") == "mine"


def test_jobs_below_one_are_refused(small_plan: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobs: expected a whole number of at least 1"):
        run_plan(load_plan(small_plan), tmp_path / "out", jobs=0)


def exploding(plan: Plan) -> Plan:
    """The first scenario of the plan with an attack that raises in the middle of its work."""
    first = plan.site.scenarios[0]
    return changed(plan, [replace(first, attacks={**first.attacks, "broken": [0]})], broken=Broken())


def failed(record: Record) -> list[str]:
    return [one.item for one in record.findings if one.status == "failed"]


def test_an_unexpected_error_is_an_item_and_the_rest_goes_on_and_it_is_tried_again(
    finished: Record, small_plan: Path, tmp_path: Path
) -> None:
    plan, out = exploding(load_plan(small_plan)), tmp_path / "out"
    record = run_plan(plan, out, jobs=1)
    assert failed(record) == ["control/negative/broken", "undefended/example 0/broken"]
    assert passed(record)["control/negative/broken"] is None
    assert record.verdicts[-1].verdict is VerdictKind.LEAKS
    note = controls(record)["control/negative/broken"].note
    assert note.startswith("ZeroDivisionError in broken_attack.py, _recover; see failures/")
    assert "on purpose" in (out / note.split("see ")[1]).read_text(encoding="utf-8")
    before = (out / "record.jsonl").read_text(encoding="utf-8")
    assert "on purpose" not in before
    undefended = [item for item, _ in record.scores if item.startswith("undefended")]
    assert len(undefended) == len([item for item, _ in finished.scores if item.startswith("undefended")])
    again = run_plan(plan, out, jobs=1)
    assert again.complete
    assert len((out / "record.jsonl").read_text(encoding="utf-8").splitlines()) == len(before.splitlines())
    assert failed(again) == failed(record)


def test_a_given_update_goes_through_the_gate(small_plan: Path, tmp_path: Path) -> None:
    plan = load_plan(small_plan)
    wrong = Update(tensors={k: torch.ones_like(p) for k, p in plan.site.objective.params.items()})
    scenario = replace(plan.site.scenarios[0], examples=[0], attacks={"gauss_newton": [0]}, updates={0: wrong})
    record = run_plan(changed(plan, [scenario]), tmp_path / "out", jobs=1)
    assert record.verdicts[0].reason == "inconsistent_update"
    assert record.verdicts[0].verdict is VerdictKind.INCONCLUSIVE


def test_a_zero_update_is_no_signal(small_plan: Path, tmp_path: Path) -> None:
    plan = load_plan(small_plan)
    zero = Update(tensors={k: torch.zeros_like(p) for k, p in plan.site.objective.params.items()})
    scenario = replace(plan.site.scenarios[0], examples=[0], attacks={"gauss_newton": [0]}, updates={0: zero})
    record = run_plan(changed(plan, [scenario]), tmp_path / "out", jobs=1)
    (attack,) = attacks(record)
    assert attack.outcome is Outcome.NO_SIGNAL
    assert record.verdicts[0].verdict is VerdictKind.INCONCLUSIVE
    assert attack.scores
    assert all(score.value is None for score in attack.scores)


def test_other_private_data_are_refused_and_leave_no_trace_in_the_record(small_plan: Path, done: Path) -> None:
    plan = load_plan(small_plan)
    swapped = replace(plan, site=replace(plan.site, batches=list(reversed(plan.site.batches))))
    assert swapped.digest() == plan.digest()
    with pytest.raises(PlanError, match="other data"):
        run_plan(swapped, done, jobs=1)


def test_behavior_is_part_of_the_digest(small_plan: Path) -> None:
    plan = load_plan(small_plan)
    assert load_plan(small_plan).digest() == plan.digest()
    from torch import nn

    from gradleak.core import Objective

    def network(activation: nn.Module) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), activation, nn.Linear(5, 10))
        for parameter in model.parameters():
            parameter.data.fill_(0.1)
        return model

    objectives = [
        Objective.from_module(network(nn.Tanh())),
        Objective.from_module(network(nn.Sigmoid())),
        Objective.from_module(network(nn.Tanh()), loss=lambda out, y: nn.functional.cross_entropy(out, y)),
        Objective.from_module(network(nn.Tanh()), loss=lambda out, y: 5 * nn.functional.cross_entropy(out, y)),
    ]
    digests = {replace(plan, site=replace(plan.site, objective=one)).digest() for one in objectives}
    assert len(digests) == len(objectives)


def test_an_attack_that_finds_the_truth_in_noise_fails_its_control(small_plan: Path, tmp_path: Path) -> None:
    plan = load_plan(small_plan)
    lucky = Lucky(claim=plan.site.batches[0].inputs.clone())
    scenario = replace(plan.site.scenarios[0], attacks={"inverting_gradients": [0], "lucky": [0]})
    record = run_plan(changed(plan, [scenario], lucky=lucky), tmp_path / "out", jobs=1)
    assert passed(record)["control/negative/lucky"] is False
    draws = controls(record)["control/negative/lucky"].draws
    assert draws is not None
    assert draws.hits == 3
    assert {verdict.reason for verdict in record.verdicts} == {"control_failed"}


def test_a_control_that_cannot_run_is_not_a_pass(tmp_path: Path) -> None:
    import gradleak as gl

    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    batch = (torch.rand(1, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.7]]))
    threat = gl.HonestButCurious(targets=True)
    quiet, quick = gl.AuditOptions(quiet=True), {"gauss_newton": gl.GaussNewton(max_steps=20)}
    record = gl.audit(
        model, batch, loss="mse", threat=threat, attacks=quick, measures=[], out=tmp_path / "a", options=quiet
    )
    assert set(passed(record).values()) == {True}
    assert {one.status for one in controls(record).values()} == {"done"}
    assert record.verdicts[-1].verdict is VerdictKind.LEAKS
    untold = torch.nn.L1Loss()  # whose targets no attack finds
    record = gl.audit(model, batch, loss=untold, attacks=quick, measures=[], out=tmp_path / "b", options=quiet)
    assert {state for item, state in passed(record).items() if "negative" in item} == {None}
    assert record.verdicts[-1].reason == "no_attack_finished"


@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_a_constant_image_is_not_called_a_failed_attack(level: float, tmp_path: Path) -> None:
    import gradleak as gl

    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 20), torch.nn.Tanh(), torch.nn.Linear(20, 4))
    batch = gl.Batch(torch.full((1, 1, 6, 6), level), torch.tensor([1]), gl.Domain.image(channels=1, height=6, width=6))
    quiet, quick = gl.AuditOptions(quiet=True), {"gauss_newton": gl.GaussNewton(max_steps=20)}
    record = gl.audit(model, batch, attacks=quick, measures=[], out=tmp_path / "out", options=quiet)
    assert record.verdicts[0].reason == "no_better_than_blind"


class Concluding(ReleaseAudit):
    """Releases from which something follows, if nothing is broken."""

    def conclude(self, site: Site, found: Sequence[ReleaseFinding]) -> Sequence[ReleaseFinding]:
        if os.environ.get("GRADLEAK_TEST_BROKEN"):
            raise ValueError("private")
        return [ReleaseFinding(item="advice", audit=self.name, note=f"of {len(found)} findings")]


def test_a_conclusion_that_fails_is_an_item_and_tried_again(
    small_plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(load_plan(small_plan), audits=[Concluding()])
    monkeypatch.setenv("GRADLEAK_TEST_BROKEN", "1")
    record = run_plan(plan, tmp_path / "out", jobs=1)
    assert record.complete
    (failed,) = [one for one in record.findings if one.status == "failed"]
    assert failed.item == "conclusions/released"
    assert "ValueError" in failed.note
    assert "private" not in failed.note
    monkeypatch.delenv("GRADLEAK_TEST_BROKEN")
    again = run_plan(plan, tmp_path / "out", jobs=1)
    assert [one.item for one in again.findings if one.status == "failed"] == []
    assert "of 3 findings" in [one.note for one in again.findings]
    fresh = run_plan(plan, tmp_path / "fresh", jobs=1)
    assert again.canonical() == fresh.canonical()
