"""The table of attacks on text at tiny size."""

from __future__ import annotations

from pathlib import Path

import torch

from gradleak.attacks import LAMP, TAG
from gradleak.core import NO_TOKEN, Reconstruction
from gradleak.results import Outcome
from studies import SentenceTable
from studies.sentence_table import BASE, CELLS, _cell, _lamp, _scored, _tag
from studies.token_decoders import frequent_lines

LINES = [
    "the cat sat on a red mat",
    "a dog ran to the old house",
    "we saw the red house on it",
    "it ran to a cat we saw",
]


def table(tmp_path: Path, **settings: object) -> SentenceTable:
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(LINES * 6), encoding="utf-8")
    return SentenceTable(text=str(text), length=6, lines=20, **settings)


def test_cells_are_run_and_left_out_with_the_reason(tmp_path: Path) -> None:
    tied = "a language model, tied head"
    result = table(tmp_path, budget=7, cells=(BASE, tied)).run(say=lambda line: None)
    shown = {row[0]: dict(zip(result.tables[0].columns, row, strict=True)) for row in result.tables[0].rows}
    assert list(shown) == [BASE, tied]
    assert shown[BASE]["SpanSearch"].startswith("1 of 1, 1.00; ")
    assert shown[BASE]["TokenRows"] == "1 of 1, 1.00; 1"
    assert shown[BASE]["LAMP"] == "not run"
    assert shown[tied]["SpanSearch"].startswith("1 of 1, 1.00; ")
    # Its targets are its words: nobody has to tell them.
    assert all(shown[tied][name].startswith("0 of 1, ") for name in ("TAG", "GaussNewton"))
    notes = {finding.quantity: finding.note for finding in result.findings}
    assert notes[f"{BASE}, LAMP: share of sentences exact"].startswith("not run: its least search is beyond 7 plain")
    assert all(
        row["plain_gradients"] <= 7
        for row in result.details["rows"]
        if row["attack"] in ("TAG", "GaussNewton") and "exact" in row
    )


def test_a_budget_buys_what_the_estimate_says(tmp_path: Path) -> None:
    study = table(tmp_path)
    ids, vocabulary = frequent_lines(study.text, 20, 6)
    _, knowledge, _ = study._case(CELLS[0], ids, vocabulary, 0)
    for attack, fit in ((TAG(), _tag), (LAMP(), _lamp)):
        fitted = fit(attack, knowledge, 500)
        assert 400 < fitted.estimate(knowledge) <= 500


def test_wrong_sentences_count_where_they_are_sold_as_certain() -> None:
    claim = torch.tensor([[1, 2, 3, NO_TOKEN], [4, 5, 6, 7]])
    for outcome, wrong in ((Outcome.CONVERGED, 1), (Outcome.BUDGET_SPENT, 0)):
        found = Reconstruction(inputs=None, targets=None, loss=None, outcome=outcome, plain_gradients=3.0, tokens=claim)
        row = _scored([found], [[[4, 5, 6, 8], [1, 2, 3]]])
        assert (row["exact"], row["sentences"], row["in_place"], row["wrong"]) == (1, 2, 0.875, wrong)
        assert _cell(row) == f"1 of 2, 0.88{', 1 wrong' if wrong else ''}; 3"
