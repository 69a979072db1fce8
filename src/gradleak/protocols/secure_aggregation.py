"""Secure aggregation: the server sees the weighted sum of the clients' updates and no single one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    Clients,
    Course,
    DiagonalGaussian,
    ExampleDefense,
    Noise,
    NotGaussian,
    Objective,
    Protocol,
    Unchanged,
    UpdateDefense,
    UpdateKind,
)
from gradleak.core.release import law_after
from gradleak.results import BONAWITZ_2017, MCMAHAN_2018, Citation, Count, InputError, Natural, Positive


@dataclass(frozen=True, kw_only=True)
class SecureAggregation(Protocol):
    """Σₖ wₖ uₖ over the K clients that take part, uₖ the update of client k by its own protocol; no uₖ is seen.

    The batch of such a release holds the examples of all of them, client by client: `of` puts them together. The unknown
    is then the whole of it, d grows with K, and the protocol itself holds numbers and names alone, which an adversary may
    know. wₖ = nₖ/Σn by default, applied here and nowhere else: a client that already weighs its update (a loss that sums
    over its examples) needs `weights`.

    Defenses of single examples act at every client, with noise of their own each. `defenses` act at every client, too, on its
    own update before it is weighted: clipping and noise of the clients themselves. Those of the release that come after act on
    the sum, as a server or a trusted aggregator applies them. `Clip` here and `GaussianNoise` there is central DP-FedAvg
    (McMahan et al. 2018); both here is local DP, or distributed DP where the noise of others counts (`honest`).

    What a server learns if it holds K − 1 of the clients is not this release but that of one client, times its weight:
    secure aggregation does nothing against it. Dropouts after the masks were agreed on, and clients that compute at
    older parameters, are not modeled.

    **Cost**: one plain gradient of the whole batch, times what local steps cost.

    **Source**: Bonawitz et al. 2017, for what is revealed (the sum over those who stay); weights as in McMahan et al.
    2017, algorithm 1.

    Attributes:
        protocol: what each client computes.
        examples: nₖ of those who take part, in the order of the batch.
        weights: wₖ, or None for nₖ/Σn.
        participants: their names, for the record, or None for "client 1" and so on.
        clients: how many clients there are, of whom these take part; None for just them.
        defenses: of the update, that every client applies to its own.
        honest: for an epsilon, of how many other clients the noise counts as well: those that add it as stated and do not
            give it to the server. 0 for a server that may hold all others.

    Raises:
        InputError: for numbers that do not fit together.

    Examples:
        >>> from gradleak.protocols import FedSGD
        >>> SecureAggregation(protocol=FedSGD(), examples=[1, 3], participants=["a", "b"], clients=10).shares
        (0.25, 0.75)
    """

    citations: ClassVar[tuple[Citation, ...]] = (BONAWITZ_2017, MCMAHAN_2018)

    protocol: Protocol
    examples: Sequence[Count]
    weights: Sequence[Positive] | None = None
    participants: Sequence[str] | None = None
    clients: Count | None = None
    defenses: Sequence[UpdateDefense] = ()
    honest: Natural = 0

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if isinstance(self.protocol, SecureAggregation):
            raise InputError("SecureAggregation.protocol: expected what one client computes, got SecureAggregation")
        sizes = self.examples
        if not sizes:
            raise InputError("SecureAggregation.examples: expected at least one client, got none")
        names = (
            tuple(f"client {place + 1}" for place in range(len(sizes)))
            if self.participants is None
            else self.participants
        )
        if len(names) != len(sizes) or len(set(names)) != len(names):
            raise InputError(
                f"SecureAggregation.participants: expected {len(sizes)} different names, one a client, got {list(names)}"
            )
        if self.weights is not None and len(self.weights) != len(sizes):
            raise InputError(
                f"SecureAggregation.weights: expected {len(sizes)} positive numbers, got {list(self.weights)}"
            )
        if self.clients is not None and self.clients < len(sizes):
            raise InputError(
                f"SecureAggregation.clients: expected at least the {len(sizes)} that take part, got {self.clients}"
            )
        if self.honest >= len(sizes):
            raise InputError(
                f"SecureAggregation.honest: expected at most the {len(sizes) - 1} other clients, got {self.honest}"
            )
        object.__setattr__(self, "participants", tuple(names))

    @classmethod
    def of(
        cls,
        protocol: Protocol,
        batches: Mapping[str, Batch],
        *,
        weights: Mapping[str, float] | None = None,
        clients: int | None = None,
    ) -> tuple[SecureAggregation, Batch]:
        """The protocol over these clients, and the batch that holds the examples of all of them.

        Args:
            protocol: what each client computes.
            batches: of those who take part, by name.
            weights: wₖ by name, or None for nₖ/Σn.
            clients: how many clients there are.

        Raises:
            InputError: without a client, or for batches that do not go together.
        """
        if not batches:
            raise InputError("SecureAggregation.of: expected at least one client, got none")
        held = list(batches.values())
        domain = held[0].domain
        shapes = {tuple(batch.inputs.shape[1:]) for batch in held}
        if len(shapes) > 1 or any(batch.domain != domain for batch in held):
            raise InputError(
                f"SecureAggregation.of: expected batches of one shape and domain, got shapes {sorted(shapes)}"
            )
        sensitive = [batch.sensitive for batch in held if batch.sensitive is not None]
        union = Batch(
            torch.cat([batch.inputs for batch in held]),
            torch.cat([batch.targets for batch in held]),
            domain,
            torch.cat(sensitive) if len(sensitive) == len(held) else None,
        )
        aggregation = cls(
            protocol=protocol,
            examples=[batch.size for batch in held],
            weights=None if weights is None else [weights[name] for name in batches],
            participants=list(batches),
            clients=clients,
        )
        return aggregation, union

    @property
    def kind(self) -> UpdateKind:  # type: ignore[override]  # a class variable of protocols that do not wrap one
        """Kind of the clients' updates."""
        return self.protocol.kind

    @property
    def shares(self) -> tuple[float, ...]:
        """wₖ of each client."""
        if self.weights is not None:
            return tuple(float(weight) for weight in self.weights)
        return tuple(size / sum(self.examples) for size in self.examples)

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        """The weighted sum of the clients' updates, by name.

        Raises:
            InputError: for a batch of another size than the clients' together.
        """

        def update(piece: Batch) -> Mapping[str, Tensor]:
            made: Mapping[str, Tensor] = self.protocol.mean(objective, params, piece, defenses)
            for defense in self.defenses:
                made = defense.mean(made)
            return made

        return self._summed(batch, update)

    def draw(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense],
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """The weighted sum of what every client draws, by name."""

        def update(piece: Batch) -> Mapping[str, Tensor]:
            made: Mapping[str, Tensor] = self.protocol.draw(objective, params, piece, defenses, generator)
            for defense in self.defenses:
                made = defense.draw(made, generator)
            return made

        return self._summed(batch, update)

    def chance(self, examples: int | None) -> NotGaussian | None:
        """Law of what one of the clients draws, the first that draws."""
        drawn = [self.protocol.chance(size) for size in self.examples]
        return next((one for one in drawn if one is not None), None)

    def _summed(self, batch: Batch, update: Callable[[Batch], Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The weighted sum of the clients' updates, each of its own part of the batch."""
        total: dict[str, Tensor] = {}
        for place, weight in zip(self._places(batch.size), self.shares, strict=True):
            piece = Batch(batch.inputs[place], batch.targets[place], batch.domain)
            for name, tensor in update(piece).items():
                total[name] = weight * tensor if name not in total else total[name] + weight * tensor
        return total

    def plain_gradients(self, examples: int) -> float:
        """Cost of the clients, each with its share of the examples."""
        return sum(size / examples * self.protocol.plain_gradients(size) for size in self.examples)

    def mini_batch_weights(self, examples: int) -> Sequence[tuple[slice, float]] | None:
        """Those of every client, times its weight; None where clients do more to their updates than to add noise."""
        if self._bent:
            return None
        found: list[tuple[slice, float]] = []
        for place, weight in zip(self._places(examples), self.shares, strict=True):
            own = self.protocol.mini_batch_weights(place.stop - place.start)
            if own is None:
                return None
            found += [(slice(place.start + p.start, place.start + p.stop), weight * w) for p, w in own]
        return found

    def decay(self, examples: int) -> float:
        """Decay of every client, times its weight; 0 where clients do more to their updates than to add noise."""
        if self._bent:
            return 0.0
        return sum(share * self.protocol.decay(size) for size, share in zip(self.examples, self.shares, strict=True))

    def course(self, examples: int) -> Course | None:
        """Those of all clients, each weighted, as long as every one is known; never whole, since numbers are fixed."""
        own = [self.protocol.course(size) for size in self.examples]
        known = [course for course in own if course is not None]
        if len(known) < len(own):
            return None
        sums = [
            (count, share * weight)
            for course, share in zip(known, self.shares, strict=True)
            for count, weight in course.sums or ()
        ]
        return Course(
            epochs=max(course.epochs for course in known),
            sizes=[size for course in known for size in course.sizes],
            whole=False,
            sums=sums if all(course.sums is not None for course in known) and not self._bent else None,
        )

    @property
    def of_client(self) -> Protocol:
        """Protocol of each client."""
        return self.protocol

    @property
    def client_sizes(self) -> Sequence[int]:
        """nₖ of those who take part."""
        return self.examples

    @property
    def clients_added(self) -> Clients:
        """Weights and defenses of the clients, and how many of the others are trusted."""
        return Clients(
            shares=self.shares, public=self.weights is not None, defenses=tuple(self.defenses), honest=self.honest
        )

    def own_noise(self, shapes: Mapping[str, Tensor], examples: int | None) -> Noise:
        """The law of what clients draw, and of the noise that they add to their own updates, weighted and added."""
        law = law_after(self.defenses, self.chance(examples), shapes)
        return self._added([law] * len(self.examples))

    def noise(self, law: Callable[[int], Noise], examples: int) -> Noise:
        """The clients' independent noises, weighted and added; not Gaussian after defenses that bend it."""
        laws = [self.protocol.noise(law, size) for size in self.examples]
        if self._bent and any(isinstance(one, DiagonalGaussian) for one in laws):
            names = " and ".join(type(defense).__name__ for defense in self.defenses)
            return NotGaussian(reason=f"the noise of every client passes through its {names}, which is not linear")
        return self._added(laws)

    @property
    def _bent(self) -> bool:
        """True if clients do more to their updates than to add noise."""
        return not all(isinstance(defense.effect(()), Unchanged) for defense in self.defenses)

    def _added(self, laws: Sequence[Noise]) -> Noise:
        """The law of the weighted sum of independent noises, one a client."""
        total: Noise = None
        for own, weight in zip(laws, self.shares, strict=True):
            if isinstance(own, NotGaussian):
                return own
            if isinstance(own, DiagonalGaussian):
                own = own.scaled(weight)
                total = own if not isinstance(total, DiagonalGaussian) else total.added_to(own)
        return total

    def note(self, examples: int) -> str:
        """Number of clients that take part, and the note of their protocol."""
        taking = f"{len(self.examples)} of {self.clients or len(self.examples)} clients take part"
        told = {self.protocol.note(size): None for size in self.examples}
        return "; ".join([f"{taking}, and only their weighted sum is seen", *(note for note in told if note)])

    def _places(self, examples: int) -> list[slice]:
        """Places in the batch of each client's examples."""
        if examples != sum(self.examples):
            raise InputError(
                f"SecureAggregation: expected a batch of the {sum(self.examples)} examples of all clients "
                f"({', '.join(map(str, self.examples))}), got {examples}; SecureAggregation.of puts it together"
            )
        ends = list(accumulate(self.examples))
        return [slice(end - size, end) for end, size in zip(ends, self.examples, strict=True)]
