"""Clients that send their weights whole, in place of how far they moved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import gradleak as gl
from gradleak.core import Update, UpdateKind
from gradleak.protocols import FedAvg
from gradleak.results import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sent() -> tuple[nn.Module, gl.Batch, Update, Update]:
    """A model, a batch, the delta of a client and its weights."""
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    private = gl.Batch(
        torch.rand(1, 6, generator=generator(1), dtype=torch.float64),
        torch.tensor([1]),
        gl.Domain(shape=(6,), kind="tabular"),
    )
    objective = gl.Objective.from_module(net)
    delta = gl.Release(FedAvg(learning_rate=0.1, epochs=2))(objective, private, generator())
    weights = {name: objective.params[name].detach() - tensor for name, tensor in delta.tensors.items()}
    return net, private, delta, Update(tensors=weights, kind="weights")


def test_aligned_weights_are_the_change_from_the_model() -> None:
    net, _, delta, weights = sent()
    aligned = weights.align(gl.Objective.from_module(net))
    assert aligned.kind is UpdateKind.DELTA
    for name, tensor in delta.tensors.items():
        torch.testing.assert_close(aligned.tensors[name], tensor)
    assert any("whole weights were taken from the parameters" in note for note in aligned.alignment)
    assert aligned.align(gl.Objective.from_module(net)).kind is UpdateKind.DELTA


def test_a_file_is_read_as_weights_only_where_the_auditor_says_so(tmp_path: Path) -> None:
    _, _, delta, weights = sent()
    path = weights.save(tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="the file says that it holds whole weights; if it does, say kind='weights'"):
        Update.load(path)
    assert Update.load(path, kind="weights").kind is UpdateKind.WEIGHTS
    with pytest.raises(InputError, match=r"expected kind 'weights' .*, got 'delta' from the file"):
        Update.load(delta.save(tmp_path / "delta.safetensors"), kind="weights")


def test_an_audit_and_an_attack_read_whole_weights() -> None:
    net, private, _, weights = sent()
    release = gl.Release(FedAvg(learning_rate=0.1, epochs=2))
    record = gl.audit(net, private, release=release, update=weights, attacks={}, options=gl.AuditOptions(quiet=True))
    found = next(finding for finding in record.findings if finding.kind == "released")
    assert found.gate.status == "consistent"
    assert any("whole weights" in note for note in found.alignment)
    knowledge = gl.HonestButCurious().disclose(gl.Objective.from_module(net), release, private)
    claim = gl.GaussNewton()(weights, knowledge, generator=generator(2))
    assert float((claim.inputs - private.inputs).abs().max()) < 1e-6
