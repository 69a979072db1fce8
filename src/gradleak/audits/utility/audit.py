"""Utility as an audit: how new models are trained through the release of every scenario, and judged."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import torch

from gradleak.audits.base import ALL_OR_NAMES, Audit, Reader, Schema, Site, Writer, chosen_scenarios
from gradleak.audits.base import Task as Work
from gradleak.audits.base.rows import few, held
from gradleak.audits.utility.task import ScenarioUtility
from gradleak.core import Batch, derive_generator, describe
from gradleak.results import Count, Grounds, InputError, PlanError, Positive, Verdict
from gradleak.results.findings.utility import UtilityFinding
from gradleak.training import GroupNormForBatchNorm, Task, Training, split


@dataclass(frozen=True, kw_only=True, eq=False)
class UtilityAudit(Audit[UtilityFinding]):
    """Models trained through the release of every scenario, and what they are worth on rows they have not seen.

    Attributes:
        task: rows and model.
        training: rounds and rates.
        seeds: how many trainings a scenario.
        learning_rates: to choose from for every scenario, on training rows held back; empty for that of the training.

    Raises:
        PlanError: for less than one seed.
    """

    kind: ClassVar[str] = "utility"
    finding: ClassVar[type[UtilityFinding]] = UtilityFinding
    judges_models: ClassVar[bool] = True

    name: str = "utility"
    task: Task
    training: Training
    seeds: Count = 3
    learning_rates: Sequence[Positive] = ()

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of the section `[utility]`."""
        own = {
            "data": writer.choice("datasets"),
            "test_rows": writer.value(int),
            "seeds": writer.value(Count),
            "learning_rates": {"type": "array", "items": writer.value(Positive)},
            "replacement": writer.settings(GroupNormForBatchNorm),
            "scenarios": ALL_OR_NAMES,
        }
        return {
            "utility": {
                **writer.settings(Training, also=own, optional=True),
                "required": ["data", "test_rows", "rounds"],
            }
        }

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """The section `[utility]`: rows of their own, how new models of `[model]` are trained on them, for which scenarios."""
        if "utility" not in plan:
            return
        table = dict(reader.table(plan["utility"], "utility"))
        if "data" not in table or "test_rows" not in table:
            raise PlanError("utility: expected data (rows to train and to test on) and test_rows too")
        trained = list(inspect.signature(Training).parameters)
        own = ["data", "test_rows", "seeds", "learning_rates", "replacement", "scenarios"]
        reader.keys(table, [*own, *trained], "utility")
        scenarios = chosen_scenarios(table.pop("scenarios", "all"), "utility.scenarios")
        rows = reader.build(table.pop("data"), "datasets", "utility.data", (Batch,))
        rows = Batch(*rows) if isinstance(rows, tuple) and len(rows) == 2 else rows
        if not isinstance(rows, Batch):
            raise PlanError(f"utility.data: expected a Batch or (inputs, targets), got {type(rows).__name__}")
        test_rows = reader.typed(int, table.pop("test_rows"), "utility.test_rows")
        seeds = reader.typed(Count, table.pop("seeds", 3), "utility.seeds")
        rates = reader.typed(list[Positive], table.pop("learning_rates", []), "utility.learning_rates")
        table.setdefault("learning_rate", rates[0] if rates else None)
        if table["learning_rate"] is None:
            raise PlanError("utility: expected learning_rate, or learning_rates to choose from")
        replacement = table.pop("replacement", None)
        try:
            train, test = split(rows, test_rows=test_rows, generator=derive_generator(reader.seed, "utility", "split"))
        except InputError as error:
            raise PlanError(f"utility.test_rows: {error}") from error
        yield cls(
            scenarios=scenarios,
            task=Task(
                name="utility",
                train=train,
                test=test,
                make_model=reader.new_model(),
                loss=reader.plan_loss(),
                mode=reader.mode,
                replacement=None
                if replacement is None
                else reader.call(GroupNormForBatchNorm, replacement, "utility.replacement"),
            ),
            training=reader.call(Training, table, "utility"),
            seeds=seeds,
            learning_rates=rates,
        )

    def check(self, site: Site) -> None:
        """Refuse rows, model, training and releases that do not fit together.

        Raises:
            InputError: saying what does not.
        """
        self.training.smallest_share(self.task.train.size)
        self.task.start(torch.Generator().manual_seed(0))
        for scenario in site.scenarios:
            sizes = scenario.release.protocol.client_sizes
            if self.against(scenario.name) and sizes is not None and self.training.batch_size != sum(sizes):
                given = self.training.batch_size or f"a Poisson sample of rate {self.training.sampling_rate:g}"
                raise InputError(
                    f"utility of scenario {scenario.name!r}: a release of {type(scenario.release.protocol).__name__} holds "
                    f"the {sum(sizes)} examples of all its clients ({', '.join(map(str, sizes))}), [utility] makes releases "
                    f"of {given}; write batch_size = {sum(sizes)} in [utility], or examples that add up to its batch_size, "
                    "or give this scenario a plan of its own without [utility]"
                )

    def tasks(self, site: Site) -> Iterable[Work[UtilityFinding]]:
        """The trainings of one scenario at a time; a release costs about three plain gradients of a round's batch."""
        scenarios = [scenario for scenario in site.scenarios if self.against(scenario.name)]
        trainings = self.seeds + len(self.learning_rates)
        for scenario in scenarios:
            yield Work(
                name=f"utility/{scenario.name}",
                turn=3,
                run=ScenarioUtility(
                    audit=self.name,
                    scenario=scenario.name,
                    task=self.task,
                    training=self.training,
                    seeds=self.seeds,
                    learning_rates=tuple(self.learning_rates),
                    settings=len(scenarios),
                ),
                blank=UtilityFinding(item=f"{scenario.name}/utility", audit=self.name, scenario=scenario.name),
                headline=f"utility of {scenario.name}",
                cost=3.0 * trainings * self.training.rounds * self.training.clients,
                pace=1.6,
            )

    @classmethod
    def judge(cls, found: Sequence[UtilityFinding], grounds: Grounds) -> Iterable[Verdict]:
        """Nothing: what a model is worth says nothing of what its updates give away."""
        return ()

    def parts(self) -> Iterable[object]:
        """Its settings and those of the task, without its rows, which are private."""
        task = [getattr(self.task, one.name) for one in fields(self.task) if one.name not in ("train", "test")]
        return [self.scenarios, *task, self.training, self.seeds, list(self.learning_rates)]

    def private(self) -> Iterable[object]:
        """The rows that models are trained and judged on."""
        return [held(rows) for rows in (self.task.train, self.task.test)]

    def probed(self) -> Batch:
        """The first rows that models are trained on."""
        return few(self.task.train)

    def resolved(self) -> dict[str, Any]:
        """The settings that determine it, JSON-ready, without any data value."""
        return {
            "train_rows": self.task.train.size,
            "test_rows": self.task.test.size,
            "training": describe(self.training),
            "seeds": self.seeds,
            "learning_rates": list(self.learning_rates),
            "replacement": describe(self.task.replacement),
            "scenarios": self.scenarios and list(self.scenarios),
        }
