"""Models of malicious servers that really leak, and honest ones that look strange; each kind by seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise

import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import Tensor, nn

from gradleak.core import Batch
from gradleak.datasets import scikit_digits
from gradleak.models import resnet8

BATCH = 32
Pairs = list[tuple[int, int | None, float]]


@cache
def digits() -> tuple[Batch, Batch]:
    """Rows that models are trained on, and public ones."""
    rows = scikit_digits(count=1797, seed=0)
    return Batch(rows.inputs[:1280], rows.targets[:1280]), Batch(rows.inputs[1280:], rows.targets[1280:])


@cache
def census() -> tuple[Batch, Batch]:
    """Six numbers and seven one-hot columns a row, two classes; for training, and public."""
    draw = torch.Generator().manual_seed(5)
    columns = [torch.rand(2560, 6, generator=draw)]
    for values in (8, 16, 7, 14, 6, 5, 2):
        weights = torch.rand(values, generator=draw) ** 2
        columns.append(F.one_hot(torch.multinomial(weights, 2560, replacement=True, generator=draw), values).float())
    rows = torch.cat(columns, 1)
    score = (rows - rows.mean(0)) @ torch.randn(64, generator=draw) + torch.randn(2560, generator=draw) / 2
    targets = (score > 0).long()
    return Batch(rows[:2048], targets[:2048]), Batch(rows[2048:], targets[2048:])


def built(make: Callable[[], nn.Module], seed: int, scale: float = 1.0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = make()
    with torch.no_grad():
        for parameter in model.parameters() if scale != 1.0 else ():
            parameter *= scale
    return model


def layers_of(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), act()]
    return nn.Sequential(*parts[:-1])


def convnet(norm: type[nn.Module] = nn.Identity) -> nn.Sequential:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), norm(after), nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    return nn.Sequential(*block(1, 8), *block(8, 16), nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


class Rows(nn.Module):
    """A transformer whose tokens are the rows of a digit."""

    def __init__(self, depth: int, act: str) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, activation=act, batch_first=True)
        self.enter, self.leave = nn.Linear(8, 32), nn.Linear(32, 10)
        self.place = nn.Parameter(torch.randn(8, 32) / 10)
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.body(self.enter(x.reshape(-1, 8, 8)) + self.place).mean(1))


def trained(model: nn.Module, rows: Batch, steps: int = 250, rate: float = 0.1, *, adam: bool = False) -> nn.Module:
    draw = torch.Generator().manual_seed(steps)
    weights = list(model.parameters())
    step = torch.optim.Adam(weights, lr=rate) if adam else torch.optim.SGD(weights, lr=rate, momentum=0.9)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(rows.size, (64,), generator=draw)
        outputs = model(rows.inputs[chosen])
        wanted = rows.targets[chosen]
        single = outputs.shape[1] == 1
        loss = (
            F.binary_cross_entropy_with_logits(outputs[:, 0], wanted.float())
            if single
            else F.cross_entropy(outputs, wanted)
        )
        step.zero_grad()
        loss.backward()
        step.step()
    return model.eval()


@dataclass
class Planted:
    """A model whose gradient gives single examples away.

    `layer` is read by `pairs`: the gradient of a row, or of the first less `factor` times that of the second. Without pairs it
    is the whole gradient of `layer` that is of one example.
    """

    model: nn.Module
    rows: tuple[Batch, Batch]
    layer: nn.Module
    pairs: Pairs = field(default_factory=list)


def entering(model: nn.Module, layer: nn.Module, rows: Tensor) -> Tensor:
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(rows)
    hook.remove()
    return seen[0]


def gradients(planted: Planted, batch: Batch) -> tuple[Tensor, Tensor]:
    """Gradients by the weight and the bias of the layer that is read, in float64."""
    own = [planted.layer.weight, planted.layer.bias]
    found = torch.autograd.grad(F.cross_entropy(planted.model(batch.inputs), batch.targets), own)
    return found[0].detach(), found[1].detach()


def drawn(planted: Planted, seed: int, count: int = BATCH) -> Batch:
    rows = planted.rows[0]
    chosen = torch.randperm(rows.size, generator=torch.Generator().manual_seed(seed))[:count]
    return Batch(rows.inputs[chosen].double(), rows.targets[chosen])


def read(planted: Planted, seed: int = 0) -> float:
    """The share of a private batch whose input of the layer is read to 1 %; or 1 where a whole gradient is of one example."""
    planted.model.double()
    try:
        return _read_rows(planted, drawn(planted, seed)) if planted.pairs else _read_whole(planted)
    finally:
        planted.model.float()


def _read_rows(planted: Planted, batch: Batch) -> float:
    weight, bias = gradients(planted, batch)
    truth = entering(planted.model, planted.layer, batch.inputs)
    found: set[int] = set()
    for one, other, factor in planted.pairs:
        rest = (0.0, 0.0) if other is None else (factor * weight[other], factor * bias[other])
        above, below = weight[one] - rest[0], bias[one] - rest[1]
        if below.abs() > 1e-14:
            errors = (truth - above / below).norm(dim=1) / truth.norm(dim=1)
            if errors.min() < 1e-2:
                found.add(int(errors.argmin()))
    return len(found) / batch.size


def _read_whole(planted: Planted) -> float:
    for seed in range(40):
        batch = drawn(planted, seed, 8)
        whole = gradients(planted, batch)[0].flatten()
        for place in range(batch.size):
            one = Batch(batch.inputs[place : place + 1], batch.targets[place : place + 1])
            alone = gradients(planted, one)[0].flatten() / batch.size
            if alone.norm() > 1e-12 and (whole - alone).norm() < 1e-2 * whole.norm():
                return 1.0
    return 0.0


def openings(values: Tensor, share: float) -> Tensor:
    """Thresholds that this share of the rows (n, k) exceeds."""
    return torch.quantile(values, 1 - share, dim=0)


@torch.no_grad()
def bins(
    planted: Planted,
    after: nn.Linear,
    draw: torch.Generator,
    *,
    rows: Sequence[int] | None = None,
    direction: str = "mean",
    guessed: bool = False,
    rescaled: bool = False,
    noise: float = 0.0,
) -> Planted:
    """Rows of one direction with rising biases, whose next layer treats them alike (Fowl et al. 2022)."""
    layer = planted.layer
    inputs = entering(planted.model, layer, planted.rows[0].inputs)
    places = torch.tensor(range(layer.out_features) if rows is None else rows)
    places = places[torch.randperm(len(places), generator=draw)]
    size, count = inputs.shape[1], len(places)
    way = torch.ones(size) / size if direction == "mean" else torch.randn(size, generator=draw) / size**0.5
    values = inputs @ way
    steps = torch.arange(count) / count
    cuts = torch.quantile(values, steps)
    if guessed:
        cuts = values.mean() + values.std() * torch.erfinv(2 * (steps + 0.5 / count) - 1) * 2**0.5
    scale = torch.rand(count, generator=draw) * 3 + 0.2 if rescaled else torch.ones(count)
    bent = way + noise * way.norm() / size**0.5 * torch.randn(count, size, generator=draw)
    layer.weight[places] = scale[:, None] * bent
    layer.bias[places] = -scale * cuts
    column = torch.randn(after.out_features, generator=draw) / count**0.5
    after.weight[:, places] = column[:, None] / scale
    order, factors = places.tolist(), scale.tolist()
    planted.pairs = [(order[at], order[at + 1], factors[at + 1] / factors[at]) for at in range(count - 1)]
    planted.pairs.append((order[-1], None, 0.0))
    return planted


@torch.no_grad()
def traps(planted: Planted, draw: torch.Generator, share: float) -> Planted:
    """Weights of which the negative half outweighs the other in nearly all rows of data (Boenisch et al. 2023)."""
    layer = planted.layer
    inputs = entering(planted.model, layer, planted.rows[0].inputs)
    size = inputs.shape[1]
    for row in range(layer.out_features):
        weight = torch.randn(size, generator=draw).abs()
        order = torch.randperm(size, generator=draw)
        low, high = inputs @ (weight * (order >= size // 2)), inputs @ (weight * (order < size // 2))
        ratio = torch.quantile(low / high.clamp_min(1e-9), share)
        layer.weight[row] = torch.where(order < size // 2, weight * ratio, -weight)
    layer.bias.zero_()
    planted.pairs = [(row, None, 0.0) for row in range(layer.out_features)]
    return planted


@torch.no_grad()
def opened(planted: Planted, share: float) -> Planted:
    """The weights as they are, and biases that open for a share of the rows."""
    layer = planted.layer
    values = entering(planted.model, layer, planted.rows[0].inputs) @ layer.weight.T
    layer.bias.copy_(-openings(values, share))
    planted.pairs = [(row, None, 0.0) for row in range(layer.out_features)]
    return planted


@torch.no_grad()
def copies(planted: Planted, after: nn.Linear, draw: torch.Generator, *, count: int, scale: float) -> Planted:
    """Every direction several times, each copy larger by `scale` and opened for a few rows fewer."""
    layer = planted.layer
    inputs = entering(planted.model, layer, planted.rows[0].inputs)
    planted.pairs = []
    for first in range(0, layer.out_features - count + 1, count):
        weight, column = layer.weight[first].clone(), after.weight[:, first].clone()
        values, start = inputs @ weight, float(torch.rand(1, generator=draw)) * 0.6 + 0.1
        for copy in range(count):
            factor, row = scale**copy, first + copy
            layer.weight[row] = factor * weight
            layer.bias[row] = -factor * torch.quantile(values, start + copy / BATCH)
            after.weight[:, row] = column / factor
            if copy:
                planted.pairs.append((row - 1, row, scale))
    return planted


@torch.no_grad()
def shut(planted: Planted, gate: nn.Linear, draw: torch.Generator, share: float) -> Planted:
    """A layer that is shut for nearly everybody: what is before it has the gradient of who gets through."""
    inputs = entering(planted.model, gate, planted.rows[0].inputs)
    way = torch.randn(inputs.shape[1], generator=draw) / inputs.shape[1] ** 0.5
    factor = torch.rand(gate.out_features, generator=draw) + 0.5
    gate.weight.copy_(factor[:, None] * way)
    gate.bias.copy_(-factor * openings(inputs @ way, share))
    return planted


@torch.no_grad()
def fishing(planted: Planted, head: nn.Linear, wanted: int, *, noise: float = 0.0, raised: float = 50.0) -> Planted:
    """A head whose other classes have equal logits, so that it passes on the gradient of one class (Wen et al. 2022)."""
    weight, bias = noise * head.weight, torch.full_like(head.bias, raised)
    weight[wanted], bias[wanted] = head.weight[wanted], head.bias[wanted]
    head.weight.copy_(weight)
    head.bias.copy_(bias)
    return planted


def _plain(*widths: int, seed: int, at: int = 1, steps: int = 0, tabular: bool = False) -> Planted:
    rows = census() if tabular else digits()
    model = built(lambda: layers_of(*widths), seed)
    if steps:
        trained(model, rows[0], steps)
    return Planted(model, rows, model[at])


def _behind(seed: int) -> tuple[Planted, nn.Linear]:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    model = built(make, seed)
    return Planted(model, digits(), model[3]), model[5]


def _in_front(seed: int) -> tuple[Planted, nn.Linear]:
    """Two layers before a trained network, which get the image and give one back."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.Unflatten(1, (1, 8, 8)))

    front = built(make, seed)
    model = nn.Sequential(*front, *trained(built(convnet, seed), digits()[0], 100))
    return Planted(model, digits(), model[1]), model[3]


def planted(kind: str, seed: int) -> Planted:
    draw = torch.Generator().manual_seed(seed)
    return _PLANTS[kind](seed, draw)


def _bins(
    seed: int, draw: torch.Generator, widths: Sequence[int] = (64, 128, 64, 10), at: int = 1, **how: object
) -> Planted:
    plain = {key: how.pop(key) for key in ("steps", "tabular") if key in how}
    made = _plain(*widths, seed=seed, at=at, **plain)
    return bins(made, made.model[at + 2], draw, **how)


def _copies(seed: int, draw: torch.Generator, *, count: int, scale: float) -> Planted:
    made = _plain(64, 128, 64, 10, seed=seed)
    return copies(made, made.model[3], draw, count=count, scale=scale)


def _fishing(seed: int, draw: torch.Generator, *, noise: float = 0.0) -> Planted:
    made = _plain(64, 128, 64, 10, seed=seed, steps=200)
    return fishing(made, made.model[5], seed % 10, noise=noise)


def _fishing_images(seed: int, draw: torch.Generator) -> Planted:
    model = trained(built(convnet, seed), digits()[0], 150)
    return fishing(Planted(model, digits(), model[0]), model[11], seed % 10, raised=1000.0)


def _shut(seed: int, draw: torch.Generator) -> Planted:
    made = _plain(64, 128, 64, 10, seed=seed, steps=200)
    return shut(made, made.model[3], draw, 1 / 40)


def _made(place: Callable[[int], tuple[Planted, nn.Linear]], seed: int, draw: torch.Generator) -> Planted:
    made, after = place(seed)
    return bins(made, after, draw)


_PLANTS: dict[str, Callable[[int, torch.Generator], Planted]] = {
    "bins": _bins,
    "bins, drawn direction": partial(_bins, direction="normal"),
    "bins, rows of other sizes": partial(_bins, rescaled=True),
    "bins, guessed": partial(_bins, guessed=True, direction="normal"),
    "bins, directions 5 % off": partial(_bins, noise=0.05),
    "bins in half of the rows": partial(_bins, rows=range(0, 128, 2)),
    "bins in 64 of 1024 rows": partial(_bins, widths=(64, 1024, 10), rows=range(64)),
    "bins in the second layer": partial(_bins, at=3, steps=200),
    "bins behind a convolution": partial(_made, _behind),
    "bins in front": partial(_made, _in_front),
    "bins, two classes": partial(_bins, widths=(64, 128, 2), tabular=True, direction="normal"),
    "traps": lambda seed, draw: traps(_plain(64, 128, 64, 10, seed=seed), draw, 1 / 32),
    "traps, two classes": lambda seed, draw: traps(_plain(64, 256, 2, seed=seed, tabular=True), draw, 1 / 50),
    "biases for one": lambda seed, draw: opened(_plain(64, 128, 64, 10, seed=seed), 1 / 32),
    "biases for one, second layer": lambda seed, draw: opened(
        _plain(64, 128, 64, 10, seed=seed, at=3, steps=200), 1 / 24
    ),
    "rows twice": partial(_copies, count=2, scale=1.0),
    "scaled copies": partial(_copies, count=4, scale=3.0),
    "shut layer": _shut,
    "one class": partial(_fishing, noise=1e-3),
    "one class of images": _fishing_images,
}
PLANTS = tuple(_PLANTS)


@torch.no_grad()
def dead(model: nn.Module, share: float, seed: int) -> nn.Module:
    draw = torch.Generator().manual_seed(seed)
    for layer in [part for part in model.modules() if isinstance(part, nn.Linear)][:-1]:
        layer.bias[torch.randperm(layer.out_features, generator=draw)[: int(share * layer.out_features)]] = -20.0
    return model


def pruned(model: nn.Module, share: float, *, whole_rows: bool) -> nn.Module:
    for layer in list(model.modules()):
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.weight.shape[0] > 10:
            if whole_rows:
                torch.nn.utils.prune.ln_structured(layer, "weight", share, n=2, dim=0)
            else:
                torch.nn.utils.prune.l1_unstructured(layer, "weight", share)
    return model


def _without(rows: Batch, wanted: int) -> Batch:
    left = rows.targets != wanted
    return Batch(rows.inputs[left], rows.targets[left])


def _mlp(seed: int, *widths: int, scale: float = 1.0, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    return built(lambda: layers_of(*(widths or (64, 128, 64, 10)), act=act), seed, scale)


def _conv(seed: int, norm: type[nn.Module] = nn.Identity) -> nn.Module:
    return built(lambda: convnet(norm), seed)


_HONEST: dict[str, Callable[[int], nn.Module]] = {
    "MLP, untrained": _mlp,
    "MLP": lambda seed: trained(_mlp(seed), digits()[0], 1000),
    "wide MLP, untrained": lambda seed: _mlp(seed, 64, 1024, 10),
    "wide MLP": lambda seed: trained(_mlp(seed, 64, 1024, 10), digits()[0]),
    "MLP, large steps": lambda seed: trained(_mlp(seed), digits()[0], rate=0.3),
    "deep MLP, Adam": lambda seed: trained(_mlp(seed, 64, 256, 256, 256, 10), digits()[0], rate=0.01, adam=True),
    "MLP of tiny weights": lambda seed: trained(_mlp(seed, 64, 256, 10, scale=0.02), digits()[0], 800),
    "MLP without one class": lambda seed: trained(_mlp(seed), _without(digits()[0], seed % 10), 400),
    "half dead": lambda seed: dead(trained(_mlp(seed), digits()[0]), 0.5, seed),
    "nine tenths dead": lambda seed: dead(trained(_mlp(seed), digits()[0]), 0.9, seed),
    "pruned weights": lambda seed: pruned(trained(_mlp(seed), digits()[0]), 0.9, whole_rows=False),
    "pruned rows": lambda seed: pruned(trained(_conv(seed), digits()[0], 150), 0.7, whole_rows=True),
    "sigmoid": lambda seed: trained(_mlp(seed, act=nn.Sigmoid), digits()[0], rate=0.5),
    "convolutions, untrained": _conv,
    "convolutions": lambda seed: trained(_conv(seed), digits()[0], 150),
    "BatchNorm": lambda seed: trained(_conv(seed, nn.BatchNorm2d), digits()[0], 150),
    "ResNet-8": lambda seed: trained(
        resnet8(channels=1, classes=10, generator=torch.Generator().manual_seed(seed)), digits()[0], 30, 0.05
    ),
    "transformer, untrained": lambda seed: built(lambda: Rows(1, "relu"), seed),
    "transformer": lambda seed: trained(built(lambda: Rows(2, "gelu"), seed), digits()[0], 150, 3e-3, adam=True),
    "census, untrained": lambda seed: _mlp(seed, 64, 128, 2),
    "census": lambda seed: trained(_mlp(seed, 64, 128, 2), census()[0]),
    "deep census": lambda seed: trained(_mlp(seed, 64, 32, 16, 2), census()[0], 800),
    "census of tiny weights": lambda seed: trained(_mlp(seed, 64, 512, 2, scale=0.02), census()[0], 400),
    "census, one output": lambda seed: trained(_mlp(seed, 64, 128, 1), census()[0]),
}
HONEST = tuple(_HONEST)


def honest(kind: str, seed: int) -> tuple[nn.Module, Batch, str]:
    """The model, public rows, and the name of its loss."""
    public = census()[1] if kind.startswith("census") or kind == "deep census" else digits()[1]
    if kind == "census, one output":
        return _HONEST[kind](seed), Batch(public.inputs, public.targets.float()[:, None]), "bce_with_logits"
    return _HONEST[kind](seed), public, "cross_entropy"
