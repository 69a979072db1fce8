"""The lines of a record on layers, gathered into profiles: one measure of all layers of one release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gradleak.reporting.numerals import Quantity
from gradleak.reporting.reading import Line, mapping, outcome_of, sequence
from gradleak.results import Score


@dataclass(kw_only=True)
class Profile:
    """What the record holds of one measure.

    Attributes:
        place: scenario, setting and grouping.
        item: its item.
        measure: name of the measure.
        first: its first line.
        layers: tensors by name of the layer, in the order of the record.
        scores: by layer.
        nulls: scores where the attribute was shuffled, by layer, where there are any.
        rivals: whether a layer cannot be told from the leakiest, where the record says so.
        lost: why the measure gave nothing, or None.
    """

    place: tuple[str, str, str]
    item: str
    measure: str
    first: Line
    layers: dict[str, tuple[str, ...]] = field(default_factory=dict)
    scores: dict[str, Score] = field(default_factory=dict)
    nulls: dict[str, Score] = field(default_factory=dict)
    rivals: dict[str, bool] = field(default_factory=dict)
    lost: Quantity | None = None


def profiles(lines: Sequence[Line]) -> list[Profile]:
    """The profiles in file order; a layer that comes again begins another profile of the same measure.

    Args:
        lines: item lines of kind "layers".
    """
    found: list[Profile] = []
    for line in lines:
        key = (place_of(line), str(line.get("item")), str(line.get("measure") or ""))
        layer = None if line.get("layer") is None else str(line["layer"])
        score = None if layer is None else _score(line.get("score"))
        if layer is not None and score is None:
            continue
        same = [one for one in found if (one.place, one.item, one.measure) == key and layer not in one.layers]
        profile = same[0] if same and layer is not None else None
        if profile is None:
            profile = Profile(place=key[0], item=key[1], measure=key[2], first=line)
            found.append(profile)
        if layer is None or score is None:
            profile.lost = _lost(line)
            continue
        profile.layers[layer] = tuple(map(str, sequence(line.get("tensors"))))
        profile.scores[layer] = score
        if (null := _score(line.get("null"))) is not None:
            profile.nulls[layer] = null
        if isinstance(rival := line.get("rival"), bool):
            profile.rivals[layer] = rival
    return found


def place_of(line: Line) -> tuple[str, str, str]:
    """Scenario, setting and grouping.

    Args:
        line: of kind "layers" or "layer_advice".
    """
    return str(line.get("scenario") or ""), str(line.get("setting") or ""), str(line.get("grouping") or "")


def _lost(line: Line) -> Quantity:
    """Why a measure gave nothing."""
    outcome = outcome_of(line)
    text = str(line.get("status") or "no value") if outcome is None else outcome.label.replace("_", " ")
    return Quantity(text=text, outcome=outcome, note=str(line.get("note") or ""))


def fits(profile: Profile, group: Sequence[Profile]) -> bool:
    """Whether it is of the same setting and layers; one that gave nothing belongs to the first map of its setting.

    Args:
        profile: one.
        group: at least one.
    """
    first = group[0]
    if profile.place != first.place:
        return profile.lost is not None and not profile.place[2] and profile.place[:2] == first.place[:2]
    known = {layer for one in group for layer in one.layers}
    return not known or not profile.layers or known <= set(profile.layers) or set(profile.layers) <= known


def _score(given: Any) -> Score | None:
    try:
        return Score.from_dict(mapping(given))
    except ValueError:
        return None
