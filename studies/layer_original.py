"""Study: layers that give an image away, and closed-form measures of the layers that foresee it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gradleak.attacks import Attack
from gradleak.core import Batch, describe, one_thread
from gradleak.datasets import mnist_digits
from gradleak.models import Activation
from gradleak.results import MO_2021, Citation, InputError
from gradleak.risk import JacobianNorm, PairedRows
from studies.datasets import cifar100
from studies.layer_correlation import Correlation, correlate
from studies.layer_original_attacks import LayerInversion
from studies.layer_original_cells import (
    ATTACK,
    BLIND,
    EVERYTHING,
    PAPER_NETWORKS,
    SWAPPED,
    LayerNetwork,
    Workbench,
    layer_sets,
    shrunk,
)
from studies.layer_original_findings import (
    ENTRIES,
    FROBENIUS,
    INF,
    ONE,
    PER_ENTRY,
    POSTERIOR,
    WIDE,
    LayerRow,
    against,
    apart,
    clear,
    conclude_ceiling,
    conclude_controls,
    conclude_correlations,
    control_findings,
    correlation_findings,
    figures,
    mean_of,
    profiles,
    set_finding,
    table,
)
from studies.private_images import trained
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult
from studies.summaries import known

_CIFAR_CLASSES, _MNIST_CLASSES = 100, 10


@dataclass(frozen=True, kw_only=True)
class LayerOriginal(Study):
    """Original information in sets of layers by an inversion, beside the sensitivity of the same sets.

    The attack (`LayerInversion`; by default `InvertingGradients`) knows the label: of each set it
    sees the gradients of these layers alone, from the same starts. Two controls stand beside the profile. What the attack
    makes of *all* layers says whether it can rebuild such images behind this network at all: where it cannot, a profile
    says nothing. The same claims scored against another image say how much a claim of that kind is worth for nothing;
    the blind attacker claims a gray image.

    Measures of a set are means over images: `Sensitivity` in three norms, its Frobenius norm over the root of the number
    of entries, the number of entries alone, and 1/`LinearizedPosteriorError` where A is small enough. Correlations run
    over pairs of network and set; V-information and measure are divided by the network's largest, as in figure 4, else
    networks that differ in everything would be correlated. The mean of the correlations within networks stands beside.

    **Assumptions**: results of one attack with one budget, a lower estimate. The sets of two share layers, so that
    intervals over pairs are too narrow. Student's intervals over a few images may miss a skewed population.

    **Source**: Mo et al. 2021, section 6.2, figure 4 (sets of two layers, 20 trials), section 6.3, figures 6 and 8, and the
    correlation stated there. Deviations: the paper has ReLU, and names DLG and iDLG, whose search needs smooth activations;
    the default attack was made for ReLU, and `activation` and `attack` offer others. Random weights by default, as at the
    start of training; `training_steps` on other images of the file. The paper does not say over which pairs R was taken.

    Attributes:
        images: CIFAR-100 in a file as `cifar100` takes it, or None for MNIST digits.
        networks: which.
        activation: of the networks.
        side: height and width of the images: a frame for digits (28 for none), means over blocks of pixels for CIFAR-100.
        count: images under attack, at least 2.
        sizes: how many layers that follow one another make a set.
        attack: which inversion.
        starts: of the attack for each image.
        iterations: of the attack; see `LayerInversion`.
        total_variation: weight of its prior, if it has one.
        block: images in lockstep.
        training_steps: Adam steps before the attack.
        training_images: other images that they are taken on.
        norm_images: images for the norms; the Frobenius norm is taken of all.
        samples: random products of each Frobenius norm.
        posterior_images: images for the posterior error.
        posterior_entries: of A, at most; larger sets have no value.
        noise_std: of the posterior error, on every entry of the gradient.
        prior_std: of its pixels.
        seed: of images, weights and starts.
        resamples: of bootstraps.
        cells: file that keeps what was computed; None for none.
    """

    name: ClassVar[str] = "layer_original"
    source: ClassVar[str] = "figures 4, 6 and 8, and the correlation in section 6.3"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    images: str | None = None
    networks: Sequence[LayerNetwork] = PAPER_NETWORKS
    activation: Activation = Activation.RELU
    side: int = 32
    count: int = 4
    sizes: Sequence[int] = (1, WIDE)
    attack: LayerInversion = LayerInversion.INVERTING_GRADIENTS
    starts: int = 1
    iterations: int = 500
    total_variation: float = 3e-2
    block: int = 4
    training_steps: int = 0
    training_images: int = 200
    norm_images: int = 1
    samples: int = 64
    posterior_images: int = 0
    posterior_entries: int = 60_000_000
    noise_std: float = 1e-3
    prior_std: float = 0.3
    seed: int = 0
    resamples: int = 1000
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.count < 2 or self.block < 2 or not self.sizes or not self.networks:
            raise InputError(
                "LayerOriginal: expected at least two images, a block of two, one size of sets and one network, got "
                f"{self.count}, {self.block}, {self.sizes} and {self.networks}"
            )

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about 20 minutes of one core for six color images, 1,000 iterations and all networks."""
        images, others = self._images()
        rows: list[LayerRow] = []
        controls: dict[str, dict[str, list[float]]] = {}
        with Store(self.cells) as store, one_thread():
            for network in map(LayerNetwork, self.networks):
                bench = self._bench(network, images, others, store)
                controls[network.value] = self._controls(bench)
                shares = ", ".join(f"{name} {np.mean(one):.2f}" for name, one in controls[network.value].items())
                say(f"{network.value}, all layers, nats: {shares}")
                rows += self._rows(bench, controls[network.value][BLIND], say)
        found = [
            correlation
            for size in self.sizes
            for measure in (FROBENIUS, ONE, INF, PER_ENTRY, ENTRIES, POSTERIOR)
            if (correlation := self._correlation(rows, size, measure)) is not None
        ]
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[
                *control_findings(controls),
                *(set_finding(row) for row in rows),
                *self._first_findings(rows),
                *(finding for one in found for finding in correlation_findings(one)),
            ],
            conclusion=[
                *conclude_controls(controls),
                *self._conclude_order(rows),
                *conclude_ceiling(rows, controls),
                *conclude_correlations(found),
            ],
            details={"rows": describe(rows), "controls": controls, "correlations": describe(found)},
            tables=[table(rows)],
            figures=figures(rows),
        )

    def _images(self) -> tuple[Batch, Batch | None]:
        total = self.count + (self.training_images if self.training_steps else 0)
        if self.images is None:
            batch = mnist_digits(count=total, seed=self.seed, size=self.side)
        else:
            batch = shrunk(cifar100(path=self.images, count=total, seed=self.seed), self.side)
        if total == self.count:
            return batch, None
        first, rest = (batch.rows(part) for part in (slice(0, self.count), slice(self.count, None)))
        return first, rest

    def _bench(self, network: LayerNetwork, images: Batch, others: Batch | None, store: Store) -> Workbench:
        classes = _MNIST_CLASSES if self.images is None else _CIFAR_CLASSES
        activation = Activation.named(self.activation)
        objective = network.objective(images, classes, self.seed, activation)
        if others is not None:
            objective = trained(objective, others, steps=self.training_steps, seed=self.seed)
        return Workbench(
            network=network.value,
            objective=objective,
            images=images,
            groups=layer_sets(objective, self.sizes),
            store=store,
            identity={
                "classes": classes,
                "weights": self.seed,
                "training_steps": self.training_steps,
                "training_images": self.training_images if self.training_steps else 0,
                # ReLU is not named, so that cells from before there was a choice stay valid.
                **({} if activation is Activation.RELU else {"activation": activation.value}),
            },
            block=self.block,
            seed=self.seed,
        )

    def _attack(self) -> Attack:
        return LayerInversion(self.attack).attack(
            iterations=self.iterations, total_variation=self.total_variation, starts=self.starts
        )

    def _controls(self, bench: Workbench) -> dict[str, list[float]]:
        """Nats of each image where all layers are seen, by control; and similarities of attack and blind guess."""
        found = {control: bench.claims(EVERYTHING, control, self._attack()) for control in (ATTACK, SWAPPED, BLIND)}
        ssim = {f"ssim, {control}": known(found[control].ssim) for control in found}
        return {control: list(claims.nats) for control, claims in found.items()} | ssim

    def _rows(self, bench: Workbench, blind: Sequence[float], say: Say) -> list[LayerRow]:
        measures = self._measures(bench)
        rows = []
        for label, members in bench.groups.items():
            claims = bench.claims(label, ATTACK, self._attack())
            row = LayerRow(
                network=bench.network,
                layers=label,
                count=len(dict.fromkeys(name.rpartition(".")[0] for name in members)),
                entries=bench.entries(label),
                nats=claims.nats,
                against_blind=against(claims, blind),
                ssim=claims.ssim,
                measures=measures[label],
                note=claims.note,
            )
            say(f"{bench.network}, {label}: {row.value:.2f} nats, {np.mean(row.against_blind):.2f} against blind")
            rows.append(row)
        return rows

    def _measures(self, bench: Workbench) -> dict[str, dict[str, float | None]]:
        """Means over images by set and measure."""
        found: dict[str, dict[str, float | None]] = {label: {} for label in bench.groups}
        for norm, name in ((JacobianNorm.FROBENIUS, FROBENIUS), (JacobianNorm.ONE, ONE), (JacobianNorm.INF, INF)):
            images = self.count if norm is JacobianNorm.FROBENIUS else min(self.norm_images, self.count)
            values = [bench.sensitivity(norm, place, self.samples) for place in range(images)]
            for label in found:
                found[label][name] = mean_of([one[label] for one in values])
        for label, measures in found.items():
            frobenius, entries = measures[FROBENIUS], bench.entries(label)
            measures[PER_ENTRY] = None if frobenius is None else frobenius / math.sqrt(entries)
            measures[ENTRIES] = float(entries)
            errors = [
                bench.posterior(
                    label,
                    place,
                    noise_std=self.noise_std,
                    prior_std=self.prior_std,
                    most=self.posterior_entries,
                ).value
                for place in range(min(self.posterior_images, self.count))
            ]
            error = mean_of(errors)
            measures[POSTERIOR] = None if error is None else 1.0 / error
        return found

    def _correlation(self, rows: Sequence[LayerRow], size: int, measure: str) -> Correlation | None:
        chosen = [row for row in rows if row.count == size and row.measures[measure] is not None]
        return correlate(
            f"sets of {size}: {measure}",
            [row.network for row in chosen],
            [row.value for row in chosen],
            [row.measures[measure] or 0.0 for row in chosen],
            resamples=self.resamples,
            seed=self.seed,
        )

    def _first_findings(self, rows: Sequence[LayerRow]) -> list[Finding]:
        findings = []
        for network, size, mine in profiles(rows):
            other = max(mine[1:], key=lambda row: row.value)
            value, interval = self._paired(mine).difference(mine[0].layers, other.layers)
            place = 1 + sum(row.value > mine[0].value for row in mine[1:])
            findings.append(
                Finding(
                    quantity=f"{network}, sets of {size}: {mine[0].layers} less {other.layers}, the best other (nats)",
                    ours=value,
                    interval=interval,
                    paper="positive (figure 4)" if size == WIDE else "",
                    n=self.count,
                    note=f"rank {place} of {len(mine)}; the interval holds for all pairs of sets together",
                )
            )
        return findings

    def _conclude_order(self, rows: Sequence[LayerRow]) -> list[str]:
        lines = []
        for network, size, mine in profiles(rows):
            first, leakiest = mine[0], max(mine, key=lambda row: row.value)
            place = 1 + sum(row.value > first.value for row in mine[1:])
            paired = self._paired(mine)
            text = (
                f"{network}, sets of {size}: most nats from {leakiest.layers} ({leakiest.value:.2f}); the first set, "
            )
            text += f"{first.layers}, has rank {place} of {len(mine)} ({first.value:.2f})"
            if leakiest is first:
                other = max(mine[1:], key=lambda row: row.value)
                text += ", as in the paper" if apart(paired, first, other) else ", not clearly before the next one"
            else:
                text += ", against the paper" if apart(paired, leakiest, first) else ", not clearly behind"
            silent = [row.layers for row in mine if not clear(row.against_blind)]
            lines.append(f"{text}; not clearly better than blind: {', '.join(silent) or 'none'}.")
        return lines

    def _paired(self, rows: Sequence[LayerRow]) -> PairedRows:
        return PairedRows(
            values={row.layers: np.array(row.nats) for row in rows},
            clusters=np.arange(self.count),
            resamples=self.resamples,
            seed=self.seed,
        )


__all__ = ["LayerOriginal", "LayerRow"]
