"""Damaged plans: each is refused in one line, or it is a plan by the JSON Schema and by what it would cost."""

from __future__ import annotations

import json
import math
import random
import signal
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from gradleak.auditing import estimate, load_plan
from gradleak.auditing.plan_file import build_plan
from gradleak.auditing.plan_schema import plan_schema
from gradleak.results import GradleakError
from tools.fuzz.harness import Fuzzer
from tools.json_schema import faults
from tools.plan_mutants import Content, mutant, plans

# A refusal is read on a terminal.
_LONGEST = 1000
_SECONDS = 30


def case(draw: random.Random, folder: Path) -> str:
    """Read one damaged plan of the examples or the docs."""
    return read_one(mutant(draw, seeds()), folder)


def read_one(text: bytes, folder: Path) -> str:
    """Read a plan, and ask it all that a run asks before it begins.

    Args:
        text: of the plan.
        folder: where it is put.

    Returns:
        "refused" or "taken".

    Raises:
        AssertionError: for a refusal that is not one line, or a plan that is taken against the schema.
    """
    file = folder / "plan.toml"
    file.write_bytes(text)
    try:
        with time_limit(_SECONDS):
            plan = load_plan(file)
            cost, described = estimate(plan), plan.resolved()
            plan.refusals(), plan.digest()
    except GradleakError as refusal:
        check_refusal(refusal)
        return "refused"
    said = list(faults(tomllib.loads(file.read_text(encoding="utf-8")), schema(), schema()))
    assert not said, f"taken, against the schema: {said[:3]}"
    assert math.isfinite(cost), f"taken, at a cost of {cost}"
    json.dumps(described, allow_nan=False, default=str)
    return "taken"


def check_refusal(refusal: GradleakError) -> None:
    """A refusal is one line that a terminal can show, and no memory was tried first."""
    text = str(refusal)
    assert text.isprintable(), f"characters that cannot be seen in {text!r}"
    assert len(text) <= _LONGEST, f"{len(text)} characters: {text[:200]}"
    assert "allocate" not in text, f"memory was asked for: {text}"


class _RangError(BaseException):
    """No code that catches every exception of what it calls keeps this one."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Fail where it takes more than so many seconds of processor time."""

    def ring(*_: object) -> None:
        raise _RangError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    except _RangError:
        raise AssertionError(f"took more than {seconds} s") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@cache
def seeds() -> Sequence[Content]:
    """Plans of the examples and the docs that can be read here: they name no file, and nobody's own code."""
    return [content for content in plans() if _is_plan(content)]


@cache
def schema() -> Mapping[str, Any]:
    """The JSON Schema of plans."""
    return plan_schema()


def _is_plan(content: Content) -> bool:
    try:
        build_plan(content, folder=Path())
    except GradleakError:
        return False
    return True


FUZZER = Fuzzer("plans", case)
