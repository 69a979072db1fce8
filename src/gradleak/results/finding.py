"""Finding of one task of an audit: a typed result that is read without the code that made it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, PlainValidator, ValidationError

from gradleak.results.errors import ERRORS, InputError
from gradleak.results.fields import is_number
from gradleak.results.score import DEEPEST, Evidence, Outcome, Score, jsonable


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and value != value else value


# A number as a record holds it: None for NaN; infinities stand there as texts, which are read back as numbers.
NumberOrNone = Annotated[float | None, BeforeValidator(_finite)]


class Status(StrEnum):
    """Status of a task: carried out, or not: refused, failed, or left out since time was short."""

    DONE = "done"
    LEFT_OUT = "left_out"
    REFUSED = "refused"
    FAILED = "failed"


class Part(BaseModel):
    """A typed part of a finding: frozen, without unknown fields, numbers as JSON holds them."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", protected_namespaces=())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dictionary; infinities become the strings "inf" and "-inf"."""
        return {name: _plain(getattr(self, name)) for name in self.__class__.model_fields}

    def but(self, **changes: Any) -> Self:
        """The same with some fields changed, checked."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(self.model_extra or {}), **changes})


class Subject(Part):
    """Subject of a finding: whose data, or which part of a release, within its scenario.

    Attributes:
        noun: what it is: "example", "batch", "pair", "layer".
        name: which one; the index of an example or batch in the plan, as text.
    """

    noun: str
    name: str

    def __str__(self) -> str:
        """As people read it: "example 3"."""
        return f"{self.noun} {self.name}"


class Control(Part):
    """Control that a finding is: a planted leak that must be found, or noise that must give nothing.

    Attributes:
        planted: whether a leak was planted; else there is nothing to be found.
        title: what it is called: "Planted leak".
        expects: what has to come out, in words.
        meaning: what it means if that does not come out, in a sentence.
        passed: whether it did; None where the control could not be run.
        of: what the control is for, where that is less than the whole audit: an attack, a measure; else "".
        measure: the name of the score that decides, "" where none does.
        baseline: what the blind guess reaches in that measure, or None.
    """

    planted: bool
    title: str = ""
    expects: str = ""
    meaning: str = ""
    passed: bool | None = None
    of: str = ""
    measure: str = ""
    baseline: NumberOrNone = None


def _outcome(value: Any) -> Outcome | None:
    if value is None or isinstance(value, Outcome):
        return value
    try:
        return Outcome.from_label(value)
    except (KeyError, AttributeError) as error:
        raise ValueError(f"no outcome {str(value)[:100]!r}") from error


def _score(value: Any) -> Score:
    if isinstance(value, Score):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a score, got {type(value).__name__}")
    try:
        return Score.from_dict(value)
    except InputError as error:
        raise ValueError(str(error)) from error


OutcomeLabel = Annotated[
    Outcome | None, PlainValidator(_outcome), PlainSerializer(lambda one: None if one is None else one.label)
]
ScoreLine = Annotated[Score, PlainValidator(_score), PlainSerializer(Score.to_dict)]


class Finding(Part):
    """Finding of one task of an audit, with the scores inside.

    A kind of audit has one subclass, whose further fields all have defaults: a finding that was refused or failed has
    nothing but the fields below. A record with an unknown kind is read as findings of this class, with the further
    fields of their lines among `model_extra`.

    Attributes:
        kind: of the audit; the key of the registry (`gradleak.results.kinds`).
        item: a name that is unique in the record.
        audit: the name of the section of the plan that it belongs to.
        scenario: the name of the scenario, or None for a finding about the whole plan.
        subject: whose data or which part within the scenario, or None for all of it.
        status: whether the task was carried out.
        outcome: how the computation ended, or None where that says nothing.
        note: one sentence for the reader, or "".
        seconds: how long it took.
        scores: the numbers, each with its evidence.
        control: what makes it a control, or None.
    """

    kind: str
    item: str
    audit: str
    scenario: str | None = None
    subject: Subject | None = None
    status: Status = Status.DONE
    outcome: OutcomeLabel = None
    note: str = ""
    seconds: float = 0.0
    scores: tuple[ScoreLine, ...] = ()
    control: Control | None = None

    def __repr__(self) -> str:
        """One line: what it is about, how it ended, its first score. `to_dict` has everything."""
        told = [repr(self.item), self.status.value, *([] if self.outcome is None else [self.outcome.label])]
        told += map(str, self.scores[:1])
        told += [f"{len(self.scores)} scores in all"] if len(self.scores) > 1 else []
        return f"{type(self).__name__}({', '.join(told)})"

    @property
    def cost(self) -> float | None:
        """The plain gradients of the plan's model that it took; None where nobody counted."""
        spent: Any = getattr(self, "plain_gradients", None)
        return float(spent) if is_number(spent) else None

    def score(self, name: str, unit: str | None = None, **about: str | int) -> Score | None:
        """The first score with this name, unit and marks, or None.

        Args:
            name: name of the score.
            unit: its unit; None for any.
            **about: what `Score.about` has to hold.
        """
        for score in self.scores:
            same = all(score.about.get(key) == value for key, value in about.items())
            if score.name == name and unit in (None, score.unit) and same:
                return score
        return None

    def value(self, name: str, unit: str | None = None, **about: str | int) -> float | None:
        """The value of that score, or None."""
        found = self.score(name, unit, **about)
        return None if found is None else found.value

    def to_dict(self) -> dict[str, Any]:
        """The fields of a finding line of a record (without its `type`)."""
        return super().to_dict() | {key: jsonable(value) for key, value in (self.model_extra or {}).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The finding that `to_dict` wrote.

        Raises:
            InputError: if a field is missing, unknown, or has a value that no finding of this class has.
        """
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            raise InputError(
                f"finding {str(data.get('item'))[:100]!r}: expected a {cls.__name__}, got a line whose {place} is wrong: "
                f"{first['msg'][:200]}"
            ) from error


class UnknownFinding(Finding):
    """A finding of a kind that this installation does not know; its further fields are kept as they stand."""

    model_config = ConfigDict(extra="allow")


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, Part | Score):
        return value.to_dict()
    if isinstance(value, Outcome):
        return value.label
    if depth <= DEEPEST and isinstance(value, Mapping):
        return {str(jsonable(key)): _plain(item, depth + 1) for key, item in value.items()}
    if depth <= DEEPEST and isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item, depth + 1) for item in value]
    return jsonable(value, depth=depth)


class Attempt(Finding):
    """One attack on one release, or the reason why there was none.

    Attributes:
        attack: name of the attack in the plan.
        adversary: of a defended release, "adaptive" for who knows the defenses, "static" for who does not; else "".
        refines: name of the attack whose claim was refined, for a refined claim; else "".
        labels: how the labels were had: "recovered", "disclosed", "optimized"; None where they were not.
    """

    attack: str = ""
    adversary: str = ""
    refines: str = ""
    labels: str | None = None

    @property
    def title(self) -> str:
        """The attack, and by whom, where that makes a difference."""
        return f"{self.attack} ({self.adversary} adversary)" if self.adversary else self.attack

    @property
    def base(self) -> str:
        """The attack whose controls speak of it: a refined claim stands and falls with the one that it began with."""
        return self.refines or self.attack

    @property
    def error(self) -> Score | None:
        """The error of the reconstruction, of entries scaled to [0, 1] or of tokens; None where it was not scored."""
        found = (self.score(name) for name in ERRORS)
        return next((one for one in found if one is not None and one.evidence is Evidence.ATTACK), None)

    @property
    def errors(self) -> Sequence[float | None]:
        """The error by example, None for an example without a claim; empty where nothing was scored."""
        return by_example(self.error)

    @property
    def best(self) -> float | None:
        """The smallest error, or None."""
        return min((error for error in self.errors if error is not None), default=None)


def by_example(score: Score | None) -> Sequence[float | None]:
    """The values of a score by example; its value alone where it lists none, and none without a score."""
    if score is None:
        return ()
    listed = score.details.get("per_example")
    return (score.value,) if listed is None else tuple(listed)
