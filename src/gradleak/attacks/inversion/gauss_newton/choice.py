"""Choice of the steps for a problem where none are named."""

from __future__ import annotations

from dataclasses import dataclass

from gradleak.attacks.inversion.gauss_newton.krylov_steps import KrylovSteps
from gradleak.attacks.inversion.gauss_newton.reduced_steps import SketchedSteps
from gradleak.attacks.inversion.gauss_newton.steps import DenseSteps, Steps
from gradleak.results import UnsupportedError

LEAST_GAIN = 2.0
"""A sketch is not worth its while unless the whole Jacobian has this many times as many rows."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Steps and why they were taken.

    Attributes:
        steps: how steps are computed.
        reason: one clause for the record.
    """

    steps: Steps
    reason: str


def choose_steps(named: Steps | None, *, entries: int, unknowns: int, max_unknowns: int, max_bytes: int) -> Choice:
    """The steps for P entries and n unknowns: dense, sketched, or by products, in this order, as memory allows.

    Args:
        named: steps that were asked for, or None.
        entries: P.
        unknowns: n.
        max_unknowns: most unknowns for which an n × n matrix is factored.
        max_bytes: memory for Jacobian and matrices.

    Raises:
        UnsupportedError: if the named steps do not fit the memory.
    """
    if named is not None:
        needed = named.needed_bytes(entries, unknowns)
        if needed > max_bytes:
            raise UnsupportedError(
                f"gauss_newton: expected steps that fit max_jacobian_bytes={max_bytes / 2**30:.1f} GiB, got "
                f"{type(named).__name__} for {unknowns} unknowns and {entries} entries, which take "
                f"{needed / 2**30:.1f} GiB; raise the limit, or use KrylovSteps, which hold no matrix"
            )
        return Choice(steps=named, reason="named")
    if unknowns > max_unknowns:
        return Choice(
            steps=KrylovSteps(), reason=f"{unknowns} unknowns are more than max_unknowns={max_unknowns} for a matrix"
        )
    dense, sketched = DenseSteps(), SketchedSteps()
    if dense.needed_bytes(entries, unknowns) <= max_bytes:
        return Choice(steps=dense, reason=f"{unknowns} unknowns, and the Jacobian fits the memory")
    enough = entries >= LEAST_GAIN * sketched.rows_per_unknown * unknowns
    if enough and sketched.needed_bytes(entries, unknowns) <= max_bytes:
        return Choice(steps=sketched, reason="the Jacobian does not fit the memory, a sketch of it does")
    return Choice(steps=KrylovSteps(), reason="neither the Jacobian nor a sketch of it fits the memory")
