"""Where a release leaks: several measures of the same layers on the same rows, and with shuffled attributes beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gradleak.auditing.layer_averages import averaged, without_value
from gradleak.auditing.layer_rows import Drawn, LayerRows, Told
from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Objective,
    Release,
    ThreatModel,
    derive_generator,
    derive_seed,
    describe,
)
from gradleak.data import Population
from gradleak.operators import check_derivative
from gradleak.results import GradleakError, InputError, Outcome, check_share, member
from gradleak.risk import (
    Consecutive,
    LatentInformation,
    LayerAdvice,
    LayerMeasure,
    LayerProfile,
    Measure,
    OriginalInformation,
    Partition,
    Sensitivity,
    SettingMeasure,
    SubspaceDistance,
    VisibleLayers,
    advise,
    layer_groups,
)
from gradleak.risk.layer_groups import Grouping
from gradleak.training import layer_gradients

OfLayers = Measure | SettingMeasure | LayerMeasure | LatentInformation | OriginalInformation


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
    measures: Sequence[OfLayers]
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
            if not isinstance(measure, OfLayers):
                raise InputError(
                    "measures: expected Sensitivity, another closed-form measure, LatentInformation, OriginalInformation, "
                    f"SubspaceDistance, MINE or NeighborInformation, got {type(measure).__name__}"
                )
        self._check_told()

    @cached_property
    def labels(self) -> dict[str, OfLayers]:
        """The measures by the name of their profiles; where two have one name, what tells them apart stands behind it."""
        bases = [base_name(measure) for measure in self.measures]
        found: dict[str, OfLayers] = {}
        for base, measure in zip(bases, self.measures, strict=True):
            variant = _variant(measure)
            label = base if bases.count(base) == 1 or not variant else f"{base} ({variant})"
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
        return self._profile(label, objective, release, self._source.drawn(seed), seed, shuffled=False)

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
        if not reads_gradients(self.labels[label]):
            raise InputError(f"null_profile: {label} reads no attribute, so that there is none to shuffle")
        return self._profile(label, objective, release, self._source.drawn(seed), seed, shuffled=True)

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
        measure, drawn = self.labels[label], self._source.drawn(seed)
        if isinstance(measure, OriginalInformation):
            return self._inverted(label, measure, self._exposures(objective, release, drawn), dict(self.visible))
        scores = {}
        for name, sets in self.visible.items():
            hidden = replace(self, by={name: sets.names}, visible={})
            try:
                whole = sets.objective(objective), sets.release(objective, release)
                scores[name] = hidden._profile(label, *whole, drawn, seed, shuffled=False).scores[name]
            except GradleakError as refusal:
                scores[name] = without_value(measure, Outcome.UNSUPPORTED, str(refusal))
        groups = {name: sets.names for name, sets in self.visible.items()}
        return LayerProfile(measure=label, scores=scores, groups=groups)

    def refused(self, label: str, groups: Mapping[str, tuple[str, ...]], reason: str) -> LayerProfile:
        """The profile of a measure that could not be taken: no group has a value, and the reason is told.

        Args:
            label: a name of `labels`.
            groups: the tensors of every group.
            reason: as the measure gives it.
        """
        lost = without_value(self.labels[label], Outcome.UNSUPPORTED, reason)
        return LayerProfile(measure=label, scores=dict.fromkeys(groups, lost), groups=dict(groups))

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
        if any(reads_gradients(measure) for measure in self.measures):
            width = sum(objective.params[name].numel() for members in groups.values() for name in members)
            needed = len(drawn.target) * width * objective.dtype.itemsize
            if needed > self.max_bytes // 2:
                raise InputError(
                    f"the gradients of {len(drawn.target)} releases take {needed:,} bytes ({width:,} numbers each), more than "
                    f"half of {self.max_bytes:,}; take a smaller count, or groups of fewer tensors"
                )
        for label, measure in self.labels.items():
            if isinstance(measure, OriginalInformation):
                obstacle = measure.error.obstacle(drawn.releases[0])
                if obstacle:
                    raise InputError(f"{label}: {obstacle}; in a plan: error = {{ use = 'NormalizedError' }}")
            public = measure.public_inputs if isinstance(measure, SettingMeasure) else None
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
        measure = self.labels[label]
        if not reads_gradients(measure):
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
        total, entries = 0.0, self.batch_size * int(self.rows.inputs[0].numel())
        groups, sets = len(self.groups(objective)), len(self.visible)
        for measure in self.measures:
            if reads_gradients(measure):
                total += min(self.count or self.rows.size, self.rows.size) * (1 + null + sets)
            elif isinstance(measure, OriginalInformation):
                exposures = self._exposures(objective, Release(_plain()), self._source.drawn(0))
                known = self.threat.disclose(objective, exposures[0].release, exposures[0].batch)
                total += (groups + sets) * self._source.many * measure.attack.estimate(known)
            elif isinstance(measure, SettingMeasure):
                total += (groups + sets) * measure.estimate(entries)
            else:
                total += self._source.many * entries * ((1 if isinstance(measure, Sensitivity) else groups) + sets)
        return total

    @cached_property
    def _source(self) -> LayerRows:
        return LayerRows(
            rows=self.rows,
            told=Told(self.told),
            value=self.value,
            count=self.count,
            batch_size=self.batch_size,
            releases=self.releases,
            asked=any(reads_gradients(measure) for measure in self.measures),
        )

    @property
    def _grouping(self) -> str:
        if isinstance(self.by, Consecutive):
            return f"sets of {self.by.count} consecutive layers"
        return "named groups" if isinstance(self.by, Mapping) else f"by {self.by}"

    def _check_told(self) -> None:
        """Refuse measures that cannot be about what is told."""
        source = self._source
        of_values = [one for one in self.measures if isinstance(one, LatentInformation | SubspaceDistance)]
        if self.told is Told.INPUTS and of_values:
            raise InputError(
                f"told: {type(of_values[0]).__name__} compares values of an attribute or label, and inputs have none; MINE and "
                "NeighborInformation alone are about inputs"
            )
        if any(isinstance(measure, SubspaceDistance) for measure in of_values):
            values = len(source.target().unique())
            if values > 2:
                raise InputError(
                    f"SubspaceDistance holds two groups against each other, and there are {values} values; name the one that "
                    f"is held against all others: value = {source.names[0]!r}, for instance"
                )

    def _profile(
        self, label: str, objective: Objective, release: Release, drawn: Drawn, seed: int, *, shuffled: bool
    ) -> LayerProfile:
        measure, groups = self.labels[label], self.groups(objective)
        if isinstance(measure, OriginalInformation):
            every = {name: VisibleLayers(names=members) for name, members in groups.items()}
            return self._inverted(label, measure, self._exposures(objective, release, drawn), every)
        if isinstance(measure, LayerMeasure | LatentInformation):
            found = layer_gradients(
                objective,
                drawn.batch,
                release=release,
                generator=derive_generator(seed, "gradients", device=objective.device),
                batches=drawn.batches,
                groups=groups,
                max_bytes=self.max_bytes,
            )
            order = torch.arange(len(drawn.target))
            if shuffled:
                order = torch.randperm(len(order), generator=derive_generator(seed, "shuffled", label))
            target = drawn.target[order]
            if isinstance(measure, LatentInformation):
                fitted = replace(measure, by=None)(found.matrices, target, clusters=drawn.clusters)
                return replace(fitted, measure=label, groups=groups)
            scores = measure(found.matrices, target, generator=derive_generator(seed, "measure", label))
            return LayerProfile(measure=label, scores=scores, groups=groups)
        if isinstance(measure, SettingMeasure):
            domain = drawn.batch.domain
            scores = {}
            for name, members in groups.items():
                sets = VisibleLayers(names=members)
                scores[name] = measure(
                    sets.objective(objective),
                    sets.release(objective, release),
                    batch_size=self.batch_size,
                    domain=domain,
                    generator=derive_generator(seed, "measure", label),
                )
            return LayerProfile(measure=label, scores=scores, groups=groups)
        exposures = self._exposures(objective, release, drawn)
        wrong = ""
        if measure.reads_derivative:
            found_check = check_derivative(exposures[0], generator=derive_generator(seed, "derivative"))
            wrong = found_check.note if found_check.outcome is Outcome.INCONSISTENT else ""
        if wrong:
            return self.refused(label, groups, wrong)
        return averaged(
            measure, exposures, groups, label=label, seed=derive_seed(seed, "noise"), max_bytes=self.max_bytes
        )

    def _inverted(
        self,
        label: str,
        measure: OriginalInformation,
        exposures: Sequence[Exposure],
        sets: Mapping[str, VisibleLayers],
    ) -> LayerProfile:
        return replace(replace(measure, threat_model=self.threat)(exposures, visible=sets), measure=label)

    def _exposures(self, objective: Objective, release: Release, drawn: Drawn) -> list[Exposure]:
        return [Exposure(objective, batch, release) for batch in drawn.releases]

    def _partial(self, profile: LayerProfile) -> bool:
        """Whether a closed-form measure has no value for some group."""
        measure = self.labels[profile.measure]
        closed = isinstance(measure, Measure | SettingMeasure) and not isinstance(measure, Sensitivity)
        return closed and any(score.value is None for score in profile.scores.values())

    def _refusal(self, objective: Objective, release: Release, batch: Batch) -> str:
        """Why nothing can be measured on a release, or no inversion of the audit run on it; "" where it can."""
        try:
            release.mean(objective, objective.params, batch)
        except GradleakError as error:
            return str(error)
        known = self.threat.disclose(objective, release, batch)
        for label, measure in self.labels.items():
            if isinstance(measure, OriginalInformation):
                reason = measure.attack.refusal(known)
                if reason:
                    return f"{label}: {type(measure.attack).__name__} cannot run, whatever the layers: {reason}"
        return ""


def reads_gradients(measure: OfLayers) -> bool:
    """Whether a measure reads gradients of many rows, and what is told of each."""
    return isinstance(measure, LayerMeasure | LatentInformation)


def base_name(measure: OfLayers) -> str:
    """The name of the scores of a measure."""
    return "mean_sensitivity" if isinstance(measure, Sensitivity) else measure.name


def _variant(measure: OfLayers) -> str:
    if isinstance(measure, Sensitivity):
        return str(measure.norm)
    if isinstance(measure, LatentInformation):
        return type(measure.classifier).__name__
    if isinstance(measure, OriginalInformation):
        return type(measure.attack).__name__
    return str(getattr(measure, "metric", getattr(measure, "unit", "")))


def _plain() -> Any:
    from gradleak.protocols import FedSGD

    return FedSGD()


def _shared(public: Tensor, private: Batch) -> bool:
    from gradleak.audits.base.public_data import held_privately

    return bool(held_privately(public, [private]).any())


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


__all__ = ["LayerAudit", "OfLayers", "base_name", "reads_gradients"]
