from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Objective, Release
from gradleak.defenses import LayerNoise
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.risk import VisibleLayers
from studies.protected_entries import OPEN, PROTECTED, TwoParts, choose_entries, scattered_entries

GROUPS = {"0": ["0.weight", "0.bias"], "2": ["2.weight", "2.bias"]}


def _model() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
    generator = torch.Generator().manual_seed(1)
    for tensor in model.parameters():
        nn.init.normal_(tensor, generator=generator)
    return model


def _masks(count: int, order: tuple[str, ...] = ("0", "2")) -> dict[str, Tensor]:
    params = dict(_model().named_parameters())
    return choose_entries(GROUPS, params, order, count=count, generator=torch.Generator().manual_seed(3))


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(2)
    return Batch(torch.randn(5, 6, generator=generator), torch.tensor([0, 1, 2, 1, 0]))


def test_parting_changes_neither_outputs_nor_gradients() -> None:
    model, masks, batch = _model(), _masks(31), _batch()
    parted = TwoParts(model, masks)
    assert torch.equal(parted(batch.inputs), model(batch.inputs))
    torch.nn.functional.cross_entropy(model(batch.inputs), batch.targets).backward()
    gradient = Objective.from_module(parted).gradient(Objective.from_module(parted).params, batch)
    for place, (name, tensor) in enumerate(model.named_parameters()):
        assert tensor.grad is not None
        mask = masks[name]
        for part, chosen in ((OPEN, ~mask), (PROTECTED, mask)):
            if chosen.any():
                torch.testing.assert_close(gradient[f"{part}.tensor{place}"], tensor.grad[chosen])


def test_the_parts_are_layers_to_hiding_and_to_noise() -> None:
    objective, batch = Objective.from_module(TwoParts(_model(), _masks(10))), _batch()
    visible = VisibleLayers.of(objective, OPEN)
    assert sum(objective.params[name].numel() for name in visible.names) == objective.size - 10
    noisy = Release(FedSGD(), (LayerNoise(std={PROTECTED: 0.5}),))
    plain = Release(FedSGD())(objective, batch, torch.Generator().manual_seed(0))
    drawn = noisy(objective, batch, torch.Generator().manual_seed(0))
    for name, tensor in plain.tensors.items():
        assert torch.equal(tensor, drawn.tensors[name]) == name.startswith(OPEN)


def test_whole_layers_while_they_fit_and_then_a_part_of_the_next() -> None:
    # Layer 0 has 28 entries, layer 2 has 15.
    masks = _masks(31)
    assert masks["0.weight"].all()
    assert masks["0.bias"].all()
    assert int(masks["2.weight"].sum() + masks["2.bias"].sum()) == 3
    later = _masks(31, ("2", "0"))
    assert later["2.weight"].all()
    assert int(later["0.weight"].sum() + later["0.bias"].sum()) == 16


def test_controls_keep_apart_from_the_set_and_have_its_size() -> None:
    params, first = dict(_model().named_parameters()), _masks(20)
    for draw in (
        choose_entries(GROUPS, params, ["0", "2"], count=20, generator=torch.Generator(), apart=first),
        scattered_entries(params, count=20, generator=torch.Generator(), apart=first),
    ):
        assert sum(int(mask.sum()) for mask in draw.values()) == 20
        assert not any(bool((mask & first[name]).any()) for name, mask in draw.items())


def test_refuses_more_entries_than_there_are_and_masks_of_another_model() -> None:
    with pytest.raises(InputError, match="expected 44 entries to choose from, got 43"):
        _masks(44)
    with pytest.raises(InputError, match="a bool mask a parameter"):
        TwoParts(_model(), {"0.weight": torch.ones(4, 6, dtype=torch.bool)})
