"""Findings of layers side by side: which layer leaks most by each measure, and which may leak as much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from gradleak.reporting import words
from gradleak.reporting.numerals import Quantity, as_number, between, quantity
from gradleak.reporting.pages.layers.wording import (
    ABOUT,
    BY_EFFECT,
    CHANCE,
    DIRECTIONS,
    IN_ORDER,
    SETS,
    STANDINGS,
    beside,
    by_chance,
    called,
    how_measured,
    measure_name,
    right,
)
from gradleak.results import Evidence, Leakier, Score
from gradleak.results.findings.layers import VISIBLE, Advice, AdvisedLayer, LayersFinding

_ORDER = ("original", "latent")


@dataclass(frozen=True, kw_only=True)
class LayerColumn:
    """One measure of all layers of a map.

    Attributes:
        finding: with a score a layer; without scores where the measure failed.
        shuffled: the same with the attributes of other rows, the control of the measure; or None.
    """

    finding: LayersFinding
    shuffled: LayersFinding | None = None

    @property
    def label(self) -> str:
        """Its name in words."""
        return measure_name(self.finding.measure)

    @cached_property
    def scores(self) -> Mapping[str, Score]:
        """By layer, in the order of the model."""
        return self.finding.by_layer

    @property
    def lost(self) -> Quantity | None:
        """Outcome of a measure that gave nothing at all, or None."""
        if self.scores:
            return None
        outcome = self.finding.outcome
        text = self.finding.status.value if outcome is None else outcome.label.replace("_", " ")
        return Quantity(text=text, outcome=outcome, note=self.finding.note)

    @property
    def evidence(self) -> Evidence | None:
        """Evidence of its numbers, where all are of one kind."""
        kinds = {score.evidence for score in self.scores.values() if score.value is not None}
        return next(iter(kinds)) if len(kinds) == 1 else None

    @property
    def unit(self) -> str:
        """In print, or ""."""
        return next((words.unit(score.unit, self.finding.data_kind) for score in self.scores.values()), "")

    @property
    def leakier(self) -> Leakier:
        """Direction in which values leak more."""
        return next((score.leakier for score in self.scores.values()), Leakier.HIGHER)

    @property
    def head(self) -> str:
        """Its name, its unit, and the noise that its numbers are for where that of the release does not count."""
        noise = f"as if there were {self.finding.assumed_noise}" if self.finding.assumed_noise else ""
        return "; ".join(part for part in (", ".join(filter(None, (self.label, self.unit))), noise) if part)

    @property
    def topic(self) -> str:
        """Topic of the measure, in words, or ""."""
        told = self.finding.attribute if self.finding.about == "latent" else ""
        return f"about {told}" if told else ABOUT.get(self.finding.about, "")

    @property
    def direction(self) -> str:
        """Rule by which layers are compared, in words."""
        return BY_EFFECT if self.by_effect else DIRECTIONS[self.leakier]

    @property
    def settings(self) -> str:
        """Settings of the measure, in words."""
        first = next((score for score in self.scores.values() if score.value is not None), None)
        return "; ".join(part for part in (self.finding.settings, how_measured(first)) if part)

    @cached_property
    def shared_note(self) -> str:
        """Note that holds for all of its layers, or ""."""
        notes = {score.note for score in self.scores.values()}
        return next(iter(notes)) if len(notes) == 1 else ""

    @property
    def broken(self) -> bool:
        """True if something was found about a shuffled attribute."""
        control = self.shuffled.control if self.shuffled is not None else None
        return control is not None and control.passed is False

    @cached_property
    def effects(self) -> Mapping[str, float]:
        """Standard deviations above random groups, where all layers with a value have them; else nothing."""
        known = {name: score for name, score in self.scores.items() if score.value is not None}
        found = {name: as_number(score.details.get("effect_size")) for name, score in known.items()}
        return (
            {name: effect for name, effect in found.items() if effect is not None} if None not in found.values() else {}
        )

    @property
    def by_effect(self) -> bool:
        """True if layers are compared by the effect size in place of the value."""
        return bool(self.effects)

    @cached_property
    def levels(self) -> Mapping[str, float]:
        """Numbers by which layers are compared; those without a value are left out."""
        known = {name: score.value for name, score in self.scores.items() if score.value is not None}
        return self.effects or known

    @property
    def _lower(self) -> bool:
        return self.leakier is Leakier.LOWER and not self.by_effect

    @cached_property
    def ranked(self) -> Sequence[str]:
        """The layers, the leakiest first; those without a value last, in the order of the model."""
        if self.leakier is Leakier.NEITHER:
            return list(self.scores)
        known = sorted(self.levels, key=lambda name: self.levels[name] if self._lower else -self.levels[name])
        return [*known, *(name for name in self.scores if name not in self.levels)]

    @property
    def leakiest(self) -> str | None:
        """The layer that leaks most; None without a value, or where the measure says nothing of leakage."""
        return self.ranked[0] if self.levels and self.leakier is not Leakier.NEITHER else None

    @property
    def rivals(self) -> list[str]:
        """Those that cannot be told from it, the leakiest first."""
        standings = {name: self.standing(name) for name in self.ranked}
        return [
            name
            for name, standing in standings.items()
            if standing == "reaches" or (standing == "untested" and not self.chance(name))
        ]

    def rank(self, layer: str) -> int | None:
        """The place of a layer by this measure, 1 for the leakiest; None without a value."""
        return self.ranked.index(layer) + 1 if self.leakiest is not None and layer in self.levels else None

    def number(self, layer: str) -> Quantity:
        """The score of a layer ready for print, without a note."""
        return replace(quantity(self.scores[layer]), note="")

    def note(self, layer: str) -> str:
        """Note of its score, unless all layers have it."""
        return "" if self.shared_note else self.scores[layer].note

    def standing(self, layer: str) -> str:
        """A key of `STANDINGS`, or "" without a value."""
        first, score = self.leakiest, self.scores[layer]
        if score.value is None or first is None:
            return ""
        if layer == first:
            return "leakiest"
        # Rivals of the record are those of the largest value.
        told = {one.name: one.rival for one in self.finding.layers}
        rival = None if self.by_effect else told.get(layer)
        own, best = score.interval, self.scores[first].interval
        if own is None or best is None:
            return "below" if rival is False else "untested"
        # What the record says goes by the same rows of both layers, which tells more apart than two intervals do.
        meets = own[0] <= best[1] and best[0] <= own[1]
        return "reaches" if (meets if rival is None else rival) else "below"

    def chance(self, layer: str) -> bool:
        """True if what it tells of an attribute is no more than chance gives."""
        return by_chance(self.scores[layer], self.finding.about)

    def may_lead(self, layer: str) -> str:
        """Answer to whether a layer may be the leakiest, in words; "" without a value."""
        standing = self.standing(layer)
        if standing and self.chance(layer):
            return {"leakiest": f"first, but {CHANCE}", "below": "no"}.get(standing, CHANCE)
        return STANDINGS.get(standing, "")

    def color(self, layer: str) -> float | None:
        """The value over the largest one; where lower values leak more, the smallest one over the value; None without one."""
        if layer not in self.levels:
            return None
        value, values = self.levels[layer], self.levels.values()
        most = min(values) if self._lower else max(values)
        if value == most:
            return 1.0 if most > 0.0 or self._lower else 0.0
        above, below = (most, value) if self._lower else (value, most)
        if above <= 0.0 or below <= 0.0 or math.isinf(below):
            return 0.0
        return min(above / below, 1.0)

    def compared(self, layer: str) -> str:
        """Results of shuffled labels, chance or a blind guess, beside the number; "" where nothing is known of it."""
        null = self.shuffled.by_layer.get(layer) if self.shuffled is not None else None
        parts = [beside(self.scores[layer], effect=not self.by_effect)]
        if null is not None:
            span = between(null)
            parts.insert(0, f"shuffled: {quantity(null).text}{f' ({span})' if span else ''}")
        return "; ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """All measures of one grouping of one audit, of the release of one scenario.

    Attributes:
        scenario: name of the release, or "".
        audit: name of what was measured.
        grouping: in words: "by layer".
        layers: names, in the order of the model.
        columns: measures of the inputs first, then those of an attribute.
        advice: which layers to protect first, or None.
    """

    scenario: str
    audit: str
    grouping: str
    layers: Sequence[str]
    columns: Sequence[LayerColumn]
    advice: Advice | None = field(default=None)

    @property
    def title(self) -> str:
        """Scenario, audit and grouping."""
        return words.named(self.scenario, self.audit, self.grouping)

    @property
    def tensors(self) -> Mapping[str, Sequence[str]]:
        """The tensors of every row that has any."""
        found = {layer.name: layer.tensors for column in self.columns for layer in column.finding.layers}
        return {name: tensors for name, tensors in found.items() if tensors}

    @property
    def noun(self) -> str:
        """Name of a row."""
        return "Visible set" if self.grouping == VISIBLE else "Layer"

    @property
    def source(self) -> str:
        """Source of the order of the rows."""
        return "plan" if self.grouping == VISIBLE else "model"

    @property
    def order(self) -> str:
        """Kind of the rows, and the order in which they stand."""
        return SETS if self.grouping == VISIBLE else IN_ORDER

    @property
    def without(self) -> int:
        """Number of layers and measures without a value."""
        return len(self.layers) * len(self.columns) - sum(len(column.levels) for column in self.columns)

    @property
    def valued(self) -> bool:
        """True if any measure has a value for any layer."""
        return any(column.leakiest is not None for column in self.columns)

    @property
    def leading(self) -> list[tuple[str, LayerColumn]]:
        """The first measure with a value of each thing that can leak, with what it is about; of others the very first."""
        valued = [column for column in self.columns if column.leakiest is not None]
        found = [(kind, one) for kind in _ORDER for one in valued if one.finding.about == kind]
        first = list({kind: (kind, one) for kind, one in reversed(found)}.values())[::-1]
        return first or [(column.finding.about, column) for column in valued[:1]]

    def described(self, columns: Sequence[LayerColumn]) -> str:
        """The map in sentences, for those who do not see it.

        Args:
            columns: those that are drawn.
        """
        parts = [
            f"Heat map of {len(self.layers)} {'row' if len(self.layers) == 1 else 'rows'} in the order of the {self.source} "
            f"({self.grouping}) by {len(columns)} {'measure' if len(columns) == 1 else 'measures'}; each cell holds its "
            "number, the table all of them."
        ]
        for column in columns:
            first = column.leakiest
            if first is None:
                parts.append(f"{column.label}: {'no measure of leakage' if column.levels else 'no value'}.")
                continue
            chance = f", {CHANCE}" if column.chance(first) else ""
            more = f"; {', '.join(column.rivals)} may leak as much" if column.rivals else ""
            number = column.number(first).text
            parts.append(f"{column.label}: {first} leaks most, {number} {column.unit}{chance}{more}.")
            lost = [f"{name} ({column.number(name).text})" for name in column.scores if name not in column.levels]
            if lost:
                parts.append(f"Without a value: {', '.join(lost)}.")
        return " ".join(parts)


def layer_maps(findings: Sequence[LayersFinding]) -> list[LayerMap]:
    """One map for every scenario, audit and grouping, in the order of the record.

    Args:
        findings: of layers, controls and advice among them.
    """
    controls = {(one.scenario, one.audit, one.measure): one for one in findings if one.control is not None}
    advice = {(one.scenario, one.audit): one.advice for one in findings if one.advice is not None}
    groups: dict[tuple[str | None, str, str], list[LayersFinding]] = {}
    for one in findings:
        if one.measure and one.control is None:
            groups.setdefault((one.scenario, one.audit, one.grouping), []).append(one)
    maps = []
    for (scenario, audit, grouping), group in groups.items():
        own = {} if grouping == VISIBLE else controls
        columns = [LayerColumn(finding=one, shuffled=own.get((scenario, audit, one.measure))) for one in group]
        columns.sort(key=lambda column: _ORDER.index(column.finding.about) if column.finding.about in _ORDER else 2)
        fullest = max(group, key=lambda one: len(one.layers))
        # In the order of the model; a record may have a score of a layer that it does not list.
        layers = dict.fromkeys(layer.name for layer in fullest.layers)
        layers |= dict.fromkeys(name for column in columns for name in column.scores)
        maps.append(
            LayerMap(
                scenario=scenario or "",
                audit=audit,
                grouping=grouping,
                layers=list(layers),
                columns=columns,
                advice=None if grouping == VISIBLE else advice.get((scenario, audit)),
            )
        )
    return maps


def leading_maps(maps: Sequence[LayerMap], most: int = 2) -> list[LayerMap]:
    """Those that a report begins with: the first with a value, of layers rather than of what is visible.

    Args:
        maps: of a report.
        most: how many.
    """
    valued = [one for one in maps if one.valued]
    return ([one for one in valued if one.grouping != VISIBLE] or valued)[:most]


def chosen(advice: Advice) -> list[AdvisedLayer]:
    """The layers to protect within the budget."""
    return [layer for layer in advice.layers if layer.chosen]


def chosen_share(advice: Advice) -> float | None:
    """The share of all parameters that the chosen layers hold, None where they overlap."""
    held = [tensor for layer in chosen(advice) for tensor in layer.tensors]
    return math.fsum(layer.share for layer in chosen(advice)) if len(held) == len(set(held)) else None


def left_told(one: LayerMap, maps: Sequence[LayerMap]) -> str:
    """Statement on what is told of an attribute with the advised layers hidden; "" where the record does not know it.

    The largest set of visible tensors without any of theirs counts, and without such a set the other layers, each alone.

    Args:
        one: with advice.
        maps: of the report.
    """
    hidden = {tensor for layer in chosen(one.advice) for tensor in layer.tensors} if one.advice is not None else set()
    if not hidden:
        return ""
    theirs = "it" if one.advice is not None and len(chosen(one.advice)) == 1 else "them"
    seen = [
        other for other in maps if (other.scenario, other.audit, other.grouping) == (one.scenario, one.audit, VISIBLE)
    ]
    for other, whole in (*((other, True) for other in seen), (one, False)):
        for column in other.columns:
            if column.finding.about != "latent" or column.by_effect:
                continue
            tensors = {layer.name: set(layer.tensors) for layer in column.finding.layers}
            open_ = [name for name in column.ranked if name in column.levels and not tensors.get(name, hidden) & hidden]
            if not open_:
                continue
            most = max(open_, key=lambda name: len(tensors[name])) if whole else open_[0]
            score = column.scores[most]
            told = "; ".join(filter(None, (f"{column.number(most).text} {column.unit}", right(score))))
            if column.chance(most):
                where = f"with {theirs} hidden ({most})" if whole else "in the other layers, each alone,"
                return f"{where} nothing beyond chance was found by {column.label}, which is no evidence of safety"
            if whole:
                return f"NOT ENOUGH: with {theirs} hidden ({most}), still told: {told}"
            return f"NOT ENOUGH: beside {theirs}, {called(most)} alone still tells {told}"
    return ""


def passed_over(advice: Advice) -> list[str]:
    """The layers that stand before the first chosen one and do not fit the budget."""
    place = next((number for number, layer in enumerate(advice.layers) if layer.chosen), 0)
    return [layer.name for layer in advice.layers[:place]]
