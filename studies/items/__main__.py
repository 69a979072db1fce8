"""`python -m studies.items [RECORD.json ...]`: keep new records, and write the page "What holds" again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradleak.cli.process import carry_out
from studies.items import PAPERS, keep, page, records
from studies.items.page import PAGE
from studies.runner import known_studies


def write(
    new: Annotated[
        list[Path] | None, typer.Argument(help="JSON files of studies to keep: NAME.json or NAME-VARIANT.json.")
    ] = None,
) -> None:
    """Keep new records without their details, and write docs/explanation/what-holds.md again."""
    for path in new or []:
        typer.echo(str(keep(path)))
    PAGE.write_text(page(PAPERS, records(), known_studies()), encoding="utf-8")
    typer.echo(str(PAGE))


if __name__ == "__main__":
    carry_out(lambda: typer.run(write))
