"""The shape of the adapters, with stand-ins for the frameworks; `make test-integrations` runs the real ones."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.auditing import Decision
from gradleak.core import Batch, Domain, Objective, Release, Update, UpdateKind
from gradleak.defenses import DPSGD, Clip, ClipTensorsPerExample
from gradleak.integrations.gradients import gradient_update, joined
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, LeakRefusedError, UnsupportedError


class Judge:
    """In place of a gate: writes down what it is asked, and answers as told."""

    def __init__(self, passes: bool = True, release: Release | None = None) -> None:
        self.passes, self.release = passes, release or Release(FedAvg(learning_rate=0.5))
        self.asked: list[SimpleNamespace] = []
        self.unclear_because: list[str] = []
        self.public: Batch | None = None
        self.models: list[Any] = []

    def decide_model(self, start: Any) -> Decision:
        self.models.append(start)
        return Decision(passes=self.passes, leaks=not self.passes)

    def decide(self, update: Update, batch: Batch, **others: Any) -> Decision:
        self.asked.append(SimpleNamespace(update=update, batch=batch, **others))
        return Decision(passes=self.passes, leaks=not self.passes)

    def guard(self, update: Update, batch: Batch, **others: Any) -> Decision:
        decision = self.decide(update, batch, **others)
        if not decision.passes:
            raise LeakRefusedError
        return decision

    def unclear(self, explanation: str, seconds: float = 0.0) -> Decision:
        self.unclear_because.append(explanation)
        return Decision(passes=self.passes, leaks=None)


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, **modules: dict[str, Any]) -> Any:
    """The adapter of that name, imported with these modules (dots written `__`) in place of the framework."""
    for path, content in modules.items():
        parts = path.split("__")
        names = [".".join(parts[: place + 1]) for place in range(len(parts))]
        for one in names:
            monkeypatch.setitem(sys.modules, one, sys.modules.get(one, ModuleType(one)))
        # Where the framework is installed, its module gets its own back.
        for key, value in content.items():
            monkeypatch.setattr(sys.modules[names[-1]], key, value, raising=False)
    spec = importlib.util.find_spec(f"gradleak.integrations.{name}")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


# ----------------------------------------------------------------------------------------------------- flower


class Array:
    def __init__(self, tensor: Tensor) -> None:
        self.array = tensor.numpy()

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


class Message:
    def __init__(self, content: Any, reply_to: Any = None, kind: str = "train", records: int = 1) -> None:
        self.error = content if isinstance(content, SimpleNamespace) else None
        self.reply_to = reply_to
        self.metadata = SimpleNamespace(message_type=kind, src_node_id=7)
        arrays = {} if self.error else {name: Array(tensor) for name, tensor in content.items()}
        self.content = SimpleNamespace(array_records={str(place): arrays for place in range(records)})

    def has_error(self) -> bool:
        return self.error is not None


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Any:
    return loaded(monkeypatch, "flower", flwr__app={"Error": SimpleNamespace, "Message": Message})


START = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
MADE = {"w": torch.tensor([0.5, 2.5]), "n": torch.tensor(4)}
ROWS = Batch(torch.zeros(1, 2), torch.tensor([0]))


def test_the_mod_of_flower_passes_the_very_reply_or_a_constant_error(flower: Any) -> None:
    reply = Message(MADE)
    for passes in (True, False):
        judge = Judge(passes)
        got = flower.LeakGate(gate=judge, batch=lambda context: context)(Message(START), ROWS, lambda m, c: reply)
        (asked,) = judge.asked
        assert asked.update.kind is UpdateKind.DELTA
        assert asked.update.tensors["w"].tolist() == [0.5, -0.5]
        assert asked.start["w"].tolist() == [1.0, 2.0]
        assert asked.batch is ROWS
        if passes:
            assert got is reply
        else:
            assert vars(got.error) == {"code": 7301, "reason": "gradleak: this update was withheld by the client"}


def test_the_mod_of_flower_reads_gradients_lists_and_nothing_else(flower: Any) -> None:
    judge = Judge(release=Release(FedSGD()))
    mod = flower.LeakGate(gate=judge, batch=ROWS)
    mod(Message({"0": START["w"]}), None, lambda m, c: Message({"0": MADE["w"]}))
    assert judge.asked[0].update.tensors["0"].tolist() == [0.5, 2.5]
    for message, reply in (
        (Message(START, kind="evaluate"), Message(MADE)),
        (Message(START), Message(SimpleNamespace(code=1))),
    ):
        assert mod(message, None, lambda m, c, reply=reply: reply) is reply
    assert len(judge.asked) == 1
    mod(Message(START, records=2), None, lambda m, c: Message(MADE))
    assert judge.unclear_because == ["The gate expected one record of arrays each way, got 2 and 1."]


def test_the_mod_of_flower_looks_at_the_model_before_the_client_trains(flower: Any) -> None:
    for passes in (True, False):
        judge, client = Judge(passes), Mock(return_value=Message(MADE))
        judge.public = ROWS
        got = flower.LeakGate(gate=judge, batch=ROWS)(Message(START), None, client)
        assert judge.models[0]["w"].tolist() == [1.0, 2.0]
        assert (client.call_count, len(judge.asked)) == ((1, 1) if passes else (0, 0))
        if not passes:
            assert vars(got.error) == {"code": 7301, "reason": "gradleak: this update was withheld by the client"}


def test_the_server_of_flower_keeps_updates_that_the_command_line_reads(flower: Any, tmp_path: Path) -> None:
    class Strategy:
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            return [arrays]

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return list(replies)

    strategy = flower.save_updates(Strategy(), tmp_path / "kept")
    arrays = {name: Array(tensor) for name, tensor in START.items()}
    assert strategy.configure_train(1, arrays, {}, None) == [arrays]
    replies = [Message(MADE), Message(SimpleNamespace(code=1))]
    assert strategy.aggregate_train(1, iter(replies)) == replies
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "round1-7.safetensors",
        "round1-model.safetensors",
    ]
    update = Update.load(tmp_path / "kept" / "round1-7.safetensors")
    assert (update.kind, update.tensors["w"].tolist()) == (UpdateKind.DELTA, [0.5, -0.5])
    assert update.provenance["node"] == "7"


# ---------------------------------------------------------------------------------------------------- nvflare


class DXOFilter:
    def __init__(self, supported_data_kinds: Any, data_kinds_to_filter: Any) -> None:
        self.kinds = supported_data_kinds


@pytest.fixture
def nvflare(monkeypatch: pytest.MonkeyPatch) -> Any:
    return loaded(
        monkeypatch,
        "nvflare",
        nvflare__apis__dxo={
            "DXO": SimpleNamespace,
            "DataKind": SimpleNamespace(WEIGHTS="WEIGHTS", WEIGHT_DIFF="WEIGHT_DIFF"),
            "from_shareable": lambda shareable: shareable,
        },
        nvflare__apis__dxo_filter={"DXOFilter": DXOFilter},
        nvflare__apis__event_type={"EventType": SimpleNamespace(BEFORE_TASK_EXECUTION="before")},
        nvflare__apis__fl_constant={"FLContextKey": SimpleNamespace(TASK_DATA="data")},
    )


def a_model() -> nn.Module:
    return nn.Linear(2, 1)


def a_batch() -> Batch:
    return ROWS


def test_the_filter_of_nvflare_takes_json_and_leaves_results_alone(nvflare: Any) -> None:
    here = "tests.integrations.test_adapters"
    made = nvflare.LeakGate(
        model=f"{here}:a_model",
        batch=f"{here}:a_batch",
        protocol={"use": "FedAvg", "learning_rate": 0.5, "epochs": 2},
        defenses=[{"use": "Clip", "max_norm": 1.0}],
        on_leak="refuse",
    )
    assert made._release == Release(FedAvg(learning_rate=0.5, epochs=2), [Clip(1.0)])
    judge = Judge()
    made._gate = judge
    difference = SimpleNamespace(data_kind="WEIGHT_DIFF", data={"w": np.array([-0.5, 0.5]), "note": "text"})
    assert made.process_dxo(difference, None, None) is None
    assert judge.unclear_because == ["No task with weights came before this update."]
    task = SimpleNamespace(data_kind="WEIGHTS", data={"w": np.array([1.0, 2.0])})
    made.handle_event("before", SimpleNamespace(get_prop=lambda key: task))
    weights = SimpleNamespace(data_kind="WEIGHTS", data={"w": np.array([0.5, 2.5])})
    for sent in (difference, weights):
        assert made.process_dxo(sent, None, None) is None
        assert judge.asked[-1].update.tensors["w"].tolist() == [0.5, -0.5]
        assert judge.asked[-1].start["w"].tolist() == [1.0, 2.0]
    judge.passes = False
    with pytest.raises(LeakRefusedError, match="withheld by the client"):
        made.process_dxo(weights, None, None)
    checking = nvflare.LeakGate(
        model=f"{here}:a_model", batch=f"{here}:a_batch", public=f"{here}:a_batch", on_unclear="warn"
    )
    assert checking.process_dxo(difference, None, None) is None
    assert checking._gate.public is ROWS
    with pytest.raises(InputError, match=r'LeakGate.model: expected "package.module:name", got \'nowhere\''):
        nvflare.LeakGate(model="nowhere", batch="x:y")


# ----------------------------------------------------------------------------------------------------- opacus


def test_the_release_of_a_dp_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Optimizer(SimpleNamespace):
        pass

    class PerLayer(Optimizer):
        pass

    class Adaptive(Optimizer):
        pass

    kinds = {"DPOptimizer": Optimizer, "DPPerLayerOptimizer": PerLayer, "AdaClipDPOptimizer": Adaptive}
    module = loaded(monkeypatch, "opacus", opacus__optimizers=kinds)
    common = {"noise_multiplier": 1.5, "max_grad_norm": 2.0, "expected_batch_size": 8, "accumulated_iterations": 1}
    mean = module.release_of(Optimizer(loss_reduction="mean", **common))
    assert mean == Release(FedSGD(), [DPSGD(clip_norm=2.0, noise_std=3.0, noise="sum", expected_batch_size=8)])
    total = module.release_of(Optimizer(loss_reduction="sum", **common))
    assert total.defenses[0].expected_batch_size == 1
    # σ of (1/1.5² - 1/(2·2)²)^-½: the count of unclipped gradients takes its share.
    adaptive = module.release_of(Adaptive(loss_reduction="mean", unclipped_num_std=2.0, **common))
    assert adaptive.defenses[0].noise_std == pytest.approx(2 * (1 / 2.25 - 1 / 16) ** -0.5)
    model = nn.Linear(3, 2)
    layers = PerLayer(loss_reduction="mean", max_grad_norms=[1.2, 1.6], params=list(model.parameters()), **common)
    clip, noise = module.release_of(layers, model).defenses
    assert (clip, noise) == (ClipTensorsPerExample(2.0, weights={"weight": 1.2, "bias": 1.6}), mean.defenses[0])
    with pytest.raises(InputError, match="expected the model of the optimizer"):
        module.release_of(layers)
    with pytest.raises(UnsupportedError, match="expected an optimizer of one worker, got Optimizer"):
        module.release_of(Optimizer(loss_reduction="mean", world_size=2, **common))
    with pytest.raises(UnsupportedError, match="got adaptive ghost clipping"):
        module.release_of(Optimizer(loss_reduction="mean", _adjusted_noise_multiplier=1.6, **common))
    (score,) = module.epsilons([(1.5, 0.01, 100)], delta=1e-5)
    assert 0.1 < score.value < 1.0


# ------------------------------------------------------------------------------------- transformers, lightning


class Speaks(nn.Module):
    """A model of two tokens as transformers has them: by name in, an object with logits out."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3).requires_grad_(False)
        self.head = nn.Linear(3, 2)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def set_input_embeddings(self, table: nn.Module) -> None:
        self.table = table

    def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **others: Any) -> Any:
        found = self.table(input_ids) if inputs_embeds is None else inputs_embeds
        return SimpleNamespace(logits=self.head(found.mean(dim=1)))


def step(callback: Any, model: Speaks, count: int, norm: float = 1.0, **others: Any) -> Any:
    """What the Trainer does in a step of `count` micro-batches."""
    args = SimpleNamespace(max_grad_norm=norm)
    callback.on_step_begin(args, None, None)
    for place in range(count):
        inputs = {"input_ids": torch.tensor([[place, 4]]), "labels": torch.tensor([1]), **others}
        nn.functional.cross_entropy(model(**inputs).logits, inputs["labels"]).backward()
    callback.on_pre_optimizer_step(args, None, None, model=model)


def test_the_callback_of_transformers_reads_embeddings_accumulation_and_the_clip(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = loaded(monkeypatch, "transformers", transformers={"TrainerCallback": object})
    model, judge = Speaks(), Judge()
    callback = module.LeakGate(judge, every=2, adds_micro_batches=True)
    callback.on_train_begin(None, None, None, model=model)
    step(callback, model, 2)
    step(callback, model, 1)
    (asked,) = judge.asked
    assert asked.release == Release(FedSGD(), [Clip(0.5)])
    assert torch.equal(asked.batch.inputs, model.table(torch.tensor([[0, 4], [1, 4]])))
    assert asked.batch.domain == Domain(
        shape=(2, 3), low=float(model.table.weight.min()), high=float(model.table.weight.max()), kind="signal"
    )
    # The whole table would hold the inputs; the model that the gate gets is another one, of the same values.
    assert asked.model.model.table.weight.shape == (1, 3)
    replayed = Objective.from_module(asked.model)
    mean = asked.release.mean(replayed, replayed.params, asked.batch)
    clipped = Release(FedSGD(), [Clip(0.5)])
    assert list(asked.update.tensors) == list(mean) == ["model.head.weight", "model.head.bias"]
    unclipped = Release(FedSGD()).mean(replayed, replayed.params, asked.batch)
    assert clipped == asked.release
    assert all(torch.allclose(asked.update.tensors[name], unclipped[name]) for name in mean)
    callback.on_train_end(None, None, None)
    assert not model._forward_pre_hooks


def test_the_callback_of_transformers_names_what_it_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(monkeypatch, "transformers", transformers={"TrainerCallback": object})
    model, judge = Speaks(), Judge(passes=False)
    callback = module.LeakGate(judge)
    callback.on_train_begin(None, None, None, model=model)
    with pytest.raises(LeakRefusedError):
        step(callback, model, 1, attention_mask=torch.tensor([[1, 0]]))
    assert "expected batches without padding" in judge.unclear_because[0]
    assert not model._forward_pre_hooks
    model.table.requires_grad_(True)
    judge.passes = True
    callback.on_train_begin(None, None, None, model=model)
    step(callback, model, 1)
    assert "whose gradient names the tokens" in judge.unclear_because[1]


def test_the_callbacks_of_lightning_and_accelerate_read_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lightning = loaded(monkeypatch, "lightning", lightning__pytorch__callbacks={"Callback": object})
    accelerate = loaded(monkeypatch, "accelerate", accelerate={"Accelerator": SimpleNamespace})
    holder = SimpleNamespace(net=nn.Linear(2, 2))
    inputs, targets = torch.rand(3, 2), torch.tensor([0, 1, 1])
    nn.functional.cross_entropy(holder.net(inputs), targets).backward()
    judge = Judge()
    callback = lightning.LeakGate(judge, network="net")
    callback.on_train_batch_start(None, holder, [inputs, targets], 0)
    callback.on_before_optimizer_step(None, holder, None)
    loop = SimpleNamespace(sync_gradients=False, unwrap_model=lambda model: model, scaler=None)
    helper = accelerate.LeakGate(judge, loop, max_norm=2.0)
    assert helper.check(holder.net, inputs, targets) is None
    loop.sync_gradients = True
    assert helper.check(holder.net, inputs, targets).passes
    first, second = judge.asked
    assert (first.release, first.batch.size, first.model) == (Release(FedSGD()), 3, holder.net)
    assert (second.release, second.batch.size) == (Release(FedSGD(), [Clip(2.0)]), 6)
    for asked in judge.asked:
        assert torch.equal(asked.update.tensors["weight"], holder.net.weight.grad)
    judge.passes = False
    callback.on_train_batch_start(None, holder, [inputs, targets], 1)
    with pytest.raises(LeakRefusedError):
        callback.on_before_optimizer_step(None, holder, None)
    callback.on_train_batch_start(None, holder, [inputs, targets], 1)
    callback.on_train_batch_start(None, holder, [inputs[:1], targets[:1]], 2)
    with pytest.raises(LeakRefusedError):
        callback.on_before_optimizer_step(None, holder, None)
    assert "expected micro-batches of one size" in judge.unclear_because[-1]


def test_gradients_are_copied_and_missing_ones_are_zero() -> None:
    model = nn.Linear(2, 1)
    model.weight.grad = torch.ones(1, 2)
    update = gradient_update(model, front="net.", scale=2.0)
    assert update.tensors["net.weight"].tolist() == [[0.5, 0.5]]
    assert update.tensors["net.bias"].tolist() == [0.0]
    assert model.weight.grad.tolist() == [[1.0, 1.0]]
    with pytest.raises(InputError, match="got none with requires_grad=True"):
        gradient_update(model.requires_grad_(False))
    assert joined([(torch.zeros(2, 1), torch.zeros(2))] * 2, None).size == 4
