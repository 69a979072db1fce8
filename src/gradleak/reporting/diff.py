"""Two records side by side: verdicts that changed, scores and whether they differ beyond their intervals, plans by key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Chip, Note, Section, Table, Tag, Text, Words, as_is, labels, numbers
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import between, quantity
from gradleak.reporting.page import ROWS, Report
from gradleak.results import RUN, Leakier, Policy, Record, Score, Verdict, VerdictKind

_RANK = {VerdictKind.BOUNDED: 0, VerdictKind.INCONCLUSIVE: 1, VerdictKind.LEAKS: 2}
# What a header holds beside the plan, and decides about its numbers.
_HEADER = ("gradleak", "versions", "device", "threads")
# A key that only one of two plans has, in print.
_NOT_THERE = "not there"


@dataclass(frozen=True, kw_only=True)
class VerdictChange:
    """Verdict that is not the same in both records.

    Attributes:
        item: of the verdict.
        before: in the first record, or None.
        after: in the second one, or None.
    """

    item: str
    before: Verdict | None
    after: Verdict | None

    @property
    def worse(self) -> bool:
        """True if both records judge the item, and the second one worse: leaks after inconclusive after bounded."""
        if self.before is None or self.after is None:
            return False
        return _RANK[self.after.verdict] > _RANK[self.before.verdict]


@dataclass(frozen=True, kw_only=True)
class ScoreChange:
    """Score with another value in the second record.

    Attributes:
        item: of the finding.
        before: in the first record.
        after: in the second one.
    """

    item: str
    before: Score
    after: Score

    @property
    def named(self) -> Score:
        """The score to name both by: the second one, without details that the first one has otherwise."""
        alike = words.score_setting(self.before.details) == words.score_setting(self.after.details)
        return self.after if alike else replace(self.after, details={})

    @property
    def beyond(self) -> bool | None:
        """True if the intervals do not overlap; None where one of the two has none."""
        one, two = self.before.interval, self.after.interval
        return None if one is None or two is None else one[1] < two[0] or two[1] < one[0]

    @property
    def leakier(self) -> bool | None:
        """True if the second one tells of a larger leak; None where neither direction does or a value is missing."""
        one, two = self.before.value, self.after.value
        if one is None or two is None or self.after.leakier is Leakier.NEITHER:
            return None
        return two > one if self.after.leakier is Leakier.HIGHER else two < one


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference of two records.

    Attributes:
        before: the first record.
        after: the second one.
    """

    before: Record
    after: Record

    def printed(self, item: str) -> str:
        """An item of either record as its report calls it."""
        known = (one for one in reversed(self._contexts) if item.partition("/")[0] in one.scenarios)
        return next(known, self._contexts[1]).printed(item)

    @cached_property
    def _contexts(self) -> tuple[Context, Context]:
        return Context(record=self.before), Context(record=self.after)

    @cached_property
    def verdicts(self) -> Sequence[VerdictChange]:
        """The verdicts that are not the same, the run first, then scenarios, then what they were drawn from."""
        one, two = ({verdict.item: verdict for verdict in record.verdicts} for record in (self.before, self.after))
        found = [
            VerdictChange(item=item, before=one.get(item), after=two.get(item))
            for item in dict.fromkeys([*one, *two])
            if (item in one) != (item in two)
            or (one[item].verdict, one[item].reason) != (two[item].verdict, two[item].reason)
        ]
        return sorted(found, key=lambda change: (change.item != RUN, (change.after or change.before).audit is not None))  # type: ignore[union-attr]

    @cached_property
    def scores(self) -> Sequence[ScoreChange]:
        """The scores of both records whose values differ; first those beyond their intervals."""
        one, two = _scores(self.before), _scores(self.after)
        found = [
            ScoreChange(item=str(key[0]), before=one[key], after=score)
            for key, score in two.items()
            if key in one and one[key].value != score.value
        ]
        return sorted(found, key=lambda change: (change.beyond is not True, change.beyond is False))

    @cached_property
    def compared(self) -> int:
        """The number of scores that both records hold."""
        return len(_scores(self.before).keys() & _scores(self.after).keys())

    @cached_property
    def plan(self) -> Sequence[tuple[str, str, str]]:
        """The keys that differ, with both values as text: plans as they were written, then with all defaults, then the header.

        A default that a written key of the same change stands for is left out.
        """
        one, two = (words.mapping(record.run.get("plan")) for record in (self.before, self.after))
        written = _changes(one.get("source"), two.get("source"))
        told = [(_path(key), values) for key, *values in written]
        filled = [
            change
            for change in _changes(*({**plan, "source": None} for plan in (one, two)))
            if not any([*change[1:]] == values and _within(path, _path(change[0])) for path, values in told)
        ]
        headers = ({key: record.run.get(key) for key in _HEADER} for record in (self.before, self.after))
        found = [*written, *filled, *_changes(*headers)]
        # Of weights, code and rules that the keys name and do not show.
        old, new = (str(record.run.get("plan_digest")) for record in (self.before, self.after))
        return found or ([("plan_digest", old, new)] if old != new else [])

    @cached_property
    def worse(self) -> Sequence[str]:
        """Lines on what is worse in the second record: verdicts, scenarios no longer judged, scores beyond their intervals.

        References of the second plan are left out.
        """
        references, context = Policy.of(self.after).references, self._contexts[1]
        found = []
        for change in self.verdicts:
            about = change.after or change.before
            if about is None or about.scenario in references:
                continue
            if change.worse:
                found.append(f"{self.printed(change.item)}: {_named(change.before)} → {_named(change.after)}")
            elif change.after is None and change.item in context.scenarios:
                found.append(f"{change.item}: {_named(change.before)} → no verdict")
        owners = {finding.item: finding.scenario for finding in self.after.findings}
        found += [
            f"{self.printed(score.item)}: {words.score_name(score.after.name, context.entry)} leaks more, beyond both "
            "intervals"
            for score in self.scores
            if score.beyond and score.leakier and owners.get(score.item) not in references
        ]
        return found


def difference(before: Record, after: Record) -> Report:
    """The report on two records, which `render_html` and `render_markdown` show.

    Args:
        before: what to compare with.
        after: what is judged.
    """
    found = Difference(before=before, after=after)
    old, new = (Context(record=record).verdict_on(RUN) for record in (before, after))
    count = len(found.worse)
    said = (
        f"{count} {'thing is' if count == 1 else 'things are'} worse" if count else "Nothing that is compared is worse"
    )
    names = [as_is(record.run.get("name") or "audit") for record in (before, after)]
    changed = sum(change.beyond is True for change in found.scores)
    return Report(
        record=after,
        title=f"{names[1]} against {names[0]}",
        notes=[
            Note(title="Unfinished run.", text=f"{len(record.missing)} parts of {name} are missing.")
            for record, name in zip((before, after), names, strict=True)
            if not record.complete
        ],
        verdict=new,
        reason=f"{said}. The verdict on the run was {_named(old)} and is {_named(new)}.",
        explanation=f"{len(found.verdicts)} verdicts changed; of {found.compared} scores in both records "
        f"{len(found.scores)} have other values, {changed} beyond their intervals.",
        opened=True,
        remedy="Look at what is worse, and at the keys of the plan that changed with it."
        if count
        else "None is needed.",
        front=[Text(parts=[as_is(line) for line in found.worse])] if count else [],
        sections=[_verdicts(found), _scored(found), _plans(found)],
    )


def _verdicts(found: Difference) -> Section:
    rows: list[list[Words]] = [
        [
            as_is(found.printed(change.item)),
            Chip(change.before.verdict if change.before else None),
            Chip(change.after.verdict if change.after else None),
            [Tag("worse", tone="bad")] if change.worse else "",
            as_is(words.reason(change.after.reason)) if change.after else "no verdict any more",
        ]
        for change in found.verdicts
    ]
    columns = [*labels("Item", "Before", "After", "Change"), *labels("Why", why=True)]
    return _section("verdicts", "Verdicts that changed", columns, rows, "Every verdict is as it was.")


def _scored(found: Difference) -> Section:
    beyond: dict[bool | None, Words] = {
        True: Tag("beyond the intervals"),
        False: "within the intervals",
        None: "no interval on one side at least",
    }
    direction = {True: "leaks more", False: "leaks less", None: ""}
    entry = Context(record=found.after).entry
    rows: list[list[Words]] = [
        [
            as_is(found.printed(change.item)),
            as_is(words.score_title(change.named, entry)),
            [quantity(change.before), between(change.before)],
            [quantity(change.after), between(change.after)],
            direction[change.leakier],
            beyond[change.beyond],
        ]
        for change in found.scores
    ]
    columns = [*labels("Item", "Score"), *numbers("Before", "After"), *labels("Direction", "Difference")]
    return _section("scores", "Scores with other values", columns, rows, "Every score of both records is the same.")


def _plans(found: Difference) -> Section:
    rows: list[list[Words]] = [[f"`{key.replace('`', '')}`", as_is(old), as_is(new)] for key, old, new in found.plan]
    return _section("plan", "Plans, key by key", labels("Key", "Before", "After"), rows, "Both plans are the same.")


def _section(anchor: str, title: str, columns: Sequence[Any], rows: Sequence[Sequence[Words]], none: str) -> Section:
    table = Table(columns=columns, rows=rows, shown=ROWS, folded="more rows", single=True)
    blocks: list[Block] = [table] if rows else [Text(parts=[none])]
    return Section(anchor=anchor, title=title, blocks=blocks)


def _named(verdict: Verdict | None) -> str:
    return "no verdict" if verdict is None else verdict.verdict.value


def _scores(record: Record) -> dict[tuple[object, ...], Score]:
    """Scores by what tells them from each other; the place counts where that is not enough."""
    found: dict[tuple[object, ...], Score] = {}
    for item, score in record.scores:
        key = (item, score.name, score.unit, score.evidence, tuple(sorted(score.about.items())))
        place = 0
        while (*key, place) in found:
            place += 1
        found[(*key, place)] = score
    return found


def _changes(before: Any, after: Any) -> list[tuple[str, str, str]]:
    """The leaves that differ between two nested tables, by path, with both values as text."""
    one, two = (dict(_flat(words.mapping(each), "")) for each in (before, after))
    gone = object()
    return [
        (key, *_in_print(one.get(key, gone), two.get(key, gone), gone))
        for key in dict.fromkeys([*one, *two])
        if not _same(one.get(key, gone), two.get(key, gone))
    ]


def _same(one: Any, two: Any) -> bool:
    """Equality that tells true from 1."""
    return isinstance(one, bool) is isinstance(two, bool) and bool(one == two)


def _in_print(one: Any, two: Any, gone: object) -> tuple[str, str]:
    """Two values that differ, as texts that do."""
    short, long = (
        tuple(_NOT_THERE if value is gone else show(value) for value in (one, two)) for show in (words.plain, repr)
    )
    first, second = short if len(set(short)) > 1 else long
    return first, second


def _path(key: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", key)


def _within(some: Sequence[str], every: Sequence[str]) -> bool:
    """True if the parts of a path occur in another one, in their order."""
    left = iter(every)
    return all(part in left for part in some)


def _flat(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested tables by their path; parts of a list go by their names, where they have some."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _flat(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        for place, part in enumerate(value):
            named = part.get("name") if isinstance(part, Mapping) else None
            yield from _flat(part, f"{where}[{named if isinstance(named, str) else place}]")
    elif where:
        yield where, value
