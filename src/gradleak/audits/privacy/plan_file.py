"""Reader of a table `[privacy.NAME]` of a plan file: an audit, or a user's own pair of hypotheses a scenario."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from gradleak.audits.base import Reader, chosen_scenarios
from gradleak.data import Population, Table
from gradleak.privacy import HypothesisPair
from gradleak.privacy.lower_bounds import CorrectedThresholdEpsilon, EpsilonEstimator, SplitThresholdEpsilon
from gradleak.results import Count, PlanError, Positive, Share

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


def settings_of(table: dict[str, Any], reader: Reader, where: str) -> dict[str, Any]:
    """The settings of a `PrivacyAudit` by name.

    Args:
        table: of the plan.
        reader: makes objects of tables.
        where: what to call the table in messages.

    Raises:
        PlanError: in one line that names the place.
    """
    shared = {"scenarios": chosen_scenarios(table.pop("scenarios", "all"), f"{where}.scenarios")}
    for key, elsewhere in ELSEWHERE.items():
        if key in table:
            raise PlanError(f"{where}: unknown key {key!r}; a privacy audit takes it from {elsewhere}")
    shared |= {
        "seeds": reader.typed(Count, table.pop("seeds", 1), f"{where}.seeds"),
        "claimed_epsilon": reader.typed(
            Positive | None, table.pop("claimed_epsilon", None), f"{where}.claimed_epsilon"
        ),
    }
    delta = reader.typed(Share, table.get("delta", 1e-5), f"{where}.delta")
    estimators = _estimators(table, delta, reader, where)
    constructor = reader.named(table, "audits", where)
    made = constructor if inspect.isclass(constructor) else getattr(constructor, "__self__", None)
    if inspect.isclass(made) and issubclass(made, HypothesisPair):
        trials = reader.typed(Count, table.pop("trials", 5000), f"{where}.trials")
        table.pop("delta", None)
        pairs = _pairs(table, constructor, shared["scenarios"], reader, where)
        return shared | {"pairs": pairs, "trials": trials, "delta": delta, "estimators": estimators}
    for key, rows in ROWS.items():
        if key in table:
            table[key] = _rows(table[key], rows, reader, f"{where}.{key}")
    canary = table.get("canary")
    if canary is False:
        table["canary"] = None
    elif isinstance(canary, Mapping):
        table["canary"] = {"use": "Canary", **canary}
    table |= {"model": reader.new_model(), "loss": reader.plan_loss(), "mode": reader.mode}
    return shared | {"audit": reader.build(table | {"estimators": list(estimators)}, "audits", where)}


def _rows(spec: Any, made: type, reader: Reader, where: str) -> Any:
    """The rows that an audit draws from."""
    found = reader.build(spec, "datasets", where, (made,))
    if not isinstance(found, made):
        raise PlanError(
            f"{where}: expected {reader.table(spec, where)['use']} to return a {made.__name__}, got {type(found).__name__}"
        )
    return found


def _estimators(table: dict[str, Any], delta: float, reader: Reader, where: str) -> tuple[EpsilonEstimator, ...]:
    """Those of the plan, with its δ and confidence; by default the two bounds that assume nothing."""
    confidence = reader.typed(float, table.pop("confidence", 0.95), f"{where}.confidence")
    specs = reader.tables(table.pop("estimators", []), f"{where}.estimators")
    common = {"delta": delta, "confidence": confidence}
    if not specs:
        defaults = (SplitThresholdEpsilon, CorrectedThresholdEpsilon)
        return tuple(reader.call(default, common, where) for default in defaults)
    found = []
    for number, spec in enumerate(specs):
        named_as = f"{where}.estimators[{number}]"
        given = reader.table(spec, named_as)
        for key in (*common, "comparisons"):
            if key in given:
                fix = (
                    "the audit counts them itself" if key == "comparisons" else f"write it once, as {key} of [{where}]"
                )
                raise PlanError(f"{named_as}: unknown key {key!r}; {fix}")
        found.append(reader.build({**given, **common}, "estimators", named_as))
    return tuple(found)


def _pairs(
    table: Mapping[str, Any], constructor: Callable[..., Any], chosen: list[str] | None, reader: Reader, where: str
) -> dict[str, HypothesisPair]:
    """A user's own pair, made anew for the release of every scenario where it takes one."""
    mine = [one for one in reader.site.scenarios if chosen is None or one.name in chosen]
    parameters = inspect.signature(constructor).parameters
    if "release" not in parameters and len(mine) > 1:
        raise PlanError(
            f"{where}: expected {table['use']} to take a release, which is that of each scenario, or scenarios = [NAME] with "
            f"one of {', '.join(one.name for one in mine)}"
        )
    pairs = {}
    for scenario in mine:
        given = {"release": scenario.release, "objective": reader.site.objective}
        known = {key: value for key, value in given.items() if key in parameters}
        pairs[scenario.name] = reader.build({**table, **known}, "audits", where)
    return pairs
