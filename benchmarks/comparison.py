"""What peers take for the same, and what is still aimed at: read beside the rows of `python -m benchmarks`, in JSON and Markdown.

Peers' ratios were measured outside of this package, once, with their own code, in plain gradients of the same process; they are
no results of `python -m benchmarks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MEASURED_OUTSIDE = "measured outside, with their own code, on the same kind of machine"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What others take for what a row measures.

    Attributes:
        module: benchmark of the row.
        row: pattern that finds its name.
        name: whose code.
        ratio: in the unit of the row.
    """

    module: str
    row: str
    name: str
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Aim:
    """A number that the project still wants; where a benchmark states it in its own rows, it is named here for what was not run.

    Attributes:
        what: in words.
        most: the largest value that meets it.
        unit: of it.
        module: benchmark whose rows measure it.
        row: pattern that finds their names.
    """

    what: str
    most: float
    unit: str = "plain gradients"
    module: str
    row: str


_STEP = r"ResNet-18, InvertingGradients, iteration$"
_LENET_STEP = r"InvertingGradients, iteration and start, 1 starts$"
PEERS: tuple[Peer, ...] = (
    Peer(module="attacks", row=_STEP, name="breaching", ratio=4.45),
    Peer(module="attacks", row=_STEP, name="GIAS", ratio=5.5),
    Peer(module="attacks", row=_STEP, name="LeakPro, lower of two settings", ratio=9.0),
    Peer(module="attacks", row=_STEP, name="LeakPro, higher of two settings", ratio=15.0),
    Peer(module="attacks", row=_LENET_STEP, name="public tools, lowest", ratio=3.7),
    Peer(module="attacks", row=_LENET_STEP, name="public tools, highest", ratio=4.7),
    Peer(
        module="operators",
        row=r"λmax of ResNet-18 to 1e-4, single, float32$",
        name="code of the I²F paper",
        ratio=335.0,
    ),
    Peer(
        module="operators", row=r"I²F at ε = 1 to 1e-6", name="code of the I²F paper, its exact solver", ratio=12_900.0
    ),
)
AIMS: tuple[Aim, ...] = (
    Aim(what="whole spectrum of AᵀA on the LeNet", most=250.0, module="operators", row="whole spectrum"),
    Aim(what="an exact digit by GaussNewton", most=1_500.0, module="attacks", row="GaussNewton, to round-off"),
    Aim(
        what="gradients by layer of single examples",
        most=1.1,
        unit="of a loop of autograd",
        module="layer_gradients",
        row=".",
    ),
    Aim(what="peak memory: four models and the stated budget", most=5.0, unit="sizes of the model", module="memory", row="."),
    Aim(what="a gate on a small model", most=0.3, unit="s", module="start", row="a gate, further rounds"),
    Aim(what="one more small item of a plan", most=30.0, unit="ms", module="start", row="one more example"),
    Aim(what="import of auditing beyond torch", most=1.5, unit="s", module="start", row="import gradleak.auditing"),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A row with a peer.

    Attributes:
        module: benchmark.
        row: what was measured.
        ours: its value; None where it was not run.
        peer: whose code.
        theirs: what that takes.
    """

    module: str
    row: str
    ours: float | None
    peer: str
    theirs: float


@dataclass(frozen=True, kw_only=True)
class Held:
    """An aim and how it stands.

    Attributes:
        what: in words.
        most: the largest value that meets it.
        unit: of it.
        ours: what was measured, the largest of the rows it is about; None where no row of this file measures it.
        stands: "met", "missed", or why nothing is said.
    """

    what: str
    most: float
    unit: str
    ours: float | None
    stands: str


Rows = Sequence[Mapping[str, Any]]


def beside(rows: Rows) -> list[Beside]:
    """Each peer with the row that measures the same here.

    Args:
        rows: of a file of `python -m benchmarks`.
    """
    return [
        Beside(
            module=peer.module,
            row=found[0]["name"] if found else "",
            ours=found[0]["ratio"] if found else None,
            peer=peer.name,
            theirs=peer.ratio,
        )
        for peer in PEERS
        for found in [_matching(rows, peer.module, peer.row)]
    ]


def standing(rows: Rows) -> list[Held]:
    """How aims stand: those of `AIMS`, and those that rows state themselves.

    Args:
        rows: of a file of `python -m benchmarks`.
    """
    held = []
    for aim in AIMS:
        found = _matching(rows, aim.module, aim.row, aim.unit)
        stated = [row["aim"] for row in found if row["aim"] is not None]
        if not stated or max(stated) > aim.most:
            held.append(_held(aim, found))
    for row in rows:
        if row["aim"] is not None:
            stands = "met" if row["ratio"] <= row["aim"] else "missed"
            what = f"{row['module']}: {row['name']}"
            held.append(Held(what=what, most=row["aim"], unit=row["unit"], ours=row["ratio"], stands=stands))
    return held


def _held(aim: Aim, found: Rows) -> Held:
    if not found:
        return Held(what=aim.what, most=aim.most, unit=aim.unit, ours=None, stands=f"not run ({aim.module})")
    worst = max(row["ratio"] for row in found)
    return Held(
        what=aim.what, most=aim.most, unit=aim.unit, ours=worst, stands="met" if worst <= aim.most else "missed"
    )


def _matching(rows: Rows, module: str, pattern: str, unit: str | None = None) -> list[Mapping[str, Any]]:
    return [
        row
        for row in rows
        if row["module"] == module and re.search(pattern, row["name"]) and unit in (None, row["unit"])
    ]


def summary(rows: Rows) -> dict[str, Any]:
    """What a file holds besides its rows.

    Args:
        rows: of a file of `python -m benchmarks`.
    """
    return {
        "peers": {"source": MEASURED_OUTSIDE, "rows": [asdict(one) for one in beside(rows)]},
        "aims": [asdict(one) for one in standing(rows)],
    }


def markdown(rows: Rows) -> Iterator[str]:
    """The two tables, as lines of Markdown.

    Args:
        rows: of a file of `python -m benchmarks`.
    """
    yield f"Beside peers (theirs: {MEASURED_OUTSIDE})"
    yield ""
    yield "| what | ours | theirs | whose |"
    yield "| --- | --- | --- | --- |"
    for one in beside(rows):
        yield f"| {one.row or one.module} | {_number(one.ours)} | {_number(one.theirs)} | {one.peer} |"
    yield ""
    yield "Aims"
    yield ""
    yield "| what | ours | at most | unit | stands |"
    yield "| --- | --- | --- | --- | --- |"
    for held in sorted(standing(rows), key=lambda held: held.stands != "missed"):
        yield f"| {held.what} | {_number(held.ours)} | {_number(held.most)} | {held.unit} | {held.stands} |"


def _number(value: float | None) -> str:
    return "not run" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
