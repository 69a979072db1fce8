"""The check of words: its pairs, phrases that run over lines, and the project itself."""

from __future__ import annotations

import pytest

from tools import check_words
from tools.check_words import first_words, main, pairs, phrases

KNOWN = {"hangs on": "depends on", "that is none": "another"}


@pytest.mark.parametrize(
    "text",
    [
        "It hangs on the seed.",
        "It hangs\non the seed.",
        "# it hangs\n# on the seed",
        'x = (\n    "it hangs "\n    f"on the seed"\n)',
        "Hangs on it",
    ],
)
def test_a_phrase_is_found_over_lines_comments_and_literals(text: str) -> None:
    assert [place for _, place in phrases(text, KNOWN)] == ["hangs on: depends on"]


@pytest.mark.parametrize("text", ["It changes on a whim.", "a field that is None", "hangs.\n\nOn it"])
def test_parts_of_words_and_other_sentences_are_not_found(text: str) -> None:
    assert list(phrases(text, KNOWN)) == []


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    lines = (
        '"""How it goes."""',
        "class A:",
        '    """In which it goes."""',
        "    def b(self):",
        '        """Number of it."""',
    )
    source = "\n".join(lines)
    assert list(first_words(source)) == [
        (1, 'a docstring begins with "How"'),
        (3, 'a docstring begins with "In which"'),
    ]


def test_the_page_holds_pairs_and_the_project_keeps_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(pairs(check_words.PAGE.read_text(encoding="utf-8"))) > 20
    assert main() == 0
    monkeypatch.setattr(check_words, "PAGE", check_words.ROOT / "elsewhere.md")
    assert {path.name for path in check_words.files("docs")} >= {"words.md"}
    assert capsys.readouterr().out == ""
