"""Advice on the layers to protect first, from what several measures say about them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradleak.results import InputError, Leakier, Score, check_count, check_share
from gradleak.risk.layer_exposure import members_of
from gradleak.risk.layer_profile import LayerProfile

_OF_ATTRIBUTE = ("latent_information", "subspace_distance")
_ROUNDING = 1e-9  # 0.29 · 100 is a little less than 29
_NOTABLE = 0.05  # p-value above which a score is no more than chance gives


@dataclass(frozen=True, kw_only=True)
class AdvisedLayer:
    """Advice on one layer from the profiles, and whether it is to be protected within the budget.

    Attributes:
        name: of the layer, set of layers or named group.
        rank: 1 for the one to protect first.
        tensors: its tensors.
        entries: how many parameters they hold.
        share: of all parameters of the model.
        first_in: the profiles that put it first.
        rival_in: those that cannot tell it from their first one.
        unknown_in: those that have no value for it, though they have one for another layer.
        chosen: whether it is protected within the budget.
        why: one sentence.
    """

    name: str
    rank: int
    tensors: tuple[str, ...]
    entries: int
    share: float
    first_in: tuple[str, ...]
    rival_in: tuple[str, ...]
    unknown_in: tuple[str, ...]
    chosen: bool
    why: str


@dataclass(frozen=True, kw_only=True)
class LayerAdvice:
    """The layers of a model in the order in which to protect them, and those that a budget of parameters holds.

    Attributes:
        layers: the one to protect first in front.
        budget: the share of all parameters that may be protected.
        entries: all parameters of the model.
        profiles: the measures that had a value for some layer; the second profile of one measure is called "measure (2)".
        silent: the measures that had none anywhere, and that the advice therefore rests on in nothing.
        note: what to know before acting, or "".
    """

    layers: tuple[AdvisedLayer, ...]
    budget: float
    entries: int
    profiles: tuple[str, ...]
    silent: tuple[str, ...]
    note: str = ""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The layers to protect within the budget, the leakiest first."""
        return tuple(layer.name for layer in self.layers if layer.chosen)

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of the chosen layers, each once; what `VisibleLayers.hiding` takes."""
        return tuple(dict.fromkeys(name for layer in self.layers if layer.chosen for name in layer.tensors))


def advise(profiles: Sequence[LayerProfile], sizes: Mapping[str, int], *, budget: float = 0.1) -> LayerAdvice:
    """The layers in the order in which to protect them, from all profiles together, and those that the budget holds.

    Measures have different units, so that places are combined, not values. A layer stands where the profile that thinks
    worst of it puts it: one that is first for the inputs and last for an attribute is among the first. Layers of equal
    scores share a place; where all are equal (nothing was found in any) the profile puts none first. Scores that are no more
    than chance gives (a p-value above 0.05, or an interval of what is told of an attribute that reaches 0) share the place
    behind those beyond chance; a profile of such scores alone puts no layer ahead of another, and where there is no other
    profile, none is chosen. Equal places are ordered by how many profiles put the layer first or cannot tell it from the
    first, then by the mean place, then the smaller layer is ahead. A score without a value is no evidence of safety: the
    layer counts as one that may be first, and stands behind those that were found to be. A profile without any value tells
    the layers apart in nothing and is left out.

    Scores that carry an `effect_size` in their details (`SubspaceDistance`) are placed by it: the distance itself grows with
    the size of the layer. Layers whose intervals meet that of the first are named as its rivals; without intervals all are.

    Down that order a layer is chosen if its parameters still fit; one that does not fit is passed over, which its sentence
    says, and smaller ones behind it are looked at. Parameters that an earlier choice protects already cost nothing.

    **Assumptions**: the profiles say where it leaks, not that protecting these layers is enough: an attacker may do as well
    with the layers that are left. Test the choice with the attack (`VisibleLayers`, or `gradleak study layer_protection`).

    Args:
        profiles: of one model and one grouping, about the inputs or attributes, at least one.
        sizes: entries of every tensor of the model by name, `{name: t.numel() for name, t in objective.params.items()}`;
            tensors in no group count to the whole.
        budget: the share of all parameters that may be protected, 0.1 for 10 %.

    Raises:
        InputError: without a profile, for profiles of different groupings, of measures that say nothing of leakage, a group
            whose tensors or layers are not among the sizes, or a number out of range.

    **Source**: the project's own rule; protecting the most sensitive layers alone is proposed in Mo et al. 2021, section 7.

    Examples:
        >>> from gradleak.results import Evidence, Score
        >>> def of(value):
        ...     return Score(name="m", value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ESTIMATE)
        >>> groups = {"0": ("0.weight",), "2": ("2.weight",)}
        >>> profile = LayerProfile(measure="m", scores={"0": of(2.0), "2": of(1.0)}, groups=groups)
        >>> advise([profile], {"0.weight": 10, "2.weight": 90}).chosen
        ('0',)
    """
    check_share("advise.budget", budget)
    for name, count in sizes.items():
        check_count(f"sizes[{name!r}]", count)
    groups = _groups(profiles, list(sizes))
    total = sum(sizes.values())
    named, silent = _named(profiles)
    places = {label: _places(profile) for label, profile in named.items()}
    found = {name: _Standing.of(name, named, places) for name in groups}
    entries = {name: sum(sizes[member] for member in dict.fromkeys(groups[name])) for name in groups}
    known = any(not _all_chance(profile) for profile in named.values())
    order = sorted(groups, key=lambda name: (*found[name].key, entries[name])) if known else list(groups)

    taken: set[str] = set()
    layers = []
    for place, name in enumerate(order):
        fresh = set(groups[name]) - taken
        cost = sum(sizes[member] for member in taken | fresh)
        fits = known and cost <= budget * total * (1.0 + _ROUNDING)
        taken |= fresh if fits else set()
        standing = found[name]
        layers.append(
            AdvisedLayer(
                name=name,
                rank=place + 1,
                tensors=groups[name],
                entries=entries[name],
                share=entries[name] / total,
                first_in=standing.first_in,
                rival_in=standing.rival_in,
                unknown_in=standing.unknown_in,
                chosen=fits,
                why=standing.sentence()
                + ("" if fits or not known else _too_large(entries[name], total, budget, cost - entries[name]))
                + ".",
            )
        )
    return LayerAdvice(
        layers=tuple(layers),
        budget=budget,
        entries=total,
        profiles=tuple(named),
        silent=silent,
        note=_note(layers, named, silent),
    )


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """Standing of one layer in the profiles."""

    places: Mapping[str, int | None]
    first_in: tuple[str, ...]
    rival_in: tuple[str, ...]
    unknown_in: tuple[str, ...]
    chance_in: tuple[str, ...]
    level: frozenset[str]
    of_layers: int

    @classmethod
    def of(cls, name: str, named: Mapping[str, LayerProfile], places: Mapping[str, Mapping[str, int]]) -> _Standing:
        mine = {label: places[label].get(name) for label in named}
        # Where several layers have one score, and no other lies below, the profile tells none from another.
        chance = tuple(label for label, profile in named.items() if _all_chance(profile))
        level = {label for label, found in places.items() if len(found) > 1 and set(found.values()) == {1}} | {*chance}
        return cls(
            places=mine,
            first_in=tuple(label for label in named if mine[label] == 1 and label not in level),
            rival_in=tuple(
                label
                for label, profile in named.items()
                if mine[label] is not None and (label in level or (mine[label] != 1 and _rivals(profile, name)))
            ),
            unknown_in=tuple(label for label in named if mine[label] is None),
            chance_in=tuple(label for label in chance if mine[label] is not None),
            level=frozenset(level),
            of_layers=len(next(iter(named.values())).groups) if named else 0,
        )

    @property
    def key(self) -> tuple[float, ...]:
        """Smaller for a layer that is to be protected earlier."""
        # A profile that tells no layer from another says nothing of their order.
        places = {label: place for label, place in self.places.items() if place is None or label not in self.level}
        known = [place for place in places.values() if place is not None]
        worst = min([1 if place is None else place for place in places.values()], default=self.of_layers)
        mean = sum(known) / len(known) if known else self.of_layers
        suspected = len(self.first_in) + len(self.rival_in)
        return (worst, not self.first_in and bool(self.unknown_in), -suspected, mean)

    def sentence(self) -> str:
        """Statement of the profiles on the layer, without the full stop."""
        parts = []
        if self.first_in:
            parts.append(f"leaks most by {_list(self.first_in)}")
        rivals = [label for label in self.rival_in if label not in self.chance_in]
        if rivals:
            parts.append(f"cannot be told from the leakiest by {_list(rivals)}")
        if self.chance_in:
            parts.append(f"is not beyond chance by {_list(self.chance_in)}, and no other layer is")
        if self.unknown_in:
            parts.append(f"has no value by {_list(self.unknown_in)}, which is no evidence of safety")
        lower = [label for label in self.places if label not in (*self.first_in, *self.rival_in, *self.unknown_in)]
        if lower:
            told = ", ".join(f"{label} (place {self.places[label]} of {self.of_layers})" for label in lower)
            parts.append(f"leaks less than the leakiest by {told}")
        return "; ".join(parts) or "no profile has a value for any layer"


def _groups(profiles: Sequence[LayerProfile], names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The tensors of every group, of which matrices by layer only have the layer's name."""
    if isinstance(profiles, LayerProfile) or not profiles:
        raise InputError("profiles: expected a list of at least one LayerProfile")
    found = [
        {
            group: members_of(names, members, what=f"sizes: {profile.measure}")
            for group, members in profile.groups.items()
        }
        for profile in profiles
    ]
    for profile, groups in zip(profiles, found, strict=True):
        if groups != found[0]:
            raise InputError(
                f"profiles: expected profiles of one grouping, got {profiles[0].measure} of {', '.join(found[0])} "
                f"({len(found[0])} groups) and {profile.measure} of {', '.join(groups)} ({len(groups)} groups, or others of "
                "these names); advise on each grouping by itself"
            )
        if any(score.leakier is Leakier.NEITHER for score in profile.scores.values()):
            raise InputError(f"profiles: expected measures of leakage, got {profile.measure}, which is not one")
    return found[0]


def _named(profiles: Sequence[LayerProfile]) -> tuple[dict[str, LayerProfile], tuple[str, ...]]:
    """The profiles with a value by a name of their own, and the names of the others."""
    named: dict[str, LayerProfile] = {}
    silent: list[str] = []
    seen: dict[str, int] = {}
    for profile in profiles:
        seen[profile.measure] = seen.get(profile.measure, 0) + 1
        count = seen[profile.measure]
        label = profile.measure if count == 1 else f"{profile.measure} ({count})"
        if profile.leakiest is None:
            silent.append(label)
        else:
            named[label] = profile
    return named, tuple(silent)


def _places(profile: LayerProfile) -> dict[str, int]:
    """1 for the leakiest, the same for layers of equal scores; groups without a value have no place."""
    known = {name: score for name, score in profile.scores.items() if score.value is not None}
    chance = {name for name, score in known.items() if _by_chance(profile.measure, score)}
    effects = {name: _effect(score) for name, score in known.items()}
    if all(effect is not None for effect in effects.values()):
        leak = {name: float(effect or 0.0) for name, effect in effects.items()}
    else:
        sign = {name: -1.0 if score.leakier is Leakier.LOWER else 1.0 for name, score in known.items()}
        leak = {name: sign[name] * float(score.value or 0.0) for name, score in known.items()}
    leak = {name: -math.inf if name in chance else value for name, value in leak.items()}
    return {name: 1 + sum(other > leak[name] for other in leak.values()) for name in known}


def of_attribute(measure: str, score: Score) -> bool:
    """True if a score of a profile says what is told of an attribute or label, not of the inputs.

    Args:
        measure: name of the profile.
        score: of one layer.
    """
    return measure.partition(" (")[0] in _OF_ATTRIBUTE or score.details.get("target") == "labels"


def _by_chance(measure: str, score: Score) -> bool:
    """True if a score is no more than chance gives; the report judges alike."""
    if score.value is None:
        return False
    if score.details.get("p_value") is not None:
        return float(score.details["p_value"]) > _NOTABLE
    return of_attribute(measure, score) and score.interval is not None and score.interval[0] <= 0.0


def _all_chance(profile: LayerProfile) -> bool:
    """True if a profile found nothing beyond chance in any layer that it has a value for."""
    known = [score for score in profile.scores.values() if score.value is not None]
    return bool(known) and all(_by_chance(profile.measure, score) for score in known)


def _rivals(profile: LayerProfile, name: str) -> bool:
    """True if a layer may be the leakiest: by intervals, or without any unless a test finds no more than chance."""
    score = profile.scores[name]
    tested = score.interval is None and score.details.get("p_value") is not None
    return name in (profile.leakiest, *profile.rivals()) and not (tested and _by_chance(profile.measure, score))


def _effect(score: Score) -> float | None:
    """The effect size of a distance; where its null has no spread, nothing stands out of it unless the distance does."""
    if "effect_size" not in score.details:
        return None
    effect = score.details["effect_size"]
    if effect is not None:
        return float(effect)
    return math.inf if (score.details.get("p_value") or 1.0) < _NOTABLE else 0.0


def _too_large(entries: int, total: int, budget: float, taken: int) -> str:
    before = f" beside the {taken / total:.1%} that are chosen already" if taken > 0 else ""
    return f"; its {entries} parameters ({entries / total:.1%} of all) do not fit a budget of {budget:.1%}{before}"


def _note(layers: Sequence[AdvisedLayer], named: Mapping[str, LayerProfile], silent: Sequence[str]) -> str:
    notes = []
    if not named:
        notes.append("no profile has a value for any layer, so that none can be advised; that is no evidence of safety")
    elif silent:
        notes.append(f"without any value, and left out: {_list(silent)}")
    chance = [label for label, profile in named.items() if _all_chance(profile)]
    if chance and len(chance) == len(named):
        notes.append(
            f"nothing beyond chance was found in any layer by {_list(chance)}, so that none can be advised; that is no "
            "evidence of safety"
        )
    elif chance:
        notes.append(f"without a say in the order, since it found nothing beyond chance: {_list(chance)}")
    passed = [layer.name for layer in layers if layer.first_in and not layer.chosen]
    if passed:
        notes.append(f"put first by a measure, but larger than the budget leaves room for: {', '.join(passed)}")
    return "; ".join(notes)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
