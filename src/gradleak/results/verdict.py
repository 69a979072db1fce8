"""The three-valued answer of an audit: verdicts, the thresholds of a plan, and the findings that they rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

from gradleak.results.errors import GradleakError, InputError, PlanError
from gradleak.results.fields import Positive, Share, ShareOrAll
from gradleak.results.finding import Finding, Subject
from gradleak.results.score import Evidence, Score, jsonable
from gradleak.results.settings import Settings

RUN = "run"


class VerdictKind(StrEnum):
    """leaks, bounded or inconclusive; there is no "safe"."""

    LEAKS = "leaks"
    BOUNDED = "bounded"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on one subject of one audit, on a scenario, or on the run.

    Attributes:
        item: a name that is unique among the verdicts: of the findings that were judged, of the scenario, or "run".
        verdict: leaks, bounded or inconclusive.
        reason: a short code, for instance "attack_reached_threshold" or "control_failed".
        explanation: one or two sentences for a person.
        details: the numbers behind it (thresholds, best attack, errors).
        audit: the name of the audit's section of the plan; None for a verdict on a scenario or the run.
        scenario: its scenario; None for the verdict on the run.
        subject: whose data or which part, None for all of the scenario.
        noun: what its audit judges, in words and in the plural, for the verdict on a scenario: "attacked releases".
        tested: whether something was tried that could have leaked; comparing or refusing is no trial.
    """

    item: str
    verdict: VerdictKind
    reason: str
    explanation: str
    details: Mapping[str, Any] = field(default_factory=dict)
    audit: str | None = None
    scenario: str | None = None
    subject: Subject | None = None
    noun: str = ""
    tested: bool = True

    def __repr__(self) -> str:
        """One line: on what, which, and why. `explanation` and `details` have more."""
        return f"Verdict({self.item!r}, {self.verdict.value}, {self.reason})"

    @property
    def attacked(self) -> bool:
        """True if something was tried that could have leaked; of a release that is bounded, an attack that ended counts alone."""
        unattacked = self.verdict is VerdictKind.BOUNDED and self.details.get("best_attack") is None
        return self.tried and not unattacked

    @property
    def tried(self) -> bool:
        """True if something was tried that could have leaked, and was not refused."""
        return self.tested and not self.details.get("refused")

    def to_dict(self) -> dict[str, Any]:
        """The fields of a verdict line of a record (without its `type`)."""
        return {
            "item": self.item,
            "audit": self.audit,
            "scenario": self.scenario,
            "subject": None if self.subject is None else self.subject.to_dict(),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "explanation": self.explanation,
            "details": jsonable(dict(self.details)),
            "noun": self.noun,
            "tested": self.tested,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that `to_dict` wrote.

        Raises:
            InputError: if a field is missing or has a value that no verdict has.
        """
        try:
            texts = {key: data[key] for key in ("item", "reason")}
            texts |= {key: "" if data.get(key) is None else data[key] for key in ("explanation", "noun")}
            names = {key: data.get(key) for key in ("audit", "scenario")}
            details, subject = data.get("details", {}), data.get("subject")
            for key, given in {**texts, **{key: "" if name is None else name for key, name in names.items()}}.items():
                if not isinstance(given, str):
                    raise TypeError(f"{key}: {str(given)[:100]!r} is not text")
            if not isinstance(details, Mapping):
                raise TypeError("details: expected a table")
            return cls(
                item=texts["item"],
                verdict=VerdictKind(data["verdict"]),
                reason=texts["reason"],
                explanation=texts["explanation"],
                details=details,
                audit=names["audit"],
                scenario=names["scenario"],
                subject=None if subject is None else Subject.model_validate(subject),
                noun=texts["noun"],
                tested=bool(data.get("tested", True)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"verdict: expected what Verdict.to_dict wrote, got a line without a proper {' '.join(str(error).split())}"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Thresholds(Settings):
    """Thresholds at which an attack counts as having rebuilt an example, and at which none can be expected to.

    Attributes:
        pixel_rmse: largest error, in pixels scaled to [0, 1].
        baseline_ratio: largest share of the error of the blind guess on the same example.
        token_error: of sentences in place of both: largest share of the words that are not in place; luck and the blind
            guess are to be beaten, by any margin.
        reconstruction_probability: largest chance of any attacker to rebuild an example of a release that is *bounded* by
            differential privacy.
        advantage: largest advantage that Fano's inequality may leave to any adversary of an inference game that is *bounded*.
        epsilon: in a privacy audit a release leaks whose epsilon is measured to be above it; one whose guarantee has at most
            this epsilon is *bounded*.
    """

    refused_with: ClassVar[type[GradleakError]] = PlanError
    called: ClassVar[str] = "thresholds"

    pixel_rmse: Share = 0.1
    baseline_ratio: ShareOrAll = 0.5
    reconstruction_probability: Share = 0.05
    advantage: Share = 0.05
    epsilon: Positive = 1.0
    token_error: Share = 0.5

    def for_data(self, kind: str | None) -> Thresholds:
        """The thresholds for examples of a kind: for tokens `token_error` stands in the place of `pixel_rmse`.

        Args:
            kind: value of a `DomainKind`.
        """
        return replace(self, pixel_rmse=self.token_error, baseline_ratio=1.0) if kind == "tokens" else self

    def to_dict(self) -> dict[str, float]:
        """The thresholds by name."""
        return asdict(self)

    def leaks(
        self,
        errors: Sequence[float | None],
        baselines: Sequence[float | None],
        chance: Sequence[float] = (),
    ) -> bool:
        """True if at least one example is rebuilt, and not by luck alone.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind guess by example.
            chance: below what the k-th smallest error is more than luck (`chance_pixel_rmse`); empty where luck gives
                nothing.
        """
        rebuilt = self.rebuilt(errors, baselines)
        return bool(rebuilt) and (not chance or beyond_luck(rebuilt, chance) > 0)

    def rebuilt(self, errors: Sequence[float | None], baselines: Sequence[float | None]) -> list[float]:
        """The errors of the examples that come near enough, luck aside, sorted.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind guess by example.
        """
        return sorted(
            error
            for error, baseline in zip(errors, baselines, strict=True)
            if error is not None
            and baseline is not None
            and baseline > 0
            and error <= self.pixel_rmse
            and error <= self.baseline_ratio * baseline
        )


def beyond_luck(errors: Sequence[float], limits: Sequence[float]) -> int:
    """Number of errors that together beat luck: the least k whose k-th smallest is below its limit, or 0.

    Args:
        errors: of examples, sorted.
        limits: of `chance_pixel_rmse`.
    """
    return next((k for k, (error, limit) in enumerate(zip(errors, limits, strict=False), 1) if error < limit), 0)


Place = tuple[str | None, Subject | None]


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The findings of a run and its thresholds; asked by scenario, subject, name and evidence, never by a kind of audit.

    Attributes:
        thresholds: of the plan.
        findings: of the run, in the order of the plan.
        verdicts: those that were given before, by audits that stand earlier in the plan.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    findings: Sequence[Finding] = ()
    verdicts: Sequence[Verdict] = ()

    def given(self, verdicts: Sequence[Verdict]) -> Grounds:
        """The same with the verdicts that were given so far; what was looked up stays looked up."""
        found = replace(self, verdicts=tuple(verdicts))
        found.__dict__.update({"_by_place": self._by_place, "_controls": self._controls})
        return found

    def more(self, findings: Sequence[Finding]) -> Grounds:
        """The same with findings that came since; what was looked up is handed on, and this one no longer to be used.

        Args:
            findings: further ones.
        """
        every: list[Finding] = self.findings if isinstance(self.findings, list) else list(self.findings)
        looked_up = {"_by_place": self._by_place, "_controls": self._controls}
        every.extend(findings)
        for one in findings:
            if one.control is None:
                self._by_place.setdefault((one.scenario, one.subject), []).append(one)
            else:
                self._controls.setdefault(one.audit, []).append(one)
        found = replace(self, findings=every)
        found.__dict__.update(looked_up)
        return found

    def about(self, scenario: str | None, subject: Subject | None = None) -> Sequence[Finding]:
        """The findings about a subject in a scenario, controls left out; in the order of the record.

        Args:
            scenario: its name, or None for the whole plan.
            subject: of which; None for findings that have none.
        """
        return self._by_place.get((scenario, subject), ())

    def scores(self, name: str, scenario: str | None, subject: Subject | None = None) -> list[tuple[Finding, Score]]:
        """The scores of that name about a subject, each with its finding."""
        return [
            (finding, score)
            for finding in self.about(scenario, subject)
            for score in finding.scores
            if score.name == name
        ]

    def with_evidence(
        self, evidence: Evidence, scenario: str | None, subject: Subject | None = None
    ) -> list[tuple[Finding, Score]]:
        """The scores of that kind of evidence about a subject, each with its finding: attempts, or bounds."""
        return [
            (finding, score)
            for finding in self.about(scenario, subject)
            for score in finding.scores
            if score.evidence is evidence
        ]

    def controls(self, audit: str) -> Sequence[Finding]:
        """The controls of an audit, in the order of the record.

        Args:
            audit: the name of its section of the plan.
        """
        return self._controls.get(audit, ())

    @cached_property
    def _by_place(self) -> dict[Place, list[Finding]]:
        found: dict[Place, list[Finding]] = {}
        for finding in self.findings:
            if finding.control is None:
                found.setdefault((finding.scenario, finding.subject), []).append(finding)
        return found

    @cached_property
    def _controls(self) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            if finding.control is not None:
                found.setdefault(finding.audit, []).append(finding)
        return found
