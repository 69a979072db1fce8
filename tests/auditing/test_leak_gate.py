"""The gate: what it decides, that it changes nothing, and that nothing of the reason is in what it raises."""

from __future__ import annotations

import copy
import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import GaussNewton
from gradleak.auditing import Gate, leak_gate
from gradleak.core import Objective, Release, Update
from gradleak.defenses import DPSGD
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, LeakRefusedError
from tests.auditing.test_budget import batch, model

SGD = Release(FedSGD())
DP = Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=2.0, noise="sum")])
ATTACKS = {"gauss_newton": GaussNewton(max_steps=12, starts=1)}


def update_of(release: Release, count: int = 1) -> Update:
    return release(Objective.from_module(model()), batch(count), torch.Generator().manual_seed(1))


def gate(**changes: Any) -> Gate:
    settings = {"model": model(), "attacks": ATTACKS, "measures": [], "budget": "60s", "on_leak": "refuse"}
    return Gate(**{**settings, **changes})


def everything(of: Gate, update: Update) -> list[Any]:
    tensors = [*of.model.state_dict().values(), *update.tensors.values()]
    flags = [torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), torch.backends.cudnn.enabled]
    return [
        [tensor.clone() for tensor in tensors],
        [parameter.grad is None for parameter in of.model.parameters()],
        [part.training for part in of.model.modules()],
        torch.get_rng_state(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        random.getstate(),
        flags,
        list(update.tensors),
        update.kind,
    ]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_a_leak_is_refused_with_a_constant_message_and_nothing_changes(tmp_path: Path, caplog: Any) -> None:
    made, update = gate(log=tmp_path / "gate.jsonl"), update_of(SGD)
    before = everything(made, update)
    with caplog.at_level(logging.WARNING, logger="gradleak.gate"), pytest.raises(LeakRefusedError) as caught:
        made.guard(update, batch())
    assert same(before, everything(made, update))
    assert str(caught.value) == "gradleak: this update was withheld by the client"
    assert "this update leaks; it is kept back (attack_reached_threshold)" in caplog.text
    line = json.loads((tmp_path / "gate.jsonl").read_text(encoding="utf-8"))
    assert (line["passes"], line["leaks"], line["verdict"]) == (False, True, "leaks")
    assert line["seconds"] > 0
    assert line["plain_gradients"] > 0


@pytest.mark.parametrize(("action", "told"), [("warn", True), ("record", False)])
def test_other_actions_let_a_leak_pass(action: str, told: bool, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="gradleak.gate"):
        decision = gate(on_leak=action).guard(update_of(SGD), batch())
    assert decision.passes
    assert decision.leaks is True
    assert ("this update leaks" in caplog.text) is told


def test_an_update_with_differential_privacy_passes() -> None:
    decision = gate(release=DP, measures=None).guard(update_of(DP, 2), batch(2))
    assert decision.passes
    assert decision.leaks is False
    assert decision.reason == "no_attack_had_a_chance"
    assert any("the closed form leaves an error" in line for line in decision.left_out)


@pytest.mark.slow
def test_what_is_not_as_stated_is_unclear_and_refused_only_if_asked() -> None:
    halved = Update(tensors={name: tensor / 2 for name, tensor in update_of(SGD).tensors.items()})
    passed = gate().guard(halved, batch())
    assert (passed.passes, passed.leaks, passed.reason) == (True, None, "inconsistent_update")
    assert not gate(on_unclear="refuse").decide(halved, batch()).passes
    wrong = gate(on_unclear="refuse").decide(Update(tensors={"a": torch.ones(1)}), batch())
    assert (wrong.passes, wrong.leaks, wrong.reason) == (False, None, "gate_failed")
    assert "InconsistentUpdateError" in wrong.explanation


@pytest.mark.slow
def test_the_numbers_that_the_server_sent_are_where_the_client_began() -> None:
    sent = {name: tensor + 0.1 for name, tensor in model().state_dict().items()}
    there = model()
    there.load_state_dict(sent)
    release = Release(FedAvg(learning_rate=0.1))
    update = release(Objective.from_module(there), batch(), torch.Generator())
    made = gate(release=release, on_leak="record")
    for start in (sent, {str(place): tensor for place, tensor in enumerate(sent.values())}):
        assert made.decide(update, batch(), start={f"module.{n}" if "." in n else n: t for n, t in start.items()}).leaks
    assert made.decide(update, batch()).reason == "inconsistent_update"
    with pytest.raises(InputError, match="expected the numbers of the model by its names"):
        made.started_from({"other": torch.ones(1)})
    assert same(list(copy.deepcopy(model()).state_dict().values()), list(made.model.state_dict().values()))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"Gate.on_leak: expected one of refuse, warn, record, got 'stop'"):
        gate(on_leak="stop")
    with pytest.raises(InputError, match=r"Gate.model: expected a torch.nn.Module"):
        gate(model=3)


def malicious() -> nn.Module:
    """Biases that open every unit for one row in thirty-two."""
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(6)))
        made[1].bias.copy_(-torch.quantile(batch(512).inputs.flatten(1) @ made[1].weight.T, 31 / 32, dim=0))
    return made


def test_a_model_that_opens_single_examples_is_refused_before_a_gradient(tmp_path: Path, caplog: Any) -> None:
    made = gate(model=malicious(), public=batch(256), log=tmp_path / "gate.jsonl")
    with caplog.at_level(logging.WARNING, logger="gradleak.gate"):
        decision = made.decide_model()
    assert (decision.passes, decision.leaks, decision.reason) == (False, True, "server_model")
    assert decision.explanation.startswith("Do not compute a gradient on this model: refuse the round. layer 1: ")
    assert "this server's model leaks; it is kept back (server_model)" in caplog.text
    assert json.loads((tmp_path / "gate.jsonl").read_text(encoding="utf-8"))["reason"] == "server_model"
    # The model is looked at before an update is: this one would be refused as not fitting.
    strange = Update(tensors={"a": torch.ones(1)})
    assert made.decide(strange, batch()).reason == "server_model"
    with pytest.raises(LeakRefusedError, match=r"^gradleak: this update was withheld by the client$"):
        made.guard(strange, batch())
    warned = gate(model=malicious(), public=batch(256), on_leak="warn").decide_model()
    assert (warned.passes, warned.leaks) == (True, True)


def test_the_numbers_that_came_are_looked_at_and_honest_ones_pass() -> None:
    made = gate(model=malicious(), public=batch(256))
    honest = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    honest["1.bias"] = torch.zeros(64)
    decision = made.decide_model(honest, batch_size=8)
    assert (decision.passes, decision.leaks, decision.reason) == (True, False, "server_model")
    unchecked = gate(model=malicious()).decide_model()
    assert (unchecked.passes, unchecked.leaks) == (True, None)
    assert "no public rows" in unchecked.explanation
    few = gate(model=malicious(), public=batch(8), on_unclear="refuse").decide_model()
    assert (few.passes, few.leaks, few.reason) == (False, None, "gate_failed")
    assert "expected at least 64" in few.explanation
    with pytest.raises(InputError, match=r"Gate.public: expected a gradleak.Batch of public rows, got int"):
        gate(public=3)


def test_a_model_without_inner_layers_has_no_rows_to_open_and_its_update_is_audited() -> None:
    made = gate(model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double(), public=batch(64))
    assert made.decide_model().leaks is False
    example = batch(1)
    decision = made.decide(SGD(Objective.from_module(made.model), example, torch.Generator().manual_seed(1)), example)
    assert (decision.passes, decision.leaks, decision.reason) == (False, True, "attack_reached_threshold")


def test_an_update_is_audited_where_the_model_cannot_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise OSError("private words")

    monkeypatch.setattr(leak_gate, "check_server_model", broken)
    decision = gate(public=batch(64)).decide(update_of(SGD), batch(1))
    assert (decision.passes, decision.leaks) == (False, True)
    assert decision.left_out[-1] == "the check of the server's model (OSError: private words)"


def test_whatever_fails_inside_of_the_gate_the_server_learns_nothing(tmp_path: Path, caplog: Any) -> None:
    class Failing(nn.Module):
        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            raise OSError("private words")

    caplog.set_level(logging.WARNING)
    made = gate(loss=Failing(), on_unclear="refuse", log=tmp_path / "missing" / "gate.jsonl")
    with pytest.raises(LeakRefusedError) as refusal:
        made.guard(update_of(SGD), batch(1))
    assert str(refusal.value) == str(LeakRefusedError())
    assert "could not be logged" in caplog.text
