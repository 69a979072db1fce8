"""Audits in threads: the numbers of one after the other, and a process that is as before."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pytest
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor, nn

import gradleak as gl
from gradleak.attacks import Attack, Progress
from gradleak.auditing.default_plan import default_plan
from gradleak.audits.base import Audit, Controls, Site, Task
from gradleak.core import Knowledge, Objective, Reconstruction, Update
from gradleak.core.process import WhileUsed, in_turn, one_thread
from gradleak.core.randomness import global_generators
from gradleak.operators.kernels import differentiable_kernels
from gradleak.results import Finding, Grounds, Outcome, Verdict

BATCH = gl.Batch(
    torch.rand((1, 1, 4, 4), generator=torch.Generator().manual_seed(1)),
    torch.tensor([2]),
    gl.Domain.image(channels=1, height=4, width=4),
)


# It draws in train mode, from torch's global generator. Threads share it, since building one would draw from there, too.
with global_generators(0):
    MODEL = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Dropout(0.3), nn.Linear(12, 4))


@dataclass(frozen=True, kw_only=True)
class Drawing(Attack):
    """Claims losses of a model that draws, and whatever the global generators of the process give."""

    name: ClassVar[str] = "drawing"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "claims random numbers."

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, progress: Progress | None
    ) -> Reconstruction:
        assert knowledge.objective is not None
        objective, batch = knowledge.objective, BATCH.to(knowledge.objective.dtype)
        losses = [float(objective.loss(objective.params, batch)) for _ in range(4)]
        assert len(set(losses)) == 1
        numbers = [*torch.rand(4).tolist(), *np.random.rand(4), *(random.random() for _ in range(4))]  # noqa: NPY002, TID251
        claim = torch.tensor([*losses, *numbers]).reshape(1, 1, 4, 4)
        return Reconstruction(inputs=claim, targets=None, loss=None, outcome=Outcome.CONVERGED)


QUICK = {"drawing": Drawing()}


@in_turn
def _audit(seed: int, folder: Path) -> list[str]:
    """The record of what `gl.audit` does, in a turn like it, without controls, which take most of its time."""
    plan = default_plan(MODEL, BATCH, loss="cross_entropy", mode="train", release=None, attacks=QUICK, measures=[])
    site = replace(plan.site, seed=seed, controls=Controls(positive=False, negative=False))
    return gl.run_plan(replace(plan, site=site), folder / f"{seed} {uuid4()}", jobs=1).canonical()


def _state() -> dict[str, Any]:
    """What all threads of the process share, as far as an audit could touch it."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "torch's generator": torch.random.get_rng_state().tolist(),
        "numpy's generator": str(np.random.get_state()),  # noqa: NPY002
        "Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "threads to come": _elsewhere(torch.get_num_threads),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "attention": (torch.backends.mha.get_fastpath_enabled(), cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()),
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic),
        "checkpointing": torch_checkpoint.CheckpointFunction,
        "filters": list(warnings.filters),
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "hooks": (sys.excepthook, sys.unraisablehook, threading.excepthook),
        "recursion": sys.getrecursionlimit(),
        "floating point": np.geterr(),
        "place": (os.getcwd(), dict(os.environ), list(sys.path)),
    }


def _elsewhere(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@pytest.fixture
def two_threads() -> Any:
    """Torch with two threads, where tests run with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The records of two audits, one after the other."""
    return [_audit(seed, tmp_path_factory.mktemp("expected")) for seed in range(2)]


@pytest.mark.usefixtures("two_threads")
def test_audits_in_threads_give_the_numbers_of_one_after_the_other(expected: list[list[str]], tmp_path: Path) -> None:
    assert expected[0] != expected[1]
    before = _state()
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda seed: _audit(seed, tmp_path), range(2))) == expected
    after = _state()
    assert [name for name in before if before[name] != after[name]] == []


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_the_process_is_as_before_when_a_run_breaks_off(
    error: type[BaseException], tmp_path: Path, small_plan: Path
) -> None:
    plan = gl.load_plan(small_plan)
    before = _state()

    def fail(done: int, total: int, what: str) -> None:
        torch.rand(1)
        if done:
            raise error

    with pytest.raises(error) as raised:
        gl.run_plan(plan, tmp_path / "out", jobs=1, progress=fail)
    after = _state()
    assert [name for name in before if before[name] != after[name]] == []
    assert raised.value is not None  # the traceback still holds every frame of the run


def test_models_that_draw_give_the_same_numbers_when_threads_call_them() -> None:
    objectives = [Objective.from_module(MODEL, mode="train", mask_seed=seed).to(dtype) for seed, dtype in DTYPES]
    expected = [objective.loss(objective.params, BATCH.to(objective.dtype)) for objective in objectives]
    before = _state()

    def repeated(place: int) -> list[Tensor]:
        objective = objectives[place]
        with differentiable_kernels():
            return [objective.loss(objective.params, BATCH.to(objective.dtype)) for _ in range(100)]

    with ThreadPoolExecutor(4) as pool:
        for one, losses in zip(expected, pool.map(repeated, range(4)), strict=True):
            assert all(torch.equal(one, loss) for loss in losses)
    after = _state()
    assert [name for name in before if before[name] != after[name]] == []


DTYPES = [(0, torch.float32), (0, torch.float64), (1, torch.float64), (1, torch.float32)]


def test_a_state_is_changed_by_its_first_user_and_put_back_by_the_last() -> None:
    seen: list[str] = []

    class Change:
        def __enter__(self) -> None:
            seen.append("changed")

        def __exit__(self, *exception: object) -> None:
            seen.append("back")

    used = WhileUsed(Change)
    first, second = used(), used()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert seen == ["changed"]
    assert not second.__exit__(ValueError, ValueError("of the last user"), None)
    assert seen == ["changed", "back"]
    with used():
        assert seen == ["changed", "back", "changed"]


@pytest.mark.usefixtures("two_threads")
def test_one_thread_is_that_of_the_caller_alone() -> None:
    with one_thread():
        assert torch.get_num_threads() == 1
        assert _elsewhere(torch.get_num_threads) == 2
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@dataclass(frozen=True, kw_only=True, eq=False)
class Counting(Audit[Finding]):
    """Counts the threads of torch in its task and in its conclusions."""

    kind: ClassVar[str] = "counting"
    finding: ClassVar[type[Finding]] = Finding

    name: str = "counting"

    def tasks(self, site: Site) -> list[Task[Finding]]:
        blank = Finding(kind=self.kind, item="counted", audit=self.name)
        return [Task(name=blank.item, run=lambda site, out: [_counted(blank)], blank=blank, headline="", examples=())]

    def conclude(self, site: Site, found: Sequence[Finding]) -> list[Finding]:
        return [_counted(Finding(kind=self.kind, item="concluded", audit=self.name))]

    @classmethod
    def judge(cls, found: Sequence[Finding], grounds: Grounds) -> Sequence[Verdict]:
        return ()


def _counted(blank: Finding) -> Finding:
    return blank.but(note=f"{torch.get_num_threads()}")


@pytest.mark.usefixtures("two_threads")
def test_whatever_a_run_computes_has_the_threads_of_its_header(tmp_path: Path) -> None:
    plan = default_plan(MODEL, BATCH, loss="cross_entropy", mode="train", release=None, attacks=QUICK, measures=[])
    record = gl.run_plan(replace(plan, audits=[Counting()]), tmp_path / "out", jobs=1)
    assert {one.item: one.note for one in record.findings} == {"counted": "1", "concluded": "1"}
    assert record.run["threads"] == 1


@pytest.mark.slow  # in short: audits without controls, above
def test_whole_audits_in_threads_too(tmp_path: Path) -> None:
    quiet = [gl.AuditOptions(quiet=True, seed=seed, jobs=seed) for seed in (1, 2)]

    def whole(options: gl.AuditOptions) -> list[str]:
        out = tmp_path / str(uuid4())
        return gl.audit(MODEL, BATCH, mode="train", attacks=QUICK, out=out, options=options).canonical()

    expected = [whole(options) for options in quiet]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(whole, quiet)) == expected
