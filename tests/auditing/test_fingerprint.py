"""A run recognizes its record by structure, code and state."""

from __future__ import annotations

import collections
import dataclasses
import functools
import operator
import os
import random
import re
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from torch import nn

import gradleak as gl
from gradleak.attacks import GaussNewton
from gradleak.auditing import Plan, build_plan, run_plan
from gradleak.auditing.fingerprint import _known, fingerprint
from gradleak.core.randomness import global_generators
from gradleak.results import InputError, PlanError, Record

from .conftest import SMALL_PLAN

ROOT = Path(__file__).parents[2]
# A user's own attack, whose claim is what it is told to be.
OWN_ATTACK = """
from dataclasses import dataclass

import gradleak as gl
from gradleak.attacks import GaussNewton
from gradleak.core import Reconstruction


def near(inputs):
    return inputs


@dataclass(frozen=True, kw_only=True)
class Own(GaussNewton):
    max_steps: int = 20

    def _recover(self, update, knowledge, generator, monitor):
        found = super()._recover(update, knowledge, generator, monitor)
        return found
"""


class Net(nn.Module):
    def __init__(self, act: Callable[..., Any], scale: Any = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.act, self.scale = act, scale
        nn.init.ones_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(self.linear(x)) * self.scale


class Scaled:
    def __init__(self, by: float) -> None:
        self.by = by

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.by * nn.functional.cross_entropy(outputs, targets)

    @property
    def twice(self) -> float:
        return 2 * self.by


def default(*, weight: float = 1.0) -> float:
    return weight


def other_default(*, weight: float = 2.0) -> float:
    return weight


other_default.__name__ = other_default.__qualname__ = "default"


def closed_over(value: float) -> Callable[[], float]:
    return lambda: value


class Quiet(Net):
    """A network whose scale has a name that begins with an underscore."""

    def __init__(self, scale: float) -> None:
        super().__init__(torch.tanh)
        self._scale = scale


def hooked(factor: float) -> nn.Module:
    module = nn.Identity()
    module.register_forward_hook(lambda part, inputs, output: output * factor)
    return module


class Table(dict[str, int]):
    """A table with an attribute."""

    def __init__(self, factor: float) -> None:
        super().__init__(a=1)
        self.factor = factor


PAIRS: dict[str, tuple[Any, Any]] = {
    "activation": (Net(torch.tanh), Net(torch.relu)),
    "attribute": (Net(torch.tanh, 1.0), Net(torch.tanh, 2.0)),
    "array attribute": (Net(torch.tanh, np.ones(2)), Net(torch.tanh, np.zeros(2))),
    "partial": (functools.partial(torch.clamp, max=1.0), functools.partial(torch.clamp, max=2.0)),
    "bound method": (Scaled(1.0).loss, Scaled(2.0).loss),
    "set": ({"a", "b"}, {"a", "c"}),
    "path": (Path("a"), Path("b")),
    "keyword default": (default, other_default),
    "builtin": (len, sum),
    "closure": (closed_over(1.0), closed_over(2.0)),
    "setting": (GaussNewton(max_steps=3), GaussNewton(max_steps=4)),
    "buffer": (nn.BatchNorm1d(2), nn.BatchNorm1d(2).requires_grad_(False)),
    "nested": ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}),
    "attribute with an underscore": (Quiet(1.0), Quiet(2.0)),
    "hook": (hooked(1.0), hooked(2.0)),
    "attribute of a table": (Table(1.0), Table(2.0)),
    "pattern": (re.compile("a"), re.compile("b")),
    "queue": (collections.deque([1]), collections.deque([2])),
    "numpy generator": (np.random.default_rng(1), np.random.default_rng(2)),
    "python generator": (random.Random(1), random.Random(2)),
    "getter": (operator.itemgetter(0), operator.itemgetter(1)),
    "generator": (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_differs_has_another_fingerprint(name: str) -> None:
    one, other = PAIRS[name]
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_equal_and_identical_parts_count_alike() -> None:
    shared = Net(torch.tanh)
    assert fingerprint([shared, shared]) == fingerprint([Net(torch.tanh), Net(torch.tanh)])
    loop: list[Any] = [1]
    loop.append(loop)
    assert fingerprint(loop) != fingerprint([1, [1]])


def test_parts_may_lie_deep_in_each_other() -> None:
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    assert fingerprint(deep) != fingerprint([deep])
    limit = sys.getrecursionlimit()
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InputError, match="a thousand deep in each other"):
        fingerprint(deep)
    assert sys.getrecursionlimit() == limit


def test_a_field_without_a_value_and_what_cannot_be_copied_are_no_obstacle() -> None:
    @dataclasses.dataclass
    class Late:
        given: int
        found: int = dataclasses.field(init=False)

    assert fingerprint(Late(1)) != fingerprint(Late(2))
    assert fingerprint(threading.Lock()) == fingerprint(threading.Lock())


def test_a_method_of_a_user_may_have_any_name() -> None:
    class Shortcut:
        def identity(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert fingerprint(Shortcut()) == fingerprint(Shortcut())


def compiled(source: str) -> types.ModuleType:
    module = sys.modules["own_module_of_a_user"] = types.ModuleType("own_module_of_a_user")
    exec(compile(source, "own.py", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("return found", "return found if found.loss else found"),
        ("return inputs", "return inputs * 2"),
        ("GaussNewton):", "GaussNewton):\n    extra: int = 3\n"),
    ],
)
def test_the_code_of_a_class_counts_with_its_bases_and_what_it_calls(before: str, after: str) -> None:
    source = OWN_ATTACK.replace("return found", "near(found.inputs)\n        return found")
    changed = source.replace(before, after)
    assert changed != source

    first = compiled(source)
    one = fingerprint(first.Own())
    again = compiled(source)
    assert fingerprint(again.Own()) == one
    other = compiled(changed)
    assert fingerprint(other.Own()) != one
    del sys.modules["own_module_of_a_user"]


@pytest.mark.parametrize(
    ("value", "other"),
    [("[1, 2]", "[1, 3]"), ("{'a': 1}", "{'a': 2}"), ("torch.ones(2)", "torch.zeros(2)"), ("nn.ReLU()", "nn.Tanh()")],
)
@pytest.mark.parametrize(
    "code",
    [
        "VALUE = {value}\ndef made(): return VALUE",
        "class Made:\n    VALUE = {value}\nmade = Made()",
        "@functools.cache\ndef held(): return {value}\ndef made(): return held()",
        "class Made:\n    @functools.cache\n    def held(self): return {value}\nmade = Made()",
    ],
)
def test_the_values_that_code_reads_count(code: str, value: str, other: str) -> None:
    start = "import functools\nimport torch\nfrom torch import nn\n"
    one, again, changed = (compiled(start + code.replace("{value}", each)).made for each in (value, value, other))
    assert fingerprint(one) == fingerprint(again) != fingerprint(changed)
    del sys.modules["own_module_of_a_user"]


def test_the_state_of_global_generators_is_not_read() -> None:
    """It is the moment's; a distribution of scipy that a module imports by name holds numpy's."""
    parts = [norm, norm.cdf, np.random.mtrand._rand, torch.default_generator, random.random]
    seen = []
    for seed in (1, 2):
        with global_generators(seed):
            seen.append(fingerprint(parts))
    assert seen[0] == seen[1]
    assert fingerprint(np.random.default_rng(1)) != fingerprint(np.random.default_rng(2))
    assert fingerprint(chi2) != fingerprint(norm)


def test_code_of_gradleak_counts_whoever_read_it_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read once in a process, and anew where other code stands in its place."""
    attack, defense = gl.InvertingGradients(), gl.Clip(1.0)
    _known.cache_clear()
    alone, first = fingerprint(defense), fingerprint(attack, defense)
    _known.cache_clear()
    assert (fingerprint(attack, defense), fingerprint(defense)) == (first, alone)
    before = gl.Clip.mean
    monkeypatch.setattr(gl.Clip, "mean", lambda self, update: before(self, update))
    assert fingerprint(defense) != alone
    monkeypatch.undo()
    assert fingerprint(defense) == alone
    monkeypatch.setattr("gradleak.attacks.inversion.search.math", None)
    assert fingerprint(attack, defense) != first
    assert fingerprint(defense) == alone
    monkeypatch.undo()
    assert fingerprint(attack, defense) == first


DIGEST = """
import tomllib, pathlib
from gradleak.auditing import build_plan
from tests.auditing.conftest import SMALL_PLAN
digest = build_plan(tomllib.loads(SMALL_PLAN), folder=pathlib.Path()).digest()
"""


@pytest.mark.parametrize("seeds", ["1", pytest.param("234", marks=pytest.mark.slow)])
def test_the_digest_of_a_plan_is_that_of_another_process(seeds: str) -> None:
    here: dict[str, Any] = {}
    exec(DIGEST, here)
    for seed in seeds:
        command, hashes = [sys.executable, "-c", f"{DIGEST}print(digest)"], {**os.environ, "PYTHONHASHSEED": seed}
        there = subprocess.run(command, cwd=ROOT, env=hashes, capture_output=True, text=True, check=True).stdout
        assert there.strip() == here["digest"]


def own_plan(folder: Path, source: str) -> Plan:
    import tomllib

    compiled(source)
    content = tomllib.loads(SMALL_PLAN)
    content["attacks"] = {"own": {"use": "own_module_of_a_user:Own"}}
    content["scenarios"] = [{"name": "undefended", "examples": [0], "attacks": {"own": [0]}}]
    content["measures"] = {}
    content["controls"] = {"positive": False, "negative": False}
    return build_plan(content, folder=folder)


def test_a_run_whose_attack_has_changed_is_computed_anew(tmp_path: Path) -> None:
    said: list[str] = []

    def run(source: str) -> Record:
        said.clear()
        return run_plan(own_plan(tmp_path, source), tmp_path / "out", jobs=1, progress=lambda *now: said.append(now[2]))

    first = run(OWN_ATTACK)
    assert first.verdicts[-1].verdict.value == "leaks"
    run(OWN_ATTACK)
    assert said == ["resumed"]
    # The same name, and nothing is claimed any more.
    changed = OWN_ATTACK.replace(
        "return found",
        "return Reconstruction(inputs=found.inputs * 0 + 0.5, targets=found.targets, loss=found.loss, "
        "outcome=found.outcome, iterations=0, plain_gradients=0.0, history=())",
    )
    second = run(changed)
    assert said[0].startswith("code of this plan has changed: everything is computed anew")
    assert second.verdicts[-1].verdict.value == "inconclusive"
    kept = list((tmp_path / "out").glob("record-*.jsonl"))
    assert len(kept) == 1
    assert Record.load(kept[0]).canonical() == first.canonical()
    run(changed)
    assert said == ["resumed"]
    del sys.modules["own_module_of_a_user"]


def test_a_record_of_other_code_and_other_data_stays_where_it_is(tmp_path: Path) -> None:
    run_plan(own_plan(tmp_path, OWN_ATTACK), tmp_path / "out", jobs=1)
    (tmp_path / "out" / "checkpoints").mkdir()
    before = (tmp_path / "out" / "record.jsonl").read_bytes()
    changed = OWN_ATTACK.replace("return found", "return found if found.loss else found")
    plan = own_plan(tmp_path, changed)
    for batch in plan.site.batches:
        batch.inputs.mul_(0.5)
    with pytest.raises(PlanError, match="other data"):
        run_plan(plan, tmp_path / "out", jobs=1)
    assert (tmp_path / "out" / "record.jsonl").read_bytes() == before
    run_plan(own_plan(tmp_path, changed), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out" / "checkpoints").exists()
    del sys.modules["own_module_of_a_user"]
