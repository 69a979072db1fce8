"""GIML: what a generator learns from updates alone, what it costs, and what it must not look at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import GIML, Guess, MetaLearned, Prior, SquaredError
from gradleak.core import Batch, Domain, HonestButCurious, ImageGenerator, Knowledge, Objective, Release, Update
from gradleak.defenses import Sign
from gradleak.models import mlp
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, KnowledgeError, Outcome

SIDE, LATENT = 4, 3
DOMAIN = Domain.image(channels=1, height=SIDE, width=SIDE)


def _decoder(seed: int) -> nn.Sequential:
    """Images on a curved sheet of three dimensions."""
    layers = nn.Sequential(nn.Linear(LATENT, SIDE * SIDE), nn.Sigmoid(), nn.Unflatten(1, (1, SIDE, SIDE)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layers


def _images(seed: int) -> ImageGenerator:
    return ImageGenerator(module=_decoder(seed), latent_shape=(LATENT,), domain=DOMAIN, source="never trained")


def _model() -> nn.Sequential:
    generator = torch.Generator().manual_seed(5)
    return mlp(features=SIDE * SIDE, hidden=(24,), classes=3, activation="tanh", generator=generator)


class _Broken(Prior):
    def __call__(self, guess: Guess) -> Tensor:
        return guess.inputs.sum() * torch.nan


class _Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = _model()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x.flatten(1))
        return out


def _clients(count: int, size: int = 1, **threat: bool) -> tuple[list[Update], Knowledge, Batch]:
    """Updates on images of one sheet, and the images for scoring."""
    objective, release = Objective.from_module(_Flat()), Release(FedSGD())
    source, generator = _images(1), torch.Generator().manual_seed(2)
    truth = source(source.draw(count * size, generator)).detach()
    labels = torch.randint(3, (count * size,), generator=generator)
    batches = [Batch(truth[k * size : (k + 1) * size], labels[k * size : (k + 1) * size], DOMAIN) for k in range(count)]
    updates = [release(objective, batch, torch.Generator()) for batch in batches]
    return updates, HonestButCurious(**threat).disclose(objective, release, batches[0]), Batch(truth, labels, DOMAIN)


def _fit(giml: GIML, updates: list[Update], known: Knowledge, seed: int = 0) -> MetaLearned:
    return giml.fit(updates, known, _images(9), generator=torch.Generator().manual_seed(seed))


def _distance(images: ImageGenerator, truth: Tensor) -> float:
    """RMSE between images and the nearest that the generator can make: latents fitted to the pixels."""
    z = torch.zeros(len(truth), LATENT).requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.1)
    for _ in range(150):
        loss = (images(z) - truth).square().sum()
        (z.grad,) = torch.autograd.grad(loss, [z])
        optimizer.step()
    return float((images(z.detach()) - truth).square().mean().sqrt())


def test_it_learns_images_that_it_never_saw() -> None:
    updates, known, truth = _clients(24)
    giml = GIML(rounds=10, tasks=8, latent_iterations=10, weight_iterations=10, weight_rate=5e-2, latent_rate=0.2)
    learned = _fit(giml, updates[:16], known)
    held = truth.inputs[16:]
    before, after = _distance(_images(9), held), _distance(learned.generator, held)
    assert before > 0.2
    assert after < 0.08
    assert sum(learned.history[-3:]) < 0.5 * sum(learned.history[:3])
    assert (learned.outcome, learned.rounds, learned.lost, learned.used, learned.skipped) == (
        Outcome.BUDGET_SPENT, 10, 0, 16, 0,
    )  # fmt: skip


def test_what_it_costs_is_counted() -> None:
    updates, known, _ = _clients(5)
    giml = GIML(rounds=3, tasks=4, latent_iterations=6, weight_iterations=2)
    learned = _fit(giml, updates, known)
    # Latents are looked at once more after their last step; three plain gradients each.
    assert learned.plain_gradients == giml.estimate(known) == 3 * 3 * 4 * (6 + 1 + 2)
    assert learned.used == 5
    assert len(learned.history) == 3
    assert learned.generator.source == "GIML on 5 shared updates, 3 rounds, from: never trained"
    assert learned.generator.training_images is None


def test_the_same_seed_gives_the_same_generator_and_nothing_changes() -> None:
    updates, known, _ = _clients(6)
    initial = _images(9)
    kept = {name: tensor.clone() for name, tensor in initial.weights.items()}
    seen = [{name: tensor.clone() for name, tensor in update.tensors.items()} for update in updates]
    giml = GIML(rounds=2, tasks=3, latent_iterations=3, weight_iterations=2)
    state = torch.random.get_rng_state()
    one, two = (giml.fit(updates, known, initial, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert all(torch.equal(one.generator.weights[name], tensor) for name, tensor in two.generator.weights.items())
    assert all(torch.equal(initial.weights[name], tensor) for name, tensor in kept.items())
    assert all(torch.equal(u.tensors[n], t) for u, old in zip(updates, seen, strict=True) for n, t in old.items())
    assert torch.equal(torch.random.get_rng_state(), state)
    other = giml.fit(updates, known, initial, generator=torch.Generator().manual_seed(5))
    assert not torch.equal(other.generator.weights["0.weight"], one.generator.weights["0.weight"])


def test_side_by_side_and_one_by_one_are_one_rule() -> None:
    updates, known, _ = _clients(4)
    known = replace(known, objective=known.objective.to(torch.float64))
    updates = [replace(u, tensors={name: t.double() for name, t in u.tensors.items()}) for u in updates]
    giml = GIML(rounds=2, tasks=4, latent_iterations=4, weight_iterations=3, matching=SquaredError())
    together = _fit(giml, updates, known)
    # Objectives of their own keep them from going side by side.
    apart = [replace(known, objective=replace(known.objective)) for _ in updates]
    single = giml.fit(updates, apart, _images(9), generator=torch.Generator().manual_seed(0))
    for name, tensor in together.generator.weights.items():
        torch.testing.assert_close(single.generator.weights[name], tensor, rtol=1e-6, atol=1e-9)
    assert single.plain_gradients == together.plain_gradients


def test_a_step_of_the_generator_is_a_share_of_the_way_to_the_copy() -> None:
    updates, known, _ = _clients(3)
    giml = GIML(rounds=1, tasks=3, latent_iterations=2, weight_iterations=4)
    whole, half = _fit(giml, updates, known), _fit(replace(giml, outer_rate=0.5), updates, known)
    start = _images(9).weights
    for name, tensor in half.generator.weights.items():
        torch.testing.assert_close(tensor, (start[name] + whole.generator.weights[name]) / 2)


def test_batches_local_steps_and_signs_are_matched_too() -> None:
    giml = GIML(rounds=2, tasks=2, latent_iterations=4, weight_iterations=2)
    updates, known, _ = _clients(2, size=2, targets=True)
    many = [replace(known, targets=torch.tensor([0, 1])), known]
    assert _fit(giml, updates, many).rounds == 2  # type: ignore[arg-type]
    objective, images = Objective.from_module(_Flat()), _images(1)
    truth = Batch(images(images.draw(1, torch.Generator().manual_seed(0))), torch.tensor([1]), DOMAIN)
    for release in (Release(FedAvg(learning_rate=0.1, epochs=2)), Release(FedSGD(), [Sign()])):
        update = release(objective, truth, torch.Generator())
        facts = HonestButCurious(targets=True).disclose(objective, release, truth)
        learned = giml.fit([update, update], facts, _images(9), generator=torch.Generator().manual_seed(0))
        assert learned.rounds == 2
        assert learned.plain_gradients == giml.estimate(facts)


def test_updates_without_signal_are_skipped_and_said() -> None:
    updates, known, _ = _clients(3)
    nothing = replace(updates[0], tensors={name: torch.zeros_like(t) for name, t in updates[0].tensors.items()})
    giml = GIML(rounds=1, tasks=2, latent_iterations=2, weight_iterations=1)
    assert _fit(giml, [nothing, *updates], known).skipped == 1
    empty = _fit(giml, [nothing], known)
    assert (empty.generator, empty.outcome, empty.plain_gradients) == (None, Outcome.NO_SIGNAL, 0.0)


def test_rounds_that_are_not_finite_are_dropped() -> None:
    updates, known, _ = _clients(3)
    giml = GIML(rounds=2, tasks=3, latent_iterations=2, weight_iterations=1, priors=(_Broken(),))
    learned = _fit(giml, updates, known)
    assert learned.history == ()
    assert (learned.lost, learned.rounds, learned.used) == (2, 0, 0)
    # What was never learned is not handed out as learned.
    assert (learned.generator, learned.outcome) == (None, Outcome.NOT_FINITE)


def test_updates_in_half_precision_are_searched_in_single() -> None:
    updates, known, _ = _clients(3)
    giml = GIML(rounds=2, tasks=2, latent_iterations=3, weight_iterations=2)
    whole = _fit(giml, updates, known)
    short = replace(known, objective=known.objective.to(torch.float16))
    found = _fit(giml, [replace(u, tensors={n: t.half() for n, t in u.tensors.items()}) for u in updates], short)
    assert (found.rounds, found.lost, found.generator.dtype) == (2, 0, torch.float32)
    assert found.history == pytest.approx(whole.history, rel=0.02)


def test_it_refuses_what_it_cannot_do() -> None:
    updates, known, _ = _clients(2)
    with pytest.raises(InputError, match="a knowledge an update, got 1 for 2"):
        GIML().fit(updates, [known], _images(9), generator=torch.Generator())
    with pytest.raises(KnowledgeError, match="giml needs domain"):
        _fit(GIML(rounds=1), updates, replace(known, domain=None))
    with pytest.raises(InputError, match="rounds"):
        GIML(rounds=0)
    bare = nn.Sequential(nn.Unflatten(1, (1, 1, LATENT)), nn.Upsample(size=tuple(DOMAIN.shape[1:])), nn.Sigmoid())
    images = ImageGenerator(module=bare, latent_shape=(LATENT,), domain=DOMAIN, source="nothing")
    with pytest.raises(InputError, match="weights to learn, got one without parameters"):
        GIML(rounds=1).fit(updates, known, images, generator=torch.Generator())
    with pytest.raises(InputError, match="outer_rate"):
        GIML(outer_rate=1.5)
