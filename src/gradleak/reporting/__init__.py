"""Reports from a record: an HTML page for people, Markdown, one JSON document for machines, JUnit and SARIF for CI."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradleak.reporting.ci import write_junit, write_sarif
    from gradleak.reporting.document import write_json
    from gradleak.reporting.html import write_html
    from gradleak.reporting.markdown import write_markdown

_RENDERERS = {
    "write_html": "html",
    "write_json": "document",
    "write_junit": "ci",
    "write_markdown": "markdown",
    "write_sarif": "ci",
}


def __getattr__(name: str) -> Any:
    """A writer, loaded with its renderer when it is asked for."""
    if name not in _RENDERERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_RENDERERS[name]}"), name)


__all__ = ["write_html", "write_json", "write_junit", "write_markdown", "write_sarif"]
