"""A generator of images as a pure function of latents and weights: what the adversary searches in place of pixels."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.core.batch import Batch
from gradleak.core.describe import describe
from gradleak.core.domain import Domain
from gradleak.core.image_prints import ImagePrints
from gradleak.core.module_copy import Attributes, cast_constants, first_line, private_copy
from gradleak.core.randomness import watch_draws
from gradleak.results import InputError, check_flags, member

# How many random latents are drawn once to look at what a module gives, and their seed.
_LOOKED_AT = 4
_SEED = 0
# Networks that are not squashed (StyleGAN2, autoencoders) leave their range a little: that much of the values, or by
# that much of the range, speaks of another range.
_SHARE_OUTSIDE = 0.25
_FAR_OUTSIDE = 0.5
# Examples that a refusal names.
_NAMED = 5
# By more than that share of the range an image may not change when it is made alone.
_APART = 0.02
# What a module raises on latents that it cannot take.
_REFUSALS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError, ArithmeticError)


class OutputRange(StrEnum):
    """Values that a generator's module gives for black and for white."""

    UNIT = "unit"
    SYMMETRIC = "symmetric"

    @property
    def bounds(self) -> tuple[float, float]:
        """Black and white: (0, 1) or (-1, 1)."""
        return (0.0, 1.0) if self is OutputRange.UNIT else (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageGenerator:
    """Images in the domain from latents and weights, G(z; w): a prior that the adversary brings along.

    The module is copied and run in eval mode; the one that was passed stays as it is. An image is a pure function of
    latents, labels and weights, fit for `torch.func` (`grad`, `vmap` over latents and over weights): what a forward
    pass writes on the module or into its buffers is put back. Four images of latents from N(0, I) of a fixed seed are
    made once, to hold shape and range against what was stated.

    What leaves the range of the module's output stays outside of the valid range of the domain; nothing is clamped,
    since that would stop the gradient.

    Attributes:
        module: `module(latents)`, or `module(latents, labels)` if conditional: (b, *latent_shape) to
            (b, *domain.shape).
        latent_shape: shape of one latent; a prior of N(0, I) is taken for it.
        domain: shape, range and normalization of an example.
        output: what the module gives: [0, 1] ("unit") or [-1, 1] ("symmetric") from black to white.
        conditional: whether the module takes class labels, int64 of shape (b,), as its second argument.
        source: where the generator comes from and what it was trained on, for card and report: it is public knowledge
            only if nothing of the client's data went into it.
        training_images: fingerprints of the images that trained it; none in it for a network that was never trained, None
            where they are not known. A threat model refuses to disclose the generator if an audited example is among them.

    Raises:
        InputError: if the source is empty, the module refuses its latents, gives images of another shape or range or
            that are not finite or depend on the rest of the batch, draws something beside its latents, or returns an
            integer image.
        UnsupportedError: if the module cannot be copied.

    Cost: one copy of the module in memory, five images.

    Source: the generator G of Fang et al. 2024 (IGIMS), methodology; they use StyleGAN2 and BigGAN.

    Examples:
        >>> module = nn.Sequential(nn.Linear(2, 4), nn.Sigmoid(), nn.Unflatten(1, (1, 2, 2)))
        >>> domain = Domain.image(channels=1, height=2, width=2)
        >>> generator = ImageGenerator(module=module, latent_shape=(2,), domain=domain, source="never trained")
        >>> tuple(generator(generator.draw(3, torch.Generator().manual_seed(0))).shape)
        (3, 1, 2, 2)
    """

    module: nn.Module = field(repr=False)
    latent_shape: tuple[int, ...]
    domain: Domain
    output: OutputRange = OutputRange.UNIT
    conditional: bool = False
    source: str
    training_images: ImagePrints | None = field(default=None, repr=False, metadata={"described": False})
    _attributes: Attributes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Copy the module, check the fields, and look at four images."""
        if not isinstance(self.module, nn.Module):
            raise InputError(f"ImageGenerator.module: expected a torch.nn.Module, got {type(self.module).__name__}")
        shape = tuple(self.latent_shape) if isinstance(self.latent_shape, Sequence) else ()
        if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
            raise InputError(
                f"ImageGenerator.latent_shape: expected positive sizes, for instance (100,); got {self.latent_shape!r}"
            )
        check_flags(self, "conditional")
        hint = "; 'unit' is [0, 1], as a sigmoid gives, 'symmetric' is [-1, 1], as tanh gives"
        object.__setattr__(self, "output", member("ImageGenerator.output", OutputRange, self.output, hint=hint))
        if not isinstance(self.domain, Domain):
            raise InputError(f"ImageGenerator.domain: expected a Domain, got {type(self.domain).__name__}")
        if not isinstance(self.source, str) or not self.source.strip():
            raise InputError(
                "ImageGenerator.source: expected what the generator was trained on, got nothing; reports print it, so "
                "that a reader can tell whether private data went into it"
            )
        if not isinstance(self.training_images, ImagePrints | None):
            raise InputError(
                "ImageGenerator.training_images: expected ImagePrints, for instance ImagePrints.of(batch), got "
                f"{type(self.training_images).__name__}"
            )
        private, _, _ = private_copy(self.module, "generator")
        private.requires_grad_(False)
        private.eval()
        object.__setattr__(self, "module", private)
        object.__setattr__(self, "latent_shape", shape)
        object.__setattr__(self, "_attributes", Attributes(private))
        self._look()

    def __call__(
        self, latents: Tensor, *, labels: Tensor | None = None, weights: Mapping[str, Tensor] | None = None
    ) -> Tensor:
        """Images (b, *domain.shape) as model inputs, the normalization of the domain applied.

        Args:
            latents: (b, *latent_shape).
            labels: classes (b,), int64; needed by a conditional generator, refused by others.
            weights: parameters in place of `weights`, all of them by name; None for its own.

        Raises:
            InputError: for latents, labels or weights that do not fit.
        """
        if tuple(latents.shape[1:]) != self.latent_shape:
            raise InputError(
                f"latents: expected (b, {', '.join(map(str, self.latent_shape))}), got {tuple(latents.shape)}; pass one "
                "row per image"
            )
        self._check_labels(latents, labels)
        own = self.weights
        if weights is not None and weights.keys() != own.keys():
            odd = sorted(own.keys() ^ weights.keys())
            raise InputError(
                f"weights: expected all {len(own)} parameters of the generator by name, got {len(weights)}; "
                f"{', '.join(odd[:3])} stand in one of the two only"
            )
        return self._in_domain(self._run(latents, labels, own if weights is None else weights))

    @property
    def weights(self) -> dict[str, Tensor]:
        """The parameters by name, detached, in `named_parameters` order; a tied weight appears once."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    @property
    def latent_size(self) -> int:
        """The number of entries of one latent."""
        return int(torch.Size(self.latent_shape).numel())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its first floating point parameter or buffer; float32 if there is none."""
        return self._like().dtype

    @property
    def device(self) -> torch.device:
        """The device of its first floating point parameter or buffer; the CPU if there is none."""
        return self._like().device

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`count` latents from N(0, I): (count, *latent_shape), of its dtype, on its device.

        Args:
            count: how many.
            generator: what they are drawn from, on the generator's own device.
        """
        like = self._like()
        drawn = torch.randn(count, *self.latent_shape, generator=generator, device=generator.device, dtype=like.dtype)
        return drawn.to(like.device)

    def with_weights(self, weights: Mapping[str, Tensor]) -> ImageGenerator:
        """The same generator with other parameters; its images are not looked at again.

        Args:
            weights: all parameters by name, of the shapes of its own.

        Raises:
            InputError: if a name is missing or too many, or a shape differs.
        """
        own = self.weights
        found, wanted = ({k: tuple(t.shape) for k, t in tensors.items()} for tensors in (weights, own))
        if found != wanted:
            odd = [name for name in (*wanted, *found) if wanted.get(name) != found.get(name)]
            raise InputError(
                f"weights: expected the names and shapes of the generator's own, got {odd[0]}: "
                f"{found.get(odd[0], 'nothing')} in place of {wanted.get(odd[0], 'nothing')}"
            )
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(weights[name])
        return self._but(module=module)

    def to(self, target: torch.dtype | torch.device) -> ImageGenerator:
        """The same generator in another floating point dtype, or on another device."""
        module = copy.deepcopy(self.module).to(target)
        if isinstance(target, torch.dtype):
            module = cast_constants(module, target)
        return self._but(module=module)

    def in_domain(self, domain: Domain) -> ImageGenerator:
        """The same images in a domain of another normalization or range.

        Raises:
            InputError: if the shape of an example differs.
        """
        if domain == self.domain:
            return self
        if domain.shape != self.domain.shape:
            raise InputError(
                f"ImageGenerator: expected a generator of examples of shape {domain.shape}, got one of shape "
                f"{self.domain.shape}; bring a generator of this size, or put a layer that resizes behind it"
            )
        return self._but(domain=domain)

    def refuse_seen(self, batch: Batch) -> None:
        """Refuse a batch with an image that trained the generator: the prior would hand the truth to the attack.

        Images are compared by their fingerprints, as they are and mirrored; nothing is known of a generator without any.

        Args:
            batch: what is audited.

        Raises:
            InputError: with the number of such examples, and which they are.
        """
        seen = self.training_images.among(batch) if self.training_images else []
        if seen:
            which = ", ".join(map(str, seen[:_NAMED])) + (", ..." if len(seen) > _NAMED else "")
            which = f"example{'' if len(seen) == 1 else 's'} {which}"
            raise InputError(
                f"generator: expected one that was not trained on the audited examples, got one whose "
                f"{len(self.training_images or ()):,} training images hold {len(seen)} of the {batch.size} ({which} of "
                "the batch); what an attack finds behind it would be no leak of the update: audit other rows (`first` and `last` "
                "of data sets of images keep ranges apart), or train a generator without them"
            )

    def describe(self) -> dict[str, Any]:
        """The facts on the generator for a record, without values."""
        facts: dict[str, Any] = describe(self)
        trained_on = None if self.training_images is None else len(self.training_images)
        weights = sum(tensor.numel() for tensor in self.weights.values())
        return facts | {"training_images": trained_on, "weights": weights}

    def _but(self, **changes: Any) -> ImageGenerator:
        """A copy with some fields changed; the module is taken as it is, and not looked at."""
        made = copy.copy(self)
        for name, value in changes.items():
            object.__setattr__(made, name, value)
        object.__setattr__(made, "_attributes", Attributes(made.module))
        return made

    def _like(self) -> Tensor:
        tensors = (*self.module.parameters(), *self.module.buffers())
        return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.zeros(()))

    def _run(self, latents: Tensor, labels: Tensor | None, weights: Mapping[str, Tensor]) -> Any:
        """Output of the module; buffers and attributes are as before afterwards."""
        state = {**weights, **{name: buffer.clone() for name, buffer in self.module.named_buffers()}}
        arguments = (latents.clone(),) if labels is None else (latents.clone(), labels.clone())
        with self._attributes.kept():
            return torch.func.functional_call(self.module, state, arguments, tie_weights=True)

    def _in_domain(self, images: Tensor) -> Tensor:
        low, high = self.output.bounds
        return self.domain.from_pixels((images - low) / (high - low))

    def _check_labels(self, latents: Tensor, labels: Tensor | None) -> None:
        if self.conditional and labels is None:
            raise InputError(
                "labels: expected one class per image, since the generator is conditional, got none; disclose the "
                "labels or use an attack that finds them"
            )
        if not self.conditional and labels is not None:
            raise InputError(
                "labels: expected none, since the generator is not conditional; leave them out, or state "
                "conditional=True if its module takes labels as its second argument"
            )
        if labels is not None and (tuple(labels.shape) != tuple(latents.shape[:1]) or labels.dtype != torch.int64):
            raise InputError(
                f"labels: expected {latents.shape[0]} classes as int64 of shape ({latents.shape[0]},), got "
                f"{labels.dtype} of shape {tuple(labels.shape)}"
            )

    def _look(self) -> None:
        """Hold four images against what was stated."""
        latents = self.draw(_LOOKED_AT, torch.Generator().manual_seed(_SEED))
        labels = torch.zeros(_LOOKED_AT, dtype=torch.int64, device=latents.device) if self.conditional else None
        try:
            with torch.no_grad(), watch_draws(self.device) as drawn:
                images = self._run(latents, labels, self.weights)
        except _REFUSALS as error:
            raise InputError(
                f"ImageGenerator: expected a module that takes latents of shape {tuple(latents.shape)}"
                f"{' and labels' if self.conditional else ''}, got {type(error).__name__}: {first_line(error)}; check "
                "latent_shape and conditional"
            ) from error
        if drawn[0]:
            raise InputError(
                "ImageGenerator: expected a module that draws nothing beside its latents, got one that draws random "
                "numbers, so that the same latent gives another image every time; fix its noise (StyleGAN2: "
                "noise_mode='const')"
            )
        expected = (_LOOKED_AT, *self.domain.shape)
        if not isinstance(images, Tensor) or tuple(images.shape) != expected or not images.is_floating_point():
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
            raise InputError(
                f"ImageGenerator: expected floating point images of shape {expected} from the domain, got {got}; state "
                "the domain of what the module gives, or put a layer that resizes or selects behind it"
            )
        self._check_range(images)
        self._check_alone(images, latents[:1], labels if labels is None else labels[:1])

    def _check_alone(self, images: Tensor, latents: Tensor, labels: Tensor | None) -> None:
        """Refuse images that depend on what else is in their batch."""
        try:
            with torch.no_grad():
                alone = self._run(latents, labels, self.weights)
        except _REFUSALS as error:
            alone, why = None, f"{type(error).__name__}: {first_line(error)}"
        else:
            why = "another image where it stands alone"
        # Wider than what kernels of another batch size round, in half precision too.
        low, high = self.output.bounds
        if alone is None or not bool(((alone - images[:1]).abs() <= _APART * (high - low)).all()):
            raise InputError(
                f"ImageGenerator: expected an image that depends on its own latent alone, got {why}; BatchNorm layers "
                "need running statistics (track_running_stats=True)"
            )

    def _check_range(self, images: Tensor) -> None:
        if not bool(torch.isfinite(images).all()):
            raise InputError(
                "ImageGenerator: expected finite images, got NaN or infinity; check the weights of the module"
            )
        low, high = self.output.bounds
        least, most = float(images.min()), float(images.max())
        beyond = max(low - least, most - high) > _FAR_OUTSIDE * (high - low)
        many = float(((images < low) | (images > high)).double().mean()) > _SHARE_OUTSIDE
        # A module that gives [0, 1] would come out as images without a dark half.
        other = self.output is OutputRange.SYMMETRIC and least >= 0.0 and most <= 1.0
        if beyond or many or other:
            raise InputError(
                f"ImageGenerator.output: expected images in [{low:g}, {high:g}] ('{self.output.value}'), got values "
                f"from {least:.3g} to {most:.3g}; state 'unit' for a module that gives [0, 1] or 'symmetric' for "
                "[-1, 1], or put a layer that scales behind it"
            )
