"""Check of the words: phrases that docs/explanation/words.md replaces, and first words of docstrings.

    python -m tools.check_words

prints each place and fails where there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "words.md"
# Phrases are looked for here, first words of docstrings in the Python files of `CODE`.
WORDS = ("src", "docs", "README.md", "CHANGELOG.md")
CODE = ("src", "studies", "tools")
SUFFIXES = (".md", ".py", ".pyi")

_FIRST = re.compile(
    r"(What|Whether|How|Of|That|Which|Why|Where|When|Who|Whom|Whose)\b|(At|By|For|From|In|On|To|With) (what|which|whom)\b"
)
_ROW = re.compile(r"^\| (?P<phrase>[^|]+?) \| (?P<better>[^|]+?) \|$", re.MULTILINE)
# What stands between two words of a text that runs over lines: a comment's mark, or the end of one literal and the
# beginning of the next.
_BREAK = re.compile(r"(?:\"?\s*\n\s*(?:#:? |[frb]?\")?|\s+)+")


def pairs(page: str) -> Mapping[str, str]:
    r"""Replacements by phrase, from the table of the page.

    Args:
        page: the text of the page.

    Examples:
        >>> pairs("| Instead of | Write |\n| --- | --- |\n| hangs on | depends on |")
        {'hangs on': 'depends on'}
    """
    rows = [row.groups() for row in _ROW.finditer(page)]
    return {phrase: better for phrase, better in rows if phrase not in ("Instead of", "---")}


def phrases(text: str, known: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    r"""Places of known phrases in a text: number of the line, and what to write instead.

    Args:
        text: Markdown or Python; a phrase may run over lines and over string literals.
        known: replacements by phrase.

    Examples:
        >>> list(phrases('x = (\n    "the range hangs "\n    "on the seed"\n)', {"hangs on": "depends on"}))
        [(2, 'hangs on: depends on')]
    """
    flat = _BREAK.sub(" ", text)
    for phrase, better in known.items():
        # A sentence may begin with the phrase; elsewhere None is another word than none.
        forms = (phrase, phrase[0].upper() + phrase[1:])
        if not any(form in flat for form in forms):
            continue
        either = "|".join(_BREAK.pattern.join(map(re.escape, form.split())) for form in forms)
        for found in re.finditer(rf"(?<!\w)(?:{either})(?!\w)", text):
            yield text.count("\n", 0, found.start()) + 1, f"{phrase}: {better}"


def first_words(source: str) -> Iterator[tuple[int, str]]:
    r"""Places of docstrings that begin with a word that says nothing yet: number of the line, and the beginning.

    Args:
        source: of a module.

    Examples:
        >>> list(first_words('def f():\n    \"\"\"Whether it is so.\"\"\"'))
        [(2, 'a docstring begins with "Whether"')]
    """
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (found := _FIRST.match(ast.get_docstring(node) or "")) is not None:
            yield (node.body[0].lineno, f'a docstring begins with "{found[0]}"')


def files(*places: str) -> Iterator[Path]:
    """Text files below some places of the project, but for the page of pairs.

    Args:
        places: files and folders, from the root.
    """
    for place in places:
        below = sorted((ROOT / place).rglob("*")) if (ROOT / place).is_dir() else [ROOT / place]
        yield from (path for path in below if path.suffix in SUFFIXES and path != PAGE)


def main() -> int:
    """Print the places; 1 where there is one."""
    known = pairs(PAGE.read_text(encoding="utf-8"))
    found = [(path, *place) for path in files(*WORDS) for place in phrases(path.read_text(encoding="utf-8"), known)]
    for path in files(*CODE):
        if path.suffix == ".py":
            found += [(path, *place) for place in first_words(path.read_text(encoding="utf-8"))]
    for path, line, text in sorted(found):
        print(f"{path.relative_to(ROOT)}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
