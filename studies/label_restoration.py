"""Study: labels of a batch that its gradient gives away, adaptive label recovery against the zero-shot rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from gradleak.attacks import AdaptiveLabelRecovery, ConsistentLabels, LabelAttack, LabelRecovery, ZeroShotLabels
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    Mode,
    Objective,
    Reconstruction,
    Release,
    Update,
    derive_generator,
    describe,
)
from gradleak.datasets import image_file, mnist_digits
from gradleak.models import mlp, resnet8, resnet18
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import FANG_2024, YIN_2021, Citation, InputError, Outcome
from gradleak.scoring import label_accuracy
from studies.cifar_resnet20 import MEAN, STD, cifar_resnet20
from studies.label_batches import draw_with_labels, places_with, unbalanced_labels
from studies.study import Finding, Say, Study, StudyResult
from studies.summaries import resampled

# Table 2 of the paper, CIFAR-100.
PAPER = {
    "adaptive_label_recovery": {16: "1.000", 32: "1.000", 64: "0.984", 128: "0.977", 256: "0.926"},
    "zero_shot_labels": {16: "0.375", 32: "0.313", 64: "0.266", 128: "0.242", 256: "0.254"},
}
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
# Every attack makes the claim of its paper, whatever it is worth.
ATTACKS: tuple[LabelAttack, ...] = (
    AdaptiveLabelRecovery(minimum_confidence=0.0),
    ZeroShotLabels(minimum_confidence=0.0),
    ConsistentLabels(minimum_confidence=0.0),
)
SURE = 0.9

Row = dict[str, Any]
Results = Iterator[tuple[str, int, dict[str, list[Row]]]]


class Network(StrEnum):
    """Untrained networks of the study."""

    RESNET18 = "resnet18"
    RESNET8 = "resnet8"


@dataclass(frozen=True, kw_only=True)
class LabelRestoration(Study):
    """Share of labels that three label attacks get right, on untrained and trained models and on FedAvg deltas.

    A batch has the paper's unbalanced labels: half of one class, a quarter of another, the rest different ones. Accuracy
    is Σ_c min(n_c, n̂_c)/K. Every attack makes the claim of its paper, also where its own confidence is low; beside it
    stands how often it was sure (0.9) and how often it was then wrong. Where there are more examples than classes, the
    zero-shot rule names every class once. Intervals are percentile bootstraps over batches.

    **Source**: Fang et al. 2024, table 2 (CIFAR-100, untrained ResNet-18), which does not say how many batches, nor eval
    or train mode. Deviations: the images may be few, so that they are drawn with replacement, cropped and mirrored at
    random; both modes. Only the classifier's gradient is taken for untrained networks, since label attacks read no
    other. The parts on trained models and on deltas have no counterpart in the paper.

    Attributes:
        images: npz file with CIFAR-100 images (arrays x, y); None leaves the untrained part out.
        pool: images taken from that file.
        networks: untrained networks, 100 classes.
        modes: in which the client runs them.
        sizes: batch sizes.
        batches: batches a size.
        trained_images: npz file with CIFAR-10 images, or None to leave the trained ResNet-20 out.
        only: name of a boolean array in that file that selects images.
        weights: safetensors file of the trained ResNet-20.
        training_steps: after how many steps of training a small network on MNIST digits is attacked; () for none.
        trained_sizes: batch sizes there; two examples have different labels, which the zero-shot rule can prove; at 32 and
            above labels are drawn at random, since 10 classes are too few.
        local_steps: numbers of local steps of FedAvg, on the untrained ResNet-8; () for none.
        learning_rates: of FedAvg.
        local_size: batch size there.
        seed: of weights, batches and dummies.
        resamples: bootstrap resamples.
    """

    name: ClassVar[str] = "label_restoration"
    source: ClassVar[str] = "table 2"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, YIN_2021)

    images: str | None = None
    pool: int = 300
    networks: Sequence[Network] = tuple(Network)
    modes: Sequence[Mode] = (Mode.EVAL, Mode.TRAIN)
    sizes: Sequence[int] = (16, 32, 64, 128, 256)
    batches: int = 10
    trained_images: str | None = None
    only: str | None = None
    weights: str | None = None
    training_steps: Sequence[int] = (0, 30, 100, 300, 1000)
    trained_sizes: Sequence[int] = (2, 4, 8, 16, 32, 64)
    local_steps: Sequence[int] = (1, 2, 4, 8)
    learning_rates: Sequence[float] = (0.01, 0.1)
    local_size: int = 32
    seed: int = 0
    resamples: int = 2000

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; the untrained ResNet-18 takes about ten minutes of one core."""
        findings: list[Finding] = []
        raw: dict[str, Any] = {}
        for part in (self._untrained, self._deltas, self._partly_trained, self._trained):
            for setting, size, results in part(say):
                for attack in ATTACKS:
                    rows = results[attack.name]
                    paper = PAPER.get(attack.name, {}).get(size, "") if "untrained resnet18" in setting else ""
                    findings.append(self._finding(f"{setting}, K = {size}: {attack.name}", rows, paper))
                    raw[f"{setting}, K = {size}: {attack.name}"] = rows
        if not findings:
            raise InputError("label_restoration: nothing to do; pass images, training_steps or trained_images")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=_conclude(findings, raw),
            details={"rows": raw},
        )

    def _untrained(self, say: Say) -> Results:
        if self.images is None:
            return
        pool = image_file(path=Path(self.images), count=self.pool, seed=self.seed)
        domain = _normalized(pool, CIFAR100_MEAN, CIFAR100_STD)
        for network in map(Network, self.networks):
            for mode in map(Mode, self.modes):
                objective = self._network(network, mode, head_only=True)
                for size in self.sizes:
                    batches = self._unbalanced(pool, size, domain)
                    results = self._attack(objective, batches, Release(FedSGD()))
                    say(f"untrained {network.value}, {mode.value}, K = {size}: {_summary(results)}")
                    yield f"untrained {network.value}, {mode.value} mode", size, results

    def _deltas(self, say: Say) -> Results:
        if self.images is None:
            return
        pool = image_file(path=Path(self.images), count=self.pool, seed=self.seed)
        domain = _normalized(pool, CIFAR100_MEAN, CIFAR100_STD)
        objective = self._network(Network.RESNET8, Mode.EVAL)
        batches = self._unbalanced(pool, self.local_size, domain) if self.local_steps else []
        for rate in self.learning_rates:
            for steps in self.local_steps:
                release = Release(FedAvg(learning_rate=rate, epochs=steps))
                results = self._attack(objective, batches, release)
                setting = f"untrained resnet8, eval mode, delta of {steps} local steps at learning rate {rate:g}"
                say(f"{setting}: {_summary(results)}")
                yield setting, self.local_size, results

    def _partly_trained(self, say: Say) -> Results:
        if not self.training_steps:
            return
        digits = mnist_digits(count=5000, seed=self.seed)
        half = digits.size // 2
        private = digits.rows(slice(half, None))
        weights = derive_generator(self.seed, "weights", "mnist")
        layers = mlp(features=784, hidden=(128, 64), classes=10, activation="relu", generator=weights)
        objective, done = Objective.from_module(nn.Sequential(nn.Flatten(), layers)), 0
        generator = derive_generator(self.seed, "training")
        for steps in sorted(self.training_steps):
            for _ in range(steps - done):
                places = torch.randint(half, (32,), generator=generator)
                step = objective.gradient(objective.params, Batch(digits.inputs[places], digits.targets[places]))
                params = {name: tensor - 0.1 * step[name] for name, tensor in objective.params.items()}
                objective = replace(objective, params=params)
            done = steps
            right = _share_right(objective, private)
            for size in self.trained_sizes:
                results = self._attack(objective, self._small(private, size), Release(FedSGD()))
                setting = f"MNIST network after {steps} steps ({right:.0%} right)"
                say(f"{setting}, K = {size}: {_summary(results)}")
                yield setting, size, results

    def _trained(self, say: Say) -> Results:
        if self.trained_images is None or self.weights is None:
            return
        with np.load(Path(self.trained_images), allow_pickle=False) as arrays:
            count = int(arrays[self.only].sum()) if self.only else len(arrays["y"])
        pool = image_file(path=Path(self.trained_images), count=count, seed=self.seed, only=self.only)
        domain = _normalized(pool, MEAN, STD)
        private = Batch(domain.from_pixels(pool.inputs), pool.targets, domain)
        model = cifar_resnet20(self.weights)
        for mode in map(Mode, self.modes):
            objective = Objective.from_module(model, mode=mode)
            right = _share_right(objective, private)
            for size in self.trained_sizes:
                results = self._attack(objective, self._small(private, size), Release(FedSGD()))
                setting = f"trained ResNet-20, {mode.value} mode ({right:.0%} right)"
                say(f"{setting}, K = {size}: {_summary(results)}")
                yield setting, size, results

    def _network(self, network: Network, mode: Mode, *, head_only: bool = False) -> Objective:
        generator = derive_generator(self.seed, "weights", network.value)
        build: Callable[..., nn.Sequential] = resnet18 if network is Network.RESNET18 else resnet8
        model = build(classes=100, generator=generator)
        if head_only:  # label attacks read nothing else, and its gradient is the same
            model.requires_grad_(False)
            model[-1].requires_grad_(True)
        return Objective.from_module(model, mode=mode)

    def _unbalanced(self, pool: Batch, size: int, domain: Domain) -> list[Batch]:
        """The paper's batches of one size, the same for every network."""
        drawn = []
        for number in range(self.batches):
            generator = derive_generator(self.seed, "batch", str(size), str(number))
            labels = unbalanced_labels(size, pool.targets.unique(), generator)
            drawn.append(draw_with_labels(pool, labels, generator, domain=domain))
        return drawn

    def _small(self, private: Batch, size: int) -> list[Batch]:
        """Batches of ten classes: the paper's labels where they suffice, else drawn at random."""
        drawn = []
        for number in range(self.batches):
            generator = derive_generator(self.seed, "small batch", str(size), str(number))
            if size - size // 2 - size // 4 + 2 <= len(private.targets.unique()):
                labels = unbalanced_labels(size, private.targets.unique(), generator)
                order = torch.randperm(private.size, generator=generator)
                places = places_with(private.targets[order], labels, asker=self.name)
                drawn.append(Batch(private.inputs[order[places]], labels, private.domain))
            else:
                places = torch.randperm(private.size, generator=generator)[:size]
                drawn.append(private.rows(places))
        return drawn

    def _attack(self, objective: Objective, batches: Sequence[Batch], release: Release) -> dict[str, list[Row]]:
        rows: dict[str, list[Row]] = {attack.name: [] for attack in ATTACKS}
        for number, batch in enumerate(batches):
            generator = derive_generator(self.seed, "attack", str(batch.size), str(number))
            mean = release.mean(objective, objective.params, batch)
            update = Update(tensors=mean, kind=release.protocol.kind)
            knowledge = HonestButCurious().disclose(objective, release, batch)
            for attack in ATTACKS:
                found = attack(update, knowledge, generator=generator)
                rows[attack.name].append(_row(found, batch, objective))
        return rows

    def _finding(self, quantity: str, rows: Sequence[Row], paper: str) -> Finding:
        values = np.array([row["accuracy"] for row in rows])
        interval = resampled(values, np.mean, seed=self.seed, resamples=self.resamples)
        exact = sum(row["accuracy"] == 1 for row in rows)
        sure = [row for row in rows if row["confidence"] >= SURE]
        wrong = sum(row["accuracy"] < 1 for row in sure)
        return Finding(
            quantity=quantity,
            ours=float(values.mean()),
            paper=paper,
            interval=interval,
            n=len(rows),
            note=f"all counts right in {exact}, sure in {len(sure)}, of which wrong {wrong}",
        )


def _normalized(pool: Batch, mean: tuple[float, ...], std: tuple[float, ...]) -> Domain:
    channels, height, width = pool.inputs.shape[1:]
    return Domain.image(channels=channels, height=height, width=width, mean=mean, std=std)


def _share_right(objective: Objective, batch: Batch) -> float:
    with torch.no_grad():
        outputs = torch.cat([objective.outputs(objective.params, piece) for piece in batch.inputs.split(128)])
    return float((outputs.argmax(dim=1) == batch.targets).double().mean())


def _row(found: LabelRecovery, batch: Batch, objective: Objective) -> Row:
    """Result of one attack on one batch."""
    targets = found.targets
    if targets is None:  # more examples than classes: the zero-shot rule names every class once
        targets = torch.arange(objective.outputs(objective.params, batch.inputs[:2]).shape[1])
    claim = Reconstruction(inputs=None, targets=targets, loss=None, outcome=Outcome.CONVERGED)
    score = label_accuracy(claim, batch, None)
    assert score is not None
    return {"accuracy": score.value, "confidence": found.confidence, "note": found.note}


def _summary(results: dict[str, list[Row]]) -> str:
    return ", ".join(f"{name} {np.mean([row['accuracy'] for row in rows]):.3f}" for name, rows in results.items())


def _conclude(findings: Sequence[Finding], raw: dict[str, list[Row]]) -> list[str]:
    """For each kind of setting, what the three attacks get on average; and what their confidence is worth."""
    lines = []
    for mark in ("untrained resnet", "delta of", "MNIST network", "trained ResNet"):
        here = [
            finding
            for finding in findings
            if mark in finding.quantity and ("delta of" in finding.quantity) is (mark == "delta of")
        ]
        means = []
        for attack in ATTACKS:
            values = [finding.ours or 0.0 for finding in here if finding.quantity.endswith(attack.name)]
            means += [f"{attack.name} {np.mean(values):.3f}"] if values else []
        if means:
            lines.append(f"{mark}: mean accuracy over settings and sizes: {', '.join(means)}.")
    for attack in ATTACKS:
        sure = [
            row for key, rows in raw.items() if key.endswith(attack.name) for row in rows if row["confidence"] >= SURE
        ]
        wrong = sum(row["accuracy"] < 1 for row in sure)
        lines.append(f"{attack.name} was sure (0.9) {len(sure)} times, of which {wrong} were not wholly right.")
    return lines


__all__ = ["LabelRestoration", "Network"]
