"""Speech sets: labels and lengths of the files; recordings in stand-ins are generated tones."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import scipy.io.wavfile
import torch

from gradleak.results import InputError
from studies.datasets import crema_d, speech_digits
from studies.datasets.log_mel import log_mel, mel_statistics

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def npz(path: Path, **changes: np.ndarray) -> Path:
    """Six recordings of noise by two made-up speakers."""
    random = np.random.default_rng(0)
    arrays = {
        "audio": random.integers(-3000, 3000, (6, 1600)).astype(np.int16),
        "length": np.array([800, 1600, 1000, 900, 1200, 1600]),
        "rate": np.array(8000),
        "digit": np.array([3, 0, 3, 7, 0, 7]),
        "speaker": np.array(["s2", "s2", "s1", "s1", "s1", "s2"]),
        "accent": np.array(["far", "far", "near", "near", "near", "far"]),
    }
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def test_features_stop_at_the_length_and_labels_are_codes(tmp_path: Path) -> None:
    file = npz(tmp_path / "speech.npz")
    people = speech_digits(file)
    with np.load(file) as arrays:
        for row, (audio, length) in enumerate(zip(arrays["audio"], arrays["length"], strict=True)):
            expected = mel_statistics(log_mel(audio[:length] / 32768, 8000))
            np.testing.assert_allclose(people.inputs[row].numpy(), expected, rtol=1e-6)
    assert people.targets.tolist() == [1, 0, 1, 2, 0, 2]
    assert people.sensitive.tolist() == [0, 0, 1, 1, 1, 0]
    assert tuple(people.values) == ("far", "near")
    assert people.users is not None
    assert people.users.tolist() == [1, 1, 0, 0, 0, 1]


def test_images_and_other_questions(tmp_path: Path) -> None:
    file = npz(tmp_path / "speech.npz")
    people = speech_digits(file, target="speaker", sensitive="digit", features="image", frames=12)
    assert people.inputs.shape == (6, 1, 40, 12)
    assert people.domain is not None
    assert people.domain.shape == (1, 40, 12)
    assert people.targets.tolist() == [1, 1, 0, 0, 0, 1]
    assert tuple(people.values) == ("0", "3", "7")
    with pytest.raises(InputError, match="not the target, got digit for both"):
        speech_digits(file, sensitive="digit")
    with pytest.raises(InputError, match="expected one of digit, speaker, accent, got 'gender'"):
        speech_digits(file, sensitive="gender")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accent": None}, "expected arrays accent, got audio"),
        ({"audio": np.zeros((6, 1600))}, "signed integers"),
        ({"length": np.array([800, 1601, 1000, 900, 1200, 1600])}, "lengths from 1 to 1600"),
        ({"digit": np.array([1, 2])}, "6 of each label"),
        ({"speaker": np.array([{}] * 6, dtype=object)}, "not an npz of numbers and strings"),
    ],
)
def test_an_unfit_archive_is_one_clear_line(tmp_path: Path, changes: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        speech_digits(npz(tmp_path / "bad.npz", **changes))


def test_the_digits_of_the_bench(shared: Path) -> None:
    folder = shared / "data" / "speech"
    if not (folder / "fsdd_600.npz").is_file():
        pytest.skip("the spoken digits are not at hand")
    people = speech_digits(folder / "fsdd_600.npz")
    assert people.inputs.shape == (600, 240)
    assert 0.0 <= float(people.inputs.min()) < float(people.inputs.max()) <= 1.0
    assert people.users is not None
    assert torch.bincount(people.users).tolist() == [100] * 6
    assert torch.bincount(people.targets).tolist() == [60] * 10
    # The original WAV files, read by scipy, are among the rows with their labels.
    with (folder / "labels.csv").open(encoding="utf-8") as lines:
        for label in list(csv.DictReader(lines))[:4]:
            rate, audio = scipy.io.wavfile.read(folder / label["file"])
            expected = mel_statistics(log_mel(audio / 32768, rate))
            row = int(np.abs(people.inputs.numpy() - expected).max(axis=1).argmin())
            np.testing.assert_allclose(people.inputs[row].numpy(), expected, atol=1e-6)
            assert int(people.targets[row]) == int(label["digit"])
            assert people.values[int(people.sensitive[row])] == label["accent"]


@pytest.fixture
def actors(tmp_path: Path) -> Path:
    """CREMA-D's form with tones in place of people."""
    (tmp_path / "VideoDemographics.csv").write_text(
        "ActorID,Age,Sex,Race,Ethnicity\n1001,51,Male,None,None\n1002,21,Female,None,None\n1003,30,Male,None,None\n"
    )
    (tmp_path / "AudioWAV").mkdir()
    for place, name in enumerate(["1001_DFA_ANG_XX", "1001_IEO_SAD_HI", "1002_DFA_NEU_XX", "1002_DFA_DIS_XX"]):
        audio = 8000 * np.sin(np.arange(9000 + 500 * place) * (0.1 + 0.1 * place))
        scipy.io.wavfile.write(tmp_path / "AudioWAV" / f"{name}.wav", 16000, audio.astype(np.int16))
    return tmp_path


def test_crema_d_in_its_public_form(actors: Path) -> None:
    people = crema_d(actors)
    assert people.targets.tolist() == [0, 3, 2]
    assert people.sensitive.tolist() == [1, 1, 0]
    assert tuple(people.values) == ("Female", "Male")
    assert people.users is not None
    assert people.users.tolist() == [0, 0, 1]
    _, audio = scipy.io.wavfile.read(actors / "AudioWAV" / "1001_IEO_SAD_HI.wav")
    np.testing.assert_allclose(people.inputs[1].numpy(), mel_statistics(log_mel(audio / 32768, 16000)), rtol=1e-5)
    assert crema_d(actors, emotions=["DIS", "SAD"], features="image").inputs.shape == (2, 1, 40, 80)


def test_crema_d_that_does_not_fit_is_refused(actors: Path) -> None:
    with pytest.raises(InputError, match=r"emotions FEA, got 4 of others"):
        crema_d(actors, emotions=["FEA"])
    scipy.io.wavfile.write(actors / "AudioWAV" / "1003_DFA_ANG_XX.wav", 8000, np.zeros(4000, np.int16))
    with pytest.raises(InputError, match="one rate, got 8000, 16000"):
        crema_d(actors)
    (actors / "AudioWAV" / "1003_DFA_ANG_XX.wav").rename(actors / "AudioWAV" / "9999_DFA_ANG_XX.wav")
    with pytest.raises(InputError, match=r"an actor of VideoDemographics\.csv, got 9999_DFA_ANG_XX\.wav"):
        crema_d(actors)
