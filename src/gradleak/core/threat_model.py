"""Threat model: the facts of a setting that are disclosed to the adversary."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

from gradleak.core.batch import Batch
from gradleak.core.batch_norm import batch_norm_statistics
from gradleak.core.domain import Domain
from gradleak.core.image_generator import ImageGenerator
from gradleak.core.knowledge import Knowledge
from gradleak.core.objective import Objective
from gradleak.core.protocol import Protocol
from gradleak.core.release import Release
from gradleak.results import Hint, InputError, Settings


class ThreatModel(Settings, ABC):
    """Decides which facts of a setting the adversary gets."""

    @abstractmethod
    def disclose(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
        """The knowledge of the adversary about this setting."""


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

    def disclose(self, objective: Objective, release: Release, batch: Batch) -> Knowledge:
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
        )


def _guess(batch: Batch) -> Domain:
    """A domain from the values of the private batch; never in silence, since the adversary is told it."""
    domain = Domain.guess(batch.inputs)
    warnings.warn(
        f"no domain was stated; guessed {domain.kind.value} data, {domain.range_text}, from the private "
        "batch, and the adversary is told so; state gradleak.Domain in the Batch",
        stacklevel=3,
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
