"""Damped steps, computed with the whole Jacobian, with part of it, or with products alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.local_model import GramModel, LocalModel
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.results import Settings

DENSE_COPIES = 3
"""Matrices (n, n) that a dense step holds at once: the Gram matrix, a part of it, and its factor."""


class Steps(Settings, ABC):
    """Computation of the steps of `GaussNewton`; authors write these three.

    Attributes:
        rounds: at most so many solves for one bounded step.
        renewals: how often a start that is stuck may draw anew what the steps are computed from.
        side_by_side: whether several starts can be linearized in one call.
        needs_matrix: whether a matrix of n × n is held.
    """

    rounds: ClassVar[int] = 8
    renewals: ClassVar[int] = 0
    side_by_side: ClassVar[bool] = False
    needs_matrix: ClassVar[bool] = True

    @abstractmethod
    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """A model of the residual at each row of (s, n); random numbers, if any, from `generator`."""

    @abstractmethod
    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """Bytes that a step holds, roughly, for P entries and n unknowns."""

    @abstractmethod
    def products(self, entries: int, unknowns: int) -> int:
        """Products with A or Aᵀ that a step takes at most."""


@dataclass(frozen=True, kw_only=True)
class DenseSteps(Steps):
    """Steps from the whole Jacobian A (P, n) and its Gram matrix AᵀA.

    The residual falls quadratically once it is small. Starts of few unknowns are linearized side by side.

    **Cost**: n products with A in blocks, P·n² multiplications for the Gram matrix, n³/3 for each factor; 8·P·n bytes
    and three matrices of n × n. The linear algebra is not a plain gradient and is not counted: on the 32×32 color LeNet
    (n = 3,072, P = 15,826) it takes about half of the time of a step.
    """

    side_by_side: ClassVar[bool] = True

    def linearize(self, system: ResidualSystem, points: Tensor, generator: torch.Generator) -> list[LocalModel]:
        """One `GramModel` a point."""
        return [GramModel(residual, residual, columns) for residual, columns in system.jacobians(points)]

    def needed_bytes(self, entries: int, unknowns: int) -> int:
        """A and three matrices of n × n in float64."""
        return 8 * (entries * unknowns + DENSE_COPIES * unknowns**2)

    def products(self, entries: int, unknowns: int) -> int:
        """One a column."""
        return unknowns
