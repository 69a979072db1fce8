"""The stages of a search that look at populations of latents by their values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.evaluation import Route
from gradleak.attacks.inversion.lockstep import Lockstep, Saved
from gradleak.attacks.inversion.populations import HandOn, PopulationOptimizer, Populations
from gradleak.attacks.inversion.search_stage import SearchStage
from gradleak.attacks.inversion.variables import Code

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
