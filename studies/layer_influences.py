"""Study: influences on what a gradient tells, of others averaged with it, training, and noise on some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from gradleak.attacks import InvertingGradients
from gradleak.core import Batch, Mode, Objective, derive_generator, derive_seed, describe
from gradleak.datasets import mnist_digits
from gradleak.models import lenet5
from gradleak.results import MO_2021, Citation
from studies.datasets import cifar100
from studies.influence_cells import (
    ADAPTIVE,
    SHUFFLED,
    STATIC,
    AttackFamily,
    Attributes,
    NoisyLayers,
    Numbers,
    Pictures,
    accuracy,
    noise_on,
    snapshots,
)
from studies.influence_tables import (
    Point,
    conclude,
    curve_table,
    figures,
    latent_points,
    noise_table,
    original_point,
)
from studies.layer_latent_data import Files, LatentData, LatentNetwork, networks_for, objective, population
from studies.store import Store
from studies.study import Say, Study, StudyResult


class Influence(StrEnum):
    """Influence that is turned."""

    AGGREGATION = "aggregation"
    EPOCH = "epoch"
    NOISE = "noise"


class Leakage(StrEnum):
    """Leakage that is looked for."""

    ORIGINAL = "original"
    LATENT = "latent"


@dataclass(frozen=True, kw_only=True)
class LayerInfluences(Study):
    """V-information of one image and of an attribute against aggregation, training epoch, and noise on some layers.

    Original information is that of one target image each (`TargetInformation`, labels disclosed), beside the same claims held
    against an exchanged target, a blind guess, and the sensitivity. Latent information is that of an attribute which all rows
    of a batch share (`LatentInformation`), beside the attribute in random order. Others are averaged with the target: for an
    image n images, for an attribute n batches of rows drawn whatever their attribute. Noise comes after clipping to norm 1,
    of one image's gradient and of a batch's. A static attacker does not know of it, an adaptive one does; who reads only the
    layers without noise has the same at every σ.

    **Source**: Mo et al. 2021, section 6.4 and figures 9 to 11. Deviations: digits or CIFAR-100 for images, planted strokes,
    the census or speech for attributes in place of LFW; the attack is Geiping et al.'s, not that of Zhu et al.; exchanged
    targets, shuffled attributes and both kinds of attackers are ours; "first", "middle" and "last" layers are thirds, since
    the paper does not say how many; failed inversions count, where the paper leaves them out.

    Attributes:
        parts: which influences.
        leakages: "original", "latent" or both.
        images: file of CIFAR-100 (binary or npz), or None for MNIST digits.
        targets: images that are looked for.
        iterations: of the inversion.
        total_variation: its weight.
        products: random products of the sensitivity.
        training_images: that the network is trained on, the targets among them.
        data: where the attribute comes from: "adult", "thickness", "tint" (lenet5) or "speech".
        speech: npz file of the speech set.
        family: of attackers, "forest" or "logistic".
        batches: with one value of the attribute in each.
        batch_size: their rows.
        private_rows: that batches are made of and the model is trained on.
        seeds: of weights, rows and attackers; what is latent is a mean over them.
        others: n, for both leakages.
        epochs: of training, where 0 is the start.
        learning_rate: fixed.
        stds: σ.
        where: which layers carry noise.
        seed: everything derives from it.
        cells: file that keeps every number as soon as it is computed; it has to go when the code changes.
    """

    name: ClassVar[str] = "layer_influences"
    source: ClassVar[str] = "figures 9 to 11"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    parts: Sequence[Influence] = tuple(Influence)
    leakages: Sequence[Leakage] = tuple(Leakage)
    images: str | None = None
    targets: int = 8
    iterations: int = 150
    total_variation: float = 1e-2
    products: int = 8
    training_images: int = 1000
    data: LatentData = LatentData.ADULT
    speech: str | None = None
    family: AttackFamily = AttackFamily.FOREST
    batches: int = 120
    batch_size: int = 32
    private_rows: int = 8000
    seeds: int = 5
    others: Sequence[int] = (0, 1, 3, 10, 30, 100)
    epochs: Sequence[int] = (0, 1, 2, 5, 10, 20, 50)
    learning_rate: float = 0.1
    stds: Sequence[float] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
    where: Sequence[NoisyLayers] = tuple(NoisyLayers)
    seed: int = 0
    cells: str | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; with the defaults about twenty minutes of one core."""
        points: list[Point] = []
        with Store(self.cells) as store:
            for leakage in map(Leakage, self.leakages):
                points += self._original(store, say) if leakage is Leakage.ORIGINAL else self._latent(store, say)
        tables = []
        for leakage in map(Leakage, self.leakages):
            for part in map(Influence, self.parts):
                mine = [point for point in points if (point.leakage, point.part) == (leakage.value, part.value)]
                noise = part is Influence.NOISE
                tables.append(noise_table(leakage, mine) if noise else curve_table(leakage, part, mine))
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[point.finding() for point in points],
            conclusion=conclude(points),
            details={"points": [asdict(point) for point in points]},
            tables=tables,
            figures=figures(points),
        )

    def _original(self, store: Store, say: Say) -> list[Point]:
        drawn = self._images(max(self.training_images, self.targets + max(self.others, default=0)))
        pictures = Pictures(
            targets=drawn.rows(slice(self.targets)),
            others=drawn.rows(slice(self.targets, None)),
            attack=InvertingGradients(iterations=self.iterations, total_variation=self.total_variation),
            seed=derive_seed(self.seed, "pictures"),
        )
        start, rows = self._network(drawn), drawn.rows(slice(self.training_images))
        models = _Trained(start=start, rows=rows, study=self, seed=self.seed)
        key = {
            "leakage": Leakage.ORIGINAL.value,
            "images": None if self.images is None else Path(self.images).name,
            "targets": self.targets,
            "attack": describe(pictures.attack),
            "drawn": drawn.size,
            "seed": self.seed,
        }
        points: list[Point] = []
        for setting in self._settings(Leakage.ORIGINAL):
            compute = partial(_inverted, setting, pictures, models, self.products)
            numbers = store.kept(key | self._told(setting), Numbers, compute)
            place = "" if setting.where is None else setting.where.value
            points.append(original_point(setting.part, place, setting.attacker, setting.x, numbers))
            say(f"original, {setting.title}: {points[-1].text()}")
        return points

    def _latent(self, store: Store, say: Say) -> list[Point]:
        cells: dict[_Setting, list[Numbers]] = {setting: [] for setting in self._settings(Leakage.LATENT)}
        data = LatentData(self.data)
        drawn = population(data, Files(speech=self.speech), seed=self.seed)
        network = networks_for(data, (LatentNetwork.LENET5,))[0]
        for number in range(self.seeds):
            seed = derive_seed(self.seed, "latent", str(number)) % 2**31
            rows = Attributes.of(
                drawn,
                private=self.private_rows,
                batches=self.batches,
                size=self.batch_size,
                family=AttackFamily(self.family),
                seed=seed,
            )
            start = objective(network, drawn, seed=seed)
            models = _Trained(start=start, rows=drawn.rows(rows.private), study=self, seed=seed)
            key = {
                "leakage": Leakage.LATENT.value,
                "data": data.value,
                "family": AttackFamily(self.family).value,
                "batches": [self.batches, self.batch_size, self.private_rows],
                "seed": seed,
            }
            for setting, found in cells.items():
                found.append(store.kept(key | self._told(setting), Numbers, partial(_inferred, setting, rows, models)))
            say(f"latent, seed {number + 1} of {self.seeds}")
        return [
            point
            for setting, found in cells.items()
            for point in latent_points(
                setting.part, "" if setting.where is None else setting.where.value, setting.x, found
            )
        ]

    def _settings(self, leakage: Leakage) -> list[_Setting]:
        found: list[_Setting] = []
        for part in map(Influence, self.parts):
            match part:
                case Influence.AGGREGATION:
                    found += [_Setting(part=part, x=count) for count in self.others]
                case Influence.EPOCH:
                    found += [_Setting(part=part, x=epoch) for epoch in self.epochs]
                case Influence.NOISE:
                    # An attribute's static and adaptive attackers share what is released.
                    who = (STATIC, ADAPTIVE) if leakage is Leakage.ORIGINAL else ("",)
                    noises = [
                        (NoisyLayers.ALL, 0.0),
                        *((NoisyLayers(one), std) for one in self.where for std in self.stds),
                    ]
                    found += [
                        _Setting(part=part, x=std, where=one, attacker=each) for one, std in noises for each in who
                    ]
        return found

    def _told(self, setting: _Setting) -> dict[str, Any]:
        told: dict[str, Any] = {"part": setting.part.value, "x": setting.x}
        if setting.part is Influence.EPOCH:
            told |= {"rate": self.learning_rate, "training": self.training_images, "products": self.products}
        if setting.where is not None:
            told |= {"where": setting.where.value, "attacker": setting.attacker}
        return told

    def _images(self, count: int) -> Batch:
        seed = derive_seed(self.seed, "images") % 2**31
        if self.images is None:
            return mnist_digits(count=count, seed=seed)
        return cifar100(path=self.images, count=count, seed=seed)

    def _network(self, drawn: Batch) -> Objective:
        channels, size = drawn.inputs.shape[1], drawn.inputs.shape[2]
        model = lenet5(
            classes=10 if self.images is None else 100,
            channels=channels,
            size=size,
            generator=derive_generator(self.seed, "weights"),
        )
        return Objective.from_module(model, mode=Mode.EVAL)


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One place of one curve.

    Attributes:
        part: which curve.
        x: n, epoch or σ.
        where: which layers carry noise.
        attacker: static or adaptive, or "".
    """

    part: Influence
    x: float
    where: NoisyLayers | None = None
    attacker: str = ""

    @property
    def title(self) -> str:
        """For a line of progress."""
        words = [self.part.value, f"{self.x:g}", "" if self.where is None else self.where.value, self.attacker]
        return " ".join(word for word in words if word)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Trained:
    """A model along its training, which happens when it is first asked for."""

    start: Objective
    rows: Batch
    study: LayerInfluences
    seed: int

    @cached_property
    def _models(self) -> dict[int, Objective]:
        return snapshots(
            self.start, self.rows, self.study.epochs, learning_rate=self.study.learning_rate, seed=self.seed
        )

    def after(self, epochs: float) -> Objective:
        """The model after so many epochs."""
        return self._models[int(epochs)]

    def accuracy(self, epochs: float) -> float:
        """On the rows it was trained on."""
        return accuracy(self.after(epochs), self.rows)


def _inverted(setting: _Setting, pictures: Pictures, models: _Trained, products: int) -> Numbers:
    start = models.start
    match setting.part:
        case Influence.AGGREGATION:
            together = setting.x + 1
            unknowns = together * pictures.targets.inputs[0].numel()
            beside: Numbers = {"sensitivity, relative": 1.0 / together, "equations an unknown": start.size / unknowns}
            return pictures.inverted(pictures.mixed(start, int(setting.x))) | beside
        case Influence.EPOCH:
            model = models.after(setting.x)
            reacts = pictures.reacting(model, products=products)
            return pictures.inverted(pictures.mixed(model, 0)) | reacts | {"accuracy": models.accuracy(setting.x)}
        case _:
            assert setting.where is not None
            exposures = pictures.mixed(start, 0, noise_on(start, setting.where, setting.x))
            return pictures.inverted(exposures, knows_defenses=setting.attacker == ADAPTIVE)


def _inferred(setting: _Setting, rows: Attributes, models: _Trained) -> Numbers:
    start = models.start
    match setting.part:
        case Influence.AGGREGATION:
            return rows.inferred(rows.gradients(start, rows.mixed(int(setting.x))))
        case Influence.EPOCH:
            found = rows.inferred(rows.gradients(models.after(setting.x), rows.batches))
            return found | {"accuracy of the model": models.accuracy(setting.x)}
        case _:
            assert setting.where is not None
            plain = rows.gradients(start, rows.batches, noise_on(start, setting.where, 0.0))
            shown = rows.gradients(start, rows.batches, noise_on(start, setting.where, setting.x))
            noisy = setting.where.of(list(plain)) if setting.x > 0 else ()
            quiet = {name: shown[name] for name in shown if name not in noisy}
            adaptive, static = rows.everything(shown), rows.everything(shown, learned_from=plain)
            return {
                ADAPTIVE: adaptive.value,
                STATIC: static.value,
                "accuracy, adaptive": adaptive.details.get("accuracy"),
                "accuracy, static": static.details.get("accuracy"),
                SHUFFLED: rows.everything(shown, shuffled=True).value,
                "quiet": rows.everything(quiet).value if quiet and noisy else None,
            }


__all__ = ["Influence", "LayerInfluences", "Leakage"]
