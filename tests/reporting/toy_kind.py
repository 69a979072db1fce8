"""A kind of audit that counts dead units: its finding, its page, and a record of it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradleak.reporting.blocks import (
    Badge,
    Chip,
    Column,
    Exhibit,
    Figure,
    Fold,
    Gallery,
    Hint,
    Level,
    Mark,
    Note,
    Picture,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Tile,
    Tiles,
    Words,
    as_is,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import quantity
from gradleak.results import (
    ZHU_2019,
    Control,
    Evidence,
    Finding,
    Kind,
    Leakier,
    Outcome,
    Record,
    Score,
    Status,
    Subject,
    Verdict,
    VerdictKind,
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7*7 }}|**a**`b`[c](http://d)\n# e"
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABc3UBGAAAAABJRU5ErkJggg==")
KIND = Kind(
    name="dead_units",
    finding="tests.reporting.toy_kind:DeadUnitsFinding",
    audit="tests.reporting.toy_kind:nothing",
    page="tests.reporting.toy_kind:page",
)


class DeadUnitsFinding(Finding):
    """Number of units of a layer that never answer."""

    kind: str = "dead_units"
    dead: int = 0
    picture: str | None = None
    plain_gradients: float | None = None

    @property
    def cost(self) -> float | None:
        """What it took."""
        return self.plain_gradients


def page(findings: Sequence[DeadUnitsFinding], context: Context) -> Section | None:
    """A section with every block there is."""
    shown = [finding for finding in findings if finding.control is None and finding.scores]
    if not shown:
        return None
    rows: list[list[Words]] = [
        [
            as_is(context.title(finding)),
            (quantity(finding.score("dead_share")), Small(f"of {finding.dead}")),
            quantity(finding.score("answers")),
            Tag("formal", "with a proof", "bounded"),
            Hint("ended", "it ended by itself"),
        ]
        for finding in shown
    ]
    columns = [Column(label="Item"), Column(label="Dead share", numeric=True, evidence=Evidence.EXACT)]
    columns += [Column(label="Answers", numeric=True, hint="how many"), Column(label="Guarantee"), Column(label="End")]
    first = quantity(shown[0].score("dead_share"))
    gallery = [
        Exhibit(
            title=str(finding.subject),
            pictures=[Picture(source=context.picture(finding.picture), alt="a unit", caption=["**Unit**", first])],
        )
        for finding in shown
    ]
    return Section(
        anchor="dead",
        title="Dead units",
        aside="worst first",
        blocks=[
            Text(parts=["Units that **never** answer, by *layer*, in `code`."]),
            Text(parts=["A heading"], style=Style.HEADING),
            Text(parts=["one", "two"], style=Style.LIST),
            Text(parts=["first note", "second note"], style=Style.NUMBERED),
            Text(parts=[["dead", "never answers"]], style=Style.TERMS),
            Text(
                parts=[[Mark("known", True), "Model", "a network"], [Mark("not known", False), "Labels", "not known"]],
                style=Style.FACTS,
            ),
            Table(columns=columns, rows=rows, caption="By layer", shown=12, folded="more layers", single=True),
            Figure(draw=lambda: '<svg role="img"></svg>', alt="a drawing", caption="A drawing"),
            Figure(draw=lambda: "", alt="nothing to draw"),
            Gallery(exhibits=gallery, shown=9),
            Fold(title="What is not printed", blocks=[Text(parts=["```\n<b>", "hidden"], style=Style.CODE)]),
            Fold(title="What is printed", blocks=[Text(parts=[["the number", first]])], printed=True),
        ],
        front=[
            Tiles(tiles=[Tile(label="Largest share", value=first, sub="of a layer", evidence=Evidence.EXACT)]),
            Note(title="The claim is broken.", text=as_is(shown[0].note), level=Level.LOUD),
        ],
        reading=[Text(parts=[["Dead share is exact ", Badge(Evidence.EXACT), ": it is counted."]], style=Style.FINE)],
        sections=[Section(anchor="dead-more", title="More", blocks=[Text(parts=[[Chip(None), "of a part"]])])],
    )


def score(name: str = "dead_share", value: float | None = 0.25, **fields: Any) -> Score:
    """A score of a layer."""
    given: dict[str, Any] = {"unit": "share", "leakier": Leakier.HIGHER, "evidence": Evidence.EXACT, **fields}
    return Score(name=name, value=value, **given)


def answers() -> Score:
    """A score that could not be had."""
    return score("answers", None, outcome=Outcome.UNSUPPORTED, note="nobody *asked* it", evidence=Evidence.ATTACK)


def found(place: int = 0, name: str = "a", **fields: Any) -> DeadUnitsFinding:
    """A finding on an example."""
    given: dict[str, Any] = {"scores": (score(value=0.25 + 0.01 * place), answers()), "dead": 4, **fields}
    subject = Subject(noun="example", name=str(place))
    return DeadUnitsFinding(
        item=f"{name}/example {place}/dead", audit="dead", scenario=name, subject=subject, seconds=1.5, **given
    )


def controls(*, passed: bool | None = True) -> list[DeadUnitsFinding]:
    """A planted leak and a blank, each played twice."""
    planted = Control(
        planted=True,
        title="A planted leak",
        expects="Dead units must be found.",
        meaning="The counter is broken.",
        passed=passed,
        measure="dead_share",
        baseline=0.125,
    )
    blank = Control(
        planted=False, title="A blank", expects="Nothing must be found.", meaning="It sees ghosts.", passed=True
    )
    return [
        DeadUnitsFinding(
            item=f"control/{place}", audit="dead", scores=(score(value=0.5),), control=control, note="as it is"
        )
        for place, control in enumerate((planted, planted, blank))
    ]


def problems() -> list[DeadUnitsFinding]:
    """A refusal, said twice, and a failure."""
    refused: dict[str, Any] = {"status": Status.REFUSED, "outcome": Outcome.UNSUPPORTED, "note": "no layer"}
    return [
        DeadUnitsFinding(item="a/refused", audit="dead", scenario="a", **refused),
        DeadUnitsFinding(item="a/refused", audit="dead", scenario="a", **refused),
        DeadUnitsFinding(item="a/failed", audit="dead", status=Status.FAILED, outcome=Outcome.FAILED),
    ]


def verdicts(kind: VerdictKind = VerdictKind.LEAKS, reason: str = "dead_units_found") -> list[Verdict]:
    """One on each finding, on the scenarios, and on the run."""
    about: dict[str, Any] = {"verdict": kind, "reason": reason, "explanation": "A unit of a/example 0 is dead."}
    return [
        Verdict(
            item="a/example 0/dead", audit="dead", scenario="a", subject=Subject(noun="example", name="0"), **about
        ),
        Verdict(
            item="b/dead", audit="dead", scenario="b", verdict=VerdictKind.BOUNDED, reason="dp_bound", explanation="-"
        ),
        Verdict(item="b", scenario="b", verdict=VerdictKind.BOUNDED, reason="dp_bound", explanation="By its noise."),
        Verdict(item="a", scenario="a", **about),
        Verdict(item="run", **about),
    ]


def line(one: Finding | Verdict, place: int, of: int) -> dict[str, Any]:
    """A line of a record."""
    kind = "finding" if isinstance(one, Finding) else "verdict"
    return {"type": kind, "group": "all", "line": place, "of": of, **one.to_dict()}


def record(*lines: Finding | Verdict, path: Path | None = None, **run: Any) -> Record:
    """A record in memory of these lines, or of a whole run."""
    given = lines or (found(), found(0, "b"), *controls(), *problems(), *verdicts())
    header = {
        "type": "run",
        "schema": 2,
        "gradleak": "0.1.0",
        "name": "toy",
        "seed": 7,
        "plan": {"name": "toy", "scenarios": [{"name": "a"}, {"name": "b"}], "data": [{"domain": {"kind": "image"}}]},
        "plan_digest": "4f0c9a7be1",
        "thresholds": {"pixel_rmse": 0.1, "epsilon": 1.0},
        "groups": ["all"],
        "versions": {"python": "3.11.9", "torch": "2.13.0"},
        "host": {"cores": 2, "command": "bin/gradleak audit toy.toml --out runs/toy"},
        "estimate": {"plain_gradients": 52000},
        "citations": 2 * [{"key": ZHU_2019.key, "text": ZHU_2019.text(), "bibtex": ZHU_2019.bibtex()}],
    }
    rows = tuple(line(one, place, len(given)) for place, one in enumerate(given))
    return Record(run=header | run, lines=rows, path=path)


def poisoned(value: Any, key: str = "") -> Any:
    """A line or header with hostile text wherever a text stands that a record may hold freely."""
    kept = {"type", "kind", "status", "outcome", "evidence", "leakier", "verdict", "group", "value", "name", "measure"}
    if isinstance(value, dict):
        return {name: poisoned(entry, name) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [poisoned(entry, key) for entry in value]
    if not isinstance(value, str) or key in kept or (key == "item" and value in ("run", "a", "b")):
        return value
    return HOSTILE + value


def hostile() -> Record:
    """The whole run with hostile texts."""
    whole = record()
    names = {"name": HOSTILE, "versions": {HOSTILE: HOSTILE}, "groups": ["all", HOSTILE], "seed": HOSTILE}
    return Record(run=poisoned(whole.run) | names, lines=tuple(poisoned(dict(one)) for one in whole.lines))
