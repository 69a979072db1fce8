"""gradleak tells you what a shared gradient gives away.

The names below are the public API. They are resolved on first use, so that importing the package, `gradleak --help` and
reports need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradleak.attacks import DLG, Attack, Blind, GaussNewton, InvertingGradients, SignRule
    from gradleak.auditing import AuditOptions, Plan, Thresholds, audit, check_update, load_plan, run_plan
    from gradleak.core import (
        Batch,
        Domain,
        Exposure,
        HonestButCurious,
        Knowledge,
        Objective,
        Reconstruction,
        Release,
        ThreatModel,
        Update,
    )
    from gradleak.defenses import Clip, GaussianNoise
    from gradleak.operators import GradientJacobian
    from gradleak.protocols import FedSGD
    from gradleak.reporting import write_html, write_json, write_markdown
    from gradleak.results import GradleakError, Outcome, Record, Score, Verdict
    from gradleak.risk import (
        GaussianReconstructionError,
        GradientNorm,
        InversionInfluence,
        InversionInfluenceLowerBound,
    )
    from gradleak.scoring import score_images

_ROOMS = {
    "attacks": ("DLG", "Attack", "Blind", "GaussNewton", "InvertingGradients", "SignRule"),
    "auditing": ("AuditOptions", "Plan", "Thresholds", "audit", "check_update", "load_plan", "run_plan"),
    "core": (
        "Batch",
        "Domain",
        "Exposure",
        "HonestButCurious",
        "Knowledge",
        "Objective",
        "Reconstruction",
        "Release",
        "ThreatModel",
        "Update",
    ),
    "defenses": ("Clip", "GaussianNoise"),
    "operators": ("GradientJacobian",),
    "protocols": ("FedSGD",),
    "reporting": ("write_html", "write_json", "write_markdown"),
    "results": ("GradleakError", "Outcome", "Record", "Score", "Verdict"),
    "risk": (
        "GaussianReconstructionError",
        "GradientNorm",
        "InversionInfluence",
        "InversionInfluenceLowerBound",
    ),
    "scoring": ("score_images",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DLG",
    "Attack",
    "AuditOptions",
    "Batch",
    "Blind",
    "Clip",
    "Domain",
    "Exposure",
    "FedSGD",
    "GaussNewton",
    "GaussianNoise",
    "GaussianReconstructionError",
    "GradientJacobian",
    "GradientNorm",
    "GradleakError",
    "HonestButCurious",
    "InversionInfluence",
    "InversionInfluenceLowerBound",
    "InvertingGradients",
    "Knowledge",
    "Objective",
    "Outcome",
    "Plan",
    "Reconstruction",
    "Record",
    "Release",
    "Score",
    "SignRule",
    "ThreatModel",
    "Thresholds",
    "Update",
    "Verdict",
    "audit",
    "check_update",
    "load_plan",
    "run_plan",
    "score_images",
    "write_html",
    "write_json",
    "write_markdown",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'gradleak' has no attribute {name!r}")
    return getattr(importlib.import_module(f"gradleak.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
