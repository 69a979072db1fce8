"""Set-ups of the attack walk: clean ones, and ones with private data planted where an attack could come across them."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm

from gradleak.core import (
    Batch,
    Domain,
    HonestButCurious,
    ImageGenerator,
    Objective,
    Protocol,
    Release,
    UpdateDefense,
)
from gradleak.defenses import DPSGD, Clip, GaussianNoise, Prune, VariationalBottleneck
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation

IMAGE = Domain.image(channels=3, height=4, width=4)
EXAMPLES = 12


def canary_batch() -> Batch:
    """Twelve images of random values, with labels in an order of no pattern."""
    generator = torch.Generator().manual_seed(20)
    inputs = torch.rand(EXAMPLES, 3, 4, 4, generator=generator)
    return Batch(inputs, torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]), IMAGE)


@dataclass
class Setup:
    """One set-up.

    Attributes:
        batch: what is private.
        model: of the client.
        loss: of the client.
        mode: of the client.
        release: protocol and defenses.
        threat: what the adversary is told.
        place: a part of the place that a refusal names; "" where nothing is planted, or it stays behind.
        left: a part of the place that stays behind; "" for none.
    """

    batch: Batch
    model: nn.Module
    loss: Any = "cross_entropy"
    mode: str = "eval"
    release: Release = field(default_factory=lambda: Release(FedSGD()))
    threat: HonestButCurious = field(default_factory=HonestButCurious)
    place: str = ""
    left: str = ""

    def objective(self) -> Objective:
        """The client's loss."""
        return Objective.from_module(self.model, loss=self.loss, mode=self.mode)


class Net(nn.Module):
    """A small network that keeps something, and may read it."""

    def __init__(self, kept: Any = None, *, reads: bool = True) -> None:
        super().__init__()
        self.body = seeded(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 10)))
        self.reads = reads
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        if self.reads:
            _ = self.kept
        return self.body(x)


class Box:
    """An object with an attribute."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Slotted:
    """An object with a slot, whose other attributes cannot be asked for."""

    __slots__ = ("inside",)

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"nobody may ask for {name}")


@dataclass(frozen=True, kw_only=True)
class Remembering(UpdateDefense):
    """A defense that keeps what it is given, in a field or beside its fields."""

    guarantee = GaussianNoise.guarantee
    seen: list = field(default_factory=list)  # type: ignore[type-arg]

    def mean(self, update: Any) -> Any:
        return dict(update)

    def noise(self, shapes: Any) -> None:
        return None

    def draw(self, update: Any, generator: torch.Generator) -> Any:
        return dict(update)


@dataclass(frozen=True, kw_only=True)
class RememberingProtocol(Protocol):
    """FedSGD that keeps its last batch, in a list that is a field."""

    kind = FedSGD.kind
    shares_gradient = True
    seen: list = field(default_factory=list)  # type: ignore[type-arg]

    def mean(self, objective: Objective, params: Any, batch: Batch, defenses: Sequence[Any] = ()) -> Any:
        self.seen[:] = [batch]
        return FedSGD().mean(objective, params, batch, defenses)


def seeded(make: Callable[[], Any]) -> Any:
    """What `make` makes, with weights of a fixed seed; the global generator is as before."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        return make()


# Clean set-ups.


def plain(*layers: Callable[[], nn.Module], **rest: Any) -> Callable[[], Setup]:
    """A set-up of layers behind a convolution."""

    def make() -> Setup:
        model = seeded(
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), *(layer() for layer in layers), nn.Flatten(), nn.Linear(16, 10))
        )
        return Setup(canary_batch(), model, **{name: one() if callable(one) else one for name, one in rest.items()})

    return make


class Tied(nn.Module):
    """A network in which two layers share a weight and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(48, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        self.second.weight = self.first.weight
        shift = torch.linspace(-1, 1, 48).square()
        self.register_buffer("shift", shift)
        self.head.register_buffer("shift", shift)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.second(torch.tanh(self.first(x.flatten(1) + self.shift))))
        return self.head(h - self.head.shift)


class Recurrent(nn.Module):
    """A recurrent network over rows of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(12, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x.reshape(len(x), 4, 12))[0][:, -1])


class Attentive(nn.Module):
    """A transformer layer over rows of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(12, 2, 8, dropout=0.0, batch_first=True), nn.Linear(12, 10)
        self.register_buffer("mask", torch.ones(4, 4).tril().log())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.reshape(len(x), 4, 12), src_mask=self.mask).mean(dim=1))


class Storing(Net):
    """A network that keeps its last batch and hidden features, as many do for plots."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = []
        self.seen = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        self.steps.append(x.mean())
        self.seen = self.seen + x.detach().mean(dim=(0, 2, 3))
        self.features = super().forward(x)
        return self.features


class Constants(Net):
    """A network with tables of its own that it reads, an optimizer that it does not, and a circle."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = {"mean": torch.tensor([0.4, 0.5, 0.6]), "rows": [np.array([0.2, 0.3, 0.1])]}
        self.optimizer = torch.optim.Adam(self.parameters())
        self.names = [f"class {number}" for number in range(10)]
        self.itself = Box([self])

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.tables["mean"], torch.from_numpy(self.tables["rows"][0]).float()
        return super().forward((x - mean[:, None, None]) / std[:, None, None])


def weighted_loss() -> Callable[[Tensor, Tensor], Tensor]:
    """A loss whose class weights are in its closure."""
    weight = torch.linspace(0.5, 1.5, 10).square()
    return lambda outputs, targets: F.cross_entropy(outputs, targets, weight=weight)


def prior() -> ImageGenerator:
    """A small generator of such images."""
    decoder = seeded(lambda: nn.Sequential(nn.Linear(3, 48), nn.Sigmoid(), nn.Unflatten(1, (3, 4, 4))))
    return ImageGenerator(module=decoder, latent_shape=(3,), domain=IMAGE, source="never trained")


def public() -> Batch:
    """Other images of the domain."""
    inputs = torch.rand(20, 3, 4, 4, generator=torch.Generator().manual_seed(21))
    return Batch(inputs, torch.arange(20) % 10, IMAGE)


def frozen_body() -> nn.Module:
    """A network of which only the head is trained."""
    model = Net()
    model.body[0].requires_grad_(False)
    return model


def pruned() -> nn.Module:
    """A network with a pruning mask."""
    model = Net()
    prune.l1_unstructured(model.body[3], "weight", amount=0.5)
    return model


def watched() -> nn.Module:
    """A network with a hook that keeps what goes through it."""
    model = Net()
    seen: list[Any] = []
    model.body[3].register_forward_hook(lambda part, given, found: seen.append((given, found)))
    model(canary_batch().inputs)
    return model


def sliced() -> Setup:
    """Private and public images that are slices of one tensor."""
    every = torch.rand(40, 3, 4, 4, generator=torch.Generator().manual_seed(22))
    batch = Batch(every[:EXAMPLES], canary_batch().targets, IMAGE)
    return Setup(batch, Net(), threat=HonestButCurious(public=Batch(every[EXAMPLES:], torch.arange(28) % 10, IMAGE)))


def run_before() -> Setup:
    """A network that keeps features, and ran on the batch before."""
    model = Storing()
    model(canary_batch().inputs).sum().backward()
    return Setup(canary_batch(), model, left="last")


def bottleneck() -> Setup:
    """A defense inside the model."""
    defense = VariationalBottleneck(beta=0.01)
    encoder = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh()))
    made = defense.inserted(
        encoder, lambda size: nn.Linear(size, 10), features=8, generator=torch.Generator().manual_seed(0)
    )
    assert made is not None
    return Setup(canary_batch(), made[0], loss=made[1], mode="train", release=Release(FedSGD(), [defense]))


def quantized() -> nn.Module:
    """A frozen, quantized head in front of a trained one."""
    model = Net()
    model.table = torch.quantize_per_tensor(torch.linspace(-1, 1, 7).square(), 0.01, 0, torch.qint8)
    return model


def _loss_of_arguments(outputs: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(outputs, targets, label_smoothing=smoothing)


class Losses:
    """An object whose method is a loss."""

    def __init__(self) -> None:
        self.weight = torch.linspace(0.5, 1.5, 10).square()

    def weighted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, weight=self.weight)


def of_model(make: Callable[[], nn.Module], **rest: Any) -> Callable[[], Setup]:
    """A set-up of a model and little else; what can be called is called."""
    return lambda: Setup(canary_batch(), seeded(make), **{name: one() for name, one in rest.items()})


CLEAN: dict[str, Callable[[], Setup]] = {
    "tanh": plain(nn.Tanh),
    "batch norm": plain(lambda: nn.BatchNorm2d(4), nn.Tanh),
    "batch norm in train mode": plain(lambda: nn.BatchNorm2d(4), nn.Tanh, mode="train"),
    "dropout": plain(nn.Tanh, lambda: nn.Dropout(0.5), mode="train"),
    "group norm": plain(lambda: nn.GroupNorm(2, 4), nn.ReLU),
    "tied weights and buffers": of_model(Tied),
    "recurrent": of_model(Recurrent),
    "transformer": of_model(Attentive),
    "spectral norm": plain(lambda: spectral_norm(nn.Conv2d(4, 4, 1))),
    "parametrized spectral norm": plain(lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))),
    "parametrized weight norm": plain(lambda: parametrizations.weight_norm(nn.Conv2d(4, 4, 1))),
    "pruned": of_model(pruned),
    "frozen body": of_model(frozen_body),
    "data parallel": of_model(lambda: nn.DataParallel(Net())),
    "quantized table": of_model(quantized),
    "hook that keeps activations": of_model(watched),
    "tables, an optimizer and a circle": of_model(Constants),
    "features of the last batch": run_before,
    "loss with a closure": of_model(Net, loss=weighted_loss),
    "loss module with weights": of_model(Net, loss=lambda: nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, 10))),
    "partial loss": of_model(Net, loss=lambda: functools.partial(_loss_of_arguments, smoothing=0.1)),
    "bound loss": of_model(Net, loss=lambda: Losses().weighted),
    "FedAvg": of_model(Net, release=lambda: Release(FedAvg(learning_rate=0.1, epochs=2, batch_size=4))),
    "LocalAdam": of_model(Net, release=lambda: Release(LocalAdam(learning_rate=0.01))),
    "secure aggregation": of_model(Net, release=lambda: Release(SecureAggregation(protocol=FedSGD(), examples=[6, 6]))),
    "defenses": of_model(
        Net, release=lambda: Release(FedSGD(), [Clip(max_norm=1.0), GaussianNoise(std=1e-3), Prune(ratio=0.5)])
    ),
    "DP-SGD": of_model(
        Net, release=lambda: Release(FedSGD(), [DPSGD(clip_norm=1.0, noise_std=0.1, noise="per_example")])
    ),
    "bottleneck": bottleneck,
    "public data": of_model(Net, threat=lambda: HonestButCurious(public=public())),
    "public data of the same tensor": sliced,
    "generator": of_model(Net, threat=lambda: HonestButCurious(generator=prior())),
    "statistics": plain(lambda: nn.BatchNorm2d(4), mode="train", threat=lambda: HonestButCurious(statistics=True)),
    "nothing told": of_model(Net, threat=lambda: HonestButCurious(batch_size=False, domain=False, defenses=False)),
    "state of a defense beside its fields": lambda: beside_the_fields(),
    "what no evaluation reads": lambda: Setup(
        canary_batch(), Net({"batch": canary_batch(), "more": [canary_batch().inputs]}, reads=False), left="kept"
    ),
    "a buffer that no evaluation reads": lambda: unread_buffer(),
    "what a loss keeps and does not read": lambda: Setup(
        canary_batch(), Net(), loss=LossModule(canary_batch().targets, reads=False), left="loss.kept"
    ),
    "hook of a loss that keeps its arguments": lambda: hooked_loss(),
}


def beside_the_fields() -> Setup:
    """A defense with the last batch in an attribute that is none of its fields."""
    defense = Remembering()
    object.__setattr__(defense, "last", canary_batch())
    return Setup(canary_batch(), Net(), release=Release(FedSGD(), [defense]), left="defense")


def hooked_loss() -> Setup:
    """A loss with a hook that keeps what goes into it."""
    loss = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, 10))
    seen: list[Any] = []
    loss.register_forward_hook(lambda part, given, found: seen.append(given))
    loss(torch.zeros(EXAMPLES, 10), canary_batch().targets)
    return Setup(canary_batch(), Net(), loss=loss)


def unread_buffer() -> Setup:
    """A buffer with the batch in it."""
    model = Net()
    model.register_buffer("last", canary_batch().inputs)
    return Setup(canary_batch(), model, left="last")


# Planted set-ups: forms of the data, all in an attribute that is read ...


def _normalized(batch: Batch) -> Tensor:
    return (batch.inputs - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / torch.tensor([0.2, 0.3, 0.1])[:, None, None]


def _order(size: int) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(1))


FORMS: dict[str, Callable[[Batch], Any]] = {
    "itself": lambda batch: batch,
    "copy": lambda batch: batch.inputs.clone(),
    "one example": lambda batch: batch.inputs[5].clone(),
    "one channel": lambda batch: batch.inputs[5, 1].clone(),
    "view": lambda batch: batch.inputs[2:5, :, 1:3],
    "crop": lambda batch: batch.inputs[2:5, :, 1:3].clone(),
    "normalized": _normalized,
    "normalized by feature": lambda batch: (batch.inputs - batch.inputs.mean(dim=0)) / batch.inputs.std(dim=0),
    "negative": lambda batch: 1 - batch.inputs,
    "permuted": lambda batch: batch.inputs[_order(EXAMPLES)],
    "permuted pixels": lambda batch: batch.inputs.flatten(1)[:, _order(48)],
    "flipped": lambda batch: _normalized(batch).flip(3),
    "channels last": lambda batch: _normalized(batch).permute(0, 2, 3, 1).contiguous(),
    "transposed": lambda batch: batch.inputs.flatten(1).T.contiguous(),
    "half precision": lambda batch: batch.inputs.half(),
    "bfloat16": lambda batch: batch.inputs.bfloat16(),
    "double precision": lambda batch: batch.inputs.double(),
    "8 bits": lambda batch: (batch.inputs * 255).round().to(torch.uint8),
    "among others": lambda batch: torch.cat([torch.rand(5, generator=torch.Generator()), batch.inputs[3].flatten()]),
    "array": lambda batch: batch.inputs.numpy().copy(),
    "lists": lambda batch: batch.inputs[7].tolist(),
    "array of objects": lambda batch: np.array([batch.inputs[0].numpy().copy(), None], dtype=object),
    "bytes": lambda batch: batch.inputs[4].numpy().tobytes(),
    "storage": lambda batch: batch.inputs.clone().untyped_storage(),
    "storage of the batch": lambda batch: batch.inputs.untyped_storage(),
    "labels": lambda batch: batch.targets.clone(),
    "some labels, shared": lambda batch: batch.targets[:2],
    "labels as a list": lambda batch: batch.targets.tolist(),
    "labels in double precision": lambda batch: batch.targets.double().numpy(),
    "labels among others": lambda batch: [7, 7, *batch.targets.tolist(), 0],
    "labels by index": lambda batch: dict(enumerate(batch.targets.tolist())),
    "one-hot labels": lambda batch: F.one_hot(batch.targets, 10),
    "one-hot labels, transposed": lambda batch: F.one_hot(batch.targets, 10).T.float().contiguous(),
}

# ... and places of the data.

HIDDEN: list[Any] = []


class Unseen(Net):
    """A network whose class and code hold data."""

    shelf: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.looked_up(super().forward(x))

    def looked_up(self, x: Tensor) -> Tensor:
        return x + 0 * len(HIDDEN)


def _loss(held: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def keeping(outputs: Tensor, targets: Tensor) -> Tensor:
        _ = held
        return F.cross_entropy(outputs, targets)

    return keeping


def _defaulted(held: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(outputs: Tensor, targets: Tensor, kept: Any = held) -> Tensor:
        return F.cross_entropy(outputs, targets)

    return loss


def _planted(place: str, kept: Callable[[Batch], Any]) -> Callable[[], Setup]:
    def make() -> Setup:
        batch = canary_batch()
        return Setup(batch, Net(kept(batch)), place=place)

    return make


def _of_loss(place: str, loss: Callable[[Batch], Any]) -> Callable[[], Setup]:
    def make() -> Setup:
        batch = canary_batch()
        return Setup(batch, Net(), loss=loss(batch), place=place)

    return make


def _in_parameter(*, trained: bool, name: str = "table") -> Callable[[], Setup]:
    def make() -> Setup:
        batch, model = canary_batch(), Net()
        model.register_parameter(name, nn.Parameter(batch.inputs.clone(), requires_grad=trained))
        return Setup(batch, model, place=f"model.{name}")

    return make


def _in_buffer() -> Setup:
    batch, model = canary_batch(), Net()
    del model.kept
    model.register_buffer("kept", batch.inputs.clone())
    return Setup(batch, model, place="model.kept")


def _deep() -> Setup:
    batch, model = canary_batch(), Net()
    model.body[1].register_module("inner", Net(Box([({"rows": (None, batch.inputs[1].clone())},)])))
    model.body[1].forward = types.MethodType(
        lambda part, x: torch.tanh(x) + 0 * part.inner.kept.inside[0][0]["rows"][1].sum(), model.body[1]
    )
    return Setup(batch, model, place="model.body.1.inner.kept.inside[0][0]['rows'][1]")


def _in_class() -> Setup:
    batch = canary_batch()
    kind = type("Unseen", (Unseen,), {"shelf": {"last": batch.inputs.clone()}, "__module__": __name__})
    return Setup(batch, kind(), place="shelf['last']")


def _in_global() -> Setup:
    batch = canary_batch()
    HIDDEN[:] = [batch.inputs.clone()]
    return Setup(batch, Unseen(), place="(global: HIDDEN)[0]")


def _method() -> Any:
    class Recording:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.seen[:] = [targets]
            return F.cross_entropy(outputs, targets)

    return Recording()


def _cached(batch: Batch) -> Any:
    @functools.lru_cache
    def table() -> Tensor:
        return batch.inputs.clone()

    table()
    return table


class LossModule(nn.Module):
    """A loss that keeps something, and reads it or does not."""

    def __init__(self, kept: Any, *, reads: bool) -> None:
        super().__init__()
        self.kept, self.reads = kept, reads

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.reads:
            _ = self.kept
        return F.cross_entropy(outputs, targets)


def _of_release(place: str, release: Callable[[Batch], Release], **rest: Any) -> Callable[[], Setup]:
    def make() -> Setup:
        batch = canary_batch()
        return Setup(batch, Net(), release=release(batch), place=place, **rest)

    return make


def _of_threat(place: str, threat: Callable[[Batch], HonestButCurious]) -> Callable[[], Setup]:
    def make() -> Setup:
        batch = canary_batch()
        return Setup(batch, Net(), threat=threat(batch), place=place)

    return make


def _generator(batch: Batch) -> HonestButCurious:
    made = prior()
    made.module.register_buffer("seen", _normalized(batch))
    return HonestButCurious(generator=made)


def _public(batch: Batch) -> HonestButCurious:
    other = public()
    return HonestButCurious(public=Batch(torch.cat([other.inputs, batch.inputs.flip(3)]), torch.arange(32) % 10, IMAGE))


def _own_domain() -> Setup:
    inputs = torch.rand(1, 9, generator=torch.Generator().manual_seed(4))
    domain = Domain(shape=(9,), mean=tuple(inputs[0].tolist()), kind="tabular", low=-1.0)
    model = seeded(lambda: nn.Linear(9, 10))
    return Setup(Batch(inputs, torch.tensor([2]), domain), model, place="domain.mean")


class Weak:
    """What can be referred to weakly."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside


_ALIVE: list[Weak] = []


def _weak(batch: Batch) -> Any:
    _ALIVE[:] = [Weak(batch.inputs.clone())]
    return weakref.ref(_ALIVE[0])


PLANTED: dict[str, Callable[[], Setup]] = {
    **{f"form: {name}": _planted("model.kept", form) for name, form in FORMS.items()},
    "buffer": _in_buffer,
    "frozen parameter": _in_parameter(trained=False),
    "trained parameter": _in_parameter(trained=True),
    "dict": _planted("model.kept['rows']", lambda batch: {"rows": batch.inputs.clone()}),
    "nested tuple": _planted("model.kept[1][0][0]", lambda batch: (1, ((batch.inputs[0].clone(), 2),))),
    "attribute of an object": _planted("model.kept.inside", lambda batch: Box(batch.inputs.clone())),
    "slot": _planted("model.kept.inside", lambda batch: Slotted(batch.inputs.clone())),
    "keys": _planted("model.kept.keys()", lambda batch: {tuple(batch.targets.tolist()): 1}),
    "deque": _planted("model.kept", lambda batch: collections.deque([batch.inputs.clone()])),
    "deep inside": _deep,
    "function of the model": _planted("closure: batch", lambda batch: lambda: batch.inputs),
    "cached function": _planted("model.kept", _cached),
    "weak reference": _planted("model.kept()", _weak),
    "class": _in_class,
    "global variable": _in_global,
    "closure of the loss": _of_loss("loss (closure: held)", lambda batch: _loss(batch.targets.clone())),
    "default of the loss": _of_loss("loss (defaults)", lambda batch: _defaulted(batch.targets.clone())),
    "argument of a partial loss": _of_loss(
        "loss.keywords",
        lambda batch: functools.partial(lambda o, t, kept: F.cross_entropy(o, t), kept=batch.inputs[0].clone()),
    ),
    "loss that keeps its targets": _of_loss("loss.seen[0]", lambda batch: _method()),
    "attribute of a loss module": _of_loss("loss.kept", lambda batch: LossModule(batch.targets.clone(), reads=True)),
    "field of a defense": _of_release(
        "defenses[0].seen[0]", lambda batch: Release(FedSGD(), [Remembering(seen=[batch.inputs[0].clone()])])
    ),
    "protocol that keeps its batch": _of_release("protocol.seen[0]", lambda batch: Release(RememberingProtocol())),
    "generator": _of_threat("generator.module.seen", _generator),
    "public data": _of_threat("public.inputs", _public),
    "domain": _own_domain,
}
