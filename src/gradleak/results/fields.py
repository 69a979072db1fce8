"""Types of settings, such as `Count`, and checks of numbers and members: each says once what is taken, and words the error."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from enum import Enum, StrEnum
from inspect import isabstract
from numbers import Integral, Real
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from gradleak.results.errors import InputError, either, nearest, shown, with_article

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
    from pydantic_core import CoreSchema

# What messages call classes that are not ours.
_KNOWN: Mapping[str, str] = {
    "builtins.NoneType": "None",
    "torch.Tensor": "a tensor",
    "torch.nn.modules.module.Module": "a torch.nn.Module",
    "numpy.ndarray": "an array",
}


class Rule(ABC):
    """Rule on the values that a field takes. It stands in `Annotated`, where pydantic finds it."""

    @property
    @abstractmethod
    def words(self) -> str:
        """Words that stand after "expected" in a message."""

    @abstractmethod
    def take(self, value: Any) -> Any:
        """The value as the field holds it.

        Raises:
            ValueError: if it is not what is expected; its text, if any, goes after the message.
        """

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what a plan file may have here."""

    def check(self, name: str, value: Any) -> None:
        """Refuse an argument that is not what is expected; for functions, which have no fields.

        Args:
            name: of the argument.
            value: what a user gives.

        Raises:
            InputError: naming the argument, what was expected and what came.
        """
        try:
            self.take(value)
        except ValueError as refusal:
            hint = f"; {refusal}" if str(refusal) else ""
            raise InputError(f"{name}: expected {self.words}, got {shown(value)}{hint}") from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The check, for pydantic."""
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any) -> Any:
            try:
                return self.take(value)
            except ValueError as refusal:
                context = {"words": self.words, "hint": str(refusal)}
                raise PydanticCustomError("expected", "expected {words}", context) from None

        return core_schema.no_info_plain_validator_function(check)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema, for pydantic."""
        return self.schema()


@dataclass(frozen=True)
class Whole(Rule):
    """A whole number from `low` to `high`, both included; None for no end."""

    low: int | None = None
    high: int | None = None

    @property
    def words(self) -> str:
        """For instance "a whole number of at least 1"."""
        if self.low is not None and self.high is not None:
            return f"a whole number from {self.low:,} to {self.high:,}"
        if self.high is not None:
            return f"a whole number of at most {self.high:,}"
        return "a whole number" if self.low is None else f"a whole number of at least {self.low:,}"

    def take(self, value: Any) -> int:
        """The number as an int."""
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError
        number = int(value)
        if (self.low is not None and number < self.low) or (self.high is not None and number > self.high):
            raise ValueError
        return number

    def schema(self) -> dict[str, Any]:
        """An integer in its range."""
        ends = {"minimum": self.low, "maximum": self.high}
        return {"type": "integer"} | {key: end for key, end in ends.items() if end is not None}


@dataclass(frozen=True)
class _Seed(Whole):
    """A whole number that `torch.Generator.manual_seed` takes."""

    low: int | None = -(2**63)
    high: int | None = 2**64 - 1

    @property
    def words(self) -> str:
        """A whole number, and how long it may be."""
        return "a whole number of at most 64 bits"


@dataclass(frozen=True)
class Number(Rule):
    """A number from `low` to `high`; an end that is `excluded` ("low", "high", "both") does not belong to it.

    Infinity belongs to it only where there is no end and `infinite` is set.
    """

    low: float | None = None
    high: float | None = None
    excluded: str = ""
    infinite: bool = False

    @property
    def words(self) -> str:
        """For instance "a number from 0 to below 1"."""
        above, below = self.excluded in ("low", "both"), self.excluded in ("high", "both")
        finite = "" if self.infinite else "finite "
        if self.low is not None and self.high is not None:
            if above and below:
                return f"a number between {self.low:g} and {self.high:g}"
            if above:
                return f"a number above {self.low:g} and at most {self.high:g}"
            return f"a number from {self.low:g} to {'below ' if below else ''}{self.high:g}"
        if self.high is not None:
            return f"a {finite}number {'below' if below else 'of at most'} {self.high:g}"
        if self.low is None:
            return f"a {finite}number"
        if above and self.low == 0:
            return f"a {finite}positive number"
        return f"a {finite}number {'above' if above else 'of at least'} {self.low:g}"

    def take(self, value: Any) -> float:
        """The number as a float."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError
        try:
            number = float(value)
        except OverflowError:
            raise ValueError from None
        inside = not math.isnan(number) and (self.infinite or not math.isinf(number))
        if self.low is not None:
            inside = inside and (number > self.low if self.excluded in ("low", "both") else number >= self.low)
        if self.high is not None:
            inside = inside and (number < self.high if self.excluded in ("high", "both") else number <= self.high)
        if not inside:
            raise ValueError
        return number

    def schema(self) -> dict[str, Any]:
        """A number in its range."""
        low = "exclusiveMinimum" if self.excluded in ("low", "both") else "minimum"
        high = "exclusiveMaximum" if self.excluded in ("high", "both") else "maximum"
        return {"type": "number"} | {key: end for key, end in ((low, self.low), (high, self.high)) if end is not None}


@dataclass(frozen=True)
class Flag(Rule):
    """A truth value; the text "false" would count as true."""

    words = "True or False"

    def take(self, value: Any) -> bool:
        """The truth value itself."""
        if not isinstance(value, bool):
            raise ValueError
        return value

    def schema(self) -> dict[str, Any]:
        """A truth value."""
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Rule):
    """A text."""

    words = "a text"

    def take(self, value: Any) -> str:
        """The text itself."""
        if not isinstance(value, str):
            raise ValueError
        return value

    def schema(self) -> dict[str, Any]:
        """A text."""
        return {"type": "string"}


@dataclass(frozen=True)
class Member(Rule):
    """A member of an enumeration, given itself or by its value."""

    kind: type[Enum]

    @property
    def words(self) -> str:
        """All values."""
        return f"one of {', '.join(str(one.value) for one in self.kind)}"

    def take(self, value: Any) -> Enum:
        """The member."""
        try:
            return self.kind(None if isinstance(value, bool) else value)
        except ValueError:
            raise ValueError(nearest(value, [str(one.value) for one in self.kind])) from None

    def schema(self) -> dict[str, Any]:
        """The values to choose from."""
        return {"enum": [one.value for one in self.kind]}


@dataclass(frozen=True)
class Kind(Rule):
    """An object of one of these classes; NoneType is among them where there may be none."""

    kinds: tuple[type, ...]

    @property
    def words(self) -> str:
        """The classes."""
        return either(
            [_KNOWN.get(f"{one.__module__}.{one.__name__}", with_article(one.__name__)) for one in self.kinds]
        )

    def take(self, value: Any) -> Any:
        """The object itself."""
        if not isinstance(value, self.kinds):
            raise ValueError
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """The check; in a plan file a table makes an object of a dataclass."""
        from pydantic_core import PydanticCustomError, core_schema

        def check(value: Any, info: ValidationInfo[Any]) -> Any:
            makes = [kind for kind in self.kinds if is_dataclass(kind) and not isabstract(kind)]
            if info.context is not None and isinstance(value, Mapping) and makes:
                try:
                    return info.context["make"](makes[0], value)
                except InputError as refusal:
                    raise PydanticCustomError("said", "{said}", {"said": str(refusal)}) from None
            if isinstance(value, self.kinds):
                return value
            raise PydanticCustomError("expected", "expected {words}", {"words": self.words})

        return core_schema.with_info_plain_validator_function(check)

    def schema(self) -> dict[str, Any]:
        """A table; which ones make such an object says the schema of plan files, which looks for this comment."""
        return {
            "$comment": " | ".join(f"{one.__module__}:{one.__qualname__}" for one in self.kinds if one is not NoneType)
        }


@dataclass(frozen=True)
class Function(Rule):
    """Something that can be called."""

    words = "a function"

    def take(self, value: Any) -> Any:
        """The function itself."""
        if not callable(value):
            raise ValueError
        return value

    def schema(self) -> dict[str, Any]:
        """Nothing, since no plan file can have one."""
        return {"not": {}}


@dataclass(frozen=True)
class Hint:
    """Hint on a refused value, in `Annotated` beside the type; it goes after the message."""

    text: str


SEED: Whole = _Seed()

Count = Annotated[int, Whole(1)]
Natural = Annotated[int, Whole(0)]
Seed = Annotated[int, SEED]
Finite = Annotated[float, Number()]
Positive = Annotated[float, Number(0, excluded="low")]
NonNegative = Annotated[float, Number(0)]
Probability = Annotated[float, Number(0, 1)]
Share = Annotated[float, Number(0, 1, excluded="both")]
BelowOne = Annotated[float, Number(0, 1, excluded="high")]
ShareOrAll = Annotated[float, Number(0, 1, excluded="low")]


_Kind = TypeVar("_Kind", bound=StrEnum)


def member(name: str, kind: type[_Kind], value: object, *, hint: str = "") -> _Kind:
    """The member of an enumeration that is given itself or by its value.

    Args:
        name: of the field, for the message.
        kind: the enumeration.
        value: what a user gives.
        hint: what the message says after the names.

    Raises:
        InputError: naming the field and all members.

    Examples:
        >>> from enum import StrEnum
        >>> Side = StrEnum("Side", ["LEFT", "RIGHT"])
        >>> member("side", Side, "left")
        <Side.LEFT: 'left'>
    """
    try:
        return cast(_Kind, Member(kind).take(value))
    except ValueError as near:
        meant = f"; {near}" if str(near) else ""
        raise InputError(f"{name}: expected {Member(kind).words}, got {shown(value)}{meant}{hint}") from None


# Of what a name in a plan makes by itself, from sizes alone.
LARGEST = 2**28


def rounded_up(value: float, digits: int = 3) -> float:
    """The value with so many significant digits, rounded up: a bound from above stays one in print.

    Examples:
        >>> rounded_up(0.04531), rounded_up(0.04), rounded_up(123.4, digits=2)
        (0.0454, 0.04, 130.0)
    """
    if value == 0.0 or not math.isfinite(value):
        return value
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    # What is on the grid but for round-off stays there.
    return float(f"{math.ceil(value / step - 1e-9) * step:.{digits}g}")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite positive number.

    Raises:
        InputError: naming the field.

    Examples:
        >>> check_positive("std", 0.1)
    """
    Number(0, excluded="low").check(name, value)


def check_share(name: str, value: object) -> None:
    """Refuse what is no number between 0 and 1, the ends left out.

    Raises:
        InputError: naming the field.
    """
    Number(0, 1, excluded="both").check(name, value)


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is not a finite number of at least 0.

    Raises:
        InputError: naming the field.
    """
    Number(0).check(name, value)


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is not a whole number of at least `least`.

    Raises:
        InputError: naming the field.
    """
    Whole(least).check(name, value)


def check_fits(what: str, numbers: int) -> None:
    """Refuse to make what holds more than 2²⁸ numbers, which take 1 GiB in single precision.

    Args:
        what: is made, for the message.
        numbers: how many it holds.

    Raises:
        InputError: naming it.

    Examples:
        >>> check_fits("images", 5000 * 28 * 28)
    """
    if numbers > LARGEST:
        raise InputError(
            f"{what}: expected at most {LARGEST:,} numbers (1 GiB), got {numbers:,}; make what is larger yourself"
        )


def check_finite(name: str, value: object) -> None:
    """Refuse what is not a finite number.

    Raises:
        InputError: naming the field.
    """
    Number().check(name, value)


def check_seed(name: str, value: object) -> None:
    """Refuse what `torch.Generator.manual_seed` does not take: no whole number, or one of more than 64 bits.

    Raises:
        InputError: naming the field.
    """
    SEED.check(name, value)


def check_flag(name: str, value: object) -> None:
    """Refuse what is no truth value.

    Raises:
        InputError: naming the field.
    """
    Flag().check(name, value)


def check_flags(owner: object, *names: str) -> None:
    """Refuse an object with a field of these names that is no truth value: text such as "false" would count as true.

    Raises:
        InputError: naming class and field.
    """
    for name in names:
        check_flag(f"{type(owner).__name__}.{name}", getattr(owner, name))


def is_number(value: object) -> bool:
    """True if it is a real number, of Python's or numpy's, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)
