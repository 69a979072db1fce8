from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from gradleak.results import versions
from gradleak.results.versions import version_of

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def absent(package: str) -> str:
    raise metadata.PackageNotFoundError(package)


def test_the_version_of_a_package_that_is_installed() -> None:
    assert version_of("numpy") == metadata.version("numpy")


def test_a_checkout_that_nobody_installed_has_the_version_of_its_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.metadata, "version", absent)
    assert version_of("gradleak") == tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    assert version_of("torch") == "unknown"


@pytest.mark.parametrize(
    "text", ["", "[project]\nname = 'other'\nversion = '1'", "[project]\nname = 'gradleak'", "project = 3", "["]
)
def test_sources_beside_another_project_have_no_version(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions.metadata, "version", absent)
    monkeypatch.setattr(versions, "_PROJECT", tmp_path / "pyproject.toml")
    assert version_of("gradleak") == "unknown"
    (tmp_path / "pyproject.toml").write_text(text)
    assert version_of("gradleak") == "unknown"
