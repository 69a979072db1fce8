"""The Makefile: another Python gets an environment of its own, so that no target takes the wrong one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("python", "environment"),
    [("python3", ".venv"), ("python3.12", ".venv-python3.12"), ("/a/python3.13", ".venv-python3.13")],
)
def test_every_python_has_an_environment_of_its_own(python: str, environment: str) -> None:
    command = ["make", "--dry-run", "--always-make", "test", f"PYTHON={python}"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{python} -m venv --clear {environment}\n" in said
    assert f"{environment}/bin/python -m pytest -n 2" in said
