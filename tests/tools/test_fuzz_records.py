"""A hundred damaged records of the fuzzer, and the sample that it damages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradleak.results import Record
from tools.fuzz import records
from tools.fuzz.harness import run
from tools.fuzz.samples import sample

LONG = ("utility", "inference", "privacy", "layers")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The sample without the kinds that train."""
    return sample(tmp_path_factory.mktemp("sample"), without=LONG)


@pytest.mark.parametrize("first", [0, 50])
def test_no_damage_goes_unnoticed(short: Record, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = records.parts_of(short)
    monkeypatch.setattr(records, "samples", lambda: parts)
    monkeypatch.setattr(records, "DRAWN", 0.1)
    tally = run(records.FUZZER, tmp_path, seed=1, cases=range(first, first + 50), seconds=600)
    assert [fault.text for fault in tally.faults] == []
    assert tally.cases == 50
    assert set(tally.endings) == {"equal", "left out, and said", "refused", "shown"}


@pytest.mark.slow  # so many cases that one of them is sure to be such a line
def test_a_reader_that_skips_in_silence_is_found_out(
    short: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fuzzer sees what it looks for."""
    parts = records.parts_of(short)
    monkeypatch.setattr(records, "samples", lambda: parts)
    monkeypatch.setattr(records, "DRAWN", 0.0)
    monkeypatch.setattr("gradleak.results.record_lines.is_sealed", lambda row: True)
    tally = run(records.FUZZER, tmp_path, seed=1, cases=range(200), seconds=600)
    assert any("a record that differs in silence" in fault.text for fault in tally.faults)


@pytest.mark.slow  # in short: the sample without the kinds that train
def test_the_sample_holds_every_kind(tmp_path: Path) -> None:
    from gradleak.results import kinds

    whole = sample(tmp_path)
    assert {finding.kind for finding in whole.findings} == set(kinds())
    assert not [finding.note for finding in whole.findings if finding.status == "failed"]
