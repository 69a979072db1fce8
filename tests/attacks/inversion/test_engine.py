"""The lockstep loop: what is kept, what is survived, and that rows do not know of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import (
    Adam,
    CosineDistance,
    GaussNewton,
    Guess,
    Inversion,
    LabelPolicy,
    Matching,
    SearchStage,
    SquaredError,
    StepDecay,
    TotalVariation,
)
from gradleak.attacks.inversion import evaluation
from gradleak.core import Batch, Domain, DomainKind, HonestButCurious, Objective, Release, Update
from gradleak.protocols import FedSGD
from gradleak.results import InputError, KnowledgeError, Outcome
from tests.attacks.setting import Setting, rows, setting, small_net


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _inversion(iterations: int = 60, **changes) -> Inversion:
    stage = SearchStage(optimizer=Adam(learning_rate=0.05), iterations=iterations)
    return replace(Inversion(matching=SquaredError(), stages=(stage,)), **changes)


def _three() -> tuple[list[Setting], list[torch.Generator]]:
    """Three targets of one model: one objective, as one server has."""
    cases = [setting(small_net(), rows(label, seed=label)) for label in range(3)]
    first = cases[0].knowledge
    cases = [replace(case, knowledge=replace(first, targets=case.knowledge.targets)) for case in cases]
    return cases, [_generator(seed) for seed in range(3)]


def test_lockstep_over_targets_and_starts_is_the_same_as_one_by_one() -> None:
    attack = _inversion(restarts=3)
    cases, generators = _three()
    together = attack.many([c.update for c in cases], cases[0].knowledge, generators=generators)
    for number, (case, found) in enumerate(zip(cases, together, strict=True)):
        alone = attack(case.update, case.knowledge, generator=_generator(number))
        assert found.details["group"] == 3
        assert alone.details["group"] == 1
        assert found.targets.tolist() == [number]
        assert found.details["chosen_start"] == alone.details["chosen_start"]
        torch.testing.assert_close(found.inputs, alone.inputs, atol=1e-8, rtol=0)
        assert found.history == pytest.approx(alone.history, rel=1e-6)


def test_a_target_depends_on_its_own_generator_and_the_group_alone() -> None:
    attack = _inversion(restarts=2)
    cases, generators = _three()
    updates = [c.update for c in cases]
    first = attack.many(updates, cases[0].knowledge, generators=generators)
    other = [updates[0], updates[2], updates[1]]
    second = attack.many(other, cases[0].knowledge, generators=[_generator(seed) for seed in (0, 7, 8)])
    assert torch.equal(first[0].inputs, second[0].inputs)


def test_the_loop_gives_what_lockstep_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    case = setting(small_net(), rows(1))
    attack = _inversion(restarts=3)
    lockstep = attack(case.update, case.knowledge, generator=_generator())

    def refuse(*_, **__):
        def call(*_):
            raise RuntimeError("no batching rule")

        return call

    monkeypatch.setattr(evaluation.torch.func, "vmap", refuse)
    loop = attack(case.update, case.knowledge, generator=_generator())
    assert (lockstep.details["route"], loop.details["route"]) == ("lockstep", "graph")
    torch.testing.assert_close(lockstep.inputs, loop.inputs, atol=1e-8, rtol=0)


class Recurrent(nn.Module):
    """A GRU, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def test_a_recurrent_network_falls_back_to_the_loop() -> None:
    with torch.random.fork_rng():
        net = Recurrent()
    domain = Domain(shape=(5, 4), kind=DomainKind.SIGNAL)
    truth = Batch(torch.rand(1, 5, 4, generator=_generator()), torch.tensor([2]), domain)
    case = setting(net, truth)
    found = _inversion(40, restarts=2)(case.update, case.knowledge, generator=_generator())
    assert found.details["route"] == "graph"
    assert found.loss < 0.5 * found.history[0]


def test_the_start_and_the_iterate_with_the_smallest_matching_loss_are_kept() -> None:
    case = setting(small_net(), rows(1))
    # Steps far too long, so that the last iterate is not the best.
    stage = SearchStage(optimizer=Adam(learning_rate=0.6), iterations=15)
    found = _inversion(restarts=5, stages=(stage,))(case.update, case.knowledge, generator=_generator())
    losses = found.details["start_losses"]
    assert found.loss == min(losses) == losses[found.details["chosen_start"]]
    assert found.loss == min(found.history)
    assert found.history[-1] > found.loss
    assert len(found.history) == found.iterations == 16
    # The claim stands for its loss: the residual is computed anew from the inputs that are returned.
    assert found.details["relative_residual"] ** 2 == pytest.approx(found.loss, rel=1e-9)


def test_the_prior_steers_but_does_not_choose() -> None:
    image = Domain.image(channels=1, height=3, width=4)
    net = nn.Sequential(nn.Flatten(), small_net())
    truth = Batch(torch.rand(1, 1, 3, 4, generator=_generator()), torch.tensor([1]), image)
    case = setting(net, truth)
    plain, smooth = (
        _inversion(priors=priors)(case.update, case.knowledge, generator=_generator())
        for priors in ((), (TotalVariation(weight=10.0),))
    )
    variation = TotalVariation(weight=1.0)
    assert float(variation(Guess(inputs=smooth.inputs, domain=image))) < float(
        variation(Guess(inputs=plain.inputs, domain=image))
    )
    assert smooth.loss == min(smooth.history)


class Rotten(Matching):
    """A squared error that is NaN on chosen calls; only for one start, since it counts calls."""

    def __init__(self, *calls: int) -> None:
        self.calls, self.count = calls, 0

    def __call__(self, candidate: Tensor, target: Tensor) -> Tensor:
        self.count += 1
        value = SquaredError()(candidate, target)
        return value * torch.nan if self.count in self.calls or not self.calls else value


@pytest.mark.parametrize("calls", [(5,), (1,), (3, 4, 20)])
def test_nan_in_the_middle_is_survived(calls: tuple[int, ...]) -> None:
    """U38."""
    case = setting(small_net(), rows(1))
    found = _inversion(matching=Rotten(*calls))(case.update, case.knowledge, generator=_generator())
    assert found.details["non_finite"] == len(calls)
    assert found.outcome is Outcome.BUDGET_SPENT
    assert found.loss < 0.2 * found.history[-1] or found.loss < 0.1
    assert all(value == value for value in found.history)


def test_nan_from_start_to_end_is_no_claim() -> None:
    """U38: a failed optimizer is no number and no "safe"."""
    case = setting(small_net(), rows(1))
    found = _inversion(matching=Rotten())(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_FINITE
    assert found.inputs is None
    assert found.loss is None
    assert found.iterations < 20


def test_the_box_is_that_of_the_normalized_domain() -> None:
    domain = Domain(shape=(12,), low=0.0, high=2.0, mean=(1.0,), std=(0.5,), kind=DomainKind.TABULAR)
    truth = Batch(2 * torch.rand(1, 12, generator=_generator()), torch.tensor([1]), domain)
    case = setting(small_net(), truth)
    stage = SearchStage(optimizer=Adam(learning_rate=3.0), iterations=5)
    found = _inversion(stages=(stage,))(case.update, case.knowledge, generator=_generator())
    assert float(found.inputs.min()) >= -2.0
    assert float(found.inputs.max()) <= 2.0


def test_patience_ends_on_a_plateau() -> None:
    case = setting(small_net(), rows(1))
    stage = SearchStage(optimizer=Adam(learning_rate=1e-9), iterations=100)
    found = _inversion(stages=(stage,), patience=7)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.PLATEAU
    assert found.iterations <= 9


def test_a_search_that_explains_the_update_stops_and_says_so() -> None:
    truth = Batch(torch.rand(1, 12, generator=_generator(4)), torch.tensor([2]), rows(0).domain)
    case = setting(nn.Sequential(nn.Linear(12, 3)).requires_grad_(), truth, dtype=torch.float32)
    stage = SearchStage(
        optimizer=Adam(learning_rate=0.05, schedule=StepDecay(milestones=(0.3, 0.5, 0.7))), iterations=3000
    )
    found = _inversion(stages=(stage,))(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.CONVERGED
    assert found.iterations < 3000
    assert case.error(found.inputs) < 1e-10


def test_tiny_gradients_are_not_success() -> None:
    """U45."""
    case = setting(small_net(), rows(1))
    tiny = {
        name: 1e-12 * torch.randn(t.shape, generator=_generator(), dtype=t.dtype)
        for name, t in case.update.tensors.items()
    }
    for attack in (_inversion(), _inversion(matching=CosineDistance())):
        found = attack(Update(tensors=tiny), case.knowledge, generator=_generator())
        assert found.outcome is Outcome.BUDGET_SPENT
        assert found.loss > 0.5


def test_stages_go_on_from_the_best() -> None:
    case = setting(small_net(), rows(1))
    one = SearchStage(optimizer=Adam(learning_rate=0.05), iterations=30)
    two = SearchStage(optimizer=Adam(learning_rate=0.005), iterations=20)
    found = _inversion(stages=(one, two))(case.update, case.knowledge, generator=_generator())
    assert found.iterations == 31 + 21
    assert found.history[31] == min(found.history[:31])
    assert found.plain_gradients == 3 * 52 == _inversion(stages=(one, two)).estimate(case.knowledge)


def test_chunks_of_the_lockstep_change_nothing_but_memory() -> None:
    """U62."""
    case = setting(small_net(), rows(1))
    whole = _inversion(restarts=5)(case.update, case.knowledge, generator=_generator())
    parts = _inversion(restarts=5, max_bytes=2 * 8 * 995 * 8)(case.update, case.knowledge, generator=_generator())
    torch.testing.assert_close(whole.inputs, parts.inputs, atol=1e-8, rtol=0)


def test_labels_are_disclosed_recovered_or_optimized_and_it_is_said() -> None:
    disclosed = setting(small_net(), rows(2), threat=HonestButCurious(targets=True))
    found = _inversion()(disclosed.update, disclosed.knowledge, generator=_generator())
    assert (found.details["labels"], found.targets.tolist()) == ("disclosed", [2])
    assert "disclosed" in found.note
    hidden = setting(small_net(), rows(2))
    found = _inversion()(hidden.update, hidden.knowledge, generator=_generator())
    assert (found.details["labels"], found.targets.tolist()) == ("recovered", [2])
    joint = _inversion(labels=LabelPolicy.OPTIMIZE)
    found = joint(hidden.update, hidden.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert found.targets.shape == (1, 3)
    torch.testing.assert_close(found.targets.sum(1), torch.ones(1, dtype=torch.float64))
    batch = setting(small_net(), rows(0, 0, 2))
    found = _inversion()(batch.update, batch.knowledge, generator=_generator())
    assert (found.details["labels"], found.targets.tolist()) == ("recovered", [0, 0, 2])
    assert found.details["label_confidence"] > 0.9
    soft = Batch(rows(0, 1).inputs, torch.tensor([[0.6, 0.3, 0.1], [0.15, 0.5, 0.35]]), rows(0).domain)
    mixed = setting(small_net(), soft)
    found = _inversion()(mixed.update, mixed.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert "no claim" in found.note


def test_labels_of_other_losses_have_to_be_disclosed() -> None:
    truth = Batch(rows(0).inputs, torch.rand(1, 3, generator=_generator()), rows(0).domain)
    case = setting(small_net(), truth, loss=nn.L1Loss())
    with pytest.raises(KnowledgeError, match="disclose targets"):
        _inversion()(case.update, case.knowledge, generator=_generator())


def test_disclosed_dropout_masks_are_the_clients_and_the_global_rng_stays() -> None:
    net = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Tanh(), nn.Linear(32, 3))
    objective = Objective.from_module(net, mode="train").to(torch.float64)
    truth = rows(1).to(torch.float64)
    release = Release(FedSGD())
    update = release(objective, truth, _generator())
    knowledge = HonestButCurious(masks=True).disclose(objective, release, truth)
    before = torch.random.get_rng_state()
    found = _inversion(200)(update, knowledge, generator=_generator())
    assert torch.equal(before, torch.random.get_rng_state())
    assert found.loss < 1e-3


def test_progress_is_told_now_and_then() -> None:
    case, calls = setting(small_net(), rows(1)), []
    _inversion(50)(case.update, case.knowledge, generator=_generator(), progress=lambda *c: calls.append(c))
    done, planned, losses = zip(*calls, strict=True)
    assert done == (1, 11, 21, 31, 41, 51, 51)
    assert set(planned) == {51}
    assert list(losses) == sorted(losses, reverse=True)


def test_senseless_counts_are_refused() -> None:
    for bad in (0, "2", 1.5, True):
        with pytest.raises(InputError, match=r"Inversion\.restarts: expected a whole number of at least 1"):
            Inversion(restarts=bad)
        with pytest.raises(InputError, match=r"Inversion\.patience: expected a whole number of at least 1"):
            Inversion(patience=bad)
        for name in ("iterations", "restart_after"):
            with pytest.raises(InputError, match=rf"SearchStage\.{name}: expected"):
                SearchStage(**{"optimizer": Adam(), "iterations": 5, name: bad})
    with pytest.raises(InputError, match="expected at least one stage"):
        Inversion(stages=())


def test_a_fault_of_the_model_is_not_swallowed() -> None:
    class Faulty(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the model is broken")

    case = setting(small_net(), rows(1))
    with torch.random.fork_rng():
        objective = Objective.from_module(Faulty(12, 3))
    update = Update(tensors={name: torch.ones_like(t) for name, t in objective.params.items()})
    knowledge = replace(case.knowledge, objective=objective, targets=torch.tensor([0]))
    with pytest.raises(RuntimeError, match="the model is broken"):
        _inversion()(update, knowledge, generator=_generator())


@pytest.mark.parametrize("attack", [Inversion, GaussNewton])
def test_a_label_policy_by_name_is_that_policy(attack: type[Inversion] | type[GaussNewton]) -> None:
    # As text it equaled the member and was not it: labels were optimized in silence.
    assert attack(labels="recover").labels is LabelPolicy.RECOVER  # type: ignore[arg-type]
    with pytest.raises(InputError, match="labels: expected one of recover, optimize, got 'guess'"):
        attack(labels="guess")  # type: ignore[arg-type]
