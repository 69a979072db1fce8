"""The studies of a checkout, which no installed package carries: found where they can be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_RUNNER = "runner.py"


def runner() -> ModuleType | None:
    """The module `studies.runner`; None where the command is run outside of a checkout."""
    # The folder of the command comes last: what a user keeps there hides nothing.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    spec = find_spec("studies")
    # A folder of that name may be somebody else's; its code is not run.
    if spec is None or not any((Path(place) / _RUNNER).is_file() for place in spec.submodule_search_locations or ()):
        return None
    return import_module("studies.runner")


def studies() -> Mapping[str, type]:
    """Every study by name; none outside of a checkout."""
    found = runner()
    return {} if found is None else found.known_studies()


def factories() -> Mapping[str, Callable[..., object]]:
    """Data sets and networks of the studies by what a plan writes after `use =`; none outside of a checkout."""
    found = runner()
    return {} if found is None else found.factories()
