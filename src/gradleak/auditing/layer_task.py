"""Measures the layers of an audit, one measure of one release at a time, with shuffled attributes beside them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.auditing.items import Line, item_line
from gradleak.auditing.layer_audit import LayerAudit
from gradleak.auditing.layer_reach import VISIBLE, reaches
from gradleak.auditing.plan import Plan
from gradleak.core import Objective, Release
from gradleak.results import GradleakError, Outcome, Score
from gradleak.risk import LayerProfile


@dataclass(frozen=True)
class LayersTask:
    """The lines of one measure of one scenario: a line a layer, a line a set of visible tensors, and the null control."""

    layers: str
    scenario: str
    label: str

    def __call__(self, plan: Plan, out: Path) -> list[Line]:
        """Item lines, each with its score; those of a measure that reads an attribute are followed by a control."""
        chosen = plan.layers[self.layers]
        scenario = next(scenario for scenario in plan.scenarios if scenario.name == self.scenario)
        return measured(
            chosen.audit,
            self.label,
            plan.objective,
            scenario.release,
            place=(self.layers, self.scenario),
            seed=chosen.seed_of(plan.seed, self.layers),
            null=plan.controls.negative,
        )


def measured(
    audit: LayerAudit,
    label: str,
    objective: Objective,
    release: Release,
    *,
    place: tuple[str, str],
    seed: int,
    null: bool,
) -> list[Line]:
    """The lines of one measure of one release.

    Args:
        audit: rows, measures, groups.
        label: of the measure.
        objective: the client's loss.
        release: protocol and defenses.
        place: names of the section and of the scenario.
        seed: of the section.
        null: whether attributes are shuffled, too.
    """
    setting, scenario = place
    started = time.perf_counter()
    facts = {"setting": setting, "scenario": scenario, **audit.words(label)}
    if audit.rows.domain is not None:
        facts["data_kind"] = str(audit.rows.domain.kind)
    item = f"{scenario}/{setting}/{label}"
    groups = audit.groups(objective)
    profile, refusal = _tried(audit, label, groups, lambda: audit.profile(label, objective, release, seed=seed))
    shuffled: LayerProfile | None = None
    if null and audit.labels[label].reads_told and not refusal:
        shuffled, _ = _tried(audit, label, groups, lambda: audit.null_profile(label, objective, release, seed=seed))
    lines = profile_lines(profile, item, facts, refusal, shuffled)
    if audit.visible:
        sets = {name: one.names for name, one in audit.visible.items()}
        seen, refusal = _tried(audit, label, sets, lambda: audit.visible_profile(label, objective, release, seed=seed))
        lines += profile_lines(seen, f"{item}/visible", facts | {"grouping": VISIBLE}, refusal)
    lines[0]["seconds"] = time.perf_counter() - started
    if shuffled is not None:
        lines.append(_control(shuffled, item, facts))
    return lines


def profile_lines(
    profile: LayerProfile,
    item: str,
    facts: Mapping[str, Any],
    refusal: str = "",
    shuffled: LayerProfile | None = None,
) -> list[Line]:
    """The item lines of a profile, one a layer.

    Args:
        profile: the scores.
        item: their item.
        facts: what every line says besides.
        refusal: why the measure could not be taken, or "".
        shuffled: the same measure on shuffled attributes, or None.
    """
    found, rivals = [], profile.rivals()
    for line in profile.lines(item):
        score = profile.scores[line["layer"]]
        base = item_line(item, "layers", str(facts["scenario"]), None)
        base |= {"outcome": score.outcome.label, "note": score.note, **facts, **line}
        # By paired rows, which enter no record.
        base["rival"] = None if score.value is None else line["layer"] in rivals
        if refusal:
            base["status"] = "refused"
        if shuffled is not None:
            base["null"] = shuffled.scores[line["layer"]].to_dict()
        found.append(base)
    return found


def advice_lines(plan: Plan, lines: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Which layers to protect first, for every section and scenario, from the lines of their profiles.

    A measure that found something about shuffled attributes has no say.

    Args:
        plan: of the run.
        lines: of the record.
    """
    every = list(lines)
    broken = {line.get("control_of") for line in every if line.get("kind") == "control" and line.get("passed") is False}
    rows = [line for line in every if line.get("kind") == "layers" and line.get("score") and line["item"] not in broken]
    found: list[Line] = []
    for name, chosen in plan.layers.items():
        for scenario in plan.scenarios:
            mine = [row for row in rows if row["setting"] == name and row["scenario"] == scenario.name]
            mine = [row for row in mine if row["grouping"] != VISIBLE and row["status"] == "done"]
            place = (name, scenario.name)
            if mine:
                found += advised(chosen.audit, profiles_of(mine), plan.objective, place)
            elif chosen.against(scenario.name):
                found.append(_no_advice(place))
    return found


def advised(
    audit: LayerAudit, profiles: Sequence[LayerProfile], objective: Objective, place: tuple[str, str]
) -> list[Line]:
    """The lines of the advice on one release.

    Args:
        audit: whose budget it is.
        profiles: over the groups of layers.
        objective: the client's loss.
        place: names of the section and of the scenario.
    """
    base = _no_advice(place) | {"status": "done", "outcome": Outcome.CONVERGED.label}
    return [base | line for line in audit.advice(profiles, objective).lines(base["item"])]


def profiles_of(rows: Iterable[Mapping[str, Any]]) -> list[LayerProfile]:
    """The profiles that lines of a record were made of, in their order.

    Args:
        rows: of kind "layers", of one section and grouping.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(str(row["measure"]), []).append(row)
    return [
        LayerProfile(
            measure=measure,
            scores={str(row["layer"]): Score.from_dict(row["score"]) for row in mine},
            groups={str(row["layer"]): tuple(row["tensors"]) for row in mine},
        )
        for measure, mine in found.items()
    ]


def _control(shuffled: LayerProfile, item: str, facts: Mapping[str, Any]) -> Line:
    """Whether the measure finds nothing where nothing is to be found."""
    told = {name: reaches(score, len(shuffled.scores)) for name, score in shuffled.scores.items()}
    known = [one for one in told.values() if one is not None]
    wrong = [name for name, one in told.items() if one]
    lost = [name for name, one in told.items() if one is None]
    notes = [f"found something in {', '.join(wrong)}"] if wrong else []
    notes += [f"no number for {', '.join(lost)}"] if lost else []
    base = item_line(f"control/negative/{item}", "control", None, None)
    return base | {
        "layers_name": facts["setting"],
        "measure": shuffled.measure,
        "control_of": item,
        "outcome": Outcome.CONVERGED.label if known else Outcome.UNSUPPORTED.label,
        "passed": not wrong if known else None,
        "expects": "nothing beyond chance about shuffled attributes",
        "note": "; ".join(notes),
    }


def _no_advice(place: tuple[str, str]) -> Line:
    setting, scenario = place
    base = item_line(f"{scenario}/{setting}/advice", "layer_advice", scenario, None) | {"setting": setting}
    return base | {
        "status": "refused",
        "outcome": Outcome.UNSUPPORTED.label,
        "note": "no layer has a value by any measure, so that none can be advised; that is no evidence of safety",
    }


def _tried(audit: LayerAudit, label: str, groups: Mapping[str, tuple[str, ...]], work: Any) -> tuple[LayerProfile, str]:
    """The profile, or one without values and the reason."""
    try:
        return work(), ""
    except GradleakError as refusal:
        return audit.refused(label, groups, str(refusal)), str(refusal)


__all__ = ["LayersTask", "advice_lines", "advised", "measured", "profile_lines", "profiles_of"]
