"""What every exported protocol must hold; a new one is found by itself and needs one example below."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest
import torch
from torch import nn

from gradleak import defenses, protocols
from gradleak.core import Batch, Objective, Protocol, UpdateKind, describe
from gradleak.results import Citation

EXAMPLES: dict[str, list[Protocol]] = {
    "FedAvg": [
        protocols.FedAvg(learning_rate=0.1, epochs=2),
        protocols.FedAvg(learning_rate=0.1, epochs=3, batch_size=2, momentum=0.5),
        protocols.FedAvg(
            learning_rate=0.1,
            epochs=2,
            batch_size=2,
            momentum=0.5,
            nesterov=True,
            weight_decay=0.1,
            proximal=0.5,
            schedule=[1.0, 0.5],
            order=[[4, 1, 0, 2, 3], [0, 1, 2, 3, 4]],
        ),
        protocols.FedAvg(learning_rate=0.1, epochs=2, batch_size=2, shuffled=True),
    ],
    "FedSGD": [protocols.FedSGD()],
    "AccumulatedGradient": [protocols.AccumulatedGradient(micro_batches=[3, 2])],
    "Scaffold": [
        protocols.Scaffold(learning_rate=0.1, epochs=2, batch_size=2),
        protocols.Scaffold(learning_rate=0.1, epochs=2, correction=[0.01 * place for place in range(53)]),
    ],
    "SecureAggregation": [
        protocols.SecureAggregation(protocol=protocols.FedSGD(), examples=[2, 3]),
        protocols.SecureAggregation(protocol=protocols.FedAvg(learning_rate=0.1, epochs=2), examples=[4, 1]),
        protocols.SecureAggregation(
            protocol=protocols.FedAvg(learning_rate=0.1, epochs=2),
            examples=[4, 1],
            defenses=[defenses.Clip(0.02), defenses.GaussianNoise(std=0.1)],
            honest=1,
        ),
    ],
    "LocalAdam": [
        protocols.LocalAdam(),
        protocols.LocalAdam(epochs=2, batch_size=2),
        protocols.LocalAdam(epochs=2, batch_size=2, shuffled=True),
        protocols.LocalAdam(epochs=2, weight_decay=0.1, decoupled=True),
    ],
}
CLASSES = [
    item
    for item in (getattr(protocols, name) for name in protocols.__all__)
    if inspect.isclass(item) and issubclass(item, Protocol)
]
ALL = [example for examples in EXAMPLES.values() for example in examples]
BATCH = Batch(torch.rand(5, 6, generator=torch.Generator().manual_seed(4)).double(), torch.tensor([0, 2, 1, 1, 0]))

each = pytest.mark.parametrize("protocol", ALL, ids=repr)


def client() -> Objective:
    return Objective.from_module(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double())


def _built(described: Any) -> Any:
    """The object that a description describes, parts first."""
    if isinstance(described, list):
        return [_built(part) for part in described]
    if not isinstance(described, dict):
        return described
    parts = {key: _built(value) for key, value in described.items() if key != "use"}
    room = protocols if hasattr(protocols, described["use"]) else defenses
    return getattr(room, described["use"])(**parts)


@pytest.mark.parametrize("protocol", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exported_protocol_has_an_example_and_a_card(protocol: type[Protocol]) -> None:
    assert protocol.__name__ in EXAMPLES, "add an example of it to this file"
    assert all(type(example) is protocol for example in EXAMPLES[protocol.__name__])
    assert all(isinstance(example.kind, UpdateKind) for example in EXAMPLES[protocol.__name__])
    assert all(isinstance(citation, Citation) for citation in protocol.citations)
    assert (protocol.__doc__ or "").strip().splitlines()[0].endswith(".")


@each
def test_it_is_frozen_keyword_only_and_described_by_its_constructor(protocol: Protocol) -> None:
    described = json.loads(json.dumps(describe(protocol), allow_nan=False))
    again = _built(described)
    assert again == protocol
    assert hash(again) == hash(protocol)
    for field in dataclasses.fields(protocol):
        assert field.kw_only
        assert f"{field.name}:" in inspect.getdoc(type(protocol))


@each
def test_the_mean_is_pure_has_the_parameters_names_and_passes_through_transforms(protocol: Protocol) -> None:
    objective = client()
    params = {name: tensor.clone() for name, tensor in objective.params.items()}
    found = protocol.mean(objective, objective.params, BATCH)
    assert list(found) == list(params)
    assert all(found[name].shape == tensor.shape for name, tensor in params.items())
    assert all(torch.equal(objective.params[name], tensor) for name, tensor in params.items())

    def mean(inputs: torch.Tensor) -> torch.Tensor:
        return objective.flatten(protocol.mean(objective, objective.params, BATCH.with_inputs(inputs)))

    rows = torch.func.vmap(mean)(torch.stack([BATCH.inputs, BATCH.inputs + 0.1]))
    torch.testing.assert_close(rows[1], mean(BATCH.inputs + 0.1))
    tangent = torch.ones_like(BATCH.inputs)
    _, forward = torch.func.jvp(mean, (BATCH.inputs,), (tangent,))
    _, pull = torch.func.vjp(mean, BATCH.inputs)
    assert float(forward @ rows[0]) == pytest.approx(float((pull(rows[0])[0] * tangent).sum()), rel=1e-8)


@each
def test_its_cost_counts_the_gradients_that_it_takes(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """In examples: gradients of mini-batches add up to whole batches."""
    objective, taken = client(), []
    plain = Objective.gradient

    def counted(self: Objective, params: dict[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
        taken.append(batch.size)
        return plain(self, params, batch)

    monkeypatch.setattr(Objective, "gradient", counted)
    protocol.mean(objective, objective.params, BATCH)
    assert sum(taken) / BATCH.size == protocol.plain_gradients(BATCH.size)


@each
def test_its_weights_cover_the_batch_and_its_note_is_text(protocol: Protocol) -> None:
    weights = protocol.mini_batch_weights(5)
    if weights is not None:
        assert [index for place, _ in weights for index in range(place.start, place.stop)] == list(range(5))
        assert all(weight > 0 for _, weight in weights)
    assert protocol.gradient_scale() == (1.0 if protocol.shares_gradient else None)
    assert isinstance(protocol.note(5), str)
