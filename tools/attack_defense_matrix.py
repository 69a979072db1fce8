"""Matrix of attacks and defenses, as a page for the documentation.

    python -m tools.attack_defense_matrix

writes `docs/reference/attack-defense-matrix.md`; a test compares the page with what the attacks say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradleak.auditing.compatibility import MEANINGS, Pair, axes, pairs, reasons

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "attack-defense-matrix.md"


def as_markdown(found: Sequence[Pair]) -> str:
    """The page of the documentation.

    Args:
        found: the matrix.
    """
    places, attacks = axes(found)
    marks = {(pair.attack, pair.place): pair.mark for pair in found}
    cells = {**MEANINGS, "+": "both", "a": "adaptive", "s": "static"}
    lines = [
        "# Which attack runs on which defense",
        "",
        "Asked of every attack of `gradleak list` before anything is computed, on a row of a table behind a small network, or,",
        "if it claims tokens, on a sentence behind a small encoder (`python -m tools.attack_defense_matrix`). A test runs every",
        "pair that is said to run: attacks on tokens then claim nothing wrong as certain, often nothing at all. An *adaptive*",
        "adversary knows the defenses and their constants, a *static* one takes the update for an undefended one. What is",
        "refused is no evidence of safety. Defenses of which only the last place can be read have a second row, with noise",
        "behind them. Labels are given where the loss is not cross entropy (that of the bottleneck). Label attacks are never",
        "refused: they say of an update that it does not identify the labels.",
        "",
        f"| defense | {' | '.join(attacks)} |",
        "| --- |" + " --- |" * len(attacks),
    ]
    lines += [f"| {place} | {' | '.join(cells[marks[attack, place]] for attack in attacks)} |" for place in places]
    lines += ["", "Refused, and why:", ""]
    lines += [f"- {text}" for text in reasons(found, str)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(as_markdown(pairs()), encoding="utf-8")
