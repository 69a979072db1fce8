"""Carries out a plan: in parallel, resumable, one flushed group at a time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from gradleak.attacks import Checkpoint
from gradleak.auditing.budget import Budget
from gradleak.auditing.device import check_memory, jobs_on
from gradleak.auditing.executor import Executor, Loky, worked
from gradleak.auditing.fingerprint import Reading
from gradleak.auditing.header import Behavior, DataKey, header
from gradleak.auditing.interrupts import free_shared_memory, no_interrupt_lost, noted
from gradleak.auditing.pieces import Cut, pieces_of
from gradleak.auditing.plan import Plan
from gradleak.auditing.shard import Shard
from gradleak.auditing.verdicts import judge
from gradleak.auditing.work import Call, clear_failure
from gradleak.audits.base import STATES, Audit, Task, state_path
from gradleak.core import refuse_inference_mode
from gradleak.core.process import in_turn
from gradleak.results import (
    Finding,
    GradleakError,
    InconsistentUpdateError,
    InputError,
    Record,
    RecordWriter,
    Status,
    UnsupportedError,
)
from gradleak.results.errors import record_stays
from gradleak.results.files import clear_partials, make_folder
from gradleak.scoring import check_truth

Progress = Callable[[int, int, str], None]
VERDICTS = "verdict"
CONCLUSIONS = "conclusions"


@in_turn
def run_plan(
    plan: Plan,
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    budget: Budget | None = None,
    shard: Shard | None = None,
    known: Callable[[], Mapping[str, Sequence[Finding]]] | None = None,
    device: torch.device | None = None,
) -> Record:
    """The record of a plan, written to `out/record.jsonl` as results arrive; an interrupted run is continued.

    Args:
        plan: what to do.
        out: folder of the run; made if absent. A record of another plan there is refused, nothing is written over.
        jobs: worker processes, each with one thread; None for the number of cores. Has no influence on any number.
        progress: called with (tasks done, tasks in all, what was done) after every task.
        executor: where the tasks run, in place of processes of this machine; no number depends on it.
        budget: time for the tasks; what is left out for it is found by the next run with a larger one, or none.
        shard: the share of the tasks that is done, without conclusions and verdicts; `merge_shards` draws them.
        known: gives findings by task that other runs have computed, once it is clear that they may be written here.
        device: where the tasks compute (`device_of`), by default one at a time; None for where the plan's tensors are. A
            record of another kind of device is not gone on with, since devices round differently.

    Raises:
        PlanError: if `out` holds another plan's record, or a batch does not fit the model.
        InputError: if a batch or an update is not fit for the model, or for a shard within a budget; nothing is written then.
    """
    started = time.perf_counter()
    if shard is not None and budget is not None:
        raise InputError(
            f"budget: expected none beside shard {shard}, which does not know what the others find; give every job its own "
            "limit of time, and the shards go on with the next one"
        )
    place = Cut(Loky(jobs=jobs_on(device, jobs)) if executor is None else executor)
    if known is None:
        check_memory(device, plan.site.max_bytes)
    folder = Path(out)
    # An audit without batches comes in pieces, as a rule.
    coming = len(plan.audits) + (len(plan.site.batches) or place.width)
    if (folder / "record.jsonl").exists():
        # A run that is continued may have nothing left for workers to do.
        coming = 0
    with noted(folder, shares=coming > 1 and place.shares_memory), place.begun(coming):
        preflight(plan)
        work = tasks(plan)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: expected a folder for the run, got a file")
        make_folder(folder)
        concluding = [audit for audit in plan.audits if _concludes(audit)]
        after = [_conclusions(audit) for audit in concluding]
        key, reading, behavior = DataKey.of(folder), plan.reading(), Behavior.of(plan)
        lines = header(
            plan,
            groups(plan, work),
            costs=[task.cost for task in work],
            reading=reading,
            behavior=behavior,
            key=key,
            shard=None if shard is None else str(shard),
            device=device,
        )
    if shard is not None:
        work = shard.share(work)
    names = [task.name for task in work]

    def guard(stored: Mapping[str, Any], changed: bool) -> None:
        key.check(folder, plan.private())
        if not changed:
            key.check_header(folder / "record.jsonl", stored)
            refuse_other_code(folder, reading, behavior.difference(stored.get("behavior"), key))

    with RecordWriter(folder / "record.jsonl", lines, guard=guard) as writer, no_interrupt_lost():
        clear_partials(folder)
        if not writer.lines:
            if not (writer.begun and key.fits(plan.private())):
                # What attacks of other code or on other data left on the way is theirs; a kill after this costs only time.
                shutil.rmtree(folder / STATES, ignore_errors=True)
            key.keep(folder, plan.private())
        if progress is not None:
            for said in _what_was_there(writer):
                progress(0, len(work), said)
        writer.drop([name for name in (*names, *after) if writer.failed(name)])
        given = {} if known is None else known()
        for name in writer.missing(given):
            writer.write_group(name, given[name])
        missing = set(writer.missing(names))
        if missing:
            writer.drop(after)
        if writer.missing([*names, *after]):
            writer.drop([VERDICTS])
        todo = [task for task in work if task.name in missing]
        for task in work:
            if task.name not in missing:
                # A kill may have come between the line and this.
                _clear(task, folder)
        done = len(work) - len(todo)
        if progress is not None:
            progress(done, len(work), "resumed" if done else "started")
        several = len(todo) > 1 or any(pieces_of(task) for task in todo)
        free_shared_memory(folder, leave_note=several and place.shares_memory)
        calls = [Call(task, plan.site, folder, device) for task in todo]
        if budget is None:
            doing = place.results(calls)
        else:
            stands = [one for task in work if task.name not in missing for one in writer.findings(task.name)]
            doing = budget.results(calls, place=place, found=stands, since=started)
        with closing(doing) as results:
            for task, found in results:
                writer.write_group(task.name, found)
                if not any(finding.status in (Status.FAILED, Status.LEFT_OUT) for finding in found):
                    # What failed or was left out is tried again by the next run, from the state it has.
                    _clear(task, folder)
                done += 1
                if progress is not None:
                    progress(done, len(work), task.headline)
        if shard is not None:
            writer.finish()
            return Record.load(folder)
        every = [finding for name in names for finding in writer.findings(name)]
        for audit in concluding:
            if writer.missing([_conclusions(audit)]):
                own = [finding for finding in every if finding.audit == audit.name]
                task = _concluding(audit, own)
                _, found = worked(Call(task, plan.site, folder))
                writer.write_group(task.name, found)
                if not any(finding.status is Status.FAILED for finding in found):
                    _clear(task, folder)
        if writer.missing([VERDICTS]):
            every += [finding for name in after for finding in writer.findings(name)]
            references = {scenario.name for scenario in plan.site.scenarios if scenario.reference}
            writer.write_group(VERDICTS, judge(plan.audits, every, plan.site.thresholds, references=references))
        writer.finish()
    # Thousands of findings are held once.
    del writer, every
    return Record.load(folder)


def tasks(plan: Plan) -> list[Task[Any]]:
    """The work of a plan, audit by audit; names and grain are fixed by the plan alone.

    Raises:
        PlanError: if two tasks have one name.
    """
    found = [task for audit in plan.audits for task in audit.tasks(plan.site)]
    names = [task.name for task in found]
    double = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if double:
        raise InputError(f"audits: expected tasks of different names, got {', '.join(double)} more than once")
    return found


def groups(plan: Plan, work: Sequence[Task[Any]]) -> list[str]:
    """The groups of a plan's record: its tasks, the conclusions of its audits, the verdicts."""
    return [
        *(task.name for task in work),
        *(_conclusions(audit) for audit in plan.audits if _concludes(audit)),
        VERDICTS,
    ]


def estimate(plan: Plan) -> float:
    """The expected cost of a plan in plain gradients of its model."""
    return sum(task.cost for task in tasks(plan))


def preflight(plan: Plan) -> None:
    """Refuse in one line what would otherwise fail in the middle of a run; nothing is written.

    Raises:
        InputError: if a batch does not fit the model, the loss or its own domain, or private data would reach the attacks.
        UnsupportedError: if the model has no gradient that gradleak can compute.
        InconsistentUpdateError: if a given update does not fit the model.
    """
    site = plan.site
    objective = site.objective
    refuse_inference_mode()
    for batch in site.batches:
        objective.check(batch.to(objective.dtype))
        check_truth(batch)
    site.search()
    for audit in plan.audits:
        audit.check(site)
    for scenario in site.scenarios:
        for place, update in enumerate(scenario.updates.values(), start=1):
            try:
                update.align(objective)
            except (InconsistentUpdateError, InputError) as error:
                raise type(error)(f"{scenario.name}, update {place} of {len(scenario.updates)}: {error}") from None
        if not scenario.examples:
            continue
        first = site.batches[scenario.examples[0]].to(objective.dtype)
        try:
            scenario.release.mean(objective, objective.params, first)
        except GradleakError:
            raise
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise UnsupportedError(
                f"the release of scenario {scenario.name!r} cannot be computed for this model "
                f"({' '.join(str(error).split())[:300]}); an operation in it may not support differentiation"
            ) from error


def _clear(task: Task[Any], out: Path) -> None:
    """Remove the states that the attacks of a task have left, and the text of an earlier failure."""
    for name in task.states:
        Checkpoint(path=state_path(out, name)).clear()
    clear_failure(out, task)


def refuse_other_code(folder: Path, reading: Reading, difference: str | None) -> None:
    """Refuse to go on with a record where code may have changed unseen.

    Raises:
        PlanError: naming what cannot be read, or what has other values now.
    """
    if reading.unread:
        named = ", ".join(reading.unread[:3]) + (
            f" and {len(reading.unread) - 3} more" if len(reading.unread) > 3 else ""
        )
        raise record_stays(
            folder,
            f"expected code and settings that can be compared with those of the record there, but {named} cannot be read",
        )
    if difference is not None:
        raise record_stays(
            folder,
            "model, loss or releases compute other values than when the record there was begun: code that no digest sees has "
            f"changed, or this processor rounds otherwise ({difference})",
        )


def _what_was_there(writer: RecordWriter) -> Iterator[str]:
    if writer.set_aside is not None:
        yield f"code of this plan has changed: everything is computed anew, the record of before is {writer.set_aside}"
    if writer.damage:
        yield f"the record was damaged, and what is missing is computed anew: {'; '.join(writer.damage)}"


def _concludes(audit: Audit[Any]) -> bool:
    return type(audit).conclude is not Audit.conclude


def _conclusions(audit: Audit[Any]) -> str:
    return f"{CONCLUSIONS}/{audit.name}"


def _concluding(audit: Audit[Any], found: Sequence[Finding]) -> Task[Any]:
    """Work that draws the conclusions of an audit from its findings, and may fail like any other."""
    # A group of a record is never empty.
    nothing = audit.finding(kind=audit.kind, item=_conclusions(audit), audit=audit.name, note="nothing follows")
    return Task(
        name=_conclusions(audit),
        run=lambda site, out: audit.conclude(site, found) or [nothing],
        blank=nothing,
        headline=f"conclusions of {audit.name}",
    )
