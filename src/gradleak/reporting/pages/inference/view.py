"""Inferences from updates, and their distance from chance: the rows behind the page on inference."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity, as_number, between, decimal, quantity
from gradleak.reporting.worth import learned_little
from gradleak.results import Evidence, Outcome, Score
from gradleak.results.findings.inference import ADVERSARY, ROUND, InferenceFinding

_METRICS = {"test_accuracy": "accuracy", "test_auroc": "AUROC", "test_r2": "R²"}
BOTH = "static = adaptive"


@dataclass(frozen=True, kw_only=True)
class RoundPoint:
    """An advantage from one round alone.

    Attributes:
        number: of the round.
        advantage: its value, not clipped where that is known.
        interval: of it, or None.
    """

    number: int
    advantage: float
    interval: tuple[float, float] | None


@dataclass(frozen=True, kw_only=True)
class InferenceView:
    """Inference of one adversary in one game, all observed rounds together.

    Attributes:
        label: the scenario and the game.
        scenario: its scenario, or the item.
        game: what is inferred: "property gender".
        adversary: "static" or "adaptive"; `BOTH` where `merged` put the two in one row.
        defenses: of the release, in words.
        auroc: area under the ROC curve.
        tpr: share found at the false-positive rate.
        false_positive_rate: of it.
        success: attack success rate.
        advantage: over the best blind guess.
        intervals: of these four by field, in print.
        blind: p*, in print.
        above_chance: whether the interval of the advantage over trials, not clipped, lies above 0; None without one.
        information: bound on it, in nats.
        fano_bound: the largest advantage by the bound.
        estimate: of the information, in nats.
        fano_estimate: the advantage by the estimate.
        trials: over all seeds.
        seeds: how many.
        spread: standard deviation of the AUROC over seeds, in print, "" for one seed.
        rounds: by round.
        curve: (false, true) positive rates, or None.
        batch_size: k.
        public_rows: rows that the adversary has.
        advantage_interval: of the advantage, or None.
        undefended: whether nothing stands in the release that an adversary could know or not.
        utility: mean over seeds of what the model is worth.
        blind_utility: mean over seeds of what the best answer that ignores the input is worth, or None.
        metric: in which metric.
        outcome: of the game.
        note: what a reader needs to know.
        played: how the game was played, in a sentence.
        hints: what its numbers say together, and none says alone.
        key: the game and the setting as text, without batch size and shadow rows: what else differs.
    """

    label: str
    scenario: str
    game: str
    adversary: str
    defenses: str
    auroc: Quantity
    tpr: Quantity
    false_positive_rate: float | None
    success: Quantity
    advantage: Quantity
    intervals: Mapping[str, str]
    blind: str
    above_chance: bool | None
    information: Quantity
    fano_bound: Quantity
    estimate: Quantity
    fano_estimate: Quantity
    trials: int
    seeds: int
    spread: str
    rounds: Sequence[RoundPoint]
    curve: tuple[Sequence[float], Sequence[float]] | None = field(repr=False)
    batch_size: float | None
    public_rows: float | None
    advantage_interval: tuple[float, float] | None
    undefended: bool
    utility: float | None
    blind_utility: float | None
    metric: str
    outcome: Outcome | None
    note: str
    played: str = field(repr=False)
    hints: Sequence[str] = field(repr=False)
    key: str = field(repr=False)

    @property
    def informed(self) -> bool:
        """True if anything stands in the record on the information that the updates hold."""
        known = (self.information, self.fano_bound, self.estimate, self.fano_estimate)
        return any(quantity.value is not None or quantity.outcome is not None for quantity in known)

    @property
    def verdict(self) -> str:
        """Verdict of chance, in words: found more or not."""
        if self.above_chance is None:
            return (
                self.outcome.label.replace("_", " ")
                if self.outcome and self.outcome.has_value is False
                else "no number"
            )
        return "above chance" if self.above_chance else "not above chance"


@dataclass(frozen=True, kw_only=True)
class DefenseRow:
    """Both adversaries against one release.

    Attributes:
        label: the scenario and the game.
        defenses: in words.
        static: the static adversary, or None.
        adaptive: the adaptive one, or None.
    """

    label: str
    defenses: str
    static: InferenceView | None
    adaptive: InferenceView | None


def inferences(findings: Sequence[InferenceFinding], context: Context) -> list[InferenceView]:
    """One view for every game and adversary, in the order of the record; one for a game without a result."""
    views, own = [], {id(finding) for finding in findings}
    for finding in findings:
        # What the game's own model is worth comes before what another training of the scenario gave.
        worth = [score for score in finding.scores if score.name in _METRICS] or [
            score
            for name in _METRICS
            for other, score in context.grounds.scores(name, finding.scenario)
            if id(other) not in own
        ]
        views += [_view(finding, adversary, worth) for adversary in finding.adversaries or ("",)]
    return views


def merged(views: Sequence[InferenceView]) -> list[InferenceView]:
    """The views with one row for both adversaries where there is nothing to know, and their numbers are the same."""
    found: list[InferenceView] = []
    for view in views:
        twin = next((other for other in found if _twins(other, view)), None)
        if twin is None:
            found.append(view)
        else:
            found[found.index(twin)] = replace(twin, adversary=BOTH)
    return found


def _twins(one: InferenceView, other: InferenceView) -> bool:
    same = all(getattr(one, key) == getattr(other, key) for key in ("auroc", "tpr", "success", "advantage", "rounds"))
    both = {one.adversary, other.adversary} == {"static", "adaptive"}
    return one.undefended and other.undefended and one.label == other.label and both and same


def warnings(views: Sequence[InferenceView]) -> list[str]:
    """Warnings against reading what the models are worth as the cost of a defense, in one line a game."""
    return list(
        dict.fromkeys(
            f"{view.label}: the reference without a defense hardly learned ({decimal(view.utility)} {view.metric}, where the "
            f"best answer that ignores the input has {decimal(view.blind_utility)}), so that no other model can be compared "
            "with it and the worth of the models says nothing of what a defense costs. Give it more rounds, or another "
            "learning rate."
            for view in views
            if view.undefended and learned_little(view.utility, view.blind_utility)
        )
    )


def defense_rows(views: Sequence[InferenceView]) -> list[DefenseRow]:
    """Static and adaptive side by side; empty where no game had both."""
    rows: dict[tuple[str, str], dict[str, InferenceView]] = {}
    for view in views:
        both = ("static", "adaptive") if view.adversary == BOTH else (view.adversary,)
        rows.setdefault((view.label, view.defenses), {}).update(dict.fromkeys(both, view))
    found = [
        DefenseRow(label=label, defenses=defenses, static=both.get("static"), adaptive=both.get("adaptive"))
        for (label, defenses), both in rows.items()
    ]
    return found if any(row.static and row.adaptive for row in found) else []


def noted(views: Sequence[InferenceView]) -> list[tuple[str, str]]:
    """Notes on games, each once: (whom it is about, note)."""
    about: dict[str, list[str]] = {}
    for view in views:
        for note in _notes(view):
            about.setdefault(note, []).append(f"{view.label}, {view.adversary}")
    return [(_whom(names, views), note) for note, names in about.items()]


def _whom(names: Sequence[str], views: Sequence[InferenceView]) -> str:
    if len(names) == len(views) > 1:
        return "all games"
    # A note on both adversaries is one on the game.
    found = [
        view.label if all(f"{view.label}, {other.adversary}" in names for other in views if other.label == view.label)
        else f"{view.label}, {view.adversary}"
        for view in views
        if f"{view.label}, {view.adversary}" in names
    ]  # fmt: skip
    return "; ".join(dict.fromkeys(found))


def _notes(view: InferenceView) -> list[str]:
    quantities = (view.auroc, view.advantage, view.tpr, view.information)
    notes = [view.played, *view.hints, view.note, *(found.note for found in quantities)]
    return [part for part in dict.fromkeys(notes) if part]


def _view(finding: InferenceFinding, adversary: str, utilities: Sequence[Score]) -> InferenceView:
    by_name = {
        "auroc": finding.together("auroc", adversary),
        "tpr": finding.together("tpr_at_fpr", adversary),
        "success": finding.together("attack_success_rate", adversary),
        "advantage": finding.together("advantage", adversary),
    }
    advantage, auroc, rate = by_name["advantage"], by_name["auroc"], by_name["tpr"]
    blind = as_number(advantage.details.get("blind")) if advantage else None
    game = finding.game
    release = words.mapping(game.get("release"))
    scenario = finding.scenario or finding.item
    spread = as_number(auroc.details.get("sd")) if auroc else None
    worth = [score.value for score in utilities if score.value is not None]
    ignorant = [each for s in utilities if (each := as_number(s.details.get("blind"))) is not None]
    name = _game_name(finding)
    quantities = {key: _printed(score, finding) for key, score in by_name.items()}
    rounds = _by_round(finding, adversary)
    return InferenceView(
        label=f"{scenario}, {name}" if name and name != scenario else scenario,
        scenario=scenario,
        game=name,
        adversary=adversary,
        defenses=_defenses(game),
        auroc=quantities["auroc"],
        tpr=quantities["tpr"],
        false_positive_rate=as_number(rate.details.get("false_positive_rate")) if rate else None,
        success=quantities["success"],
        advantage=quantities["advantage"],
        intervals={key: between(score) for key, score in by_name.items()},
        blind=decimal(blind),
        above_chance=_above(advantage),
        information=_printed(finding.together("information_bound", adversary)),
        fano_bound=_printed(finding.together("fano_advantage", adversary, Evidence.UPPER_BOUND)),
        estimate=_printed(finding.together("information_estimate", adversary)),
        fano_estimate=_printed(finding.together("fano_advantage", adversary, Evidence.ESTIMATE)),
        trials=advantage.n if advantage else 0,
        seeds=len(finding.runs),
        spread="" if spread is None else decimal(spread, 2),
        rounds=rounds,
        curve=_curve(auroc),
        batch_size=as_number(game.get("batch_size")),
        public_rows=as_number(game.get("public_rows")),
        advantage_interval=None if advantage is None or advantage.value is None else advantage.interval,
        undefended=release.get("use") == "Release" and not words.sequence(release.get("defenses")),
        utility=sum(worth) / len(worth) if worth else None,
        blind_utility=sum(ignorant) / len(ignorant) if ignorant else None,
        metric=_METRICS[utilities[0].name] if utilities else "",
        outcome=finding.outcome,
        note=finding.note,
        played=_played(finding),
        hints=_hints(by_name, rounds),
        key=json.dumps([adversary, finding.scenario, _without_sizes(game)], sort_keys=True),
    )


def _played(finding: InferenceFinding) -> str:
    """The setting of a game, as far as the finding has it."""
    game = finding.game
    rows = finding.runs[0].rows if finding.runs else {}
    sizes = [f"{rows[key]} {key}" for key in ("private", "public", "test") if key in rows]
    reader = game.get("adversary") or game.get("encoder")
    parts = [
        f"k = {game['batch_size']} rows a batch" if "batch_size" in game else "",
        f"rows: {', '.join(sizes)}" if sizes else "",
        f"{len(words.sequence(game.get('observed')))} of {game['rounds']} rounds observed" if "rounds" in game else "",
        f"learning rate {game['learning_rate']}" if "learning_rate" in game else "",
        f"{game['shadow_batches']} shadow batches a round" if "shadow_batches" in game else "",
        f"read by {words.plain(reader)}" if isinstance(reader, Mapping) else "",
        f"on {words.plain(game['features'])}" if isinstance(game.get("features"), Mapping) else "",
        "with side information on the batch" if game.get("side") is True else "",
    ]
    told = ", ".join(part for part in parts if part)
    return f"played with {told}" if told else ""


def _hints(by_name: Mapping[str, Score | None], rounds: Sequence[RoundPoint]) -> list[str]:
    """Hints where a threshold or the sum over rounds hides what the adversary holds."""
    auroc, advantage = by_name["auroc"], by_name["advantage"]
    hints = []
    if auroc is not None and auroc.interval is not None and auroc.interval[0] > 0.5 and _above(advantage) is False:
        hints.append(
            "not above chance by its own guesses, but it orders the batches rightly (the interval of the AUROC lies above 0.5): "
            "another threshold makes a leak of that, so this is no protection"
        )
    best = max((point for point in rounds if len(rounds) > 1), key=lambda point: point.advantage, default=None)
    together = None if advantage is None else advantage.value
    sure = best is not None and best.interval is not None and best.interval[0] > 0.0
    if best is not None and sure and together is not None and best.advantage > together + 0.02:
        hints.append(
            f"one round alone gives more ({best.advantage:.2f} in round {best.number + 1}) than all together ({together:.2f}): "
            "rounds are added up as if they were independent; go by the larger number"
        )
    return hints


def _printed(score: Score | None, finding: InferenceFinding | None = None) -> Quantity:
    """With four digits and no percent sign, as such tables are printed; without a score the outcome of the finding."""
    if score is not None:
        found = quantity(score)
        return found if score.value is None else replace(found, text=decimal(score.value, 4))
    outcome = None if finding is None else finding.outcome
    if finding is None or outcome is None or outcome.has_value is not False:
        return Quantity()
    return Quantity(text=outcome.label.replace("_", " "), outcome=outcome, note=finding.note)


def _above(advantage: Score | None) -> bool | None:
    interval = _unclipped(advantage)
    return None if interval is None else interval[0] > 0.0


def _unclipped(advantage: Score | None) -> tuple[float, float] | None:
    if advantage is None or advantage.value is None:
        return None
    ends = [as_number(end) for end in words.sequence(advantage.details.get("unclipped_interval"))]
    if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
        return ends[0], ends[1]
    return advantage.interval


def _by_round(finding: InferenceFinding, adversary: str) -> list[RoundPoint]:
    points: dict[int, dict[str, Score]] = {}
    for score in finding.scores:
        number = score.about.get(ROUND)
        if isinstance(number, int) and score.about.get(ADVERSARY) == adversary and score.value is not None:
            points.setdefault(number, {}).setdefault(score.name, score)
    return [
        RoundPoint(number=number, advantage=float(advantage.value or 0.0), interval=advantage.interval)
        for number, scores in sorted(points.items())
        if (advantage := scores.get("advantage")) is not None
    ]


def _curve(auroc: Score | None) -> tuple[Sequence[float], Sequence[float]] | None:
    roc = words.mapping(auroc.details.get("roc")) if auroc else {}
    false, true = ([as_number(rate) for rate in words.sequence(roc.get(key))] for key in ("fpr", "tpr"))
    pairs = [(f, t) for f, t in zip(false, true, strict=False) if f is not None and t is not None]
    if len(pairs) < 2:
        return None
    return [f for f, _ in pairs], [t for _, t in pairs]


def _game_name(finding: InferenceFinding) -> str:
    kind = str(finding.game.get("use") or "").removesuffix("Game").lower()
    return " ".join(part for part in (kind, finding.audit) if part)


def _defenses(game: Mapping[str, Any]) -> str:
    release = words.mapping(game.get("release"))
    listed = [words.plain(defense) for defense in words.sequence(release.get("defenses"))]
    if not listed and release.get("use") not in (None, "Release"):
        return words.plain(release)
    return ", ".join(listed) or "none"


def _without_sizes(game: Mapping[str, Any]) -> dict[str, Any]:
    """Further settings of a game; sizes of the shadow data and of the batch are the axes of plots."""
    axes = ("batch_size", "public_rows", "shadow_batches", "observed", "adversaries")
    return {key: value for key, value in game.items() if key not in axes}
