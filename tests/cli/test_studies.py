"""Studies, which a checkout alone has, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradleak.cli import studies as checkout
from gradleak.cli.commands import app
from gradleak.results import InputError
from studies import GIMLQuality, StudyResult
from studies.study import Say


def test_a_study_can_be_run_from_another_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[int] = []

    def run(self: GIMLQuality, *, say: Say) -> StudyResult:
        seen.append(self.seed)
        return StudyResult(study=self.name, settings={}, findings=[], conclusion=[], details={}, tables=[])

    monkeypatch.setattr(GIMLQuality, "run", run)
    for seed in ("0", "1", "1"):
        assert CliRunner().invoke(app, ["study", "giml_quality", "--out", str(tmp_path), "--seed", seed]).exit_code == 0
    assert seen[0] != seen[1] == seen[2]


def test_options_are_those_of_the_runner() -> None:
    told = CliRunner().invoke(app, ["study", "--help"])
    assert told.exit_code == 0
    assert "gradleak study" in told.output
    assert "--set" in told.output
    assert CliRunner().invoke(app, ["study", "giml_quality"]).exit_code == 2


def test_the_names_of_studies_are_known_in_a_checkout() -> None:
    assert checkout.studies()["giml_quality"] is GIMLQuality
    assert "  giml_quality " in CliRunner().invoke(app, ["list"]).output
    listed = CliRunner().invoke(app, ["list"]).output
    assert "  studies.datasets:celeba " in listed
    assert "  studies.networks:convnet " in listed
    assert "CelebA" in CliRunner().invoke(app, ["explain", "celeba"]).output
    assert "gradleak study giml_quality --out" in CliRunner().invoke(app, ["explain", "giml_quality"]).output


def test_outside_of_a_checkout_there_are_no_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkout, "find_spec", lambda name: None)
    assert checkout.studies() == {}
    assert checkout.factories() == {}
    assert "studies:" not in CliRunner().invoke(app, ["list"]).output
    with pytest.raises(InputError, match=r"expected the root of a checkout .* `python -m studies NAME"):
        CliRunner().invoke(app, ["study", "giml_quality", "--out", str(tmp_path)], catch_exceptions=False)
