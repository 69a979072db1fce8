"""Gradients of single examples by layer as matrices, against as many plain gradients, and against a loop of autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Row, plain_gradient, ratio
from gradleak.core import Batch, Objective, Release
from gradleak.defenses import ClipPerExample
from gradleak.models import lenet5
from gradleak.protocols import FedSGD
from gradleak.training import layer_gradients
from studies.networks import vgg9

# As many examples go through the loop; its time is proportional to their number.
LOOPED = 16


def looped(model: nn.Module, rows: Batch) -> dict[str, Tensor]:
    """Forward and backward, example by example, stacked by layer, as one writes it in plain torch."""
    groups = {name: list(layer.parameters()) for name, layer in model.named_children() if list(layer.parameters())}
    parameters = [parameter for group in groups.values() for parameter in group]
    made: dict[str, list[Tensor]] = {name: [] for name in groups}
    for inputs, targets in zip(rows.inputs, rows.targets, strict=True):
        gradient = iter(torch.autograd.grad(F.cross_entropy(model(inputs[None]), targets[None]), parameters))
        for name, group in groups.items():
            made[name].append(torch.cat([next(gradient).reshape(-1) for _ in group]))
    return {name: torch.stack(parts) for name, parts in made.items()}


def run() -> Iterator[Row]:
    generator = torch.Generator().manual_seed(0)
    # The route is chosen once, whatever the number of examples, and that is in the time.
    settings: list[tuple[Callable[..., nn.Module], int, float]] = [(lenet5, 512, 1.0), (vgg9, 128, 4.0)]
    for build, examples, aim in settings:
        model = build(channels=3, classes=100, generator=generator)
        objective = Objective.from_module(model)
        rows = Batch(
            torch.rand(examples, 3, 32, 32, generator=generator),
            torch.randint(100, (examples,), generator=generator),
        )
        few = Batch(rows.inputs[:LOOPED], rows.targets[:LOOPED])

        def at_once(given: Batch = rows, objective: Objective = objective) -> Mapping[str, Tensor]:
            release = Release(FedSGD(), [ClipPerExample(1e6)])
            return layer_gradients(objective, given, release=release, generator=generator).matrices

        def loop(given: Batch = few, model: nn.Module = model) -> Mapping[str, Tensor]:
            return looped(model, given)

        torch.testing.assert_close(dict(at_once(few)), loop(few), rtol=1e-4, atol=1e-5)
        name = f"{build.__name__} ({objective.size:,} parameters), {examples} examples, clipped"
        single = plain_gradient(objective, rows.example(0))
        yield Row(name=name, ratio=ratio(at_once, single, 3) / examples, aim=aim, unit="plain gradients an example")
        yield Row(name=name, ratio=ratio(at_once, loop, 3) * LOOPED / examples, unit="of a loop of autograd")
