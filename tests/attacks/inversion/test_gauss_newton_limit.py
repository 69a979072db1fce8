"""The limit of Levenberg-Marquardt in plain gradients: never passed, and what was found until then is claimed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import (
    DenseSteps,
    GaussNewton,
    InvertingGradients,
    KrylovSteps,
    RowSampledSteps,
    SketchedSteps,
    Steps,
)
from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.auditing import load_plan
from gradleak.core import Batch, HonestButCurious, Objective, Release
from gradleak.defenses import Clip, GaussianNoise, SpectralNoise
from gradleak.operators import Linearization
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, Outcome, UnsupportedError
from tests.attacks.setting import Setting, rows, setting, small_net
from tests.pairs import covering

LABELS = HonestButCurious(targets=True)
LIMITS = (1, 7, 150, 1100)

CASES = {
    "smooth": lambda: setting(small_net(), rows(1)),
    # A norm that is not reached: `Peel` would read the gradient itself at once.
    "relu": lambda: setting(small_net("relu", seed=3), rows(1, seed=3), defenses=[Clip(max_norm=1e3)]),
    "batch": lambda: setting(small_net("relu"), rows(0, 2), threat=LABELS),
    "local steps": lambda: setting(
        small_net(), rows(0, 1), protocol=FedAvg(learning_rate=0.1, epochs=2), threat=LABELS
    ),
    "noise": lambda: setting(small_net(), rows(2), defenses=[GaussianNoise(std=1e-2)]),
    "float32": lambda: setting(small_net(), rows(2), dtype=torch.float32),
    "noise unknown": lambda: setting(
        small_net(), rows(2), defenses=[GaussianNoise(std=1e-3)], threat=HonestButCurious(defenses=False)
    ),
}

STEPS = (None, SketchedSteps(), RowSampledSteps(), KrylovSteps(iterations=8))


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many vectors were really multiplied by the derivative or the adjoint, one entry a call."""
    computed: list[int] = []
    inside: list[str] = []

    def watch(name: str, each: int) -> None:
        plain = getattr(Linearization, name)

        def counted(self: Linearization, block: Tensor) -> Tensor:
            # A product with AᵀA may be made of two others, which are not to be counted again.
            if not inside:
                computed.append(each * len(block))
            inside.append(name)
            out: Tensor = plain(self, block)
            inside.pop()
            return out

        monkeypatch.setattr(Linearization, name, counted)

    watch("push", 1)
    watch("pull", 1)
    watch("normal", 2)
    return computed


@covering("name, steps", list(CASES), STEPS, pairs=False)
def test_the_limit_is_never_passed(name: str, steps: Steps | None) -> None:
    case = CASES[name]()
    release = case.knowledge.release.protocol.plain_gradients(case.knowledge.batch_size)
    for limit in LIMITS:
        if limit < release:
            continue
        found = GaussNewton(steps=steps, starts=50, max_steps=12, warm_iterations=20, max_plain_gradients=limit)(
            case.update, case.knowledge, generator=_generator()
        )
        assert found.plain_gradients <= limit
        counts = found.details
        spent = release * (counts["releases"] + 2 * counts["products"]) + counts["warm_plain_gradients"]
        assert found.plain_gradients == pytest.approx(spent)
        assert found.inputs is not None
        if found.outcome is Outcome.CONVERGED:
            assert case.error(found.inputs) < (1e-2 if name == "noise" else 1e-3)
        elif limit < 1000 and name != "noise":
            assert "ended by max_plain_gradients" in found.note


@pytest.mark.parametrize(("steps", "limit"), [(DenseSteps(), 100), (KrylovSteps(iterations=8), 300)], ids=repr)
def test_what_is_counted_is_what_is_computed(steps: Steps, limit: float, products: list[int]) -> None:
    case = CASES["relu"]()
    found = GaussNewton(steps=steps, starts=1, max_steps=12, free_gates=False, max_plain_gradients=limit)(
        case.update, case.knowledge, generator=_generator()
    )
    assert found.outcome is Outcome.BUDGET_SPENT
    assert 0 < sum(products) == found.details["products"]
    assert 0.5 * limit < found.plain_gradients <= limit


def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    case = CASES["relu"]()
    free = GaussNewton(starts=3, warm_iterations=30)
    one = free(case.update, case.knowledge, generator=_generator())
    limited = GaussNewton(starts=3, warm_iterations=30, max_plain_gradients=1e9)
    other = limited(case.update, case.knowledge, generator=_generator())
    assert torch.equal(one.inputs, other.inputs)
    assert (one.history, one.note, one.plain_gradients) == (other.history, other.note, other.plain_gradients)


def test_a_smaller_limit_is_the_beginning_of_a_larger_one() -> None:
    case = setting(small_net("relu", seed=3), rows(1, seed=3))

    def history(limit: float) -> list[float]:
        steps = KrylovSteps(iterations=8)
        attack = GaussNewton(steps=steps, starts=1, peel=False, free_gates=False, max_plain_gradients=limit)
        return list(attack(case.update, case.knowledge, generator=_generator()).history)

    lengths = []
    whole = history(2000)
    for limit in (1, 60, 150, 400, 900):
        part = history(limit)
        assert part == whole[: len(part)]
        lengths.append(len(part))
    assert lengths == sorted(lengths)
    assert lengths[0] == 1 < lengths[-1]


def test_starts_go_on_until_the_limit_and_the_best_is_claimed() -> None:
    case = CASES["noise unknown"]()
    found = GaussNewton(starts=50, warm_iterations=20, max_plain_gradients=3000)(
        case.update, case.knowledge, generator=_generator()
    )
    assert 3 < found.details["starts"] < 50
    assert 2000 < found.plain_gradients <= 3000
    assert found.loss == min(found.details["start_losses"])
    # A further start is begun only where its warm part and a first step fit.
    each = InvertingGradients(iterations=20).estimate(case.knowledge) + GaussNewton(max_steps=1).estimate(
        case.knowledge
    )
    cold = GaussNewton(starts=1)(case.update, case.knowledge, generator=_generator()).plain_gradients
    for limit, starts in ((cold + 1 + each - 1, 1), (cold + 1 + each, 2)):
        few = GaussNewton(starts=50, warm_iterations=20, max_plain_gradients=limit)(
            case.update, case.knowledge, generator=_generator()
        )
        assert few.details["starts"] == starts


def test_progress_plans_what_the_limit_holds() -> None:
    case, calls = CASES["noise unknown"](), []
    GaussNewton(starts=50, warm_iterations=20, max_plain_gradients=1000)(
        case.update, case.knowledge, generator=_generator(), progress=lambda *call: calls.append(call)
    )
    done, planned = [call[0] for call in calls], [call[1] for call in calls]
    assert done == sorted(set(done))
    assert all(one <= other for one, other in zip(done, planned, strict=True))
    # 50 starts of 60 steps were allowed; the limit holds these, to a start.
    assert planned[-1] < 1.5 * done[-1] < 100


def test_the_start_itself_is_claimed_where_no_step_fits() -> None:
    for name in ("smooth", "relu"):
        case = CASES[name]()
        found = GaussNewton(max_plain_gradients=2)(case.update, case.knowledge, generator=_generator())
        assert found.outcome is Outcome.BUDGET_SPENT
        assert found.plain_gradients == 1
        assert list(found.history) == [found.loss]
        assert found.details["relative_residual"] == pytest.approx(found.loss**0.5)
        assert "no step fitted: what is claimed is the random start" in found.note


def test_a_limit_below_one_release_is_refused_before_anything_runs() -> None:
    for name, cost in (("smooth", 1), ("local steps", 2)):
        case = CASES[name]()
        with pytest.raises(UnsupportedError, match=f"one look at a guess costs {cost} plain gradients here, more than"):
            GaussNewton(max_plain_gradients=cost - 0.5)(case.update, case.knowledge, generator=_generator())


def test_gates_leave_the_input_they_came_to() -> None:
    case = CASES["relu"]()
    start = GaussNewton(starts=1, max_plain_gradients=1)(case.update, case.knowledge, generator=_generator())
    found = GaussNewton(starts=1, max_plain_gradients=160)(case.update, case.knowledge, generator=_generator())
    assert found.details["gate_steps"] > 0
    assert found.outcome is Outcome.BUDGET_SPENT
    assert case.error(found.inputs) != case.error(start.inputs)
    assert found.details["relative_residual"] == pytest.approx(found.loss**0.5)


def test_a_rank_that_the_limit_leaves_open_is_no_success() -> None:
    case = CASES["smooth"]()
    steps = KrylovSteps(iterations=60)
    whole = GaussNewton(steps=steps, starts=1)(case.update, case.knowledge, generator=_generator())
    assert whole.outcome is Outcome.CONVERGED
    cut = GaussNewton(steps=steps, starts=1, max_plain_gradients=whole.plain_gradients - 20)(
        case.update, case.knowledge, generator=_generator()
    )
    assert cut.outcome is Outcome.BUDGET_SPENT
    assert "the limit left no room to look for other inputs that explain it" in cut.note
    assert case.error(cut.inputs) < 1e-16


@pytest.mark.parametrize("limit", [275, 285, 290])
def test_an_input_that_fits_without_a_look_at_the_rank_is_no_success(limit: float) -> None:
    """The free gates take the limit; what they came to explains the update, and nobody looked what else does."""
    case = CASES["relu"]()
    found = GaussNewton(starts=1, max_steps=8, max_plain_gradients=limit)(
        case.update, case.knowledge, generator=_generator()
    )
    assert (found.outcome is Outcome.CONVERGED) == ("null_dimension" in found.details)
    if found.details["at_floor"] and found.outcome is Outcome.BUDGET_SPENT:
        assert "the limit left no room to look for other inputs that explain it" in found.note


@pytest.mark.parametrize("limit", [3, 6, 9, 20, 35, 200])
def test_a_random_start_that_fits_under_noise_is_no_success(limit: float) -> None:
    case = setting(small_net("relu", seed=3), rows(1, seed=3), defenses=[GaussianNoise(std=1.0)], threat=LABELS)
    found = GaussNewton(max_plain_gradients=limit)(case.update, case.knowledge, generator=_generator())
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert "a random input already explains the update" in found.note


@pytest.mark.parametrize(
    "limit", [limit if limit % 16 == 12 else pytest.param(limit, marks=pytest.mark.slow) for limit in range(60, 200, 4)]
)
def test_the_best_guess_that_was_evaluated_is_claimed(limit: float, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    plain = ResidualSystem.residuals

    def watched(self: ResidualSystem, points: Tensor) -> Tensor:
        found = plain(self, points)
        seen.extend(float(row.square().sum()) / self.scale**2 for row in found)
        return found

    monkeypatch.setattr(ResidualSystem, "residuals", watched)
    case = CASES["relu"]()
    steps = KrylovSteps(iterations=6)
    found = GaussNewton(steps=steps, free_gates=False, starts=1, max_plain_gradients=limit)(
        case.update, case.knowledge, generator=_generator()
    )
    assert found.loss <= min(seen, default=found.loss)


@pytest.mark.parametrize("steps", [None, SketchedSteps(), KrylovSteps(iterations=8)], ids=repr)
@pytest.mark.parametrize("limit", [1, 2, 40, None])
def test_a_release_without_numbers_is_no_claim(steps: Steps | None, limit: float | None) -> None:
    class Bad(nn.Module):
        """NaN for every input below 3/4."""

        def __init__(self) -> None:
            super().__init__()
            self.last = small_net()

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.last((inputs - 0.75).sqrt())
            return out

    high = Batch(rows(1).inputs * 0.2 + 0.8, torch.tensor([1]), rows(1).domain)
    case = setting(Bad(), high, threat=LABELS)
    found = GaussNewton(steps=steps, starts=1, max_plain_gradients=limit)(
        case.update, case.knowledge, generator=_generator()
    )
    assert (found.inputs, found.loss, found.outcome) == (None, None, Outcome.NOT_FINITE)
    assert "NaN or infinity" in found.note


SPECTRAL = pytest.mark.parametrize(
    "case",
    [
        setting(small_net(), rows(1), defenses=[SpectralNoise(norm=1e-4)], threat=LABELS),
        setting(small_net(), rows(1), defenses=[SpectralNoise(norm=1e-4, directions=3)], threat=LABELS),
        setting(
            small_net(), rows(1), protocol=FedAvg(learning_rate=0.1, epochs=2),
            defenses=[SpectralNoise(norm=1e-4)], threat=LABELS,
        ),
        pytest.param(
            setting(
                small_net(), rows(1), protocol=FedAvg(learning_rate=0.1, epochs=5),
                defenses=[SpectralNoise(norm=1e-4)], threat=LABELS,
            ),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["one direction", "three directions", "two local steps", "five local steps"],
)  # fmt: skip


@SPECTRAL
def test_spectral_noise_shares_the_limit_among_its_searches(case: Setting, products: list[int]) -> None:
    release = case.knowledge.release.protocol.plain_gradients(1)
    least = release * (2 * (2 * (12 + case.knowledge.release.defenses[-1].directions) + 2) + 3)
    for limit in (least, 1.5 * least, 5 * least, 20 * least):
        products.clear()
        found = GaussNewton(max_plain_gradients=limit)(case.update, case.knowledge, generator=_generator())
        assert 2 * release * sum(products) < found.plain_gradients <= limit
        assert found.inputs is not None
        assert found.note.count("ended by max_plain_gradients") <= 1
    assert case.error(found.inputs) < 1e-3
    with pytest.raises(UnsupportedError, match=f"at least {least:,.0f} plain gradients, more than max_plain_gradients"):
        GaussNewton(max_plain_gradients=least - 1)(case.update, case.knowledge, generator=_generator())


def test_the_least_limit_for_spectral_noise_counts_the_draws_of_a_noisy_network() -> None:
    model = nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 3))
    objective = Objective.from_module(model, mode="train").to(torch.float64)
    release = Release(FedSGD(), [SpectralNoise(norm=1e-4)])
    batch = rows(1).to(torch.float64)
    update = release(objective, batch, _generator())
    knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)
    with pytest.raises(UnsupportedError, match="more than max_plain_gradients=70"):
        GaussNewton(max_plain_gradients=70)(update, knowledge, generator=_generator())
    found = GaussNewton(max_plain_gradients=200)(update, knowledge, generator=_generator())
    assert found.inputs is not None
    assert 0 < found.plain_gradients <= 200


@SPECTRAL
def test_a_limit_beyond_what_spectral_noise_takes_changes_nothing(case: Setting) -> None:
    free = GaussNewton(warm_iterations=30)(case.update, case.knowledge, generator=_generator())
    limited = GaussNewton(warm_iterations=30, max_plain_gradients=1.5 * free.plain_gradients + 1000)(
        case.update, case.knowledge, generator=_generator()
    )
    assert torch.equal(free.inputs, limited.inputs)
    assert (free.outcome, free.note, free.plain_gradients) == (limited.outcome, limited.note, limited.plain_gradients)


def test_the_estimate_is_at_most_the_limit() -> None:
    knowledge = CASES["smooth"]().knowledge
    assert GaussNewton(max_steps=10, max_plain_gradients=100).estimate(knowledge) == 100
    assert GaussNewton(max_steps=10, max_plain_gradients=1000).estimate(knowledge) == 10 * (2 * 12 + 3)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "100", True])
def test_a_limit_is_a_positive_number(bad: object) -> None:
    with pytest.raises(InputError, match=r"GaussNewton\.max_plain_gradients: expected a finite positive number"):
        GaussNewton(max_plain_gradients=bad)


def test_a_plan_can_set_it(tmp_path: Path) -> None:
    text = Path("examples/digits.toml").read_text(encoding="utf-8")
    assert "[attacks" in text
    path = tmp_path / "plan.toml"
    path.write_text(text + '\n[attacks.lm]\nuse = "GaussNewton"\nmax_plain_gradients = 2500\n', encoding="utf-8")
    (attacks,) = [audit.attacks for audit in load_plan(path).audits if hasattr(audit, "attacks")]
    assert attacks["lm"].max_plain_gradients == 2500
