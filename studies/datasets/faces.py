"""Face sets in their public formats, for inference games: CelebA and UTKFace. Files of one's own; nothing is carried."""

from __future__ import annotations

import os
import warnings
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gradleak.core import Domain
from gradleak.data import Population
from gradleak.results import InputError, member
from gradleak.results.fields import check_count

_RACES = ("White", "Black", "Asian", "Indian")
_AGE_GROUPS = (30, 60)


class FacePart(StrEnum):
    """Part of CelebA, in the order of its numbers."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"


def celeba(
    path: str | os.PathLike[str],
    *,
    target: str = "Smiling",
    sensitive: str = "High_Cheekbones",
    size: int = 32,
    count: int | None = None,
    part: FacePart | str | None = None,
) -> Population:
    """Faces of CelebA with two of their 40 attributes, as target and as property; the owner of a row is its identity.

    Args:
        path: folder with `list_attr_celeba.txt` (number of images, names of the attributes, then a name and 1 or -1 for
            each attribute a line), `identity_CelebA.txt` (a name and a number a line) and the images in
            `img_align_celeba`; or the published folder, which has these in `Anno` and in `Img`.
        target: the attribute to train for.
        sensitive: another attribute.
        size: height and width that the images are shrunk to; they are not cropped, so 178 by 218 pixels become square.
        count: take the first so many of the list, or of the part; None for all.
        part: "train", "valid" or "test" of `list_eval_partition.txt` (a name and 0, 1 or 2 a line; in `Eval` of the
            published folder), which share no identity; None for all.

    Returns:
        Inputs (n, 3, size, size) in [0, 1], in the order of the list.

    Raises:
        InputError: for a missing or unfit file, with the line, or no such attribute.

    Cost:
        About two milliseconds and 12 · size² bytes an image.

    Source:
        Liu et al. 2015; Li et al. 2024, section 5.1.1.
    """
    check_count("celeba.size", size)
    if count is not None:
        check_count("celeba.count", count)
    folder = Path(path)
    wanted = None if part is None else list(FacePart).index(member("celeba.part", FacePart, part))
    parts = None if wanted is None else _numbers(_within(folder, "Eval", "list_eval_partition.txt"))
    names, flags = _attributes(_within(folder, "Anno", "list_attr_celeba.txt"), (target, sensitive))
    kept = [place for place, name in enumerate(names) if parts is None or parts.get(name) == wanted][:count]
    if not kept:
        raise InputError(f"{folder}: expected at least one image of the part {part}, got none")
    names, flags = [names[place] for place in kept], flags[kept]
    if target == sensitive:
        raise InputError(f"celeba: expected a sensitive attribute that is not the target, got {target} for both")
    people_of = _within(folder, "Anno", "identity_CelebA.txt")
    identities = _numbers(people_of)
    unknown = [name for name in names if name not in identities]
    if unknown:
        raise InputError(f"{people_of}: expected an identity for {unknown[0]}, got none")
    images = _within(folder, "Img", "img_align_celeba")
    people = {identity: code for code, identity in enumerate(sorted({identities[name] for name in names}))}
    return Population(
        name=f"CelebA: {sensitive}",
        inputs=torch.stack([_image(images / name, size) for name in names]),
        targets=flags[:, 0],
        sensitive=flags[:, 1],
        values=(f"not {sensitive}", sensitive),
        users=torch.tensor([people[identities[name]] for name in names]),
        domain=Domain.image(channels=3, height=size, width=size),
        holds_sensitive=False,
    )


def utkface(path: str | os.PathLike[str], *, size: int = 32, count: int | None = None) -> Population:
    """Faces of UTKFace of the four largest groups: three age groups as target, ethnicity as property.

    Files whose names do not say age, gender, race and time (the published set has three) are left out, with a warning that
    counts them; so are people of the group "other".

    Args:
        path: folder with images named <age>_<gender>_<race>_<time>.jpg (or .jpg.chip.jpg), race from 0 to 4.
        size: height and width that the images are shrunk to.
        count: take the first so many by name; None for all.

    Returns:
        Inputs (n, 3, size, size) in [0, 1]; targets 0 up to 30 years, 1 up to 60, 2 above.

    Raises:
        InputError: for no such folder, or no image in it that can be used.

    Warns:
        UserWarning: if names were left out.

    Source:
        Zhang et al. 2017; Li et al. 2024, section 5.1.1.
    """
    check_count("utkface.size", size)
    if count is not None:
        check_count("utkface.count", count)
    folder = Path(path)
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in (".jpg", ".jpeg", ".png"))
    chosen: list[tuple[Path, int, int]] = []
    unfit = []
    for file in files:
        parts = file.name.split(".")[0].split("_")
        if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]) or int(parts[2]) > len(_RACES):
            unfit.append(file.name)
        elif int(parts[2]) < len(_RACES):
            chosen.append((file, int(parts[0]), int(parts[2])))
    if not chosen:
        raise InputError(f"{folder}: expected images named <age>_<gender>_<race>_<time>.jpg, got {len(files)} others")
    if unfit:
        warnings.warn(
            f"utkface: {len(unfit)} files with names of another form were left out, the first {unfit[0]}", stacklevel=2
        )
    chosen = chosen[:count]
    return Population(
        name="UTKFace: ethnicity",
        inputs=torch.stack([_image(file, size) for file, _, _ in chosen]),
        targets=torch.tensor([sum(age > edge for edge in _AGE_GROUPS) for _, age, _ in chosen]),
        sensitive=torch.tensor([race for _, _, race in chosen]),
        values=_RACES,
        domain=Domain.image(channels=3, height=size, width=size),
        holds_sensitive=False,
    )


def _within(folder: Path, published: str, name: str) -> Path:
    """Path of a file in the folder, or where the published folder has it."""
    return folder / published / name if (folder / published / name).exists() else folder / name


def _attributes(file: Path, wanted: tuple[str, str]) -> tuple[list[str], Tensor]:
    """Names of the images and 0 or 1 for each of the wanted attributes."""
    lines = _lines(file)
    header = lines[1] if len(lines) > 2 else []
    absent = [name for name in wanted if name not in header]
    if absent:
        raise InputError(f"{file}, line 2: expected the attribute {absent[0]}, got {', '.join(header) or 'none'}")
    places = [header.index(name) for name in wanted]
    names, flags = [], []
    for number, parts in enumerate(lines[2:], start=3):
        if len(parts) != len(header) + 1 or any(parts[1 + place] not in ("1", "-1") for place in places):
            raise InputError(
                f"{file}, line {number}: expected a name and {len(header)} times 1 or -1, got {' '.join(parts)}"
            )
        names.append(parts[0])
        flags.append([int(parts[1 + place] == "1") for place in places])
    if not names:
        raise InputError(f"{file}: expected at least one image, got none")
    return names, torch.tensor(flags)


def _numbers(file: Path) -> dict[str, int]:
    """A number by the name of the image."""
    found = {}
    for number, parts in enumerate(_lines(file), start=1):
        if len(parts) != 2 or not parts[1].isdigit():
            raise InputError(f"{file}, line {number}: expected a name and a number, got {' '.join(parts)}")
        found[parts[0]] = int(parts[1])
    return found


def _lines(file: Path) -> list[list[str]]:
    if not file.is_file():
        raise InputError(f"{file}: expected a text file, got no such file")
    return [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _image(file: Path, size: int) -> Tensor:
    """An image as RGB (3, size, size) in [0, 1], shrunk with antialiasing."""
    from matplotlib.image import imread

    if not file.is_file():
        raise InputError(f"{file}: expected an image, got no such file")
    try:
        pixels = np.asarray(imread(file))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not an image ({error})") from error
    levels = torch.tensor(pixels).to(torch.float32) / (255 if pixels.dtype == np.uint8 else 1)
    levels = levels[..., None].repeat(1, 1, 3) if levels.dim() == 2 else levels[..., :3]
    return functional.interpolate(
        levels.permute(2, 0, 1)[None], size=(size, size), mode="bilinear", antialias=True, align_corners=False
    )[0].clamp(0, 1)


__all__ = ["FacePart", "celeba", "utkface"]
