"""Two digits and a tanh MLP, released once or twice: all that closed-form risk needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.auditing import small_model

import gradleak as gl
from gradleak.auditing.plan_reader import PlanReader
from gradleak.audits.base import PerfectAttackerRule, Scenario, Site
from gradleak.audits.risk import RiskAudit
from gradleak.core import Batch, Defense, Objective, Release
from gradleak.datasets import scikit_digits
from gradleak.results.findings.risk import RiskFinding


def digits(count: int = 2) -> list[Batch]:
    """The first digits, one a batch."""
    rows = scikit_digits(count=count, seed=3)
    return [rows.example(place) for place in range(count)]


def site(
    model: str = "small_mlp",
    *,
    defenses: Sequence[Defense] = (gl.GaussianNoise(std=0.3),),
    batches: Sequence[Batch] | None = None,
    below: float | None = 0.05,
    **changes: Any,
) -> Site:
    """A scenario "noisy" that releases every batch alone."""
    made = getattr(small_model, model)(generator=torch.Generator().manual_seed(3))
    private = digits() if batches is None else batches
    noisy = Scenario(
        name="noisy",
        release=Release(gl.FedSGD(), list(defenses)),
        examples=range(len(private)),
        perfect_attacker=None if below is None else PerfectAttackerRule(below=below),
    )
    given = {"scenarios": [noisy], **changes}
    return Site(name="small", seed=3, objective=Objective.from_module(made), batches=private, **given)


def found(about: Site, *measures: Any) -> dict[str, RiskFinding]:
    """The findings of an audit with these measures by item, in the order of the record."""
    audit = RiskAudit(measures=measures)
    audit.fit(about)
    audit.check(about)
    return {one.item: one for task in audit.tasks(about) for one in task.run(about, Path())}


def read(measures: Mapping[str, Any], about: Site) -> RiskAudit:
    """The audit that these tables of a plan file ask for."""
    reader = PlanReader(folder=Path(), seed=3, about=about, private=about.batches)
    (audit,) = RiskAudit.read({"measures": measures}, reader)
    return audit
