"""The table of defenses at tiny size."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradleak.attacks import Attack, GaussNewton
from gradleak.core import HonestButCurious, Release, derive_generator
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError
from studies import DefenseTable, Shield, SmallNetwork, StudyResult
from studies.private_images import draw_images


def _quiet(line: str) -> None:
    del line


def _table(result: StudyResult) -> dict[str, dict[str, str]]:
    (table,) = result.tables
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.slow
def test_who_knows_a_clip_undoes_it(tiny_images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"images": tiny_images, "count": 1, "steps": 10, "iterations": 3, "cells": str(tmp_path / "cells.jsonl")}
    shields = (Shield.NONE, Shield.GAUSSIAN, Shield.CLIP)
    result = DefenseTable(shields=shields, **small).run(say=_quiet)
    plain, noisy, clipped = result.details["rows"]
    assert math.sqrt(plain["static"]["attacks"]["gauss_newton"][0]["mse"]) < 1e-6
    assert plain["adaptive"] == plain["static"]
    assert math.sqrt(clipped["adaptive"]["attacks"]["gauss_newton"][0]["mse"]) < 1e-6
    assert math.sqrt(clipped["static"]["attacks"]["gauss_newton"][0]["mse"]) > 0.1
    # The static adversary takes half the gradient for all of it: δ = (C/‖g‖ − 1) g; the adaptive one sees no noise.
    assert clipped["static"]["predictions"][0]["value"] > 0.1
    assert clipped["adaptive"]["predictions"][0]["value"] < 1e-5
    (noise,) = Shield.GAUSSIAN.defenses(result.details["public_norm"], 4000, "9")
    assert noise.std == pytest.approx(0.05 * result.details["public_norm"] / math.sqrt(4000))
    assert 0 < noisy["adaptive"]["predictions"][0]["bound"] < noisy["adaptive"]["predictions"][0]["value"]
    assert any(line.startswith("clip: ") and "leaks to the latter" in line for line in result.conclusion)

    # A cell is what the attack gives by hand.
    batch = draw_images(tiny_images, count=1, seed=0)
    objective = SmallNetwork.SIGMOID_LENET.objective(batch, seed=0)
    release = Release(FedSGD(), Shield.GAUSSIAN.defenses(result.details["public_norm"], objective.size, "9"))
    update = release(objective, batch, derive_generator(0, "release", "gaussian", "0"))
    knowledge = HonestButCurious().disclose(objective, release, batch)
    attack = GaussNewton(starts=1, max_steps=10)
    found = attack(update, knowledge, generator=derive_generator(0, "attack", "0"))
    assert found.inputs is not None
    error = float((found.inputs - batch.inputs).square().mean())
    assert noisy["adaptive"]["attacks"]["gauss_newton"][0]["mse"] == pytest.approx(error, rel=1e-5)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Attack, "many", refuse)
    assert DefenseTable(shields=shields, **small).run(say=_quiet).tables == result.tables


def test_a_refusal_stands_with_its_reason(tiny_images: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("nothing to follow")

    monkeypatch.setattr(GaussNewton, "_recover", refuse)
    result = DefenseTable(images=tiny_images, count=1, shields=(Shield.SIGN,), iterations=2).run(say=_quiet)
    row = _table(result)["`Sign()`"]
    assert "gauss_newton refused: nothing to follow" in row["adaptive: RMSE"]
    assert row["adaptive: I²F"].startswith("not applicable: ")
    assert row["test accuracy"] == "-"


def test_utility_is_measured_or_refused(tiny_images: str) -> None:
    shields = (Shield.NONE, Shield.SPECTRAL)
    study = DefenseTable(
        images=tiny_images, count=1, shields=shields, steps=1, iterations=1, utility_rounds=2, shrink=2
    )
    rows = _table(study.run(say=_quiet))
    assert rows["none"]["test accuracy"][:3] in {"0.0", "0.5", "1.0"}
    assert rows["`SpectralNoise`, norm 0.05 c"]["test accuracy"] != "-"


def test_every_shield_is_a_release() -> None:
    objective = SmallNetwork.SIGMOID_LENET.objective(draw_images(None, count=1, seed=0), seed=0)
    for shield in Shield:
        release = Release(FedSGD(), shield.defenses(1.0, objective.size, "9"))
        assert len(release.defenses) == (shield is not Shield.NONE)
        assert shield.described
