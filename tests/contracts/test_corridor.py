"""The corridor knows no kind of audit: neither by import nor by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradleak
from gradleak.results import kinds

SOURCE = Path(gradleak.__file__).parent
# A kind lives in three places; the registry names them.
OWN = ("audits", "results/findings", "reporting/pages")
REGISTRY = SOURCE / "results" / "kinds.py"
# Words that are other things, too: columns of a table of a catalog, names of modules.
FILES = sorted(SOURCE.rglob("*.py"))


def home(file: Path) -> str | None:
    """The kind to which a file belongs, or None."""
    path = file.relative_to(SOURCE).as_posix()
    for place in OWN:
        if path.startswith(f"{place}/"):
            name = path.removeprefix(f"{place}/").split("/")[0].removesuffix(".py")
            return name if name in kinds() else None
    return None


def comparisons(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts that are compared with, matched, or keys of a literal or a look-up."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        if isinstance(node, ast.Compare):
            found = [node.left, *node.comparators]
            found += [
                one
                for part in node.comparators
                if isinstance(part, ast.Tuple | ast.List | ast.Set)
                for one in part.elts
            ]
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        elif isinstance(node, ast.Dict):
            found = list(node.keys)
        elif isinstance(node, ast.Subscript):
            found = [node.slice]
        for one in found:
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                yield node.lineno if hasattr(node, "lineno") else one.lineno, one.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_no_comparison_match_or_key_holds_the_name_of_a_kind(file: Path) -> None:
    if file == REGISTRY:
        return
    own = home(file)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    held = [(line, text) for line, text in comparisons(tree) if text in kinds() and text != own]
    assert held == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(SOURCE).as_posix())
def test_nothing_imports_a_room_or_a_page_of_a_kind(file: Path) -> None:
    own = home(file)
    wrong = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{one.name}" for one in node.names]
        for name in names:
            for place in OWN:
                prefix = f"gradleak.{place.replace('/', '.')}."
                kind = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else ""
                if kind in kinds() and kind != own:
                    wrong.append(name)
    assert wrong == []
