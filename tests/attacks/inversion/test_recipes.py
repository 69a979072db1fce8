"""GIML, GGL and GradInversion against their papers' recipes, written by hand with torch's optimizers and numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import CMAES, GGL, GIML, GradInversion, NoRegistration, Populations
from gradleak.core import Batch, Domain, HonestButCurious, ImageGenerator, Objective, Release
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from tests.attacks.setting import Setting, setting, small_net

IMAGE = Domain.image(channels=1, height=3, width=4)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _decoder() -> nn.Sequential:
    decoder = mlp(features=3, hidden=(8,), classes=12, activation="tanh", generator=_generator(0))
    return nn.Sequential(decoder, nn.Sigmoid(), nn.Unflatten(1, (1, 3, 4))).double()


def _prior() -> ImageGenerator:
    return ImageGenerator(module=_decoder(), latent_shape=(3,), domain=IMAGE, source="never trained")


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), small_net().double())


def _gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(images), labels)
    made = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return torch.cat([gradient.reshape(-1) for gradient in made])


def _variation(images: Tensor) -> Tensor:
    return images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()


def test_giml_learns_as_a_loop_written_by_hand_does() -> None:
    """Latents of each task by torch's Adam, then one copy of the weights for all tasks, then a share of the way to it."""
    model, objective, release = _model(), Objective.from_module(_model()), Release(FedSGD())
    labels = torch.tensor([0, 2, 1, 1, 0])
    images = torch.rand(5, 1, 3, 4, generator=_generator(2), dtype=torch.float64)
    batches = [Batch(images[k : k + 1], labels[k : k + 1], IMAGE) for k in range(5)]
    updates = [release(objective, batch, torch.Generator()) for batch in batches]
    known = [HonestButCurious(targets=True).disclose(objective, release, batch) for batch in batches]
    giml = GIML(
        rounds=3, tasks=2, latent_iterations=6, weight_iterations=5, latent_rate=0.2, weight_rate=0.03, outer_rate=0.7,
        latent_weight=0.02,
    )  # fmt: skip
    learned = giml.fit(updates, known, _prior(), generator=_generator(3))

    seen = [_gradient(model, batch.inputs, batch.targets).detach() for batch in batches]
    random, order, decoder, history = _generator(3), list[int](), _decoder(), []

    def losses(chosen: list[int], latents: Tensor, decoder: nn.Module) -> list[tuple[Tensor, Tensor]]:
        found = []
        for task, latent in zip(chosen, latents, strict=True):
            image = decoder(latent[None])
            made = _gradient(model, image, labels[task : task + 1])
            distance = 1 - nn.functional.cosine_similarity(made, seen[task], dim=0)
            found.append((distance, distance + 1e-4 * _variation(image) + 0.02 * latent.square().mean()))
        return found

    for _ in range(3):
        chosen: list[int] = []
        while len(chosen) < 2:
            order = order or torch.randperm(5, generator=random).tolist()
            place = order.pop()
            chosen += [] if place in chosen else [place]
        latents = torch.randn(2, 3, generator=random, dtype=torch.float64).requires_grad_()
        adam, best = torch.optim.Adam([latents], lr=0.2), [(math.inf, latents[0])] * 2
        for step in range(7):
            both = losses(chosen, latents, decoder)
            for k, (distance, _) in enumerate(both):
                best[k] = min(best[k], (float(distance.detach()), latents[k].detach().clone()), key=lambda one: one[0])
            if step < 6:
                adam.zero_grad()
                sum(total for _, total in both).backward()  # type: ignore[union-attr]
                adam.step()
        history.append(np.mean([value for value, _ in best]))
        start = {name: tensor.detach().clone() for name, tensor in decoder.state_dict().items()}
        adam = torch.optim.Adam(decoder.parameters(), lr=0.03)
        for _ in range(5):
            adam.zero_grad()
            found = losses(chosen, torch.stack([latent for _, latent in best]), decoder)
            (sum(total for _, total in found) / 2).backward()  # type: ignore[union-attr]
            adam.step()
        decoder.load_state_dict({name: w + 0.7 * (decoder.state_dict()[name] - w) for name, w in start.items()})
    assert learned.history == pytest.approx(history, rel=1e-7)
    assert learned.generator is not None
    for name, tensor in learned.generator.weights.items():
        torch.testing.assert_close(tensor, decoder.state_dict()[name], rtol=1e-6, atol=1e-9)


@dataclass(frozen=True, kw_only=True)
class _Watched(CMAES):
    """CMA-ES that notes what was asked and told, and where its distribution stands."""

    def begin(self, size: int, seeds: Tensor) -> Populations:
        return _Notes(super().begin(size, seeds))


class _Notes(Populations):
    latest: _Notes

    def __init__(self, own: Populations) -> None:
        self.own = own
        self.asked: list[Tensor] = []
        self.told: list[Tensor] = []
        self.means: list[Tensor] = []
        type(self).latest = self

    def ask(self, row: int) -> Tensor:
        self.asked.append(self.own.ask(row))
        return self.asked[-1]

    def tell(self, row: int, values: Tensor) -> bool:
        self.told.append(values.detach().clone())
        learned = self.own.tell(row, values)
        self.means.append(self.own.sample(row, torch.zeros(1, 3)))
        return learned

    def sample(self, row: int, normal: Tensor) -> Tensor:
        return self.own.sample(row, normal)

    def state(self) -> dict[str, Tensor]:
        return self.own.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.own.restore(state)


def _behind() -> Setting:
    images = torch.rand(1, 1, 3, 4, generator=_generator(2), dtype=torch.float64)
    return setting(
        _model(), Batch(images, torch.tensor([1]), IMAGE), threat=HonestButCurious(generator=_prior(), targets=True)
    )


def test_ggl_ranks_by_its_papers_loss_and_moves_its_mean_as_cma_es_does() -> None:
    case, population = _behind(), 50
    composed = GGL(iterations=4).compose()
    stages = [replace(composed.stages[0], optimizer=_Watched(hand_on=composed.stages[0].optimizer.hand_on))]
    found = replace(composed, stages=stages)(case.update, case.knowledge, generator=_generator())
    plain = GGL(iterations=4)(case.update, case.knowledge, generator=_generator())
    assert plain.history == found.history
    notes, model, decoder = _Notes.latest, _model(), _decoder()
    seen = torch.cat([case.update.tensors[name].reshape(-1) for name, _ in model.named_parameters()]).numpy()
    # Weights of ranks by Hansen 2016, table 1: ln((λ + 1)/2) − ln i over the better half, which sum to 1.
    ranks = np.log((population + 1) / 2) - np.log(np.arange(1, population // 2 + 1))
    ranks /= ranks.sum()
    matching = []
    for asked, told, mean in zip(notes.asked, notes.told, notes.means, strict=True):
        assert asked.shape == (population, 1, 3)
        for latent, value in zip(asked, told, strict=True):
            made = _gradient(model, decoder(latent), torch.tensor([1])).detach().numpy()
            z = latent.numpy().ravel()
            divergence = -0.5 * (1 + np.log(z.var() + 1e-10) - z.mean() ** 2 - z.var())
            distance = ((made - seen) ** 2).sum() / (seen**2).sum()
            assert float(value) == pytest.approx(distance + 0.1 * divergence, rel=1e-9)
            matching.append(distance)
        better = asked[:, 0].numpy()[np.argsort(told.numpy())[: population // 2]]
        np.testing.assert_allclose(mean.numpy().ravel(), ranks @ better, rtol=1e-9, atol=1e-12)
    assert found.loss == pytest.approx(min(matching), rel=1e-9)
    # The first population is of N(0, I), in every entry.
    first = GGL(iterations=1, population=2000).compose()
    watched = _Watched(population=2000, hand_on=first.stages[0].optimizer.hand_on)
    replace(first, stages=[replace(first.stages[0], optimizer=watched)])(
        case.update, case.knowledge, generator=_generator()
    )
    drawn = _Notes.latest.asked[0].numpy().reshape(2000, 3)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=4 / math.sqrt(2000))
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(3), atol=6 / math.sqrt(2000))


class _Normalized(nn.Module):
    """A convolution with a BatchNorm that remembers something, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(48, 3)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=_generator(number)))
        self.norm.running_mean.copy_(0.3 * torch.randn(4, generator=_generator(8)))
        self.norm.running_var.copy_(torch.rand(4, generator=_generator(9)) + 0.2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.norm(self.first(x))).flatten(1))
        return out


def test_grad_inversion_goes_the_way_of_a_loop_written_by_hand() -> None:
    """All terms, warm-up and cosine, and the consensus of three starts; without the noise."""
    images = torch.rand(2, 1, 3, 4, generator=_generator(2), dtype=torch.float64)
    truth = Batch(images, torch.tensor([0, 2]), IMAGE)
    case = setting(_Normalized(), truth, threat=HonestButCurious(targets=True))
    steps, warm = 64, 8
    attack = GradInversion(
        iterations=steps, restarts=3, warm_up=warm, noise=0.0, total_variation=0.05, mean_square=0.03, batch_norm=0.02,
        consistency=0.04, registration=NoRegistration(),
    )  # fmt: skip
    found = attack(case.update, case.knowledge, generator=_generator())

    model = _Normalized().double().eval()
    seen = torch.cat([case.update.tensors[name].reshape(-1) for name, _ in model.named_parameters()])
    starts = torch.randn(3, 24, generator=_generator(), dtype=torch.float64).clamp(0, 1).reshape(3, 2, 1, 3, 4)
    guesses = [start.clone().requires_grad_() for start in starts]
    adams = [torch.optim.Adam([guess], lr=0.1) for guess in guesses]
    history, consensus, best = [], None, (math.inf, guesses[0])
    for step in range(steps + 1):
        # From a quarter of the run on, every 50 evaluations.
        if step >= 16 and (step - 16) % 50 == 0:
            consensus = torch.stack([guess.detach() for guess in guesses]).mean(dim=0)
        losses = []
        for guess, adam in zip(guesses, adams, strict=True):
            hidden = model.first(guess)
            mean, variance = hidden.mean(dim=(0, 2, 3)), hidden.var(dim=(0, 2, 3), unbiased=False)
            matching = (_gradient(model, guess, truth.targets) - seen).square().sum() / seen.square().sum()
            losses.append(float(matching.detach()))
            best = min(best, (losses[-1], guess.detach().clone()), key=lambda one: one[0])
            total = matching + 0.05 * _variation(guess) + 0.03 * guess.square().mean()
            total = total + 0.02 * (mean - model.norm.running_mean).norm()
            total = total + 0.02 * (variance - model.norm.running_var).norm()
            if consensus is not None:
                total = total + 0.04 * (guess - consensus).square().mean()
            rate = (step + 1) / (warm + 1)
            if step >= warm:
                rate = (1 + math.cos(math.pi * (step - warm) / (steps - warm))) / 2
            for group in adam.param_groups:
                group["lr"] = 0.1 * rate
            (guess.grad,) = torch.autograd.grad(total, [guess])
        history.append(min(losses))
        for guess, adam in zip(guesses, adams, strict=True):
            adam.step()
            with torch.no_grad():
                guess.clamp_(0, 1)
    assert found.loss == pytest.approx(best[0], rel=1e-6)
    assert min(found.history) == pytest.approx(min(history), rel=1e-6)
    torch.testing.assert_close(found.inputs, best[1], atol=1e-7, rtol=0)


def test_the_noise_of_a_step_of_grad_inversion_is_a_fifth_of_the_rate() -> None:
    noisy, still = (GradInversion(warm_up=0, noise=noise).compose().stages[0].optimizer for noise in (0.2, 0.0))
    drawn = torch.randn(1, 20_000, generator=_generator(), dtype=torch.float64)
    start, slope = torch.zeros(1, 20_000, dtype=torch.float64), torch.ones(1, 20_000, dtype=torch.float64)
    one = noisy.begin(start, 20_000, lambda: drawn).direction(slope, 5000)
    two = still.begin(start, 20_000).direction(slope, 5000)
    rate = 0.1 * (1 + math.cos(math.pi / 4)) / 2
    torch.testing.assert_close(one - two, 0.2 * rate * drawn)
    torch.testing.assert_close(two, torch.full_like(two, -rate))
