"""Attacks on single releases as a page shows them, the worst first, and both adversaries side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gradleak.reporting import words
from gradleak.reporting.blocks import Block, Column, Fold, Section, Small, Style, Table, Text, Words, as_is
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

LABEL_ROUTES: Mapping[str, str] = {
    "recovered": "recovered",
    "disclosed": "given",
    "optimized": "optimized",
}
ROWS = 12
_COST = "cost in gradients of the same model on the same batch size"


@dataclass(frozen=True, kw_only=True)
class AttemptView:
    """One attack on one release, ready for print.

    Attributes:
        finding: what the record says.
        error: the smallest error over the examples behind the release.
        psnr: the best PSNR.
        ssim: the largest SSIM.
        baseline: what the blind adversary reaches.
        labels: share of labels found, in a batch each held against the example that its image was paired with.
        label_counts: in a batch the share by counts, whatever the images, where it is another one.
        hits: the examples that were rebuilt exactly, by example.
        note: what a reader needs to know.
        order: its place in the record.
        number: under which number the note stands below the table, 0 for none.
    """

    finding: ReconstructionFinding
    error: Quantity
    psnr: Quantity
    ssim: Quantity
    baseline: Quantity
    labels: Quantity
    label_counts: Quantity
    hits: Sequence[bool]
    note: str
    order: int
    number: int = 0

    @property
    def label(self) -> str:
        """The attack, and which adversary ran it."""
        return as_is(attack_name(self.finding.attack, self.finding.adversary))

    @property
    def place(self) -> str:
        """Place of the release: "example 3", "batch 3", or a dash."""
        return MISSING if self.finding.subject is None else as_is(self.finding.subject)

    @property
    def scenario(self) -> str:
        """Its scenario in print."""
        return as_is(self.finding.scenario)

    @property
    def scored(self) -> bool:
        """True if there is an error."""
        return self.error.value is not None

    @property
    def examples(self) -> int:
        """Number of examples behind the release."""
        return max(len(self.hits), 1)


def attempts(findings: Sequence[ReconstructionFinding], context: Context) -> list[AttemptView]:
    """The attacks, the worst first, those without an error last."""
    views = [_view(finding, order, context) for order, finding in enumerate(findings) if finding.control is None]
    views.sort(key=lambda view: (not view.scored, view.error.value or 0.0))
    numbers: dict[str, int] = {}
    for view in views:
        if view.note:
            numbers.setdefault(view.note, len(numbers) + 1)
    return [replace(view, number=numbers.get(view.note, 0)) for view in views]


def _view(finding: ReconstructionFinding, order: int, context: Context) -> AttemptView:
    error, labels, hits = finding.error, finding.score("label_accuracy"), finding.score("exact_hits")
    listed = words.sequence(hits.details.get("per_example")) if hits else ()
    if hits and not listed and hits.value is not None:
        listed = (hits.value > 0,)
    blind = context.blind(error, finding.scenario, finding.subject)
    own = "" if error is None else error.note
    if blind is not None and blind.note:
        # What is said of all errors of the run stands on the first screen.
        own = own.replace(blind.note, "").removesuffix("; ")
    return AttemptView(
        finding=finding,
        error=quantity(error),
        psnr=quantity(finding.score("psnr")),
        ssim=quantity(finding.score("ssim")),
        baseline=quantity(blind),
        labels=quantity(labels),
        label_counts=quantity(_by_counts(labels)),
        hits=tuple(hit is True for hit in listed),
        note=finding.note or own,
        order=order,
    )


def _by_counts(score: Score | None) -> Score | None:
    """The share of labels that are right as counts of a batch, or None where it is the same as by example.

    The order within a batch cannot be recovered, so that labels which are paired by poor images look unknown.
    """
    share = None if score is None else as_number(score.details.get("by_counts"))
    return None if score is None or share in (None, score.value) else replace(score, value=share, note="")


def exact_hits(views: Sequence[AttemptView]) -> tuple[int, int]:
    """The examples rebuilt exactly by at least one attack, and the examples attacked, over all releases."""
    best: dict[tuple[str, str], list[bool]] = {}
    for view in views:
        if view.scored:
            flags = best.setdefault((view.scenario, view.place), [False] * view.examples)
            for place, hit in enumerate(view.hits[: len(flags)]):
                flags[place] |= hit
    return sum(map(sum, best.values())), sum(map(len, best.values()))


def attempt_section(views: Sequence[AttemptView], context: Context) -> Section:
    """The attacks example by example, with their notes, the wrong pairings of batches, and what each attack went by."""
    attack, error = Evidence.ATTACK, words.sentence(context.error)
    table = Table(
        columns=[
            Column(label="Example"),
            Column(label="Scenario"),
            Column(label="Attack"),
            Column(label="PSNR", numeric=True, evidence=attack),
            Column(label=error, numeric=True, evidence=attack),
            Column(label="Blind baseline", numeric=True, evidence=Evidence.EXACT),
            Column(label="SSIM", numeric=True, evidence=attack),
            Column(label="Labels found", evidence=attack),
            Column(label="Outcome"),
            Column(label="Steps", numeric=True),
            Column(label="Plain gradients", numeric=True, hint=_COST),
        ],
        rows=[_row(view) for view in views],
        shown=ROWS,
        folded="more attacks",
        single=True,
    )
    notes = list(dict.fromkeys(view.note for view in views if view.note))
    blocks: list[Block] = [table]
    blocks += [Text(parts=list(map(as_is, notes)), style=Style.NUMBERED)] if notes else []
    blocks += [*_wrong_pairings(views, context), *_information(views)]
    return Section(
        anchor="examples", title="Attacks, example by example", aside="worst first", label="Examples", blocks=blocks
    )


def _row(view: AttemptView) -> list[Words]:
    finding = view.finding
    several = [Small(f"closest of {view.examples}")] if view.examples > 1 else []
    note = [Small(f"note {view.number}")] if view.number else []
    outcome = words.outcome(finding.outcome)
    return [
        [view.place, *several],
        view.scenario,
        view.label,
        view.psnr,
        view.error,
        view.baseline,
        view.ssim,
        _labels(view),
        [outcome, *note],
        count(finding.iterations),
        count(finding.plain_gradients),
    ]


def _labels(view: AttemptView) -> Words:
    """The share of labels found; in a batch as counts first, since its order cannot be recovered."""
    found: list[Quantity | str] = [view.labels]
    if view.examples == 1 and view.labels.value is not None:
        found = [replace(view.labels, text="yes" if view.labels.value == 1 else "no")]
    elif view.label_counts.value is not None:
        found = [view.label_counts, "as counts,", view.labels, "by example"]
    route = LABEL_ROUTES.get(str(view.finding.labels), str(view.finding.labels or ""))
    return [*found, *([f", {as_is(route)}"] if route and view.labels.value is not None else [])]


def _wrong_pairings(views: Sequence[AttemptView], context: Context) -> list[Block]:
    found = [(view, quantity(view.finding.score("wrong_pairing_rmse"))) for view in views]
    rows: list[list[Words]] = [
        [view.place, view.scenario, view.label, view.error, wrong] for view, wrong in found if wrong.value is not None
    ]
    if not rows:
        return []
    columns = [
        Column(label="Batch"),
        Column(label="Scenario"),
        Column(label="Attack"),
        Column(label=f"Smallest {context.error}", numeric=True, evidence=Evidence.ATTACK),
        Column(label=f"{words.sentence(context.error)} against wrong examples", numeric=True, evidence=Evidence.EXACT),
    ]
    return [
        Text(parts=[WRONG_PAIRING], style=Style.FINE),
        Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on batches", single=True),
    ]


def _information(views: Sequence[AttemptView]) -> list[Block]:
    """Information that the attacks used besides the update: each list of facts once, in the order of the record."""
    users: dict[tuple[str, ...], list[str]] = {}
    for view in sorted(views, key=lambda view: view.order):
        facts = tuple(as_is(fact) for fact in words.sequence(view.finding.details.get("information")))
        names = users.setdefault(facts, [])
        if view.label not in names:
            names.append(view.label)
    parts = [f"**{', '.join(names)}**: {'; '.join(facts)}" for facts, names in users.items() if facts]
    if not parts:
        return []
    return [
        Fold(
            title="Information that each attack used besides the update",
            blocks=[Text(parts=parts, style=Style.LIST)],
            printed=True,
        )
    ]


def adversary_section(views: Sequence[AttemptView], context: Context) -> Section | None:
    """One row for every attack on a defended release, the worst first; None where no release is defended."""
    found: dict[tuple[str, str, str], dict[str, AttemptView]] = {}
    for view in views:
        if view.finding.adversary:
            place = (view.scenario, view.place, view.finding.attack)
            found.setdefault(place, {})[view.finding.adversary] = view
    if not found:
        return None
    error = words.sentence(context.error)
    columns = [
        Column(label="Scenario"),
        Column(label="Example"),
        Column(label="Attack"),
        Column(label=f"{error}, static", numeric=True, evidence=Evidence.ATTACK),
        Column(label=f"{error}, adaptive", numeric=True, evidence=Evidence.ATTACK),
        Column(label="Blind baseline", numeric=True, evidence=Evidence.EXACT),
    ]
    rows = [_side_by_side(place, by) for place, by in found.items()]
    notes = dict.fromkeys(
        f"{view.scenario}: {view.label}: {as_is(view.note)}"
        for by in found.values()
        for view in by.values()
        if view.finding.outcome is Outcome.UNSUPPORTED
    )
    blocks: list[Block] = [Text(parts=[ADVERSARIES])]
    blocks.append(
        Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on defended releases", single=True)
    )
    blocks += [Text(parts=list(notes), style=Style.FINE)] if notes else []
    return Section(anchor="adversaries", title="Static and adaptive, side by side", label="Adversaries", blocks=blocks)


def _side_by_side(place: tuple[str, str, str], by: Mapping[str, AttemptView]) -> list[Words]:
    scenario, example, attack = place
    blind = next((view.baseline for view in by.values() if view.baseline.value is not None), Quantity())
    return [scenario, example, as_is(attack), _reached(by.get("static")), _reached(by.get("adaptive")), blind]


def _reached(view: AttemptView | None) -> Quantity:
    if view is None:
        return Quantity(text="not run")
    outcome = view.finding.outcome
    if view.scored or outcome is None:
        return view.error
    text = "refused" if outcome is Outcome.UNSUPPORTED else outcome.label.replace("_", " ")
    return replace(view.error, text=text, outcome=outcome, note=view.note)


def attack_name(attack: str, adversary: str) -> str:
    """The attack, and which adversary ran it, where there are two."""
    return f"{attack}, {adversary}" if adversary else attack
