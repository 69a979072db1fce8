"""Knowledge of the adversary, as data; the only door through which anything reaches an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.batch_norm import LayerStatistics
from gradleak.core.defense import Defense
from gradleak.core.describe import describe
from gradleak.core.domain import Domain
from gradleak.core.image_generator import ImageGenerator
from gradleak.core.objective import Objective
from gradleak.core.protocol import Protocol
from gradleak.core.release import Release
from gradleak.results import InputError, KnowledgeError


@dataclass(frozen=True, kw_only=True, eq=False)
class Knowledge:
    """Everything the adversary may use besides the update; a field that is None is not known.

    Attributes:
        objective: architecture, parameters, loss and mode of the client's model.
        protocol: how the client computes its update.
        defenses: the defenses in order, with their public constants (noise level, clip norm).
        batch_size: the number of examples behind the update.
        targets: the labels of the batch, in its order: a disclosed truth, printed in every report.
        domain: shape, range and normalization of an example, for tokens the vocabulary and the padded length; a disclosed
            truth where it was guessed from the data.
        public: public (shadow) data of the same domain.
        statistics: what the private batch left in BatchNorm layers, by layer: a disclosed truth, printed in reports.
        assumed: names of fields that the adversary does not know but takes to be so; None for none.
        masks: the seed of the client's own dropout masks and other draws of its model, which the objective then has: a
            disclosed truth, printed in reports. Without it nothing of the client's draw may be in the objective.
        generator: a generator of images that the adversary brings along, trained on data that are not the client's.
        lengths: tokens of each sentence, (b,), in the order of the batch: a disclosed truth, printed in reports.
    """

    objective: Objective | None = field(default=None, repr=False)
    protocol: Protocol | None = None
    defenses: Sequence[Defense] | None = None
    batch_size: int | None = None
    targets: Tensor | None = field(default=None, repr=False)
    domain: Domain | None = None
    public: Batch | None = None
    statistics: Mapping[str, LayerStatistics] | None = field(default=None, repr=False)
    assumed: Sequence[str] | None = None
    masks: int | None = None
    generator: ImageGenerator | None = None
    lengths: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the batch size against the targets, the masks against the objective, the generator against the domain."""
        if self.generator is not None and self.domain is not None and self.generator.domain != self.domain:
            raise InputError(
                f"Knowledge.generator: expected images in the domain {self.domain}, got {self.generator.domain}; use "
                "generator.in_domain(domain)"
            )
        if self.masks is not None and self.objective is not None and self.objective.mask_seed != self.masks:
            raise InputError(
                f"Knowledge.masks: expected an objective with mask_seed={self.masks}, got {self.objective.mask_seed}"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"Knowledge.batch_size: expected a whole number of at least 1, got {self.batch_size}")
        for name, rows in (("targets", self.targets), ("lengths", self.lengths)):
            if rows is not None and self.batch_size not in (None, rows.shape[0]):
                raise InputError(
                    f"Knowledge.{name}: expected {self.batch_size} rows (the batch size), got {rows.shape[0]}"
                )
        unheld = [name for name in self.assumed or () if getattr(self, name, None) is None]
        if unheld:
            raise InputError(f"Knowledge.assumed: expected names of facts that are given, got {', '.join(unheld)}")

    def require(self, needs: Sequence[str], *, asker: str) -> None:
        """Refuse if one of the named fields is unknown.

        Args:
            needs: names of fields.
            asker: who needs them, for the message.

        Raises:
            KnowledgeError: naming every gap.
        """
        gaps = [name for name in needs if getattr(self, name) is None]
        if gaps:
            raise KnowledgeError(
                f"{asker} needs {', '.join(gaps)}, which the threat model does not disclose; "
                "disclose it in the threat model, or use another attack"
            )

    @property
    def release(self) -> Release:
        """The release map as the adversary knows it; defenses that are not known are taken as absent.

        Raises:
            KnowledgeError: if the protocol is unknown.
        """
        self.require(("protocol",), asker="the release map")
        assert self.protocol is not None
        return Release(self.protocol, self.defenses or ())

    def card(self) -> dict[str, Any]:
        """A JSON-ready list of what is known, for the record: facts and shapes, never values of data."""
        card: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "objective" and value is not None:
                card["objective"] = {
                    "loss": value.loss_name,
                    "mode": value.mode.value,
                    "dtype": describe(value.dtype),
                    "shared": {name: list(tensor.shape) for name, tensor in value.params.items()},
                    "frozen": list(value.frozen),
                    "tied": dict(value.tied),
                    "renamed": dict(value.renamed),
                    "shared_entries": value.size,
                    "buffers": list(value.buffers),
                    "notes": list(value.notes),
                }
            elif entry.name == "generator" and value is not None:
                card["generator"] = value.describe()
            elif entry.name != "lengths" or value is not None:
                card[entry.name] = describe(value)
        if self.domain is not None and self.domain.guessed:
            card["domain"]["guessed"] = True
        return card
