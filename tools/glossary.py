"""Page of the documentation with the terms of reports, made of their tooltips: `python -m tools.glossary`."""

from __future__ import annotations

from pathlib import Path

from gradleak.reporting.words import glossary_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "explanation" / "glossary.md"

if __name__ == "__main__":
    PAGE.write_text(glossary_page(), encoding="utf-8")
