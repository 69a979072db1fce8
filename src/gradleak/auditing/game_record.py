"""Results of games that were played in Python, as a record that reports are made from."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from gradleak.auditing.inference_plan import SWEPT
from gradleak.auditing.verdict import Thresholds, judge
from gradleak.games import GameResult
from gradleak.results import LI_2024, InputError, Record
from gradleak.results.record import SCHEMA

Line = dict[str, Any]


def record_games(
    results: GameResult | Mapping[str, GameResult | Sequence[GameResult]],
    *,
    name: str = "inference games",
    thresholds: Thresholds | None = None,
) -> Record:
    """The record of games that were already played, with their verdicts: what `write_html` and its like take.

    No posterior of a trial, no truth and no row is in it. Controls are not: an audit by a plan plays two of every game, in
    Python `null_control` and `planted_control` do.

    Args:
        results: one result; or results by scenario, the release that they were played against in words ("undefended",
            "signs"), which stand side by side. Several of one scenario that differ in batch size or public rows alone make
            lines of the plots over these.
        name: of the record.
        thresholds: when a game counts as *bounded*.

    Returns:
        The record, in memory.

    Raises:
        InputError: without a result.
    """
    given = {"release": results} if isinstance(results, GameResult) else dict(results)
    chosen = thresholds or Thresholds()
    groups: dict[str, list[Line]] = {}
    for scenario, played in given.items():
        several = [played] if isinstance(played, GameResult) else list(played)
        for result in several:
            label = result.population if len(several) == 1 else ", ".join([result.population, *_sizes(result)])
            taken = [label, *(f"{label}, {number}" for number in range(2, len(groups) + 2))]
            label = next(free for free in taken if f"{scenario}/{free}" not in groups)
            groups[f"{scenario}/{label}"] = _lines(result, scenario, label)
    if not groups:
        raise InputError("record_games: expected at least one result, got none")
    lines = [line for group in groups.values() for line in group]
    groups["verdicts"] = [{"type": "verdict", **verdict.to_dict()} for verdict in judge(lines, chosen)]
    return Record(
        run={
            "type": "run",
            "schema": SCHEMA,
            "gradleak": metadata.version("gradleak"),
            "name": name,
            "seed": next(iter(groups.values()))[0]["runs"][0]["seed"],
            "thresholds": {"advantage": chosen.advantage},
            "groups": list(groups),
            "versions": {part: metadata.version(part) for part in ("torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "citations": [{"key": LI_2024.key, "text": LI_2024.text(), "bibtex": LI_2024.bibtex()}],
        },
        lines=tuple(
            {**line, "group": group, "line": place, "of": len(rows)}
            for group, rows in groups.items()
            for place, line in enumerate(rows)
        ),
    )


def _lines(result: GameResult, scenario: str, label: str) -> list[Line]:
    facts = {"scenario": scenario, "game_name": label}
    return [
        line | facts | ({"kind": "inference"} if line["type"] == "item" else {})
        for line in result.lines(f"{scenario}/{label}")
    ]


def _sizes(result: GameResult) -> list[str]:
    """What tells it from the others of its scenario."""
    return [text.format(result.game[key]) for key, text in SWEPT.items() if key in result.game]


__all__ = ["record_games"]
