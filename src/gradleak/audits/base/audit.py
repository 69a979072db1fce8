"""A kind of audit: one section of a plan, what it tries against the release of each scenario, and how that is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from gradleak.audits.base.reader import ALL_OR_NAMES, Reader, Schema, Writer
from gradleak.audits.base.site import Site
from gradleak.core import Batch, describe
from gradleak.results import Finding, GradleakError, Grounds, PlanError, Settings, Verdict

F = TypeVar("F", bound=Finding)


@dataclass(frozen=True, kw_only=True)
class Task(Generic[F]):
    """One unit of work and of resuming.

    Attributes:
        name: unique in the run; fixed by the plan alone.
        run: makes the findings, given the site and the folder of the record; called in a worker, so it can be pickled.
        blank: the finding without any result that stands in the record where the task fails.
        headline: what a progress bar shows.
        cost: expected, in plain gradients of the plan's model.
        pace: processor time of a gradient that is counted, in that of a plain one: many at a price of one, or ended early.
        seconds: of processor time beside gradients, on the machine of `auditing.duration`.
        examples: indices of the batches of the plan that it reads; None for all of them.
        states: names of the states that its attacks leave on the way; they go when its findings are in the record.
        turn: where time is short, tasks of a lower turn come first.
        after: where time is short, asked with what was found so far: the reason not to begin it, or "".
        chance: where time is short, asked after that, while there is some left, since it may compute for seconds: the same.
        needs: names of the controls without which nobody can read its findings; where time is short, theirs is kept for them.
        once: what its findings depend on, as a text, where audits of one process may share them; "" where they may not.
    """

    name: str
    run: Callable[[Site, Path], Sequence[F]]
    blank: F
    headline: str
    cost: float = 0.0
    pace: float = 1.0
    seconds: float = 0.0
    states: Sequence[str] = ()
    turn: int = 0
    after: Callable[[Site, Grounds], str] | None = None
    chance: Callable[[Site, Grounds], str] | None = None
    needs: Sequence[str] = ()
    once: str = ""
    examples: Sequence[int] | None = None


class InPieces(ABC, Generic[F]):
    """Work of a task that can be done in pieces, on several workers: each is a function of the plan alone."""

    @property
    def goes_on(self) -> bool:
        """True if what the pieces made is, as a rule, read in further pieces."""
        return False

    @property
    @abstractmethod
    def pieces(self) -> Sequence[Callable[[Site, Path], Any]]:
        """The pieces; each returns what `join` needs of it, never a `Finding`, and both can be pickled."""

    @property
    def shares(self) -> Sequence[float]:
        """Share of the cost of the task that each piece takes, roughly; all of it in equal parts unless it is known better."""
        return [1 / len(self.pieces)] * len(self.pieces)

    @abstractmethod
    def join(self, site: Site, out: Path, made: Sequence[Any]) -> Sequence[F] | InPieces[F]:
        """The findings; or the rest of the work in pieces of its own, where these need what the first ones made.

        Args:
            site: of the plan.
            out: folder of the run.
            made: what the pieces returned, in their order.
        """

    def __call__(self, site: Site, out: Path) -> Sequence[F]:
        """The findings, in one go."""
        found = self.join(site, out, [piece(site, out) for piece in self.pieces])
        return found(site, out) if isinstance(found, InPieces) else found


class Refusal(NamedTuple):
    """Part of a plan that will be refused when the plan runs, known beforehand.

    Attributes:
        what: whose work: an attack on a scenario.
        reason: why, and what to do.
    """

    what: str
    reason: str

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"will be refused: {self.what}: {self.reason}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit(Settings, ABC, Generic[F]):
    """One section of a plan. Its fields are the keys of its table in a plan file.

    Attributes:
        name: of the section: `[inference.gender]` is called "gender"; of a kind with one section that of the kind.
        scenarios: names of the scenarios that it is done for; None for all.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    kind: ClassVar[str]
    finding: ClassVar[type[Finding]]
    # What one audit of this kind is called where the parts of a plan are counted; "" where it is not counted.
    noun: ClassVar[str] = ""
    # Whether it has the public rows that an adversarial perturbation behind a release is trained on.
    trains_perturbations: ClassVar[bool] = False
    # Whether it says what models that are trained through a release are worth.
    judges_models: ClassVar[bool] = False

    name: str = ""
    scenarios: Sequence[str] | None = None

    @classmethod
    def read(cls, plan: Mapping[str, Any], reader: Reader) -> Iterable[Self]:
        """The audits of this kind that a parsed plan file asks for: one a table `[KIND.NAME]`, built by the type hints.

        Args:
            plan: the whole file.
            reader: turns tables into objects.

        Raises:
            PlanError: naming the place, for what does not fit.
        """
        for name, table in reader.table(plan.get(cls.kind, {}), cls.kind).items():
            yield reader.call(cls, {**reader.table(table, f"{cls.kind}.{name}"), "name": name}, f"{cls.kind}.{name}")

    @classmethod
    def schema(cls, writer: Writer) -> dict[str, Schema]:
        """The JSON Schema of its sections of a plan file, by top-level key.

        Args:
            writer: knows the catalog, and how annotations read.
        """
        own = writer.settings(cls, also={"scenarios": ALL_OR_NAMES}, without=("name", "scenarios"), optional=True)
        return {cls.kind: writer.named(own)}

    def against(self, scenario: str) -> bool:
        """True if it is done for a scenario."""
        return self.scenarios is None or scenario in self.scenarios

    def fit(self, site: Site) -> None:
        """Refuse names and settings that do not fit the plan; asked when a plan is made, so it computes nothing.

        Raises:
            PlanError: with the reason.
        """

    def check(self, site: Site) -> None:
        """Refuse, before anything runs, what cannot be done; this may compute a little.

        Raises:
            PlanError: with the reason.
        """

    def refusals(self, site: Site) -> Sequence[Refusal]:
        """Parts of it that will be refused, while the rest runs."""
        return ()

    def opening(self, site: Site) -> Iterable[str]:
        """Lines for a reader before the long work begins, on what can be said at once; this may compute a little."""
        return ()

    @abstractmethod
    def tasks(self, site: Site) -> Iterable[Task[F]]:
        """Its work, controls among it, in an order and a grain that the plan alone fixes."""

    def conclude(self, site: Site, found: Sequence[F]) -> Sequence[F]:
        """Further findings that follow from all the others, made when they are there: advice, averages.

        Args:
            site: what it was about.
            found: its findings, in the order of the plan.
        """
        return ()

    @classmethod
    @abstractmethod
    def judge(cls, found: Sequence[F], grounds: Grounds) -> Iterable[Verdict]:
        """The verdicts that findings allow; from them alone, so that those that were made in Python are judged too.

        Args:
            found: the findings of one audit of this kind, controls among them.
            grounds: the findings of every audit, and the thresholds.
        """

    def parts(self) -> Iterable[object]:
        """Objects that its citations and the plan's fingerprint are read from; by default its fields."""
        return [getattr(self, entry.name) for entry in fields(self)]

    def private(self) -> Iterable[object]:
        """The private data that it holds, for the key of the record; they enter no record."""
        return ()

    def probed(self) -> Batch | None:
        """Rows of its own at which the behavior of the plan's model is compared when a run goes on; None where there are none."""
        return None

    def resolved(self) -> dict[str, Any]:
        """Its settings with every default filled in, JSON-ready, without any data value."""
        return {entry.name: describe(getattr(self, entry.name)) for entry in fields(self)}
