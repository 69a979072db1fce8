"""Reports from a record: an HTML page for people, Markdown, and one JSON document for machines."""

from gradleak.reporting.html import write_html
from gradleak.reporting.markdown import write_markdown
from gradleak.reporting.summary import write_json

__all__ = ["write_html", "write_json", "write_markdown"]
