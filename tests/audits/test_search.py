"""The search for private data in what the attacks of a run receive: complete, before anything is written, and once."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.auditing import Plan, default_plan, run_plan
from gradleak.audits.base import Controls, Scenario, Site
from gradleak.audits.base import site as site_module
from gradleak.audits.reconstruction import ReconstructionAudit
from gradleak.core import (
    Batch,
    Domain,
    Guarantee,
    HonestButCurious,
    Knowledge,
    Objective,
    Reconstruction,
    Release,
    Update,
    UpdateDefense,
)
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from tests.attacks.reachable import Canaries, holding, spelled

DOMAIN = Domain.image(channels=1, height=4, width=4)


@dataclass(frozen=True, kw_only=True)
class Spy(Attack):
    """Keeps what it receives."""

    name: ClassVar[str] = "spy"
    needs: ClassVar[tuple[str, ...]] = ("objective",)
    summary: ClassVar[str] = "Keeps what it receives."
    received: ClassVar[list[Any]] = []

    def estimate(self, knowledge: Knowledge) -> float:
        return 1.0

    def _recover(self, update: Update, knowledge: Knowledge, generator: Any, monitor: Any) -> Reconstruction:
        self.received.append((update.provenance, knowledge, generator, monitor))
        return Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.BUDGET_SPENT)


@dataclass(frozen=True, kw_only=True)
class Watching(UpdateDefense):
    """A defense that keeps the updates it has seen (error feedback), and the batch, by way of a list that it was given."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    seen: list = field(default_factory=list)  # type: ignore[type-arg]
    shown: Any = None

    def mean(self, update: Any) -> Any:
        return dict(update)

    def noise(self, shapes: Any) -> None:
        return None

    def draw(self, update: Any, generator: torch.Generator) -> Any:
        self.seen[:] = [self.shown]
        return dict(update)


def batches(count: int = 3) -> list[Batch]:
    inputs = torch.rand(9, count, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5])
    return [Batch(inputs[:, place], labels.roll(place), DOMAIN) for place in range(count)]


def made(model: nn.Module | None = None, **changes: Any) -> Site:
    objective = Objective.from_module(model or nn.Sequential(nn.Flatten(), nn.Linear(16, 10)))
    private = changes.pop("batches", batches())
    release, controls = changes.pop("release", Release(FedSGD())), changes.pop("controls", Controls())
    scenario = Scenario(name="sent", release=release, examples=range(len(private)), **changes)
    return Site(name="small", seed=3, objective=objective, batches=private, scenarios=[scenario], controls=controls)


def run(about: Site, folder: Path) -> Any:
    plan = default_plan(
        nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), about.batches[0], attacks={"spy": Spy()}, measures=[]
    )
    scenarios = [replace(one, attacks={"spy": range(len(about.batches))}) for one in about.scenarios]
    audits = [one for one in plan.audits if isinstance(one, ReconstructionAudit)]
    return run_plan(Plan(site=replace(about, scenarios=scenarios), audits=audits), folder, jobs=1)


def test_nothing_private_can_be_reached_from_what_the_attacks_of_a_run_receive(tmp_path: Path) -> None:
    Spy.received.clear()
    about = made(batches=batches(2), controls=Controls(positive=False, negative=False))
    record = run(about, tmp_path / "out")
    assert record.verdicts
    assert len(Spy.received) == 2
    for batch in about.batches:
        assert not (found := holding(Canaries(batch), *Spy.received)), spelled(found)
    Spy.received.clear()


@pytest.mark.parametrize("place", range(3))
def test_data_of_every_batch_are_searched_for(tmp_path: Path, place: int) -> None:
    class Reads(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1)) + 0 * len(self.kept)

    model = Reads(16, 10)
    model.kept = [1 - batches()[place].inputs[4].flatten(1)]
    with pytest.raises(InputError, match=r"^model\.kept\[0\]: expected nothing of the private data.*got inputs"):
        run(made(model), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_defense_that_keeps_what_it_sees_is_refused_before_the_run(tmp_path: Path) -> None:
    private = batches()
    release = Release(FedSGD(), [Watching(shown=private[0].targets.tolist())])
    with pytest.raises(InputError, match=r"^defenses\[0\]\.seen: expected nothing.*got labels"):
        run(made(release=release), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_defense_that_keeps_a_later_batch_is_refused_there() -> None:
    private = batches()
    seen: list[Any] = []
    about = made(release=Release(FedSGD(), [Watching(seen=seen)]))
    scenario = about.scenarios[0]
    assert about.knowledge(scenario, 0).defenses == (Watching(seen=[None]),)
    seen[:] = [private[1].inputs.clone()]
    with pytest.raises(InputError, match=r"^defenses\[0\]\.seen\[0\]: expected nothing.*got inputs"):
        about.knowledge(scenario, 1)


def test_the_provenance_of_given_updates_is_searched() -> None:
    about = made()
    objective, private = about.objective, about.batches[0]
    update = about.scenarios[0].release(objective, private, torch.Generator())
    told = replace(update, provenance={"client": "a", "facts": {"order": private.targets.tolist()}})
    with pytest.raises(InputError, match=r"^update\.provenance\['facts'\]: expected nothing"):
        made(updates={0: told}).search()
    made(updates={0: update}).search()


def test_a_run_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[bool] = []
    search = site_module.refuse_private_data

    def counted(known: Any, *rest: Any) -> None:
        searched.extend(facts.objective is not None for facts in known)
        search(known, *rest)

    monkeypatch.setattr(site_module, "refuse_private_data", counted)
    about = made()
    for place in range(3):
        about.knowledge(about.scenarios[0], place)
    assert searched.count(True) == 1
    copy.deepcopy(about).knowledge(about.scenarios[0], 0)  # as in a worker
    assert searched.count(True) == 1
    replace(about, threat=HonestButCurious(public=None, targets=True)).search()
    assert searched.count(True) == 2


def test_labels_that_are_disclosed_may_be_anywhere() -> None:
    labels = batches()[0].targets.tolist()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets) + 0 * len(labels)

    private = batches()[:1]
    objective = Objective.from_module(nn.Sequential(nn.Flatten(), nn.Linear(16, 10)), loss=loss)
    release = Release(FedSGD())
    with pytest.raises(InputError, match="closure: labels"):
        HonestButCurious().disclose(objective, release, private[0])
    assert HonestButCurious(targets=True).disclose(objective, release, private[0]).targets is not None
