"""The label study at small size, and its parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gradleak.core import Batch, Domain
from gradleak.datasets import image_file
from gradleak.results import InputError
from studies import LabelRestoration
from studies.cifar_resnet20 import MEAN, STD, cifar_resnet20
from studies.label_batches import draw_with_labels, unbalanced_labels


def _images(folder: Path, classes: int = 12) -> Path:
    random = np.random.default_rng(0)
    file = folder / "images.npz"
    np.savez(
        file, x=random.integers(0, 256, (3 * classes, 32, 32, 3), dtype=np.uint8), y=np.arange(3 * classes) % classes
    )
    return file


def test_the_labels_are_those_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = unbalanced_labels(32, torch.arange(20), generator)
    assert sorted(torch.bincount(labels, minlength=20).tolist(), reverse=True)[:11] == [16, 8, *[1] * 8, 0]
    with pytest.raises(InputError, match="takes 66 classes, and the images have 20"):
        unbalanced_labels(256, torch.arange(20), generator)


def test_images_are_of_the_class_that_they_stand_for() -> None:
    shades = torch.tensor([0.2, 0.9])
    pool = Batch(shades[:, None, None, None].expand(2, 3, 32, 32), torch.tensor([5, 8]))
    domain = Domain.image(channels=3, height=32, width=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    batch = draw_with_labels(pool, torch.tensor([8, 5, 8]), torch.Generator().manual_seed(0), domain=domain)
    middle = domain.to_pixels(batch.inputs)[:, :, 8:24, 8:24]
    torch.testing.assert_close(middle.mean(dim=(1, 2, 3)), shades[[1, 0, 1]])


def test_the_study_at_small_size(tmp_path: Path) -> None:
    said: list[str] = []
    study = LabelRestoration(
        images=str(_images(tmp_path)),
        pool=36,
        networks=("resnet8",),
        modes=("eval",),
        sizes=(8,),
        batches=2,
        training_steps=(0,),
        trained_sizes=(4,),
        local_steps=(2,),
        learning_rates=(0.01,),
        local_size=8,
        resamples=50,
    )
    result = study.run(say=said.append)
    assert len(said) == 3
    assert len(result.findings) == 9
    by_quantity = {finding.quantity: finding for finding in result.findings}
    untrained = "untrained resnet8, eval mode, K = 8: "
    assert by_quantity[untrained + "adaptive_label_recovery"].ours == 1.0
    assert by_quantity[untrained + "consistent_labels"].ours == 1.0
    assert by_quantity[untrained + "zero_shot_labels"].ours == pytest.approx(4 / 8)
    page = result.write(tmp_path).read_text(encoding="utf-8")
    assert "untrained resnet: mean accuracy" in page
    assert json.loads((tmp_path / "label_restoration.json").read_text(encoding="utf-8"))["settings"]["batches"] == 2


def test_the_zero_shot_rule_has_the_ceiling_that_the_paper_measured(tmp_path: Path) -> None:
    # Half, a quarter and singles: at most (2 + K/4)/K of the labels are different, 0.375 for 16 (table 2).
    study = LabelRestoration(
        images=str(_images(tmp_path)), pool=36, networks=("resnet8",), modes=("eval",), sizes=(16,), batches=1,
        training_steps=(), local_steps=(),
    )  # fmt: skip
    findings = {finding.quantity.split(": ")[1]: finding for finding in study.run(say=lambda line: None).findings}
    assert findings["zero_shot_labels"].ours == pytest.approx(0.375)
    assert not findings["zero_shot_labels"].paper


def test_nothing_to_do_is_said() -> None:
    with pytest.raises(InputError, match="nothing to do"):
        LabelRestoration(training_steps=()).run(say=lambda line: None)


def test_the_trained_network_gets_its_images_right(shared: Path) -> None:
    images = image_file(path=shared / "data" / "cifar10" / "cifar10_test_500.npz", count=228, only="uniform")
    domain = Domain.image(channels=3, height=32, width=32, mean=MEAN, std=STD)
    model = cifar_resnet20(shared / "data" / "weights" / "cifar10_resnet20.safetensors").eval()
    with torch.no_grad():
        right = (model(domain.from_pixels(images.inputs)).argmax(1) == images.targets).double().mean()
    assert float(right) == pytest.approx(0.943, abs=0.001)  # as the data's own README says


def test_a_file_that_is_no_such_network_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        cifar_resnet20(tmp_path / "none.safetensors")
