"""Study: the limit of an attack behind a generator: its range, its search, or the update itself."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradleak.attacks import CosineDistance, StepDecay
from gradleak.core import Batch, ImageGenerator, Release, derive_generator, describe, one_thread
from gradleak.protocols import FedSGD
from gradleak.results import FANG_2024, JEON_2021, Citation, InputError
from studies.attack_lines import Line
from studies.generator_study import GeneratorStudy
from studies.prior_cells import (
    PriorAttack,
    PriorNetwork,
    PriorSetting,
    cells,
    content_of_tensors,
)
from studies.store import Store, content_of
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import shown


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """Nearest image of a generator to a true one, found with the truth, and how well it explains the update.

    Attributes:
        latent: pixel error (mean square) of the best latent, weights as they came.
        latent_loss: matching loss there.
        weights: the same with weights tuned after it.
        weights_loss: matching loss there.
    """

    latent: float
    latent_loss: float
    weights: float
    weights_loss: float


@dataclass(frozen=True, kw_only=True)
class GeneratorLimits(GeneratorStudy):
    """For every image the claim of GIAS beside the nearest image of its generator, which is found with the truth.

    The nearest image has as many steps of each kind as the attack, on the pixel error in place of the matching loss. Where
    it is far from the truth, the generator's range is the limit. Where it is near and explains the update better
    than the claim, the search is. Where it is near and explains the update no better, the update is: it does not tell the
    two apart.

    **Source**: none; Fang et al. 2024 and Jeon et al. 2021 give the attack.

    Attributes:
        generator: file of a trained generator.
        network: which network.
        count: images.
        budget: plain gradients an image.
    """

    name: ClassVar[str] = "generator_limits"
    source: ClassVar[str] = "behind table 1, at small scale"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, JEON_2021)

    network: PriorNetwork = PriorNetwork.CONVNET
    count: int = 3
    budget: int = 6000

    def __post_init__(self) -> None:
        """Check the numbers before hours are spent.

        Raises:
            InputError: naming the setting.
        """
        super().__post_init__()
        self._check_counts("count")
        if self.generator is None:
            raise InputError(f"{self.name}.generator: expected the file of a trained generator, got None")

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; a minute of one core an image on a ConvNet of width 8."""
        setting = self.setting(self.network, behind=self.behind(), count=self.count)
        assert setting.generator is not None
        found: list[tuple[Line, Nearest]] = []
        with Store(self.cells) as store, one_thread():
            _, lines = cells(setting, PriorAttack.GIAS, store, seed=self.seed, compute=self.compute)
            for line in lines:
                example = setting.examples[line.image]
                key = {
                    "study": self.name, "content": content_of([example]), "network": setting.network.value,
                    "shared_entries": setting.objective.size, "generator": content_of_tensors(setting.generator),
                    "budget": self.budget, "seed": self.seed, "claim": line.mse,
                }  # fmt: skip
                nearest = store.get(key, Nearest)
                if nearest is None and self.compute:
                    nearest = store.add(key, Nearest, _nearest(setting, example, line, self.seed))
                if nearest is not None:
                    found.append((line, nearest))
                    say(_said(line, nearest))
        return self._result(setting, found)

    def _result(self, setting: PriorSetting, found: Sequence[tuple[Line, Nearest]]) -> StudyResult:
        claims = [line.psnr for line, _ in found if line.psnr is not None]
        losses = [line.loss for line, _ in found if line.loss is not None]
        values = {
            "claim of GIAS: median PSNR (dB)": claims,
            "nearest latent: median PSNR (dB)": [_psnr(one.latent) for _, one in found],
            "nearest latent and weights: median PSNR (dB)": [_psnr(one.weights) for _, one in found],
            "claim of GIAS: median matching loss": losses,
            "nearest latent: median matching loss": [one.latent_loss for _, one in found],
            "nearest latent and weights: median matching loss": [one.weights_loss for _, one in found],
        }
        rows = [
            [
                str(line.image), shown(line.psnr, ".2f"), shown(line.loss, ".2g"), f"{_psnr(one.latent):.2f}",
                f"{one.latent_loss:.2g}", f"{_psnr(one.weights):.2f}", f"{one.weights_loss:.2g}",
            ]
            for line, one in found
        ]  # fmt: skip
        columns = (
            "image", "claim (dB)", "its loss", "nearest latent (dB)", "its loss", "nearest latent and weights (dB)", "its loss",
        )  # fmt: skip
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[
                Finding(
                    quantity=f"{setting.network.value}, {text}",
                    ours=statistics.median(some) if some else None,
                    n=len(some),
                    note=setting.prior,
                )
                for text, some in values.items()
            ],
            conclusion=_conclude(found),
            details={"rows": [asdict(line) | {"nearest": asdict(one)} for line, one in found]},
            tables=[Table(title="Claims beside the nearest images", columns=columns, rows=rows)],
        )


def _nearest(setting: PriorSetting, example: Batch, line: Line, seed: int) -> Nearest:
    """The nearest image by as many steps as the attack takes, and matching losses at places that say what limits it."""
    assert setting.generator is not None
    generator, objective = setting.generator, setting.objective
    steps = max(2, int(setting.budget / 3))
    latent_steps = max(1, steps // 11)
    latent = generator.draw(1, derive_generator(seed, "nearest", str(line.image)))
    latent, latent_error = _fitted(generator, example, latent, dict(generator.weights), latent_steps, of_weights=False)
    first = generator(latent).detach()
    tuned = {name: tensor.detach().clone() for name, tensor in generator.weights.items()}
    _, weights_error = _fitted(generator, example, latent, tuned, steps - latent_steps, of_weights=True)
    second = generator(latent, weights=tuned).detach()
    release = Release(FedSGD())
    seen = objective.flatten(release.mean(objective, objective.params, example))

    def loss(inputs: Tensor) -> float:
        made = release.mean(objective, objective.params, Batch(inputs, example.targets, example.domain))
        return float(CosineDistance()(objective.flatten(made), seen))

    return Nearest(
        latent=latent_error,
        latent_loss=loss(first),
        weights=weights_error,
        weights_loss=loss(second),
    )


def _fitted(
    generator: ImageGenerator,
    example: Batch,
    latent: Tensor,
    weights: dict[str, Tensor],
    steps: int,
    *,
    of_weights: bool,
) -> tuple[Tensor, float]:
    """Latent (or, in place, weights) after Adam on the pixel error, at the rates and decay of GIAS, and the error."""
    domain = example.declared_domain()
    truth = domain.to_pixels(example.inputs)
    latent = latent.detach().clone()
    moved = list(weights.values()) if of_weights else [latent]
    for tensor in moved:
        tensor.requires_grad_(True)
    optimizer = torch.optim.Adam(moved, lr=1e-3 if of_weights else 3e-2)
    rate, decay = optimizer.param_groups[0]["lr"], StepDecay()
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * decay(step, steps)
        made = generator(latent, weights=weights)
        error = (domain.to_pixels(made) - truth).square().mean()
        optimizer.zero_grad()
        error.backward()
        optimizer.step()
    for tensor in moved:
        tensor.requires_grad_(False)
    with torch.no_grad():
        last = (domain.to_pixels(generator(latent, weights=weights)) - truth).square().mean()
    return latent.detach(), float(last)


def _psnr(error: float) -> float:
    return -10 * float(torch.tensor(error, dtype=torch.float64).clamp(min=1e-30).log10())


def _said(line: Line, one: Nearest) -> str:
    return (
        f"image {line.image}: claim {shown(line.psnr, '.1f')} dB with loss {shown(line.loss, '.2g')}; nearest "
        f"{_psnr(one.weights):.1f} dB with loss {one.weights_loss:.2g}"
    )


def _conclude(found: Sequence[tuple[Line, Nearest]]) -> list[str]:
    known = [(line, one) for line, one in found if line.loss is not None and line.psnr is not None]
    searched = sum(one.weights_loss < (line.loss or 0.0) for line, one in known)
    return [
        f"On {searched} of {len(known)} images the nearest image of the generator explains the update better than the claim: "
        "there the search is the limit. On the others the update does not tell the two apart.",
    ]


__all__ = ["GeneratorLimits", "Nearest"]
