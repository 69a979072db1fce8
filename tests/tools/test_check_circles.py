from __future__ import annotations

from pathlib import Path

import grimp
import pytest

from tools import check_circles
from tools.check_circles import circles, main


def test_no_file_reaches_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out


def test_a_circle_is_printed_and_a_chain_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "rounded"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "a.py").write_text("from rounded.b import x\n")
    (package / "b.py").write_text("def x():\n    from rounded import c\n")
    (package / "c.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from rounded.a import x\n"
    )
    (package / "d.py").write_text("from rounded import a, e\n")
    (package / "e.py").write_text("from rounded import c\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(check_circles, "PACKAGES", ("rounded",))
    assert main() == 1
    assert capsys.readouterr().out == "circle of 3 files: rounded.a -> rounded.b -> rounded.c -> rounded.a\n"


def test_each_circle_is_named_once() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "ba", "bc", "cb", "cd"):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [("a", "b"), ("b", "c")]
