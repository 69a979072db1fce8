"""Matrix of attacks and defenses, as a page for the documentation.

    python -m tools.attack_defense_matrix

writes `docs/reference/attack-defense-matrix.md`; a test compares the page with what the attacks say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradleak.auditing.compatibility import MEANINGS, Pair, axes, pairs, reasons

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "attack-defense-matrix.md"


_TITLES = {
    False: ("On a row of a table", "Behind a small sigmoid network."),
    True: (
        "On a sentence",
        "Through a small encoder. `GaussNewton` and `Inversion(variables=Embeddings())` search the embeddings of the words.\n"
        "Attacks on text claim nothing wrong as certain here, and often nothing at all.",
    ),
}


def as_markdown(found: Sequence[Pair]) -> str:
    """The page of the documentation.

    Args:
        found: the matrix.
    """
    cells = {**MEANINGS, "+": "both", "a": "adaptive", "s": "static"}
    lines = [
        "# Which attack runs on which defense",
        "",
        "Asked of every attack of `gradleak list` before anything is computed (`python -m tools.attack_defense_matrix`). A test",
        "runs every pair that is said to run. An *adaptive* adversary knows the defenses and their constants, a *static* one",
        "takes the update for an undefended one; *both* run. What is refused is no evidence of safety, and what runs may find",
        "nothing: what attacks get is [measured](../explanation/defenses-measured.md), also [of text](../explanation/text.md).",
        "Defenses of which only the last place can be read have a second row, with noise behind them. Labels are given where the",
        "loss is not cross entropy (that of the bottleneck). Label attacks are never refused: they say of an update that it does",
        "not identify the labels.",
    ]
    for sentence, (title, text) in _TITLES.items():
        places, _ = axes(found)
        asked = [pair for pair in found if pair.sentence is sentence]
        attacks = list(dict.fromkeys(pair.attack for pair in asked))
        marks = {(pair.attack, pair.place): cells[pair.mark] for pair in asked}
        lines += ["", f"## {title}", "", text, "", f"| defense | {' | '.join(attacks)} |"]
        lines += ["| --- |" + " --- |" * len(attacks)]
        lines += [f"| {place} | {' | '.join(marks[attack, place] for attack in attacks)} |" for place in places]
    lines += ["", "## Refused, and why", ""]
    lines += [f"- {text}" for text in reasons(found, str)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(as_markdown(pairs()), encoding="utf-8")
