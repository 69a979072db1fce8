"""Names that a plan file can use: protocols, defenses, attacks, measures, solvers, models, data sets and threats."""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any

from torch import Tensor, nn

import gradleak.attacks
import gradleak.attacks.inference
import gradleak.datasets
import gradleak.defenses
import gradleak.games
import gradleak.linalg
import gradleak.models
import gradleak.models.generators
import gradleak.privacy
import gradleak.protocols
import gradleak.risk
from gradleak.attacks import Attack, LabelAttack, Language, Steps
from gradleak.attacks.inference import Classifier, Features, PrototypeEncoder
from gradleak.core import Batch, Defense, HonestButCurious, ImageGenerator, Protocol, ThreatModel
from gradleak.data import Population, Table
from gradleak.games import InferenceGame
from gradleak.linalg import Solver
from gradleak.models.generators import TrainedGenerator
from gradleak.privacy import Canary, EpsilonEstimator, HypothesisPair, PrivacyAudit
from gradleak.results import kinds
from gradleak.risk import ClaimError, LayerMeasure, Measure, SettingMeasure

Constructor = Callable[..., Any]
# Where names stand that are for Python alone, in the order in which they are listed.
NAMESPACES = (
    "auditing",
    "core",
    "data",
    "attacks",
    "attacks.inference",
    "risk",
    "accounting",
    "privacy",
    "games",
    "training",
    "scoring",
    "operators",
    "linalg",
    "defenses",
    "models",
    "results",
    "reporting",
    "testing",
)


# What the entries of a room make: nothing else that a plan names there is called.
KINDS: Mapping[str, tuple[type, ...]] = {
    "attacks": (Attack,),
    "labels": (LabelAttack,),
    "steps": (Steps,),
    "languages": (Language,),
    "games": (InferenceGame,),
    "classifiers": (Classifier,),
    "features": (Features,),
    "encoders": (PrototypeEncoder,),
    "audits": (PrivacyAudit, HypothesisPair),
    "canaries": (Canary,),
    "estimators": (EpsilonEstimator,),
    "measures": (Measure, SettingMeasure),
    "claim errors": (ClaimError,),
    "layer measures": (LayerMeasure,),
    "solvers": (Solver,),
    "defenses": (Defense,),
    "protocols": (Protocol,),
    "threats": (ThreatModel,),
    "models": (nn.Module,),
    "initializers": (nn.Module,),
    "datasets": (Batch, Population, Table),
    "generators": (ImageGenerator,),
    "losses": (Tensor,),
    "trainers": (TrainedGenerator,),
}
# The rooms of what an argument may name.
ARGUMENTS = tuple(
    room for room in KINDS if room not in ("labels", "games", "audits", "threats", "initializers", "losses", "trainers")
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One thing that a plan can name.

    Attributes:
        name: as written after `use =`.
        room: "attacks", "labels", "steps", "languages", "games", "classifiers", "features", "encoders", "measures",
            "layer measures", "claim errors", "solvers", "defenses", "protocols", "threats", "models", "initializers",
            "datasets", "generators", "audits", "canaries" or "estimators"; what no plan can name has other rooms.
        constructor: the class or function.
    """

    name: str
    room: str
    constructor: Constructor

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.constructor) or "").strip().split("\n")[0]


def catalog() -> dict[str, dict[str, Entry]]:
    """All entries by room and name, taken from what the packages export."""
    closed_form = _classes(gradleak.risk, KINDS["measures"])
    rooms: dict[str, Mapping[str, Constructor]] = {
        "attacks": _classes(gradleak.attacks, KINDS["attacks"]),
        "labels": _classes(gradleak.attacks, KINDS["labels"]),
        "steps": _classes(gradleak.attacks, KINDS["steps"]),
        "languages": _classes(gradleak.attacks, KINDS["languages"]),
        "games": _classes(gradleak.games, KINDS["games"]),
        "classifiers": _classes(gradleak.attacks.inference, KINDS["classifiers"]),
        "features": _classes(gradleak.attacks.inference, KINDS["features"]),
        "encoders": _classes(gradleak.attacks.inference, KINDS["encoders"]),
        "audits": _classes(gradleak.privacy, PrivacyAudit),
        "canaries": {"Canary": Canary},
        "estimators": _classes(gradleak.privacy, KINDS["estimators"]),
        "measures": closed_form,
        "claim errors": _classes(gradleak.risk, KINDS["claim errors"]),
        "layer measures": {
            name: item for name, item in _classes(gradleak.risk, LayerMeasure).items() if name not in closed_form
        },
        "solvers": _classes(gradleak.linalg, KINDS["solvers"]),
        "defenses": _classes(gradleak.defenses, KINDS["defenses"]),
        "protocols": _classes(gradleak.protocols, KINDS["protocols"]),
        "threats": {"HonestButCurious": HonestButCurious},
        "models": _functions(gradleak.models, exclude="initialize_"),
        "initializers": _functions(gradleak.models, only="initialize_"),
        "datasets": _functions(gradleak.datasets),
        "generators": _functions(gradleak.models.generators, exclude="train_"),
        "kinds of audits": {name: kind.load_audit() for name, kind in kinds().items()},
    }
    return {
        room: {name: Entry(name=name, room=room, constructor=item) for name, item in sorted(items.items())}
        for room, items in rooms.items()
    }


def from_python() -> dict[str, dict[str, Entry]]:
    """Exports for training files and for Python alone: no plan can name them. What the namespaces export, by heading."""
    planned = {entry.constructor for entries in catalog().values() for entry in entries.values()}
    trainers = gradleak.models.generators
    rooms = {
        "trainers of generators (training files)": {
            name: getattr(trainers, name) for name in trainers.__all__ if name.startswith("train_")
        }
    }
    own = [kind.audit.partition(":")[0] for kind in kinds().values()]
    for package in (*(f"gradleak.{namespace}" for namespace in NAMESPACES), *own):
        rooms[f"{package} (Python)"] = _others(import_module(package), planned)
    return {
        room: {name: Entry(name=name, room=room, constructor=item) for name, item in sorted(items.items())}
        for room, items in rooms.items()
        if items
    }


def _others(package: Any, planned: Collection[Constructor]) -> dict[str, Constructor]:
    """The functions and classes that a package exports and no plan can name; errors and enumerations are not listed."""
    found = {name: getattr(package, name) for name in getattr(package, "__all__", ())}
    return {
        name: item
        for name, item in found.items()
        if (inspect.isfunction(item) or (inspect.isclass(item) and not issubclass(item, Exception | Enum)))
        and item not in planned
    }


def _classes(package: Any, base: type | tuple[type, ...]) -> dict[str, Constructor]:
    found = {name: getattr(package, name) for name in package.__all__}
    return {
        name: item
        for name, item in found.items()
        if inspect.isclass(item)
        and issubclass(item, base)
        and not inspect.isabstract(item)
        and ABC not in item.__bases__
    }


def _functions(package: Any, *, only: str = "", exclude: str | None = None) -> dict[str, Constructor]:
    found = {name: getattr(package, name) for name in package.__all__}
    return {
        name.removeprefix(only): item
        for name, item in found.items()
        if inspect.isfunction(item) and name.startswith(only) and not (exclude and name.startswith(exclude))
    }
