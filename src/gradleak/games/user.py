"""User inference: whose rows made the update, out of a few candidates."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.inference import PrototypeEncoder, balanced_labels, distance_log_posterior
from gradleak.core import Batch, BatchDefense, Release, derive_generator, derive_seed
from gradleak.data import Split
from gradleak.games.game import Challenge, InferenceGame
from gradleak.games.reading import Draw, PerturbedGame, Read, RoundTask, digits, draw_of_one_value, reduce
from gradleak.games.value_game import values_of
from gradleak.results import Count, InputError, Natural, Whole
from gradleak.training import BatchReleases, PerturbedRounds, Trajectory, releases_of

# Below so many private users intervals are too short where users are of different kinds; see `Clusters` for the figures.
FEWEST_USERS = 20
FEW = (
    "{} private users are few: if a small part of all users is much easier (or harder) to tell than the others, these may hold "
    "none of that part, and the intervals are too short for what other users would give"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class UserGame(InferenceGame):
    """Game about the user whose k rows made an update, told from m − 1 others, given other rows of all of them.

    Users are split, not rows. *Shadow users* are the public ones: the adversary has all their rows, and they appear in no
    trial, so that it has to recognize users whom it has never learned. It trains an encoder to tell its shadow users apart by
    their updates. In a trial m private users are drawn without repetition: the *candidates*, the possible answers. One of
    them makes the released update. Of each the adversary is handed a *reference batch*, k of that user's rows, as if they had
    been found elsewhere; that of the true user shares no row with the released batch. It takes the updates of the
    reference batches at the current parameters (adaptive: through the same release, with fresh noise) and answers by the
    distances of their embeddings to that of the released update.

    Candidates, batches and reference batches stay the same over the rounds. Users with fewer than 2k rows play no part.
    The prior is uniform: p* = 1/m.

    Adversarial perturbation needs a `target` here, one of the public users: its classifier has never seen a private one,
    so that there is no true class to lead away from. Public users are numbered 0 to u − 1 for it, in the order of their
    numbers in the population.

    **Source**: Li et al. 2024, sections 3.2, 4.1 and 5.1.4 (m = 5, k = 8, T = 1,000; 15 private and 30 public users of
    CREMA-D, where AUROC is 0.6808).

    Attributes:
        encoder: what is trained on updates of the public users, fresh every round.
        candidates: m.
        private_users: how many users' rows are private.
        public_users: how many users' rows the adversary has.
        test_users: how many users' rows judge the model; None for all that are left. With none the model is not judged.
    """

    kind: ClassVar[str] = "user"
    draws_users: ClassVar[bool] = True

    batch_size: int = 8
    trials: int = 1000
    encoder: PrototypeEncoder = field(default_factory=PrototypeEncoder)
    candidates: Annotated[int, Whole(2)] = 5
    private_users: Count = 15
    public_users: Annotated[int, Whole(2)] = 30
    test_users: Natural | None = None

    def __post_init__(self) -> None:
        """Check the numbers, and that the rows have users."""
        super().__post_init__()
        if self.private_users < self.candidates:
            raise InputError(
                f"UserGame.private_users: expected a whole number of at least {self.candidates}, one a candidate, got "
                f"{self.private_users}"
            )
        if self.population.users is None:
            raise InputError("UserGame: expected a population with users, got none; pass Population(..., users=...)")
        if self.side:
            raise InputError(
                "UserGame.side: expected False, got True; distances of embeddings take no side information (the reference "
                "batches are what the adversary knows besides); games about values do"
            )
        if _untargeted(self.release):
            raise InputError(
                "UserGame.release: expected an adversarial perturbation with a target, the number of a public user, got "
                "target=None; its classifier knows public users alone, and no release is of one"
            )

    def split_of(self, seed: int) -> Split:
        """The rows of a seed: the given split, or users drawn by the seed."""
        if self.split is not None:
            _check_given(self.split, self.batch_size, self.candidates)
            return self.split
        users, counts = _users(self.population.users).unique(return_counts=True)
        enough = users[counts >= 2 * self.batch_size]
        needed = self.private_users + self.public_users + (self.test_users or 0)
        if len(enough) < needed:
            raise InputError(
                f"UserGame: expected {needed} users ({self.private_users} private, {self.public_users} public, "
                f"{self.test_users or 0} test) with at least {2 * self.batch_size} rows (2k: a released and a reference "
                f"batch), got {len(enough)} of {len(users)}; lower batch_size or the numbers of users"
            )
        order = enough[torch.randperm(len(enough), generator=derive_generator(seed, "split"))].tolist()
        middle, end = self.private_users, self.private_users + self.public_users
        last = len(order) if self.test_users is None else needed
        return Split.of_users(self.population, private=order[:middle], public=order[middle:end], test=order[end:last])

    def shadow(self, owners: Tensor, generator: torch.Generator) -> Draw:
        """Batches of one public user each, rows with replacement; labels count the users from 0.

        Args:
            owners: of the public rows, (n,).
            generator: of the draw.
        """
        users, values = owners.unique(return_inverse=True)
        labels = balanced_labels(self.shadow_batches, len(users), generator)
        return draw_of_one_value(
            labels,
            values,
            [f"user {user}" for user in users.tolist()],
            batch_size=self.batch_size,
            replacement=True,
            generator=generator,
            whose="public",
        )

    def _challenge(self, split: Split, generator: torch.Generator) -> Challenge:
        uniform = torch.full((self.candidates,), 1.0 / self.candidates, dtype=torch.float64)
        owners = _users(self.population.users)
        users = len(owners[split.private].unique())
        return Challenge(
            split=split,
            private=_by_user(split.private_rows, owners[split.private]),
            public=_by_user(split.public_rows, _owners_of_public(split)),
            values=[f"candidate {place}" for place in range(self.candidates)],
            trials=self._trials(owners[split.private], generator),
            law=uniform,
            prior=uniform,
            notes=[FEW.format(users)] if users < FEWEST_USERS else [],
        )

    def _trials(self, owners: Tensor, generator: torch.Generator) -> Draw:
        size, held = self.batch_size, [(owners == user).nonzero().flatten() for user in owners.unique()]
        labels = torch.randint(self.candidates, (self.trials,), generator=generator)
        rows = torch.empty(self.trials, size, dtype=torch.int64)
        references = torch.empty(self.trials, self.candidates, size, dtype=torch.int64)
        for trial, label in enumerate(labels.tolist()):
            drawn = torch.randperm(len(held), generator=generator)[: self.candidates].tolist()
            for place, user in enumerate(drawn):
                # Twice as many as needed: what is released and what is referred to share no row.
                both = held[user][torch.randperm(len(held[user]), generator=generator)[: 2 * size]]
                references[trial, place] = both[size:]
                if place == label:
                    rows[trial] = both[:size]
        return Draw(labels=labels, rows=rows, references=references)

    def _round_task(self, challenge: Challenge, training: Trajectory, number: int) -> RoundTask:
        generator = derive_generator(training.seed, "shadow", f"round {number}")
        owners = values_of(challenge.public)
        return UserRound(
            seed=training.seed,
            number=number,
            objective=training.at(number),
            release=training.releases[number],
            private=challenge.private,
            public=challenge.public,
            trials=challenge.trials,
            shadow=self.shadow(owners, generator),
            classes=len(owners.unique()),
            adversaries=self.playing,
            features=self.features,
            encoder=self.encoder,
        )

    def _known_to_release(self, public: Batch) -> Batch:
        assert public.sensitive is not None
        return replace(public, sensitive=public.sensitive.unique(return_inverse=True)[1])

    def _drawn(self, challenge: Challenge) -> Tensor:
        # The candidates, whoever of them made the update: the other ones decide how hard the trial is as well.
        references, owners = challenge.trials.references, values_of(challenge.private)
        assert references is not None
        return owners[references[:, :, 0]]

    def _secret_of_rows(self, rows: Batch, entries: int) -> Tensor:
        users = _users(self.population.users).unique()
        # The digits of the user's place, binary if they fit: an encoder of other users has seen all of them.
        return digits(torch.searchsorted(users, values_of(rows)), len(users) + 1, entries)


@dataclass(frozen=True, kw_only=True, eq=False)
class UserRound(RoundTask):
    """One round of a game about users.

    Attributes:
        encoder: what is trained.
    """

    encoder: PrototypeEncoder

    def _read_by(self, known: Release, released: BatchReleases) -> Read:
        reduction, learned = self.reduced_shadow(known)
        fitted = self.encoder.fit(
            learned.numpy(), self.shadow.labels.cpu().numpy(), derive_seed(self.seed, "fit", str(self.number))
        )
        details = {
            "features": learned.shape[1],
            "training_accuracy": fitted.training_accuracy,
            "notes": [*reduction.notes, *fitted.notes],
        }
        seen = fitted.embed(self.reduced_trials(released, reduction).numpy())
        references = self.trials.references
        assert references is not None
        flat = references.reshape(-1, references.shape[-1])
        # What the adversary takes the release for, applied to rows that it was handed.
        theirs = releases_of(self.objective, known, self.private)
        embedded = fitted.embed(
            reduce(reduction, lambda: theirs.chunks(flat, self.generator("reference noise"))).numpy()
        )
        candidates = embedded.reshape(*references.shape[:2], -1)
        return Read(log_posterior=distance_log_posterior(candidates, seen), details=details)


def _untargeted(release: object) -> bool:
    """True if a release holds an adversarial perturbation away from the true value."""
    if isinstance(release, Release):
        return any(isinstance(defense, BatchDefense) and defense.leaves_truth for defense in release.defenses)
    return isinstance(release, PerturbedGame | PerturbedRounds) and release.target is None


def _users(users: Tensor | None) -> Tensor:
    if users is None:
        raise InputError("UserGame: expected a population with users, got none; pass Population(..., users=...)")
    return users.cpu()


def _owners_of_public(split: Split) -> Tensor:
    return _users((split.population if split.elsewhere is None else split.elsewhere).users)[split.public]


def _by_user(rows: Batch, owners: Tensor) -> Batch:
    """Rows whose sensitive variable is their user, for defenses that look at it."""
    return Batch(rows.inputs, rows.targets, rows.domain, owners.to(rows.inputs.device))


def _check_given(split: Split, batch_size: int, candidates: int) -> None:
    """Refuse a split with too few users or rows, or with a user on both sides."""
    owners = _users(split.population.users)
    users, counts = owners[split.private].unique(return_counts=True)
    few = int((counts < 2 * batch_size).sum())
    if few or len(users) < candidates:
        raise InputError(
            f"UserGame.split: expected at least {candidates} private users, each with {2 * batch_size} rows or more (2k), got "
            f"{len(users)} users, {few} of them with fewer"
        )
    shared = int(torch.isin(users, _owners_of_public(split).unique()).sum())
    if shared:
        raise InputError(
            f"UserGame.split: expected private and public users without a common one, got {shared} of {len(users)} private "
            "users among the public ones"
        )
