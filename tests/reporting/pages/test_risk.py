from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gradleak.reporting.report import Report

from gradleak.results import Record


def values(record: Record, kind: str, name: str, scenario: str) -> dict[str, float]:
    return {
        item: score.value
        for item, score in record.scores
        if item.startswith(scenario + "/")
        and item.endswith("/" + kind)
        and score.name == name
        and score.value is not None
    }


def test_the_levels_are_those_of_the_plan(report: Report) -> None:
    stds = [level.noise_std for level in report.noise.levels]
    assert stds == pytest.approx([math.sqrt(v) for v in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)])
    assert [len(level.points) for level in report.noise.levels] == [3] * 5


def test_the_difference_is_that_of_the_scores(digits: Path, report: Report) -> None:
    record = Record.load(digits)
    differences = []
    for scenario in ("noise 1e-8", "noise 1e-7", "noise 1e-6", "noise 1e-5", "noise 1e-4"):
        predicted = values(record, "risk", "inversion_influence", scenario)
        reached = values(record, "perfect_attacker", "pixel_rmse", scenario)
        for item, value in predicted.items():
            found = reached.get(item.replace("/risk", "/perfect_attacker"))
            if found is not None and value < 0.05:
                differences.append(abs(found - value) / value)
    assert report.noise.compared == len(differences) > 3
    assert report.noise.difference in differences
    assert report.noise.difference <= np.median(differences)


def test_medians_of_a_level(digits: Path, report: Report) -> None:
    predicted = values(Record.load(digits), "risk", "inversion_influence", "noise 1e-6")
    assert report.noise.levels[2].medians["predicted"].value == np.median(list(predicted.values()))


def test_counts_say_how_many_stand_behind_a_median(report: Report) -> None:
    assert report.noise.levels[0].counts == {
        "predicted": 3,
        "lower_bound": 3,
        "perfect_attacker": 3,
        "attack": 1,
        "baseline": 3,
    }


def test_spectra_are_shown_once_an_example(report: Report) -> None:
    assert [spectrum.label for spectrum in report.spectra] == [f"example {k}" for k in range(6)]
    for spectrum in report.spectra:
        assert list(spectrum.eigenvalues) == sorted(spectrum.eigenvalues, reverse=True)
        assert spectrum.nullity == 0
