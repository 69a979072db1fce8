"""Measures the layers of one release by one measure, with shuffled attributes beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gradleak.audits.base import Site
from gradleak.audits.layers.reach import reaches
from gradleak.audits.layers.rows import LayerRows
from gradleak.results import Control, GradleakError, Outcome, Status
from gradleak.results.findings.layers import LAYER, VISIBLE, Advice, AdvisedLayer, Layer, LayersFinding
from gradleak.risk import LayerAdvice, LayerMeasure, LayerProfile, LayerSite, VisibleLayers, layer_groups
from gradleak.risk.layer_exposure import Grouping

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """One measure of the layers of one release.

    Attributes:
        measure: of layers.
        source: the rows.
        by: how tensors are grouped.
        visible: sets of visible tensors by name.
        seed: of everything that is drawn.
        blank: the finding without a result, which names the measure and the scenario.
    """

    measure: LayerMeasure
    source: LayerRows
    by: Grouping
    visible: Mapping[str, VisibleLayers]
    seed: int
    blank: LayersFinding

    def __call__(self, site: Site, out: Path) -> list[LayersFinding]:
        """A finding over the layers, one over the sets of visible tensors, and the control of a measure of an attribute."""
        started = time.perf_counter()
        taken = self.take(site)
        first, *others = self.findings(taken)
        return [first.but(seconds=time.perf_counter() - started), *others]

    def take(self, site: Site) -> Taken:
        """The profiles."""
        groups = layer_groups(list(site.objective.params), self.by)
        profile, refusal = self._tried(groups, lambda: self.measure.by_layer(self._site(site), groups))
        shuffled, seen, seen_refusal = None, None, ""
        if site.controls.negative and self.measure.reads_told and not refusal:
            shuffled, _ = self._tried(
                groups, lambda: self.measure.by_layer(replace(self._site(site), shuffled=True), groups)
            )
        if self.visible:
            sets = {name: one.names for name, one in self.visible.items()}
            seen, seen_refusal = self._tried(sets, lambda: self.measure.by_visible(self._site(site), self.visible))
        return Taken(profile=profile, refusal=refusal, seen=seen, seen_refusal=seen_refusal, shuffled=shuffled)

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

    def _site(self, site: Site) -> LayerSite:
        """Release as the measure reads it."""
        return LayerSite(
            label=self.blank.measure,
            objective=site.objective,
            release=site.scenario(self.blank.scenario or "").release,
            rows=self.source.drawn(self.seed),
            threat=site.threat,
            seed=self.seed,
            max_bytes=site.max_bytes,
        )

    def _tried(
        self, groups: Mapping[str, tuple[str, ...]], work: Callable[[], LayerProfile]
    ) -> tuple[LayerProfile, str]:
        """The profile, or one without values and the reason."""
        try:
            return work(), ""
        except GradleakError as refusal:
            return self.measure.refused(self.blank.measure, groups, str(refusal)), str(refusal)


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
