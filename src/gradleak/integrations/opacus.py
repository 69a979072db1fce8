"""Opacus: the release of a DP optimizer, a gate on its steps, and its epsilon beside ours.

**Source**: `DPOptimizer` and its kinds of Opacus 1.6.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPPerLayerOptimizer,
)
from torch import Tensor, nn

from gradleak.accounting import pld_epsilon
from gradleak.auditing import Decision, Gate
from gradleak.core import Domain, ExampleDefense, GaussianMechanism, Release
from gradleak.core.module_copy import unwrap
from gradleak.defenses import DPSGD, ClipTensorsPerExample
from gradleak.integrations.gradients import gradient_update, joined
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Score, UnsupportedError


def release_of(optimizer: DPOptimizer, module: nn.Module | None = None) -> Release:
    """The release of one step of a DP optimizer: gradients clipped by example, summed, noise, and the division.

    - Flat clipping, and ghost clipping, which is the same release computed otherwise.
    - Clipping per layer: every tensor has a norm of its own, and the noise goes by the root of the sum of their squares.
    - Adaptive clipping at the bound of this step. There the noise is larger than the multiplier says, since the count of clipped
      gradients is a query of its own.

    Args:
        optimizer: as the privacy engine made it.
        module: its model, whose names go with the norms of clipping per layer where they are not all equal.

    Raises:
        UnsupportedError: for an optimizer of several workers; for adaptive ghost clipping, known by its first backward pass.
        InputError: without noise, or without the names that norms belong to.
    """
    if getattr(optimizer, "world_size", 1) > 1:
        raise UnsupportedError(
            f"opacus: expected an optimizer of one worker, got {type(optimizer).__name__}, whose noise is on the sum over all "
            "workers; state the release of that sum in a Gate of your own"
        )
    # Adaptive ghost clipping leaves the noise of its step there. Its loss is that of the batch where the criterion takes a mean.
    if hasattr(optimizer, "_adjusted_noise_multiplier"):
        raise UnsupportedError(
            "opacus: expected clipped gradients of single examples, got adaptive ghost clipping, which in Opacus 1.6 scales the "
            "mean gradient of the batch and clips no example; use clipping='adaptive' without ghost"
        )
    multiplier, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
    if multiplier <= 0:
        raise InputError(f"opacus: expected a noise multiplier above 0, got {multiplier}")
    if isinstance(optimizer, AdaClipDPOptimizer):
        multiplier = (multiplier**-2 - (2 * float(optimizer.unclipped_num_std)) ** -2) ** -0.5
    try:
        micro_batches = optimizer.accumulated_iterations
    except ValueError:  # before the first backward pass
        micro_batches = 1
    divisor = round(optimizer.expected_batch_size * micro_batches) if optimizer.loss_reduction == "mean" else 1
    noise = DPSGD(clip_norm=norm, noise_std=multiplier * norm, noise="sum", expected_batch_size=divisor)
    first = [_clip_per_layer(optimizer, module)] if isinstance(optimizer, DPPerLayerOptimizer) else []
    return Release(FedSGD(), [*first, noise])


def _clip_per_layer(optimizer: DPPerLayerOptimizer, module: nn.Module | None) -> ExampleDefense:
    """The clip of an optimizer that has a norm for every tensor."""
    norms = [float(norm) for norm in optimizer.max_grad_norms]
    whole = float(optimizer.max_grad_norm)
    if len(set(norms)) == 1:
        return ClipTensorsPerExample(whole)
    named = {} if module is None else {id(one): name for name, one in unwrap(module).named_parameters()}
    if not all(id(parameter) in named for parameter in optimizer.params):
        raise InputError(
            "opacus: expected the model of the optimizer, since its norms per layer differ and go by its parameters' names, got "
            f"{'none' if module is None else 'another one'}; use release_of(optimizer, model)"
        )
    weights = {named[id(parameter)]: norm for parameter, norm in zip(optimizer.params, norms, strict=True)}
    return ClipTensorsPerExample(whole, weights=weights)


class StepGate:
    """A gate on every step of a DP optimizer, between its noise and the update of the weights.

    Tell it the examples of each step; where a step has none (an empty Poisson batch), or they are split, tell it all of them:

        gate = StepGate(Gate(on_leak="warn"), model, optimizer)
        for inputs, targets in loader:
            gate.sees(inputs, targets)
            ...
            optimizer.step()

    Attributes:
        decisions: one a step.
    """

    def __init__(self, gate: Gate, module: nn.Module, optimizer: DPOptimizer, *, domain: Domain | None = None) -> None:
        """Hang the gate behind what already listens to the optimizer, such as the accountant.

        Args:
            gate: how leaks are judged; its release is that of the optimizer.
            module: the model, as the privacy engine made it.
            optimizer: of that model.
            domain: of the inputs; None to have it guessed.
        """
        self.decisions: list[Decision] = []
        self._gate, self._module, self._domain = gate, module, domain
        self._seen: list[tuple[Tensor, Tensor]] = []
        before = optimizer.step_hook

        def both(stepping: DPOptimizer) -> None:
            if before is not None:
                before(stepping)
            self._check(stepping)

        optimizer.attach_step_hook(both)

    def sees(self, inputs: Tensor, targets: Tensor) -> None:
        """Remember examples of the step that comes."""
        self._seen.append((inputs, targets))

    def _check(self, optimizer: DPOptimizer) -> None:
        seen, self._seen = [part for part in self._seen if part[0].shape[0]], []
        if not seen:
            return
        inputs, targets = (torch.cat([part[place] for part in seen]) for place in (0, 1))
        batch = joined([(inputs, targets)], self._domain)
        # The divisor belongs to this step.
        release = release_of(optimizer, self._module)
        self.decisions.append(
            self._gate.guard(gradient_update(self._module), batch, release=release, model=self._module)
        )


def epsilons(history: Sequence[tuple[float, float, int]], *, delta: float, norm: float = 1.0) -> list[Score]:
    """Epsilon of each part of an accountant's history by our accounting, to be held beside `privacy_engine.get_epsilon`.

    Args:
        history: (noise multiplier, sampling rate, steps) of each part: `privacy_engine.accountant.history`. Epsilons of several
            parts do not simply add; with one part, the usual case, its epsilon is that of the whole training.
        delta: δ.
        norm: the clip norm, which cancels.
    """
    found = []
    for multiplier, rate, steps in history:
        mechanism = GaussianMechanism(sensitivity=norm, std=multiplier * norm)
        found.append(pld_epsilon(mechanism, delta=delta, rounds=steps, sampling_rate=rate))
    return found
