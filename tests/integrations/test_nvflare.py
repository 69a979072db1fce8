"""The gate inside of NVFlare: two sites and a server in its simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed; make test-integrations runs this")
pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
CODE = """
import sys
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from gradleak.integrations.nvflare import LeakGate
from tests.integrations.nvflare_parts import Once, Site
action, folder = sys.argv[1:]
job = FedJob(name="gate")
job.to(Once(folder), "server")
for site, count in (("site-1", 1), ("site-2", 64)):
    job.to(Site(count, difference=site == "site-2"), site, tasks=["train"])
    if action:
        gate = LeakGate(model="tests.integrations.cases:network", batch=f"tests.integrations.cases:rows_of_{site[-1]}",
                        protocol={"use": "FedAvg", "learning_rate": 0.1}, on_leak=action, budget="60s",
                        log=f"{folder}/gate-{site}.jsonl")
        job.to(gate, site, tasks=["train"], filter_type=FilterType.TASK_RESULT)
job.simulator_run(f"{folder}/work", threads=2)
"""


def run(folder: Path, action: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", CODE, action, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
    )


def results(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {path.stem: dict(np.load(path)) for path in sorted(folder.glob("site-*.npz"))}


def test_honest_results_arrive_with_the_same_bits_and_leaking_ones_do_not(tmp_path: Path) -> None:
    ended = {action: run(tmp_path / f"run-{action}", action) for action in ("", "warn", "refuse")}
    plain, warned, refused = (results(tmp_path / f"run-{action}") for action in ("", "warn", "refuse"))
    assert list(plain) == list(warned) == ["site-1", "site-2"], ended["warn"].stdout[-3000:]
    for site, arrays in plain.items():
        assert all(np.array_equal(arrays[name], warned[site][name]) for name in arrays)
    lines = {
        site: json.loads((tmp_path / "run-warn" / f"gate-{site}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        for site in plain
    }
    assert lines["site-1"]["leaks"] is True
    assert lines["site-2"]["leaks"] is not True
    assert "site-1" not in refused
    told = ended["refuse"].stdout + ended["refuse"].stderr
    assert "rebuilt an example" not in "".join(line for line in told.splitlines() if "ServerRunner" in line)
