"""What a table `[privacy.NAME]` of a plan file means: an audit, or a user's own pair of hypotheses a scenario."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradleak.auditing.plan_names import made_by, named
from gradleak.auditing.plan_values import table_of, tables_of, typed
from gradleak.auditing.privacy_plan import PrivacyPlan
from gradleak.core import Objective
from gradleak.data import Population, Table
from gradleak.privacy import HypothesisPair
from gradleak.privacy.lower_bounds import CorrectedThresholdEpsilon, EpsilonEstimator, SplitThresholdEpsilon
from gradleak.results import PlanError

if TYPE_CHECKING:
    from gradleak.auditing.plan import Scenario
    from gradleak.auditing.plan_file import _Builder

# Where a plan states what an audit would otherwise take from a scenario or from the model.
ELSEWHERE: Mapping[str, str] = {
    "model": "[model]",
    "release": "[[scenarios]]",
    "loss": "[objective]",
    "mode": "[objective]",
    "objective": "[model] and [objective]",
}

# What holds the rows of an audit, and what it is.
ROWS: Mapping[str, type] = {"table": Table, "population": Population}


def privacy_plan(
    builder: _Builder,
    table: dict[str, Any],
    training: Mapping[str, Any],
    setting: tuple[Objective, Sequence[Scenario]],
    place: tuple[str, list[str] | None],
) -> PrivacyPlan:
    """The plan of one table.

    Args:
        builder: makes objects of tables.
        table: the keys, without `scenarios`.
        training: model, loss and mode, as an audit takes them.
        setting: the plan's objective and scenarios, for pairs.
        place: what to call the table in messages, and the chosen scenarios or None for all.

    Raises:
        PlanError: in one line that names the place.
    """
    where, chosen = place
    for key, elsewhere in ELSEWHERE.items():
        if key in table:
            raise PlanError(f"{where}: unknown key {key!r}; a privacy audit takes it from {elsewhere}")
    shared = {
        "seeds": typed(int, table.pop("seeds", 1), f"{where}.seeds"),
        "claimed_epsilon": typed(float | None, table.pop("claimed_epsilon", None), f"{where}.claimed_epsilon"),
        "scenarios": chosen,
    }
    delta = typed(float, table.get("delta", 1e-5), f"{where}.delta")
    estimators = _estimators(builder, table, delta, where)
    if "use" not in table:
        raise PlanError(f"{where}: expected a key 'use' that names one of {', '.join(builder.rooms['audits'])}")
    constructor = named(table["use"], "audits", builder.rooms, where)
    kind = made_by(constructor)
    if kind is not None and issubclass(kind, HypothesisPair):
        return _own(builder, table, (delta, estimators), setting, (where, shared))
    for key, made in ROWS.items():
        if key in table:
            table[key] = _rows(builder, table[key], made, f"{where}.{key}")
    canary = table.get("canary")
    if canary is False:
        table["canary"] = None
    elif isinstance(canary, Mapping):
        table["canary"] = {"use": "Canary", **canary}
    return PrivacyPlan(
        audit=builder.build(table | dict(training) | {"estimators": list(estimators)}, "audits", where), **shared
    )


def _rows(builder: _Builder, spec: Any, made: type, where: str) -> Any:
    """The rows that an audit draws from."""
    found = builder.build(spec, "datasets", where)
    if not isinstance(found, made):
        raise PlanError(
            f"{where}: expected {table_of(spec, where)['use']} to return a {made.__name__}, got {type(found).__name__}"
        )
    return found


def _estimators(builder: _Builder, table: dict[str, Any], delta: float, where: str) -> tuple[EpsilonEstimator, ...]:
    """Those of the plan, with its δ and confidence; by default the two bounds that assume nothing."""
    confidence = typed(float, table.pop("confidence", 0.95), f"{where}.confidence")
    specs = tables_of(table.pop("estimators", []), f"{where}.estimators")
    common = {"delta": delta, "confidence": confidence}
    if not specs:
        defaults = (SplitThresholdEpsilon, CorrectedThresholdEpsilon)
        return tuple(builder.call(default, common, where) for default in defaults)
    found = []
    for number, spec in enumerate(specs):
        named_as = f"{where}.estimators[{number}]"
        given = table_of(spec, named_as)
        for key in (*common, "comparisons"):
            if key in given:
                fix = (
                    "the audit counts them itself" if key == "comparisons" else f"write it once, as {key} of [{where}]"
                )
                raise PlanError(f"{named_as}: unknown key {key!r}; {fix}")
        found.append(builder.build({**given, **common}, "estimators", named_as))
    return tuple(found)


def _own(
    builder: _Builder,
    table: dict[str, Any],
    reading: tuple[float, tuple[EpsilonEstimator, ...]],
    setting: tuple[Objective, Sequence[Scenario]],
    place: tuple[str, dict[str, Any]],
) -> PrivacyPlan:
    """A user's own pair, made anew for the release of every scenario where it takes one."""
    (where, shared), (objective, scenarios) = place, setting
    trials = typed(int, table.pop("trials", 5000), f"{where}.trials")
    table.pop("delta", None)
    mine = [one for one in scenarios if shared["scenarios"] is None or one.name in shared["scenarios"]]
    parameters = inspect.signature(named(table["use"], "audits", builder.rooms, where)).parameters
    if "release" not in parameters and len(mine) > 1:
        raise PlanError(
            f"{where}: expected {table['use']} to take a release, which is that of each scenario, or scenarios = [NAME] with "
            f"one of {', '.join(one.name for one in mine)}"
        )
    pairs = {}
    for scenario in mine:
        given = {"release": scenario.release, "objective": objective}
        pairs[scenario.name] = builder.build(
            table | {key: value for key, value in given.items() if key in parameters}, "audits", where
        )
    return PrivacyPlan(
        pairs=pairs,
        trials=trials,
        delta=reading[0],
        estimators=reading[1],
        **shared,
    )


__all__ = ["privacy_plan"]
