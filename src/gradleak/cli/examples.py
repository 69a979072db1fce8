"""The plans of `examples/`: in a wheel they lie inside of the package, in a checkout beside its sources."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from gradleak.results import InputError
from gradleak.results.errors import nearest, shown

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_CHECKOUT = Path(__file__).parents[3] / "examples"


def examples() -> dict[str, str]:
    """The text of every example plan by name."""
    inside: Traversable = resources.files("gradleak") / "examples"
    place = inside if inside.is_dir() else _CHECKOUT
    found = {one.name: one for one in place.iterdir()} if place.is_dir() else {}
    return {
        name.removesuffix(".toml"): one.read_text(encoding="utf-8")
        for name, one in sorted(found.items())
        if name.endswith(".toml")
    }


def example(name: str) -> str:
    """The text of an example plan.

    Raises:
        InputError: naming those that there are.
    """
    known = examples()
    if name not in known:
        hint = nearest(name, list(known))
        raise InputError(
            f"--example: expected one of {', '.join(known) or 'none here'}, got {shown(name)}"
            + (f"; {hint}" if hint else "")
        )
    return known[name]
