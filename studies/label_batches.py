"""Batches with the unbalanced labels of the ALR paper, from few images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gradleak.core import Batch, Domain
from gradleak.results import InputError


def unbalanced_labels(size: int, classes: Tensor, generator: torch.Generator) -> Tensor:
    """Labels (size,): half of one class, a quarter of another, the rest different classes, one example each.

    Args:
        size: the number of examples.
        classes: the classes to choose from, different.
        generator: of the choice.

    Raises:
        InputError: if there are fewer classes than that takes.
    """
    first, second = size // 2, size // 4
    rest = size - first - second
    if rest + 2 > len(classes):
        raise InputError(
            f"label_restoration: a batch of {size} takes {rest + 2} classes, and the images have {len(classes)}"
        )
    order = classes[torch.randperm(len(classes), generator=generator)]
    return torch.cat([order[:1].repeat(first), order[1:2].repeat(second), order[2 : 2 + rest]])


def different_labels(pool: Batch, *, batches: int, size: int, asker: str) -> list[Batch]:
    """Batches of images of different classes, in the order of the pool, no image twice.

    Args:
        pool: images with their labels.
        batches: how many.
        size: images in each.
        asker: who asks, for the message.

    Raises:
        InputError: if the pool does not hold them.
    """
    places: list[dict[int, int]] = [{} for _ in range(batches)]
    for index, label in enumerate(pool.targets.tolist()):
        free = (held for held in places if len(held) < size and label not in held)
        held = next(free, None)
        if held is not None:
            held[label] = index
    if any(len(held) < size for held in places):
        raise InputError(
            f"{asker}: expected {batches} batches of {size} images of different classes, and {pool.size} images do not hold "
            "them; raise pool, or lower the size"
        )
    chosen = [torch.tensor(list(held.values())) for held in places]
    return [pool.rows(rows) for rows in chosen]


def places_with(targets: Tensor, labels: Tensor, *, asker: str) -> Tensor:
    """For each label a place in `targets` that has it, each place once.

    Raises:
        InputError: if there are too few of one class.
    """
    places = {int(label): (targets == label).nonzero().flatten().tolist() for label in labels.unique()}
    wanted = {label: int((labels == label).sum()) for label in places}
    short = [label for label, count in wanted.items() if count > len(places[label])]
    if short:
        raise InputError(f"{asker}: too few images of class {short[0]} for {wanted[short[0]]} examples")
    return torch.tensor([places[label].pop(0) for label in labels.tolist()])


def draw_with_labels(pool: Batch, labels: Tensor, generator: torch.Generator, *, domain: Domain) -> Batch:
    """A batch with these labels, images of each class drawn from the pool with replacement.

    Every image is cropped at random from itself with a border of 4 black pixels and mirrored at random, so that the
    few images of a class differ when they are drawn again.

    Args:
        pool: images in pixels, with their labels.
        labels: what to draw (b,).
        generator: of the draw.
        domain: normalization for the model.
    """
    height, width = pool.inputs.shape[2:]
    images = []
    for label in labels.tolist():
        places = (pool.targets == label).nonzero().flatten()
        place = places[torch.randint(len(places), (1,), generator=generator)]
        padded = F.pad(pool.inputs[place], (4, 4, 4, 4))
        top, left = torch.randint(9, (2,), generator=generator).tolist()
        image = padded[:, :, top : top + height, left : left + width]
        images.append(image.flip(3) if bool(torch.rand(1, generator=generator) < 0.5) else image)
    return Batch(domain.from_pixels(torch.cat(images)), labels, domain)
