from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from sklearn.datasets import load_digits
from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.results import InputError, UnsupportedError
from gradleak.scoring import mse, psnr, rmse, ssim, ssim_obstacle


def noisy_pair(shape: tuple[int, ...], seed: int = 0, std: float = 0.1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(shape, generator=generator, dtype=torch.float64)
    return truth + std * torch.randn(shape, generator=generator, dtype=torch.float64), truth


def real_digits(size: int) -> Tensor:
    digits = torch.tensor(load_digits().images[:6] / 16, dtype=torch.float64)[:, None]
    return torch.nn.functional.interpolate(digits, size=(size, size), mode="bilinear")


def peer_ssim(claim: Tensor, truth: Tensor) -> float:
    value = structural_similarity(
        claim.numpy(),
        truth.numpy(),
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=0,
    )
    return float(value)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 11, 11), (1, 8, 8), (3, 4, 4), (1, 17, 40)])
def test_errors_equal_scikit_image(shape: tuple[int, ...]) -> None:
    claims, truths = noisy_pair((5, *shape))
    for got_mse, got_rmse, got_psnr, claim, truth in zip(
        mse(claims, truths), rmse(claims, truths), psnr(claims, truths), claims, truths, strict=True
    ):
        expected = mean_squared_error(truth.numpy(), claim.numpy())
        assert float(got_mse) == pytest.approx(expected, rel=1e-12)
        assert float(got_rmse) == pytest.approx(math.sqrt(expected), rel=1e-12)
        peer = peak_signal_noise_ratio(truth.numpy(), claim.numpy(), data_range=1.0)
        assert float(got_psnr) == pytest.approx(peer, rel=1e-12)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (4, 11, 11), (1, 17, 40), (3, 64, 48)])
@pytest.mark.parametrize("std", [0.001, 0.1, 1.0])
def test_ssim_of_random_images_equals_scikit_image(shape: tuple[int, ...], std: float) -> None:
    claims, truths = noisy_pair((3, *shape), seed=1, std=std)
    expected = [peer_ssim(claim, truth) for claim, truth in zip(claims, truths, strict=True)]
    np.testing.assert_allclose(ssim(claims, truths).numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("size", [11, 16, 28])
def test_ssim_of_real_digits_equals_scikit_image(size: int) -> None:
    digits = real_digits(size)
    claims, truths = digits[:3], digits[3:]
    expected = [peer_ssim(claim, truth) for claim, truth in zip(claims, truths, strict=True)]
    np.testing.assert_allclose(ssim(claims, truths).numpy(), expected, atol=1e-9)
    assert max(expected) < 0.9


def test_ssim_of_equal_images_is_one() -> None:
    digits = real_digits(28)
    np.testing.assert_allclose(ssim(digits, digits).numpy(), 1.0, atol=1e-12)


def test_ssim_of_constant_images_is_the_luminance_term() -> None:
    dark, light = torch.full((1, 1, 12, 12), 0.2), torch.full((1, 1, 12, 12), 0.6)
    c1 = 0.01**2
    expected = (2 * 0.2 * 0.6 + c1) / (0.2**2 + 0.6**2 + c1)
    assert float(ssim(dark, light)) == pytest.approx(expected, rel=1e-5)


def test_exact_hit_has_infinite_psnr_and_no_error() -> None:
    _, truths = noisy_pair((2, 1, 8, 8))
    assert psnr(truths, truths).tolist() == [math.inf, math.inf]
    assert rmse(truths, truths).tolist() == [0.0, 0.0]


def test_float32_input_is_computed_in_float64() -> None:
    claims, truths = noisy_pair((2, 1, 12, 12))
    assert mse(claims.float(), truths.float()).dtype == torch.float64
    assert ssim(claims.float(), truths.float()).dtype == torch.float64


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 8, 8), (3, 10, 64), (4, 64, 10)])
def test_ssim_below_its_window_is_refused(shape: tuple[int, ...]) -> None:
    claims, truths = noisy_pair((1, *shape))
    with pytest.raises(UnsupportedError, match="not defined at this size"):
        ssim(claims, truths)
    assert "not defined at this size" in ssim_obstacle(Domain(shape=shape))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 11, 11), (4, 12, 40)])
def test_ssim_is_defined_for_gray_color_and_alpha(shape: tuple[int, ...]) -> None:
    assert ssim_obstacle(Domain(shape=shape)) == ""


def test_ssim_is_not_defined_for_table_rows() -> None:
    assert "tabular" in ssim_obstacle(Domain(shape=(64,), kind=DomainKind.TABULAR))
    assert "needs (channels, height, width)" in ssim_obstacle(Domain(shape=(64,)))


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (8, 8, 4)])
def test_channels_last_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"looks like \(height, width, channels\).*permute"):
        ssim_obstacle(Domain(shape=shape))


@pytest.mark.parametrize("metric", [mse, rmse, psnr, ssim])
def test_other_shape_is_refused(metric: object) -> None:
    assert callable(metric)
    with pytest.raises(InputError, match="shaped like the truth"):
        metric(torch.zeros(1, 1, 28, 28), torch.zeros(1, 3, 28, 28))
