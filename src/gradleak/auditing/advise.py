"""The weakest setting of a defense that is bounded at a stated utility, by bisection over one number of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_file import build_plan
from gradleak.auditing.plan_reader import PlanReader
from gradleak.auditing.run import run_plan
from gradleak.auditing.sweep import lists, printed
from gradleak.audits.base import table_of, tables_of
from gradleak.results import PlanError, Record, Score, VerdictKind
from gradleak.results.errors import shown

# Settings beside both ends and the middle: halvings, or points of a grid.
STEPS = 4
_CLOSED_FORMS = ("inversion_influence", "linearized_posterior_error")


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One setting, and what its run found.

    Attributes:
        value: of the number.
        verdict: on the scenario, or None.
        utility: of models trained through it, or None.
        unproven: whether a closed form alone lets it pass: no attack came near and no guarantee holds.
    """

    value: float
    verdict: VerdictKind | None
    utility: Score | None
    unproven: bool

    @property
    def bounded(self) -> bool:
        """True if a guarantee holds against every attacker."""
        return self.verdict is VerdictKind.BOUNDED

    def __str__(self) -> str:
        """One line: "0.5: bounded, test_accuracy 0.81 (0.78 to 0.84)"."""
        worth = "no utility"
        if self.utility is not None and self.utility.value is not None:
            low, high = self.utility.interval or (self.utility.value, self.utility.value)
            worth = f"{self.utility.name} {self.utility.value:.3g} ({low:.3g} to {high:.3g})"
        return f"{printed(self.value)}: {self.verdict.value if self.verdict else 'no verdict'}, {worth}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Result of the search.

    Attributes:
        key: the number that was searched over.
        tried: the settings from the weakest to the strongest.
        chosen: the weakest one that is bounded at the utility, or None.
        open: what the search could not resolve, in sentences.
    """

    key: str
    tried: Sequence[Tried]
    chosen: Tried | None
    open: Sequence[str]


def advise(
    content: Mapping[str, Any],
    *,
    folder: Path,
    utility: float,
    out: Path,
    jobs: int | None = None,
    device: torch.device | None = None,
) -> Advice:
    """Search the numbers between the ends of the one list in a plan's scenarios.

    Both ends and their middle are run first. Where a stronger setting is never less bounded, and worth no more beyond its
    interval, halving follows, else a grid. Every setting keeps the name of its scenario, so that all draw the same
    randomness, and has a folder of its own in `out`, from which a search that ended early goes on.

    Args:
        content: the parsed plan, with `[utility]` and one scenario with one list of at least two numbers above 0.
        folder: of the plan file.
        utility: the least that the trained model has to reach.
        out: folder of the runs.
        jobs: worker processes.
        device: where the tasks compute; as of `run_plan`.

    Raises:
        PlanError: for a plan without such a list, or without `[utility]`, or a utility that no model has.

    Cost: at most 3 + 4 runs of the scenario.
    """
    if not math.isfinite(utility):
        raise PlanError(f"--utility: expected a finite number such as an accuracy of 0.8, got {utility}")
    search = _Search(content=content, folder=folder, out=out, jobs=jobs, device=device)
    if not any(audit.judges_models for audit in search.plan(search.values[0]).audits):
        raise PlanError("advise: expected a section [utility], which says how models are trained and judged, got none")
    ends = sorted(search.values)
    first, last = (search.run(value) for value in (ends[0], ends[-1]))
    weak, strong = (last, first) if _stronger(first, last) else (first, last)
    middle = search.run(_between(weak, strong, 0.5))
    ordered = [weak, middle, strong]
    said: list[str] = []
    if not _monotone(ordered):
        said.append(
            "stronger settings are not always more bounded and worth less: a grid was tried, and more may lie between"
        )
        share = [(place + 1) / (STEPS + 1) for place in range(STEPS)]
        for part in share:
            search.run(_between(weak, strong, part))
    elif strong.bounded and not weak.bounded:
        below, above = (weak, middle) if middle.bounded else (middle, strong)
        for _ in range(STEPS):
            between = search.run(_between(below, above, 0.5))
            below, above = (below, between) if between.bounded else (between, above)
        said.append(f"between {printed(below.value)} and {printed(above.value)} nothing was tried")
    elif weak.bounded:
        said.append(f"the weakest end, {printed(weak.value)}, is bounded already: weaker settings were not tried")
    else:
        said.append("no end is bounded: ask for a guarantee (measures), or widen the list")
    tried = sorted(search.tried.values(), key=lambda one: abs(math.log(one.value / weak.value)))
    good = [one for one in tried if one.bounded and one.utility and (one.utility.value or 0.0) >= utility]
    if good and good[0].utility and good[0].utility.interval and good[0].utility.interval[0] < utility:
        said.append(f"the interval of its utility goes below {utility:g}: more seeds or test rows would tell")
    if not good and any(one.bounded for one in tried):
        said.append(f"what is bounded is worth less than {utility:g}")
    return Advice(key=search.key, tried=tried, chosen=good[0] if good else None, open=said)


@dataclass
class _Search:
    """The runs of one scenario by its number."""

    content: Mapping[str, Any]
    folder: Path
    out: Path
    jobs: int | None
    device: torch.device | None = None
    tried: dict[float, Tried] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reader = PlanReader(folder=self.folder, seed=0, content=self.content)
        found = list(self._swept(reader))
        if len(found) != 1:
            keys = (
                " and ".join(one[2] for one in found) or "none; write such as noise_multiplier = [0.3, 3] in a defense"
            )
            raise PlanError(f"advise: expected one list of numbers among the scenarios, got {keys}")
        self.scenario, self.number, self.key, self.values = found[0]
        wrong = [value for value in self.values if not isinstance(value, int | float) or not 0 < value < math.inf]
        if wrong or len(set(self.values)) < 2:
            raise PlanError(
                f"advise: expected at least two different numbers above 0 in {self.key}, got {shown(list(self.values))}"
            )

    def _swept(self, reader: PlanReader) -> Iterator[tuple[Mapping[str, Any], int, str, Sequence[Any]]]:
        for place, spec in enumerate(tables_of(self.content.get("scenarios", []), "scenarios")):
            table = table_of(spec, f"scenarios[{place}]")
            for (number, key), values in lists(table, reader):
                yield table, number, key, values

    def plan(self, value: float) -> Plan:
        """The plan with this number in its one scenario, which is all that its audits are about."""
        defenses = [dict(spec) for spec in self.scenario["defenses"]]
        defenses[self.number][self.key] = value
        one = {key: given for key, given in self.scenario.items() if key != "reference"} | {"defenses": defenses}
        parts = {
            name: {key: given for key, given in part.items() if key != "scenarios"}
            if isinstance(part, Mapping)
            else part
            for name, part in self.content.items()
        }
        return build_plan({**parts, "scenarios": [one]}, folder=self.folder)

    def run(self, value: float) -> Tried:
        """The setting of this number, run once."""
        if value not in self.tried:
            folder = self.out / f"{self.key}={printed(value)}"
            record = run_plan(self.plan(value), folder, jobs=self.jobs, device=self.device)
            self.tried[value] = _tried(value, str(self.scenario.get("name")), record)
        return self.tried[value]


def _between(weak: Tried, strong: Tried, part: float) -> float:
    """Number between two settings on a log scale, of three digits."""
    return float(f"{weak.value ** (1 - part) * strong.value**part:.3g}")


def _tried(value: float, scenario: str, record: Record) -> Tried:
    verdict = next((one.verdict for one in record.verdicts if one.item == scenario), None)
    scores = [score for _, score in record.scores if score.value is not None]
    limit = record.run["thresholds"]["pixel_rmse"]
    predicted = [score.value or 0.0 for score in scores if score.name in _CLOSED_FORMS and score.unit == "pixel_rmse"]
    return Tried(
        value=value,
        verdict=verdict,
        utility=next((score for score in scores if score.name.startswith("test_")), None),
        unproven=verdict is VerdictKind.INCONCLUSIVE and bool(predicted) and min(predicted) > limit,
    )


def _worth(one: Tried) -> tuple[float, float]:
    """The interval of its utility; nothing is known without one."""
    if one.utility is None or one.utility.value is None:
        return -math.inf, math.inf
    return one.utility.interval or (one.utility.value, one.utility.value)


def _stronger(first: Tried, second: Tried) -> bool:
    if first.bounded != second.bounded:
        return first.bounded
    return sum(_worth(first)) < sum(_worth(second)) if math.isfinite(sum(_worth(first) + _worth(second))) else False


def _monotone(ordered: Sequence[Tried]) -> bool:
    """True if no stronger setting is less bounded, or worth more beyond the intervals."""
    return all(one.bounded <= other.bounded and _worth(other)[0] <= _worth(one)[1] for one, other in pairwise(ordered))
