"""One adversary in one game, as the tables and figures of the page on inference read it from its finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradleak.reporting import words
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import Quantity, as_number, between, decimal, quantity
from gradleak.reporting.worth import learned_little
from gradleak.results import Evidence, Score
from gradleak.results.findings.inference import ADVERSARY, ROUND, InferenceFinding

_METRICS = {"test_accuracy": "accuracy", "test_auroc": "AUROC", "test_r2": "R²"}
BOTH = "static = adaptive"
_TOLD = ("auroc", "tpr_at_fpr", "attack_success_rate", "advantage")


@dataclass(frozen=True, eq=False)
class InferenceView:
    """Inference of one adversary, or of both alike, in one game, all observed rounds together."""

    finding: InferenceFinding
    adversary: str
    worth: Sequence[Score]

    @property
    def _side(self) -> str:
        return "static" if self.adversary == BOTH else self.adversary

    def score(self, name: str, evidence: Evidence | None = None) -> Score | None:
        """The score of that name, or None."""
        return self.finding.together(name, self._side, evidence)

    def number(self, name: str, evidence: Evidence | None = None) -> Quantity:
        """A score with four digits and no percent sign; without one the outcome of a game that gave no number."""
        score, outcome = self.score(name, evidence), self.finding.outcome
        if score is not None:
            found = quantity(score)
            return found if score.value is None else replace(found, text=decimal(score.value, 4))
        if name not in _TOLD or outcome is None or outcome.has_value is not False:
            return Quantity()
        return Quantity(text=outcome.label.replace("_", " "), outcome=outcome, note=self.finding.note)

    def interval(self, name: str) -> str:
        """The interval of a score in print."""
        return between(self.score(name))

    def detail(self, name: str, key: str) -> float | None:
        """A number beside a score: "blind" of the advantage, "sd" of the AUROC."""
        score = self.score(name)
        return None if score is None else as_number(score.details.get(key))

    @cached_property
    def advantage(self) -> Quantity:
        """Its advantage over the best blind guess."""
        return self.number("advantage")

    @property
    def scenario(self) -> str:
        """Its scenario, or its item."""
        return self.finding.scenario or self.finding.item

    @property
    def game(self) -> str:
        """The game: "property gender"."""
        kind = str(self.finding.game.get("use") or "").removesuffix("Game").lower()
        return " ".join(part for part in (kind, self.finding.audit) if part)

    @property
    def label(self) -> str:
        """The scenario and the game."""
        return f"{self.scenario}, {self.game}" if self.game not in ("", self.scenario) else self.scenario

    @property
    def defenses(self) -> str:
        """The defenses of the release in words."""
        release = words.mapping(self.finding.game.get("release"))
        listed = [words.plain(defense) for defense in words.sequence(release.get("defenses"))]
        if not listed and release.get("use") not in (None, "Release"):
            return words.plain(release)
        return ", ".join(listed) or "none"

    @property
    def undefended(self) -> bool:
        """True if nothing stands in the release that an adversary could know or not."""
        release = words.mapping(self.finding.game.get("release"))
        return release.get("use") == "Release" and not words.sequence(release.get("defenses"))

    @property
    def above_chance(self) -> bool | None:
        """True if the interval of the advantage, not clipped, lies above 0; None without one."""
        score = self.score("advantage")
        if score is None or score.value is None:
            return None
        ends = [as_number(end) for end in words.sequence(score.details.get("unclipped_interval"))]
        low = ends[0] if len(ends) == 2 and None not in ends else score.interval and score.interval[0]
        return None if low is None else low > 0.0

    @property
    def ranks(self) -> bool:
        """True if it ranks batches correctly and its own guesses are not above chance."""
        auroc = self.score("auroc")
        return (
            self.above_chance is False and auroc is not None and auroc.interval is not None and auroc.interval[0] > 0.5
        )

    @property
    def wrong_way(self) -> bool:
        """True if it tells the values apart and its own guesses are not above chance, since it takes each for the other."""
        auroc = self.score("auroc")
        return (
            self.above_chance is False and auroc is not None and auroc.interval is not None and auroc.interval[1] < 0.5
        )

    @property
    def verdict(self) -> str:
        """Verdict of chance, in words: found more or not."""
        if self.above_chance is None:
            outcome = self.finding.outcome
            return outcome.label.replace("_", " ") if outcome and outcome.has_value is False else "no number"
        return "above chance" if self.above_chance else "not above chance"

    @cached_property
    def rounds(self) -> Mapping[int, Score]:
        """The advantage from each observed round alone, where it has a value."""
        found: dict[int, Score] = {}
        for score in self.finding.scores:
            number = score.about.get(ROUND)
            mine = score.name == "advantage" and score.about.get(ADVERSARY) == self._side
            if mine and isinstance(number, int) and score.value is not None:
                found.setdefault(number, score)
        return dict(sorted(found.items()))

    @cached_property
    def strongest(self) -> int | None:
        """The observed round that alone gives more than all together, beyond doubt; None where there is none."""
        alone, together = self.rounds, self.advantage.value
        best = max(alone, key=lambda number: alone[number].value or 0.0) if len(alone) > 1 else None
        if best is None or together is None:
            return None
        value, interval = alone[best].value or 0.0, alone[best].interval
        return best if interval is not None and interval[0] > 0.0 and value > together + 0.02 else None

    @property
    def reached(self) -> float:
        """Its largest advantage, of all rounds together or of one that gives more."""
        return (self.rounds[self.strongest].value if self.strongest is not None else self.advantage.value) or 0.0

    @property
    def success(self) -> float | None:
        """The share of right answers that goes with it."""
        if self.strongest is None:
            rate = self.score("attack_success_rate")
            return rate.value if rate else None
        found = (
            score.value
            for score in self.finding.scores
            if score.name == "attack_success_rate"
            and (score.about.get(ADVERSARY), score.about.get(ROUND)) == (self._side, self.strongest)
        )
        return next(found, None)

    @property
    def seen(self) -> str:
        """The updates behind it, in words."""
        if self.strongest is not None:
            return f"round {self.strongest + 1} alone"
        many = len(self.finding.observed)
        return f"{many} rounds together" if many > 1 else "1 round"

    @property
    def vacuous(self) -> str:
        """Noise that the release would need for Fano's inequality to say something; "" where it does, or cannot."""
        details = {} if (score := self.score("information_bound")) is None else score.details
        needed, std = as_number(details.get("std_needed")), as_number(details.get("noise_std"))
        entropy, sum_ = as_number(details.get("entropy")), as_number(details.get("sum"))
        if needed is None or not std or entropy is None or sum_ is None or sum_ < entropy:
            return ""
        return (
            f"{self.scenario} has noise with a bound on what it tells, but far too little of it to limit any adversary: it "
            f"takes {decimal(needed / std)} times as much to begin to (a std of {decimal(needed)} on the update; {decimal(std)} "
            "is there)"
        )

    @property
    def utility(self) -> float | None:
        """The mean over seeds of what the model is worth."""
        return _mean([score.value for score in self.worth])

    @property
    def blind_utility(self) -> float | None:
        """The mean over seeds of what the best answer that ignores the input is worth."""
        return _mean([as_number(score.details.get("blind")) for score in self.worth])

    @property
    def metric(self) -> str:
        """The metric of both."""
        return _METRICS[self.worth[0].name] if self.worth else ""


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


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
        views += [InferenceView(finding, adversary, worth) for adversary in finding.adversaries or ("",)]
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
    both = {one.adversary, other.adversary} == {"static", "adaptive"}
    if not (both and one.undefended and other.undefended and one.label == other.label):
        return False
    rounds = ([(number, s.value, s.interval) for number, s in view.rounds.items()] for view in (one, other))
    return next(rounds) == next(rounds) and all(one.number(name) == other.number(name) for name in _TOLD)


def warnings(views: Sequence[InferenceView]) -> list[str]:
    """Warnings against reading what the models are worth as the cost of a defense, in one line a game."""
    return list(
        dict.fromkeys(
            f"{view.label}: the reference without a defense hardly learned ({decimal(view.utility)} {view.metric}, where the "
            f"best answer that ignores the input has {decimal(view.blind_utility)}), so that no other model can be compared "
            "with it and the utility of the models says nothing of what a defense costs. Give it more rounds, or another "
            "learning rate."
            for view in views
            if view.undefended and learned_little(view.utility, view.blind_utility)
        )
    )


def defense_rows(views: Sequence[InferenceView]) -> Mapping[tuple[str, str], Mapping[str, InferenceView]]:
    """The adversaries by label and defenses, static and adaptive side by side; empty where no game had both."""
    rows: dict[tuple[str, str], dict[str, InferenceView]] = {}
    for view in views:
        both = ("static", "adaptive") if view.adversary == BOTH else (view.adversary,)
        rows.setdefault((view.label, view.defenses), {}).update(dict.fromkeys(both, view))
    return rows if any({"static", "adaptive"} <= set(row) for row in rows.values()) else {}


def noted(views: Sequence[InferenceView]) -> list[tuple[str, str]]:
    """Notes on games, each once: (whom it is about, note)."""
    about: dict[str, list[InferenceView]] = {}
    for view in views:
        quantities = (view.number(name) for name in ("auroc", "advantage", "tpr_at_fpr", "information_bound"))
        notes = [_played(view.finding), *hints(view), view.finding.note, *(found.note for found in quantities)]
        for note in dict.fromkeys(note for note in notes if note):
            about.setdefault(note, []).append(view)
    return [(_whom(of, views), note) for note, of in about.items()]


def _whom(of: Sequence[InferenceView], views: Sequence[InferenceView]) -> str:
    if len(of) == len(views) > 1:
        return "all games"
    names = {f"{view.label}, {view.adversary}" for view in of}
    # A note on both adversaries is one on the game.
    found = [
        view.label if all(f"{view.label}, {other.adversary}" in names for other in views if other.label == view.label)
        else f"{view.label}, {view.adversary}"
        for view in of
    ]  # fmt: skip
    return "; ".join(dict.fromkeys(found))


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
    return f"settings: {told}" if told else ""


def hints(view: InferenceView) -> Iterator[str]:
    """Hints where a threshold or the sum over rounds hides what the adversary holds."""
    if view.ranks:
        yield (
            "not above chance by its own guesses, but it ranks the batches correctly (the interval of the AUROC lies above 0.5): "
            "another threshold turns this into a leak, so this is no protection"
        )
    if view.strongest is not None:
        yield (
            f"one round alone gives more ({view.reached:z.2f} in {view.seen.removesuffix(' alone')}) than all together "
            f"({view.advantage.value:z.2f}): rounds are added up as if they were independent; go by the larger number"
        )
