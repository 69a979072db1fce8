"""The header of a record: what was asked for, by which versions, where, and whose methods it uses."""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from gradleak.auditing.behavior import Behavior
from gradleak.auditing.data_key import DataKey
from gradleak.auditing.fingerprint import Reading
from gradleak.auditing.plan import Plan
from gradleak.auditing.whose_code import STATED
from gradleak.results import Citation
from gradleak.results.score import jsonable
from gradleak.results.versions import version_of


def header(
    plan: Plan, groups: Sequence[str], *, cost: float, reading: Reading, behavior: Behavior, key: DataKey
) -> dict[str, Any]:
    """The run line of a record.

    Args:
        plan: what is done.
        groups: the names of the groups of the record, in their order.
        cost: expected, in plain gradients.
        reading: of the plan.
        behavior: of the plan.
        key: of its private data.
    """
    content = {
        "gradleak": version_of("gradleak"),
        "plan_digest": reading.digest,
        "unread": list(reading.unread),
        "name": plan.site.name,
        "seed": plan.site.seed,
        "plan": plan.resolved(),
        "thresholds": plan.site.thresholds.to_dict(),
        "groups": list(groups),
        # Of all whose code is part of the digest by its name alone.
        "versions": {name: version_of(name) for name in STATED.values()} | {"python": platform.python_version()},
        "host": {"system": platform.platform(), "cores": os.cpu_count(), "command": " ".join(sys.argv)},
        "device": str(plan.site.objective.device),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "git": _git_commit(),
        "threads": 1,
        "estimate": {"plain_gradients": cost},
        "refusals": [str(refusal) for refusal in plan.refusals()],
        "citations": [
            {"key": citation.key, "text": citation.text(), "bibtex": citation.bibtex()} for citation in citations(plan)
        ],
        "behavior": behavior.to_dict(key, secrets.token_hex(8)),
    }
    return key.sealed(jsonable(content))


def citations(plan: Plan) -> list[Citation]:
    """The sources of every method that a plan uses, once each: of its audits' parts, its protocols and its defenses."""
    found: dict[str, Citation] = {}
    parts = [part for audit in plan.audits for part in audit.parts()]
    releases = [scenario.release for scenario in plan.site.scenarios]
    for source in _methods([*parts, *releases], seen=set()):
        for citation in getattr(source, "citations", ()):
            found[citation.key] = citation
    return list(found.values())


def _methods(values: Iterable[Any], seen: set[int]) -> Iterator[Any]:
    """Every object among the values and in their fields, lists and tables, in their order."""
    for value in values:
        if isinstance(value, Mapping):
            yield from _methods(value.values(), seen)
        elif isinstance(value, list | tuple):
            yield from _methods(value, seen)
        elif callable(getattr(type(value), "identity_in_plans", None)):
            # Such as makes models of a plan: not whatever it could read.
            yield from _methods([value.identity_in_plans()], seen)
        elif (is_dataclass(value) or hasattr(value, "citations")) and id(value) not in seen:
            seen.add(id(value))
            yield value
            if is_dataclass(value) and not isinstance(value, type):
                yield from _methods([getattr(value, entry.name) for entry in fields(value)], seen)


def _git_commit() -> str | None:
    """The commit of the folder the run was started in, or None outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
