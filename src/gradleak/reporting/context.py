"""Context of a page: a record beside its own findings, by scenario, subject, name and evidence, never by kind."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from gradleak.reporting.numerals import as_number, decimal
from gradleak.results import (
    ERRORS,
    Evidence,
    Finding,
    Grounds,
    Policy,
    Record,
    Score,
    Subject,
    Verdict,
    VerdictKind,
    by_example,
    entries_noun,
    entry_noun,
    error_name,
)

F = TypeVar("F", bound=Finding)
LARGEST_PICTURE = 4 * 2**20
# Scores beside the error, by kind of data: in front of it and behind it. Of signals there are none, and of rows those of
# their cells where columns are stated: decibels and SSIM are numbers of pictures.
_SIMILAR: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "image": (("psnr",), ("ssim",)),
    "tokens": (("exact_hits",), ("rouge_l", "google_bleu", "bag_recall", "bag_precision")),
}
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class Context:
    """A record as pages read it.

    Attributes:
        record: where all comes from.
    """

    record: Record

    @cached_property
    def grounds(self) -> Grounds:
        """The findings by scenario and subject. Its thresholds are the defaults: pages print those of `thresholds`."""
        return Grounds(findings=self.record.findings)

    @cached_property
    def thresholds(self) -> Mapping[str, float]:
        """The thresholds of the plan by name."""
        given = self.record.run.get("thresholds")
        pairs = given.items() if isinstance(given, Mapping) else ()
        return {str(name): number for name, value in pairs if (number := as_number(value)) is not None}

    @cached_property
    def plan(self) -> Mapping[str, Any]:
        """The resolved plan, as it stands in the header."""
        given = self.record.run.get("plan")
        return given if isinstance(given, Mapping) else {}

    @cached_property
    def scenarios(self) -> Sequence[str]:
        """The names of the scenarios, in the order of the plan, and then of those that stand in the record alone."""
        listed = self.plan.get("scenarios")
        names = [str(one.get("name")) for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        return list(dict.fromkeys([*names, *(f.scenario for f in self.record.findings if f.scenario is not None)]))

    @cached_property
    def data_kind(self) -> str:
        """The kind of the audited data: "image", "tabular", "signal" or "tokens"."""
        data = self.plan.get("data")
        first = data[0] if isinstance(data, list) and data and isinstance(data[0], Mapping) else {}
        domain = first.get("domain")
        return str(domain.get("kind") or "image") if isinstance(domain, Mapping) else "image"

    @property
    def entry(self) -> str:
        """The name of one number of an example."""
        return entry_noun(self.data_kind)

    @property
    def entries(self) -> str:
        """The plural of it."""
        return entries_noun(self.data_kind)

    @property
    def error(self) -> str:
        """The name of the error of a reconstruction."""
        return error_name(self.data_kind)

    @property
    def similar(self) -> tuple[Sequence[str], Sequence[str]]:
        """The scores that stand beside the error of a reconstruction, in front of it and behind it."""
        if self.data_kind == "tabular" and any(score.name == "cell_accuracy" for _, score in self.record.scores):
            return (), ("cell_accuracy",)
        return _SIMILAR.get(self.data_kind, ((), ()))

    @property
    def noise_needed(self) -> float | None:
        """The std of noise that brings an unbiased attacker to the threshold, of the example that needs the most."""
        found = (score.value for _, score in self.record.scores if score.name == "noise_std_for_threshold")
        return max((value for value in found if value is not None), default=None)

    @property
    def token_noise_needed(self) -> Score | None:
        """The noise that keeps decoders of single tokens above the threshold, under its prior, where most is needed."""
        found = (score for _, score in self.record.scores if score.name == "noise_std_for_token_error")
        return max((one for one in found if one.value is not None), key=lambda one: one.value or 0.0, default=None)

    def noise_of(self, scenario: str, *, even: bool = False) -> float:
        """The noise on the updates of a scenario: root mean square, else the largest std that its defenses state, else 0.

        Args:
            scenario: its name.
            even: take the std of noise that is the same on every shared number alone.
        """
        field = "noise_std" if even else "noise_rms"
        about = [one for one in self.record.findings if one.scenario == scenario]
        found = [size for one in about if (size := as_number(getattr(one, field, None))) is not None]
        return max(found) if found else self._stated_noise(scenario)

    def _stated_noise(self, scenario: str) -> float:
        listed = self.plan.get("scenarios")
        stated = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        release = next((one.get("release") for one in stated if one.get("name") == scenario), None)
        defenses = release.get("defenses") if isinstance(release, Mapping) else None
        every = [one for one in defenses if isinstance(one, Mapping)] if isinstance(defenses, list) else []
        return max((std for one in every if (std := as_number(one.get("std"))) is not None), default=0.0)

    def verdict_on(self, item: str) -> Verdict | None:
        """The last verdict on an item, a scenario or "run", or None."""
        return self._verdicts.get(item)

    def judged(self, kind: VerdictKind) -> Sequence[str]:
        """The scenarios with a verdict, references left out.

        Args:
            kind: of verdict.
        """
        references = Policy.of(self.record).references
        given = {name: self.verdict_on(name) for name in self.scenarios if name not in references}
        return [name for name, verdict in given.items() if verdict is not None and verdict.verdict is kind]

    def picture(self, path: str | None) -> str | None:
        """The picture beside the record as a data address, or None."""
        folder: Path | None = self.record.path.parent if self.record.path else None
        return data_uri(folder, path)

    def rows(self, path: str | None) -> Sequence[Sequence[float]]:
        """The rows of a table in a file beside the record, none where there is no such file or it holds something else."""
        folder: Path | None = self.record.path.parent if self.record.path else None
        content = _beside(folder, path)
        try:
            rows = json.loads(content) if content else None
        except (ValueError, RecursionError):
            return []
        listed = rows if isinstance(rows, list) else []
        known = [[as_number(value) for value in row] for row in listed if isinstance(row, list)]
        return [[value for value in row if value is not None] for row in known if row and None not in row]

    def texts(self, path: str | None) -> Mapping[str, Any]:
        """The JSON object of a file of sentences beside the record; empty where there is none that may be shown."""
        content = _beside(self.record.path.parent if self.record.path else None, path)
        try:
            found = json.loads(content or b"{}")
        except (ValueError, RecursionError):
            found = {}
        return found if isinstance(found, Mapping) else {}

    def blind(self, error: Score | None, scenario: str | None, subject: Subject | None) -> Score | None:
        """The error of the blind guess, on the example of a batch of which the error of an attack is.

        The error of an attack is that of the example it comes closest to, and blindly another one may be closest.

        Args:
            error: of an attack; None for the smallest of the blind guess.
            scenario: of which release.
            subject: of which release.
        """
        found = (score for name in ERRORS for _, score in self.grounds.scores(name, scenario, subject))
        blind = next((score for score in found if score.evidence is Evidence.EXACT), None)
        own, beside = by_example(error), by_example(blind)
        known = [place for place, value in enumerate(own) if value is not None]
        if blind is None or not known or len(own) != len(beside):
            return blind
        nearest = beside[min(known, key=lambda place: own[place] or 0.0)]
        return blind if nearest is None else replace(blind, value=nearest)

    def reached(self, scenario: str | None, subject: Subject | None = None) -> Score | None:
        """The smallest error of an attack, or None.

        Args:
            scenario: of which releases.
            subject: of which one; None for all of the scenario.
        """
        return self._reached.get((scenario, subject))

    def predicted(self, scenario: str | None, subject: Subject | None) -> Score | None:
        """The prediction that reports rely on: exact I²F at ε = 0, of entries scaled to [0, 1], for the noise drawn.

        Args:
            scenario: of which release.
            subject: of which release.
        """
        for _, score in self.grounds.scores("inversion_influence", scenario, subject):
            if score.unit == "pixel_rmse" and not as_number(score.details.get("epsilon")):
                return score
        return None

    def title(self, finding: Finding) -> str:
        """The name of an item in print, in which a batch is called one."""
        return self.printed(finding.item)

    def printed(self, text: str) -> str:
        """A text of the record with its releases of batches and its powers of ten as the tables have them."""
        text = re.sub(r"(?<=/)example (\d+)\b", lambda found: self._printed_names.get(found[1], found[0]), text)
        # A name that looks like a number is left as it is.
        names = "|".join(map(re.escape, sorted(self.scenarios, key=len, reverse=True))) or "(?!)"
        number = r"(?<![\w.])\d(?:\.\d+)?e[+-]\d+(?![\w.]*\w)"
        return re.sub(f"({names})|{number}", lambda found: found[1] or decimal(float(found[0])), text)

    def worst_first(self, findings: Sequence[F]) -> Sequence[F]:
        """The findings of the releases first that an attack came nearest to, or where none was scored is predicted to.

        Args:
            findings: of more releases than a page shows.
        """

        def nearness(finding: F) -> tuple[float, ...]:
            if finding.subject is None:
                return math.inf, math.inf
            place = finding.scenario, finding.subject
            errors = (self.reached(*place), self.predicted(*place))
            return tuple(math.inf if one is None or one.value is None else one.value for one in errors)

        return sorted(findings, key=nearness)

    @cached_property
    def _reached(self) -> Mapping[tuple[str | None, Subject | None], Score]:
        """The smallest error of an attack on each release, and on all of a scenario."""
        found: dict[tuple[str | None, Subject | None], Score] = {}
        for one in self.record.findings:
            for score in one.scores if one.control is None else ():
                if score.name in ERRORS and score.evidence is Evidence.ATTACK and score.value is not None:
                    for place in {(one.scenario, one.subject), (one.scenario, None)}:
                        best = found.setdefault(place, score)
                        if best.value is not None and score.value < best.value:
                            found[place] = score
        return found

    @cached_property
    def _printed_names(self) -> Mapping[str, str]:
        subjects: list[Subject] = [finding.subject for finding in self.record.findings if finding.subject is not None]
        return {one.name: str(one) for one in subjects if one.noun in ("example", "batch")}

    @cached_property
    def _verdicts(self) -> Mapping[str, Verdict]:
        return {verdict.item: verdict for verdict in self.record.verdicts}


def data_uri(folder: Path | None, name: Any) -> str | None:
    """A PNG file beside the record as a `data:` address, or None if there is none that may be shown.

    Args:
        folder: folder of the record.
        name: path relative to it, as the record says.
    """
    content = _beside(folder, name)
    if content is None or not content.startswith(_PNG):
        return None
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _beside(folder: Path | None, name: Any) -> bytes | None:
    """The content of a file beside the record, None for one that may not be shown.

    A record is untrusted: only files inside its own folder are read, links out of it and files above 4 MiB are not.
    """
    if folder is None or not isinstance(name, str) or not name or "\0" in name:
        return None
    root = folder.resolve()
    try:
        file = (root / name).resolve()
        if not file.is_relative_to(root) or not file.is_file() or file.stat().st_size > LARGEST_PICTURE:
            return None
        return file.read_bytes()
    except OSError:
        return None
