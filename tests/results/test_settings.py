"""Settings declared once: what is taken, what is refused and in which words, and that dataclasses stay dataclasses."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
import inspect
import math
import pickle
import pkgutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

import gradleak
from gradleak.results import (
    BelowOne,
    Count,
    Finite,
    GradleakError,
    Hint,
    InputError,
    Natural,
    NonNegative,
    PlanError,
    Positive,
    Probability,
    Seed,
    Settings,
    Share,
    ShareOrAll,
    Whole,
)
from gradleak.results.settings import annotation, check_of


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


class Part:
    pass


@dataclass(frozen=True, kw_only=True)
class Search(Settings):
    steps: Count = 100
    warm_up: Natural = 0
    bits: Annotated[int, Whole(2, 16)] = 8
    seed: Seed = 0
    rate: Positive = 0.1
    weight: NonNegative = 0.0
    shift: Finite = 0.0
    probability: Probability = 0.5
    share: Share = 0.5
    momentum: BelowOne = 0.9
    sampling: ShareOrAll = 1.0
    noise: Annotated[Positive, Hint("without noise it is Clip")] = 1.0
    anything: float = 0.0
    signed: bool = False
    name: str = "search"
    side: Side | str = Side.LEFT
    part: Part | None = None
    limit: Count | None = None
    milestones: Sequence[Share] = ()
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    std: Mapping[str, NonNegative] = field(default_factory=dict)
    groups: Side | Mapping[str, Sequence[str]] | None = None
    spread: float | tuple[float, ...] = 1.0
    call: Callable[[int], int] | None = None
    free: Any = None


REFUSED: Mapping[str, tuple[str, Sequence[Any]]] = {
    "steps": ("a whole number of at least 1", [0, -1, 1.5, 2.0, "3", None, True, math.nan, [1], np.bool_(True), 1j]),
    "warm_up": ("a whole number of at least 0", [-1, 0.0, "0", False]),
    "bits": ("a whole number from 2 to 16", [1, 17, 8.0]),
    "seed": ("a whole number of at most 64 bits", [2**64, -(2**63) - 1, 1.0, "1", None]),
    "rate": ("a finite positive number", [0, 0.0, -1, math.nan, math.inf, "0.1", None, True, 1j]),
    "weight": ("a finite number of at least 0", [-1e-9, math.nan, math.inf, "0"]),
    "shift": ("a finite number", [math.nan, math.inf, -math.inf, "0"]),
    "probability": ("a number from 0 to 1", [-0.1, 1.1, math.nan]),
    "share": ("a number between 0 and 1", [0, 1, math.nan, "0.5"]),
    "momentum": ("a number from 0 to below 1", [-0.1, 1, math.nan]),
    "sampling": ("a number above 0 and at most 1", [0, 1.1]),
    "anything": ("a number", [math.nan, "1", True]),
    "signed": ("True or False", ["false", 0, None, 1.0]),
    "name": ("a text", [1, None, b"search"]),
    "limit": ("a whole number of at least 1", [0, 1.5, "1"]),
    "milestones": ("a list of numbers between 0 and 1", [0.5, "0.5", {0.5}, {0.5: 1}]),
    "betas": ("two numbers from 0 to below 1", [0.9, [0.9], (0.9, 0.9, 0.9)]),
    "std": ("finite numbers of at least 0 by name", [0.1, [0.1], "0.1"]),
    "part": ("a Part or None", ["Part"]),
    "spread": ("a number or a list of numbers", ["1", None]),
    "groups": ("one of left, right, lists of texts by name or None", ["up", 1]),
    "call": ("a function", [1]),
}


def cases() -> Iterator[tuple[str, str, Any]]:
    for name, (words, values) in REFUSED.items():
        for value in values:
            yield name, words, value


@pytest.mark.parametrize(("name", "words", "value"), list(cases()))
def test_what_does_not_fit_is_refused_by_class_and_field(name: str, words: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        Search(**{name: value})
    assert str(caught.value) == f"Search.{name}: expected {words}, got {value!r}"
    assert "\n" not in str(caught.value)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    made = Search(steps=np.int64(3), rate=np.float32(0.5), share=Fraction(1, 2), weight=2)  # type: ignore[arg-type]
    assert made == Search(steps=3, rate=0.5, share=0.5, weight=2.0)
    assert {type(made.steps), type(made.rate), type(made.share), type(made.weight)} == {int, float}


def test_names_become_members_and_lists_tuples() -> None:
    made = Search(side="right", milestones=[0.25, 0.5], groups={"head": ["9.weight"]}, betas=[0, 0.5])  # type: ignore[arg-type]
    assert made.side is Side.RIGHT
    assert made.milestones == (0.25, 0.5)
    assert made.groups == {"head": ("9.weight",)}
    assert made.betas == (0.0, 0.5)
    assert Search(milestones=np.array([0.25, 0.5])).milestones == (0.25, 0.5)  # type: ignore[arg-type]
    assert Search(groups="left").groups is Side.LEFT  # type: ignore[arg-type]


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one() -> None:
    with pytest.raises(
        InputError, match=r"Search.side: expected one of left, right, got 'riight'; did you mean 'right'\?$"
    ):
        Search(side="riight")


def test_the_place_inside_a_list_or_a_table_is_named() -> None:
    with pytest.raises(InputError, match=r"Search.milestones\[1\]: expected a number between 0 and 1, got 2$"):
        Search(milestones=[0.5, 2])
    with pytest.raises(InputError, match=r"Search.std\['0.weight'\]: expected a finite number of at least 0, got -1$"):
        Search(std={"0.weight": -1})


def test_a_hint_goes_after_the_message() -> None:
    with pytest.raises(InputError, match=r"expected a finite positive number, got 0; without noise it is Clip$"):
        Search(noise=0)


def test_at_most_a_hundred_characters_of_a_value_are_echoed() -> None:
    for name, value in (("steps", 10**300 + 0.5), ("name", list(range(1000))), ("side", "x" * 1000), ("rate", 10**400)):
        with pytest.raises(InputError) as caught:
            Search(**{name: value})
        assert len(str(caught.value).partition(", got ")[2]) <= 100


def test_an_object_of_a_wrong_class_is_named_by_it() -> None:
    with pytest.raises(InputError, match=r"Search.part: expected a Part or None, got Search$"):
        Search(part=Search())  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"Search.part: expected a Part or None, got the class Part$"):
        Search(part=Part)  # type: ignore[arg-type]


def test_a_table_of_a_plan_makes_settings() -> None:
    def read(hint: Any, value: Any) -> Any:
        return check_of(hint)(value, "here", PlanError, tables=True)

    assert read(Search | None, {"steps": 3, "side": "right", "std": {"0": 1}}) == Search(
        steps=3, side="right", std={"0": 1}
    )
    assert read(Mapping[str, Search], {"a": {"steps": 3}}) == {"a": Search(steps=3)}
    with pytest.raises(PlanError, match=r"^here.steps: expected a whole number of at least 1, got 0$"):
        read(Search | None, {"steps": 0})
    with pytest.raises(PlanError, match=r"^here.a.std.0: expected a finite number of at least 0, got 'x'$"):
        read(Mapping[str, Search], {"a": {"std": {"0": "x"}}})
    with pytest.raises(PlanError, match=r"^here: unknown key 'step'; did you mean 'steps'\? expected one of steps, "):
        read(Search, {"step": 3})
    with pytest.raises(InputError, match=r"^here: expected a Search or None, got \{'steps': 3\}$"):
        check_of(Search | None)({"steps": 3}, "here")


def test_it_stays_a_dataclass() -> None:
    made = Search(steps=3, side="left", std={"0": 1})
    assert pickle.loads(pickle.dumps(made)) == made == copy.copy(made) == copy.deepcopy(made)  # noqa: TID251 - own bytes
    assert replace(made, steps=4).steps == 4
    assert "steps=3" in repr(made)
    assert dataclasses.asdict(made)["std"] == {"0": 1.0}
    with pytest.raises(InputError, match=r"Search.steps: "):
        replace(made, steps=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.steps = 4  # type: ignore[misc]


def test_users_derive_plain_dataclasses() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Mine(Search):
        own: int = 3
        seen: list[float] = field(default_factory=list)
        strange: NotHere = "anything"  # type: ignore[name-defined]  # noqa: F821

    assert Mine(strange=7).strange == 7
    kept: list[float] = []
    assert Mine(seen=kept).seen is kept
    with pytest.raises(InputError, match=r"Mine.steps: expected a whole number of at least 1, got 0$"):
        Mine(steps=0)
    with pytest.raises(InputError, match=r"Mine.own: expected a whole number, got 0.5$"):
        Mine(own=0.5)  # type: ignore[arg-type]


def test_the_error_and_the_name_are_the_classes_own() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Limits(Settings):
        refused_with: ClassVar[type[GradleakError]] = PlanError
        called: ClassVar[str] = "limits"
        least: Share = 0.5

    with pytest.raises(PlanError, match=r"limits.least: expected a number between 0 and 1, got 1$"):
        Limits(least=1)


def test_a_json_schema_comes_from_the_same_annotations() -> None:
    schemas = {one.name: check_of(annotation(Search, one.name)).json_schema() for one in dataclasses.fields(Search)}
    assert schemas["steps"] == {"type": "integer", "minimum": 1}
    assert schemas["bits"] == {"type": "integer", "minimum": 2, "maximum": 16}
    assert schemas["share"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    assert schemas["side"] == {"enum": ["left", "right"]}
    assert schemas["std"] == {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}
    assert schemas["milestones"]["items"] == schemas["share"]


def classes_of_settings() -> list[type[Settings]]:
    for module in pkgutil.walk_packages(gradleak.__path__, "gradleak."):
        # Their frameworks and clusters are not here.
        if module.name.startswith(("gradleak.integrations.", "gradleak.auditing.executor_")):
            continue
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[Settings]] = []
    waiting = [Settings]
    while waiting:
        inside = waiting.pop().__subclasses__()
        waiting += inside
        found += [one for one in inside if one.__module__.startswith("gradleak.") and dataclasses.is_dataclass(one)]
    return found


def test_every_class_of_settings_is_checked() -> None:
    """No annotation of the package is out of reach at run time, and no `__post_init__` forgets those of the fields."""
    for one in classes_of_settings():
        silent = [f.name for f in dataclasses.fields(one) if not check_of(annotation(one, f.name)).words]
        assert silent == list(FREE.get(one.__name__, ())), one
        own = one.__dict__.get("__post_init__")
        if own is not None:
            tree = ast.parse(textwrap.dedent(inspect.getsource(own)))
            assert any(isinstance(node, ast.Name) and node.id == "super" for node in ast.walk(tree)), one


# Fields that take anything, by class.
FREE: Mapping[str, Sequence[str]] = {}
