"""Packages that an installer put in their place: their code is nobody's data, and the installer lists their files."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from importlib import util
from pathlib import Path

COMPILED = (".so", ".pyd", ".dylib")


@functools.cache
def is_installed(module: str) -> bool:
    """True if a module is Python's, this package's or an installed package's."""
    root = module.partition(".")[0]
    if root in ("gradleak", "__main__", ""):
        return root == "gradleak"
    place = place_of(root)
    return root in sys.stdlib_module_names or (place is not None and lies_with_installed(place))


def lies_with_installed(place: Path) -> bool:
    """True if the file or folder of a module lies where installers put packages, or where one lists it (`pip --target`)."""
    sites = [*site.getsitepackages(), site.getusersitepackages()]
    if _inside(place, "purelib", "platlib") or any(place.is_relative_to(one) for one in sites):
        return True
    return _site_of(place) is not None and files_beside(place) is not None


def lies_with_python(place: Path) -> bool:
    """True if the file of a module lies in Python's own library."""
    return _inside(place, "stdlib", "platstdlib")


def place_of(module: str) -> Path | None:
    """The file or folder of a module, None for one that has none, or that is not there."""
    try:
        found = sys.modules.get(module)
        spec = util.find_spec(module) if found is None else None
        file = getattr(found, "__file__", None) or (spec.origin if spec is not None else None)
        folders = list(getattr(found, "__path__", None) or (spec.submodule_search_locations if spec else None) or [])
    except (ImportError, ValueError, AttributeError):
        return None
    if file is None or not Path(file).is_absolute():
        file = folders[0] if folders else None
    return None if file is None else Path(file)


def files_beside(place: Path, name: str = "") -> tuple[str, ...] | None:
    """The code of the package at a place, with its hashes, as an installer listed it; None where no list names it.

    Args:
        place: the file or folder of a module.
        name: of the package: its list is most often that of the same name.
    """
    folder = _site_of(place)
    if folder is None:
        return None
    lists = sorted(folder.glob("*.dist-info/RECORD"), key=lambda one: not one.parent.name.lower().startswith(name))
    own = place.relative_to(folder).as_posix()
    own = own + ("," if place.suffix else "/")
    return next((files for files in map(listed, lists) if any(line.startswith(own) for line in files)), None)


@functools.cache
def listed(record: Path) -> tuple[str, ...]:
    """The code in an installer's list, with its hashes."""
    lines = record.read_text(encoding="utf-8").splitlines()
    return tuple(sorted(line for line in lines if line.split(",")[0].endswith((".py", *COMPILED))))


def _site_of(place: Path) -> Path | None:
    """The nearest folder around a place in which installers left their lists."""
    return next((folder for folder in place.parents if any(folder.glob("*.dist-info"))), None)


def _inside(place: Path, *names: str) -> bool:
    return any(place.is_relative_to(sysconfig.get_path(name)) for name in names)
