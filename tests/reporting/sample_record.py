"""A realistic record of the digits audit, made up from a seed: no model, no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from gradleak.results import (
    FANG_2024,
    GEIPING_2020,
    LEVENBERG_MARQUARDT,
    WANG_2004,
    ZHANG_2023,
    ZHU_2019,
    Evidence,
    Leakier,
    Outcome,
    Score,
)

SIZE = 28
EXAMPLES = 6
VARIANCES = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4)
BASELINES = (0.291, 0.314, 0.277, 0.305, 0.322, 0.268)
Picture = NDArray[np.float64]
Row = dict[str, Any]


def shape(index: int) -> Picture:
    """A synthetic picture that looks a little like a digit."""
    image = Image.new("L", (SIZE, SIZE))
    draw = ImageDraw.Draw(image)
    strokes: tuple[Callable[[], object], ...] = (
        lambda: draw.ellipse((7, 4, 20, 23), outline=255, width=3),
        lambda: draw.line((15, 4, 13, 23), fill=255, width=3),
        lambda: draw.line((7, 6, 20, 6, 11, 23), fill=255, width=3),
        lambda: draw.line((9, 4, 8, 14, 20, 14, 18, 4, 19, 24), fill=255, width=3),
        lambda: draw.arc((6, 4, 21, 24), 200, 140, fill=255, width=3),
        lambda: draw.polygon((14, 4, 22, 22, 6, 22), outline=255, width=3),
    )
    strokes[index % len(strokes)]()
    return np.asarray(image, dtype=np.float64) / 255


def save(picture: Picture, file: Path) -> None:
    levels = np.round(np.clip(picture, 0, 1) * 255).astype(np.uint8)
    Image.fromarray(levels).save(file)


def score(item: str, row: Mapping[str, Any], name: str, value: float | None, **fields: Any) -> Row:
    units = {"psnr": "dB", "ssim": "ssim", "exact_hits": "share", "label_accuracy": "share", "mse": "pixel_mse"}
    higher = name in ("psnr", "ssim", "exact_hits", "label_accuracy")
    made = Score(
        name=name,
        value=value,
        unit=fields.pop("unit", units.get(name, "pixel_rmse")),
        leakier=Leakier.HIGHER if higher else Leakier.LOWER,
        evidence=Evidence(fields.pop("evidence", "attack")),
        **fields,
    )
    place = {"scenario": row.get("scenario"), "example": row.get("example"), "attack": row.get("attack")}
    return {"type": "score", "item": item, **place, **made.to_dict()}


def image_scores(item: str, row: Mapping[str, Any], error: float, **fields: Any) -> list[Row]:
    psnr = math.inf if error == 0 else -20 * math.log10(error)
    return [
        score(
            item,
            row,
            "mse",
            error**2,
            **fields,
            details={"per_example": [error**2], "aggregation": "worst for the client"},
        ),
        score(
            item,
            row,
            "pixel_rmse",
            error,
            **fields,
            details={"per_example": [error], "aggregation": "worst for the client"},
        ),
        score(
            item, row, "psnr", psnr, **fields, details={"per_example": [psnr], "aggregation": "worst for the client"}
        ),
        score(item, row, "ssim", max(0.0, 1 - 3 * error), **fields),
        score(item, row, "exact_hits", float(error < 1e-3), **fields, details={"per_example": [error < 1e-3]}),
    ]


class SampleRecord:
    """Writes the groups of a record; parts can be left out."""

    def __init__(self, folder: Path, *, seed: int = 0, name: str = "digits", pictures: bool = True) -> None:
        self.folder, self.name, self.pictures = folder, name, pictures
        self.random = np.random.default_rng(seed)
        self.groups: dict[str, list[Row]] = {}
        (folder / "pictures").mkdir(parents=True, exist_ok=True)

    def write(self, *, only: int | None = None) -> Path:
        """Writes `record.jsonl`; `only` keeps that many groups, as after a kill."""
        rows: list[Row] = [self.run_line()]
        for name, lines in list(self.groups.items())[:only]:
            rows += [
                {"type": line["type"], "group": name, "line": place, "of": len(lines), **line}
                for place, line in enumerate(lines)
            ]
        file = self.folder / "record.jsonl"
        file.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")
        return file

    def run_line(self) -> Row:
        citations = (ZHANG_2023, ZHU_2019, GEIPING_2020, LEVENBERG_MARQUARDT, WANG_2004, FANG_2024)
        return {
            "type": "run",
            "schema": 1,
            "gradleak": "0.1.0",
            "plan_digest": "4f0c9a7be1",
            "name": self.name,
            "seed": 7,
            "plan": {"name": self.name, "seed": 7, "attacks": self.attacks(), "pictures": self.pictures},
            "thresholds": {"pixel_rmse": 0.1, "baseline_ratio": 0.5, "reconstruction_probability": 0.05},
            "groups": list(self.groups),
            "versions": {"python": "3.11.9", "torch": "2.13.0", "numpy": "2.1.0"},
            "host": {
                "machine": "x86_64",
                "cores": 2,
                "command": "bin/gradleak audit examples/digits.toml --out runs/digits",
            },
            "started": "2025-05-04T10:12:00Z",
            "git": "0123abc",
            "threads": 1,
            "estimate": {"plain_gradients": 52000},
            "citations": [{"key": c.key, "text": c.text(), "bibtex": c.bibtex()} for c in citations],
        }

    def attacks(self) -> Row:
        return {
            "gauss_newton": {"use": "GaussNewton", "max_steps": 12, "starts": 2},
            "inverting_gradients": {
                "use": "InvertingGradients",
                "iterations": 300,
                "restarts": 1,
                "total_variation": 0.0001,
            },
            "dlg": {"use": "DLG", "iterations": 300, "restarts": 1},
        }

    def knowledge(self, defenses: list[Row], *, disclosed: bool = False) -> Row:
        shared = {"0.weight": [12, 1, 5, 5], "0.bias": [12], "2.weight": [12, 12, 5, 5], "2.bias": [12]}
        return {
            "objective": {
                "loss": "cross_entropy",
                "mode": "eval",
                "shared": {**shared, "9.weight": [10, 588], "9.bias": [10]},
                "frozen": [],
                "tied": {},
                "renamed": {"0.weight": "module.0.weight", "0.bias": "module.0.bias"},
                "shared_entries": 17038,
                "buffers": [],
            },
            "protocol": {"use": "FedSGD"},
            "defenses": defenses,
            "batch_size": 1,
            "targets": "int64[1]" if disclosed else None,
            "domain": {
                "use": "Domain",
                "shape": [1, SIZE, SIZE],
                "low": 0.0,
                "high": 1.0,
                "mean": None,
                "std": None,
                "kind": "image",
            },
            "public": None,
        }

    def eigenvalues(self, example: int) -> list[float]:
        places = np.linspace(0, 1, SIZE * SIZE)
        wiggle = 0.15 * np.cumsum(self.random.normal(size=SIZE * SIZE)) / SIZE
        logs = 1.2 - 5.2 * places**1.4 - 1.5 * places**14 + 0.1 * example + wiggle
        return [float(value) for value in np.sort(10**logs)]

    def picture(self, name: str, content: Picture) -> str | None:
        if not self.pictures:
            return None
        save(content, self.folder / "pictures" / name)
        return f"pictures/{name}"

    def release(self, scenario: str, example: int, variance: float | None, eigenvalues: list[float]) -> list[Row]:
        item = f"{scenario}/example {example}"
        std = None if variance is None else math.sqrt(variance)
        defenses = [] if std is None else [{"use": "GaussianNoise", "std": std}]
        base = {"scenario": scenario, "example": example, "status": "done", "outcome": "converged", "note": ""}
        release = {
            "type": "item",
            "item": item,
            "kind": "release",
            **base,
            "seconds": 0.01,
            "knowledge": self.knowledge(defenses),
            "release": {"use": "Release", "protocol": {"use": "FedSGD"}, "defenses": defenses},
            "defenses": [{**defense, "guarantee": "heuristic"} for defense in defenses],
            "guarantee": "heuristic" if defenses else "",
            "noise_std": std,
            "noise_variance": variance,
            "gate": {
                "status": "consistent",
                "cosine": 1.0 if std is None else 0.9997,
                "chi_square_z": None if std is None else 0.7,
                "causes": [],
            },
            "given": False,
            "zero_tensors": [],
            "alignment": [],
            "domain_guessed": False,
            "picture": self.picture(f"original-{example}.png", shape(example)),
        }
        risk = {
            "type": "item",
            "item": f"{item}/risk",
            "kind": "risk",
            **base,
            "seconds": 0.6,
            "eigenvalues": eigenvalues,
            "d": SIZE * SIZE,
            "P": 17038,
            "rank": SIZE * SIZE,
            "route": "forward-mode JVP in blocks of 64",
        }
        baseline = {"type": "item", "item": f"{item}/baseline", "kind": "baseline", **base, "which": "best_constant"}
        rows = [release, risk, baseline]
        rows += image_scores(baseline["item"], baseline, BASELINES[example], evidence="exact")
        if variance is None:
            needed = 0.1 / math.sqrt(sum(1 / value for value in eigenvalues) / len(eigenvalues))
            rows.append(
                score(risk["item"], risk, "noise_std_for_threshold", needed, unit="update", evidence="estimate")
            )
        else:
            expected = math.sqrt(variance * sum(1 / value for value in eigenvalues) / len(eigenvalues))
            drawn = expected * (1 + 0.03 * self.random.normal())
            rows += [
                score(risk["item"], risk, "inversion_influence", drawn, evidence="exact", details={"epsilon": 0.0}),
                score(risk["item"], risk, "inversion_influence_lower_bound", drawn / 800, evidence="lower_bound"),
                score(risk["item"], risk, "gaussian_reconstruction_error", expected, evidence="estimate"),
            ]
        return rows

    def attempt(
        self, scenario: str, example: int, attack: str, error: float, outcome: str = "converged", **fields: Any
    ) -> list[Row]:
        item = f"{scenario}/example {example}/{attack}"
        noise = self.random.normal(size=(SIZE, SIZE))
        kind = "perfect_attacker" if attack == "perfect_attacker" else "attack"
        drawn = self.picture(f"{item}.png".replace("/", "-").replace(" ", "-"), shape(example) + error * noise)
        row = {
            "type": "item",
            "item": item,
            "kind": kind,
            "scenario": scenario,
            "example": example,
            "status": "done",
            "outcome": outcome,
            "note": "",
            "seconds": 1.5,
            "attack": attack,
            "attack_config": self.attacks().get(attack, {}),
            "loss": 1e-24,
            "iterations": 7,
            "plain_gradients": 2450.0,
            "labels": "recovered",
            "history": [1.0, 0.1, 1e-3, 1e-9],
            "details": {},
            "picture": drawn if kind == "attack" else None,
            **fields,
        }
        evidence = "estimate" if kind == "perfect_attacker" else "attack"
        rows = [row, *image_scores(item, row, error, evidence=evidence, outcome=Outcome.from_label(outcome))]
        if kind == "attack":
            rows.append(score(item, row, "label_accuracy", 1.0))
        return rows

    def verdict(self, item: str, verdict: str, reason: str, explanation: str, **details: Any) -> Row:
        return {
            "type": "verdict",
            "item": item,
            "verdict": verdict,
            "reason": reason,
            "explanation": explanation,
            "details": {"threshold_pixel_rmse": 0.1, "threshold_baseline_ratio": 0.5, **details},
        }

    def controls(self, *, passed: bool = True) -> None:
        for name, error in (("positive", 2e-9), ("negative", 0.41)):
            item = f"control/{name}"
            row = {
                "type": "item",
                "item": item,
                "kind": "control",
                "scenario": None,
                "example": None,
                "status": "done",
                "outcome": "converged",
                "note": "",
                "seconds": 0.4,
                "passed": passed,
                "plain_gradients": 300.0,
                "baseline_pixel_rmse": 0.28,
            }
            self.groups[item] = [row, *image_scores(item, row, error)]

    def problems(self) -> None:
        base = {"type": "item", "kind": "attack", "scenario": "undefended", "example": 5, "seconds": 0.0}
        self.groups["problems"] = [
            {
                **base,
                "item": "undefended/example 5/tag",
                "attack": "tag",
                "status": "refused",
                "outcome": "unsupported",
                "note": "TAG needs token embeddings, which a domain of kind image does not have",
            },
            {
                **base,
                "item": "undefended/example 5/broken",
                "attack": "broken",
                "status": "failed",
                "outcome": "failed",
                "note": "RuntimeError: shapes do not match",
                "traceback": "Traceback (most recent call last):\n  ...\nRuntimeError: shapes do not match",
            },
        ]


def digits_audit(folder: Path, *, pictures: bool = True, problems: bool = True, controls_pass: bool = True) -> Path:
    """The record of the demo: six digits undefended, three under five noise levels, controls."""
    sample = SampleRecord(folder, pictures=pictures)
    spectra = [sample.eigenvalues(example) for example in range(EXAMPLES)]
    sample.controls(passed=controls_pass)
    for example in range(EXAMPLES):
        rows = sample.release("undefended", example, None, spectra[example])
        error = 0.0 if example == 2 else 10 ** float(sample.random.uniform(-13, -11.5))
        rows += sample.attempt("undefended", example, "gauss_newton", error)
        if example == 0:
            plateau = {"iterations": 300, "plain_gradients": 900.0}
            rows += sample.attempt("undefended", 0, "inverting_gradients", 0.083, "budget_spent", **plateau)
            rows += sample.attempt("undefended", 0, "dlg", 0.352, "plateau", **plateau, labels="optimized")
        sample.groups[f"undefended/example {example}"] = rows
    for variance in VARIANCES:
        scenario = f"noise {variance:.0e}".replace("e-0", "e-")
        for example in range(3):
            rows = sample.release(scenario, example, variance, spectra[example])
            predicted = next(row["value"] for row in rows if row.get("name") == "inversion_influence")
            if predicted < 0.05:
                reached = predicted * (1 + 0.04 * float(sample.random.normal()))
                rows += sample.attempt(scenario, example, "perfect_attacker", reached)
            if example == 0:
                real = min(predicted * 1.02, 0.38 + 0.02 * predicted)
                outcome = "converged" if predicted < 0.3 else "plateau"
                rows += sample.attempt(scenario, 0, "gauss_newton", real, outcome, iterations=12)
            sample.groups[f"{scenario}/example {example}"] = rows
    if problems:
        sample.problems()
    sample.groups["verdicts"] = verdicts(sample, controls_pass)
    return sample.write()


def verdicts(sample: SampleRecord, controls_pass: bool) -> list[Row]:
    rows = []
    failed = "control/positive did not give what it had to, so no result of this audit can be read."
    releases = [r for lines in sample.groups.values() for r in lines if r.get("kind") == "release"]
    leaking: dict[str, list[Row]] = {}
    for release in releases:
        place = (release["scenario"], release["example"])
        errors = [
            row["value"]
            for lines in sample.groups.values()
            for row in lines
            if row.get("name") == "pixel_rmse"
            and (row.get("scenario"), row.get("example")) == place
            and row.get("attack") not in (None, "perfect_attacker")
        ]
        best = min((float(error) for error in errors), default=None)
        if not controls_pass:
            made = sample.verdict(release["item"], "inconclusive", "control_failed", failed)
        elif best is None:
            text = "No attack was run on this release; closed-form risk alone gives no verdict."
            made = sample.verdict(release["item"], "inconclusive", "no_attack_ran", text)
        elif best <= 0.1:
            text = f"gauss_newton rebuilt an example from the update alone: pixel RMSE {best:.2g}, at most 0.1 "
            text += "and at most 0.5 of what guessing blindly gives."
            made = sample.verdict(release["item"], "leaks", "attack_reached_threshold", text, pixel_rmse=best)
        else:
            text = (
                f"The best attack (gauss_newton) ended at pixel RMSE {best:.2g}. A stronger attacker may do better: a "
            )
            text += "failed attack is no evidence of safety."
            made = sample.verdict(release["item"], "inconclusive", "no_attack_reached_threshold", text)
        rows.append(made)
        leaking.setdefault(release["scenario"], []).append(made)
    scenarios = []
    for name, group in leaking.items():
        hits = [row for row in group if row["verdict"] == "leaks"]
        if hits:
            worst = min(hits, key=lambda row: row["details"]["pixel_rmse"])
            text = f"{len(hits)} of {len(group)} leak; the worst is {worst['item']}. {worst['explanation']}"
            scenarios.append(sample.verdict(name, "leaks", worst["reason"], text, **worst["details"]))
        else:
            scenarios.append({**group[0], "item": name})
    hits = [row for row in scenarios if row["verdict"] == "leaks"]
    if hits:
        text = f"{len(hits)} of {len(scenarios)} leak; the worst is {hits[0]['item']}. {hits[0]['explanation']}"
        run = sample.verdict("run", "leaks", "attack_reached_threshold", text, **hits[0]["details"])
    else:
        run = {**scenarios[0], "item": "run"}
    return [*rows, *scenarios, run]
