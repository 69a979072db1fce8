"""The registry of the kinds of audits: where the finding, the audit and the page of each are, loaded when needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from gradleak.results.errors import InputError
from gradleak.results.finding import Finding, UnknownFinding

ENTRY_POINTS = "gradleak.kinds"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of audit.

    Attributes:
        name: the key of its tables in a plan, and the `kind` of its findings.
        finding: dotted path "module:Class" of its finding; imports no torch.
        audit: dotted path "module:Class" of its audit.
        page: dotted path "module:function" of its page; imports no torch.
        keys: the top-level keys of a plan file that it reads; none for its name alone.
        always: whether every plan is asked for it, not only one with such a key.
    """

    name: str
    finding: str
    audit: str
    page: str
    keys: tuple[str, ...] = ()
    always: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The top-level keys of a plan file that it reads."""
        return self.keys or (self.name,)

    def load_finding(self) -> type[Finding]:
        """The class of its findings."""
        found: type[Finding] = _load(self.finding)
        return found

    def load_audit(self) -> Any:
        """The class of its audit; this imports torch."""
        return _load(self.audit)

    def load_page(self) -> Any:
        """The function that makes its section of a report."""
        return _load(self.page)


def _own(name: str, stem: str, *keys: str, always: bool = False) -> Kind:
    return Kind(
        name=name,
        finding=f"gradleak.results.findings.{name}:{stem}Finding",
        audit=f"gradleak.audits.{name}:{stem}Audit",
        page=f"gradleak.reporting.pages.{name}:page",
        keys=keys,
        always=always,
    )


_BUILT_IN = (
    _own("released", "Release", "data", always=True),
    _own("reconstruction", "Reconstruction", "attacks"),
    _own("risk", "Risk", "measures", always=True),
    _own("utility", "Utility"),
    _own("inference", "Inference"),
    _own("privacy", "Privacy"),
    _own("layers", "Layers"),
)


@cache
def kinds() -> Mapping[str, Kind]:
    """Every kind by name: those of this package in their order, then those of other packages.

    Another package adds a kind by an entry point of the group "gradleak.kinds" whose object is a `Kind`.

    Raises:
        InputError: if an entry point gives no `Kind`, or one of a name that is taken.
    """
    found = {kind.name: kind for kind in _BUILT_IN}
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda one: one.name):
        kind = entry.load()
        if not isinstance(kind, Kind):
            raise InputError(
                f"entry point {entry.name} = {entry.value}: expected a gradleak.results.Kind, got {kind!r}"
            )
        if kind.name in found:
            raise InputError(f"entry point {entry.name} = {entry.value}: a kind of audit called {kind.name!r} is there")
        found[kind.name] = kind
    return found


def finding_class(kind: str) -> type[Finding]:
    """The class of the findings of a kind; of one that is not known, `UnknownFinding`."""
    known = kinds().get(kind)
    return UnknownFinding if known is None else known.load_finding()


def load_notebook() -> Callable[[Any], str]:
    """The function that shows a record in a notebook; it stands with the reports, which this room does not know."""
    show: Callable[[Any], str] = _load("gradleak.reporting.html:render_notebook")
    return show


def load_report() -> Callable[[Any, Path], Path]:
    """The function that writes the HTML report of a record."""
    write: Callable[[Any, Path], Path] = _load("gradleak.reporting.html:write_html")
    return write


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
