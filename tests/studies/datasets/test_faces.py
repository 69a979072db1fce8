"""CelebA and UTKFace in their public forms; the stand-ins are generated color fields, no faces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imsave
from skimage.transform import resize

from gradleak.results import InputError
from studies.datasets import celeba, utkface

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def field(seed: int, height: int = 218, width: int = 178) -> np.ndarray:
    """A smooth image of colors."""
    coarse = np.random.default_rng(seed).random((4, 4, 3))
    return (255 * resize(coarse, (height, width), order=3).clip(0, 1)).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "img_align_celeba").mkdir()
    for place in (1, 2, 3):
        imsave(tmp_path / "img_align_celeba" / f"00000{place}.jpg", field(place), pil_kwargs={"quality": 98})
    (tmp_path / "list_attr_celeba.txt").write_text(
        "3\nBald High_Cheekbones Smiling \n000001.jpg -1  1 -1\n000002.jpg -1 -1  1\n000003.jpg  1 -1 -1\n"
    )
    (tmp_path / "identity_CelebA.txt").write_text("000001.jpg 2880\n000002.jpg 17\n000003.jpg 2880\n")
    return tmp_path


def test_celeba_attributes_identities_and_pixels(folder: Path) -> None:
    people = celeba(folder)
    assert people.targets.tolist() == [0, 1, 0]
    assert people.sensitive.tolist() == [1, 0, 0]
    assert people.users is not None
    assert people.users.tolist() == [1, 0, 1]
    assert tuple(people.values) == ("not High_Cheekbones", "High_Cheekbones")
    assert people.inputs.shape == (3, 3, 32, 32)
    for place in (1, 2, 3):
        # skimage shrinks with a Gaussian where torch takes a triangle, and JPEG loses a little: smooth fields differ by less.
        expected = resize(field(place) / 255, (32, 32), anti_aliasing=True).transpose(2, 0, 1)
        assert np.abs(people.inputs[place - 1].numpy() - expected)[:, 2:-2, 2:-2].mean() < 0.01
    assert celeba(folder, target="Bald", count=2, size=8).inputs.shape == (2, 3, 8, 8)


def test_celeba_that_does_not_fit_is_named_with_its_line(folder: Path) -> None:
    with pytest.raises(InputError, match="line 2: expected the attribute Tall, got Bald, High_Cheekbones, Smiling"):
        celeba(folder, target="Tall")
    with pytest.raises(InputError, match="not the target, got Smiling for both"):
        celeba(folder, sensitive="Smiling")
    (folder / "img_align_celeba" / "000003.jpg").write_text("no image")
    with pytest.raises(InputError, match=r"000003\.jpg: not an image"):
        celeba(folder)
    (folder / "img_align_celeba" / "000003.jpg").unlink()
    with pytest.raises(InputError, match=r"000003\.jpg: expected an image, got no such file"):
        celeba(folder)
    (folder / "identity_CelebA.txt").write_text("000001.jpg 2880\n000002.jpg\n")
    with pytest.raises(InputError, match=r"line 2: expected a name and a number, got 000002\.jpg"):
        celeba(folder)
    (folder / "list_attr_celeba.txt").write_text("2\nHigh_Cheekbones Smiling\n000001.jpg 1 0\n")
    with pytest.raises(InputError, match=r"line 3: expected a name and 2 times 1 or -1, got 000001\.jpg 1 0"):
        celeba(folder)
    with pytest.raises(InputError, match=r"list_attr_celeba\.txt: expected a text file, got no such file"):
        celeba(folder / "none")


def test_utkface_reads_age_and_ethnicity_from_the_names(tmp_path: Path) -> None:
    names = ["30_0_0_20170109.jpg", "31_1_3_20170109.jpg", "61_0_1_20170109.jpg.chip.jpg", "5_0_4_20170109.jpg"]
    for place, name in enumerate(names):
        imsave(tmp_path / name, field(place, 60, 60))
    people = utkface(tmp_path, size=16)
    # In the order of the names; the last group, "other", is left out.
    assert people.targets.tolist() == [0, 1, 2]
    assert people.sensitive.tolist() == [0, 3, 1]
    assert people.values == ("White", "Black", "Asian", "Indian")
    assert people.inputs.shape == (3, 3, 16, 16)
    imsave(tmp_path / "39_1_20170116.jpg", field(9, 60, 60))
    with pytest.warns(
        UserWarning, match=r"1 files with names of another form were left out, the first 39_1_20170116\.jpg"
    ):
        assert utkface(tmp_path, count=2).size == 2
    with pytest.raises(InputError, match="got 0 others"):
        utkface(tmp_path / "none")
