"""The gate inside of NVFlare: four sites and a server in its simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integrations.cases import nothing_found

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
here = "tests.integrations.cases:"
noise = [{"use": "DPSGD", "clip_norm": 1.0, "noise_std": 1.0, "noise": "sum", "expected_batch_size": 4}]
job = FedJob(name="gate")
job.to(Once(folder), "server")
for site, way, model, rows, defenses in (
    ("site-1", "one", "network", "rows_of_1", []),
    ("site-2", "many", "network", "rows_of_2", []),
    ("site-3", "opacus", "network", "rows_of_3", noise),
    ("site-4", "adapters", "with_adapters", "rows_of_2", []),
):
    job.to(Site(way), site, tasks=["train"])
    if action:
        gate = LeakGate(model=here + model, batch=here + rows, protocol={"use": "FedAvg", "learning_rate": 0.1},
                        defenses=defenses, on_leak=action, budget="60s", log=f"{folder}/gate-{site}.jsonl")
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


def test_honest_and_private_results_arrive_with_the_same_bits_and_leaking_ones_do_not(tmp_path: Path) -> None:
    pytest.importorskip("opacus", reason="opacus is not installed; make test-integrations runs this")
    pytest.importorskip("peft", reason="peft is not installed; make test-integrations runs this")
    ended = {action: run(tmp_path / f"run-{action}", action) for action in ("", "warn", "refuse")}
    plain, warned, refused = (results(tmp_path / f"run-{action}") for action in ("", "warn", "refuse"))
    sites = ["site-1", "site-2", "site-3", "site-4"]
    assert list(plain) == list(warned) == sites, ended["warn"].stdout[-3000:]
    for site, arrays in plain.items():
        assert all(np.array_equal(arrays[name], warned[site][name]) for name in arrays)
    assert all("lora_" in name for name in plain["site-4"])
    lines = {
        site: json.loads((tmp_path / "run-warn" / f"gate-{site}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        for site in plain
    }
    assert lines["site-1"]["leaks"] is True
    for site in ("site-2", "site-4"):
        assert nothing_found(lines[site]), lines[site]
    assert (lines["site-3"]["leaks"], lines["site-3"]["reason"]) == (False, "no_attack_had_a_chance")
    assert list(refused) == sites[1:]
    told = ended["refuse"].stdout + ended["refuse"].stderr
    assert "rebuilt an example" not in "".join(line for line in told.splitlines() if "ServerRunner" in line)
