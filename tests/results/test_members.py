"""Members of enumerations by their names."""

from __future__ import annotations

from enum import StrEnum

import pytest

from gradleak.results import InputError, member


class Side(StrEnum):
    LEFT = "left"
    RIGHT = "right"


@pytest.mark.parametrize("given", [Side.RIGHT, "right"])
def test_a_member_and_its_value_are_that_member(given: object) -> None:
    assert member("side", Side, given) is Side.RIGHT


@pytest.mark.parametrize("given", ["", None, 1, True, ["left"], {"left": 1}])
def test_anything_else_is_refused_with_field_and_names(given: object) -> None:
    with pytest.raises(InputError) as refused:
        member("Box.side", Side, given)
    assert str(refused.value) == f"Box.side: expected one of left, right, got {given!r}"


def test_the_member_that_was_meant_is_named() -> None:
    with pytest.raises(InputError, match=r"expected one of left, right, got 'RIGHT'; did you mean 'right'\?$"):
        member("side", Side, "RIGHT")
    with pytest.raises(InputError, match=r"expected one of left, right, got the class Side$"):
        member("side", Side, Side)


def test_a_hint_ends_the_message() -> None:
    with pytest.raises(InputError, match=r"got 'up'; sides are meant$"):
        member("side", Side, "up", hint="; sides are meant")
