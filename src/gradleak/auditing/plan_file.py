"""A plan file: nested constructor calls in TOML that anyone may have written, read table by table within bounds."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_reader import PlanReader, check_keys
from gradleak.auditing.sweep import swept
from gradleak.audits.base import SEED, Audit, Controls, Site, table_of, tables_of, typed
from gradleak.core.process import in_turn
from gradleak.results import Count, NonNegative, PlanError, Thresholds, kinds
from gradleak.results.errors import shown
from gradleak.results.files import decoded, expect_file

# The largest plan of the examples has 4,000 bytes.
LARGEST = 2**20
DEEPEST = 20
# What a parser makes of a dotted key takes the square of its length in memory.
_LONG_KEY = re.compile(
    rf"""(?m)(?:^|[\[{{,])[ \t]*(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){{{DEEPEST},}}""",
)
_WHOLE = range(-(2**63), 2**64)


def read_toml(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    """The content of a TOML file.

    Args:
        path: the file.
        what: it is, for messages: "a plan file".

    Raises:
        PlanError: in one line, for a missing or large file, bad TOML, or tables within tables without end.
    """
    file = expect_file(path, f"{what} (TOML)", error=PlanError)
    with file.open("rb") as opened:
        text = opened.read(LARGEST + 1)
    if len(text) > LARGEST:
        raise PlanError(
            f"{file}: expected {what} of at most {LARGEST:,} bytes, got more; name data sets by their files"
        )
    read = decoded(text, file, error=PlanError)
    try:
        if _LONG_KEY.search(read):
            raise PlanError(f"{file}: expected keys of at most {DEEPEST} parts, got a longer one")
        return tomllib.loads(read)
    except RecursionError as error:
        raise PlanError(f"{file}: expected lists and tables at most {DEEPEST} deep, got deeper ones") from error
    except ValueError as error:  # of TOML, and of int() for a number of thousands of digits
        raise PlanError(f"{file}: not valid TOML: {' '.join(str(error).split())[:300]}") from error


def visible(text: str) -> bool:
    """True if a text holds nothing that a terminal or a page obeys in place of showing it: no control, no direction mark.

    Args:
        text: in which tabs and ends of lines may stand.
    """
    return text.isprintable() or not _HIDDEN.search(text)


# Controls but tab and ends of lines, and the marks that turn the direction of text.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def check_values(content: Mapping[str, Any]) -> None:
    """Refuse what no key takes and no message can show, wherever it stands.

    Args:
        content: of a file, parsed.

    Raises:
        PlanError: for a whole number of more than 64 bits, a text or key with characters that cannot be seen, and tables
            within tables without end.
    """
    _check(content, "", DEEPEST)


def _check(value: Any, where: str, left: int) -> None:
    place = where or "plan"
    if left < 0:
        raise PlanError(f"{place[:100]}: expected lists and tables at most {DEEPEST} deep, got deeper ones")
    if isinstance(value, int) and value not in _WHOLE:
        raise PlanError(f"{place}: expected a whole number of at most 64 bits, got {shown(value)}")
    if isinstance(value, str) and not visible(value):
        raise PlanError(
            f"{place}: expected a text without control characters and marks of direction, got {shown(value)}"
        )
    if isinstance(value, Mapping):
        for key, inside in value.items():
            if not visible(key) or len(key) > 1000:
                raise PlanError(f"{place}: expected keys of printable characters, got {shown(key)}")
            _check(inside, f"{where}.{key}" if where else key, left - 1)
    elif isinstance(value, list):
        for number, inside in enumerate(value):
            _check(inside, f"{where}[{number}]", left - 1)


# Besides the tables of the kinds of audits.
TOP_LEVEL = (
    "name",
    "seed",
    "pictures",
    "save_updates",
    "checkpoint_seconds",
    "max_bytes",
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
    content = read_toml(path, "a plan file")
    if "training" in content:
        raise PlanError(f"{Path(path)}: expected the plan of an audit, got a file for `gradleak train-generator`")
    return build_plan(content, folder=Path(path).parent)


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
        reader.scenario({**shared, **one}, place, len(batches))
        for place, spec in enumerate(tables_of(content["scenarios"], "scenarios"))
        for one in swept(table_of(spec, f"scenarios[{place}]"), reader)
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
        max_bytes=typed(Count, content.get("max_bytes", 2**30), "max_bytes"),
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
