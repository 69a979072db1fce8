"""The page on reconstruction: the worst attempt, pictures, attacks example by example, and both adversaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gradleak.reporting import words
from gradleak.reporting.beyond import Rows
from gradleak.reporting.blocks import (
    MOST,
    Block,
    Exhibit,
    Fold,
    Gallery,
    Picture,
    Section,
    Small,
    Style,
    Table,
    Text,
    Tile,
    Tiles,
    Words,
    as_is,
    labels,
    numbers,
)
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
EXHIBITS = 9
# Characters of pictures beyond those, so that the page opens.
LARGEST_GALLERY = 3 * 2**20
_NO_PICTURES = (
    "Pictures are off: the plan did not ask for them (`pictures = true`), or their files are not beside the record."
)


def page(findings: Sequence[ReconstructionFinding], context: Context) -> Section | None:
    """The section on reconstruction, None where nothing was attacked."""
    views = attempts(findings, context)
    if not views:
        return None
    parts = (
        adversary_section(views, context),
        _pictures(views, context),
        attempt_section(views, findings, context),
        _attacks(findings, context),
    )
    return Section(
        anchor="reconstruction",
        title="Reconstruction",
        aside="what attacks made of the updates alone",
        front=[_tiles(views, context)],
        reading=[*_errors(context), *_support(views)],
        sections=[part for part in parts if part is not None],
    )


def _tiles(views: Sequence[AttemptView], context: Context) -> Tiles:
    """The strongest attempt of the run."""
    worst = next((view for view in views if view.error.value is not None), None)
    hits, attacked = exact_hits(views)
    told: tuple[tuple[str, Words, str, Evidence], ...] = (
        (
            f"Smallest {context.error}",
            "no attack was scored" if worst is None else worst.error,
            "" if worst is None else f"reached by {worst.label}, {worst.place}, {worst.scenario}",
            Evidence.ATTACK,
        ),
        (
            "Its PSNR",
            MISSING if worst is None else worst.number("psnr"),
            "higher is closer; above about 30 dB a small picture looks like the original",
            Evidence.ATTACK,
        ),
        (
            "Blind baseline beside it",
            MISSING if worst is None else worst.baseline,
            f"{context.error} of the best guess without the update",
            Evidence.EXACT,
        ),
        (
            "Exact hits",
            f"{hits} of {attacked}" if attacked else MISSING,
            f"attacked examples with {context.error} below 0.001, over all scenarios",
            Evidence.ATTACK,
        ),
    )
    # A number of pictures says nothing of a row of a table.
    named = [one for one in told if context.data_kind == "image" or one[0] != "Its PSNR"]
    return Tiles(tiles=[Tile(label=label, value=value, sub=sub, evidence=kind) for label, value, sub, kind in named])


def _pictures(views: Sequence[AttemptView], context: Context) -> Section | None:
    """The private originals, each beside what attacks made of its update, the worst first; None for data without pictures."""
    kept: dict[tuple[str, str], list[AttemptView]] = {}
    for view in views:
        if view.finding.picture is not None:
            kept.setdefault((view.scenario, view.place), []).append(view)
    shown: list[Exhibit] = []
    size, further = 0, len(kept)
    for beside in kept.values():
        if len(shown) == MOST or (len(shown) >= EXHIBITS and size > LARGEST_GALLERY):
            break
        further -= 1
        sources = [(view, source) for view in beside if (source := context.picture(view.finding.picture)) is not None]
        if sources:
            shown.append(_exhibit(sources, context))
            size += sum(len(picture.source or "") for picture in shown[-1].pictures)
    if not shown and context.data_kind != "image":
        return None
    blocks: list[Block]
    if shown:
        text = "Each row: the private original, then what each attack made of its update alone, best attack first."
        blocks = [Text(parts=[text]), Gallery(exhibits=shown, shown=EXHIBITS, further=further)]
    else:
        blocks = [Text(parts=[_NO_PICTURES])]
    return Section(anchor="pictures", title="Original beside reconstruction", label="Pictures", blocks=blocks)


def _exhibit(beside: Sequence[tuple[AttemptView, str]], context: Context) -> Exhibit:
    first = beside[0][0]
    about = context.grounds.about(first.finding.scenario, first.finding.subject)
    paths = (getattr(one, "picture", None) for one in about if not isinstance(one, ReconstructionFinding))
    original = next((source for path in paths if (source := context.picture(path)) is not None), None)
    caption: list[Words] = ["**Original**", ["blind baseline: RMSE", replace(first.baseline, evidence="")]]
    pictures = [Picture(source=original, alt=f"Original of {first.place}", caption=caption)]
    for view, source in beside:
        psnr, support = view.number("psnr"), words.SUPPORT.get(view.finding.support, "")
        reached: list[Words] = [["PSNR", replace(psnr, evidence="")], ["RMSE", replace(view.error, evidence="")]]
        alt = f"Reconstruction of {first.place} by {view.label}, PSNR {psnr.text}"
        caption = [f"**{view.label}**", *reached, *([support] if support else [])]
        pictures.append(Picture(source=source, alt=alt, caption=caption))
    return Exhibit(title=[words.sentence(first.place), f"({first.scenario})"], pictures=pictures)


def _attacks(findings: Sequence[ReconstructionFinding], context: Context) -> Section:
    """The attacks as they were set up, and what they cost."""
    planned: dict[str, object] = {}
    sections = words.mapping(words.mapping(context.plan.get("audits")).get(findings[0].kind))
    for section in sections.values():
        planned |= words.mapping(words.mapping(section).get("attacks"))
    ran = [finding for finding in findings if finding.control is None]
    rows: list[list[Words]] = []
    by_attack: dict[str, list[ReconstructionFinding]] = {name: [] for name in planned}
    for finding in ran:
        by_attack.setdefault(finding.attack, []).append(finding)
    for name, mine in by_attack.items():
        config = words.mapping(planned.get(name)) or next((finding.settings for finding in mine), {})
        spent = [number for one in mine if (number := as_number(one.plain_gradients)) is not None]
        rows.append(
            [
                as_is(name),
                as_is(config.get("use", name)),
                as_is(words.constants(config)),
                str(len(mine)),
                count(sum(spent) if spent else None),
            ]
        )
    columns = [
        *labels("Name", "Attack"),
        *labels("Settings", why=True),
        *numbers("Releases", "Plain gradients"),
    ]
    title, table = "The attacks and their settings", Table(columns=columns, rows=rows)
    return Section(anchor="attacks", title=title, label=None, blocks=[table])


def _errors(context: Context) -> list[Block]:
    """Rule by which an attack is said to have rebuilt an example, and the meaning of its numbers."""
    image = context.data_kind == "image"
    tenth = "clearly recognizable" if image else "a tenth of the valid range"
    constants = "mid-gray, the best constant a channel" if image else "the middle of the valid range, the best constant"
    return [
        Text(
            parts=[
                "Attacks on a release say “leaks” where one that never saw the truth rebuilt at least one example: its error is "
                "below the threshold, at most the stated share of what guessing blindly gives, and smaller than luck brings.",
                f"**{words.sentence(context.error)}** is the root of the mean squared difference of {context.entries} scaled to "
                f"[0, 1]: 0 is a perfect copy, 0.1 is {tenth}. **PSNR** is the same on a log scale, −20 log₁₀ RMSE in dB; it is "  # noqa: RUF001
                "infinite for a perfect copy, so counts and medians are given and never means. The **blind baseline** is the "
                f"error of the best guess that ignores the update: {constants} *chosen with the truth by the scorer*, or the "
                f"mean public {'picture' if image else 'example'} where one is known. It is deliberately strong, so that "
                "“leaks” is conservative.",
            ],
            style=Style.FINE,
        )
    ]


def _support(views: Sequence[AttemptView]) -> list[Block]:
    """Meaning of the words about pictures out of a generator, where there are such."""
    if not any(view.finding.support for view in views):
        return []
    parts: list[Words] = [[name, meaning] for name, meaning in words.SUPPORT_MEANINGS.items()]
    return [
        Text(parts=["Pictures out of a generator, and what the update itself says of them"], style=Style.HEADING),
        Text(parts=parts, style=Style.TERMS),
    ]


__all__ = ["page"]


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
    # Of the attacks that the page shows.
    notes = list(dict.fromkeys(view.note for view in views[:MOST] if view.note))
    numbered = {note: number for number, note in enumerate(notes, 1)}
    rows = Rows(views, lambda view: _row(view, numbered))
    blocks: list[Block] = [Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks", single=True)]
    blocks += [Text(parts=list(map(as_is, notes)), style=Style.NUMBERED)] if notes else []
    blocks += [*_wrong_pairings(views, context), *_information(findings)]
    return Section(
        anchor="examples", title="Attacks, example by example", aside="worst first", label="Examples", blocks=blocks
    )


def _row(view: AttemptView, notes: Mapping[str, int]) -> list[Words]:
    finding = view.finding
    several = [Small(f"closest of {view.examples}")] if view.examples > 1 else []
    note = [Small(f"note {notes[view.note]}")] if view.note in notes else []
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
    found = [view for view in views if view.number("wrong_pairing_rmse").value is not None]
    rows = Rows(found, lambda one: [one.place, one.scenario, one.label, one.error, one.number("wrong_pairing_rmse")])
    columns = [
        *labels("Batch", "Scenario", "Attack"),
        *numbers(f"Smallest {context.error}", evidence=Evidence.ATTACK),
        *numbers(f"{words.sentence(context.error)} against wrong examples", evidence=Evidence.EXACT),
    ]
    table = Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on batches", single=True)
    return [Text(parts=[WRONG_PAIRING], style=Style.FINE), table] if found else []


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
    rows = Rows(list(found.items()), lambda one: _side_by_side(*one))
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


def _side_by_side(place: tuple[str, str, str], by: Mapping[str, AttemptView]) -> list[Words]:
    blind = next((view.baseline for view in by.values() if view.baseline.value is not None), Quantity())
    return [*place, _reached(by.get("static")), _reached(by.get("adaptive")), blind]


def _reached(view: AttemptView | None) -> Quantity:
    if view is None:
        return Quantity(text="not run")
    outcome = view.finding.outcome
    if view.error.value is not None or outcome is None:
        return view.error
    text = "refused" if outcome is Outcome.UNSUPPORTED else outcome.label.replace("_", " ")
    return replace(view.error, text=text, outcome=outcome, note=view.note)
