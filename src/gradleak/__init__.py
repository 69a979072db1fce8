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
    from gradleak.defenses import Clip, ClipPerExample, ClipPerLayer, GaussianNoise, Prune, Sign
    from gradleak.linalg import (
        LSMR,
        ConjugateGradient,
        DenseSolver,
        Hutchinson,
        HutchPlusPlus,
        LanczosQuadrature,
        LeastSquaresDescent,
        NeumannSeries,
    )
    from gradleak.operators import GradientJacobian, check_derivative
    from gradleak.protocols import FedAvg, FedSGD
    from gradleak.reporting import write_html, write_json, write_markdown
    from gradleak.results import GradleakError, Outcome, Record, Score, Verdict
    from gradleak.risk import (
        BayesianCramerRao,
        FisherInformationLoss,
        GaussianPrior,
        GaussianReconstructionError,
        GradientNorm,
        InversionInfluence,
        InversionInfluenceLowerBound,
        LinearizedPosteriorError,
        LipschitzBound,
        Sensitivity,
        Vulnerability,
        VulnerabilityFusion,
        each_example,
        perturbation_directions,
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
    "defenses": ("Clip", "ClipPerExample", "ClipPerLayer", "GaussianNoise", "Prune", "Sign"),
    "linalg": (
        "LSMR",
        "ConjugateGradient",
        "DenseSolver",
        "Hutchinson",
        "HutchPlusPlus",
        "LanczosQuadrature",
        "LeastSquaresDescent",
        "NeumannSeries",
    ),
    "operators": ("GradientJacobian", "check_derivative"),
    "protocols": ("FedAvg", "FedSGD"),
    "reporting": ("write_html", "write_json", "write_markdown"),
    "results": ("GradleakError", "Outcome", "Record", "Score", "Verdict"),
    "risk": (
        "BayesianCramerRao",
        "FisherInformationLoss",
        "GaussianPrior",
        "GaussianReconstructionError",
        "GradientNorm",
        "InversionInfluence",
        "InversionInfluenceLowerBound",
        "LinearizedPosteriorError",
        "LipschitzBound",
        "Sensitivity",
        "Vulnerability",
        "VulnerabilityFusion",
        "each_example",
        "perturbation_directions",
    ),
    "scoring": ("score_images",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "DLG",
    "LSMR",
    "Attack",
    "AuditOptions",
    "Batch",
    "BayesianCramerRao",
    "Blind",
    "Clip",
    "ClipPerExample",
    "ClipPerLayer",
    "ConjugateGradient",
    "DenseSolver",
    "Domain",
    "Exposure",
    "FedAvg",
    "FedSGD",
    "FisherInformationLoss",
    "GaussNewton",
    "GaussianNoise",
    "GaussianPrior",
    "GaussianReconstructionError",
    "GradientJacobian",
    "GradientNorm",
    "GradleakError",
    "HonestButCurious",
    "HutchPlusPlus",
    "Hutchinson",
    "InversionInfluence",
    "InversionInfluenceLowerBound",
    "InvertingGradients",
    "Knowledge",
    "LanczosQuadrature",
    "LeastSquaresDescent",
    "LinearizedPosteriorError",
    "LipschitzBound",
    "NeumannSeries",
    "Objective",
    "Outcome",
    "Plan",
    "Prune",
    "Reconstruction",
    "Record",
    "Release",
    "Score",
    "Sensitivity",
    "Sign",
    "SignRule",
    "ThreatModel",
    "Thresholds",
    "Update",
    "Verdict",
    "Vulnerability",
    "VulnerabilityFusion",
    "audit",
    "check_derivative",
    "check_update",
    "each_example",
    "load_plan",
    "perturbation_directions",
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
