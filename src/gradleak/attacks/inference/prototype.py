"""Prototypes of users that were never seen before: an embedding, and distances in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from gradleak.attacks.inference.classifier import Floats, Labels, Rows, checked_features, checked_labels, normalized
from gradleak.core import derive_generator, one_thread
from gradleak.results import (
    LI_2024,
    SNELL_2017,
    Citation,
    Count,
    InputError,
    NonNegative,
    Positive,
    Settings,
    check_seed,
)

# Rows that are scaled at once, in float64.
BLOCK = 256


@final
class FittedEncoder:
    """An encoder after its training; the head that named shadow users is gone.

    Attributes:
        width: f, features of an update.
        embedding: e, numbers of an embedding.
        users: how many shadow users it was trained to tell apart.
        training_accuracy: the share of shadow updates whose user the head named at the end; near 1/users nothing was
            learned, and near 1 it says nothing of users not seen.
        notes: what the reader of a result should know.
    """

    def __init__(
        self, *, encoder: nn.Module, standard: _Standard, users: int, embedding: int, training_accuracy: float
    ) -> None:
        """The trained network, and what it is given."""
        self.width, self.embedding, self.users = standard.width, embedding, users
        self.training_accuracy = training_accuracy
        nothing = "no feature differs between shadow updates: every embedding is the same"
        self.notes = () if standard.kept.size else (nothing,)
        self._encoder, self._standard = encoder, standard

    def embed(self, features: Rows) -> Floats:
        """Embeddings (n, e) of the features (n, f) of updates.

        Raises:
            InputError: for features of another width, or not finite.
        """
        rows = self._standard(checked_features(features, self.width))
        with torch.no_grad(), one_thread():
            found: Floats = self._encoder(torch.from_numpy(rows)).double().numpy()
        return found


@dataclass(frozen=True, kw_only=True)
class PrototypeEncoder(Settings):
    """f_ω, trained to tell shadow users apart by a head that is discarded: e numbers in which a user's updates are near.

    The network is features → Linear(f, hidden) → ReLU → Linear(hidden, e) as the encoder f_ω, then Linear(e, users) as
    the head u. "One hidden layer" is read as the one between features and embedding; the other reading, in which the
    embedding is the hidden layer of the whole network f_ω and u, would make it `hidden` numbers wide and without signs.
    Features are moved and scaled to mean 0 and variance 1 over shadow updates first; those that do not vary are left out.
    The loss is the cross entropy of the head, by Adam, in shuffled batches. With few shadow users the encoder learns what
    tells those apart, which need not be what tells others apart.

    **Cost**: epochs · n · (f·hidden + hidden·e) · 6, and 4·n·f bytes.

    **Source**: Li et al. 2024, sections 4.1 and 5.1.3 (embedding of 50 for CREMA-D, 100 for CelebA); prototypes from
    Snell et al. 2017, who train by episodes instead. Hidden units, optimizer and epochs are not said; they are ours.

    Attributes:
        embedding: e.
        hidden: units of the hidden layer.
        epochs: passes over the shadow updates.
        learning_rate: of Adam.
        batch_size: shadow updates a step.
        weight_decay: decoupled, of AdamW.

    Raises:
        InputError: for a number out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, SNELL_2017)

    embedding: Count = 50
    hidden: Count = 100
    epochs: Count = 50
    learning_rate: Positive = 1e-3
    batch_size: Count = 64
    weight_decay: NonNegative = 1e-4

    def fit(self, features: Rows, users: NDArray[np.integer], seed: int) -> FittedEncoder:
        """The encoder of one round. The same seed gives the same one; one thread is used.

        Args:
            features: (n, f) of shadow updates, finite.
            users: (n,) whose batch each was, any whole numbers; at least two users. None of them may be a user that is
                to be recognized later: of those, only candidate batches are known.
            seed: of first weights and order.

        Raises:
            InputError: for sizes that do not fit, fewer than two users, features that are not finite, or training that
                does not stay finite.
        """
        check_seed("seed", seed)
        rows = checked_features(features, None)
        owners = checked_labels(users, rows)
        names, places = np.unique(owners, return_inverse=True)
        if names.size < 2:
            raise InputError(f"users: expected updates of at least two shadow users, got {names.size}")
        standard = _Standard.of(rows)
        inputs, targets = torch.from_numpy(standard(rows)), torch.from_numpy(places.astype(np.int64))
        generator = derive_generator(seed, "prototype encoder")
        first = _linear(inputs.shape[1], self.hidden, generator)
        encoder = nn.Sequential(first, nn.ReLU(), _linear(self.hidden, self.embedding, generator))
        head = _linear(self.embedding, int(names.size), generator)
        with one_thread():
            self._train(nn.Sequential(encoder, head), inputs, targets, generator)
            with torch.no_grad():
                answers = head(encoder(inputs))
        if not bool(torch.isfinite(answers).all()):
            raise InputError(
                f"PrototypeEncoder: training did not stay finite; expected a learning_rate below {self.learning_rate}"
            )
        encoder.requires_grad_(False)
        return FittedEncoder(
            encoder=encoder,
            standard=standard,
            users=int(names.size),
            embedding=self.embedding,
            training_accuracy=float((answers.argmax(dim=1) == targets).double().mean()),
        )

    def _train(self, network: nn.Module, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> None:
        parameters = list(network.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
        # One place for the rows of every step: a fresh one each time costs as much as a product.
        room = torch.empty(min(self.batch_size, inputs.shape[0]), inputs.shape[1])
        for _ in range(self.epochs):
            for places in torch.randperm(inputs.shape[0], generator=generator).split(self.batch_size):
                rows = torch.index_select(inputs, 0, places, out=room[: len(places)])
                loss = F.cross_entropy(network(rows), targets[places])
                for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    parameter.grad = gradient
                optimizer.step()


def distance_log_posterior(candidates: Rows, observed: Rows) -> Floats:
    """The log-posterior of every candidate, (n, m), normalized: −‖f(g_i) − f(g̃)‖₂ less the logarithm of the sum.

    Under a uniform prior over the m candidates. A distance has no unit in which a softmax is calibrated: rankings mean
    something, probabilities depend on the scale that the encoder came by.

    Args:
        candidates: (n, m, e), embeddings of the candidates' updates at the parameters of the round, by trial.
        observed: (n, e), embeddings of the observed updates.

    Raises:
        InputError: for other shapes, fewer than two candidates, or numbers that are not finite.

    **Cost**: n·m·e.

    **Source**: Li et al. 2024, section 4.1, the last equation on user inference: the distance, not its square as in Snell
    et al. 2017.

    Examples:
        >>> logs = distance_log_posterior(np.array([[[0.0, 0.0], [3.0, 4.0]]]), np.array([[0.0, 0.0]]))
        >>> bool(np.isclose(logs[0, 0] - logs[0, 1], 5.0))
        True
    """
    among, seen = np.asarray(candidates, dtype=np.float64), np.asarray(observed, dtype=np.float64)
    if among.ndim != 3 or among.shape[1] < 2 or seen.shape != (among.shape[0], among.shape[2]):
        raise InputError(
            f"distance_log_posterior: expected candidates (n, m, e), m at least 2, and observed (n, e), got {among.shape} "
            f"and {seen.shape}"
        )
    if not np.isfinite(among).all() or not np.isfinite(seen).all():
        raise InputError("distance_log_posterior: expected finite embeddings")
    return normalized(-np.linalg.norm(among - seen[:, None, :], axis=2))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Standard:
    """Moves and scales features to mean 0 and variance 1, as over the rows it was made of; float32."""

    width: int
    kept: Labels
    shift: Floats
    scale: Floats

    @classmethod
    def of(cls, rows: Rows) -> _Standard:
        mean, std = rows.mean(axis=0, dtype=np.float64), rows.std(axis=0, dtype=np.float64)
        kept = np.flatnonzero((rows != rows[0]).any(axis=0) & (std > 0))
        return cls(width=rows.shape[1], kept=kept, shift=mean[kept], scale=std[kept])

    def __call__(self, rows: Rows) -> NDArray[np.float32]:
        if not self.kept.size:
            return np.zeros((rows.shape[0], 1), dtype=np.float32)
        # Row after row in memory (a choice of columns comes column after column), which the products need to be fast.
        found = np.empty((rows.shape[0], self.kept.size), dtype=np.float32)
        for start in range(0, rows.shape[0], BLOCK):
            found[start : start + BLOCK] = (rows[start : start + BLOCK, self.kept] - self.shift) / self.scale
        return found


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Weights and biases uniform within ±1/√inputs, as torch draws them, from the generator."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, inputs, outputs)
    reach = inputs**-0.5
    for parameter in layer.parameters():
        parameter.data.copy_((2 * torch.rand(parameter.shape, generator=generator) - 1) * reach)
    return layer
