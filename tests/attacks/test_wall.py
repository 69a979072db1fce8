"""The wall: an attack gives the same bits in a process where the truth does not exist, killed once or not."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gradleak.attacks
from gradleak.attacks import Attack, LabelAttack, Preset
from gradleak.core import Batch, HonestButCurious, Objective, Reconstruction, Release
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from tests.attacks.setting import ROW, rows, setting, small_generator, small_net

ATTACKS = [
    "APRIL()",
    "BatchNormInversion(iterations=22)",
    "Blind()",
    "CocktailParty()",
    "DLFA(iterations=22)",
    "DGL(iterations=22, learning_rate=0.02)",
    "DLG(iterations=2, restarts=3, restart_after=4)",
    "GGL(iterations=14, population=6)",
    "GIAS(latent_iterations=14, weight_iterations=14)",
    "GS(iterations=22)",
    "GaussNewton(max_steps=6, warm_iterations=12)",
    "GradInversion(iterations=22, restarts=2)",
    "IDLG(iterations=2)",
    "IGIMS(rounds=2, latent_iterations=9, weight_iterations=9, population=6, restarts=2)",
    "IGIMSAdam(rounds=2, latent_iterations=9, weight_iterations=9)",
    "Inversion(stages=(SearchStage(optimizer=Adam(signed=True), iterations=22),), restarts=2)",
    "InvertingGradients(iterations=22, restarts=3)",
    "LinearRows()",
    "Peel()",
    "TabLeak(iterations=22, restarts=3)",
    "UntrainedGenerator(iterations=22, learning_rate=0.01)",
]
AT_ONCE = ("APRIL()", "Blind()", "CocktailParty()", "LinearRows()", "Peel()")
LABELS = ["AdaptiveLabelRecovery()", "ConsistentLabels()", "SignRule()", "ZeroShotLabels()"]

# What the adversary's process has: a model, an update, a generator for attacks that need one, and the labels alone for
# attacks to which they are disclosed.
ELSEWHERE = """
import os, signal, sys, torch
from safetensors.torch import load_file, save_file
import gradleak.attacks
from gradleak.core import Domain, DomainKind, ImageGenerator, Knowledge, Objective, Update
from gradleak.models import mlp
from gradleak.protocols import FedSGD

torch.set_num_threads(1)
folder, killed, *texts = sys.argv[1:]

def case(name, classes, activation, size):
    model = mlp(features=12, hidden=(32, 16), classes=classes, activation=activation)
    model.load_state_dict(load_file(f"{folder}/{name}.model.safetensors"))
    domain = Domain(shape=(12,), kind=DomainKind.TABULAR)
    given = dict(objective=Objective.from_module(model), protocol=FedSGD(), defenses=(), batch_size=size, domain=domain)
    return Update.load(f"{folder}/{name}.safetensors"), given

def inverted(text, progress=None):
    attack = eval(text, vars(gradleak.attacks))
    update, given = case("inputs", 3, "tanh", 1)
    if "targets" in attack.needs:
        given["targets"] = load_file(f"{folder}/disclosed.safetensors")["targets"]
    if "generator" in attack.needs:
        decoder = torch.nn.Sequential(mlp(features=3, hidden=(8,), classes=12, activation="tanh"), torch.nn.Sigmoid())
        decoder.load_state_dict(load_file(f"{folder}/generator.safetensors"))
        given["generator"] = ImageGenerator(
            module=decoder, latent_shape=(3,), domain=given["domain"], source="never trained"
        )
    checkpoint = gradleak.attacks.Checkpoint(path=f"{folder}/state", seconds=0) if killed == "killed" else None
    generator = torch.Generator().manual_seed(5)
    return attack(update, Knowledge(**given), generator=generator, progress=progress, checkpoint=checkpoint)

def killing():
    calls = []
    def progress(*told):
        calls.append(told)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return progress

found = {}
for number, text in enumerate(texts):
    if issubclass(getattr(gradleak.attacks, text.split("(")[0]), gradleak.attacks.LabelAttack):
        update, given = case("labels", 10, "relu", 3)
        claim = eval(text, vars(gradleak.attacks))(update, Knowledge(**given))
        for name in ("targets", "counts", "estimate"):
            if getattr(claim, name) is not None:
                found[f"{number}.{name}"] = getattr(claim, name)
        found[f"{number}.confidence"] = torch.tensor(claim.confidence, dtype=torch.float64)
        continue
    if killed == "killed":
        child = os.fork()
        if child == 0:
            inverted(text, killing())
            os._exit(0)  # never told twice: nothing to kill
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found[f"{number}.killed"] = torch.tensor(ended)
        found[f"{number}.state"] = torch.tensor(os.path.exists(f"{folder}/state"))
    result = inverted(text)
    found[f"{number}.inputs"] = result.inputs.contiguous()
    found[f"{number}.targets"] = result.targets if result.targets is not None else torch.zeros(0)
    found[f"{number}.history"] = torch.tensor(result.history, dtype=torch.float64)
    assert not os.path.exists(f"{folder}/state")
save_file(found, f"{folder}/found.safetensors")
"""


def _made(text: str) -> Attack | LabelAttack:
    return eval(text, vars(gradleak.attacks))


def _released(folder: Path) -> None:
    """Models, updates and disclosed labels, as the adversary's process finds them."""
    case = setting(small_net(), rows(1), dtype=torch.float32)
    case.update.save(folder / "inputs.safetensors")
    save_file(small_net().state_dict(), folder / "inputs.model.safetensors")
    save_file(small_generator().module.state_dict(), folder / "generator.safetensors")
    save_file({"targets": case.truth.targets}, folder / "disclosed.safetensors")
    model, update, _ = _labeled()
    update.save(folder / "labels.safetensors")
    save_file(model.state_dict(), folder / "labels.model.safetensors")


def _labeled():
    """Three rows behind a network of ten classes: model, update, and what the server knows."""
    model = mlp(features=12, hidden=(32, 16), classes=10, activation="relu", generator=torch.Generator().manual_seed(0))
    case = setting(model, rows(3, 0, 7), dtype=torch.float32)
    return model, case.update, case.knowledge


def _elsewhere(folder: Path, texts: list[str], *, killed: bool) -> dict[str, Tensor]:
    _released(folder)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    arguments = [str(folder), "killed" if killed else "whole", *texts]
    subprocess.run([sys.executable, "-c", ELSEWHERE, *arguments], check=True, env=environment, timeout=300)
    return load_file(folder / "found.safetensors")


def _here(text: str, truth: Batch | None = None) -> Reconstruction:
    """The claim in this process, where the truth is (or another batch that passes for it)."""
    attack = _made(text)
    objective, release = Objective.from_module(small_net()), Release(FedSGD())
    update = release(objective, rows(1), torch.Generator())
    prior = small_generator() if "generator" in attack.needs else None
    threat = HonestButCurious(targets="targets" in attack.needs, generator=prior)
    knowledge = threat.disclose(objective, release, truth or rows(1))
    return attack(update, knowledge, generator=torch.Generator().manual_seed(5))


def _same(there: dict[str, Tensor], number: int, here: Reconstruction) -> None:
    assert torch.equal(there[f"{number}.inputs"], here.inputs)
    assert torch.equal(there[f"{number}.targets"], torch.zeros(0) if here.targets is None else here.targets)
    assert there[f"{number}.history"].tolist() == list(here.history)


def test_every_attack_of_the_package_is_listed_here() -> None:
    kinds = [kind for name in gradleak.attacks.__all__ if inspect.isclass(kind := getattr(gradleak.attacks, name))]
    for base, texts in ((Attack, ATTACKS), (LabelAttack, LABELS)):
        exported = {kind for kind in kinds if issubclass(kind, base) and kind not in (base, Preset)}
        # Attacks on tokens claim no inputs; they stand in `test_token_rows`.
        exported = {kind for kind in exported if not getattr(kind, "claims_tokens", False)}
        assert {type(_made(text)) for text in texts} == exported


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What one process without the truth claimed, in which each attack was killed in the middle."""
    if not hasattr(os, "fork"):
        pytest.skip("no fork and kill -9 here")
    return _elsewhere(tmp_path_factory.mktemp("elsewhere"), [*ATTACKS, *LABELS], killed=True)


@pytest.mark.slow  # in short: the next test, whose attacks were killed besides
def test_the_same_bits_from_a_saved_update_in_a_process_without_the_truth(tmp_path: Path) -> None:
    whole = _elsewhere(tmp_path, ATTACKS, killed=False)
    for number, text in enumerate(ATTACKS):
        _same(whole, number, _here(text))


@pytest.mark.parametrize("text", ATTACKS)
def test_every_attack_killed_in_the_middle_goes_on_to_the_same_bits(there: dict[str, Tensor], text: str) -> None:
    """`GaussNewton` writes no state: it begins anew, with the same numbers; some attacks have no middle."""
    number = ATTACKS.index(text)
    _same(there, number, _here(text))
    at_once = text in AT_ONCE
    searches = not at_once and not text.startswith("GaussNewton")
    assert int(there[f"{number}.killed"]) == (0 if at_once else -signal.SIGKILL)
    assert bool(there[f"{number}.state"]) == searches


def test_the_same_labels_in_a_process_without_the_truth(there: dict[str, Tensor]) -> None:
    _, update, knowledge = _labeled()
    for number, text in enumerate(LABELS, start=len(ATTACKS)):
        claim = _made(text)(update, knowledge)
        assert float(there[f"{number}.confidence"]) == claim.confidence
        for name in ("targets", "counts", "estimate"):
            value = getattr(claim, name)
            assert (value is None) == (f"{number}.{name}" not in there)
            assert value is None or torch.equal(there[f"{number}.{name}"], value)
    assert there[f"{len(ATTACKS) + LABELS.index('ZeroShotLabels()')}.targets"].tolist() == [0, 3, 7]


@pytest.mark.parametrize("text", ATTACKS)
def test_a_planted_wrong_truth_changes_nothing(text: str) -> None:
    """Only a label that is disclosed gets through; the planted batch has it right where it is."""
    label = 1 if "targets" in _made(text).needs else 0
    wrong = Batch(1 - rows(1).inputs, torch.tensor([label]), ROW)
    found, planted = _here(text), _here(text, wrong)
    assert torch.equal(found.inputs, planted.inputs)
    assert (found.targets is None) == (planted.targets is None)
    assert found.targets is None or torch.equal(found.targets, planted.targets)
    assert list(found.history) == list(planted.history)


@pytest.mark.parametrize("text", LABELS)
def test_a_planted_wrong_truth_changes_no_label(text: str) -> None:
    model, update, knowledge = _labeled()
    objective, release = Objective.from_module(model), Release(FedSGD())
    wrong = Batch(1 - rows(1, 1, 1).inputs, torch.tensor([9, 9, 9]), ROW)
    planted = HonestButCurious(targets=True).disclose(objective, release, wrong)
    first, second = (_made(text)(update, facts) for facts in (knowledge, planted))
    assert (first.confidence, first.note) == (second.confidence, second.note)
    assert (first.targets is None) == (second.targets is None)
    assert first.targets is None or torch.equal(first.targets, second.targets)
