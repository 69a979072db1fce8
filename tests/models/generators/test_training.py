from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gradleak.core import Batch, Domain, ImagePrints
from gradleak.models.generators import (
    ConvDecoder,
    DCGANGenerator,
    TrainedGenerator,
    deep_image_prior,
    train_dcgan,
    train_vae,
    trained_generator,
    untrained_dcgan,
)
from gradleak.models.generators.decoders import encoder_for
from gradleak.models.generators.training import _standardize
from gradleak.results import InputError, UnsupportedError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")

ABOUT = {"data": "disks", "license": "ours"}


def disks(count: int = 96, size: int = 28, channels: int = 1) -> Batch:
    """Bright disks at random places."""
    places = torch.rand(count, 2, generator=torch.Generator().manual_seed(0)) * 0.5 + 0.25
    axis = (torch.arange(size) + 0.5) / size
    far = (axis[None, :, None] - places[:, 0, None, None]) ** 2 + (axis[None, None] - places[:, 1, None, None]) ** 2
    pixels = torch.sigmoid(400.0 * (0.02 - far))[:, None].expand(-1, channels, -1, -1).contiguous()
    return Batch(
        pixels, torch.zeros(count, dtype=torch.int64), Domain.image(channels=channels, height=size, width=size)
    )


@pytest.fixture(scope="module")
def vae() -> TrainedGenerator:
    return train_vae(disks(256), decoder="mlp", latent_size=4, width=64, steps=300, batch_size=32, **ABOUT)


def test_a_vae_learns_its_images(vae: TrainedGenerator) -> None:
    # Better than the mean image, which is the best that a latent of no use can do.
    pixels = disks(256).inputs
    constant = float((pixels - pixels.mean(dim=0)).square().mean())
    losses = vae.losses
    assert fmean(losses["mse"][-20:]) < 0.5 * constant
    assert fmean(losses["loss"][-20:]) < fmean(losses["loss"][:20]) - 0.5
    assert fmean(losses["kl"][-20:]) > 2.0


def test_its_loss_is_the_bound_of_the_optimal_variance(vae: TrainedGenerator) -> None:
    kl, mse = (np.array(vae.losses[name]) for name in ("kl", "mse"))
    np.testing.assert_allclose(vae.losses["loss"], 0.5 * np.log(mse) + kl / 784, rtol=1e-4, atol=1e-5)


def test_samples_are_images_like_those_it_saw(vae: TrainedGenerator) -> None:
    made, pixels = vae.generator, disks(256).inputs
    images = made(made.draw(256, torch.Generator().manual_seed(3)))
    assert 0.0 <= float(images.min()) <= float(images.max()) <= 1.0
    assert float((images.mean(dim=0) - pixels.mean(dim=0)).abs().mean()) < 0.03
    # Every sample is near an image that was seen: much nearer than the mean image is to one.
    distances = torch.cdist(images.flatten(1), pixels.flatten(1)).square().min(dim=1).values / 784
    assert float(distances.median()) < 0.5 * float((pixels - pixels.mean(dim=0)).square().mean())


def test_latents_of_images_get_mean_zero_and_unit_covariance() -> None:
    pixels = disks(64).inputs
    decoder = ConvDecoder(latent_size=3, width=2)
    encoder = encoder_for(decoder, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        encoder.layers[-1].bias.copy_(torch.tensor([0.5, -1.0, 2.0, -1.0, -2.0, -3.0]))
        encoder.layers[-1].weight.mul_(20.0)
        means, log_variances = encoder(pixels)
        before = decoder(means)
    old = copy.deepcopy(decoder.layers[0])
    _standardize(decoder, encoder, pixels)
    new = decoder.layers[0]
    # The coordinates in which the new layer gives what the old one gave for the same images.
    seen = torch.linalg.lstsq(new.weight.detach(), old(means).detach().T - new.bias.detach()[:, None]).solution.T
    covariance = np.cov(means.numpy().T, bias=True) + np.diag(log_variances.exp().mean(dim=0).numpy())
    factor = np.linalg.cholesky(covariance)
    np.testing.assert_allclose(
        seen.numpy(), np.linalg.solve(factor, (means - means.mean(dim=0)).numpy().T).T, atol=1e-3
    )
    with torch.no_grad():
        torch.testing.assert_close(decoder(seen), before, atol=1e-4, rtol=1e-3)


TRAINERS: dict[str, Callable[..., TrainedGenerator]] = {
    "conv": lambda **rest: train_vae(disks(40), width=2, latent_size=3, batch_size=8, **ABOUT, **rest),
    "mlp": lambda **rest: train_vae(disks(40), decoder="mlp", width=8, latent_size=3, batch_size=8, **ABOUT, **rest),
    "dcgan": lambda **rest: train_dcgan(disks(40), width=2, latent_size=3, batch_size=8, **ABOUT, **rest),
    "color": lambda **rest: train_dcgan(
        disks(40, 32, 3), width=2, latent_size=3, batch_size=8, mirrored=True, **ABOUT, **rest
    ),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        state = TRAINERS[name](steps=6, seed=seed).network.state_dict()
        return torch.cat([tensor.flatten().double() for tensor in state.values()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_dcgan_comes_near_the_images() -> None:
    images = disks(64)
    made = train_dcgan(images, width=8, latent_size=8, steps=60, batch_size=16, learning_rate=1e-3, **ABOUT).generator
    samples = made(made.draw(64, torch.Generator().manual_seed(0)))
    assert 0.0 <= float(samples.min()) <= float(samples.max()) <= 1.0
    # An untrained one is gray throughout: half a unit from black.
    untrained = DCGANGenerator(size=28, channels=1, width=8, latent_size=8).image_generator(source="never trained")
    mean = images.inputs.mean(dim=0)
    gray = untrained(untrained.draw(8, torch.Generator().manual_seed(0))).mean(dim=0)
    assert float((samples.mean(dim=0) - mean).square().mean()) < 0.5 * float((gray - mean).square().mean())


@pytest.mark.parametrize("name", TRAINERS)
def test_a_saved_generator_is_the_same_one(name: str, tmp_path: Path) -> None:
    trained = TRAINERS[name](steps=5)
    file = tmp_path / "folder" / "g.safetensors"
    facts = json.loads(trained.save(file).read_text())
    read = trained_generator(file)
    latents = read.draw(3, torch.Generator().manual_seed(0))
    assert torch.equal(read(latents), trained.generator(latents))
    assert read.source == trained.source == facts["source"]
    assert (facts["examples"], facts["steps"], facts["seed"]) == (40, 5, 0)
    assert {"disks", "ours"} <= {facts["data"], facts["license"]}
    assert set(load_file(file)) == set(trained.network.state_dict())


def test_a_saved_generator_knows_the_images_that_trained_it(tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    trained = TRAINERS["mlp"](steps=1)
    trained.save(file)
    read = trained_generator(file)
    assert read.training_images == trained.generator.training_images == ImagePrints.of(disks(40))
    # Fingerprints lie in the header alone, and a file without them, as of earlier versions, is read as before.
    save_file(load_file(file), file)
    facts = json.loads(file.with_suffix(".json").read_text())
    facts["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_suffix(".json").write_text(json.dumps(facts))
    assert trained_generator(file).training_images is None
    save_file(load_file(file), file, metadata={"training_images": "not base64"})
    facts["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    file.with_suffix(".json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"g\.safetensors: fingerprints of images: expected base64"):
        trained_generator(file)


def test_no_image_trained_what_was_never_trained() -> None:
    for made in (untrained_dcgan(size=16, channels=1, width=4), deep_image_prior(size=16, channels=1, width=4)):
        assert made.training_images == ImagePrints(frozenset())


def test_progress_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int, str]] = []
    TRAINERS["mlp"](steps=3, progress=lambda *told: seen.append(told))
    assert [told[:2] for told in seen] == [(1, 3), (2, 3), (3, 3)]
    assert "mean squared error" in seen[0][2]
    assert capsys.readouterr().out == ""


def test_weights_and_facts_of_two_trainings_do_not_mix(tmp_path: Path) -> None:
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    TRAINERS["mlp"](steps=1).save(one)
    TRAINERS["mlp"](steps=2).save(two)
    two.with_suffix(".json").write_text(one.with_suffix(".json").read_text())
    with pytest.raises(InputError, match="got facts on a file with another checksum; keep the two files"):
        trained_generator(two)
    two.with_suffix(".json").unlink()
    with pytest.raises(InputError, match="expected the facts on the generator beside its weights, got no such file"):
        trained_generator(two)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": {"use": "nn.Module"}}, "expected a network out of ConvDecoder, DCGANGenerator, MLPDecoder, got"),
        ({"network": {"use": "MLPDecoder", "depth": 3}}, "does not fit its facts: .*unexpected keyword argument 'depth'"),
        ({"network": {"use": "MLPDecoder", "width": 9}}, "does not fit its facts: .*size mismatch"),
        ({"format": 2}, "expected facts on a generator of format 1"),
        ({"source": None}, "got none for source"),
    ],
    ids=["use", "argument", "size", "format", "source"],
)  # fmt: skip
def test_facts_that_do_not_fit_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "g.safetensors"
    beside = TRAINERS["mlp"](steps=1).save(file)
    facts = json.loads(beside.read_text()) | change
    beside.write_text(json.dumps({name: value for name, value in facts.items() if value is not None}))
    with pytest.raises(InputError, match=message):
        trained_generator(file)


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(UnsupportedError, match=r"the training diverged at step .* lower learning_rate"):
        TRAINERS["mlp"](steps=60, learning_rate=1e6)


@pytest.mark.parametrize(
    ("images", "changes", "message"),
    [
        (replace(disks(8), domain=None), {}, "expected a Batch with a domain"),
        (Batch(torch.zeros(8, 1, 28, 27), torch.zeros(8), Domain(shape=(1, 28, 27))), {}, "expected square images"),
        (Batch(torch.full((8, 1, 28, 28), 3.0), torch.zeros(8), Domain(shape=(1, 28, 28))), {}, "got 3 to 3 of"),
        (disks(8), {"batch_size": 9}, "expected at most 8, the number of images, got 9"),
        (disks(8), {"decoder": "cnn"}, "decoder: expected one of conv, mlp, got 'cnn'"),
        (disks(8), {"steps": 0}, "steps"),
        (disks(8), {"learning_rate": 0.0}, "learning_rate"),
        (disks(8), {"data": " "}, "data: expected a text, got nothing"),
    ],
    ids=["domain", "square", "range", "batch", "decoder", "steps", "rate", "data"],
)
def test_bad_settings_are_refused(images: Batch, changes: dict[str, object], message: str) -> None:
    settings = {"batch_size": 4, "steps": 1, "width": 2, "latent_size": 2, **ABOUT} | changes
    with pytest.raises(InputError, match=message):
        train_vae(images, **settings)
