"""The Heritage Health Prize claims in their public format, for inference games about sex or age."""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from gradleak.data import Column, ColumnKind, Population, Table
from gradleak.results import InputError

_UNKNOWN = "unknown"
_AGES = ("0-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "70-79", "80+", _UNKNOWN)
_SEXES = ("F", "M", _UNKNOWN)
_COUNTED = {
    "providers": "ProviderID",
    "vendors": "Vendor",
    "physicians": "PCP",
    "specialties": "Specialty",
    "places": "PlaceSvc",
    "conditions": "PrimaryConditionGroup",
    "procedures": "ProcedureGroup",
}
_CHARLSON = ("0", "1-2", "3-4", "5+")
_MOST_CLAIMS = 1000.0


def heritage_health(
    path: str | os.PathLike[str], *, sensitive: str = "sex", keep_sensitive: bool = False, year: str | None = None
) -> Population:
    """Members of the Heritage Health Prize with counts of their claims; Charlson index above zero as target, sex as secret.

    Args:
        path: folder with `Members.csv` and `Claims.csv`; see `heritage_health_table`.
        sensitive: "sex" (female, male or unknown) or "age" (ten groups, unknown among them).
        keep_sensitive: true for attribute inference, where its column is among the 21 inputs; false for a property.
        year: take the claims of one year, "Y1", "Y2" or "Y3"; None for all.

    Raises:
        InputError: for a missing or unfit file, with the line, or a column that has no classes.

    Source:
        Kaggle 2012, "Heritage Health Prize"; Li et al. 2024, section 5.1.1, who do not say how claims become inputs.
    """
    return heritage_health_table(path, year=year).population(
        target="charlson", sensitive=sensitive, keep_sensitive=keep_sensitive
    )


def heritage_health_table(path: str | os.PathLike[str], *, year: str | None = None) -> Table:
    """One row a member with at least one claim: age group, sex, how many claims, and how many different ones of each kind.

    The counts are of different providers, vendors, physicians, specialties, places of service, groups of conditions and
    groups of procedures (empty cells not counted), each on a logarithmic scale up to 1,000. The target "charlson" is ">0"
    where any of the claims has a Charlson index other than 0.

    Args:
        path: folder with `Members.csv` (MemberID, AgeAtFirstClaim, Sex) and `Claims.csv` (MemberID, ProviderID, Vendor, PCP,
            Year, Specialty, PlaceSvc, PrimaryConditionGroup, CharlsonIndex, ProcedureGroup, and others that are not read).
        year: take the claims of one year; None for all.

    Raises:
        InputError: for a missing or unfit file, with the line, a claim of nobody in `Members.csv`, or an unknown
            Charlson index.

    Cost:
        The published 2.7 million claims take about half a minute.
    """
    folder = Path(path)
    members = {}
    for _, row in _rows(folder / "Members.csv", ("MemberID", "AgeAtFirstClaim", "Sex")):
        members[row["MemberID"]] = (row["AgeAtFirstClaim"] or _UNKNOWN, row["Sex"] or _UNKNOWN)
    claims: dict[str, int] = defaultdict(int)
    different: dict[str, set[tuple[str, str]]] = defaultdict(set)
    ill = set()
    for line, row in _rows(folder / "Claims.csv", ("MemberID", "Year", "CharlsonIndex", *_COUNTED.values())):
        member = row["MemberID"]
        if member not in members:
            raise InputError(
                f"{folder / 'Claims.csv'}, line {line}: expected a MemberID of Members.csv, got {member!r}"
            )
        if row["CharlsonIndex"] not in _CHARLSON:
            raise InputError(
                f"{folder / 'Claims.csv'}, line {line}: expected a CharlsonIndex of {', '.join(_CHARLSON)}, got "
                f"{row['CharlsonIndex']!r}"
            )
        if year is not None and row["Year"] != year:
            continue
        claims[member] += 1
        different[member].update((name, row[column]) for name, column in _COUNTED.items() if row[column])
        if row["CharlsonIndex"] != "0":
            ill.add(member)
    if not claims:
        raise InputError(f"{folder / 'Claims.csv'}: expected claims of the year {year or 'any'}, got none")
    rows = []
    for member, count in claims.items():
        kinds = [name for name, _ in different[member]]
        rows.append(
            (*members[member], count, *(kinds.count(name) for name in _COUNTED), ">0" if member in ill else "0")
        )
    columns = (
        Column(name="age", kind=ColumnKind.CATEGORY, values=_AGES),
        Column(name="sex", kind=ColumnKind.CATEGORY, values=_SEXES),
        *(Column(name=name, kind=ColumnKind.AMOUNT, high=_MOST_CLAIMS) for name in ("claims", *_COUNTED)),
        Column(name="charlson", kind=ColumnKind.LABEL, values=("0", ">0")),
    )
    return Table.from_rows(rows, columns=columns, name="heritage health")


def _rows(file: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """The wanted cells of every row, with its line."""
    if not file.is_file():
        raise InputError(f"{file}: expected a CSV file with {', '.join(wanted)}, got no such file")
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines)
        absent = [name for name in wanted if name not in (reader.fieldnames or [])]
        if absent:
            raise InputError(
                f"{file}: expected the columns {', '.join(absent)}, got {', '.join(reader.fieldnames or [])}"
            )
        for row in reader:
            if None in row or any(row[name] is None for name in wanted):
                raise InputError(f"{file}, line {reader.line_num}: expected {len(reader.fieldnames or [])} fields")
            yield reader.line_num, {name: row[name].strip() for name in wanted}


__all__ = ["heritage_health", "heritage_health_table"]
