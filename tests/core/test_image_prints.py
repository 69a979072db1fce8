"""Fingerprints of images: the same picture is found under any normalization, and nothing else is."""

from __future__ import annotations

import base64
import hashlib

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Domain, HonestButCurious, ImageGenerator, ImagePrints, Objective, Release
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.results import InputError

PLAIN = Domain.image(channels=1, height=4, width=4)
OTHERS = {
    "as they are": PLAIN,
    "normalized": Domain.image(channels=1, height=4, width=4, mean=(0.1307,), std=(0.3081,)),
    "symmetric": Domain(shape=(1, 4, 4), low=-1.0, high=1.0),
}


def images(count: int, seed: int) -> Tensor:
    return torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(seed)) / 255.0


def batch_of(pixels: Tensor, domain: Domain | None = PLAIN) -> Batch:
    inputs = pixels if domain is None else domain.from_pixels(pixels)
    return Batch(inputs, torch.zeros(len(pixels), dtype=torch.int64), domain)


PUBLIC = images(50, seed=0)
PRINTS = ImagePrints.of(batch_of(PUBLIC))


@pytest.mark.parametrize("domain", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_image_is_found_under_any_normalization_and_mirrored(domain: Domain, dtype: torch.dtype) -> None:
    some = torch.cat([images(2, seed=1), PUBLIC[7:8], PUBLIC[3:4].flip(-1), PUBLIC[3:4].flip(-2)]).to(dtype)
    assert PRINTS.among(batch_of(some, domain)) == [2, 3]
    assert ImagePrints.of(batch_of(PUBLIC.to(dtype), domain)) == PRINTS


def test_one_gray_level_makes_another_image_and_less_does_not() -> None:
    near = PUBLIC[:2].clone().clamp(max=254 / 255)
    prints = ImagePrints.of(batch_of(near))
    assert prints.among(batch_of((near + 0.2 / 255).clamp(max=1.0))) == [0, 1]
    near[0, 0, 0, 0] += 1 / 255
    assert prints.among(batch_of(near)) == [1]


def test_a_fingerprint_is_what_hashlib_gives_for_shape_and_bytes() -> None:
    pixels = (255 * PUBLIC[0]).round().to(torch.uint8)
    by_hand = hashlib.blake2b(b"(1, 4, 4)" + bytes(pixels.flatten().tolist()), digest_size=8).digest()
    assert by_hand in PRINTS.prints
    assert len(PRINTS) == 50
    assert len(ImagePrints.of(batch_of(torch.cat([PUBLIC, PUBLIC])))) == 50


def test_other_shapes_and_examples_that_are_no_images_are_not_among_them() -> None:
    assert PRINTS.among(Batch(PUBLIC.reshape(50, 1, 2, 8), torch.zeros(50, dtype=torch.int64))) == []
    assert PRINTS.among(Batch(PUBLIC.flatten(1), torch.zeros(50, dtype=torch.int64))) == []
    assert len(PRINTS.among(batch_of(PUBLIC, None))) == 50  # no domain is stated: [0, 1] is guessed


def test_text_holds_them_all_in_one_order_and_other_text_is_refused() -> None:
    assert ImagePrints.read(PRINTS.text) == PRINTS
    assert PRINTS.text == ImagePrints.of(batch_of(PUBLIC.flip(0))).text
    assert len(base64.b64decode(PRINTS.text)) == 8 * 50
    assert ImagePrints.read("") == ImagePrints(frozenset())
    for text, said in (("!", "expected base64"), ("AAAA", "expected 8 bytes each, got 3")):
        with pytest.raises(InputError, match=said):
            ImagePrints.read(text)


def generator(training_images: ImagePrints | None) -> ImageGenerator:
    module = nn.Sequential(nn.Linear(2, 16), nn.Sigmoid(), nn.Unflatten(1, (1, 4, 4)))
    return ImageGenerator(
        module=module, latent_shape=(2,), domain=PLAIN, source="a toy", training_images=training_images
    )


def test_no_threat_model_discloses_a_generator_that_was_trained_on_the_batch() -> None:
    objective = Objective.from_module(nn.Sequential(nn.Flatten(), mlp(features=16, classes=3)))
    threat = HonestButCurious(generator=generator(PRINTS))
    some = batch_of(torch.cat([images(3, seed=1), PUBLIC[:2]]), OTHERS["normalized"])
    with pytest.raises(
        InputError, match=r"50 training images hold 2 of the 5 \(examples 3, 4 of the batch\).*audit other rows"
    ):
        threat.disclose(objective, Release(FedSGD()), some)
    with pytest.raises(InputError, match=r"hold 20 of the 20 \(examples 0, 1, 2, 3, 4, \.\.\. of the batch\)"):
        generator(PRINTS).refuse_seen(batch_of(PUBLIC[:20]))
    told = threat.disclose(objective, Release(FedSGD()), batch_of(images(3, seed=1), OTHERS["normalized"]))
    assert told.generator is not None
    assert told.generator.training_images == PRINTS
    assert told.card()["generator"]["training_images"] == 50


@pytest.mark.parametrize(("prints", "told"), [(None, None), (ImagePrints(frozenset()), 0)], ids=["unknown", "none"])
def test_what_is_not_known_is_told_apart_from_none(prints: ImagePrints | None, told: int | None) -> None:
    toy = generator(prints)
    toy.refuse_seen(batch_of(PUBLIC))
    assert toy.describe()["training_images"] == told
    assert "frozenset" not in str(toy.describe())


def test_what_is_no_set_of_fingerprints_is_refused() -> None:
    with pytest.raises(InputError, match=r"training_images: expected ImagePrints, for instance .* got list"):
        generator([b"12345678"])  # type: ignore[arg-type]
