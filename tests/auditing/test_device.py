"""A run on another device: what is told of it, and that nothing stays behind; the device is a fake one (`tests.fake_device`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import gradleak as gl
from gradleak.auditing import AuditOptions, Plan, Shard, build_plan, device_of, merge_shards, run_plan
from gradleak.auditing.device import check_memory, jobs_on, on_device
from gradleak.cli.commands import app
from gradleak.results import InputError, PlanError, Record, Status
from tests.fake_device import FAKE, FakeDevice, place_of

PLAN = {
    "name": "two digits",
    "seed": 1,
    "model": {"use": "lenet_dlg", "size": 8, "channels": 1},
    "data": {"use": "scikit_digits", "count": 2},
    "measures": {"norm": {"use": "GradientNorm"}},
    "attacks": {"matching": {"use": "InvertingGradients", "iterations": 4, "restarts": 1}},
    "scenarios": [
        {"name": "undefended", "attacks": {"matching": [0]}},
        {"name": "noise", "examples": [1], "defenses": [{"use": "GaussianNoise", "std": 1e-3}], "attacks": {}},
    ],
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return build_plan(PLAN, folder=Path())


@pytest.fixture(scope="module")
def there(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Record:
    with FakeDevice():
        return run_plan(plan, tmp_path_factory.mktemp("there"), jobs=1, device=FAKE)


def values(record: Record) -> dict[tuple[str, str, str], float | None]:
    return {
        (finding.item, score.name, score.unit): score.value for finding in record.findings for score in finding.scores
    }


def test_a_run_on_another_device_finds_what_the_processor_finds(plan: Plan, there: Record, tmp_path: Path) -> None:
    here = run_plan(plan, tmp_path, jobs=1)
    assert not [finding.note for finding in there.findings if finding.status is not Status.DONE]
    assert [verdict.verdict for verdict in there.verdicts] == [verdict.verdict for verdict in here.verdicts]
    assert values(there).keys() == values(here).keys()
    for name, value in values(here).items():
        assert values(there)[name] == (None if value is None else pytest.approx(value, rel=1e-4, abs=1e-9)), name
    assert (here.run["device"], there.run["device"]) == ("cpu", FAKE.type)
    assert here.run["plan_digest"] == there.run["plan_digest"]


def test_the_plan_stays_where_it_is(plan: Plan, there: Record) -> None:
    assert all(place_of(tensor) != "device" for tensor in plan.site.objective.params.values())
    assert all(place_of(batch.inputs) != "device" for batch in plan.site.batches)


def test_a_record_of_another_device_is_not_gone_on_with(plan: Plan, there: Record) -> None:
    assert there.path is not None
    with pytest.raises(
        PlanError, match="has device 'privateuseone', this run has 'cpu': numbers can differ between dev"
    ):
        run_plan(plan, there.path.parent, jobs=1)


@pytest.mark.slow
def test_what_a_device_without_float64_cannot_do_is_done_on_the_processor(plan: Plan, tmp_path: Path) -> None:
    with FakeDevice(double=False):
        record = run_plan(plan, tmp_path, jobs=1, device=FAKE)
    assert all(finding.status is Status.DONE for finding in record.findings)
    told = {
        finding.item: "computed on the processor: privateuseone has no float64" in finding.note
        for finding in record.findings
    }
    assert told["undefended/example 0/risk"]
    assert not told["undefended/example 0/matching"]


@pytest.mark.slow
def test_shards_of_two_devices_are_no_record(plan: Plan, tmp_path: Path) -> None:
    run_plan(plan, tmp_path / "1", jobs=1, shard=Shard(1, 2))
    with FakeDevice():
        run_plan(plan, tmp_path / "2", jobs=1, shard=Shard(2, 2), device=FAKE)
    with pytest.raises(
        PlanError, match="expected shards of one device, one of cpu, cuda, mps, got cpu and privateuseone"
    ):
        merge_shards(plan, [tmp_path / "1", tmp_path / "2"], tmp_path / "both")


def test_what_is_held_twice_arrives_once() -> None:
    layer = nn.Linear(2, 2)
    closure = (lambda: layer.weight).__call__
    with FakeDevice():
        moved, weight, called, label = on_device((layer, layer.weight, closure, "name"), FAKE)
        assert isinstance(moved.weight, nn.Parameter)
        assert moved.weight is weight is called()
        assert (moved.weight.device, moved.bias.device, label) == (FAKE, FAKE, "name")
        assert torch.equal(moved.weight.cpu(), layer.weight)
    assert place_of(layer.weight) is None
    assert on_device(layer, None) is layer


def test_a_plan_that_needs_more_memory_than_the_device_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_plan({**PLAN, "max_bytes": 2**20}, folder=Path()).site.max_bytes == 2**20
    small = SimpleNamespace(total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: small)
    check_memory(torch.device("cuda"), 1000)
    check_memory(torch.device("cpu"), 1001)
    with pytest.raises(InputError, match="max_bytes of the plan, 1,001, got cuda with 1,000; lower it"):
        check_memory(torch.device("cuda"), 1001)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu", r"expected one of cpu, cuda, cuda:1 \(its number\) or mps, got 'gpu'"),
        ("cpu:1", "got 'cpu:1'"),
        ("cuda:", "got 'cuda:'"),
        ("cuda", "cuda was asked for; torch .* sees none"),
        ("mps", "mps was asked for; torch .* sees none"),
    ],
)
def test_a_device_that_is_not_there_is_refused(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(InputError, match=said):
        device_of(name)
    with pytest.raises(InputError, match=said):
        gl.audit(nn.Linear(2, 2), (torch.ones(1, 2), torch.tensor([0])), options=AuditOptions(device=name, quiet=True))


def test_a_device_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match=r"cuda:2 was asked for; torch .* sees 2 of them, numbered from 0"):
        device_of("cuda:2")
    assert (jobs_on(device_of("cuda"), None), jobs_on(device_of("cuda"), 4), jobs_on(device_of("cpu"), None)) == (
        1,
        4,
        None,
    )


def test_commands_name_a_device_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for command in (["audit"], ["advise", "--utility", "0.5"]):
        ended = CliRunner().invoke(app, [*command, "plan.toml", "--out", str(tmp_path / "run"), "--device", "cuda"])
        assert isinstance(ended.exception, InputError)
        assert "cuda was asked for" in str(ended.exception)
    assert not (tmp_path / "run").exists()


def test_an_audit_says_where_it_computed(tmp_path: Path) -> None:
    record = gl.audit(
        nn.Linear(4, 2), (torch.rand(1, 4), torch.tensor([0])), attacks={}, measures=[],
        out=tmp_path, options=AuditOptions(device="cpu", quiet=True),
    )  # fmt: skip
    assert record.run["device"] == "cpu"
    gl.write_markdown(record, tmp_path / "report.md")
    assert "- Device: cpu" in (tmp_path / "report.md").read_text()
