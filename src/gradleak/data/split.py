"""Split of rows into private ones, those that judge the model, and an adversary's: three sets that share no row."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradleak.core import Batch
from gradleak.data.population import Population
from gradleak.results import InputError, check_count


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Private, test and public rows of a population.

    The private rows train the model and are what the game is about; the test rows judge it; the public rows are what the
    adversary knows of the world. A row that stands in two of them would hand the adversary the truth, so that it is
    refused.

    By place no row may stand twice. Rows of other places with the same content may be other people (the Adult census
    without its weights holds many), so that `draw` counts them (`equal_rows`) and goes on, while a split or a public
    population that comes from outside is refused with the counts: there a copy is likelier than a coincidence. Take the
    copies out with `without_rows_of`, or state that they are coincidences.

    Attributes:
        private: places in the population.
        test: places in the population; may be empty where nothing judges the model.
        public: places in the population, or in `elsewhere`.
        elsewhere: where the public rows come from, or None for the population itself.
        known: places, in the same population as `public`, of rows by which an adversary knows the prior; the public rows
            and what was left over when they were drawn.
        equal_rows: how many public rows have the content of a private or test row, at another place.

    Raises:
        InputError: for a place that does not exist, stands twice, or stands in two of the sets, with counts.
    """

    population: Population = field(repr=False)
    private: Tensor = field(repr=False)
    test: Tensor = field(repr=False)
    public: Tensor = field(repr=False)
    elsewhere: Population | None = field(default=None, repr=False)
    known: Tensor | None = field(default=None, repr=False)
    equal_rows: int = 0

    def __post_init__(self) -> None:
        """Refuse places that overlap or do not exist."""
        for name in ("private", "test", "public"):
            places, size = getattr(self, name), (self._public_from if name == "public" else self.population).size
            if places.dim() != 1 or places.dtype != torch.int64:
                raise InputError(f"Split.{name}: expected places (n,) int64, got {tuple(places.shape)} {places.dtype}")
            if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
                raise InputError(
                    f"Split.{name}: expected places from 0 to {size - 1}, got {int(places.min())} to {int(places.max())}"
                )
            if len(places.unique()) < len(places):
                raise InputError(
                    f"Split.{name}: expected every row once, got {len(places) - len(places.unique())} again"
                )
        for name in ("private", "public"):
            if not len(getattr(self, name)):
                raise InputError(f"Split.{name}: expected at least one row, got none")
        pairs = [("private", "test")] + ([("private", "public"), ("test", "public")] if self.elsewhere is None else [])
        shared = {pair: int(torch.isin(getattr(self, pair[0]), getattr(self, pair[1])).sum()) for pair in pairs}
        if any(shared.values()):
            counts = ", ".join(f"{count} rows in {one} and {two}" for (one, two), count in shared.items() if count)
            raise InputError(
                f"Split: expected private, test and public rows without a common one, got {counts}; an adversary who has "
                "the private rows needs no gradient"
            )

    @classmethod
    def draw(
        cls,
        population: Population,
        *,
        private_rows: int,
        public_rows: int,
        test_rows: int | None = None,
        balanced: bool = True,
        public: Population | None = None,
        coincidences: bool = False,
        generator: torch.Generator,
    ) -> Split:
        """A split by chance.

        Private rows are drawn first, test rows second, both uniformly. What is left (or `public`) is what the adversary
        knows: the prior is estimated on it, and the public rows are drawn from it, as many of every value of the
        sensitive variable as of the others.

        Args:
            population: all rows.
            private_rows: how many are private.
            public_rows: how many an adversary has.
            test_rows: how many judge the model; None for as many as the private ones, at most half of those that
                neither private nor public rows need.
            balanced: whether the public rows hold every value equally often (up to one row), as in the paper.
            public: where the public rows come from instead; it shares no row with the population, by content.
            coincidences: whether rows of `public` with the content of a private or test row are coincidences.
            generator: of the draw.

        Raises:
            InputError: if there are too few rows, with counts, or rows of `public` are private or test rows.

        **Source**: Li et al. 2024, sections 5.1.1 and 5.1.4.
        """
        check_count("Split.private_rows", private_rows)
        check_count("Split.public_rows", public_rows)
        needed = private_rows + (public_rows if public is None else 0)
        left = population.size - needed
        tested = max(0, min(private_rows, left // 2 if public is None else left)) if test_rows is None else test_rows
        if left - tested < 0:
            raise InputError(
                f"Split: expected at least {needed + tested} rows ({private_rows} private, {tested} test"
                f"{'' if public is not None else f', {public_rows} public'}), got {population.size}; lower the numbers"
            )
        order = torch.randperm(population.size, generator=generator)
        private, test, rest = order.split([private_rows, tested, population.size - private_rows - tested])
        if public is not None:
            rest = torch.arange(public.size)
        source = population if public is None else public
        if list(source.values) != list(population.values) or source.inputs.shape[1:] != population.inputs.shape[1:]:
            raise InputError(
                "Split.public: expected rows of the same shape and the same values of the sensitive variable, got "
                f"{tuple(source.inputs.shape[1:])} {list(source.values)} for {tuple(population.inputs.shape[1:])} "
                f"{list(population.values)}"
            )
        chosen = _draw_public(source, rest, public_rows, balanced=balanced, generator=generator)
        drawn = cls(
            population=population, private=private, test=test, public=chosen, elsewhere=public, known=rest.sort().values
        )
        return drawn._with_counts(refuse=public is not None and not coincidences, between_own=False)

    @classmethod
    def given(
        cls,
        population: Population,
        *,
        private: Tensor,
        public: Tensor,
        test: Tensor | None = None,
        elsewhere: Population | None = None,
        coincidences: bool = False,
    ) -> Split:
        """A split that comes from outside, checked by place and by content.

        Args:
            population: all rows.
            private: places in it.
            public: places in it, or in `elsewhere`.
            test: places in it, or None for none.
            elsewhere: where the public rows come from, or None for the population.
            coincidences: whether equal contents at different places are coincidences; else they are refused.

        Raises:
            InputError: for rows in two of the sets, with counts.
        """
        empty = torch.empty(0, dtype=torch.int64)
        split = cls(
            population=population,
            private=private,
            test=empty if test is None else test,
            public=public,
            elsewhere=elsewhere,
        )
        return split._with_counts(refuse=not coincidences, between_own=True)

    @classmethod
    def of_users(
        cls, population: Population, *, private: Sequence[int], public: Sequence[int], test: Sequence[int] = ()
    ) -> Split:
        """All rows of some users private, all of others public, of others to judge the model.

        Raises:
            InputError: for a population without users, or a user in two of the sets or without rows.
        """
        if population.users is None:
            raise InputError(
                "Split.of_users: expected a population with users, got none; pass Population(..., users=...)"
            )
        sets = {"private": list(private), "test": list(test), "public": list(public)}
        named = [user for users in sets.values() for user in users]
        if len(set(named)) < len(named):
            twice = sorted({user for user in named if named.count(user) > 1})
            raise InputError(
                f"Split.of_users: expected every user in one set, got {len(twice)} in two, such as {twice[0]}"
            )
        places, owners = {}, population.users.cpu()
        for name, users in sets.items():
            held = torch.isin(owners, torch.tensor(users, dtype=torch.int64))
            missing = set(users) - set(owners[held].tolist())
            if missing:
                raise InputError(
                    f"Split.of_users: expected rows of every user, got none of {len(missing)} {name} users"
                )
            places[name] = held.nonzero().flatten()
        return cls(population=population, private=places["private"], test=places["test"], public=places["public"])

    @property
    def private_rows(self) -> Batch:
        """The private rows."""
        return self.population.rows(self.private)

    @property
    def test_rows(self) -> Batch | None:
        """The rows that judge the model, or None where there are none."""
        return self.population.rows(self.test) if len(self.test) else None

    @property
    def public_rows(self) -> Batch:
        """The rows that the adversary has."""
        return self._public_from.rows(self.public)

    def private_side(self) -> Tensor | None:
        """Side information φ on the private rows that the adversary may have, or None."""
        side = self.population.side
        return None if side is None else side[self.private]

    def public_side(self) -> Tensor | None:
        """Likewise of the public rows."""
        side = self._public_from.side
        return None if side is None else side[self.public]

    def known_values(self) -> Tensor:
        """The sensitive variable of the rows by which the adversary knows the prior."""
        return self._public_from.sensitive.cpu()[self.public if self.known is None else self.known]

    @property
    def _public_from(self) -> Population:
        return self.population if self.elsewhere is None else self.elsewhere

    def _with_counts(self, *, refuse: bool, between_own: bool) -> Split:
        """With `equal_rows`; refused if public rows equal others, or (`between_own`) test rows equal private ones."""
        public = _contents(self.public_rows)
        shares = {"private": _contents(self.private_rows)}
        if self.test_rows is not None:
            shares["test"] = _contents(self.test_rows)
        equal = {name: _common(public, rows) for name, rows in shares.items()}
        among = _common(shares["test"], shares["private"]) if between_own and "test" in shares else 0
        if refuse and (any(equal.values()) or among):
            counts = ", ".join(f"{count} public rows equal to {name} ones" for name, count in equal.items() if count)
            raise InputError(
                "Split: expected private, test and public rows without a common one, got "
                f"{', '.join(part for part in (counts, f'{among} test rows equal to private ones' if among else '') if part)} "
                f"(of {len(public)} public, {len(self.test)} test, {len(self.private)} private); take them out "
                "(`without_rows_of`), or pass coincidences=True where different rows may look the same"
            )
        return replace(self, equal_rows=_common(public, itertools.chain(*shares.values())))


def without_rows_of(public: Population, population: Population) -> Tensor:
    """The places of the public rows whose content stands nowhere in a population, ascending."""
    everywhere = torch.arange(public.size)
    other = set(_contents(population.rows(torch.arange(population.size))))
    return torch.tensor([place for place, row in enumerate(_contents(public.rows(everywhere))) if row not in other])


def _draw_public(source: Population, rest: Tensor, count: int, *, balanced: bool, generator: torch.Generator) -> Tensor:
    """Public rows among the places `rest`."""
    order = rest[torch.randperm(len(rest), generator=generator)]
    if not balanced:
        if len(order) < count:
            raise InputError(f"Split: expected {count} public rows, got {len(order)} that are left for them")
        return order[:count]
    values = source.sensitive.cpu()[order]
    chosen = []
    for value, name in enumerate(source.values):
        share = count // len(source.values) + (value < count % len(source.values))
        held = order[values == value]
        if len(held) < share:
            raise InputError(
                f"Split: expected {share} public rows with {name} (of {count}, balanced), got {len(held)} that are left; "
                "lower public_rows, or draw them unbalanced"
            )
        chosen.append(held[:share])
    together = torch.cat(chosen)
    return together[torch.randperm(len(together), generator=generator)]


def _contents(rows: Batch) -> list[bytes]:
    """One short digest a row of input, target and sensitive variable, in single precision."""
    parts = [rows.inputs, rows.targets]
    if rows.sensitive is not None:
        parts.append(rows.sensitive)
    digests = []
    for piece in zip(*(part.split(4096) for part in parts), strict=True):
        # 0.0 and -0.0 differ in their bytes only.
        flat = torch.cat([part.reshape(len(part), -1).float() + 0.0 for part in piece], dim=1).cpu().numpy()
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in flat]
    return digests


def _common(rows: Iterable[bytes], others: Iterable[bytes]) -> int:
    """Number of the rows that stand among the others."""
    held = set(others)
    return sum(row in held for row in rows)
