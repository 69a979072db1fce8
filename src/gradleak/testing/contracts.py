"""What gradleak relies on in every attack, measure and defense, checked on a small case."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.core import (
    Batch,
    Defense,
    DiagonalGaussian,
    Domain,
    ExampleDefense,
    Exposure,
    HonestButCurious,
    Objective,
    Release,
    Update,
    UpdateDefense,
    describe,
)
from gradleak.defenses import GaussianNoise
from gradleak.models import initialize_default
from gradleak.protocols import FedSGD
from gradleak.results import Citation, KnowledgeError, Outcome
from gradleak.risk import Measure, SettingMeasure

SEED = 11


def check_attack(attack: Attack) -> None:
    """Raises AssertionError, naming the broken promise, unless the attack keeps the contract.

    Checked: documented, configured by frozen dataclass fields that a record can hold; the same generator gives the same
    bits; neither update, model nor global generator is changed; every need is refused by name when it is unknown; a
    zero update is `no_signal`; a claim has the shape of the batch and is finite.

    Args:
        attack: an instance with a small budget; it is run four times on a network of 200 parameters.
    """
    _check_class(attack, ("name", "needs", "summary"))
    objective, batch, release = _case()
    knowledge = HonestButCurious().disclose(objective, release, batch)
    update = release(objective, batch, _generator())
    before = _copy(update.tensors), _copy(objective.params), torch.random.get_rng_state()
    first = attack(update, knowledge, generator=_generator())
    second = attack(update, knowledge, generator=_generator())
    _promise(_same(before[0], update.tensors), attack, "leaves the update as it is")
    _promise(_same(before[1], objective.params), attack, "leaves the parameters as they are")
    _promise(torch.equal(before[2], torch.random.get_rng_state()), attack, "never touches the global generator")
    if first.inputs is not None:
        _promise(first.inputs.shape == batch.inputs.shape, attack, "claims inputs of the shape of the batch")
        _promise(bool(torch.isfinite(first.inputs).all()), attack, "never claims NaN or infinity")
        same = second.inputs is not None and torch.equal(first.inputs, second.inputs)
        _promise(same, attack, "gives the same bits for the same generator")
    for need in attack.needs:
        try:
            attack(update, dataclasses.replace(knowledge, **{need: None}), generator=_generator())
        except KnowledgeError as error:
            _promise(need in str(error), attack, f"names {need} when it is not disclosed")
        else:
            _promise(False, attack, f"is refused without {need}, which it declares as a need")
    if attack.reads_update:
        zero = Update(tensors={name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()})
        found = attack(zero, knowledge, generator=_generator())
        _promise(found.outcome is Outcome.NO_SIGNAL, attack, "answers no_signal to a zero update")


def check_measure(measure: Measure) -> None:
    """Raises AssertionError, naming the broken promise, unless the measure keeps the contract.

    Checked: documented, configured by frozen dataclass fields; deterministic; the exposure is not changed; the score
    carries the measure's name and can be written as JSON.

    Args:
        measure: an instance; it is evaluated twice on a network of 200 parameters.
    """
    _check_class(measure, ("name", "summary"))
    objective, batch, release = _case()
    exposure = Exposure(objective.to(torch.float64), batch.to(torch.float64), release)
    delta = torch.randn(objective.size, generator=_generator(), dtype=torch.float64) if measure.needs_delta else None
    before = _copy(objective.params), batch.inputs.clone()
    first, second = measure(exposure, delta=delta), measure(exposure, delta=delta)
    _promise(first.to_dict() == second.to_dict(), measure, "gives the same score twice")
    unchanged = _same(before[0], objective.params) and torch.equal(before[1], batch.inputs)
    _promise(unchanged, measure, "leaves the exposure as it is")
    _promise(first.name == measure.name, measure, "puts its name on the score")
    json.dumps(first.to_dict(), allow_nan=False)


def check_setting_measure(measure: SettingMeasure) -> None:
    """Raises AssertionError, naming the broken promise, unless the measure of a setting keeps the contract.

    Checked: documented, configured by frozen dataclass fields; the same generator gives the same score, and without one
    too; the global generator and the model are not changed; the score carries the measure's name and can be written as
    JSON; its cost is a positive number.

    Args:
        measure: an instance; it is evaluated three times on a network of 200 parameters.
    """
    _check_class(measure, ("name", "summary"))
    objective, batch, release = _case()
    before = _copy(objective.params), torch.random.get_rng_state()
    noisy = Release(release.protocol, [GaussianNoise(std=0.1)])
    scores = [
        measure(objective, noisy, targets=batch.targets, domain=batch.domain, generator=generator)
        for generator in (_generator(), _generator(), None)
    ]
    _promise(scores[0].to_dict() == scores[1].to_dict(), measure, "gives the same score for the same generator")
    _promise(torch.equal(before[1], torch.random.get_rng_state()), measure, "never touches the global generator")
    _promise(_same(before[0], objective.params), measure, "leaves the parameters as they are")
    _promise(scores[2].name == measure.name, measure, "puts its name on the score")
    _promise(measure.estimate(batch.inputs.numel()) > 0, measure, "estimates its cost")
    json.dumps(scores[0].to_dict(), allow_nan=False)


def check_defense(defense: Defense) -> None:
    """Raises AssertionError, naming the broken promise, unless the defense keeps the contract.

    Checked: documented, configured by frozen dataclass fields; names and shapes stay and the argument is not changed;
    for a defense of single examples: every row is treated by itself; for a defense of the update: draws depend on the
    generator alone, and the noise has the declared variance within five standard errors.

    Args:
        defense: an instance.
    """
    _check_class(defense, ("stage", "guarantee"))
    update = {
        "weight": torch.randn((40, 50), generator=_generator(), dtype=torch.float64),
        "bias": torch.randn((40,), generator=_generator(), dtype=torch.float64),
    }
    if isinstance(defense, ExampleDefense):
        before, mean = _copy(update), defense.mean(update)
        turned = defense.mean({name: tensor.flip(0) for name, tensor in update.items()})
        shapes = {name: tensor.shape for name, tensor in mean.items()}
        _promise(_same(before, update), defense, "leaves its argument as it is")
        _promise(shapes == {name: tensor.shape for name, tensor in update.items()}, defense, "keeps shapes")
        alone = all(torch.allclose(tensor.flip(0), turned[name]) for name, tensor in mean.items())
        _promise(alone, defense, "treats every example by itself")
    if not isinstance(defense, UpdateDefense):
        return
    before = _copy(update)
    mean = defense.mean(update)
    first, second = defense.draw(update, _generator()), defense.draw(update, _generator())
    _promise(_same(before, update), defense, "leaves its argument as it is")
    _promise({k: t.shape for k, t in mean.items()} == {k: t.shape for k, t in update.items()}, defense, "keeps shapes")
    _promise(_same(first, second), defense, "draws the same from the same generator")
    noise = defense.noise(update)
    if noise is None:
        _promise(_same(first, mean), defense, "without declared noise draws its mean")
    if isinstance(noise, DiagonalGaussian) and all(std > 0 for std in noise.std.values()):
        squares = sum(float((((first[k] - mean[k]) / noise.std[k]) ** 2).sum()) for k in update)
        count = sum(tensor.numel() for tensor in update.values())
        _promise(abs(squares - count) <= 5 * (2 * count) ** 0.5, defense, "adds noise of the declared variance")


def _case() -> tuple[Objective, Batch, Release]:
    """A tanh network on 2×4×4 images with one example, everything drawn from a fixed seed."""
    layers = [nn.Flatten(), nn.utils.skip_init(nn.Linear, 32, 5), nn.Tanh(), nn.utils.skip_init(nn.Linear, 5, 3)]
    model = nn.Sequential(*layers)
    initialize_default(model, generator=_generator())
    domain = Domain.image(channels=2, height=4, width=4, mean=(0.4, 0.6), std=(0.5, 0.2))
    pixels = torch.rand((1, 2, 4, 4), generator=_generator())
    return Objective.from_module(model), Batch(domain.from_pixels(pixels), torch.tensor([1]), domain), Release(FedSGD())


def _check_class(thing: object, facts: tuple[str, ...]) -> None:
    kind = type(thing)
    _promise(dataclasses.is_dataclass(thing), thing, "is a dataclass")
    _promise(getattr(kind, "__dataclass_params__").frozen, thing, "is frozen")  # noqa: B009 - private to dataclasses
    _promise(bool((inspect.getdoc(kind) or "").strip()), thing, "has a docstring")
    for fact in facts:
        _promise(getattr(kind, fact, None) is not None, thing, f"states {fact} on the class")
    citations = getattr(kind, "citations", ())
    _promise(all(isinstance(citation, Citation) for citation in citations), thing, "cites by Citation")
    json.dumps(describe(thing))


def _promise(kept: bool, thing: object, promise: str) -> None:
    if not kept:
        raise AssertionError(f"{type(thing).__name__} breaks the contract: expected that it {promise}")


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(SEED)


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
