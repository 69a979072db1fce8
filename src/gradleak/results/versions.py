"""Versions of packages as records state them, in a checkout that nobody installed too."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

_PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def version_of(package: str) -> str:
    """The version of a package; of gradleak, where it runs from its sources, that of the project beside them.

    Args:
        package: as it is installed.

    Returns:
        The version, or "unknown".
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _of_sources() if package == "gradleak" else "unknown"


def _of_sources() -> str:
    try:
        project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
        return str(project["version"]) if project["name"] == "gradleak" else "unknown"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
