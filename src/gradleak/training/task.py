"""Task of a training: private rows, held-out rows, and the maker of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.core import Batch, Mode, Objective, batch_norm_statistics
from gradleak.core.losses import Loss
from gradleak.core.process import ONE_CALL
from gradleak.core.randomness import global_generators
from gradleak.data import rows_of
from gradleak.defenses.variational_bottleneck import BottleneckOutput
from gradleak.results import InputError, Outcome, UnsupportedError
from gradleak.training.layers import GroupNormForBatchNorm, ReplacedLayer, values_normalized
from gradleak.training.metric import Floats, Metric, constant_answers, same_for_all

MakeModel = Callable[[torch.Generator], nn.Module]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Private rows to train on, held-out rows to be judged on, and a model.

    Attributes:
        name: for tables and records.
        train: what the clients hold, together; with `sensitive` where a defense reads it.
        test: rows that nobody trains on and nothing is chosen by.
        make_model: makes a new model from a generator; what it draws from the global one is reproducible too.
        loss: as `Objective.from_module` takes it, for instance `VariationalBottleneck(...).loss()`.
        mode: "eval" or "train", as the clients run the model; it is judged in eval mode.
        metric: how the model is judged; None for R² where targets are floating point numbers and the loss is "mse", AUROC
            for two classes, and accuracy for more.
        replacement: what takes the place of layers that mix examples, for per-example gradients; None for nothing.

    Raises:
        InputError: for rows of different shapes.
    """

    name: str
    train: Batch = field(repr=False)
    test: Batch = field(repr=False)
    make_model: MakeModel
    loss: str | Loss = "cross_entropy"
    mode: Mode | str = Mode.EVAL
    metric: Metric | str | None = None
    replacement: GroupNormForBatchNorm | None = None

    def __post_init__(self) -> None:
        """Check that the test is about what was trained."""
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            raise InputError(
                f"Task: expected train and test rows of one shape, got {tuple(self.train.inputs.shape[1:])} and "
                f"{tuple(self.test.inputs.shape[1:])}"
            )
        if self.metric is not None:
            object.__setattr__(self, "metric", Metric(self.metric))

    def start(self, generator: torch.Generator, *, mask_seed: int = 0) -> Start:
        """A new model as an objective, with what was replaced in it.

        Raises:
            InputError: if rows, model and loss do not fit together.
        """
        # A model whose layers draw from the global generator is the same for the same seed all the same.
        with ONE_CALL, global_generators(generator.initial_seed()):
            model = self.make_model(generator).to(self.train.inputs.device)
        replaced: tuple[ReplacedLayer, ...] = ()
        few = self.test.inputs[:2]
        if self.replacement is not None:
            model, replaced = self.replacement(model, few)
        values = values_normalized(model, few.to(_dtype(model)))
        objective = Objective.from_module(model, loss=self.loss, mode=self.mode, mask_seed=mask_seed)
        objective.check(rows_of(self.test, torch.arange(min(2, self.test.size))).to(objective.dtype))
        erasing = tuple(name for name, count in values.items() if count == 1)
        return Start(objective=objective, replaced=replaced, erasing=erasing)

    def judged_by(self, columns: int) -> Metric:
        """The metric, for a model of so many outputs."""
        if self.metric is not None:
            return Metric(self.metric)
        if self.loss == "mse":
            return Metric.R2
        return Metric.AUROC if columns <= 2 else Metric.ACCURACY

    def outputs(self, objective: Objective) -> Floats:
        """Outputs of a model for the test rows, (rows, columns), in eval mode and computed in float64.

        BatchNorm layers that normalized by the batch in training get the moments of the training rows first: releases
        hold parameters only. A bottleneck passes its mean.

        Raises:
            UnsupportedError: if the model returns neither a tensor nor a `BottleneckOutput`.
        """
        if objective.batch_statistics:
            objective = _with_moments(objective, self.train.inputs)
        # In single precision a layer that erases its input still lets some round-off through.
        judged = objective.in_mode(Mode.EVAL).to(torch.float64)
        with torch.no_grad():
            given = judged.outputs(judged.params, self.test.inputs.to(judged.device, judged.dtype))
        if isinstance(given, BottleneckOutput):
            given = given.outputs
        if not isinstance(given, Tensor):
            raise UnsupportedError(
                f"utility: expected a model that returns a tensor or a BottleneckOutput, got {type(given).__name__}"
            )
        found: Floats = given.reshape(self.test.size, -1).cpu().double().numpy()
        return found

    def judge(self, objective: Objective) -> tuple[Outcome, Floats | None, str]:
        """Outcome of a training, with the model's outputs for the test rows and a sentence for the reader, or "".

        Converged; not finite, without outputs; or constant, where the model gives one answer for every test row.
        """
        outputs = self.outputs(objective)
        if not np.isfinite(outputs).all():
            return Outcome.NOT_FINITE, None, "the trained model returns NaN or infinity"
        if constant_answers(self.judged_by(outputs.shape[1]), outputs):
            what = "the same numbers" if same_for_all(outputs) else "the same class"
            return Outcome.CONSTANT, outputs, f"the trained model gives {what} for every test row"
        return Outcome.CONVERGED, outputs, ""

    def truth(self) -> Floats:
        """The targets of the test rows: class indices, of probabilities the largest, or numbers."""
        targets = self.test.targets
        by_class = self.loss != "mse" and self.metric is not Metric.R2
        if by_class and targets.is_floating_point() and targets.dim() == 2 and targets.shape[1] > 1:
            targets = targets.argmax(dim=1)
        found: Floats = targets.cpu().double().numpy()
        return found.reshape(len(found)) if by_class else found


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """A model before its training.

    Attributes:
        objective: with its first weights.
        replaced: the layers that were replaced.
        erasing: names of the layers that normalize single numbers, so that nothing of their input gets through.
    """

    objective: Objective
    replaced: tuple[ReplacedLayer, ...]
    erasing: tuple[str, ...]


def split(data: Batch, *, test_rows: int, generator: torch.Generator) -> tuple[Batch, Batch]:
    """The rows of a batch drawn apart: those to train on, and so many to test on.

    Raises:
        InputError: if no row is left for one of both.
    """
    if not 0 < test_rows < data.size:
        raise InputError(f"split: expected test_rows from 1 to {data.size - 1}, got {test_rows!r}")
    order = torch.randperm(data.size, generator=generator).to(data.inputs.device)
    return rows_of(data, order[test_rows:]), rows_of(data, order[:test_rows])


def _dtype(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def _with_moments(objective: Objective, inputs: Tensor) -> Objective:
    buffers: dict[str, Any] = dict(objective.buffers)
    for layer, moments in batch_norm_statistics(objective, inputs).items():
        for name, value in (("running_mean", moments.mean), ("running_var", moments.variance)):
            key = f"{layer}.{name}".removeprefix(".")
            if key in buffers:
                buffers[key] = value
    return replace(objective, buffers=buffers)
