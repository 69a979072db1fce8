"""An adversarial example of the update, against a classifier of the sensitive variable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradleak.core import Batch, BatchDefense, Bounds, Guarantee, Noise, Objective, Release
from gradleak.results import (
    LI_2024,
    MADRY_2018,
    Citation,
    Count,
    Hint,
    InputError,
    Natural,
    NonNegative,
    Positive,
    UnsupportedError,
)


@dataclass(frozen=True, kw_only=True)
class AdversarialPerturbation(BatchDefense):
    """The update moved by at most γ an entry so that a classifier of the sensitive variable errs: ℓ∞-bounded PGD.

    p₀ = 0, p_{t+1} = clamp(p_t + α sign(∇L(φ, g + p_t, a)), −γ, γ), released is g + p_T: up the loss of the true value a
    of the batch, or, with `target`, down the loss of that value (for user inference: to be taken for another user).

    The value comes with the batch (`Batch.sensitive`, class indices); where its examples differ, a is their shares. The
    classifier reads the flat update, in the order of its tensors; `train_sensitive_classifier` makes one from public
    rows at the current parameters, so that every round needs a new one.

    p is constant almost everywhere in g, so that A stays and closed-form measures see no difference; it is
    deterministic, and an adversary who trains on updates perturbed likewise reads more from it than from plain ones
    (Li et al. find an advantage of 1). It gives no formal guarantee.

    **Cost**: T gradients of the classifier.

    **Source**: Li et al. 2024, section 6.1 (3) and appendix A.2 (defaults: 5 steps, γ = 0.005, α = 0.002; others there:
    γ = 5e-4 with α = 2e-4, γ = 1e-3 with α = 3e-4). Deviation: the gradient is taken at the moved update, as PGD does,
    where the paper writes the unmoved one; shares for mixed batches are ours.

    Attributes:
        classifier: maps flat updates (n, P) to logits (n, values); moved to eval mode and never trained here.
        target: the value that the update is to be taken for, or None for any but the true one.
        gamma: γ, the largest change of an entry, at least 0.
        alpha: α, the step, positive.
        steps: T, at least 1.

    Raises:
        InputError: for a number out of range, or a classifier that is no module.
        UnsupportedError: at the release, for a batch without its sensitive variable.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, MADRY_2018)
    needs_sensitive: ClassVar[bool] = True

    classifier: Annotated[nn.Module, Hint("train_sensitive_classifier makes one")]
    target: Natural | None = None
    gamma: NonNegative = 0.005
    alpha: Positive = 0.002
    steps: Count = 5

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The perturbed update; the perturbation is a constant for derivatives.

        Raises:
            UnsupportedError: for a batch without its sensitive variable.
            InputError: for values that the classifier does not have.
        """
        flat = torch.cat([tensor.reshape(-1) for tensor in update.values()])
        moved = flat + self._perturbation(flat.detach(), batch)
        pieces = moved.split([tensor.numel() for tensor in update.values()])
        return {name: piece.reshape(tensor.shape) for (name, tensor), piece in zip(update.items(), pieces, strict=True)}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        """None: the perturbation is determined by update and sensitive variable."""
        return None

    def draw(
        self,
        update: Mapping[str, Tensor],
        *,
        objective: Objective,
        batch: Batch,
        before: Release,
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """The perturbed update."""
        return self.mean(update, batch)

    def before(self, after: Bounds) -> Bounds:
        """Within γ of what came out; no sensitive variable is needed for that."""
        return after.widened(dict.fromkeys(after.lower, float(self.gamma)))

    def many(self, flat: Tensor, sensitive: Tensor | None) -> Tensor:
        """Updates (n, P) with each one perturbed, all at once: what `mean` gives one by one.

        Args:
            flat: updates, in the order of their tensors.
            sensitive: the sensitive variable of every example of their batches, (n, k), or None with a `target`.

        Raises:
            UnsupportedError: without the sensitive variable where it is needed.
            InputError: for values that the classifier does not have.
        """
        return flat + self._perturbations(flat.detach(), sensitive)

    @property
    def leaves_truth(self) -> bool:
        """True if there is no target."""
        return self.target is None

    def _perturbation(self, flat: Tensor, batch: Batch) -> Tensor:
        sensitive = None if batch.sensitive is None else batch.sensitive.reshape(batch.size, -1)[:, 0][None]
        return self._perturbations(flat[None], sensitive)[0]

    def _perturbations(self, flat: Tensor, sensitive: Tensor | None) -> Tensor:
        parameters = {name: p.detach() for name, p in self.classifier.state_dict().items()}
        dtype = next((p.dtype for p in parameters.values() if p.is_floating_point()), flat.dtype)
        points = flat.to(dtype)

        def logits(moved: Tensor) -> Tensor:
            found: Tensor = torch.func.functional_call(self.classifier, parameters, (moved[None],))
            return found

        def loss(moved: Tensor, shares: Tensor) -> Tensor:
            return F.cross_entropy(logits(moved), shares[None])

        shares, way = self._shares(len(flat), sensitive, logits(points[0]).shape[-1])
        shares = shares.to(points)
        change = torch.zeros_like(points)
        slope_of = torch.func.grad(loss)
        if len(flat) > 1:
            slope_of = torch.func.vmap(slope_of, randomness="same")
        for _ in range(self.steps):
            moved = points + change
            slope = slope_of(moved, shares) if len(flat) > 1 else slope_of(moved[0], shares[0])[None]
            change = (change + way * self.alpha * slope.sign()).clamp(-self.gamma, self.gamma)
        return change.detach().to(flat.dtype)

    def _shares(self, count: int, sensitive: Tensor | None, classes: int) -> tuple[Tensor, int]:
        """The value of each update whose loss is climbed (1) or descended (−1), as shares over the classes."""
        if self.target is not None:
            if not 0 <= self.target < classes:
                raise InputError(
                    f"AdversarialPerturbation.target: expected a value from 0 to {classes - 1}, got {self.target}"
                )
            return F.one_hot(torch.tensor(self.target), classes).double().expand(count, classes), -1
        if sensitive is None:
            raise UnsupportedError(
                "AdversarialPerturbation: expected a batch with its sensitive variable, got none; pass "
                "Batch(..., sensitive=...), or a target"
            )
        values = sensitive.long()
        if int(values.min()) < 0 or int(values.max()) >= classes:
            raise InputError(
                f"Batch.sensitive: expected values from 0 to {classes - 1}, which the classifier knows, got "
                f"{int(values.min())} to {int(values.max())}"
            )
        return F.one_hot(values, classes).double().mean(dim=1), 1


class SensitiveClassifier(nn.Module):
    """Logits of the sensitive variable from flat updates: standardized entries through one hidden layer.

    Args:
        mean: of every entry over the updates it is trained on, (P,).
        std: likewise, (P,), positive.
        hidden: units of the hidden layer.
        classes: values of the sensitive variable.
        generator: of the first weights.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, *, hidden: int, classes: int, generator: torch.Generator) -> None:
        """Weights drawn from the generator, uniform within ±1/√inputs, as torch does it."""
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.first = nn.utils.skip_init(nn.Linear, mean.numel(), hidden)
        self.last = nn.utils.skip_init(nn.Linear, hidden, classes)
        for layer in (self.first, self.last):
            reach = layer.in_features**-0.5
            for parameter in layer.parameters():
                drawn = torch.rand(parameter.shape, generator=generator, device=generator.device)
                parameter.data.copy_((2 * drawn - 1) * reach)

    def forward(self, flat: Tensor) -> Tensor:
        """Logits (n, classes) of updates (n, P)."""
        hidden = F.relu(self.first((flat - self.mean) / self.std))
        logits: Tensor = self.last(hidden)
        return logits


def train_sensitive_classifier(
    objective: Objective,
    release: Release,
    public: Batch,
    *,
    batch_size: int,
    generator: torch.Generator,
    updates: int = 256,
    hidden: int = 64,
    epochs: int = 20,
    learning_rate: float = 1e-3,
) -> SensitiveClassifier:
    """A classifier of the sensitive variable from updates, trained on releases of public rows at these parameters.

    Half-way through a training it no longer fits: the defense trains one at every round. Each update is that of a batch
    of rows which share one value, drawn evenly over the values that public rows have; Adam on the cross entropy, in
    mini-batches of 32.

    Args:
        objective: the client's loss at the parameters of the round.
        release: protocol and defenses before the perturbation.
        public: rows with their `sensitive` variable (class indices), none of them private.
        batch_size: how many rows make an update, as the client has it.
        generator: the only source of randomness.
        updates: how many updates are made.
        hidden: units of the hidden layer.
        epochs: passes over the updates.
        learning_rate: of Adam.

    Raises:
        InputError: for rows without a sensitive variable, or with one value only.

    **Cost**: `updates` releases, and the training of P · hidden weights.

    **Source**: Li et al. 2024, section 6.1 (3), which names a neural network and no more; size and training are ours.
    """
    if public.sensitive is None:
        raise InputError("train_sensitive_classifier: expected public rows with their sensitive variable, got none")
    values = public.sensitive.reshape(public.size, -1)[:, 0].long()
    rows = [(values == value).nonzero().flatten() for value in range(int(values.max()) + 1)]
    held = [value for value, places in enumerate(rows) if len(places)]
    if len(held) < 2:
        raise InputError("train_sensitive_classifier: expected at least two values of the sensitive variable, got one")
    flats, labels = [], []
    for number in range(updates):
        value = held[number % len(held)]
        drawn = torch.randint(len(rows[value]), (batch_size,), generator=generator, device=generator.device)
        places = rows[value][drawn.to(rows[value].device)]
        batch = Batch(public.inputs[places], public.targets[places], public.domain, values[places])
        flats.append(objective.flatten(release(objective, batch, generator).tensors).float())
        labels.append(value)
    features, targets = torch.stack(flats), torch.tensor(labels, device=flats[0].device)
    std = features.std(dim=0)
    # A dead entry says nothing; a standard deviation of 1 leaves it at zero.
    model = SensitiveClassifier(
        features.mean(dim=0), torch.where(std > 0, std, 1.0), hidden=hidden, classes=len(rows), generator=generator
    ).to(features.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(epochs):
        order = torch.randperm(updates, generator=generator, device=generator.device).to(features.device)
        for places in order.split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(features[places]), targets[places])
            loss.backward()
            optimizer.step()
    return model.eval().requires_grad_(False)
