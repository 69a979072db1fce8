"""Study: the same perturbation in different directions, spectra of AᵀA, and Lipschitz constants near the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from scipy import stats
from torch import Tensor

from gradleak.core import (
    Batch,
    Exposure,
    HonestButCurious,
    Mode,
    Objective,
    Release,
    derive_generator,
    describe,
    one_thread,
)
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.reporting.drawing import BESIDE, INK, MARKERS, SERIES
from gradleak.results import ZHANG_2023, Citation
from gradleak.risk import LipschitzBound
from studies.correlations import spearman
from studies.influence_world_cells import WorldAttack, WorldNetwork
from studies.panels import drawn_grid
from studies.private_images import draw_images, pixel_rmse
from studies.store import Store, content_of
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import median, shown

# The paper's values of appendix H.1.
_PAPER = {"MNIST": ("0.7192", "3.7e-13"), "CIFAR-10": ("0.5014", "1.7e-13")}
_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class DirectionSetting:
    """A network on some images.

    Attributes:
        network: which.
        data: name of the images.
        images: npz file, or None for digits.
        shrink: images are means over so many pixels squared.
        iterations: of DGL.
        attacks: which.
    """

    network: WorldNetwork
    data: str
    images: str | None
    shrink: int
    iterations: int
    attacks: tuple[WorldAttack, ...]

    @property
    def title(self) -> str:
        """The setting in a few words."""
        size = f", means over {self.shrink} by {self.shrink} pixels" if self.shrink > 1 else ""
        return f"{self.network.value}, {self.data}{size}"


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A perturbation c·u along a left singular vector u of A, and the claim of each attack.

    Attributes:
        eigenvalue: λ of AᵀA.
        size: c.
        predicted: mean squared error c²/(λ d).
        reached: mean squared error by attack; None without a claim.
        pictures: pixels of each claim, flat.
    """

    eigenvalue: float
    size: float
    predicted: float
    reached: dict[str, float | None]
    pictures: dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class InfluenceDirections(Study):
    """Spectra of AᵀA, and errors of attacks under perturbations of one size along singular vectors of A.

    Of every image four eigenvalues are taken, nearest to evenly spaced ones on a logarithmic axis from the largest λ to the
    smallest of the range (for ResNet-18, whose small ones are round-off in float32, to a hundred-thousandth of the largest).
    δ = c·u with u = A v/√λ; c is one number a network, such that the smallest of the first image predicts a root mean
    squared error of `error`. Attackers are told the label. For LeNet, Lipschitz constants near the truth stand beside the
    paper's.

    **Source**: Zhang et al. 2023, figures 5, 6, 12 and 13 and appendix H.1. Their text calls the perturbations eigenvectors
    of JJᵀ, which live in the input space. Deviations: ResNet-18 on images of 16×16, so that its whole spectrum is in reach.

    Attributes:
        cifar: npz file with CIFAR-10 images (arrays x, y); without it digits alone.
        only: name of a boolean array in that file that selects images.
        digits: whether LeNet on digits is run.
        count: images a network.
        deep_count: images of ResNet-18; 0 leaves it out.
        error: largest predicted pixel RMSE of the first image.
        iterations: of DGL on LeNet, and sixty times the steps of `GaussNewton` on digits.
        deep_iterations: of DGL and GS on ResNet-18.
        shrink: by which images for ResNet-18 are made smaller.
        seed: of images, weights and starts.
        cells: file that keeps what was computed, to go on from.
    """

    name: ClassVar[str] = "influence_directions"
    source: ClassVar[str] = "figures 5, 6, 12 and 13, appendix H.1"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023,)

    cifar: str | None = None
    only: str | None = None
    digits: bool = True
    count: int = 3
    deep_count: int = 1
    error: float = 0.3
    iterations: int = 500
    deep_iterations: int = 150
    shrink: int = 2
    seed: int = 0
    cells: str | None = None

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about ten minutes of one core."""
        spectra: dict[str, list[list[float]]] = {}
        rows: list[dict[str, Any]] = []
        constants: dict[str, list[list[float]]] = {}
        grids: dict[str, str] = {}
        with Store(self.cells) as store, one_thread():
            for setting in self._settings():
                title, pictures = setting.title, []
                for image, (example, objective) in enumerate(self._images(setting)):
                    key = {
                        "setting": describe(setting),
                        "content": content_of([example]),
                        "image": image,
                        "seed": self.seed,
                    }
                    line = _Line(study=self, setting=setting, objective=objective, example=example, image=image)
                    values = store.kept(key | {"what": "spectrum"}, list[float], line.spectrum)
                    spectra.setdefault(title, []).append(values)
                    size = math.sqrt(len(values) * _smallest(setting, spectra[title][0])) * self.error
                    settled = {"what": "directions", "size": size}
                    found = store.kept(key | settled, list[Direction], partial(line.directions, size))
                    rows += [_row(title, image, one, len(values)) for one in found]
                    pictures.append((example, found))
                    if setting.network is WorldNetwork.LENET:
                        kept = store.kept(key | {"what": "constants"}, list[float], line.constants)
                        constants.setdefault(setting.data, []).append(kept)
                    say(f"{title}: image {image + 1}")
                if pictures:
                    grids[f"influence-directions-{setting.network.value}-{setting.data.lower()}"] = _pictures(
                        title, pictures
                    )
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[*_findings(rows), *_of_spectra(spectra), *_of_constants(constants)],
            conclusion=_conclude(rows, spectra),
            details={"rows": rows, "spectra": spectra, "constants": constants},
            tables=[_table(rows)],
            figures={"influence-spectra": _spectra(spectra), "influence-directions": _curves(rows), **grids},
        )

    def _settings(self) -> Iterator[DirectionSetting]:
        both = (WorldAttack.DGL, WorldAttack.GAUSS_NEWTON)
        lenet = partial(DirectionSetting, network=WorldNetwork.LENET, shrink=1, iterations=self.iterations)
        if self.digits:
            yield lenet(data="MNIST", images=None, attacks=both)
        if self.cifar is not None:
            # A step of `GaussNewton` factors a matrix of 3,072 rows.
            yield lenet(data="CIFAR-10", images=self.cifar, attacks=both[:1])
        if self.cifar is not None and self.deep_count:
            yield DirectionSetting(
                network=WorldNetwork.RESNET18, data="CIFAR-10", images=self.cifar, shrink=self.shrink,
                iterations=self.deep_iterations, attacks=(WorldAttack.DGL, WorldAttack.GS),
            )  # fmt: skip

    def _images(self, setting: DirectionSetting) -> Iterator[tuple[Batch, Objective]]:
        count = self.deep_count if setting.network.deep else self.count
        only = None if setting.images is None else self.only
        batch = draw_images(setting.images, count=count, seed=self.seed, only=only, shrink=setting.shrink)
        generator = derive_generator(self.seed, "weights", setting.network.value)
        model = setting.network.model(batch.inputs.shape[1], batch.inputs.shape[-1], generator)
        objective = Objective.from_module(model, mode=Mode.EVAL)
        for image in range(count):
            yield batch.example(image), objective


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One image of a setting."""

    study: InfluenceDirections
    setting: DirectionSetting
    objective: Objective
    example: Batch
    image: int

    @cached_property
    def operator(self) -> GradientJacobian:
        """A at the image."""
        dtype = torch.float32 if self.setting.network.deep else torch.float64
        return GradientJacobian(Exposure(self.objective, self.example, Release(FedSGD())), dtype=dtype)

    def spectrum(self) -> list[float]:
        """Eigenvalues of AᵀA, rising."""
        return [float(value) for value in self.operator.spectrum.values]

    def directions(self, size: float) -> list[Direction]:
        """Claims along four singular vectors, from the largest λ on."""
        operator = self.operator
        spectrum = operator.spectrum
        values = spectrum.values
        least = _smallest(self.setting, values.tolist())
        wanted = np.geomspace(float(values[-1]), least, 4)
        places = [int((values.log() - math.log(one)).abs().nan_to_num(math.inf).argmin()) for one in wanted]
        images = operator.matmat(spectrum.vectors[:, places].contiguous())
        units = images / images.norm(dim=0)
        claims = {
            attack.value: self._attack(attack, [size * units[:, column] for column in range(len(places))])
            for attack in self.setting.attacks
        }
        return [
            self._direction(
                float(values[place]), size, len(values), {name: found[column] for name, found in claims.items()}
            )
            for column, place in enumerate(places)
        ]

    def _direction(self, value: float, size: float, entries: int, claims: Mapping[str, Tensor | None]) -> Direction:
        errors = {name: pixel_rmse(claim, self.example) for name, claim in claims.items()}
        return Direction(
            eigenvalue=value,
            size=size,
            predicted=size**2 / value / entries,
            reached={name: None if error is None else error**2 for name, error in errors.items()},
            pictures={
                name: [round(float(pixel), 3) for pixel in claim.flatten().clamp(0, 1)]
                for name, claim in claims.items()
                if claim is not None
            },
        )

    def _attack(self, kind: WorldAttack, perturbations: Sequence[Tensor]) -> list[Tensor | None]:
        """Claims of an attack on the gradient under each perturbation, from the same start."""
        objective, release = self.objective, Release(FedSGD())
        clean = release(objective, self.example, torch.Generator())
        flat = objective.flatten(clean.tensors)
        updates = [replace(clean, tensors=objective.unflatten(flat + one.to(objective.dtype))) for one in perturbations]
        knowledge = HonestButCurious(targets=True).disclose(objective, release, self.example)
        generators = [derive_generator(self.study.seed, "attack", str(self.image)) for _ in updates]
        attack = kind.attack(self.setting.iterations)
        found = attack.many(updates, [knowledge] * len(updates), generators=generators)
        return [claim.inputs for claim in found]

    def constants(self) -> list[float]:
        """Sampled Lipschitz constants of the gradient and of A, and ‖A‖."""
        operator = self.operator
        delta = torch.zeros(operator.shape[0], dtype=operator.dtype)
        score = LipschitzBound(samples=_SAMPLES)(operator.exposure, delta=delta, operator=operator)
        return [score.details[name] for name in ("lipschitz_release", "lipschitz_jacobian", "spectral_norm")]


def _smallest(setting: DirectionSetting, values: Sequence[float]) -> float:
    """The smallest eigenvalue that counts: of the range, and for float32 well above its round-off."""
    share = 1e-5 if setting.network.deep else len(values) * np.finfo(float).eps
    return min(value for value in values if value > share * values[-1])


def _row(title: str, image: int, one: Direction, size: int) -> dict[str, Any]:
    return {
        "setting": title, "image": image, "eigenvalue": one.eigenvalue, "size": one.size, "d": size,
        "predicted": one.predicted, "reached": one.reached,
    }  # fmt: skip


def _points(rows: Sequence[Mapping[str, Any]], title: str, attack: str) -> list[tuple[float, float]]:
    mine = [row for row in rows if row["setting"] == title and row["reached"].get(attack)]
    return [(row["predicted"], row["reached"][attack]) for row in mine]


def _kinds(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row["setting"], attack) for row in rows for attack in row["reached"]))


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for title, attack in _kinds(rows):
        points = np.array(_points(rows, title, attack)).reshape(-1, 2)
        if len(points) < 3:
            continue
        predicted, reached = points.T
        fit = stats.linregress(np.log(predicted), np.log(reached))
        half = float(stats.t.ppf(0.975, len(points) - 2) * fit.stderr)
        near = "close to 1/λ" if "mnist" in title.lower() else "falls with λ, above 1/λ"
        found += [
            Finding(
                quantity=f"{title}, {attack}: log-log slope of the squared error on 1/λ",
                ours=float(fit.slope),
                paper=f"{near} (figures 6, 12 and 13)",
                interval=(float(fit.slope) - half, float(fit.slope) + half),
                n=len(points),
            ),
            Finding(
                quantity=f"{title}, {attack}: Spearman of the squared error and 1/λ",
                ours=spearman(points),
                n=len(points),
            ),
            Finding(
                quantity=f"{title}, {attack}: squared error / c²/(λ d), median",
                ours=median(list(reached / predicted)),
                paper="at least 1 (figure 6)",
                n=len(points),
                note=f"{min(reached / predicted):.3g} to {max(reached / predicted):.3g}",
            ),
        ]
    return found


def _of_spectra(spectra: Mapping[str, Sequence[Sequence[float]]]) -> list[Finding]:
    found = []
    for title, several in spectra.items():
        lenet = title.startswith("lenet")
        largest = [values[-1] for values in several]
        found += [
            Finding(
                quantity=f"{title}: largest eigenvalue of AᵀA, median",
                ours=median(largest),
                paper="at least 1 (figure 5)" if lenet else "",
                n=len(several),
            ),
            Finding(
                quantity=f"{title}: share of eigenvalues below a hundredth of the largest, median",
                ours=median([float(np.mean(np.array(values) < values[-1] / 100)) for values in several]),
                paper="a few, around 1e-2 (figure 5)" if lenet else "",
                n=len(several),
            ),
        ]
        if lenet:
            least = median([min(value for value in values if value > 0) for values in several])
            quantity = f"{title}: smallest eigenvalue of AᵀA, median"
            found.append(Finding(quantity=quantity, ours=least, paper="around 1e-2 (figure 5)", n=len(several)))
    return found


def _of_constants(constants: Mapping[str, Sequence[Sequence[float]]]) -> list[Finding]:
    found = []
    for data, several in constants.items():
        for place, (name, paper) in enumerate(zip(("μ_L", "μ_J"), _PAPER[data], strict=True)):
            values = [one[place] for one in several]
            found.append(
                Finding(
                    quantity=f"lenet, {data}: {name} from {_SAMPLES} points near each image, median",
                    ours=median(values),
                    paper=f"{paper} (H.1)",
                    n=len(values),
                    note=f"{min(values):.3g} to {max(values):.3g}; too small by construction, μ_L is at least ‖A‖",
                )
            )
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for row in rows:
        reached = ", ".join(f"{name} {shown(value)}" for name, value in row["reached"].items())
        body.append([row["setting"], str(row["image"]), f"{row['eigenvalue']:.3g}", f"{row['predicted']:.3g}", reached])
    columns = ["setting", "image", "λ", "c²/(λ d)", "squared error reached"]
    return Table(title="Squared pixel error along singular vectors, one size a setting", columns=columns, rows=body)


def _conclude(rows: Sequence[Mapping[str, Any]], spectra: Mapping[str, Sequence[Sequence[float]]]) -> list[str]:
    lines = []
    for title, several in spectra.items():
        spread = [values[-1] / min(value for value in values if value > 0) for values in several]
        lines.append(
            f"{title}: the largest eigenvalue is {shown(median(spread))} times the smallest positive one (median)."
        )
    for title, attack in _kinds(rows):
        points = _points(rows, title, attack)
        ordered = [reached for _, reached in sorted(points)]
        if len(ordered) >= 2:
            lines.append(
                f"{title}, {attack}: from the largest λ to the smallest the squared error goes from {ordered[0]:.3g} to "
                f"{ordered[-1]:.3g}, where {min(points)[0]:.3g} to {max(points)[0]:.3g} are predicted."
            )
    return lines


def _spectra(spectra: Mapping[str, Sequence[Sequence[float]]]) -> str:
    def paint(grid: Sequence[Axes]) -> None:
        for axes, (title, several) in zip(grid, spectra.items(), strict=True):
            for place, values in enumerate(several):
                positive = [value for value in values if value > 0]
                color = SERIES[place % len(SERIES)]
                axes.hist(np.log10(positive), bins=40, histtype="step", color=color, label=f"image {place + 1}")
            axes.set_yscale("log")
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("log₁₀ λ")
            axes.set_ylabel("eigenvalues")

    what = "Numbers of eigenvalues of AᵀA by their size, an image each."
    return drawn_grid(len(spectra), paint, prefix="spectra", title="Spectra", description=what)


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    titles = list(dict.fromkeys(row["setting"] for row in rows))

    def paint(grid: Sequence[Axes]) -> None:
        for axes, title in zip(grid, titles, strict=True):
            mine = [row for row in rows if row["setting"] == title]
            curve = sorted((row["eigenvalue"], row["predicted"]) for row in mine)
            axes.plot(*zip(*curve, strict=True), color=INK, linewidth=0.8, linestyle=BESIDE, label="c²/(λ d)")
            for place, attack in enumerate(mine[0]["reached"]):
                points = [(row["eigenvalue"], row["reached"][attack]) for row in mine if row["reached"][attack]]
                axes.plot(
                    [x for x, _ in points],
                    [y for _, y in points],
                    linestyle="",
                    color=SERIES[place],
                    marker=MARKERS[place],
                    markersize=4,
                    label=attack,
                )
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_title(title, fontsize=8)
            axes.set_xlabel("λ")
            axes.set_ylabel("squared error")

    what = "Squared pixel error of attacks over the eigenvalue along whose direction the gradient was perturbed."
    return drawn_grid(len(titles), paint, prefix="directions", title="Error by direction", description=what)


def _pictures(title: str, several: Sequence[tuple[Batch, Sequence[Direction]]]) -> str:
    """Claims by direction, from the largest λ on, an image and attack a row, the original first."""
    attacks = list(several[0][1][0].reached)
    lines = [(example, found, attack) for example, found in several for attack in attacks]
    wide = 1 + max(len(found) for _, found in several)

    def paint(grid: Sequence[Axes]) -> None:
        for place, (example, found, attack) in enumerate(lines):
            shape = tuple(example.inputs.shape[1:])
            pictures = [("original", example.inputs.flatten().tolist())]
            pictures += [(f"λ {one.eigenvalue:.2g}", one.pictures.get(attack, [])) for one in found]
            for axes, (name, pixels) in zip(grid[place * wide : (place + 1) * wide], pictures, strict=True):
                if pixels:
                    picture = np.array(pixels).reshape(shape).transpose(1, 2, 0)
                    axes.imshow(picture.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="none")
                axes.set_title(name if name != "original" else attack, fontsize=7)
                axes.set_axis_off()

    what = f"Originals and claims of attacks by the direction of the perturbation, {title}."
    name = title.replace(", ", "-").replace(" ", "-")
    return drawn_grid(len(lines) * wide, paint, prefix=name, title=title, description=what, columns=wide, side=1.0)


__all__ = ["Direction", "DirectionSetting", "InfluenceDirections"]
