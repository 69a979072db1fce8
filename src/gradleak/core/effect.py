"""Effect of a defense on an update, in words that whoever reads the update can reckon with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Groups = Sequence[Sequence[str]]
"""Names of tensors that are treated together."""


@dataclass(frozen=True, kw_only=True)
class Unchanged:
    """Every entry as it was, plus noise whose law does not depend on it."""


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Each group of tensors times one factor from 0 to 1, which is 1 while the group is shorter than a limit.

    Attributes:
        groups: every tensor in one of them.
        max_norm: the limit, an L2 norm over the tensors of a group.
    """

    groups: Groups
    max_norm: float


@dataclass(frozen=True, kw_only=True)
class ScaledRows:
    """Each group g of tensors of each example's gradient times min(1, C/‖g‖), with the L2 norm over the group.

    Attributes:
        groups: every tensor in one of them.
        max_norms: C of each group.
    """

    groups: Groups
    max_norms: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Thinned:
    """Zero in place of the smallest magnitudes of each group of tensors, and every other entry as it was.

    Attributes:
        groups: every tensor in one of them.
    """

    groups: Groups


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """Every entry on one of two levels next to it; the levels of a tensor are evenly spaced, and zero is one."""


@dataclass(frozen=True, kw_only=True)
class MovedAlong:
    """The update plus c Σᵢ wᵢ uᵢ, w uniform on the unit sphere, uᵢ the left singular vectors of A that protect most.

    These belong to the m smallest non-zero eigenvalues of AᵀA, A the derivative of the release before this defense.

    Attributes:
        norm: c, an L2 norm over all tensors.
        directions: m.
        dense_limit: the largest number of unknowns for which there is such a release.
    """

    norm: float
    directions: int
    dense_limit: int


Effect = Unchanged | Scaled | ScaledRows | Thinned | Rounded | MovedAlong | None
"""None where nothing is known."""
