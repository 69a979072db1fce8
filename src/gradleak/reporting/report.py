"""What a report says, gathered from a record: the worst first, no number without its kind of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradleak.reporting import words
from gradleak.reporting.bibliography import Reference, bibliography
from gradleak.reporting.bounds import BoundView, ChanceView, bounds, chances
from gradleak.reporting.controls import ControlView, controls
from gradleak.reporting.information import InformationView, information
from gradleak.reporting.numerals import Quantity, as_number, beside_blind, between, decimal, quantity
from gradleak.reporting.pictures import data_uri
from gradleak.reporting.provenance import Provenance, provenance
from gradleak.reporting.reading import Line, Reading, mapping, missing_groups, outcome_of, read, sequence
from gradleak.reporting.risk_view import NoiseStudy, Spectrum, best_attack, noise_study, predicted_score, spectra
from gradleak.reporting.setting import Setting, settings
from gradleak.results import Outcome, Record, Score, Verdict, VerdictKind, entries_noun, entry_noun, error_name

_ORDER = {VerdictKind.LEAKS: 0, VerdictKind.INCONCLUSIVE: 1, VerdictKind.BOUNDED: 2}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attack on one release.

    Attributes:
        item: name of the item.
        scenario: its scenario.
        example: its example or batch.
        attack: name of the attack.
        adversary: of a defended release, "adaptive" or "static"; else "".
        psnr: best PSNR over the examples behind the release.
        pixel_rmse: smallest pixel RMSE over them.
        baseline: what the blind adversary reaches.
        ssim: largest SSIM.
        labels: share of labels found, in a batch each held against the example that its image was paired with.
        label_counts: in a batch the share by counts, whatever the images, where it is another one.
        label_route: how the labels were had.
        hits: rebuilt examples by example, True or False.
        outcome: how the search ended, or None if not stated.
        iterations: iterations of the chosen start.
        plain_gradients: cost.
        examples: how many examples stand behind the release.
        picture: the reconstruction as a data address, or None.
        note: what a reader needs to know.
        note_number: under which number the note stands below the table, 0 for none.
        validation: whether this is the validation routine that starts at the truth.
        wrong_pairing: of a batch, what the same claims reach against wrong examples.
        support: of a claim out of a generator, whether the update bears it out, in words; else "".
    """

    item: str
    scenario: str
    example: Any
    attack: str
    adversary: str = ""
    psnr: Quantity
    pixel_rmse: Quantity
    baseline: Quantity
    ssim: Quantity
    labels: Quantity
    label_counts: Quantity
    label_route: str
    hits: Sequence[Any]
    outcome: Outcome | None
    iterations: float | None
    plain_gradients: float | None
    examples: int
    picture: str | None
    note: str
    note_number: int = 0
    validation: bool = False
    wrong_pairing: Quantity
    support: str = ""

    @property
    def label(self) -> str:
        """The attack, and which adversary ran it."""
        return words.attack_name(self.attack, self.adversary)


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """An original beside what attacks made of its update.

    Attributes:
        scenario: its scenario.
        example: its example or batch.
        original: the picture, or None.
        attempts: attempts with a picture, best first.
        baseline: what the blind adversary reaches.
    """

    scenario: str
    example: Any
    original: str | None
    attempts: Sequence[Attempt]
    baseline: Quantity


@dataclass(frozen=True, kw_only=True)
class ScenarioView:
    """A scenario in one row.

    Attributes:
        name: its name.
        verdict: the verdict on it, or None.
        releases: how many releases.
        attacked: how many of them an attack was scored on.
        leaking: how many leak.
        worst: the strongest attempt, or None.
        predicted: smallest predicted error of its releases.
        noise: noise level in print.
    """

    name: str
    verdict: Verdict | None
    releases: int
    attacked: int
    leaking: int
    worst: Attempt | None
    predicted: Quantity
    noise: str


@dataclass(frozen=True, kw_only=True)
class Problem:
    """An item that failed or was refused.

    Attributes:
        item: its name.
        status: "failed" or "refused".
        outcome: its outcome, or None.
        note: the reason.
        traceback: for failures, "" if none was kept.
    """

    item: str
    status: str
    outcome: Outcome | None
    note: str
    traceback: str


@dataclass(frozen=True, kw_only=True)
class ScoreRow:
    """A score as the record holds it.

    Attributes:
        item: the item it belongs to.
        name: its name in words.
        unit: its unit.
        quantity: the number.
        interval: the confidence interval in print.
        n: independent items behind it.
        closed_form: whether it is a closed-form measure of a release.
    """

    item: str
    name: str
    unit: str
    quantity: Quantity
    interval: str
    n: int
    closed_form: bool


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything a page shows, in its order.

    Attributes:
        title: name of the run.
        complete: whether every announced group is there.
        missing: the announced groups that are not.
        verdict: on the whole run, or None.
        thresholds: when an example counts as rebuilt.
        scenarios: worst first.
        worst: the strongest attempt of the run, or None.
        hits: examples rebuilt exactly by at least one attack.
        attacked: examples that were attacked and scored.
        settings: the knowledge cards.
        exhibits: pictures, worst first.
        noise: predicted against reached.
        bounds: bounds on every attacker over a stated prior.
        chances: the largest chance to rebuild an example that differential privacy leaves.
        spectra: eigenvalues.
        attempts: real attacks, worst first.
        notes: the distinct notes of the attempts; their numbers begin with 1.
        information: what the attacks went by.
        validations: the validation routine, in file order.
        controls: the controls.
        problems: what failed or was refused.
        score_rows: all scores.
        references: the bibliography.
        provenance: how the record was made.
        unreadable: lines that could not be read.
        range_notes: declared ranges of which the images use little, which would make all errors too small.
        kind: of the data: "image", "tabular" or "signal".
    """

    title: str
    complete: bool
    missing: Sequence[str]
    verdict: Verdict | None
    thresholds: Mapping[str, float]
    scenarios: Sequence[ScenarioView]
    worst: Attempt | None
    hits: int
    attacked: int
    settings: Sequence[Setting]
    exhibits: Sequence[Exhibit]
    noise: NoiseStudy
    bounds: Sequence[BoundView]
    chances: Sequence[ChanceView]
    spectra: Sequence[Spectrum]
    attempts: Sequence[Attempt]
    notes: Sequence[str]
    information: Sequence[InformationView]
    validations: Sequence[Attempt]
    controls: Sequence[ControlView]
    problems: Sequence[Problem]
    score_rows: Sequence[ScoreRow]
    references: Sequence[Reference]
    provenance: Provenance
    unreadable: int = 0
    range_notes: Sequence[str] = ()
    kind: str = "image"
    reading: Reading | None = field(default=None, repr=False)

    @property
    def entry(self) -> str:
        """What one number of an example is called."""
        return entry_noun(self.kind)

    @property
    def entries(self) -> str:
        """The plural of it."""
        return entries_noun(self.kind)

    @property
    def error(self) -> str:
        """What the error of a reconstruction is called."""
        return error_name(self.kind)

    @property
    def luck(self) -> float | None:
        """The smallest error of a release that luck brings blind guesses; None where luck gives nothing."""
        scores = self.reading.scores.values() if self.reading else ()
        found = [one.value for group in scores for one in group if one.name == "chance_pixel_rmse"]
        return min((value for value in found if value is not None), default=None)


def build(record: Record) -> Report:
    """The report on a record.

    Args:
        record: a record, whole or not.
    """
    reading = read(record)
    folder = record.path.parent if record.path else None
    attempts = sorted((_attempt(reading, line, folder) for line in reading.of_kind("attack")), key=_worst_first)
    validations = [_attempt(reading, line, folder, validation=True) for line in reading.of_kind("perfect_attacker")]
    notes = list(dict.fromkeys(attempt.note for attempt in attempts if attempt.note))
    numbers = {note: number for number, note in enumerate(notes, 1)}
    attempts = [replace(attempt, note_number=numbers.get(attempt.note, 0)) for attempt in attempts]
    hits, attacked = _hits(attempts)
    kind = _kind(reading)
    return Report(
        title=str(record.run.get("name") or "audit"),
        complete=record.complete,
        missing=missing_groups(record),
        verdict=reading.verdict_on("run"),
        thresholds=_thresholds(record),
        scenarios=_scenarios(reading, attempts),
        worst=next((attempt for attempt in attempts if attempt.pixel_rmse.value is not None), None),
        hits=hits,
        attacked=attacked,
        settings=settings(reading),
        exhibits=_exhibits(reading, attempts, folder),
        noise=noise_study(reading),
        bounds=bounds(reading),
        chances=chances(reading),
        spectra=spectra(reading),
        attempts=attempts,
        notes=notes,
        information=information(reading),
        validations=validations,
        controls=controls(reading),
        problems=_problems(reading),
        score_rows=_score_rows(reading, kind),
        references=bibliography(record.run),
        provenance=provenance(reading),
        unreadable=reading.unreadable,
        range_notes=reading.range_notes,
        kind=kind,
        reading=reading,
    )


def _attempt(reading: Reading, line: Line, folder: Path | None, *, validation: bool = False) -> Attempt:
    error = reading.score(line, "pixel_rmse")
    hits = reading.score(line, "exact_hits")
    listed = sequence(hits.details.get("per_example")) if hits else ()
    if hits and not listed and hits.value is not None:
        listed = (hits.value > 0,)
    return Attempt(
        item=str(line.get("item")),
        scenario=str(line.get("scenario")),
        example=line.get("example"),
        attack="perfect attacker" if validation else str(line.get("attack")),
        adversary="" if validation else str(line.get("adversary") or ""),
        psnr=quantity(reading.score(line, "psnr")),
        pixel_rmse=quantity(error),
        baseline=quantity(reading.blind(line)),
        ssim=quantity(reading.score(line, "ssim")),
        labels=quantity(reading.score(line, "label_accuracy")),
        label_counts=quantity(_by_counts(reading.score(line, "label_accuracy"))),
        label_route=words.LABEL_ROUTES.get(str(line.get("labels")), str(line.get("labels") or "")),
        hits=tuple(listed),
        outcome=outcome_of(line),
        iterations=as_number(line.get("iterations")),
        plain_gradients=as_number(line.get("plain_gradients")),
        examples=max(len(listed), 1),
        picture=data_uri(folder, line.get("picture")),
        note=str(line.get("note") or _own_note(reading, error)),
        validation=validation,
        wrong_pairing=quantity(reading.score(line, "wrong_pairing_rmse")),
        support=words.SUPPORT.get(str(mapping(mapping(line.get("details")).get("support")).get("support")), ""),
    )


def _by_counts(score: Score | None) -> Score | None:
    """The share of labels that are right as counts of a batch, or None where it is the same as by example.

    The order within a batch cannot be recovered, so that labels which are paired by poor images look unknown.
    """
    share = None if score is None else as_number(score.details.get("by_counts"))
    return None if score is None or share in (None, score.value) else replace(score, value=share, note="")


def _own_note(reading: Reading, score: Score | None) -> str:
    """The note of a score without what is said of all scores of the run at its head."""
    note = "" if score is None else score.note
    for said in reading.range_notes:
        note = note.replace(said, "").removesuffix("; ")
    return note


def _worst_first(attempt: Attempt) -> tuple[bool, float]:
    value = attempt.pixel_rmse.value
    return (value is None, 0.0 if value is None else value)


def _hits(attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Examples rebuilt exactly by at least one attack, and examples attacked, over all releases."""
    best: dict[tuple[str, str], list[bool]] = {}
    for attempt in attempts:
        if attempt.pixel_rmse.value is None:
            continue
        flags = best.setdefault((attempt.scenario, str(attempt.example)), [False] * attempt.examples)
        for place, hit in enumerate(attempt.hits[: len(flags)]):
            flags[place] |= hit is True
    return sum(map(sum, best.values())), sum(map(len, best.values()))


def _scenarios(reading: Reading, attempts: Sequence[Attempt]) -> list[ScenarioView]:
    views = []
    by_name: dict[str, list[Line]] = {}
    for release in reading.of_kind("release"):
        by_name.setdefault(str(release.get("scenario")), []).append(release)
    for name, releases in by_name.items():
        verdicts = [reading.verdict_on(str(release.get("item"))) for release in releases]
        best = [attempt for attempt in attempts if attempt.scenario == name and attempt.pixel_rmse.value is not None]
        predictions = [predicted_score(reading, release) for release in releases]
        known = [score for score in predictions if score is not None and score.value is not None]
        smallest = min(known, key=lambda score: score.value or 0.0, default=None)
        std = next((as_number(release.get("noise_std")) for release in releases if release.get("noise_std")), None)
        views.append(
            ScenarioView(
                name=name,
                verdict=reading.verdict_on(name),
                releases=len(releases),
                attacked=len({str(attempt.example) for attempt in best}),
                leaking=sum(v is not None and v.verdict is VerdictKind.LEAKS for v in verdicts),
                worst=best[0] if best else None,
                predicted=beside_blind(quantity(smallest), best[0].baseline if best else Quantity()),
                noise=decimal(std) if std else "none",
            )
        )
    return sorted(views, key=_scenario_order)


def _scenario_order(view: ScenarioView) -> tuple[int, float]:
    place = _ORDER[view.verdict.verdict] if view.verdict else 1
    error = view.worst.pixel_rmse.value if view.worst else None
    return (place, float("inf") if error is None else error)


def _exhibits(reading: Reading, attempts: Sequence[Attempt], folder: Path | None) -> list[Exhibit]:
    exhibits: list[tuple[float, int, Exhibit]] = []
    for release in reading.of_kind("release"):
        original = data_uri(folder, release.get("picture"))
        best = best_attack(reading, release)
        beside = [
            attempt
            for attempt in attempts
            if attempt.scenario == str(release.get("scenario"))
            and attempt.example == release.get("example")
            and attempt.picture is not None
        ]
        if not beside:
            continue
        error = best[1].value if best and best[1].value is not None else float("inf")
        exhibit = Exhibit(
            scenario=str(release.get("scenario")),
            example=release.get("example"),
            original=original,
            attempts=beside,
            baseline=quantity(reading.blind(best[0] if best else release)),
        )
        exhibits.append((error, len(exhibits), exhibit))
    return [exhibit for _, _, exhibit in sorted(exhibits, key=lambda entry: entry[:2])]


def _problems(reading: Reading) -> list[Problem]:
    found = [line for lines in reading.items.values() for line in lines if line.get("status") in ("failed", "refused")]
    problems = [
        Problem(
            item=reading.title(line),
            status=str(line["status"]),
            outcome=outcome_of(line),
            note=str(line.get("note") or ""),
            traceback=str(line.get("traceback") or ""),
        )
        for line in found
    ]
    # A measure that is refused says so in every layer.
    return list(dict.fromkeys(problems))


def _kind(reading: Reading) -> str:
    """The kind of the data, as the releases or else the plan state it; records of old are about images."""
    for release in reading.of_kind("release"):
        if release.get("domain_kind"):
            return str(release["domain_kind"])
    data = sequence(mapping(reading.record.run.get("plan")).get("data"))
    return str(mapping(mapping(data[0]).get("domain")).get("kind") or "image") if data else "image"


def _score_rows(reading: Reading, kind: str) -> list[ScoreRow]:
    rows, risk = [], {str(line.get("item")) for line in reading.of_kind("risk")}
    for line, score in reading.score_lines:
        rows.append(
            ScoreRow(
                item=reading.title(line),
                name=words.score_name(score.name, entry_noun(kind)) + words.score_setting(score.details),
                unit=words.unit(score.unit, kind),
                quantity=quantity(score),
                interval=between(score),
                n=score.n,
                closed_form=str(line.get("item")) in risk,
            )
        )
        counted = _by_counts(score)
        if counted is not None:
            rows.append(replace(rows[-1], name=words.LABELS_BY_COUNTS, quantity=quantity(counted), interval=""))
    return rows


def _thresholds(record: Record) -> dict[str, float]:
    given = mapping(record.run.get("thresholds"))
    return {name: number for name, value in given.items() if (number := as_number(value)) is not None}
