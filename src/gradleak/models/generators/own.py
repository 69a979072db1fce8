"""A generator of one's own: any module, with weights by path."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from gradleak.core import Domain, ImageGenerator, OutputRange
from gradleak.core.module_copy import first_line
from gradleak.models.generators.published import read_tensors
from gradleak.models.initialize import check_sizes
from gradleak.results import InputError


def own_generator(
    *,
    module: nn.Module,
    latent_shape: tuple[int, ...],
    channels: int,
    height: int,
    width: int,
    source: str,
    output: OutputRange = OutputRange.UNIT,
    conditional: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> ImageGenerator:
    """The generator of a module of one's own, a BigGAN or StyleGAN2 for instance.

    In a plan file the module is imported: `module = { use = "my_package.my_module:Generator", width = 64 }`.

    Args:
        module: `module(latents)`, or `module(latents, labels)` if conditional, to images (b, channels, height, width).
            It must draw nothing else. The weights are loaded into it.
        latent_shape: shape of one latent, N(0, I).
        channels: of the images.
        height: of the images in pixels.
        width: of the images in pixels.
        source: what it was trained on; printed in every report.
        output: what the module gives: "unit" for [0, 1], "symmetric" for [-1, 1].
        conditional: whether it takes class labels, int64 of shape (b,), as its second argument.
        weights: safetensors file with its state dict, or None for the weights that it has. No pickle is read, since
            pickles can run code: turn a checkpoint that you trust into safetensors once.

    Raises:
        InputError: The module is not a `torch.nn.Module`, the file does not fit it, or its images do not fit what was stated.
    """
    check_sizes({"channels": channels, "height": height, "width": width})
    if not isinstance(module, nn.Module):
        raise InputError(
            f"module: expected a torch.nn.Module, got {type(module).__name__}; in a plan file write "
            "module = { use = 'package.module:Class' } with its arguments"
        )
    if weights is not None:
        file = Path(weights)
        try:
            module.load_state_dict(read_tensors(file))
        except RuntimeError as error:
            raise InputError(
                f"{file} does not fit {type(module).__name__}: {' '.join(str(error).split()) or first_line(error)}"
            ) from error
    return ImageGenerator(
        module=module,
        latent_shape=latent_shape,
        domain=Domain.image(channels=channels, height=height, width=width),
        output=output,
        conditional=conditional,
        source=source,
    )
