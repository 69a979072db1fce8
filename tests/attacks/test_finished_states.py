"""A finished attack's state outlives it where the caller says so, and is claimed from at once, with the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gradleak.attacks import Attack, Checkpoint, InvertingGradients
from gradleak.attacks.inversion.evaluation import Evaluator
from gradleak.core import HonestButCurious, Objective, Reconstruction, Release
from gradleak.protocols import FedSGD
from tests.attacks.setting import rows, setting, small_generator, small_net
from tests.attacks.test_wall import AT_ONCE, ATTACKS, _made

SEARCHES = [text for text in ATTACKS if text not in AT_ONCE and not text.startswith("GaussNewton")]


def _run(attack: Attack, path: Path | None) -> Reconstruction:
    objective, release = Objective.from_module(small_net()), Release(FedSGD())
    update = release(objective, rows(1), torch.Generator())
    prior = small_generator() if "generator" in attack.needs else None
    threat = HonestButCurious(targets="targets" in attack.needs, generator=prior)
    return attack(
        update,
        threat.disclose(objective, release, rows(1)),
        generator=torch.Generator().manual_seed(5),
        checkpoint=None if path is None else Checkpoint(path=path, seconds=3600, keep=True),
    )


def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on nothing may be evaluated: neither gradients nor candidates of a population."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished search made a further step")

    monkeypatch.setattr(Evaluator, "__call__", refuse)
    monkeypatch.setattr(Evaluator, "values", refuse)


def _same(found: Reconstruction, expected: Reconstruction) -> None:
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    assert list(found.history) == list(expected.history)
    assert dict(found.details) == dict(expected.details)
    assert (found.loss, found.outcome, found.note) == (expected.loss, expected.outcome, expected.note)
    assert (found.iterations, found.plain_gradients) == (expected.iterations, expected.plain_gradients)


@pytest.mark.parametrize("text", SEARCHES)
def test_every_search_claims_the_same_from_its_finished_state(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack, path = _made(text), tmp_path / "state"
    assert isinstance(attack, Attack)
    whole = _run(attack, None)
    _same(_run(attack, path), whole)
    assert path.exists()
    _idle(monkeypatch)
    _same(_run(attack, path), whole)
    assert path.exists()
    Checkpoint(path=path).clear()
    assert not list(tmp_path.iterdir())


def test_what_a_model_without_lockstep_was_computed_by_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The route shows at the first evaluation, which a finished search does not repeat."""
    attack = _made("IGIMSAdam(rounds=1, latent_iterations=3, weight_iterations=3, restarts=2)")

    def unbatched(*_: Any) -> None:
        raise NotImplementedError("no batching rule")

    monkeypatch.setattr("gradleak.attacks.inversion.evaluation._Functional.lockstep", unbatched)
    path = tmp_path / "state"
    found = _run(attack, path)
    assert found.details["route"] == "graph"
    _idle(monkeypatch)
    _same(_run(attack, path), found)


def _groups(attack: Attack, path: Path | None, progress: Any = None) -> Sequence[Reconstruction]:
    """Two targets of two models, so of two lockstep groups."""
    cases = [setting(small_net(), rows(label), dtype=torch.float32) for label in (1, 2)]
    return attack.many(
        [case.update for case in cases],
        [case.knowledge for case in cases],
        generators=[torch.Generator().manual_seed(seed) for seed in (20, 21)],
        checkpoint=None if path is None else Checkpoint(path=path, seconds=0, keep=True),
        progress=progress,
    )


def test_the_finished_states_of_all_groups_stay_and_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack, path = InvertingGradients(iterations=12, restarts=2), tmp_path / "state"
    whole = _groups(attack, None)
    for found, expected in zip(_groups(attack, path), whole, strict=True):
        _same(found, expected)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state", "state.1"]
    _idle(monkeypatch)
    for found, expected in zip(_groups(attack, path), whole, strict=True):
        _same(found, expected)
    (tmp_path / ".state.2.partial").write_bytes(b"half of a guess")
    (tmp_path / "state.txt").write_text("of someone else", encoding="utf-8")
    Checkpoint(path=path).clear()
    assert [file.name for file in tmp_path.iterdir()] == ["state.txt"]
