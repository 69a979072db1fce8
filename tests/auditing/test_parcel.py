"""What travels: large tensors once, whoever holds them, and with the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gradleak as gl
from gradleak.attacks import InvertingGradients
from gradleak.auditing import Plan, run_plan
from gradleak.auditing.parcel import SHARED, Parcels
from gradleak.auditing.run import tasks
from gradleak.auditing.work import Call, Freight
from gradleak.audits.base import Scenario, Site
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.audits.released import ReleaseAudit
from gradleak.models import mlp
from gradleak.results import Finding


def plan(rows: int = 5000) -> Plan:
    """Six pictures that are rows of a large tensor, each an update of its own."""
    generator = torch.Generator().manual_seed(0)
    every = torch.rand((rows, 1, 12, 12), generator=generator)
    network = mlp(features=144, hidden=(32,), classes=10, activation="tanh", generator=generator)
    domain = gl.Domain.image(channels=1, height=12, width=12)
    batches = [gl.Batch(every[place : place + 1], torch.tensor([place]), domain) for place in range(6)]
    places = tuple(range(6))
    scenario = Scenario(
        name="undefended", release=gl.Release(gl.FedSGD(), []), examples=places, attacks={"own": places}
    )
    site = Site(
        name="slices",
        seed=1,
        objective=gl.Objective.from_module(torch.nn.Sequential(torch.nn.Flatten(), network)),
        batches=batches,
        scenarios=[scenario],
    )
    return Plan(
        site=site, audits=[ReleaseAudit(), ReconstructionAudit(attacks={"own": InvertingGradients(iterations=2, restarts=1)})]
    )  # fmt: skip


@dataclass(frozen=True)
class Held:
    """Work that holds what every task has, and what none had before."""

    weights: torch.Tensor
    fresh: torch.Tensor

    def __call__(self, site: Site, out: Path) -> list[Finding]:
        return []


def through(value: Any) -> Any:
    """The value as it arrives."""
    parcels = Parcels()
    parcel = parcels.pack(value)
    return parcel.unpacked({name: array.copy() for name, array in parcels.arrays.items()})


def test_tensors_and_arrays_arrive_with_their_bits_and_share_memory_as_before() -> None:
    whole = torch.randn((3000, 2), generator=torch.Generator().manual_seed(1)).double()
    codes = np.arange(5000).reshape(100, 50)
    sent = {"whole": whole, "row": whole[7], "turned": whole.T, "codes": codes, "few": torch.ones(3), "text": "a"}
    came = through(sent)
    assert all(torch.equal(sent[name], came[name]) for name in ("whole", "row", "turned", "few"))
    assert came["turned"].stride() == whole.T.stride()
    assert came["row"].data_ptr() == came["whole"][7].data_ptr()
    assert np.array_equal(came["codes"], codes)
    assert came["codes"].dtype == codes.dtype
    assert came["text"] == "a"


def test_the_parameters_of_an_objective_go_once() -> None:
    objective = plan().site.objective
    parcels = Parcels()
    parcel = parcels.pack(objective)
    large = [one for one in objective.params.values() if one.numel() * one.element_size() >= SHARED]
    assert sum(array.nbytes for array in parcels.arrays.values()) == sum(one.numel() * 4 for one in large)
    assert len(parcel.content) < 60_000
    came = parcel.unpacked(parcels.arrays)
    assert all(torch.equal(came.params[name], one) for name, one in objective.params.items())


def test_a_task_on_a_row_of_a_large_tensor_takes_that_row_alone() -> None:
    made = plan()
    site = made.site.for_another_process()
    parcels = Parcels(site.tensors())
    sizes = [len(parcels.pack(Call(task, site, Path())).content) for task in tasks(made)]
    # Of 2.9 MB of rows and 19 kB of weights.
    assert max(sizes) < 60_000
    assert sum(array.nbytes for array in parcels.arrays.values()) < 20_000


def test_tasks_for_a_cluster_refer_to_what_all_workers_have() -> None:
    made = plan(rows=6)
    freight = Freight.of([Call(task, made.site, Path()) for task in tasks(made)])
    assert {name for parcel in freight.tasks.values() for name in parcel.names} <= set(freight.common.arrays)
    name, parcel = next(iter(freight.tasks.items()))
    assert freight.common.call(parcel, Path(), {}).task.name == name


def test_tasks_that_came_up_later_take_along_what_no_worker_has_yet() -> None:
    made = plan(rows=6)
    weights, fresh = torch.rand(SHARED), torch.arange(SHARED, dtype=torch.float32)
    first = Call(replace(tasks(made)[0], run=Held(weights, torch.zeros(1))), made.site, Path())
    freight = Freight.of([first])
    follows = replace(first, task=replace(first.task, name="later", run=Held(weights, fresh)))
    parcels, later = freight.of_some([first, follows])
    assert parcels[first.task.name] is freight.tasks[first.task.name]
    assert sum(array.nbytes for array in later.values()) == fresh.numel() * 4
    assert len(parcels["later"].content) < 60_000
    came = freight.common.call(parcels["later"], Path(), later).task.run
    assert isinstance(came, Held)
    assert torch.equal(came.weights, weights)
    assert torch.equal(came.fresh, fresh)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [True, False])
def test_workers_give_the_same_record_with_and_without_memory_to_share(
    memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradleak.core.process._has_memory", lambda: memory)
    one, two = (run_plan(replace(plan()), tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert one.complete
    assert one.canonical() == two.canonical()
