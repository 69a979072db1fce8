"""Matrix of layers and derivatives, found by trying, as a table for the documentation.

    python -m tools.support_matrix

writes `docs/reference/support-matrix.md`; a test compares the page with a fresh sweep.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.operators import GradientJacobian, check_derivative, pullback
from gradleak.operators.kernels import differentiable_kernels
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "support-matrix.md"
CLASSES = 3
TORCH = torch.__version__.split("+")[0]
# A block of more columns than this takes the block route.
_BLOCK = 6
_AGREES = 1e-10


@dataclass(frozen=True, kw_only=True)
class Case:
    """A layer between a scale for every entry and a linear classifier, or a whole small model.

    Attributes:
        name: as printed.
        build: makes the layer; its parameters are drawn anew by the sweep.
        shape: of one example of the layer's input.
        mode: "eval" or "train".
        examples: the batch size.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    mode: str = "eval"
    examples: int = 2


@dataclass(frozen=True, kw_only=True)
class Support:
    """Derivatives that one case supports.

    Attributes:
        name: of the case.
        gradient: whether the plain gradient exists.
        jvp: a JVP of the gradient.
        jvp_vmap: the same for a block under vmap.
        vjp: a VJP of the gradient (double backward).
        vjp_vmap: the same under vmap.
        route: what `GradientJacobian` takes.
        error: relative distance of its A and Aᵀ to the twin, a loop of plain autograd; None without a value.
        differences: the outcome of `check_derivative`.
    """

    name: str
    gradient: bool
    jvp: bool
    jvp_vmap: bool
    vjp: bool
    vjp_vmap: bool
    route: str
    error: float | None
    differences: str


class Last(nn.Module):
    """The output of a recurrent layer at the last step."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, f) -> (b, h)."""
        last: Tensor = self.layer(x)[0][:, -1]
        return last


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, f) -> (b, t, f)."""
        mixed: Tensor = self.layer(x, x, x, need_weights=False)[0]
        return mixed


class FusedAttention(nn.Module):
    """`F.scaled_dot_product_attention` of a sequence with itself."""

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, f) -> (b, t, f)."""
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]


class TokenEmbedding(nn.Module):
    """Tokens as floats: a distribution over the vocabulary times the embedding matrix."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.layer = nn.Embedding(words, width)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, words) -> (b, t, width)."""
        return x.softmax(-1) @ self.layer.weight


class InPlaceSkip(nn.Module):
    """`x += skip`, then an in-place ReLU, as at the end of a residual block."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        inner = x.sin()
        inner += x
        return torch.relu_(inner)


def cases() -> tuple[Case, ...]:
    """The layers of the table, in the order of its rows."""
    vector, image, series, volume, tokens = (6,), (2, 4, 4), (2, 6), (1, 3, 3, 3), (3, 4)
    activations: list[type[nn.Module]] = [
        nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish,
        nn.Mish, nn.LogSigmoid,
    ]  # fmt: skip
    return (
        Case(name="Linear", build=lambda: nn.Linear(6, 5), shape=vector),
        Case(name="Bilinear (with itself)", build=lambda: _Twice(nn.Bilinear(6, 6, 3)), shape=vector),
        Case(name="Conv1d", build=lambda: nn.Conv1d(2, 3, 3, padding=1), shape=series),
        Case(name="Conv2d", build=lambda: nn.Conv2d(2, 3, 3, padding=1), shape=image),
        Case(name="Conv2d, strided, grouped, dilated", build=lambda: nn.Conv2d(2, 4, 2, 2, 1, 2, 2), shape=image),
        Case(name="Conv3d", build=lambda: nn.Conv3d(1, 2, 2), shape=volume),
        Case(name="ConvTranspose1d", build=lambda: nn.ConvTranspose1d(2, 2, 3), shape=series),
        Case(name="ConvTranspose2d", build=lambda: nn.ConvTranspose2d(2, 2, 2), shape=image),
        Case(name="BatchNorm1d, eval", build=lambda: nn.BatchNorm1d(6), shape=vector),
        Case(name="BatchNorm1d, train", build=lambda: nn.BatchNorm1d(6), shape=vector, mode="train", examples=4),
        Case(name="BatchNorm2d, eval", build=lambda: nn.BatchNorm2d(2), shape=image),
        Case(name="BatchNorm2d, train", build=lambda: nn.BatchNorm2d(2), shape=image, mode="train"),
        Case(name="GroupNorm", build=lambda: nn.GroupNorm(2, 2), shape=image),
        Case(name="LayerNorm", build=lambda: nn.LayerNorm(6), shape=vector),
        Case(name="RMSNorm", build=lambda: nn.RMSNorm(6), shape=vector),
        Case(name="InstanceNorm2d", build=lambda: nn.InstanceNorm2d(2, affine=True), shape=image),
        Case(name="LocalResponseNorm", build=lambda: nn.LocalResponseNorm(2), shape=image),
        Case(name="Embedding (tokens as floats)", build=lambda: TokenEmbedding(4, 3), shape=tokens),
        Case(name="RNN", build=lambda: Last(nn.RNN(4, 3, batch_first=True)), shape=tokens),
        Case(name="GRU", build=lambda: Last(nn.GRU(4, 3, batch_first=True)), shape=tokens),
        Case(name="LSTM", build=lambda: Last(nn.LSTM(4, 3, batch_first=True)), shape=tokens),
        Case(name="scaled_dot_product_attention", build=FusedAttention, shape=tokens),
        Case(name="MultiheadAttention", build=lambda: SelfAttention(4, 2), shape=tokens),
        Case(
            name="TransformerEncoderLayer",
            build=lambda: nn.TransformerEncoderLayer(4, 2, 5, batch_first=True),
            shape=tokens,
        ),
        Case(
            name="TransformerEncoderLayer, train (dropout)",
            build=lambda: nn.TransformerEncoderLayer(4, 2, 5, dropout=0.3, batch_first=True),
            shape=tokens,
            mode="train",
        ),
        Case(name="AvgPool2d", build=lambda: nn.AvgPool2d(2), shape=image),
        Case(name="MaxPool2d", build=lambda: nn.MaxPool2d(2), shape=image),
        Case(name="AdaptiveAvgPool2d", build=lambda: nn.AdaptiveAvgPool2d(2), shape=image),
        Case(name="AdaptiveMaxPool2d", build=lambda: nn.AdaptiveMaxPool2d(2), shape=image),
        Case(name="LPPool2d", build=lambda: nn.LPPool2d(2, 2), shape=image),
        *(Case(name=kind.__name__, build=kind, shape=vector) for kind in activations),
        Case(name="PReLU", build=nn.PReLU, shape=vector),
        Case(name="x += skip, then ReLU in place", build=InPlaceSkip, shape=vector),
        Case(name="Softmax", build=lambda: nn.Softmax(-1), shape=vector),
        Case(name="Dropout, eval", build=lambda: nn.Dropout(0.5), shape=vector),
        Case(name="Dropout, train (fixed mask)", build=lambda: nn.Dropout(0.5), shape=vector, mode="train"),
        Case(name="Upsample, nearest", build=lambda: nn.Upsample(scale_factor=2), shape=image),
        Case(name="Upsample, bilinear", build=lambda: nn.Upsample(scale_factor=2, mode="bilinear"), shape=image),
        Case(name="PixelShuffle", build=lambda: nn.PixelShuffle(2), shape=(4, 2, 2)),
        Case(name="ReflectionPad2d", build=lambda: nn.ReflectionPad2d(1), shape=image),
        Case(name="Unfold", build=lambda: nn.Unfold(2), shape=image),
    )


def exposure_of(case: Case) -> Exposure:
    """A batch of random examples on the case's layer, in float64; the global generator is not touched."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        layer = case.build().double().eval()
        with torch.no_grad():
            width = layer(torch.zeros(2, *case.shape, dtype=torch.float64)).flatten(1).shape[1]
        # A layer before it and one behind it, so that it is differentiated twice.
        model = nn.Sequential(_Scale(case.shape), layer, nn.Flatten(), nn.Linear(width, CLASSES)).double()
    inputs = torch.randn(case.examples, *case.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.7, 0.9, generator=generator)
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0, generator=generator)
    objective = Objective.from_module(model, mode=case.mode, mask_seed=1)
    return Exposure(objective, Batch(inputs, torch.arange(case.examples) % CLASSES), Release(FedSGD()))


def jacobian_twin(exposure: Exposure) -> Tensor:
    """A (P, d) row by row: every entry of the released mean is differentiated by itself, by plain autograd."""
    inputs = exposure.inputs.clone().requires_grad_()
    rows = []
    with differentiable_kernels():
        for entry in exposure.mean(inputs):
            row = None
            if entry.requires_grad:
                row = torch.autograd.grad(entry, inputs, retain_graph=True, allow_unused=True)[0]
            rows.append(torch.zeros_like(inputs) if row is None else row)
    return torch.stack(rows)


def support_of(case: Case) -> Support:
    """Derivatives that the layer of a case supports, tried one by one."""
    exposure = exposure_of(case)
    x, mean = exposure.inputs, exposure.mean
    generator = torch.Generator().manual_seed(1)
    tangents = torch.randn(_BLOCK, x.numel(), generator=generator, dtype=x.dtype)
    cotangents = torch.randn(_BLOCK, exposure.objective.size, generator=generator, dtype=x.dtype)

    def jvp(tangent: Tensor) -> Tensor:
        out: Tensor = torch.func.jvp(mean, (x,), (tangent,))[1]
        return out

    def vmap(one: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
        out: Tensor = torch.func.vmap(one, randomness="same")(rows)
        return out

    error, route = None, "none"
    try:
        operator = GradientJacobian(exposure)
        twin = jacobian_twin(exposure)
        single = GradientJacobian(exposure).matmat(tangents[:1].T)
        pairs = (
            (operator.matmat(tangents.T), twin @ tangents.T),
            (operator.adjoint_matmat(cotangents.T), twin.T @ cotangents.T),
            (single, twin @ tangents[:1].T),
        )
        error = max(float((mine - right).norm() / right.norm().clamp_min(1e-300)) for mine, right in pairs)
        route = operator.route
    except GradleakError:
        pass
    return Support(
        name=case.name,
        gradient=_works(exposure.released_mean),
        jvp=_works(lambda: jvp(tangents[0])),
        jvp_vmap=_works(lambda: vmap(jvp, tangents[:2])),
        vjp=_works(lambda: pullback(mean, x)[1](cotangents[0])),
        vjp_vmap=_works(lambda: vmap(pullback(mean, x)[1], cotangents[:2])),
        route=route,
        error=error,
        differences=check_derivative(exposure, generator=torch.Generator().manual_seed(2)).outcome.label,
    )


def sweep() -> Iterator[Support]:
    """Derivatives that every case supports."""
    for case in cases():
        yield support_of(case)


def as_markdown(rows: list[Support]) -> str:
    """The page of the documentation."""
    lines = [
        "# Which layers support which derivatives",
        "",
        "Every closed-form measure needs the derivative A of the released gradient with respect to the input: a second",
        "derivative of the model. The table is made by trying each layer behind a scale for every entry and before a",
        f"linear classifier, with torch {TORCH} on a CPU (`python -m tools.support_matrix`). A layer that lacks one",
        "derivative gets another route with the same value; attention runs on the math backend meanwhile.",
        "",
        "- *jvp*, *vjp*: one product with A or Aᵀ by `torch.func`; *vmap*: a block of them at once.",
        "- *route*: what `GradientJacobian` takes, as in the scores.",
        "- *twin*: A and Aᵀ equal those of a loop of plain autograd over all entries of the gradient, to 1e-10.",
        "- *differences*: the outcome of `check_derivative`, which compares A v with central differences of the gradient.",
        "",
        "| layer | gradient | jvp | jvp, vmap | vjp | vjp, vmap | route | twin | differences |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(as_row, rows)]) + "\n"


def as_row(row: Support) -> str:
    """One line of the table."""
    marks = [_mark(value) for value in (row.gradient, row.jvp, row.jvp_vmap, row.vjp, row.vjp_vmap)]
    twin = "no value" if row.error is None else "equal" if row.error <= _AGREES else f"off by {row.error:.0e}"
    return f"| {row.name} | {' | '.join(marks)} | {row.route} | {twin} | {row.differences} |"


class _Scale(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class _Twice(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.layer(x, x)
        return product


def _mark(works: bool) -> str:
    return "yes" if works else "no"


def _works(attempt: Callable[[], Tensor]) -> bool:
    try:
        with differentiable_kernels(), warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*performance drop", category=UserWarning)
            return bool(torch.isfinite(attempt()).all())
    except (RuntimeError, NotImplementedError, ValueError, UserWarning):
        return False


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(as_markdown(list(sweep())), encoding="utf-8")
