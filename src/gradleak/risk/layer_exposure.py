"""Parts of an update that an adversary sees, and the groups of tensors that a measure by layer compares."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import torch
from torch import Tensor, nn

from gradleak.core import (
    Batch,
    BatchDefense,
    Clients,
    Course,
    Domain,
    ExampleDefense,
    Exposure,
    Knowledge,
    NotGaussian,
    Objective,
    Release,
    Update,
    UpdateKind,
)
from gradleak.core.defense import Defense, Noise
from gradleak.core.objective import Tensors
from gradleak.core.protocol import Protocol
from gradleak.defenses.draws import layers
from gradleak.results import Count, InputError, Settings, UnsupportedError


class Partition(StrEnum):
    """Grouping of the shared tensors: each by itself, or those of one layer together."""

    TENSOR = "tensor"
    LAYER = "layer"


@dataclass(frozen=True, kw_only=True)
class Consecutive(Settings):
    """Sets of layers that follow one another: {1, 2}, {2, 3}, and so on.

    Attributes:
        count: layers of a set; all of them together where the model has fewer.

    **Source**: Mo et al. 2021, section 6.2, for inversions, which rarely succeed from one layer.
    """

    count: Count = 2


Grouping = Partition | str | Consecutive | Mapping[str, Sequence[str]]
"""By tensor, by layer, by consecutive layers, or named groups of tensors and layers."""


def layer_groups(names: Sequence[str], by: Grouping) -> dict[str, tuple[str, ...]]:
    """The names of the tensors of every group, groups and members in the order of the model.

    A layer is what precedes the last dot of a tensor's name, "(root)" for what stands in the model itself. Normalizations
    with weights of their own count as layers.

    Args:
        names: of the shared tensors, in the order of `objective.params`.
        by: `tensor`, `layer`, `Consecutive`, or groups by name, whose members are names of tensors or of layers.

    Raises:
        InputError: for another grouping, an empty group, or a name that is neither tensor nor layer.

    Examples:
        >>> layer_groups(["0.weight", "0.bias", "2.weight"], Partition.LAYER)
        {'0': ('0.weight', '0.bias'), '2': ('2.weight',)}
        >>> layer_groups(["0.weight", "0.bias", "2.weight"], Consecutive(count=2))
        {'0 + 2': ('0.weight', '0.bias', '2.weight')}
    """
    if isinstance(by, Mapping):
        if not by or any(isinstance(members, str) or not members for members in by.values()):
            raise InputError(f"by: expected groups such as {{'head': ['9.weight', '9.bias']}}, got {by!r}")
        return {group: members_of(names, members, what=f"by: group {group!r}") for group, members in by.items()}
    layers: dict[str, tuple[str, ...]] = {}
    for name in names:
        layers[_layer(name)] = (*layers.get(_layer(name), ()), name)
    if isinstance(by, Consecutive):
        count, listed = min(by.count, len(layers)), list(layers)
        sets = [listed[start : start + count] for start in range(len(listed) - count + 1)]
        return {" + ".join(group): tuple(name for layer in group for name in layers[layer]) for group in sets}
    if by not in tuple(Partition):
        raise InputError(f"by: expected one of {', '.join(Partition)}, Consecutive or named groups, got {by!r}")
    return {name: (name,) for name in names} if Partition(by) is Partition.TENSOR else layers


def members_of(names: Sequence[str], asked: Sequence[str], *, what: str) -> tuple[str, ...]:
    """The tensors that are asked for by their own names or by those of their layers, in the order of the model.

    Args:
        names: of all tensors.
        asked: names of tensors, or of layers or blocks that hold them.
        what: who asks, for the message.

    Raises:
        InputError: for a name that is neither, with the nearest one that is.
    """
    for one in asked:
        if not any(_within(name, one) for name in names):
            known = [*names, *dict.fromkeys(_layer(name) for name in names)]
            near = difflib.get_close_matches(one, known, n=1, cutoff=0.0)[0]
            raise InputError(f"{what} names {one!r}, no shared tensor or layer; is it {near!r}?")
    return tuple(name for name in names if any(_within(name, one) for one in asked))


def _layer(name: str) -> str:
    return name.rpartition(".")[0] or "(root)"


def _within(name: str, asked: str) -> bool:
    return name == asked or name.startswith(f"{asked}.") or (asked == "(root)" and "." not in name)


Sets = Mapping[str, "VisibleLayers"]


@dataclass(frozen=True, kw_only=True)
class VisibleLayers:
    """The tensors of an update that an adversary sees; the others stay in an enclave, are encrypted, or are never sent.

    What is hidden is taken out of the release map: `exposure` gives closed-form measures the rows A_l of what is visible,
    `knowledge` and `update` give an attack a model that shares these tensors alone. The adversary still knows the
    parameters of the hidden layers, as one who sees the global model does; what it does not see is how they would change,
    and what the batch left in a BatchNorm layer all of whose tensors are hidden (one without tensors of its own hides nothing).

    **Assumptions**: hiding changes nothing that the client computes. The gradient of the visible tensors is theirs in the
    whole gradient; clipping of single examples and local training run over all tensors. Defenses of the finished update act
    on what is visible: a norm is clipped, and noise added, after the hidden tensors were left out. A release with such a
    defense by the norm of the whole update followed by hiding is another one.

    Args:
        names: of the visible tensors, at least one.

    Examples:
        >>> objective = Objective.from_module(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
        >>> VisibleLayers.biases(objective).names
        ('0.bias', '2.bias')
        >>> list(VisibleLayers.of(objective, "2").objective(objective).params)
        ['2.weight', '2.bias']
    """

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that there are names."""
        if isinstance(self.names, str) or not self.names:
            raise InputError(f"VisibleLayers.names: expected names of tensors, got {self.names!r}")
        object.__setattr__(self, "names", tuple(self.names))

    @classmethod
    def of(cls, objective: Objective, *layers: str) -> Self:
        """These tensors, or all tensors of these layers or blocks.

        Raises:
            InputError: for an unknown name, with the nearest one that there is.
        """
        return cls(names=members_of(list(objective.params), layers, what="VisibleLayers.of"))

    @classmethod
    def hiding(cls, objective: Objective, *layers: str) -> Self:
        """All but these tensors, layers or blocks.

        Raises:
            InputError: for an unknown name, or if nothing is left.
        """
        hidden = members_of(list(objective.params), layers, what="VisibleLayers.hiding")
        left = tuple(name for name in objective.params if name not in hidden)
        if not left:
            raise InputError("VisibleLayers.hiding: expected a tensor that stays visible, and all of them are hidden")
        return cls(names=left)

    @classmethod
    def biases(cls, objective: Objective) -> Self:
        """Every tensor that is called bias.

        Raises:
            InputError: if there is none.
        """
        found = tuple(name for name in objective.params if name.rpartition(".")[2] == "bias")
        return cls(names=_some(found, "a tensor called bias"))

    @classmethod
    def last_layer(cls, objective: Objective, domain: Domain) -> Self:
        """The weight and bias of the linear layer that makes the output.

        Raises:
            InputError: if no such layer is shared.
        """
        return cls(names=_some(_head(objective, domain), "a linear layer that makes the output"))

    @classmethod
    def last_bias(cls, objective: Objective, domain: Domain) -> Self:
        """The bias of the linear layer that makes the output.

        Raises:
            InputError: if it has none, or no such layer is shared.
        """
        found = objective.classifier(domain)
        names = () if found is None or found.bias is None else (found.bias,)
        return cls(names=_some(names, "the bias of a linear layer that makes the output"))

    @classmethod
    def all_but_embedding(cls, objective: Objective) -> Self:
        """All tensors but the tables of `nn.Embedding` and `nn.EmbeddingBag` layers.

        Raises:
            InputError: if there is no such table, or nothing else.
        """
        tables = _embeddings(objective)
        _some(tables, "an embedding")
        return cls(names=tuple(name for name in objective.params if name not in tables))

    @classmethod
    def all_but_norms(cls, objective: Objective) -> Self:
        """All tensors but those of normalization layers, which clients of FedBN train and keep.

        **Source**: Li et al. 2021 (FedBN), for BatchNorm; layer, group and instance normalization are kept as well.

        Raises:
            InputError: if there is no such tensor, or nothing else.
        """
        kept = _some(_norms(objective), "tensors of a normalization layer")
        return cls(names=tuple(name for name in objective.params if name not in kept))

    def objective(self, objective: Objective) -> Objective:
        """The same loss, of which only the visible tensors are shared; the others are held fixed.

        Raises:
            InputError: if a visible tensor is not among the shared ones.
        """
        self._check(list(objective.params), "the model")
        hidden = {name: tensor for name, tensor in objective.params.items() if name not in self.names}
        visible = {name: tensor for name, tensor in objective.params.items() if name in self.names}
        return replace(objective, params=visible, frozen={**objective.frozen, **hidden})

    def release(self, objective: Objective, release: Release) -> Release:
        """The release of the visible tensors; `objective` is the whole one.

        Raises:
            UnsupportedError: for a defense that looks at the private batch again.
        """
        protocol = self._protocol(objective, release.protocol, release.defenses)
        return Release(protocol, self._seen(objective, release.defenses))

    def exposure(self, exposure: Exposure) -> Exposure:
        """The exposure of the visible tensors: what measures take.

        Raises:
            InputError: if a visible tensor is not among the shared ones.
            UnsupportedError: for a defense that looks at the private batch again.
        """
        whole = exposure.objective
        return Exposure(self.objective(whole), exposure.batch, self.release(whole, exposure.release))

    def knowledge(self, knowledge: Knowledge) -> Knowledge:
        """Knowledge of an adversary who sees these tensors alone.

        Raises:
            InputError: if the objective is not known, or a visible tensor is not among its shared ones.
            UnsupportedError: for a defense that looks at the private batch again.
        """
        whole, protocol = knowledge.objective, knowledge.protocol
        if whole is None:
            raise InputError("VisibleLayers.knowledge: expected knowledge of the objective, got none")
        if protocol is not None:
            protocol = self._protocol(whole, protocol, knowledge.defenses or ())
        defenses = None if knowledge.defenses is None else tuple(self._seen(whole, knowledge.defenses))
        shared = knowledge.statistics
        if shared is not None:
            hidden = set(layers(whole.params)) - set(layers(self.names))
            shared = {name: moments for name, moments in shared.items() if name not in hidden} or None
        return replace(
            knowledge, objective=self.objective(whole), protocol=protocol, defenses=defenses, statistics=shared
        )

    def update(self, update: Update) -> Update:
        """The visible tensors of an update whose tensors are called as those of the model (see `Update.align`).

        Raises:
            InputError: if one of them is missing.
        """
        self._check(list(update.tensors), "the update")
        tensors = {name: update.tensors[name] for name in update.tensors if name in self.names}
        return replace(update, tensors=tensors, provenance={**update.provenance, "visible": list(tensors)})

    def _seen(self, objective: Objective, defenses: Sequence[Defense]) -> list[Defense]:
        """The defenses as they act on what is visible: noise by layer says nothing of layers that are hidden."""
        hidden = set(layers(objective.params)) - set(layers(self.names))
        return [defense.seen_without(hidden) for defense in defenses]

    def _protocol(self, objective: Objective, protocol: Protocol, defenses: Sequence[Defense]) -> Protocol:
        for defense in defenses:
            if isinstance(defense, BatchDefense):
                raise UnsupportedError(
                    f"VisibleLayers: {type(defense).__name__} looks at the private batch with the whole update before it; "
                    "leave it out, or hide nothing"
                )
        if protocol.shares_gradient and not any(isinstance(defense, ExampleDefense) for defense in defenses):
            return protocol
        return PartlyShared(protocol=protocol, order=tuple(objective.params))

    def _check(self, names: Sequence[str], where: str) -> None:
        members_of(names, self.names, what=f"VisibleLayers: {where} is looked through, but it")


@dataclass(frozen=True, kw_only=True)
class PartlyShared(Protocol):
    """A protocol that runs over all tensors and shares those that the objective says are shared.

    Attributes:
        protocol: what the client computes.
        order: the names of all tensors that it changes; those that the objective holds fixed are hidden.
    """

    protocol: Protocol
    order: tuple[str, ...]

    @property
    def kind(self) -> UpdateKind:  # type: ignore[override]
        """As the protocol inside."""
        return self.protocol.kind

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> Tensors:
        """The visible tensors of what the protocol inside makes with all of them."""
        whole, start = self._whole(objective, params)
        update = self.protocol.mean(whole, start, batch, defenses)
        return {name: update[name] for name in objective.params}

    def draw(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense],
        generator: torch.Generator,
    ) -> Tensors:
        """The visible tensors of what the protocol inside draws with all of them."""
        whole, start = self._whole(objective, params)
        update = self.protocol.draw(whole, start, batch, defenses, generator)
        return {name: update[name] for name in objective.params}

    def _whole(self, objective: Objective, params: Mapping[str, Tensor]) -> tuple[Objective, dict[str, Tensor]]:
        """The loss of all tensors, and where they start."""
        every = {**objective.frozen, **objective.params}
        whole = replace(
            objective,
            params={name: every[name] for name in self.order},
            frozen={name: tensor for name, tensor in objective.frozen.items() if name not in self.order},
        )
        return whole, {name: params[name] if name in params else every[name] for name in self.order}

    def plain_gradients(self, examples: int) -> float:
        """As the protocol inside."""
        return self.protocol.plain_gradients(examples)

    def gradient_scale(self) -> float | None:
        """As the protocol inside."""
        return self.protocol.gradient_scale()

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]] | None:
        """As the protocol inside."""
        return self.protocol.mini_batch_weights(examples)

    def decay(self, examples: int) -> float:
        """As the protocol inside."""
        return self.protocol.decay(examples)

    def chance(self, examples: int | None) -> NotGaussian | None:
        """As the protocol inside."""
        return self.protocol.chance(examples)

    def by_epoch(self, examples: int) -> tuple[Protocol, int] | None:
        """As the protocol inside, of which the visible tensors are shared."""
        copies = self.protocol.by_epoch(examples)
        return None if copies is None else (replace(self, protocol=copies[0]), copies[1])

    def own_noise(self, shapes: Mapping[str, Tensor], examples: int | None) -> Noise:
        """As the protocol inside."""
        return self.protocol.own_noise(shapes, examples)

    def course(self, examples: int) -> Course | None:
        """As the protocol inside."""
        return self.protocol.course(examples)

    @property
    def of_client(self) -> Protocol:
        """Protocol of each client, of which the visible tensors are shared."""
        inside = self.protocol.of_client
        return self if inside is self.protocol else replace(self, protocol=inside)

    @property
    def clients_added(self) -> Clients | None:
        """As the protocol inside."""
        return self.protocol.clients_added

    @property
    def client_sizes(self) -> Sequence[int] | None:
        """As the protocol inside."""
        return self.protocol.client_sizes

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """As the protocol inside."""
        return self.protocol.noise(law, examples)

    def note(self, examples: int) -> str:
        """As the protocol inside."""
        return self.protocol.note(examples)


def what_ifs(objective: Objective, domain: Domain) -> dict[str, VisibleLayers]:
    """The usual sets of visible tensors by name, the whole update first; those that this model does not have are left out.

    "everything", "last bias", "last layer", "biases", "all but the embedding", "all but normalization (FedBN)", "first layer in
    an enclave", "last layer in an enclave". A set that equals an earlier one is left out too.

    Args:
        objective: the client's loss.
        domain: of an example.

    Raises:
        InputError: if the model does not take an example of this domain.
    """
    every = tuple(objective.params)
    head, tables, norms = _head(objective, domain), _embeddings(objective), _norms(objective)
    first = tuple(name for name in every if name.rpartition(".")[0] == every[0].rpartition(".")[0])
    candidates = {
        "everything": every,
        "last bias": tuple(name for name in head if objective.params[name].dim() == 1),
        "last layer": head,
        "biases": tuple(name for name in every if name.rpartition(".")[2] == "bias"),
        "all but the embedding": tuple(name for name in every if name not in tables) if tables else (),
        "all but normalization (FedBN)": tuple(name for name in every if name not in norms) if norms else (),
        "first layer in an enclave": tuple(name for name in every if name not in first),
        "last layer in an enclave": tuple(name for name in every if name not in head) if head else (),
    }
    found: dict[str, VisibleLayers] = {}
    for label, names in candidates.items():
        if names and names not in [sets.names for sets in found.values()]:
            found[label] = VisibleLayers(names=names)
    return found


def _head(objective: Objective, domain: Domain) -> tuple[str, ...]:
    found = objective.classifier(domain)
    return () if found is None else tuple(name for name in objective.params if name in (found.weight, found.bias))


def _embeddings(objective: Objective) -> tuple[str, ...]:
    parts = objective._module.named_modules()
    tables = [f"{name}.weight" for name, part in parts if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    tables = [objective.tied.get(name.removeprefix("."), name.removeprefix(".")) for name in tables]
    return tuple(name for name in objective.params if name in tables)


def _norms(objective: Objective) -> tuple[str, ...]:
    kinds = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
    kept = [f"{name}." for name, part in objective._module.named_modules() if isinstance(part, kinds)]
    return tuple(name for name in objective.params if name.startswith(tuple(kept)))


def _some(names: tuple[str, ...], what: str) -> tuple[str, ...]:
    if not names:
        raise InputError(f"VisibleLayers: expected a model that shares {what}, got none; name the tensors by `of`")
    return names
