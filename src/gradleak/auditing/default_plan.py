"""The plan of `gradleak.audit(model, batch)`: one scenario, default attacks and measures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradleak.attacks import Attack, GaussNewton, InvertingGradients, Peel, SpanSearch, TokenRows
from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_file import read_audits
from gradleak.auditing.plan_reader import PlanReader
from gradleak.audits.base import Scenario, Site
from gradleak.core import Batch, DiagonalGaussian, Domain, HonestButCurious, Objective, Release, Vocabulary
from gradleak.defenses import DPSGD
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Thresholds
from gradleak.risk import (
    GradientNorm,
    InversionInfluence,
    InversionInfluenceLowerBound,
    LinearizedPosteriorError,
    Measure,
    ReconstructionProbability,
    SettingMeasure,
    TokenError,
)

DENSE_BYTES = 4 * 2**30
# Shared numbers up to which the errors of a decoder of tokens are bounded, from some 40 gradients.
QUICK_SIZE = 2**20
# Of a prior that is uniform over the range of the data.
PRIOR_STD = 12**-0.5
# 0.1 to 9,990 by three digits.
_MULTIPLIERS = [digits * 10.0**power / 100 for power in range(-1, 4) for digits in range(100, 1000)]


def default_plan(
    model: nn.Module,
    batch: Batch,
    *,
    loss: Any = "cross_entropy",
    mode: str = "eval",
    release: Release | None = None,
    attacks: Mapping[str, Attack] | None = None,
    measures: Sequence[Measure | SettingMeasure] | None = None,
    quick: bool = False,
) -> Plan:
    """The plan of one release of one batch.

    `GaussNewton` where the unknowns are few enough for it (at most 4,096), beside it
    `InvertingGradients(iterations=1000, restarts=1)`, and `Peel` where one example is released behind a chain of layers;
    exact I²F, its lower bound and the gradient norm; of sentences `TokenError` where a model has at most 2²⁰ shared numbers.

    Args:
        model: any `nn.Module`; stays as it is.
        batch: one client update; its domain is guessed where it has none.
        loss: name or callable.
        mode: "eval" or "train".
        release: protocol and defenses; FedSGD without defenses by default.
        attacks: by name, in place of the default ones.
        measures: in place of the default ones.
        quick: take the closed form by which an attack can be seen to be hopeless in place of the default measures.

    Raises:
        InputError: if model, loss and batch do not fit together.
    """
    if inspect.isclass(loss):
        raise InputError(
            f"loss: expected a loss function or object, got the class {loss.__name__}; write {loss.__name__}()"
        )
    objective = Objective.from_module(model, loss=loss, mode=mode)
    guessed = batch.domain is None
    if guessed and not batch.inputs.is_floating_point():
        batch = replace(batch, domain=_of_ids(objective, batch))
    objective.check(batch.to(objective.dtype))
    if batch.domain is None:
        batch = replace(batch, domain=Domain.guess(batch.inputs))
    release = release or Release(FedSGD())
    chosen = _attacks(objective, batch, release) if attacks is None else dict(attacks)
    scenario = Scenario(
        name="release",
        release=release,
        examples=[0],
        attacks={name: [0] for name in chosen},
    )
    site = Site(
        name="audit",
        seed=0,
        objective=objective,
        batches=[batch],
        domain_guessed=guessed,
        scenarios=[scenario],
    )
    if measures is None:
        measures = (
            [_posterior(objective, batch, scenario.release)]
            if quick and not _of_tokens(batch)
            else _measures(objective, batch)
        )
    content = {"attacks": chosen, "measures": dict(enumerate(measures))}
    return Plan(site=site, audits=read_audits(content, PlanReader(folder=Path(), seed=0, about=site)))


def _of_ids(objective: Objective, batch: Batch) -> Domain | None:
    """A domain of sentences, whose vocabulary is that of the model's table; None for other whole numbers."""
    if batch.inputs.dim() != 2:
        return None
    found = objective.token_tables(2)
    if found is None:
        raise InputError(
            "batch.inputs: expected floating point numbers, got ids, which the model looks up in no nn.Embedding; state "
            "Domain.tokens(vocabulary, length) in the Batch, or pass inputs.float()"
        )
    vocabulary = Vocabulary(size=found.size, padding=found.padding)
    return replace(Domain.tokens(vocabulary, batch.inputs.shape[1]), guessed=True)


def _of_tokens(batch: Batch) -> bool:
    return batch.declared_domain().vocabulary is not None


def _attacks(objective: Objective, batch: Batch, release: Release) -> dict[str, Attack]:
    found: dict[str, Attack] = {}
    if _of_tokens(batch):
        return {"token_rows": TokenRows(), "span_search": SpanSearch()}
    if fits_gauss_newton(objective, batch):
        found["gauss_newton"] = GaussNewton()
    found["inverting_gradients"] = InvertingGradients(iterations=1000, restarts=1)
    if _fits_peel(objective, batch, release):
        found["peel"] = Peel()
    return found


def fits_gauss_newton(objective: Objective, batch: Batch) -> bool:
    """True if the unknowns of a batch are few enough for the dense steps of `GaussNewton`."""
    # The dense Jacobian has P · n entries of 8 bytes.
    unknowns = batch.inputs.numel()
    return unknowns <= GaussNewton().max_unknowns and 8 * objective.size * unknowns <= DENSE_BYTES


def _fits_peel(objective: Objective, batch: Batch, release: Release) -> bool:
    """True if a server that knows all but labels can read the example layer by layer, from one gradient."""
    known = HonestButCurious().stated(objective, release, batch_size=batch.size, domain=batch.declared_domain())
    return Peel().refusal(known) is None


def _measures(objective: Objective, batch: Batch) -> list[Measure | SettingMeasure]:
    if _of_tokens(batch):
        token_error = TokenError(most_places=3, most_candidates=12)
        small = objective.size <= QUICK_SIZE
        return [InversionInfluence(), InversionInfluenceLowerBound(), GradientNorm(), *([token_error] if small else [])]
    return [
        InversionInfluence(unit="pixel_rmse"),
        InversionInfluenceLowerBound(unit="pixel_rmse"),
        GradientNorm(),
    ]


def least_multiplier(objective: Objective, batch: Batch, chance: ReconstructionProbability) -> float | None:
    """The noise multiplier of DP-SGD from which on a release of such a batch is *bounded*, rounded up to three digits.

    Args:
        objective: of the client.
        batch: whose size, labels and domain count.
        chance: the bound, with its prior.

    Returns:
        None where no noise is enough, since blind guesses succeed often enough.

    Cost: some dozen evaluations of the closed form.
    """

    def bounded(multiplier: float) -> bool:
        noise = DPSGD.from_noise_multiplier(noise_multiplier=multiplier, clip_norm=1.0, expected_batch_size=batch.size)
        release = Release(FedSGD(), [noise])
        value = chance(objective, release, targets=batch.targets, domain=batch.domain).value
        return value is not None and value <= Thresholds().reconstruction_probability

    low, high = 0, len(_MULTIPLIERS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bounded(_MULTIPLIERS[middle]) else (middle + 1, high)
    return _MULTIPLIERS[low] if low < len(_MULTIPLIERS) else None


def _posterior(objective: Objective, batch: Batch, release: Release) -> Measure:
    """The error that is left to an attacker with a prior: under the noise of the release, else under round-off."""
    noise = release.noise(objective, examples=batch.size)
    std = noise.level if isinstance(noise, DiagonalGaussian) else None
    if not std:
        mean = objective.flatten(release.mean(objective, objective.params, batch.to(objective.dtype)))
        size = float(mean.double().norm()) / mean.numel() ** 0.5
        std = max(torch.finfo(objective.dtype).eps * size, torch.finfo(torch.float32).tiny)
    return LinearizedPosteriorError(noise_std=std, prior_std=PRIOR_STD, unit="pixel_rmse")
