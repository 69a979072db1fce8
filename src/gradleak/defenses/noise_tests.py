"""Is it the Gaussian noise that is stated? Tests of standardized draws, each with the chance of a false alarm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats
import torch
from torch import Tensor

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
