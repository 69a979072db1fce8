"""Arguments in `gradleak explain`: inherited ones too, with defaults and meanings."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from gradleak.auditing.catalog import catalog, from_python
from gradleak.cli.arguments import arguments
from gradleak.cli.explain import explanation

ENTRIES = [
    (entry.name, entry.constructor)
    for room in catalog().values()
    for entry in room.values()
    if dataclasses.is_dataclass(entry.constructor)
]


def test_a_game_shows_what_it_inherits() -> None:
    text = explanation("PropertyGame")
    for line in (
        "    population: Population, required",
        "    batch_size: whole number of at least 1 = 16",
        "    features: Features = MaxPooling(kernel=3)",
        "    adversaries: Sequence[Knows | str] = ['static', 'adaptive']",
        "    test_rows: whole number of at least 0 | None = None",
    ):
        assert line in text.split("\n")
    assert "how many rows the adversary has" in text
    assert text.count("how many rows are private") == 1
    assert "batch_size: int = 8" in explanation("UserGame")


@pytest.mark.parametrize(("name", "constructor"), ENTRIES, ids=[name for name, _ in ENTRIES])
def test_every_argument_has_a_meaning(name: str, constructor: type) -> None:
    lines = arguments(constructor).split("\n")
    for parameter in inspect.signature(constructor).parameters:
        place = next(n for n, line in enumerate(lines) if line.startswith(f"    {parameter}: "))
        assert lines[place + 1].startswith("        "), f"{name}.{parameter} is not explained"


@pytest.mark.parametrize("name", ["train_vae", "train_dcgan", "trained_generator"])
def test_what_makes_a_generator_is_explained_without_quotes_around_types(name: str) -> None:
    first = explanation(name).splitlines()[0]
    assert first.startswith(f"{name}(")
    assert ": '" not in first
    assert "-> '" not in first


def test_defaults_are_printed_as_a_plan_has_them() -> None:
    text = explanation("AttributeAudit")
    assert "noise='per_example'" in text
    assert "DPSGD(clip_norm=2.0, noise_std=0.1, " in text
    assert "<NoiseOn" not in text


def test_what_no_plan_can_name_is_listed_and_explained() -> None:
    listed = {name for room in from_python().values() for name in room}
    assert {
        "GIML",
        "InventionCheck",
        "train_vae",
        "train_dcgan",
        "VisibleLayers",
        "LayerProfile",
        "profile_layers",
    } <= listed
    assert not listed & {name for room in catalog().values() for name in room}
    assert all(explanation(name) for name in listed)
