"""Errors between images in pixels scaled to [0, 1]: MSE, RMSE, PSNR and SSIM, one number an example."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.results import InputError, UnsupportedError

SSIM_WINDOW = 11
SSIM_SIGMA = 1.5
SSIM_K1 = 0.01
SSIM_K2 = 0.03

# Numbers of channels of the usual images: gray, color, color with transparency.
_CHANNELS = (1, 3, 4)


def mse(claims: Tensor, truths: Tensor) -> Tensor:
    """The mean squared pixel error of each example, (b,) float64.

    Args:
        claims: (b, *shape) pixels scaled to [0, 1]; values outside are taken as they are.
        truths: (b, *shape) pixels scaled to [0, 1].

    Returns:
        ‖claim − truth‖² / d, computed in float64.

    Raises:
        InputError: the shapes differ.

    Cost:
        One pass over the pixels.
    """
    _same_shape(claims, truths)
    difference = claims.to(torch.float64) - truths.to(torch.float64)
    return (difference**2).flatten(start_dim=1).mean(dim=1)


def rmse(claims: Tensor, truths: Tensor) -> Tensor:
    """The root of the mean squared pixel error of each example, (b,) float64; the unit of every verdict.

    Args:
        claims: (b, *shape) pixels scaled to [0, 1].
        truths: (b, *shape) pixels scaled to [0, 1].

    Returns:
        ‖claim − truth‖ / √d.

    Raises:
        InputError: the shapes differ.
    """
    return mse(claims, truths).sqrt()


def psnr(claims: Tensor, truths: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of each example in dB, (b,) float64; infinite for an exact hit.

    −10 log₁₀ MSE, since the data range is 1. An infinite value must not be averaged: count exact hits, or take
    medians.

    Args:
        claims: (b, *shape) pixels scaled to [0, 1].
        truths: (b, *shape) pixels scaled to [0, 1].

    Returns:
        dB; inf where claim and truth are equal.

    Raises:
        InputError: the shapes differ.
    """
    return -10.0 * torch.log10(mse(claims, truths))


def ssim(claims: Tensor, truths: Tensor) -> Tensor:
    """The mean structural similarity of each image, (b,) float64, at most 1 (equal images).

    For each channel and each window position inside the image

        (2 μ_x μ_y + C₁)(2 σ_xy + C₂) / ((μ_x² + μ_y² + C₁)(σ_x² + σ_y² + C₂)),

    with Gaussian-weighted means, (biased) variances and covariance, averaged over positions and channels. Windows
    that would reach over the border are left out.

    Args:
        claims: (b, channels, height, width) pixels scaled to [0, 1].
        truths: (b, channels, height, width) pixels scaled to [0, 1].

    Returns:
        One number an image, computed in float64.

    Raises:
        InputError: the shapes differ.
        UnsupportedError: height or width is below the window of 11 pixels, or there is no (channels, height, width).

    Cost:
        Ten one-dimensional convolutions of 11 taps.

    Source:
        Wang et al. 2004, section III-B: 11 × 11 circular Gaussian window, σ = 1.5, K₁ = 0.01, K₂ = 0.03, data
        range L = 1.
    """
    _same_shape(claims, truths)
    obstacle = _size_obstacle(tuple(claims.shape[1:]))
    if obstacle:
        raise UnsupportedError(f"SSIM is {obstacle}")
    batch, channels = claims.shape[:2]
    x = claims.to(torch.float64).flatten(end_dim=1)
    y = truths.to(torch.float64).flatten(end_dim=1)
    moments = _local_means(torch.stack([x, y, x * x, y * y, x * y], dim=1))
    mean_x, mean_y, square_x, square_y, product = moments.unbind(dim=1)
    c1, c2 = SSIM_K1**2, SSIM_K2**2
    variance_x, variance_y = square_x - mean_x**2, square_y - mean_y**2
    covariance = product - mean_x * mean_y
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return (luminance * structure).mean(dim=(1, 2)).reshape(batch, channels).mean(dim=1)


def ssim_obstacle(domain: Domain) -> str:
    """Reason why SSIM is not defined for examples of this domain, as the end of a sentence; "" where it is.

    Args:
        domain: what the examples are.

    Raises:
        InputError: the shape of an image looks like (height, width, channels).
    """
    if domain.kind is not DomainKind.IMAGE:
        return f"not defined for {domain.kind.value} data"
    check_channel_axis(domain)
    return _size_obstacle(domain.shape)


def check_channel_axis(domain: Domain) -> None:
    """Refuse an image domain whose channels seem to stand last.

    Args:
        domain: what the examples are.

    Raises:
        InputError: the last of three axes has 1, 3 or 4 entries and the first has not.
    """
    shape = domain.shape
    if domain.kind is not DomainKind.IMAGE or len(shape) != 3:
        return
    if shape[0] not in _CHANNELS and shape[-1] in _CHANNELS:
        raise InputError(
            f"Domain.shape: expected (channels, height, width), got {shape}, which looks like (height, width, "
            "channels); move the channels to the front: inputs.permute(0, 3, 1, 2)"
        )


def _size_obstacle(shape: tuple[int, ...]) -> str:
    if len(shape) != 3:
        return f"not defined for examples of shape {shape}: it needs (channels, height, width)"
    if min(shape[1:]) < SSIM_WINDOW:
        return f"not defined at this size: {shape[1]}x{shape[2]} pixels, the window needs {SSIM_WINDOW}"
    return ""


def _local_means(images: Tensor) -> Tensor:
    """Gaussian-weighted means over the windows inside (..., k, height, width) images, k treated independently."""
    places = torch.arange(SSIM_WINDOW, dtype=images.dtype, device=images.device) - SSIM_WINDOW // 2
    weights = torch.exp(-(places**2) / (2 * SSIM_SIGMA**2))
    weights = weights / weights.sum()
    flat = images.flatten(end_dim=1)[:, None]
    rows = F.conv2d(flat, weights.reshape(1, 1, -1, 1))
    means = F.conv2d(rows, weights.reshape(1, 1, 1, -1))
    return means.reshape(*images.shape[:2], *means.shape[-2:])


def _same_shape(claims: Tensor, truths: Tensor) -> None:
    if claims.shape != truths.shape:
        raise InputError(
            f"expected claims shaped like the truth, {tuple(truths.shape)}, got {tuple(claims.shape)}; "
            "for an image the axes are (b, channels, height, width)"
        )
