"""The search of an inversion: stages, restarts and budget, by gradients or by populations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.attack import Monitor, fingerprint
from gradleak.attacks.inversion.evaluation import PLAIN_GRADIENTS_PER_EVALUATION, Route
from gradleak.attacks.inversion.lockstep import Lockstep, Saved, Settings, choose_rows
from gradleak.attacks.inversion.optimizers import Optimizer, SearchStage, Steps
from gradleak.attacks.inversion.pooling import Pooled, Pooling
from gradleak.attacks.inversion.populations import HandOn, PopulationOptimizer, Populations
from gradleak.attacks.inversion.priors import GroupConsistency
from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.variables import Code
from gradleak.core import Reconstruction, describe
from gradleak.results import InputError, Outcome

_PREFIX = "population."


class PopulationSearch:
    """The distributions of one lockstep run, which go on from round to round, and what their samples were worth.

    Args:
        search: the run whose rows they belong to; its best iterates, counts and endings are moved from here.
    """

    def __init__(self, search: Lockstep) -> None:
        self._search = search
        self._distributions: dict[int, Populations] = {}
        self._samples: list[Tensor] = []

    def run(self, number: int, stage: SearchStage, optimizer: PopulationOptimizer, saved: Saved | None) -> None:
        """One stage: latents (and logits) move, the other unknowns stay as they are.

        Args:
            number: of the stage, over all rounds.
            stage: its iterations.
            optimizer: how candidates are drawn.
            saved: tensors and facts of a state within this stage, or None.
        """
        search = self._search
        place, reference, first = search.handed, search.reached_loss, 0
        stale = torch.zeros(len(search.problems), dtype=torch.int64)
        own = number % len(search.settings.stages)
        if own not in self._distributions:
            self._distributions[own] = optimizer.begin(self._entries, self._seeds())
        distributions = self._distributions[own]
        if saved is not None:
            tensors, facts = saved
            reference, stale, first = tensors["reference"], tensors["stale"].cpu(), facts["evaluation"]
        for iteration in range(first, stage.iterations):
            if search.monitor.due:
                search.save({"reference": reference, "stale": stale}, {"stage": number, "evaluation": iteration})
            live = search.live()
            nearest, matching = place.clone(), torch.full_like(search.best_loss, torch.inf)
            learned = torch.ones_like(live)
            for row in live.nonzero()[:, 0].tolist():
                candidates = distributions.ask(row)
                total, losses = self._values(row, place[row], candidates)
                learned[row] = distributions.tell(row, total)
                losses = torch.where(torch.isfinite(losses) & torch.isfinite(total), losses, torch.inf)
                best = int(losses.argmin())
                nearest[row], matching[row] = self._with(place[row], candidates[best]), losses[best]
            finite = torch.isfinite(matching)
            search.keep(nearest, matching, live & finite)
            search.spend(torch.where(finite, matching, search.best_loss), float(optimizer.population))
            search.recoveries = search.recoveries + (live & ~learned).long()
            reference, stale = search.progress(reference, stale)
            search.close(stale)
            if all(search.endings):
                return
        if optimizer.hand_on is HandOn.BEST:
            search.handed, search.handed_loss = search.reached, search.reached_loss
        else:
            self._hand_on_sample(place, distributions, torch.stack(search.history[-stage.iterations :]).amin(dim=0))

    def state(self) -> dict[str, Tensor]:
        """All of it, for a checkpoint."""
        state = {
            f"{_PREFIX}{number}.{name}": tensor
            for number, distributions in self._distributions.items()
            for name, tensor in distributions.state().items()
        }
        return {**state, "samples": torch.stack(self._samples)} if self._samples else state

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up a state."""
        self._samples = list(tensors["samples"]) if "samples" in tensors else []
        for number, stage in enumerate(self._search.settings.stages):
            marker = f"{_PREFIX}{number}."
            state = {name.removeprefix(marker): t for name, t in tensors.items() if name.startswith(marker)}
            if state and isinstance(stage.optimizer, PopulationOptimizer):
                self._distributions[number] = stage.optimizer.begin(self._entries, state["seeds"])
                self._distributions[number].restore(state)

    def facts(self, row: int) -> dict[str, Any]:
        """For `Reconstruction.details`: how candidates were evaluated, and by round the matching losses of a row's sample.

        Beside the loss of the sample that was handed on stands that of the best candidate of its stage.
        """
        if not self._distributions:
            return {}
        pairs = [[float(value) for value in losses[:, row]] for losses in self._samples]
        # Rounds that went on for other targets alone.
        pairs = [pair for pair in pairs if not math.isnan(pair[1])]
        samples = [
            {name: loss if math.isfinite(loss) else None for name, loss in zip(("sample", "best"), pair, strict=True)}
            for pair in pairs
        ]
        search = self._search
        how = Route.LOCKSTEP if search.evaluator.batches_values else Route.LOOP
        facts: dict[str, Any] = {"populations": how.value, "samples": samples}
        descends = any(stage.evaluations for stage in search.settings.stages)
        # Without a stage down the gradient there is no other route.
        return facts if descends else {**facts, "route": how.value}

    def _seeds(self) -> Tensor:
        """One seed a distribution, (rows, b), from its target's own generator."""
        shape = (self._search.settings.restarts, self._search.problem.space.batch_size)
        seeds = [
            torch.randint(2**62, shape, generator=generator, device=generator.device).cpu()
            for generator in self._search.generators
        ]
        return torch.cat(seeds)

    @property
    def _entries(self) -> int:
        """Entries of an example's latent and, where labels are unknowns, of its logits."""
        code = self._split(self._search.best[0])
        return sum(part.shape[1] for part in (code.latents, code.logits) if part is not None)

    def _split(self, row: Tensor) -> Code:
        return self._search.problem.variables.split(self._search.problem.space, row)

    def _code(self, candidates: Tensor) -> Code:
        """Latents and logits of candidates (..., b, m)."""
        best = self._search.best
        code, candidates = self._split(best[0]), candidates.to(best.device, best.dtype)
        assert code.latents is not None
        size = code.latents.shape[1]
        return Code(latents=candidates[..., :size], logits=None if code.logits is None else candidates[..., size:])

    def _values(self, row: int, place: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Total and matching loss (K,) of candidates (K, b, m) in a row."""
        search = self._search
        consensus = None if search.consensus is None else search.consensus[row]
        return search.evaluator.values(place, row // search.settings.restarts, self._code(candidates), consensus)

    def _with(self, place: Tensor, candidate: Tensor) -> Tensor:
        """A row with the latents (and logits) of one candidate (b, m)."""
        code = self._code(candidate)
        assert code.latents is not None
        parts = [code.latents.reshape(-1), place[code.latents.numel() :]]
        if code.logits is not None:
            parts[1:] = [parts[1][: -code.logits.numel()], code.logits.reshape(-1)]
        return torch.cat(parts)

    def _hand_on_sample(self, place: Tensor, distributions: Populations, best: Tensor) -> None:
        """Draw what the next stage begins with, look at its loss, and note it beside that of the best candidate."""
        search, examples = self._search, self._search.problem.space.batch_size
        live = search.live()
        normal = search.draw(examples * self._entries)
        sampled, matching = place.clone(), torch.full_like(search.best_loss, torch.inf)
        for row in live.nonzero()[:, 0].tolist():
            drawn = distributions.sample(row, normal[row].reshape(examples, -1))
            _, losses = self._values(row, place[row], drawn[None])
            sampled[row], matching[row] = self._with(place[row], drawn), losses[0]
        finite = torch.isfinite(matching)
        search.keep(sampled, matching, live & finite)
        search.spend(torch.where(finite, matching, search.best_loss), 1.0)
        # A sample without a finite loss leads nowhere: the best candidate stands in for it.
        search.handed = torch.where(finite[:, None], sampled, search.reached)
        search.handed_loss = torch.where(finite, matching, search.reached_loss)
        self._samples.append(
            torch.stack([torch.where(finite, matching, torch.inf), best.masked_fill(~live, torch.nan)])
        )
        search.close(torch.zeros(len(search.problems), dtype=torch.int64))


class Search(Lockstep):
    """A whole search: its stages one after the other, down the gradient or by populations, and the claims at its end.

    Args:
        settings: what is searched and how.
        problems: the targets; they differ in target and label values alone.
        generators: one a target, for noise.
        monitor: progress and checkpoint.
    """

    def __init__(
        self,
        settings: Settings,
        problems: Sequence[Problem],
        generators: Sequence[torch.Generator],
        monitor: Monitor,
    ) -> None:
        super().__init__(settings, problems, generators, monitor)
        self.groups = [prior for prior in settings.priors if isinstance(prior, GroupConsistency)]
        self.populations = PopulationSearch(self)

    def run(self, start: Tensor) -> list[Reconstruction]:
        """Search from rows (s, n) and claim the best of each target."""
        self.begin(start)
        settings = self.settings
        if self.monitor.checkpoint is not None:
            self.identity = self._identity()
        saved = self._load()
        numbers = settings.rounds * len(settings.stages)
        for number in range(numbers):
            if saved is not None and number < saved[1]["stage"]:
                continue
            if not all(self.endings):
                self._stage(number, saved)
            saved = None
        self.report(force=True)
        if self.monitor.checkpoint is not None:
            # How it was computed shows at the first evaluation alone, and a finished search makes none when it is resumed.
            how = {"route": self.evaluator.route.value, "batches_values": self.evaluator.batches_values}
            self.save({}, {"stage": numbers, **how})
        return [self._claim(place) for place in range(len(self.problems))]

    def save(self, state: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write a checkpoint, with the distributions of the populations."""
        super().save({**state, **self.populations.state()}, facts)

    def _stage(self, number: int, saved: Saved | None) -> None:
        """One stage, from what the one before handed on; it hands on in turn."""
        stage = self.settings.stages[number % len(self.settings.stages)]
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
        before = number // len(self.settings.stages) * stage.evaluations
        steps = optimizer.begin(start, self.settings.rounds * stage.evaluations, lambda: self.draw(start.shape[1]))
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
                self.save(state, {"stage": number, "evaluation": evaluation})
            self._agree(place, evaluation, stage.evaluations)
            live = self.live()
            gradient, matching, finite = self.evaluator(place, self.consensus)
            better = self.keep(place, matching, live & finite)
            self.spend(torch.where(finite, matching, self.best_loss), PLAIN_GRADIENTS_PER_EVALUATION)
            place = self._return(place, live & ~finite)
            reference, stale = self.progress(reference, stale)
            self.close(stale)
            if evaluation == stage.evaluations or all(self.endings):
                break
            idle = torch.where(better, 0, idle + 1)
            stuck = idle >= stage.restart_after if stage.restart_after is not None else torch.zeros_like(finite)
            if bool(stuck.any()):
                place, idle = self._restart(place, stuck & live), idle.masked_fill(stuck, 0)
            moving = self.live() & finite & ~stuck
            place = self._step(place, gradient, moving, steps, before + evaluation, moved)

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
        change = steps.direction(choose_rows(moving, gradient, still), evaluation)
        if decay := steps.decay(evaluation):
            change = change - decay * place
        change = choose_rows(moving, change, still) * self.shrink[:, None]
        target = (place + change).clamp(low, high) if self.bounded else place + change
        target = choose_rows(torch.isfinite(target).all(dim=1), target, place)
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
        return choose_rows(broken, self.reached, place)

    def _restart(self, place: Tensor, stuck: Tensor) -> Tensor:
        """Rows without progress go back to this stage's best iterate; their next steps are half as long."""
        self.restarts = self.restarts + stuck.long()
        self.shrink = torch.where(stuck, self.shrink / 2, self.shrink)
        return choose_rows(stuck, self.reached, place)

    def _agree(self, place: Tensor, evaluation: int, evaluations: int) -> None:
        """Make a new consensus of each target's starts where it is due."""
        starts = self.settings.restarts
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
            "attack": describe(self.settings),
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
        weights += [] if (sentences := self.problem.space.sentences) is None else [sentences.known]
        return fingerprint(about, [*model, *targets, *labels, *moments, *weights, self.best])

    def _claim(self, place: int) -> Reconstruction:
        problem, starts = self.problems[place], self.settings.restarts
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
            "information": [*facts["information"], *(prior.information(problem) for prior in self.settings.priors)],
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
        inputs, targets = problem.variables.decode(problem.space, self.best[chosen], problem.labels)
        if (pooling := self.settings.pooling) is not None:
            pooled = self._pooled(pooling, place, chosen, ending)
            inputs = problem.space.domain.from_pixels(pooled.pixels).to(inputs)
            details |= pooled.facts()
            with torch.no_grad():
                matching = problem.reading.matching(self.matching)
                loss = float(matching(problem.released(inputs, targets), problem.target))
        fit = problem.fit_of(inputs, targets)
        notes = [problem.note, *(prior.note(problem) for prior in self.settings.priors), fit.note]
        notes += [] if pooling is None else [pooling.note(problem.space.domain)]
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
            **problem.sentences(inputs, targets),
        )

    def _pooled(self, pooling: Pooling, place: int, chosen: int, ending: Outcome) -> Pooled:
        """The rows of a target pooled over its starts; of the chosen one alone where that explains the update."""
        problem, starts = self.problems[place], self.settings.restarts
        rows = [chosen]
        if ending is not Outcome.CONVERGED:
            rows = [row for row in range(place * starts, (place + 1) * starts) if torch.isfinite(self.best_loss[row])]
        space = problem.space
        pixels = [
            space.domain.to_pixels(problem.variables.decode(space, self.best[row], problem.labels)[0]) for row in rows
        ]
        return pooling(space.domain, torch.stack(pixels), rows.index(chosen), problem.alike)


def _span(places: Tensor | None) -> Tensor | slice | None:
    """Ascending places as a slice where none is left out: a view, where indices would copy."""
    if places is None or len(places) == 0:
        return places
    first, last = int(places[0]), int(places[-1])
    return slice(first, last + 1) if last - first + 1 == len(places) else places
