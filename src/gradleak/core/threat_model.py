"""Threat model: the facts of a setting that are disclosed to the adversary."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, final

import torch
from torch import Tensor, nn

from gradleak.core.batch import Batch
from gradleak.core.batch_norm import batch_norm_statistics
from gradleak.core.domain import Domain
from gradleak.core.exposure import Exposure
from gradleak.core.image_generator import ImageGenerator
from gradleak.core.knowledge import Knowledge
from gradleak.core.object_walk import walk
from gradleak.core.objective import Objective
from gradleak.core.private_data import PrivateData
from gradleak.core.protocol import Protocol
from gradleak.core.release import Release
from gradleak.core.sealed import fresh, lean
from gradleak.results import Hint, InputError, Settings


class ThreatModel(Settings, ABC):
    """Decides which facts of a setting the adversary gets. Authors write `_facts`."""

    @final
    def disclose(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
        """The knowledge of the adversary about this setting.

        Of the objective it gets what an evaluation reads (`lean`), of protocol and defenses their settings. That is then
        searched for the batch: data that sit in the model, the loss or a defense would reach every attack.

        Raises:
            InputError: naming the place where inputs or labels of the batch were found; see `PrivateData` for what is found.

        **Cost**: some plain gradients, most of it one pass over the parameters.
        """
        known = self.facts(objective, release, batch)
        refuse_private_data([known], [batch])
        return known

    @final
    def disclose_each(self, exposures: Sequence[Exposure]) -> list[Knowledge]:
        """The knowledge of each setting, after one search for all their batches.

        Raises:
            InputError: as `disclose`.
        """
        known = [self.facts(one.objective, one.release, one.batch) for one in exposures]
        refuse_private_data(known, [one.batch for one in exposures])
        return known

    @final
    def facts(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
        """The knowledge of the adversary before the search, for those who search once for many batches."""
        known = self._facts(lean(objective, batch), release, batch)
        protocol = None if known.protocol is None else fresh(known.protocol)
        defenses = None if known.defenses is None else tuple(fresh(defense) for defense in known.defenses)
        return replace(known, protocol=protocol, defenses=defenses)

    @abstractmethod
    def _facts(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
        """The knowledge of the adversary; the batch contributes what the threat model says."""


def refuse_private_data(
    known: Sequence[Knowledge], batches: Sequence[Batch], besides: Sequence[tuple[str, object]] = ()
) -> None:
    """Refuse knowledge in which private data can be reached, but for what it discloses (`targets`, `statistics`).

    Weights that are trained (shared parameters, those of a generator) may depend on the data in many ways, so that only exact
    copies count in them. Public rows are of the same kind as the data, so that only whole examples do.

    Args:
        known: what attacks receive.
        batches: whose data are searched for.
        besides: what else is searched, with the names of the places.

    Raises:
        InputError: naming the place and what was found.
    """
    data = PrivateData(batches, labels=any(facts.targets is None for facts in known))
    trained: set[int] = set()
    public: set[int] = set()
    met: set[object] = set()
    roots: list[tuple[str, object]] = list(besides)
    for facts in known:
        if facts.objective is not None:
            shared = facts.objective.params
            own = [one for name, one in facts.objective._module.named_parameters() if name in shared]
            trained |= {tensor.data_ptr() for tensor in (*shared.values(), *own)}
            roots += [
                ("model", facts.objective._module),
                ("loss", facts.objective._loss),
                ("objective", facts.objective),
            ]
        if facts.generator is not None:
            trained |= {tensor.data_ptr() for tensor in facts.generator.module.parameters()}
        if facts.public is not None:
            public.add(facts.public.inputs.data_ptr())
        names = ("protocol", "defenses", "domain", "public", "generator", "assumed")
        roots += [(name, value) for name in names if (value := getattr(facts, name)) is not None]
    originals = [pair for facts in known if facts.objective is not None for pair in facts.objective._origins]
    for where, original in originals:
        _refuse(where, data.sharing(original))
    for place, found in walk(
        roots, beside={id(facts.objective._origins) for facts in known if facts.objective is not None}
    ):
        exactly = alike = False
        if type(found) in (Tensor, nn.Parameter) and found.layout == torch.strided:
            view = found.data_ptr(), tuple(found.shape), found.stride(), found.dtype
            if view in met:
                continue
            met.add(view)
            exactly, alike = found.data_ptr() in trained, found.data_ptr() in public
        _refuse(place, data.among(found, exactly=exactly, alike=alike))


def _refuse(place: object, what: str | None) -> None:
    if what is not None:
        raise InputError(
            f"{place}: expected nothing of the private data in what attacks receive, got {what} of the batch; take them "
            "out of the model, the loss and the defenses, or clear what an earlier evaluation left there"
        )


@dataclass(frozen=True, kw_only=True)
class HonestButCurious(ThreatModel):
    """A server that follows the protocol: it knows the model, its parameters, the loss and the protocol.

    A server that does not know how its clients train (their learning rate, number of steps, optimizer) has to assume
    something: `protocol` is then what it goes by, marked as assumed wherever knowledge is printed. How much depends on it
    say `gradleak.attacks.residuals_under` and `gradleak.attacks.rerun_under`.

    Attributes:
        batch_size: whether the number of examples is known.
        domain: whether shape, range and normalization of an example are known. A batch without a domain has one guessed
            from its values, which is a truth: a warning, the knowledge card and the report say so.
        targets: whether the true labels are disclosed (a truth: the report says so).
        defenses: whether the defenses and their constants are known (an adaptive adversary).
        public: public data of the same domain, or None.
        statistics: whether the BatchNorm statistics of the private batch are disclosed, as clients that share their
            buffers do (a truth: the report says so). Taken over the whole batch at the parameters it starts from.
        protocol: what the adversary takes the protocol of the client to be; None where it knows it.
        masks: whether the client's own draw of what the model draws (dropout masks, the noise of a bottleneck) is
            disclosed (a truth: the report says so). Without it the adversary gets the objective with another
            `mask_seed`, and attacks match the mean over draws of their own.
        generator: a generator of images that the adversary brings along, or None. It gets the domain that is disclosed;
            its `source` stands in the card, since data of the client in its training would be a truth; a batch with an
            image that its file has among the training images is refused.
        lengths: whether the number of tokens of each sentence is disclosed (a truth: the report says so); for tokens alone.
    """

    batch_size: bool = True
    domain: bool = True
    targets: bool = False
    defenses: bool = True
    public: Batch | None = None
    statistics: bool = False
    protocol: Protocol | None = None
    masks: bool = False
    generator: Annotated[ImageGenerator | None, Hint("wrap a module in ImageGenerator or own_generator")] = None
    lengths: bool = False

    def stated(
        self,
        objective: Objective,
        release: Release,
        *,
        batch_size: int | None = None,
        domain: Domain | None = None,
        targets: Tensor | None = None,
    ) -> Knowledge:
        """The knowledge of somebody who holds an update alone: what this one has of the batch is stated, not read from it.

        Args:
            objective: the model that was sent, with the loss.
            release: how the client is said to train and defend.
            batch_size: how many examples are said to be behind the update.
            domain: shape, range and normalization of an example.
            targets: the labels, where they are known.

        Raises:
            InputError: if `statistics`, `masks` or `lengths` are to be disclosed, which only the client has.
        """
        if self.statistics or self.masks or self.lengths:
            raise InputError(
                "HonestButCurious.stated: expected statistics=False, masks=False and lengths=False, which only whoever holds "
                "the batch has; "
                "use disclose(objective, release, batch) there"
            )
        generator = self.generator if self.generator is None or domain is None else self.generator.in_domain(domain)
        return Knowledge(
            objective=objective.redrawn if objective.random_layers else objective,
            protocol=release.protocol if self.protocol is None else self.protocol,
            defenses=tuple(release.defenses) if self.defenses else None,
            batch_size=batch_size if self.batch_size else None,
            targets=None if targets is None else targets.detach().clone(),
            domain=domain if self.domain else None,
            public=self.public,
            assumed=None if self.protocol is None else ("protocol",),
            generator=generator,
        )

    def _facts(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
        """The knowledge of this adversary; the batch contributes its size, domain and, if disclosed, its labels.

        Raises:
            InputError: if public data contain an example of the batch, or the generator makes examples of another shape or
                was trained on an example of the batch.
        """
        if self.public is not None:
            _refuse_overlap(self.public, batch)
        domain = (batch.domain or _guess(batch)) if self.domain else None
        generator = self.generator
        if generator is not None:
            generator.refuse_seen(batch)
        if generator is not None and domain is not None:
            generator = generator.in_domain(domain)
        drawn = objective.draws(batch.inputs, batch.targets)
        return Knowledge(
            objective=objective.redrawn if drawn and not self.masks else objective,
            protocol=release.protocol if self.protocol is None else self.protocol,
            defenses=release.defenses if self.defenses else None,
            batch_size=batch.size if self.batch_size else None,
            targets=batch.targets.detach().clone() if self.targets else None,
            domain=domain,
            public=self.public,
            statistics=batch_norm_statistics(objective, batch.inputs) if self.statistics else None,
            assumed=None if self.protocol is None else ("protocol",),
            masks=objective.mask_seed if drawn and self.masks else None,
            generator=generator,
            lengths=batch.lengths if self.lengths else None,
        )


def _guess(batch: Batch) -> Domain:
    """A domain from the values of the private batch; never in silence, since the adversary is told it."""
    domain = Domain.guess(batch.inputs)
    warnings.warn(
        f"no domain was stated; guessed {domain.kind.value} data, {domain.range_text}, from the private "
        "batch, and the adversary is told so; state gradleak.Domain in the Batch",
        stacklevel=5,
    )
    return domain


def _refuse_overlap(public: Batch, batch: Batch) -> None:
    """Public data that hold a private example would hand the truth to the attack."""
    if public.inputs.shape[1:] != batch.inputs.shape[1:]:
        return
    rows = public.inputs.detach().to(batch.inputs)
    shared = sum(bool((rows == example).flatten(1).all(dim=1).any()) for example in batch.inputs.detach())
    if shared:
        raise InputError(
            f"HonestButCurious.public: expected data that the client does not hold, got {shared} of the {batch.size} "
            "private examples among them; take them out"
        )
