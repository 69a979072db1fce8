"""Which layers of a release leak: the maps, tables and advice behind the section on where it leaks.

It reads these item lines of a record (others may stand beside them, further fields are ignored):

- kind "layers", one for each layer of each profile: `item`, `scenario`, `setting`, `measure`, `layer`, `tensors` and `score` (a
  whole score). Where they stand also `grouping`, `about` ("original" or "latent"), `attribute` and `settings` (words), `rival`
  (whether the layer cannot be told from the leakiest) and `null` (the score of the same layer where the attribute was
  shuffled). Without `layer` and `score`: a measure that gave nothing, and why.
- kind "layer_advice", one for each layer: `scenario`, `setting`, `item`, `layer`, `rank`, `tensors`, `entries`, `share`,
  `chosen`, `why`, `budget`, `profiles`, `silent`, `note`.
- kind "control" with `control_of`, the item of a profile: whether something was found about a shuffled attribute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.layers_lines import Profile, fits, place_of, profiles
from gradleak.reporting.layers_words import (
    ABOUT,
    BY_EFFECT,
    HIGHER,
    IN_ORDER,
    LOWER,
    NEITHER,
    SETS,
    VISIBLE,
    about_of,
    beside,
    by_chance,
    few,
    grouping_of,
    how_measured,
    may_lead,
    measure_name,
    null_words,
    plain_why,
)
from gradleak.reporting.numerals import Quantity, as_number, between, quantity
from gradleak.reporting.reading import Line, Reading, sequence
from gradleak.reporting.words import named
from gradleak.results import Leakier, Score

_ORDER = ("original", "latent")


@dataclass(frozen=True, kw_only=True)
class LayerCell:
    """What one measure says of one layer.

    Attributes:
        layer: its name.
        score: the number, or in words why there is none.
        interval: in print, "" for none.
        span: ends of the interval, or None.
        unit: in print.
        n: independent items behind it.
        effect: standard deviations above the null, of measures that are ranked by it; else None.
        place: 1 for the leakiest; None without a value.
        color: from 0 to 1 for the leakiest; None without a value.
        chance: whether what it tells of an attribute is no more than chance gives.
        standing: "leakiest", "reaches" (it cannot be told from the leakiest), "untested" (nor can it, for want of an interval),
            "below", or "" without a value.
        beside: what chance or a blind guess gives, in words.
        null: the same layer with shuffled labels, or None.
    """

    layer: str
    score: Quantity
    interval: str
    span: tuple[float, float] | None
    unit: str
    n: int
    effect: float | None
    place: int | None
    color: float | None
    standing: str
    chance: bool
    beside: str
    null: Quantity | None

    @property
    def rival(self) -> bool:
        """Whether any of both may leak most."""
        return self.standing == "reaches" or (self.standing == "untested" and not self.chance)

    @property
    def may_lead(self) -> str:
        """Whether it may be the leakiest, in words; "" without a value."""
        return may_lead(self.standing, self.chance)


@dataclass(frozen=True, kw_only=True)
class LayerColumn:
    """One measure of all layers of a map.

    Attributes:
        label: its name in words, one of its own in the map.
        measure: its name.
        about: "original", "latent" or "".
        unit: in print.
        leakier: whether higher or lower values leak more.
        by_effect: whether layers are compared by the effect size in place of the value.
        cells: by layer, in the order of the model; a layer that the record does not hold is left out.
        lost: why the measure gave nothing at all, or None.
        settings: how it was measured.
        notes: what holds for all of its layers.
        control: whether nothing was found about a shuffled attribute; None where that was not tried.
        attribute: what it is about, by its own name, or "".
    """

    label: str
    measure: str
    about: str
    unit: str
    leakier: Leakier
    by_effect: bool
    cells: Mapping[str, LayerCell]
    lost: Quantity | None = None
    settings: str = ""
    notes: Sequence[str] = ()
    control: bool | None = None
    attribute: str = ""

    @property
    def topic(self) -> str:
        """What it is about, in words, or ""."""
        return f"about {self.attribute}" if self.attribute and self.about != "original" else ABOUT.get(self.about, "")

    @property
    def direction(self) -> str:
        """By what layers are compared, in words."""
        if self.by_effect:
            return BY_EFFECT
        return {Leakier.HIGHER: HIGHER, Leakier.LOWER: LOWER, Leakier.NEITHER: NEITHER}[self.leakier]

    @property
    def ranked(self) -> list[LayerCell]:
        """The cells, the leakiest first; those without a value last, in the order of the model."""
        return sorted(self.cells.values(), key=lambda cell: (cell.place is None, cell.place or 0))

    @property
    def leakiest(self) -> LayerCell | None:
        """The cell that leaks most, or None."""
        return next((cell for cell in self.cells.values() if cell.standing == "leakiest"), None)

    @property
    def rivals(self) -> list[LayerCell]:
        """Those that cannot be told from it, the leakiest first."""
        return [cell for cell in self.ranked if cell.rival]


@dataclass(frozen=True, kw_only=True)
class AdvisedRow:
    """What is advised of one layer.

    Attributes:
        layer: its name.
        rank: 1 for the one to protect first.
        entries: how many parameters it has, or None.
        share: of all parameters, or None.
        chosen: whether it is protected within the budget.
        why: in words.
    """

    layer: str
    rank: float | None
    entries: float | None
    share: float | None
    chosen: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class AdviceView:
    """Which layers to protect first.

    Attributes:
        rows: the one to protect first in front.
        budget: share of all parameters that may be protected, or None.
        share: of all parameters that the chosen layers hold, None where they overlap.
        profiles: the measures that it rests on, in words.
        note: what to know before acting.
    """

    rows: Sequence[AdvisedRow]
    budget: float | None
    share: float | None
    profiles: Sequence[str]
    note: str

    @property
    def chosen(self) -> list[AdvisedRow]:
        """The layers to protect within the budget."""
        return [row for row in self.rows if row.chosen]

    @property
    def passed(self) -> str:
        """The layers that stand before the first chosen one and do not fit the budget, in words, or ""."""
        place = next((n for n, row in enumerate(self.rows) if row.chosen), len(self.rows))
        names = [row.layer for row in self.rows[:place]]
        return f"ahead of it, but too large for the budget: {few(names)}" if names and place < len(self.rows) else ""


@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """All measures of one grouping of one setting, of the release of one scenario.

    Attributes:
        scenario: name of the release, or "".
        setting: name of what was measured.
        grouping: in words: "by layer".
        layers: tensors by name of the layer, in the order of the model.
        columns: measures of the inputs first, then those of an attribute.
        advice: one for each that the record holds.
    """

    scenario: str
    setting: str
    grouping: str
    layers: Mapping[str, Sequence[str]]
    columns: Sequence[LayerColumn]
    advice: Sequence[AdviceView] = field(default=())

    @property
    def title(self) -> str:
        """Scenario, setting and grouping."""
        return named(self.scenario, self.setting, self.grouping)

    @property
    def noun(self) -> str:
        """What a row is called."""
        return "Visible set" if self.grouping == VISIBLE else "Layer"

    @property
    def placed(self) -> str:
        """What the column of places is called."""
        return f"Place in the {self.source}"

    @property
    def source(self) -> str:
        """What gives the rows their order."""
        return "plan" if self.grouping == VISIBLE else "model"

    @property
    def order(self) -> str:
        """What the rows are, and in which order they stand."""
        return SETS if self.grouping == VISIBLE else IN_ORDER

    @property
    def without(self) -> int:
        """How many layers and measures have no value."""
        return len(self.layers) * len(self.columns) - sum(
            cell.score.value is not None for column in self.columns for cell in column.cells.values()
        )

    @property
    def valued(self) -> bool:
        """Whether any measure has a value for any layer."""
        return any(column.leakiest for column in self.columns)

    @property
    def leading(self) -> list[tuple[str, LayerColumn]]:
        """The first measure with a value of each thing that can leak, with what it is about; of others the very first."""
        valued = [column for column in self.columns if column.leakiest]
        found = [(kind, one) for kind in _ORDER for one in [next((c for c in valued if c.about == kind), None)] if one]
        return found or [(column.about, column) for column in valued[:1]]

    def place(self, layer: str) -> int:
        """The place of a layer in the model, 1 for the first.

        Args:
            layer: its name.
        """
        return list(self.layers).index(layer) + 1


def layer_maps(reading: Reading | None) -> list[LayerMap]:
    """One map for every setting and grouping, in file order.

    Args:
        reading: the sorted lines, or None.
    """
    if reading is None:
        return []
    groups: list[list[Profile]] = []
    for profile in profiles(reading.of_kind("layers")):
        home = next((group for group in groups if fits(profile, group)), None)
        if home is None:
            groups.append([profile])
        else:
            home.append(profile)
    controls = {str(line.get("control_of")): line.get("passed") for line in reading.of_kind("control")}
    maps = [_map(group, controls) for group in groups]
    return _with_advice(maps, reading.of_kind("layer_advice"))


def leading_maps(maps: Sequence[LayerMap], most: int = 2) -> list[LayerMap]:
    """Those that a report begins with: the first with a value, of layers rather than of what is visible.

    Args:
        maps: of a report.
        most: how many.
    """
    valued = [one for one in maps if one.valued]
    return ([one for one in valued if one.grouping != VISIBLE] or valued)[:most]


def _map(group: Sequence[Profile], controls: Mapping[str, Any]) -> LayerMap:
    layers: dict[str, tuple[str, ...]] = {}
    for profile in sorted(group, key=lambda one: -len(one.layers)):
        for name, tensors in profile.layers.items():
            # A matrix of gradients is named by its layer; the names of tensors say more.
            if name not in layers or layers[name] in ((), (name,)):
                layers[name] = tensors
    columns = [
        _column(profile, label, layers, controls.get(profile.item))
        for profile, label in zip(group, _labels(group), strict=True)
    ]
    columns.sort(key=lambda column: _ORDER.index(column.about) if column.about in _ORDER else len(_ORDER))
    scenario, setting, grouping = group[0].place
    return LayerMap(
        scenario=scenario, setting=setting, grouping=grouping or grouping_of(layers), layers=layers, columns=columns
    )


def _labels(group: Sequence[Profile]) -> list[str]:
    """Names in words; those of one measure are told apart by attribute, or by number as in the advice."""
    labels: list[str] = []
    for profile in group:
        same = [one for one in group if one.measure == profile.measure]
        attribute = str(profile.first.get("attribute") or "")
        several = len({str(one.first.get("attribute") or "") for one in same}) > 1
        name = measure_name(profile.measure) + (f": {attribute}" if several and attribute else "")
        free = [name, *(f"{name} ({number})" for number in range(2, len(group) + 2))]
        labels.append(next(one for one in free if one not in labels))
    return labels


def _column(profile: Profile, label: str, layers: Mapping[str, Any], control: Any) -> LayerColumn:
    scores = {name: profile.scores[name] for name in layers if name in profile.scores}
    known = {name: score for name, score in scores.items() if score.value is not None}
    effects = {name: as_number(score.details.get("effect_size")) for name, score in known.items()}
    by_effect = bool(effects) and all(effect is not None for effect in effects.values())
    leakier = next(iter(scores.values())).leakier if scores else Leakier.HIGHER
    level = {name: (effects[name] if by_effect else score.value) or 0.0 for name, score in known.items()}
    lower = leakier is Leakier.LOWER and not by_effect
    order = sorted(level, key=lambda name: level[name] if lower else -level[name])
    first = scores[order[0]] if order and leakier is not Leakier.NEITHER else None
    shared = list(dict.fromkeys(score.note for score in scores.values() if score.note))
    common = shared if len(shared) == 1 and all(score.note for score in scores.values()) else []
    about = about_of(profile.measure, profile.first, scores)
    kind = str(profile.first.get("data_kind") or "") or None
    cells = {
        name: LayerCell(
            layer=name,
            score=quantity(score) if not common else replace(quantity(score), note=""),
            interval=between(score),
            span=score.interval if score.value is not None else None,
            unit=words.unit(score.unit, kind),
            n=score.n,
            effect=effects[name] if by_effect and name in effects else None,
            place=order.index(name) + 1 if name in level and first is not None else None,
            color=_color(level[name], list(level.values()), lower=lower) if name in level else None,
            # Rivals of the record are those of the largest value.
            standing=_standing(score, first, None if by_effect else profile.rivals.get(name)),
            chance=by_chance(score, about),
            beside=beside(score, effect=not by_effect),
            null=_null(profile.nulls.get(name)),
        )
        for name, score in scores.items()
    }
    given = str(profile.first.get("settings") or "")
    return LayerColumn(
        label=label,
        measure=profile.measure,
        about=about,
        unit=next((cell.unit for cell in cells.values()), ""),
        leakier=leakier,
        by_effect=by_effect,
        cells=cells,
        lost=profile.lost if not cells else None,
        settings="; ".join(part for part in (given, how_measured(next(iter(known.values()), None))) if part),
        notes=[*common, *([profile.lost.note] if profile.lost is not None and not cells else [])],
        control=control if isinstance(control, bool) else None,
        attribute=str(profile.first.get("attribute") or ""),
    )


def _null(score: Score | None) -> Quantity | None:
    return None if score is None else replace(quantity(score), text=null_words(score))


def _standing(score: Score, first: Score | None, rival: bool | None) -> str:
    if score.value is None or first is None:
        return ""
    if score is first:
        return "leakiest"
    if score.interval is None or first.interval is None:
        return "below" if rival is False else "untested"
    # What the record says goes by the same rows of both layers, which tells more apart than two intervals do.
    meets = score.interval[0] <= first.interval[1] and first.interval[0] <= score.interval[1]
    return "reaches" if (meets if rival is None else rival) else "below"


def _color(value: float, values: Sequence[float], *, lower: bool) -> float:
    """The value over the largest one; where lower values leak more, the smallest one over the value."""
    most = min(values) if lower else max(values)
    if value == most:
        return 1.0 if most > 0.0 or lower else 0.0
    above, below = (most, value) if lower else (value, most)
    if above <= 0.0 or below <= 0.0 or math.isinf(below):
        return 0.0
    return min(above / below, 1.0)


def _with_advice(maps: Sequence[LayerMap], lines: Sequence[Line]) -> list[LayerMap]:
    """The maps with the advice of their setting and layers; advice on others has a map without measures of its own."""
    groups: dict[tuple[str, str, str], list[Line]] = {}
    for line in lines:
        groups.setdefault((*place_of(line)[:2], str(line.get("item"))), []).append(line)
    found = list(maps)
    for (scenario, setting, _), group in groups.items():
        group = [line for line in group if line.get("layer") is not None]
        layers = {str(line["layer"]): tuple(map(str, sequence(line.get("tensors")))) for line in group}
        if not layers:
            continue
        same = [n for n, one in enumerate(found) if (one.scenario, one.setting) == (scenario, setting)]
        place = next((n for n in same if set(layers) <= set(found[n].layers)), None)
        if place is None:
            grouping = grouping_of(layers)
            found.append(LayerMap(scenario=scenario, setting=setting, grouping=grouping, layers=layers, columns=()))
            place = len(found) - 1
        home = found[place]
        found[place] = replace(home, advice=(*home.advice, _advice(group, home.columns)))
    return found


def _advice(lines: Sequence[Line], columns: Sequence[LayerColumn]) -> AdviceView:
    first = lines[0]
    measures = [str(name) for key in ("profiles", "silent") for name in sequence(first.get(key))]
    measures += [column.measure for column in columns]
    spoken = {name: _spoken(name, columns) for name in measures}
    rows = [
        AdvisedRow(
            layer=str(line["layer"]),
            rank=as_number(line.get("rank")),
            entries=as_number(line.get("entries")),
            share=as_number(line.get("share")),
            chosen=line.get("chosen") is True,
            why=plain_why(str(line.get("why") or ""), spoken),
        )
        for line in lines
    ]
    rows.sort(key=lambda row: math.inf if row.rank is None else row.rank)
    held = [tensor for line in lines if line.get("chosen") is True for tensor in sequence(line.get("tensors"))]
    shares = [row.share for row in rows if row.chosen]
    apart = len(held) == len(set(map(str, held))) and all(share is not None for share in shares)
    return AdviceView(
        rows=rows,
        budget=as_number(first.get("budget")),
        share=math.fsum(share or 0.0 for share in shares) if apart else None,
        profiles=[spoken[str(name)] for name in sequence(first.get("profiles"))],
        note=plain_why(str(first.get("note") or ""), spoken),
    )


def _spoken(name: str, columns: Sequence[LayerColumn]) -> str:
    """A profile of the advice in the words of the map: "measure (2)" may be the second column of that measure."""
    found = next((column.label for column in columns if column.measure == name), None)
    if found is not None:
        return found
    measure, _, number = name.removesuffix(")").rpartition(" (")
    same = [column.label for column in columns if column.measure == measure]
    place = int(number) - 1 if number.isdecimal() else 0
    return same[place] if 0 <= place < len(same) else measure_name(name)
