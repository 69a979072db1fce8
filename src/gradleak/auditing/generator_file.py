"""A file (TOML) that says which generator is trained, on what: `gradleak train-generator`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from gradleak.auditing.catalog import KINDS, Constructor, Entry, catalog
from gradleak.auditing.plan_file import check_values, read_toml
from gradleak.auditing.plan_names import check_kind
from gradleak.auditing.plan_reader import PlanReader, check_arguments, configure
from gradleak.audits.base import table_of, typed, unknown
from gradleak.core import Batch
from gradleak.core.process import in_turn
from gradleak.models.generators import TrainedGenerator, train_dcgan, train_vae
from gradleak.models.generators.training import Progress
from gradleak.results import PlanError, Seed

_SECTIONS = ("seed", "data", "training")
_TRAINERS: Mapping[str, Constructor] = {"train_dcgan": train_dcgan, "train_vae": train_vae}


@in_turn
def train_generator(path: str | os.PathLike[str], *, progress: Progress | None = None) -> TrainedGenerator:
    """The generator that a training file describes, trained.

    The file has `seed`, a section `[data]` with a data set of images as in plan files, and a section `[training]` with
    `use = "train_vae"` or `"train_dcgan"` and its arguments.

    Args:
        path: the TOML file.
        progress: called after every step with step, steps and a word on the loss.

    Raises:
        PlanError: in one line, for a missing file, bad TOML, an unknown key (naming the nearest), a bad value.
        UnsupportedError: if the training diverges.
    """
    content = read_toml(path, "a training file")
    check_values(content)
    if "scenarios" in content:
        raise PlanError(f"{Path(path)}: expected a training file, got the plan of an audit, for `gradleak audit`")
    for key in content:
        if key not in _SECTIONS:
            raise PlanError(f"{Path(path).name}: {unknown('key', key, _SECTIONS)}")
    for key in ("data", "training"):
        if "use" not in table_of(content.get(key, {}), key):
            raise PlanError(f"{key}: expected a section [{key}] with a key 'use'")
    seed = typed(Seed, content.get("seed", 0), "seed")
    rooms = {**catalog(), "trainers": {k: Entry(name=k, room="trainers", constructor=v) for k, v in _TRAINERS.items()}}
    reader = PlanReader(folder=Path(), seed=seed, rooms=rooms)
    training = dict(content["training"])
    train, name = reader.named(training, "trainers", "training"), training.pop("use")
    check_kind(train, KINDS["trainers"], name, "training")
    if "progress" in training:
        raise PlanError("training: unknown key 'progress'")
    # Before the data are read, which may take long.
    check_arguments(partial(train, None, progress=None), training, where="training")
    images = reader.build(content["data"], "datasets", "data", (Batch,))
    images = Batch(*images) if isinstance(images, tuple) and len(images) == 2 else images
    if not isinstance(images, Batch):
        raise PlanError(f"data: expected images as a Batch or (inputs, targets), got {type(images).__name__}")
    made = configure(partial(train, images, progress=progress), training, where="training", seed=seed)
    if not isinstance(made, TrainedGenerator):
        raise PlanError(f"training: expected a TrainedGenerator, got {type(made).__name__}")
    # The trainer's own seed is derived from that of the file; who wants to train again needs the file's.
    return replace(made, facts={**made.facts, "plan_seed": seed})
