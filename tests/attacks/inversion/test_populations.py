"""Populations: CMA-ES against the package called by hand, joint candidates, samples, and going on after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cma
import numpy as np
import pytest
import torch
from torch import Tensor

from gradleak.attacks import (
    CMAES,
    IGIMS,
    Adam,
    Attack,
    Checkpoint,
    CosineDistance,
    HandOn,
    Inversion,
    LabelPolicy,
    LatentKL,
    Latents,
    Matching,
    SearchStage,
    SquaredError,
)
from gradleak.attacks.inversion.evaluation import Evaluator, Rules
from gradleak.attacks.inversion.optimizers import Schedule
from gradleak.attacks.inversion.problem import Problem
from gradleak.attacks.inversion.variables import Code
from gradleak.core import Batch, HonestButCurious, Reconstruction
from gradleak.results import InputError, Outcome
from tests.attacks.setting import ROW, Setting, rows, setting, small_generator, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _case(*labels: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Setting:
    """Rows that the generator can make, mixed with some noise that it cannot."""
    prior = small_generator()
    images = prior(torch.randn(len(labels), 3, generator=_generator(seed + 5))) + 0.01 * rows(*labels).inputs
    return setting(
        small_net(),
        Batch(images, torch.tensor(labels), ROW),
        threat=HonestButCurious(generator=prior),
        dtype=dtype,
    )


def _search(population: int = 8, iterations: int = 6, **changes) -> Inversion:
    optimizer = CMAES(population=population, hand_on=HandOn.BEST)
    given = {
        "matching": CosineDistance(),
        "variables": Latents(),
        "priors": (LatentKL(weight=0.1),),
        "stages": (SearchStage(optimizer=optimizer, iterations=iterations),),
    }
    return Inversion(**{**given, **changes})


def _strategy(size: int, seed: int, population: int) -> cma.CMAEvolutionStrategy:
    generator = _generator(seed)
    options = {
        "popsize": population,
        "seed": np.nan,
        "randn": lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64).numpy(),
        "verbose": -9,
        "verb_log": 0,
    }
    return cma.CMAEvolutionStrategy(np.zeros(size), 1.0, options)


def _loss_by_hand(case: Setting, latents: Tensor) -> tuple[float, float]:
    """1 − cos of torch's own gradients, with and without the KL of the latents (b, 3)."""
    model = small_net().double()
    prior = case.knowledge.generator.to(torch.float64)
    outputs = model(prior(latents))
    # Labels as they are recovered: in ascending order.
    loss = torch.nn.functional.cross_entropy(outputs, case.truth.targets.sort().values)
    made = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))])
    seen = torch.cat([case.update.tensors[name].reshape(-1) for name, _ in model.named_parameters()])
    matching = 1 - torch.nn.functional.cosine_similarity(made, seen, dim=0)
    mean, variance = latents.mean(dim=1), latents.var(dim=1, unbiased=False)
    kl = ((mean**2 + variance - 1 - (variance + 1e-10).log()) / 2).mean()
    return float(matching + 0.1 * kl), float(matching)


@pytest.mark.parametrize("labels", [(1,), (2, 0)])
def test_the_package_called_by_hand_goes_the_same_way(labels: tuple[int, ...]) -> None:
    """In a batch the k-th draws of all examples are one candidate, and all distributions learn its one loss."""
    case, population = _case(*labels), 8
    found = _search(population)(case.update, case.knowledge, generator=_generator())
    drawn = _generator()
    torch.randn((1, 3 * len(labels)), generator=drawn, dtype=torch.float64)  # the latents of the start
    seeds = torch.randint(2**62, (1, len(labels)), generator=drawn)[0]
    strategies = [_strategy(3, int(seed), population) for seed in seeds]
    history, best = [], (np.inf, None)
    for _ in range(6):
        asked = [strategy.ask() for strategy in strategies]
        joint = [torch.tensor(np.stack([draws[k] for draws in asked])) for k in range(population)]
        losses = [_loss_by_hand(case, latents) for latents in joint]
        for strategy, draws in zip(strategies, asked, strict=True):
            strategy.tell(draws, [total for total, _ in losses])
        nearest = min(range(population), key=lambda k: losses[k][1])
        history.append(losses[nearest][1])
        if losses[nearest][1] < best[0]:
            best = (losses[nearest][1], joint[nearest])
    assert found.history == pytest.approx(history, rel=1e-6)
    assert found.loss == pytest.approx(best[0], rel=1e-6)
    made = case.knowledge.generator.to(torch.float64)(best[1]).detach()
    torch.testing.assert_close(found.inputs, made, atol=1e-7, rtol=0)


def test_a_value_costs_one_plain_gradient_and_a_derivative_three() -> None:
    case = _case(1)
    only = _search(8, 6)
    found = only(case.update, case.knowledge, generator=_generator())
    assert found.plain_gradients == only.estimate(case.knowledge) == 8 * 6
    assert found.iterations == len(found.history) == 6
    assert found.details["route"] == found.details["populations"] == "lockstep"
    attack = IGIMS(rounds=3, latent_iterations=4, weight_iterations=5, population=7, restarts=2, hand_on="sample")
    mixed = attack(case.update, case.knowledge, generator=_generator())
    # A sample a round is looked at, and the last weights of a round.
    assert mixed.plain_gradients == attack.estimate(case.knowledge) == 2 * 3 * (7 * 4 + 1 + 3 * 6)
    assert mixed.iterations == 3 * (4 + 1 + 6)


def test_the_sample_stands_beside_the_best_candidate() -> None:
    case = _case(1)
    attack = IGIMS(rounds=2, latent_iterations=3, weight_iterations=2, population=6, latent_kl=0.0, hand_on="sample")
    found = attack(case.update, case.knowledge, generator=_generator())
    samples, history = found.details["samples"], found.history
    # One round: three populations, the sample, three values of the weights' stage.
    assert [entry["best"] for entry in samples] == [min(history[:3]), min(history[7:10])]
    assert [entry["sample"] for entry in samples] == [history[3], history[10]]
    # The weights begin at the sample, not at the best candidate; the next populations at the weights' best.
    assert [history[4], history[11]] == pytest.approx([entry["sample"] for entry in samples])
    best = replace(attack, hand_on="best")(case.update, case.knowledge, generator=_generator())
    assert best.details["samples"] == []
    assert best.history[:3] == history[:3]
    assert best.history[3] == pytest.approx(min(history[:3]))


def test_the_best_candidate_is_none_of_what_the_stage_began_with() -> None:
    case = _case(1)
    # So strong a second stage that later populations, around where the first round was, never come near it.
    attack = IGIMS(
        rounds=2, latent_iterations=2, weight_iterations=150, population=4, latent_kl=0.0, weight_rate=0.03, hand_on="sample"
    )  # fmt: skip
    found = attack(case.update, case.knowledge, generator=_generator())
    after = found.history[154:156]
    assert min(after) > min(found.history[:154])
    assert found.details["samples"][1]["best"] == min(after)


def test_samples_of_a_target_that_ended_do_not_depend_on_the_others() -> None:
    cases = [_case(1, seed=0), _case(1, seed=3)]
    knowledge = cases[0].knowledge
    attack = IGIMS(
        rounds=3,
        latent_iterations=4,
        weight_iterations=12,
        population=4,
        latent_kl=0.0,
        weight_rate=1e-2,
        patience=5,
        hand_on="sample",
    )
    together = attack.many([c.update for c in cases], knowledge, generators=[_generator(5), _generator(6)])
    # The first runs out of patience in its first round, the second goes through all of them.
    assert [found.outcome for found in together] == [Outcome.PLATEAU, Outcome.BUDGET_SPENT]
    assert [len(found.details["samples"]) for found in together] == [1, 3]
    for case, seed, found in zip(cases, (5, 6), together, strict=True):
        alone = attack(case.update, knowledge, generator=_generator(seed)).details["samples"]
        assert [entry["best"] for entry in found.details["samples"]] == pytest.approx([e["best"] for e in alone])


def test_a_sample_has_the_mean_and_covariance_of_the_distribution() -> None:
    populations = CMAES(population=8).begin(2, torch.tensor([[3]]))
    for _ in range(12):
        asked = populations.ask(0)[:, 0]
        populations.tell(0, (asked[:, 0] + 2 * asked[:, 1] - 3) ** 2 + 0.1 * asked.square().sum(dim=1))
    strategy = populations._strategies[0][0]
    normal = torch.randn(4_000, 1, 2, generator=_generator(), dtype=torch.float64)
    drawn = torch.stack([populations.sample(0, entry)[0] for entry in normal])
    covariance = strategy.sigma**2 * strategy.sm.C
    spread = float(np.sqrt(np.diag(covariance)).max())
    assert np.abs(drawn.mean(dim=0).numpy() - strategy.mean).max() < 0.1 * spread
    assert np.abs(np.cov(drawn.numpy().T) - covariance).max() < 0.1 * spread**2


def test_neither_global_generator_is_touched() -> None:
    case = _case(1)
    before, torch_before = np.random.get_state(), torch.random.get_rng_state()  # noqa: NPY002
    _search()(case.update, case.knowledge, generator=_generator())
    after = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1])
    assert before[2:] == after[2:]
    assert torch.equal(torch_before, torch.random.get_rng_state())


def test_starts_and_targets_do_not_know_of_each_other() -> None:
    cases = [_case(1, seed=0), _case(1, seed=3)]
    knowledge = cases[0].knowledge
    attack = _search(restarts=2)
    together = attack.many([c.update for c in cases], knowledge, generators=[_generator(5), _generator(6)])
    for case, seed, found in zip(cases, (5, 6), together, strict=True):
        alone = attack(case.update, knowledge, generator=_generator(seed))
        assert found.history == pytest.approx(alone.history, rel=1e-9)
        assert found.details["start_losses"] == pytest.approx(alone.details["start_losses"], rel=1e-9)
    assert len(set(together[0].details["start_losses"])) == 2


def test_candidates_are_evaluated_in_one_call_in_chunks_or_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(1, 2)
    case = replace(case, knowledge=replace(case.knowledge, generator=case.knowledge.generator.to(torch.float64)))
    problem = Problem.pose(case.update, case.knowledge, pixels=Latents(), policy=LabelPolicy.RECOVER)
    rules = Rules(matching=SquaredError(), priors=(LatentKL(weight=0.2),), max_bytes=2**30, compile=False)
    row = torch.zeros(6, dtype=torch.float64)
    candidates = Code(latents=torch.randn(5, 2, 3, generator=_generator(), dtype=torch.float64))
    whole = Evaluator([problem], rules, 1).values(row, 0, candidates)
    chunked = Evaluator([problem], replace(rules, max_bytes=1), 1).values(row, 0, candidates)
    monkeypatch.setattr("gradleak.attacks.inversion.evaluation.LOCKSTEP_ENTRIES", 10)
    evaluator = Evaluator([problem], rules, 1)
    assert not evaluator.batches_values
    single = evaluator.values(row, 0, candidates)
    for total, matching in (chunked, single):
        torch.testing.assert_close(total, whole[0])
        torch.testing.assert_close(matching, whole[1])
    # And the values are those that a derivative comes with.
    for number, latents in enumerate(candidates.latents):
        evaluation = evaluator(latents.reshape(1, -1))
        torch.testing.assert_close(evaluation.matching[0], whole[1][number])


class Rotten(Matching):
    """A squared error that is NaN for some candidates, or for all."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        value = SquaredError()(candidate, target)
        return torch.where(value > self.threshold, torch.nan, value)


def test_candidates_that_are_no_number_rank_last() -> None:
    case = _case(1)
    plain = _search(12, 12, matching=SquaredError(), priors=())(case.update, case.knowledge, generator=_generator())
    rotten = _search(12, 12, matching=Rotten(plain.history[0] * 1.2), priors=())(
        case.update, case.knowledge, generator=_generator()
    )
    assert rotten.outcome is Outcome.BUDGET_SPENT
    assert rotten.loss < rotten.history[0]
    assert all(np.isfinite(rotten.history))


def test_a_population_without_any_number_is_no_claim() -> None:
    case = _case(1)
    found = _search(6, 20, matching=Rotten(-1.0), priors=())(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_FINITE
    assert found.inputs is None
    assert found.iterations < 20
    assert found.details["non_finite"] > 10


def test_patience_and_the_floor_end_populations() -> None:
    case = setting(
        small_net(),
        Batch(small_generator()(torch.zeros(1, 3)), torch.tensor([1]), ROW),
        threat=HonestButCurious(generator=small_generator()),
        dtype=torch.float32,
    )
    found = _search(12, 200, matching=SquaredError(), priors=())(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.iterations < 200
    idle = _search(6, 60, patience=2)(_case(1).update, _case(1).knowledge, generator=_generator())
    assert idle.outcome is Outcome.PLATEAU
    assert idle.plain_gradients == 6 * idle.iterations < 6 * 60


class Stopped(Exception):
    """The process ends here."""


@pytest.mark.parametrize(("labels", "at"), [((1,), 11), ((1,), 21), ((1,), 31), ((1,), 41), ((2, 0), 31)], ids=str)
def test_an_interrupted_search_goes_on_with_the_same_bits(labels: tuple[int, ...], at: int, tmp_path: Path) -> None:
    """Within the populations of a first and a later round, and within the weights of each."""
    case = _case(*labels, dtype=torch.float32)
    attack = IGIMS(
        rounds=2, latent_iterations=12, weight_iterations=8, population=6, restarts=2, latent_kl=0.0, hand_on="sample"
    )
    whole = _run(attack, case)

    def stop(done: int, planned: int, loss: float) -> None:
        if done >= at:
            raise Stopped

    with pytest.raises(Stopped):
        _run(attack, case, tmp_path / "state", stop)
    assert (tmp_path / "state").exists()
    resumed = _run(attack, case, tmp_path / "state")
    assert torch.equal(whole.inputs, resumed.inputs)
    assert list(whole.history) == list(resumed.history)
    assert dict(whole.details) == dict(resumed.details)
    assert whole.plain_gradients == resumed.plain_gradients
    assert not (tmp_path / "state").exists()


def test_the_state_of_another_generator_is_refused(tmp_path: Path) -> None:
    case = _case(1)
    attack = IGIMS(rounds=1, latent_iterations=12, weight_iterations=8, population=6)

    def stop(*_: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        _run(attack, case, tmp_path / "state", stop)
    other = replace(case, knowledge=replace(case.knowledge, generator=small_generator(9)))
    with pytest.raises(InputError, match="expected the state of this attack"):
        _run(attack, other, tmp_path / "state")


def _run(attack: Attack, case: Setting, path: Path | None = None, progress=None) -> Reconstruction:
    return attack(
        case.update,
        case.knowledge,
        generator=_generator(4),
        progress=progress,
        checkpoint=None if path is None else Checkpoint(path=path, seconds=0),
    )


def test_what_is_out_of_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"CMAES\.population: expected a whole number of at least 2, got 1"):
        CMAES(population=1)
    with pytest.raises(InputError, match=r"CMAES\.sigma: expected a finite positive number, got 0\.0"):
        CMAES(sigma=0.0)
    with pytest.raises(InputError, match="hand_on: expected one of sample, best, got 'mean'"):
        CMAES(hand_on="mean")


def test_a_schedule_runs_over_all_rounds() -> None:
    """Two rounds of five steps count ten: the last steps of the first round are not yet the shortest."""
    seen: list[tuple[int, int]] = []

    class Watched(Schedule):
        def __call__(self, evaluation: int, evaluations: int) -> float:
            seen.append((evaluation, evaluations))
            return 1.0

    case = _case(1)
    stage = SearchStage(optimizer=Adam(schedule=Watched()), iterations=5, part="latents")
    _search(stages=(stage,), rounds=2)(case.update, case.knowledge, generator=_generator())
    assert seen == [(number, 10) for number in range(10)]
