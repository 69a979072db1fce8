"""Settings declared once: fields of a dataclass are held against their annotations, and one formatter words every refusal."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from functools import cache
from types import NoneType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union, get_args, get_origin

from gradleak.results.errors import GradleakError, InputError, either, nearest, several, shown
from gradleak.results.fields import Flag, Function, Hint, Kind, Member, Number, Rule, Text, Whole

if TYPE_CHECKING:
    from pydantic_core import ValidationError

_PLAIN: Mapping[Any, Rule] = {int: Whole(), float: Number(infinite=True), bool: Flag(), str: Text()}
_NUMERALS: Mapping[int, str] = {2: "two", 3: "three", 4: "four"}


class Settings:
    """Base of settings: the fields of a dataclass are held against their annotations when one is made.

    Annotate with the types of `gradleak.results.fields`, with enumerations (`Mode | str` says that the name will do), with
    classes, and with `Sequence` and `Mapping` of these. Sequences become tuples, names become members; what may be changed
    (`list`, `dict`) is kept as it is. A class with a `__post_init__` of
    its own, for what depends on more than one field, calls `super().__post_init__()` first. An annotation that cannot be read
    at run time takes anything, and so does a field that keeps its default.

    Attributes:
        refused_with: the error of a refusal.
        called: what messages call the object; empty for the name of its class.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Search(Settings):
        ...     steps: Annotated[int, Whole(1)] = 100
        ...     signed: bool = False
        >>> Search(steps=20)
        Search(steps=20, signed=False)
        >>> Search(steps=1.5)
        Traceback (most recent call last):
        gradleak.results.errors.InputError: Search.steps: expected a whole number of at least 1, got 1.5
    """

    refused_with: ClassVar[type[GradleakError]] = InputError
    called: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Hold every field against its annotation.

        Raises:
            InputError: naming class and field, what was expected and what came.
        """
        for name, default, check in _checks(type(self)):  # type: ignore[arg-type]
            value = getattr(self, name)
            if value is default:
                continue
            taken = check(value, f"{self.called or type(self).__name__}.{name}", self.refused_with)
            if taken is not value:
                object.__setattr__(self, name, taken)


class Check:
    """An annotation, ready to hold values against it.

    Attributes:
        hint: the annotation as pydantic gets it, with a rule in place of every plain type.
        words: what it takes, as it stands after "expected"; empty if that is anything.
        remedy: what goes after every refusal.
    """

    def __init__(self, hint: Any) -> None:
        """Made from an annotation."""
        from pydantic import ConfigDict, TypeAdapter

        self.hint, self.words = _ruled(hint)
        self.remedy = next((one.text for one in getattr(hint, "__metadata__", ()) if isinstance(one, Hint)), "")
        self._adapter = TypeAdapter(self.hint, config=ConfigDict(arbitrary_types_allowed=True))
        self._validate = self._adapter.validator.validate_python

    def __call__(self, value: Any, name: str, error: type[GradleakError] = InputError, *, tables: bool = False) -> Any:
        """The value as a field of this annotation holds it.

        Args:
            value: what a user gives.
            name: of the field, for the message.
            error: class of the refusal.
            tables: whether it stands in a plan file, where a table makes an object of a dataclass.

        Raises:
            GradleakError: of that class, in one line.
        """
        from pydantic_core import ValidationError

        try:
            return self._validate(value, context={"make": _made_of} if tables else None)
        except ValidationError as refusal:
            message = _message(refusal, name, dotted=tables)
            raise error(f"{message}; {self.remedy}" if self.remedy else message) from None

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema of what a plan file may have here, classes by their names in a comment."""
        return self._adapter.json_schema()


@cache
def check_of(hint: Any) -> Check:
    """The check of an annotation, made once.

    Args:
        hint: the annotation, evaluated.

    Examples:
        >>> check_of(float | None)(1, "std"), check_of(Sequence[int])([1, 2], "sizes")
        (1.0, (1, 2))
    """
    return Check(hint)


def _message(refusal: ValidationError, name: str, *, dotted: bool) -> str:
    """One line from what pydantic found first."""
    first = refusal.errors(include_url=False)[0]
    parts = [part for part in first["loc"] if part != "[key]"]
    place = "".join(f".{part}" if dotted and isinstance(part, str) else f"[{part!r}]" for part in parts)
    context = first.get("ctx", {})
    if "said" in context:
        return f"{name}{place}{context['said']}"
    expected = f"expected {context['words']}" if "words" in context else first["msg"]
    hint = f"; {context['hint']}" if context.get("hint") else ""
    return f"{name}{place}: {expected}, got {shown(first['input'])}{hint}"


def _made_of(kind: type, table: Mapping[str, Any]) -> Any:
    """The object of a dataclass that a table of a plan file describes.

    Raises:
        InputError: beginning with ":" or with "." and the key.
    """
    known = {field.name: field for field in fields(kind) if field.init}
    for key in table:
        if key not in known:
            near = nearest(key, list(known))
            raise InputError(f": unknown key {key!r}; {near}{near and ' '}expected one of {', '.join(known)}")
    lacking = [
        name for name, one in known.items()
        if name not in table and one.default is MISSING and one.default_factory is MISSING
    ]  # fmt: skip
    if lacking:
        raise InputError(f": expected {', '.join(lacking)} too")
    values = {key: check_of(annotation(kind, key))(value, f".{key}", tables=True) for key, value in table.items()}
    try:
        return kind(**values)
    except GradleakError as refusal:
        raise InputError(f": {refusal}") from refusal


@cache
def _checks(owner: type) -> tuple[tuple[str, Any, Check], ...]:
    """Name, default and check of every field that says what it takes."""
    checks = []
    for field in fields(owner):
        check = check_of(annotation(owner, field.name))
        if field.init and check.words:
            checks.append((field.name, field.default, check))
    return tuple(checks)


def annotation(owner: type, name: str) -> Any:
    """The annotation of a field, evaluated in the module of the class that states it; Any if a name in it is not there.

    Args:
        owner: a dataclass.
        name: of the field.
    """
    base = next(one for one in owner.__mro__ if name in inspect.get_annotations(one))
    stated = SimpleNamespace(__annotations__={name: inspect.get_annotations(base)[name]})
    try:
        return typing.get_type_hints(stated, vars(sys.modules[base.__module__]), include_extras=True)[name]
    except (NameError, TypeError, AttributeError, KeyError):
        return Any


@dataclass(frozen=True)
class _Container:
    """A list or a table, before what is in it is looked at."""

    words: str
    table: bool = False
    size: int | None = None

    def __call__(self, value: Any) -> Any:
        if self.table:
            fits = isinstance(value, Mapping)
        else:
            fits = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping | Set)
        if not fits or self.size not in (None, len(value)):
            raise _refusal(self.words)
        return dict(value) if self.table else tuple(value)


@dataclass(frozen=True)
class _Kept:
    """Values that may be changed: the very list, set or dict that was given, if nothing in it had to become another."""

    words: str
    kind: type

    def __call__(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        takes: Any = self.kind if self.kind is dict else (list, tuple, set, frozenset)
        if not isinstance(value, takes):
            raise _refusal(self.words)
        made = handler(value)
        return value if type(value) is type(made) and value == made else made


@dataclass(frozen=True)
class _Choice:
    """One of several annotations: the first that takes the value."""

    words: str

    def __call__(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import ValidationError

        try:
            return handler(value)
        except ValidationError:
            raise _refusal(self.words) from None


def _refusal(words: str) -> Exception:
    from pydantic_core import PydanticCustomError

    return PydanticCustomError("expected", "expected {words}", {"words": words})


def _ruled(hint: Any) -> tuple[Any, str]:
    """The annotation with a rule in place of every plain type in it, however deep, and what it takes, in words."""
    from pydantic import BeforeValidator, WrapValidator

    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = [one for one in hint.__metadata__ if isinstance(one, Rule)]
        return (Annotated[arguments[0], rules[0]], rules[0].words) if rules else _ruled(arguments[0])
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is Sequence or (origin is tuple and arguments[1:] == (...,)):
        inner, words = _ruled(arguments[0])
        return _container(tuple[inner, ...], f"a list of {several(words)}" if several(words) else "a list")  # type: ignore[valid-type]
    if origin is tuple:
        parts = [_ruled(one) for one in arguments]
        words = f"{_NUMERALS.get(len(parts), len(parts))} {several(parts[0][1]) or 'values'}"
        return _container(tuple[tuple(part for part, _ in parts)], words, size=len(parts))  # type: ignore[misc]
    if origin in (list, set, frozenset):
        inner, words = _ruled(arguments[0])
        words = f"a list of {several(words)}" if several(words) else "a list"
        return Annotated[origin[inner], WrapValidator(_Kept(words, origin))], words
    if origin in (Mapping, collections.abc.Mapping, dict):
        (key, _), (value, words) = (_ruled(one) for one in arguments)
        # Keys of a table in TOML are texts.
        key = Annotated[key, BeforeValidator(_number)] if arguments[0] is int else key
        words = f"{several(words) or 'values'} by name"
        if origin is dict:
            return Annotated[dict[key, value], WrapValidator(_Kept(words, dict))], words  # type: ignore[valid-type]
        return _container(dict[key, value], words, table=True)  # type: ignore[valid-type]
    if origin in (Callable, collections.abc.Callable):
        return _by(Function())
    kind = origin or hint
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False) or kind in (object, Any):
        return Any, ""
    if kind in _PLAIN:
        return _by(_PLAIN[kind])
    return _by(Member(kind) if issubclass(kind, Enum) else Kind((kind,)))


def _union(hints: Sequence[Any]) -> tuple[Any, str]:
    """The annotation of a choice; an enumeration takes the names of its members, so that `| str` beside it says nothing."""
    from pydantic import Field, WrapValidator

    named = any(isinstance(one, type) and issubclass(one, Enum) for one in hints)
    parts = [_ruled(one) for one in hints if one is not NoneType and not (named and one is str)]
    optional = NoneType in hints
    if any(not words for _, words in parts):
        return Any, ""
    classes = [
        rule.kinds[0] for part, _ in parts for rule in getattr(part, "__metadata__", ()) if isinstance(rule, Kind)
    ]
    if len(classes) == len(parts):
        return _by(Kind((*classes, NoneType) if optional else tuple(classes)))
    if len(parts) == 1:
        return (parts[0][0] | None if optional else parts[0][0]), parts[0][1]
    words = either([*(words for _, words in parts), *(["None"] if optional else [])])
    choice = functools.reduce(operator.or_, [*(part for part, _ in parts), *([None] if optional else [])])
    return Annotated[choice, Field(union_mode="left_to_right"), WrapValidator(_Choice(words))], words


def _number(key: Any) -> Any:
    return int(key) if isinstance(key, str) and key.removeprefix("-").isdecimal() else key


def _by(rule: Rule) -> tuple[Any, str]:
    return Annotated[Any, rule], rule.words


def _container(hint: Any, words: str, *, table: bool = False, size: int | None = None) -> tuple[Any, str]:
    from pydantic import BeforeValidator

    return Annotated[hint, BeforeValidator(_Container(words, table=table, size=size))], words
