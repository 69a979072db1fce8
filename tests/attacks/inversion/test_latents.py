"""Unknowns behind a generator: what is found of a known answer, what moves and what is held, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import (
    CMAES,
    GGL,
    GIAS,
    IGIMS,
    Adam,
    Guess,
    Inversion,
    LabelPolicy,
    LatentKL,
    LatentNorm,
    Latents,
    LatentsAndWeights,
    Part,
    Pixels,
    SearchStage,
    SquaredError,
    StepDecay,
    UntrainedGenerator,
    WeightProximity,
)
from gradleak.attacks.inversion.evaluation import Evaluator, Rules
from gradleak.attacks.inversion.problem import Problem
from gradleak.core import Batch, HonestButCurious, ImageGenerator, Knowledge
from gradleak.defenses import GaussianNoise
from gradleak.models import mlp
from gradleak.protocols import FedAvg
from gradleak.results import InputError, KnowledgeError, UnsupportedError
from tests.attacks.setting import ROW, Setting, rows, setting, small_generator, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Affine(nn.Module):
    """½ + A z: a linear generator of three latent entries, by class where it is conditional."""

    def __init__(self, classes: int = 1) -> None:
        super().__init__()
        self.matrix = nn.Parameter(0.1 * torch.randn(classes, 12, 3, generator=_generator(7), dtype=torch.float64))

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        matrix = self.matrix[0] if labels is None else self.matrix[labels]
        return 0.5 + (matrix @ latents[..., None])[..., 0]


def affine(classes: int = 1) -> ImageGenerator:
    return ImageGenerator(
        module=Affine(classes), latent_shape=(3,), domain=ROW, conditional=classes > 1, source="never trained"
    )


def made(
    prior: ImageGenerator, *labels: int, threat: HonestButCurious | None = None, **changes
) -> tuple[Setting, Tensor]:
    """A release of what the generator makes of random latents, and those latents."""
    latents = torch.randn(len(labels), 3, generator=_generator(9), dtype=torch.float64)
    classes = torch.tensor(labels)
    images = prior(latents, labels=classes if prior.conditional else None)
    case = setting(
        small_net(),
        Batch(images, classes, ROW),
        threat=replace(threat or HonestButCurious(), generator=prior),
        **changes,
    )
    return case, latents


def stage(part: Part = Part.LATENTS, iterations: int = 250, rate: float = 0.1) -> SearchStage:
    return SearchStage(optimizer=Adam(learning_rate=rate, schedule=StepDecay()), iterations=iterations, part=part)


def search(*stages: SearchStage, **changes) -> Inversion:
    given = {"matching": SquaredError(), "variables": Latents(), "stages": stages or (stage(),)}
    return Inversion(**{**given, **changes})


def latents_of(inputs: Tensor, labels: Tensor | None = None) -> Tensor:
    """The latents (b, 3) of affine images by least squares."""
    classes = torch.zeros(len(inputs), dtype=torch.int64) if labels is None else labels
    matrices = Affine(1 if labels is None else 3).matrix.detach()[classes]
    return torch.linalg.lstsq(matrices, (inputs - 0.5)[..., None]).solution[..., 0]


POPULATION = SearchStage(optimizer=CMAES(population=10, hand_on="best"), iterations=60)


@pytest.mark.parametrize("attack", [search(), search(POPULATION)], ids=["Adam", "CMAES"])
def test_the_latent_behind_a_linear_generator_is_found(attack: Inversion) -> None:
    case, latents = made(affine(), 1)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert float((latents_of(found.inputs) - latents).abs().max()) < 1e-3
    assert found.details["generator"]["source"] == "never trained"
    assert "generator: never trained" in found.details["information"]
    torch.testing.assert_close(found.inputs, affine()(latents_of(found.inputs)), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "attack", [search(stage(iterations=500)), search(replace(POPULATION, iterations=100))], ids=["Adam", "CMAES"]
)
def test_a_batch_has_a_latent_an_example(attack: Inversion) -> None:
    case, latents = made(affine(), 0, 2)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.targets.tolist() == [0, 2]
    assert float((latents_of(found.inputs) - latents).abs().max()) < 1e-3


def test_a_conditional_generator_is_given_the_labels_that_were_recovered() -> None:
    prior = affine(3)
    case, latents = made(prior, 2, 0)
    found = search(stage(iterations=200))(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "recovered"
    assert found.targets.tolist() == [0, 2]
    assert float((latents_of(found.inputs, found.targets) - latents.flip(0)).abs().max()) < 0.05
    weights = search(stage(Part.WEIGHTS, 3), variables=LatentsAndWeights())
    assert weights(case.update, case.knowledge, generator=_generator()).inputs.shape == (2, 12)


def test_labels_that_are_unknowns_are_found_with_the_latents() -> None:
    case, latents = made(affine(), 1)
    population = SearchStage(optimizer=CMAES(population=16, hand_on="best"), iterations=120)
    for attack in (search(stage(iterations=500)), search(population)):
        found = replace(attack, labels=LabelPolicy.OPTIMIZE, restarts=2)(
            case.update, case.knowledge, generator=_generator(3)
        )
        assert found.details["labels"] == "optimized"
        assert found.targets.argmax(dim=1).tolist() == [1]
        assert float((latents_of(found.inputs) - latents).abs().max()) < 0.3


def test_what_the_generator_cannot_make_its_weights_can() -> None:
    """No latent of the generator gives these rows; each example's own weights do."""
    case = setting(small_net(), rows(0, 2), threat=HonestButCurious(generator=small_generator()))
    latents = search(stage(iterations=80))(case.update, case.knowledge, generator=_generator())
    both = search(stage(iterations=80), stage(Part.WEIGHTS, 300, 0.02), variables=LatentsAndWeights())(
        case.update, case.knowledge, generator=_generator()
    )
    assert both.loss < 1e-3 * latents.loss
    assert case.error(both.inputs) < 0.1 * case.error(latents.inputs)


@pytest.mark.parametrize("examples", [1, 2])
def test_each_example_has_its_own_weights(examples: int) -> None:
    prior = small_generator()
    case = setting(small_net(), rows(*range(examples)), threat=HonestButCurious(generator=prior))
    problem = Problem.pose(
        case.update,
        replace(case.knowledge, generator=prior.to(torch.float64)),
        pixels=LatentsAndWeights(),
        policy=LabelPolicy.RECOVER,
    )
    space, variables = problem.space, problem.variables
    flat = torch.randn(variables.size(space), generator=_generator(), dtype=torch.float64)
    count = sum(tensor.numel() for tensor in prior.weights.values())
    assert len(flat) == examples * (3 + count)
    inputs, _ = variables.decode(space, flat, problem.labels)
    for place in range(examples):
        # torch's own way to write a vector into a module.
        decoder = nn.Sequential(mlp(features=3, hidden=(8,), classes=12, activation="tanh"), nn.Sigmoid()).double()
        change = flat[examples * 3 + place * count :][:count]
        own = torch.nn.utils.parameters_to_vector(prior.to(torch.float64).weights.values())
        torch.nn.utils.vector_to_parameters(own + change, decoder.parameters())
        made_by_it = decoder(flat[3 * place : 3 * place + 3][None])[0].detach()
        torch.testing.assert_close(inputs[place], made_by_it)
    held, moved = variables.places(space, Part.LATENTS), variables.places(space, Part.WEIGHTS)
    assert torch.equal(torch.cat([held, moved]), torch.arange(len(flat)))


def test_a_stage_holds_what_it_does_not_move() -> None:
    """Weights move, latents stay: with a generator whose weights do not matter nothing changes."""

    class Plain(Affine):
        def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
            return 0.5 + 0.05 * latents.repeat(1, 4) + 0 * self.matrix.sum()

    prior = ImageGenerator(module=Plain(), latent_shape=(3,), domain=ROW, source="never trained")
    case = setting(small_net(), rows(1), threat=HonestButCurious(generator=prior))
    weights = search(stage(Part.WEIGHTS, 10), variables=LatentsAndWeights())
    found = weights(case.update, case.knowledge, generator=_generator())
    assert len(set(found.history)) == 1
    moved = replace(weights, stages=(stage(Part.LATENTS, 10),))(case.update, case.knowledge, generator=_generator())
    assert moved.history[0] == found.history[0]
    assert moved.loss < moved.history[0]


def test_fed_avg_is_read_as_the_average_gradient() -> None:
    protocol = FedAvg(learning_rate=0.01, epochs=3)
    case, latents = made(affine(), 1, protocol=protocol)
    attack = IGIMS(rounds=1, latent_iterations=40, weight_iterations=5, population=10, latent_kl=0.0)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.details["local_training"] == "average_gradient"
    # As much as for one step.
    assert found.plain_gradients == 40 * 10 + 3 * 6
    assert float((latents_of(found.inputs) - latents).abs().max()) < 0.3
    unrolled = replace(attack, local_training="unrolled")
    assert unrolled.estimate(case.knowledge) == 3 * attack.estimate(case.knowledge)


def test_a_missing_generator_is_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = setting(small_net(), rows(1))
    monkeypatch.setattr(Inversion, "_recover_many", None)
    for attack in (GGL(), GIAS(), IGIMS(), UntrainedGenerator(), search()):
        with pytest.raises(KnowledgeError, match="needs generator, which the threat model does not disclose"):
            attack(case.update, case.knowledge, generator=_generator())


def test_weights_that_are_not_there_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = ImageGenerator(module=nn.Sigmoid(), latent_shape=ROW.shape, domain=ROW, source="no weights")
    case = setting(small_net(), rows(1), threat=HonestButCurious(generator=bare))
    found = GGL(iterations=2, population=4)(case.update, case.knowledge, generator=_generator())
    assert found.inputs.shape == (1, *ROW.shape)
    monkeypatch.setattr(Inversion, "_recover_many", None)
    for attack in (GIAS(), IGIMS(), UntrainedGenerator()):
        with pytest.raises(UnsupportedError, match="a generator with weights to search, got one without parameters"):
            attack(case.update, case.knowledge, generator=_generator())


def test_a_conditional_generator_without_classes_is_refused() -> None:
    case, _ = made(affine(3), 1)
    with pytest.raises(KnowledgeError, match="conditional generator needs one class an example"):
        search(labels=LabelPolicy.OPTIMIZE)(case.update, case.knowledge, generator=_generator())
    soft = replace(case.knowledge, targets=torch.full((1, 3), 1 / 3))
    with pytest.raises(KnowledgeError, match=r"targets are torch.float32 of shape \(1, 3\)"):
        search()(case.update, soft, generator=_generator())


def test_a_refusal_for_want_of_classes_does_not_speak_of_a_search_that_never_was() -> None:
    case, _ = made(affine(3), 1, 2, defenses=[GaussianNoise(std=1.0)])
    with pytest.raises(KnowledgeError) as caught:
        search()(case.update, replace(case.knowledge, targets=None), generator=_generator())
    assert "needs one class an example, and there is none: " in str(caught.value)
    assert "optimized" not in str(caught.value)


@pytest.mark.parametrize("disclosed", [True, False])
def test_classes_that_a_conditional_generator_does_not_know_are_refused(disclosed: bool) -> None:
    class TwoClasses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, ROW.size)

        def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
            return self.layer(torch.cat([latents, nn.functional.one_hot(labels, 2).to(latents)], dim=1)).sigmoid()

    images = ImageGenerator(
        module=TwoClasses(), latent_shape=(3,), domain=ROW, output="unit", conditional=True, source="two classes"
    )
    threat = HonestButCurious(generator=images, targets=disclosed)
    known, unknown = setting(small_net(), rows(1), threat=threat), setting(small_net(), rows(2), threat=threat)
    for attack in (GGL(iterations=2, population=4), GIAS(latent_iterations=2, weight_iterations=2)):
        assert attack(known.update, known.knowledge, generator=_generator()).inputs is not None
        with pytest.raises(UnsupportedError, match=r"takes the classes \[2\], got .*have to be those of the model"):
            attack(unknown.update, unknown.knowledge, generator=_generator())


def test_labels_that_cannot_be_recovered_are_refused_for_a_conditional_generator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, _ = made(affine(3), 1)
    nothing = SimpleNamespace(targets=None, note="nothing tells the classes")
    monkeypatch.setattr("gradleak.attacks.inversion.problem.recover_labels", lambda *_: nothing)
    with pytest.raises(KnowledgeError, match=r"there is none: .*nothing tells the classes"):
        search()(case.update, case.knowledge, generator=_generator())


def test_parts_that_are_not_there_are_refused() -> None:
    with pytest.raises(InputError, match="a stage moves latents, which Pixels does not have"):
        Inversion(stages=(stage(),))
    with pytest.raises(InputError, match="a stage moves weights, which Latents does not have"):
        search(stage(Part.WEIGHTS))
    with pytest.raises(InputError, match="LatentKL looks at latents, which Pixels does not have"):
        Inversion(priors=(LatentKL(weight=0.1),))
    with pytest.raises(InputError, match="WeightProximity looks at weights, which Latents"):
        search(priors=(WeightProximity(weight=0.1),))
    with pytest.raises(InputError, match="rounds: expected a whole number from 1 to"):
        search(rounds=0)
    with pytest.raises(InputError, match="expected part='latents' and no restart_after"):
        SearchStage(optimizer=CMAES(), iterations=3, part=Part.WEIGHTS)
    with pytest.raises(InputError, match=r"SearchStage\.part: expected one of all, latents, weights"):
        SearchStage(optimizer=Adam(), iterations=3, part="bias")
    with pytest.raises(InputError, match="compile=True compiles the derivative"):
        search(POPULATION, compile=True)


def test_priors_of_latents_and_weights() -> None:
    latents = torch.randn(2, 40, generator=_generator(), dtype=torch.float64) * 1.7 + 0.3
    guess = Guess(inputs=latents, domain=ROW, latents=latents, changes=latents)
    mean, variance = latents.mean(dim=1), latents.var(dim=1, unbiased=False)
    normal = torch.distributions.Normal(torch.zeros(2).double(), torch.ones(2).double())
    expected = torch.distributions.kl_divergence(torch.distributions.Normal(mean, variance.sqrt()), normal)
    torch.testing.assert_close(LatentKL(weight=0.3)(guess), 0.3 * expected.mean())
    torch.testing.assert_close(LatentNorm(weight=0.3)(guess), 0.3 * latents.square().mean())
    torch.testing.assert_close(WeightProximity(weight=0.3)(guess), 0.3 * latents.norm(dim=1).mean())
    for prior in (LatentKL, LatentNorm, WeightProximity):
        with pytest.raises(InputError, match=f"{prior.__name__}.weight"):
            prior(weight=-1.0)


def test_the_kink_of_the_proximity_has_a_gradient_and_draws_back() -> None:
    prior = WeightProximity(weight=2.0)
    changes = torch.zeros(1, 5, dtype=torch.float64, requires_grad=True)
    prior(Guess(inputs=changes, domain=ROW, changes=changes)).backward()
    assert changes.grad.tolist() == [[0.0] * 5]
    near = torch.full((1, 4), 1e-9, dtype=torch.float64, requires_grad=True)
    prior(Guess(inputs=near, domain=ROW, changes=near)).backward()
    # Of length `weight` however near: not squared.
    assert float(near.grad.norm()) == pytest.approx(2.0)
    case = setting(small_net(), rows(1), threat=HonestButCurious(generator=small_generator()))
    free, drawn = (
        search(stage(Part.WEIGHTS, 60, 0.02), variables=LatentsAndWeights(), priors=priors)(
            case.update, case.knowledge, generator=_generator()
        )
        for priors in ((), (WeightProximity(weight=100.0),))
    )
    assert free.loss < 0.5 * drawn.loss


@pytest.mark.parametrize("variables", [Latents(tanh=True), LatentsAndWeights()], ids=["Latents", "LatentsAndWeights"])
def test_all_routes_give_the_same_derivative(variables: Latents | LatentsAndWeights) -> None:
    prior = small_generator().to(torch.float64)
    case = setting(small_net(), rows(0, 2), threat=HonestButCurious(generator=prior))
    problem = Problem.pose(case.update, case.knowledge, pixels=variables, policy=LabelPolicy.RECOVER)
    flat = 0.3 * torch.randn(2, variables.size(problem.space), generator=_generator(), dtype=torch.float64)
    priors = (LatentKL(weight=0.2), LatentNorm(weight=0.1))
    if isinstance(variables, LatentsAndWeights):
        priors = (*priors, WeightProximity(weight=0.5))
    rules = Rules(matching=SquaredError(), priors=priors, max_bytes=2**30, compile=False)
    evaluator = Evaluator([problem], rules, 2)
    assert evaluator.route == "lockstep"
    lockstep = evaluator(flat)
    graph = [Evaluator([problem], rules, 1)(row[None]) for row in flat]
    for number, one in enumerate(graph):
        torch.testing.assert_close(one.gradient[0], lockstep.gradient[number], atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(one.matching[0], lockstep.matching[number])
    # And the value by finite differences of the release.
    direction = torch.randn(flat.shape[1], generator=_generator(2), dtype=torch.float64)

    def total(row: Tensor) -> Tensor:
        return evaluator.total(row, problem.target, problem.labels, None)[0]

    step = 1e-6
    slope = (total(flat[0] + step * direction) - total(flat[0] - step * direction)) / (2 * step)
    assert float(slope) == pytest.approx(float(lockstep.gradient[0] @ direction), rel=1e-5)


def test_weights_count_for_lockstep_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = setting(small_net(), rows(1), threat=HonestButCurious(generator=small_generator()))
    attack = search(stage(Part.WEIGHTS, 4), variables=LatentsAndWeights(), restarts=3)
    whole = attack(case.update, case.knowledge, generator=_generator())
    chunked = replace(attack, max_bytes=1)(case.update, case.knowledge, generator=_generator())
    torch.testing.assert_close(whole.inputs, chunked.inputs, atol=1e-9, rtol=0)
    monkeypatch.setattr("gradleak.attacks.inversion.evaluation.LOCKSTEP_ENTRIES", 100)
    assert attack(case.update, case.knowledge, generator=_generator()).details["route"] == "graph"


def test_pixels_need_no_generator_and_ignore_one() -> None:
    given = HonestButCurious(generator=small_generator())
    with_one, without = (setting(small_net(), rows(1), threat=threat) for threat in (given, HonestButCurious()))
    attack = Inversion(variables=Pixels(), stages=(SearchStage(optimizer=Adam(), iterations=5),))
    first, second = (attack(case.update, case.knowledge, generator=_generator()) for case in (with_one, without))
    assert torch.equal(first.inputs, second.inputs)
    assert "generator" not in first.details


def test_the_generator_is_part_of_a_lockstep_group() -> None:
    cases = [setting(small_net(), rows(1), threat=HonestButCurious(generator=small_generator(seed))) for seed in (0, 1)]
    shared: Knowledge = cases[0].knowledge
    attack = search(stage(iterations=3))
    updates, generators = [case.update for case in cases], [_generator(), _generator()]
    apart = attack.many(updates, [c.knowledge for c in cases], generators=generators)
    assert [found.details["group"] for found in apart] == [1, 1]
    together = attack.many(updates, shared, generators=[_generator(), _generator()])
    assert [found.details["group"] for found in together] == [2, 2]
