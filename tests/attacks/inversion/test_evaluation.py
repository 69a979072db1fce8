"""Every route to the gradient of the matching loss against plain double backward through the user's own module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradleak.attacks import (
    Adam,
    BatchNormStatistics,
    CosineDistance,
    Inversion,
    Matching,
    MeanSquare,
    Prior,
    Route,
    SearchStage,
    SquaredError,
    TotalVariation,
)
from gradleak.attacks.inversion import evaluation
from gradleak.attacks.inversion.evaluation import Evaluator, Rules
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.attacks.inversion.variables import Pixels
from gradleak.core import Batch, Defense, Domain, DomainKind, HonestButCurious, Objective, Protocol, Release
from gradleak.defenses import Clip, ClipPerExample, ClipPerLayer, Prune
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import UnsupportedError
from tests.attacks.setting import rows, small_net

IMAGE = Domain.image(channels=2, height=6, width=5)
SIGNAL = Domain(shape=(5, 4), kind=DomainKind.SIGNAL)
EVERY = (Route.LOCKSTEP, Route.LOOP, Route.GRAPH)


class Skip(nn.Module):
    """In-place ReLU and an in-place skip connection, as in common ResNets."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.act, self.head = nn.ReLU(inplace=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        y = self.inner(x)
        y += x
        return self.head(self.act(y).mean((2, 3)))


class Attention(nn.Module):
    """A layer of fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.head = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    """A recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Checkpointed(nn.Module):
    """Activations are computed twice in place of being kept."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(12, 8), nn.Tanh()), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, x, use_reentrant=False))


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        return make().double()


def _normalized() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3))


def _batch(domain: Domain, size: int, *, soft: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(size, *domain.shape, generator=generator, dtype=torch.float64)
    targets = torch.rand(size, 3, generator=generator, dtype=torch.float64) if soft else torch.arange(size) % 3
    return Batch(inputs, targets / targets.sum(1, keepdim=True) if soft else targets, domain)


MODELS: dict[str, tuple[Callable[[], nn.Module], Batch, str, Sequence[Route]]] = {
    "mlp": (small_net, rows(1).to(torch.float64), "eval", EVERY),
    "batch": (small_net, rows(0, 2, 2).to(torch.float64), "eval", EVERY),
    "soft labels": (small_net, Batch(rows(0, 1).inputs.double(), _batch(IMAGE, 2, soft=True).targets, rows(0).domain),
                    "eval", EVERY),
    "in place": (Skip, _batch(IMAGE, 2), "eval", EVERY),
    "attention": (Attention, _batch(SIGNAL, 2), "eval", EVERY),
    "gru": (lambda: Recurrent(nn.GRU), _batch(SIGNAL, 2), "eval", (Route.LOOP, Route.GRAPH)),
    "lstm": (lambda: Recurrent(nn.LSTM), _batch(SIGNAL, 1), "eval", (Route.LOOP, Route.GRAPH)),
    "normalized": (_normalized, _batch(IMAGE, 3), "eval", EVERY),
    "normalized by the batch": (_normalized, _batch(IMAGE, 3), "train", EVERY),
    "checkpointed": (Checkpointed, rows(1).to(torch.float64), "eval", EVERY),
}  # fmt: skip


def _evaluator(
    objective: Objective,
    batch: Batch,
    *,
    release: Release | None = None,
    matching: Matching | None = None,
    priors: Sequence[Prior] = (),
    rows: int = 2,
    compiled: bool = False,
) -> Evaluator:
    release = release or Release(FedSGD())
    update = release(objective, batch, torch.Generator().manual_seed(0)).align(objective)
    knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)
    problem = Problem.pose(update, knowledge, pixels=Pixels(box=False), policy=LabelPolicy.RECOVER)
    rules = Rules(matching=matching or SquaredError(), priors=priors, max_bytes=2**30, compile=compiled)
    return Evaluator([problem], rules, rows)


def _guesses(batch: Batch, count: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(9)
    return torch.rand(count, batch.inputs.numel(), generator=generator, dtype=batch.inputs.dtype)


def _by_hand(module: nn.Module, batch: Batch, guess: Tensor, *, train: bool) -> tuple[Tensor, Tensor]:
    """Relative squared residual and its gradient, from nothing but the module and torch.autograd."""
    module = copy.deepcopy(module).train(train)
    parameters = [p for p in module.parameters() if p.requires_grad]
    # Double backward of fused attention does not exist, so that it is written out here as well.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = F.cross_entropy(module(batch.inputs), batch.targets)
        seen = torch.autograd.grad(loss, parameters)
        x = guess.reshape(batch.inputs.shape).clone().requires_grad_()
        made = torch.autograd.grad(F.cross_entropy(module(x.clone()), batch.targets), parameters, create_graph=True)
        gap = sum((m - s).square().sum() for m, s in zip(made, seen, strict=True))
        value = gap / sum(s.square().sum() for s in seen)
        (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient.reshape(-1)


@pytest.mark.parametrize("name", MODELS)
def test_every_route_is_plain_double_backward(name: str) -> None:
    make, batch, mode, routes = MODELS[name]
    module = _seeded(make)
    guesses = _guesses(batch)
    expected = [_by_hand(module, batch, guess, train=mode == "train") for guess in guesses]
    evaluator = _evaluator(Objective.from_module(module, mode=mode), batch)
    for route in routes:
        evaluator.route = route
        found = evaluator(guesses)
        assert found.finite.all()
        for row, (value, gradient) in enumerate(expected):
            torch.testing.assert_close(found.matching[row], value, rtol=1e-9, atol=1e-14)
            torch.testing.assert_close(found.gradient[row], gradient, rtol=1e-7, atol=1e-12)


RELEASES: dict[str, tuple[Protocol, Sequence[Defense], bool]] = {
    "clip": (FedSGD(), [Clip(0.01)], True),
    "clip that does not bite": (FedSGD(), [Clip(1e6)], True),
    "clip by layer": (FedSGD(), [ClipPerLayer(0.01)], True),
    "prune": (FedSGD(), [Prune(0.5)], True),
    "prune and clip": (FedSGD(), [Prune(0.3), Clip(0.01)], True),
    "local steps": (FedAvg(learning_rate=0.1, epochs=3), [], False),
    "clip of examples": (FedSGD(), [ClipPerExample(0.1)], False),
}


@pytest.mark.parametrize("name", RELEASES)
@pytest.mark.parametrize("matching", [SquaredError(), CosineDistance()], ids=["squared", "cosine"])
def test_defenses_and_protocols_by_every_route(name: str, matching: Matching) -> None:
    protocol, defenses, graph = RELEASES[name]
    batch = rows(0, 2).to(torch.float64)
    objective = Objective.from_module(small_net()).to(torch.float64)
    release = Release(protocol, defenses)
    guesses = _guesses(batch)
    seen = objective.flatten(release.mean(objective, objective.params, batch))

    def distance(flat: Tensor) -> Tensor:
        guess = Batch(flat.reshape(batch.inputs.shape), batch.targets)
        if name == "prune":
            # What was kept has to be as it was, what was pruned no larger than the smallest that was kept.
            made, kept = objective.flatten(objective.gradient(objective.params, guess)), seen != 0
            limit = seen[kept].abs().min()
            made = torch.where(kept, made, made.sign() * (made.abs() - limit).clamp(min=0))
        else:
            made = objective.flatten(release.mean(objective, objective.params, guess))
        if isinstance(matching, CosineDistance):
            return 1 - torch.cosine_similarity(made, seen, dim=0)
        return (made - seen).square().sum() / seen.square().sum()

    expected = []
    for guess in guesses:
        leaf = guess.clone().requires_grad_()
        expected.append(torch.autograd.grad(distance(leaf), leaf)[0])
    evaluator = _evaluator(objective, batch, release=release, matching=matching)
    # A release that is no function of the plain gradient alone has no graph to keep.
    single = _evaluator(objective, batch, release=release, rows=1)
    assert single.route is (Route.GRAPH if graph else Route.LOOP)
    for route in (Route.LOCKSTEP, Route.LOOP, *([Route.GRAPH] if graph else [])):
        evaluator.route = route
        torch.testing.assert_close(evaluator(guesses).gradient, torch.stack(expected), rtol=1e-6, atol=1e-12)


def test_priors_are_added_on_every_route() -> None:
    make, batch, _, _ = MODELS["normalized"]
    objective = Objective.from_module(_seeded(make))
    priors = (TotalVariation(weight=0.3), MeanSquare(weight=0.2), BatchNormStatistics(weight=0.1))
    guesses = _guesses(batch)
    plain, steered = _evaluator(objective, batch), _evaluator(objective, batch, priors=priors)
    module = _seeded(make)

    def penalty(flat: Tensor) -> Tensor:
        x = flat.reshape(batch.inputs.shape)
        entering = module[0](x).transpose(0, 1).flatten(1)
        moments = entering.mean(1).norm() + (entering.var(1, unbiased=False) - 1).norm()
        variation = x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
        return 0.3 * variation + 0.2 * x.square().mean() + 0.1 * moments

    leaves = [guess.clone().requires_grad_() for guess in guesses]
    expected = torch.stack([torch.autograd.grad(penalty(leaf), leaf)[0] for leaf in leaves])
    for route in EVERY:
        plain.route = steered.route = route
        torch.testing.assert_close(steered(guesses).gradient - plain(guesses).gradient, expected, rtol=1e-7, atol=1e-12)
        # The prior steers, but what is kept is decided by the matching loss alone.
        assert torch.equal(steered(guesses).matching, plain(guesses).matching)


def test_small_updates_go_in_lockstep_and_large_ones_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(1).to(torch.float64)
    objective = Objective.from_module(small_net()).to(torch.float64)
    assert _evaluator(objective, batch, rows=2).route is Route.LOCKSTEP
    assert _evaluator(objective, batch, rows=1).route is Route.GRAPH
    monkeypatch.setattr(evaluation, "LOCKSTEP_ENTRIES", 10)
    assert _evaluator(objective, batch, rows=2).route is Route.GRAPH


@pytest.mark.parametrize("route", EVERY)
def test_a_broken_row_is_marked_and_the_others_are_not(route: Route) -> None:
    batch = rows(1).to(torch.float64)
    evaluator = _evaluator(Objective.from_module(small_net()).to(torch.float64), batch, rows=3)
    guesses = _guesses(batch, 3)
    evaluator.route = route
    whole = evaluator(guesses)
    guesses[1, 0] = torch.nan
    found = evaluator(guesses)
    assert found.finite.tolist() == [True, False, True]
    torch.testing.assert_close(found.gradient[[0, 2]], whole.gradient[[0, 2]], rtol=1e-12, atol=0)


def test_the_fit_of_a_large_update_is_taken_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = rows(1).to(torch.float64)
    problem = _evaluator(Objective.from_module(small_net()).to(torch.float64), batch, rows=1)._problem
    guess = _guesses(batch, 1)[0]
    released = problem.mean(guess, problem.labels)
    whole = problem.fit(guess)
    monkeypatch.setattr("gradleak.attacks.inversion.problem.PIECE", 7)
    parts = problem.fit(guess)
    expected = float((released - problem.target).norm() / problem.target.norm())
    for fit in (whole, parts):
        assert fit.relative_residual == pytest.approx(expected, rel=1e-12)
        assert fit.scale == pytest.approx(float(released @ problem.target / released.square().sum()), rel=1e-12)
        assert fit.cosine == pytest.approx(float(torch.cosine_similarity(released, problem.target, 0)), rel=1e-12)


def test_a_large_model_keeps_its_graph_where_compiling_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LOCKSTEP_ENTRIES", 10)
    batch = rows(1).to(torch.float64)
    objective = Objective.from_module(small_net()).to(torch.float64)
    plain, asked = (_evaluator(objective, batch, rows=2, compiled=compiled) for compiled in (False, True))
    guesses = _guesses(batch, 2)
    assert asked.route is Route.GRAPH
    assert torch.equal(plain(guesses).gradient, asked(guesses).gradient)


def test_a_compiler_that_fails_is_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_, **__):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nmore lines")

    monkeypatch.setattr(torch, "compile", lambda function, **_: refuse)
    evaluator = _evaluator(Objective.from_module(small_net()), rows(1), rows=1, compiled=True)
    with pytest.raises(UnsupportedError, match=r"No working C\+\+ compiler found\); run it with compile=False"):
        evaluator(_guesses(rows(1), 1))


@pytest.mark.slow
def test_a_model_is_compiled_once_for_all_items_of_its_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attacks get copies of the model, and a compiler could take each for another one: torch gives up after eight."""
    made: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        made.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    release, compiled = (
        Release(FedSGD()),
        Inversion(stages=(SearchStage(optimizer=Adam(), iterations=2),), compile=True),
    )
    for item in range(12):
        objective = Objective.from_module(_seeded(lambda: nn.Linear(12, 3)).float(), mask_seed=item)
        batch = rows(1)
        update = release(objective, batch.with_inputs(batch.inputs + item), torch.Generator())
        knowledge = HonestButCurious().disclose(objective, release, batch)
        found, plain = (
            replace(compiled, compile=way)(update, knowledge, generator=torch.Generator()) for way in (True, False)
        )
        assert found.details["route"] == "compiled"
        assert found.loss == pytest.approx(plain.loss, rel=1e-4)
    assert len(made) == 1


@pytest.mark.slow
@pytest.mark.parametrize("starts", [1, 3])
def test_the_compiled_derivative_is_the_same(starts: int) -> None:
    batch = rows(1)
    objective = Objective.from_module(small_net())
    evaluator, compiled = (
        _evaluator(objective, batch, rows=starts, priors=(MeanSquare(weight=0.1),), compiled=compile)
        for compile in (False, True)
    )
    guesses = _guesses(batch, starts)
    assert compiled.route is Route.COMPILED
    for shift in (0.0, 0.3):
        expected, found = evaluator(guesses + shift), compiled(guesses + shift)
        torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(found.matching, expected.matching, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_what_cannot_be_compiled_is_refused_and_not_traced_back() -> None:
    class Peeking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            # A number read off a tensor: no compiler takes that along under a derivative.
            return self.layer(x) * float(self.layer.weight.detach().sum() > -1e9)

    objective = Objective.from_module(_seeded(Peeking).float())
    release = Release(FedSGD())
    update = release(objective, rows(1), torch.Generator())
    knowledge = HonestButCurious().disclose(objective, release, rows(1))
    attack = Inversion(stages=(SearchStage(optimizer=Adam(), iterations=2),), compile=True)
    with pytest.raises(UnsupportedError, match="compile=False"):
        attack(update, knowledge, generator=torch.Generator())


@pytest.mark.slow
def test_a_prior_that_watches_layers_cannot_be_compiled_and_is_refused() -> None:
    make, batch, _, _ = MODELS["normalized"]
    objective = Objective.from_module(_seeded(make))
    evaluator = _evaluator(objective, batch, rows=1, priors=(BatchNormStatistics(weight=0.1),), compiled=True)
    with pytest.raises(UnsupportedError, match="compile=False"):
        evaluator(_guesses(batch, 1))
