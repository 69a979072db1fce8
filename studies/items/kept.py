"""Records of studies as the repository keeps them: findings and settings without details, a file a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gradleak.results import InputError
from studies.study import Cost, Finding

FOLDER = Path(__file__).parents[1] / "records"
LARGEST = 60_000
# What changes no result: a place on somebody's disk, processes, and whether to compute.
NEUTRAL = frozenset({"cells", "jobs", "compute"})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The record of one run of a study.

    Attributes:
        study: name of the study.
        settings: its fields, files without their folders.
        findings: line by line.
        conclusion: in words.
        tables: numbers side by side, or none where they would make the file too large.
        cost: of the run, or None where nobody measured it, or where it only tabulated cells.
        resumed: whether the run may have found cells of earlier ones, whose cost is not in `cost`; None if not known.
    """

    study: str
    settings: Mapping[str, Any]
    findings: Sequence[Finding]
    conclusion: Sequence[str] = ()
    tables: Sequence[Mapping[str, Any]] = ()
    cost: Cost | None = None
    resumed: bool | None = None


def read(path: Path) -> Kept:
    """A study's JSON, as `StudyResult.write` or `keep` wrote it.

    Args:
        path: of the file.

    Raises:
        InputError: for a file that is not one.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return TypeAdapter(Kept).validate_python(document)
    except (OSError, ValueError, ValidationError) as error:
        raise InputError(f"expected the JSON file that a study writes, got {path}: {error}") from error


def records(folder: Path = FOLDER) -> dict[str, Kept]:
    """All kept records by name, in the order of their names.

    Args:
        folder: with one file a record.
    """
    return {path.stem: read(path) for path in sorted(folder.glob("*.json"))}


def keep(path: Path, folder: Path = FOLDER) -> Path:
    """Keep a study's JSON among the records, under its own name and without details.

    Args:
        path: file that is called NAME.json or NAME-VARIANT.json after the study.
        folder: of the records.

    Returns:
        The file that was written.

    Raises:
        InputError: for a file of another name, one that is no study's, or one that stays too large.
    """
    found = read(path)
    if path.stem != found.study and not path.stem.startswith(f"{found.study}-"):
        raise InputError(f"expected {found.study}.json or {found.study}-VARIANT.json, got {path.name}")
    document: dict[str, Any] = {
        "study": found.study,
        "cost": None
        if found.cost is None or found.settings.get("compute") is False
        else TypeAdapter(Cost).dump_python(found.cost),
        "resumed": bool(found.settings["cells"]) if "cells" in found.settings else None,
        "settings": {
            name: _plain(value) for name, value in found.settings.items() if name != "use" and name not in NEUTRAL
        },
        "conclusion": list(found.conclusion),
        "findings": [_short(finding) for finding in found.findings],
        "tables": [
            {name: table[name] for name in ("title", "columns", "rows") if name in table} for table in found.tables
        ],
    }
    text = _text(document)
    if len(text.encode()) > LARGEST:
        text = _text(document | {"tables": []})
    if len(text.encode()) > LARGEST:
        raise InputError(f"{path.name}: expected at most {LARGEST} bytes of findings, got {len(text.encode())}")
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / path.name
    place.write_text(text, encoding="utf-8")
    return place


def _plain(value: Any) -> Any:
    """Folders of a path are those of one machine."""
    if isinstance(value, str):
        return PurePath(value).name if PurePath(value).suffix or PurePath(value).is_absolute() else value
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _short(finding: Finding) -> dict[str, Any]:
    plain = TypeAdapter(Finding).dump_python(finding, exclude_defaults=True)
    return {"quantity": finding.quantity, "ours": _digits(finding.ours), **_rest(plain)}


def _rest(plain: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in plain.items() if name not in ("quantity", "ours")}
    if "interval" in rest:
        rest["interval"] = [_digits(end) for end in rest["interval"]]
    return rest


def _digits(value: float | None) -> float | None:
    """Six digits are more than any of these numbers has."""
    return None if value is None else float(f"{value:.6g}")


def _text(document: Mapping[str, Any]) -> str:
    """JSON with a finding a line, so that a new run shows as lines that changed."""
    lines = []
    for name, value in document.items():
        if isinstance(value, list) and value:
            inner = ",\n".join(f"  {json.dumps(item, ensure_ascii=False)}" for item in value)
            lines.append(f" {json.dumps(name)}: [\n{inner}\n ]")
        else:
            lines.append(f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


__all__ = ["FOLDER", "LARGEST", "NEUTRAL", "Kept", "keep", "read", "records"]
