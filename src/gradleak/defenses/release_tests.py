"""Tests that a release keeps to the noise and the bounds that its defenses state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from torch import Tensor

from gradleak.core import ExampleDefense, UpdateDefense

# Beyond these the shape is tested on every so-manieth value: a test of this many sees a thousandth of a distribution.
MOST_VALUES = 10**6


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """The least likely finding of one kind.

    Attributes:
        chance: an upper bound on the probability of one so unlikely if the noise is what it says.
        note: what was found.
    """

    chance: float
    note: str


def variance(draws: Tensor, parts: Mapping[str, slice]) -> Suspicion:
    """The spread of single entries and of tensors: each has a sum of squares between quantiles of χ².

    With a Bonferroni factor for the number of entries and of tensors, so that one silent entry is seen as well as one
    silent layer, which a sum over everything hides where others make up for it.

    Args:
        draws: (n, P), standard normal and independent if the noise is what it says.
        parts: the columns of each tensor.
    """
    count = draws.shape[0]
    squares = draws.square().sum(dim=0).cpu().numpy()
    alone = _two_sided(squares, count)
    place = int(alone.argmin())
    odd = int((alone < 1e-6 / len(squares)).sum())
    entries = Suspicion(
        chance=min(1.0, 2 * len(squares) * float(alone[place])),
        note=f"single entries have other noise than is stated, {max(odd, 1)} of {len(squares)} at least; one has "
        f"{squares[place] / count:.3g} times its variance",
    )
    sums = {name: float(squares[part].sum()) for name, part in parts.items()}
    sizes = {name: count * (part.stop - part.start) for name, part in parts.items()}
    chances = {name: float(_two_sided(np.array([total]), sizes[name])[0]) for name, total in sums.items()}
    worst = min(chances, key=lambda name: chances[name])
    tensors = Suspicion(
        chance=min(1.0, 2 * len(parts) * chances[worst]),
        note=f"the noise of {worst} has {sums[worst] / sizes[worst]:.3g} times the variance that is stated",
    )
    return min(entries, tensors, key=lambda found: found.chance)


def repeats(draws: Tensor, parts: Mapping[str, slice]) -> Suspicion:
    """Draws that resemble each other: repeated or recycled noise, and noise of too few directions.

    - Equal rows: independent ones never are.
    - The correlation r of two draws of one tensor of m entries: (1 + r)/2 is Beta((m − 1)/2, (m − 1)/2), with a Bonferroni
      factor for the pairs and the tensors.
    - The sum of r² over all pairs, whose mean is 1/m a pair and whose pairs are uncorrelated (John 1971): large where the
      noise lives in fewer dimensions than it has entries. Its tail is taken for that of a standardized χ² with the
      smaller of (m − 1)(m + 2)/2 and the number of pairs as degrees of freedom, which is heavier.

    Args:
        draws: (n, P), standard normal and independent if the noise is what it says; n at least 2.
        parts: the columns of each tensor.
    """
    count = draws.shape[0]
    if len(torch.unique(draws, dim=0)) < count and draws.shape[1] > 1:
        return Suspicion(chance=0.0, note="draws repeat each other exactly")
    upper = torch.triu_indices(count, count, offset=1)
    pairs = upper.shape[1]
    blocks = {name: draws[:, part] for name, part in parts.items()} | {"the whole update": draws}
    found = [Suspicion(chance=1.0, note="")]
    for name, block in blocks.items():
        size = block.shape[1]
        if size < 2:
            continue
        rows = block / block.norm(dim=1, keepdim=True).clamp_min(1e-300)
        related = (rows @ rows.T)[upper[0], upper[1]].clamp(-1, 1).cpu().numpy()
        largest = float(np.abs(related).max())
        tail = 2 * float(scipy.stats.beta.sf((1 + largest) / 2, (size - 1) / 2, (size - 1) / 2))
        note = f"two draws of {name} have a correlation of {largest:.3g}"
        found.append(Suspicion(chance=2 * len(blocks) * pairs * tail, note=note))
        freedom = min(pairs, (size - 1) * (size + 2) / 2)
        # Of size · r² the mean is 1 and the variance 2(m − 1)/(m + 2).
        excess = float((size * related**2 - 1).sum()) / np.sqrt(pairs * 2 * (size - 1) / (size + 2))
        tail = float(scipy.stats.chi2.sf(freedom + excess * np.sqrt(2 * freedom), freedom))
        note = f"the noise of {name} lives in fewer directions than it has entries"
        found.append(Suspicion(chance=2 * len(blocks) * tail, note=note))
    return min(found, key=lambda suspicion: suspicion.chance)


def shape(draws: Tensor, parts: Mapping[str, slice]) -> Suspicion:
    """The law of the values of each tensor, and of all: Kolmogorov and Smirnov's distance from the normal one.

    Each is divided by its own root mean square first, so that a wrong variance is not told twice; that makes false alarms
    rarer than the law of the distance says. With a Bonferroni factor for the number of tensors.

    Args:
        draws: (n, P), independent and normal with mean 0 if the noise is what it says.
        parts: the columns of each tensor.
    """
    blocks = {name: draws[:, part] for name, part in parts.items()} | {"the whole update": draws}
    found = []
    for name, block in blocks.items():
        values = block.reshape(-1).cpu().numpy()
        values = values[:: -(-len(values) // MOST_VALUES)]
        scale = float(np.sqrt(np.mean(values**2))) or 1.0
        tested = scipy.stats.kstest(values / scale, "norm", method="asymp" if len(values) > 1000 else "auto")
        note = f"the values of {name} are {tested.statistic:.2g} from a normal distribution (Kolmogorov and Smirnov)"
        found.append(Suspicion(chance=len(blocks) * float(tested.pvalue), note=note))
    return min(found, key=lambda suspicion: suspicion.chance)


def _two_sided(sums: np.ndarray, freedom: int) -> np.ndarray:
    tails = np.minimum(scipy.stats.chi2.cdf(sums, freedom), scipy.stats.chi2.sf(sums, freedom))
    found: np.ndarray = np.minimum(1.0, 2 * tails)
    return found


Shapes = Mapping[str, Tensor]
# Of the claimed bound: short ones pass as they are, and a real gradient may be of any length.
FACTORS = (0.5, 1.01, 30.0, 1e3, 1e6)


def longest(defense: ExampleDefense | UpdateDefense, shapes: Shapes, bound: float, generator: torch.Generator) -> float:
    """The largest L2 norm, over all tensors, of what a defense makes of vectors from half to 1e6 times its bound.

    Directions: all entries at random, one tensor alone, one entry alone, and entries whose sizes differ by orders of
    magnitude. It is a search, so too small where a longer one exists. What is not finite counts as infinite.

    Args:
        defense: of single examples, or of the update.
        shapes: of the parameters, by name.
        bound: that is claimed, positive.
        generator: source of the directions.

    **Cost**: some thirty times what the defense costs for one gradient, for each tensor of the model a few more.
    """
    norms = [
        float(norm)
        for row in _directions(shapes, generator)
        for norm in _norms(defense, row, [factor * bound for factor in FACTORS])
    ]
    return max(norm if norm == norm else float("inf") for norm in norms)


def long_rows(shapes: Shapes, bound: float, examples: int) -> dict[str, Tensor]:
    """Made-up gradients of so many examples, one a row, from ten to a hundred times as long as a bound.

    Args:
        shapes: of the parameters, by name.
        bound: an L2 norm over all tensors, positive.
        examples: how many.
    """
    random = torch.Generator().manual_seed(1)
    rows = {
        name: torch.randn((examples, *tensor.shape), generator=random, dtype=torch.float64).to(tensor.device)
        for name, tensor in shapes.items()
    }
    squares = torch.stack([tensor.reshape(examples, -1).square().sum(dim=1) for tensor in rows.values()]).sum(dim=0)
    factor = bound * torch.logspace(1, 2, examples, dtype=torch.float64).to(squares) / squares.sqrt()
    return {name: tensor * factor.reshape(-1, *[1] * (tensor.dim() - 1)) for name, tensor in rows.items()}


def _norms(defense: ExampleDefense | UpdateDefense, row: Shapes, lengths: list[float]) -> Tensor:
    size = torch.stack([tensor.square().sum() for tensor in row.values()]).sum().sqrt()
    if isinstance(defense, ExampleDefense):
        scale = torch.tensor(lengths, dtype=torch.float64).to(size) / size
        rows = {name: scale.reshape(-1, *[1] * tensor.dim()) * tensor for name, tensor in row.items()}
        made = [tensor.reshape(len(lengths), -1).square().sum(dim=1) for tensor in defense.mean(rows).values()]
        return torch.stack(made).sum(dim=0).sqrt()
    return torch.stack(
        [
            torch.stack(
                [
                    made.square().sum()
                    for made in defense.mean({n: t * (length / size) for n, t in row.items()}).values()
                ]
            )
            .sum()
            .sqrt()
            for length in lengths
        ]
    )


def _directions(shapes: Shapes, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    def drawn() -> dict[str, Tensor]:
        return {
            name: torch.randn(tensor.shape, generator=generator, dtype=torch.float64, device=generator.device).to(
                tensor.device
            )
            for name, tensor in shapes.items()
        }

    whole = drawn()
    yield whole
    spread = drawn()
    yield {name: tensor * (4 * spread[name]).exp() for name, tensor in whole.items()}
    for name in shapes:
        yield {other: tensor if other == name else torch.zeros_like(tensor) for other, tensor in whole.items()}
    first = next(iter(shapes))
    single = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    single[first].reshape(-1)[:1] = 1.0
    yield single
