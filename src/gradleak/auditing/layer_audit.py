"""Where a release leaks: several measures of the same layers on the same rows, and with shuffled attributes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from gradleak.auditing.layer_rows import LayerRows, Told
from gradleak.core import Batch, HonestButCurious, Knowledge, Objective, Release, ThreatModel, describe
from gradleak.data import Population
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError, InputError, check_share, member
from gradleak.risk import (
    Consecutive,
    DrawnRows,
    LayerAdvice,
    LayerMeasure,
    LayerProfile,
    LayerScale,
    LayerSite,
    Partition,
    VisibleLayers,
    advise,
    layer_groups,
)
from gradleak.risk.layer_groups import Grouping


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerAudit:
    """Measures of where a release leaks, on rows of its own.

    Measures of an attribute (`LatentInformation`, `SubspaceDistance`) and of mutual information read one released gradient a
    row, or a batch of rows that share the attribute; batches share no row, and `LatentInformation` never splits those that
    share a user between fit and judgment. Closed-form measures and inversions read `releases` releases of `batch_size` rows
    each. Every measure gets the same groups of tensors: a `by` of its own counts for
    nothing, and a threat model of `OriginalInformation` neither.

    Closed-form measures other than `Sensitivity` are those of the release of a group alone (`VisibleLayers`). An error over
    the directions that a group sees cannot be compared with one over others, so a group that leaves directions unseen has no
    value there (not_identifiable; `over_range` in the details has the number); `LinearizedPosteriorError` and
    `BayesianCramerRao` have one, since they count what a prior says of the unseen.

    Attributes:
        rows: private examples of one population, with the attribute as their `sensitive` where it is asked for.
        measures: what is measured.
        told: what measures of an attribute, or of mutual information, are about.
        value: one value of it (its name or number), held against all others; None for all values as they are.
        count: rows that gradients are taken of, drawn at random, at most; None for all.
        batch_size: rows of a release.
        releases: how many releases closed-form measures are averaged over, and inversions run on; None for as many as there
            are, at most 32.
        by: `tensor`, `layer`, `Consecutive` or named groups of tensors and layers.
        visible: sets of visible tensors by name, measured as well: what if only these are seen.
        budget: the share of all parameters that the advice may protect.
        threat: what the adversary of an inversion knows.
        max_bytes: memory budget.

    Raises:
        InputError: for a number out of range, no measure, an attribute that the rows do not carry, or that a measure cannot
            take.
    """

    rows: Population | Batch = field(repr=False)
    measures: Sequence[LayerMeasure]
    told: Told | str = Told.SENSITIVE
    value: str | int | None = None
    count: int | None = 1000
    batch_size: int = 1
    releases: int | None = None
    by: Grouping = Partition.LAYER
    visible: Mapping[str, VisibleLayers] = field(default_factory=dict)
    budget: float = 0.1
    threat: ThreatModel = field(default_factory=HonestButCurious)
    max_bytes: int = 2**30

    def __post_init__(self) -> None:
        """Check numbers, kinds of measures, and that the rows carry what is asked for."""
        check_share("budget", self.budget)
        if not isinstance(self.threat, ThreatModel):
            raise InputError(f"threat: expected a threat model, got {self.threat!r}")
        if not isinstance(self.visible, Mapping) or not all(
            isinstance(sets, VisibleLayers) for sets in self.visible.values()
        ):
            raise InputError(f"visible: expected VisibleLayers by name, for instance of what_ifs, got {self.visible!r}")
        object.__setattr__(self, "told", member("told", Told, self.told))
        if not self.measures:
            raise InputError("measures: expected at least one measure of layers, got none")
        for measure in self.measures:
            if not isinstance(measure, LayerMeasure):
                raise InputError(
                    "measures: expected Sensitivity, another closed-form measure, LatentInformation, OriginalInformation, "
                    f"SubspaceDistance, MINE or NeighborInformation, got {type(measure).__name__}"
                )
        self._check_told()

    @cached_property
    def labels(self) -> dict[str, LayerMeasure]:
        """The measures by the name of their profiles; where two have one name, what tells them apart stands behind it."""
        bases = [measure.layer_name for measure in self.measures]
        found: dict[str, LayerMeasure] = {}
        for base, measure in zip(bases, self.measures, strict=True):
            several = bases.count(base) > 1 and measure.variant
            label = f"{base} ({measure.variant})" if several else base
            taken = [label, *(f"{label} ({number})" for number in range(2, len(bases) + 2))]
            found[next(free for free in taken if free not in found)] = measure
        return found

    def groups(self, objective: Objective) -> dict[str, tuple[str, ...]]:
        """The tensors of every group, in the order of the model.

        Args:
            objective: the client's loss.

        Raises:
            InputError: for names that the model does not share.
        """
        return layer_groups(list(objective.params), self.by)

    def profile(self, label: str, objective: Objective, release: Release, *, seed: int = 0) -> LayerProfile:
        """The profile of one measure over the groups of tensors.

        Args:
            label: a name of `labels`.
            objective: the client's loss at the parameters that an update is shared for.
            release: protocol and defenses.
            seed: of all random numbers besides those of the measure itself.

        Raises:
            GradleakError: where the measure and the release do not fit together.
        """
        site = self._site(label, objective, release, seed)
        return self.labels[label].by_layer(site, self.groups(objective))

    def null_profile(self, label: str, objective: Objective, release: Release, *, seed: int = 0) -> LayerProfile:
        """The profile of a measure that reads gradients, with the attribute (labels, inputs) of another row for each row.

        Args:
            label: a name of `labels`.
            objective: the client's loss.
            release: protocol and defenses.
            seed: as in `profile`.

        Raises:
            InputError: for a measure that reads no attribute.
            GradleakError: where the measure and the release do not fit together.
        """
        if not self.labels[label].reads_told:
            raise InputError(f"null_profile: {label} reads no attribute, so that there is none to shuffle")
        site = replace(self._site(label, objective, release, seed), shuffled=True)
        return self.labels[label].by_layer(site, self.groups(objective))

    def visible_profile(self, label: str, objective: Objective, release: Release, *, seed: int = 0) -> LayerProfile:
        """The profile of one measure over the sets of visible tensors: each as if nothing else were released.

        Args:
            label: a name of `labels`.
            objective: the client's loss, of all tensors.
            release: protocol and defenses.
            seed: as in `profile`.

        Raises:
            InputError: without a set.
            GradleakError: where the measure and the release do not fit together.
        """
        if not self.visible:
            raise InputError("visible: expected at least one set of visible tensors, got none")
        return self.labels[label].by_visible(self._site(label, objective, release, seed), self.visible)

    def refused(self, label: str, groups: Mapping[str, tuple[str, ...]], reason: str) -> LayerProfile:
        """The profile of a measure that could not be taken: no group has a value, and the reason is told.

        Args:
            label: a name of `labels`.
            groups: the tensors of every group.
            reason: as the measure gives it.
        """
        return self.labels[label].refused(label, groups, reason)

    def advice(self, profiles: Sequence[LayerProfile], objective: Objective) -> LayerAdvice:
        """Which layers to protect first, from all profiles of one release; see `advise`.

        A closed-form measure counts only where every group has a value: a group that sees fewer directions of the input is no
        more suspicious for that.

        Args:
            profiles: over the groups.
            objective: the client's loss.
        """
        chosen = [one for one in profiles if not self._partial(one)]
        sizes = {name: tensor.numel() for name, tensor in objective.params.items()}
        return advise(chosen or list(profiles), sizes, budget=self.budget)

    def check(self, objective: Objective, releases: Sequence[Release], *, seed: int = 0) -> None:
        """Refuse what cannot work, before anything is measured: a release of a few rows is made, no more.

        Args:
            objective: the client's loss.
            releases: of which one at least has to work; noise on a layer that the model does not have is refused in each.
            seed: of the draw of rows.

        Raises:
            GradleakError: saying what does not fit.
        """
        groups, drawn = self.groups(objective), self._source.drawn(seed)
        first = drawn.releases[0].to(objective.dtype)
        objective.check(first)
        # The row with the largest target shows a model with too few classes.
        largest = int(drawn.batch.targets.reshape(drawn.batch.size, -1).amax(dim=1).argmax())
        objective.check(drawn.batch.example(largest).to(objective.dtype))
        for name, sets in self.visible.items():
            try:
                sets.objective(objective)
            except InputError as error:
                raise InputError(f"visible {name!r}: {error}") from error
        if any(measure.reads_told for measure in self.measures):
            width = sum(objective.params[name].numel() for members in groups.values() for name in members)
            needed = len(drawn.target) * width * objective.dtype.itemsize
            if needed > self.max_bytes // 2:
                raise InputError(
                    f"the gradients of {len(drawn.target)} releases take {needed:,} bytes ({width:,} numbers each), more than "
                    f"half of {self.max_bytes:,}; take a smaller count, or groups of fewer tensors"
                )
        for label, measure in self.labels.items():
            obstacle = measure.obstacle(drawn.releases[0])
            if obstacle:
                raise InputError(f"{label}: {obstacle}")
            public = measure.public_inputs
            if public is not None and _shared(public, drawn.batch):
                raise InputError(
                    f"{type(measure).__name__}.public: expected examples that are not among the private rows; take them out"
                )
        for release in releases:
            # Means of measures never ask a defense of layers whether the model has them.
            release.noise(objective, examples=first.size)
        refusals = [self._refusal(objective, release, first) for release in releases]
        if refusals and all(refusals):
            raise InputError(refusals[0])

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of a row."""
        rows = self.rows.name if isinstance(self.rows, Population) else "a batch"
        by = {"use": "Consecutive", "count": self.by.count} if isinstance(self.by, Consecutive) else describe(self.by)
        return {
            "rows": f"{rows}, {self.rows.size} rows",
            "measures": {label: describe(measure) for label, measure in self.labels.items()},
            "told": str(self.told),
            "value": self.value,
            "count": self.count,
            "batch_size": self.batch_size,
            "releases": self.releases,
            "by": by,
            "visible": {name: list(sets.names) for name, sets in self.visible.items()},
            "budget": self.budget,
            "threat": describe(self.threat),
        }

    def words(self, label: str) -> dict[str, str]:
        """What a reader of a profile has to know: its grouping, what it is about, and how it was measured.

        Args:
            label: a name of `labels`.
        """
        if not self.labels[label].reads_told:
            told = f"{_counted(self._source.many, 'release')} of {_counted(self.batch_size, 'row')}"
            return {"grouping": self._grouping, "about": "original", "settings": told}
        each = "row" if self.batch_size == 1 else f"batch of {self.batch_size} rows that share it"
        told = f"{min(self.count or self.rows.size, self.rows.size)} rows, one gradient a {each}"
        about = "original" if self.told is Told.INPUTS else "latent"
        return {
            "grouping": self._grouping,
            "about": about,
            "told": str(self.told),
            "attribute": self._source.attribute,
            "settings": told,
        }

    def estimate(self, objective: Objective, *, null: bool) -> float:
        """The expected cost of one release in plain gradients of a row, roughly.

        Args:
            objective: the client's loss.
            null: whether gradients are read a second time with shuffled attributes.
        """
        scale = LayerScale(
            rows=min(self.count or self.rows.size, self.rows.size),
            releases=self._source.many,
            unknowns=self.batch_size * int(self.rows.inputs[0].numel()),
            groups=len(self.groups(objective)),
            sets=len(self.visible),
            null=null,
            known=lambda: self._known(objective, Release(FedSGD()), self._source.drawn(0)),
        )
        return sum(measure.layer_cost(scale) for measure in self.measures)

    @cached_property
    def _source(self) -> LayerRows:
        return LayerRows(
            rows=self.rows,
            told=Told(self.told),
            value=self.value,
            count=self.count,
            batch_size=self.batch_size,
            releases=self.releases,
            asked=any(measure.reads_told for measure in self.measures),
        )

    @property
    def _grouping(self) -> str:
        if isinstance(self.by, Consecutive):
            return f"sets of {self.by.count} consecutive layers"
        return "named groups" if isinstance(self.by, Mapping) else f"by {self.by}"

    def _check_told(self) -> None:
        """Refuse measures that cannot be about what is told."""
        source = self._source
        of_values = [measure for measure in self.measures if measure.needs_values]
        if self.told is Told.INPUTS and of_values:
            raise InputError(
                f"told: {type(of_values[0]).__name__} compares values of an attribute or label, and inputs have none; MINE and "
                "NeighborInformation alone are about inputs"
            )
        limited = [measure for measure in of_values if measure.most_values is not None]
        values = len(source.target().unique()) if limited else 0
        for measure in limited:
            if values > (measure.most_values or 0):
                raise InputError(
                    f"{type(measure).__name__} holds two groups against each other, and there are {values} values; name the "
                    f"one that is held against all others: value = {source.names[0]!r}, for instance"
                )

    def _site(self, label: str, objective: Objective, release: Release, seed: int) -> LayerSite:
        """What the measure of this name reads of a release."""
        return LayerSite(
            label=label,
            objective=objective,
            release=release,
            rows=self._source.drawn(seed),
            threat=self.threat,
            seed=seed,
            max_bytes=self.max_bytes,
        )

    def _known(self, objective: Objective, release: Release, drawn: DrawnRows) -> Knowledge:
        """What the adversary of a first release knows."""
        return self.threat.disclose(objective, release, drawn.releases[0])

    def _partial(self, profile: LayerProfile) -> bool:
        """Whether a measure that needs every group has no value for some."""
        lost = any(score.value is None for score in profile.scores.values())
        return lost and self.labels[profile.measure].needs_every_layer

    def _refusal(self, objective: Objective, release: Release, batch: Batch) -> str:
        """Why nothing can be measured on a release, or no inversion of the audit run on it; "" where it can."""
        try:
            release.mean(objective, objective.params, batch)
        except GradleakError as error:
            return str(error)
        known = self.threat.disclose(objective, release, batch)
        for label, measure in self.labels.items():
            reason = measure.refusal(known)
            if reason:
                return f"{label}: {reason}"
        return ""


def _shared(public: Tensor, private: Batch) -> bool:
    from gradleak.auditing.public_data import held_privately

    return bool(held_privately(public, [private]).any())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


__all__ = ["LayerAudit"]
