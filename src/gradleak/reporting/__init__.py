"""Reports from a record: an HTML page for people, Markdown, and one JSON document for machines. Privacy-utility curves, too."""

from gradleak.reporting.html import write_html
from gradleak.reporting.markdown import write_markdown
from gradleak.reporting.summary import write_json
from gradleak.reporting.utility_curve import curve_figure, curve_table

__all__ = ["curve_figure", "curve_table", "write_html", "write_json", "write_markdown"]
