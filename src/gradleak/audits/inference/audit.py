"""The section `[inference.NAME]` of a plan: a game that is played against the release of every scenario."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from gradleak.audits.base import ALL_OR_NAMES, Audit, Reader, Schema, Site, Task, Writer, chosen_scenarios
from gradleak.audits.base.rows import few, held
from gradleak.audits.inference.sizes import SWEPT, swept
from gradleak.audits.inference.tasks import ControlGame, Game, blank, control_blank
from gradleak.audits.inference.verdict import judge_games
from gradleak.core import Batch, Stage, derive_seed
from gradleak.games import Control, InferenceGame
from gradleak.results import Count, GradleakError, Grounds, PlanError, Verdict
from gradleak.results.findings.inference import InferenceFinding

# Shadow and trial updates are made together, many at a price of one.
SHARED_COST = 0.1
# Gradients of every example, changed and averaged, in plain gradients of a batch.
EXAMPLES_COST = 4.0
# Where a plan states what a game would otherwise take from a scenario or from the model.
ELSEWHERE: Mapping[str, str] = {
    "model": "[model]",
    "release": "[[scenarios]]",
    "loss": "[objective]",
    "mode": "[objective]",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class InferenceAudit(Audit[InferenceFinding]):
    """One game, played against the releases of some scenarios, with two controls of its own.

    Attributes:
        game: rows, model, adversary; its own release is replaced by that of each scenario.
        seeds: how often it is played, each time with other rows, weights and batches.

    Raises:
        PlanError: for less than one seed, or a game that is a control.
    """

    kind: ClassVar[str] = "inference"
    finding: ClassVar[type[InferenceFinding]] = InferenceFinding
    noun: ClassVar[str] = "inference game"
    trains_perturbations: ClassVar[bool] = True

    game: InferenceGame
    seeds: Count = 1

    def __post_init__(self) -> None:
        """Check that the game is no control."""
        super().__post_init__()
        if self.game.control is not Control.NONE:
            raise PlanError(
                f"inference, control: expected a game, got a control of one ({self.game.control}), which would be judged as if "
                "it were; an audit plays both controls of every game"
            )

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the tables `[inference.NAME]`."""
        sizes = {key: writer.value(Count) for key in SWEPT}
        lists: dict[str, Schema] = {
            key: {"anyOf": [size, {"type": "array", "items": size, "minItems": 1}]} for key, size in sizes.items()
        }
        own = {"seeds": writer.value(Count), "scenarios": ALL_OR_NAMES}
        return {
            "inference": writer.named(
                writer.choice(
                    "games", also={**own, **lists}, without=("model", "release", "loss", "mode", "objective", "control")
                )
            )
        }

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """One game a table, or one for each size where a table gives a list of sizes."""
        for table, given in reader.table(plan.get(cls.kind, {}), cls.kind).items():
            for name, spec in swept(table, reader.table(given, f"{cls.kind}.{table}")).items():
                yield cls._read(name, dict(spec), plan, reader)

    @classmethod
    def _read(cls, name: str, table: dict[str, Any], plan: Mapping[str, Any], reader: Reader) -> Self:
        where = f"{cls.kind}.{name}"
        for key, place in ELSEWHERE.items():
            if key in table:
                raise PlanError(f"{where}: unknown key {key!r}; a game takes it from {place}")
        if "control" in table:
            raise PlanError(f"{where}: unknown key 'control'; an audit plays both controls of every game by itself")
        seeds = reader.typed(Count, table.pop("seeds", 1), f"{where}.seeds")
        scenarios = chosen_scenarios(table.pop("scenarios", "all"), f"{where}.scenarios")
        training = {"model": reader.new_model(), "loss": reader.plan_loss(), "mode": reader.mode}
        return cls(name=name, game=reader.build(table | training, "games", where), seeds=seeds, scenarios=scenarios)

    def check(self, site: Site) -> None:
        """Refuse rows, model and settings that cannot be played; a few rows are released at a fresh model, nothing is trained.

        Raises:
            PlanError: with the reason.
        """
        try:
            self.game.rehearse()
        except GradleakError as refusal:
            raise PlanError(f"inference.{self.name}: {refusal}") from refusal
        except (TypeError, ValueError, RuntimeError, LookupError) as error:
            reason = " ".join(str(error).split())
            raise PlanError(
                f"inference.{self.name}: a first release raised {type(error).__name__}: {reason}"
            ) from error

    def tasks(self, site: Site) -> Iterable[Task[InferenceFinding]]:
        """Both controls of the game, and the game against every scenario."""
        # The same for every scenario, so that rows and weights are too.
        seeds = [derive_seed(site.seed, "inference", self.name, str(number)) for number in range(self.seeds)]
        control_seed = derive_seed(site.seed, "inference", f"{self.name} control", "0")
        controls = []
        for planted, wanted in ((True, site.controls.positive), (False, site.controls.negative)):
            if wanted:
                empty = control_blank(self.name, planted=planted)
                word = "positive" if planted else "negative"
                controls.append(f"control/inference/{word}/{self.name}")
                yield Task(
                    name=controls[-1],
                    turn=1,
                    run=ControlGame(game=self.game, seed=control_seed, blank=empty),
                    blank=empty,
                    headline=f"{word} control of {self.name}",
                )
        training, reading = self._costs()
        for scenario in site.scenarios:
            if self.against(scenario.name):
                empty = blank(self.name, scenario.name)
                apart = any(defense.stage is Stage.EXAMPLE for defense in scenario.release.defenses)
                yield Task(
                    name=f"inference/{scenario.name}/{self.name}",
                    turn=1,
                    needs=controls,
                    run=Game(game=self.game, seeds=seeds, training=training / (training + reading), blank=empty),
                    blank=empty,
                    headline=f"{self.name}: {scenario.name}",
                    cost=(training + reading) * (EXAMPLES_COST if apart else 1.0),
                    pace=1.3,
                )

    @classmethod
    def judge(cls, found: Sequence[InferenceFinding], grounds: Grounds) -> Iterable[Verdict]:
        """A verdict on the game against every scenario; see `judge_games`."""
        return judge_games(found, grounds)

    def parts(self) -> Iterable[object]:
        """The class of the game and its settings, without its rows, which are private."""
        rows = ("population", "split")
        return [type(self.game), *(getattr(self.game, one.name) for one in fields(self.game) if one.name not in rows)]

    def private(self) -> Iterable[object]:
        """The rows of the game, and how they are split."""
        split = self.game.split
        return [held(self.game.population), None if split is None else held(split) | {"population": None}]

    def probed(self) -> Batch:
        """The first rows of the game."""
        return few(self.game.population)

    def resolved(self) -> dict[str, Any]:
        """Settings that determine it, JSON-ready, without any data value."""
        return {"game": self.game.describe(), "seeds": self.seeds, "scenarios": self.scenarios and list(self.scenarios)}

    def _costs(self) -> tuple[float, float]:
        """The expected costs of training and of reading against one scenario, in plain gradients of a batch."""
        game = self.game
        training = game.rounds * getattr(game, "private_rows", game.population.size) / game.batch_size
        reading = SHARED_COST * len(game.seen) * len(game.playing) * (game.trials + game.shadow_batches)
        return self.seeds * training, self.seeds * reading
