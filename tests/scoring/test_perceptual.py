"""ST-LPIPS: against the published package's own numbers, and against a twin of torch modules."""

from __future__ import annotations

import pickle
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gradleak.scoring.perceptual as module
from gradleak.core import Batch, Domain, DomainKind, Reconstruction
from gradleak.results import InputError, Leakier, Outcome, UnsupportedError
from gradleak.scoring import PerceptualNetwork, score_perceptual, st_lpips, st_lpips_obstacle

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
needs_weights = pytest.mark.skipif(find_spec("stlpips_pytorch") is None, reason="stlpips_pytorch is not installed")


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def network() -> PerceptualNetwork:
    """A narrow stand-in for the published weights."""
    generator = torch.Generator().manual_seed(1)
    widths, sides = (3, 6, 8, 10, 7, 5), (11, 5, 3, 3, 3)
    return PerceptualNetwork(
        kernels=tuple(
            torch.randn(after, before, side, side, generator=generator) / (before**0.5 * side)
            for before, after, side in zip(widths[:-1], widths[1:], sides, strict=True)
        ),
        biases=tuple(torch.randn(width, generator=generator) / 10 for width in widths[1:]),
        heads=tuple(torch.rand(width, generator=generator) for width in widths[1:]),
    )


class _Blur(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(2)
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, groups=channels, bias=False)
        kernel = torch.tensor([[1.0, 2.0, 1.0], [2.0, 4.0, 2.0], [1.0, 2.0, 1.0]]) / 16
        self.conv.weight.data = kernel.repeat(channels, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.pad(x))


def _twin(network: PerceptualNetwork, first: Tensor, second: Tensor) -> Tensor:
    """The architecture of the paper, of torch modules: blurred subsampling after the first convolution and the pools."""
    w = [kernel.shape[0] for kernel in network.kernels]
    convolutions = [
        nn.Conv2d(kernel.shape[1], kernel.shape[0], kernel.shape[2], padding=padding)
        for kernel, padding in zip(network.kernels, (2, 2, 1, 1, 1), strict=True)
    ]
    for conv, kernel, bias in zip(convolutions, network.kernels, network.biases, strict=True):
        conv.weight.data, conv.bias.data = kernel, bias
    slices = [
        nn.Sequential(convolutions[0], _Blur(w[0]), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(3, stride=1), _Blur(w[0]), convolutions[1], nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(3, stride=1), _Blur(w[1]), convolutions[2], nn.ReLU()),
        nn.Sequential(convolutions[3], nn.ReLU()),
        nn.Sequential(convolutions[4], nn.ReLU()),
    ]
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    x, y = (((2 * images.float() - 1).movedim(1, -1) - shift) / scale for images in (first, second))
    x, y = x.movedim(-1, 1), y.movedim(-1, 1)
    total = torch.zeros(len(first))
    for part, head in zip(slices, network.heads, strict=True):
        x, y = part(x), part(y)
        gap = (nn.functional.normalize(x, dim=1) - nn.functional.normalize(y, dim=1)).square()
        total += torch.einsum("bchw,c->bhw", gap, head).mean(dim=(1, 2))
    return total.detach()


@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (3, 3, 21, 40)])
def test_it_is_the_network_of_the_paper(network: PerceptualNetwork, shape: tuple[int, ...]) -> None:
    first, second = _random(*shape), _random(*shape, seed=1)
    found = st_lpips(first, second, network=network)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found.float(), _twin(network, first, second), rtol=1e-4, atol=1e-6)
    assert st_lpips(first, first, network=network).tolist() == [0.0] * len(first)
    torch.testing.assert_close(found, st_lpips(second, first, network=network))


# What stlpips_pytorch 0.0.2 gives for 2x - 1 of these images: LPIPS(net="alex", variant="shift_tolerant").
PUBLISHED = {
    (2, 3, 32, 32): [0.039499830454587936, 0.05450257286429405],
    (2, 3, 28, 28): [0.051385220140218735, 0.04237194359302521],
    (2, 3, 64, 48): [0.040999121963977814, 0.042604960501194],
    (1, 3, 21, 21): [0.06058857589960098],
}


@needs_weights
@pytest.mark.parametrize("shape", PUBLISHED)
def test_it_gives_the_numbers_of_the_published_package(shape: tuple[int, ...]) -> None:
    draw = np.random.default_rng(0)
    first, second = (torch.tensor(draw.random(shape), dtype=torch.float32) for _ in range(2))
    assert st_lpips(first, second).tolist() == pytest.approx(PUBLISHED[shape], rel=1e-4)


# Cases of the perceptual half of U46: LPIPS fed with the wrong range gives numbers that are too good.


def _claimed(pixels: Tensor, domain: Domain) -> Reconstruction:
    return Reconstruction(inputs=domain.from_pixels(pixels), targets=None, loss=0.1, outcome=Outcome.BUDGET_SPENT)


def _domains(shape: tuple[int, int, int]) -> list[Domain]:
    unit = Domain(shape=shape)
    mean, std = (MEAN, STD) if shape[0] == 3 else ((0.1307,), (0.3081,))
    return [unit, replace(unit, low=-1.0), replace(unit, mean=mean, std=std), replace(unit, low=0.0, high=255.0)]


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_one_pair_has_one_score_whatever_the_model_takes(network: PerceptualNetwork, shape: tuple[int, ...]) -> None:
    truth, guess = _random(2, *shape), _random(2, *shape, seed=1)
    scores = []
    for domain in _domains(shape):
        batch = Batch(domain.from_pixels(truth), torch.zeros(2, dtype=torch.int64), domain)
        score = score_perceptual(_claimed(guess, domain), batch, network=network)
        scores.append(score.value)
        assert (score.name, score.unit, score.leakier) == ("st_lpips", "ST-LPIPS", Leakier.LOWER)
    assert scores == pytest.approx([scores[0]] * 4, rel=1e-6)
    assert scores[0] > 0


def test_a_range_that_was_not_declared_is_refused(network: PerceptualNetwork) -> None:
    truth, labels = _random(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64)
    claim = Reconstruction(inputs=truth, targets=None, loss=0.0, outcome=Outcome.CONVERGED)
    with pytest.raises(InputError, match="domain"):
        score_perceptual(claim, Batch(truth, labels), network=network)
    with pytest.raises(InputError, match=r"declare the range"):
        score_perceptual(claim, Batch(2 * truth - 1, labels, Domain(shape=(3, 32, 32))), network=network)
    for wrong in (2 * truth - 1, 255 * truth, torch.full_like(truth, torch.nan)):
        with pytest.raises(InputError, match=r"truths: expected pixels scaled to \[0, 1\]"):
            st_lpips(truth, wrong, network=network)


def test_claims_outside_the_range_are_clamped_and_that_is_said(network: PerceptualNetwork) -> None:
    truth = _random(1, 3, 32, 32)
    domain = Domain(shape=(3, 32, 32))
    batch = Batch(truth, torch.zeros(1, dtype=torch.int64), domain)
    wide = truth + 0.5
    score = score_perceptual(_claimed(wide, domain), batch, network=network)
    inside = score_perceptual(_claimed(wide.clamp(0, 1), domain), batch, network=network)
    assert score.value == inside.value
    assert "outside the valid range; clamped" in score.note
    assert inside.note == ""


# Cases of the perceptual half of U47: metrics crash on small images and on another order of axes.

SIZES = [(channels, side, side) for side in (4, 8, 20, 28, 32) for channels in (1, 3, 4)]


@pytest.mark.parametrize("shape", SIZES)
def test_a_value_or_the_word_that_there_is_none(network: PerceptualNetwork, shape: tuple[int, int, int]) -> None:
    domain = Domain(shape=shape)
    truth = _random(1, *shape)
    batch = Batch(truth, torch.zeros(1, dtype=torch.int64), domain)
    score = score_perceptual(_claimed(_random(1, *shape, seed=3), domain), batch, network=network)
    if shape[0] == 4:
        assert "not defined for 4 channels" in score.note
    elif shape[1] < 21:
        assert f"not defined at this size: {shape[1]}x{shape[1]} pixels, it needs 21" in score.note
    else:
        assert score.value > 0
        assert st_lpips_obstacle(domain) == score.note == ""
        return
    assert score.value is None
    assert score.outcome is Outcome.UNSUPPORTED
    with pytest.raises(UnsupportedError, match="not defined"):
        st_lpips(truth, truth, network=network)


def test_channels_that_stand_last_are_named(network: PerceptualNetwork) -> None:
    domain = Domain(shape=(32, 32, 3))
    batch = Batch(_random(1, 32, 32, 3), torch.zeros(1, dtype=torch.int64), domain)
    with pytest.raises(InputError, match=r"permute\(0, 3, 1, 2\)"):
        score_perceptual(_claimed(batch.inputs, domain), batch, network=network)
    with pytest.raises(InputError, match="height, width, channels"):
        st_lpips_obstacle(domain)
    table = Domain(shape=(12,), kind=DomainKind.TABULAR)
    assert st_lpips_obstacle(table) == "not defined for tabular data"


def test_gray_is_color_with_equal_channels(network: PerceptualNetwork) -> None:
    first, second = _random(2, 1, 28, 28), _random(2, 1, 28, 28, seed=1)
    color = st_lpips(first.repeat(1, 3, 1, 1), second.repeat(1, 3, 1, 1), network=network)
    assert st_lpips(first, second, network=network).tolist() == color.tolist()


def test_a_batch_is_paired_first_and_the_blind_guess_stands_beside(network: PerceptualNetwork) -> None:
    truth = _random(3, 3, 32, 32)
    domain = Domain(shape=(3, 32, 32))
    batch = Batch(truth, torch.zeros(3, dtype=torch.int64), domain)
    noisy = (truth + 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(2))).clamp(0, 1)
    score = score_perceptual(_claimed(noisy[[2, 0, 1]], domain), batch, network=network)
    expected = st_lpips(noisy, truth, network=network).tolist()
    assert score.details["per_example"] == pytest.approx(expected)
    assert score.value == min(score.details["per_example"])
    assert score.n == 3
    gray = st_lpips(torch.full_like(truth, 0.5), truth, network=network)
    flat = st_lpips(truth.mean(dim=(2, 3), keepdim=True).expand_as(truth), truth, network=network)
    assert score.details["blind_per_example"] == pytest.approx(torch.minimum(gray, flat).tolist())
    assert all(a < b for a, b in zip(expected, score.details["blind_per_example"], strict=True))


def test_what_was_not_claimed_has_no_score(network: PerceptualNetwork) -> None:
    truth = _random(1, 3, 32, 32)
    batch = Batch(truth, torch.zeros(1, dtype=torch.int64), Domain(shape=(3, 32, 32)))
    nothing = Reconstruction(inputs=None, targets=None, loss=None, outcome=Outcome.NO_SIGNAL, note="zero update")
    score = score_perceptual(nothing, batch, network=network)
    assert (score.value, score.outcome, score.note) == (None, Outcome.NO_SIGNAL, "zero update")
    broken = Reconstruction(inputs=truth * torch.nan, targets=None, loss=0.1, outcome=Outcome.PLATEAU)
    assert score_perceptual(broken, batch, network=network).outcome is Outcome.NOT_FINITE


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    module.installed_network.cache_clear()
    truth = _random(1, 3, 32, 32)
    domain = Domain(shape=(3, 32, 32))
    with pytest.raises(UnsupportedError, match=r"pip install gradleak\[metrics\]"):
        st_lpips(truth, truth)
    score = score_perceptual(_claimed(truth, domain), Batch(truth, torch.zeros(1, dtype=torch.int64), domain))
    assert score.value is None
    assert score.outcome is Outcome.UNSUPPORTED
    assert "gradleak[metrics]" in score.note


def test_weights_are_read_without_unpickling_and_refused_by_name(network: PerceptualNetwork, tmp_path: Path) -> None:
    names = ("slice1.0", "slice2.5", "slice3.9", "slice4.11", "slice5.13")
    state = {f"net.{name}.weight": kernel for name, kernel in zip(names, network.kernels, strict=True)}
    state |= {f"net.{name}.bias": bias for name, bias in zip(names, network.biases, strict=True)}
    state |= {f"lin{n}.model.1.weight": head[None, :, None, None] for n, head in enumerate(network.heads)}
    path = tmp_path / "alex.pth"
    torch.save(state, path)
    first, second = _random(1, 3, 32, 32), _random(1, 3, 32, 32, seed=1)
    loaded = PerceptualNetwork.load(path)
    assert torch.equal(st_lpips(first, second, network=loaded), st_lpips(first, second, network=network))
    torch.save({"net.slice1.0.weight": network.kernels[0]}, path)
    with pytest.raises(InputError, match=r"alex.pth: expected the weights of ST-LPIPS"):
        PerceptualNetwork.load(path)
    with pytest.raises(InputError, match="convolution 1 to take 6 channels"):
        replace(network, kernels=(network.kernels[0], *network.kernels[:1], *network.kernels[2:]))
    with pytest.raises(InputError, match="five convolutions"):
        replace(network, heads=network.heads[:4])
    for heads in (network.heads[0] * float("nan"), network.heads[0].long()):
        with pytest.raises(InputError, match="finite weights in floating point"):
            replace(network, heads=(heads, *network.heads[1:]))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("hostile.pkl", pickle.dumps(print)),
        ("empty.pth", b""),
        ("text.pth", b"hello"),
        ("empty.safetensors", b""),
        ("garbage.safetensors", b"garbage" * 20),
    ],
)
def test_what_holds_no_network_is_one_refusal_that_advises_nothing_unsafe(
    name: str, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    for wrong in (path, tmp_path, tmp_path / "none.pth"):
        with pytest.raises(InputError, match="expected the weights of ST-LPIPS") as caught:
            PerceptualNetwork.load(wrong)
        assert "weights_only" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_range_of_which_images_use_little_is_said(network: PerceptualNetwork) -> None:
    pixels = _random(1, 3, 24, 24)
    domain = Domain(shape=(3, 24, 24), low=-1.0)
    truth = Batch(pixels, torch.tensor([0]), domain)
    found = Reconstruction(inputs=0.99 * pixels, targets=None, loss=0.0, outcome=Outcome.CONVERGED)
    assert "half of the declared range -1 to 1" in score_perceptual(found, truth, network=network).note
    other = Batch(-pixels, torch.tensor([0]), domain)
    assert score_perceptual(found, truth, network=network, beside=[other]).note == ""
