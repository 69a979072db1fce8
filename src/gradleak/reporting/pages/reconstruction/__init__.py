"""The page on reconstruction: the worst attempt, pictures, attacks example by example, and both adversaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Block,
    Exhibit,
    Gallery,
    Picture,
    Section,
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
from gradleak.reporting.numerals import MISSING, as_number, count
from gradleak.reporting.pages.reconstruction.attempts import (
    AttemptView,
    adversary_section,
    attempt_section,
    attempts,
    exact_hits,
)
from gradleak.results import Evidence
from gradleak.results.findings.reconstruction import ReconstructionFinding

EXHIBITS = 9
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
    better = "; above about 30 dB a small picture looks like the original" if context.data_kind == "image" else ""
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
            f"higher is closer{better}",
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
    return Tiles(tiles=[Tile(label=label, value=value, sub=sub, evidence=kind) for label, value, sub, kind in told])


def _pictures(views: Sequence[AttemptView], context: Context) -> Section:
    """The private originals, each beside what attacks made of its update, the worst first."""
    exhibits: dict[tuple[str, str], list[tuple[AttemptView, str]]] = {}
    for view in views:
        source = context.picture(view.finding.picture)
        if source is not None:
            exhibits.setdefault((view.scenario, view.place), []).append((view, source))
    blocks: list[Block]
    if exhibits:
        text = "Each row: the private original, then what each attack made of its update alone, best attack first."
        shown = [_exhibit(beside, context) for beside in exhibits.values()]
        blocks = [Text(parts=[text]), Gallery(exhibits=shown, shown=EXHIBITS)]
    else:
        kind = context.data_kind
        blocks = [Text(parts=[_NO_PICTURES if kind == "image" else f"These are {kind} data, which have no pictures."])]
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
    for name in dict.fromkeys([*planned, *(finding.attack for finding in ran)]):
        mine = [finding for finding in ran if finding.attack == name]
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
