"""Rank of the linear equations that a release holds of each layer's input: what can be read without a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gradleak.attacks.inversion.peel import layer_ranks, refuse_other_than_gradient
from gradleak.core import Batch, Domain, Exposure
from gradleak.operators import GradientJacobian
from gradleak.results import ZHU_2021, Citation, Count, Evidence, Leakier, Outcome, Score, UnsupportedError
from gradleak.risk.measure import Measure

_TOLD = ("unknowns", "equations", "rank", "null", "condition", "active")


@dataclass(frozen=True, kw_only=True)
class PeelRank(Measure):
    """The smallest share of a layer's input that linear equations of the gradient determine, from the head down to the example.

    Where a network is a chain of layers, the gradient of a weight, Σ_p δ[o, p] x[i, p + k], and the layer's known outputs,
    W x + b = a where the unit is active, are linear in the layer's input x, once what lies above is known. With n_l inputs
    and rank r_l of these equations in layer l the value is min r_l / n_l. At 1 every layer's input follows from those above
    it, and so does the example, without a search: `Peel` is the attack that does it. Below 1, n_l − r_l directions of some
    layer are open. Scores by layer follow the value, each r_l / n_l, with rank, open directions and condition in its note.

    If the layers above the first one have full rank, its open directions are the null space of A = ∂g/∂x for fixed gates: no
    local solver can tell what lies there without a prior.

    Assumptions: exact, for the plain gradient in double precision and with the gates of the truth. Noise of the release is not
    looked at: it makes directions of large condition useless, and units near zero a guess. Directions of a condition beyond
    3 · 10⁶ count as open. One example; releases whose mean is the gradient; networks without skip connections that `Peel` takes.
    Elsewhere there is no value (unsupported).

    Args:
        max_unknowns: largest layer whose equations are written as a matrix.

    Cost: one plain gradient, and an eigendecomposition of a matrix (n_l, n_l) for each layer: 4 s for a digit on the LeNet.

    Source: Zhu and Blaschko 2021 (R-GAP), whose rank analysis counts equations by layer; here their rank is computed.
    """

    name: ClassVar[str] = "peel_rank"
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2021,)
    summary: ClassVar[str] = "smallest share of a layer's input that linear equations determine, from the head down"
    leakier: ClassVar[Leakier] = Leakier.HIGHER
    reads_derivative: ClassVar[bool] = False

    max_unknowns: Count = 4096

    @property
    def assumed_noise(self) -> str:
        """Its own, in place of that of the release."""
        return "no noise"

    @property
    def _unit(self) -> str:
        return "1"

    def extra_cost(self, batch: Batch) -> float:
        """The gradient whose equations are looked at."""
        return 1.0

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        return self._measures(exposure, delta, operator)[0]

    def _measures(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> list[Score]:
        """The smallest share, and that of each layer, the last one first."""
        batch = exposure.batch
        if batch.size != 1:
            return [self._without_value(Outcome.UNSUPPORTED, f"equations are those of one example, got {batch.size}")]
        try:
            refuse_other_than_gradient(exposure.release, exposure.objective)
            domain = batch.domain or Domain.guess(batch.inputs)
            found = layer_ranks(exposure.objective, batch, domain, max_unknowns=self.max_unknowns)
        except UnsupportedError as refusal:
            return [self._without_value(Outcome.UNSUPPORTED, str(refusal))]
        layers = [{key: layer[key] for key in ("layer", *_TOLD)} for layer in found.layers]
        if not layers:
            return [self._without_value(Outcome.NO_SIGNAL, found.stopped)]
        scores = [self._of_layer(layer) for layer in layers]
        narrow = min(layers, key=_share)
        value, note = _share(narrow), f"{narrow['layer']}: {_words(narrow)}"
        if found.stopped:
            value, note = 0.0, found.stopped
        whole = self._score(
            value, Evidence.EXACT, note=note, details={"narrowest": narrow["layer"], "inputs_of": layers}
        )
        return [whole, *scores]

    def _of_layer(self, layer: Mapping[str, Any]) -> Score:
        told = {key: layer[key] for key in _TOLD}
        return self._score(
            _share(layer), Evidence.EXACT, note=_words(layer), details=told, about={"layer": layer["layer"]}
        )


def _share(layer: Mapping[str, Any]) -> float:
    return float(layer["rank"] / layer["unknowns"])


def _words(layer: Mapping[str, Any]) -> str:
    condition = "" if layer["condition"] is None else f", condition {layer['condition']:.2g}"
    active = "" if layer["active"] is None else f", {layer['active']:.0%} of the units behind it active"
    return (
        f"{layer['equations']} equations determine {layer['rank']} of {layer['unknowns']} directions of its input"
        f"{condition}{active}"
    )
