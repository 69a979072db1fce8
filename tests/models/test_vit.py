"""The vision transformer: its size, what it computes, and the sizes that it refuses."""

from __future__ import annotations

import pytest
import torch

from gradleak.models import vit
from gradleak.results import InputError


def test_the_default_has_the_parameters_that_it_names() -> None:
    assert sum(parameter.numel() for parameter in vit().parameters()) == 459_562


def test_positions_tell_patches_apart_and_the_same_generator_gives_the_same_weights() -> None:
    model, again = (vit(size=8, width=24, blocks=1, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(images), again(images))
    turned = torch.cat([images[..., 4:], images[..., :4]], dim=3)
    assert not torch.allclose(model(images), model(turned))
    model.positions.weight.data.zero_()
    assert torch.allclose(model(images), model(turned), atol=1e-6)


@pytest.mark.parametrize("wrong", [{"patch": 5}, {"heads": 5}, {"std": 0.0}])
def test_sizes_that_do_not_fit_are_refused(wrong: dict[str, int | float]) -> None:
    with pytest.raises(InputError, match="vit: expected patches that divide the image"):
        vit(**wrong)
