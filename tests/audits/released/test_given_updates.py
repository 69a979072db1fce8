"""What a client says beside its numbers changes no score and no verdict."""

from __future__ import annotations

import ast
import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.auditing.reading import attacks, releases
from torch import nn

import gradleak as gl
from gradleak.auditing import Controls, default_plan, run_plan
from gradleak.results import Record

# What the package writes, and what sounds like an auditor's statement.
KEYS = (
    *("release", "mode", "loss", "alignment", "file", "sign", "control", "visible", "approximation", "pooled_rounds"),
    *("pooling", "protocol", "defenses", "n", "batch_size", "kind", "gate", "noise", "status", "given", "precision"),
)
DEEP: Any = functools.reduce(lambda inner, _: [inner], range(80), 1)
HOSTILE: dict[str, Any] = {
    "number": 5,
    "nothing": None,
    "text": "consistent",
    "truth value": True,
    "list": [[1], {"a": 2}, "\u202e\0\x1b[2J"],
    "table": {"use": "os:system", "status": "inconsistent", "0": {}},
    "depth": DEEP,
    "size": "x" * 40_000,
}


def model() -> nn.Module:
    built = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return built


INPUTS = torch.rand(1, 6, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([1])


def sent(path: Path, **header: Any) -> Path:
    client = model()
    nn.functional.cross_entropy(client(INPUTS), TARGETS).backward()
    tensors = {name: parameter.grad for name, parameter in client.named_parameters() if parameter.grad is not None}
    save_file(tensors, path, metadata={"gradleak": json.dumps(header)})
    return path


def audited(path: Path, *, attack: gl.Attack | None = None, release: gl.Release | None = None) -> Record:
    """An audit of a file as it came, without controls, which no statement can reach."""
    attacks = {"gauss_newton": gl.GaussNewton(max_steps=12)} if attack is None else {"attack": attack}
    plan = default_plan(model(), gl.Batch(INPUTS, TARGETS), release=release, attacks=attacks, measures=[])
    scenario = replace(plan.site.scenarios[0], updates={0: gl.Update.load(path)})
    site = replace(plan.site, scenarios=[scenario], controls=Controls(positive=False, negative=False))
    return run_plan(replace(plan, site=site), path.parent / path.stem, jobs=1)


def content(record: Record) -> list[Any]:
    """Verdicts and findings, without times."""
    findings = [one.model_dump(mode="json", exclude={"seconds"}) for one in record.findings]
    return [[vars(verdict) for verdict in record.verdicts], findings]


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The audit of an update that comes without a word."""
    record = audited(sent(tmp_path_factory.mktemp("silent") / "u.safetensors"))
    assert record.verdicts[-1].verdict == "leaks"
    return record


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_no_statement_of_a_client_changes_the_record(kind: str, tmp_path: Path, silent: Record) -> None:
    hostile = HOSTILE[kind]
    path = sent(tmp_path / "u.safetensors", provenance=dict.fromkeys(KEYS, hostile), extra=hostile)
    assert content(audited(path)) == content(silent)
    for key in KEYS:
        stated = gl.Update.load(sent(path, provenance={key: hostile}))
        assert stated.align(gl.Objective.from_module(model())).alignment == ()


@pytest.mark.parametrize(
    "provenance",
    ["NaN", "[]", '{"a": 1, "a": 2}', '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", '{"a": 1' + "0" * 5000 + "}"],
)
def test_statements_that_no_table_can_hold_are_refused_before_anything_runs(provenance: str, tmp_path: Path) -> None:
    path = tmp_path / "u.safetensors"
    save_file({"w": torch.ones(1)}, path, metadata={"gradleak": f'{{"provenance": {provenance}}}'})
    with pytest.raises(gl.GradleakError, match=r"u\.safetensors: (expected|damaged)") as caught:
        gl.Update.load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("attack", [gl.GaussNewton(max_steps=12), gl.InvertingGradients(iterations=30, restarts=1)])
def test_a_kind_that_the_client_made_up_changes_no_verdict(attack: gl.Attack, tmp_path: Path) -> None:
    records = [
        audited(sent(tmp_path / f"{kind}.safetensors", kind=kind), attack=attack) for kind in ("gradient", "delta")
    ]
    assert content(records[0]) == content(records[1])
    assert attacks(records[0])[0].status == "done"


def test_the_stated_kind_still_names_the_cause_of_an_inconsistent_update(tmp_path: Path) -> None:
    release = gl.Release(gl.FedAvg(learning_rate=0.1, epochs=2))
    record = audited(sent(tmp_path / "u.safetensors"), release=release, attack=gl.attacks.Blind())
    assert record.verdicts[-1].reason == "inconsistent_update"
    gate = releases(record)[0].gate
    assert gate is not None
    assert gate.causes[0] == "the update is a gradient, but FedAvg makes a delta"


def test_nothing_in_the_package_reads_what_an_update_states() -> None:
    """Provenance is written and handed on as a whole; no code looks a key up in it."""
    source = Path(gl.__file__).parent
    for file in source.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if ".provenance" not in text:
            continue
        tree = ast.parse(text)
        handed_on = {
            id(value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Dict)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is None
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "provenance" and file.name != "update.py":
                assert id(node) in handed_on, f"{file}:{node.lineno} reads the provenance of an update"
