"""Errors a user can act on: each message says what was expected, what came, and what to do, in the same phrases."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any


class GradleakError(Exception):
    """Base of every error that gradleak raises on purpose; the command line prints it as one line."""


class InputError(GradleakError, ValueError):
    """Data, a model or a number does not have the form that was asked for."""


class PlanError(GradleakError, ValueError):
    """A plan file or an argument of `audit` cannot be carried out as written."""


class KnowledgeError(GradleakError):
    """An attack needs something that the threat model does not disclose."""


class UnsupportedError(GradleakError):
    """The combination is understood, but this version cannot compute it."""


class InconsistentUpdateError(GradleakError):
    """A file or an update does not fit the model that it is said to come from."""


class LeakRefusedError(GradleakError):
    """An update was kept back by a leak gate. The message is the same for every update: the reason stays with the client."""

    def __init__(self) -> None:
        super().__init__("gradleak: this update was withheld by the client")


class WriteError(GradleakError, OSError):
    """A file or folder of a run cannot be written: no room, no permission."""


def record_stays(place: object, reason: str) -> PlanError:
    """The refusal to go on with a record, which stays as it is.

    Args:
        place: folder or file of the record.
        reason: of the refusal.
    """
    return PlanError(f"{place}: {reason}; nothing was written. Use another --out, or delete the folder to start over")


LONGEST = 100


def shown(value: Any) -> str:
    """A value as it stands after "got": numbers, texts and small lists themselves, everything else by its class.

    Args:
        value: what a user gave; never more than 100 characters of it are shown.

    Examples:
        >>> shown(1.5), shown("x" * 200)[-8:], shown(object())
        ('1.5', 'xxxx ...', 'object')
    """
    plain = value is None or isinstance(
        value, str | int | float | complex | bytes | list | tuple | set | frozenset | Mapping
    )
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not plain and not isinstance(value, Enum) and not hasattr(value, "__float__"):
        return type(value).__name__
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # of a whole number with more digits than Python prints
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST else text[: LONGEST - 4] + " ..."


def kind_of(value: Any) -> str:
    """The class of a value as it stands after "got"; a class itself is told from an object of it.

    Examples:
        >>> kind_of(1.5), kind_of(float)
        ('float', 'the class float (call it)')
    """
    return f"the class {value.__name__} (call it)" if isinstance(value, type) else type(value).__name__


def one_line(text: str) -> str:
    """A text on one line, without the control characters and marks of direction that a terminal obeys.

    Examples:
        >>> one_line("a" + chr(10) + "b" + chr(27) + "[2J")
        'a b [2J'
    """
    return "".join(sign if sign.isprintable() else " " for sign in " ".join(text.split()))


def either(phrases: Iterable[str]) -> str:
    """Phrases joined by commas and "or".

    Examples:
        >>> either(["a Batch", "a tensor", "None"])
        'a Batch, a tensor or None'
    """
    stated = list(dict.fromkeys(phrase for phrase in phrases if phrase))
    return " or ".join(", ".join(part) for part in (stated[:-1], stated[-1:]) if part)


def with_article(noun: str) -> str:
    """A noun after "a" or "an".

    Examples:
        >>> with_article("ImageGenerator")
        'an ImageGenerator'
    """
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def several(phrase: str) -> str:
    """The plural of what is expected, as it stands after "a list of"; empty for what has none.

    Examples:
        >>> several("a finite number of at least 0"), several("a Defense"), several("one of left, right")
        ('finite numbers of at least 0', 'Defense objects', 'names among left, right')
    """
    article, _, rest = phrase.partition(" ")
    if article == "one":
        return f"names among {rest.removeprefix('of ')}"
    if article not in ("a", "an"):
        return ""
    plural = re.sub(r"\b(number|text|list|function)\b", r"\1s", rest, count=1)
    return plural if plural != rest else f"{rest} objects"


def nearest(name: Any, known: Sequence[str]) -> str:
    """The known name that was probably meant, as a question; empty if none is near.

    Examples:
        >>> nearest("glbal", ["global", "layer"])
        "did you mean 'global'?"
    """
    if not isinstance(name, str):
        return ""
    same = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), same, n=1, cutoff=0.5)
    return f"did you mean {same[near[0]]!r}?" if near else ""


ENTRIES: Mapping[str, str] = {"image": "pixel", "tabular": "feature", "signal": "sample", "tokens": "token"}
ERRORS = ("pixel_rmse", "token_error")
"""The scores that say how near a claim comes to an example, one or the other by the kind of data."""


def entry_noun(kind: str | None) -> str:
    """Noun for one number of an example: "pixel", "feature", "sample" or "token"; "entry" for a kind that is not known.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.

    Examples:
        >>> entry_noun("tabular")
        'feature'
    """
    return ENTRIES.get(kind or "", "entry")


def error_name(kind: str | None) -> str:
    """Name of the error of a reconstruction: root mean squared over entries scaled to [0, 1], or the share of tokens missed.

    The unit of scores in numbers is `pixel_rmse` in every record, whatever the data are.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.

    Examples:
        >>> error_name("tabular")
        'feature RMSE'
    """
    return "token error" if error_score(kind) == "token_error" else f"{entry_noun(kind)} RMSE"


def error_score(kind: str | None) -> str:
    """Name of the score that says how near a claim comes to an example.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.

    Examples:
        >>> error_score("tokens")
        'token_error'
    """
    return ERRORS[kind == "tokens"]


def entries_noun(kind: str | None) -> str:
    """The plural of `entry_noun`.

    Args:
        kind: value of a `DomainKind`; None for data of no stated kind.
    """
    noun = entry_noun(kind)
    return "entries" if noun == "entry" else f"{noun}s"
