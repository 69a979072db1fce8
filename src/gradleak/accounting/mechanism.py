"""Mechanism of a release: the move of a sum by one example, and the noise that is really on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from gradleak.core import (
    BatchDefense,
    Clients,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    GaussianMechanism,
    Guarantee,
    ModelDefense,
    NoGuarantee,
    Noise,
    NotGaussian,
    Objective,
    Protocol,
    Release,
    Unit,
    UpdateDefense,
)


def mechanism_of(release: Release, objective: Objective, examples: int) -> GaussianMechanism | NoGuarantee:
    """The Gaussian mechanism behind a release of so many examples, from the noise really added; or why there is none.

    Known are: a defense of single examples that bounds their gradients and adds noise to their mean (`DPSGD`), in every
    local step too; per-example clipping with Gaussian noise right after it on the update of one step; and, with the
    client as unit, a bounded update with Gaussian noise right after the bound: that of a single client, or those that every
    client of a secure aggregation bounds itself, with the noise of clients, of the server, or of both. Whatever comes later is
    post-processing, unless it looks at the batch again. Under secure aggregation the noise of the client itself counts, and
    of so many others as are said to be `honest`; what the sum loses to a server that sees nothing else is less where some are
    not, and `loose` says so.

    Noise on every clipped example (`DPSGD(..., noise="per_example")`) counts with what the sum of the k examples carries,
    σ√k.

    Args:
        release: protocol and defenses.
        objective: the client's loss; its shapes say which layer carries which noise.
        examples: b, the number of examples of the batch.
    """
    shapes = objective.params
    at_example = [defense for defense in release.defenses if isinstance(defense, ExampleDefense)]
    after = [defense for defense in release.defenses if not isinstance(defense, ExampleDefense | ModelDefense)]
    if at_example and at_example[-1].law(shapes, 1) is not None:
        return _noisy_steps(release.protocol, at_example, after, shapes, examples)
    if at_example and at_example[-1].bound is not None:
        clipped = _clipped_then_noisy(release.protocol, at_example, after, shapes, examples)
        if clipped is not None:
            return clipped
    clients = release.protocol.clients_added
    if clients is not None and clients.defenses:
        return _noisy_clients(clients, at_example, after, shapes)
    found = _noisy_update(after, shapes)
    if isinstance(found, GaussianMechanism) and release.protocol.of_client is not release.protocol:
        return NoGuarantee(reason="the norm of the sum over clients is bounded, not what one client or example adds")
    return found or NoGuarantee(reason=_gap(at_example, after, shapes))


def guarantee_of(release: Release, objective: Objective, examples: int) -> str:
    """Promise of a release as a whole, in words for a table.

    "formal, hides an example", "formal, hides a client" or "heuristic"; "" without defenses. The class of a defense says
    what it promises alone. A release has a guarantee where `mechanism_of` finds one: heuristic defenses can make one
    together (per-example clipping and Gaussian noise), and a defense that looks at the batch again takes away that of
    another.

    Args:
        release: protocol and defenses.
        objective: the client's loss.
        examples: b, the number of examples of the batch.
    """
    if not release.defenses:
        return ""
    found = mechanism_of(release, objective, examples)
    if isinstance(found, NoGuarantee):
        return Guarantee.HEURISTIC.value
    return f"{Guarantee.FORMAL.value}, hides {'an example' if found.unit is Unit.EXAMPLE else 'a client'}"


def _noisy_steps(
    protocol: Protocol,
    at_example: Sequence[ExampleDefense],
    after: Sequence[Defense],
    shapes: Mapping[str, Tensor],
    examples: int,
) -> GaussianMechanism | NoGuarantee:
    """Noise on the average of every step."""
    defense = at_example[-1]
    name = type(defense).__name__
    if (looks := _looks_again(after)) is not None:
        return looks
    if defense.bound is None:
        return NoGuarantee(reason=f"{name} adds noise and bounds no example's gradient")
    course = protocol.course(examples)
    if course is None:
        return NoGuarantee(reason=f"how often {_client(protocol)} uses an example is not known")
    stds = [_on_sum(defense, shapes, size) for size in course.sizes]
    known = [std for std in stds if std is not None]
    if len(known) < len(stds):
        return NoGuarantee(reason=f"{name} leaves entries without Gaussian noise")
    std, counted = _with_honest(protocol, defense, shapes, min(known))
    one, two = (_on_sum(defense, shapes, size) or math.inf for size in (1, 2))
    same = math.isclose(one, two) and math.isclose(_divisor(defense, 1), _divisor(defense, 2))
    return GaussianMechanism(
        sensitivity=defense.bound,
        std=std,
        steps=course.epochs,
        # One more example shifts all later ones to other mini-batches, also where so many fit into one.
        fixed=same and course.whole,
        loose=_loose(defense.law(shapes, course.sizes[0]), after, at_example, protocol, course.sizes, counted=counted),
    )


def _with_honest(
    protocol: Protocol, defense: ExampleDefense, shapes: Mapping[str, Tensor], alone: float
) -> tuple[float, bool]:
    """Noise on the sum over a client's examples with that of its honest others, and whether it is all that the sum carries.

    Args:
        protocol: of the release.
        defense: that adds the noise in each client.
        shapes: tensors of the update by name.
        alone: the smallest standard deviation of one client's own noise.
    """
    clients, sizes = protocol.clients_added, protocol.client_sizes
    if clients is None or sizes is None:
        return alone, True
    laws = [protocol.of_client.noise(partial(defense.law, shapes), size) for size in sizes]
    if clients.defenses or not all(isinstance(law, DiagonalGaussian) for law in laws):
        return alone, len(sizes) == 1
    parts = [
        share * min(law.std.values())
        for share, law in zip(clients.shares, laws, strict=True)
        if isinstance(law, DiagonalGaussian)
    ]
    own = [_on_sum(defense, shapes, size) or 0.0 for size in sizes]
    return min(
        std * total / part for std, part, total in zip(own, parts, _pooled(parts, clients.honest), strict=True)
    ), clients.honest == len(sizes) - 1


def _pooled(parts: Sequence[float], honest: int, server: float = 0.0) -> list[float]:
    """Noise on a sum, for each client its own part, the least of so many others, and the server's."""
    found = []
    for place, own in enumerate(parts):
        others = sorted(part for other, part in enumerate(parts) if other != place)[:honest]
        found.append(math.hypot(own, server, *others))
    return found


def _noisy_clients(
    clients: Clients, at_example: Sequence[ExampleDefense], after: Sequence[Defense], shapes: Mapping[str, Tensor]
) -> GaussianMechanism | NoGuarantee:
    """Clients that bound their own updates, with noise of theirs, of the server, or of both: the least hidden client."""
    if (looks := _looks_again(after)) is not None:
        return looks
    for place, defense in enumerate(clients.defenses):
        bound = defense.bound(shapes)
        if bound is None:
            continue
        law, rest = _leading_noise(clients.defenses[place + 1 :], shapes)
        # What a client does after its noise is post-processing; the noise of others does not reach through it.
        server, later = (None, after) if rest else _leading_noise(after, shapes)
        laws = [one for one in (law, server) if one is not None]
        if not laws or not all(all(one.std.values()) for one in laws):
            continue
        own = 0.0 if law is None else min(law.std.values())
        added = 0.0 if server is None else min(server.std.values())
        parts = [share * own for share in clients.shares]
        totals = _pooled(parts, 0 if rest else clients.honest, added)
        share, std = max(zip(clients.shares, totals, strict=True), key=lambda pair: pair[0] / pair[1])
        left_out = 0 if law is None else len(parts) - 1 - (0 if rest else clients.honest)
        reasons = [_loose(one, [*rest, *later]) for one in laws]
        if left_out:
            reasons.append(f"the noise of {left_out} other clients is not counted, as if they colluded with the server")
        if any(one.law(shapes, 1) is not None for one in at_example):
            reasons.append("the noise in local steps is not counted")
        return GaussianMechanism(
            sensitivity=share * bound,
            std=std,
            unit=Unit.CLIENT,
            # With noise of their own a sum over more clients carries more of it.
            fixed=clients.public and law is None,
            loose="; ".join(dict.fromkeys(filter(None, reasons))),
        )
    return NoGuarantee(reason="no bound on a client's update with Gaussian noise right after it, or on the sum")


def _on_sum(defense: ExampleDefense, shapes: Mapping[str, Tensor], examples: int) -> float | None:
    """The smallest standard deviation on the sum over so many examples; None where entries carry no Gaussian noise."""
    law = defense.law(shapes, examples)
    if not isinstance(law, DiagonalGaussian) or not all(law.std.values()):
        return None
    return min(law.std.values()) * _divisor(defense, examples)


def _clipped_then_noisy(
    protocol: Protocol,
    at_example: Sequence[ExampleDefense],
    after: Sequence[Defense],
    shapes: Mapping[str, Tensor],
    examples: int,
) -> GaussianMechanism | NoGuarantee | None:
    """Per-example clipping, and Gaussian noise right after it on the update of one step."""
    defense = at_example[-1]
    law, rest = _leading_noise(after, shapes)
    if law is None:
        return None
    if (looks := _looks_again(rest)) is not None:
        return looks
    course = protocol.course(examples)
    if course is None or course.sums is None:
        return NoGuarantee(
            reason=f"the noise comes after the local steps of {_client(protocol)}, and clipping their gradients does "
            "not bound what one example does to the whole way; DPSGD adds noise in every step"
        )
    assert defense.bound is not None
    if not all(law.std.values()):
        return NoGuarantee(reason="some layers of the update carry no noise")
    std = min(law.std.values()) * min(_divisor(defense, size) / weight for size, weight in course.sums)
    return GaussianMechanism(sensitivity=defense.bound, std=std, fixed=False, loose=_loose(law, rest, at_example))


def _loose(
    law: Noise,
    after: Sequence[Defense],
    at_example: Sequence[ExampleDefense] = (),
    protocol: Protocol | None = None,
    sizes: Sequence[int] = (),
    *,
    counted: bool = False,
) -> str:
    """Reasons why the release loses less than its mechanism, "" where none is known.

    Args:
        law: of the noise.
        after: defenses that act on what carries it.
        at_example: defenses of examples, of which the last one bounds what an example adds.
        protocol: that adds noise in each of its steps, or None.
        sizes: of the mini-batches of all steps of an epoch, of all clients.
        counted: whether the noise of all clients is.
    """
    reasons = []
    if not isinstance(law, DiagonalGaussian) or len(set(law.std.values())) > 1:
        reasons.append("by the smallest noise of all layers")
    bounds = [defense.bound for defense in at_example if defense.bound is not None]
    if bounds and min(bounds) < bounds[-1]:
        reasons.append(f"an earlier defense already bounds what an example adds by {min(bounds):g}")
    if after:
        names = ", ".join(type(defense).__name__ for defense in after)
        reasons.append(f"of the update before {names}")
    if protocol is not None and protocol.client_sizes is not None and len(protocol.client_sizes) > 1:
        if not counted:
            which = "some" if protocol.clients_added is not None and protocol.clients_added.honest else "the"
            reasons.append(f"the noise of {which} other clients is not counted, as if they colluded with the server")
    elif len(sizes) > 1:
        reasons.append("as if each of the client's noisy steps were seen")
    return "; ".join(reasons)


def _client(protocol: Protocol) -> str:
    """The name of what a client computes."""
    return type(protocol.of_client).__name__


def _noisy_update(after: Sequence[Defense], shapes: Mapping[str, Tensor]) -> GaussianMechanism | NoGuarantee | None:
    """A bounded update with Gaussian noise right after the bound: the client is hidden, not one example."""
    for place, defense in enumerate(after):
        bound = defense.bound(shapes) if isinstance(defense, UpdateDefense) else None
        law, rest = _leading_noise(after[place + 1 :], shapes)
        own = None if bound is None or not isinstance(defense, UpdateDefense) else defense.noise(shapes)
        if isinstance(own, DiagonalGaussian):  # a defense that bounds and adds noise in one
            law = own if law is None else own.added_to(law)
        if bound is None or law is None or isinstance(own, NotGaussian):
            continue
        if (looks := _looks_again(rest)) is not None:
            return looks
        if not all(law.std.values()):
            return NoGuarantee(reason="some layers of the update carry no noise")
        return GaussianMechanism(
            sensitivity=bound, std=min(law.std.values()), unit=Unit.CLIENT, loose=_loose(law, rest)
        )
    return None


def _leading_noise(
    defenses: Sequence[Defense], shapes: Mapping[str, Tensor]
) -> tuple[DiagonalGaussian | None, Sequence[Defense]]:
    """The Gaussian noise that the first defenses of a list add, one after the other, and those that come later."""
    total: DiagonalGaussian | None = None
    for place, defense in enumerate(defenses):
        if not isinstance(defense, UpdateDefense) or not defense.only_gaussian(shapes):
            return total, defenses[place:]
        law = defense.noise(shapes)
        if isinstance(law, DiagonalGaussian):
            total = law if total is None else total.added_to(law)
    return total, ()


def _looks_again(defenses: Sequence[Defense]) -> NoGuarantee | None:
    """A defense that reads the batch after the noise undoes the guarantee."""
    names = [type(defense).__name__ for defense in defenses if isinstance(defense, BatchDefense)]
    if not names:
        return None
    return NoGuarantee(reason=f"{' and '.join(names)} looks at the private batch, after or beside the noise")


def _divisor(defense: ExampleDefense, examples: int) -> float:
    """Divisor of the sum over so many examples, as a defense divides it."""
    ones = {"one": torch.ones(examples, 1, dtype=torch.float64)}
    return examples / float(defense.average(ones)["one"])


def _gap(at_example: Sequence[ExampleDefense], after: Sequence[Defense], shapes: Mapping[str, Tensor]) -> str:
    """Reason why a release has no epsilon."""
    names = [type(defense).__name__ for defense in (*at_example, *after)]
    if not names:
        return "nothing bounds or hides what an example adds"
    noisy = any(isinstance(defense, UpdateDefense) and defense.only_gaussian(shapes) for defense in after)
    what = (
        "no bound on the part of one example or client comes right before the Gaussian noise"
        if noisy
        else "no noise with a guarantee is added"
    )
    formal = [type(defense).__name__ for defense in (*at_example, *after) if defense.guarantee is Guarantee.FORMAL]
    label = f"labeled formal by {' and '.join(formal)}, which is not enough for an epsilon" if formal else "heuristic"
    return f"{', '.join(names)}: {label}, {what}"
