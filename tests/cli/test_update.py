"""`gradleak audit PLAN --update FILE`: the update that was sent stands in place of the one that the plan would draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.auditing import Plan, load_plan, load_updates, with_updates
from gradleak.auditing.run import preflight
from gradleak.cli import commands
from gradleak.core import Update, UpdateKind
from gradleak.results import InconsistentUpdateError, PlanError, Record
from tests.cli.command import called

PLAN = """
seed = 3
[model]
use = "tests.auditing.small_model:small_mlp"
[data]
use = "scikit_digits"
count = 2
batch_size = 1
[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 8
starts = 1
[controls]
positive = false
negative = false
[[scenarios]]
name = "sent"
examples = [0, 1]
attacks = { gauss_newton = [0] }
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sent") / "plan.toml"
    file.write_text(PLAN, encoding="utf-8")
    return file


def released(plan: Plan, index: int) -> Update:
    return plan.site.released(plan.site.scenarios[0], index)


def test_the_gate_speaks_first_and_the_files_are_what_is_audited(plan: Path, tmp_path: Path) -> None:
    loaded = load_plan(plan)
    first, second = (released(loaded, index) for index in (0, 1))
    # The other sign, as a list in the order of parameters(): what many clients save.
    np.savez(tmp_path / "client7.npz", *[-tensor.numpy() for tensor in first.tensors.values()])
    torch.save({f"module.{name}": -2 * tensor for name, tensor in second.tensors.items()}, tmp_path / "client8.pt")
    options = ["--sign", "-1", "--jobs", "1", "--out", str(tmp_path / "out")]
    files = ["--update", str(tmp_path / "client7.npz"), "--update", str(tmp_path / "client8.pt")]
    ended = called("audit", str(plan), *options, *files)
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if "the update is" in line]
    assert said[0].startswith("sent, example 0: the update is consistent with the plan (cosine 1, scale 1)")
    assert said[1].startswith(
        "sent, example 1: the update is not what the plan makes of this batch (cosine 1, scale 2)"
    )
    assert "a list without names was taken in the order of the model's parameters" in ended.stderr
    assert "module.1.0.weight read as 1.0.weight" in ended.stderr
    verdicts = {one.item: one for one in Record.load(tmp_path / "out").verdicts}
    assert verdicts["sent/example 0"].verdict.value == "leaks"
    assert verdicts["sent/example 1"].reason == "inconsistent_update"


def test_the_command_takes_every_kind_of_update() -> None:
    assert [kind.value for kind in commands.UpdateKind] == [kind.value for kind in UpdateKind]


def test_bad_files_and_lonely_options_end_in_one_line(plan: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "short.npz", np.zeros(3))
    both = ["--update", str(tmp_path / "short.npz"), "--update", str(tmp_path / "short.npz")]
    for arguments, message in (
        (["--sign", "-1"], "expected with --update FILE, got none"),
        (["--update", str(tmp_path / "none.npz")], "no such file"),
        (["--update", str(tmp_path / "short.npz")], "expected one for each of the 2 batches of scenario 'sent'"),
        (both, "expected files of different names"),
    ):
        ended = called("audit", str(plan), "--out", str(tmp_path / "x"), *arguments)
        assert ended.returncode == 2
        assert message in ended.stderr.replace("\n", " ")
        assert "Traceback" not in ended.stderr
    assert not (tmp_path / "x").exists()


def test_several_updates_of_one_batch_are_scenarios_of_their_own(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(plan.read_text(encoding="utf-8").replace("examples = [0, 1]", "examples = [0]"), encoding="utf-8")
    loaded = load_plan(file)
    for name in ("round1", "round2"):
        released(loaded, 0).save(tmp_path / f"{name}.safetensors")
    sent = load_updates([tmp_path / "round1.safetensors", tmp_path / "round2.safetensors"])
    changed = with_updates(loaded, sent)
    assert [one.name for one in changed.site.scenarios] == ["round1", "round2"]
    assert all("consistent with the plan" in line for line in changed.opening())
    assert list(loaded.opening()) == []
    short = {name: tensor for name, tensor in sent["round2"].tensors.items() if name != "1.0.weight"}
    with pytest.raises(InconsistentUpdateError, match="round2, update 1 of 1: the update does not fit the model"):
        preflight(with_updates(loaded, {**sent, "round2": Update(tensors=short)}))
    with pytest.raises(PlanError, match="did you mean 'sent'"):
        with_updates(loaded, sent, scenario="snet")


def test_a_plan_of_several_scenarios_needs_the_name_of_one(plan: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        f'{plan.read_text(encoding="utf-8")}[[scenarios]]\nname = "other"\nexamples = [0]\n', encoding="utf-8"
    )
    loaded = load_plan(file)
    sent = {"a": released(loaded, 0)}
    with pytest.raises(PlanError, match=r"the plan has 2 with batches \(sent, other\); .* --scenario"):
        with_updates(loaded, sent)
    assert [one.name for one in with_updates(loaded, sent, scenario="other").site.scenarios] == ["other"]
