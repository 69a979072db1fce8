"""Study: gain of a defense against an adversary who does not know it, and against one who does, and its price."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from gradleak.accounting import guarantee_of
from gradleak.attacks import Attack, GaussNewton, InvertingGradients
from gradleak.core import Batch, HonestButCurious, Objective, Release, Update, derive_generator, describe, one_thread
from gradleak.protocols import FedSGD
from gradleak.results import GEIPING_2020, ZHANG_2023, Citation, GradleakError
from gradleak.scoring import blind_baseline
from studies.attack_lines import Line
from studies.defense_cells import (
    ADAPTIVE,
    STATIC,
    conclude_on,
    defense_rows,
    findings_of,
    predict,
    sentence,
)
from studies.private_images import SmallNetwork, draw_images, pixel_rmse
from studies.shields import Shield
from studies.store import Store, content_of
from studies.study import Say, Study, StudyResult
from studies.summaries import median
from studies.table_utility import UtilitySettings, worth_with

ATTACKS = ("gauss_newton", "inverting_gradients")


@dataclass(frozen=True, kw_only=True)
class DefenseTable(Study):
    """A table defense × (static, adaptive) of the reconstruction error of single images, its prediction and its price.

    A static adversary takes the update for a plain gradient; an adaptive one knows the defenses with their constants.
    Both recover the label. Each cell is the median pixel RMSE over the images of the stronger of `GaussNewton` and
    `InvertingGradients`, with the other one beside it; a refusal stands there with its reason. The prediction is exact
    I²F at what was really released: for the static adversary δ = u − g and A of g, for the adaptive one δ = u − the mean
    of the release and A of that mean; where a defense is read backward, over the entries that this tells exactly, and
    none where it tells bounds alone. Where A has a null space the value covers its range only, and the mean number of
    unseen directions is told.

    The constants of the defenses are relative to c, the median over the labels of the norm of the gradient of an image of
    uniform noise, a public number. Utility is the test accuracy of the network after training with the defense, with its
    95 % interval; the server's rate is scaled so that all releases of that noise image would be steps of one length.

    **Source**: issue 5 of this project; attacks of Zhang et al. 2023 and Geiping et al. 2020. No paper has this table.
    Deviation: the ReLU network is `lenet_dlg` with ReLU and torch's weights, so that spectra are at hand.

    Attributes:
        images: npz file with CIFAR-10 images (arrays x, y), or None for MNIST digits.
        only: name of a boolean array in that file that selects images.
        shrink: images are means over so many pixels squared.
        count: images.
        network: which network.
        shields: which defenses.
        steps: linearizations of `GaussNewton`, one start.
        iterations: of `InvertingGradients`.
        utility_rounds: rounds of training for the utility; 0 leaves it out.
        utility_rate: learning rate of the server without a defense.
        seed: of images, weights, draws and starts.
        cells: file that keeps what attacks reached, so that a killed study goes on there. It has to go when the code
            changes.
    """

    name: ClassVar[str] = "defense_table"
    source: ClassVar[str] = "defenses against static and adaptive adversaries"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, GEIPING_2020)

    images: str | None = None
    only: str | None = None
    shrink: int = 1
    count: int = 3
    network: SmallNetwork = SmallNetwork.SIGMOID_LENET
    shields: Sequence[Shield] = tuple(Shield)
    steps: int = 40
    iterations: int = 300
    utility_rounds: int = 0
    utility_rate: float = 0.02
    seed: int = 0
    cells: str | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about ten minutes of one core for three digits, without utility."""
        batch = draw_images(self.images, count=self.count, seed=self.seed, only=self.only, shrink=self.shrink)
        network = SmallNetwork(self.network)
        objective = network.objective(batch, seed=self.seed)
        examples = [batch.example(index) for index in range(batch.size)]
        scale = self._length(Release(FedSGD()), objective, batch)
        rows: list[dict[str, Any]] = []
        with Store(self.cells) as store, one_thread():
            for shield in map(Shield, self.shields):
                release = Release(FedSGD(), shield.defenses(scale, objective.size, _head(objective)))
                rows.append(self._row(shield, objective, release, examples, store))
                say(sentence(rows[-1]))
                if self.utility_rounds:
                    rows[-1]["utility"] = self._worth(network, release, objective, batch)
                    say(f"{shield.value}: utility {rows[-1]['utility']}")
        blind = median([next(s.value for s in blind_baseline(one) if s.name == "pixel_rmse") for one in examples])
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for row in rows for finding in findings_of(row)],
            conclusion=conclude_on(rows, blind),
            details={"public_norm": scale, "rows": rows},
            tables=[defense_rows(rows)],
        )

    def _noise_image(self, batch: Batch, label: int = 0) -> Batch:
        drawn = torch.rand(1, *batch.inputs.shape[1:], generator=derive_generator(self.seed, "public"))
        return Batch(drawn, torch.tensor([label]), batch.domain)

    def _row(
        self, shield: Shield, objective: Objective, release: Release, examples: Sequence[Batch], store: Store
    ) -> dict[str, Any]:
        row: dict[str, Any] = {"shield": shield.value, "defenses": describe(release.defenses), "utility": ""}
        try:
            updates = [
                release(objective, one, derive_generator(self.seed, "release", shield.value, str(index)))
                for index, one in enumerate(examples)
            ]
        except GradleakError as error:
            return {**row, "refused": str(error), STATIC: {}, ADAPTIVE: {}}
        row["guarantee"] = guarantee_of(release, objective, examples[0].size) or "-"
        for who in (STATIC, ADAPTIVE):
            knows = who == ADAPTIVE
            if knows and shield is Shield.NONE:
                row[who] = row[STATIC]
                continue
            lines = {
                name: self._lines(name, shield, objective, release, updates, examples, store, knows) for name in ATTACKS
            }
            seen = release if knows else Release(FedSGD())
            predictions = [predict(objective, seen, one, update) for one, update in zip(examples, updates, strict=True)]
            row[who] = {"attacks": lines, "predictions": predictions}
        return row

    def _lines(
        self,
        name: str,
        shield: Shield,
        objective: Objective,
        release: Release,
        updates: Sequence[Update],
        examples: Sequence[Batch],
        store: Store,
        knows: bool,
    ) -> list[dict[str, Any]]:
        attack: Attack = GaussNewton(starts=1, max_steps=self.steps)
        if name != "gauss_newton":
            attack = InvertingGradients(iterations=self.iterations)
        key = {
            "study": self.name,
            "data": "mnist" if self.images is None else Path(self.images).name,
            "content": content_of(examples),
            "only": self.only,
            "shrink": self.shrink,
            "count": len(examples),
            "network": SmallNetwork(self.network).value,
            "shield": shield.value,
            "defenses": describe(release.defenses),
            "adaptive": knows,
            "attack": describe(attack),
            "seed": self.seed,
        }

        def compute() -> list[Line]:
            facts = [HonestButCurious(defenses=knows).disclose(objective, release, one) for one in examples]
            return self._attack(attack, updates, facts, examples)

        return [asdict(line) for line in store.kept(key, list[Line], compute)]

    def _attack(
        self, attack: Attack, updates: Sequence[Update], facts: Sequence[Any], examples: Sequence[Batch]
    ) -> list[Line]:
        generators = [derive_generator(self.seed, "attack", str(index)) for index in range(len(examples))]
        nothing = Line(
            image=0, mse=None, ssim=None, exact=False, outcome="refused", labels="-", iterations=0, counted=0.0,
            measured=None,
        )  # fmt: skip
        try:
            found = attack.many(updates, facts, generators=generators)
        except GradleakError as refusal:
            return [replace(nothing, image=index, note=str(refusal)) for index in range(len(examples))]
        lines = []
        for index, (claim, example) in enumerate(zip(found, examples, strict=True)):
            error = pixel_rmse(claim.inputs, example)
            line = replace(
                nothing,
                image=index,
                mse=None if error is None or not math.isfinite(error) else error**2,
                exact=error is not None and error < 1e-3,
                outcome=claim.outcome.label,
                labels=str(claim.details.get("labels", "-")),
                iterations=claim.iterations,
                counted=claim.plain_gradients,
                note=claim.note,
            )
            lines.append(line)
        return lines

    def _length(self, release: Release, objective: Objective, batch: Batch) -> float:
        """The norm of a release of the noise image, the median over the labels: a network sure of one has a small gradient."""
        norms = []
        for label in range(objective.outputs(objective.params, batch.inputs[:1]).shape[1]):
            mean = release.mean(objective, objective.params, self._noise_image(batch, label))
            norms.append(float(objective.flatten(mean).norm()))
        return statistics.median(norms)

    def _worth(self, network: SmallNetwork, release: Release, objective: Objective, batch: Batch) -> str:
        scale = self._length(Release(FedSGD()), objective, batch)
        length = self._length(release, objective, batch)
        settings = UtilitySettings(
            images=self.images,
            shrink=self.shrink,
            private=batch.size,
            rounds=self.utility_rounds,
            rate=self.utility_rate * scale / max(length, 1e-30),
            seed=self.seed,
        )
        return worth_with(network, release, settings)


def _head(objective: Objective) -> str:
    """Name of the last linear layer."""
    return [name for name, tensor in objective.params.items() if tensor.dim() == 2][-1].removesuffix(".weight")


__all__ = ["DefenseTable"]
