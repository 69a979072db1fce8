"""Numbers of the study of influences: points with their controls, tables and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from studies.influence_cells import ADAPTIVE, EVERYTHING, SHUFFLED, STATIC, Numbers, interval_of, over_seeds
from studies.spots import Spot, spots
from studies.study import Finding, Table
from studies.summaries import shown, shown_with

Interval = tuple[float, float] | None
ORIGINAL, LATENT = "original", "latent"
AGGREGATION, EPOCH, NOISE = "aggregation", "epoch", "noise"

# Of section 6.4; figures 9 to 11 are images, so that no numbers can be read.
PAPER: Mapping[tuple[str, str, float], str] = {
    (ORIGINAL, AGGREGATION, 10): "very difficult",
    (ORIGINAL, AGGREGATION, 30): "near zero (sensitivity)",
    (LATENT, AGGREGATION, 30): "hard from 30 to 50",
}
_HEADS: Mapping[str, str] = {AGGREGATION: "others averaged with the target (n)", EPOCH: "epochs of training"}


@dataclass(frozen=True, kw_only=True)
class Point:
    """V-information at one setting, with its control.

    Attributes:
        leakage: original or latent.
        part: which influence.
        place: which layers carry noise, or "".
        attacker: static or adaptive where noise is added, else "".
        x: n, epoch or σ.
        value: in nats, of all layers together.
        interval: of 95 %, over images or seeds.
        null: with an exchanged target, or the attribute in random order.
        above: by how much the value lies above that.
        above_interval: likewise.
        n: images or seeds.
        beside: further numbers by name.
    """

    leakage: str
    part: str
    place: str
    attacker: str
    x: float
    value: float | None
    interval: Interval
    null: float | None
    above: float | None
    above_interval: Interval
    n: int
    beside: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def shown(self) -> bool | None:
        """True if the interval of what lies above the control excludes 0; None without an interval."""
        return None if self.above_interval is None else self.above_interval[0] > 0.0

    def text(self) -> str:
        """A line of progress."""
        return (
            f"{shown_with(self.value, self.interval)}, above its control {shown_with(self.above, self.above_interval)}"
        )

    def finding(self) -> Finding:
        """A line of the study."""
        turned = {AGGREGATION: "n", EPOCH: "epoch", NOISE: "std"}[self.part]
        where = f", noise on {self.place} layers, {self.attacker} attacker" if self.part == NOISE else ""
        control = "exchanged target" if self.leakage == ORIGINAL else "attribute in random order"
        return Finding(
            quantity=f"{self.leakage} information{where}, {turned} = {self.x:g} (nats)",
            ours=self.value,
            interval=self.interval,
            paper=PAPER.get((self.leakage, self.part, self.x), ""),
            n=self.n,
            note=f"{control}: {shown(self.null)}; above it {shown_with(self.above, self.above_interval)}",
        )


def original_point(part: str, place: str, attacker: str, x: float, numbers: Numbers) -> Point:
    """Point of one cell of inversions.

    Args:
        part: which influence.
        place: of the noise.
        attacker: static or adaptive, or "".
        x: n, epoch or σ.
        numbers: as they are kept.
    """
    rest = {"value", "n", "exchanged", "above_exchanged"}
    return Point(
        leakage=ORIGINAL,
        part=part,
        place=place,
        attacker=attacker,
        x=x,
        value=numbers.get("value"),
        interval=interval_of(numbers, "value"),
        null=numbers.get("exchanged"),
        above=numbers.get("above_exchanged"),
        above_interval=interval_of(numbers, "above_exchanged"),
        n=int(numbers.get("n") or 0),
        beside={
            name: value for name, value in numbers.items() if name not in rest and not name.endswith(("_low", "_high"))
        },
    )


def latent_points(part: str, place: str, x: float, seeds: Sequence[Numbers]) -> list[Point]:
    """Points of the cells of one setting, a seed each; two points where a static attacker stands beside.

    Args:
        part: which influence.
        place: of the noise.
        x: n, epoch or σ.
        seeds: numbers of each seed as they are kept.
    """
    who = (STATIC, ADAPTIVE) if part == NOISE else (EVERYTHING,)
    return [_latent_point(part, place, x, seeds, one) for one in who]


def _latent_point(part: str, place: str, x: float, seeds: Sequence[Numbers], name: str) -> Point:
    value, interval = over_seeds([numbers.get(name) for numbers in seeds])
    null, _ = over_seeds([numbers.get(SHUFFLED) for numbers in seeds])
    differences = [
        mine - lost
        for numbers in seeds
        if (mine := numbers.get(name)) is not None and (lost := numbers.get(SHUFFLED)) is not None
    ]
    above, above_interval = over_seeds(differences)
    others = [one for one in seeds[0] if one not in (name, SHUFFLED)]
    return Point(
        leakage=LATENT,
        part=part,
        place=place,
        attacker="" if name == EVERYTHING else name,
        x=x,
        value=value,
        interval=interval,
        null=null,
        above=above,
        above_interval=above_interval,
        n=len(seeds),
        beside={one: over_seeds([numbers.get(one) for numbers in seeds])[0] for one in others},
    )


def curve_table(leakage: str, part: str, points: Sequence[Point]) -> Table:
    """Points of one curve, one a row.

    Args:
        leakage: original or latent.
        part: aggregation or epoch.
        points: of that curve.
    """
    control = "with an exchanged target" if leakage == ORIGINAL else "attribute in random order"
    beside = list(dict.fromkeys(name for point in points for name in point.beside))
    return Table(
        title=f"{leakage.capitalize()} information (nats) against {_HEADS[part]}",
        columns=[_HEADS[part], "V-information", control, "above it", *(name.replace("_", " ") for name in beside), "n"],
        rows=[
            [
                f"{point.x:g}",
                shown_with(point.value, point.interval),
                shown(point.null),
                shown_with(point.above, point.above_interval),
                *(shown(point.beside.get(name)) for name in beside),
                str(point.n),
            ]
            for point in points
        ],
    )


def figures(points: Sequence[Point]) -> dict[str, str]:
    """V-information over others in the average, epochs and noise, as in the paper's figures 9 to 11; a figure each."""
    said = {
        AGGREGATION: "The paper's figure 9 has the original information near zero with 30 others in the average.",
        EPOCH: "The paper's figure 10 has a drop in the first 10 to 20 epochs, and no change later.",
        NOISE: "The paper's figure 11 has noise on the first layers hide inputs best, on the last layers attributes.",
    }
    found = {}
    for part in dict.fromkeys(point.part for point in points):
        panels: dict[str, dict[str, list[Spot]]] = {}
        for point in (one for one in points if one.part == part):
            low, high = point.interval or (None, None)
            series = panels.setdefault(f"{point.leakage} information", {})
            name = f"{point.place} layers, {point.attacker}" if point.place else "attack"
            series.setdefault(name, []).append((point.x, point.value, low, high))
            if not point.place:
                series.setdefault("control", []).append((point.x, point.null, None, None))
        found[f"layer_influences_{part}"] = spots(
            panels, x=_HEADS.get(part, "std of the noise"), y="nats", title=f"Information over {part}",
            description=said[part], joined=True,
        )  # fmt: skip
    return found


def noise_table(leakage: str, points: Sequence[Point]) -> Table:
    """V-information by noisy layers and attacker, a column a σ.

    Args:
        leakage: original or latent.
        points: of noise.
    """
    stds = sorted({point.x for point in points})
    rows = []
    for place, attacker in dict.fromkeys((point.place, point.attacker) for point in points):
        mine = {point.x: point for point in points if (point.place, point.attacker) == (place, attacker)}
        quiet = next((point.beside["quiet"] for point in mine.values() if point.beside.get("quiet") is not None), None)
        cells = [shown_with(mine[std].value, mine[std].interval) if std in mine else "-" for std in stds]
        rows.append([place, attacker, *cells, shown(quiet)])
    control = [shown(_largest([point.null for point in points if point.x == std])) for std in stds]
    rows.append(["control, the largest", "-", *control, "-"])
    return Table(
        title=f"{leakage.capitalize()} information (nats) against noise on some layers, after clipping to norm 1",
        columns=["noise on", "attacker", *(f"std {std:g}" for std in stds), "from the layers without noise alone"],
        rows=rows,
    )


def conclude(points: Sequence[Point]) -> list[str]:
    """Conclusions from the points beside those of the paper."""
    lines = []
    for leakage in dict.fromkeys(point.leakage for point in points):
        mine = [point for point in points if point.leakage == leakage]
        lines += _of_aggregation(leakage, [point for point in mine if point.part == AGGREGATION])
        lines += _of_epochs(leakage, [point for point in mine if point.part == EPOCH])
        lines += _of_noise(leakage, [point for point in mine if point.part == NOISE])
    return lines


def _of_aggregation(leakage: str, points: Sequence[Point]) -> list[str]:
    ordered = sorted(points, key=lambda point: point.x)
    if not ordered:
        return []
    curve = ", ".join(f"{shown(point.above)} at n = {point.x:g}" for point in ordered)
    above = [point.x for point in ordered if point.shown]
    last = f"the interval lies above 0 up to n = {max(above):g}" if above else "no interval lies above 0"
    said = (
        "the paper: near zero at 30 by sensitivity, which is 1/(n + 1) of that of the target alone whatever an attack does"
        if leakage == ORIGINAL
        else "the paper: hard from 30 to 50"
    )
    return [f"{leakage}, aggregation: above the control {curve} nats; {last} ({said})."]


def _of_epochs(leakage: str, points: Sequence[Point]) -> list[str]:
    ordered = sorted((point for point in points if point.value is not None), key=lambda point: point.x)
    if len(ordered) < 2:
        return []
    first, last = ordered[0], ordered[-1]
    curve = ", ".join(f"{shown(point.value)} after {point.x:g}" for point in ordered)
    apart = first.interval is not None and last.interval is not None and not _meet(first.interval, last.interval)
    change = "differs from" if apart else "is not told from"
    return [
        f"{leakage}, epochs: {curve} nats; the end {change} the start by their intervals (the paper: a drop in the first 10 to "
        "20 epochs, hardly a change later)."
    ]


def _of_noise(leakage: str, points: Sequence[Point]) -> list[str]:
    lines = []
    for attacker in (STATIC, ADAPTIVE):
        mine = [point for point in points if point.attacker == attacker and point.x > 0 and point.place != "all"]
        parts = []
        for std in sorted({point.x for point in mine}):
            known = [(point.value, point.place) for point in mine if point.x == std and point.value is not None]
            if known:
                parts.append(f"std {std:g}: " + ", ".join(f"{place} {value:.3g}" for value, place in sorted(known)))
        if parts:
            best = "first" if leakage == ORIGINAL else "last"
            lines.append(
                f"{leakage}, noise, {attacker} attacker, from what hides most to what hides least (nats left): "
                f"{'; '.join(parts)} (the paper: noise on the {best} layers hides most)."
            )
    return lines


def _meet(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] <= second[1] and second[0] <= first[1]


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


__all__ = ["Point", "conclude", "curve_table", "figures", "latent_points", "noise_table", "original_point"]
