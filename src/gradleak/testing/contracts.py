"""Contracts of every attack, measure and defense, checked on a small case."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import scipy
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
    ImageGenerator,
    Noise,
    Objective,
    Release,
    Scaled,
    ScaledRows,
    Thinned,
    Unchanged,
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
    prior = _decoder(batch) if "generator" in attack.needs else None
    knowledge = HonestButCurious(generator=prior).disclose(objective, release, batch)
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
    """Raises AssertionError, naming the broken promise and the case, unless the defense keeps the contract.

    Checked: documented, configured by frozen dataclass fields; names and shapes stay and the argument is not changed, for
    parameters that are matrices, vectors and single numbers; a bound that is claimed holds for vectors of any length;
    draws depend on the generator alone, and the noise of every parameter has the declared variance (one false alarm in
    a million); what it says of its effect, of its divisor and of the order of its draws is so. For a defense of single
    examples: every row is treated by itself. A defense of the model or of the batch is checked for its class alone: what
    it does needs a model.

    Args:
        defense: an instance.
    """
    _check_class(defense, ("stage", "guarantee"))
    if isinstance(defense, ExampleDefense):
        for case, shapes in _SHAPES.items():
            _check_rows(defense, _drawn({name: (40, *shape) for name, shape in shapes.items()}), case)
    elif isinstance(defense, UpdateDefense):
        for case, shapes in _SHAPES.items():
            _check_update(defense, _drawn(shapes), case)


# What a parameter may look like, by the name that a message gives the case.
_SHAPES = {
    "a matrix and a vector": {"weight": (40, 50), "bias": (40,)},
    "a parameter of no dimension (one number)": {"weight": (40, 50), "scale": ()},
}
_ALARM = 1e-6
# Gradients of any length occur: an honest client cannot know how long another's would be.
_FACTORS = (1e-3, 1.0, 1e3, 1e6)


def _check_rows(defense: ExampleDefense, rows: dict[str, Tensor], case: str) -> None:
    where = f", for {case}: one gradient a row, (b, *shape)"
    before, mean = _copy(rows), _run(defense, "mean", where, lambda: defense.mean(rows))
    turned = defense.mean({name: tensor.flip(0) for name, tensor in rows.items()})
    _promise(_same(before, rows), defense, f"leaves its argument as it is{where}")
    _promise(_shapes(mean) == _shapes(rows), defense, f"keeps names and shapes{where}")
    alone = all(torch.allclose(tensor.flip(0), turned[name]) for name, tensor in mean.items())
    _promise(alone, defense, f"treats every example by itself{where}")
    for factor in _FACTORS if defense.bound is not None else ():
        defended = defense.mean({name: factor * tensor for name, tensor in rows.items()})
        norm = float(torch.stack([tensor.flatten().square().reshape(40, -1).sum(1) for tensor in defended.values()])
                     .sum(0).sqrt().max())  # fmt: skip
        _promise_bound(defense, norm, defense.bound, factor, where)
    average = _run(defense, "average", where, lambda: defense.average(mean))
    single = {name: tensor[0] for name, tensor in rows.items()}
    _promise(_shapes(average) == _shapes(single), defense, f"averages to the shapes of the parameters{where}")
    law = _run(defense, "law", where, lambda: defense.law(single, 40))
    _check_draws(defense, lambda generator: defense.draw(average, 40, generator), average, law, where)
    _promise(law is None or type(defense).closes, defense, "says `closes`, since it adds noise to the mean")
    divisor = defense.divisor(40)
    if divisor is not None:
        sums = {name: tensor.sum(dim=0) / divisor for name, tensor in mean.items()}
        _promise(_close(average, sums), defense, f"divides the sum by the divisor that it claims{where}")
    effect = defense.effect(single)
    if isinstance(effect, ScaledRows):
        scaled: dict[str, Tensor] = {}
        for names, limit in zip(effect.groups, effect.max_norms, strict=True):
            group = {name: rows[name].reshape(40, -1) for name in names}
            shares = (limit / torch.cat(list(group.values()), dim=1).norm(dim=1, keepdim=True)).clamp(max=1.0)
            scaled |= {name: (tensor * shares).reshape(rows[name].shape) for name, tensor in group.items()}
        _promise(_close(mean, scaled), defense, f"scales every row as it claims{where}")


def _check_update(defense: UpdateDefense, update: dict[str, Tensor], case: str) -> None:
    where = f", for {case}"
    before, mean = _copy(update), _run(defense, "mean", where, lambda: defense.mean(update))
    _promise(_same(before, update), defense, f"leaves its argument as it is{where}")
    _promise(_shapes(mean) == _shapes(update), defense, f"keeps names and shapes{where}")
    bound = _run(defense, "bound", where, lambda: defense.bound(update))
    for factor in _FACTORS if bound is not None else ():
        defended = defense.mean({name: factor * tensor for name, tensor in update.items()})
        norm = sum(float(tensor.square().sum()) for tensor in defended.values()) ** 0.5
        _promise_bound(defense, norm, bound, factor, where)
    law = _run(defense, "noise", where, lambda: defense.noise(update))
    _check_draws(defense, lambda generator: defense.draw(update, generator), mean, law, where)
    _promise(_same(before, update), defense, f"leaves its argument as it is{where}")
    _check_effect(defense, update, mean, where)


def _check_effect(defense: UpdateDefense, update: Mapping[str, Tensor], mean: Mapping[str, Tensor], where: str) -> None:
    """Check what a defense of the update claims to leave of it, against its mean."""
    effect = _run(defense, "effect", where, lambda: defense.effect(update))
    kept = True
    if isinstance(effect, Unchanged):
        kept = _same(mean, update)
    elif isinstance(effect, Scaled):
        for names in effect.groups:
            norm = math.sqrt(sum(float(update[name].double().square().sum()) for name in names))
            ratios = torch.cat([(mean[name] / update[name]).reshape(-1) for name in names])
            kept &= torch.allclose(ratios, ratios[:1]) and 0 <= float(ratios[0]) <= 1 + 1e-6
            kept &= norm >= effect.max_norm or _same(mean, {**mean, **{name: update[name] for name in names}})
    elif isinstance(effect, Thinned):
        for names in effect.groups:
            given, left = (torch.cat([tensors[name].reshape(-1) for name in names]) for tensors in (update, mean))
            gone, stay = given[left == 0].abs(), given[left != 0].abs()
            kept &= torch.equal(left[left != 0], given[left != 0])
            kept &= not len(gone) or not len(stay) or float(gone.max()) <= float(stay.min())
    if isinstance(effect, Scaled | Thinned):
        kept &= sorted(name for names in effect.groups for name in names) == sorted(update)
    _promise(kept, defense, f"leaves of an update what it claims to ({type(effect).__name__}){where}")


def _check_draws(
    defense: Defense, draw: Callable[[torch.Generator], Mapping[str, Tensor]], mean: Mapping[str, Tensor], law: Noise,
    where: str,
) -> None:  # fmt: skip
    """Draws of one update, against its mean and the law that is declared."""
    first, second = (_run(defense, "draw", where, lambda: draw(_generator())) for _ in range(2))
    _promise(_same(first, second), defense, f"draws the same from the same generator{where}")
    if law is None:
        _promise(_same(first, mean), defense, f"without declared noise draws its mean{where}")
    if not isinstance(law, DiagonalGaussian):
        return
    _promise(set(law.std) == set(mean), defense, f"declares the noise of every parameter by its name{where}")
    for name, std in law.std.items():
        squares, count = float((first[name] - mean[name]).double().square().sum()), mean[name].numel()
        low, high = scipy.stats.chi2.ppf([_ALARM / 2, 1 - _ALARM / 2], count)
        kept = low <= squares / std**2 <= high if std > 0 else squares == 0
        _promise(kept, defense, f"adds noise of the declared variance to {name}{where}")
    if type(defense).adds_in_order:
        generator = _generator()
        ordered = {
            name: tensor + std * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype) if std else tensor
            for (name, tensor), std in zip(mean.items(), law.std.values(), strict=True)
        }
        _promise(_same(first, ordered), defense, f"adds its noise tensor after tensor, and does nothing else{where}")


def _promise_bound(defense: Defense, norm: float, bound: float | None, factor: float, where: str) -> None:
    assert bound is not None
    kept = norm <= bound * (1 + 1e-6)
    text = (
        f"keeps the bound {bound:g} that it claims, also for gradients {factor:g} times as long (got {norm:.3g}){where}"
    )
    _promise(kept, defense, text)


def _run(defense: Defense, method: str, where: str, call: Callable[[], Any]) -> Any:
    """Result of a method, with the case in the message where it raises."""
    try:
        return call()
    except Exception as error:
        raise AssertionError(
            f"{type(defense).__name__} breaks the contract: expected that `{method}` works{where}; it raised "
            f"{type(error).__name__}: {error}"
        ) from error


def _drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = _generator()
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _case() -> tuple[Objective, Batch, Release]:
    """A tanh network on 2×4×4 images with one example, everything drawn from a fixed seed."""
    layers = [nn.Flatten(), nn.utils.skip_init(nn.Linear, 32, 5), nn.Tanh(), nn.utils.skip_init(nn.Linear, 5, 3)]
    model = nn.Sequential(*layers)
    initialize_default(model, generator=_generator())
    domain = Domain.image(channels=2, height=4, width=4, mean=(0.4, 0.6), std=(0.5, 0.2))
    pixels = torch.rand((1, 2, 4, 4), generator=_generator())
    return Objective.from_module(model), Batch(domain.from_pixels(pixels), torch.tensor([1]), domain), Release(FedSGD())


def _decoder(batch: Batch) -> ImageGenerator:
    """A generator of three latent entries that was never trained, for attacks that need one."""
    assert batch.domain is not None
    layers = [nn.utils.skip_init(nn.Linear, 3, batch.domain.size), nn.Sigmoid(), nn.Unflatten(1, batch.domain.shape)]
    module = nn.Sequential(*layers)
    initialize_default(module, generator=_generator())
    return ImageGenerator(module=module, latent_shape=(3,), domain=batch.domain, source="never trained")


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


def _close(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.allclose(first[name], second[name]) for name in first)


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
