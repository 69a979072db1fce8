"""One record of the shards of a plan: their findings, and the conclusions and verdicts that need all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from gradleak.auditing.device import DEVICES
from gradleak.auditing.fingerprint import Reading
from gradleak.auditing.header import Behavior, DataKey, header
from gradleak.auditing.plan import Plan
from gradleak.auditing.run import Progress, groups, preflight, refuse_other_code, run_plan, tasks
from gradleak.auditing.shard import Shard
from gradleak.audits.base import STATES, Task
from gradleak.core.process import in_turn
from gradleak.results import Finding, InputError, PlanError, Record
from gradleak.results.files import make_folder, write_file
from gradleak.results.record import finding_of
from gradleak.results.record_lines import by_group
from gradleak.results.record_writer import difference

_OWN_FILES = ("record.jsonl", "report.html", "report.md", "report.json")


@in_turn
def merge_shards(
    plan: Plan,
    shards: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
) -> Record:
    """The record of a plan from the folders of its shards, as if it had been carried out in one go.

    Its findings are those of the shards; conclusions and verdicts are drawn here. The pictures and updates of the shards
    are copied. Whatever is not of this plan, its code, its data and one division is refused before anything is written.

    Args:
        plan: the one that the shards were made of.
        shards: their folders, in any order, each with the key `.private-data` beside its record.
        out: folder of the run; made if absent.
        progress: as of `run_plan`.

    Raises:
        PlanError: if a shard is missing, unfinished, given twice, or not of this plan.
        InputError: if a folder holds no record.
    """
    preflight(plan)
    work = tasks(plan)
    folders = _by_number([Path(folder) for folder in shards], Path(out))
    reading, behavior = plan.reading(), Behavior.of(plan)
    device = _device(folders)
    known: dict[str, Sequence[Finding]] = {}
    for shard, (folder, record) in sorted(folders.items(), key=lambda pair: pair[0].number):
        _check(folder, record, plan=plan, work=work, reading=reading, behavior=behavior, device=device)
        known |= _findings(folder, record, shard, work)
    files = [(file, Path(out) / file.relative_to(folder)) for folder, _ in folders.values() for file in _files(folder)]

    def brought() -> Mapping[str, Sequence[Finding]]:
        # Before the lines that name them.
        for file, place in files:
            if not place.exists():
                make_folder(place.parent)
                write_file(place, file.read_bytes())
        return known

    return run_plan(plan, out, jobs=1, progress=progress, known=brought, device=device)


def _by_number(folders: Sequence[Path], out: Path) -> Mapping[Shard, tuple[Path, Record]]:
    """The shards by their numbers.

    Raises:
        PlanError: if they are not all shares of one division, each once.
    """
    if not folders:
        raise PlanError("merge: expected the folders of the shards, got none")
    found: dict[Shard, tuple[Path, Record]] = {}
    for folder in folders:
        if folder.resolve() == out.resolve():
            raise PlanError(f"merge: expected another folder for the run than that of a shard, got {folder}")
        record = Record.load(folder)
        # The record itself may have been given.
        folder = folder if record.path is None else record.path.parent
        stated = record.run.get("shard")
        if not isinstance(stated, str):
            raise PlanError(f"{folder}: expected the record of a shard (`gradleak audit --shard`), got that of a run")
        shard = Shard.parse(stated)
        if shard in found:
            raise PlanError(f"merge: expected each shard once, got {shard} in {found[shard][0]} and in {folder}")
        found[shard] = (folder, record)
    counts = sorted({shard.of for shard in found})
    if len(counts) > 1:
        raise PlanError(f"merge: expected shards of one division, got shares of {counts[0]} and of {counts[1]}")
    absent = [
        str(Shard(number, counts[0])) for number in range(1, counts[0] + 1) if Shard(number, counts[0]) not in found
    ]
    if absent:
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise PlanError(f"merge: expected all shards, got none of {', '.join(absent[:5])}{more}")
    return found


def _device(folders: Mapping[Shard, tuple[Path, Record]]) -> torch.device | None:
    """The kind of device that all shards were computed on, which need not be here; None for the processor.

    Raises:
        PlanError: for shards of several kinds, since these round differently.
    """
    stated = sorted({str(record.run.get("device")) for _, record in folders.values()})
    if len(stated) > 1 or stated[0] not in DEVICES:
        raise PlanError(
            f"merge: expected shards of one device, one of {', '.join(DEVICES)}, got {' and '.join(stated)}"
        )
    return None if stated[0] == "cpu" else torch.device(stated[0])


def _check(
    folder: Path,
    record: Record,
    *,
    plan: Plan,
    work: Sequence[Task[Any]],
    reading: Reading,
    behavior: Behavior,
    device: torch.device | None,
) -> None:
    """Compare a shard with the plan, its code and its data.

    Raises:
        PlanError: naming what differs.
    """
    key = DataKey.of(folder)
    costs, shard = [task.cost for task in work], record.run["shard"]
    own = header(
        plan, groups(plan, work), costs=costs, reading=reading, behavior=behavior, key=key, shard=shard, device=device
    )
    if said := difference(record.run, own):
        raise PlanError(f"{folder}: expected a shard of this plan and of this code; {said}")
    key.check(folder, plan.private())
    key.check_header(folder / "record.jsonl", record.run)
    refuse_other_code(folder, reading, behavior.difference(record.run.get("behavior"), key))


def _findings(folder: Path, record: Record, shard: Shard, work: Sequence[Task[Any]]) -> Mapping[str, Sequence[Finding]]:
    """The findings of a shard by task.

    Raises:
        PlanError: if some are missing, or of another shard.
    """
    names = [task.name for task in shard.share(work)]
    missing = set(record.missing).intersection(names)
    if missing:
        left = next(name for name in names if name in missing)
        raise PlanError(
            f"{folder}: expected a finished shard, got {shard} without {len(missing)} of its {len(names)} tasks ({left}"
            f"{', ...' if len(missing) > 1 else ''}); run `gradleak audit --shard {shard}` there again"
        )
    rows = by_group(record.lines)
    foreign = next((name for name in rows if name not in set(names)), None)
    if foreign is not None:
        raise PlanError(f"{folder}: expected the tasks of shard {shard} alone, got {foreign}, too")
    return {name: [finding_of(row) for row in sorted(rows[name], key=lambda row: row["line"])] for name in names}


def _files(folder: Path) -> Iterator[Path]:
    """Files that a shard has beside its record: pictures, updates and the texts of failures."""
    for file in sorted(folder.rglob("*")):
        place = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in place.parts)
        if hidden or place.parts[0] == STATES or place.as_posix() in _OWN_FILES or file.is_dir():
            continue
        if file.is_symlink() or not file.is_file():
            raise InputError(f"{file}: expected a file that the shard wrote, got something else")
        yield file
