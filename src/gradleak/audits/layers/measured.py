"""Measures the layers of one release by one measure, with shuffled attributes beside them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from gradleak.audits.base import InPieces, Site
from gradleak.audits.layers.reach import reaches
from gradleak.audits.layers.rows import LayerRows
from gradleak.results import Control, GradleakError, Outcome, Status
from gradleak.results.findings.layers import LAYER, VISIBLE, Advice, AdvisedLayer, Layer, LayersFinding
from gradleak.risk import LayerAdvice, LayerMeasure, LayerProfile, LayerSite, VisibleLayers

SHUFFLED = Control(
    planted=False,
    title="Negative control of where it leaks: a shuffled attribute",
    expects="nothing beyond chance in any layer about an attribute that belongs to other examples",
    meaning="Something other than the attribute is measured. No layer of this measure can be called leaky.",
)


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Profiles of one release by one measure.

    Attributes:
        profile: over the layers.
        refusal: why it could not be taken, or "".
        seen: over the sets of visible tensors, or None.
        seen_refusal: why that could not be taken, or "".
        shuffled: over the layers, with the attributes of other rows, or None.
    """

    profile: LayerProfile
    refusal: str
    seen: LayerProfile | None
    seen_refusal: str
    shuffled: LayerProfile | None


class Reading(StrEnum):
    """Kind of profile that a part belongs to: over layers, over them with attributes of other rows, over visible sets."""

    LAYERS = "layers"
    SHUFFLED = "shuffled"
    VISIBLE = "visible"


class Part(NamedTuple):
    """A profile of some groups, or one without values and the reason.

    Attributes:
        profile: over the groups.
        refusal: why it could not be taken, or "".
        seconds: of wall time.
    """

    profile: LayerProfile
    refusal: str
    seconds: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured(InPieces[LayersFinding]):
    """One measure of the layers of one release; layers with their shuffled attributes, and visible sets, are taken apart.

    Attributes:
        measure: of layers.
        source: the rows.
        groups: the tensors of every layer or group.
        apart: whether every group is a piece of its own.
        shuffled: whether attributes of other rows are told as well.
        visible: sets of visible tensors by name.
        seed: of everything that is drawn.
        blank: the finding without a result, which names the measure and the scenario.
    """

    measure: LayerMeasure
    source: LayerRows
    groups: Mapping[str, tuple[str, ...]]
    apart: bool
    shuffled: bool
    visible: Mapping[str, VisibleLayers]
    seed: int
    blank: LayersFinding

    @property
    def pieces(self) -> list[TakePart]:
        """The parts of the profiles."""
        groups = [(name,) for name in self.groups] if self.apart else [tuple(self.groups)]
        asked = [(Reading.LAYERS, names) for names in groups]
        asked += [(Reading.SHUFFLED, names) for names in groups if self.shuffled]
        asked += [(Reading.VISIBLE, (name,)) for name in self.visible]
        return [TakePart(of=self, reading=reading, names=names) for reading, names in asked]

    def join(self, site: Site, out: Path, made: Sequence[Part]) -> list[LayersFinding]:
        """A finding over the layers, one over the sets of visible tensors, and the control of a measure of an attribute."""
        first, *others = self.findings(self.taken(made))
        return [first.but(seconds=sum(part.seconds for part in made)), *others]

    def take(self, site: Site) -> Taken:
        """The profiles."""
        return self.taken([piece.take(site) for piece in self.pieces])

    def taken(self, made: Sequence[Part]) -> Taken:
        """The profiles, of their parts.

        Args:
            made: by the pieces, in their order.
        """
        by_kind: dict[Reading, list[Part]] = {}
        for piece, part in zip(self.pieces, made, strict=True):
            by_kind.setdefault(piece.reading, []).append(part)
        profile, refusal = self._joined(by_kind[Reading.LAYERS])
        seen, seen_refusal = self._joined(by_kind.get(Reading.VISIBLE, ()))
        shuffled, _ = self._joined(() if refusal else by_kind.get(Reading.SHUFFLED, ()))
        assert profile is not None
        return Taken(profile=profile, refusal=refusal, seen=seen, seen_refusal=seen_refusal, shuffled=shuffled)

    def part(self, site: Site, reading: Reading, names: Sequence[str]) -> LayerProfile:
        """The profile of some groups or sets.

        Args:
            site: of the plan.
            reading: what it is over.
            names: of the groups or sets.

        Raises:
            GradleakError: where measure and release do not fit together.
        """
        seen = LayerSite(
            label=self.blank.measure,
            objective=site.objective,
            release=site.scenario(self.blank.scenario or "").release,
            rows=self.source.drawn(self.seed),
            threat=site.threat,
            seed=self.seed,
            shuffled=reading is Reading.SHUFFLED,
            max_bytes=site.max_bytes,
        )
        if reading is Reading.VISIBLE:
            return self.measure.by_visible(seen, {name: self.visible[name] for name in names})
        return self.measure.by_layer(seen, {name: self.groups[name] for name in names})

    def tensors(self, reading: Reading, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """The tensors of groups or sets.

        Args:
            reading: what they are.
            names: of them.
        """
        return {name: self.visible[name].names if reading is Reading.VISIBLE else self.groups[name] for name in names}

    def findings(self, taken: Taken) -> Iterator[LayersFinding]:
        """The findings that profiles make.

        Args:
            taken: by this measure.
        """
        yield finding_of_profile(taken.profile, self.blank, taken.refusal)
        if taken.seen is not None:
            empty = self.blank.but(item=f"{self.blank.item}/visible", grouping=VISIBLE)
            yield finding_of_profile(taken.seen, empty, taken.seen_refusal)
        if taken.shuffled is not None:
            yield _control(taken.shuffled, self.blank)

    def _joined(self, parts: Sequence[Part]) -> tuple[LayerProfile | None, str]:
        """One profile of all parts, or the reason of the first that could not be taken; None without any."""
        if not parts:
            return None, ""
        profile = LayerProfile.joined([part.profile for part in parts])
        refusal = next((part.refusal for part in parts if part.refusal), "")
        return (self.measure.refused(self.blank.measure, profile.groups, refusal) if refusal else profile), refusal


@dataclass(frozen=True, kw_only=True, eq=False)
class TakePart:
    """Some groups of tensors, or a visible set, by one measure.

    Attributes:
        of: the measure.
        reading: what the profile is over.
        names: of the groups or sets.
    """

    of: Measured
    reading: Reading
    names: Sequence[str]

    def __call__(self, site: Site, out: Path) -> Part:
        """The part of the profile."""
        return self.take(site)

    def take(self, site: Site) -> Part:
        """The part of the profile.

        Args:
            site: of the plan.
        """
        started, refusal = time.perf_counter(), ""
        try:
            profile = self.of.part(site, self.reading, self.names)
        except GradleakError as error:
            refusal = str(error)
            profile = self.of.measure.refused(self.of.blank.measure, self.of.tensors(self.reading, self.names), refusal)
        return Part(profile, refusal, time.perf_counter() - started)


def finding_of_profile(profile: LayerProfile, empty: LayersFinding, refusal: str = "") -> LayersFinding:
    """The finding of a profile; what single rows contribute does not enter it.

    Args:
        profile: of one measure.
        empty: the finding without a result.
        refusal: why the measure could not be taken, or "".
    """
    rivals = profile.rivals()
    known = [score for score in profile.scores.values() if score.value is not None]
    return empty.but(
        status=Status.REFUSED if refusal else Status.DONE,
        outcome=(known or list(profile.scores.values()))[0].outcome,
        note=refusal,
        layers=tuple(
            Layer(name=name, tensors=profile.groups[name], rival=None if score.value is None else name in rivals)
            for name, score in profile.scores.items()
        ),
        scores=tuple(replace(score, about={**score.about, LAYER: name}) for name, score in profile.scores.items()),
    )


def finding_of_advice(advice: LayerAdvice, empty: LayersFinding) -> LayersFinding:
    """The finding of which layers to protect first.

    Args:
        advice: on one release.
        empty: the finding without a result.
    """
    told = Advice(
        layers=tuple(AdvisedLayer(**vars(layer)) for layer in advice.layers),
        budget=advice.budget,
        entries=advice.entries,
        profiles=advice.profiles,
        silent=advice.silent,
        note=advice.note,
    )
    return empty.but(outcome=Outcome.CONVERGED, advice=told)


def profile_of(finding: LayersFinding) -> LayerProfile:
    """The profile that a finding was made of, without what single rows contributed.

    Args:
        finding: of a measure, with scores.
    """
    return LayerProfile(
        measure=finding.measure,
        scores={
            name: replace(score, about={key: mark for key, mark in score.about.items() if key != LAYER})
            for name, score in finding.by_layer.items()
        },
        groups={layer.name: layer.tensors for layer in finding.layers},
    )


def _control(shuffled: LayerProfile, empty: LayersFinding) -> LayersFinding:
    """Control finding: the measure has to find nothing where nothing is to be found."""
    told = {name: reaches(score, len(shuffled.scores)) for name, score in shuffled.scores.items()}
    known = [one for one in told.values() if one is not None]
    wrong = [name for name, one in told.items() if one]
    lost = [name for name, one in told.items() if one is None]
    notes = [f"found something in {', '.join(wrong)}"] if wrong else []
    notes += [f"no number for {', '.join(lost)}"] if lost else []
    return finding_of_profile(shuffled, empty).but(
        item=f"control/negative/{empty.item}",
        outcome=Outcome.CONVERGED if known else Outcome.UNSUPPORTED,
        note="; ".join(notes),
        control=SHUFFLED.but(of=empty.measure, passed=not wrong if known else None),
    )
