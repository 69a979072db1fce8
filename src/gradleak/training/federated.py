"""Federated training, and the releases of its rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.core import (
    Adjacency,
    Batch,
    Defense,
    Objective,
    Protocol,
    Release,
    derive_generator,
    derive_seed,
    describe,
)
from gradleak.data import poisson_sample, rows_of
from gradleak.defenses import AdversarialPerturbation
from gradleak.defenses.adversarial_perturbation import train_sensitive_classifier
from gradleak.protocols import FedSGD
from gradleak.results import (
    BelowOne,
    Citation,
    Count,
    InputError,
    Natural,
    NonNegative,
    Outcome,
    Positive,
    Settings,
    Share,
    ShareOrAll,
    UnsupportedError,
)
from gradleak.training.metric import Floats, same_for_all
from gradleak.training.task import Start, Task


class ReleaseOfRound(ABC):
    """Maker of the release of a round."""

    @abstractmethod
    def at(self, objective: Objective, generator: torch.Generator) -> Release:
        """The release at these parameters.

        Args:
            objective: the loss at the parameters of the round.
            generator: the only source of randomness.
        """


AnyRelease = Release | ReleaseOfRound


@dataclass(frozen=True, kw_only=True, eq=False)
class Perturbation(Settings):
    """Perturbation of updates, and the classifier that they are perturbed against.

    Attributes:
        protocol: what the client computes.
        before: defenses before the perturbation.
        target: the value that an update is to be taken for, one that public rows have, or None for any but the true one.
        gamma: γ, the largest change of an entry.
        alpha: α, the step.
        steps: of the perturbation.
        updates: how many updates the classifier is trained on.
        hidden: units of its hidden layer.
        epochs: its passes over the updates.

    Raises:
        InputError: for a number out of range.
    """

    citations: ClassVar[tuple[Citation, ...]] = AdversarialPerturbation.citations

    protocol: Protocol = field(default_factory=FedSGD)
    before: Sequence[Defense] = ()
    target: Natural | None = None
    gamma: NonNegative = 0.005
    alpha: Positive = 0.002
    steps: Count = 5
    updates: Count = 64
    hidden: Count = 32
    epochs: Count = 10

    @property
    def perturbation(self) -> dict[str, Any]:
        """The numbers of `Perturbation`, by name."""
        return {entry.name: getattr(self, entry.name) for entry in fields(Perturbation)}


@dataclass(frozen=True, kw_only=True, eq=False)
class PerturbedRounds(Perturbation, ReleaseOfRound):
    """Adversarial perturbation against a classifier of the sensitive variable that is trained at every round.

    Half-way through a training a classifier of its start no longer fits. Every round one is trained on releases of public
    rows at the parameters of that round, through the defenses before the perturbation.

    **Cost**: a round costs `updates` releases and the training of the classifier more.

    **Source**: Li et al. 2024, section 6.1 (3).

    Attributes:
        public: rows with their sensitive variable, none of them private.
        batch_size: how many rows make an update, as the client has it.

    Raises:
        InputError: for a number out of range, or a target that no public row has.
    """

    public: Batch = field(repr=False)
    batch_size: Count

    def __post_init__(self) -> None:
        """Check the sizes, and that the classifier will know the target."""
        super().__post_init__()
        if self.target is None:
            return
        if self.public.sensitive is None:
            raise InputError("PerturbedRounds.public: expected rows with their sensitive variable, got none")
        values = self.public.sensitive.unique()
        if not bool((values == self.target).any()):
            raise InputError(
                f"PerturbedRounds.target: expected one of the {len(values)} values of the public rows, {int(values.min())} to "
                f"{int(values.max())}, got {self.target}"
            )

    def at(self, objective: Objective, generator: torch.Generator) -> Release:
        """The release with a classifier that was trained at these parameters."""
        classifier = train_sensitive_classifier(
            objective,
            Release(self.protocol, self.before),
            self.public,
            batch_size=self.batch_size,
            generator=generator,
            updates=self.updates,
            hidden=self.hidden,
            epochs=self.epochs,
        )
        perturbation = AdversarialPerturbation(
            classifier=classifier, target=self.target, gamma=self.gamma, alpha=self.alpha, steps=self.steps
        )
        return Release(self.protocol, [*self.before, perturbation])

    def describe(self) -> dict[str, Any]:
        """A JSON-ready description, without a value of the public rows."""
        described: dict[str, Any] = describe(self)
        return described | {"public": f"{self.public.size} rows"}


@dataclass(frozen=True, kw_only=True)
class Training(Settings):
    """Federated training of a model, and the way its epsilon is counted.

    In every round each client releases one update of rows of its own, the server averages them and goes
    θ ← θ − η·(average); with momentum m, v ← m v + average and θ ← θ − η v. A delta (FedAvg) points along the gradient
    like a gradient, so that η = 1 takes its average as it is. Private rows are dealt to the clients at random.

    With `batch_size` a client goes through its rows in a new random order every epoch, that many a round; rows that do
    not fill a batch wait for the next epoch. An example then takes part once an epoch. With `sampling_rate` every row
    takes part by a coin of its own (Poisson), as accounting with amplification assumes; a round in which none does still
    counts, and its noise is released alone. A release that cannot be made of no row (no `expected_batch_size`) sends
    nothing in such a round, which has no epsilon.

    Attributes:
        rounds: how many updates the server takes.
        learning_rate: η of the server, positive.
        batch_size: rows a client and round; or None.
        sampling_rate: q, the probability of every row and round; or None. A public number of the user's: one that is
            computed from the number of private rows gives that away, and so does a divisor computed from both.
        clients: how many, all of them in every round.
        momentum: m of the server, in [0, 1).
        delta: δ of the epsilon; well below one over the number of rows.
        adjacency: of the epsilon.
        probes: at how many rounds the update is compared with the undefended one; 0 for none.

    Raises:
        InputError: for a number out of range, or not exactly one of `batch_size` and `sampling_rate`.
    """

    rounds: Count
    learning_rate: Positive
    batch_size: Count | None = None
    sampling_rate: ShareOrAll | None = None
    clients: Count = 1
    momentum: BelowOne = 0.0
    delta: Share = 1e-5
    adjacency: Adjacency | str = Adjacency.ADD_OR_REMOVE
    probes: Natural = 5

    def __post_init__(self) -> None:
        """Check what depends on more than one field."""
        super().__post_init__()
        if (self.batch_size is None) == (self.sampling_rate is None):
            raise InputError("Training: expected one of batch_size and sampling_rate, got both or none")

    def smallest_share(self, rows: int) -> int:
        """The fewest rows that a client gets of so many.

        Raises:
            InputError: if there are no rows, or fewer than a batch.
        """
        share = rows // self.clients
        if share < (self.batch_size or 1):
            raise InputError(
                f"Training: expected at least {self.batch_size or 1} rows for each of {self.clients} clients, got "
                f"{rows} in all; lower batch_size or clients"
            )
        return share

    def takes_part(self, rows: int) -> int:
        """Number of rounds in which one of so many private rows takes part at most."""
        if self.batch_size is None:
            return self.rounds
        return -(-self.rounds // (self.smallest_share(rows) // self.batch_size))


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """Share of the undefended update of the same rows that a release lets through, mean over the rounds probed.

    Attributes:
        kept_share: share of the entries that are not zero.
        cosine: to the undefended update; None where one of both was zero.
        relative_norm: norm over that of the undefended update; None where that was zero.
        probes: how many releases were compared.
    """

    kept_share: float
    cosine: float | None
    relative_norm: float | None
    probes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One training.

    Attributes:
        seed: of weights, order, noise.
        outcome: converged (all rounds done), not_finite (diverged) or constant.
        outputs: for the test rows, (rows, columns); None for a training that diverged.
        objective: the loss at the last parameters.
        rounds: how many were done.
        empty_rounds: rounds in which Poisson sampling gave some client no row.
        silent_rounds: those of them in which nothing was released.
        closeness: to the undefended update; None where nothing was compared.
        note: a sentence for the reader, or "".
    """

    seed: int
    outcome: Outcome
    outputs: Floats | None
    objective: Objective
    rounds: int
    empty_rounds: int = 0
    silent_rounds: int = 0
    closeness: Closeness | None = None
    note: str = ""


def train(task: Task, release: AnyRelease, training: Training, *, seed: int) -> Run:
    """One federated training of a new model through a release, and what it returns for the test rows.

    Every update is drawn by the release itself, defenses and noise included; nothing else of the private rows reaches
    the model. A bottleneck or dropout draws anew every round.

    Args:
        task: rows and model.
        release: protocol and defenses, or what makes them anew every round.
        training: rounds and rates.
        seed: of everything that is drawn. Equal seeds have equal weights and rows whatever the release.

    Raises:
        InputError: for rows that do not fill the batches, or data that do not fit the model.
        UnsupportedError: where the release is refused: per-example defenses on a model that mixes examples.

    **Cost**: a release of every client a round, and one undefended update a probe.
    """
    training.smallest_share(task.train.size)
    start = task.start(derive_generator(seed, "weights"), mask_seed=derive_seed(seed, "masks"))
    before = task.outputs(start.objective)
    if same_for_all(before) and (start.erasing or _erased(start, task)):
        layers = f", erased in {', '.join(start.erasing)}" if start.erasing else ""
        return Run(
            seed=seed,
            outcome=Outcome.CONSTANT,
            outputs=before,
            objective=start.objective,
            rounds=0,
            note=f"not trained: the model returns the same whatever its input{layers}",
        )
    return _Server(task=task, release=release, training=training, seed=seed).run(start.objective)


def _erased(start: Start, task: Task) -> bool:
    """True if another model of the same kind returns one thing too: weights of zero would do it once."""
    params = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
        for name, tensor in start.objective.params.items()
    }
    return same_for_all(task.outputs(replace(start.objective, params=params)))


class _Server:
    """The state of one training."""

    def __init__(self, *, task: Task, release: AnyRelease, training: Training, seed: int) -> None:
        self.task, self.release, self.training, self.seed = task, release, training, seed
        self.noise = derive_generator(seed, "release")
        self.shares = [rows_of(task.train, places) for places in self._deal()]
        self.batches = [_batches(share, training, seed, place) for place, share in enumerate(self.shares)]
        self.empty = self.silent = 0
        self.probed: list[tuple[float, float | None, float | None]] = []

    def run(self, objective: Objective) -> Run:
        rounds = self.training.rounds
        probes = {
            round(place * (rounds - 1) / max(1, self.training.probes - 1)) for place in range(self.training.probes)
        }
        velocity: dict[str, Tensor] = {}
        for number in range(rounds):
            objective = replace(objective, mask_seed=derive_seed(self.seed, "masks", str(number)))
            updates, finite = self._updates(objective, number, probe=number in probes)
            if not finite:
                return self._diverged(objective, number)
            if not updates:
                continue
            velocity = {
                name: self.training.momentum * velocity.get(name, torch.zeros_like(tensor))
                + sum((update[name] for update in updates), torch.zeros_like(tensor)) / self.training.clients
                for name, tensor in objective.params.items()
            }
            moved = {
                name: tensor - self.training.learning_rate * velocity[name] for name, tensor in objective.params.items()
            }
            if not all(bool(torch.isfinite(tensor).all()) for tensor in moved.values()):
                return self._diverged(objective, number)
            objective = replace(objective, params=moved)
        return self._finished(objective)

    def _updates(self, objective: Objective, number: int, *, probe: bool) -> tuple[list[Mapping[str, Tensor]], bool]:
        """The updates of all clients that sent one; and whether all of it is finite."""
        release = self._release(objective, number)
        updates: list[Mapping[str, Tensor]] = []
        empty = silent = False
        for place, batches in enumerate(self.batches):
            sample = next(batches)
            if sample is None:
                empty = True
                try:
                    updates.append(release.of_nothing(objective, self.noise).tensors)
                except UnsupportedError:
                    silent = True
                continue
            with torch.no_grad():
                loss = objective.loss(objective.params, sample.to(objective.dtype))
            if not bool(torch.isfinite(loss).all()):
                return [], False
            try:
                update = release(objective, sample, self.noise).tensors
            except InputError:
                gradient = objective.gradient(objective.params, sample.to(objective.dtype))
                if all(bool(torch.isfinite(tensor).all()) for tensor in gradient.values()):
                    raise
                return [], False
            updates.append(update)
            if probe and place == 0:
                self._compare(release, objective, sample, update)
        self.empty += empty
        self.silent += silent
        return updates, True

    def _release(self, objective: Objective, number: int) -> Release:
        if isinstance(self.release, Release):
            return self.release
        return self.release.at(objective, derive_generator(self.seed, "release of round", str(number)))

    def _compare(self, release: Release, objective: Objective, sample: Batch, update: Mapping[str, Tensor]) -> None:
        sample = sample.to(objective.dtype)
        plain = objective.flatten(Release(release.protocol).mean(objective, objective.params, sample)).double()
        sent = objective.flatten(update).double()
        norms = float(plain.norm()), float(sent.norm())
        cosine = float(plain @ sent) / norms[0] / norms[1] if all(norms) else None
        self.probed.append((float((sent != 0).double().mean()), cosine, norms[1] / norms[0] if norms[0] else None))

    def _closeness(self) -> Closeness | None:
        if not self.probed:
            return None
        kept, cosines, norms = zip(*self.probed, strict=True)
        return Closeness(kept_share=fmean(kept), cosine=_mean(cosines), relative_norm=_mean(norms), probes=len(kept))

    def _diverged(self, objective: Objective, number: int) -> Run:
        return self._result(
            objective, None, Outcome.NOT_FINITE, number, f"diverged in round {number + 1} of {self.training.rounds}"
        )

    def _finished(self, objective: Objective) -> Run:
        outcome, outputs, note = self.task.judge(objective)
        return self._result(objective, outputs, outcome, self.training.rounds, note)

    def _result(self, objective: Objective, outputs: Floats | None, outcome: Outcome, rounds: int, note: str) -> Run:
        return Run(
            seed=self.seed,
            outcome=outcome,
            outputs=outputs,
            objective=objective,
            rounds=rounds,
            empty_rounds=self.empty,
            silent_rounds=self.silent,
            closeness=self._closeness(),
            note=note,
        )

    def _deal(self) -> list[Tensor]:
        rows = self.task.train.size
        order = torch.randperm(rows, generator=derive_generator(self.seed, "clients"))
        return [order[place :: self.training.clients] for place in range(self.training.clients)]


def _batches(rows: Batch, training: Training, seed: int, client: int) -> Iterator[Batch | None]:
    """Batches of a client for each round, without end; None where Poisson sampling picks no row."""
    generator = derive_generator(seed, "rows", str(client))
    while training.sampling_rate is not None:
        yield poisson_sample(rows, rate=training.sampling_rate, generator=generator)
    size = training.batch_size
    assert size is not None
    while True:
        order = torch.randperm(rows.size, generator=generator)
        for begin in range(0, rows.size - size + 1, size):
            yield rows_of(rows, order[begin : begin + size])


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of the numbers that are there; None where one is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
