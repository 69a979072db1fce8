"""The lockstep loop over time: restarts, closing targets, noise, memory, and going on after a kill with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gradleak.attacks import (
    LBFGS,
    Adam,
    Attack,
    Checkpoint,
    CosineDecay,
    CosineDistance,
    GroupConsistency,
    Inversion,
    InvertingGradients,
    Pixels,
    SearchStage,
    SquaredError,
    Start,
)
from gradleak.core import Batch, Domain, LayerStatistics, Objective, Reconstruction, Update
from gradleak.models import lenet_i2f
from gradleak.results import InputError, Outcome
from tests.attacks.setting import DIGIT, Setting, rows, setting, small_net
from tests.pairs import covering


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _generators(*seeds: int) -> list[torch.Generator]:
    return [_generator(seed) for seed in seeds]


NOISY = Adam(learning_rate=0.05, schedule=CosineDecay(warm_up=0.1), noise=0.1)


QUICK = Adam(learning_rate=0.05, schedule=CosineDecay())


def _search(optimizer: Adam | LBFGS, iterations: int, *, restart_after: int | None = None, **changes) -> Inversion:
    stage = SearchStage(optimizer=optimizer, iterations=iterations, restart_after=restart_after)
    return replace(Inversion(matching=SquaredError(), stages=(stage,)), **changes)


TWO_STAGES = Inversion(
    matching=SquaredError(),
    stages=(
        SearchStage(optimizer=NOISY, iterations=12),
        SearchStage(optimizer=LBFGS(inner_steps=4, history=5), iterations=4, restart_after=3),
    ),
    priors=(GroupConsistency(weight=0.1, every=4),),
    restarts=3,
)
RESUMED: dict[str, Inversion] = {
    "adam with noise": _search(NOISY, 24),
    "adam with noise, three starts": _search(NOISY, 24, restarts=3),
    "l-bfgs": _search(LBFGS(inner_steps=5, history=4), 6),
    "l-bfgs, three starts": _search(LBFGS(inner_steps=5, history=4), 6, restarts=3),
    "two stages, three starts, in concert": TWO_STAGES,
    "two stages": replace(TWO_STAGES, restarts=1),
}


class Stopped(Exception):
    """The process ends here."""


def _interrupted(attack: Attack, cases: list[Setting], path: Path, at: int) -> None:
    """Run until `at` evaluations were reported; the state stays behind."""

    def progress(done: int, planned: int, loss: float) -> None:
        if done >= at:
            raise Stopped

    with pytest.raises(Stopped):
        _run(attack, cases, path=path, progress=progress)


def _run(attack: Attack, cases: list[Setting], *, path: Path | None = None, progress=None) -> list[Reconstruction]:
    return attack.many(
        [case.update for case in cases],
        [case.knowledge for case in cases],
        generators=_generators(*range(20, 20 + len(cases))),  # not the seeds of the data: starts are drawn as those are
        progress=progress,
        checkpoint=None if path is None else Checkpoint(path=path, seconds=0),
    )


def _cases(*labels: int) -> list[Setting]:
    cases = [setting(small_net(), rows(label, seed=label), dtype=torch.float32) for label in labels]
    return [replace(case, knowledge=cases[0].knowledge) for case in cases]


def _same(first: Reconstruction, second: Reconstruction) -> None:
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.targets, second.targets)
    assert list(first.history) == list(second.history)
    assert first.loss == second.loss
    assert dict(first.details) == dict(second.details)
    assert (first.outcome, first.iterations) == (second.outcome, second.iterations)


@covering("name, targets", list(RESUMED), [1, 2], pairs=False)
def test_an_interrupted_search_goes_on_with_the_same_bits(name: str, targets: int, tmp_path: Path) -> None:
    attack, cases, path = RESUMED[name], _cases(*range(targets)), tmp_path / "state"
    whole = _run(attack, cases)
    for at in (1, 11) if targets == 1 else (11,):
        _interrupted(attack, cases, path, at)
        assert path.exists()
    resumed = _run(attack, cases, path=path)
    for found, expected in zip(resumed, whole, strict=True):
        _same(found, expected)
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys, torch
from gradleak.attacks import Checkpoint
from gradleak.core import Update
from tests.attacks.inversion.test_search import RESUMED, _cases, _generators

torch.set_num_threads(1)
path, name = sys.argv[1:]
case = _cases(1)[0]

def progress(done, planned, loss):
    if done >= 11:
        os.kill(os.getpid(), signal.SIGKILL)

RESUMED[name].many(
    [case.update], case.knowledge, generators=_generators(20), progress=progress,
    checkpoint=Checkpoint(path=path, seconds=0),
)
"""


@pytest.mark.slow  # in short: tests/attacks/test_wall.py kills a process of each attack
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no kill -9 here")
@pytest.mark.parametrize("name", ["two stages, three starts, in concert", "adam with noise", "l-bfgs"])
def test_a_process_that_was_killed_loses_no_bit(name: str, tmp_path: Path) -> None:
    path = tmp_path / "state"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), name], check=False, cwd=root, env=environment, timeout=300
    )
    assert ended.returncode == -signal.SIGKILL
    assert path.exists()
    cases = _cases(1)
    _same(_run(RESUMED[name], cases, path=path)[0], _run(RESUMED[name], cases)[0])


def test_nothing_is_written_unless_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _run(RESUMED["l-bfgs"], _cases(1))
    assert not list(tmp_path.iterdir())


def test_the_state_of_another_attack_is_refused(tmp_path: Path) -> None:
    attack, cases, path = RESUMED["adam with noise"], _cases(1), tmp_path / "state"
    _interrupted(attack, cases, path, 11)
    case = cases[0]
    objective = case.knowledge.objective
    moved = Objective.from_module(small_net(seed=5))
    moments = {"0": LayerStatistics(mean=torch.zeros(1), variance=torch.ones(1))}
    others: dict[str, tuple[Attack, Setting, int]] = {
        "statistics": (attack, replace(case, knowledge=replace(case.knowledge, statistics=moments)), 20),
        "settings": (_search(NOISY, 25), case, 20),
        "update": (attack, _cases(2)[0], 20),
        "start": (attack, case, 21),
        "model": (attack, replace(case, knowledge=replace(case.knowledge, objective=moved)), 20),
        "mode": (attack, replace(case, knowledge=replace(case.knowledge, objective=objective.in_mode("train"))), 20),
    }
    for other, setting_, seed in others.values():
        with pytest.raises(InputError, match=r"got that of another .* delete the file"):
            other(setting_.update, setting_.knowledge, generator=_generator(seed), checkpoint=Checkpoint(path=path))
    assert path.exists()


def test_a_kill_between_two_groups_does_not_send_the_first_back(tmp_path: Path) -> None:
    attack, path = RESUMED["adam with noise"], tmp_path / "state"
    cases = [setting(small_net(), rows(1), dtype=torch.float32), setting(small_net(), rows(2), dtype=torch.float32)]
    whole = _run(attack, cases)
    reports: list[int] = []

    def progress(done: int, planned: int, loss: float) -> None:
        reports.append(done)
        if reports.count(11) == 2:  # in the second group
            raise Stopped

    with pytest.raises(Stopped):
        _run(attack, cases, path=path, progress=progress)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "state.1"]
    again: list[int] = []
    resumed = _run(attack, cases, path=path, progress=lambda done, *_: again.append(done))
    assert again.count(1) == 0
    for found, expected in zip(resumed, whole, strict=True):
        _same(found, expected)
    assert not list(tmp_path.iterdir())


def test_long_steps_of_l_bfgs_are_taken_back() -> None:
    """U38. Without a line search the first long step can lead away for good: Zhu et al.'s optimizer on a sigmoid network."""
    case = setting(small_net("sigmoid"), rows(2))
    found = {
        after: _search(
            LBFGS(inner_steps=20), 12, restart_after=after, restarts=6, variables=Pixels(start=Start.NORMAL, box=False)
        )(case.update, case.knowledge, generator=_generator())
        for after in (None, 8)
    }
    lost = [loss for loss in found[None].details["start_losses"] if loss is None or loss > 1e-3]
    still = [loss for loss in found[8].details["start_losses"] if loss is None or loss > 1e-3]
    assert lost
    assert len(still) < len(lost)
    assert found[8].details["restarted"] > 0
    assert found[None].details["restarted"] == 0


def test_a_start_that_is_taken_back_takes_half_the_step() -> None:
    case = setting(small_net(), rows(1))
    # Steps far too long: each goes up, so that after one evaluation without progress the start goes back.
    attack = _search(Adam(learning_rate=5.0), 6, restart_after=1, variables=Pixels(box=False))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.details["restarted"] >= 2
    assert found.loss == min(found.history)


def test_a_target_that_is_explained_waits_for_the_others_unchanged() -> None:
    """The easy target is a linear layer's; the hard one is noise that no input explains."""
    model = nn.Sequential(nn.Linear(12, 3))
    easy = setting(model, rows(2), dtype=torch.float32)
    generator = _generator(5)
    noise = Update(tensors={n: torch.randn(t.shape, generator=generator) for n, t in easy.update.tensors.items()})
    knowledge = replace(easy.knowledge, targets=torch.tensor([2]))
    attack = _search(QUICK, 300)
    both = attack.many([easy.update, noise], knowledge, generators=_generators(1, 2))
    twice = attack.many([easy.update, easy.update], knowledge, generators=_generators(1, 2))
    assert [found.outcome for found in both] == [Outcome.CONVERGED, Outcome.BUDGET_SPENT]
    assert both[0].iterations < both[1].iterations == 301
    _same(both[0], twice[0])
    assert len(both[0].history) == both[0].iterations
    assert both[0].plain_gradients == 3 * both[0].iterations


def test_patience_is_each_targets_own() -> None:
    cases = _cases(0, 1)
    known = replace(cases[0].knowledge, targets=torch.tensor([0]))
    attack = _search(Adam(learning_rate=0.02, schedule=CosineDecay()), 150, patience=20)
    first, second = attack.many([case.update for case in cases], known, generators=_generators(1, 2))
    alone = attack.many([cases[0].update, cases[0].update], known, generators=_generators(1, 7))[0]
    _same(first, alone)
    assert first.iterations != second.iterations


def test_langevin_noise_is_each_targets_own() -> None:
    """Only size and place in the group may matter, by the order of sums; not what else is in it."""
    cases = _cases(0, 1, 2)
    knowledge = replace(cases[0].knowledge, targets=torch.tensor([0]))
    attack = _search(NOISY, 25, restarts=2)

    def run(order: list[int], seeds: list[int]) -> list[Reconstruction]:
        return attack.many([cases[n].update for n in order], knowledge, generators=_generators(*seeds))

    first = run([0, 1], [13, 14])
    _same(run([0, 2], [13, 19])[0], first[0])
    for other in (run([1, 0], [14, 13])[1], run([0], [13])[0]):
        torch.testing.assert_close(other.inputs, first[0].inputs, atol=1e-3, rtol=0)
    assert not torch.equal(run([0, 1], [15, 14])[0].inputs, first[0].inputs)


def test_starts_in_concert_come_nearer_to_each_other() -> None:
    """Group consistency: the spread of the starts' losses says nothing, their consensus does."""
    image = torch.rand(1, 1, 3, 4, generator=_generator())
    truth = Batch(image, torch.tensor([1]), Domain.image(channels=1, height=3, width=4))
    case = setting(nn.Sequential(nn.Flatten(), small_net()), truth)
    found = [
        _search(Adam(learning_rate=0.02), 60, restarts=4, priors=priors)(
            case.update, case.knowledge, generator=_generator()
        )
        for priors in ((), (GroupConsistency(weight=30.0, every=1, begin=0.0),))
    ]
    spreads = [max(f.details["start_losses"]) / min(f.details["start_losses"]) for f in found]
    assert spreads[1] < spreads[0]


def _resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")
@pytest.mark.parametrize("starts", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_hundred_steps_leak_no_memory(starts: int) -> None:
    """U63: resident memory grows by less than 5 % from step 31 to step 231."""
    model = lenet_i2f(activation="sigmoid", generator=_generator())
    truth = Batch(torch.rand(1, 1, 28, 28, generator=_generator()), torch.tensor([3]), DIGIT)
    case = setting(model, truth, dtype=torch.float32)
    measured: list[int] = []

    def progress(done: int, planned: int, loss: float) -> None:
        if done in (31, 231):
            measured.append(_resident())

    InvertingGradients(iterations=231, restarts=starts)(
        case.update, case.knowledge, generator=_generator(), progress=progress
    )
    assert measured[1] < 1.05 * measured[0]


@pytest.mark.parametrize("factor", [1.0, 0.5, 8.0, 65536.0])
def test_the_scale_of_an_update_is_fitted_and_said(factor: float) -> None:
    """U27. A factor ½ in the client's loss, a sum in place of a mean, a loss scale that was not undone."""
    case = setting(small_net(), rows(1))
    scaled = replace(case.update, tensors={n: factor * t for n, t in case.update.tensors.items()})
    found = _search(QUICK, 150, matching=CosineDistance())(scaled, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < 1e-3
    assert found.details["scale"] == pytest.approx(factor, rel=1e-2)
    assert ("times as long" in found.note) == (factor != 1.0)


def test_squared_errors_agree_once_the_scale_that_was_said_is_undone() -> None:
    """U27."""
    case = setting(small_net(), rows(1))
    scaled = replace(case.update, tensors={n: 0.5 * t for n, t in case.update.tensors.items()})
    by_cosine = _search(QUICK, 150, matching=CosineDistance())(scaled, case.knowledge, generator=_generator())
    # L2 takes the update at its word: the input that it finds explains another update.
    misled = _search(QUICK, 150)(scaled, case.knowledge, generator=_generator())
    divided = replace(scaled, tensors={n: t / by_cosine.details["scale"] for n, t in scaled.tensors.items()})
    agreed = _search(QUICK, 150)(divided, case.knowledge, generator=_generator())
    assert case.error(agreed.inputs) < 1e-3 < case.error(misled.inputs)
