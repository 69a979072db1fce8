"""The rows that layers are measured on, and what may be told of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import scipy
import torch
from torch import Tensor

from gradleak.core import Batch, Domain, derive_generator
from gradleak.data import Population
from gradleak.results import InputError, check_count
from gradleak.results.errors import shown
from gradleak.risk import DrawnRows

# Releases of closed-form measures and inversions where none is stated.
MOST = 32


class Told(StrEnum):
    """Variable that may be told from the gradients of a layer: a sensitive one that rows carry, their labels or their inputs."""

    SENSITIVE = "sensitive"
    LABEL = "label"
    INPUTS = "inputs"


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerRows:
    """Rows, how they are cut into releases, and what is told of them.

    Attributes:
        rows: private examples.
        told: what is told.
        value: one value of it, held against all others; None for all values as they are.
        count: rows that gradients are taken of, at most; None for all.
        batch_size: rows of a release.
        releases: how many releases closed-form measures and inversions get; None for as many as there are, at most 32.
        asked: whether anything is asked about what is told.

    Raises:
        InputError: for a number out of range, or more rows than there are.
    """

    rows: Population | Batch = field(repr=False)
    told: Told
    value: str | int | None
    count: int | None
    batch_size: int
    releases: int | None
    asked: bool

    def __post_init__(self) -> None:
        """Check the numbers, and what is told where it is asked for."""
        if not isinstance(self.rows, Population | Batch):
            raise InputError(f"rows: expected a Population or a Batch, got {type(self.rows).__name__}")
        check_count("batch_size", self.batch_size)
        for name, number in (("count", self.count), ("releases", self.releases)):
            if number is not None:
                check_count(name, number)
        needed = self.batch_size * (self.releases or 1)
        if needed > self.rows.size:
            raise InputError(
                f"releases: expected at least {needed} rows for {self.releases or 1} of {self.batch_size}, got {self.rows.size}"
            )
        if self.asked:
            self._check()

    @property
    def many(self) -> int:
        """Number of releases that closed-form measures and inversions get."""
        return self.releases or min(MOST, self.rows.size // self.batch_size)

    @property
    def attribute(self) -> str:
        """Name of what is told, in words."""
        if self.told is not Told.SENSITIVE:
            return "the label" if self.told is Told.LABEL else "the inputs"
        name = self.rows.name if isinstance(self.rows, Population) else "the attribute of the rows"
        return name if self.value is None else f"{name}, {self.value} or not"

    @property
    def names(self) -> list[str]:
        """Names of the values of what is told, in the order of their numbers; of labels the numbers themselves."""
        if isinstance(self.rows, Population) and self.told is Told.SENSITIVE:
            return list(self.rows.values)
        return [str(int(code)) for code in self._codes().unique()]

    def target(self) -> Tensor:
        """Told values, one entry a row: the places of its values in their order, from 0; or the inputs."""
        if self.told is Told.INPUTS:
            return self.rows.inputs
        codes = self._codes()
        return codes.unique(return_inverse=True)[1] if self.value is None else (codes == self._code()).long()

    def drawn(self, seed: int) -> DrawnRows:
        """The rows of a seed: another seed draws others.

        Args:
            seed: of the draw.

        Raises:
            InputError: where a value has fewer rows than a batch.
        """
        order = torch.randperm(self.rows.size, generator=derive_generator(seed, "rows"))
        places = order[: self.count or self.rows.size]
        domain = self.rows.domain or Domain.guess(self.rows.inputs)
        inputs, targets = self.rows.inputs, self.rows.targets
        exposed = order[: self.batch_size * self.many].reshape(self.many, self.batch_size)
        releases = [Batch(inputs[one], targets[one], domain) for one in exposed]
        batch = Batch(inputs[places], targets[places], domain)
        target, batches, clusters = torch.zeros(len(places)), None, None
        if self.asked:
            target = self.target()[places]
            users = self.rows.users if isinstance(self.rows, Population) else None
            clusters = None if users is None else users[places]
            if self.batch_size > 1:
                batches, target = self._of_one_value(target, clusters)
                clusters = None if clusters is None else _together(clusters[batches])
        return DrawnRows(batch=batch, target=target, batches=batches, clusters=clusters, releases=releases)

    def _of_one_value(self, target: Tensor, users: Tensor | None) -> tuple[Tensor, Tensor]:
        """As many batches of one value as the rows make, of which no two share a row; and few share a user."""
        found, values = [], []
        for value in target.unique():
            own = (target == value).nonzero()[:, 0]
            if len(own) < self.batch_size:
                raise InputError(
                    f"batch_size: expected at most {len(own)}, the rows with {self._called(int(value))} among {len(target)}, "
                    f"got {self.batch_size}"
                )
            batches = [
                rows[: len(rows) // self.batch_size * self.batch_size].reshape(-1, self.batch_size)
                for rows in ([own] if users is None else _whole_users(own, users[own], self.batch_size))
            ]
            found += batches
            values += [int(value)] * sum(map(len, batches))
        return torch.cat(found), torch.tensor(values)

    def _called(self, place: int) -> str:
        """A value of `target` in words."""
        if self.value is not None:
            return f"value {self.value}" if place else f"another value than {self.value}"
        code = int(self._codes().unique()[place])
        of_names = isinstance(self.rows, Population) and self.told is Told.SENSITIVE
        return f"value {self.names[code] if of_names else code}"

    def _codes(self) -> Tensor:
        found = self.rows.targets if self.told is Told.LABEL else self.rows.sensitive
        assert found is not None
        return found

    def _code(self) -> int:
        """The number of the value that is held against all others."""
        codes = self._codes().unique().tolist()
        if self.value in self.names:
            of_names = list(range(len(self.names))) if self.told is Told.SENSITIVE else codes
            return int(of_names[self.names.index(str(self.value))])
        if isinstance(self.value, int) and not isinstance(self.value, bool) and self.value in codes:
            return self.value
        raise InputError(f"value: expected one of {', '.join(self.names)}, got {shown(self.value)}")

    def _check(self) -> None:
        if self.told is Told.INPUTS:
            if self.value is not None or self.batch_size > 1:
                raise InputError("told: expected no value and batch_size = 1 where the inputs of single rows are told")
            return
        if self.told is Told.SENSITIVE and self.rows.sensitive is None:
            raise InputError(
                "told: a measure asks for an attribute, and the rows carry none; take data with a sensitive variable, or "
                "told = 'label'"
            )
        codes = self._codes()
        if codes.dim() != 1 or codes.is_floating_point():
            what = "labels" if self.told is Told.LABEL else "a sensitive variable"
            raise InputError(
                f"told: expected {what} of whole numbers, one a row, got {tuple(codes.shape)} {codes.dtype}"
            )
        if len(self.target().unique()) < 2:
            raise InputError("told: every row has the same value, and it takes two to tell them apart")


def _whole_users(rows: Tensor, users: Tensor, size: int) -> list[Tensor]:
    """The rows, cut so that no two parts share a user and each has at least `size` of them; a rest that is smaller is left out.

    Batches are cut of parts: those of one user would otherwise be linked to those of all others, one row in common with each.
    """
    of_user: dict[int, list[int]] = {}
    for row, user in zip(rows.tolist(), users.tolist(), strict=True):
        of_user.setdefault(user, []).append(row)
    parts, pending = [], []
    for own in of_user.values():
        pending += own
        if len(pending) >= size:
            parts.append(torch.tensor(pending))
            pending = []
    return parts


def _together(users: Tensor) -> Tensor:
    """A number for each batch (n, k) of users; batches that share a user, or are linked by others that do, have the same one."""
    _, places = users.unique(return_inverse=True)
    count, width = len(users), int(places.max()) + 1
    rows = np.repeat(np.arange(count), users.shape[1])
    links = scipy.sparse.coo_array(
        (np.ones(places.numel()), (rows, count + places.flatten().numpy())), shape=(count + width,) * 2
    )
    return torch.from_numpy(
        scipy.sparse.csgraph.connected_components(links, directed=False)[1][:count].astype(np.int64)
    )
