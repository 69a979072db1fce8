"""Errors of the best decoder of a token under Gaussian noise: bounds from distances between releases, without an attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Exposure, NotGaussian
from gradleak.operators import GradientJacobian
from gradleak.results import (
    Citation,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    Settings,
    Whole,
    check_count,
)
from gradleak.results.fields import check_fits

_BISECTIONS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenDistances:
    """Distances between the releases of one sentence whose token at one place is each of several candidates.

    Attributes:
        distances: ‖g(w) - g(v)‖ for candidates v, w, in units of noise of standard deviation 1, (M, M) float64.
        truth: place of the true token among the candidates.
        exact: True for differences of releases; False for their linear form, of which everything is an estimate.
    """

    distances: Tensor
    truth: int
    exact: bool = True

    def __post_init__(self) -> None:
        """Check the shape."""
        if self.distances.dim() != 2 or self.distances.shape[0] != self.distances.shape[1] or len(self.distances) < 2:
            raise InputError(
                f"TokenDistances: expected distances (M, M) of at least two candidates, got {tuple(self.distances.shape)}"
            )

    def confusions(self, std: float) -> Tensor:
        """Probability Q(d_vw / 2σ) that noise makes w look nearer than the true v, (M, M), with zeros for w = v.

        Candidates with equal releases have 1/2.
        """
        distances = self.distances.clone()
        if std > 0.0:
            distances /= 2 * std
        else:
            distances[distances > 0] = torch.inf
        chances: Tensor = torch.special.ndtr(-distances)
        return chances.fill_diagonal_(0.0)

    def best_error(self, std: float) -> float:
        """Upper bound Σ_w Q(d_vw / 2σ) on the error of the best decoder at the true token, at most 1."""
        return min(1.0, float(self.confusions(std)[self.truth].sum()))

    def mean_error(self, std: float) -> float:
        """Upper bound on the mean error of the best decoder, each candidate as likely."""
        return float(self.confusions(std).sum(dim=1).clamp_max(1.0).mean())

    def least_error(self, std: float) -> float:
        """Lower bound on the mean error of every decoder, each candidate as likely: the mean of max_w Q(d_vw / 2σ).

        The best decoder takes the nearest release. At v it errs at least where the one candidate that is nearest to v is
        nearer to what was seen.
        """
        return float(self.confusions(std).max(dim=1).values.mean())

    def smallest_std(self, error: float) -> float | None:
        """The smallest σ at which no decoder has a mean error below this, each candidate as likely.

        Args:
            error: between 0 and 1/2.

        Returns:
            None where an entry without noise tells candidates apart at every σ.

        Raises:
            InputError: for an error out of range.
        """
        if not 0 < error < 0.5:
            raise InputError(f"TokenDistances.smallest_std: expected an error between 0 and 0.5, got {error}")
        low, high = 0.0, float(self.distances.max())
        if self.least_error(0.0) >= error:
            return 0.0
        if not math.isfinite(high):
            return None
        while self.least_error(high) < error:
            high *= 2
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.least_error(middle) >= error else (middle, high)
        return high


@dataclass(frozen=True, kw_only=True)
class TokenError(Settings):
    """Two bounds on the errors of a decoder of single tokens, whose neighbors, labels and model it knows, under Gaussian noise.

    With d_vw = ‖g(w) - g(v)‖ between the released means for candidates v and w at one place, in units of the noise σ:

    - `token_error`: Σ_w Q(d_vw / 2σ) at the true token, mean over places. The best decoder errs at most so often, so that a
      small value shows leakage;
    - `least_token_error`: the mean over candidates v of max_w Q(d_vw / 2σ). If the token is one of the candidates, each as
      likely, no decoder errs less on average, however much it computes: a large value shows protection *under this prior*,
      at one place, of one release. A language makes some candidates far likelier, and a decoder who knows that errs less.

    Assumptions: everything else is known to the decoder, so that it is the strongest at one place; the noise is Gaussian with
    known standard deviations. With `linear` A(e_w - e_v) stands for the difference, with A the derivative by the embedding at
    the truth and without the table of words: both numbers are estimates then.

    Attributes:
        candidates: ids that a token may be; None for all ordinary ids of the vocabulary. The true one is added.
        linear: whether the linear form is used.
        most_places: places that are looked at, spread evenly over those with an ordinary token.

    Cost: as many plain gradients as candidates for each place, and a matrix of candidates by shared entries; with `linear` two
    for each number of an embedding.

    Source: the union bound and the error between two points in Gaussian noise are textbook (Proakis, "Digital Communications",
    section 4.2); their use on tokens is ours.
    """

    name: ClassVar[str] = "token_error"
    citations: ClassVar[tuple[Citation, ...]] = ()
    summary: ClassVar[str] = "Bounds on the errors of a decoder of single tokens under Gaussian noise."

    candidates: Sequence[int] | None = None
    linear: bool = False
    most_places: Annotated[int, Whole(1)] = 16

    def __post_init__(self) -> None:
        """Check the candidates."""
        super().__post_init__()
        if self.candidates is not None and len(set(self.candidates)) < 1:
            raise InputError("TokenError.candidates: expected at least one id, got none")
        check_count("TokenError.most_places", self.most_places)

    def distances(self, exposure: Exposure, row: int, place: int) -> TokenDistances:
        """The distances between releases at one place of one sentence, for noise of standard deviation 1.

        Where tensors have noise of different standard deviations, each is in units of its own; without noise, of 1.

        Args:
            exposure: of a batch of ids.
            row: of the batch.
            place: of the sentence.

        Raises:
            InputError: for a batch of something else, or a place without a token.
            UnsupportedError: where the linear form needs a derivative that the release does not have.
        """
        exposure = exposure.to(torch.float64)
        ids = exposure.batch.inputs
        vocabulary = exposure.domain.vocabulary
        if ids.is_floating_point() or vocabulary is None:
            raise InputError("TokenError: expected a batch of ids with a domain of tokens, got other inputs")
        true = int(ids[row, place])
        if true < 0:
            raise InputError(f"TokenError: expected a token at place {place} of sentence {row}, got none")
        listed = self.candidates
        if listed is None:
            listed = [one for one in range(vocabulary.size) if vocabulary.ordinary(one)]
        tried = list(dict.fromkeys([true, *listed]))
        if len(tried) < 2:
            raise InputError("TokenError: expected a candidate besides the true token, got none")
        check_fits("TokenError", len(tried) * exposure.objective.size)
        units = _units(exposure)
        if self.linear:
            values = self._linear(exposure, row, place, tried) / units
        else:
            values = torch.stack([self._mean(exposure, row, place, word) / units for word in tried])
        values = values - values[0]
        return TokenDistances(
            distances=torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist"),
            truth=0,
            exact=not self.linear,
        )

    def __call__(self, exposure: Exposure) -> list[Score]:
        """The two scores, with the values of each place in the details.

        Args:
            exposure: of a batch of ids, with a release whose noise is Gaussian.

        Returns:
            `token_error` and `least_token_error`, unit "share of tokens"; without a value where the noise is of another kind.

        Raises:
            InputError: as `distances`.
        """
        noise = exposure.noise
        if isinstance(noise, NotGaussian):
            return [
                _score(name, None, evidence=Evidence.ESTIMATE, outcome=Outcome.UNSUPPORTED, note=noise.reason)
                for name in (self.name, f"least_{self.name}")
            ]
        std = 1.0 if isinstance(noise, DiagonalGaussian) and any(noise.std.values()) else 0.0
        places = self._places(exposure.batch)
        found = [self.distances(exposure, row, place) for row, place in places]
        best = [one.best_error(std) for one in found]
        least = [one.least_error(std) for one in found]
        shared = {
            "places": [list(place) for place in places],
            "candidates": len(found[0].distances),
            "linear": self.linear,
        }
        kinds = (Evidence.ESTIMATE,) * 2 if self.linear else (Evidence.UPPER_BOUND, Evidence.LOWER_BOUND)
        return [
            _score(
                self.name,
                sum(best) / len(best),
                evidence=kinds[0],
                n=len(best),
                note="the best decoder of a token errs at most so often, its neighbors known",
                details={**shared, "per_place": best},
            ),
            _score(
                f"least_{self.name}",
                sum(least) / len(least),
                evidence=kinds[1],
                n=len(least),
                note=f"no decoder errs less on average if each of {len(found[0].distances)} candidates is as likely",
                details={**shared, "per_place": least, "prior": "uniform over the candidates"},
            ),
        ]

    def _places(self, batch: Batch) -> list[tuple[int, int]]:
        vocabulary = batch.declared_domain().vocabulary
        ordinary = [
            (row, place)
            for row, sentence in enumerate(batch.inputs.tolist())
            for place, word in enumerate(sentence)
            if word >= 0 and (vocabulary is None or vocabulary.ordinary(word))
        ]
        if not ordinary:
            raise InputError("TokenError: expected a sentence with an ordinary token, got none")
        step = max(1.0, len(ordinary) / self.most_places)
        return [ordinary[int(index * step)] for index in range(min(len(ordinary), self.most_places))]

    def _mean(self, exposure: Exposure, row: int, place: int, word: int) -> Tensor:
        """The released mean with another token there, which a language model predicts too."""
        batch = exposure.batch
        ids, targets = batch.inputs.clone(), batch.targets
        if targets.shape == ids.shape and int(targets[row, place]) == int(ids[row, place]):
            targets = targets.clone()
            targets[row, place] = word
        ids[row, place] = word
        return replace(exposure, batch=replace(batch, inputs=ids, targets=targets)).released_mean().detach()

    def _linear(self, exposure: Exposure, row: int, place: int, words: Sequence[int]) -> Tensor:
        """A e_w for every candidate, (M, P)."""
        objective, batch = exposure.objective, exposure.batch
        embedded = objective.embed(batch.inputs).detach()
        at = Exposure(objective.at_embeddings(), Batch(embedded, batch.targets), exposure.release)
        width = embedded.shape[2]
        first = (row * embedded.shape[1] + place) * width
        operator = GradientJacobian(at)
        block = torch.zeros(embedded.numel(), width, dtype=embedded.dtype)
        block[first : first + width] = torch.eye(width, dtype=embedded.dtype)
        rows = objective.embed(torch.tensor([list(words)]))[0].detach()
        return rows @ operator.matmat(block).T


def _units(exposure: Exposure) -> Tensor:
    """The standard deviation of every entry of the release, (P,); ones without noise."""
    noise = exposure.noise
    params = exposure.objective.params
    if not isinstance(noise, DiagonalGaussian) or not any(noise.std.values()):
        return torch.ones(exposure.objective.size, dtype=torch.float64)
    stds = {name: noise.std[name] for name in params}
    # An entry without noise, beside others with it, tells every difference at once.
    least = 1e-150
    return torch.cat(
        [torch.full((tensor.numel(),), max(stds[name], least), dtype=torch.float64) for name, tensor in params.items()]
    )


def _score(
    name: str,
    value: float | None,
    *,
    evidence: Evidence,
    n: int = 1,
    outcome: Outcome = Outcome.CONVERGED,
    note: str = "",
    details: dict[str, object] | None = None,
) -> Score:
    return Score(
        name=name,
        value=value,
        unit="share of tokens",
        leakier=Leakier.LOWER,
        evidence=evidence,
        n=n,
        outcome=outcome,
        note=note,
        details=details or {},
    )
