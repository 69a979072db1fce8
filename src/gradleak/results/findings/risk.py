"""Findings of closed-form risk: what follows from the derivative of a release, and whether that derivative is right."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from gradleak.results.finding import Finding, NumberOrNone, Part

# The error of a derivative: its outcome is inconsistent where the derivative is wrong, whoever reads it.
DERIVATIVE_ERROR = "derivative_error"


class Confirmation(StrEnum):
    """The result of a check of a derivative by differences of values, and whether it is finite at the private batch."""

    CONFIRMED = "confirmed"
    WRONG = "wrong"
    INFINITE = "infinite"
    UNCHECKED = "not checked"


class Derivative(Part):
    """A derivative held against differences of values.

    Attributes:
        check: whether it was confirmed.
        relative_error: ‖A v - difference‖ / ‖difference‖, or None without both.
        route: how the derivative was computed.
    """

    check: Confirmation
    relative_error: NumberOrNone = None
    route: str = ""


class Spectrum(Part):
    """The derivative A of a release with respect to the input, and the eigenvalues of AᵀA.

    Attributes:
        unknowns: d, the number of entries of the input.
        entries: P, the number of shared entries.
        eigenvalues: smallest first; None where A is too large to be held, or not to be read.
        rank: how many of them count as non-zero, or None.
        route: how the derivative was computed.
    """

    unknowns: int
    entries: int
    eigenvalues: tuple[float, ...] | None = None
    rank: int | None = None
    route: str = ""


class Validation(Part):
    """The perfect attacker, a validation routine that starts from the truth; never an attack.

    Attributes:
        steps: Levenberg-Marquardt steps.
    """

    steps: int


class RiskFinding(Finding):
    """Closed-form risk of one release or of its setting; its check or its validation are findings of their own.

    Attributes:
        noise_std: of Gaussian noise that is the same on every shared entry; None without such noise.
        derivative: the check of the derivative.
        spectrum: of a release.
        validation: the perfect attacker.
    """

    kind: Literal["risk"] = "risk"
    noise_std: NumberOrNone = None
    derivative: Derivative | None = None
    spectrum: Spectrum | None = None
    validation: Validation | None = None
