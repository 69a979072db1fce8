"""Audits of releases that carry nothing of their batch, and of undefended ones: what the verdict says of each."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

import torch
from torch import nn

import gradleak as gl
from gradleak.attacks import Attack, GaussNewton, InvertingGradients
from gradleak.auditing import run_plan
from gradleak.auditing.default_plan import default_plan
from gradleak.core import (
    Batch,
    Defense,
    HonestButCurious,
    Objective,
    Release,
    Update,
    derive_generator,
    derive_seed,
)
from gradleak.defenses import GaussianNoise, LaplaceNoise
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.results import Record
from studies.null_cells import Judged
from studies.null_data import Data, part, unlike
from studies.null_releases import Division, FixedUpdate, IgnoresInputs
from studies.store import Store
from studies.study import Say

T = TypeVar("T")

PUBLIC = 100
# Standard deviation of drowning noise over the root mean square of the update.
DROWNING = 1e3


class Nothing(StrEnum):
    """Reason why a release carries nothing of its batch."""

    SENT = "another batch's update was sent"
    SWAPPED = "a defense that releases another batch's update"
    RANDOM = "a defense that releases random numbers of the same norms"
    DROWNED = "noise that drowns the update"
    CONSTANT = "a model that ignores its inputs"


class Network(StrEnum):
    """Network that is trained."""

    LINEAR = "linear"
    TANH = "tanh"
    RELU = "relu"


AUDITED = (Data.DIGITS, Data.CENSUS, Data.ROWS, Data.SIGNALS)
BATCHES = (1, 1, 2, 4)
ATTACKS: Mapping[str, Attack] = {
    "gauss_newton": GaussNewton(max_steps=12, starts=1),
    "division": Division(),
    "inverting_gradients": InvertingGradients(iterations=150, restarts=1),
}


@dataclass(frozen=True, kw_only=True)
class AuditSetting:
    """One audit.

    Attributes:
        data: of the example.
        network: of the client.
        attack: name of one of the attacks.
        nothing: why the release carries nothing; None for a planted leak: an undefended release.
        batch: examples.
        number: which one of its kind; what the adversary knows goes by it.
        among: whether releases that carry nothing stand before and after this one in the same plan.
    """

    data: Data
    network: Network
    attack: str
    nothing: Nothing | None
    batch: int
    number: int
    among: bool = False

    def judged(self, seed: int) -> list[Judged]:
        """The verdicts of one audit with its controls: on its release, and on others of the same plan.

        Args:
            seed: of all draws.
        """
        own = derive_seed(seed, "null audit", repr(self))
        generator = derive_generator(own, "rows")
        rows, size = self.data.draw(2 * self.batch + PUBLIC, generator), self.batch
        private, other = part(rows, 0, size), part(rows, size, 2 * size)
        public = unlike(part(rows, 2 * size, 2 * size + PUBLIC), private)
        model = self._model(private, generator)
        released = partial(self._released, model, private, other, generator)
        threat = HonestButCurious(defenses=self.number % 2 == 0, public=public if self.number % 4 == 3 else None)
        chosen = {self.attack: ATTACKS[self.attack]}
        options = gl.AuditOptions(seed=own % 2**31, quiet=True)
        with tempfile.TemporaryDirectory() as folder:
            if not self.among:
                release, sent = released(self.nothing)
                record = gl.audit(
                    model, private, release=release, threat=threat, attacks=chosen, measures=[], update=sent, out=folder,
                    options=options,
                )  # fmt: skip
                return [_judged(record, "release", self.nothing)]
            plan = default_plan(
                model, private, loss="cross_entropy", mode="eval", release=None, attacks=chosen, measures=[]
            )
            ways = {"before": Nothing.DROWNED, "release": self.nothing, "behind": Nothing.SWAPPED}
            (one,) = plan.site.scenarios
            scenarios = [replace(one, name=name, release=released(nothing)[0]) for name, nothing in ways.items()]
            site = replace(plan.site, scenarios=scenarios, threat=threat, seed=options.seed)
            record = run_plan(replace(plan, site=site), folder, jobs=1)
            return [_judged(record, name, nothing) for name, nothing in ways.items()]

    def _model(self, batch: Batch, generator: torch.Generator) -> nn.Module:
        classes, features = 10, batch.inputs[0].numel()
        if self.nothing is Nothing.CONSTANT:
            return IgnoresInputs(classes=classes)
        hidden = () if self.network is Network.LINEAR else (32,)
        activation = "relu" if self.network is Network.RELU else "tanh"
        network = mlp(features=features, classes=classes, hidden=hidden, activation=activation, generator=generator)
        return nn.Sequential(nn.Flatten(), network)

    def _released(
        self, model: nn.Module, private: Batch, other: Batch, generator: torch.Generator, nothing: Nothing | None
    ) -> tuple[Release, Update | None]:
        """The release, and the update that was really sent where that is another one."""
        plain = Release(FedSGD())
        objective = Objective.from_module(model)
        if nothing is Nothing.SENT:
            return plain, plain(objective, other, generator)
        if nothing is Nothing.SWAPPED:
            return Release(FedSGD(), [FixedUpdate(tensors=plain(objective, other, generator).tensors)]), None
        if nothing in (Nothing.RANDOM, Nothing.DROWNED):
            update = plain(objective, private, generator)
            defense = _random(update, generator) if nothing is Nothing.RANDOM else self._noise(objective, update)
            return Release(FedSGD(), [defense]), None
        return plain, None

    def _noise(self, objective: Objective, update: Update) -> Defense:
        std = DROWNING * float(objective.flatten(update.tensors).square().mean().sqrt())
        return GaussianNoise(std=std) if self.number % 2 else LaplaceNoise(scale=std)


def _judged(record: Record, scenario: str, nothing: Nothing | None) -> Judged:
    (verdict,) = [one for one in record.verdicts if one.scenario == scenario and one.subject is not None]
    planted = [one.control.passed for one in record.findings if one.control is not None and one.control.planted]
    return Judged(
        group=str(nothing or "an undefended release"),
        planted=nothing is None,
        verdict=verdict.verdict,
        reason=verdict.reason,
        control=all(passed is True for passed in planted),
        noted={name: verdict.details.get(name) for name in ("pixel_rmse", "baseline_pixel_rmse", "chance_pixel_rmse")},
    )


def _random(update: Update, generator: torch.Generator) -> FixedUpdate:
    """Random numbers with the norms of the tensors of an update."""
    numbers = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in update.tensors.items()}
    norms = {name: tensor.norm() for name, tensor in update.tensors.items()}
    return FixedUpdate(tensors={name: norms[name] * drawn / drawn.norm() for name, drawn in numbers.items()})


def null_audits(count: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on so many releases that carry nothing of their batch.

    Args:
        count: of all audits.
        seed: of all draws.
        store: of single audits.
        say: is told what is done.
    """
    return _kept([_setting(number, list(Nothing)) for number in range(count)], seed, store, say)


def planted_audits(count: int, *, seed: int, store: Store, say: Say) -> list[Judged]:
    """Verdicts on so many undefended releases, each by an attack that is able to rebuild it; a third of them among nulls.

    Those nulls are judged, too.

    Args:
        count: of all audits.
        seed: of all draws.
        store: of single audits.
        say: is told what is done.
    """
    return _kept([_setting(number, [None]) for number in range(count)], seed, store, say)


def _setting(number: int, ways: Sequence[Nothing | None]) -> AuditSetting:
    """The setting of a number: ways in turn, and everything else by draws, so that nothing goes in step."""
    generator = derive_generator(number, "null setting")
    draw = partial(_drawn, generator=generator)
    data, network, attack, batch = draw(AUDITED), draw(list(Network)), draw(list(ATTACKS)), draw(BATCHES)
    nothing = ways[number % len(ways)]
    if nothing is None:
        # What leaks for certain: one example through a smooth network, or one whose units are read off.
        batch, network = 1, Network.TANH if attack != "division" else network
    among = nothing is None and number % 3 == 1
    return AuditSetting(
        data=data, network=network, attack=attack, nothing=nothing, batch=batch, number=number, among=among
    )


def _drawn(options: Sequence[T], *, generator: torch.Generator) -> T:
    return options[int(torch.randint(len(options), (), generator=generator))]


def _kept(settings: Sequence[AuditSetting], seed: int, store: Store, say: Say) -> list[Judged]:
    found: list[Judged] = []
    for place, setting in enumerate(settings, 1):
        key = {"null": "audit", "of": repr(setting), "seed": seed}
        found += store.kept(key, list[Judged], partial(setting.judged, seed))
        if place % 20 == 0 or place == len(settings):
            say(f"audits: {place} of {len(settings)}, {sum(one.leaks for one in found)} called leaks")
    return found


__all__ = ["AuditSetting", "Network", "Nothing", "null_audits", "planted_audits"]
