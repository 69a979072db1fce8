"""A hundred damaged update files: each is refused in one line, or an update that an audit can take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fuzz import updates
from tools.fuzz.harness import run


@pytest.fixture(autouse=True, scope="module")
def honest() -> None:
    """The update that is damaged, made once."""
    updates.honest()


@pytest.mark.parametrize("first", [0, 50])
def test_no_damaged_update_file_ends_in_a_traceback(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "AUDITED", 0.05)  # an audit takes as long as a hundred files
    tally = run(updates.FUZZER, tmp_path, seed=1, cases=range(first, first + 50), seconds=60)
    assert not tally.faults, tally.faults[0].text
    assert tally.cases == 50
    assert {"refused", "does not fit the model", "fits the model"} <= set(tally.endings)
    assert tally.endings["audited, inconclusive"] > 0
