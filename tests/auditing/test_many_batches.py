"""Plans of many batches: each task takes its own ones along, and nothing is looked up by comparing all with all."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import gradleak as gl
from gradleak.attacks import Blind
from gradleak.auditing import run_plan
from gradleak.auditing.run import tasks
from gradleak.auditing.work import Call
from gradleak.audits.base import Scenario, Site, released_by
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.audits.risk import RiskAudit
from gradleak.audits.risk.settings import same_labels
from gradleak.core import Batch, Domain, Release
from gradleak.results import PlanError
from gradleak.scoring import range_ends, range_note
from tests.auditing.small_model import small_mlp

IMAGE = Domain.image(channels=1, height=8, width=8)


def plan_of(count: int, **changes: object) -> gl.Plan:
    """So many digits of noise, each released and attacked under two scenarios, the second one of even places alone."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand((count, 1, 8, 8), generator=generator)
    batches = [Batch(row[None], torch.tensor([place % 3]), IMAGE) for place, row in enumerate(rows)]
    every, even = tuple(range(count)), tuple(range(0, count, 2))
    scenarios = [
        Scenario(name="plain", release=Release(gl.FedSGD(), []), examples=every, attacks={"blind": every}),
        Scenario(name="clipped", release=Release(gl.FedSGD(), [gl.Clip(1.0)]), examples=even, attacks={"blind": even}),
    ]
    objective = gl.Objective.from_module(small_mlp(generator=generator))
    site = Site(name="many", seed=2, objective=objective, batches=batches, scenarios=scenarios)
    audits = [
        ReleaseAudit(),
        RiskAudit(measures=[gl.risk.GradientNorm()]),
        ReconstructionAudit(attacks={"blind": Blind()}),
    ]
    return gl.Plan(site=replace(site, **changes), audits=audits)


def test_a_task_takes_its_own_batches_along() -> None:
    def sizes(count: int) -> dict[str, int]:
        plan = plan_of(count)
        return {task.name: len(pickle.dumps(Call(task, plan.site, Path("out")))) for task in tasks(plan)}

    few, many = sizes(8), sizes(64)
    assert set(few) < set(many)
    own = {name for name in few if "example" in name}
    assert {name.split("/")[0] for name in own} == {"release", "risk", "attack"}
    assert {name: many[name] for name in own} == {name: few[name] for name in own}
    # Rows of one tensor: a view would take the memory of all of them along, once a batch.
    assert many["control/positive"] - few["control/positive"] < 56 * (256 + 1000)


def test_a_task_is_told_of_no_other_batch() -> None:
    site = plan_of(6).site.only([4])
    assert len(site.batches) == 6
    assert torch.equal(site.batches[4].inputs, plan_of(6).site.batches[4].inputs)
    assert [one.examples for one in site.scenarios] == [(4,), (4,)]
    assert site.scenario("clipped").members == {4}
    assert [one.examples for one in plan_of(6).site.only([3]).scenarios] == [(3,), ()]
    for place in (0, 3):
        with pytest.raises(LookupError, match=f"batch {place}: this task holds 4 alone"):
            site.batches[place]
    with pytest.raises(LookupError):
        list(site.batches)
    with pytest.raises(PlanError, match="scenario"):
        site.scenario("other")
    again = site.only([4])
    assert torch.equal(again.batches[4].inputs, site.batches[4].inputs)
    assert again.beside is site.beside


def test_a_narrow_site_gives_the_findings_of_the_whole_one() -> None:
    plan = plan_of(5)
    for task in tasks(plan):
        if task.examples is None:
            continue
        whole, narrow = task.run(plan.site, Path()), task.run(plan.site.only(task.examples), Path())
        assert [one.but(seconds=0.0) for one in whole] == [one.but(seconds=0.0) for one in narrow]
    assert sum(task.examples is not None for task in tasks(plan)) == 5 + 5 + 5 + 3


def test_processes_make_the_same_record(tmp_path: Path) -> None:
    records = [run_plan(plan_of(4), tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2)]
    assert records[0].canonical() == records[1].canonical()
    assert records[0].complete


def test_batches_are_counted_by_the_scenarios_that_release_them() -> None:
    site = plan_of(3).site
    found = released_by(site.scenarios)
    assert {place: [one.name for one in here] for place, here in found.items()} == {
        0: ["plain", "clipped"],
        1: ["plain"],
        2: ["plain", "clipped"],
    }
    turned = released_by([replace(site.scenarios[0], examples=(2, 0))])
    assert list(turned) == [0, 2]


def test_labels_are_grouped_without_comparing_all_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    labels: Sequence[Tensor] = [
        torch.tensor([1]),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([1]),
        torch.tensor([1, 1]),
        torch.tensor([[1, 1]]),
        torch.tensor([0.5, 0.25]),
        torch.tensor([0.5, 0.25], dtype=torch.float64),
        torch.tensor([1, 1]),
        torch.tensor([[0, 1], [1, 2]]).T,
        torch.tensor([[0, 1], [1, 2]]),
    ]
    expected: dict[int, list[int]] = {}
    for place, one in enumerate(labels):
        twin = next((first for first in expected if alike(labels[first], one)), place)
        expected.setdefault(twin, []).append(place)
    site = plan_of(len(labels)).site
    site = replace(site, batches=[Batch(torch.rand(len(one), 1, 8, 8), one) for one in labels])
    monkeypatch.setattr(torch, "equal", never)
    assert same_labels(site, site.scenarios[0]) == expected


def alike(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


def never(*_: object) -> bool:
    raise AssertionError("two batches were compared with each other")


@pytest.mark.parametrize("spread", [1e-9, 0.01, 0.3, 0.6, 1.0])
@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (1 / 255, 0.0), (1.0, -0.5), (300.0, 0.0), (torch.nan, 0.0)])
def test_a_few_batches_tell_of_the_range_what_all_do(spread: float, factor: float, shift: float) -> None:
    generator = torch.Generator().manual_seed(4)
    rows = [factor * (0.2 + spread * torch.rand((2, 1, 8, 8), generator=generator)) + shift for _ in range(9)]
    wide = replace(IMAGE, low=-1.0, high=1.0)
    batches = [Batch(row, torch.tensor([0, 1]), (IMAGE, wide, None)[place % 3]) for place, row in enumerate(rows)]
    ends = range_ends(batches)
    assert len(ends) <= 4
    for one in batches:
        if one.domain is not None:
            assert range_note(one, ends) == range_note(one, batches)
