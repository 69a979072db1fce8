"""Errors a user can act on: each message says what was expected, what came, and what to do."""

from __future__ import annotations


class GradleakError(Exception):
    """Base of every error that gradleak raises on purpose; the command line prints it as one line."""


class InputError(GradleakError, ValueError):
    """Data, a model or a number does not have the form that was asked for."""


class PlanError(GradleakError, ValueError):
    """A plan file or an argument of `audit` cannot be carried out as written."""


class KnowledgeError(GradleakError):
    """An attack needs something that the threat model does not disclose."""


class UnsupportedError(GradleakError):
    """The combination is understood, but this version cannot compute it."""


class InconsistentUpdateError(GradleakError):
    """A file or an update does not fit the model that it is said to come from."""


class WriteError(GradleakError, OSError):
    """A file or folder of a run cannot be written: no room, no permission."""


def record_stays(place: object, reason: str) -> PlanError:
    """The refusal to go on with a record, which stays as it is.

    Args:
        place: folder or file of the record.
        reason: of the refusal.
    """
    return PlanError(f"{place}: {reason}; nothing was written. Use another --out, or delete the folder to start over")
