from __future__ import annotations

from pathlib import Path

import pytest

from tools.mutants import MUTATIONS, Mutation, main


def test_every_mutation_can_be_made() -> None:
    """Its old text occurs exactly once, so that code that moves takes its mutation along."""
    assert [why for one in MUTATIONS if (why := one.check())] == []
    assert len(MUTATIONS) >= 36
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_what_cannot_be_made_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "src" / "gradleak").mkdir(parents=True)
    (tmp_path / "src" / "gradleak" / "a.py").write_text("x = 1\nx = 1\n")
    twice = Mutation(file="a.py", old="x = 1", new="x = 2", tests=())
    assert twice.check(tmp_path) == "a.py: expected 'x = 1' once, found it 2 times"
    missing = Mutation(file="a.py", old="= 1\nx", new="= 2\nx", tests=("none.py",))
    assert missing.check(tmp_path) == "a.py: no tests none.py"
    assert main(["no such word"]) == 2
    assert "no mutation has one of these words" in capsys.readouterr().out
