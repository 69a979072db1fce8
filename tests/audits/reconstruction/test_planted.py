"""What the planted leak plants: an image of the generator, where the adversary searches one."""

from __future__ import annotations

import torch
from tests.auditing.generator_models import TinyConditional, made_elsewhere

from gradleak.audits.reconstruction.controls import planted_leak
from gradleak.core import Domain
from gradleak.models.generators import own_generator


def test_the_positive_control_plants_an_image_of_the_generator() -> None:
    domain = Domain.image(channels=1, height=8, width=8, mean=(0.3,), std=(0.5,))
    made = made_elsewhere()
    _, batch, _ = planted_leak(domain, torch.Generator().manual_seed(1), made)
    pixels = domain.to_pixels(batch.inputs)
    # Two numbers make it: the best of the generator's images is this one.
    latents = torch.zeros(1, 2, requires_grad=True)
    optimizer = torch.optim.Adam([latents], lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        error = (made(latents) - pixels).square().mean()
        error.backward()
        optimizer.step()
    assert float(error.detach()) < 1e-5
    _, uniform, _ = planted_leak(domain, torch.Generator().manual_seed(1))
    assert float((domain.to_pixels(uniform.inputs) - pixels).abs().max()) > 0.2


def test_the_control_of_a_conditional_generator_is_of_class_zero() -> None:
    made = own_generator(
        module=TinyConditional(), latent_shape=(3,), channels=1, height=8, width=8, output="symmetric",
        conditional=True, source="never trained",
    )  # fmt: skip
    _, batch, _ = planted_leak(made.domain, torch.Generator().manual_seed(1), made)
    assert batch.targets.tolist() == [0]
    assert 0.0 <= float(batch.inputs.min()) <= float(batch.inputs.max()) <= 1.0
