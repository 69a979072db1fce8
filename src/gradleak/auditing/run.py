"""Carries out a plan: in parallel, resumable, one flushed line at a time."""

from __future__ import annotations

import itertools
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from joblib import Parallel, delayed, parallel_config

from gradleak.attacks import LocalTraining
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.attack_task import attack_estimate
from gradleak.auditing.fingerprint import check_private_data
from gradleak.auditing.items import Line
from gradleak.auditing.layer_task import advice_lines
from gradleak.auditing.pictures import file_name
from gradleak.auditing.plan import Plan
from gradleak.auditing.public_data import held_privately
from gradleak.auditing.refusals import refusals
from gradleak.auditing.risk_tasks import CHECK_COST, quiet, same_labels
from gradleak.auditing.tasks import Group, clear_states, controls_estimate, groups
from gradleak.auditing.verdict import judge
from gradleak.core import one_thread
from gradleak.protocols.average_gradient import AverageGradient
from gradleak.results import Citation, GradleakError, InputError, Outcome, Record, RecordWriter, UnsupportedError
from gradleak.risk import SettingMeasure
from gradleak.scoring import pixels_of_truth

Progress = Callable[[int, int, str], None]
VERDICT_GROUP = "verdict"
ADVICE_GROUP = "layer advice"


def run_plan(
    plan: Plan, out: str | os.PathLike[str], *, jobs: int | None = None, progress: Progress | None = None
) -> Record:
    """The record of a plan, written to `out/record.jsonl` as results arrive; an interrupted run is continued.

    Args:
        plan: what to do.
        out: folder of the run; made if absent. A record of another plan there is refused, nothing is written over.
        jobs: worker processes, each with one thread; None for the number of cores. Has no influence on any number.
        progress: called with (groups done, groups in all, what was done) after every group.

    Raises:
        PlanError: if `out` holds another plan's record, or a batch does not fit the model.
        InputError: if a batch or an update is not fit for the model; nothing is written then.
    """
    preflight(plan)
    work = groups(plan)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder for the run, got a file")
    folder.mkdir(parents=True, exist_ok=True)
    names = [group.name for group in work]
    advice = [ADVICE_GROUP] if plan.layers else []
    with RecordWriter(folder / "record.jsonl", _header(plan, [*names, *advice, VERDICT_GROUP])) as writer:
        check_private_data(plan, folder)
        failed = [name for name in names if any(line.get("status") == "failed" for line in writer.lines(name))]
        writer.drop(failed)
        missing = set(writer.missing(names))
        if missing:
            writer.drop([ADVICE_GROUP, VERDICT_GROUP])
        todo = [group for group in work if group.name in missing]
        for group in work:
            if group.name not in missing:
                # A kill may have come between the line and this.
                clear_states(group, folder)
        done = len(work) - len(todo)
        if progress is not None:
            progress(done, len(work), "resumed" if done else "started")
        for group, lines in _execute(plan, folder, todo, jobs=_jobs(jobs)):
            writer.write_group(group.name, lines)
            if not any(line.get("status") == "failed" for line in lines):
                # What failed is tried again by the next run, from the state it has.
                clear_states(group, folder)
            done += 1
            if progress is not None:
                progress(done, len(work), group.headline)
        every = [line for name in names for line in writer.lines(name)]
        if writer.missing(advice):
            writer.write_group(ADVICE_GROUP, advice_lines(plan, every))
        if writer.missing([VERDICT_GROUP]):
            verdicts = [{"type": "verdict", **verdict.to_dict()} for verdict in judge(every, plan.thresholds)]
            if verdicts:
                writer.write_group(VERDICT_GROUP, verdicts)
        writer.finish()
    return Record.load(folder)


def preflight(plan: Plan) -> None:
    """Refuse in one line what would otherwise fail in the middle of a run; nothing is written.

    Raises:
        InputError: if a batch does not fit the model, the loss or its own domain, or the model holds the batch.
        UnsupportedError: if the model has no gradient that gradleak can compute.
        InconsistentUpdateError: if a given update does not fit the model.
    """
    objective = plan.objective
    for batch in plan.batches:
        objective.check(batch.to(objective.dtype))
        pixels_of_truth(batch)
        held = objective.holds(batch.inputs)
        if held is not None:
            raise InputError(
                f"model: expected no private data inside the model, but {held} holds the audited inputs (a stored "
                "activation of an earlier forward pass); clear it before the audit"
            )
    for measure in plan.measures:
        public = measure.public_inputs if isinstance(measure, SettingMeasure) else None
        shared = 0 if public is None else int(held_privately(public, plan.batches).sum())
        if shared:
            raise InputError(
                f"{type(measure).__name__}.public: expected examples that the client does not hold, got {shared} of the "
                "private ones among them; take them out"
            )
    if plan.utility is not None:
        plan.utility.check({scenario.name: scenario.release for scenario in plan.scenarios})
    for name, game in plan.inference.items():
        game.check(name)
    for name, audited in plan.privacy.items():
        audited.check(name, {scenario.name: scenario.release for scenario in plan.scenarios})
    for name, chosen in plan.layers.items():
        releases = {scenario.name: scenario.release for scenario in plan.scenarios}
        chosen.check(name, objective, releases, seed=plan.seed)
    for scenario in plan.scenarios:
        for update in scenario.updates.values():
            update.align(objective)
        if not scenario.examples:
            continue
        first = plan.batches[scenario.examples[0]].to(objective.dtype)
        try:
            scenario.release.mean(objective, objective.params, first)
        except GradleakError:
            raise
        except (RuntimeError, NotImplementedError, TypeError) as error:
            raise UnsupportedError(
                f"the release of scenario {scenario.name!r} cannot be computed for this model "
                f"({' '.join(str(error).split())[:300]}); an operation in it may not support differentiation"
            ) from error


def estimate(plan: Plan) -> float:
    """The expected cost of a plan in plain gradients of its model.

    From the attacks' and setting measures' own rules, d for the risk, and a check of every derivative. Attacks come with
    their controls (one draw of noise; the planted leak in gradients of its own small model) and, behind a generator, with
    the check of each claim.
    """
    maps = {
        (str(quiet(scenario.release, plan.objective).describe()), index)
        for scenario in plan.scenarios
        for index in scenario.examples
    }
    total = CHECK_COST * len(maps) + (0 if plan.utility is None else plan.utility.estimate(len(plan.scenarios)))
    for game in plan.inference.values():
        total += game.estimate(sum(game.against(scenario.name) for scenario in plan.scenarios))
    for audited in plan.privacy.values():
        total += audited.estimate(sum(audited.against(scenario.name) for scenario in plan.scenarios))
    for chosen in plan.layers.values():
        many = sum(chosen.against(scenario.name) for scenario in plan.scenarios)
        total += chosen.estimate(many, plan.objective, null=plan.controls.negative)
    about_settings = [measure for measure in plan.measures if isinstance(measure, SettingMeasure)]
    total += controls_estimate(plan)
    for scenario in plan.scenarios:
        for index in same_labels(plan, scenario) if about_settings else ():
            size = plan.batches[index].inputs.numel()
            total += sum(measure.estimate(size) for measure in about_settings)
            total += CHECK_COST if any(measure.reads_derivative for measure in about_settings) else 0.0
        for index in scenario.examples:
            total += 0.3 * plan.batches[index].inputs.numel()
        for name, examples in scenario.attacks.items():
            for index, withheld in itertools.product(examples, plan.withheld(scenario, name)):
                try:
                    total += attack_estimate(plan, name, scenario, index, withheld=withheld)
                except GradleakError:
                    continue
    return total


def _execute(plan: Plan, folder: Path, todo: Sequence[Group], *, jobs: int) -> Iterator[tuple[Group, list[Line]]]:
    """Pairs of group and lines as they are done, so that a kill loses only what is being computed."""
    if jobs == 1 or len(todo) <= 1:
        with one_thread():
            for group in todo:
                yield group, _work(group, plan, folder)
        return
    with parallel_config(backend="loky", inner_max_num_threads=1):
        yield from Parallel(n_jobs=min(jobs, len(todo)), return_as="generator_unordered")(
            delayed(_work_alone)(group, plan, folder) for group in todo
        )


def _work_alone(group: Group, plan: Plan, folder: Path) -> tuple[Group, list[Line]]:
    torch.set_num_threads(1)
    return group, _work(group, plan, folder)


def _work(group: Group, plan: Plan, folder: Path) -> list[Line]:
    """The lines of a group; whatever goes wrong becomes a failed item, so that the rest of the run goes on.

    The text of an unknown error can hold private values, so that it goes into a file beside the record.
    """
    try:
        return group.work(plan, folder)
    except Exception as error:  # the one broad except of the package: the traceback is kept, the item is marked
        place = traceback.extract_tb(error.__traceback__)[-1]
        kept = Path("failures") / f"{file_name(group.name)}.txt"
        (folder / kept).parent.mkdir(parents=True, exist_ok=True)
        (folder / kept).write_text(traceback.format_exc(), encoding="utf-8")
        return [
            {
                "type": "item",
                "item": group.name.removeprefix("attack/"),
                "kind": group.name.split("/")[0],
                "status": "failed",
                "outcome": Outcome.FAILED.label,
                "passed": None,
                "note": f"{type(error).__name__} in {Path(place.filename).name}, {place.name}; see {kept.as_posix()}",
                **_place(group),
            }
        ]


def _place(group: Group) -> Line:
    work = group.work
    names = {"scenario": "scenario", "example": "index", "attack": "attack"}
    names |= {"setting": "layers", "measure": "label"} if hasattr(work, "layers") else {}
    place = {key: getattr(work, attribute, None) for key, attribute in names.items()}
    owners = {"game_name": getattr(work, "game", None), "audit_name": getattr(work, "audit", None)}
    place |= {key: name for key, name in owners.items() if name is not None}
    return place | ({"adversary": Adversary.STATIC.value} if getattr(work, "withheld", False) else {})


def _jobs(jobs: int | None) -> int:
    if jobs is None:
        return os.cpu_count() or 1
    if jobs < 1:
        raise InputError(f"jobs: expected a whole number of at least 1, got {jobs}")
    return jobs


def _header(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    resolved = plan.resolved()
    return {
        "gradleak": metadata.version("gradleak"),
        "plan_digest": plan.digest(),
        "name": plan.name,
        "seed": plan.seed,
        "plan": resolved,
        "thresholds": {
            "pixel_rmse": plan.thresholds.pixel_rmse,
            "baseline_ratio": plan.thresholds.baseline_ratio,
            "reconstruction_probability": plan.thresholds.reconstruction_probability,
            "advantage": plan.thresholds.advantage,
            "epsilon": plan.thresholds.epsilon,
        },
        "groups": list(names),
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", "scipy")}
        | {"python": platform.python_version()},
        "host": {"system": platform.platform(), "cores": os.cpu_count(), "command": " ".join(sys.argv)},
        "device": str(plan.objective.device),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": _git_commit(),
        "threads": 1,
        "estimate": {"plain_gradients": estimate(plan)},
        "refusals": [refusal.to_dict() for refusal in refusals(plan)],
        "citations": [_citation(citation) for citation in _citations(plan)],
    }


def _citations(plan: Plan) -> list[Citation]:
    sources: list[Any] = [*plan.attacks.values(), *plan.measures]
    for game in plan.inference.values():
        parts = (getattr(game.game, name, None) for name in ("features", "adversary", "encoder"))
        sources += [game.game, *parts]
    for audited in plan.privacy.values():
        sources += [audited.audit, *audited.pairs.values(), *audited.reading, getattr(audited.audit, "canary", None)]
    for chosen in plan.layers.values():
        sources += chosen.audit.measures
        sources += [part for measure in chosen.audit.measures for part in measure.layer_parts]
    for scenario in plan.scenarios:
        sources += [scenario.release.protocol, *scenario.release.defenses, scenario.perturbation]
    averaged = [
        getattr(attack, "local_training", None) == LocalTraining.AVERAGE_GRADIENT for attack in plan.attacks.values()
    ]
    sources += [AverageGradient] if any(averaged) else []
    found: dict[str, Citation] = {}
    for source in sources:
        for citation in getattr(source, "citations", ()):
            found[citation.key] = citation
    return list(found.values())


def _citation(citation: Citation) -> dict[str, str]:
    return {"key": citation.key, "text": citation.text(), "bibtex": citation.bibtex()}


def _git_commit() -> str | None:
    """The commit of the folder the run was started in, or None outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None


__all__ = ["estimate", "run_plan"]
