"""Log-mel energies of a recording, and one vector of statistics for all of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import scipy.io
import scipy.signal
import torch
from numpy.typing import NDArray

from gradleak.results import InputError

BANDS = 40
_WINDOW_SECONDS = 0.025
_HOP_SECONDS = 0.010
_FLOOR_DECIBELS = 100.0


def log_mel(audio: NDArray[np.float64], rate: int, *, bands: int = BANDS) -> NDArray[np.float64]:
    """The log-mel energies of every frame, (frames, bands) in [0, 1].

    A frame is 25 ms under a Hann window, one every 10 ms, without padding: 1 + ⌊(n − w)/h⌋ frames of n samples. Its power
    spectrum P(f) is scaled so that a sine of amplitude a has the peak a²/2. Band b adds P under a triangle of height 1 between
    the edges f_b and f_{b+2}, where the edges are equally far apart on the scale 2595 log₁₀(1 + f/700) from 0 to half the
    rate. The value is 1 + L/100, cut off at 0 and 1, for a level of L = 10 log₁₀(energy) decibels: silence is 0.

    Nothing is fitted on the recordings.

    Args:
        audio: samples in [-1, 1], (n,); zeros are added to fewer than a frame.
        rate: samples a second, at least 2,000.
        bands: number of bands.

    Raises:
        InputError: for samples that are no finite row of numbers, or too low a rate.

    Source:
        Davis and Mermelstein 1980 (triangles on a mel scale); the scale is that of O'Shaughnessy 1987.
    """
    if audio.ndim != 1 or not len(audio) or not np.isfinite(audio).all():
        raise InputError(f"log_mel: expected finite samples (n,), got {audio.shape}")
    if rate < 2000:
        raise InputError(f"log_mel: expected a rate of at least 2000 samples a second, got {rate}")
    window, hop = round(rate * _WINDOW_SECONDS), round(rate * _HOP_SECONDS)
    padded = np.pad(audio, (0, max(0, window - len(audio))))
    points = 2 ** int(np.ceil(np.log2(2 * window)))
    _, _, power = scipy.signal.spectrogram(
        padded,
        fs=rate,
        window="hann",
        nperseg=window,
        noverlap=window - hop,
        nfft=points,
        detrend=False,
        scaling="spectrum",
    )
    decibels = 10 * np.log10(np.maximum(_triangles(points, rate, bands) @ power, 1e-30)).T
    scaled: NDArray[np.float64] = np.clip(1 + decibels / _FLOOR_DECIBELS, 0.0, 1.0)
    return scaled


def mel_statistics(energies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Six numbers a band for a whole recording, (6 bands,) in [0, 1], whatever its length.

    Over the frames: mean, twice the standard deviation, smallest and largest energy; of the differences between successive
    frames, the mean of the absolute values and the standard deviation (zeros for a single frame). All bands of the first
    statistic come first.

    Args:
        energies: of `log_mel`, (frames, bands).

    Examples:
        >>> mel_statistics(np.array([[0.2], [0.4]])).round(3).tolist()
        [0.3, 0.2, 0.2, 0.4, 0.2, 0.0]
    """
    steps = np.diff(energies, axis=0) if len(energies) > 1 else np.zeros_like(energies)
    return np.concatenate(
        [
            energies.mean(axis=0),
            2 * energies.std(axis=0),
            energies.min(axis=0),
            energies.max(axis=0),
            np.abs(steps).mean(axis=0),
            steps.std(axis=0),
        ]
    )


def mel_image(energies: NDArray[np.float64], frames: int) -> NDArray[np.float64]:
    """The energies over a fixed number of frames, (bands, frames) in [0, 1]: linear interpolation over the whole recording.

    Args:
        energies: of `log_mel`, (any number of frames, bands).
        frames: number wanted; the first and last are the first and last of the recording.
    """
    image = torch.nn.functional.interpolate(
        torch.from_numpy(energies.T.copy())[None], size=frames, mode="linear", align_corners=True
    )
    resampled: NDArray[np.float64] = image[0].numpy()
    return resampled


def read_wav(path: str | os.PathLike[str]) -> tuple[NDArray[np.float64], int]:
    """Samples in [-1, 1] (channels averaged) and the rate of a WAV file.

    Raises:
        InputError: for a missing or unfit file.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: expected a WAV file, got no such file")
    try:
        rate, samples = scipy.io.wavfile.read(file)
    except (ValueError, EOFError) as error:
        raise InputError(f"{file}: not a WAV file ({error})") from error
    if samples.dtype == np.uint8:
        audio = samples.astype(np.float64) / 128 - 1
    elif np.issubdtype(samples.dtype, np.integer):
        audio = samples.astype(np.float64) / -float(np.iinfo(samples.dtype).min)
    else:
        audio = samples.astype(np.float64)
    return (audio.mean(axis=1) if audio.ndim == 2 else audio), int(rate)


def _triangles(points: int, rate: int, bands: int) -> NDArray[np.float64]:
    """The weight of every frequency in every band, (bands, points // 2 + 1)."""
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, bands + 2) / 2595) - 1)
    frequencies = np.linspace(0, rate / 2, points // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    weights: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    return weights


__all__ = ["BANDS", "log_mel", "mel_image", "mel_statistics", "read_wav"]
