"""The study of clients that shuffle, at small size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import ShuffledClients
from studies.shuffled_clients import KNOWN, ORDERED, WAYS


@pytest.mark.slow
def test_every_reading_is_tried_and_a_second_run_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = ShuffledClients(batches=1, batch_size=4, epochs=(2,), iterations=1, cells=str(tmp_path / "cells.jsonl"))
    result = study.run(say=lambda _: None)
    rows: dict[str, Any] = {row["way"]: row["psnr"] for row in result.details["rows"]}
    assert list(rows) == list(WAYS)
    # One start, and other orders: near each other after three steps, and not the same.
    assert rows[ORDERED] != rows[KNOWN]
    assert rows[ORDERED] == pytest.approx(rows[KNOWN], abs=1.0)
    assert "not knowing the orders costs" in result.conclusion[0]
    monkeypatch.setattr(ShuffledClients, "_one", None)
    assert study.run(say=lambda _: None).details == result.details
