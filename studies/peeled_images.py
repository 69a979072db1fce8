"""Study: how many photographs are read to the last bit, layer by layer, and what is open in each layer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import ClassVar

import torch
from torch import nn

from gradleak.attacks import Peel
from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    Objective,
    Reconstruction,
    Release,
    derive_generator,
    describe,
    one_thread,
)
from gradleak.models import initialize_default, lenet_i2f, resnet8
from gradleak.protocols import FedSGD
from gradleak.results import ZHU_2021, Citation, InputError, UnsupportedError, check_count, median
from studies.prior_cells import ImageSource
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import shown

_STEPS = 255
# Of a hit to the last bit: 320 dB.
_LEAST = 1e-32


class PeeledNetwork(StrEnum):
    """Networks with ReLU, with torch's initialization.

    RESNET8 has the strides and skip connections of `resnet8`, and a head that reads all positions: behind the mean of these
    nothing tells which units were active, and `Peel` refuses it.
    """

    LENET = "lenet_i2f"
    RESNET8 = "resnet8, head of all positions"

    def build(self, domain: Domain, seed: int) -> nn.Module:
        """The network for images of a domain, with weights of a seed."""
        channels, height, width = domain.shape
        generator = torch.Generator().manual_seed(seed)
        if self is PeeledNetwork.LENET:
            return lenet_i2f(channels=channels, size=height, activation="relu", generator=generator)
        network = resnet8(channels=channels)
        network.pool = nn.Identity()
        network.linear = nn.Linear(64 * (height // 4) * (width // 4), 10)
        return initialize_default(network, generator=generator)


@dataclass(frozen=True, kw_only=True)
class PeeledImage:
    """The result of `Peel` on one image.

    Attributes:
        image: its place among the study's images.
        outcome: of the attack, or "refused".
        psnr: in dB; None where nothing was claimed.
        exact: whether every pixel is right when rounded to its level.
        plain_gradients: counted.
        seconds: of processor time.
        null: open directions by weight, the last layer first.
        unknowns: likewise.
        note: of the attack.
    """

    image: int
    outcome: str
    psnr: float | None
    exact: bool
    plain_gradients: float
    seconds: float
    null: Mapping[str, int]
    unknowns: Mapping[str, int]
    note: str

    @property
    def reached(self) -> bool:
        """True for 100 dB, or the image of 8 bits."""
        return self.exact or (self.psnr is not None and self.psnr >= 100)


@dataclass(frozen=True, kw_only=True)
class PeeledImages(Study):
    """The number of photographs that `Peel` reads to 100 dB or to the last bit on a ReLU network, with open directions by layer.

    **Source**: none; Zhu and Blaschko 2021 (R-GAP) read layer by layer.

    Attributes:
        images: npz or idx3 file, or None for MNIST digits.
        labels: the idx1 file beside an idx3 file.
        only: name of a boolean array of an npz file that selects images.
        network: which network.
        weights: seed of its weights.
        count: images.
        single: True for an update in float32.
        seed: of the draw of images.
        cells: file that keeps a line as soon as an image is done.
        compute: False to tabulate what `cells` has and compute nothing.
    """

    name: ClassVar[str] = "peeled_images"
    source: ClassVar[str] = "none"
    citations: ClassVar[tuple[Citation, ...]] = (ZHU_2021,)

    images: str | None = None
    labels: str | None = None
    only: str | None = None
    network: PeeledNetwork = PeeledNetwork.LENET
    weights: int = 0
    count: int = 20
    single: bool = False
    seed: int = 0
    cells: str | None = None
    compute: bool = True

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            InputError: naming the setting.
        """
        check_count(f"{self.name}.count", self.count)
        if self.network not in list(PeeledNetwork):
            raise InputError(f"{self.name}.network: expected one of {', '.join(PeeledNetwork)}, got {self.network!r}")

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about a minute of one core a photograph on the LeNet."""
        drawn = ImageSource(images=self.images, labels=self.labels, only=self.only, first=0).draw(self.count, self.seed)
        domain = drawn.declared_domain()
        # Pixels of a file in double precision: what float32 makes of a level is off by more than the gradient tells.
        levels = (domain.to_pixels(drawn.inputs).double() * _STEPS).round()
        network = PeeledNetwork(self.network)
        objective = Objective.from_module(network.build(domain, self.weights)).to(torch.float64)
        lines = []
        with Store(self.cells) as store, one_thread():
            for number in range(self.count):
                inputs = domain.from_pixels(levels[number : number + 1] / _STEPS)
                example = Batch(inputs, drawn.targets[number : number + 1], domain)
                key = {
                    "study": self.name, "content": content_of([example]), "network": network.value, "weights": self.weights,
                    "single": self.single, "attack": describe(Peel()),
                }  # fmt: skip
                line = store.get(key, PeeledImage)
                if line is None and self.compute:
                    line = store.add(key, PeeledImage, self._peeled(number, example, objective))
                if line is not None:
                    lines.append(line)
                    say(f"image {number}: {line.outcome}, {shown(line.psnr, '.1f')} dB, open {_words(line.null)}")
        return self._result(network, lines)

    def _peeled(self, number: int, example: Batch, objective: Objective) -> PeeledImage:
        release = Release(FedSGD())
        update = release(objective, example, derive_generator(self.seed, "update", str(number)))
        if self.single:
            update = replace(update, tensors={name: tensor.float() for name, tensor in update.tensors.items()})
        knowledge = HonestButCurious().disclose(objective, release, example)
        start = time.process_time()

        def line(outcome: str, note: str, psnr: float | None, exact: bool, found: Reconstruction | None) -> PeeledImage:
            layers = [] if found is None else found.details["inputs_of"]
            return PeeledImage(
                image=number,
                outcome=outcome,
                psnr=psnr,
                exact=exact,
                plain_gradients=0.0 if found is None else found.plain_gradients,
                seconds=time.process_time() - start,
                null={layer["layer"]: layer["null"] for layer in layers},
                unknowns={layer["layer"]: layer["unknowns"] for layer in layers},
                note=note,
            )

        try:
            found = Peel()(update, knowledge, generator=derive_generator(self.seed, "attack", str(number)))
        except UnsupportedError as refusal:
            return line("refused", str(refusal), None, exact=False, found=None)
        if found.inputs is None:
            return line(found.outcome.name.lower(), found.note, None, exact=False, found=found)
        domain = example.declared_domain()
        truth, claim = (domain.to_pixels(batch).double() for batch in (example.inputs, found.inputs))
        psnr = -10 * math.log10(max(float((claim - truth).square().mean()), _LEAST))
        exact = bool(torch.equal((claim * _STEPS).round(), (truth * _STEPS).round()))
        return line(found.outcome.name.lower(), found.note, psnr, exact, found)

    def _result(self, network: PeeledNetwork, lines: Sequence[PeeledImage]) -> StudyResult:
        setting = f"{network.value}, weights {self.weights}"
        reached = sum(line.reached for line in lines)
        claimed = [line for line in lines if line.outcome == "converged"]
        wrong = sum(not line.reached for line in claimed)
        values: Mapping[str, tuple[float | None, str]] = {
            "at 100 dB or the exact image": (reached, ""),
            "converged": (len(claimed), f"{wrong} of them wrong"),
            "median processor time (s)": (_middle(lines, lambda line: line.seconds), ""),
            "most plain gradients": (max((line.plain_gradients for line in lines), default=None), ""),
        }
        rows = [
            [
                str(line.image), line.outcome, shown(line.psnr, ".1f"), "yes" if line.exact else "no", _words(line.null),
                f"{line.plain_gradients:g}", f"{line.seconds:.0f}",
            ]
            for line in lines
        ]  # fmt: skip
        columns = (
            "image",
            "outcome",
            "PSNR (dB)",
            "every pixel",
            "open directions",
            "plain gradients",
            "processor (s)",
        )
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[
                Finding(quantity=f"{setting}: {text}", ours=value, n=len(lines), note=note)
                for text, (value, note) in values.items()
            ],
            conclusion=[f"{setting}: {reached} of {len(lines)} images at 100 dB or right in every pixel."],
            details={"rows": [asdict(line) for line in lines]},
            tables=[Table(title=f"Images, {setting}", columns=columns, rows=rows)],
        )


def _middle(lines: Sequence[PeeledImage], read: Callable[[PeeledImage], float]) -> float | None:
    return median([read(line) for line in lines]) if lines else None


def _words(null: Mapping[str, int]) -> str:
    some = [f"{name}: {count}" for name, count in null.items() if count]
    return ", ".join(some) if some else "none" if null else "-"
