"""Study: what I²F costs beside an attack, over eleven pairs of network and data (figure 11 of Zhang et al. 2023)."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from gradleak.attacks import DGL
from gradleak.core import Batch, Domain, Exposure, HonestButCurious, Objective, Release, describe, one_thread
from gradleak.models import lenet_i2f, mlp, resnet
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import ZHANG_2023, Citation, InputError
from studies.spots import Spot, spots
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import median, shown

# Of the paper's figure 10: what both took until they had converged.
PAPER_ITERATIONS = 3000
PAPER_PRODUCTS = 50
_TOLERANCE = 1e-2


def _mlp(side: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *mlp(features=channels * side**2, classes=10, hidden=(256,)))


def _lenet(side: int, channels: int) -> nn.Module:
    return lenet_i2f(size=side, channels=channels)


def _resnet(depth: int, side: int, channels: int) -> nn.Module:
    large = side >= 224
    return resnet(depth=depth, classes=1000 if large else 10, channels=channels, stem="large" if large else "small")


Network = Callable[[int, int], nn.Module]
NETWORKS: Mapping[str, Network] = {
    "MLP": _mlp,
    "LeNet": _lenet,
    **{f"ResNet-{depth}": partial(_resnet, depth) for depth in (18, 34, 50, 101, 152)},
}
# Height and channels. Digits are framed to 32 pixels for ResNets, which halve their maps three times.
DATA: Mapping[str, tuple[int, int]] = {"MNIST": (28, 1), "CIFAR-10": (32, 3), "ImageNet": (224, 3)}
PAIRS = (
    "MLP, MNIST", "MLP, CIFAR-10", "LeNet, MNIST", "LeNet, CIFAR-10", "ResNet-18, MNIST", "ResNet-18, CIFAR-10",
    "ResNet-34, CIFAR-10", "ResNet-50, CIFAR-10", "ResNet-101, CIFAR-10", "ResNet-152, CIFAR-10", "ResNet-152, ImageNet",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PairCost:
    """Costs of one pair, in plain gradients of the same process and dtype, float32.

    Attributes:
        pair: its name.
        parameters: of the network.
        seconds: processor time of a plain gradient, median.
        product: a product with AᵀA, which is a step of power iteration and of conjugate gradients, median.
        largest: λmax by Lanczos to a hundredth, from a fresh operator; None where it was left out.
        products: of that.
        attack: an iteration of DGL; None where it was left out.
        megabytes: peak memory of the process so far.
    """

    pair: str
    parameters: int
    seconds: float
    product: float
    largest: float | None
    products: int | None
    attack: float | None
    megabytes: float


@dataclass(frozen=True, kw_only=True)
class InfluenceCost(Study):
    """Cost of a step of I²F's solvers, of λmax and of an iteration of DGL, in plain gradients, on one core.

    The ratio of the paper is the time that an attack takes over that of λmax. It depends on when either counts as
    converged, so two are given: with the paper's own counts (its figure 10: 3,000 iterations, 50 steps of power
    iteration), and with λmax by Lanczos as it is here.

    **Source**: Zhang et al. 2023, figures 10 and 11; no numbers but "larger than 1 for almost all" and "much larger than 500"
    for the large ones. Deviations: random images of the right size, weights as drawn; a plain gradient beside; the MLP, which
    the paper does not describe, has one hidden layer of 256.

    Attributes:
        pairs: names of network and data.
        repeats: of which medians are taken, at least; more where a gradient takes little time.
        attack_iterations: that an iteration's cost is the difference over, at least; 0 leaves attacks and λmax out.
        seed: of images.
        cells: file that keeps every pair, to go on from.
    """

    name: ClassVar[str] = "influence_cost"
    source: ClassVar[str] = "figures 10 and 11"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    pairs: Sequence[str] = PAIRS
    repeats: int = 3
    attack_iterations: int = 2
    seed: int = 0
    cells: str | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about six minutes of one core, most of them for ResNet-152 on images of 224×224."""
        unknown = sorted(set(self.pairs) - set(PAIRS))
        if unknown:
            raise InputError(f"pairs: expected some of {'; '.join(PAIRS)}, got {'; '.join(unknown)}")
        found = []
        with Store(self.cells) as store, one_thread():
            for pair in self.pairs:
                key = {"pair": pair, "repeats": self.repeats, "attack": self.attack_iterations, "seed": self.seed}
                one = store.kept(key, PairCost, partial(self.measured, pair))
                found.append(one)
                say(f"{pair}: a plain gradient takes {one.seconds:.3g} s, a product {one.product:.3g} of it")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=_findings(found),
            conclusion=_conclude(found),
            details={"pairs": [describe(one) for one in found]},
            tables=[_table(found)],
            figures={"influence_cost": _figure(found)} if any(one.attack is not None for one in found) else {},
        )

    def measured(self, pair: str) -> PairCost:
        """The costs of one pair."""
        network, data = pair.split(", ")
        side, channels = DATA[data]
        side = 32 if network.startswith("ResNet") and side == 28 else side
        objective = Objective.from_module(NETWORKS[network](side, channels))
        image = torch.rand(1, channels, side, side, generator=torch.Generator().manual_seed(self.seed))
        batch = Batch(image, torch.tensor([3]), Domain.image(channels=channels, height=side, width=side))
        release = Release(FedSGD())
        gradient = partial(objective.gradient, objective.params, batch)
        calls = self._calls(gradient)
        operator = GradientJacobian(Exposure(objective, batch, release), dtype=torch.float32)
        column = torch.randn(operator.shape[1], 1, generator=torch.Generator().manual_seed(self.seed + 1))
        # The plain gradient beside it: a machine is not as fast at every moment.
        product = _ratio(partial(operator.normal, column), gradient, calls)
        plain = _middle(gradient, calls)
        largest, products, attack = None, None, None
        if self.attack_iterations:
            before = operator.matvecs
            largest = _seconds(partial(operator.largest_eigenvalue, tolerance=_TOLERANCE, certify=False)) / plain
            # A product with A or its adjoint counts as one.
            products = (operator.matvecs - before) // 2
            del operator
            attack = self._attack(objective, batch, release, max(self.attack_iterations, calls)) / plain
        return PairCost(
            pair=pair,
            parameters=objective.size,
            seconds=plain,
            product=product,
            largest=largest,
            products=products,
            attack=attack,
            megabytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )

    def _attack(self, objective: Objective, batch: Batch, release: Release, iterations: int) -> float:
        """Seconds of an iteration: what more of them take, so that what an attack does once is left out."""
        update = release(objective, batch, torch.Generator())
        knowledge = HonestButCurious(targets=True).disclose(objective, release, batch)

        def attack(count: int) -> None:
            DGL(iterations=count)(update, knowledge, generator=torch.Generator().manual_seed(0))

        attack(1)
        few, many = (min(_seconds(partial(attack, count)) for _ in range(2)) for count in (1, 1 + iterations))
        return (many - few) / iterations

    def _calls(self, gradient: Callable[[], Any]) -> int:
        """Number of calls that a median is of: so many that they take a fifth of a second, at most fifty."""
        gradient()
        return max(self.repeats, min(50, math.ceil(0.2 / max(_seconds(gradient), 1e-6))))


def _ratio(call: Callable[[], Any], gradient: Callable[[], Any], calls: int) -> float:
    """Median of so many ratios of a call to the gradients right after it."""
    call()
    found = median([_seconds(call) / _middle(gradient, 2) for _ in range(calls)])
    assert found is not None
    return found


def _middle(call: Callable[[], Any], calls: int) -> float:
    """Median processor seconds of so many calls."""
    found = median([_seconds(call) for _ in range(calls)])
    assert found is not None
    return found


def _seconds(call: Callable[[], Any]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _by_paper(one: PairCost) -> float | None:
    """An attack of the paper's iterations over as many steps of power iteration as the paper's."""
    return None if one.attack is None else PAPER_ITERATIONS * one.attack / (PAPER_PRODUCTS * one.product)


def _by_lanczos(one: PairCost) -> float | None:
    """An attack of the paper's iterations over λmax as it is computed here."""
    return None if one.attack is None or not one.largest else PAPER_ITERATIONS * one.attack / one.largest


def _figure(found: Sequence[PairCost]) -> str:
    def bars(rule: Callable[[PairCost], float | None]) -> list[Spot]:
        return [(float(place), rule(one), None, None) for place, one in enumerate(found)]

    return spots(
        {
            "time of an attack over that of λmax": {
                "the paper's counts": bars(_by_paper),
                "λmax by Lanczos": bars(_by_lanczos),
            }
        },
        x="",
        y="ratio",
        title="Cost of an attack over that of I²F's bound",
        description="Time of 3,000 iterations of DGL over that of λmax. The paper's figure 11 has all pairs above 1, the "
        "dashed line, and networks larger than ResNet-18 above 500.",
        names=[one.pair for one in found],
        steep=True,
        beside=1.0,
    )


def _findings(found: Sequence[PairCost]) -> list[Finding]:
    lines = []
    for one in found:
        large = one.pair in PAIRS[5:]
        paper = "larger than 500 for models larger than ResNet-18 (figure 11)" if large else "larger than 1 (figure 11)"
        lines += [
            Finding(
                quantity=f"{one.pair}: a step of power iteration or conjugate gradients, in plain gradients",
                ours=one.product,
            ),
            Finding(
                quantity=f"{one.pair}: time of an attack over that of λmax, at the paper's counts",
                ours=_by_paper(one),
                paper=paper,
                note=f"{PAPER_ITERATIONS} iterations over {PAPER_PRODUCTS} steps",
            ),
            Finding(
                quantity=f"{one.pair}: time of an attack over that of λmax by Lanczos",
                ours=_by_lanczos(one),
                paper=paper,
                note="left out" if one.products is None else f"{PAPER_ITERATIONS} iterations over {one.products} steps",
            ),
        ]
    return lines


def _table(found: Sequence[PairCost]) -> Table:
    body = [
        [
            one.pair,
            f"{one.parameters:,}",
            shown(one.seconds),
            shown(one.product),
            shown(one.largest),
            "-" if one.products is None else str(one.products),
            shown(one.attack),
            shown(_by_paper(one)),
            shown(_by_lanczos(one)),
            f"{one.megabytes:,.0f}",
        ]
        for one in found
    ]
    columns = [
        "network, data", "parameters", "plain gradient (s)", "step", "λmax by Lanczos", "its steps", "iteration of DGL",
        "attack / λmax, paper's counts", "attack / λmax by Lanczos", "peak memory (MB)",
    ]  # fmt: skip
    return Table(title="Costs in plain gradients, float32, one thread", columns=columns, rows=body)


def _conclude(found: Sequence[PairCost]) -> list[str]:
    ratios = [(value, one.pair) for one in found if (value := _by_paper(one)) is not None]
    lines = [
        f"A step of power iteration or of conjugate gradients costs {min(one.product for one in found):.2g} to "
        f"{max(one.product for one in found):.2g} plain gradients."
    ]
    if ratios:
        lines.append(
            f"An attack of {PAPER_ITERATIONS} iterations takes {min(ratios)[0]:.3g} ({min(ratios)[1]}) to "
            f"{max(ratios)[0]:.3g} times ({max(ratios)[1]}) as long as {PAPER_PRODUCTS} such steps."
        )
    return lines


__all__ = ["DATA", "NETWORKS", "PAIRS", "InfluenceCost", "PairCost"]
