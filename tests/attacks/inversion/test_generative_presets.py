"""The papers' attacks behind a generator: their defaults, and GIAS against a loop written by hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import (
    CMAES,
    GGL,
    GIAS,
    IGIMS,
    Adam,
    CosineDistance,
    HandOn,
    IGIMSAdam,
    InvertingGradients,
    LatentKL,
    Latents,
    LatentsAndWeights,
    LocalTraining,
    Part,
    SearchStage,
    SquaredError,
    StepDecay,
    TotalVariation,
    UntrainedGenerator,
    WeightProximity,
)
from gradleak.core import Batch, Domain, HonestButCurious, ImageGenerator, ImagePrints
from gradleak.models import mlp
from gradleak.results import InputError
from tests.attacks.setting import Setting, setting, small_net

IMAGE = Domain.image(channels=1, height=3, width=4)


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _decoder() -> nn.Sequential:
    decoder = mlp(features=3, hidden=(8,), classes=12, activation="tanh", generator=_generator(0))
    return nn.Sequential(decoder, nn.Sigmoid(), nn.Unflatten(1, (1, 3, 4))).double()


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), small_net().double())


def _case(*labels: int) -> Setting:
    prior = ImageGenerator(module=_decoder(), latent_shape=(3,), domain=IMAGE, source="never trained")
    images = torch.rand(len(labels), 1, 3, 4, generator=_generator(2), dtype=torch.float64)
    threat = HonestButCurious(generator=prior, targets=True)
    return setting(_model(), Batch(images, torch.tensor(labels), IMAGE), threat=threat)


def test_gias_has_its_papers_defaults() -> None:
    composed = GIAS().compose()
    assert composed.variables == LatentsAndWeights()
    assert composed.matching == CosineDistance()
    assert composed.priors == (TotalVariation(weight=1e-6),)
    latents, weights = composed.stages
    assert latents == SearchStage(
        optimizer=Adam(learning_rate=3e-2, schedule=StepDecay()), iterations=500, part=Part.LATENTS
    )
    assert weights == SearchStage(
        optimizer=Adam(learning_rate=1e-3, schedule=StepDecay()), iterations=5000, part=Part.WEIGHTS
    )
    assert composed.rounds == composed.restarts == 1


def test_ggl_has_its_papers_defaults() -> None:
    composed = GGL().compose()
    assert composed.variables == Latents()
    assert composed.matching == SquaredError()
    assert composed.priors == (LatentKL(weight=0.1),)
    assert composed.stages == (
        SearchStage(optimizer=CMAES(population=50, hand_on=HandOn.BEST), iterations=500, part=Part.LATENTS),
    )
    bounded = GGL(tanh=True).compose()
    assert bounded.variables == Latents(tanh=True)
    assert bounded.priors == ()


def test_igims_has_its_papers_defaults() -> None:
    composed = IGIMS().compose()
    assert composed.rounds == 4
    assert composed.priors == (TotalVariation(weight=1e-6), LatentKL(weight=0.1))
    latents, weights = composed.stages
    cmaes = CMAES(population=50, sigma=1.0, hand_on=HandOn.BEST)
    assert latents == SearchStage(optimizer=cmaes, iterations=300, part=Part.LATENTS)
    assert latents.optimizer.hand_on is HandOn.BEST
    adam = Adam(learning_rate=1e-3, schedule=StepDecay(milestones=(3 / 8, 5 / 8, 7 / 8), factor=0.1))
    assert weights == SearchStage(optimizer=adam, iterations=1000, part=Part.WEIGHTS)
    assert composed.local_training is LocalTraining.AVERAGE_GRADIENT
    star = IGIMSAdam().compose()
    assert star.stages[0] == SearchStage(
        optimizer=Adam(learning_rate=3e-2, schedule=StepDecay()), iterations=1000, part=Part.LATENTS
    )
    assert star.stages[1] == weights
    assert star.priors == composed.priors
    case = _case(1)
    # T (K M + 3 N), with a last value a round, and a sample where one is handed on.
    assert IGIMS().estimate(case.knowledge) == 4 * (50 * 300 + 3 * 1001)
    assert IGIMS(hand_on=HandOn.SAMPLE).estimate(case.knowledge) == 4 * (50 * 300 + 1 + 3 * 1001)
    assert IGIMSAdam().estimate(case.knowledge) == 4 * 3 * (1001 + 1001)


@pytest.mark.parametrize("rounds", [1, 2, 4])
@pytest.mark.parametrize("cost", [400, 3000, 20_000, 72_012, 200_000])
def test_a_cost_is_split_and_nearly_spent(cost: int, rounds: int) -> None:
    attack = IGIMS.within(cost, rounds=rounds)
    spent = attack.estimate(_case(1).knowledge)
    assert cost - 53 * rounds < spent <= cost
    share = attack.latent_iterations * attack.population / (spent / rounds)
    # An eleventh, or one population where that buys none.
    assert share <= 1 / 11 or attack.latent_iterations == 1
    assert share > 0.06


def test_the_split_of_a_cost_is_that_of_gias() -> None:
    long, small = IGIMS.within(72_012), IGIMS.within(3000)
    assert (long.latent_iterations, long.weight_iterations) == (32, 5466)
    assert (small.latent_iterations, small.weight_iterations) == (1, 232)
    with pytest.raises(InputError, match="at least 56 plain gradients a round, got 25"):
        IGIMS.within(100)


def test_presets_of_image_sizes_have_what_the_paper_states() -> None:
    assert IGIMS.small_images() == IGIMS()
    assert IGIMSAdam.small_images() == IGIMSAdam()
    assert GIAS.small_images() == GIAS()
    assert GGL.small_images().compose().priors == (TotalVariation(weight=1e-6), LatentKL(weight=0.1))
    assert GGL.large_images().compose().priors == (TotalVariation(weight=1e-4), LatentKL(weight=0.1))
    small, large = InvertingGradients.small_images(), InvertingGradients.large_images()
    assert (small.iterations, small.total_variation) == (8000, 1e-6)
    assert (large.iterations, large.total_variation) == (20_000, 1e-4)
    assert small.learning_rate == large.learning_rate == 0.1
    # "only one external iteration is carried out in practice"
    assert IGIMS.large_images().rounds == IGIMSAdam.large_images().rounds == 1


def test_large_images_have_the_settings_stated_for_biggan() -> None:
    for preset in (IGIMS, IGIMSAdam):
        large = preset.large_images()
        assert large.compose().priors == (
            TotalVariation(weight=1e-4),
            LatentKL(weight=0.1),
            WeightProximity(weight=1.0),
        )
        assert large.weight_rate == GIAS.large_images().weight_rate == 1e-5
    assert GIAS.large_images().compose().priors == (TotalVariation(weight=1e-4),)


def test_the_untrained_generator_moves_weights_alone() -> None:
    (stage,) = UntrainedGenerator().compose().stages
    assert stage.part is Part.WEIGHTS
    case = _case(1)
    found = UntrainedGenerator(iterations=150, learning_rate=0.02)(case.update, case.knowledge, generator=_generator())
    # Neither the inputs that it was never shown nor a latent: the weights explain the update.
    assert found.loss < 1e-2 * found.history[0]
    assert case.error(found.inputs) < 0.05


@pytest.mark.parametrize(
    ("trained_on", "said"),
    [(None, "is not known to be untrained"), (1, "was trained on 1 images"), (0, "")],
    ids=["unknown", "trained", "untrained"],
)
def test_the_untrained_generator_says_where_it_was_handed_a_trained_one(trained_on: int | None, said: str) -> None:
    case = _case(1)
    assert case.knowledge.generator is not None
    prints = None if trained_on is None else ImagePrints(frozenset([b"12345678"][:trained_on]))
    own = replace(case.knowledge.generator, training_images=prints)
    knowledge = replace(case.knowledge, generator=own)
    found = UntrainedGenerator(iterations=2)(case.update, knowledge, generator=_generator())
    (many,) = UntrainedGenerator(iterations=2).many([case.update], [knowledge], generators=[_generator()])
    assert said in found.note
    assert ("the generator" in found.note) is bool(said)
    assert many.note == found.note


def _matching(model: nn.Module, images: Tensor, labels: Tensor, seen: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(images), labels)
    made = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return 1 - nn.functional.cosine_similarity(torch.cat([g.reshape(-1) for g in made]), seen, dim=0)


@pytest.mark.parametrize("labels", [(1,), (2, 0)])
def test_gias_goes_the_way_of_a_loop_written_by_hand(labels: tuple[int, ...]) -> None:
    """torch's Adam and scheduler, one copy of the decoder an example; each stage from the best iterate before it."""
    case, steps = _case(*labels), (16, 24)
    attack = GIAS(latent_iterations=steps[0], weight_iterations=steps[1], weight_rate=0.01, total_variation=1e-2)
    found = attack(case.update, case.knowledge, generator=_generator())

    model, classes = _model(), torch.tensor(labels)
    seen = torch.cat([case.update.tensors[name].reshape(-1) for name, _ in model.named_parameters()])
    latents = torch.randn((1, 3 * len(labels)), generator=_generator(), dtype=torch.float64).reshape(-1, 3)
    decoders = [_decoder() for _ in labels]
    history: list[float] = []
    best: tuple[float, Tensor, Tensor] | None = None
    for moved, rate, count in (("latents", 3e-2, steps[0]), ("weights", 0.01, steps[1])):
        parameters = [latents] if moved == "latents" else [p for d in decoders for p in d.parameters()]
        for parameter in parameters:
            parameter.requires_grad_(True)
        adam = torch.optim.Adam(parameters, lr=rate)
        milestones = [int(share * count) for share in (3 / 8, 5 / 8, 7 / 8)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, gamma=0.1)
        for step in range(count + 1):
            images = torch.cat([d(z[None]) for d, z in zip(decoders, latents, strict=True)])
            matching = _matching(model, images, classes, seen)
            history.append(float(matching.detach()))
            if best is None or history[-1] < best[0]:
                best = (history[-1], latents.detach().clone(), images.detach().clone())
            if step == count:
                break
            variation = images.diff(dim=-1).abs().mean() + images.diff(dim=-2).abs().mean()
            gradients = torch.autograd.grad(matching + 1e-2 * variation, parameters)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
            schedule.step()
        latents = best[1]
        decoders = [copy.deepcopy(decoder) for decoder in decoders]
    assert found.history == pytest.approx(history, rel=1e-6, abs=1e-12)
    torch.testing.assert_close(found.inputs, best[2], atol=1e-7, rtol=0)


@pytest.mark.parametrize("labels", [(1,), (2, 0)])
def test_igims_is_better_for_its_weights_and_its_rounds(labels: tuple[int, ...]) -> None:
    """Rows that no latent gives: populations alone stay behind, in batches too."""
    case = _case(*labels)
    settings = {"latent_iterations": 12, "weight_iterations": 30, "population": 10, "weight_rate": 0.02}
    one, three = (
        IGIMS(rounds=rounds, weight_proximity=0.0, **settings)(case.update, case.knowledge, generator=_generator())
        for rounds in (1, 3)
    )
    latents = GGL(iterations=36, population=10)(case.update, case.knowledge, generator=_generator())
    assert three.loss < 0.7 * one.loss
    assert case.error(three.inputs) < case.error(latents.inputs)
    assert three.inputs.shape == (len(labels), 1, 3, 4)
