"""Studies of generative priors at tiny size: equal cost, tables, resuming, paired differences."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.attacks import GIML, IGIMS, Attack, GaussNewton, InventionCheck, InvertingGradients, KrylovSteps, Part
from gradleak.core import HonestButCurious, Reconstruction, Release
from gradleak.datasets import mnist_digits
from gradleak.models.generators import MLPDecoder, TrainedGenerator
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Outcome
from studies import (
    GeneratorBatches,
    GeneratorLimits,
    GeneratorQuestions,
    GeneratorTable,
    GIMLQuality,
    PriorAttack,
    PriorNetwork,
    Scale,
    StudyResult,
)
from studies.attack_lines import BASELINE, Line
from studies.generator_figures import loss_curves, median_losses, quality_over
from studies.prior_cells import ImageSource, PriorSetting, cells, curve, mean, mean_psnr, paired, within
from studies.store import Store

SIDE = 8


def _quiet(line: str) -> None:
    del line


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Thirty 8×8 gray blobs of four classes."""
    path: Path = tmp_path_factory.mktemp("blobs") / "blobs.npz"
    draw = np.random.default_rng(0)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    centers = draw.uniform(2, 5, (30, 2, 1, 1))
    pixels = 255 * np.exp(-((rows - centers[:, 0]) ** 2 + (columns - centers[:, 1]) ** 2) / 4)
    np.savez(path, x=pixels.astype(np.uint8), y=np.arange(30) % 4)
    return str(path)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """A file with an untrained decoder as a training leaves it, by seed."""
    folder = tmp_path_factory.mktemp("decoders")

    def save(seed: int) -> str:
        network = MLPDecoder(
            size=SIDE, channels=1, latent_size=3, width=12, generator=torch.Generator().manual_seed(seed)
        )
        settings = {"use": "MLPDecoder", "size": SIDE, "channels": 1, "latent_size": 3, "width": 12}
        facts = {"format": 1, "network": settings, "source": f"blobs, seed {seed}"}
        path = folder / f"decoder{seed}.safetensors"
        TrainedGenerator(network=network, facts=facts, losses={}).save(path)
        return str(path)

    return save


SOME = (PriorAttack.IGIMS_ADAM, PriorAttack.GIAS, PriorAttack.GGL, PriorAttack.INVERTING_GRADIENTS)


@pytest.fixture(scope="module")
def table(images: str, decoder: Callable[[int], str]) -> StudyResult:
    study = GeneratorTable(
        images=images, generator=decoder(0), count=2, budget=60, width=4, attacks=SOME, networks=(PriorNetwork.LENET,)
    )
    return study.run(say=_quiet)


def _rows(result: StudyResult, number: int = 0) -> list[dict[str, str]]:
    found = result.tables[number]
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


def test_every_attack_gets_what_the_budget_buys(table: StudyResult) -> None:
    rows = {row["attack"]: row for row in _rows(table)}
    assert list(rows) == [BASELINE, *(entrant.value for entrant in SOME)]
    for entrant in SOME:
        assert 0.5 * 60 <= float(rows[entrant.value]["plain gradients"]) <= 60
    assert rows["inverting_gradients"]["prior"] == "pixels"
    assert rows["gias"]["prior"] == "blobs, seed 0"
    assert any("have not been run" in line for line in table.conclusion)
    assert [finding.quantity for finding in table.findings] == [f"{entrant.value} on lenet" for entrant in SOME]
    # GGL matches squares, which are no cosine distances.
    assert "igims_adam" in table.figures["generator_table_losses"]
    assert "ggl" not in table.figures["generator_table_losses"]
    assert any(line.startswith("lenet, mean PSNR in dB at equal cost: ") for line in table.conclusion)


def test_cells_are_the_means_and_the_worst_of_the_lines(table: StudyResult) -> None:
    rows = {row["attack"]: row for row in _rows(table)}
    for entrant in SOME:
        lines = table.details[f"lenet, {entrant.value}"]
        errors = np.array([line["mse"] for line in lines])
        assert rows[entrant.value]["PSNR mean (dB)"] == f"{np.mean(-10 * np.log10(errors)):.2f}"
        assert rows[entrant.value]["PSNR worst"] == f"{np.max(-10 * np.log10(errors)):.2f}"
        assert rows[entrant.value]["MSE worst"] == f"{errors.min():.2g}"
        # 8x8 is below what ST-LPIPS is defined for: a word, no number.
        assert rows[entrant.value]["ST-LPIPS mean"] == "-"
        assert all("not defined at this size" in line["note"] for line in lines)


def test_a_cell_is_what_the_attack_gives_by_hand(
    table: StudyResult, images: str, decoder: Callable[[int], str]
) -> None:
    from gradleak.core import derive_generator
    from gradleak.models.generators import trained_generator

    setting = PriorSetting.make(
        network=PriorNetwork.LENET, source=ImageSource(images=images), count=2, budget=60.0,
        generator=trained_generator(decoder(0)), prior="-", width=4, seed=0,
    )  # fmt: skip
    release, example = Release(FedSGD()), setting.examples[1]
    update = release(setting.objective, example, torch.Generator())
    facts = HonestButCurious(generator=setting.generator).disclose(setting.objective, release, example)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    attack = within(PriorAttack.GIAS, setting)
    found = attack(update, facts, generator=derive_generator(0, "attack", "1"))
    torch.set_num_threads(before)
    line = table.details["lenet, gias"][1]
    assert line["mse"] == pytest.approx(float((found.inputs - example.inputs).square().mean()), rel=1e-4)
    assert line["loss"] == pytest.approx(found.loss)
    assert line["history"][-1] == pytest.approx([found.plain_gradients, found.loss])


def test_scales_are_the_largest_that_the_budget_allows(images: str, decoder: Callable[[int], str]) -> None:
    from gradleak.models.generators import trained_generator

    setting = PriorSetting.make(
        network=PriorNetwork.LENET, source=ImageSource(images=images), count=1, budget=20000.0,
        generator=trained_generator(decoder(0)), prior="-", width=4, seed=0,
    )  # fmt: skip
    alike = (PriorAttack.IGIMS_PAPER, PriorAttack.GIAS_JOINT, PriorAttack.GIAS_LAYERS)
    for entrant in (one for one in PriorAttack if one not in alike):
        attack = within(entrant, setting)
        facts = setting.threat(entrant).disclose(setting.objective, Release(FedSGD()), setting.examples[0])
        assert 0.9 * 20000 < attack.estimate(facts) <= 20000 or entrant is PriorAttack.GAUSS_NEWTON
    once, rounds = (within(one, setting) for one in (PriorAttack.IGIMS_ONCE, PriorAttack.IGIMS))
    assert (once.rounds, rounds.rounds) == (1, 4)
    assert once.latent_iterations == pytest.approx(4 * rounds.latent_iterations, rel=0.05)
    assert PriorAttack.IGIMS_PAPER.attack(4.0) == IGIMS()
    paper = PriorAttack.IGIMS.attack(4.0)
    assert (paper.rounds, paper.latent_iterations, paper.weight_iterations) == (4, 32, 5466)
    gias = PriorAttack.GIAS.attack(1.0)
    assert (gias.latent_iterations, gias.weight_iterations) == (500, 5000)
    joint, layers = (one.attack(1.0) for one in (PriorAttack.GIAS_JOINT, PriorAttack.GIAS_LAYERS))
    assert [stage.part for stage in joint.stages] == [Part.LATENTS, Part.ALL]
    assert layers.stages == gias.compose().stages
    starts = PriorAttack.GIAS_STARTS.attack(1.0)
    assert (starts.restarts, starts.latent_iterations, starts.weight_iterations) == (4, 125, 1250)
    digits = GeneratorTable(generator=decoder(0), count=1)
    with pytest.raises(InputError, match="images of shape"):
        digits.run(say=_quiet)


@pytest.mark.slow
def test_levenberg_marquardt_spends_the_budget_on_relu_and_no_more(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", x=draw.integers(0, 256, (4, 9, 9), dtype=np.uint8), y=np.arange(4))
    setting = PriorSetting.make(
        network=PriorNetwork.CONVNET, source=ImageSource(images=str(tmp_path / "noise.npz")), count=1, budget=3000.0,
        generator=None, prior="-", width=4, seed=0,
    )  # fmt: skip
    attack, (line,) = cells(setting, PriorAttack.GAUSS_NEWTON, Store(None), seed=0)
    # What is left holds neither a further product nor, with the 500 steps before it, a further start.
    assert 1200 < line.counted <= 3000
    assert line.outcome in ("budget_spent", "plateau")
    # 81 unknowns: a dense step costs 165 plain gradients, one of 30 products 149; at 3x32x32 it is 6,147 to 149.
    assert attack == GaussNewton(
        steps=KrylovSteps(iterations=30), free_gates=False, starts=20, max_plain_gradients=3000.0
    )
    smooth = within(PriorAttack.GAUSS_NEWTON, replace(setting, network=PriorNetwork.LENET))
    assert smooth == GaussNewton(starts=20, max_plain_gradients=3000.0)


def test_a_killed_table_goes_on_and_one_that_is_done_computes_nothing(
    tmp_path: Path, images: str, decoder: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tmp_path / "cells.jsonl"
    small = {
        "images": images, "generator": decoder(0), "count": 1, "budget": 60, "cells": str(cells),
        "networks": (PriorNetwork.LENET,),
    }  # fmt: skip
    GeneratorTable(attacks=(PriorAttack.GIAS,), **small).run(say=_quiet)
    said: list[str] = []
    both = GeneratorTable(attacks=(PriorAttack.GIAS, PriorAttack.INVERTING_GRADIENTS), **small).run(say=said.append)
    assert [line.endswith("dB (1 from the file of cells)") for line in said] == [True, False]
    stored = [json.loads(text) for text in cells.read_text(encoding="utf-8").splitlines()][1:]
    assert [entry["key"]["attack"]["use"] for entry in stored] == ["GIAS", "InvertingGradients"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(Attack, "many", refuse)
    again = GeneratorTable(attacks=(PriorAttack.GIAS, PriorAttack.INVERTING_GRADIENTS), **small).run(say=_quiet)
    assert again.tables == both.tables
    # Another generator is another cell, where there is one behind the attack; pixels stay as they are.
    other = GeneratorTable(
        attacks=(PriorAttack.GIAS, PriorAttack.INVERTING_GRADIENTS),
        compute=False,
        **(small | {"generator": decoder(1)}),
    ).run(say=_quiet)
    assert [row["attack"] for row in _rows(other)] == [BASELINE, "inverting_gradients"]


def test_the_paper_s_scale_has_the_paper_s_sizes(images: str, decoder: Callable[[int], str]) -> None:
    result = GeneratorTable(
        scale=Scale.PAPER, images=images, generator=decoder(0), attacks=(PriorAttack.IGIMS,), compute=False
    ).run(say=_quiet)
    # Nothing may be computed: only the baseline of the network and the number of images stand.
    (row,) = _rows(result)
    assert (row["network"], row["attack"], row["n"]) == ("resnet18", BASELINE, "30")
    assert result.conclusion == ["The paper's sizes: 30 images, ResNet-18, 72,000 plain gradients an image."]


@pytest.mark.slow
def test_questions_are_paired_and_claims_are_checked(images: str, decoder: Callable[[int], str]) -> None:
    study = GeneratorQuestions(
        images=images,
        generator=decoder(0),
        wrong=decoder(1),
        count=2,
        budget=48,
        attacks=(PriorAttack.IGIMS_ADAM, PriorAttack.IGIMS_ADAM_ONCE, PriorAttack.UNTRAINED),
        checked=(PriorAttack.GIAS,),
        check=InventionCheck(steps=3, products=4, alternatives=1),
    )
    result = study.run(say=_quiet)
    assert [finding.quantity.split(":")[0] for finding in result.findings] == [
        "four rounds against one of the same cost, Adam",
        "trained against never trained, IGIMS*",
    ]
    quality, curves, trust = (_rows(result, number) for number in range(3))
    assert [row["prior"] for row in quality] == [
        "trained on such images", "trained on such images", "never trained", "never trained",
    ]  # fmt: skip
    assert list(curves[0])[1:] == [f"{share * 48:,.0f} plain gradients" for share in (0.125, 0.25, 0.5, 0.75, 1)]
    losses = [float(value) for value in list(curves[0].values())[1:] if value != "-"]
    assert losses == sorted(losses, reverse=True)
    assert [row["prior"] for row in trust] == ["never trained"] * 2 + ["trained on such images"] * 2 + [
        "trained on other images"
    ] * 2
    for row in trust:
        line = result.details[f"checked, {row['prior']}, gias"][int(row["image"])]
        assert row["true error"] == f"{math.sqrt(line['mse']):.3f}"
        assert row["the update says"] in ("supported", "contradicted", "undecided")
        # The network is smooth: where the update speaks, it tells the error of the claim.
        if line["support"] != "undecided":
            assert line["moved"] == pytest.approx(math.sqrt(line["mse"]), rel=0.25)
    assert sum("Of claims that are" in said for said in result.conclusion) >= 1


@pytest.mark.slow
def test_giml_is_held_against_the_network_it_began_with(images: str, tmp_path: Path) -> None:
    study = GIMLQuality(
        images=images,
        updates=8,
        held=3,
        budgets=(60, 90),
        giml=GIML(rounds=2, tasks=4, latent_iterations=3, weight_iterations=3),
        latent_size=4,
        channels=8,
    )
    result = study.run(say=_quiet)
    rows = {(row["budget"], row["generator"]): row for row in _rows(result)}
    assert rows["60", "GIML"]["plain gradients of learning"] == f"{2 * 4 * (3 + 1 + 3) * 3}"
    assert rows["90", "never trained"]["plain gradients of learning"] == "0"
    for budget, finding in zip((60, 90), result.findings, strict=True):
        gaps = [
            10 * math.log10(two["mse"] / one["mse"])
            for one, two in zip(
                result.details[f"GIML, {budget}"], result.details[f"never trained, {budget}"], strict=True
            )
        ]
        assert finding.ours == pytest.approx(np.median(gaps), abs=1e-6)
        assert finding.interval[0] <= finding.ours <= finding.interval[1]
        assert finding.n == 3
    assert "8 shared gradients" in result.conclusion[0]
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "## Held-out clients" in page
    with pytest.raises(InputError, match="held-out clients"):
        GIMLQuality(held=1)
    with pytest.raises(InputError, match="budgets"):
        GIMLQuality(budgets=())


def test_batches_are_attacked_by_size_by_steps_and_behind_claimed_labels(
    images: str, decoder: Callable[[int], str], tmp_path: Path
) -> None:
    study = GeneratorBatches(
        images=images, pool=30, generator=decoder(0), sizes=(2,), steps=(2,), step_size=2, label_sizes=(4,), batches=1,
        attacks=(PriorAttack.GIAS,), budget=66, cells=str(tmp_path / "cells.jsonl"),
    )  # fmt: skip
    result = study.run(say=_quiet)
    raw = result.details
    assert list(raw) == [
        "batch size 2, gias", "local steps 2, igims, AGA", "local steps 2, inverting_gradients, AGA",
        "local steps 2, inverting_gradients, FA",
        "batch size, half of one class 4, igims, ALR", "batch size, half of one class 4, igims, ZLR",
        "batch size, half of one class 4, inverting_gradients, ZLR",
    ]  # fmt: skip
    # One line an image; unrolled steps cost twice as much, so that the budget buys half of the iterations.
    assert [line["image"] for line in raw["batch size 2, gias"]] == [0, 1]
    ways = [raw[f"local steps 2, inverting_gradients, {way}"][0]["iterations"] for way in ("AGA", "FA")]
    assert ways == [22, 11]
    # The smallest IGIMS has a population and a step in each of four rounds.
    counted = {line["counted"] for lines in raw.values() for line in lines}
    assert counted == {66.0, 4 * (50 + 6)}
    # Half of one class: the zero-shot rule names four different ones.
    half = "batch size, half of one class 4, igims"
    assert {line["labels"] for line in raw[f"{half}, ALR"]} == {"4 of 4 right"}
    (right,) = {line["labels"] for line in raw[f"{half}, ZLR"]}
    assert right in ("1 of 4 right", "2 of 4 right", "3 of 4 right")
    errors = [line["mse"] for line in raw["batch size 2, gias"]]
    by_quantity = {finding.quantity: finding for finding in result.findings}
    first = by_quantity["gias, batch size 2: mean PSNR (dB)"]
    assert first.ours == pytest.approx(np.mean(-10 * np.log10(errors)))
    assert first.n == 2
    assert right in by_quantity["igims, ZLR, batch size, half of one class 4: mean PSNR (dB)"].note
    assert any(said.startswith("local steps 2: igims, AGA - inverting_gradients, AGA") for said in result.conclusion)
    assert set(result.figures) == {"generator_batches", "generator_batches_losses"}
    assert replace(study, compute=False).run(say=_quiet).tables == result.tables
    with pytest.raises(InputError, match="expected sizes, steps or label_sizes"):
        GeneratorBatches(sizes=(), steps=(), label_sizes=())


def _one(image: int, mse: float | None) -> Line:
    return Line(
        image=image, mse=mse, ssim=None, exact=False, outcome="-", labels="-", iterations=0, counted=0.0, measured=None
    )


def test_differences_are_medians_over_the_same_images() -> None:
    better = [_one(image, 10.0 ** -(2 + 0.1 * image)) for image in range(9)]
    worse = [_one(image, 10.0 ** -(1 + 0.1 * image)) for image in reversed(range(9))]
    gap, (low, high), count = paired(better, worse, seed=0)
    assert (gap, low, high, count) == pytest.approx((10.0, 10.0, 10.0, 9))
    assert paired(better[:1], worse, seed=0) is None
    assert paired([_one(0, 0.0), _one(1, None)], worse, seed=0) is None
    assert mean([1.0, math.inf, None, 3.0]) == 2.0
    assert mean([None]) is None


def test_an_exact_hit_counts_in_a_mean_and_does_not_carry_it_away() -> None:
    assert mean_psnr([_one(0, 0.0), _one(1, 0.01)]) == pytest.approx((100 + 20) / 2)
    assert mean_psnr([_one(0, 1e-12), _one(1, 0.01), _one(2, None)]) == pytest.approx((100 + 20) / 2)
    assert mean_psnr([_one(0, 0.0)]) == 100.0
    assert mean_psnr([_one(0, None)]) is None
    twenty = [_one(image, 0.01) for image in range(3)]
    assert paired([_one(image, 0.0) for image in range(3)], twenty, seed=0) == (80.0, (80.0, 80.0), 3)


def test_a_curve_holds_the_smallest_loss_so_far() -> None:
    found = Reconstruction(
        inputs=None, targets=None, loss=0.1, outcome=Outcome.BUDGET_SPENT, plain_gradients=300.0,
        history=[0.5, 0.7, 0.2, 0.4] * 25,
    )  # fmt: skip
    points = curve(found, InvertingGradients())
    assert points[0] == [3.0, 0.5]
    assert points[-1] == [300.0, 0.2]
    assert [loss for _, loss in points] == sorted((loss for _, loss in points), reverse=True)
    assert curve(replace(found, history=()), InvertingGradients()) == []


def test_losses_are_drawn_as_medians_from_where_every_image_has_one() -> None:
    def line(history: list[list[float]]) -> Line:
        return replace(_one(0, 0.1), history=history)

    some = [line([[1, 0.9], [10, 0.1]]), line([[2, 0.8], [100, 0.01]]), line([])]
    points = median_losses(some)
    assert points[0] == (2, pytest.approx((0.9 + 0.8) / 2))
    assert points[-1] == (pytest.approx(100), pytest.approx((0.1 + 0.01) / 2))
    assert median_losses([line([])]) == []
    drawn = loss_curves({"lenet": {"gias": some, "nothing": []}})
    assert ("gias" in drawn, "nothing" in drawn) == (True, False)
    assert loss_curves({"lenet": {"nothing": []}}) == quality_over({"batch size": {}}) == ""
    both = quality_over({"batch size": {"gias": [(2.0, 20.0)]}, "local steps": {"igims": [(1.0, 9.0)]}})
    assert all(name in both for name in ("gias", "igims", "local steps"))


def test_a_curve_counts_what_each_stage_costs() -> None:
    attack = IGIMS(rounds=2, latent_iterations=3, weight_iterations=2, population=10, hand_on="sample")
    # By hand, a round: three populations of ten, the sample, two steps and the last value at three gradients each.
    costs = [10.0, 10.0, 10.0, 1.0, 3.0, 3.0, 3.0] * 2
    found = Reconstruction(
        inputs=None, targets=None, loss=0.1, outcome=Outcome.BUDGET_SPENT, plain_gradients=sum(costs),
        history=[1 / (1 + place) for place in range(14)],
    )  # fmt: skip
    assert curve(found, attack) == [
        pytest.approx([sum(costs[: place + 1]), 1 / (1 + place)]) for place in range(len(costs))
    ]
    # Stopped early: the first entries alone, of a search whose releases cost double.
    early = replace(found, history=found.history[:5], plain_gradients=68.0)
    assert [cost for cost, _ in curve(early, attack)] == pytest.approx([20.0, 40.0, 60.0, 62.0, 68.0])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("count", 0),
        ("deep_count", "3"),
        ("width", 0),
        ("budget", 0),
        ("budget", "300"),
        ("deep_budget", -5),
        ("compute", "no"),
    ],
)
def test_a_study_is_refused_before_hours_are_spent(name: str, bad: object) -> None:
    for study in (GeneratorTable, GeneratorQuestions):
        if name.startswith("deep") and study is GeneratorQuestions:
            continue
        with pytest.raises(InputError, match=rf"{study.name}\.{name}|{study.__name__}\.{name}"):
            study(**{name: bad})


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("networks", "convnet"),
        ("networks", ["conv"]),
        ("attacks", ("gais",)),
        ("scale", "big"),
        ("first", -1),
        ("seed", 0.5),
    ],
)
def test_names_of_a_study_are_checked_before_it_begins(name: str, bad: object) -> None:
    with pytest.raises(InputError, match=rf"generator_table\.{name}: expected"):
        GeneratorTable(**{name: bad})


def test_rows_before_the_first_may_have_trained_a_generator(tmp_path: Path) -> None:
    # Of digits, those that the example's generator was not trained on; of an archive, all of it, or from a row on.
    whole = mnist_digits(count=1000, first=4000)
    assert ImageSource().draw(1000, 0).targets.bincount().tolist() == [100] * 10
    assert torch.equal(ImageSource().draw(1000, 0).inputs, whole.inputs)
    assert torch.equal(ImageSource(first=0).draw(3, 5).inputs, mnist_digits(count=3, seed=5).inputs)
    np.savez(tmp_path / "few.npz", x=np.zeros((4, 9, 9), np.uint8), y=np.arange(4))
    assert ImageSource(images=str(tmp_path / "few.npz")).draw(4, 0).size == 4
    assert ImageSource(images=str(tmp_path / "few.npz"), first=3).draw(1, 0).targets.tolist() == [3]


def test_cells_are_not_written_into_another_file(tmp_path: Path) -> None:
    other = tmp_path / "plan.toml"
    other.write_text("seed = 0\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"cells: expected a file of cells .*plan\.toml; name another file"):
        GeneratorTable(cells=str(other), count=1, compute=False).run(say=_quiet)
    assert other.read_text(encoding="utf-8") == "seed = 0\n"


def test_differences_are_paired_and_missing_scores_have_a_reason(table: StudyResult) -> None:
    rows = {row["attacks"]: row for row in _rows(table, 1)}
    assert len(rows) == len(SOME) * (len(SOME) - 1) // 2
    gias, pixels = (table.details[f"lenet, {name}"] for name in ("gias", "inverting_gradients"))
    gaps = [10 * math.log10(two["mse"] / one["mse"]) for one, two in zip(gias, pixels, strict=True)]
    row = rows["gias - inverting_gradients"]
    assert row["median difference (dB)"] == f"{np.median(gaps):+.2f}"
    assert row["95 % interval"] == f"{min(gaps):.2f} to {max(gaps):.2f}"
    (said,) = [line for line in table.conclusion if "ST-LPIPS" in line]
    assert "not defined at this size" in said


def test_limits_hold_the_claim_against_the_nearest_image(
    images: str, decoder: Callable[[int], str], tmp_path: Path
) -> None:
    study = GeneratorLimits(
        images=images, generator=decoder(0), network=PriorNetwork.LENET, count=1, budget=120, width=4,
        cells=str(tmp_path / "cells.jsonl"),
    )  # fmt: skip
    result = study.run(say=_quiet)
    (row,) = result.details["rows"]
    nearest = row["nearest"]
    # With the truth the latent comes nearer than any attack, and tuned weights nearer still, which explains the update.
    assert nearest["weights"] < nearest["latent"] < row["mse"] * 1.5
    assert nearest["weights_loss"] < nearest["latent_loss"]
    found = {finding.quantity: finding.ours for finding in result.findings}
    near = found["lenet, nearest latent and weights: median PSNR (dB)"]
    assert near == pytest.approx(-10 * math.log10(nearest["weights"]))
    assert found["lenet, claim of GIAS: median matching loss"] == row["loss"]
    assert result.conclusion[0].startswith(f"On {int(nearest['weights_loss'] < row['loss'])} of 1 images")
    assert replace(study, compute=False).run(say=_quiet).details == result.details
    with pytest.raises(InputError, match="file of a trained generator, got None"):
        GeneratorLimits()
