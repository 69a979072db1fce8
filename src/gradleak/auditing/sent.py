"""A plan about updates that were really sent, in place of those that its releases would draw."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradleak.auditing.plan import Plan
from gradleak.audits.base import unknown
from gradleak.core import Update
from gradleak.results import PlanError


def with_updates(plan: Plan, updates: Mapping[str, Update], *, scenario: str | None = None) -> Plan:
    """The same plan, about these updates.

    One scenario is audited, whose protocol and defenses the updates are said to come from. As many updates as it has
    batches belong to these in order (several clients). Several updates of its one batch (rounds at one state of the model, or
    draws of one defense) are audited side by side, each as a scenario that bears its name.

    Args:
        plan: whose batches the auditor holds.
        updates: by name, in the order of the batches.
        scenario: which scenario; None where the plan has one.

    Raises:
        PlanError: if it is not clear which scenario or batch an update belongs to.
    """
    site = plan.site
    names = [one.name for one in site.scenarios if one.examples]
    if scenario is not None and scenario not in names:
        raise PlanError(f"updates: {unknown('scenario', scenario, names)}")
    if scenario is None and len(names) != 1:
        raise PlanError(
            f"updates: expected the scenario that the updates come from, since the plan has {len(names)} with batches "
            f"({', '.join(names)}); name it, on the command line by --scenario"
        )
    chosen = site.scenario(names[0] if scenario is None else scenario)
    given = list(updates.items())
    if len(given) == len(chosen.examples):
        by_batch = {index: update for index, (_, update) in zip(chosen.examples, given, strict=True)}
        scenarios = [replace(chosen, updates=by_batch)]
    elif len(chosen.examples) == 1 and given:
        scenarios = [replace(chosen, name=name, updates={chosen.examples[0]: update}) for name, update in given]
    else:
        raise PlanError(
            f"updates: expected one for each of the {len(chosen.examples)} batches of scenario {chosen.name!r}, in their "
            f"order, got {len(given)}; leave out of its `examples` the batches that sent none"
        )
    kept = [one.name for one in scenarios]
    audits = [
        audit if audit.scenarios is None else replace(audit, scenarios=kept)
        for audit in plan.audits
        if audit.against(chosen.name)
    ]
    return Plan(site=replace(site, scenarios=scenarios), audits=audits, source=plan.source)


def load_updates(
    files: Sequence[str | os.PathLike[str]], *, kind: str | None = None, sign: int = 1
) -> dict[str, Update]:
    """The updates of files by name: that of the file, with its folder where several files have one name.

    Args:
        files: safetensors, npz, or torch files of plain tensors.
        kind: as `Update.load`.
        sign: as `Update.load`.

    Raises:
        InputError: as `Update.load`.
        PlanError: if a file is named twice.
    """
    paths = [Path(file) for file in files]
    stems = [path.stem for path in paths]
    names = [path.stem if stems.count(path.stem) == 1 else f"{path.parent.name} {path.name}" for path in paths]
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"updates: expected files of different names, got {double} more than once")
    return {name: Update.load(path, kind=kind, sign=sign) for name, path in zip(names, paths, strict=True)}
