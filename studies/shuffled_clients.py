"""Study: what a client that shuffles its mini-batches hides, by attacks that know the order and attacks that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import nn

from gradleak.attacks import DLFA, Attack, InvertingGradients, LocalTraining
from gradleak.core import Batch, HonestButCurious, Objective, Release, derive_generator, describe, one_thread
from gradleak.datasets import scikit_digits
from gradleak.models import Activation, mlp
from gradleak.protocols import FedAvg
from gradleak.results import DIMITROV_2022, Citation, Score
from gradleak.scoring import blind_baseline, score_images
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table

ORDERED, KNOWN, BLIND = "in order, unrolled", "shuffled, orders known", "blind"
WAYS = (ORDERED, KNOWN, "shuffled, DLFA", "shuffled, steps on the mean", "shuffled, average gradient", BLIND)


@dataclass(frozen=True, kw_only=True)
class ShuffledClients(Study):
    """Quality of inverting a FedAvg delta of a client that draws an order of its examples for every epoch.

    The same batches go through local training in a known order and in drawn ones. The delta is attacked with its steps
    unrolled in the client's own orders, which a server does not know, with a copy of the examples for every epoch (DLFA),
    with steps that take the mean over an epoch, and by the average gradient. Labels are disclosed. Claims are paired one to
    one with the truth.

    **Source**: Dimitrov et al. 2022, the question of their table 2. Deviations: digits of 8 by 8 pixels and a
    tanh network of one hidden layer, on which an attack gets somewhere in little time.

    Attributes:
        batches: number of batches, each with a start of its own.
        batch_size: images a batch.
        epochs: numbers of local epochs.
        mini_batch: images a local step.
        learning_rate: η of the client.
        hidden: width of the network's one hidden layer.
        iterations: steps of every attack.
        cells: file of single results, so that a killed study goes on; None for none.
        seed: of images, weights, orders and starts.
    """

    name: ClassVar[str] = "shuffled_clients"
    source: ClassVar[str] = "table 2"
    citations: ClassVar[tuple[Citation, ...]] = (DIMITROV_2022,)

    batches: int = 3
    batch_size: int = 8
    epochs: Sequence[int] = (2, 5)
    mini_batch: int = 2
    learning_rate: float = 0.1
    hidden: int = 64
    iterations: int = 600
    cells: str | None = None
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about ten minutes of one core."""
        rows: list[dict[str, Any]] = []
        with Store(self.cells) as store, one_thread():
            for epochs in self.epochs:
                for way in WAYS:
                    key = {"shuffled": way, "epochs": epochs, "study": describe(replace(self, epochs=(), cells=None))}
                    psnr = store.kept(key, list[float], partial(self._psnr, epochs, way))
                    rows.append({"epochs": epochs, "way": way, "psnr": psnr})
                    say(f"{epochs} epochs, {way}: {', '.join(f'{value:.1f}' for value in psnr)} dB")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[
                Finding(
                    quantity=f"{row['epochs']} epochs, {row['way']}: mean PSNR in dB",
                    ours=mean(row["psnr"]),
                    n=self.batches,
                    note=f"by batch {min(row['psnr']):.1f} to {max(row['psnr']):.1f}",
                )
                for row in rows
            ],
            conclusion=[_conclude(rows, epochs) for epochs in self.epochs],
            details={"rows": rows},
            tables=[
                Table(
                    title="Mean PSNR in dB by epochs and reading (least to most of a batch)",
                    columns=("epochs", *WAYS),
                    rows=[[str(epochs), *(_text(_of(rows, epochs, way)) for way in WAYS)] for epochs in self.epochs],
                )
            ],
        )

    def _psnr(self, epochs: int, way: str) -> list[float]:
        """Mean PSNR of every batch."""
        return [self._one(epochs, way, place) for place in range(self.batches)]

    def _one(self, epochs: int, way: str, place: int) -> float:
        batch = self._batch(place)
        if way == BLIND:
            return _mean_psnr(blind_baseline(batch))
        generator = derive_generator(self.seed, "weights")
        network = mlp(features=64, classes=10, hidden=(self.hidden,), activation=Activation.TANH, generator=generator)
        objective = Objective.from_module(nn.Sequential(nn.Flatten(), network).double())
        source = derive_generator(self.seed, "orders", str(epochs), str(place))
        orders = tuple(tuple(torch.randperm(self.batch_size, generator=source).tolist()) for _ in range(epochs))
        client = FedAvg(learning_rate=self.learning_rate, epochs=epochs, batch_size=self.mini_batch)
        sent = client if way == ORDERED else replace(client, order=orders)
        assumed = sent if way in (ORDERED, KNOWN) else replace(client, shuffled=True)
        update = Release(sent)(objective, batch, source)
        knowledge = HonestButCurious(targets=True).disclose(objective, Release(assumed), batch)
        generator = derive_generator(self.seed, "attack", str(place))
        claim = self._attack(way)(update, knowledge, generator=generator)
        return _mean_psnr(score_images(claim, batch))

    def _batch(self, place: int) -> Batch:
        digits = scikit_digits(count=self.batches * self.batch_size, seed=self.seed)
        return digits.rows(slice(place * self.batch_size, (place + 1) * self.batch_size))

    def _attack(self, way: str) -> Attack:
        if way == "shuffled, DLFA":
            return DLFA(iterations=self.iterations)
        whole = InvertingGradients(iterations=self.iterations, total_variation=1e-3)
        if way == "shuffled, average gradient":
            return replace(whole, local_training=LocalTraining.AVERAGE_GRADIENT)
        return whole


def _mean_psnr(scores: Sequence[Score]) -> float:
    psnr = next(score for score in scores if score.name == "psnr")
    return float(mean(value for value in psnr.details["per_example"] if value is not None))


def _of(rows: Sequence[dict[str, Any]], epochs: int, way: str) -> list[float]:
    return next(list(row["psnr"]) for row in rows if (row["epochs"], row["way"]) == (epochs, way))


def _text(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _conclude(rows: Sequence[dict[str, Any]], epochs: int) -> str:
    known = mean(_of(rows, epochs, KNOWN))
    best, unknown = max((mean(_of(rows, epochs, way)), way) for way in WAYS[2:-1])
    return (
        f"{epochs} epochs: not knowing the orders costs {known - best:.1f} dB with the best reading ({unknown}: "
        f"{best:.1f} dB; orders known {known:.1f} dB; in order {mean(_of(rows, epochs, ORDERED)):.1f} dB)."
    )


__all__ = ["ShuffledClients"]
