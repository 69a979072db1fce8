"""Optimizers that look at values alone: a population of candidates for each start, without a derivative."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core.process import ONE_CALL
from gradleak.results import Positive, Settings, Whole

if TYPE_CHECKING:
    import cma


class HandOn(StrEnum):
    """State that a population leaves to the next stage.

    SAMPLE is one draw from the final distribution, as in algorithm 1 of Fang et al. 2024; BEST is the candidate with the
    smallest matching loss of this stage, or what the stage began with where none is better. What is claimed is the
    iterate with the smallest matching loss either way.
    """

    SAMPLE = "sample"
    BEST = "best"


class Populations(ABC):
    """The distributions of all starts (rows): one for each example of the batch."""

    @abstractmethod
    def ask(self, row: int) -> Tensor:
        """Candidates (K, b, m) of a row, in double precision: the k-th draws of all examples are one joint candidate."""

    @abstractmethod
    def tell(self, row: int, values: Tensor) -> bool:
        """Told the values (K,) of the candidates asked for last; False if none was finite, so that nothing was learned."""

    @abstractmethod
    def sample(self, row: int, normal: Tensor) -> Tensor:
        """One draw (b, m) from the distributions of a row, made from N(0, 1) numbers (b, m)."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """All that the next candidates depend on, for a checkpoint."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state of the same optimizer on rows of the same shape."""


class PopulationOptimizer(Settings, ABC):
    """Rule by which candidates are drawn and learned from."""

    population: int
    hand_on: HandOn

    @abstractmethod
    def begin(self, size: int, seeds: Tensor) -> Populations:
        """Fresh distributions.

        Args:
            size: m, the entries of one example.
            seeds: int64 (rows, b), one for each distribution.
        """


@dataclass(frozen=True, kw_only=True)
class CMAES(PopulationOptimizer):
    """Covariance matrix adaptation, by the `cma` package: candidates, their ranks, another distribution.

    Every example of a batch has its own distribution, N(0, σ² I) at first. An iteration draws K candidates from each;
    the k-th draws of all examples form one joint candidate with one loss (matching plus priors of the whole batch), and
    that loss is told to each distribution. In later rounds of a search a distribution goes on where it was.

    Candidates without a finite loss rank last; where a whole population has none, it is drawn again. Draws come from
    `torch` generators seeded by the search, never from numpy's global one, and a resumed search repeats the draws and
    replays the losses, so that it has the same numbers without a pickle in the checkpoint.

    **Cost**: K plain gradients an iteration, since no derivative of the matching loss is taken; beside them, measured
    with K = 50 on one core: 5, 13, 38 and 96 ms an iteration and example with 64, 128, 256 and 512 latent entries.
    Memory: a few matrices of m × m an example.

    **Source**: Hansen 2016; Fang et al. 2024, algorithm 1 and appendix A: K = 50 ("budget"), N(0, I) at first.
    Deviation: where labels are unknowns, the logits of an example are entries of its distribution.

    Attributes:
        population: K, at least 2.
        sigma: σ, positive.
        hand_on: what the next stage begins with.

    Raises:
        InputError: for numbers out of range, or another name.
    """

    population: Annotated[int, Whole(2)] = 50
    sigma: Positive = 1.0
    hand_on: HandOn = HandOn.SAMPLE

    def begin(self, size: int, seeds: Tensor) -> Populations:
        """N(0, σ² I) for each example of each row."""
        return _Strategies(self, size, seeds.cpu())


class _Strategies(Populations):
    """One strategy of the `cma` package an example and row; its state is its seed and all losses it was told."""

    def __init__(self, config: CMAES, size: int, seeds: Tensor) -> None:
        self._config = config
        self._size = size
        self._begin(seeds)

    def _begin(self, seeds: Tensor) -> None:
        self._seeds = seeds
        self._told: list[list[Tensor]] = [[] for _ in seeds]
        self._strategies = [[self._strategy(int(seed)) for seed in row] for row in seeds]
        self._asked: dict[int, list[list[NDArray[np.float64]]]] = {}

    def _strategy(self, seed: int) -> cma.CMAEvolutionStrategy:
        # With it comes all of matplotlib, which nobody else in a worker needs.
        import cma

        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> NDArray[np.float64]:
            return torch.randn(shape, generator=generator, dtype=torch.float64).numpy()

        # A seed that is NaN leaves numpy's global generator alone; nothing is printed or written.
        options = {
            "popsize": self._config.population,
            "seed": np.nan,
            "randn": normal,
            "verbose": -9,
            "verb_log": 0,
            "verb_disp": 0,
        }
        with _quiet():
            return cma.CMAEvolutionStrategy(np.zeros(self._size), self._config.sigma, options)

    def ask(self, row: int) -> Tensor:
        with _quiet():
            self._asked[row] = [strategy.ask() for strategy in self._strategies[row]]
        drawn = np.stack([np.stack(candidates) for candidates in self._asked[row]], axis=1)
        return torch.from_numpy(drawn)

    def tell(self, row: int, values: Tensor) -> bool:
        values = values.detach().to("cpu", torch.float64)
        self._told[row].append(values)
        finite = torch.isfinite(values)
        if not bool(finite.any()):
            return False
        worst = values[finite].max()
        # Only ranks are learned from.
        ranked = torch.where(finite, values, worst + worst.abs() + 1.0).tolist()
        with _quiet():
            for strategy, candidates in zip(self._strategies[row], self._asked[row], strict=True):
                strategy.tell(candidates, ranked)
        return True

    def sample(self, row: int, normal: Tensor) -> Tensor:
        numbers = normal.detach().to("cpu", torch.float64).numpy()
        drawn = [_draw(strategy, entry) for strategy, entry in zip(self._strategies[row], numbers, strict=True)]
        return torch.from_numpy(np.stack(drawn))

    def state(self) -> dict[str, Tensor]:
        told = {f"told.{row}": torch.stack(values) for row, values in enumerate(self._told) if values}
        return {**told, "seeds": self._seeds}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._begin(state["seeds"].cpu())
        for row in range(len(self._seeds)):
            for values in state.get(f"told.{row}", torch.empty(0)):
                self.ask(row)
                self.tell(row, values)


def _draw(strategy: cma.CMAEvolutionStrategy, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean + σ C^½ z, from the covariance as it is now: the package's own factors of it are some iterations old."""
    values, vectors = np.linalg.eigh(strategy.sm.C)
    spread = vectors @ (np.sqrt(values.clip(min=0.0)) * (vectors.T @ normal))
    drawn: NDArray[np.float64] = strategy.mean + strategy.sigma * (strategy.sigma_vec * spread)
    return drawn


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's warnings on flat losses and ill-conditioned covariances: the search has its own reports."""
    with ONE_CALL, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
