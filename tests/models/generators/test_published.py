from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from skimage.metrics import peak_signal_noise_ratio
from torch import Tensor, nn

from gradleak.datasets import idx_file, image_file
from gradleak.models.generators import mnist_vae_decoder, own_generator, taef2_decoder
from gradleak.models.generators.trained import TAEBlock, taef2_layers
from gradleak.results import InputError


def weights(shared: Path, name: str) -> Path:
    return shared / "data" / "weights" / f"{name}.safetensors"


def test_the_mnist_decoder_is_the_formula(shared: Path) -> None:
    made = mnist_vae_decoder(weights(shared, "mnist_vae"))
    state = {name: tensor.double().numpy() for name, tensor in load_file(weights(shared, "mnist_vae")).items()}
    latents = made.draw(4, torch.Generator().manual_seed(0))
    hidden = np.maximum(latents.double().numpy() @ state["fc3.weight"].T + state["fc3.bias"], 0.0)
    pixels = 1.0 / (1.0 + np.exp(-(hidden @ state["fc4.weight"].T + state["fc4.bias"])))
    np.testing.assert_allclose(made(latents).flatten(1).numpy(), pixels, atol=1e-5)
    assert "MIT" in made.source


def test_fitting_its_latents_reaches_the_stated_error(shared: Path) -> None:
    # The file's own description: a mean squared error of 0.010 on digits.
    made = mnist_vae_decoder(weights(shared, "mnist_vae"))
    folder = shared / "data" / "mnist"
    digits = idx_file(
        images=folder / "t10k-images-idx3-ubyte.gz", labels=folder / "t10k-labels-idx1-ubyte.gz", count=24
    ).inputs
    latents = torch.zeros(24, 20, requires_grad=True)
    optimizer = torch.optim.Adam([latents], lr=0.1)
    for _ in range(250):
        optimizer.zero_grad()
        error = (made(latents) - digits).square().flatten(1).mean(dim=1)
        error.sum().backward()
        optimizer.step()
    assert float(error.detach().mean()) == pytest.approx(0.010, abs=0.003)


def _encoder(state: dict[str, Tensor]) -> nn.Sequential:
    """The encoder that belongs to the decoder, from the same blocks."""

    def down() -> nn.Conv2d:
        return nn.Conv2d(64, 64, 3, stride=2, padding=1, bias=False)

    stack: list[nn.Module] = [nn.Conv2d(3, 64, 3, padding=1), TAEBlock(pooled=False)]
    for pooled in (False, False, True):
        stack += [down(), *(TAEBlock(pooled=pooled) for _ in range(3))]
    encoder = nn.Sequential(*stack, nn.Conv2d(64, 32, 3, padding=1))
    encoder.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return encoder


def test_the_round_trip_of_taef2_reaches_the_stated_quality(shared: Path) -> None:
    # The file's own description: 23 to 25 dB on CIFAR-10. Other numbers of groups, or no soft clamp, lose up to 3 dB.
    made = taef2_decoder(weights(shared, "taef2_decoder"))
    images = image_file(path=shared / "data" / "cifar10" / "cifar10_test_500.npz", count=16).inputs
    with torch.no_grad():
        latents = _encoder(load_file(weights(shared, "taef2_encoder")))(images)
    assert latents.shape[1:] == made.latent_shape == (32, 4, 4)
    pixels = made(latents).clamp(0.0, 1.0)
    ratios = [
        peak_signal_noise_ratio(one.numpy(), two.numpy(), data_range=1.0)
        for one, two in zip(images, pixels, strict=True)
    ]
    assert 23.0 < float(np.mean(ratios)) < 25.0
    assert 0.5 < float(latents.std()) < 1.5  # so that N(0, I) is a fair prior


def test_taef2_makes_larger_images(shared: Path) -> None:
    made = taef2_decoder(weights(shared, "taef2_decoder"), size=64)
    assert made.latent_shape == (32, 8, 8)
    assert made(made.draw(1, torch.Generator().manual_seed(0))).shape == (1, 3, 64, 64)
    with pytest.raises(InputError, match="expected one that can be halved 3 times"):
        taef2_decoder(weights(shared, "taef2_decoder"), size=36)


def test_files_that_are_not_theirs_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"fc3.weight": torch.zeros(400, 2)}, other)
    with pytest.raises(InputError, match=r"expected the tensors .* of the MNIST VAE, got {'fc3.weight': \(400, 2\)}"):
        mnist_vae_decoder(other)
    with pytest.raises(InputError, match=r"expected the \d+ tensors of the TAEF2 decoder, got 1; 1.bias is missing in"):
        taef2_decoder(other)
    with pytest.raises(InputError, match=r"expected an existing \.safetensors file"):
        mnist_vae_decoder(tmp_path / "nowhere.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"not tensors")
    with pytest.raises(InputError, match="not a safetensors file"):
        taef2_decoder(broken)


def test_layers_stand_where_the_file_names_them() -> None:
    with torch.device("meta"):
        names = set(taef2_layers().state_dict())
    assert {"1.weight", "3.pool.1.bias", "7.weight", "18.conv.4.bias", "19.bias"} <= names
    assert "7.bias" not in names


class StyleLike(nn.Module):
    """A stand-in with a mapping network and noise that can be held still, as StyleGAN2 has it."""

    def __init__(self, *, width: int = 8, noisy: bool = False) -> None:
        super().__init__()
        self.mapping = nn.Linear(6, width)
        self.synthesis = nn.ConvTranspose2d(width, 3, 8)
        self.noisy = noisy

    def forward(self, latents: Tensor) -> Tensor:
        styles = self.mapping(latents)
        if self.noisy:
            styles = styles + torch.randn_like(styles)
        return torch.tanh(self.synthesis(styles[:, :, None, None]))


class BigLike(nn.Module):
    """A stand-in that takes classes one-hot, as BigGAN does, behind integer labels."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.classes = classes
        self.first = nn.Linear(6 + classes, 3 * 8 * 8)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        one_hot = nn.functional.one_hot(labels, self.classes).to(latents)
        return self.first(torch.cat([latents, one_hot], dim=1)).tanh().reshape(-1, 3, 8, 8)


SIZES = {"latent_shape": (6,), "channels": 3, "height": 8, "width": 8, "output": "symmetric", "source": "a stand-in"}


def test_one_s_own_module_gets_its_weights_by_path(tmp_path: Path) -> None:
    trained = StyleLike()
    file = tmp_path / "style.safetensors"
    save_file(trained.state_dict(), file)
    made = own_generator(module=StyleLike(), weights=file, **SIZES)
    latents = made.draw(2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(made(latents), (trained(latents) + 1.0) / 2.0)
    save_file(StyleLike(width=9).state_dict(), file)
    with pytest.raises(
        InputError, match=r"style.safetensors does not fit StyleLike: .*size mismatch for mapping.weight"
    ):
        own_generator(module=StyleLike(), weights=file, **SIZES)
    with pytest.raises(InputError, match=r"draws nothing beside its latents.*noise_mode='const'"):
        own_generator(module=StyleLike(noisy=True), **SIZES)


def test_pickles_are_never_read(tmp_path: Path) -> None:
    file = tmp_path / "network.pkl"
    torch.save(StyleLike().state_dict(), file)
    with pytest.raises(InputError, match=r"network.pkl: expected an existing \.safetensors file"):
        own_generator(module=StyleLike(), weights=file, **SIZES)


def test_a_conditional_module_of_one_s_own() -> None:
    made = own_generator(module=BigLike(), conditional=True, **SIZES)
    latents = made.draw(2, torch.Generator().manual_seed(0))
    labels = torch.tensor([4, 1])
    assert made(latents, labels=labels).shape == (2, 3, 8, 8)
    vmapped = torch.func.vmap(lambda z, y: made(z[None], labels=y[None])[0])(latents, labels)
    torch.testing.assert_close(vmapped, made(latents, labels=labels))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(InputError, match=r"module: expected a torch.nn.Module, got str; in a plan file write"):
        own_generator(module="StyleLike", **SIZES)
