"""Cost of operations as models grow, in plain gradients of the same process and dtype, and peak memory; a process for each case.

    python -m benchmarks.model_scale FILE.json            all cases, one after the other; those that FILE has stay
    python -m benchmarks.model_scale FILE.json --cases a b
    python -m benchmarks.model_scale FILE.json --cases a --iterations 500    a whole attack besides, minutes to hours
    python -m benchmarks.model_scale FILE.json --plot docs/explanation   the figures of docs/explanation/scale.md

Networks of images: an iteration of `InvertingGradients` and the largest eigenvalue of AᵀA (float32), I²F at ε = 1 by conjugate
gradients (float64). Encoders of text: `TokenRows` on a sentence of 24 tokens. Times are processor times of one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradleak.attacks import InvertingGradients, TokenRows
from gradleak.core import Batch, Domain, Exposure, HonestButCurious, Objective, Release, Vocabulary
from gradleak.linalg import ConjugateGradient
from gradleak.models import initialize_default, lenet_i2f, resnet8, resnet18, transformer, vit
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.risk import InversionInfluence

LENGTH = 24
STEPS = 2
Numbers = dict[str, float]


class Bottleneck(nn.Module):
    """Three convolutions, 1x1, 3x3 and 1x1, around a skip connection."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        parts = [(channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
        self.layers = nn.Sequential()
        for place, (before, after, kernel, step) in enumerate(parts):
            self.layers.append(nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False))
            self.layers.append(nn.BatchNorm2d(after))
            if place < len(parts) - 1:
                self.layers.append(nn.ReLU())
        same = channels == 4 * width and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(channels, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layers(x) + self.skip(x))


def resnet50() -> nn.Module:
    """A ResNet-50 for 64x64 images and 1,000 classes: 25.5 million parameters; a 3x3 stem of stride 2 without pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
            channels = 4 * width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return initialize_default(model, generator=torch.Generator().manual_seed(0))


def vit_small() -> nn.Module:
    """A ViT-S for 64x64 images in patches of 8x8 and 1,000 classes: 21.8 million parameters."""
    return vit(size=64, patch=8, width=384, blocks=12, heads=6, classes=1000)


IMAGES: Mapping[str, tuple[Callable[[], nn.Module], int, int]] = {
    "LeNet 28x28": (lenet_i2f, 1, 28),
    "ResNet-8 32x32": (resnet8, 3, 32),
    "ResNet-18 32x32": (resnet18, 3, 32),
    "ResNet-50 64x64": (resnet50, 3, 64),
    "ViT-S 64x64": (vit_small, 3, 64),
}
# Words, width and blocks.
TEXTS: Mapping[str, tuple[int, int, int]] = {
    "encoder 1M": (4_000, 128, 2),
    "encoder 10M": (16_000, 256, 8),
    "encoder 100M": (30_000, 768, 11),
}


def image_case(name: str) -> Iterator[Numbers]:
    """The numbers of a network of images, as they come."""
    objective, batch = _image(name)
    yield {"parameters": objective.size, "inputs": batch.inputs.numel()}
    generator = torch.Generator().manual_seed(0)
    release = Release(FedSGD())
    update = release(objective, batch, generator)
    knowledge = HonestButCurious().disclose(objective, release, batch)
    single = plain(objective, batch)
    yield {"gradient seconds": single, "gradient MB": peak()}

    def attack(iterations: int) -> float:
        found = InvertingGradients(iterations=iterations)
        return spent(lambda: found(update, knowledge, generator=torch.Generator().manual_seed(1)))

    attack(1)
    yield {"attack iteration": (attack(3 * STEPS) - attack(STEPS)) / (2 * STEPS) / single, "attack MB": peak()}
    exposure = Exposure(objective, batch, release)
    operator = GradientJacobian(exposure, dtype=torch.float32)
    yield {"λmax": spent(operator.largest_eigenvalue) / single, "λmax MB": peak()}
    del operator
    double = objective.to(torch.float64)
    exposure = Exposure(double, batch.to(torch.float64), release)
    base = plain(double, exposure.batch)
    delta = 1e-3 * torch.randn(double.size, generator=generator, dtype=torch.float64)
    measure = InversionInfluence(epsilon=1.0, solver=ConjugateGradient(tolerance=1e-4))
    yield {"I²F, ε = 1": spent(lambda: measure(exposure, delta=delta)) / base, "I²F MB": peak()}


def attack_case(name: str, iterations: int) -> Iterator[Numbers]:
    """Cost and end of a whole attack on a network of images."""
    objective, batch = _image(name)
    release = Release(FedSGD())
    update = release(objective, batch, torch.Generator())
    knowledge = HonestButCurious().disclose(objective, release, batch)
    single, found = plain(objective, batch), []
    attack = InvertingGradients(iterations=iterations)
    took = spent(lambda: found.append(attack(update, knowledge, generator=torch.Generator().manual_seed(1))))
    yield {f"attack of {iterations}": took / single, f"attack of {iterations}, matching loss": float(found[0].loss)}


def _image(name: str) -> tuple[Objective, Batch]:
    make, channels, side = IMAGES[name]
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, channels, side, side, generator=generator)
    batch = Batch(image, torch.tensor([3]), Domain.image(channels=channels, height=side, width=side))
    return Objective.from_module(make()), batch


def text_case(name: str) -> Iterator[Numbers]:
    """The numbers of an encoder of text."""
    words, width, blocks = TEXTS[name]
    model = transformer(words=words, length=LENGTH, width=width, blocks=blocks)
    objective = Objective.from_module(model)
    vocabulary = Vocabulary(size=words, padding=0, special={1: 0, 2: -1})
    ids = 3 + torch.randperm(words - 3, generator=torch.Generator().manual_seed(1))[:LENGTH]
    ids[0], ids[-1] = 1, 2
    batch = Batch(ids[None], torch.tensor([1]), Domain.tokens(vocabulary, LENGTH))
    release = Release(FedSGD())
    single = plain(objective, batch)
    yield {"parameters": objective.size, "inputs": LENGTH, "gradient seconds": single, "gradient MB": peak()}
    update = release(objective, batch, torch.Generator())
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = []
    took = spent(lambda: found.append(TokenRows()(update, knowledge, generator=torch.Generator())))
    tokens = found[0].tokens
    right = 0.0 if tokens is None else float((tokens == batch.inputs).double().mean())
    yield {"TokenRows": took / single, "tokens right": right, "TokenRows MB": peak()}


def plain(objective: Objective, batch: Batch) -> float:
    """Processor seconds of one plain gradient, the least of three after one that is not counted."""
    return min([spent(lambda: objective.gradient(objective.params, batch)) for _ in range(4)][1:])


def spent(call: Callable[[], Any]) -> float:
    """Processor seconds of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak() -> float:
    """Peak memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(file: Path, names: list[str], iterations: int | None = None) -> None:
    """Measure cases that a file lacks, each in a process of its own; what each has found is written as it comes."""
    for name in names:
        rows = read(file)
        done = rows.get(name, {}).get("done", False)
        if done and (iterations is None or f"attack of {iterations}" in rows[name]):
            continue
        command = [sys.executable, "-m", "benchmarks.model_scale", str(file), "--one", name]
        # A whole attack is added to a case that is there.
        command += ["--iterations", str(iterations)] if done else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found: dict[str, Any] = rows[name] if done else {}
            for line in process.stdout:
                found |= json.loads(line)
                write(file, {**rows, name: found})
                print(name, line, end="", flush=True)
        write(file, {**rows, name: {**found, "done": process.returncode == 0}})


def read(file: Path) -> dict[str, Any]:
    """The cases that a file holds."""
    return json.loads(file.read_text())["cases"] if file.exists() else {}


def write(file: Path, cases: Mapping[str, Any]) -> None:
    """Write the cases, with the version of torch."""
    held = {"torch": torch.__version__, "threads": 1, "cases": cases}
    file.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def plot(file: Path, folder: Path) -> None:
    """The figures: cost in plain gradients, and peak memory over the size of the model, against parameters."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "gradleak"
    from matplotlib import pyplot as plt

    cases = sorted(read(file).values(), key=lambda case: case["parameters"])
    figures = {
        "scale-cost": ("plain gradients", ("attack iteration", "λmax", "I²F, ε = 1", "TokenRows")),
        # λmax is computed after an attack in the same process, whose peak it has not passed.
        "scale-memory": ("peak memory, MB", ("gradient MB", "attack MB", "I²F MB", "TokenRows MB")),
    }
    for stem, (label, keys) in figures.items():
        figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
        for key in keys:
            points = [(case["parameters"], case[key]) for case in cases if key in case]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=key.removesuffix(" MB"))
        if stem == "scale-memory":
            sizes = [case["parameters"] for case in cases]
            axes.plot(sizes, [4e-6 * size for size in sizes], color="0.6", linestyle=":", label="the model, float32")
        axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel=label)
        axes.legend(fontsize="small")
        figure.savefig(folder / f"{stem}.svg", metadata={"Date": None})
        plt.close(figure)


def _one(name: str, iterations: int | None) -> Iterator[Numbers]:
    if name in TEXTS:
        return text_case(name)
    return image_case(name) if iterations is None else attack_case(name, iterations)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", nargs="*", default=[*IMAGES, *TEXTS], choices=[*IMAGES, *TEXTS])
    parser.add_argument("--one", choices=[*IMAGES, *TEXTS])
    parser.add_argument("--iterations", type=int, help="of a whole attack on cases of images that are there")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.plot is not None:
        plot(given.file, given.plot)
    elif given.one is not None:
        for row in _one(given.one, given.iterations):
            print(json.dumps(row, ensure_ascii=False), flush=True)
    else:
        measured(given.file, given.cases, given.iterations)


if __name__ == "__main__":
    main()
