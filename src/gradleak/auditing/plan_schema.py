"""The JSON Schema of plan files, so that editors complete and check a plan before anything runs.

It says less than the reader: what depends on the data, on the model or on more than one key is checked there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradleak.auditing.catalog import Constructor, Entry, catalog
from gradleak.auditing.schema_writer import SchemaWriter
from gradleak.audits.base import SEED, TEXT, Adversary, Controls, PerfectAttackerRule, Schema
from gradleak.core import Domain, Mode
from gradleak.core.losses import LOSSES
from gradleak.games import PerturbedGame
from gradleak.models.generators import train_dcgan, train_vae
from gradleak.results import Count, NonNegative, Requirement, Seed, Thresholds, kinds

DIALECT = "http://json-schema.org/draft-07/schema#"
Rooms = Mapping[str, Mapping[str, Entry]]

_INDICES: Schema = {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}
_ADVERSARIES: Schema = {"type": "array", "items": {"enum": [one.value for one in Adversary]}}


def plan_schema(rooms: Rooms | None = None) -> Schema:
    """The JSON Schema (draft 7) of a plan file.

    Args:
        rooms: what a plan can name; None for the catalog.

    Examples:
        >>> sorted(plan_schema()["properties"]["thresholds"]["properties"])
        ['advantage', 'baseline_ratio', 'epsilon', 'pixel_rmse', 'reconstruction_probability', 'token_error']
    """
    writer = SchemaWriter(rooms=catalog() if rooms is None else rooms)
    sections = {key: write(writer) for key, write in SECTIONS.items()}
    for kind in kinds().values():
        sections |= kind.load_audit().schema(writer)
    return _whole(writer, "A plan of gradleak", sections, required=("model", "scenarios"))


def generator_schema(rooms: Rooms | None = None) -> Schema:
    """The JSON Schema (draft 7) of a file for `gradleak train-generator`.

    Args:
        rooms: what a plan can name; None for the catalog.
    """
    trainers: dict[str, Constructor] = {"train_dcgan": train_dcgan, "train_vae": train_vae}
    made = {name: Entry(name=name, room="trainers", constructor=item) for name, item in trainers.items()}
    writer = SchemaWriter(rooms={**(catalog() if rooms is None else rooms), "trainers": made})
    sections = {
        "seed": writer.value(Seed),
        "data": writer.choice("datasets"),
        "training": writer.choice("trainers", first=1, without=("progress",)),
    }
    return _whole(writer, "A training of a generator", sections, required=("data", "training"))


def _whole(writer: SchemaWriter, title: str, sections: Mapping[str, Schema], *, required: tuple[str, ...]) -> Schema:
    return {
        "$schema": DIALECT,
        "title": title,
        **writer.table(sections, required=required),
        "definitions": writer.definitions,
    }


def _model(writer: SchemaWriter) -> Schema:
    return writer.choice("models", also={"weights": TEXT, "initialize": writer.choice("initializers", first=1)})


def _objective(writer: SchemaWriter) -> Schema:
    loss: Schema = {"anyOf": [{"enum": list(LOSSES)}, {"type": "string", "pattern": ":"}]}
    dtypes: Schema = {"enum": ["float32", "float64"]}
    return writer.table({"loss": loss, "mode": writer.value(Mode), "mask_seed": writer.value(Seed), "dtype": dtypes})


def _swept(writer: SchemaWriter) -> Schema:
    """A defense, with lists in place of its numbers: a scenario for each."""
    before = set(writer.definitions)
    choice = writer.choice("defenses")
    for name in set(writer.definitions) - before:
        for key, own in writer.definitions[name].get("properties", {}).items():
            if own.get("type") in ("number", "integer"):
                several: Schema = {"type": "array", "items": own, "minItems": 1}
                writer.definitions[name]["properties"][key] = {"anyOf": [own, several]}
    return choice


def _scenarios(writer: SchemaWriter) -> Schema:
    one = writer.table(
        {
            "name": TEXT,
            "protocol": writer.choice("protocols"),
            "defenses": {"type": "array", "items": _swept(writer)},
            "examples": _INDICES,
            "attacks": writer.named(_INDICES),
            "perfect_attacker": writer.settings(PerfectAttackerRule),
            "adversaries": _ADVERSARIES,
            "reference": writer.value(bool),
            "require": writer.value(Requirement),
            "perturbation": writer.settings(PerturbedGame, without=("protocol", "before")),
        },
        required=("name",),
    )
    return {"type": "array", "minItems": 1, "items": one}


# What writes each section.
SECTIONS: Mapping[str, Callable[[SchemaWriter], Schema]] = {
    "name": lambda _: TEXT,
    "seed": lambda writer: writer.value(SEED),
    "pictures": lambda writer: writer.value(bool),
    "save_updates": lambda writer: writer.value(bool),
    "checkpoint_seconds": lambda writer: writer.value(NonNegative),
    "max_bytes": lambda writer: writer.value(Count),
    "model": _model,
    "data": lambda writer: writer.choice(
        "datasets",
        also={
            "batch_size": writer.value(Count),
            "domain": writer.settings(Domain, without=("guessed",), optional=True),
        },
    ),
    "objective": _objective,
    "threat": lambda writer: writer.choice("threats"),
    "thresholds": lambda writer: writer.settings(Thresholds),
    "controls": lambda writer: writer.settings(Controls),
    "adversaries": lambda _: _ADVERSARIES,
    "scenarios": _scenarios,
}
