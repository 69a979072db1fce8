"""Small generators trained on public images: a variational autoencoder, a DCGAN. Seeded, minutes on two cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from gradleak.core import Batch, ImagePrints
from gradleak.models.generators.decoders import (
    ConvDecoder,
    DCGANDiscriminator,
    DCGANGenerator,
    Encoder,
    GeneratorNetwork,
    MLPDecoder,
    encoder_for,
)
from gradleak.models.generators.trained import FORMAT, TrainedGenerator
from gradleak.models.resnet import Norm
from gradleak.results import InputError, UnsupportedError, check_count, check_flag, check_positive, check_seed, member

Progress = Callable[[int, int, str], None]

# Smaller errors than this are those of 8 bits.
_LEAST_ERROR = (1.0 / 255.0) ** 2
_LAST_STEPS = 100
# Images that are encoded at once.
_ENCODED = 500


class Decoder(StrEnum):
    """The decoder of a variational autoencoder."""

    CONV = "conv"
    MLP = "mlp"

    @property
    def network(self) -> type[ConvDecoder] | type[MLPDecoder]:
        """Its class."""
        return ConvDecoder if self is Decoder.CONV else MLPDecoder

    @property
    def usual_width(self) -> int:
        """A width that trains in minutes on two cores."""
        return 16 if self is Decoder.CONV else 400


def train_vae(
    images: Batch,
    *,
    data: str,
    license: str,
    decoder: Decoder | str = Decoder.CONV,
    latent_size: int = 64,
    width: int | None = None,
    steps: int = 3000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    mirrored: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> TrainedGenerator:
    """The decoder of a variational autoencoder trained on public images.

    Minimizes, for images x of d pixels, an encoder q(z|x) = N(μ, σ²) and z drawn from it, the mean over the batch of

        d/2 · log(mean squared error) + KL(q(z|x) ‖ N(0, I)),

    Adam, the learning rate falling to zero along a cosine. The first term is the Gaussian likelihood at its best variance,
    shared by all pixels of the batch, so that nothing weighs the two terms against each other.

    A training this short leaves latents of images that spread wider than N(0, I), and correlated. At the end the first
    layer takes up their mean and covariance, so that N(0, I) is where the images are; they stay what they were.

    Args:
        images: (n, c, s, s) with a domain; labels are not used.
        data: what the images are, for the facts and every report: name, part, rows.
        license: under which they may be used.
        decoder: "conv" or "mlp".
        latent_size: entries of a latent.
        width: channels before the last layer ("conv"; None for 16) or units of the hidden layer ("mlp"; None for 400).
        steps: of Adam.
        batch_size: images a step, drawn without replacement, in a new order every epoch.
        learning_rate: of the first step.
        mirrored: whether every image is mirrored left to right with probability 1/2; not for digits.
        seed: of weights, order, latents; the global RNG is never touched.
        progress: called after every step with step, steps and a word on the loss.

    Returns:
        The decoder; losses "loss" (a pixel), "mse" and "kl" (nats an image).

    Raises:
        InputError: for images that are no square images with a domain, or numbers out of range.
        UnsupportedError: if the training diverges.

    **Cost**: at 28x28 with the defaults, about 25 ms a step on one core.

    **Source**: Kingma and Welling 2014; the likelihood is that of Rybkin et al. 2021 (σ-VAE); a Gaussian fitted to the
    latents afterwards as in Ghosh et al. 2020 (RAE), folded into the decoder here.
    """
    chosen = member("decoder", Decoder, decoder)
    width = chosen.usual_width if width is None else width
    pixels = _pixels(images)
    course = _Course(steps=steps, batch_size=batch_size, seed=seed, mirrored=mirrored, progress=progress)
    check_positive("learning_rate", learning_rate)
    generator = torch.Generator().manual_seed(seed)
    sizes = {"size": pixels.shape[2], "channels": pixels.shape[1], "latent_size": latent_size, "width": width}
    network = chosen.network(**sizes, generator=generator).to(pixels.device)
    encoder = encoder_for(network, generator=generator).to(pixels.device)
    optimizer = torch.optim.Adam([*network.parameters(), *encoder.parameters()], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    dimensions = pixels[0].numel()
    losses: dict[str, list[float]] = {"loss": [], "mse": [], "kl": []}
    for x in course.batches(pixels, generator):
        mean, log_variance = encoder(x)
        noise = torch.randn(mean.shape, generator=generator).to(mean)
        error = (network(mean + noise * (0.5 * log_variance).exp()) - x).square().mean()
        kl = 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1).mean()
        loss = 0.5 * error.clamp(min=_LEAST_ERROR).log() + kl / dimensions
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        for name, value in (("loss", loss), ("mse", error), ("kl", kl)):
            losses[name].append(float(value.detach()))
        course.report(losses["mse"][-1], f"mean squared error {losses['mse'][-1]:.4f}, KL {losses['kl'][-1]:.1f}")
    _standardize(network, encoder, pixels)
    facts = {"method": "vae", "learning_rate": learning_rate}
    return _trained(network, images, course, losses, facts, data, license)


def train_dcgan(
    images: Batch,
    *,
    data: str,
    license: str,
    latent_size: int = 100,
    width: int = 16,
    norm: Norm | str = Norm.BATCH,
    steps: int = 3000,
    batch_size: int = 64,
    learning_rate: float = 2e-4,
    mirrored: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> TrainedGenerator:
    """The generator of a DCGAN trained on public images.

    Every step goes one step of Adam (β₁ = 0.5) with the discriminator, on −log D(x) − log(1 − D(G(z))), and one with the
    generator, on −log D(G(z)).

    Args:
        images: (n, c, s, s) with a domain; labels are not used.
        data: what the images are, for the facts and every report: name, part, rows.
        license: under which they may be used.
        latent_size: entries of a latent.
        width: channels before the generator's last layer and after the discriminator's first.
        norm: of the generator: "batch", "group" or "none".
        steps: of both.
        batch_size: real images a step, drawn without replacement, in a new order every epoch, and as many generated.
        learning_rate: of both.
        mirrored: whether every image is mirrored left to right with probability 1/2; not for digits.
        seed: of weights, order, latents; the global RNG is never touched.
        progress: called after every step with step, steps and a word on the losses.

    Returns:
        The generator; losses "discriminator" and "generator" (nats).

    Raises:
        InputError: for images that are no square images with a domain, or numbers out of range.
        UnsupportedError: if the training diverges.

    **Cost**: at 28x28 with the defaults, about 60 ms a step on one core.

    **Source**: Radford et al. 2015 (DCGAN); Goodfellow et al. 2014 for the losses.
    """
    pixels = 2.0 * _pixels(images) - 1.0
    course = _Course(steps=steps, batch_size=batch_size, seed=seed, mirrored=mirrored, progress=progress)
    check_positive("learning_rate", learning_rate)
    generator = torch.Generator().manual_seed(seed)
    sizes = {"size": pixels.shape[2], "channels": pixels.shape[1], "width": width}
    network = DCGANGenerator(**sizes, latent_size=latent_size, norm=norm, generator=generator).to(pixels.device)
    critic = DCGANDiscriminator(**sizes, generator=generator).to(pixels.device)
    rate = {"lr": learning_rate, "betas": (0.5, 0.999)}
    optimizers = [torch.optim.Adam(part.parameters(), **rate) for part in (network, critic)]  # type: ignore[arg-type]
    losses: dict[str, list[float]] = {"discriminator": [], "generator": []}
    for x in course.batches(pixels, generator):
        made = network(torch.randn(len(x), latent_size, generator=generator).to(x))
        fooled = critic(made.detach())
        apart = softplus(-critic(x)).mean() + softplus(fooled).mean()
        _step(optimizers[1], apart)
        logits = critic(made)
        convincing = binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        _step(optimizers[0], convincing)
        losses["discriminator"].append(float(apart.detach()))
        losses["generator"].append(float(convincing.detach()))
        course.report(
            losses["discriminator"][-1] + losses["generator"][-1],
            f"discriminator {losses['discriminator'][-1]:.2f}, generator {losses['generator'][-1]:.2f}",
        )
    facts = {"method": "dcgan", "learning_rate": learning_rate}
    return _trained(network, images, course, losses, facts, data, license)


@dataclass(kw_only=True)
class _Course:
    """Course of a training: the images of each step, and its progress."""

    steps: int
    batch_size: int
    seed: int
    mirrored: bool
    progress: Progress | None
    done: int = 0

    def __post_init__(self) -> None:
        check_count("steps", self.steps)
        check_count("batch_size", self.batch_size, least=2)
        check_seed("seed", self.seed)
        check_flag("mirrored", self.mirrored)

    def batches(self, pixels: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """A batch for every step."""
        count = pixels.shape[0]
        if count < self.batch_size:
            raise InputError(f"batch_size: expected at most {count}, the number of images, got {self.batch_size}")
        order, place = torch.randperm(count, generator=generator), 0
        for _ in range(self.steps):
            if place + self.batch_size > count:
                order, place = torch.randperm(count, generator=generator), 0
            x = pixels[order[place : place + self.batch_size].to(pixels.device)]
            if self.mirrored:
                turned = torch.rand(len(x), generator=generator).to(x) < 0.5
                x = torch.where(turned[:, None, None, None], x.flip(3), x)
            place += self.batch_size
            yield x

    def report(self, loss: float, words: str) -> None:
        """Count the step.

        Raises:
            UnsupportedError: if the loss is not finite.
        """
        self.done += 1
        if not loss - loss == 0.0:
            raise UnsupportedError(
                f"the training diverged at step {self.done} of {self.steps}: its loss is {loss}; lower learning_rate"
            )
        if self.progress is not None:
            self.progress(self.done, self.steps, words)


def _standardize(network: ConvDecoder | MLPDecoder, encoder: Encoder, pixels: Tensor) -> None:
    """Change the coordinates of the latents: those that the encoder gives for the images get mean 0 and covariance I."""
    with torch.no_grad():
        parts = [encoder(part) for part in pixels.split(_ENCODED)]
        means, variances = (torch.cat([part[place] for part in parts]).double() for place in (0, 1))
        center = means.mean(dim=0)
        covariance = (means - center).T @ (means - center) / len(means) + variances.exp().mean(dim=0).diag()
        first = network.layers[0]
        assert isinstance(first, nn.Linear)
        weight, bias = first.weight.double(), first.bias.double()
        first.bias.copy_(bias + weight @ center)
        first.weight.copy_(weight @ torch.linalg.cholesky(covariance))


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def _pixels(images: Batch) -> Tensor:
    """Images as pixels in [0, 1]."""
    if not isinstance(images, Batch) or images.domain is None:
        raise InputError("images: expected a Batch with a domain, which says what black and white are")
    shape = tuple(images.inputs.shape)
    if len(shape) != 4 or shape[1] not in (1, 3) or shape[2] != shape[3]:
        raise InputError(f"images: expected square images (n, 1 or 3, size, size), got {shape}")
    pixels = images.domain.to_pixels(images.inputs.detach())
    low, high = float(pixels.min()), float(pixels.max())
    if low < -1e-3 or high > 1.0 + 1e-3:
        raise InputError(f"images: expected pixels in the range of the domain, got {low:.3g} to {high:.3g} of [0, 1]")
    return pixels.clamp(0.0, 1.0)


def _trained(
    network: GeneratorNetwork,
    images: Batch,
    course: _Course,
    losses: dict[str, list[float]],
    facts: dict[str, Any],
    data: str,
    license_: str,
) -> TrainedGenerator:
    """The network in eval mode with its facts."""
    for name, text in (("data", data), ("license", license_)):
        if not text.strip():
            raise InputError(f"{name}: expected a text, got nothing; it is printed wherever the generator is used")
    network.eval()
    network.requires_grad_(True)
    method = {"vae": "VAE", "dcgan": "DCGAN"}[facts["method"]]
    return TrainedGenerator(
        network=network,
        facts={
            "format": FORMAT,
            "source": f"{method} trained on {images.size:,} images for {course.steps:,} steps: {data}; {license_}",
            "network": {"use": type(network).__name__, **network.settings},
            "data": data,
            "license": license_,
            "examples": images.size,
            "steps": course.steps,
            "batch_size": course.batch_size,
            "mirrored": course.mirrored,
            "seed": course.seed,
            **facts,
            "last_losses": {name: fmean(values[-_LAST_STEPS:]) for name, values in losses.items()},
            "torch": torch.__version__,
        },
        losses=losses,
        training_images=ImagePrints.of(images),
    )
