"""Every layer under every defense, protocol and size of a batch: the right derivative, or a refusal that names the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from tests.operators.models import DetachedCube, Then, Twisted
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from gradleak.core import Defense, Exposure, Protocol, Release
from gradleak.defenses import DPSGD, Clip, ClipPerExample, ClipPerLayer, GaussianNoise, Prune, TopK
from gradleak.operators import DerivativeCheck, GradientJacobian
from gradleak.protocols import FedAvg, FedSGD, LocalAdam
from gradleak.results import Outcome, UnsupportedError
from tools.support_matrix import Case, cases, exposure_of

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch, on its first jvp

# Relative error of A, and of the rows of a tensor, against differences whose own error is below 1e-8.
RIGHT = 1e-6
# What a check that has converged confirms where it does not say exact.
ROUGHLY = 1e-3
BATCHES = (1, 3)
PROTOCOLS: tuple[Protocol, ...] = (
    FedSGD(),
    FedAvg(learning_rate=0.1, epochs=2),
    FedAvg(learning_rate=0.1, epochs=2, batch_size=2, momentum=0.5),
    # With torch's eps of 1e-8 a step of Adam is almost the sign of the gradient: A is 1e-4 of g, and differences of g in
    # float64 keep four digits of it.
    LocalAdam(learning_rate=0.1, epochs=2, eps=1e-2),
)
DEFENSES: tuple[Defense, ...] = (
    GaussianNoise(std=0.1),
    Clip(0.3),
    ClipPerExample(0.3),
    ClipPerLayer(0.2),
    DPSGD(clip_norm=0.3, noise_std=0.1, noise="sum"),
    Prune(0.6),
    TopK(0.4),
)


class Weighted(nn.Module):
    """A function of the input and of weights of its shape."""

    def __init__(self, function: torch.autograd.Function, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(self.weight.expand(x.shape), x)


class Padded(nn.Module):
    """Tokens times rows of an embedding, of which the padding's is never learned."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4, padding_idx=0)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.table(torch.tensor([1, 0, 3]))


# Layers that were wrong once, whether by a rule of torch or by a gradient that is not that of a loss.
WRONG_ONCE = (
    Case(name="GroupNorm, one group, no scale", build=lambda: nn.GroupNorm(1, 2, affine=False), shape=(2, 3)),
    Case(name="GroupNorm of three, no scale", build=lambda: nn.GroupNorm(1, 3, affine=False), shape=(3, 2)),
    Case(name="LayerNorm of an image", build=lambda: nn.LayerNorm((2, 3, 3)), shape=(2, 3, 3)),
    Case(name="InstanceNorm1d", build=lambda: nn.InstanceNorm1d(2, affine=True), shape=(2, 6)),
    Case(name="weight_norm", build=lambda: weight_norm(nn.Linear(6, 4)), shape=(6,)),
    Case(name="spectral_norm", build=lambda: spectral_norm(nn.Linear(6, 4)), shape=(6,)),
    Case(name="Embedding, padding_idx", build=Padded, shape=(3, 4)),
    Case(name="gradient of no loss", build=lambda: Weighted(Twisted, (4,)), shape=(4,)),
    Case(name="_cdist_backward", build=lambda: Then(lambda x: torch.cdist(x, x.sin())), shape=(3, 4)),
)
LAYERS = (*cases(), *WRONG_ONCE)
# Its second local step goes through a value whose derivative autograd does not know.
NO_LOSS = "gradient of no loss"
COMBINED = tuple(product(DEFENSES, PROTOCOLS, BATCHES))


def released(case: Case, defense: Defense, protocol: Protocol, examples: int) -> Exposure:
    """A layer behind a scale and before a classifier, with a batch; a normalization over a batch gets two or four."""
    over_batch = case.mode == "train" and "BatchNorm" in case.name
    exposure = exposure_of(replace(case, examples=examples + 1 if over_batch else examples))
    return replace(exposure, release=Release(protocol, [defense]))


def right_products(exposure: Exposure, directions: Tensor) -> Tensor:
    """A V (P, k) for V (d, k) by differences of values in float64, extrapolated to a step of zero.

    Where a defense keeps the largest entries, those that the release keeps are held, and the differences are of the
    release without the defense: of two entries that are equal by symmetry, as a padding by reflection makes them,
    round-off keeps another one at every step.
    """
    (defense,) = exposure.release.defenses
    kept = torch.ones_like(exposure.released_mean())
    if isinstance(defense, Prune | TopK):
        kept = (exposure.released_mean() != 0).to(kept)
        exposure = replace(exposure, release=Release(exposure.release.protocol))
    x = exposure.inputs

    def slope(direction: Tensor, step: float) -> Tensor:
        return (exposure.mean(x + step * direction) - exposure.mean(x - step * direction)) / (2 * step)

    def product_with(direction: Tensor) -> Tensor:
        best, best_error = torch.zeros_like(kept), float("inf")
        for step in (1e-4, 1e-5, 1e-6, 1e-7):
            coarse, fine = slope(direction, step), slope(direction, step / 2)
            value = (4 * fine - coarse) / 3
            error = float((value - fine).norm())
            if error < best_error:
                best, best_error = value, error
            if error <= 1e-7 * float(value.norm()):
                break
        return kept * best

    with torch.no_grad():
        return torch.stack([product_with(direction) for direction in directions.T], dim=1)


def cuts_a_tie(exposure: Exposure) -> bool:
    """True if a defense that keeps the largest entries drops one that is as large as one that it keeps."""
    if not isinstance(exposure.release.defenses[0], Prune | TopK):
        return False
    kept = exposure.released_mean() != 0
    sizes = replace(exposure, release=Release(exposure.release.protocol)).released_mean().abs()
    return bool(sizes[~kept].max() >= (1 - 1e-9) * sizes[kept].min())


def off(exposure: Exposure, found: Tensor, right: Tensor) -> float:
    """The larger of the relative error over all tensors and of that of the worst tensor whose rows count."""
    size = float(right.norm())
    parts = [exposure.objective.unflatten(column) for column in (found - right).T]
    whole = [exposure.objective.unflatten(column) for column in right.T]
    by_tensor = [
        sum(float(part[name].square().sum()) for part in parts) ** 0.5
        / max(1e-3 * size, sum(float(part[name].square().sum()) for part in whole) ** 0.5)
        for name in parts[0]
    ]
    return max(float((found - right).norm()) / size, *by_tensor)


def hold(case: Case, defense: Defense, protocol: Protocol, examples: int, *, dense: bool) -> str:
    """What is wrong with the derivative of a release, or ""."""
    exposure = released(case, defense, protocol, examples)
    generator = torch.Generator().manual_seed(1)
    right_block = torch.randn(exposure.inputs.numel(), 6, generator=generator, dtype=torch.float64)
    left_block = torch.randn(exposure.objective.size, 6, generator=generator, dtype=torch.float64)
    try:
        operator = GradientJacobian(exposure)
        check = operator.check
        pulled = {6: operator.adjoint_matmat(left_block), 1: operator.adjoint_matmat(left_block[:, :1])}
        pushed = {6: operator.matmat(right_block), 1: operator.matmat(right_block[:, :1])}
        whole = operator.dense() if dense else None
    except UnsupportedError as refusal:
        named = (type(defense).__name__, *case.name.split(","), "per-example defense")
        return "" if any(name in str(refusal) for name in named) else f"refused without a reason: {refusal}"
    directions = torch.eye(operator.shape[1], dtype=torch.float64) if whole is not None else right_block[:, :1]
    want = right_products(exposure, directions)
    if not bool(want.any()):
        return "no derivative to compare with"
    pairs = {
        "A v": (pushed[1], want @ right_block[:, :1] if dense else want),
        "a column of A V": (pushed[6][:, :1], want),
    }
    if whole is not None:
        pairs |= {"A": (whole, want), "a column of A V": (pushed[6], want @ right_block)}
    errors = {name: off(exposure, *pair) for name, pair in pairs.items()}
    for columns, product_ in pulled.items():
        # ⟨Aᵀu, v⟩ = ⟨u, A v⟩, for all v where A is known
        if whole is not None:
            error = float((product_ - want.T @ left_block[:, :columns]).norm() / product_.norm())
        else:
            error = float((product_[:, 0] @ right_block[:, 0] - left_block[:, 0] @ want[:, 0]).abs() / want.norm())
        errors[f"Aᵀu of {columns}"] = error
    told = [f"{name}: {error:.1e}" for name, error in errors.items() if error > RIGHT]
    if check.refusal and told:
        return ""  # it is wrong, and said to be
    if not told and check.outcome is Outcome.NOT_INFORMATIVE and cuts_a_tie(exposure):
        return ""  # differences jump there
    if (
        case.name == NO_LOSS
        and check.outcome is Outcome.CONVERGED
        and not check.exact
        and max(errors.values()) <= ROUGHLY
    ):
        return ""  # an estimate, and as near as it says
    return "; ".join(told) if check.exact else f"check: {check}; {'; '.join(told)}"


def some() -> Iterator[tuple[Case, Defense, Protocol, int]]:
    """Every layer once, and meanwhile every defense with every protocol and batch."""
    for place, case in enumerate(LAYERS):
        yield (case, *COMBINED[(place * 5) % len(COMBINED)])


def _id(value: object) -> str:
    return value.name if isinstance(value, Case) else type(value).__name__ if not isinstance(value, int) else str(value)


@pytest.mark.parametrize(("case", "defense", "protocol", "examples"), tuple(some()), ids=_id)
def test_a_layer_has_the_right_derivative(case: Case, defense: Defense, protocol: Protocol, examples: int) -> None:
    assert hold(case, defense, protocol, examples, dense=False) == ""


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYERS, ids=_id)
def test_all_of_a_is_right_under_every_defense(case: Case) -> None:
    place = LAYERS.index(case)
    told = {
        (defense, protocol, examples): hold(case, defense, protocol, examples, dense=True)
        for turn, defense in enumerate(DEFENSES)
        for protocol, examples in [tuple(product(PROTOCOLS, BATCHES))[(place + turn) % 8]]
    }
    assert {key: said for key, said in told.items() if said} == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", LAYERS, ids=_id)
def test_products_are_right_under_every_defense_protocol_and_batch(case: Case) -> None:
    told = {rest: hold(case, *rest, dense=False) for rest in COMBINED}
    assert {key: said for key, said in told.items() if said} == {}


def test_the_contract_sees_a_wrong_derivative(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(name="detached", build=lambda: Then(DetachedCube.apply), shape=(4,))
    assert hold(case, Clip(0.3), FedSGD(), 3, dense=True) == ""  # it is refused
    monkeypatch.setattr(DerivativeCheck, "refusal", "")
    said = hold(case, Clip(0.3), FedSGD(), 3, dense=True)
    assert "the second derivative of layer 1 (Then) is wrong" in said
    assert "A: " in said
