"""A planted leak that must be found, and noise that must give nothing: the data of the two controls."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradleak.attacks import Attack
from gradleak.core import Batch, Domain, ImageGenerator, Objective, Release, Update
from gradleak.models import initialize_default, linear_model
from gradleak.protocols import FedSGD
from gradleak.results import InputError

CONTROL_STEPS = 12
POSITIVE_CLASSES = 10


def shortened(attack: Attack) -> Attack:
    """The attack as the controls run it: with one start of at most 12 steps, where it can be so brief."""
    return attack.brief(CONTROL_STEPS)


def planted_leak(
    domain: Domain, generator: torch.Generator, images: ImageGenerator | None = None
) -> tuple[Objective, Batch, Release]:
    """A synthetic example of the domain, released undefended through a linear layer with bias and cross entropy.

    Its gradient is (p − y)xᵀ for the weight and p − y for the bias, so the input can be read off by division: an
    attack that does not find it is broken or was set up wrongly.

    Args:
        domain: shape, range and normalization of the audited data.
        generator: draws the example (uniform over the valid range) and the weights.
        images: a generator that the adversary searches: the example is then an image of its own, of class 0 where it is
            conditional, since no such search can find anything but an image.
    """
    pixels = torch.rand((1, *domain.shape), generator=generator)
    inputs = domain.from_pixels(pixels)
    label = torch.randint(POSITIVE_CLASSES, (1,), generator=generator)
    if images is not None:
        label = torch.zeros_like(label) if images.conditional else label
        made = images.in_domain(domain)(images.draw(1, generator), labels=label if images.conditional else None)
        inputs = domain.from_pixels(domain.to_pixels(made).clamp(0.0, 1.0)).detach()
    model = linear_model(features=domain.size, classes=POSITIVE_CLASSES)
    initialize_default(model, generator=generator)
    return Objective.from_module(model), Batch(inputs, label, domain), Release(FedSGD())


def noise_update(update: Update, generator: torch.Generator) -> Update:
    """Gaussian noise with the norm of every tensor of `update`: it holds nothing of the batch.

    Raises:
        InputError: if the update is zero.
    """
    tensors = {}
    for name, tensor in update.tensors.items():
        # In float64, so that neither tiny nor huge updates lose their norm.
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        norm = noise.norm()
        scaled = noise * (tensor.double().norm() / norm) if bool(norm > 0) else noise
        tensors[name] = scaled.to(tensor.dtype)
    if not any(bool(tensor.any()) for tensor in tensors.values()):
        raise InputError("negative control: expected an update with a non-zero tensor, got zeros everywhere")
    return replace(update, tensors=tensors, provenance={"control": "noise"})
