"""Decoders whose weights others have published; the files come by path."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gradleak.core import Domain, ImageGenerator
from gradleak.models.generators.decoders import MLPDecoder
from gradleak.models.generators.network import halvings
from gradleak.results import InputError

_WIDTH = 64
_GROUPS = 4
_LATENT_CHANNELS = 32
_SHRINK = 8


def mnist_vae_decoder(path: str | os.PathLike[str]) -> ImageGenerator:
    """28x28 digits in [0, 1] from 20 numbers: the decoder of the MNIST VAE in BoTorch's tutorials.

    Two linear layers, 20-400-784, with ReLU between them and a sigmoid at the end.

    Args:
        path: safetensors file of the VAE, with fc3 and fc4; other tensors (the encoder's) are left alone.

    Raises:
        InputError: The file is missing or holds other tensors.

    Source:
        Balandat et al. 2020 (BoTorch), `tutorials/pretrained_models` (MIT); Kingma and Welling 2014 (VAE).
    """
    tensors = read_tensors(Path(path))
    wanted = {"fc3.weight": (400, 20), "fc3.bias": (400,), "fc4.weight": (784, 400), "fc4.bias": (784,)}
    found = {name: tuple(tensors[name].shape) for name in wanted if name in tensors}
    if found != wanted:
        raise InputError(
            f"{Path(path)}: expected the tensors {wanted} of the MNIST VAE, got {found or sorted(tensors)[:4]}"
        )
    decoder = MLPDecoder(size=28, channels=1, latent_size=20, width=400)
    places = {"layers.0": "fc3", "layers.2": "fc4"}
    state = {f"{to}.{kind}": tensors[f"{of}.{kind}"] for to, of in places.items() for kind in ("weight", "bias")}
    decoder.load_state_dict(state)
    return decoder.image_generator(source="VAE of BoTorch's tutorials, trained on the MNIST training set; MIT")


def taef2_decoder(path: str | os.PathLike[str], *, size: int = 32) -> ImageGenerator:
    """Natural RGB images, about in [0, 1], from a map (32, size/8, size/8): the decoder of TAEF2, a tiny autoencoder.

    At 32x32 a latent has 512 numbers for 3,072 pixels, so that it says much less about what an image looks like than a
    GAN does; what it leaves out is detail (24 dB on CIFAR-10 images after encoding). Latents of CIFAR-10 images have mean 0
    to 1 and standard deviation 0.6 to 1 a channel, so that N(0, I) is a fair prior.

    Args:
        path: safetensors file of the decoder.
        size: height and width of the images, divisible by 8.

    Raises:
        InputError: The file is missing or holds other tensors, or the size does not fit.

    Source:
        Ollin Boer Bohan, `madebyollin/taesd` (MIT). The structure is rebuilt from names and shapes of the
        tensors; 4 groups in its normalizations give the smallest error of the round trip through its encoder.
    """
    halvings(size, least=1, times=3)
    tensors = read_tensors(Path(path))
    with torch.device("meta"):
        module = taef2_layers()
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if found != wanted:
        odd = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
        raise InputError(
            f"{Path(path)}: expected the {len(wanted)} tensors of the TAEF2 decoder, got {len(found)}; {odd[0]} is "
            f"{found.get(odd[0], 'missing')} in place of {wanted.get(odd[0], 'nothing')}"
        )
    module.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    return ImageGenerator(
        module=module,
        latent_shape=(_LATENT_CHANNELS, size // _SHRINK, size // _SHRINK),
        domain=Domain.image(channels=3, height=size, width=size),
        source="TAEF2, a tiny autoencoder of natural images (madebyollin/taesd); MIT",
    )


class SoftClamp(nn.Module):
    """3 tanh(x / 3): latents far from what the decoder was trained on do not run away."""

    def forward(self, latents: Tensor) -> Tensor:
        """The latents, within (-3, 3)."""
        return 3.0 * torch.tanh(latents / 3.0)


class TAEBlock(nn.Module):
    """Three 3x3 convolutions beside the identity; with `pooled` a normalized 1x1 bottleneck is added before.

    Args:
        pooled: Whether the block has the normalized part.
    """

    def __init__(self, *, pooled: bool) -> None:
        super().__init__()
        self.pool: nn.Module | None = None
        if pooled:
            wide = 4 * _WIDTH
            self.pool = nn.Sequential(
                nn.Conv2d(_WIDTH, wide, 1, bias=False),
                nn.GroupNorm(_GROUPS, wide),
                nn.ReLU(),
                nn.Conv2d(wide, _WIDTH, 1, bias=False),
            )
        self.conv = nn.Sequential(_conv(), nn.ReLU(), _conv(), nn.ReLU(), _conv())

    def forward(self, maps: Tensor) -> Tensor:
        """The block's result, of the same shape."""
        if self.pool is not None:
            maps = maps + self.pool(maps)
        return torch.relu(self.conv(maps) + maps)


def taef2_layers() -> nn.Sequential:
    """The layers of the TAEF2 decoder, at the places that its file names."""
    stack: list[nn.Module] = [SoftClamp(), _conv(_LATENT_CHANNELS), nn.ReLU()]
    for blocks, pooled in ((3, True), (3, False), (3, False)):
        stack += [TAEBlock(pooled=pooled) for _ in range(blocks)]
        stack += [nn.Upsample(scale_factor=2), _conv(bias=False)]
    return nn.Sequential(*stack, TAEBlock(pooled=False), _conv(outputs=3))


def _conv(inputs: int = _WIDTH, outputs: int = _WIDTH, *, bias: bool = True) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias)


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; no other format is read, since pickles can run code.

    Args:
        file: where it lies.

    Raises:
        InputError: The file is missing, has another suffix, or is not a safetensors file.
    """
    if file.suffix != ".safetensors" or not file.is_file():
        raise InputError(
            f"{file}: expected an existing .safetensors file; save a state dict with safetensors.torch.save_file"
        )
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file}: not a safetensors file: {' '.join(str(error).split())}") from error
