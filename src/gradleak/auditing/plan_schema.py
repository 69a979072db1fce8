"""The JSON Schema of plan files, so that editors complete and check a plan before anything runs.

It says less than the reader: what hangs on the data, on the model or on more than one key is checked there alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradleak.auditing.adversary import Adversary
from gradleak.auditing.catalog import Constructor, Entry, catalog
from gradleak.auditing.inference_plan import SWEPT
from gradleak.auditing.plan import Controls, PerfectAttackerRule
from gradleak.auditing.schema_writer import TEXT, Schema, SchemaWriter
from gradleak.auditing.verdict import Thresholds
from gradleak.core import Mode
from gradleak.core.losses import LOSSES
from gradleak.games import PerturbedGame
from gradleak.models.generators import train_dcgan, train_vae
from gradleak.privacy import Canary
from gradleak.results import Count, NonNegative, Positive, Seed, Share
from gradleak.risk import Partition
from gradleak.training import GroupNormForBatchNorm, Training

DIALECT = "http://json-schema.org/draft-07/schema#"
Rooms = Mapping[str, Mapping[str, Entry]]

_TEXTS: Schema = {"type": "array", "items": TEXT}
_ALL_OR_NAMES: Schema = {"anyOf": [{"const": "all"}, {**_TEXTS, "minItems": 1}]}
_INDICES: Schema = {"anyOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]}
_ADVERSARIES: Schema = {"type": "array", "items": {"enum": [one.value for one in Adversary]}}
# What games and audits take from [model], [objective] and [[scenarios]].
_ELSEWHERE = ("model", "release", "loss", "mode", "objective", "control")


def plan_schema(rooms: Rooms | None = None) -> Schema:
    """The JSON Schema (draft 7) of a plan file.

    Args:
        rooms: what a plan can name; None for the catalog.

    Examples:
        >>> sorted(plan_schema()["properties"]["thresholds"]["properties"])
        ['advantage', 'baseline_ratio', 'epsilon', 'pixel_rmse', 'reconstruction_probability']
    """
    writer = SchemaWriter(rooms=catalog() if rooms is None else rooms)
    sections = {key: write(writer) for key, write in SECTIONS.items()}
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
    return writer.table({"loss": loss, "mode": writer.value(Mode), "mask_seed": writer.value(int), "dtype": dtypes})


def _scenarios(writer: SchemaWriter) -> Schema:
    one = writer.table(
        {
            "name": TEXT,
            "protocol": writer.choice("protocols"),
            "defenses": {"type": "array", "items": writer.choice("defenses")},
            "examples": _INDICES,
            "attacks": writer.named(_INDICES),
            "perfect_attacker": writer.settings(PerfectAttackerRule),
            "adversaries": _ADVERSARIES,
            "perturbation": writer.settings(PerturbedGame, without=("protocol", "before")),
        },
        required=("name",),
    )
    return {"type": "array", "minItems": 1, "items": one}


def _utility(writer: SchemaWriter) -> Schema:
    own = {
        "data": writer.choice("datasets"),
        "test_rows": writer.value(int),
        "seeds": writer.value(Count),
        "learning_rates": {"type": "array", "items": writer.value(Positive)},
        "replacement": writer.settings(GroupNormForBatchNorm),
    }
    return {**writer.settings(Training, also=own, optional=True), "required": ["data", "test_rows", "rounds"]}


def _inference(writer: SchemaWriter) -> Schema:
    sizes = {key: writer.value(Count) for key in SWEPT}
    lists: dict[str, Schema] = {
        key: {"anyOf": [size, {"type": "array", "items": size, "minItems": 1}]} for key, size in sizes.items()
    }
    own = {"seeds": writer.value(Count), "scenarios": _ALL_OR_NAMES}
    return writer.named(writer.choice("games", also={**own, **lists}, without=_ELSEWHERE))


def _privacy(writer: SchemaWriter) -> Schema:
    estimator = writer.choice("estimators", without=("delta", "confidence", "comparisons"))
    canary: Schema = {
        "anyOf": [{"const": False}, writer.settings(Canary, also={"use": {"const": "Canary"}}, optional=True)]
    }
    own = {
        "seeds": writer.value(Count),
        "scenarios": _ALL_OR_NAMES,
        "claimed_epsilon": writer.value(Positive),
        "confidence": writer.value(Share),
        "estimators": {"type": "array", "items": estimator},
        "canary": canary,
    }
    return writer.named(writer.choice("audits", also=own, without=_ELSEWHERE))


def _layers(writer: SchemaWriter) -> Schema:
    groups = writer.named(_TEXTS)
    consecutive = writer.table({"consecutive": writer.value(Count)}, required=("consecutive",))
    by: Schema = {"anyOf": [writer.value(Partition), consecutive, groups]}
    hidden = writer.table({"hide": _TEXTS}, required=("hide",))
    visible: Schema = {"anyOf": [{"const": "all"}, _TEXTS, writer.named({"anyOf": [_TEXTS, hidden]})]}
    measures = writer.choice("measures", "layer measures", without=("by", "threat_model"))
    return writer.named(
        writer.table(
            {
                "data": writer.choice("datasets"),
                "attribute": TEXT,
                "value": {"type": ["string", "integer"]},
                "measures": {"type": "array", "minItems": 1, "items": measures},
                "count": writer.value(Count),
                "batch_size": writer.value(Count),
                "releases": writer.value(Count),
                "by": by,
                "visible": visible,
                "budget": writer.value(Share),
                "scenarios": _ALL_OR_NAMES,
                "target": TEXT,
                "keep_attribute": writer.value(bool),
                "without": _TEXTS,
            },
            required=("measures",),
        )
    )


# What writes each section.
SECTIONS: Mapping[str, Callable[[SchemaWriter], Schema]] = {
    "name": lambda _: TEXT,
    "seed": lambda _: {"type": "integer", "minimum": 0},
    "pictures": lambda writer: writer.value(bool),
    "save_updates": lambda writer: writer.value(bool),
    "checkpoint_seconds": lambda writer: writer.value(NonNegative),
    "model": _model,
    "data": lambda writer: writer.choice("datasets", also={"batch_size": writer.value(Count)}),
    "objective": _objective,
    "threat": lambda writer: writer.choice("threats"),
    "thresholds": lambda writer: writer.settings(Thresholds),
    "controls": lambda writer: writer.settings(Controls),
    "adversaries": lambda _: _ADVERSARIES,
    "attacks": lambda writer: writer.named(writer.choice("attacks")),
    "measures": lambda writer: writer.named(writer.choice("measures")),
    "scenarios": _scenarios,
    "utility": _utility,
    "inference": _inference,
    "privacy": _privacy,
    "layers": _layers,
}

__all__ = ["generator_schema", "plan_schema"]
