"""Files that a command leaves: reports in each format, and what they must not replace."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from gradleak.results import InputError, Record
from gradleak.results.files import make_folder


class Format(StrEnum):
    """Formats of a report."""

    HTML = "html"
    MARKDOWN = "markdown"
    JSON = "json"


SUFFIXES = {Format.HTML: ".html", Format.MARKDOWN: ".md", Format.JSON: ".json"}
RECORD = "record.jsonl"


def format_of(file: Path) -> Format:
    """The format that the name of a file asks for; html where it says nothing.

    Args:
        file: to write.
    """
    return next((one for one, suffix in SUFFIXES.items() if suffix == file.suffix.lower()), Format.HTML)


def write_report(record: Record, target: Path, format_: Format, *, per_record: bool = False) -> None:
    """Write the report of a record in a format.

    Args:
        record: of the run.
        target: the file.
        format_: of it.
        per_record: whether a JSON document has every row.
    """
    from gradleak.reporting import write_html, write_json, write_markdown

    if format_ is Format.JSON:
        write_json(record, target, per_record=per_record)
    else:
        (write_html if format_ is Format.HTML else write_markdown)(record, target)


def place_for(file: Path, flag: str, *read: Path) -> Path:
    """A file to write, in a folder that is there, that replaces nothing which the command reads, and no record.

    Args:
        file: that was named.
        flag: by which it was named.
        read: files of the command.

    Raises:
        InputError: where it would replace one of them, or is a folder.
    """
    if file.is_dir():
        raise InputError(f"{flag}: expected the name of a file, got the folder {file}")
    if file.name == RECORD or any(one.exists() and file.exists() and one.samefile(file) for one in read):
        raise InputError(f"{flag}: expected another file than the record or plan that it would replace, got {file}")
    make_folder(file.parent)
    return file


def check_folder(out: Path) -> None:
    """Refuse a folder in which the reports of a first run would replace files of somebody else.

    Args:
        out: folder of the run.

    Raises:
        InputError: naming them.
    """
    there = [name for name in (f"report{suffix}" for suffix in SUFFIXES.values()) if (out / name).exists()]
    if there and not (out / RECORD).exists():
        raise InputError(
            f"{out}: expected a new folder or that of a run, got one without a record and with {', '.join(there)}, which the "
            "reports would replace; name another --out, or move them away"
        )
