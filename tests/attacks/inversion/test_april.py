"""APRIL: images to round-off from the gradients of learned positions, and nothing certain where equations are too few."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import APRIL
from gradleak.core import Batch, Defense, Domain, Reconstruction
from gradleak.defenses import Clip, ClipPerLayer, GaussianNoise, Prune
from gradleak.models import initialize_default, vit
from gradleak.protocols import FedAvg
from gradleak.results import Outcome, UnsupportedError
from tests.attacks.setting import Setting, setting

IMAGE = Domain.image(channels=3, height=8, width=8, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))


def _image(label: int = 1, count: int = 1) -> Batch:
    pixels = torch.rand(count, *IMAGE.shape, generator=torch.Generator().manual_seed(5))
    return Batch(IMAGE.from_pixels(pixels), torch.full((count,), label), IMAGE)


def _vit(*, width: int = 24, blocks: int = 2, patch: int = 2) -> nn.Module:
    return vit(size=8, patch=patch, width=width, blocks=blocks, heads=2, classes=4, std=0.2)


def _run(case: Setting) -> Reconstruction:
    return APRIL()(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))


class _Added(nn.Module):
    """A transformer of torch's own parts: patches cut out by hand, positions as a map (channels first) or after the tokens."""

    def __init__(self, *, as_map: bool, fixed: bool = False) -> None:
        super().__init__()
        self.as_map = as_map
        self.embed = nn.Conv2d(3, 20, 4, 4) if as_map else nn.Linear(48, 20)
        places = torch.randn((1, 20, 2, 2) if as_map else (5, 20), generator=torch.Generator().manual_seed(0))
        self.places = nn.Parameter(places, requires_grad=not fixed)
        self.block = nn.TransformerEncoderLayer(20, 4, 32, 0.0, batch_first=True)
        self.head = nn.Linear(20, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.as_map:
            tokens = (self.embed(x) + self.places).flatten(2).transpose(1, 2)
        else:
            patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 4, 5, 1).reshape(len(x), 4, 48)
            tokens = self.embed(patches)
            tokens = torch.cat([tokens, torch.zeros_like(tokens[:, :1])], dim=1) + self.places
        answer: Tensor = self.head(self.block(tokens)[:, -1])
        return answer


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-3), (torch.float64, 1e-11)])
def test_an_image_behind_a_vision_transformer_is_read_to_round_off(dtype: torch.dtype, within: float) -> None:
    case = setting(_vit(), _image(), dtype=dtype)
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert float((found.inputs - case.truth.inputs).abs().max()) < within
    assert (found.details["rank"], found.details["open"]) == (16, 0)
    assert found.details["misfit"] < 10 * torch.finfo(dtype).eps
    assert found.plain_gradients == 1
    assert found.targets.tolist() == [1]


@pytest.mark.parametrize("as_map", [True, False])
def test_layers_are_found_by_what_they_compute(as_map: bool) -> None:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)  # noqa: TID251 (torch's own block draws from it)
        case = setting(_Added(as_map=as_map), _image())
    found = _run(case)
    assert found.outcome is Outcome.CONVERGED
    assert float((found.inputs - case.truth.inputs).abs().max()) < 1e-9
    assert found.details["layer"] == "embed.weight"
    assert found.details["positions"] == "places"


def test_more_places_than_the_model_is_wide_leave_directions_open() -> None:
    case = setting(_vit(width=12), _image())
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert found.details["rank"] <= 12
    assert found.details["open"] == (16 - found.details["rank"]) * 12
    assert "directions of places are open" in found.note
    assert case.error(found.inputs) < float((IMAGE.to_pixels(case.truth.inputs) - 0.5).square().mean())


def test_clipping_as_a_whole_and_local_steps_change_nothing() -> None:
    for case in (
        setting(_vit(), _image(), defenses=[Clip(1e-3)]),
        setting(_vit(), _image(), protocol=FedAvg(epochs=3, learning_rate=0.05, batch_size=1)),
    ):
        found = _run(case)
        assert found.outcome is Outcome.CONVERGED
        assert case.error(found.inputs) < 1e-14


def test_nothing_is_certain_under_noise() -> None:
    case = setting(_vit(), _image(), defenses=[GaussianNoise(std=1e-7)])
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "under noise nothing that was read is certain" in found.note
    assert case.error(found.inputs) < 1e-3


def test_an_update_that_is_not_what_it_is_taken_for_contradicts_itself() -> None:
    pruned = setting(_vit(), _image(), defenses=[Prune(0.5)])
    found = _run(replace(pruned, knowledge=replace(pruned.knowledge, defenses=None)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "the equations contradict each other" in found.note
    two = setting(_vit(), _image(count=2))
    found = _run(replace(two, knowledge=replace(two.knowledge, batch_size=1)))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE


def test_pixels_that_no_patch_reads_are_not_claimed_as_certain() -> None:
    network = nn.Sequential(nn.Conv2d(3, 9, 4, stride=4), nn.Flatten(), nn.Linear(9, 3))
    domain = Domain.image(channels=3, height=5, width=5)
    image = torch.rand(1, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    case = setting(initialize_default(network, generator=torch.Generator().manual_seed(0)),
                   Batch(image, torch.tensor([0]), domain))  # fmt: skip
    found = _run(case)
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "27 pixels are read by no patch" in found.note
    assert float((found.inputs - case.truth.inputs)[..., :4, :4].abs().max()) < 1e-9


@pytest.mark.parametrize(
    ("model", "count", "defenses", "says"),
    [
        (_vit(), 2, (), "takes the gradient of one example apart, got 2"),
        (
            _Added(as_map=True, fixed=True),
            1,
            (),
            "needs a parameter that is added place by place to what embed.weight makes",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)),
            1,
            (),
            "0.weight reads patches that overlap",
        ),
        (_vit(), 1, (Prune(0.5),), "needs sums of gradients, clipped at most"),
        (_vit(), 1, (ClipPerLayer(0.1),), "needs sums of gradients, clipped at most"),
    ],
    ids=["batch", "fixed positions", "overlap", "pruned", "clipped by layer"],
)
def test_what_it_cannot_read_is_refused_by_name(
    model: nn.Module, count: int, defenses: tuple[Defense, ...], says: str
) -> None:
    case = setting(model, _image(count=count), defenses=defenses)
    with pytest.raises(UnsupportedError, match=says):
        _run(case)
