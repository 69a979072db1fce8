"""Base of every measure of where a release leaks: one profile over the layers of a release, and what to know of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from gradleak.core import Batch, Knowledge
from gradleak.results import Citation, Evidence, GradleakError, Leakier, Outcome, Score, Settings
from gradleak.risk.layer_exposure import VisibleLayers
from gradleak.risk.layer_groups import layer_groups
from gradleak.risk.layer_profile import LayerProfile
from gradleak.risk.layer_site import Groups, LayerScale, LayerSite


class LayerMeasure(Settings, ABC):
    """A number for each layer of a release, or each group of tensors, with what an audit has to know of the measure.

    Authors write `by_layer` and `layer_cost`; everything else has a default that asks for nothing and claims nothing.
    A profile has paired intervals where the measure says what every row or release contributes (`LayerProfile.rows`).

    Attributes:
        name: the name of the scores.
        citations: where the measure comes from.
        summary: one line for listings.
        leakier: which direction leaks.
        reads_told: whether it reads gradients of many rows and what is told of each (an attribute, labels, inputs). Shuffled
            attributes are then its null control.
        needs_values: whether what is told has to have values (an attribute, labels), which inputs have none of.
        most_values: how many values there may be, None for any number.
        needs_every_layer: whether layers can be compared only where all of them have a value.
    """

    name: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]]
    summary: ClassVar[str]
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_told: ClassVar[bool] = False
    needs_values: ClassVar[bool] = False
    most_values: ClassVar[int | None] = None
    needs_every_layer: ClassVar[bool] = False

    @abstractmethod
    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The profile over groups of tensors, called as the site's label.

        Args:
            site: objective, release and rows.
            groups: names of tensors.

        Raises:
            GradleakError: where the measure and the release do not fit together.
        """

    @abstractmethod
    def layer_cost(self, scale: LayerScale) -> float:
        """The cost of the profiles of one release in plain gradients of a row, roughly.

        Args:
            scale: how much there is to measure.
        """

    def by_visible(self, site: LayerSite, visible: Mapping[str, VisibleLayers]) -> LayerProfile:
        """The profile over sets of visible tensors: each as if nothing else were released.

        Args:
            site: objective, release and rows; of all tensors.
            visible: sets by name, at least one.
        """
        scores = {}
        for name, sets in visible.items():
            try:
                seen = site.seen(sets)
                groups = layer_groups(list(seen.objective.params), {name: sets.names})
                scores[name] = self.by_layer(seen, groups).scores[name]
            except GradleakError as refusal:
                scores[name] = self.without_layer(Outcome.UNSUPPORTED, str(refusal))
        groups = {name: sets.names for name, sets in visible.items()}
        return LayerProfile(measure=site.label, scores=scores, groups=groups)

    @property
    def layer_name(self) -> str:
        """The name of the scores of layers."""
        return self.name

    @property
    def variant(self) -> str:
        """Variant that tells this measure from others of its name, "" for nothing."""
        return ""

    @property
    def layer_parts(self) -> tuple[object, ...]:
        """Parts that have sources of their own: an attack, a classifier."""
        return ()

    @property
    def public_inputs(self) -> Tensor | None:
        """Public examples (n, ...) that the measure rests on; an audit sees to it that no private one is among them."""
        return None

    def obstacle(self, batch: Batch) -> str:
        """Reason why the measure is not defined for such examples, and what to do in a plan; "" where it is.

        Args:
            batch: examples of a release.
        """
        return ""

    def refusal(self, known: Knowledge) -> str:
        """Reason why nothing can be measured against an adversary with such knowledge, on any layer; "" where it can.

        Args:
            known: about the whole release.
        """
        return ""

    def without_layer(self, outcome: Outcome, note: str) -> Score:
        """The score of a layer that could not be measured.

        Args:
            outcome: why.
            note: why, in words.
        """
        return Score(
            name=self.layer_name,
            value=None,
            unit=self._unit,
            leakier=self.leakier,
            evidence=Evidence.ESTIMATE,
            outcome=outcome,
            note=note,
        )

    def refused(self, label: str, groups: Groups, reason: str) -> LayerProfile:
        """The profile of a measure that could not be taken: no group has a value, and the reason is told.

        Args:
            label: of the profile.
            groups: the tensors of every group.
            reason: as the measure gives it.
        """
        lost = self.without_layer(Outcome.UNSUPPORTED, reason)
        return LayerProfile(measure=label, scores=dict.fromkeys(groups, lost), groups=dict(groups))

    @property
    def _unit(self) -> str:
        """The unit of the scores."""
        return "nats"
