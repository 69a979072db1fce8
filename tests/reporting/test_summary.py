from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak.reporting import write_json
from gradleak.results import Record


def test_the_document_holds_verdict_reason_and_thresholds(digits: Path, tmp_path: Path) -> None:
    document = json.loads(write_json(digits, tmp_path / "r.json").read_text())
    assert document["verdict"]["verdict"] == "leaks"
    assert document["verdict"]["reason"] == "attack_reached_threshold"
    assert document["thresholds"] == {"pixel_rmse": 0.1, "baseline_ratio": 0.5, "reconstruction_probability": 0.05}
    assert document["complete"] is True
    assert [entry["verdict"] for entry in document["scenarios"]] == ["leaks"] * 4 + ["inconclusive"] * 2
    assert document["worst"]["psnr"] == {"value": "inf", "evidence": "attack"}
    assert [entry["passed"] for entry in document["controls"]] == [True, True]
    assert {entry["status"] for entry in document["problems"]} == {"refused", "failed"}


def test_errors_are_those_of_the_record(digits: Path, tmp_path: Path) -> None:
    document = json.loads(write_json(digits, tmp_path / "r.json").read_text())
    for scenario in document["scenarios"]:
        errors = [
            score.value
            for name, score in Record.load(digits).scores
            if name.startswith(scenario["name"] + "/") and score.name == "pixel_rmse" and score.evidence == "attack"
        ]
        assert scenario["worst"]["pixel_rmse"]["value"] == min(error for error in errors if error is not None)


def test_single_examples_are_left_out_unless_asked_for(digits: Path, tmp_path: Path) -> None:
    short = json.loads(write_json(digits, tmp_path / "a.json").read_text())
    assert "per_record" not in short
    assert "example" not in short["worst"]
    full = json.loads(write_json(digits, tmp_path / "b.json", per_record=True).read_text())
    assert len(full["per_record"]) == 15
    assert full["worst"]["example"] == 2


def test_the_same_record_gives_the_same_bytes(digits: Path, tmp_path: Path) -> None:
    assert write_json(digits, tmp_path / "a").read_bytes() == write_json(digits, tmp_path / "b").read_bytes()


@pytest.mark.parametrize("run", [{}, {"groups": ["a"]}])
def test_an_empty_record_gives_a_document(run: dict[str, object], tmp_path: Path) -> None:
    document = json.loads(write_json(Record(run=run), tmp_path / "r.json").read_text())
    assert document["verdict"]["verdict"] is None
    assert document["worst"] is None
    assert document["complete"] is not bool(run)
