"""The page on releases: the scenarios, the assumed knowledge of the adversary, and the updates that the client sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Block,
    Column,
    Fold,
    Level,
    Mark,
    Note,
    Section,
    Small,
    Style,
    Table,
    Tag,
    Text,
    Words,
    as_is,
    labels,
    numbers,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import (
    MISSING,
    Quantity,
    as_number,
    beside_blind,
    count,
    decimal,
    or_dash,
    percent,
    quantity,
)
from gradleak.results import Attempt, Evidence, Status, VerdictKind
from gradleak.results.findings.released import Gate, ReleaseFinding, UpdatePrecision

# Scores that can make a release bounded.
_BOUNDING = ("reconstruction_probability", "bayesian_cramer_rao")
_NOISE = "Noise std is that on what is shared: noise on the sum of a batch is divided by the number of examples."
_PREDICTION = (
    "I²F predicts the error of an attack on this release by a first-order formula, computed exactly. It is no limit: an attack "
    "that knows the range of the data, or has a prior, can come nearer."
)
_KNOWN: Words = (Mark("known", filled=True), "known to the adversary,", Mark("not known", filled=False), "not known")
_ORDER = {VerdictKind.LEAKS: 0, VerdictKind.INCONCLUSIVE: 1, VerdictKind.BOUNDED: 2}


def page(findings: Sequence[ReleaseFinding], context: Context) -> Section | None:
    """The section on the setting; the scenarios stand on the first screen."""
    made = [finding for finding in findings if finding.status is Status.DONE]
    blocks = settings(made, context) if made else [Text(parts=["The record holds no release yet."])]
    return Section(
        anchor="setting",
        title="Setting: assumed knowledge of the adversary",
        label="Setting",
        blocks=blocks,
        front=list(_front(made, context)) if made else (),
        caveats={name: said for name, mine in _by_scenario(made).items() if (said := _unbounded(name, mine, context))},
    )


def _unbounded(name: str, releases: Sequence[ReleaseFinding], context: Context) -> list[str]:
    """Reason why a scenario with a formal defense is not bounded; empty for others."""
    verdict = context.verdict_on(name)
    formal = any((one.guarantee or "").startswith("formal") for one in releases)
    if not formal or verdict is None or verdict.verdict is not VerdictKind.INCONCLUSIVE:
        return []
    places = [(one, name, release.subject) for release in releases for one in _BOUNDING]
    chances = [score for place in places for _, score in context.grounds.scores(*place)]
    if not chances:
        return [
            "its defense is formal, and the plan asked for no bound. The measure `ReconstructionProbability` states the chance "
            "that differential privacy leaves to rebuild an example, under a prior that you name; an audit of the privacy loss "
            "states epsilon."
        ]
    if all(score.value is None for score in chances):
        return [f"its defense is formal, and the bound that the plan asked for has no value: {as_is(chances[0].note)}."]
    limit = context.thresholds.get("reconstruction_probability")
    stated = (one for one in chances if one.name == _BOUNDING[0] and one.evidence is Evidence.UPPER_BOUND)
    worst = max(stated, key=lambda score: score.value or 0.0, default=None)
    if worst is None or limit is None or (worst.value or 0.0) <= limit:
        return ["its defense is formal; why the bound that was computed does not hold here stands with its verdict."]
    # A report on one attack enters one file less.
    from gradleak.reporting.shipping import enough_noise

    return [
        "its defense is formal, and the bound was computed: differential privacy leaves a chance of "
        f"{decimal(worst.value)} to rebuild an example, above the limit of {decimal(limit)}: {enough_noise(worst, limit)}."
    ]


def _front(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[Block]:
    for note in dict.fromkeys(one.range_note for one in releases if one.range_note):
        yield Note(title="Mind the range.", text=f"{words.sentence(as_is(note))}.", level=Level.WARN)
    for note in dict.fromkeys(one.model_note for one in releases if one.model_note):
        yield Note(title="Mind the model.", text=f"{words.sentence(as_is(note))}.", level=Level.WARN)
    yield Text(parts=["Releases by scenario"], style=Style.HEADING)
    found = [_scenario_row(name, mine, context) for name, mine in _by_scenario(releases).items()]
    predicted = any(_predicted(one, context).value is not None for one in releases)
    columns = [
        *labels("Scenario"),
        *numbers("Releases", "Leaking, of those attacked", "Noise std"),
        *numbers(f"Smallest {context.error} reached", evidence=Evidence.ATTACK),
        *numbers("Blind guess", evidence=Evidence.EXACT),
        *(numbers("Predicted there, I²F", evidence=Evidence.EXACT) if predicted else ()),
    ]
    yield Table(columns=columns, rows=[row[: len(columns)] for _, row in sorted(found, key=lambda pair: pair[0])])
    told = [_NOISE] if any(one.noise_std or one.noise_rms for one in releases) else []
    yield Text(parts=[_thresholds(releases, context), *told, *([_PREDICTION] if predicted else [])], style=Style.FINE)


def _by_scenario(releases: Sequence[ReleaseFinding]) -> Mapping[str, Sequence[ReleaseFinding]]:
    found: dict[str, list[ReleaseFinding]] = {}
    for release in releases:
        found.setdefault(str(release.scenario), []).append(release)
    return found


def _scenario_row(
    name: str, releases: Sequence[ReleaseFinding], context: Context
) -> tuple[tuple[int, float], list[Words]]:
    """Severity of a scenario, and its row."""
    errors = [(one, error) for one in releases if (error := context.reached(one.scenario, one.subject)) is not None]
    worst = min(errors, key=lambda pair: pair[1].value or 0.0, default=None)
    given = [one for release in releases if (one := context.verdict_on(release.item)) is not None and one.attacked]
    leaking = sum(one.verdict is VerdictKind.LEAKS for one in given)
    reached, blind = Quantity(), Quantity()
    # Of the example that an attack came nearest to; where none was attacked, the one that is predicted to leak most.
    shown = min(
        releases, key=lambda one: (_predicted(one, context).value is None, _predicted(one, context).value or 0.0)
    )
    if worst is not None:
        shown, error = worst
        reached, blind = quantity(error), quantity(context.blind(error, shown.scenario, shown.subject))
    predicted = _predicted(shown, context)
    which = [Small(as_is(shown.subject))] if len(releases) > 1 and shown.subject is not None else []
    verdict = context.verdict_on(name)
    badness = 1 if verdict is None else _ORDER[verdict.verdict]
    return (badness, math.inf if reached.value is None else reached.value), [
        as_is(name),
        str(len(releases)),
        f"{leaking} of {len(given)}" if given else MISSING,
        _noise(releases),
        [reached, *(which if worst is not None else [])],
        blind,
        [beside_blind(predicted, blind), *(which if worst is None and predicted.value is not None else [])],
    ]


def _predicted(release: ReleaseFinding, context: Context) -> Quantity:
    return or_dash(quantity(context.predicted(release.scenario, release.subject)))


def _noise(releases: Sequence[ReleaseFinding]) -> str:
    """The noise on the updates of a scenario: its std, the root mean square where that differs, or what is known of it."""
    rms = next((one.noise_rms for one in releases if one.noise_rms is not None), None)
    std = next((one.noise_std for one in releases if one.noise_std), rms)
    if std:
        return decimal(std)
    return "none" if std == 0 or not any(one.defenses for one in releases) else "not known"


def _thresholds(releases: Sequence[ReleaseFinding], context: Context) -> Words:
    """Thresholds at which an example counts as rebuilt and a release as bounded, in words."""
    limits = context.thresholds
    if context.data_kind == "tokens":
        half = decimal(limits["token_error"]) if "token_error" in limits else "the threshold of the plan"
        return (
            f"A sentence counts as rebuilt where its token error is at most {half}, at most that of the blind guess, and "
            "below what guessers reach by luck. All thresholds are values of the plan."
        )
    text = f"An example counts as rebuilt where the {context.error} is at most "
    text += decimal(limits["pixel_rmse"]) if "pixel_rmse" in limits else "the threshold of the plan"
    if "baseline_ratio" in limits:
        text += f" and at most {decimal(limits['baseline_ratio'])} times the blind guess"
    chances = [release.value("chance_pixel_rmse") for release in releases]
    luck = min((chance for chance in chances if chance is not None), default=None)
    if luck is not None:
        text += f", and nearer than luck brings guesses without the update: a single one below {decimal(luck)}, or several at "
        text += "once below limits of their own"
    text += "."
    if "reconstruction_probability" in limits:
        chance = decimal(limits["reconstruction_probability"])
        text += f" Differential privacy bounds a release where it leaves every attacker a chance of at most {chance}."
    return f"{text} Errors are in {context.entries} scaled to [0, 1]. All thresholds are values of the plan."


# Shown with the release of each scenario, so that scenarios which differ in it alone share one card.
_BY_SCENARIO = ("defenses",)
_FORMAL = (
    "A formal release comes with a proof of what it bounds, under its assumptions; a heuristic one is only hoped to help. "
    "What counts is all of them together, in their order."
)


def settings(releases: Sequence[ReleaseFinding], context: Context) -> list[Block]:
    """The distinct knowledge cards of a record, each with the releases that it holds for."""
    groups: dict[str, list[ReleaseFinding]] = {}
    for release in releases:
        card = {key: value for key, value in release.knowledge.items() if key not in _BY_SCENARIO}
        groups.setdefault(json.dumps(card, sort_keys=True, default=str), []).append(release)
    return [block for group in groups.values() for block in _setting(group, context)]


def _setting(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[Block]:
    card = releases[0].knowledge
    for text in _disclosed(releases, context):
        told = f"{text} Read every attack of this setting with that in mind."
        yield Note(title="Disclosed truth.", text=told, level=Level.LOUD)
    facts = list(_facts(card))
    if facts:
        yield Text(parts=[_KNOWN], style=Style.FINE)
        yield Text(parts=facts, style=Style.FACTS)
    by_scenario = _by_scenario(releases)
    yield Text(parts=["Updates that the client sent"], style=Style.HEADING)
    columns = [
        *labels("Scenario", "Protocol", "Defenses", "Guarantee", "Adversary knows them"),
        Column(
            label="Consistency gate", hint="whether the update is what the stated model, protocol and defenses make"
        ),
    ]
    yield Table(columns=columns, rows=[_release_row(name, mine) for name, mine in by_scenario.items()])
    yield Text(parts=[_FORMAL], style=Style.FINE)
    for name, mine in by_scenario.items():
        if any(release.gate.status == "inconsistent" for release in mine):
            causes = list(dict.fromkeys(as_is(cause) for release in mine for cause in release.gate.causes))
            title = f"{as_is(name)}: the update is not what the stated model, protocol and defenses produce."
            yield Note(title=title, text="Likely causes:" if causes else "", level=Level.WARN)
            if causes:
                yield Text(parts=causes, style=Style.LIST)
    notes = [
        f"**{as_is(name)}:** {as_is(note)}"
        for name, mine in by_scenario.items()
        for note in dict.fromkeys(note for release in mine for note in _notes(release))
    ]
    if notes:
        yield Text(parts=notes, style=Style.FINE)
    yield from _parameters(words.mapping(card.get("objective")))


def _disclosed(releases: Sequence[ReleaseFinding], context: Context) -> Iterator[str]:
    """The truths about the private data that the adversary was given."""
    card = releases[0].knowledge
    beside = (one for release in releases for one in context.grounds.about(release.scenario, release.subject))
    if card.get("targets") is not None:
        yield "The true labels of the private examples were given to the adversary."
    elif any(isinstance(one, Attempt) and one.labels == "disclosed" for one in beside):
        yield "At least one attack was given the true labels of the private examples."
    if _guessed(card):
        yield "The range of the data was guessed from their values, and given to the adversary."
    if card.get("statistics") is not None:
        yield "The BatchNorm statistics of the private batch were given to the adversary."
    if card.get("masks") is not None:
        yield "The client's own draw of dropout masks and other random layers was given to the adversary."
    if card.get("lengths") is not None:
        yield "The numbers of tokens of the private sentences were given to the adversary."


def _guessed(card: Mapping[str, Any]) -> bool:
    return bool(words.mapping(card.get("domain")).get("guessed"))


def _facts(card: Mapping[str, Any]) -> Iterator[Words]:
    """The lines of the card; truths about the private data stand out."""
    assumed = set(map(str, words.sequence(card.get("assumed"))))
    for key, value in card.items():
        if key in (*_BY_SCENARIO, "assumed"):
            continue
        known = value is not None and key not in assumed
        truth = key in ("targets", "statistics", "masks", "lengths") or (key == "domain" and _guessed(card))
        text = ("assumed, not known: " if key in assumed else "") + knowledge(key, value)
        label = KNOWLEDGE_LABELS.get(key, key.replace("_", " "))
        mark = Mark("known" if known else "not known", filled=known, loud=truth and known)
        yield [mark, as_is(label), as_is(text)]


def _release_row(scenario: str, releases: Sequence[ReleaseFinding]) -> list[Words]:
    first = releases[0]
    protocol = words.mapping(first.release.get("protocol"))
    described = first.defenses or tuple(map(words.mapping, words.sequence(first.release.get("defenses"))))
    defenses: list[Any] = []
    for place, entry in enumerate(described):
        constants = words.constants(entry)
        # The guarantee of a defense alone may mean nothing beside others: that of all together counts where it is known.
        alone = "" if first.guarantee else str(entry.get("guarantee", ""))
        defenses += [";"] if place else []
        defenses += [as_is(entry.get("use", "defense")), *([Small(as_is(constants))] if constants else [])]
        defenses += [_guarantee(alone)] if alone else []
    together: Words = "none" if not described else "not stated" if first.guarantee is None else "none"
    if first.guarantee:
        together = _guarantee(first.guarantee)
    adaptive = first.knowledge.get("defenses") is not None
    knows = MISSING if not described or not first.knowledge else "yes" if adaptive else "no"
    gate = _gate([release.gate for release in releases])
    inconsistent = any(release.gate.status == "inconsistent" for release in releases)
    return [
        as_is(scenario),
        as_is(words.plain(protocol)) if protocol else "not stated",
        defenses or "none",
        together,
        knows,
        Tag(gate, tone="bad") if inconsistent else gate,
    ]


def _guarantee(text: str) -> Tag:
    return Tag(as_is(text), tone="bounded" if text.startswith("formal") else "inconclusive")


def _notes(release: ReleaseFinding) -> Iterator[str]:
    """Notes on a release for the reader besides its map."""
    if release.note:
        yield release.note
    if release.gate.status == "cannot_tell":
        yield from release.gate.causes
    if release.domain_guessed:
        yield "shape and range of the data were not declared; they were guessed from the private data itself."
    if release.given:
        yield "the update is one that was really sent, not one that the auditor computed."
    if release.zero_tensors:
        yield f"tensors of the update that are zero throughout: {words.plain(release.zero_tensors)}."
    lost = precision(release.precision)
    if lost:
        yield lost
    for entry in release.alignment:
        yield f"{entry}."


def _gate(gates: Sequence[Gate]) -> str:
    statuses = [gate.status for gate in gates if gate.status]
    if not statuses:
        return "not run"
    parts = []
    for status in dict.fromkeys(statuses):
        tally = statuses.count(status)
        name = GATES.get(status, as_is(status.replace("_", " ")))
        parts.append(name if tally == len(statuses) else f"{name} ({tally} of {len(statuses)})")
    text = ", ".join(parts)
    scores = [gate.chi_square_z for gate in gates if gate.chi_square_z is not None]
    cosines = [gate.cosine for gate in gates if gate.cosine is not None]
    if scores:
        return f"{text}; noise energy within {decimal(max(map(abs, scores)), 2)} standard deviations of what is stated"
    return f"{text}; cosine at least {min(cosines):.4f}" if cosines else text


def _parameters(objective: Mapping[str, Any]) -> Iterator[Block]:
    shared, tied = words.mapping(objective.get("shared")), words.mapping(objective.get("tied"))
    renamed, frozen = words.mapping(objective.get("renamed")), words.sequence(objective.get("frozen"))
    buffers = words.sequence(objective.get("buffers"))
    lists: dict[str, list[Words]] = {
        "Shared: the update covers these": [
            [_code(name), Small(" × ".join(words.plain(size) for size in words.sequence(shape)) or "scalar")]  # noqa: RUF001
            for name, shape in shared.items()
        ],
        "Frozen: used, but not shared": [_code(name) for name in frozen],
        "Tied: counted once": [f"{_code(name)} is {_code(listed)}" for name, listed in tied.items()],
        "Renamed: a wrapper prefix was dropped": [
            f"{_code(before)} → {_code(name)}" for name, before in renamed.items()
        ],
        "Buffers": [_code(name) for name in buffers],
    }
    if any(lists.values()):
        counts = f"{len(shared)} shared, {len(frozen)} frozen, {len(tied)} tied, {len(renamed)} renamed"
        blocks: list[Block] = []
        for title, parts in lists.items():
            blocks += [Text(parts=[title], style=Style.HEADING), Text(parts=parts, style=Style.LIST)] if parts else []
        yield Fold(title=f"Parameters: {counts}", blocks=blocks)


def _code(name: Any) -> str:
    """A name of the model in the dress of code, where it holds no mark itself."""
    text = str(name)
    return as_is(text) if not text or "`" in text or "\\" in text else f"`{text}`"


_HALF = ("float16", "bfloat16")
_TENSORS_NAMED = 4
_RANGES_NAMED = 6
# A batch as the record prints it: its examples are counted, and its sizes and checksum are for the record alone.
_EXAMPLES = re.compile(r"Batch\(inputs = \w+\[(\d+)[,\]]")

KNOWLEDGE_LABELS: Mapping[str, str] = {
    "objective": "Model, parameters and loss",
    "protocol": "Training protocol",
    "defenses": "Defenses and their constants",
    "batch_size": "Number of examples",
    "targets": "True labels",
    "domain": "Kind, shape and range of the data",
    "public": "Public data of the same kind",
    "statistics": "BatchNorm statistics of the private batch",
    "lengths": "Number of tokens of each sentence",
    "masks": "The client's draw of dropout masks and other random layers",
    "generator": "A generator of images that the adversary brings along",
}

GATES: Mapping[str, str] = {
    "consistent": "consistent",
    "inconsistent": "not consistent",
    "not_needed": "not needed (computed by the auditor)",
    "not_applicable": "not applicable",
    "cannot_tell": "cannot tell",
}


def knowledge(key: str, value: Any) -> str:
    """An entry of the knowledge card in words; None stands for what is not known."""
    if value is None:
        return "not known"
    if key == "objective":
        card = words.mapping(value)
        entries, tensors = count(as_number(card.get("shared_entries"))), len(words.mapping(card.get("shared")))
        return (
            f"loss {words.plain(card.get('loss'))}, {words.plain(card.get('mode'))} mode, "
            + (f"computed in {words.plain(card['dtype'])}, " if card.get("dtype") else "")
            + f"{entries} shared numbers in {tensors} tensors"
        )
    if key == "masks":
        return "disclosed: its very draw"
    if key == "domain":
        return domain(words.mapping(value))
    if key == "generator":
        return generator(words.mapping(value))
    if key == "public" and (found := _EXAMPLES.match(words.plain(value))):
        return f"{count(int(found[1]))} examples"
    if key == "defenses" and not words.sequence(value):
        return "there are none"
    return f"disclosed: {words.plain(value)}" if key == "targets" else words.plain(value)


def generator(card: Mapping[str, Any]) -> str:
    """A generator in words: what it is, what it was trained on, its sizes."""
    trained_on = as_number(card.get("training_images"))
    known = (
        f"; none of its {count(trained_on)} training images on file is audited"
        if trained_on
        else "; no image trained it"
    )
    if trained_on is None:
        known = "; which images trained it is not on file, so that whether the audited ones did cannot be told"
    latent = " × ".join(words.plain(size) for size in words.sequence(card.get("latent_shape")))  # noqa: RUF001
    return (
        f"{words.plain(card.get('module'))} ({words.plain(card.get('source'))}), latents of {latent} numbers, "
        f"{count(as_number(card.get('weights')))} weights{', conditional on the class' if card.get('conditional') else ''}"
        f"{known}"
    )


def precision(found: UpdatePrecision) -> str:
    """The loss of an update to its number format, "" where that was wide enough and nothing is missing."""
    if not (found.dtype in _HALF or found.made_in or found.subnormal or found.non_finite):
        return ""
    parts = {name: part.zero + part.subnormal for name, part in found.tensors.items()}
    worst = sorted(parts, key=lambda name: -parts[name])[:_TENSORS_NAMED]
    listed = ", ".join(f"{percent(parts[name])} of {name}" for name in worst if parts[name] > 0)
    where = f" ({listed}{', and more' if len(parts) > len(worst) else ''})" if listed else ""
    origin = f": its numbers have the few digits of {found.made_in}, in which they were made" if found.made_in else ""
    text = (
        f"the update came in {found.dtype}{origin}; {percent(found.zero + found.subnormal)} of its entries are zero or "
    )
    text += f"subnormal there{where}, flushed or zero to begin with, and no attack gets them back"
    return f"{text}; {percent(found.non_finite)} are NaN or infinite." if found.non_finite else f"{text}."


def _ranges(low: Any, high: Any) -> str:
    """The first ranges of a list of them; either end may be one number for all, or too long a list to be on file."""
    count = max((len(ends) for ends in (low, high) if isinstance(ends, list)), default=0)
    if not count or any(isinstance(ends, str) for ends in (low, high)):
        return ""
    ends = [ends if isinstance(ends, list) else [ends] * count for ends in (low, high)]
    pairs = [f"{words.plain(first)} to {words.plain(last)}" for first, last in zip(*ends, strict=False)]
    return f": {', '.join(pairs[:_RANGES_NAMED])}" + (", and so on" if len(pairs) > _RANGES_NAMED else "")


def domain(card: Mapping[str, Any]) -> str:
    """A domain in words: "image of 1 × 28 × 28, values from 0 to 1"."""
    shape = " × ".join(words.plain(size) for size in words.sequence(card.get("shape")))  # noqa: RUF001 - multiplication sign
    text = f"{words.plain(card.get('kind'))} of {shape or 'unknown shape'}"
    vocabulary = words.mapping(card.get("vocabulary"))
    if vocabulary:
        size = count(as_number(vocabulary.get("size")))
        text = f"sentences of {shape or 'an unknown number of'} places, ids of a vocabulary of {size}"
        return f"{text}; not stated, but guessed from batch and model" if card.get("guessed") else text
    low, high = card.get("low"), card.get("high")
    if as_number(low) is not None and as_number(high) is not None:
        text += f", values from {words.plain(low)} to {words.plain(high)}"
    elif low is not None and high is not None:
        text += f", a range for each {'feature' if card.get('kind') == 'tabular' else 'channel'}{_ranges(low, high)}"
    for name in ("mean", "std"):
        if card.get(name) is not None:
            text += f", normalized with {name} {words.plain(card[name])}"
    return f"{text}; not stated, but guessed from the values of the data" if card.get("guessed") else text
