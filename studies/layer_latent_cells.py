"""Leakage of an attribute by one trained model, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradleak.attacks import LogisticRegression, MaxPooling, PrincipalComponents
from gradleak.attacks.inference import Layout
from gradleak.core import Exposure, Objective, Release, derive_generator, derive_seed
from gradleak.protocols import FedSGD
from gradleak.results import Score
from gradleak.risk import (
    MINE,
    Consecutive,
    LatentInformation,
    LayerProfile,
    NeighborInformation,
    Sensitivity,
    SubspaceDistance,
    mean_sensitivity,
)
from gradleak.risk.layer_measure import coordinates
from gradleak.training import layer_gradients
from studies.layer_latent_data import LatentNetwork, Parts, after_epochs, objective
from studies.summaries import interval_between, shown_with

FOREST, LOGISTIC = "forest", "logistic"
ATTACKERS = (FOREST, LOGISTIC)
LABELS, INPUTS = "labels alone", "inputs themselves"
DISTANCE, EFFECT, P_VALUE, SENSITIVITY = "distance", "effect", "p_value", "sensitivity"
MINE_ATTRIBUTE, MINE_LABEL = "mine_attribute", "mine_label"
NEAR_ATTRIBUTE, NEAR_LABEL = "neighbors_attribute", "neighbors_label"
_BYTES = 2**30
# With 39 the levels 0.05, 0.1 and 0.5 are attainable p-values, and uniform ones reach them so often.
_NULL_PERMUTATIONS = 39


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A number with its interval, or the reason why there is none.

    Attributes:
        value: or None.
        low: of the 95 % interval, or None.
        high: likewise.
        note: outcome and note of a score without a value.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""

    @classmethod
    def of(cls, score: Score) -> Reading:
        """The value and interval of a score."""
        low, high = score.interval or (None, None)
        note = f"{score.outcome.label}: {score.note}" if score.value is None else ""
        return cls(value=score.value, low=low, high=high, note=note)

    def text(self, form: str = ".2f") -> str:
        """As it is printed."""
        return shown_with(self.value, interval_between(self.low, self.high), form)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """V-information in every layer for one family of attackers.

    Attributes:
        readings: by layer, in order.
        leakiest: the layer with the largest value.
        rivals: those that are not told from it.
    """

    readings: Mapping[str, Reading]
    leakiest: str | None
    rivals: tuple[str, ...]

    @classmethod
    def of(cls, profile: LayerProfile) -> Profile:
        """From a profile of the package."""
        return cls(
            readings={layer: Reading.of(score) for layer, score in profile.scores.items()},
            leakiest=profile.leakiest,
            rivals=tuple(profile.rivals()),
        )

    @property
    def found(self) -> bool:
        """True if the interval of the leakiest layer lies above 0."""
        low = None if self.leakiest is None else self.readings[self.leakiest].low
        return low is not None and low > 0.0


@dataclass(frozen=True, kw_only=True)
class Shuffled:
    """One random order of the attribute over the same gradients.

    Attributes:
        p_values: of the subspace distance, by layer; empty where they were not asked for.
        information: of each attacker, by layer; likewise.
    """

    p_values: Mapping[str, float | None]
    information: Mapping[str, Mapping[str, Reading]]


@dataclass(frozen=True, kw_only=True)
class LatentCell:
    """One trained model, looked at layer by layer.

    Attributes:
        rows: gradients (n), half of them with the attribute.
        accuracy: of the model on the rows that they are of.
        entries: numbers of each layer.
        information: V-information by attacker: single layers.
        pairs: likewise, two layers that follow one another.
        alone: by attacker, what labels alone and inputs themselves tell.
        measures: by name, readings by layer.
        shuffled: the same with the attribute in random orders.
        seconds: of processor time.
        note: why there is nothing, or "".
    """

    rows: int
    accuracy: float | None = None
    entries: Mapping[str, int] = field(default_factory=dict)
    information: Mapping[str, Profile] = field(default_factory=dict)
    pairs: Mapping[str, Profile] = field(default_factory=dict)
    alone: Mapping[str, Mapping[str, Reading]] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, Reading]] = field(default_factory=dict)
    shuffled: tuple[Shuffled, ...] = ()
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings by which a cell is measured; with data, network, batch size and epochs they are the key of the cell.

    Attributes:
        rows: gradients, at most.
        examples: of the sensitivity.
        products: random products for each.
        entries: a forest reads at most so many numbers of a layer, the largest of neighboring ones where there are more.
        components: principal components that logistic regression reads.
        dimension: of the subspaces.
        columns: gradients of each group for them, at most.
        permutations: of their null.
        steps: of MINE.
        shuffles: random orders of the attribute, for V-information.
        orders: likewise, for the p-values of the subspace distance.
        seed: of everything.
    """

    rows: int
    examples: int
    products: int
    entries: int
    components: int
    dimension: int
    columns: int
    permutations: int
    steps: int
    shuffles: int
    orders: int
    seed: int

    def attackers(self) -> dict[str, LatentInformation]:
        """The families: the paper's forest, and logistic regression on principal components."""
        seed = derive_seed(self.seed, "attackers") % 2**31
        return {
            FOREST: LatentInformation(seed=seed),
            LOGISTIC: LatentInformation(
                classifier=LogisticRegression(), features=PrincipalComponents(count=self.components), seed=seed
            ),
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Views:
    """Each layer as the measures read it, small enough to keep.

    Attributes:
        entries: numbers of the layer.
        pooled: (n, at most `Recipe.entries`) by layer, for the forest.
        turned: (n, at most n) by layer, the rows in a basis of what they span: lengths and angles are those of the rows.
        directions: likewise of rows of length 1, for logistic regression.
    """

    entries: Mapping[str, int]
    pooled: Mapping[str, Tensor]
    turned: Mapping[str, Tensor]
    directions: Mapping[str, Tensor]

    @classmethod
    def of(cls, matrices: Mapping[str, Tensor], most: int) -> _Views:
        turned = {layer: coordinates(matrix) for layer, matrix in matrices.items()}
        return cls(
            entries={layer: matrix.shape[1] for layer, matrix in matrices.items()},
            pooled={layer: pooled(matrix, most) for layer, matrix in matrices.items()},
            turned=turned,
            directions={layer: unit(rows) for layer, rows in turned.items()},
        )

    def read_by(self, attacker: str) -> Mapping[str, Tensor]:
        """Input that an attacker is given of every layer."""
        return self.pooled if attacker == FOREST else self.directions


def measure(recipe: Recipe, parts: Parts, network: LatentNetwork, *, batch_size: int, epochs: int) -> LatentCell:
    """Train the model, take the gradients of batches of one attribute value, and measure every layer.

    Args:
        recipe: numbers of the measures.
        parts: rows.
        network: is trained on the rows for training.
        batch_size: rows behind a gradient.
        epochs: of the training.
    """
    began = time.process_time()
    batches, attribute = parts.batches(size=batch_size, most=recipe.rows)
    if len(attribute) < 20:
        note = f"too few rows for ten batches of {batch_size} of each value: {len(attribute) // 2}"
        return LatentCell(rows=len(attribute), note=note)
    start = objective(network, parts.population, seed=recipe.seed)
    client = after_epochs(start, parts, epochs=epochs, seed=recipe.seed)
    views = _views(client, parts, batches, recipe)
    attackers = recipe.attackers()
    apart = Consecutive()
    information, pairs, alone = {}, {}, {}
    for name, attacker in attackers.items():
        rows = views.read_by(name)
        information[name] = Profile.of(attacker(rows, attribute))
        grouped = LatentInformation(
            classifier=attacker.classifier, features=attacker.features, by=apart, seed=attacker.seed
        )
        pairs[name] = Profile.of(grouped(rows, attribute))
        found = attacker(_without_gradients(parts, batches), attribute)
        alone[name] = {source: Reading.of(score) for source, score in found.scores.items()}
    judged = parts.population.rows(batches.flatten())
    with torch.no_grad():
        right = client.outputs(client.params, judged.inputs).argmax(dim=1) == judged.targets
    return LatentCell(
        rows=len(attribute),
        accuracy=float(right.float().mean()),
        entries=views.entries,
        information=information,
        pairs=pairs,
        alone=alone,
        measures=_measures(recipe, views, client, parts, batches, attribute),
        shuffled=_shuffled(recipe, views, attackers, attribute),
        seconds=time.process_time() - began,
    )


def _views(client: Objective, parts: Parts, batches: Tensor, recipe: Recipe) -> _Views:
    rows = parts.population.rows(torch.arange(parts.population.size))
    found = layer_gradients(
        client,
        rows,
        release=Release(FedSGD()),
        generator=derive_generator(recipe.seed, "release"),
        batches=batches,
        max_bytes=2 * _BYTES,
    )
    return _Views.of(found.matrices, recipe.entries)


def _measures(
    recipe: Recipe, views: _Views, client: Objective, parts: Parts, batches: Tensor, attribute: Tensor
) -> dict[str, dict[str, Reading]]:
    distances = _distance(recipe, attribute, permutations=recipe.permutations)(views.turned, attribute)
    critic, neighbors = MINE(steps=recipe.steps), NeighborInformation()
    shown = parts.population.rows(batches[:, 0][: recipe.examples])
    # Random products at any size: the derivative of a large layer takes as many forward passes as an input has entries.
    reacts = mean_sensitivity(
        Exposure(client, shown, Release(FedSGD())),
        Sensitivity(by="layer", dense_limit=0, samples=recipe.products, seed=recipe.seed),
    )
    found = {
        SENSITIVITY: reacts,
        MINE_ATTRIBUTE: critic(views.turned, attribute),
        NEAR_ATTRIBUTE: neighbors(views.turned, attribute),
    }
    if batches.shape[1] == 1:
        # A batch has no label of its own.
        label = parts.population.targets[batches[:, 0]]
        found |= {MINE_LABEL: critic(views.turned, label), NEAR_LABEL: neighbors(views.turned, label)}
    return {
        DISTANCE: {layer: Reading.of(score) for layer, score in distances.items()},
        EFFECT: {layer: _detail(score, "effect_size") for layer, score in distances.items()},
        P_VALUE: {layer: _detail(score, "p_value") for layer, score in distances.items()},
    } | {name: {layer: Reading.of(score) for layer, score in scores.items()} for name, scores in found.items()}


def _shuffled(
    recipe: Recipe, views: _Views, attackers: Mapping[str, LatentInformation], attribute: Tensor
) -> tuple[Shuffled, ...]:
    found = []
    for number in range(max(recipe.shuffles, recipe.orders)):
        order = torch.randperm(len(attribute), generator=derive_generator(recipe.seed, "shuffle", str(number)))
        p_values, information = {}, {}
        if number < recipe.orders:
            distances = _distance(recipe, attribute, permutations=_NULL_PERMUTATIONS)(views.turned, attribute[order])
            p_values = {layer: _detail(score, "p_value").value for layer, score in distances.items()}
        if number < recipe.shuffles:
            information = {
                name: {
                    layer: Reading.of(score)
                    for layer, score in attacker(views.read_by(name), attribute[order]).scores.items()
                }
                for name, attacker in attackers.items()
            }
        found.append(Shuffled(p_values=p_values, information=information))
    return tuple(found)


def _distance(recipe: Recipe, attribute: Tensor, *, permutations: int) -> SubspaceDistance:
    columns = min(recipe.columns, len(attribute) // 2)
    return SubspaceDistance(dimension=recipe.dimension, columns=columns, permutations=permutations)


def _detail(score: Score, name: str) -> Reading:
    value = score.details.get(name)
    return Reading(value=value, note="" if value is not None else f"{score.outcome.label}: {score.note}")


def _without_gradients(parts: Parts, batches: Tensor) -> dict[str, Tensor]:
    """Knowledge without the model: shares of the labels in each batch, and means of its inputs."""
    labels = parts.population.targets[batches]
    shares = torch.nn.functional.one_hot(labels, int(parts.population.targets.max()) + 1).float().mean(dim=1)
    inputs = parts.population.inputs[batches].mean(dim=1)
    return {LABELS: shares, INPUTS: inputs.reshape(len(batches), -1)}


def pooled(matrix: Tensor, most: int) -> Tensor:
    """The rows, or the largest of every few neighboring numbers where there are more than `most`."""
    size = matrix.shape[1]
    if size <= most:
        return matrix
    pooling = MaxPooling(kernel=-(-size // most))
    reduce = pooling.fit(lambda: iter(()), Layout(sizes={"layer": size}), torch.Generator())
    return reduce(matrix)


def unit(rows: Tensor) -> Tensor:
    """The rows over their lengths, float32; rows of zeros stay."""
    lengths = rows.norm(dim=1, keepdim=True)
    return (rows / torch.where(lengths > 0, lengths, 1.0)).float()


__all__ = [
    "ATTACKERS",
    "DISTANCE",
    "EFFECT",
    "FOREST",
    "INPUTS",
    "LABELS",
    "LOGISTIC",
    "MINE_ATTRIBUTE",
    "MINE_LABEL",
    "NEAR_ATTRIBUTE",
    "NEAR_LABEL",
    "P_VALUE",
    "SENSITIVITY",
    "LatentCell",
    "Profile",
    "Reading",
    "Recipe",
    "Shuffled",
    "measure",
    "pooled",
    "unit",
]
