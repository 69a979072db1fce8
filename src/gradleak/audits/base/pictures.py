"""Files beside a record: pictures, only when the plan says so, and the states from which a killed run goes on."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from gradleak.attacks import Checkpoint
from gradleak.audits.base.site import Site
from gradleak.core import Domain, DomainKind
from gradleak.results.files import make_folder, write_file

FOLDER = "pictures"


def save_picture(out: Path, name: str, inputs: Tensor | None, domain: Domain) -> str | None:
    """The path, relative to `out`, of a PNG with the examples of a batch side by side; None if it is no image.

    Args:
        out: folder of the record.
        name: what the picture shows; made into a file name.
        inputs: (b, c, h, w) in model-input units; pixels outside [0, 1] are cut off.
        domain: how to undo the normalization.
    """
    if inputs is None or domain.kind is not DomainKind.IMAGE or len(domain.shape) != 3 or domain.shape[0] not in (1, 3):
        return None
    pixels = domain.to_pixels(inputs.detach().cpu().double()).clamp(0, 1)
    row = np.concatenate([image.permute(1, 2, 0).numpy() for image in pixels], axis=1)
    values = np.round(row * 255).astype(np.uint8)
    picture = Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values)
    relative = f"{FOLDER}/{file_name(name)}.png"
    content = io.BytesIO()
    picture.save(content, format="PNG")
    make_folder(out / FOLDER)
    write_file(out / relative, content.getvalue())
    return relative


def file_name(name: str) -> str:
    """A file name for `name`: readable, and different for different names."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:80].strip("._")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


STATES = "checkpoints"


def state_of(site: Site, out: Path, name: str) -> Checkpoint | None:
    """Place of an attack's state, which outlives it: the run removes it when the findings are in the record.

    Args:
        site: says whether states are kept.
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    if site.checkpoint_seconds is None:
        return None
    return Checkpoint(path=state_path(out, name), seconds=site.checkpoint_seconds, keep=True)


def state_path(out: Path, name: str) -> Path:
    """The file of a state.

    Args:
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    return out / STATES / f"{file_name(name)}.safetensors"
