"""The section `[layers.NAME]` of a plan: where the release of every scenario leaks, by several measures of the same rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from gradleak.audits.base import ALL_OR_NAMES, TEXT, TEXTS, Audit, Reader, Schema, Site, Task, Writer
from gradleak.audits.base.rows import few, held, held_privately
from gradleak.audits.layers.measured import Measured, finding_of_advice, profile_of
from gradleak.audits.layers.plan_file import settings_of
from gradleak.audits.layers.rows import LayerRows, Told
from gradleak.audits.layers.verdict import judge_layers
from gradleak.core import Batch, Knowledge, Objective, Release, derive_seed, describe
from gradleak.data import Population
from gradleak.protocols import FedSGD
from gradleak.results import (
    Count,
    GradleakError,
    Grounds,
    InputError,
    Outcome,
    PlanError,
    Share,
    Status,
    Verdict,
)
from gradleak.results.findings.layers import VISIBLE, LayersFinding
from gradleak.risk import (
    Consecutive,
    LayerAdvice,
    LayerMeasure,
    LayerProfile,
    LayerScale,
    Partition,
    VisibleLayers,
    advise,
    layer_groups,
)
from gradleak.risk.layer_exposure import Grouping

NO_ADVICE = "no layer has a value by any measure, so that none can be advised; that is no evidence of safety"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayersAudit(Audit[LayersFinding]):
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

    Raises:
        InputError: for a number out of range, no measure, an attribute that the rows do not carry, or that a measure cannot
            take.
    """

    refused_with: ClassVar[type[GradleakError]] = InputError
    kind: ClassVar[str] = "layers"
    finding: ClassVar[type[LayersFinding]] = LayersFinding
    noun: ClassVar[str] = "layer audit"

    rows: Population | Batch = field(repr=False)
    measures: Sequence[LayerMeasure]
    told: Told | str = Told.SENSITIVE
    value: str | int | None = None
    count: Count | None = 1000
    batch_size: Count = 1
    releases: Count | None = None
    by: Grouping = Partition.LAYER
    visible: Mapping[str, VisibleLayers] = field(default_factory=dict)
    budget: Share = 0.1

    def __post_init__(self) -> None:
        """Check that something is measured, and that the rows carry what is asked for."""
        super().__post_init__()
        if not self.measures:
            raise InputError("measures: expected at least one measure of layers, got none")
        self._check_told()

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the tables `[layers.NAME]`."""
        groups = writer.named(TEXTS)
        consecutive = writer.table({"consecutive": writer.value(Count)}, required=("consecutive",))
        by: Schema = {"anyOf": [writer.value(Partition), consecutive, groups]}
        hidden = writer.table({"hide": TEXTS}, required=("hide",))
        visible: Schema = {"anyOf": [{"const": "all"}, TEXTS, writer.named({"anyOf": [TEXTS, hidden]})]}
        measures = writer.choice("measures", "layer measures", without=("by", "threat_model"))
        return {
            "layers": writer.named(
                writer.table(
                    {
                        "data": writer.choice("datasets"),
                        "attribute": TEXT,
                        "value": {"type": ["string", "integer"]},
                        "measures": {"type": "array", "minItems": 1, "items": measures},
                        **{number: writer.value(Count) for number in ("count", "batch_size", "releases")},
                        "by": by,
                        "visible": visible,
                        "budget": writer.value(Share),
                        "scenarios": ALL_OR_NAMES,
                        "target": TEXT,
                        "keep_attribute": writer.value(bool),
                        "without": TEXTS,
                    },
                    required=("measures",),
                )
            )
        }

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One audit a table, of the rows of its own or of the plan."""
        for name, table in reader.table(plan.get(cls.kind, {}), cls.kind).items():
            where = f"{cls.kind}.{name}"
            settings = settings_of(reader.table(table, where), reader, where)
            try:
                yield cls(name=name, **settings)
            except PlanError:
                raise
            except GradleakError as error:
                raise PlanError(f"{where}: {error}") from error

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

    @cached_property
    def source(self) -> LayerRows:
        """The rows, how they are cut into releases, and what is told of them."""
        return LayerRows(
            rows=self.rows,
            told=Told(self.told),
            value=self.value,
            count=self.count,
            batch_size=self.batch_size,
            releases=self.releases,
            asked=any(measure.reads_told for measure in self.measures),
        )

    def groups(self, objective: Objective) -> dict[str, tuple[str, ...]]:
        """The tensors of every group, in the order of the model.

        Args:
            objective: the client's loss.

        Raises:
            InputError: for names that the model does not share.
        """
        return layer_groups(list(objective.params), self.by)

    def fit(self, site: Site) -> None:
        """Refuse groups of tensors that the model does not have."""
        try:
            self.groups(site.objective)
        except GradleakError as error:
            raise PlanError(f"layers.{self.name}: {error}") from error

    def check(self, site: Site) -> None:
        """Refuse rows, groups, measures and settings that cannot be measured; a few rows are released, no more.

        What a scenario alone cannot take is refused there, when its turn comes.

        Raises:
            PlanError: with the reason.
        """
        releases = [scenario.release for scenario in site.scenarios if self.against(scenario.name)]
        try:
            self.rehearse(site, releases, seed=self._seed(site))
        except GradleakError as refusal:
            raise PlanError(f"layers.{self.name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(f"layers.{self.name}: a first release raised {type(error).__name__}: {reason}") from error

    def rehearse(self, site: Site, releases: Sequence[Release], *, seed: int) -> None:
        """Refuse what cannot work, before anything is measured: a release of a few rows is made, no more.

        Args:
            site: model, threat model and memory budget.
            releases: of which one at least has to work; noise on a layer that the model does not have is refused in each.
            seed: of the draw of rows.

        Raises:
            GradleakError: saying what does not fit.
        """
        objective = site.objective
        groups, drawn = self.groups(objective), self.source.drawn(seed)
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
            if needed > site.max_bytes // 2:
                raise InputError(
                    f"the gradients of {len(drawn.target)} releases take {needed:,} bytes ({width:,} numbers each), more than "
                    f"half of {site.max_bytes:,}; take a smaller count, or groups of fewer tensors"
                )
        for label, measure in self.labels.items():
            obstacle = measure.obstacle(drawn.releases[0])
            if obstacle:
                raise InputError(f"{label}: {obstacle}")
            public = measure.public_inputs
            if public is not None and bool(held_privately(public, [drawn.batch]).any()):
                raise InputError(
                    f"{type(measure).__name__}.public: expected examples that are not among the private rows; take them out"
                )
        for release in releases:
            # Means of measures never ask a defense of layers whether the model has them.
            release.noise(objective, examples=first.size)
        refusals = [self._refusal(site, release, first) for release in releases]
        if refusals and all(refusals):
            raise InputError(refusals[0])

    def tasks(self, site: Site) -> Iterable[Task[LayersFinding]]:
        """One measure of one scenario at a time."""
        scale = self._scale(site)
        for scenario in site.scenarios:
            if self.against(scenario.name):
                for work in self.work(site, scenario.name, seed=self._seed(site)):
                    label = work.blank.measure
                    yield Task(
                        name=f"layers/{scenario.name}/{self.name}/{label}",
                        turn=1,
                        run=work,
                        blank=work.blank,
                        headline=f"{self.name}: {scenario.name}, {label}",
                        cost=work.measure.layer_cost(scale),
                    )

    def work(self, site: Site, scenario: str, *, seed: int) -> list[Measured]:
        """Every measure, of the release of one scenario.

        Args:
            site: of the plan.
            scenario: its name.
            seed: of everything that is drawn; the same for every scenario, so that the rows are too.
        """
        groups, scale = self.groups(site.objective), self._scale(site)
        return [
            Measured(
                measure=measure,
                source=self.source,
                groups=groups,
                apart=measure.apart(scale),
                shuffled=site.controls.negative and measure.reads_told,
                visible=self.visible,
                seed=seed,
                blank=self._blank(label, scenario),
            )
            for label, measure in self.labels.items()
        ]

    def conclude(self, site: Site, found: Sequence[LayersFinding]) -> list[LayersFinding]:
        """Layers to protect first in every scenario; a measure that failed its control has no say."""
        broken = [
            (one.scenario, one.measure) for one in found if one.control is not None and one.control.passed is False
        ]
        usable = [
            one
            for one in found
            if one.control is None and one.status is Status.DONE and one.scores and one.grouping != VISIBLE
            and (one.scenario, one.measure) not in broken
        ]  # fmt: skip
        advice: list[LayersFinding] = []
        for scenario in site.scenarios:
            mine = [profile_of(one) for one in usable if one.scenario == scenario.name]
            empty = LayersFinding(item=f"{scenario.name}/{self.name}/advice", audit=self.name, scenario=scenario.name)
            if mine:
                advice.append(finding_of_advice(self.advice(mine, site.objective, scenario.release), empty))
            elif self.against(scenario.name):
                advice.append(empty.but(status=Status.REFUSED, outcome=Outcome.UNSUPPORTED, note=NO_ADVICE))
        return advice

    def advice(self, profiles: Sequence[LayerProfile], objective: Objective, release: Release) -> LayerAdvice:
        """Layers to protect first, from all profiles of one release; see `advise`.

        A closed-form measure counts only where every group has a value: a group that sees fewer directions of the input is no
        more suspicious for that. Of a release with noise a measure counts only if it sees the noise: others would have a
        layer protected again that is protected already.

        Args:
            profiles: over the groups.
            objective: the client's loss.
            release: of which the profiles are.
        """
        whole = [one for one in profiles if not self._partial(one)] or list(profiles)
        noisy = release.noise(objective, examples=self.batch_size) is not None
        blind = [one.measure for one in whole if noisy and self.labels[one.measure].assumed_noise]
        seeing = [one for one in whole if one.measure not in blind]
        sizes = {name: tensor.numel() for name, tensor in objective.params.items()}
        found = advise(seeing or whole, sizes, budget=self.budget)
        if not blind:
            return found
        told = "without a say, since they do not see" if seeing else "nothing but measures that do not see"
        note = f"{told} the noise of this release: {', '.join(blind)}"
        return replace(found, note="; ".join(part for part in (note, found.note) if part))

    @classmethod
    def judge(cls, found: Sequence[LayersFinding], grounds: Grounds) -> Iterable[Verdict]:
        """A verdict on the layers of every scenario; see `judge_layers`."""
        return judge_layers(found, grounds)

    def parts(self) -> Iterable[object]:
        """The measures; the rows are private."""
        return list(self.measures)

    def private(self) -> Iterable[object]:
        """The rows."""
        return [held(self.rows)]

    def probed(self) -> Batch:
        """The first rows."""
        return few(self.rows)

    def resolved(self) -> dict[str, Any]:
        """All that determines it, JSON-ready, without a value of a row."""
        rows = self.rows.name if isinstance(self.rows, Population) else "a batch"
        by = {"use": "Consecutive", "count": self.by.count} if isinstance(self.by, Consecutive) else describe(self.by)
        return {
            "rows": f"{rows}, {self.rows.size} rows",
            "measures": {label: describe(measure) for label, measure in self.labels.items()},
            "told": str(self.told),
            **{name: getattr(self, name) for name in ("value", "count", "batch_size", "releases", "budget")},
            "by": by,
            "visible": {name: list(sets.names) for name, sets in self.visible.items()},
            "scenarios": self.scenarios and list(self.scenarios),
        }

    def _seed(self, site: Site) -> int:
        return derive_seed(site.seed, "layers", self.name)

    def _blank(self, label: str, scenario: str) -> LayersFinding:
        """The finding of a measure without a result: what a reader has to know of its profile."""
        domain = self.rows.domain
        empty = LayersFinding(
            item=f"{scenario}/{self.name}/{label}",
            audit=self.name,
            scenario=scenario,
            measure=label,
            grouping=self._grouping,
            about="original",
            settings=f"{_counted(self.source.many, 'release')} of {_counted(self.batch_size, 'row')}",
            data_kind=None if domain is None else str(domain.kind),
            assumed_noise=self.labels[label].assumed_noise,
        )
        if not self.labels[label].reads_told:
            return empty
        each = "row" if self.batch_size == 1 else f"batch of {self.batch_size} rows that share it"
        return empty.but(
            about="original" if self.told is Told.INPUTS else "latent",
            told=str(self.told),
            attribute=self.source.attribute,
            settings=f"{min(self.count or self.rows.size, self.rows.size)} rows, one gradient a {each}",
        )

    def _scale(self, site: Site) -> LayerScale:
        """Amount of work in one scenario, roughly."""
        return LayerScale(
            rows=min(self.count or self.rows.size, self.rows.size),
            releases=self.source.many,
            unknowns=self.batch_size * int(self.rows.inputs[0].numel()),
            groups=len(self.groups(site.objective)),
            sets=len(self.visible),
            null=site.controls.negative,
            entries=site.objective.size,
            known=lambda: _known(site, Release(FedSGD()), self.source.drawn(0).releases[0]),
        )

    @property
    def _grouping(self) -> str:
        if isinstance(self.by, Consecutive):
            return f"sets of {self.by.count} consecutive layers"
        return "named groups" if isinstance(self.by, Mapping) else f"by {self.by}"

    def _check_told(self) -> None:
        """Refuse measures that cannot be about what is told."""
        source = self.source
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

    def _partial(self, profile: LayerProfile) -> bool:
        """True if a measure that needs every group has no value for some."""
        lost = any(score.value is None for score in profile.scores.values())
        return lost and self.labels[profile.measure].needs_every_layer

    def _refusal(self, site: Site, release: Release, batch: Batch) -> str:
        """Reason why nothing can be measured on a release, or no inversion of the audit run on it; "" where it can."""
        try:
            release.mean(site.objective, site.objective.params, batch)
        except GradleakError as error:
            return str(error)
        known = _known(site, release, batch)
        reasons = ((label, measure.refusal(known)) for label, measure in self.labels.items())
        return next((f"{label}: {reason}" for label, reason in reasons if reason), "")


def _known(site: Site, release: Release, batch: Batch) -> Knowledge:
    """Knowledge of the adversary of a first release."""
    return site.threat.disclose(site.objective, release, batch)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
