"""A plan file: nested constructor calls in TOML, read table by table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_reader import PlanReader, check_keys
from gradleak.auditing.toml_file import check_values, read_toml
from gradleak.audits.base import SEED, Audit, Controls, Site, table_of, tables_of, typed
from gradleak.core.turns import in_turn
from gradleak.results import NonNegative, PlanError, Thresholds, kinds

# Besides the tables of the kinds of audits.
TOP_LEVEL = (
    "name",
    "seed",
    "pictures",
    "save_updates",
    "checkpoint_seconds",
    "model",
    "data",
    "objective",
    "threat",
    "thresholds",
    "controls",
    "adversaries",
    "scenarios",
)


@in_turn
def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a TOML file.

    Args:
        path: the file; relative paths inside it are taken from its folder.

    Raises:
        PlanError: in one line, for a missing file, bad TOML, an unknown key (naming the nearest), a bad value.
        GradleakError: if model, data and release do not fit together.
    """
    return build_plan(read_toml(path, "a plan file"), folder=Path(path).parent)


def build_plan(content: Mapping[str, Any], *, folder: Path) -> Plan:
    """The plan that a parsed plan file describes; see `load_plan`."""
    check_values(content)
    tables = [key for kind in kinds().values() for key in kind.tables if key not in TOP_LEVEL]
    check_keys(content, [*TOP_LEVEL, *tables], where="plan")
    # An audit that is counted by a noun has rows of its own or takes those of the plan.
    alone = any(audit.noun for audit in audit_classes(content))
    for key in ("model", "scenarios") if alone else ("model", "data", "scenarios"):
        if key not in content:
            section = f"[[{key}]]" if key == "scenarios" else f"[{key}]"
            raise PlanError(f"plan: expected a section {section}, got none")
    seed = typed(SEED, content.get("seed", 0), "seed")
    reader = PlanReader(folder=folder, seed=seed, content=content)
    objective = reader.objective(content["model"], content.get("objective", {}))
    batches, guessed = reader.batches(content["data"]) if "data" in content else ([], False)
    reader = replace(reader, private=batches)
    shared = {key: content[key] for key in ("adversaries",) if key in content}
    scenarios = [
        reader.scenario({**shared, **table_of(spec, f"scenarios[{place}]")}, place, len(batches))
        for place, spec in enumerate(tables_of(content["scenarios"], "scenarios"))
    ]
    site = Site(
        name=typed(str, content.get("name", "audit"), "name"),
        seed=seed,
        objective=objective,
        batches=batches,
        scenarios=scenarios,
        threat=reader.build(content.get("threat", {"use": "HonestButCurious"}), "threats", "threat"),
        thresholds=reader.call(Thresholds, content.get("thresholds", {}), "thresholds"),
        controls=reader.call(Controls, content.get("controls", {}), "controls"),
        pictures=typed(bool, content.get("pictures", False), "pictures"),
        save_updates=typed(bool, content.get("save_updates", False), "save_updates"),
        checkpoint_seconds=typed(NonNegative | None, content.get("checkpoint_seconds"), "checkpoint_seconds"),
        domain_guessed=guessed,
    )
    return Plan(site=site, audits=read_audits(content, replace(reader, about=site)), source=content)


def read_audits(content: Mapping[str, Any], reader: PlanReader) -> list[Audit[Any]]:
    """The audits that a parsed plan asks for, in the order of the registry.

    Args:
        content: the plan; objects made in Python may stand in place of tables with `use`.
        reader: which knows what the plan is about.
    """
    return [audit for kind in audit_classes(content) for audit in kind.read(content, reader)]


def audit_classes(content: Mapping[str, Any]) -> Sequence[type[Audit[Any]]]:
    """The classes of the audits that a parsed plan may ask for, in the order of the registry; the others stay unloaded."""
    asked = (kind for kind in kinds().values() if kind.always or any(key in content for key in kind.tables))
    return [kind.load_audit() for kind in asked]
