"""The loop of one lockstep group: iterates, best iterates, recoveries, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.evaluation import PLAIN_GRADIENTS_PER_EVALUATION, Evaluator, Route, Rules
from gradleak.attacks.inversion.optimizers import Optimizer, Steps
from gradleak.attacks.inversion.population_search import PopulationSearch
from gradleak.attacks.inversion.priors import GroupConsistency
from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.monitor import Monitor, fingerprint
from gradleak.core import Reconstruction, describe
from gradleak.results import InputError, Outcome

if TYPE_CHECKING:
    from gradleak.attacks.inversion.engine import Inversion, SearchStage

Saved = tuple[dict[str, Tensor], dict[str, Any]]
"""Tensors and facts of a state."""

MAX_RECOVERIES = 10
"""How often a start may return from non-finite numbers before it is given up."""


class Search:
    """The state of one lockstep run: rows are targets × starts, a target's starts side by side.

    A target is closed as soon as it is explained, has run out of patience, or has lost all of its starts: its rows stay
    where they are while the others go on, so that its result does not depend on them.

    Args:
        config: what is searched and how.
        problems: the targets; they differ in target and label values alone.
        generators: one a target, for noise.
        monitor: progress and checkpoint.
    """

    def __init__(
        self,
        config: Inversion,
        problems: Sequence[Problem],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> None:
        self.config = config
        self.problems = problems
        self.problem = problems[0]
        self.generators = generators
        self.monitor = monitor
        self.low, self.high = self.problem.variables.bounds(self.problem.space)
        self.bounded = bool((self.low.isfinite() | self.high.isfinite()).any())
        self.matching = self.problem.likely(config.matching)
        self.groups = [prior for prior in config.priors if isinstance(prior, GroupConsistency)]
        self.planned = config.rounds * sum(stage.planned for stage in config.stages)
        # The matching loss that round-off alone leaves.
        self.floor = [self.matching.at_round_off(problem.round_off) for problem in problems]
        self.endings: list[Outcome | None] = [None] * len(problems)
        self.spent = [0] * len(problems)
        self.passes = [0.0] * len(problems)
        self.populations = PopulationSearch(self)
        self.history: list[Tensor] = []
        self.consensus: Tensor | None = None

    def run(self, start: Tensor) -> list[Reconstruction]:
        """Search from rows (s, n) and claim the best of each target."""
        rows = len(start)
        config = self.config
        rules = Rules(matching=self.matching, priors=config.priors, max_bytes=config.max_bytes, compile=config.compile)
        self.evaluator = Evaluator(self.problems, rules, rows)
        self.best = start.clamp(self.low, self.high)
        self.best_loss = torch.full((rows,), torch.inf, dtype=start.dtype, device=start.device)
        # Where the next stage begins, and where one that is under way has been best.
        self.handed, self.handed_loss = self.best, self.best_loss
        self.reached, self.reached_loss = self.best, self.best_loss
        self.recoveries = torch.zeros(rows, dtype=torch.int64, device=start.device)
        self.restarts = torch.zeros_like(self.recoveries)
        self.shrink = torch.ones(rows, dtype=start.dtype, device=start.device)
        self.identity = self._identity() if self.monitor.checkpoint is not None else ""
        saved = self._load()
        numbers = config.rounds * len(config.stages)
        for number in range(numbers):
            if saved is not None and number < saved[1]["stage"]:
                continue
            if not all(self.endings):
                self._stage(number, saved)
            saved = None
        self._report(force=True)
        if self.monitor.checkpoint is not None:
            # How it was computed shows at the first evaluation alone, and a finished search makes none when it is resumed.
            how = {"route": self.evaluator.route.value, "batches_values": self.evaluator.batches_values}
            self._save({}, {"stage": numbers, **how})
        return [self._claim(place) for place in range(len(self.problems))]

    def _stage(self, number: int, saved: Saved | None) -> None:
        """One stage, from what the one before handed on; it hands on in turn."""
        stage = self.config.stages[number % len(self.config.stages)]
        if saved is None:
            self.reached, self.reached_loss = self.handed, self.handed_loss
        if isinstance(stage.optimizer, Optimizer):
            self._descend(number, stage, stage.optimizer, saved)
            self.handed, self.handed_loss = self.reached, self.reached_loss
        else:
            self.populations.run(number, stage, stage.optimizer, saved)

    def _descend(self, number: int, stage: SearchStage, optimizer: Optimizer, saved: Saved | None) -> None:
        """A stage down the gradient."""
        place = self.handed
        moved = _span(self.problem.variables.places(self.problem.space, stage.part))
        start = place if moved is None else place[:, moved]
        # Over all rounds: the steps of a late round are as short as its place in the whole asks for.
        before = number // len(self.config.stages) * stage.evaluations
        steps = optimizer.begin(start, self.config.rounds * stage.evaluations, lambda: self._draw(start.shape[1]))
        reference, first = self.reached_loss, 0
        stale = torch.zeros(len(self.problems), dtype=torch.int64)
        idle = torch.zeros_like(self.recoveries)
        if saved is not None:
            tensors, facts = saved
            place, reference, idle = tensors["place"], tensors["reference"], tensors["idle"]
            stale, first = tensors["stale"].cpu(), facts["evaluation"]
            steps.restore({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("steps.")})
        for evaluation in range(first, stage.evaluations + 1):
            if self.monitor.due:
                state = {"place": place, "reference": reference, "idle": idle, "stale": stale}
                state |= {f"steps.{name}": tensor for name, tensor in steps.state().items()}
                self._save(state, {"stage": number, "evaluation": evaluation})
            self._agree(place, evaluation, stage.evaluations)
            live = self._live()
            gradient, matching, finite = self.evaluator(place, self.consensus)
            better = self._keep(place, matching, live & finite)
            self._spend(torch.where(finite, matching, self.best_loss), PLAIN_GRADIENTS_PER_EVALUATION)
            place = self._return(place, live & ~finite)
            reference, stale = self._progress(reference, stale)
            self._close(stale)
            if evaluation == stage.evaluations or all(self.endings):
                break
            idle = torch.where(better, 0, idle + 1)
            stuck = idle >= stage.restart_after if stage.restart_after is not None else torch.zeros_like(finite)
            if bool(stuck.any()):
                place, idle = self._restart(place, stuck & live), idle.masked_fill(stuck, 0)
            moving = self._live() & finite & ~stuck
            place = self._step(place, gradient, moving, steps, before + evaluation, moved)

    def _keep(self, place: Tensor, matching: Tensor, finite: Tensor) -> Tensor:
        """Keep iterates that are better than all before; those better than all of this stage are returned, marked."""
        better = finite & (matching < self.best_loss)
        self.best = _rows(better, place, self.best)
        self.best_loss = torch.where(better, matching, self.best_loss)
        nearer = finite & (matching < self.reached_loss)
        self.reached = _rows(nearer, place, self.reached)
        self.reached_loss = torch.where(nearer, matching, self.reached_loss)
        return nearer

    def _progress(self, reference: Tensor, stale: Tensor) -> tuple[Tensor, Tensor]:
        """The losses to be beaten, and for how many evaluations no start of a target has done so."""
        progress = self._any(self.reached_loss < reference * (1 - 1e-3))
        return torch.where(self._spread(progress), self.reached_loss, reference), torch.where(
            progress.cpu(), 0, stale + 1
        )

    def _spend(self, matching: Tensor, passes: float) -> None:
        """Note the losses of one evaluation, and what it cost a start in plain gradients."""
        self.history.append(matching)
        self.passes = [n + passes * (ending is None) for n, ending in zip(self.passes, self.endings, strict=True)]
        self.spent = [n + (ending is None) for n, ending in zip(self.spent, self.endings, strict=True)]
        self._report()

    def _close(self, stale: Tensor) -> None:
        """End the search of targets that are explained, have lost all starts, or made no progress for too long."""
        starts = self.config.restarts
        best = self.best_loss.reshape(-1, starts).amin(dim=1).tolist()
        lost = (self.recoveries.reshape(-1, starts) > MAX_RECOVERIES).all(dim=1).tolist()
        patience = self.config.patience
        for place, ending in enumerate(self.endings):
            if ending is not None:
                continue
            if best[place] <= self.floor[place]:
                self.endings[place] = Outcome.CONVERGED
            elif lost[place] or (patience is not None and int(stale[place]) >= patience):
                self.endings[place] = Outcome.PLATEAU

    def _live(self) -> Tensor:
        """The rows whose target is still searched for."""
        running = torch.tensor([ending is None for ending in self.endings], device=self.best.device)
        return self._spread(running)

    def _any(self, rows: Tensor) -> Tensor:
        """Whether any start of each target is marked."""
        return rows.reshape(-1, self.config.restarts).any(dim=1)

    def _spread(self, targets: Tensor) -> Tensor:
        """One value a target, for each of its rows."""
        return targets.repeat_interleave(self.config.restarts)

    def _step(
        self,
        place: Tensor,
        gradient: Tensor,
        moving: Tensor,
        steps: Steps,
        evaluation: int,
        moved: Tensor | slice | None,
    ) -> Tensor:
        """One step of the rows that move, in the entries that move; the others stay, and their optimizer forgets its past."""
        whole, low, high = place, self.low, self.high
        if moved is not None:
            place, gradient = place[:, moved], gradient[:, moved]
            low, high = (low[moved], high[moved]) if self.bounded else (low, high)
        still = torch.zeros((), dtype=gradient.dtype, device=gradient.device)
        change = steps.direction(_rows(moving, gradient, still), evaluation)
        change = _rows(moving, change, still) * self.shrink[:, None]
        target = (place + change).clamp(low, high) if self.bounded else place + change
        target = _rows(torch.isfinite(target).all(dim=1), target, place)
        steps.moved(target - place)
        if not bool(moving.all()):
            steps.reset(~moving)
        if moved is None:
            return target
        if isinstance(moved, slice):
            return torch.cat([whole[:, : moved.start], target, whole[:, moved.stop :]], dim=1)
        return whole.index_copy(1, moved, target)

    def _return(self, place: Tensor, broken: Tensor) -> Tensor:
        """Rows without finite numbers go back to this stage's best iterate; their next steps are half as long."""
        self.recoveries = self.recoveries + broken.long()
        self.shrink = torch.where(broken, self.shrink / 2, self.shrink)
        return _rows(broken, self.reached, place)

    def _restart(self, place: Tensor, stuck: Tensor) -> Tensor:
        """Rows without progress go back to this stage's best iterate; their next steps are half as long."""
        self.restarts = self.restarts + stuck.long()
        self.shrink = torch.where(stuck, self.shrink / 2, self.shrink)
        return _rows(stuck, self.reached, place)

    def _draw(self, entries: int) -> Tensor:
        """N(0, 1) for all rows (s, entries), each target's from its own generator."""
        shape = (self.config.restarts, entries)
        rows = [
            torch.randn(shape, generator=generator, dtype=self.best.dtype, device=generator.device)
            for generator in self.generators
        ]
        return torch.cat(rows).to(self.best.device)

    def _agree(self, place: Tensor, evaluation: int, evaluations: int) -> None:
        """Make a new consensus of each target's starts where it is due."""
        starts = self.config.restarts
        if starts == 1 or not any(group.due(evaluation, evaluations) for group in self.groups):
            return
        space, group = self.problem.space, self.groups[0]
        made = [
            problem.variables.decode(space, row, problem.labels)[0]
            for row, problem in zip(place, [p for p in self.problems for _ in range(starts)], strict=True)
        ]
        rows = torch.stack(made).reshape(-1, starts, space.batch_size, *space.domain.shape)
        agreed = [
            group.consensus(guesses, space.domain, problem.alike)
            for guesses, problem in zip(rows, self.problems, strict=True)
        ]
        self.consensus = torch.cat(agreed).reshape(len(place), -1)

    def _save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        tensors = {
            **state,
            "best": self.best,
            "best_loss": self.best_loss,
            "handed": self.handed,
            "handed_loss": self.handed_loss,
            "reached": self.reached,
            "reached_loss": self.reached_loss,
            "recoveries": self.recoveries,
            "restarts": self.restarts,
            "shrink": self.shrink,
        }
        if self.history:
            tensors["history"] = torch.stack(self.history)
        tensors |= self.populations.state()
        if self.consensus is not None:
            tensors["consensus"] = self.consensus
        tensors |= {f"generator.{n}": generator.get_state() for n, generator in enumerate(self.generators)}
        endings = [None if ending is None else ending.label for ending in self.endings]
        counts = {"spent": self.spent, "passes": self.passes}
        self.monitor.save(tensors, {**facts, **counts, "endings": endings, "identity": self.identity})

    def _load(self) -> Saved | None:
        checkpoint = self.monitor.checkpoint
        saved = None if checkpoint is None else checkpoint.load()
        if checkpoint is None or saved is None:
            return None
        tensors, facts = saved
        if facts.get("identity") != self.identity:
            raise InputError(
                f"checkpoint {checkpoint.path.name}: expected the state of this attack on this update, got that of "
                "another (settings, update or start differ); delete the file to begin anew"
            )
        device = self.best.device
        tensors = {name: t if name.startswith("generator.") else t.to(device) for name, t in tensors.items()}
        self.best, self.best_loss, self.shrink = tensors["best"], tensors["best_loss"], tensors["shrink"]
        self.handed, self.handed_loss = tensors["handed"], tensors["handed_loss"]
        self.reached, self.reached_loss = tensors["reached"], tensors["reached_loss"]
        self.recoveries, self.restarts = tensors["recoveries"], tensors["restarts"]
        self.history = list(tensors["history"]) if "history" in tensors else []
        self.consensus = tensors.get("consensus")
        self.spent, self.passes = facts["spent"], facts["passes"]
        self.endings = [None if label is None else Outcome.from_label(label) for label in facts["endings"]]
        for number, generator in enumerate(self.generators):
            generator.set_state(tensors[f"generator.{number}"])
        self.populations.restore(tensors)
        if "route" in facts:
            self.evaluator.route = Route(facts["route"])
            self.evaluator.batches_values = facts["batches_values"]
        return tensors, facts

    def _identity(self) -> str:
        """A hash of model, settings, updates, labels and starting points, before anything moves."""
        objective = self.problem.objective
        about = {
            "attack": describe(self.config),
            "release": [[p.release.describe(), describe(p.reading.last)] for p in self.problems],
            "loss": objective.loss_name,
            "mode": objective.mode.value,
            "domain": describe(self.problem.space.domain),
        }
        labels = [problem.labels for problem in self.problems if problem.labels is not None]
        targets = [problem.target for problem in self.problems]
        model = [*objective.params.values(), *objective.frozen.values(), *objective.buffers.values()]
        disclosed = [problem.statistics or {} for problem in self.problems]
        moments = [
            moment
            for layers in disclosed
            for name in sorted(layers)
            for moment in (layers[name].mean, layers[name].variance)
        ]
        prior = self.problem.space.generator
        weights = [] if prior is None else [*prior.weights.values(), *prior.module.buffers()]
        return fingerprint(about, [*model, *targets, *labels, *moments, *weights, self.best])

    def _report(self, *, force: bool = False) -> None:
        done = max(self.spent)
        if force or done % 10 == 1:
            best = self.best_loss[torch.isfinite(self.best_loss)]
            self.monitor(done, self.planned, float(best.min()) if len(best) else float("inf"))

    def _claim(self, place: int) -> Reconstruction:
        problem, starts = self.problems[place], self.config.restarts
        rows = slice(place * starts, (place + 1) * starts)
        losses = self.best_loss[rows]
        chosen = place * starts + int(losses.argmin())
        loss = float(self.best_loss[chosen])
        ending = self.endings[place] or Outcome.BUDGET_SPENT
        spent = self.spent[place]
        cost = self.passes[place] * problem.release_cost * starts
        facts = problem.facts()
        details = {
            **facts,
            "information": [*facts["information"], *(prior.information(problem) for prior in self.config.priors)],
            "route": self.evaluator.route.value,
            "group": len(self.problems),
            "starts": starts,
            "chosen_start": chosen - place * starts,
            "start_losses": [float(value) if torch.isfinite(value) else None for value in losses],
            "non_finite": int(self.recoveries[rows].sum()),
            "restarted": int(self.restarts[rows].sum()),
            "stopped": ending.label,
        }
        details |= self.populations.facts(chosen)
        if not torch.isfinite(self.best_loss[chosen]):
            return Reconstruction(
                inputs=None,
                targets=None,
                loss=None,
                outcome=Outcome.NOT_FINITE,
                iterations=spent,
                plain_gradients=cost,
                note="the matching loss was never finite",
                details=details,
            )
        best = self.best[chosen]
        inputs, targets = problem.variables.decode(problem.space, best, problem.labels)
        fit = problem.fit(best)
        notes = [problem.note, *(prior.note(problem) for prior in self.config.priors), fit.note]
        if bool((self.history[0][rows] <= self.floor[place]).any()):
            # The first guess is random: when it fits, the update does not tell inputs apart.
            ending = Outcome.NOT_IDENTIFIABLE
            notes.append("a random guess already explains the update to within round-off")
        return Reconstruction(
            inputs=inputs.clone(),
            targets=targets.clone(),
            loss=loss,
            outcome=ending,
            iterations=spent,
            plain_gradients=cost,
            history=[float(values[chosen]) for values in self.history[:spent] if torch.isfinite(values[chosen])],
            note="; ".join(note for note in notes if note),
            details={**details, "relative_residual": fit.relative_residual, "scale": fit.scale},
        )


def _rows(chosen: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The rows of `one` (s, n) that are chosen (s,), those of `other` else.

    On a processor nothing is copied where all rows or none are, as almost always: behind a generator n is the number of
    its weights. Elsewhere looking would wait for the device.
    """
    if chosen.device.type == "cpu":
        if bool(chosen.all()):
            return one
        if other.shape == one.shape and not bool(chosen.any()):
            return other
    return torch.where(chosen[:, None], one, other)


def _span(places: Tensor | None) -> Tensor | slice | None:
    """Ascending places as a slice where none is left out: a view, where indices would copy."""
    if places is None or len(places) == 0:
        return places
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places
