"""Meaning of a table `[layers.NAME]` of a plan file: rows, measures of layers, groups of tensors, and what may be visible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from gradleak.audits.base import Reader, chosen_scenarios, list_of, table_of, typed, unknown
from gradleak.audits.layers.rows import Told
from gradleak.core import Batch, Domain, Objective
from gradleak.data import Population, Table
from gradleak.results import Count, GradleakError, PlanError, Share
from gradleak.results.errors import shown
from gradleak.risk import Consecutive, Partition, VisibleLayers, what_ifs
from gradleak.risk.layer_exposure import Grouping

# Where a plan states what a measure would otherwise be given.
ELSEWHERE: Mapping[str, str] = {"by": "by of the section", "threat_model": "[threat]"}
# What cuts a table into inputs, target and attribute.
OF_TABLE = ("target", "keep_attribute", "without")
# Numbers of a table: their types, and what they are where it does not say so.
NUMBERS: Sequence[tuple[str, Any, Any]] = (
    ("count", Count | None, 1000),
    ("batch_size", Count, 1),
    ("releases", Count | None, None),
    ("budget", Share, 0.1),
)
KEYS = ("data", "attribute", "value", "measures", "by", "visible", "scenarios", *(name for name, _, _ in NUMBERS))


def settings_of(table: Mapping[str, Any], reader: Reader, where: str) -> dict[str, Any]:
    """The settings of a `LayersAudit` by name.

    Args:
        table: of the plan.
        reader: makes objects of tables, and knows the plan's own batches.
        where: what to call the table in messages.

    Raises:
        PlanError: in one line that names the place.
    """
    reader.keys(table, [*KEYS, *OF_TABLE], where)
    rows, told = _rows(reader, table, where)
    domain = rows.domain or Domain.guess(rows.inputs)
    value = table.get("value")
    if not isinstance(value, str | int | None):
        raise PlanError(f"{where}.value: expected the name or number of a value, got {shown(value)}")
    private = [*reader.private, Batch(rows.inputs, rows.targets, domain)]
    return {
        "rows": rows,
        "told": told,
        "value": value,
        **{name: typed(hint, table.get(name, given), f"{where}.{name}") for name, hint, given in NUMBERS},
        "measures": _measures(reader.holding(private), table, where),
        "by": _grouping(table.get("by", "layer"), f"{where}.by"),
        "visible": _visible(table.get("visible"), reader.site.objective, domain, f"{where}.visible"),
        "scenarios": chosen_scenarios(table.get("scenarios", "all"), f"{where}.scenarios"),
    }


def _rows(reader: Reader, table: Mapping[str, Any], where: str) -> tuple[Population | Batch, Told]:
    """The rows, and whether a sensitive variable of theirs, the label or the inputs are told."""
    attribute = typed(str, table.get("attribute", "sensitive"), f"{where}.attribute")
    found: Any = _together(reader.private) if reader.private else None
    if "data" in table:
        found = reader.build(table["data"], "datasets", f"{where}.data")
        found = Batch(*found) if isinstance(found, tuple) and len(found) == 2 else found
    if found is None:
        raise PlanError(f"{where}: expected data = {{ use = ... }}, or a section [data], got neither")
    if isinstance(found, Table):
        return _of_table(found, attribute, table, where)
    if not isinstance(found, Population | Batch):
        what = table_of(table["data"], where)["use"]
        raise PlanError(
            f"{where}.data: expected {what} to return a Batch, a Population or a Table, got {type(found).__name__}"
        )
    given = [key for key in OF_TABLE if key in table]
    if given:
        raise PlanError(f"{where}: unknown key {given[0]!r}; it cuts a table, and these data are not a table")
    if attribute not in tuple(Told):
        has = "carry none" if found.sensitive is None else "carry one"
        raise PlanError(
            f"{where}.attribute: expected 'sensitive' (the variable that the data carry; these {has}), 'label' or 'inputs', got "
            f"{shown(attribute)}; the name of a column needs data that are a table, such as adult_table"
        )
    return found, Told(attribute)


def _of_table(found: Table, attribute: str, table: Mapping[str, Any], where: str) -> tuple[Population, Told]:
    columns = [column.name for column in found.columns]
    if "target" not in table:
        raise PlanError(
            f"{where}: expected target too, the column that the model is trained for, since data is a table"
        )
    target = typed(str, table["target"], f"{where}.target")
    keep = typed(bool, table.get("keep_attribute", True), f"{where}.keep_attribute")
    without = typed(list[str], table.get("without", []), f"{where}.without")
    told = Told.SENSITIVE
    if attribute not in columns:
        if attribute not in (Told.LABEL, Told.INPUTS):
            named = "none" if attribute == Told.SENSITIVE else repr(attribute)
            raise PlanError(
                f"{where}.attribute: expected one of the columns {', '.join(columns)}, or 'label' or 'inputs', got {named}"
            )
        told = Told(attribute)
        # A column that nothing is asked about.
        attribute = next(column.name for column in found.columns if not column.is_number and column.name != target)
    try:
        rows = found.population(target=target, sensitive=attribute, keep_sensitive=keep, without=without)
    except GradleakError as error:
        raise PlanError(f"{where}: {error}") from error
    return rows, told


def _together(batches: Sequence[Batch]) -> Batch:
    """The plan's own rows."""
    import torch

    sensitive = [batch.sensitive for batch in batches if batch.sensitive is not None]
    return Batch(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat([batch.targets for batch in batches]),
        batches[0].domain,
        torch.cat(sensitive) if len(sensitive) == len(batches) else None,
    )


def _measures(reader: Reader, table: Mapping[str, Any], where: str) -> list[Any]:
    specs = reader.tables(table.get("measures", []), f"{where}.measures")
    reader = reader.widened("layer measures", "measures")
    if not specs:
        names = ", ".join(reader.names("layer measures"))
        raise PlanError(f"{where}: expected measures = [{{ use = ... }}], each one of {names}")
    found = []
    for number, spec in enumerate(specs):
        place = f"{where}.measures[{number}]"
        for key, elsewhere in ELSEWHERE.items():
            if key in reader.table(spec, place):
                raise PlanError(f"{place}: unknown key {key!r}; it is taken from {elsewhere}")
        found.append(reader.build(spec, "layer measures", place))
    return found


def _grouping(value: Any, where: str) -> Grouping:
    """`tensor`, `layer`, `{ consecutive = 2 }`, or groups by name."""
    if isinstance(value, Mapping):
        if list(value) == ["consecutive"] and not isinstance(value["consecutive"], list):
            count = typed(int, value["consecutive"], f"{where}.consecutive")
            try:
                return Consecutive(count=count)
            except GradleakError as error:
                raise PlanError(f"{where}: {error}") from error
        wrong = next((name for name, members in value.items() if not _strings(members)), None)
        if wrong is not None:
            hint = "; did you mean 'consecutive'?" if get_close_matches(wrong, ["consecutive"]) else ""
            raise PlanError(
                f'{where}: expected {{ consecutive = 2 }}, or groups of layers such as {{ head = ["4"] }}, got {wrong!r} = '
                f"{shown(value[wrong])}{hint}"
            )
        return {name: list(members) for name, members in value.items()}
    if value not in tuple(Partition):
        raise PlanError(
            f"{where}: expected {' or '.join(repr(str(one)) for one in Partition)}, {{ consecutive = 2 }}, or groups such as "
            f'{{ head = ["4"] }}, got {shown(value)}'
        )
    return Partition(value)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _visible(value: Any, objective: Objective, domain: Domain, where: str) -> dict[str, VisibleLayers]:
    """All usual sets, some of them by name, or sets of one's own: layers that are seen, or `{ hide = [...] }`."""
    if value is None:
        return {}
    try:
        if not isinstance(value, list | str):
            return {name: _set(spec, objective, f"{where}.{name}") for name, spec in table_of(value, where).items()}
        usual = what_ifs(objective, domain)
    except PlanError:
        raise
    except GradleakError as error:
        raise PlanError(f"{where}: {error}") from error
    if value == "all":
        return usual
    chosen: list[str] = typed(list[str], value, where)
    for name in chosen:
        if name not in usual:
            raise PlanError(f"{where}: {_no_set(name, usual)}")
    return {name: usual[name] for name in chosen}


def _set(spec: Any, objective: Objective, where: str) -> VisibleLayers:
    if isinstance(spec, Mapping):
        if list(spec) != ["hide"]:
            raise PlanError(f'{where}: expected a list of layers, or {{ hide = ["0"] }}, got {shown(dict(spec))}')
        return VisibleLayers.hiding(objective, *typed(list[str], spec["hide"], f"{where}.hide"))
    return VisibleLayers.of(objective, *typed(list[str], list_of(spec, where), where))


def _no_set(name: str, usual: Mapping[str, VisibleLayers]) -> str:
    if name == "all but the embedding":
        return f"{name!r} needs a model with an embedding, and this one has none; expected one of {', '.join(usual)}"
    if name in ("last bias", "last layer", "biases", "first layer in an enclave", "last layer in an enclave"):
        return (
            f"this model has no set {name!r}, or it equals another one of {', '.join(usual)}; name sets of your own as "
            '{ NAME = ["layer"] }'
        )
    return unknown("set", name, usual)
