"""The wall: an attack repeated from a saved update, in a process without the truth, gives the same bits."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.auditing.conftest import SMALL_PLAN

from gradleak.auditing import attack_generator, build_plan
from gradleak.audits.reconstruction import ReconstructionAudit

ADVERSARY = """
import sys
import pytest
import torch
from safetensors.torch import load_file, save_file
from gradleak.attacks import GaussNewton
from gradleak.audits.base import attack_generator
from gradleak.core import Domain, Knowledge, Objective, Update
from gradleak.protocols import FedSGD
from tests.auditing.small_model import small_mlp

torch.set_num_threads(1)
model = small_mlp(generator=torch.Generator().manual_seed(0))
model.load_state_dict(load_file(sys.argv[1]))
knowledge = Knowledge(
    objective=Objective.from_module(model), protocol=FedSGD(), defenses=(), batch_size=1,
    domain=Domain.image(channels=1, height=8, width=8),
)
update = Update.load(sys.argv[2])
found = GaussNewton(max_steps=20)(update, knowledge, generator=attack_generator(3, "undefended", 0, "gauss_newton"))
save_file({"inputs": found.inputs.contiguous(), "targets": found.targets}, sys.argv[3])
"""


@pytest.mark.slow  # in short: tests/attacks/test_wall.py
def test_the_same_bits_without_the_truth(tmp_path: Path) -> None:
    plan = build_plan(tomllib.loads(SMALL_PLAN), folder=tmp_path)
    site, (audit,) = plan.site, [one for one in plan.audits if isinstance(one, ReconstructionAudit)]
    scenario = site.scenarios[0]
    update = site.released(scenario, 0)
    knowledge = site.threat.disclose(site.objective, scenario.release, site.batches[0])
    generator = attack_generator(site.seed, scenario.name, 0, "gauss_newton")
    inside = audit.attacks["gauss_newton"](update, knowledge, generator=generator)

    save_file(site.objective.params, tmp_path / "weights.safetensors")
    update.save(tmp_path / "update.safetensors")
    (tmp_path / "adversary.py").write_text(ADVERSARY, encoding="utf-8")
    paths = [str(tmp_path / name) for name in ("weights.safetensors", "update.safetensors", "found.safetensors")]
    root = str(Path(__file__).parents[3])
    subprocess.run([sys.executable, str(tmp_path / "adversary.py"), *paths], check=True, cwd=root, env=_env(root))
    outside = load_file(tmp_path / "found.safetensors")
    assert inside.inputs is not None
    assert torch.equal(outside["inputs"], inside.inputs)
    assert inside.targets is not None
    assert torch.equal(outside["targets"], inside.targets)


def _env(root: str) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": f"{root}/src{os.pathsep}{root}", "OMP_NUM_THREADS": "1"}
