from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from tests.reporting import toy_kind
from tests.reporting.parsed import Page

from gradleak.reporting.html import render_html
from gradleak.reporting.page import Report, assemble


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The toy kind as one that is installed."""
    registry = sys.modules["gradleak.results.kinds"]
    monkeypatch.setattr(registry, "_BUILT_IN", (*registry._BUILT_IN, toy_kind.KIND))  # type: ignore[attr-defined]
    registry.kinds.cache_clear()  # type: ignore[attr-defined]
    yield
    monkeypatch.undo()
    registry.kinds.cache_clear()  # type: ignore[attr-defined]


@pytest.fixture
def report(toy: None) -> Report:
    return assemble(toy_kind.record())


@pytest.fixture
def page(report: Report) -> Page:
    return Page(render_html(report))
