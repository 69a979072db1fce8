"""Gates inside of the Trainer of transformers with LoRA, of Lightning, and of a loop with Accelerate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton
from gradleak.auditing import Gate
from gradleak.results import LeakRefusedError
from tests.integrations.cases import network, nothing_found, rows

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
ABSENT = "is not installed; make test-integrations runs this"


def judge(action: str = "warn") -> Gate:
    return Gate(on_leak=action, budget="300s", attacks={"gauss_newton": GaussNewton(max_steps=12, starts=1)})


def lora(place: Path, size: int, accumulated: int, callback: Any) -> dict[str, Any]:
    """The weights after one step of the Trainer on a small BERT with adapters."""
    transformers = pytest.importorskip("transformers", reason=f"transformers {ABSENT}")
    peft = pytest.importorskip("peft", reason=f"peft {ABSENT}")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    base = transformers.BertForSequenceClassification(config)
    settings = {"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.0}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS", **settings))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 50, (size * accumulated, 4), generator=generator)
    data = [{"input_ids": row, "labels": torch.tensor(place % 2)} for place, row in enumerate(tokens)]
    arguments = transformers.TrainingArguments(
        output_dir=str(place),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulated,
        max_steps=1,
        learning_rate=0.1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        seed=3,
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=data, callbacks=[callback] if callback else []
    )
    trainer.train()
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("size", "accumulated"), [(8, 1), (4, 2)])
def test_a_step_of_lora_passes_and_the_weights_are_those_without_a_gate(
    size: int, accumulated: int, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason=f"transformers {ABSENT}")
    from gradleak.integrations.transformers import LeakGate

    callback = LeakGate(judge(), adds_micro_batches=True)
    gated = lora(tmp_path, size, accumulated, callback)
    (decision,) = callback.decisions
    assert nothing_found(asdict(decision)), decision
    plain = lora(tmp_path, size, accumulated, None)
    assert all(torch.equal(gated[name], plain[name]) for name in plain)


def test_added_micro_batches_are_named_by_their_number(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason=f"transformers {ABSENT}")
    from gradleak.integrations.transformers import LeakGate

    callback = LeakGate(judge())
    lora(tmp_path, 4, 2, callback)
    assert callback.decisions[0].reason == "inconsistent_update"
    assert "the update is 2 times as long" in callback.decisions[0].explanation


def lightning_step(count: int, callback: Any) -> list[torch.Tensor]:
    """The weights after one step of Lightning on that many digits."""
    lightning = pytest.importorskip("lightning.pytorch", reason=f"lightning {ABSENT}")
    data = rows(count)

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, batch: Any, place: int) -> Any:
            return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data.inputs, data.targets), batch_size=count)
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    lightning.Trainer(
        max_steps=1, accelerator="cpu", callbacks=[callback] if callback else [], barebones=False, **off
    ).fit(module, loader)
    return [parameter.detach().clone() for parameter in module.parameters()]


def test_lightning() -> None:
    pytest.importorskip("lightning", reason=f"lightning {ABSENT}")
    from gradleak.integrations.lightning import LeakGate

    callback = LeakGate(judge(), domain=rows(1).domain)
    gated = lightning_step(1, callback)
    assert callback.decisions[0].leaks is True, callback.decisions
    assert all(map(torch.equal, gated, lightning_step(1, None)))
    with pytest.raises(LeakRefusedError):
        lightning_step(1, LeakGate(judge("refuse"), domain=rows(1).domain))


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate", reason=f"accelerate {ABSENT}")
    from gradleak.integrations.accelerate import LeakGate

    loop = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = loop.prepare(network())
    data = rows(2)
    helper = LeakGate(judge(), loop, domain=data.domain, max_norm=0.5)
    decisions = []
    for place in range(2):
        inputs, targets = data.inputs[place : place + 1], data.targets[place : place + 1]
        with loop.accumulate(model):
            loop.backward(nn.functional.cross_entropy(model(inputs), targets))
            if loop.sync_gradients:
                loop.clip_grad_norm_(model.parameters(), 0.5)
            decisions.append(helper.check(model, inputs, targets))
    assert decisions[0] is None
    assert decisions[1] is not None
    # Two digits in one clipped gradient leak, and the gate knows the gradient to be what clipping and accumulation make.
    assert decisions[1].reason not in ("inconsistent_update", "gate_failed"), decisions[1]
