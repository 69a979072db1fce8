"""Log-mel energies against a transform written out, and against what tones must give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io.wavfile

from gradleak.results import InputError
from studies.datasets.log_mel import log_mel, mel_image, mel_statistics, read_wav

RATE = 8000


def tone(frequency: float, amplitude: float = 0.5, seconds: float = 0.3) -> np.ndarray:
    return amplitude * np.sin(2 * np.pi * frequency * np.arange(round(seconds * RATE)) / RATE)


def test_energies_are_those_of_a_transform_written_out() -> None:
    audio = tone(440) + 0.1 * np.random.default_rng(0).standard_normal(2400)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    frequencies = np.arange(257) * RATE / 512
    triangles = np.stack([np.interp(frequencies, edges[b : b + 3], [0, 1, 0]) for b in range(40)])
    expected = []
    for start in range(0, 2400 - 200 + 1, 80):
        spectrum = np.abs(np.fft.rfft(window * audio[start : start + 200], 512) / window.sum()) ** 2
        spectrum[1:-1] *= 2
        expected.append(1 + 10 * np.log10(triangles @ spectrum) / 100)
    np.testing.assert_allclose(log_mel(audio, RATE), np.array(expected), atol=1e-10)


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 2500.0])
def test_a_tone_is_loudest_in_its_band_and_ten_times_the_amplitude_is_20_decibels(frequency: float) -> None:
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 4000 / 700), 42) / 2595) - 1)
    quiet, loud = log_mel(tone(frequency, 0.05), RATE), log_mel(tone(frequency, 0.5), RATE)
    assert int(quiet[5].argmax()) == int(np.abs(edges[1:-1] - frequency).argmin())
    np.testing.assert_allclose((loud - quiet)[:, quiet[5].argmax()], 0.2, atol=1e-6)


def test_silence_is_zero_and_a_short_recording_is_one_frame() -> None:
    assert (log_mel(np.zeros(4000), RATE) == 0).all()
    assert log_mel(tone(500, seconds=0.01), RATE).shape == (1, 40)
    assert (mel_statistics(log_mel(tone(500, seconds=0.01), RATE))[160:] == 0).all()


def test_statistics_and_images_against_numpy() -> None:
    energies = np.random.default_rng(1).random((23, 40))
    steps = energies[1:] - energies[:-1]
    expected = [
        energies.mean(0),
        2 * energies.std(0),
        energies.min(0),
        energies.max(0),
        abs(steps).mean(0),
        steps.std(0),
    ]
    np.testing.assert_allclose(mel_statistics(energies), np.concatenate(expected))
    image = mel_image(energies, 50)
    for band in range(40):
        np.testing.assert_allclose(image[band], np.interp(np.linspace(0, 22, 50), np.arange(23), energies[:, band]))


@pytest.mark.parametrize(("dtype", "scale"), [(np.int16, 32768), (np.int32, 2**31), (np.float32, 1)])
def test_wav_files_of_every_kind(tmp_path: Path, dtype: type, scale: int) -> None:
    audio = tone(700)
    stereo = np.stack([audio, np.zeros_like(audio)], axis=1)
    scipy.io.wavfile.write(tmp_path / "a.wav", RATE, (stereo * scale).astype(dtype))
    found, rate = read_wav(tmp_path / "a.wav")
    assert rate == RATE
    np.testing.assert_allclose(found, audio / 2, atol=2e-5)


def test_eight_bits_are_centered(tmp_path: Path) -> None:
    scipy.io.wavfile.write(tmp_path / "a.wav", RATE, np.array([0, 128, 255], np.uint8))
    np.testing.assert_allclose(read_wav(tmp_path / "a.wav")[0], [-1, 0, 127 / 128])


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="finite samples"):
        log_mel(np.array([np.nan]), RATE)
    with pytest.raises(InputError, match="at least 2000"):
        log_mel(np.zeros(10), 100)
    with pytest.raises(InputError, match="no such file"):
        read_wav(tmp_path / "none.wav")
    (tmp_path / "text.wav").write_text("no recording at all")
    with pytest.raises(InputError, match="not a WAV file"):
        read_wav(tmp_path / "text.wav")
