"""The page on reconstruction: the worst attempt, pictures, attacks example by example, and both adversaries.

Longer than 500 lines since every report on an attack reads all of it, and one enters fourteen files of this room at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from gradleak.reporting import words
from gradleak.reporting.beyond import Rows, side_by_side, support_terms
from gradleak.reporting.blocks import (
    MOST,
    Block,
    Exhibit,
    Fold,
    Gallery,
    Inline,
    Picture,
    Section,
    Small,
    Step,
    Steps,
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
from gradleak.reporting.numerals import MISSING, Quantity, as_number, count, or_dash, quantity
from gradleak.results import Evidence, Outcome, Score, Status, by_example
from gradleak.results.findings.reconstruction import ReconstructionFinding

if TYPE_CHECKING:
    from gradleak.reporting.sentences import Claim

_ROUTES: Mapping[str, str] = {"disclosed": "given"}
ROWS = 12
_STEPS = (
    "Steps add up all stages, starts, free gates and inner loops of an attack, while a setting such as `iterations` or "
    "`max_steps` limits one of them: there can be more. Plain gradients are the cost in gradients of the same model on the "
    "same batch size, rounded."
)
EXHIBITS = 9
# Characters of pictures beyond those, so that the page opens.
LARGEST_GALLERY = 3 * 2**20
# Scenarios to step through on the first screen.
MOST_STEPS = 12
# Below the first it is one, below the second nobody sees a difference.
_COPY, _NEARLY = 1e-6, 1e-3


def page(findings: Sequence[ReconstructionFinding], context: Context) -> Section | None:
    """The section on reconstruction, None where nothing was attacked."""
    views = attempts(findings, context)
    if not views:
        return None
    tokens = context.data_kind == "tokens"
    parts = (
        adversary_section(views, context),
        _sentences(views, context) if tokens else _pictures(views, context),
        _sentence_scores(views, context) if tokens else None,
        attempt_section(views, findings, context),
        _attacks(findings, context),
    )
    return Section(
        anchor="reconstruction",
        title="Reconstruction",
        aside="what attacks made of the updates alone",
        evidence=rebuilt(views, context),
        front=[_tiles(views, context)],
        reading=[*_errors(context), *(support_terms() if any(view.finding.support for view in views) else [])],
        sections=[part for part in parts if part is not None],
    )


def _tiles(views: Sequence[AttemptView], context: Context) -> Tiles:
    """The strongest attempt of the run."""
    worst = next((view for view in views if view.error.value is not None), None)
    hits, attacked = map(sum, zip(*exact_hits(views, context).values(), strict=True))
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
            "Blind guess beside it",
            MISSING if worst is None else worst.baseline,
            f"{context.error} of the best guess without the update",
            Evidence.EXACT,
        ),
        (
            "Exact hits",
            f"{hits} of {attacked}" if attacked else MISSING,
            f"attacked examples with {context.error} below 0.001, over all scenarios, those without a claim among them",
            Evidence.ATTACK,
        ),
    )
    if context.data_kind == "tokens":
        from gradleak.reporting.sentences import told_of_sentences

        found = [one for view in views if (one := view.finding.score("bag_recall")) and one.value is not None]
        by_scenario = exact_hits(views, context)
        told = told_of_sentences(told, MISSING if worst is None else worst.number("rouge_l"), found, by_scenario)
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
        blocks = [Text(parts=[words.NO_PICTURES])]
    return Section(anchor="pictures", title="Original beside reconstruction", label="Pictures", blocks=blocks)


def _sentences(views: Sequence[AttemptView], context: Context) -> Section:
    # Where there are none the page enters one file less.
    from gradleak.reporting.sentences import sentence_section

    kept = [view for view in views if view.finding.picture is not None]
    titles = [f"{words.sentence(view.place)} ({view.scenario}), {view.label}" for view in kept]
    return sentence_section([_claim(view, context, title) for view, title in zip(kept, titles, strict=True)], context)


def _sentence_scores(views: Sequence[AttemptView], context: Context) -> Section:
    from gradleak.reporting.sentences import score_section

    ordered = sorted(
        views, key=lambda view: next(at for at, one in enumerate(views) if _released(one) == _released(view))
    )
    return score_section(
        [
            ((one.place, one.scenario, one.label), one.finding.score, _claim(one, context), _ended(one))
            for one in ordered
        ]
    )


def _released(view: AttemptView) -> tuple[str, str]:
    return view.place, view.scenario


def _claim(view: AttemptView, context: Context, title: str = "") -> Claim:
    from gradleak.reporting.sentences import Claim, best_guesses

    guessed = best_guesses(context, view.finding.scenario, view.finding.subject)
    return Claim(title=title, path=view.finding.picture, original=original_of(view, context), guessed=guessed)


def _exhibit(beside: Sequence[tuple[AttemptView, str]], context: Context) -> Exhibit:
    first = beside[0][0]
    original = context.picture(original_of(first, context))
    caption: list[Words] = ["**Original**", ["blind guess: RMSE", replace(first.baseline, evidence="")]]
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
        *numbers("Runs", "Plain gradients"),
    ]
    title, table = "The attacks and their settings", Table(columns=columns, rows=rows)
    return Section(anchor="attacks", title=title, label=None, blocks=[table])


def _errors(context: Context) -> list[Block]:
    """Rule by which an attack is said to have rebuilt an example, and the meaning of its numbers."""
    if context.data_kind == "tokens":
        from gradleak.reporting.sentences import OF_SENTENCES

        return [Text(parts=OF_SENTENCES, style=Style.FINE)]
    parts = words.errors_read(context.error, context.entries, image=context.data_kind == "image")
    return [Text(parts=parts, style=Style.FINE)]


def attempt_section(
    views: Sequence[AttemptView], findings: Sequence[ReconstructionFinding], context: Context
) -> Section:
    """The attacks example by example, with their notes, the wrong pairings of batches, and what each attack went by."""
    attack = Evidence.ATTACK
    before, after = context.similar
    # Of sentences attacks seldom claim any.
    claimed = context.data_kind != "tokens" or any(view.number("label_accuracy").value is not None for view in views)
    columns = [
        *labels("Example", "Scenario", "Attack"),
        *numbers(*map(words.sentence, map(words.score_name, before)), words.sentence(context.error), evidence=attack),
        *numbers("Blind guess", evidence=Evidence.EXACT),
        *numbers(*map(words.sentence, map(words.score_name, after)), evidence=attack),
        *(labels("Labels found", evidence=attack) if claimed else ()),
        *labels("Outcome"),
        *numbers("Steps", "Plain gradients"),
    ]
    # Of the attacks that the page shows.
    notes = list(dict.fromkeys(view.note for view in views[:MOST] if view.note))
    numbered = {note: number for number, note in enumerate(notes, 1)}
    rows = Rows(views, lambda view: _row(view, numbered, (before, after), claimed=claimed))
    blocks: list[Block] = [Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks", single=True)]
    blocks += [Text(parts=list(map(as_is, notes)), style=Style.NUMBERED)] if notes else []
    blocks += [Text(parts=[_STEPS], style=Style.FINE)]
    blocks += [*_wrong_pairings(views, context), *_information(findings)]
    return Section(
        anchor="examples", title="Attacks, example by example", aside="worst first", label="Examples", blocks=blocks
    )


def _row(
    view: AttemptView, notes: Mapping[str, int], similar: tuple[Sequence[str], Sequence[str]], *, claimed: bool
) -> list[Words]:
    finding = view.finding
    several = [Small(f"closest of {view.examples}")] if view.examples > 1 else []
    note = [Small(f"note {notes[view.note]}")] if view.note in notes else []
    return [
        [view.place, *several],
        view.scenario,
        view.label,
        *(or_dash(view.number(name)) for name in similar[0]),
        or_dash(view.error),
        [view.baseline, *_of_which(view)],
        *(or_dash(view.number(name)) for name in similar[1]),
        *([_labels(view)] if claimed else []),
        [*_ended(view), *note],
        count(finding.iterations),
        count(finding.plain_gradients),
    ]


def _ended(view: AttemptView) -> list[Inline]:
    """The outcome of an attack; what it claims stands, though it claims nothing of other examples, or is not certain of it."""
    told = words.outcome(view.finding.outcome)
    if view.finding.outcome is not Outcome.NOT_IDENTIFIABLE or view.error.value is None:
        return [told]
    # Of a sentence of which nothing is claimed every word is wrong.
    lacking = [error for error in by_example(view.finding.error) if error is None or error >= 1.0]
    return ["in part" if lacking else "claimed, though", told]


def _of_which(view: AttemptView) -> list[Small]:
    """Note on the blind guess beside an attack that claims nothing of a batch."""
    return [Small("smallest of the batch")] if view.error.value is None and "batch" in view.place else []


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
    return [Text(parts=[words.WRONG_PAIRING], style=Style.FINE), table] if found else []


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
        *numbers("Blind guess", evidence=Evidence.EXACT),
    ]
    rows = Rows(list(found.items()), lambda one: _side_by_side(*one))
    notes = dict.fromkeys(
        f"{view.scenario}: {view.label}: {as_is(view.note)}"
        for by in found.values()
        for view in by.values()
        if view.finding.outcome is Outcome.UNSUPPORTED
    )
    blocks: list[Block] = [
        Text(parts=[words.ADVERSARIES]),
        Table(columns=columns, rows=rows, shown=ROWS, folded="more attacks on defended releases", single=True),
    ]
    blocks += [Text(parts=list(notes), style=Style.FINE)] if notes else []
    return Section(anchor="adversaries", title="Static and adaptive, side by side", label="Adversaries", blocks=blocks)


def _side_by_side(place: tuple[str, str, str], by: Mapping[str, AttemptView]) -> list[Words]:
    known = [view for view in by.values() if view.baseline.value is not None]
    nearest = min(known, key=lambda view: (view.error.value is None, view.error.value or 0.0), default=None)
    blind: Words = Quantity() if nearest is None else [nearest.baseline, *_of_which(nearest)]
    return [*place, _reached(by.get("static")), _reached(by.get("adaptive")), blind]


def _reached(view: AttemptView | None) -> Words:
    """The error, or a dash above the reason why there is none."""
    if view is None:
        return [MISSING, Small("not run")]
    outcome = view.finding.outcome
    if view.error.value is not None or outcome is None:
        return view.error
    known = {Outcome.UNSUPPORTED: "refused", Outcome.CONVERGED: "no places claimed"}
    text = known.get(outcome, outcome.label.replace("_", " "))
    return [MISSING, Small(replace(view.error, text=text, outcome=outcome, note=view.note))]


@dataclass(frozen=True, eq=False)
class AttemptView:
    """One attack on one release, with what the blind guess reaches there."""

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
        """The error of the blind guess."""
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


def exact_hits(views: Sequence[AttemptView], context: Context) -> Mapping[str, tuple[int, int]]:
    """The examples rebuilt exactly by at least one attack, and the examples attacked, over the releases of each scenario.

    Attacks that ended without a claim count; those that were refused, failed or left out attacked nothing.

    Args:
        views: the attacks.
        context: the rest of the record.
    """
    best: dict[str, dict[str, list[bool]]] = {view.scenario: {} for view in views}
    for view in views:
        if view.finding.status is Status.DONE:
            flags = best[view.scenario].setdefault(view.place, [])
            flags += [False] * (max(view.examples, _batch_size(view, context)) - len(flags))
            for place, hit in enumerate(view.hits):
                flags[place] |= hit
    return {
        scenario: (sum(map(sum, found.values())), sum(map(len, found.values()))) for scenario, found in best.items()
    }


def _batch_size(view: AttemptView, context: Context) -> int:
    """Number of examples behind the release of an attack, 1 where it is not on file."""
    about = context.grounds.about(view.finding.scenario, view.finding.subject)
    return max((int(getattr(one, "batch_size", None) or 1) for one in about), default=1)


def original_of(view: AttemptView, context: Context) -> str | None:
    """The file of what was attacked, beside the record, or None.

    Args:
        view: an attack on it.
        context: the rest of the record.
    """
    about = context.grounds.about(view.finding.scenario, view.finding.subject)
    kept = (getattr(one, "picture", None) for one in about if not isinstance(one, ReconstructionFinding))
    return next((path for path in kept if path), None)


def rebuilt(views: Sequence[AttemptView], context: Context) -> list[Block]:
    """The strongest attack of every scenario, the worst first, on the same example where that was attacked.

    A scenario that leaks is shown by an example that does.

    Args:
        views: the worst first.
        context: the rest of the record.
    """
    scored = [view for view in views if view.error.value is not None]
    if not scored:
        return []
    first = scored[0].place
    by_scenario: dict[str, AttemptView] = {}
    for view in sorted(scored, key=lambda one: (not _tells(one, context), one.place != first)):
        by_scenario.setdefault(view.scenario, view)
    chosen = sorted(by_scenario.values(), key=lambda one: one.error.value or 0.0)
    steps = [
        Step(
            title=view.scenario,
            verdict=verdict.verdict if (verdict := context.verdict_on(str(view.finding.scenario))) else None,
            blocks=[*_shown(view, context), Text(parts=[_in_words(view, context)])],
        )
        for view in chosen[:MOST_STEPS]
    ]
    without = [name for name in dict.fromkeys(view.scenario for view in views) if name not in by_scenario]
    worded = {view.scenario for view in views if view.finding.value("bag_precision") is not None}
    told = [
        f"Attacked, and {what}: {', '.join(map(as_is, names))}. That is no evidence of safety."
        for what, names in (
            ("no sentence was claimed, but words were", [name for name in without if name in worded]),
            ("nothing was claimed", [name for name in without if name not in worded]),
        )
        if names
    ]
    return [
        Text(parts=["What an attack rebuilt from the update alone"], style=Style.HEADING),
        Steps(label="Scenario", steps=steps),
        *_legend(steps, context),
        *([Text(parts=told, style=Style.FINE)] if told else []),
    ]


def _legend(steps: Sequence[Step], context: Context) -> list[Block]:
    """The meaning of the marks in sentences that are shown."""
    if context.data_kind != "tokens":
        return []
    from gradleak.reporting.sentences import legend_of

    return (
        [legend_of([block for step in steps for block in step.blocks])] if any(len(s.blocks) > 1 for s in steps) else []
    )


def _tells(view: AttemptView, context: Context) -> bool:
    """True where what was attacked has the verdict of its scenario."""
    scenario = context.verdict_on(str(view.finding.scenario))
    own = context.verdict_on(f"{view.finding.scenario}/{view.finding.subject}")
    return scenario is None or own is None or own.verdict is scenario.verdict


def _shown(view: AttemptView, context: Context) -> list[Block]:
    """Original beside rebuilt, where the plan allowed them to be kept."""
    original = original_of(view, context)
    if context.data_kind == "tokens":
        from gradleak.reporting.sentences import sentence_blocks

        return sentence_blocks([_claim(view, context)], context)
    true, claimed = context.picture(original), context.picture(view.finding.picture)
    if true is not None and claimed is not None:
        wide = view.examples > 1
        pictures = [
            Picture(source=true, alt=f"Original of {view.place}", caption=["**Original**"], wide=wide),
            Picture(
                source=claimed,
                alt=f"{view.place} as {view.label} rebuilt it",
                caption=["**Rebuilt**", as_is(f"by {view.label}")],
                wide=wide,
            ),
        ]
        return [Gallery(exhibits=[Exhibit(title="", pictures=pictures)])]
    return side_by_side(context.rows(original), context.rows(view.finding.picture))


def _in_words(view: AttemptView, context: Context) -> Words:
    """The number in plain words: how near, and how near a blind guess comes."""
    error, blind = view.error.value or 0.0, view.baseline.value
    limit, share = context.thresholds.get("pixel_rmse", 0.1), context.thresholds.get("baseline_ratio", 0.5)
    if context.data_kind == "tokens":
        limit, share = context.thresholds.get("token_error", 0.5), 1.0
    whole = f"{sum(view.hits)} of {view.examples} sentences word for word" if view.examples > 1 else "word for word"
    if context.data_kind == "tokens" and any(view.hits):
        how = whole
    elif error < _COPY:
        how = "a copy"
    elif error < _NEARLY:
        how = "next to a copy"
    elif error <= limit and (blind is None or error <= share * blind):
        how = "clearly recognizable" if context.data_kind == "image" else "near the truth"
    elif blind is None or error < blind:
        how = "some of it, and not near enough to count as rebuilt"
    else:
        how = "no nearer than a blind guess"
    closest = f"{context.error} of the closest of {view.examples}" if view.examples > 1 else context.error
    guess = "a blind guess"
    if context.data_kind == "tokens":
        guess += " (of this very sentence the most frequent word, at every place)"
    beside = () if blind is None else (f", where {guess} is at", replace(view.baseline, evidence=""))
    return [f"**{words.sentence(view.place)}:** {how}. {words.sentence(closest)}:", view.error, *beside, "."]
