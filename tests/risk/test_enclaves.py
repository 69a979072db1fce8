"""Layers in an enclave where clients train locally, or normalize by their batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradleak.attacks import GaussNewton, SignRule
from gradleak.core import Batch, Domain, DomainKind, Exposure, HonestButCurious, Objective, Release
from gradleak.core.protocol import Protocol
from gradleak.protocols import FedAvg, FedSGD, LocalAdam
from gradleak.risk import GaussianReconstructionError, Sensitivity, VisibleLayers, measure_visible, what_ifs

DOMAIN = Domain(shape=(6,), kind=DomainKind.TABULAR)
LOCAL = FedAvg(learning_rate=0.2, epochs=2, batch_size=2)


def network(*, normalized: bool) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    middle: list[nn.Module] = [nn.BatchNorm1d(8)] if normalized else [nn.Identity()]
    model = nn.Sequential(nn.Linear(6, 8), *middle, nn.Sigmoid(), nn.Linear(8, 5), nn.Sigmoid(), nn.Linear(5, 3))
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.5 * torch.randn(parameter.shape, generator=generator)
    return model.double()


def exposure_of(protocol: Protocol, *, normalized: bool = False, mode: str = "eval", examples: int = 4) -> Exposure:
    inputs = torch.rand(examples, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    objective = Objective.from_module(network(normalized=normalized), mode=mode)
    return Exposure(objective, Batch(inputs, torch.arange(examples) % 3, DOMAIN), Release(protocol))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(
    "protocol", [FedSGD(), LOCAL, LocalAdam(learning_rate=0.05, epochs=2, batch_size=2)], ids=["sgd", "avg", "adam"]
)
@pytest.mark.parametrize("hidden", [("0",), ("1",), ("5",)], ids=["first", "normalization", "last"])
def test_the_visible_part_is_cut_out_of_the_whole_update(
    protocol: Protocol, mode: str, hidden: tuple[str, ...]
) -> None:
    """Local training moves hidden layers too, and a normalization by the batch stays one when it is hidden."""
    exposure = exposure_of(protocol, normalized=True, mode=mode)
    visible = VisibleLayers.hiding(exposure.objective, *hidden)
    whole = exposure.objective.unflatten(exposure.released_mean())
    part = visible.exposure(exposure)
    found = part.objective.unflatten(part.released_mean())
    assert list(found) == list(visible.names)
    for name in visible.names:
        torch.testing.assert_close(found[name], whole[name], rtol=1e-11, atol=1e-13)


def test_what_an_attack_simulates_is_the_visible_update() -> None:
    """What the knowledge says a client does, done on the truth, is what the server sees of it."""
    exposure = exposure_of(LOCAL, normalized=True, mode="train")
    visible = VisibleLayers.hiding(exposure.objective, "0")
    known = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
    seen = visible.update(exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0)))
    facts = visible.knowledge(known)
    assert facts.objective is not None
    again = facts.release(facts.objective, exposure.batch, torch.Generator().manual_seed(0))
    assert again.kind == seen.kind
    for name in visible.names:
        torch.testing.assert_close(again.tensors[name], seen.tensors[name], rtol=1e-11, atol=1e-13)


def test_an_inversion_of_local_training_needs_no_hidden_head() -> None:
    """One example, three local steps, the head in an enclave: the first layer still gives the example away."""
    exposure = exposure_of(FedAvg(learning_rate=0.1, epochs=3, batch_size=1), examples=1)
    visible = VisibleLayers.hiding(exposure.objective, "5")
    known = HonestButCurious(targets=True).disclose(exposure.objective, exposure.release, exposure.batch)
    update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
    claim = GaussNewton()(visible.update(update), visible.knowledge(known), generator=torch.Generator().manual_seed(3))
    assert claim.inputs is not None
    torch.testing.assert_close(claim.inputs, exposure.batch.inputs, rtol=1e-4, atol=1e-4)


def test_the_last_bias_gives_the_label_of_local_training_away() -> None:
    exposure = exposure_of(FedAvg(learning_rate=0.1, epochs=3, batch_size=1), examples=1)
    visible = VisibleLayers.last_bias(exposure.objective, DOMAIN)
    known = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
    update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
    found = SignRule()(visible.update(update), visible.knowledge(known))
    assert found.targets is not None
    assert found.targets.tolist() == exposure.batch.targets.tolist()


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("protocol", [FedSGD(), LOCAL], ids=["sgd", "avg"])
def test_measures_take_the_rows_of_torchs_own_derivative(protocol: Protocol, mode: str) -> None:
    exposure = exposure_of(protocol, normalized=True, mode=mode)
    rows = torch.autograd.functional.jacobian(exposure.mean, exposure.inputs)
    sizes = [tensor.numel() for tensor in exposure.objective.params.values()]
    by_name = dict(zip(exposure.objective.params, rows.split(sizes), strict=True))
    sets = what_ifs(exposure.objective, DOMAIN)
    assert "first layer in an enclave" in sets
    profile = measure_visible(exposure, sets, Sensitivity())
    for label, one in sets.items():
        values = profile.scores[label].details["values"]
        assert values == pytest.approx({name: float(by_name[name].norm()) for name in one.names}, rel=1e-8, abs=1e-12)


def test_statistics_of_a_hidden_normalization_are_not_disclosed() -> None:
    exposure = exposure_of(FedSGD(), normalized=True, mode="train")
    known = HonestButCurious(statistics=True).disclose(exposure.objective, exposure.release, exposure.batch)
    assert known.statistics is not None
    assert VisibleLayers.hiding(exposure.objective, "1").knowledge(known).statistics is None
    kept = VisibleLayers.hiding(exposure.objective, "0", "1.bias").knowledge(known).statistics
    assert kept is not None
    assert list(kept) == ["1"]


def test_a_hidden_first_layer_leaves_every_direction_and_the_last_bias_few() -> None:
    """Behind a first layer of 8 outputs more than enough is seen of 6 entries: an enclave for it alone protects none."""
    exposure = exposure_of(FedAvg(learning_rate=0.1, epochs=2, batch_size=1), examples=1)
    bias = VisibleLayers.last_bias(exposure.objective, DOMAIN)
    enclave = VisibleLayers.hiding(exposure.objective, "0")
    ranks = {}
    for name, one in {"bias": bias, "enclave": enclave}.items():
        part = one.exposure(exposure)
        jacobian = torch.autograd.functional.jacobian(part.mean, part.inputs)
        ranks[name] = int(torch.linalg.matrix_rank(jacobian, rtol=1e-9))
        score = GaussianReconstructionError(std=0.01)(part)
        assert score.details["rank"] == ranks[name]
    assert ranks["bias"] < ranks["enclave"] == 6
