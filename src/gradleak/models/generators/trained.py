"""Generators with weights: published ones, and those that train_generator wrote."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from gradleak.core import Domain, ImageGenerator, ImagePrints
from gradleak.models.generators.decoders import ConvDecoder, DCGANGenerator, GeneratorNetwork, MLPDecoder, halvings
from gradleak.results import InputError
from gradleak.results.files import decoded, expect_file, make_folder, write_file

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


FORMAT = 1
_NETWORKS: Mapping[str, type[GeneratorNetwork]] = {
    kind.__name__: kind for kind in (ConvDecoder, DCGANGenerator, MLPDecoder)
}
_PRINTS = "training_images"
_FACTS = ("format", "network", "source", "sha256")


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedGenerator:
    """A generator after its training.

    Attributes:
        network: with its weights, in eval mode.
        facts: what it is and how it was trained, JSON-ready: method, network, data, license, examples, steps, seed.
        losses: by name, the value of every step; what the names stand for says the function that trained it.
        training_images: fingerprints of the images, so that an audit of one of them is refused; they are written into the
            file of the weights. None where they are not known.
    """

    network: GeneratorNetwork = field(repr=False)
    facts: Mapping[str, Any]
    losses: Mapping[str, Sequence[float]] = field(repr=False)
    training_images: ImagePrints | None = field(default=None, repr=False)

    @property
    def source(self) -> str:
        """Training data, in one line for card and report."""
        return str(self.facts["source"])

    @property
    def generator(self) -> ImageGenerator:
        """Generator that an adversary brings along, for pixels in [0, 1] that are not normalized."""
        return self.network.image_generator(source=self.source, training_images=self.training_images)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the weights to `path` and the facts beside them, with the suffix .json.

        Args:
            path: of a .safetensors file; its folder is made.

        Returns:
            The file of the facts.

        Raises:
            InputError: for another suffix.
        """
        file = Path(path)
        if file.suffix != ".safetensors":
            raise InputError(f"{file}: expected a file name that ends in .safetensors")
        make_folder(file.parent)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.network.state_dict().items()}
        # In the header, which other readers of the weights pass over, and which the checksum covers.
        prints = self.training_images
        write_file(file, save(tensors, metadata=None if prints is None else {_PRINTS: prints.text}))
        facts = {**self.facts, "sha256": _sum(file)}
        return write_file(file.with_suffix(".json"), json.dumps(facts, indent=2, allow_nan=False) + "\n")


def trained_generator(path: str | os.PathLike[str]) -> ImageGenerator:
    """The generator that `train_vae`, `train_dcgan` or `gradleak train-generator` left in a file.

    Args:
        path: the .safetensors file; the facts are read from the .json beside it.

    Raises:
        InputError: a file is missing, the facts are of another file or name no network of this package.
    """
    file = Path(path)
    if file.suffix != ".safetensors" or not file.is_file():
        raise InputError(
            f"{file}: expected the .safetensors file that `gradleak train-generator` or TrainedGenerator.save wrote, with its "
            f"facts beside it ({file.stem}.json), got {'no such file' if not file.is_file() else 'another one'}; bring "
            "weights that were not trained here with own_generator"
        )
    tensors = read_tensors(file)
    beside = file.with_suffix(".json")
    facts = _facts(beside)
    if facts["sha256"] != _sum(file):
        raise InputError(
            f"{beside}: expected facts on {file.name}, got facts on a file with another checksum; keep the two files "
            "that one training wrote together, or bring the weights with own_generator"
        )
    settings = dict(facts["network"])
    kind = _NETWORKS.get(str(settings.pop("use", "")))
    if kind is None:
        raise InputError(f"{beside}: expected a network out of {', '.join(_NETWORKS)}, got {facts['network']}")
    try:
        network = kind(**settings)
        network.load_state_dict(tensors)
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{file} does not fit its facts: {' '.join(str(error).split())}") from error
    return network.image_generator(source=str(facts["source"]), training_images=_training_images(file))


def _training_images(file: Path) -> ImagePrints | None:
    """The fingerprints in the header of a file; None if it has none, as files of earlier versions."""
    with safe_open(file, framework="pt") as opened:  # type: ignore[no-untyped-call, unused-ignore]
        text = (opened.metadata() or {}).get(_PRINTS)
    try:
        return None if text is None else ImagePrints.read(text)
    except InputError as error:
        raise InputError(f"{file}: {error}") from error


def _facts(file: Path) -> dict[str, Any]:
    remedy = "bring weights that were not trained here with own_generator"
    expect_file(file, "the facts on the generator beside its weights", remedy=remedy)
    try:
        facts: dict[str, Any] = json.loads(decoded(file.read_bytes(), file))
    except json.JSONDecodeError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    missing = [name for name in _FACTS if not isinstance(facts, dict) or name not in facts]
    if missing or facts["format"] != FORMAT or not isinstance(facts["network"], dict):
        raise InputError(
            f"{file}: expected facts on a generator of format {FORMAT} with {', '.join(_FACTS)}, got "
            f"{'none of format ' + str(FORMAT) if not missing else 'none for ' + ', '.join(missing)}"
        )
    return facts


def _sum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
