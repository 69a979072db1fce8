"""Findings of measures of layers: a score for every layer of a release, and which layers to protect first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from gradleak.results.finding import Finding, Part
from gradleak.results.score import Score

# The mark of a score: the layer, set of layers or set of visible tensors that it is of.
LAYER = "layer"
# The grouping of scores of visible tensors.
VISIBLE = "what is visible"


class Layer(Part):
    """A layer, a set of layers, a named group, or a set of visible tensors.

    Attributes:
        name: of it.
        tensors: its tensors.
        rival: whether it cannot be told from the leakiest one, by the same rows of both; None without a value.
    """

    name: str
    tensors: tuple[str, ...] = ()
    rival: bool | None = None


class AdvisedLayer(Part):
    """Advice on one layer.

    Attributes:
        name: of it.
        rank: 1 for the one to protect first.
        tensors: its tensors.
        entries: how many parameters they hold.
        share: of all parameters of the model.
        first_in: measures that put it first.
        rival_in: those that cannot tell it from their first one.
        unknown_in: those that have no value for it, though they have one for another layer.
        chosen: whether it is protected within the budget.
        why: one sentence.
    """

    name: str
    rank: int
    tensors: tuple[str, ...] = ()
    entries: int = 0
    share: float = 0.0
    first_in: tuple[str, ...] = ()
    rival_in: tuple[str, ...] = ()
    unknown_in: tuple[str, ...] = ()
    chosen: bool = False
    why: str = ""


class Advice(Part):
    """Layers to protect first.

    Attributes:
        layers: the one to protect first in front.
        budget: the share of all parameters that may be protected.
        entries: parameters of the model.
        profiles: the measures that it rests on.
        silent: measures without any value.
        note: what to know before acting, or "".
    """

    layers: tuple[AdvisedLayer, ...]
    budget: float
    entries: int = 0
    profiles: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    note: str = ""


class LayersFinding(Finding):
    """One measure of all layers of one release, a control of it, or the advice that follows from all measures.

    Scores are marked by `layer`. Those of a control are of the same layers, with the attributes of other rows.

    Attributes:
        measure: its name, which tells it from others of one kind; "" for advice.
        grouping: in words: "by layer".
        about: "original" for what the inputs are, "latent" for an attribute of theirs.
        told: what is told of the rows: "sensitive", "label", "inputs"; "" where nothing is asked.
        attribute: its name.
        settings: on what it was measured, in words.
        data_kind: of the rows: "image", "tabular"; None where it is not stated.
        assumed_noise: the noise that its numbers are for, whatever that of the release is; "" where that one counts.
        layers: in the order of the model, or of the plan for visible tensors.
        advice: which layers to protect first.
    """

    kind: Literal["layers"] = "layers"
    measure: str = ""
    grouping: str = ""
    about: str = ""
    told: str = ""
    attribute: str = ""
    settings: str = ""
    data_kind: str | None = None
    assumed_noise: str = ""
    layers: tuple[Layer, ...] = ()
    advice: Advice | None = None

    @property
    def by_layer(self) -> Mapping[str, Score]:
        """The scores by layer, in the order of the layers."""
        return {str(score.about[LAYER]): score for score in self.scores if LAYER in score.about}
