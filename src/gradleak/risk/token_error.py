"""Errors of the best decoder of a token under Gaussian noise: bounds from distances between releases, without an attack."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

import torch
from torch import Tensor

from gradleak.core import Batch, DiagonalGaussian, Exposure, NotGaussian
from gradleak.core.evaluation import BY_EXAMPLE
from gradleak.operators import GradientJacobian
from gradleak.results import (
    FANO_1961,
    PROAKIS_2008,
    Citation,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    Share,
    Whole,
)
from gradleak.results.fields import check_fits
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerSite
from gradleak.risk.measure import Measure
from gradleak.risk.unseen_words import word_rows

_BISECTIONS = 100
# Numbers of gradients that are taken side by side.
_TOGETHER = 2**26
# Of the gradients of one place, taken side by side: their calls in plain gradients, and seconds an entry of each and an
# entry of the difference of each two, in float64, on the machine of `Task.seconds`.
CALLS_COST = 5.0
_GRADIENT_SECONDS = 1.7e-8
_DISTANCE_SECONDS = 1e-9
TOKEN_ERROR = "token_error"
_NO_IDS = "TokenError: expected a batch of ids with a domain of tokens, got other inputs"
T = TypeVar("T")


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
        """Lower bound on the mean error of every decoder, each candidate as likely: the larger of two.

        The best decoder takes the nearest release. At v it errs at least where the one candidate that is nearest to v is
        nearer to what was seen: the mean of max_w Q(d_vw / 2σ), which is sharp for little noise and at most 1/2. Fano's
        inequality is sharp for much: H(e) + e log(M - 1) >= log M - I, with the information I at most the mean squared
        distance from the center over 2σ².
        """
        return max(float(self.confusions(std).max(dim=1).values.mean()), self._least_by_fano(std))

    def _least_by_fano(self, std: float) -> float:
        if std == 0.0 or not math.isfinite(float(self.distances.max())):
            return 0.0
        count = len(self.distances)
        information = float(self.distances.square().mean()) / (4 * std**2)

        def uncertainty(error: float) -> float:
            known = sum(-share * math.log(share) for share in (error, 1 - error) if share > 0)
            return known + error * math.log(count - 1)

        needed, low, high = math.log(count) - information, 0.0, 1 - 1 / count
        if needed <= 0:
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if uncertainty(middle) < needed else (low, middle)
        return low

    def smallest_std(self, error: float) -> float | None:
        """A σ from which on no decoder has a mean error below this, each candidate as likely; the smallest that is proven.

        Args:
            error: above 0 and below 1 - 1/M, which guessing has.

        Returns:
            None where an entry without noise tells candidates apart at every σ.

        Raises:
            InputError: for an error out of range.
        """
        most = 1 - 1 / len(self.distances)
        if not 0 < error < most:
            raise InputError(
                f"TokenDistances.smallest_std: expected an error above 0 and below {most:.3g}, which guessing among "
                f"{len(self.distances)} candidates has, got {error}"
            )
        low, high = 0.0, float(self.distances.max())
        if self.least_error(0.0) >= error:
            return 0.0
        if high == 0.0:
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
class TokenError(Measure):
    """Bounds on the errors of a decoder of single tokens under Gaussian noise, who knows neighbors, labels and model.

    With d_vw = ‖g(w) - g(v)‖ between the released means for candidates v and w at one place, in units of the noise σ:

    - `token_error_bound`: Σ_w Q(d_vw / 2σ) at the true token, mean over the places that are looked at. The best decoder among
      the candidates errs at most so often, so that a small value shows leakage; a large mean says nothing of single places,
      of which the smallest is in the details (`worst_place`);
    - `least_token_error`: the mean over candidates v of max_w Q(d_vw / 2σ), or what Fano's inequality leaves, whichever is
      larger, mean over the same places. If the token is one of the candidates, each as likely, no decoder errs less on
      average over these places, however much it computes, though it may at one of them: a large value shows protection *under
      this prior*, at one place, of one release. A language makes some candidates far likelier, and a decoder who knows that
      errs less. No verdict reads it;
    - `noise_std_for_token_error`: the standard deviation of noise on every shared number from which on the second number is
      at least `threshold` at every place that is looked at, under the same prior; other places may need more.

    Assumptions: everything else is known to the decoder, so that it is the strongest at one place; the noise is Gaussian with
    known standard deviations. With `linear` A(e_w - e_v) stands for the difference, with A the derivative by the embedding at
    the truth and without the table of words: all numbers are estimates then. Of two candidates the first number is exact.

    Attributes:
        candidates: ids that a token may be; None for `most_candidates` ordinary ids spread evenly over the vocabulary. The
            true one is added.
        linear: whether the linear form is used.
        most_places: places that are looked at, spread evenly over those with an ordinary token.
        most_candidates: see `candidates`.
        threshold: error of a decoder that the noise shall keep it above.

    Cost: as many plain gradients as candidates for each place, and a matrix of candidates by shared entries; with `linear` two
    for each number of an embedding.

    Source: the union bound and the error between two points in Gaussian noise are textbook (Proakis and Salehi 2008, section
    4.2), and so is Fano's inequality (Fano 1961); their use on tokens is ours.
    """

    name: ClassVar[str] = "token_error_bound"
    citations: ClassVar[tuple[Citation, ...]] = (PROAKIS_2008, FANO_1961)
    summary: ClassVar[str] = "bounds on the errors of a decoder of single tokens under Gaussian noise"
    reads_derivative: ClassVar[bool] = False
    reads_ids: ClassVar[bool] = True

    candidates: Sequence[int] | None = None
    linear: bool = False
    most_places: Annotated[int, Whole(1)] = 16
    most_candidates: Annotated[int, Whole(2)] = 64
    threshold: Share = 0.5

    def __post_init__(self) -> None:
        """Check the candidates."""
        super().__post_init__()
        if self.candidates is not None and len(set(self.candidates)) < 1:
            raise InputError("TokenError.candidates: expected at least one id, got none")

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """A refusal: it is taken of whole releases of sentences."""
        return self.refused(
            site.label, groups, "it is taken of whole releases of sentences, in the audit of a model of text"
        )

    def extra_cost(self, batch: Batch) -> float:
        """The calls of some plain gradients a place, since those of all candidates are taken together."""
        return CALLS_COST * self._tried(batch)[0]

    def extra_seconds(self, batch: Batch, entries: int) -> float:
        """The gradients of the candidates of all places, and the distances of each two of them, entry by entry."""
        places, count = self._tried(batch)
        return places * count * entries * (_GRADIENT_SECONDS + count * _DISTANCE_SECONDS)

    def _tried(self, batch: Batch) -> tuple[int, int]:
        """The number of places, and of candidates at each."""
        vocabulary = batch.declared_domain().vocabulary
        if vocabulary is None:
            return 0, 0
        count = self.most_candidates if self.candidates is None else len(self.candidates)
        return min(self.most_places, int((batch.inputs >= 0).sum())), min(count, vocabulary.size)

    @property
    def _unit(self) -> str:
        return "share of tokens"

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
        vocabulary = None if exposure.batch.domain is None else exposure.batch.domain.vocabulary
        if ids.is_floating_point() or vocabulary is None:
            raise InputError(_NO_IDS)
        true = int(ids[row, place])
        if true < 0:
            raise InputError(f"TokenError: expected a token at place {place} of sentence {row}, got none")
        listed = self.candidates
        if listed is None:
            ordinary = [one for one in range(vocabulary.size) if vocabulary.ordinary(one)]
            listed = spread(ordinary, self.most_candidates)
        tried = list(dict.fromkeys([true, *listed]))
        if len(tried) < 2:
            raise InputError("TokenError: expected a candidate besides the true token, got none")
        check_fits("TokenError", len(tried) * exposure.objective.size)
        units = _units(exposure)
        if self.linear:
            values = self._linear(exposure, row, place, tried) / units
        else:
            values = released_means(exposure, row, place, tried) / units
        values = values - values[0]
        return TokenDistances(
            distances=torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist"),
            truth=0,
            exact=not self.linear,
        )

    def _measure(self, exposure: Exposure, delta: Tensor | None, operator: GradientJacobian) -> Score:
        return self._of_ids(exposure)[0]

    def _of_ids(self, exposure: Exposure) -> list[Score]:
        """`token_error_bound`, `least_token_error` and `noise_std_for_token_error`, with each place in the details."""
        noise = exposure.noise
        if isinstance(noise, NotGaussian):
            return [self.unsupported(f"the noise of this release is not Gaussian: {noise.reason}")]
        noisy = isinstance(noise, DiagonalGaussian) and any(noise.std.values())
        places, total = self.places(exposure.batch), len(_ordinary(exposure.batch))
        found = [self.distances(exposure, row, place) for row, place in places]
        if not any(bool(one.distances.any()) for one in found):
            note = (
                "the release is the same whichever candidate stands at a place, as where a sign or a rounding hides it"
            )
            return [self._without_value(Outcome.NOT_INFORMATIVE, f"{note}; this is no evidence of safety")]
        best = [one.best_error(float(noisy)) for one in found]
        least = [one.least_error(float(noisy)) for one in found]
        count = len(found[0].distances)
        prior = f"uniform over {count} candidates"
        shared = {
            "places": [list(place) for place in places],
            "of_places": total,
            "candidates": count,
            "linear": self.linear,
        }
        mean = f"on average over the places that were looked at ({len(places)} of {total})"
        worst = dict(zip(("sentence", "place"), places[best.index(min(best))], strict=True))
        upper = Evidence.EXACT if count == 2 else Evidence.UPPER_BOUND
        scores = [
            self._score(
                sum(best) / len(best),
                Evidence.ESTIMATE if self.linear else upper,
                n=len(best),
                note=f"{mean} the best decoder of a token errs at most so often, told its neighbors and {count} candidates; at "
                f"the worst place at most {min(best):.2g}",
                details={**shared, "per_place": best, "worst_place": {**worst, "value": min(best)}},
            ),
            Score(
                name=f"least_{TOKEN_ERROR}",
                value=sum(least) / len(least),
                unit=self._unit,
                leakier=self.leakier,
                evidence=Evidence.ESTIMATE if self.linear else Evidence.LOWER_BOUND,
                n=len(least),
                note=f"{mean} no decoder errs less if each of {count} candidates is as likely, though it may at one of them; a "
                "language makes some likelier, and who knows that errs less",
                details={**shared, "per_place": least, "under_prior": prior},
            ),
        ]
        level = noise.level if isinstance(noise, DiagonalGaussian) and noisy else 1.0
        return scores if level is None else [*scores, self._smallest(found, level, prior, shared)]

    def _smallest(
        self, found: Sequence[TokenDistances], level: float, prior: str, shared: Mapping[str, object]
    ) -> Score:
        """The noise of the place that needs the most."""
        count, needed, why = len(found[0].distances), None, ""
        details = {**shared, "threshold": self.threshold, "under_prior": prior}
        if self.threshold >= 1 - 1 / count:
            why = f"guessing among {count} candidates errs less often than {self.threshold:g}; take more candidates"
        else:
            stds = [one.smallest_std(self.threshold) for one in found]
            known = [level * one for one in stds if one is not None]
            needed = max(known) if len(known) == len(stds) else None
            details["per_place"] = known
            why = (
                "some shared number has no noise and tells candidates apart"
                if needed is None
                else f"with Gaussian noise of this standard deviation or more on every shared number no decoder of a token, told "
                f"all others, errs less than {self.threshold:g} of the time on average over the prior ({prior}), at any of "
                f"the places that were looked at ({len(known)} of {shared['of_places']}), of one release"
            )
        return Score(
            name=f"noise_std_for_{TOKEN_ERROR}",
            value=needed,
            unit="update",
            leakier=Leakier.HIGHER,
            evidence=Evidence.ESTIMATE if self.linear or needed is None else Evidence.UPPER_BOUND,
            n=len(found),
            outcome=Outcome.CONVERGED if needed is not None else Outcome.UNSUPPORTED,
            note=why,
            details=details,
        )

    def places(self, batch: Batch) -> list[tuple[int, int]]:
        """The places that are looked at, as (sentence, place).

        Args:
            batch: of ids.

        Raises:
            InputError: for other inputs, or without an ordinary token.
        """
        return spread(_ordinary(batch), self.most_places)

    def _linear(self, exposure: Exposure, row: int, place: int, words: Sequence[int]) -> Tensor:
        """A e_w for every candidate, (M, P)."""
        objective, batch = exposure.objective, exposure.batch
        embedded = objective.embed(batch.inputs).detach()
        at = Exposure(
            objective.at_embeddings(length=embedded.shape[1]), Batch(embedded, batch.targets), exposure.release
        )
        width = embedded.shape[2]
        first = (row * embedded.shape[1] + place) * width
        operator = GradientJacobian(at)
        block = embedded.new_zeros(embedded.numel(), width)
        block[first : first + width] = torch.eye(width, dtype=embedded.dtype, device=embedded.device)
        rows = word_rows(exposure, torch.tensor(list(words), device=embedded.device))
        return rows @ operator.matmat(block).T


def _ordinary(batch: Batch) -> list[tuple[int, int]]:
    """All places with an ordinary token, as (sentence, place)."""
    vocabulary = None if batch.domain is None else batch.domain.vocabulary
    if vocabulary is None or batch.inputs.is_floating_point():
        raise InputError(_NO_IDS)
    found = [
        (row, place)
        for row, sentence in enumerate(batch.inputs.tolist())
        for place, word in enumerate(sentence)
        if vocabulary.ordinary(word)
    ]
    if not found:
        raise InputError("TokenError: expected a sentence with an ordinary token, got none")
    return found


def released_means(exposure: Exposure, row: int, place: int, words: Sequence[int]) -> Tensor:
    """The released means with each of the words at one place, which a language model predicts too, (M, P).

    Args:
        exposure: of a batch of ids.
        row: of the batch.
        place: of the sentence.
        words: ids that are put there.
    """
    objective, release, batch = exposure.objective, exposure.release, exposure.batch
    put = torch.tensor(list(words), device=batch.inputs.device)
    ids, targets = (
        tensor.repeat(len(words), *[1] * (tensor.dim() - 1)) for tensor in (batch.inputs[None], batch.targets[None])
    )
    if batch.targets.shape == batch.inputs.shape and int(batch.targets[row, place]) == int(batch.inputs[row, place]):
        targets[:, row, place] = put
    ids[:, row, place] = put

    def mean(ids: Tensor, targets: Tensor) -> Tensor:
        return objective.flatten(release.mean(objective, objective.params, Batch(ids, targets)))

    try:
        with BY_EXAMPLE.within(objective):
            chunk = max(1, min(64, _TOGETHER // objective.size))
            found: Tensor = torch.func.vmap(mean, randomness="same", chunk_size=chunk)(ids, targets)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, ValueError, AssertionError, UserWarning):
        # No batching rule (a warning where they are errors); another cause comes again here.
        found = torch.stack([mean(*pair).detach() for pair in zip(ids, targets, strict=True)])
    return found.detach()


def _units(exposure: Exposure) -> Tensor:
    """The standard deviation of every entry of the release, (P,); ones without noise."""
    noise = exposure.noise
    params = exposure.objective.params
    if not isinstance(noise, DiagonalGaussian) or not any(noise.std.values()):
        return torch.ones(exposure.objective.size, dtype=torch.float64, device=exposure.objective.device)
    stds = {name: noise.std[name] for name in params}
    # An entry without noise, beside others with it, tells every difference at once.
    least = 1e-150
    return torch.cat(
        [
            torch.full((tensor.numel(),), max(stds[name], least), dtype=torch.float64, device=tensor.device)
            for name, tensor in params.items()
        ]
    )


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of the items, at even distances from the first one on.

    Examples:
        >>> spread([0, 1, 2, 3, 4, 5], 3)
        [0, 2, 4]
    """
    step = max(1.0, len(items) / most)
    return [items[int(index * step)] for index in range(min(len(items), most))]
