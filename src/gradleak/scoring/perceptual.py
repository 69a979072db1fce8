"""ST-LPIPS: how far two images are apart in the features of a network trained on human judgments of similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import Batch, Domain, DomainKind, Reconstruction
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score, UnsupportedError, median
from gradleak.scoring.image import check_channel_axis
from gradleak.scoring.pairing import pair, scorable
from gradleak.scoring.reconstruction import RANGE_TOLERANCE, pixels_of_truth, range_note

ST_LPIPS_SIDE = 21
"""The smallest height and width: below it a reflected border would be as wide as the map that it borders."""

_FILE = Path("weights") / "vST0.0" / "alex_shift_tolerant.pth"
_CONVOLUTIONS = ("slice1.0", "slice2.5", "slice3.9", "slice4.11", "slice5.13")
_PADDING = (2, 2, 1, 1, 1)
# Red, green and blue of the photographs that the trunk was trained on, once they lie in [-1, 1].
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_SMALL = 1e-10


@dataclass(frozen=True, kw_only=True, eq=False)
class PerceptualNetwork:
    """The trunk of ST-LPIPS and the weights that its features get: what a distance is computed with.

    Attributes:
        kernels: of the five convolutions, (out, in, k, k) each.
        biases: of the five convolutions, (out,) each.
        heads: what each channel of each of the five feature maps weighs, (out,), at least 0.

    Raises:
        InputError: if there are not five of each, their channels do not fit together, or they are not finite numbers.
    """

    kernels: tuple[Tensor, ...] = field(repr=False)
    biases: tuple[Tensor, ...] = field(repr=False)
    heads: tuple[Tensor, ...] = field(repr=False)

    def __post_init__(self) -> None:
        """Check that the channels fit together."""
        if not len(self.kernels) == len(self.biases) == len(self.heads) == len(_CONVOLUTIONS):
            raise InputError(
                f"PerceptualNetwork: expected five convolutions with a head each, got {len(self.kernels)}, "
                f"{len(self.biases)} and {len(self.heads)}"
            )
        channels = 3
        for number, (kernel, bias, head) in enumerate(zip(self.kernels, self.biases, self.heads, strict=True)):
            wide = kernel.shape[0]
            if kernel.dim() != 4 or kernel.shape[1] != channels or {tuple(bias.shape), tuple(head.shape)} != {(wide,)}:
                raise InputError(
                    f"PerceptualNetwork: expected convolution {number} to take {channels} channels and to have as many "
                    f"biases as kernels, got {tuple(kernel.shape)} and {tuple(bias.shape)}"
                )
            channels = wide
        for tensor in (*self.kernels, *self.biases, *self.heads):
            if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
                raise InputError("PerceptualNetwork: expected finite weights in floating point, got others")

    @classmethod
    def load(cls, path: Path) -> PerceptualNetwork:
        """The network in a file of the package `stlpips_pytorch`; numbers alone are read, nothing is unpickled.

        Raises:
            InputError: if the file does not hold such a network.
        """
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # weights_only refuses in many ways, and advises to do without it, which is not told
            raise InputError(_unfit(path, f"a file that cannot be read as tensors ({type(error).__name__})")) from error
        try:
            return cls(
                kernels=tuple(state[f"net.{name}.weight"] for name in _CONVOLUTIONS),
                biases=tuple(state[f"net.{name}.bias"] for name in _CONVOLUTIONS),
                heads=tuple(state[f"lin{number}.model.1.weight"].reshape(-1) for number in range(len(_CONVOLUTIONS))),
            )
        except (RuntimeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise InputError(_unfit(path, f"{type(error).__name__}: {error}")) from error

    def distances(self, first: Tensor, second: Tensor) -> Tensor:
        """The distance of each pair of color images (b, 3, h, w) with pixels in [0, 1], (b,) float64.

        Cost:
            Two forward passes of an AlexNet whose first convolution has stride 1; about 10 ms a pair of 32x32 images.
        """
        with torch.no_grad():
            maps = [self._features(2 * images.to(self.kernels[0]) - 1) for images in (first, second)]
        total = torch.zeros(len(first), dtype=torch.float64)
        for head, one, other in zip(self.heads, *maps, strict=True):
            gap = (_unit(one) - _unit(other)).square()
            total += (gap * head[:, None, None]).sum(dim=1).mean(dim=(1, 2)).to(total)
        return total

    def _features(self, images: Tensor) -> list[Tensor]:
        """The five feature maps of images in [-1, 1]."""
        shift, scale = (images.new_tensor(numbers)[:, None, None] for numbers in (_SHIFT, _SCALE))
        x = (images - shift) / scale
        found = []
        for number, (kernel, bias, padding) in enumerate(zip(self.kernels, self.biases, _PADDING, strict=True)):
            if number in (1, 2):
                x = _blurred(F.max_pool2d(x, kernel_size=3, stride=1))
            x = F.conv2d(x, kernel, bias, padding=padding)
            x = F.relu(_blurred(x) if number == 0 else x)
            found.append(x)
        return found


def st_lpips(claims: Tensor, truths: Tensor, *, network: PerceptualNetwork | None = None) -> Tensor:
    """The ST-LPIPS distance of each pair of images, (b,) float64: 0 for equal ones, below about 1 for any.

        Σ_l mean over positions of Σ_c h_lc (f_lc(x) / ‖f_l(x)‖ − f_lc(y) / ‖f_l(y)‖)²

    over five layers l of an AlexNet whose strides are replaced by blurred subsampling, so that a shift by a pixel
    changes little. Images of one channel are taken as color images with three equal channels. The trunk was trained on
    photographs and the weights h on 64×64 patches: on 28×28 digits the number ranks, and says no more.

    Args:
        claims: (b, 1 or 3, height, width) pixels scaled to [0, 1]; `Domain.to_pixels` gives them.
        truths: as `claims`.
        network: the weights; None for those of the package `stlpips_pytorch`.

    Raises:
        InputError: shapes differ, or pixels leave [0, 1]: images in [-1, 1] or normalized ones are refused, since the
            distance of the wrong range is a number like any other.
        UnsupportedError: images that the distance is not defined for, or weights that are not installed.

    Cost:
        Two forward passes (`PerceptualNetwork.distances`); the first call of a process reads 10 MB.

    Source:
        Ghildyal and Liu 2022, Shift-tolerant Perceptual Similarity Metric (ECCV): the AlexNet variant, by its
        published weights; the network is written anew here and none of the package's code is run. It is not the LPIPS
        of Zhang et al. 2018, whose trunk is not available offline: numbers of the two must not be compared.
    """
    if claims.shape != truths.shape:
        raise InputError(f"expected claims shaped like the truth, {tuple(truths.shape)}, got {tuple(claims.shape)}")
    obstacle = _shape_obstacle(tuple(claims.shape[1:]))
    if obstacle:
        raise UnsupportedError(f"ST-LPIPS is {obstacle}")
    for name, images in (("claims", claims), ("truths", truths)):
        # Written so that NaN is refused, too.
        if images.numel() and not bool(((images >= -RANGE_TOLERANCE) & (images <= 1 + RANGE_TOLERANCE)).all()):
            raise InputError(
                f"{name}: expected pixels scaled to [0, 1], got values from {float(images.min()):.4g} to "
                f"{float(images.max()):.4g}; undo range and normalization first: domain.to_pixels(inputs)"
            )
    chosen = network or installed_network()
    color = [images.detach().expand(-1, 3, -1, -1) for images in (claims, truths)]
    return chosen.distances(*color)


def st_lpips_obstacle(domain: Domain) -> str:
    """Reason why ST-LPIPS is not defined for examples of this domain, as the end of a sentence; "" where it is.

    Args:
        domain: what the examples are.

    Raises:
        InputError: the shape of an image looks like (height, width, channels).
    """
    if domain.kind is not DomainKind.IMAGE:
        return f"not defined for {domain.kind.value} data"
    check_channel_axis(domain)
    return _shape_obstacle(domain.shape)


@cache
def installed_network() -> PerceptualNetwork:
    """The network of the package `stlpips_pytorch`; its file is read, the package is never imported.

    Raises:
        UnsupportedError: where it is not installed.
    """
    found = find_spec("stlpips_pytorch")
    if found is None or found.origin is None:
        raise UnsupportedError(
            "ST-LPIPS needs the weights of the package stlpips_pytorch, which is not installed: run "
            "`pip install gradleak[metrics]`"
        )
    return PerceptualNetwork.load(Path(found.origin).parent / _FILE)


def score_perceptual(
    reconstruction: Reconstruction,
    batch: Batch,
    *,
    network: PerceptualNetwork | None = None,
    beside: Sequence[Batch] = (),
) -> Score:
    """The ST-LPIPS distance of a reconstruction from the truth: the smallest over the examples, which is the worst case.

    Claims and examples are paired as by `score_images`, by squared error. Pixels are had from the declared domain, so
    that one pair gives one value whether the model takes [0, 1], [-1, 1] or normalized images. Claimed pixels outside
    the valid range are clamped here (the note says which share): the network knows images alone. `details` holds
    `per_example`, the `median` and `blind_per_example`: the smaller distance of a gray image and of the best constant
    a channel, chosen with the truth.

    A small distance says that two images look alike to such a network, and nothing about who made the image: verdicts
    go by pixels (`score_images`) alone.

    Args:
        reconstruction: the claim, in model-input units.
        batch: the truth, with its domain declared.
        network: the weights; None for those of the package `stlpips_pytorch`.
        beside: further batches of the same data, for the note on a declared range of which images use little: what such
            images show to the network has less contrast than they have.

    Returns:
        A score "st_lpips", unit "ST-LPIPS"; without a value where nothing was claimed, or with outcome `unsupported`
        where the distance is not defined at this size or for so many channels, or its weights are not installed.

    Raises:
        InputError: the batch has no domain, its values leave the declared range, the channels stand last, or claim
            and truth differ in the shape of an example.

    Cost:
        The pairing, and four forward passes of the network.

    Source:
        As `st_lpips`.
    """
    truths, domain = pixels_of_truth(batch)
    obstacle = st_lpips_obstacle(domain)
    if obstacle:
        return _score(None, Outcome.UNSUPPORTED, note=f"ST-LPIPS is {obstacle}")
    if reconstruction.inputs is None or reconstruction.outcome.has_value is False:
        outcome = Outcome.UNSUPPORTED if reconstruction.outcome.has_value is True else reconstruction.outcome
        return _score(None, outcome, note=reconstruction.note or "the attack claims no inputs")
    claims = reconstruction.inputs.detach()
    if tuple(claims.shape[1:]) != domain.shape:
        raise InputError(
            f"reconstruction: expected (b, {', '.join(map(str, domain.shape))}) like the truth, "
            f"got {tuple(claims.shape)}"
        )
    try:
        chosen = network or installed_network()
    except UnsupportedError as missing:
        return _score(None, Outcome.UNSUPPORTED, note=str(missing))
    pixels = domain.to_pixels(claims.to(truths))
    finite = scorable(pixels)
    if not bool(finite.any()):
        return _score(None, Outcome.NOT_FINITE, note="the claim holds NaN or infinite pixels and was not scored")
    outside = (pixels[finite] < -RANGE_TOLERANCE) | (pixels[finite] > 1 + RANGE_TOLERANCE)
    share = float(outside.double().mean())
    pairs = pair(pixels, truths).paired
    rows = [truth for truth, _ in pairs]
    true = truths[rows].clamp(0, 1)
    found = pixels[[claim for _, claim in pairs]].clamp(0, 1)
    values = st_lpips(found, true, network=chosen).tolist()
    constant = true.mean(dim=(2, 3), keepdim=True).expand_as(true)
    blind = torch.minimum(*(st_lpips(guess, true, network=chosen) for guess in (constant, torch.full_like(true, 0.5))))
    details = {
        "aggregation": "worst for the client",
        "median": median(values),
        "per_example": _by_example(values, rows, batch.size),
        "blind_per_example": _by_example(blind.tolist(), rows, batch.size),
    }
    clamped = f"{share:.1%} of the claimed pixels lie outside the valid range; clamped for this score" if share else ""
    note = "; ".join(part for part in (clamped, range_note(batch, beside)) if part)
    return _score(min(values), reconstruction.outcome, n=len(values), note=note, details=details)


def _unfit(path: Path, found: str) -> str:
    return f"{path.name}: expected the weights of ST-LPIPS as stlpips_pytorch 0.0.2 ships them, got {found}"


def _shape_obstacle(shape: tuple[int, ...]) -> str:
    if len(shape) != 3:
        return f"not defined for examples of shape {shape}: it needs (channels, height, width)"
    if shape[0] not in (1, 3):
        return f"not defined for {shape[0]} channels: it takes gray (1) and color (3) images"
    if min(shape[1:]) < ST_LPIPS_SIDE:
        return f"not defined at this size: {shape[1]}x{shape[2]} pixels, it needs {ST_LPIPS_SIDE}"
    return ""


def _blurred(maps: Tensor) -> Tensor:
    """Every second entry of maps (b, c, h, w) blurred by the outer product of (1, 2, 1) / 4, borders reflected."""
    line = maps.new_tensor((0.25, 0.5, 0.25))
    kernel = (line[:, None] * line).expand(maps.shape[1], 1, 3, 3)
    return F.conv2d(F.pad(maps, (2, 2, 2, 2), mode="reflect"), kernel, stride=2, groups=maps.shape[1])


def _unit(maps: Tensor) -> Tensor:
    """Feature vectors of length 1, position by position."""
    lengths: Tensor = maps.norm(dim=1, keepdim=True)
    return maps / (lengths + _SMALL)


def _score(
    value: float | None, outcome: Outcome, *, n: int = 1, note: str = "", details: Mapping[str, Any] | None = None
) -> Score:
    return Score(
        name="st_lpips",
        value=value,
        unit="ST-LPIPS",
        leakier=Leakier.LOWER,
        evidence=Evidence.ATTACK,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )


def _by_example(values: list[float], rows: list[int], examples: int) -> list[float | None]:
    by_row = dict(zip(rows, values, strict=True))
    return [by_row.get(example) for example in range(examples)]
