"""Writes docs/reference/attack-defense-matrix.md from what every attack says of every defense."""

from __future__ import annotations

from pathlib import Path

from gradleak.auditing.compatibility import as_markdown, pairs

if __name__ == "__main__":
    page = Path(__file__).parent / "reference" / "attack-defense-matrix.md"
    page.write_text(as_markdown(pairs()), encoding="utf-8")
