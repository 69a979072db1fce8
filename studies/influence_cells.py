"""Numbers of the study of influences: one setting each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from gradleak.attacks import Attack, Classifier, LogisticRegression, RandomForest
from gradleak.core import Batch, Defense, Exposure, HonestButCurious, Objective, Release, derive_generator, derive_seed
from gradleak.data import Population
from gradleak.defenses import Clip, LayerNoise
from gradleak.defenses.draws import layers
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Score, UnsupportedError
from gradleak.risk import LatentInformation, Sensitivity, TargetInformation, mean_sensitivity
from gradleak.training import layer_gradients
from studies.summaries import interval_between, student

EVERYTHING, SHUFFLED = "everything", "shuffled"
STATIC, ADAPTIVE = "static", "adaptive"
_STEP_ROWS = 64
# Enough: the intervals of the study are over seeds.
_FOLDS = 3

Numbers = dict[str, float | None]


class NoisyLayers(StrEnum):
    """Layers that carry noise: about a third of them, or all."""

    FIRST = "first"
    MIDDLE = "middle"
    LAST = "last"
    ALL = "all"

    def of(self, names: Sequence[str]) -> tuple[str, ...]:
        """Members of these layers in order; a third is rounded: of five, two are "first", the third is "middle"."""
        third = max(1, round(len(names) / 3))
        match self:
            case NoisyLayers.FIRST:
                return tuple(names[:third])
            case NoisyLayers.LAST:
                return tuple(names[-third:])
            case NoisyLayers.MIDDLE:
                return tuple(names[third : len(names) - third])
            case _:
                return tuple(names)


class AttackFamily(StrEnum):
    """Classifiers that infer the attribute."""

    FOREST = "forest"
    LOGISTIC = "logistic"

    def classifier(self) -> Classifier:
        """The forest with its defaults; logistic regression with a strong penalty.

        Gradients have more entries than there are rows: with little penalty it is sure of everything, also where it is wrong.
        """
        return RandomForest() if self is AttackFamily.FOREST else LogisticRegression(inverse_penalty=1e-3)


def snapshots(
    start: Objective, rows: Batch, epochs: Sequence[int], *, learning_rate: float, seed: int
) -> dict[int, Objective]:
    """The objective after so many epochs of plain SGD on batches of 64 of these rows, one training for all.

    Args:
        start: at the first weights.
        rows: that are trained on.
        epochs: which are wanted; 0 is the start.
        learning_rate: fixed.
        seed: of the order of the rows.
    """
    generator = derive_generator(seed, "epochs")
    params = {name: tensor.detach().clone().requires_grad_() for name, tensor in start.params.items()}
    optimizer = torch.optim.SGD(list(params.values()), lr=learning_rate)
    found = {0: start}
    for epoch in range(1, max(epochs, default=0) + 1):
        for places in torch.randperm(rows.size, generator=generator).split(_STEP_ROWS):
            optimizer.zero_grad()
            start.loss(params, Batch(rows.inputs[places], rows.targets[places])).backward()
            optimizer.step()
        if epoch in epochs:
            kept = {name: tensor.detach().clone() for name, tensor in params.items()}
            found[epoch] = replace(start, params=kept)
    return found


def accuracy(objective: Objective, rows: Batch) -> float:
    """The share of these rows that the model classifies correctly."""
    with torch.no_grad():
        right = objective.outputs(objective.params, rows.inputs).argmax(dim=1) == rows.targets
    return float(right.float().mean())


def noise_on(objective: Objective, where: NoisyLayers, std: float) -> list[Defense]:
    """Clipping to norm 1, then Gaussian noise on some layers; clipping alone for std 0."""
    clip = Clip(1.0)
    names = where.of(list(layers(objective.params)))
    return [clip, LayerNoise(std=dict.fromkeys(names, std))] if std > 0 else [clip]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pictures:
    """Images whose gradients are inverted, and further ones to average with.

    Attributes:
        targets: one image each.
        others: from which every target gets its own, the first n of an order of its own.
        attack: the inversion; labels are disclosed.
        seed: of everything.
    """

    targets: Batch
    others: Batch
    attack: Attack
    seed: int

    def mixed(self, objective: Objective, count: int, defenses: Sequence[Defense] = ()) -> list[Exposure]:
        """Every target with so many others, the target first."""
        if count > self.others.size:
            raise InputError(f"others: expected at most {self.others.size}, the further images, got {count}")
        found = []
        for place in range(self.targets.size):
            order = torch.randperm(self.others.size, generator=derive_generator(self.seed, "others", str(place)))[
                :count
            ]
            inputs = torch.cat([self.targets.inputs[place : place + 1], self.others.inputs[order]])
            targets = torch.cat([self.targets.targets[place : place + 1], self.others.targets[order]])
            found.append(Exposure(objective, Batch(inputs, targets, self.targets.domain), Release(FedSGD(), defenses)))
        return found

    def inverted(self, exposures: Sequence[Exposure], *, knows_defenses: bool = True) -> Numbers:
        """V-information of the targets in nats, with its controls."""
        adversary = HonestButCurious(targets=True, defenses=knows_defenses)
        score = TargetInformation(attack=self.attack, threat_model=adversary, seed=self.seed)(exposures)
        found: Numbers = {"value": score.value, "n": float(score.n)}
        found |= _ends("value", score.interval)
        for name in ("ssim", "blind_ssim", "exchanged", "exchanged_ssim", "above_exchanged"):
            found[name] = score.details.get(name)
            found |= _ends(name, score.details.get(f"{name}_interval"))
        return found

    def reacting(self, objective: Objective, *, products: int) -> Numbers:
        """Frobenius sensitivity of the whole gradient to one target, and the norm of that gradient; means over targets.

        The sensitivity is None where a gradient is round-off.
        """
        exposure = Exposure(objective, self.targets, Release(FedSGD()))
        measure = Sensitivity(by={EVERYTHING: list(objective.params)}, dense_limit=0, samples=products, seed=self.seed)
        norms = [float(torch.linalg.vector_norm(one.released_mean())) for one in self.mixed(objective, 0)]
        found: Numbers = {"norm": float(np.mean(norms))}
        try:
            score = mean_sensitivity(exposure, measure)[EVERYTHING]
        except UnsupportedError:
            # Of a model that is sure of a target, the gradient is round-off, and so are products with its derivative.
            return found | {"sensitivity": None, **_ends("sensitivity", None)}
        return found | {"sensitivity": score.value, **_ends("sensitivity", score.interval)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Attributes:
    """Batches of rows with one value of an attribute, and further rows to average with.

    Attributes:
        population: all rows.
        private: places of those that the model is trained on and that batches are made of.
        others: places of the further ones, whatever their attribute.
        batches: places of rows (b, k), no row in two of them.
        values: the attribute of each batch, (b,).
        family: of the attacker.
        seed: of everything.
    """

    population: Population
    private: Tensor
    others: Tensor
    batches: Tensor
    values: Tensor
    family: AttackFamily
    seed: int

    @classmethod
    def of(
        cls, population: Population, *, private: int, batches: int, size: int, family: AttackFamily, seed: int
    ) -> Attributes:
        """A random split, with as many batches of each value.

        Raises:
            InputError: where a value has too few private rows.
        """
        order = torch.randperm(population.size, generator=derive_generator(seed, "rows"))
        own, others = order[:private], order[private:]
        codes = population.sensitive[own]
        having = [own[codes == value] for value in (0, 1)]
        each = batches // 2
        if min(map(len, having)) < each * size or not len(others):
            raise InputError(
                f"batches: expected {each * size} private rows of each value and further ones, got "
                f"{[len(rows) for rows in having]} and {len(others)}; ask for fewer batches or other private rows"
            )
        stacked = torch.stack([rows[: each * size].reshape(each, size) for rows in having], dim=1)
        return cls(
            population=population,
            private=own,
            others=others,
            batches=stacked.reshape(2 * each, size),
            values=torch.arange(2).repeat(each),
            family=family,
            seed=seed,
        )

    def mixed(self, count: int) -> Tensor:
        """Every batch with so many times as many other rows, drawn with replacement."""
        number, size = self.batches.shape
        drawn = torch.randint(
            len(self.others), (number, count * size), generator=derive_generator(self.seed, "others", str(count))
        )
        return torch.cat([self.batches, self.others[drawn]], dim=1)

    def gradients(
        self, objective: Objective, batches: Tensor, defenses: Sequence[Defense] = ()
    ) -> Mapping[str, Tensor]:
        """Released gradients of each batch, by layer."""
        used, places = batches.unique(return_inverse=True)
        rows = Batch(self.population.inputs[used], self.population.targets[used])
        return layer_gradients(
            objective,
            rows,
            release=Release(FedSGD(), defenses),
            generator=derive_generator(self.seed, "release"),
            batches=places,
            max_bytes=2**31,
        ).matrices

    def inferred(self, gradients: Mapping[str, Tensor]) -> Numbers:
        """V-information in nats, in every layer, in all of them, and in all of them of an attribute in random order."""
        groups = {name: [name] for name in gradients} | {EVERYTHING: list(gradients)}
        profile = self._attacker(groups)(gradients, self.values)
        found: Numbers = {name: score.value for name, score in profile.scores.items()}
        found["accuracy"] = profile.scores[EVERYTHING].details.get("accuracy")
        found[SHUFFLED] = self.everything(gradients, shuffled=True).value
        return found

    def everything(
        self,
        gradients: Mapping[str, Tensor],
        *,
        shuffled: bool = False,
        learned_from: Mapping[str, Tensor] | None = None,
    ) -> Score:
        """V-information in all layers that are given.

        Args:
            gradients: by layer.
            shuffled: whether the attribute is put in random order first.
            learned_from: what a static attacker learns from.
        """
        values = self.values
        if shuffled:
            values = values[torch.randperm(len(values), generator=derive_generator(self.seed, "shuffle"))]
        attacker = self._attacker({EVERYTHING: list(gradients)})
        return attacker(gradients, values, learned_from=learned_from).scores[EVERYTHING]

    def _attacker(self, groups: Mapping[str, Sequence[str]]) -> LatentInformation:
        return LatentInformation(
            classifier=self.family.classifier(),
            by=groups,
            folds=_FOLDS,
            resamples=100,
            seed=derive_seed(self.seed, "attacker") % 2**31,
        )


def over_seeds(values: Sequence[float | None]) -> tuple[float | None, tuple[float, float] | None]:
    """The mean of those that are numbers, with Student's interval of 95 %; without one where all of them are alike."""
    numbers = np.array([value for value in values if value is not None])
    if not len(numbers):
        return None, None
    # Zeros, mostly: values are at least 0, and no spread is no certainty.
    return float(numbers.mean()), student(numbers) if np.ptp(numbers) else None


def interval_of(numbers: Numbers, name: str) -> tuple[float, float] | None:
    """The kept interval of a number."""
    return interval_between(numbers.get(f"{name}_low"), numbers.get(f"{name}_high"))


def _ends(name: str, interval: tuple[float, float] | None) -> Numbers:
    low, high = interval or (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


__all__ = [
    "ADAPTIVE",
    "EVERYTHING",
    "SHUFFLED",
    "STATIC",
    "AttackFamily",
    "Attributes",
    "NoisyLayers",
    "Numbers",
    "Pictures",
    "accuracy",
    "interval_of",
    "noise_on",
    "over_seeds",
    "snapshots",
]
