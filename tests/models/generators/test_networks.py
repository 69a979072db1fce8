from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradleak.core import Domain, OutputRange
from gradleak.models.generators import (
    ConvDecoder,
    DCGANDiscriminator,
    DCGANGenerator,
    DeepImagePrior,
    GeneratorNetwork,
    MLPDecoder,
    deep_image_prior,
    untrained_dcgan,
)
from gradleak.models.generators.decoders import encoder_for
from gradleak.results import InputError

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


NETWORKS: dict[str, Callable[..., GeneratorNetwork]] = {
    "dcgan": lambda **sizes: DCGANGenerator(**sizes, width=8, latent_size=10),
    "dcgan-group": lambda **sizes: DCGANGenerator(**sizes, width=8, latent_size=10, norm="group"),
    "mlp": lambda **sizes: MLPDecoder(**sizes, width=16, latent_size=10),
    "conv": lambda **sizes: ConvDecoder(**sizes, width=4, latent_size=10),
    "deep-image-prior": lambda **sizes: DeepImagePrior(**sizes, width=8, noise_channels=2),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize("name", NETWORKS)
def test_images_have_the_size_and_range_that_is_stated(name: str, size: int, channels: int) -> None:
    network = NETWORKS[name](size=size, channels=channels)
    with torch.no_grad():
        images = network.eval()(drawn((3, *network.latent_shape)))
    assert images.shape == (3, channels, size, size) == (3, *network.image_shape)
    low, high = network.output.bounds
    assert low <= float(images.min()) < float(images.max()) <= high


@pytest.mark.parametrize("name", NETWORKS)
def test_the_settings_make_the_same_network_again(name: str) -> None:
    one = NETWORKS[name](size=28, channels=1)
    two = type(one)(**one.settings)
    assert all(torch.equal(two.state_dict()[key], tensor) for key, tensor in one.state_dict().items())


@pytest.mark.parametrize("kind", [DCGANGenerator, MLPDecoder, ConvDecoder, DeepImagePrior, DCGANDiscriminator])
def test_weights_come_from_the_given_generator(kind: Callable[..., nn.Module]) -> None:
    def weights(seed: int) -> Tensor:
        made = kind(size=28, channels=1, width=8, generator=torch.Generator().manual_seed(seed))
        return torch.cat([parameter.detach().flatten() for parameter in made.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("name", ["dcgan-group", "mlp", "conv", "deep-image-prior"])
def test_an_image_does_not_depend_on_the_others_of_its_batch(name: str) -> None:
    network = NETWORKS[name](size=28, channels=1).double().train()
    latents = drawn((3, *network.latent_shape)).double()
    with torch.no_grad():
        torch.testing.assert_close(network(latents)[:1], network(latents[:1]))


def test_dcgan_has_the_layers_of_the_paper() -> None:
    network = DCGANGenerator(size=64, channels=3, width=64)
    convolutions = [part for part in network.modules() if isinstance(part, nn.ConvTranspose2d)]
    assert [part.out_channels for part in convolutions] == [512, 256, 128, 64, 3]
    assert float(convolutions[0].weight.detach().std()) == pytest.approx(0.02, rel=0.01)
    scales = torch.cat([part.weight.detach() for part in network.modules() if isinstance(part, nn.BatchNorm2d)])
    assert float(scales.mean()) == pytest.approx(1.0, abs=0.01)
    assert float(scales.std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("kind", [DCGANGenerator, DCGANDiscriminator, ConvDecoder])
def test_a_size_that_cannot_be_halved_is_refused(kind: Callable[..., nn.Module]) -> None:
    with pytest.raises(InputError, match="expected one that can be halved 1 times down to at least"):
        kind(size=29, channels=1)


def test_a_hourglass_deeper_than_the_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"expected one that can be halved 3 times down to at least 4, .*got 28"):
        DeepImagePrior(size=28, channels=1, depth=3)


def test_a_discriminator_gives_one_logit_an_image() -> None:
    assert DCGANDiscriminator(size=32, channels=3, width=4)(drawn((5, 3, 32, 32))).shape == (5,)


@pytest.mark.parametrize("kind", [MLPDecoder, ConvDecoder])
def test_the_encoder_is_the_decoder_turned_round(kind: Callable[..., MLPDecoder | ConvDecoder]) -> None:
    decoder = kind(size=28, channels=1, latent_size=6, width=8)
    mean, log_variance = encoder_for(decoder, generator=torch.Generator().manual_seed(0))(drawn((2, 1, 28, 28)))
    assert mean.shape == log_variance.shape == (2, 6)


def test_an_untrained_dcgan_makes_images_that_differ() -> None:
    made = untrained_dcgan(size=28, channels=1, width=8, generator=torch.Generator().manual_seed(1))
    images = made(made.draw(8, torch.Generator().manual_seed(2)))
    bare = DCGANGenerator(size=28, channels=1, width=8, generator=torch.Generator().manual_seed(1))
    plain = bare.image_generator(source="never trained")
    gray = plain(plain.draw(8, torch.Generator().manual_seed(2)))
    assert float(images.std(dim=0).mean()) > 0.02  # of few channels: the last layer is drawn small
    assert float(images.std(dim=0).mean()) > 5 * float(gray.std(dim=0).mean())
    assert made.source == "never trained"


def test_its_statistics_are_those_of_its_own_images() -> None:
    network = untrained_dcgan(size=28, channels=1, width=8).module
    twin = copy.deepcopy(network).train()
    latents = drawn((512, 100), seed=5)
    with torch.no_grad():
        torch.testing.assert_close(network(latents), twin(latents), atol=0.08, rtol=0.0)
    layer = next(part for part in network.modules() if isinstance(part, nn.BatchNorm2d))
    assert layer.momentum == 0.1


def test_fitting_its_weights_makes_an_image() -> None:
    # Plain Adam on the weights: the noise map stays as it was drawn.
    made = deep_image_prior(size=28, channels=1, width=8)
    noise = made.draw(1, torch.Generator().manual_seed(0))
    rows = torch.linspace(0.0, 1.0, 28)
    target = (rows[:, None] * (rows[None] > 0.5))[None, None]
    weights = {name: tensor.clone().requires_grad_() for name, tensor in made.weights.items()}
    optimizer = torch.optim.Adam(weights.values(), lr=0.03)
    errors = []
    for _ in range(40):
        error = (made(noise, weights=weights) - target).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
        errors.append(float(error.detach()))
    assert errors[-1] < 0.1 * errors[0]
    assert errors[-1] < 0.01


def test_per_image_weights_run_in_one_vmapped_call() -> None:
    made = deep_image_prior(size=28, channels=1, width=8)
    noise = made.draw(2, torch.Generator().manual_seed(0))
    stacked = {name: torch.stack([tensor, 1.1 * tensor]) for name, tensor in made.weights.items()}
    found = torch.func.vmap(lambda weights, z: made(z[None], weights=weights)[0])(stacked, noise)
    other = made.with_weights({name: 1.1 * tensor for name, tensor in made.weights.items()})
    torch.testing.assert_close(found, torch.cat([made(noise[:1]), other(noise[1:])]), atol=1e-5, rtol=1e-4)


def test_a_domain_of_one_s_own_is_kept() -> None:
    domain = Domain.image(channels=1, height=28, width=28, mean=(0.1307,), std=(0.3081,))
    made = MLPDecoder(width=8).image_generator(source="never trained", domain=domain)
    assert made.domain == domain
    assert made.output is OutputRange.UNIT
    with pytest.raises(InputError, match="state the domain of what the module gives"):
        MLPDecoder(width=8).image_generator(source="x", domain=Domain.image(channels=1, height=32, width=32))
