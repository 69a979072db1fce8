"""Does a defense do what its label says? Measured on one release, and held against what it claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import scipy
import torch
from torch import Tensor

from gradleak.core import (
    Batch,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    Objective,
    Release,
    UpdateDefense,
    example_gradients,
)
from gradleak.defenses import release_tests
from gradleak.defenses.clip import scaled_to
from gradleak.results import InputError
from gradleak.results.score import jsonable

# One false alarm in a million.
LEVEL = 1e-6
# Inputs this many times too large stand for the examples that a bound has to hold for as well.
SCALES = (10.0, 1000.0)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Claims on the label of a defense; a field that is None is taken from its class, where that says something.

    Attributes:
        kept_share: share of the entries that are let through.
        noise_std: standard deviation of the Gaussian noise on every entry of the update.
        clip_norm: the norm to which the gradient of every single example is clipped.
    """

    kept_share: float | None = None
    noise_std: float | None = None
    clip_norm: float | None = None


@dataclass(frozen=True, kw_only=True)
class Check:
    """One claim, and what was found.

    Attributes:
        name: what was looked at.
        claimed: the number that was claimed, or None.
        found: the number that was found, or None.
        interval: where it had to lie if the claim holds, but for one case in a million; None where there is none.
        passed: whether it does; None where it could not be decided.
        note: one sentence for the reader, or "".
    """

    name: str
    claimed: float | None
    found: float | None
    interval: tuple[float, float] | None
    passed: bool | None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """Measured effects of a release's defenses, and whether they are what they claim to be.

    Attributes:
        kept_share: share of the entries that are not zero in a release.
        untouched_share: share of the entries that equal those of the undefended update, bit for bit.
        cosine: to the undefended update, mean over draws; None where one of them is zero.
        relative_norm: norm over that of the undefended update, mean over draws; None where that is zero.
        sensitivity: the largest L2 change of the noiseless update when one example is replaced, over those tried.
        checks: claims and findings.
    """

    kept_share: float
    untouched_share: float
    cosine: float | None
    relative_norm: float | None
    sensitivity: float
    checks: tuple[Check, ...]

    @property
    def failures(self) -> tuple[Check, ...]:
        """The claims that do not hold."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def passed(self) -> bool:
        """True if no claim was refuted; one that could not be decided is not."""
        return not self.failures

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        facts = {name: value for name, value in vars(self).items() if name != "checks"}
        found: dict[str, Any] = jsonable(facts | {"checks": [vars(check) for check in self.checks]})
        return found


def self_test(
    release: Release,
    objective: Objective,
    batch: Batch,
    *,
    generator: torch.Generator,
    claims: Claims | None = None,
    others: Batch | None = None,
    draws: int = 64,
) -> SelfTest:
    """Effects of the defenses of a release on one batch, held against what they say of themselves, or their label does.

    - *kept share*: entries that are not zero, against the claim of a sparsifying defense (its rounding allowed for).
    - *noise variance* and *noise mean*: draws against the noiseless update. Gaussian noise has a sum of squares between
      the quantiles of χ², over everything, in every tensor and in every entry; another law that states its variance is
      held to it by a t interval over draws, over everything alone. Randomness that nobody states is a failure.
    - *noise repeats* and *noise shape*, of Gaussian noise: draws are independent of each other and fill all directions,
      and their values have a normal law (Kolmogorov and Smirnov), in every tensor.
    - *bound*: vectors of any length and direction, up to a million times the bound that a defense claims, fed to its
      `mean` directly: none may come out longer.
    - *sensitivity*: every example replaced by others and by its own inputs a thousand times too large. Under
      per-example clipping to C no replacement moves the mean of k examples by more than 2C/k. Where what is labeled
      formal bounds the whole update by C, it hides a client and not one example: nothing moves it by more than 2C.
    - *per-example clip*: whether the noiseless update is the mean of clipped gradients, or the clipped mean; where a
      class shortens gradients in another way, its bound decides.
    - *formal*: a defense that is labeled formal has to bound what an example adds, and to add noise.

    An honest Gaussian release fails in fewer than one test of a hundred thousand (one in a million a check, with
    Bonferroni factors inside). A claim that passes is not proven: the sensitivity is a search, so too small; n draws see
    a variance of one entry that is wrong by a factor of about 1 ± 5√(2/n), of a tensor of m entries 1 ± 5√(2/nm); noise
    that is predictable in another way (a weak generator) passes. All in float64.

    Args:
        release: protocol and defenses.
        objective: the client's loss.
        batch: examples to test with.
        generator: the only source of randomness.
        claims: what the label says, where that is more than the classes know.
        others: examples to swap in; None for those of the batch.
        draws: how many releases are drawn, at least 2.

    Raises:
        InputError: for fewer than 2 draws, or data that do not fit the model.
        UnsupportedError: where the release itself is refused.

    **Cost**: `draws` releases, and a released mean for each of b · (3 + others) swaps. The tests of n draws of P entries
    take n²P multiplications and sort nP numbers, a million of them at most a tensor: some seconds for P = 10⁵, n = 64.
    """
    if draws < 2:
        raise InputError(f"self_test: expected at least 2 draws, got {draws}")
    claims = claims or Claims()
    objective, batch = objective.to(torch.float64), batch.to(torch.float64)
    others = batch if others is None else others.to(torch.float64)
    drawn = torch.stack([objective.flatten(release(objective, batch, generator).tensors) for _ in range(draws)])
    plain = _mean(Release(release.protocol), objective, batch)
    mean = _mean(release, objective, batch)
    case = _Case(release=release, objective=objective, batch=batch, claims=claims)
    sensitivity, clipping = case.sensitivity(list(_swapped(batch, others)))
    checks = [
        case.kept(drawn, plain),
        *case.noise(drawn, mean),
        *case.bounds(),
        clipping,
        case.per_example_clip(),
        case.formal(),
    ]
    norms = drawn.norm(dim=1)
    comparable = float(plain.norm()) > 0 and bool((norms > 0).all())
    return SelfTest(
        kept_share=float((drawn != 0).double().mean()),
        untouched_share=float((drawn == plain).double().mean()),
        cosine=float((drawn @ plain / norms / plain.norm()).mean()) if comparable else None,
        relative_norm=float((norms / plain.norm()).mean()) if float(plain.norm()) > 0 else None,
        sensitivity=sensitivity,
        checks=tuple(check for check in checks if check is not None),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Case:
    """One release under test; every method gives a check, or None where nothing is claimed."""

    release: Release
    objective: Objective
    batch: Batch
    claims: Claims

    def kept(self, drawn: Tensor, plain: Tensor) -> Check | None:
        """The share of entries that are not zero."""
        claimed, note = self.claims.kept_share, ""
        if claimed is None:
            stated = [defense for defense in self.release.defenses if defense.kept_share is not None]
            if not stated:
                return None
            claimed = stated[-1].kept_share
            if stated[-1] is not self.release.defenses[-1] or len(stated) > 1:
                note = "another defense stands behind or before it, so that its share does not show"
        assert claimed is not None
        found = float((drawn != 0).double().mean())
        # Counts are rounded in every tensor; entries that are zero without a defense may be among those that are kept.
        rounding = len(self.objective.params) / plain.numel()
        zeros = float((plain == 0).double().mean())
        interval = (max(0.0, claimed - zeros - rounding), min(1.0, claimed + rounding))
        passed = None if note else interval[0] - 1e-12 <= found <= interval[1] + 1e-12
        return Check(name="kept_share", claimed=claimed, found=found, interval=interval, passed=passed, note=note)

    def noise(self, drawn: Tensor, mean: Tensor) -> Iterator[Check]:
        """The spread of draws around the noiseless update, and their center."""
        residual = drawn - mean
        law = self.release.noise(self.objective, examples=self.batch.size)
        if self.claims.noise_std is not None:
            law = DiagonalGaussian(std=dict.fromkeys(self.objective.params, self.claims.noise_std))
        still = 64 * torch.finfo(mean.dtype).eps * max(1e-300, float(mean.abs().max()))
        if isinstance(law, DiagonalGaussian):
            std = self._spread(law.std)
            yield from self._gaussian(residual, std)
            quiet = residual[:, std == 0]
            if bool((quiet.abs() > still).any()):
                note = "entries that are said to carry no noise change from draw to draw"
                yield _refuted("noise_variance", 0.0, float(quiet.square().mean()), note)
        elif law is None:
            spread = float(residual.square().mean())
            moves = bool((residual.abs() > still).any())
            note = "draws differ from the noiseless update, and no noise is stated" if moves else ""
            yield Check(name="noise_variance", claimed=0.0, found=spread, interval=None, passed=not moves, note=note)
        else:
            variance = self._variance()
            if variance is None:
                yield Check(name="noise_variance", claimed=None, found=float(residual.square().mean()), interval=None,
                            passed=None, note=law.reason)  # fmt: skip
                return
            yield _by_draws("noise_variance", residual.square().mean(dim=1), float(variance.mean()))
        if law is not None and float(mean.norm()) > 0:
            along = residual @ mean / mean.square().sum()
            yield _by_draws("noise_mean", along, 0.0, note="along the noiseless update, in units of its norm")

    def bounds(self) -> Iterator[Check]:
        """Every bound that a defense claims, on vectors that no batch of examples need reach."""
        for defense in self.release.defenses:
            bound = self._bound_of(defense)
            if bound is None or not isinstance(defense, ExampleDefense | UpdateDefense):
                continue
            found = release_tests.longest(defense, self.objective.params, bound, torch.Generator().manual_seed(0))
            passed = found <= bound * (1 + 1e-6)
            note = "" if passed else f"{type(defense).__name__} gives vectors longer than the bound that it claims"
            yield Check(name="bound", claimed=bound, found=found, interval=(0.0, bound), passed=passed, note=note)

    def sensitivity(self, swapped: Sequence[Batch]) -> tuple[float, Check | None]:
        """The largest change of the noiseless update by one example, and whether a clip norm allows it."""
        whole = self._largest_change(self.release, swapped)
        bound, note = self._clip_norm(), ""
        if bound is None:
            return whole, self._client_sensitivity(swapped)
        claimed = 2 * bound / self._divisor()
        found = whole
        if not self.release.protocol.shares_gradient:
            note = "the bound holds for each local step, which the update does not show"
        elif self._at_example:
            found = self._largest_change(Release(self.release.protocol, self._at_example), swapped)
        passed = None if note else found <= claimed * (1 + 1e-9)
        if passed is False:
            note = "one example moves the update by more than per-example clipping allows"
        return whole, Check(
            name="sensitivity", claimed=claimed, found=found, interval=(0.0, claimed), passed=passed, note=note
        )

    def _client_sensitivity(self, swapped: Sequence[Batch]) -> Check | None:
        """Check of a formal bound on the whole update: 2C for another client in the place of this one."""
        for place, defense in enumerate(self.release.defenses):
            bound = self._bound_of(defense) if isinstance(defense, UpdateDefense) else None
            if bound is not None and defense.guarantee is Guarantee.FORMAL:
                upto = Release(self.release.protocol, self.release.defenses[: place + 1])
                found, claimed = self._largest_change(upto, swapped), 2 * bound
                passed = found <= claimed * (1 + 1e-9)
                note = "of the whole update: it hides a client, not one example"
                return Check(
                    name="sensitivity", claimed=claimed, found=found, interval=(0.0, claimed), passed=passed, note=note
                )
        return None

    def per_example_clip(self) -> Check | None:
        """Check whether the update is the mean of clipped gradients, where that is claimed."""
        bound = self._clip_norm()
        if bound is None:
            return None
        name = "per_example_clip"
        if not self.release.protocol.shares_gradient:
            return Check(name=name, claimed=bound, found=None, interval=None, passed=None, note="local steps hide it")
        release = Release(self.release.protocol, self._at_example or self.release.defenses)
        for factor in (1.0, *SCALES):
            batch = self.batch.with_inputs(factor * self.batch.inputs)
            rows = example_gradients(self.objective, self.objective.params, batch)
            each = [scaled_to(bound, {key: rows[key][place] for key in rows}) for place in range(batch.size)]
            flat = torch.stack([self.objective.flatten(row) for row in each])
            single = flat.sum(dim=0) / self._divisor()
            together = self.objective.flatten(
                scaled_to(bound, {key: tensor.mean(dim=0) for key, tensor in rows.items()})
            )
            if float((single - together).norm()) > 1e-6 * float(single.norm()):
                break
        else:
            return self._unreached(bound)
        found = _mean(release, self.objective, batch)
        off, off_together = (float((found - other).norm() / other.norm()) for other in (single, together))
        note = ""
        shortened = off > 1e-6 and self.claims.clip_norm is None and all(check.passed for check in self.bounds())
        if shortened:
            note = "gradients are shortened in another way than by clipping; the bound holds"
        elif off > 1e-6:
            note = (
                "the whole update is clipped, not the gradient of every example"
                if off_together <= 1e-6
                else "the update is neither the mean of clipped gradients nor the clipped mean"
            )
        passed = off <= 1e-6 or shortened
        return Check(name=name, claimed=0.0, found=off, interval=(0.0, 1e-6), passed=passed, note=note)

    def _unreached(self, bound: float) -> Check:
        """Per-example clipping that these examples do not need, however large: gradients that do are made up."""
        name, rows = "per_example_clip", release_tests.long_rows(self.objective.params, bound, self.batch.size)
        each = [scaled_to(bound, {key: t[place] for key, t in rows.items()}) for place in range(self.batch.size)]
        wanted = torch.stack([self.objective.flatten(row) for row in each]).sum(dim=0) / self._divisor()
        for shortening in self._at_example:
            rows = shortening.mean(rows)
        update = self._at_example[-1].average(rows) if self._at_example else {k: t.mean(dim=0) for k, t in rows.items()}
        for defense in self.release.defenses if not self._at_example else ():
            if not isinstance(defense, UpdateDefense):
                note = "the clip norm does not bite on these examples, however large"
                return Check(name=name, claimed=bound, found=None, interval=None, passed=None, note=note)
            update = defense.mean(update)
        off = float((self.objective.flatten(update) - wanted).norm() / wanted.norm())
        shortened = off > 1e-6 and self.claims.clip_norm is None and all(check.passed for check in self.bounds())
        note = "on gradients that are made up: those of these examples are too short" + (
            "; shortened in another way than by clipping, the bound holds" if shortened else ""
        )
        return Check(
            name=name, claimed=0.0, found=off, interval=(0.0, 1e-6), passed=off <= 1e-6 or shortened, note=note
        )

    def formal(self) -> Check | None:
        """Check whether what is labeled formal bounds what an example adds, and adds noise."""
        formal = [defense for defense in self.release.defenses if defense.guarantee is Guarantee.FORMAL]
        if not formal:
            return None
        lacks = []
        for defense in formal:
            shapes = self.objective.params
            if isinstance(defense, ExampleDefense):
                bound, law = defense.bound, defense.law(shapes, self.batch.size)
            elif isinstance(defense, UpdateDefense):
                bound, law = defense.bound(shapes), defense.noise(shapes)
            else:
                bound, law = None, None
            named = type(defense).__name__
            lacks += [f"{named} bounds no norm"] if bound is None else []
            quiet = law is None or (isinstance(law, DiagonalGaussian) and not all(law.std.values()))
            lacks += [f"{named} leaves entries without noise"] if quiet else []
        return Check(name="formal", claimed=None, found=None, interval=None, passed=not lacks, note="; ".join(lacks))

    @property
    def _at_example(self) -> list[ExampleDefense]:
        return [defense for defense in self.release.defenses if isinstance(defense, ExampleDefense)]

    def _clip_norm(self) -> float | None:
        """The norm to which the gradient of every example is said to be clipped."""
        if self.claims.clip_norm is not None:
            return self.claims.clip_norm
        bounds = [defense.bound for defense in self._at_example if defense.bound is not None]
        return bounds[-1] if bounds else None

    def _bound_of(self, defense: Defense) -> float | None:
        """Bound that a defense states on the length of its output."""
        if isinstance(defense, ExampleDefense):
            return defense.bound
        return defense.bound(self.objective.params) if isinstance(defense, UpdateDefense) else None

    def _divisor(self) -> float:
        """Divisor of the sum over examples, as the last defense of examples divides it."""
        if not self._at_example:
            return float(self.batch.size)
        ones = {"one": torch.ones(self.batch.size, 1, dtype=torch.float64)}
        return self.batch.size / float(self._at_example[-1].average(ones)["one"])

    def _largest_change(self, release: Release, swapped: Sequence[Batch]) -> float:
        here = _mean(release, self.objective, self.batch)
        changes = (float((_mean(release, self.objective, batch) - here).norm()) for batch in swapped)
        # An example on which the model overflows has no gradient to move the update by.
        return max((change for change in changes if math.isfinite(change)), default=0.0)

    def _gaussian(self, residual: Tensor, std: Tensor) -> Iterator[Check]:
        """Its spread over all, by tensor and by entry; draws that repeat each other; the law of its values."""
        noisy = std > 0
        if not bool(noisy.any()):
            yield Check(name="noise_variance", claimed=0.0, found=0.0, interval=None, passed=None, note="no noise")
            return
        draws = residual[:, noisy] / std[noisy]
        parts = self._parts(noisy)
        count = draws.numel()
        ratio = float(draws.square().sum()) / count
        low, high = (float(scipy.stats.chi2.ppf(q, count)) / count for q in (LEVEL / 4, 1 - LEVEL / 4))
        claimed = float(std[noisy].square().mean())
        spread = release_tests.variance(draws, parts)
        note = "" if low <= ratio <= high else f"the noise has {ratio:.3g} times the variance that is stated"
        if not note and spread.chance < LEVEL / 2:
            note = spread.note
        yield Check(
            name="noise_variance",
            claimed=claimed,
            found=ratio * claimed,
            interval=(low * claimed, high * claimed),
            passed=not note,
            note=note,
        )
        for name, found in (
            ("noise_repeats", release_tests.repeats(draws, parts)),
            ("noise_shape", release_tests.shape(draws, parts)),
        ):
            passed = found.chance >= LEVEL
            yield Check(
                name=name, claimed=None, found=None, interval=None, passed=passed, note="" if passed else found.note
            )

    def _parts(self, noisy: Tensor) -> dict[str, slice]:
        """The places of each tensor among the entries that carry noise; tensors without any are left out."""
        parts, start, first = {}, 0, 0
        for name, tensor in self.objective.params.items():
            size = int(noisy[first : first + tensor.numel()].sum())
            if size:
                parts[name] = slice(start, start + size)
            start, first = start + size, first + tensor.numel()
        return parts

    def _spread(self, std: Mapping[str, float]) -> Tensor:
        tensors = {name: torch.full_like(tensor, std[name]) for name, tensor in self.objective.params.items()}
        return self.objective.flatten(tensors)

    def _variance(self) -> Tensor | None:
        """The stated variance of a last defense that is random in its own way, over a noiseless update; else None."""
        *before, last = self.release.defenses
        if not isinstance(last, UpdateDefense):
            return None
        earlier = Release(self.release.protocol, before)
        if earlier.noise(self.objective, examples=self.batch.size) is not None:
            return None
        variance = last.variance(self.objective.unflatten(_mean(earlier, self.objective, self.batch)))
        return None if variance is None else self.objective.flatten(variance)


def _by_draws(name: str, values: Tensor, claimed: float, note: str = "") -> Check:
    """A mean over draws against a claim, by Student's t."""
    count = values.numel()
    found, error = float(values.mean()), float(values.std()) / math.sqrt(count)
    reach = float(scipy.stats.t.ppf(1 - LEVEL / 2, count - 1)) * error + 1e-9 * max(abs(claimed), abs(found))
    passed = abs(found - claimed) <= reach
    interval = (claimed - reach, claimed + reach)
    return Check(name=name, claimed=claimed, found=found, interval=interval, passed=passed, note=note)


def _refuted(name: str, claimed: float, found: float, note: str) -> Check:
    return Check(name=name, claimed=claimed, found=found, interval=None, passed=False, note=note)


def _mean(release: Release, objective: Objective, batch: Batch) -> Tensor:
    return objective.flatten(release.mean(objective, objective.params, batch)).detach()


def _swapped(batch: Batch, others: Batch) -> Iterator[Batch]:
    """The batch with one example replaced: by each of the others, and by far too large ones with each label in turn."""
    for place in range(batch.size):
        for other in range(others.size):
            yield _with_example(batch, place, others.inputs[other], others.targets[other])
        for scale in SCALES:
            label = others.targets[(place + 1) % others.size]
            yield _with_example(batch, place, scale * batch.inputs[place], label)
            yield _with_example(batch, place, -scale * batch.inputs[place], label)


def _with_example(batch: Batch, place: int, inputs: Tensor, target: Tensor) -> Batch:
    new_inputs, new_targets = batch.inputs.clone(), batch.targets.clone()
    new_inputs[place], new_targets[place] = inputs, target
    return replace(batch, inputs=new_inputs, targets=new_targets)
