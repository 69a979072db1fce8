"""The cells of the study of protected layers: which entries are protected, and what attacks reach then."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradleak.attacks import Classifier, InvertingGradients
from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Mode,
    Objective,
    Release,
    derive_generator,
    derive_seed,
    describe,
)
from gradleak.data import Population
from gradleak.defenses import LayerNoise
from gradleak.models import Activation, initialize_uniform, lenet5, lenet_dlg, lenet_i2f, mlp
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.risk import (
    LatentInformation,
    LayerProfile,
    OriginalInformation,
    Partition,
    VisibleLayers,
    advise,
    layer_groups,
)
from gradleak.scoring import score_images, score_posteriors
from gradleak.training import batches_of_one_value, layer_gradients
from studies.attack_lines import Line
from studies.private_images import trained
from studies.protected_entries import OPEN, PROTECTED, TwoParts, choose_entries, scattered_entries
from studies.store import Store, content_of

Masks = Mapping[str, Tensor]
NOTHING, PROFILE, LEAST, SCATTERED, OTHERS, ENTRIES = (
    "nothing", "leakiest by the profile", "least leaky", "scattered entries", "other layers", "entries that differ most",
)  # fmt: skip


class ProtectedSetting(StrEnum):
    """Model and data of a comparison.

    Images: the ReLU and the sigmoid LeNet of the studies of defenses, and `lenet5` with ReLU. Census: a perceptron on the Adult
    census, and the sex of the persons, which its inputs hold (attribute) or not (property).
    """

    RELU_CONVNET = "relu_convnet"
    SIGMOID_LENET = "lenet"
    LENET5 = "lenet5"
    CENSUS_ATTRIBUTE = "census_attribute"
    CENSUS_PROPERTY = "census_property"

    @property
    def of_images(self) -> bool:
        """True if inversions are run, else an attribute is inferred."""
        return self in (ProtectedSetting.RELU_CONVNET, ProtectedSetting.SIGMOID_LENET, ProtectedSetting.LENET5)

    def network(self, batch: Batch, seed: int) -> nn.Module:
        """The network for such images, its weights by seed and name."""
        generator = derive_generator(seed, "weights", self.value)
        channels, size, classes = batch.inputs.shape[1], batch.inputs.shape[2], _classes(batch)
        match self:
            case ProtectedSetting.RELU_CONVNET:
                return lenet_dlg(
                    activation=Activation.RELU, channels=channels, size=size, classes=classes, generator=generator
                )
            case ProtectedSetting.SIGMOID_LENET:
                lenet = lenet_i2f if channels == 1 else lenet_dlg
                model = lenet(size=size, channels=channels, classes=classes)
                return initialize_uniform(model, low=-0.5, high=0.5, generator=generator)
            case ProtectedSetting.LENET5:
                return lenet5(channels=channels, size=size, classes=classes, generator=generator)
            case _:
                raise InputError(f"ProtectedSetting.network: expected a setting of images, got {self.value}")


def _classes(batch: Batch) -> int:
    """Ten, or a hundred where labels go beyond."""
    return 10 if int(batch.targets.max()) < 10 else 100


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """Sets of entries of one size, by how they were chosen.

    Attributes:
        sets: masks by name; `OTHERS` has a number behind it.
        order: layers by the profile, the leakiest first.
        count: entries of every set.
        total: entries of the model.
        shares: of the set that the profile chose: by layer, which share of the layer is in it.
        split: whether the profile tells its first layer from every other.
    """

    sets: Mapping[str, Masks] = field(repr=False)
    order: Sequence[str]
    count: int
    total: int
    shares: Mapping[str, float]
    split: bool

    @classmethod
    def by(cls, profile: LayerProfile, params: Mapping[str, Tensor], *, budget: float, draws: int, seed: int) -> Chosen:
        """The set that the profile names, and its controls: all of one size, and none of them has an entry of it.

        Args:
            profile: by layer.
            params: tensors by name.
            budget: share of all entries, at most a half.
            draws: of other layers.
            seed: of the draws.
        """
        groups = layer_groups(list(params), Partition.LAYER)
        sizes = {name: tensor.numel() for name, tensor in params.items()}
        total = sum(sizes.values())
        count = math.floor(budget * total)
        order = [layer.name for layer in advise([profile], sizes, budget=budget).layers]
        first = choose_entries(groups, params, order, count=count, generator=derive_generator(seed, "profile"))
        sets: dict[str, Masks] = {PROFILE: first}
        sets[LEAST] = choose_entries(
            groups, params, order[::-1], count=count, generator=derive_generator(seed, "least"), apart=first
        )
        sets[SCATTERED] = scattered_entries(
            params, count=count, generator=derive_generator(seed, "scattered"), apart=first
        )
        for draw in range(draws):
            generator = derive_generator(seed, "others", str(draw))
            places = torch.randperm(len(order), generator=generator).tolist()
            sets[f"{OTHERS} ({draw + 1})"] = choose_entries(
                groups, params, [order[place] for place in places], count=count, generator=generator, apart=first
            )
        shares = {
            layer: sum(int(first[name].sum()) for name in names) / sum(sizes[name] for name in names)
            for layer, names in groups.items()
        }
        return cls(sets=sets, order=order, count=count, total=total, shares=shares, split=not profile.rivals())

    def with_nothing(self) -> dict[str, Masks]:
        """The sets, and before them that of an undefended release."""
        nothing = {name: torch.zeros_like(mask) for name, mask in self.sets[PROFILE].items()}
        return {NOTHING: nothing, **self.sets}

    def words(self) -> str:
        """Choice of the profile, in words."""
        named = [
            layer if share == 1.0 else f"{_percent(share)} of {layer}"
            for layer in self.order
            if (share := self.shares[layer]) > 0.0
        ]
        return ", ".join(named)


def _percent(share: float) -> str:
    return f"{share:.0%}" if 0.01 <= share < 0.995 else "less than 1%" if share < 0.01 else "nearly all"


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """Settings of the attack on images; with model and images they are the key of a line.

    Attributes:
        attack: the inversion, of the profile too.
        noise: std of the noise on protected entries, in units of the root mean square entry of the profile's updates.
        seed: of everything.
    """

    attack: InvertingGradients
    noise: float
    seed: int

    def profile(self, model: nn.Module, examples: Sequence[Batch]) -> LayerProfile:
        """Original information by layer, from examples that are not attacked."""
        objective, release = Objective.from_module(model, mode=Mode.EVAL), Release(FedSGD())
        measure = OriginalInformation(
            attack=self.attack, by=Partition.LAYER, threat_model=HonestButCurious(targets=True), seed=self.seed
        )
        return measure([Exposure(objective, one, release) for one in examples])

    def std(self, model: nn.Module, examples: Sequence[Batch]) -> float:
        """The std of the noise, from examples that are not attacked."""
        objective, release = Objective.from_module(model, mode=Mode.EVAL), Release(FedSGD())
        squares = [
            float(
                objective.flatten(release(objective, one, derive_generator(self.seed, "scale")).tensors).square().mean()
            )
            for one in examples
        ]
        return self.noise * math.sqrt(sum(squares) / len(squares))

    def lines(
        self, model: nn.Module, masks: Masks, examples: Sequence[Batch], store: Store, *, std: float | None
    ) -> list[Line]:
        """Results of the attack on every image: of the open entries alone, or with noise that it does not know of.

        Args:
            model: whose entries are parted.
            masks: the protected ones.
            examples: one image each.
            store: keeps the lines.
            std: of the noise on the protected entries; None to hide them.
        """
        key = {
            "study": "layer_protection",
            "content": content_of(examples),
            "model": content_of([_as_batch(model.state_dict())]),
            "masks": content_of([_as_batch({name: mask.float() for name, mask in masks.items()})]),
            "attack": describe(self.attack),
            "std": std,
            "seed": self.seed,
        }
        return store.kept(key, list[Line], lambda: self._attack(model, masks, examples, std))

    def _attack(self, model: nn.Module, masks: Masks, examples: Sequence[Batch], std: float | None) -> list[Line]:
        objective = Objective.from_module(TwoParts(model, masks), mode=Mode.EVAL)
        protects = any(bool(mask.any()) for mask in masks.values())
        noisy = std is not None and protects
        release = Release(FedSGD(), (LayerNoise(std={PROTECTED: std or 0.0}),) if noisy else ())
        static = HonestButCurious(targets=True, defenses=False)
        updates, known = [], []
        visible = VisibleLayers.of(objective, OPEN)
        for image, one in enumerate(examples):
            update = release(objective, one, derive_generator(self.seed, "release", str(image)))
            facts = static.disclose(objective, release, one)
            if std is None:
                update, facts = visible.update(update), visible.knowledge(facts)
            updates.append(update)
            known.append(facts)
        generators = [derive_generator(self.seed, "attack", str(image)) for image in range(len(examples))]
        found = self.attack.many(updates, known, generators=generators)
        lines = []
        for image, (claim, one) in enumerate(zip(found, examples, strict=True)):
            values = {score.name: score.value for score in score_images(claim, one)}
            lines.append(
                Line(
                    image=image, mse=values["mse"], ssim=values["ssim"], exact=values["exact_hits"] == 1.0,
                    outcome=claim.outcome.label, labels="disclosed", iterations=claim.iterations,
                    counted=claim.plain_gradients, measured=None, note=claim.note if claim.inputs is None else "",
                )
            )  # fmt: skip
        return lines


def _as_batch(tensors: Mapping[str, Tensor]) -> Batch:
    flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors.values()])
    return Batch(flat[None], torch.zeros(1, dtype=torch.int64))


def telling_entries(gradients: Tensor, values: Tensor, count: int) -> Tensor:
    """The entries whose means with and without the attribute differ most for their spread (Welch's |t|): a mask (P,).

    Args:
        gradients: (n, P).
        values: (n,), 0 or 1.
        count: how many entries.
    """
    groups = [gradients[values == value].double() for value in (0, 1)]
    gap = (groups[0].mean(0) - groups[1].mean(0)).abs()
    error = sum(group.var(0) / len(group) for group in groups) ** 0.5
    # An entry that is constant in both groups tells them apart for sure, or not at all.
    sizes = torch.where(error > 0, gap / error, torch.where(gap > 0, math.inf, 0.0))
    mask = torch.zeros(gradients.shape[1], dtype=torch.bool)
    mask[sizes.argsort(descending=True, stable=True)[:count]] = True
    return mask


@dataclass(frozen=True, kw_only=True)
class Inferred:
    """Result of an attribute attack on held-out batches.

    Attributes:
        auroc: or None.
        advantage: (p − p*)/(1 − p*) over the best guess, not clipped; or None.
    """

    auroc: float | None
    advantage: float | None


@dataclass(frozen=True, kw_only=True)
class CensusRecipe:
    """Settings of the inference of the sex of persons from gradients of batches of one sex.

    Attributes:
        classifier: that the attack and the profile learn.
        batch_size: k.
        profile: batches of each sex for the profile.
        shadow: likewise for the attack to learn from.
        test: likewise to judge it on.
        hidden: widths of the perceptron.
        steps: of training before the updates are taken.
        noise: as in `ImageRecipe`.
        budget: share of the entries that is protected.
        draws: of other layers.
    """

    classifier: Classifier
    batch_size: int
    profile: int
    shadow: int
    test: int
    hidden: Sequence[int]
    steps: int
    noise: float
    budget: float
    draws: int

    def play(self, population: Population, seed: int) -> tuple[Chosen, dict[str, dict[str, Inferred]]]:
        """One model and one split of the rows into training, profile, shadow and test: results by kind of attack and set."""
        parts = torch.randperm(len(population.inputs), generator=derive_generator(seed, "split")).chunk(4)
        rows = [Batch(population.inputs[part], population.targets[part], population.domain) for part in parts]
        sensitive = [population.sensitive[part] for part in parts]
        model = mlp(
            features=population.inputs.shape[1], hidden=tuple(self.hidden), classes=2,
            generator=derive_generator(seed, "weights"),
        )  # fmt: skip
        objective = trained(Objective.from_module(model), rows[0], steps=self.steps, seed=seed)
        matrices, values = {}, {}
        counts = {"profile": self.profile, "shadow": self.shadow, "test": self.test}
        for number, (part, count) in enumerate(counts.items(), start=1):
            batches, values[part] = batches_of_one_value(
                sensitive[number], count=count, size=self.batch_size, generator=derive_generator(seed, "batches", part)
            )
            matrices[part] = layer_gradients(
                objective, rows[number], release=Release(FedSGD()), batches=batches,
                generator=derive_generator(seed, "release", part), groups={name: [name] for name in objective.params},
            ).matrices  # fmt: skip
        information = LatentInformation(
            classifier=self.classifier, by=layer_groups(list(objective.params), Partition.LAYER), resamples=200,
            seed=derive_seed(seed, "profile") % 2**31,
        )  # fmt: skip
        chosen = Chosen.by(
            information(matrices["profile"], values["profile"]), objective.params, budget=self.budget, draws=self.draws,
            seed=seed,
        )  # fmt: skip
        whole = {part: torch.cat(list(tensors.values()), dim=1) for part, tensors in matrices.items()}
        telling = telling_entries(whole["profile"], values["profile"], chosen.count)
        chosen = replace(chosen, sets={**chosen.sets, ENTRIES: objective.unflatten(telling)})
        std = self.noise * float(whole["profile"].square().mean().sqrt())
        found: dict[str, dict[str, Inferred]] = {"hide": {}, "noise, static": {}, "noise, adaptive": {}}
        for name, masks in chosen.with_nothing().items():
            mask = torch.cat([masks[tensor].reshape(-1) for tensor in objective.params])
            noisy = {
                part: matrix
                + std * mask * torch.randn(matrix.shape, generator=derive_generator(seed, "noise", part, name))
                for part, matrix in whole.items()
            }
            views = {
                "hide": (whole["shadow"][:, ~mask], whole["test"][:, ~mask]),
                "noise, static": (whole["shadow"], noisy["test"]),
                "noise, adaptive": (noisy["shadow"], noisy["test"]),
            }
            for kind, (learned, judged) in views.items():
                found[kind][name] = self._infer(learned, values["shadow"], judged, values["test"], seed)
        return chosen, found

    def _infer(self, learned: Tensor, labels: Tensor, judged: Tensor, truth: Tensor, seed: int) -> Inferred:
        given: NDArray[np.integer] = labels.numpy()
        fitted = self.classifier.fit(learned.numpy(), given, 2, derive_seed(seed, "fit") % 2**31)
        logs = fitted.log_posterior(judged.numpy())
        scores = {score.name: score for score in score_posteriors(logs, truth.numpy(), blind=0.5)}
        return Inferred(auroc=scores["auroc"].value, advantage=scores["advantage"].details.get("unclipped"))


__all__ = [
    "ENTRIES",
    "LEAST",
    "NOTHING",
    "OTHERS",
    "PROFILE",
    "SCATTERED",
    "CensusRecipe",
    "Chosen",
    "ImageRecipe",
    "Inferred",
    "ProtectedSetting",
    "telling_entries",
]
