"""How a record was made: versions, seed, plan, attacks and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.numerals import as_number, count, duration
from gradleak.reporting.reading import Reading, mapping, sum_of


@dataclass(frozen=True, kw_only=True)
class AttackView:
    """An attack as it was set up.

    Attributes:
        name: its name in the plan.
        use: its class.
        constants: its arguments in words.
        runs: how many releases it was run on.
        plain_gradients: its whole cost in plain gradients, in print.
    """

    name: str
    use: str
    constants: str
    runs: int
    plain_gradients: str


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How a record was made.

    Attributes:
        facts: (label, text) pairs.
        command: how to run it again.
        plan: the resolved plan as JSON text, "" if there is none.
        attacks: the attacks.
    """

    facts: Sequence[tuple[str, str]]
    command: str
    plan: str
    attacks: Sequence[AttackView]


def provenance(reading: Reading) -> Provenance:
    """The provenance of a record.

    Args:
        reading: the sorted lines.
    """
    run = reading.record.run
    host = mapping(run.get("host"))
    items = [line for lines in reading.items.values() for line in lines]
    # What looked at a claim afterwards and has no line of its own stands under "check".
    every = [*items, *(mapping(line.get("check")) for line in items)]
    spent, seconds = sum_of(every, "plain_gradients"), sum_of(every, "seconds")
    planned = as_number(mapping(run.get("estimate")).get("plain_gradients"))
    facts = [
        ("gradleak", _text(run.get("gradleak"))),
        ("Seed", _text(run.get("seed"))),
        ("Plan digest", _text(run.get("plan_digest"))),
        ("Git commit", _text(run.get("git") or run.get("commit"))),
        ("Versions", ", ".join(f"{name} {value}" for name, value in mapping(run.get("versions")).items())),
        ("Threads", _text(run.get("threads"))),
        ("Host", words.constants(host, skip=("command",))),
        ("Started", _text(run.get("started"))),
        ("Cost", f"{count(spent)} plain gradients" if spent is not None else ""),
        ("Estimated before", f"{count(planned)} plain gradients" if planned is not None else ""),
        ("Work time", duration(seconds) if seconds is not None else ""),
        ("Record schema", _text(run.get("schema"))),
    ]
    plan = run.get("plan")
    return Provenance(
        facts=[(label, text) for label, text in facts if text],
        command=_command(str(run.get("command") or host.get("command") or "gradleak audit PLAN.toml --out FOLDER")),
        plan=json.dumps(plan, indent=2, ensure_ascii=False, default=str) if plan else "",
        attacks=_attacks(reading, mapping(mapping(plan).get("attacks"))),
    )


def _attacks(reading: Reading, planned: Mapping[str, Any]) -> list[AttackView]:
    views = []
    lines = reading.of_kind("attack")
    for name in dict.fromkeys([*map(str, planned), *(str(line.get("attack")) for line in lines)]):
        mine = [line for line in lines if str(line.get("attack")) == name]
        config = mapping(planned.get(name)) or next((mapping(line.get("attack_config")) for line in mine), {})
        views.append(
            AttackView(
                name=name,
                use=str(config.get("use", name)),
                constants=words.constants(config),
                runs=len(mine),
                plain_gradients=count(sum_of(mine, "plain_gradients")),
            )
        )
    return views


def _command(text: str) -> str:
    """The command without the folder that its program lies in."""
    program, space, rest = text.partition(" ")
    return f"{PurePath(program).name}{space}{rest}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)
