"""The table of attacks at small size, and the file that keeps its lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import studies.attack_table as module
from gradleak.attacks import Attack, GaussNewton, InvertingGradients
from gradleak.core import HonestButCurious, Objective, Release, derive_generator
from gradleak.datasets import mnist_digits
from gradleak.models import initialize_uniform, lenet_i2f, resnet8
from gradleak.protocols import FedSGD
from gradleak.results import UnsupportedError
from studies import AttackTable, Entrant, StudyResult, TableNetwork
from studies.attack_lines import BASELINE
from studies.summaries import median_interval

LENET, CONVNET, DEEP = TableNetwork.LENET, TableNetwork.CONVNET, TableNetwork.RESNET18


def _quiet(line: str) -> None:
    del line


def _rows(result: StudyResult) -> dict[str, dict[str, str]]:
    (table,) = result.tables
    return {f"{row[0]}, {row[1]}": dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.fixture(scope="module")
def result() -> StudyResult:
    attacks = (Entrant.BLIND, Entrant.DGL, Entrant.DLG, Entrant.INVERTING_GRADIENTS, Entrant.GRAD_INVERSION)
    return AttackTable(count=2, budget=130, starts=2, attacks=attacks, networks=(LENET,)).run(say=_quiet)


def test_every_attack_spends_the_budget_and_no_more(result: StudyResult) -> None:
    rows = _rows(result)
    # Three plain gradients an evaluation and start; DLG evaluates 20 times an iteration.
    spent = {name.removeprefix("lenet, "): int(row["plain gradients"]) for name, row in rows.items()}
    assert spent == {
        BASELINE: 0,
        "blind": 0,
        "dgl": 129,
        "dlg": 3 * 41,
        "inverting_gradients": 129,
        "grad_inversion": 6 * 21,
    }
    measured = float(rows["lenet, inverting_gradients"]["measured"].replace(",", ""))
    assert 20 < measured < 2000
    assert {name.removeprefix("lenet, "): row["labels"] for name, row in rows.items()} == {
        BASELINE: "-",
        "blind": "-",
        "dgl": "disclosed",
        "dlg": "optimized",
        "inverting_gradients": "recovered",
        "grad_inversion": "recovered",
    }


def test_a_cell_is_what_the_attack_gives_by_hand(result: StudyResult) -> None:
    batch = mnist_digits(count=2)
    model = initialize_uniform(lenet_i2f(), low=-0.5, high=0.5, generator=derive_generator(0, "weights", "lenet"))
    objective, release = Objective.from_module(model), Release(FedSGD())
    examples = [batch.example(index) for index in range(2)]
    updates = [release(objective, example, torch.Generator()) for example in examples]
    facts = [HonestButCurious().disclose(objective, release, example) for example in examples]
    generators = [derive_generator(0, "attack", str(index)) for index in range(2)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = InvertingGradients(iterations=42).many(updates, facts, generators=generators)
    torch.set_num_threads(before)
    errors = [float((claim.inputs - one.inputs).square().mean()) for claim, one in zip(found, examples, strict=True)]
    lines = result.details["lenet, inverting_gradients"]
    assert [line["mse"] for line in lines] == pytest.approx(errors, rel=1e-4)
    psnr = float(np.mean(-10 * np.log10(errors)))
    assert _rows(result)["lenet, inverting_gradients"]["PSNR (dB)"] == f"{psnr:.1f}"


def test_the_page_has_table_findings_and_conclusion(result: StudyResult, tmp_path: Path) -> None:
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## Attack by network" in page
    assert "| lenet | dgl | disclosed | 2 |" in page
    assert "| lenet, dgl: median PSNR (dB) |" in page
    assert page.count("lenet: best is ") == 1
    assert "dB without the update; exact hits: none" in page


def test_a_killed_study_goes_on_and_one_that_is_done_computes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tmp_path / "deep" / "cells.jsonl"
    small = {"count": 1, "budget": 12, "networks": (LENET,), "cells": str(cells)}
    AttackTable(attacks=(Entrant.GS,), **small).run(say=_quiet)
    # As a kill in the middle of a line leaves it.
    cells.write_text(cells.read_text(encoding="utf-8") + '{"key": {"da', encoding="utf-8")
    both = AttackTable(attacks=(Entrant.GS, Entrant.DGL), **small).run(say=_quiet)
    stored = _stored(cells)
    assert [entry["key"]["attack"]["use"] for entry in stored] == ["GS", "DGL"]
    assert not list(cells.parent.glob("*.state"))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Attack, "many", refuse)
    again = AttackTable(attacks=(Entrant.GS, Entrant.DGL), **small).run(say=_quiet)
    assert again.tables == both.tables
    assert again.findings == both.findings
    # Nothing is stored for another budget, and nothing may be computed: only the baseline stands.
    empty = AttackTable(attacks=(Entrant.GS,), compute=False, **(small | {"budget": 15})).run(say=_quiet)
    assert list(_rows(empty)) == [f"lenet, {BASELINE}"]
    assert empty.conclusion == []


def test_deep_networks_take_one_image_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "resnet18", resnet8)
    cells = tmp_path / "cells.jsonl"
    study = AttackTable(
        deep_count=2,
        deep_iterations=2,
        networks=(DEEP,),
        attacks=(Entrant.GS, Entrant.GS_BATCH_NORM, Entrant.GRAD_INVERSION),
        cells=str(cells),
    )
    rows = _rows(study.run(say=_quiet))
    assert [row["plain gradients"] for row in rows.values()] == ["0", "9", "9", "9"]
    stored = _stored(cells)
    assert [entry["key"]["images"] for entry in stored] == [[0], [1]] * 3


def test_attacks_that_need_batch_norm_are_left_out_without_it() -> None:
    attacks = (Entrant.GS, Entrant.GS_BATCH_NORM, Entrant.BATCH_NORM_INVERSION)
    small = {"count": 1, "budget": 6, "width": 1, "attacks": attacks}
    rows = _rows(AttackTable(networks=(LENET, CONVNET), **small).run(say=_quiet))
    assert [name for name in rows if BASELINE not in name] == [
        "lenet, gs",
        "convnet, gs",
        "convnet, gs_batch_norm",
        "convnet, batch_norm_inversion",
    ]


def test_a_second_set_of_weights_is_another_network_on_the_same_images() -> None:
    tables = [
        AttackTable(count=1, budget=12, networks=(LENET,), attacks=(Entrant.GS,), weights=weights).run(say=_quiet)
        for weights in (None, 1)
    ]
    blind = [table.details["lenet, best guess without the update, chosen with the truth"] for table in tables]
    assert blind[0] == blind[1]
    found = [table.details["lenet, gs"][0]["mse"] for table in tables]
    assert found[0] != found[1]


def test_steps_by_products_fit_a_budget_that_no_dense_step_fits() -> None:
    entrants = (Entrant.GAUSS_NEWTON_PRODUCTS,)
    found = AttackTable(count=1, budget=400, networks=(LENET,), attacks=entrants).run(say=_quiet)
    (line,) = found.details["lenet, gauss_newton_products"]
    assert line["counted"] <= 400


def test_a_refusal_is_a_line_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UnsupportedError("too many unknowns")

    monkeypatch.setattr(GaussNewton, "_recover", refuse)
    found = AttackTable(count=1, networks=(LENET,), attacks=(Entrant.GAUSS_NEWTON,)).run(say=_quiet)
    row = _rows(found)["lenet, gauss_newton"]
    assert (row["PSNR (dB)"], row["exact hits"], row["ended"]) == ("-", "0 of 1", "1 unsupported")
    assert found.findings[-1].ours is None
    assert found.findings[-1].note == "too many unknowns"


def test_images_of_two_files_of_one_name_do_not_share_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = tmp_path / "cells.jsonl"
    small = {"count": 1, "budget": 12, "networks": (LENET,), "attacks": (Entrant.GS,), "cells": str(cells)}
    random = np.random.default_rng(0)
    found = []
    for folder in ("a", "b"):
        file = tmp_path / folder / "images.npz"
        file.parent.mkdir()
        np.savez(file, x=random.integers(0, 256, (3, 8, 8), dtype=np.uint8), y=np.arange(3))
        found.append(AttackTable(images=str(file), **small).run(say=_quiet).details)
    assert found[0] != found[1]
    first, second = _stored(cells)
    assert first["key"] | {"content": ""} == second["key"] | {"content": ""}
    monkeypatch.setattr(Attack, "many", lambda *_, **__: pytest.fail("computed again"))
    again = AttackTable(images=str(tmp_path / "a" / "images.npz"), **small).run(say=_quiet)
    assert again.details == found[0]


@pytest.mark.parametrize(
    ("count", "expected"), [(5, None), (6, (0, 5)), (9, (1, 7)), (10, (1, 8)), (20, (5, 14)), (30, (9, 20))]
)
def test_the_interval_of_a_median(count: int, expected: tuple[int, int] | None) -> None:
    # The usual table of ranks for the 95 % interval of a median (10th and 21st of 30 values).
    assert median_interval(range(count)) == expected


@pytest.mark.parametrize("count", [7, 10, 31])
def test_the_interval_holds_the_median(count: int) -> None:
    draws = np.sort(np.random.default_rng(0).exponential(size=(4000, count)), axis=1)
    intervals = [median_interval(draw.tolist()) for draw in draws]
    assert np.mean([low <= np.log(2) <= high for low, high in intervals]) > 0.94


def _stored(cells: Path) -> list[dict[str, Any]]:
    """The cells of a file, below the line of the record."""
    return [json.loads(text) for text in cells.read_text(encoding="utf-8").splitlines()][1:]
