"""The page on releases: the scenarios, the assumed knowledge of the adversary, the updates that the client sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.audits.released.evidence import FIRST, about, attack, chance, release, score

from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.page import assemble
from gradleak.reporting.pages.released import domain
from gradleak.results import (
    Evidence,
    Finding,
    Outcome,
    Record,
    Score,
    Status,
    Subject,
    Thresholds,
    Verdict,
    VerdictKind,
)
from gradleak.results.findings.released import Gate, ReleaseFinding, TensorPrecision, UpdatePrecision

CARD: dict[str, Any] = {
    "objective": {
        "loss": "cross_entropy",
        "mode": "eval",
        "dtype": "float32",
        "shared": {"0.weight": [10, 64], "0.bias": [10]},
        "frozen": ["1.weight"],
        "tied": {"2.weight": "0.weight"},
        "renamed": {"0.bias": "module.0.bias"},
        "shared_entries": 650,
        "buffers": [],
    },
    "protocol": {"use": "FedSGD"},
    "defenses": [],
    "batch_size": 1,
    "targets": None,
    "domain": {"kind": "image", "shape": [1, 8, 8], "low": 0.0, "high": 1.0},
    "statistics": None,
    "assumed": None,
    "masks": None,
}


def known(scenario: str = "undefended", card: Mapping[str, Any] | None = None, **more: Any) -> ReleaseFinding:
    facts: dict[str, Any] = {
        "knowledge": CARD | dict(card or {}),
        "release": {"use": "Release", "protocol": {"use": "FedSGD"}, "defenses": []},
        "guarantee": "",
    }
    return release(scenario, **facts | more)


def pages(*findings: Finding, verdicts: Sequence[Verdict] = ()) -> tuple[str, str]:
    record = Record.of(findings, verdicts, thresholds=Thresholds())
    report = assemble(record)
    return render_markdown(report), render_html(report)


def cells(markdown: str, title: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    rows = [line for line in markdown.split(title, 1)[1].split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_one_card_for_scenarios_that_differ_in_defenses_only() -> None:
    noise = {"use": "GaussianNoise", "std": 0.001}
    text, _ = pages(known(), known("noisy", {"defenses": [noise]}, defenses=({**noise, "guarantee": "heuristic"},)))
    assert text.count("True labels: not known") == 1
    rows = cells(text, "Updates that the client sent")
    assert [row[0] for row in rows] == ["undefended", "noisy"]
    assert [row[2] for row in rows] == ["none", "GaussianNoise (std = 0.001) heuristic"]
    assert [row[4] for row in rows] == ["–", "yes"]  # noqa: RUF001 - an en dash in an empty cell


@pytest.mark.parametrize(
    ("card", "told", "fact"),
    [
        (
            {"targets": [3]},
            "The true labels of the private examples were given to the adversary.",
            "True labels: disclosed: 3",
        ),
        (
            {"domain": {**CARD["domain"], "guessed": True}},
            "The range of the data was guessed from their values, and given to the adversary.",
            "values from 0 to 1; not stated, but guessed from the values of the data",
        ),
        (
            {"domain": {**CARD["domain"], "kind": "tabular", "low": [16.0, 0.0], "high": [90.0, 1.0], "guessed": True}},
            "The range of the data was guessed from their values, and given to the adversary.",
            "a range for each feature: 16 to 90, 0 to 1; not stated, but guessed",
        ),
        (
            {"statistics": {"1": {"mean": "float32[4]"}}},
            "The BatchNorm statistics of the private batch were given to the adversary.",
            "BatchNorm statistics of the private batch: {1 = {mean = float32[4]}}",
        ),
        (
            {"masks": 7},
            "The client's own draw of dropout masks and other random layers was given to the adversary.",
            "The client's draw of dropout masks and other random layers: disclosed: its very draw",
        ),
    ],
)
def test_another_threat_model_gets_its_own_card_with_its_truths(card: dict[str, Any], told: str, fact: str) -> None:
    text, page = pages(known(), known("other", card))
    assert text.count("Training protocol: FedSGD") == 2
    assert text.replace("\\", "").count(told) == 1
    assert fact in text.replace("\\", "")
    assert page.count('class="known truth"') == 1
    assert "Disclosed truth" not in pages(known())[0]


def test_labels_that_one_attack_was_given_are_a_truth() -> None:
    text, _ = pages(known(), attack(0.1, labels="disclosed"))
    assert "At least one attack was given the true labels of the private examples." in text
    assert "At least one attack" not in pages(known(), attack(0.1, labels="recovered"))[0]


def test_what_is_assumed_is_called_so() -> None:
    text, page = pages(known(card={"assumed": ["protocol"], "protocol": {"use": "FedAvg", "epochs": 2}}))
    assert "Training protocol: assumed, not known: FedAvg(epochs = 2)" in text
    assert 'aria-label="not known"' in page.split("Training protocol")[0].rsplit("<li", 1)[1]


def test_facts_of_a_release_that_a_reader_must_know() -> None:
    precision = UpdatePrecision(
        dtype="float16",
        entries=100,
        zero=0.25,
        subnormal=0.05,
        made_in="float16",
        tensors={"0.weight": TensorPrecision(dtype="float16", entries=90, zero=0.5)},
    )
    facts: dict[str, Any] = {"domain_guessed": True, "given": True, "zero_tensors": ("2.bias",)}
    text, _ = pages(known(alignment=("prefix dropped",), precision=precision, note="three local steps.", **facts))
    for part in (
        "three local steps.",
        "guessed from the private data",
        "really sent",
        "zero throughout: 2.bias.",
        "prefix dropped.",
        "the update came in float16: its numbers have the few digits of float16, in which they were made; 30",
        "of its entries are zero or subnormal there (50",
        "of 0.weight), flushed or zero to begin with",
    ):
        assert part in text
    assert "came in" not in pages(known(precision=UpdatePrecision(dtype="float32", zero=0.5)))[0]


def test_an_update_that_does_not_fit_is_named_with_its_causes() -> None:
    gate = Gate(status="inconsistent", cosine=-1.0, causes=("the sign is reversed",))
    text, page = pages(known(gate=gate), known("fits", gate=Gate(status="consistent", cosine=0.99999)))
    assert "undefended: the update is not what the stated model, protocol and defenses produce." in text
    assert "- the sign is reversed" in text
    rows = cells(text, "Updates that the client sent")
    assert [row[5] for row in rows] == ["not consistent; cosine at least -1.0000", "consistent; cosine at least 1.0000"]
    assert "chip-fail" in page.split("Updates that the client sent")[1].split("</table>")[0]
    noisy = Gate(status="consistent", chi_square_z=-1.234)
    assert "noise energy within 1.2 standard deviations" in pages(known(gate=noisy))[0]


def test_a_release_is_labeled_as_a_whole() -> None:
    defenses = ({"use": "DPSGD", "guarantee": "formal"}, {"use": "AdversarialPerturbation", "guarantee": "heuristic"})
    text, page = pages(known(defenses=defenses, guarantee="heuristic"))
    (row,) = cells(text, "Updates that the client sent")
    assert row[2:4] == ["DPSGD; AdversarialPerturbation", "heuristic"]
    shown = page.split("Updates that the client sent")[1].split("</table>")[0]
    assert ">heuristic</span>" in shown
    assert ">formal" not in shown
    # Where that of all together was not asked, that of each stands beside it.
    (row,) = cells(pages(known(defenses=defenses, guarantee=None))[0], "Updates that the client sent")
    assert row[2:4] == ["DPSGD formal; AdversarialPerturbation heuristic", "not stated"]


def test_parameters_are_listed_by_what_became_of_them() -> None:
    _, page = pages(known())
    assert "Parameters: 2 shared, 1 frozen, 1 tied, 1 renamed" in page
    for part in ("<code>0.weight</code> <small>10 × 64</small>", "<code>module.0.bias</code>", "Tied: counted once"):  # noqa: RUF001
        assert part in page
    assert "650 shared numbers in 2 tensors" in page


@pytest.mark.parametrize(
    ("images", "told"),
    [
        (None, "; which images trained it is not on file, so that whether the audited ones did cannot be told"),
        (24, "; none of its 24 training images on file is audited"),
        (0, "; no image trained it"),
    ],
)
def test_a_generator_is_told_with_what_trained_it(images: int | None, told: str) -> None:
    card = {"module": "Tiny", "source": "sketches", "latent_shape": [3], "weights": 404, "training_images": images}
    text, _ = pages(known(card={"generator": card}))
    assert f"Tiny (sketches), latents of 3 numbers, 404 weights{told}" in text
    assert "adversary brings along: not known" in pages(known(card={"generator": None}))[0]


def verdict(item: str, kind: VerdictKind, scenario: str, *, tested: bool = True) -> Verdict:
    facts = {"audit": "release", "scenario": scenario, "tested": tested}
    return Verdict(item=item, verdict=kind, reason="x", explanation="", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"noise_rms": 0.0, "defenses": ({"use": "Clip"},)}, "none"),
        ({"noise_rms": 0.25, "defenses": ({"use": "LaplaceNoise"},)}, "0.25"),
        ({"defenses": ({"use": "GaussianNoise"}, {"use": "Sign"})}, "not known"),
    ],
)
def test_noise_of_another_law_is_no_absence_of_noise(facts: Any, told: str) -> None:
    text, _ = pages(known("one", **facts))
    assert cells(text, "Releases by scenario")[0][3] == told


def test_the_scenarios_stand_on_the_first_screen_the_worst_first() -> None:
    second = Subject(noun="example", name="1")
    findings = [
        known("safe?", noise_std=0.001),
        attack(0.5, scenario="safe?"),
        known("bad", baseline=0.4),
        known("bad", item="bad/example 1", subject=second),
        attack(0.03, scenario="bad"),
        attack(0.2, scenario="bad", name="other"),
        about(score("inversion_influence", 0.02), scenario="bad"),
        about(score("inversion_influence", 0.01, details={"epsilon": 1e-3}), scenario="safe?"),
    ]
    verdicts = [
        verdict("safe?/example 0", VerdictKind.INCONCLUSIVE, "safe?"),
        verdict("bad/example 0", VerdictKind.LEAKS, "bad"),
        verdict("bad/example 1", VerdictKind.INCONCLUSIVE, "bad", tested=False),
    ]
    text, _ = pages(*findings, verdicts=verdicts)
    missing = "–"  # noqa: RUF001 - an en dash in an empty cell
    assert cells(text, "Releases by scenario") == [
        ["bad", "2", "1 of 1", "none", "0.03 (example 0)", "0.4", "0.02"],
        ["safe?", "1", "0 of 1", "0.001", "0.5", "0.3", missing],
    ]
    assert text.index("Releases by scenario") < text.index("assumed knowledge of the adversary")


def test_a_prediction_stands_beside_what_was_reached_on_the_same_example() -> None:
    """Of the second example less is predicted, and nothing was attacked; without a prediction there is no column."""
    second = Subject(noun="example", name="1")
    found = [
        known(),
        known(item="undefended/example 1", subject=second),
        about(score("inversion_influence", 0.02)),
        about(score("inversion_influence", 0.001)).but(item="undefended/example 1/setting", subject=second),
    ]
    attacked, _ = pages(*found, attack(0.015))
    assert cells(attacked, "Releases by scenario")[0][4:] == ["0.015 (example 0)", "0.3", "0.02"]
    assert "It is no limit" in attacked
    assert cells(pages(*found)[0], "Releases by scenario")[0][4:] == ["–", "–", "0.001 (example 1)"]  # noqa: RUF001
    without, _ = pages(known(), attack(0.015))
    assert "predicted" not in without.partition("Releases by scenario")[2].partition("\n#")[0].lower()
    assert len(cells(without, "Releases by scenario")[0]) == 6


def test_circles_and_noise_on_a_sum_are_explained() -> None:
    text, html = pages(known(noise_std=0.1))
    assert "● known to the adversary, ○ not known" in text
    assert 'aria-label="known">●</span> known to the adversary' in html
    assert "noise on the sum of a batch is divided by the number of examples" in text


def test_the_blind_number_is_that_of_the_example_which_came_out_closest() -> None:
    """The attack comes closest to the first example, the blind guess to the second."""
    batch = Subject(noun="batch", name="0")
    found = [known(subject=batch, batch_size=2, baseline=[0.4, 0.1]), attack([0.01, 0.3], subject=batch)]
    assert cells(pages(*found)[0], "Releases by scenario")[0][4:6] == ["0.01", "0.4"]


def test_a_prediction_above_what_guessing_gives_is_said_in_words() -> None:
    text, _ = pages(known(baseline=0.3), attack(0.2), about(score("inversion_influence", 7.0)))
    assert cells(text, "Releases by scenario")[0][6] == "above a blind guess"


def test_thresholds_luck_and_range_are_said_first() -> None:
    text, _ = pages(known(luck=[0.02], range_note="all values lie in 0 to 1, 1/255 of the declared range 0 to 255"))
    assert "the pixel RMSE is at most 0.1 and at most 0.5 times the blind guess, and nearer than luck brings" in text
    assert "a single one below 0.02" in text
    assert "every attacker a chance of at most 0.05" in text
    assert "Mind the range" in text
    assert "All values lie in 0 to 1, 1/255 of the declared range 0 to 255." in text
    plain, _ = pages(known())
    assert "luck" not in plain.split("##")[1]
    assert "Mind the range" not in plain


def test_names_of_a_record_are_shown_as_they_are() -> None:
    name = "<b>*a*</b>"
    _, page = pages(known(name, {"protocol": {"use": "<i>x</i>"}}))
    assert "<td><b>" not in page
    assert "&lt;b&gt;*a*&lt;/b&gt;" in page
    assert "<i>x</i>" not in page


def test_a_release_that_could_not_be_made_has_no_card() -> None:
    failed = ReleaseFinding(
        item="release/example 0",
        audit="release",
        subject=FIRST,
        status=Status.FAILED,
        outcome=Outcome.FAILED,
        note="boom",
    )
    text, _ = pages(failed)
    assert "The record holds no release yet." in text
    assert "Releases by scenario" not in text


def test_evidence_of_the_numbers_is_in_the_heads() -> None:
    text, _ = pages(known(), attack(0.2))
    head = next(line for line in text.splitlines() if "Leaking, of those attacked" in line)
    assert f"Smallest pixel RMSE reached \\[{Evidence.ATTACK.value}\\]" in head
    assert "Blind guess \\[exact\\]" in head


def test_ranges_by_feature_are_listed_as_far_as_they_are_on_file() -> None:
    card = {"kind": "tabular", "shape": [9]}
    assert domain({**card, "low": 0.0, "high": [1.0] * 8 + [5.0]}).endswith(
        "a range for each feature: 0 to 1, 0 to 1, 0 to 1, 0 to 1, 0 to 1, 0 to 1, and so on"
    )
    long = {**card, "shape": [100], "low": 0.0, "high": "list[100], checksum 0badcafe"}
    assert domain(long) == "tabular of 100, a range for each feature"
    assert domain({"kind": "image", "shape": [2, 4, 4], "low": [0, -1], "high": 9}).endswith(
        "a range for each channel: 0 to 9, -1 to 9"
    )


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ([], "the plan asked for no bound"),
        # Φ⁻¹(0.05) - Φ⁻¹(0.005) = 0.931 is what the noise has to bring μ = 2 to.
        (
            [chance(0.3, details={"mu": 2.0, "rounds": 4})],
            "leaves a chance of 0.3 to rebuild an example, above the limit of 0.05: about 2.2 times the noise, or fewer releases",
        ),
        (
            [chance(0.3, details={"mu": 2.0, "kappa": 0.01, "examples": 4, "hidden": "client"})],
            # Φ⁻¹(0.05) - Φ⁻¹(0.04) = 0.1058
            "above the limit of 0.05: about 19 times the noise would bound it",
        ),
        (
            [chance(0.4, details={"kappa": 0.0412, "examples": 2})],
            "no noise is enough, since blind guesses alone are given 0.0824",
        ),
        (
            [chance(None, outcome=Outcome.NOT_INFORMATIVE, note="no 500 sentences fit 196 words")],
            "the bound that the plan asked for has no value: no 500 sentences fit 196 words.",
        ),
    ],
)
def test_a_formal_defense_without_a_verdict_says_whether_a_bound_was_computed(made: list[Score], told: str) -> None:
    findings = [known("DP-SGD", guarantee="formal, hides an example"), *(about(one, scenario="DP-SGD") for one in made)]
    verdicts = [verdict("DP-SGD/example 0", VerdictKind.INCONCLUSIVE, "DP-SGD")]
    # The measure stands with the release, the verdict with its scenario, too.
    verdicts.append(verdict("DP-SGD", VerdictKind.INCONCLUSIVE, "DP-SGD"))
    text, _ = pages(*findings, verdicts=verdicts)
    assert told in text
    assert ("asked for no bound" in text) is (not made)
