"""End of a computation, as a word that carries its meaning and the remedy."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """End of a computation; every member carries an explanation and a remedy.

    `has_value` says whether a number accompanies the outcome: True always, False never, None where the note says
    which part is determined. Members compare by identity and are written to a record by their lower-case name.
    """

    CONVERGED = (
        "The computation met its own stopping criterion.",
        "Nothing to do.",
        True,
    )
    BUDGET_SPENT = (
        "The iteration budget ended before the stopping criterion was met; the best value so far is kept.",
        "Raise the number of iterations, or read the value as an estimate with the residual given beside it.",
        True,
    )
    PLATEAU = (
        "The loss stopped improving before the stopping criterion was met; the best value so far is kept.",
        "Try more starts or another attack: a plateau is no evidence of safety.",
        True,
    )
    NOT_IDENTIFIABLE = (
        "The data determine the answer only in part (a null space, or several answers that fit equally well).",
        "Read the note for what is determined; more knowledge or another release is needed for the rest.",
        None,
    )
    NOT_INFORMATIVE = (
        "The measure says nothing about this release (for instance a map whose derivative is zero everywhere).",
        "Use an attack or another measure; this is not evidence of safety.",
        False,
    )
    NO_SIGNAL = (
        "The update is zero (or a needed part of it is), so there is nothing to match.",
        "Check that the model was not already converged and that the right tensors were shared.",
        False,
    )
    NOT_FINITE = (
        "NaN or infinite values appeared.",
        "Check the update for non-finite entries, lower the step size, or use float64.",
        False,
    )
    NOT_RESOLVABLE = (
        "The data are too few to tell what was asked for (a rate of 0.1 % from 200 samples, two classes from one).",
        "Play more trials, or ask for a rate that they resolve; this is not evidence of safety.",
        False,
    )
    SATURATED = (
        "Saturated, not resolvable: the value is about as large as so many trials can certify at all, so that it says how "
        "many they were; the truth may lie far above.",
        "Run more trials; until then read the value as a lower bound that was not allowed to be larger.",
        True,
    )
    CONSTANT = (
        "The model gives one answer whatever its input is, so that it is of no use.",
        "Give a defense no credit for what such a model hides; look for a layer that erases its input, or train with less "
        "noise.",
        None,
    )
    UNSUPPORTED = (
        "This combination of model, release and measure or attack is not supported.",
        "See the note for the reason and for what to use instead.",
        False,
    )
    INCONSISTENT = (
        "The update is not what the stated model, protocol and defenses produce.",
        "See the likely causes in the note: mode, normalization, loss, reduction, order of tensors, scale.",
        False,
    )
    CONTROL_FAILED = (
        "A control of the audit failed, so its results cannot be read.",
        "Inspect the controls: a planted leak must be found, and pure noise must give nothing.",
        False,
    )
    FAILED = (
        "The computation raised an unexpected error; the traceback is kept in the record.",
        "Read the traceback; if the fault is in gradleak, report it.",
        False,
    )

    def __init__(self, explanation: str, remedy: str, has_value: bool | None) -> None:
        """Attach the explanation, the remedy and whether a value may accompany the outcome."""
        self.explanation = explanation
        self.remedy = remedy
        self.has_value = has_value

    def __repr__(self) -> str:
        """The name alone; explanation and remedy are long."""
        return f"<{type(self).__name__}.{self.name}>"

    @property
    def label(self) -> str:
        """The lower-case name that is written to records."""
        return self.name.lower()

    @classmethod
    def from_label(cls, label: str) -> Outcome:
        """The member with this label.

        Raises:
            KeyError: if there is no such outcome.
        """
        return cls[label.upper()]
