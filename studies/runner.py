"""The command line of the studies: `python -m studies NAME --out FOLDER --set key=value`, in the root of a checkout."""

from __future__ import annotations

import difflib
import os
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import studies
from gradleak.auditing import configure
from gradleak.results import InputError
from gradleak.results.versions import version_of
from studies import datasets, networks
from studies.items import PAPERS, listing, records
from studies.study import Cost, Say, Study, StudyResult

app = typer.Typer(name="studies", add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


def known_studies() -> dict[str, type[Study]]:
    """Every study by name."""
    found = [getattr(studies, name) for name in studies.__all__]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Study) and kind is not Study]
    return {kind.name: kind for kind in kinds}


def factories() -> dict[str, Callable[..., Any]]:
    """The data sets and networks of the studies, by what a plan in a checkout writes after `use =`."""
    rooms = (datasets, networks)
    return {f"{room.__name__}:{name}": getattr(room, name) for room in rooms for name in room.__all__}


def find_study(name: str) -> type[Study]:
    """The study of this name.

    Raises:
        InputError: naming the nearest.
    """
    known = known_studies()
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InputError(f"study: nothing is called {name!r}{hint}; expected one of {', '.join(known)}")
    return known[name]


def settings(assignments: Sequence[str]) -> dict[str, Any]:
    """`key=value` texts as a table; a value is read as TOML, and as plain text where that fails.

    Raises:
        InputError: for a text without "=".
    """
    table: dict[str, Any] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set: expected key=value, got {text!r}")
        try:
            table[key.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            table[key.strip()] = value
    return table


def timed(study: Study, say: Say) -> StudyResult:
    """The study's result with its cost."""
    began, busy = time.monotonic(), _core_seconds()
    result = study.run(say=say)
    cost = Cost(
        version=version_of("gradleak"),
        date=datetime.now(UTC).date().isoformat(),
        core_seconds=round(_core_seconds() - busy, 1),
        seconds=round(time.monotonic() - began, 1),
    )
    return replace(result, cost=cost)


def _core_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _listed(wanted: bool) -> None:
    if wanted:
        for line in listing(PAPERS, records()):
            typer.echo(line)
        raise typer.Exit


@app.command()
def run(
    name: Annotated[str, typer.Argument(help="Name of a study; `gradleak list` prints them.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME.md and NAME.json.")],
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting, for instance --set count=10.")] = None,
    seed: Annotated[int, typer.Option(help="What the study's own seed is derived from, with its name.")] = 0,
    _list: Annotated[
        bool,
        typer.Option(
            "--list",
            callback=_listed,
            is_eager=True,
            help="Print every item of the papers, whether it holds, and its studies.",
        ),
    ] = False,
) -> None:
    """Compute a paper's table or figure again, with the paper's value beside ours."""
    given = settings(set_ or [])
    if "seed" in given:
        raise InputError(
            "--set seed: the seed is no setting of --set; give --seed N, from which the study's own is derived"
        )
    chosen: Study = configure(find_study(name), given, where=f"study {name}", seed=seed)
    result = timed(chosen, lambda line: typer.echo(line, err=True))
    for line in result.conclusion:
        typer.echo(line)
    typer.echo(str(result.write(out)))


__all__ = ["app", "factories", "find_study", "known_studies", "settings", "timed"]
