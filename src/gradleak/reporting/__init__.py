"""Reports from a record: an HTML page for people, Markdown, and one JSON document for machines."""

from gradleak.reporting.document import write_json
from gradleak.reporting.html import write_html
from gradleak.reporting.markdown import write_markdown

__all__ = ["write_html", "write_json", "write_markdown"]
