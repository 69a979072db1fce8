"""Speech for inference games: spoken digits of six people, and acted emotions of 91."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core import Domain, DomainKind
from gradleak.data import Column, ColumnKind, Population, Table
from gradleak.results import InputError, member
from studies.datasets.log_mel import BANDS, log_mel, mel_image, mel_statistics, read_wav

_Kind = TypeVar("_Kind", bound=StrEnum)


class SpeechFeatures(StrEnum):
    """Features of a recording."""

    STATISTICS = "statistics"
    """240 numbers: six statistics over time of each of 40 log-mel bands."""
    IMAGE = "image"
    """A gray image of 40 bands by a fixed number of frames."""


class SpeechLabel(StrEnum):
    """Label of a spoken digit."""

    DIGIT = "digit"
    SPEAKER = "speaker"
    ACCENT = "accent"


def speech_digits(
    path: str | os.PathLike[str],
    *,
    target: SpeechLabel | str = SpeechLabel.DIGIT,
    sensitive: SpeechLabel | str = SpeechLabel.ACCENT,
    features: SpeechFeatures | str = SpeechFeatures.STATISTICS,
    frames: int = 40,
) -> Population:
    """Recordings of spoken digits as log-mel features, for an inference game about accents, digits or speakers.

    The owner of a row is its speaker, for user inference. A speaker has one accent, so an adversary who tells speakers apart
    tells accents apart. Features are scaled by constants, see `log_mel` and `mel_statistics`; nothing is fitted.

    Args:
        path: npz with `audio`, integers (n, samples) padded with zeros, `length` (n,), `rate`, and `digit`, `speaker` and
            `accent` (n,); never unpickled.
        target: what the model is trained to tell.
        sensitive: what shall stay private; another one than the target, and as for any property, no part of the inputs.
        features: "statistics" for (n, 240), "image" for (n, 1, 40, frames).
        frames: width of the image.

    Raises:
        InputError: for a missing or unfit file, or a label that is not one of the three or used twice.

    Cost:
        About a millisecond a recording.

    Source:
        Jackson et al. 2018, Free Spoken Digit Dataset. Li et al. 2024 (section 5.1.1) use the 988 emobase features of openSMILE
        on another set; these are fewer and simpler.
    """
    aim, secret = (_named(SpeechLabel, label, "speech_digits") for label in (target, sensitive))
    if aim == secret:
        raise InputError(f"speech_digits: expected a sensitive variable that is not the target, got {aim} for both")
    file = Path(path)
    wanted = ("audio", "length", "rate", *SpeechLabel)
    if not file.is_file():
        raise InputError(f"{file}: expected an npz file with arrays {', '.join(wanted)}, got no such file")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in wanted if name not in arrays.files]
            if missing:
                raise InputError(f"{file}: expected arrays {', '.join(missing)}, got {', '.join(arrays.files)}")
            audio, lengths, rate = arrays["audio"], arrays["length"], int(arrays["rate"])
            labels = {label: arrays[label] for label in SpeechLabel}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: not an npz of numbers and strings ({error}); write it with numpy.savez") from error
    rows = len(audio)
    if audio.ndim != 2 or not np.issubdtype(audio.dtype, np.signedinteger) or rows == 0:
        raise InputError(f"{file}: expected audio as signed integers (n, samples), got {audio.dtype} {audio.shape}")
    if any(array.shape != (rows,) for array in (lengths, *labels.values())) or not (
        lengths.min() >= 1 and lengths.max() <= audio.shape[1]
    ):
        raise InputError(f"{file}: expected {rows} lengths from 1 to {audio.shape[1]} and {rows} of each label")
    full = -float(np.iinfo(audio.dtype).min)
    clips = (row[:length] / full for row, length in zip(audio, lengths, strict=True))
    inputs, domain = _features(clips, rate, _named(SpeechFeatures, features, "speech_digits"), frames)
    codes = {label: np.unique(labels[label], return_inverse=True) for label in SpeechLabel}
    return Population(
        name=f"spoken digits: {secret}",
        inputs=inputs,
        targets=torch.from_numpy(codes[aim][1].astype(np.int64)),
        sensitive=torch.from_numpy(codes[secret][1].astype(np.int64)),
        values=tuple(str(value) for value in codes[secret][0]),
        users=torch.from_numpy(codes[SpeechLabel.SPEAKER][1].astype(np.int64)),
        domain=domain,
        holds_sensitive=False,
    )


def crema_d(
    path: str | os.PathLike[str],
    *,
    emotions: Sequence[str] = ("ANG", "HAP", "NEU", "SAD"),
    features: SpeechFeatures | str = SpeechFeatures.STATISTICS,
    frames: int = 80,
) -> Population:
    """Acted speech of CREMA-D as log-mel features: emotion as target, sex of the actor as property, actor as owner.

    Args:
        path: folder with `VideoDemographics.csv` (columns ActorID and Sex) and the recordings, there or in `AudioWAV`, named
            <actor>_<sentence>_<emotion>_<level>.wav, for instance 1001_DFA_ANG_XX.wav.
        emotions: the codes to keep, in the order of the classes.
        features: "statistics" for (n, 240), "image" for (n, 1, 40, frames).
        frames: width of the image.

    Returns:
        Rows in the order of the file names.

    Raises:
        InputError: for a missing or unfit file, a name of another form, an actor without a row in the demographics, or
            recordings at different rates.

    Cost:
        About three milliseconds a recording.

    Source:
        Cao et al. 2014; Li et al. 2024, section 5.1.1, who use the 988 emobase features of openSMILE. A table of those with
        a column for each of the labels can be read with `Table.read`.
    """
    folder = Path(path)
    columns = [
        Column(name="ActorID", kind=ColumnKind.LABEL),
        Column(name="Sex", kind=ColumnKind.LABEL, values=("Female", "Male")),
    ]
    actors = Table.read(folder / "VideoDemographics.csv", columns=columns)
    sexes = dict(zip(actors.cells["ActorID"].tolist(), actors.cells["Sex"].tolist(), strict=True))
    known = {actor: sexes[code] for code, actor in enumerate(actors.column("ActorID").values)}
    files = sorted((folder / "AudioWAV" if (folder / "AudioWAV").is_dir() else folder).glob("*.wav"))
    chosen: list[tuple[Path, str, int]] = []
    for file in files:
        parts = file.stem.split("_")
        if len(parts) != 4 or parts[0] not in known:
            raise InputError(
                f"{file}: expected <actor>_<sentence>_<emotion>_<level>.wav with an actor of VideoDemographics.csv, got "
                f"{file.name}"
            )
        if parts[2] in emotions:
            chosen.append((file, parts[0], list(emotions).index(parts[2])))
    if not chosen:
        raise InputError(
            f"{folder}: expected WAV files of the emotions {', '.join(emotions)}, got {len(files)} of others"
        )
    recordings = [read_wav(file) for file, _, _ in chosen]
    rates = {rate for _, rate in recordings}
    if len(rates) > 1:
        raise InputError(f"{folder}: expected recordings at one rate, got {', '.join(map(str, sorted(rates)))}")
    inputs, domain = _features(
        (audio for audio, _ in recordings), rates.pop(), _named(SpeechFeatures, features, "crema_d"), frames
    )
    owners = sorted({actor for _, actor, _ in chosen})
    return Population(
        name="CREMA-D: sex",
        inputs=inputs,
        targets=torch.tensor([emotion for _, _, emotion in chosen]),
        sensitive=torch.tensor([known[actor] for _, actor, _ in chosen]),
        values=("Female", "Male"),
        users=torch.tensor([owners.index(actor) for _, actor, _ in chosen]),
        domain=domain,
        holds_sensitive=False,
    )


def _features(
    clips: Iterable[NDArray[np.float64]], rate: int, features: SpeechFeatures, frames: int
) -> tuple[Tensor, Domain]:
    energies = (log_mel(clip, rate) for clip in clips)
    if features is SpeechFeatures.IMAGE:
        if frames < 1:
            raise InputError(f"frames: expected at least 1, got {frames}")
        images = np.stack([mel_image(energy, frames) for energy in energies])[:, None]
        return torch.from_numpy(images.astype(np.float32)), Domain.image(channels=1, height=BANDS, width=frames)
    rows = np.stack([mel_statistics(energy) for energy in energies])
    return torch.from_numpy(rows.astype(np.float32)), Domain(shape=(rows.shape[1],), kind=DomainKind.TABULAR)


def _named(kind: type[_Kind], name: str, caller: str) -> _Kind:
    return member(caller, kind, name)


__all__ = ["SpeechFeatures", "SpeechLabel", "crema_d", "speech_digits"]
