"""The wall: an attack gives the same bits in a process where the truth does not exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gradleak.attacks import (
    DLG,
    IDLG,
    Attack,
    BatchNormInversion,
    GaussNewton,
    GradInversion,
    InvertingGradients,
)
from gradleak.core import Batch, HonestButCurious, Objective, Release
from gradleak.protocols import FedSGD
from tests.attacks.setting import rows, setting, small_net

ATTACKS: dict[str, Attack] = {
    "GaussNewton(max_steps=6)": GaussNewton(max_steps=6),
    "InvertingGradients(iterations=25, restarts=3)": InvertingGradients(iterations=25, restarts=3),
    "DLG(iterations=1)": DLG(iterations=1),
    "IDLG(iterations=1)": IDLG(iterations=1),
    "GradInversion(iterations=12, restarts=2)": GradInversion(iterations=12, restarts=2),
    "BatchNormInversion(iterations=12)": BatchNormInversion(iterations=12),
}

ELSEWHERE = """
import sys, torch
from safetensors.torch import load_file, save_file
from gradleak.attacks import DLG, IDLG, BatchNormInversion, GaussNewton, GradInversion, InvertingGradients
from gradleak.core import Domain, DomainKind, Knowledge, Objective, Update
from gradleak.models import mlp
from gradleak.protocols import FedSGD

torch.set_num_threads(1)
folder = sys.argv[1]
model = mlp(features=12, hidden=(32, 16), classes=3, activation="tanh")
model.load_state_dict(load_file(f"{folder}/model.safetensors"))
knowledge = Knowledge(
    objective=Objective.from_module(model),
    protocol=FedSGD(),
    defenses=(),
    batch_size=1,
    domain=Domain(shape=(12,), kind=DomainKind.TABULAR),
)
update = Update.load(f"{folder}/update.safetensors")
found = {}
for number, text in enumerate(sys.argv[2:]):
    result = eval(text)(update, knowledge, generator=torch.Generator().manual_seed(5))
    found[f"{number}.inputs"] = result.inputs
    found[f"{number}.targets"] = result.targets
    found[f"{number}.history"] = torch.tensor(result.history, dtype=torch.float64)
save_file(found, f"{folder}/found.safetensors")
"""


def test_the_same_bits_from_a_saved_update_in_a_process_without_the_truth(tmp_path: Path) -> None:
    model = small_net()
    case = setting(model, rows(1), dtype=torch.float32)
    case.update.save(tmp_path / "update.safetensors")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    here = [
        attack(case.update, case.knowledge, generator=torch.Generator().manual_seed(5)) for attack in ATTACKS.values()
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path), *ATTACKS], check=True, env=environment, timeout=120)
    there = load_file(tmp_path / "found.safetensors")
    for number, found in enumerate(here):
        assert torch.equal(there[f"{number}.inputs"], found.inputs)
        assert torch.equal(there[f"{number}.targets"], found.targets)
        assert there[f"{number}.history"].tolist() == list(found.history)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=lambda attack: attack.name)
def test_a_planted_wrong_truth_changes_nothing(attack: Attack) -> None:
    objective = Objective.from_module(small_net())
    release = Release(FedSGD())
    truth = rows(1)
    wrong = Batch(1 - truth.inputs, torch.tensor([0]), truth.domain)
    update = release(objective, truth, torch.Generator())
    found = [
        attack(update, HonestButCurious().disclose(objective, release, batch), generator=torch.Generator())
        for batch in (truth, wrong)
    ]
    assert torch.equal(found[0].inputs, found[1].inputs)
    assert torch.equal(found[0].targets, found[1].targets)
    assert list(found[0].history) == list(found[1].history)
