"""The four sets that are not at hand, in the layouts in which they are published, through a small game each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io.wavfile
from matplotlib.image import imsave

from gradleak.results import InputError
from studies import InferenceData, RiskGame
from studies.datasets import celeba, crema_d, heritage_health, utkface
from studies.inference_data import SETS

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

# The header of CelebA's list, as it is published: all 40 names in one line.
ATTRIBUTES = (
    "5_o_Clock_Shadow Arched_Eyebrows Attractive Bags_Under_Eyes Bald Bangs Big_Lips Big_Nose Black_Hair Blond_Hair Blurry "
    "Brown_Hair Bushy_Eyebrows Chubby Double_Chin Eyeglasses Goatee Gray_Hair Heavy_Makeup High_Cheekbones Male "
    "Mouth_Slightly_Open Mustache Narrow_Eyes No_Beard Oval_Face Pale_Skin Pointy_Nose Receding_Hairline Rosy_Cheeks Sideburns "
    "Smiling Straight_Hair Wavy_Hair Wearing_Earrings Wearing_Hat Wearing_Lipstick Wearing_Necklace Wearing_Necktie Young"
)
CLAIM_COLUMNS = (
    "MemberID,ProviderID,Vendor,PCP,Year,Specialty,PlaceSvc,PayDelay,LengthOfStay,DSFS,PrimaryConditionGroup,CharlsonIndex,"
    "ProcedureGroup,SupLOS"
)
SMALL = {"trials": 40, "shadow_batches": 40, "user_trials": 40, "rounds": 1, "seeds": 1, "forms": []}


def shade(file: Path, level: float, place: int, *, height: int, width: int) -> None:
    """A smooth image with a brightness; no face."""
    rows = np.linspace(0, 1, height)[:, None, None] * np.random.default_rng(place).uniform(0, 0.2, 3)
    imsave(file, np.clip(np.broadcast_to(rows, (height, width, 3)) + level, 0, 1), pil_kwargs={"quality": 95})


def celeba_folder(path: Path, *, people: int, each: int) -> Path:
    """Anno, Eval and Img as the download has them; who has high cheekbones is brighter."""
    images = path / "Img" / "img_align_celeba"
    for part in (images, path / "Anno", path / "Eval"):
        part.mkdir(parents=True)
    names = ATTRIBUTES.split()
    attributes, identities, partition = [str(people * each), f"{ATTRIBUTES} "], [], []
    for place in range(people * each):
        high = place % 2
        shade(images / f"{place + 1:06d}.jpg", 0.1 + 0.6 * high, place, height=27, width=22)
        flags = {"High_Cheekbones": high, "Smiling": int(place % 3 == 0)}
        cells = [f"{1 if flags.get(name) else -1:2d}" for name in names]
        attributes.append(f"{place + 1:06d}.jpg {' '.join(cells)}")
        identities.append(f"{place + 1:06d}.jpg {1000 + place // each}")
        partition.append(f"{place + 1:06d}.jpg {min(2, 3 * place // (people * each))}")
    (path / "Anno" / "list_attr_celeba.txt").write_text("\n".join(attributes) + "\n")
    (path / "Anno" / "identity_CelebA.txt").write_text("\n".join(identities) + "\n")
    (path / "Eval" / "list_eval_partition.txt").write_text("\n".join(partition) + "\n")
    return path


def utkface_folder(path: Path, count: int) -> Path:
    """Names as in the aligned and cropped part, among them the forms that went wrong there."""
    path.mkdir()
    for place in range(count):
        age, sex, race = (20, 45, 70)[place % 3 if place < 12 else 0], place % 2, place % 4
        name = f"{age}_{sex}_{race}_201701{place:011d}.jpg.chip.jpg"
        shade(path / name, 0.1 + 0.2 * race, place, height=20, width=20)
    for place, name in enumerate(
        (
            "39_1_20170116174525125.jpg.chip.jpg",
            "53__0_20170116184028385.jpg.chip.jpg",
            "29_0_4_20170109003342021.jpg.chip.jpg",
        )
    ):
        shade(path / name, 0.5, place, height=20, width=20)
    return path


def crema_d_folder(path: Path, *, actors: int, each: int) -> Path:
    """VideoDemographics.csv and AudioWAV of the repository; women's tones are higher."""
    (path / "AudioWAV").mkdir(parents=True)
    lines = ["ActorID,Age,Sex,Race,Ethnicity"]
    sentences = ["IEO", "TIE", "IOM", "IWW", "TAI", "MTI", "IWL", "ITH", "DFA", "ITS", "TSI", "WSI"]
    for actor in range(actors):
        sex = ("Male", "Female")[actor % 2]
        lines.append(f"{1001 + actor},{20 + actor},{sex},Caucasian,Not Hispanic")
        for take in range(each):
            emotion = ("ANG", "HAP", "NEU", "SAD", "DIS", "FEA")[take % 6]
            pitch = (0.05, 0.25)[actor % 2] + 0.002 * actor + 0.004 * take
            audio = 9000 * np.sin(np.arange(2400) * pitch)
            name = f"{1001 + actor}_{sentences[take % 12]}_{emotion}_{('XX', 'LO', 'MD', 'HI')[take // 6 % 4]}.wav"
            scipy.io.wavfile.write(path / "AudioWAV" / name, 16000, audio.astype(np.int16))
    (path / "VideoDemographics.csv").write_text("\n".join(lines) + "\n")
    return path


def heritage_folder(path: Path, members: int) -> Path:
    """Members.csv and Claims.csv of release 3; a woman has claims of two specialties, and a fifth of the sexes is empty."""
    path.mkdir()
    people, claims = ["MemberID,AgeAtFirstClaim,Sex"], [CLAIM_COLUMNS]
    for member in range(members):
        sex = "" if member % 5 == 4 else "FM"[member % 2]
        age = ("0-9", "30-39", "70-79", "80+")[member % 4]
        people.append(f"{10000000 + member},{age},{sex}")
        for number in range(2 + member % 3):
            specialty = ("Internal", "Surgery")[number % (2 if sex == "F" else 1)]
            charlson = ("0", "1-2", "3-4", "5+")[member % 4 if number else 0]
            claims.append(
                f"{10000000 + member},{7000000 + member % 9},{140000 + member % 7},{37000 + member % 5},Y{1 + number % 3},"
                f"{specialty},Office,{'162+' if number else '28'},,{number}- {number + 1} months,NEUMENT,{charlson},MED,0"
            )
    (path / "Members.csv").write_text("\n".join(people) + "\n")
    (path / "Claims.csv").write_text("\n".join(claims) + "\n")
    return path


def areas(study: InferenceData) -> dict[str, float]:
    found = study.run(say=lambda line: None)
    assert not [line for line in found.conclusion if "expected" in line]
    return {line.quantity: line.ours for line in found.findings if line.ours is not None}


@pytest.fixture(autouse=True)
def without_the_census(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of files alone, so that no package has to carry one."""
    monkeypatch.delitem(SETS, "Adult, 32,561 rows")  # type: ignore[arg-type]


def test_health_and_speech_are_played_from_their_files(tmp_path: Path) -> None:
    health = heritage_folder(tmp_path / "health", 200)
    speech = crema_d_folder(tmp_path / "crema", actors=8, each=24)
    people, actors = heritage_health(health), crema_d(speech)
    assert people.size == 200
    assert np.bincount(people.sensitive.numpy()).tolist() == [80, 80, 40]
    # Four of the six emotions are kept.
    assert actors.size == 8 * 16
    study = InferenceData(
        health=str(health), crema_d=str(speech), games=["attribute", "property", "user"], private_rows=45, public_rows=24,
        users=[4, 4], **SMALL,
    )  # fmt: skip
    found = areas(study)
    assert found["Health, attribute inference: AUROC"] > 0.8
    assert found["Health, property inference: AUROC"] > 0.6
    assert found["CREMA-D, property inference: AUROC"] > 0.9
    assert found["CREMA-D, user inference: AUROC"] > 0.6
    assert "Health: correlation of target and sensitive variable" in found


def test_faces_are_read_and_played_from_their_files(tmp_path: Path) -> None:
    stars = celeba_folder(tmp_path / "celeba", people=8, each=16)
    faces = utkface_folder(tmp_path / "utk", 96)
    # 128 images, cut at thirds.
    assert [celeba(stars, size=8, part=part).size for part in ("train", "valid", "test")] == [43, 43, 42]
    assert celeba(stars, size=8, part="valid", count=2).users.tolist() == [0, 0]
    with pytest.raises(InputError, match=r"celeba\.part: expected one of train, valid, test, got 'dev'"):
        celeba(stars, part="dev")
    with pytest.warns(UserWarning, match="2 files with names of another form were left out, the first 39_1_2017"):
        assert utkface(faces, size=8).size == 96
    study = InferenceData(utkface=str(faces), games=[RiskGame.PROPERTY], private_rows=44, public_rows=24, **SMALL)
    with pytest.warns(UserWarning, match="left out"):
        found = areas(study)
    assert found["UTKFace, property inference: AUROC"] > 0.8


@pytest.mark.slow
def test_celebrities_are_played_from_their_files(tmp_path: Path) -> None:
    stars = celeba_folder(tmp_path / "celeba", people=8, each=16)
    study = InferenceData(
        celeba=str(stars),
        games=[RiskGame.PROPERTY, RiskGame.USER],
        private_rows=44,
        public_rows=24,
        users=[4, 4],
        **SMALL,
    )
    found = areas(study)
    assert found["CelebA, property inference: AUROC"] > 0.9
    assert 0.0 <= found["CelebA, user inference: AUROC"] <= 1.0
