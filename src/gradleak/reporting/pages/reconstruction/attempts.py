"""Attacks on single releases as a page shows them, the worst first, and both adversaries side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Fold, Section, Small, Style, Table, Text, Words, as_is, labels, numbers
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, count, quantity
from gradleak.results import Evidence, Outcome, Score
from gradleak.results.findings.reconstruction import ReconstructionFinding

WRONG_PAIRING = (
    "Claims on a batch come in no order and are paired with its examples one to one before they are scored. The same "
    "claims, each held against a wrong example, reach the errors below on average: an error near its own has found nothing "
    "about single examples, however small it looks."
)

ADVERSARIES = (
    "The adversary of a defended release either knows the defenses and their constants (adaptive), or takes the update for an "
    "undefended one (static); both start from the same guesses. The stronger counts: a defense that stops the static adversary "
    "alone does not protect, and a refused attack is no evidence of safety. Error and blind baseline are those of the example of "
    "a batch that came out closest, which need not be the same one in every row."
)

_ROUTES: Mapping[str, str] = {"disclosed": "given"}
ROWS = 12
_COST = "cost in gradients of the same model on the same batch size"


@dataclass(frozen=True, eq=False)
class AttemptView:
    """One attack on one release, with what the blind adversary reaches there."""

    finding: ReconstructionFinding
    blind: Score | None

    @property
    def label(self) -> str:
        """The attack, and which adversary ran it, where there are two."""
        return as_is(", ".join(part for part in (self.finding.attack, self.finding.adversary) if part))

    @property
    def place(self) -> str:
        """Place of the release: "example 3", "batch 3", or a dash."""
        return MISSING if self.finding.subject is None else as_is(self.finding.subject)

    @property
    def scenario(self) -> str:
        """Its scenario in print."""
        return as_is(self.finding.scenario)

    @property
    def error(self) -> Quantity:
        """The smallest error over the examples behind the release."""
        return quantity(self.finding.error)

    @property
    def baseline(self) -> Quantity:
        """The error of the blind adversary."""
        return quantity(self.blind)

    def number(self, name: str) -> Quantity:
        """Another score of the attack."""
        return quantity(self.finding.score(name))

    @cached_property
    def hits(self) -> Sequence[bool]:
        """The examples that were rebuilt exactly, by example."""
        score = self.finding.score("exact_hits")
        listed = words.sequence(score.details.get("per_example")) if score else ()
        if score and not listed and score.value is not None:
            return (score.value > 0,)
        return [hit is True for hit in listed]

    @property
    def examples(self) -> int:
        """Number of examples behind the release."""
        return max(len(self.hits), 1)

    @property
    def note(self) -> str:
        """The note of the attack, or that of its error; what is said of all errors stands on the first screen."""
        own = "" if self.finding.error is None else self.finding.error.note
        shared = self.blind.note if self.blind else ""
        return self.finding.note or (own.replace(shared, "").removesuffix("; ") if shared else own)


def attempts(findings: Sequence[ReconstructionFinding], context: Context) -> list[AttemptView]:
    """The attacks, the worst first, those without an error last."""
    views = [
        AttemptView(one, context.blind(one.error, one.scenario, one.subject)) for one in findings if one.control is None
    ]
    return sorted(views, key=lambda view: (view.error.value is None, view.error.value or 0.0))


def exact_hits(views: Sequence[AttemptView]) -> tuple[int, int]:
    """The examples rebuilt exactly by at least one attack, and the examples attacked, over all releases."""
    best: dict[tuple[str, str], list[bool]] = {}
    for view in views:
        if view.error.value is not None:
            flags = best.setdefault((view.scenario, view.place), [False] * view.examples)
            for place, hit in enumerate(view.hits[: len(flags)]):
                flags[place] |= hit
    return sum(map(sum, best.values())), sum(map(len, best.values()))


def attempt_section(
    views: Sequence[AttemptView], findings: Sequence[ReconstructionFinding], context: Context
) -> Section:
    """The attacks example by example, with their notes, the wrong pairings of batches, and what each attack went by."""
    attack = Evidence.ATTACK
    columns = [
        *labels("Example", "Scenario", "Attack"),
        *numbers("PSNR", words.sentence(context.error), evidence=attack),
        *numbers("Blind baseline", evidence=Evidence.EXACT),
        *numbers("SSIM", evidence=attack),
        *labels("Labels found", evidence=attack),
        *labels("Outcome"),
        *numbers("Steps"),
        *numbers("Plain gradients", hint=_COST),
    ]
    notes = list(dict.fromkeys(view.note for view in views if view.note))
    rows = [_row(view, notes) for view in views]
    blocks: list[Block] = [Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks", single=True)]
    blocks += [Text(parts=list(map(as_is, notes)), style=Style.NUMBERED)] if notes else []
    blocks += [*_wrong_pairings(views, context), *_information(findings)]
    return Section(
        anchor="examples", title="Attacks, example by example", aside="worst first", label="Examples", blocks=blocks
    )


def _row(view: AttemptView, notes: Sequence[str]) -> list[Words]:
    finding = view.finding
    several = [Small(f"closest of {view.examples}")] if view.examples > 1 else []
    note = [Small(f"note {notes.index(view.note) + 1}")] if view.note else []
    return [
        [view.place, *several],
        view.scenario,
        view.label,
        view.number("psnr"),
        view.error,
        view.baseline,
        view.number("ssim"),
        _labels(view),
        [words.outcome(finding.outcome), *note],
        count(finding.iterations),
        count(finding.plain_gradients),
    ]


def _labels(view: AttemptView) -> Words:
    """The share of labels found; in a batch as counts first, since its order cannot be recovered.

    Labels that are paired by poor images look unknown.
    """
    score = view.finding.score("label_accuracy")
    share = None if score is None else as_number(score.details.get("by_counts"))
    if score is None or score.value is None:
        return [quantity(score)]
    found: list[Quantity | str] = [quantity(score)]
    if view.examples == 1:
        found = [replace(quantity(score), text="yes" if score.value == 1 else "no")]
    elif share is not None and share != score.value:
        found = [quantity(replace(score, value=share, note="")), "as counts,", quantity(score), "by example"]
    route = _ROUTES.get(str(view.finding.labels), str(view.finding.labels or ""))
    return [*found, *([f", {as_is(route)}"] if route else [])]


def _wrong_pairings(views: Sequence[AttemptView], context: Context) -> list[Block]:
    found = [(view, view.number("wrong_pairing_rmse")) for view in views]
    rows: list[list[Words]] = [
        [view.place, view.scenario, view.label, view.error, wrong] for view, wrong in found if wrong.value is not None
    ]
    columns = [
        *labels("Batch", "Scenario", "Attack"),
        *numbers(f"Smallest {context.error}", evidence=Evidence.ATTACK),
        *numbers(f"{words.sentence(context.error)} against wrong examples", evidence=Evidence.EXACT),
    ]
    table = Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on batches", single=True)
    return [Text(parts=[WRONG_PAIRING], style=Style.FINE), table] if rows else []


def _information(findings: Sequence[ReconstructionFinding]) -> list[Block]:
    """Information that the attacks used besides the update: each list of facts once, in the order of the record."""
    users: dict[tuple[str, ...], dict[str, None]] = {}
    for one in findings:
        facts = tuple(as_is(fact) for fact in words.sequence(one.details.get("information")))
        if one.control is None and facts:
            users.setdefault(facts, {})[AttemptView(one, None).label] = None
    parts = [f"**{', '.join(names)}**: {'; '.join(facts)}" for facts, names in users.items()]
    title, listed = "Information that each attack used besides the update", Text(parts=parts, style=Style.LIST)
    return [Fold(title=title, blocks=[listed], printed=True)] if parts else []


def adversary_section(views: Sequence[AttemptView], context: Context) -> Section | None:
    """One row for every attack on a defended release, the worst first; None where no release is defended."""
    found: dict[tuple[str, str, str], dict[str, AttemptView]] = {}
    for view in views:
        if view.finding.adversary:
            place = (view.scenario, view.place, as_is(view.finding.attack))
            found.setdefault(place, {})[view.finding.adversary] = view
    if not found:
        return None
    error = words.sentence(context.error)
    columns = [
        *labels("Scenario", "Example", "Attack"),
        *numbers(f"{error}, static", f"{error}, adaptive", evidence=Evidence.ATTACK),
        *numbers("Blind baseline", evidence=Evidence.EXACT),
    ]
    rows: list[list[Words]] = []
    for place, by in found.items():
        blind = next((view.baseline for view in by.values() if view.baseline.value is not None), Quantity())
        rows.append([*place, _reached(by.get("static")), _reached(by.get("adaptive")), blind])
    notes = dict.fromkeys(
        f"{view.scenario}: {view.label}: {as_is(view.note)}"
        for by in found.values()
        for view in by.values()
        if view.finding.outcome is Outcome.UNSUPPORTED
    )
    blocks: list[Block] = [
        Text(parts=[ADVERSARIES]),
        Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on defended releases", single=True),
    ]
    blocks += [Text(parts=list(notes), style=Style.FINE)] if notes else []
    return Section(anchor="adversaries", title="Static and adaptive, side by side", label="Adversaries", blocks=blocks)


def _reached(view: AttemptView | None) -> Quantity:
    if view is None:
        return Quantity(text="not run")
    outcome = view.finding.outcome
    if view.error.value is not None or outcome is None:
        return view.error
    text = "refused" if outcome is Outcome.UNSUPPORTED else outcome.label.replace("_", " ")
    return replace(view.error, text=text, outcome=outcome, note=view.note)
