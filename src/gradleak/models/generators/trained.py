"""A generator that was trained here: its weights as safetensors, and the facts on it as JSON beside them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save

from gradleak.core import ImageGenerator, ImagePrints
from gradleak.models.generators.dcgan import DCGANGenerator
from gradleak.models.generators.decoders import ConvDecoder, MLPDecoder
from gradleak.models.generators.network import GeneratorNetwork
from gradleak.models.generators.published import read_tensors
from gradleak.results import InputError
from gradleak.results.files import make_folder, write_file

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
    if not file.is_file():
        raise InputError(
            f"{file}: expected the facts on the generator beside its weights, got no such file; bring weights that were "
            "not trained here with own_generator"
        )
    try:
        facts: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
