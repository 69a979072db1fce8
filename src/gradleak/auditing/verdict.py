"""From the lines of a record to verdicts; thresholds are plan values and are printed with every verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradleak.auditing.adversary import Adversary
from gradleak.auditing.bound import Limits, bound_on
from gradleak.auditing.inference_verdict import judge_games
from gradleak.auditing.layer_verdict import COMPARED, judge_layers
from gradleak.auditing.privacy_verdict import judge_privacy
from gradleak.auditing.verdict_sets import RUN, worst_of
from gradleak.results import (
    GradleakError,
    PlanError,
    Positive,
    Settings,
    Share,
    ShareOrAll,
    Verdict,
    VerdictKind,
    error_name,
)
from gradleak.scoring import beyond_luck

Line = Mapping[str, Any]
CONVERGED_LOSS = 0.01


@dataclass(frozen=True, kw_only=True)
class Thresholds(Settings):
    """When an attack counts as having rebuilt an example, and when none can be expected to.

    Attributes:
        pixel_rmse: largest error, in pixels scaled to [0, 1].
        baseline_ratio: largest share of the blind adversary's error on the same example.
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

    def leaks(
        self,
        errors: Sequence[float | None],
        baselines: Sequence[float | None],
        chance: Sequence[float] = (),
    ) -> bool:
        """Whether at least one example is rebuilt, and not by luck alone.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind adversary by example.
            chance: below what the k-th smallest error is more than luck (`chance_pixel_rmse`); empty where luck gives
                nothing.
        """
        rebuilt = self.rebuilt(errors, baselines)
        return bool(rebuilt) and (not chance or beyond_luck(rebuilt, chance) > 0)

    def rebuilt(self, errors: Sequence[float | None], baselines: Sequence[float | None]) -> list[float]:
        """The errors of the examples that come near enough, luck aside, sorted.

        Args:
            errors: pixel RMSE of the attack by example; None where there is none.
            baselines: pixel RMSE of the blind adversary by example.
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


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    attack: str
    adversary: str | None
    errors: tuple[float | None, ...]
    outcome: str
    status: str
    note: str
    base: str

    @property
    def name(self) -> str:
        """The attack, and by whom, where that makes a difference."""
        return f"{self.attack} ({self.adversary} adversary)" if self.adversary else self.attack

    @property
    def best(self) -> float | None:
        found = [error for error in self.errors if error is not None]
        return min(found) if found else None


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """What the controls say of the attacks.

    Attributes:
        broken: sentences without their end on controls that take every result away.
        noise: whether the noise control of an attack and an adversary passed, None where it could not run; the adversary
            is None for the control that speaks of everyone who has none of its own.
        needless: that no leak was planted, since the attack that was to find it never runs; "" where one was.
    """

    broken: tuple[str, ...]
    noise: Mapping[tuple[str, str | None], bool | None]
    needless: str

    def bears_out(self, attempt: _Attempt) -> bool:
        """Whether no noise control of this attack and adversary was left undone."""
        own = (attempt.base, attempt.adversary)
        return self.noise.get(own if own in self.noise else (attempt.base, None), True) is not None


def judge(lines: Iterable[Line], thresholds: Thresholds) -> list[Verdict]:
    """Verdicts on every release, inference game, privacy audit and section of layers, every scenario and the run, in order.

    *leaks* comes from an attack that never saw the truth, of the adaptive adversary or of the static one; *bounded* from
    differential privacy that leaves every attacker at most the stated chance, or from a van Trees bound above the same
    limit, where no attack leaks (`bound_on`); everything else is *inconclusive*, with the reason. A failed control makes
    every verdict inconclusive; where all attacks were refused, that is the reason, and a planted leak that was refused
    because its attack is refused everywhere counts as none.

    Args:
        lines: the item and score lines of a record.
        thresholds: when an example counts as rebuilt.
    """
    rows = list(lines)
    # The controls of a game, a privacy audit or a measure of layers speak of that alone.
    owners = ("game_name", "audit_name", "layers_name")
    controls = [row for row in rows if row.get("kind") == "control" and all(row.get(key) is None for key in owners)]
    # A noise control that could not run takes its own attack out; without a planted leak found nothing can be read.
    planted = [row for row in controls if "negative" not in str(row["item"])]
    failed = [row for row in planted if row.get("passed") is not True and not _needless(row, rows)]
    failed += [row for row in controls if row.get("passed") is False and row not in planted]
    proof = _Proof(
        broken=tuple(_what_failed(row) for row in failed),
        noise={
            (str(row.get("attack")), row.get("adversary")): row.get("passed") for row in controls if row not in planted
        },
        needless=next((_no_leak_planted(row) for row in planted if _needless(row, rows)), ""),
    )
    releases = [
        row for row in rows if row["type"] == "item" and row.get("kind") == "release" and row["status"] == "done"
    ]
    verdicts = [_judge_release(row, rows, thresholds, proof) for row in releases]
    verdicts += [_unjudged(row) for row in rows if row.get("kind") == "release" and row.get("status") == "failed"]
    scenarios: dict[str, list[Verdict]] = {}
    for row, verdict in zip(releases, verdicts, strict=False):
        scenarios.setdefault(str(row["scenario"]), []).append(verdict)
    games = [*judge_games(rows, thresholds.advantage), *judge_privacy(rows, thresholds.epsilon)]
    layers = judge_layers(rows)
    # Layers that were only compared say nothing beside what was attacked.
    attacked = bool(games) or any(verdict.reason != "no_attack_ran" for verdict in verdicts)
    games += [one for one in layers if one.reason != COMPARED or not attacked]
    played = {str(row["item"]): str(row["scenario"]) for row in rows if row.get("kind") in ("inference", "privacy")}
    played |= {
        f"{row['scenario']}/{row['setting']}": str(row["scenario"]) for row in rows if row.get("kind") == "layers"
    }
    for verdict in games:
        scenarios.setdefault(played[verdict.item], []).append(verdict)
    by_scenario = [worst_of(name, group) for name, group in scenarios.items()]
    parts = [*by_scenario, *verdicts[len(releases) :]]
    return [*verdicts, *games, *by_scenario, worst_of(RUN, parts)] if parts else []


def _needless(control: Line, rows: Sequence[Line]) -> bool:
    """Whether a planted leak was refused like every run of its attack: there is no result then that it could bear out."""
    own = [row for row in rows if row.get("kind") == "attack" and row.get("attack") == control.get("attack")]
    statuses = {row.get("status") for row in (control, *own)}
    return control.get("passed") is None and bool(own) and statuses == {"refused"}


def _no_leak_planted(control: Line) -> str:
    return (
        f" No leak was planted, since {control['attack']}, which was to find it, is refused everywhere; name another attack "
        "under controls to see that a leak would be found."
    )


def _what_failed(control: Line) -> str:
    note = str(control.get("note") or "").rstrip(".")
    if control.get("passed") is None and note:
        return f"{control['item']} could not be run ({note})"
    return f"{control['item']} did not give what it had to"


def _unjudged(row: Line) -> Verdict:
    """The verdict on a release that could not even be made."""
    return Verdict(
        item=str(row["item"]),
        verdict=VerdictKind.INCONCLUSIVE,
        reason="item_failed",
        explanation=f"The release could not be made: {row.get('note')}.",
    )


def _judge_release(release: Line, rows: Sequence[Line], thresholds: Thresholds, proof: _Proof) -> Verdict:
    item = str(release["item"])
    baselines = _per_example(rows, f"{item}/baseline", None)
    attempts = _attempts(release, rows)
    chance = _chance(rows, f"{item}/baseline")
    near = [a for a in attempts if baselines and a.best is not None and thresholds.leaks(a.errors, baselines)]
    reached = [a for a in near if thresholds.leaks(a.errors, baselines, chance)]
    best = min((a for a in attempts if a.best is not None), key=lambda a: a.best or 0.0, default=None)
    details: dict[str, Any] = {
        "threshold_pixel_rmse": thresholds.pixel_rmse,
        "threshold_baseline_ratio": thresholds.baseline_ratio,
        "best_attack": best.attack if best else None,
        **({"adversary": best.adversary} if best and best.adversary else {}),
        "pixel_rmse": best.best if best else None,
        "baseline_pixel_rmse": min((b for b in baselines if b is not None), default=None),
        **({"chance_pixel_rmse": chance[0]} if chance else {}),
    }
    refused = bool(attempts) and all(attempt.status == "refused" for attempt in attempts)
    if proof.broken and not refused:
        return Verdict(
            item=item,
            verdict=VerdictKind.INCONCLUSIVE,
            reason="control_failed",
            explanation=f"{' and '.join(proof.broken)}, so no result of this audit can be read.",
            details=details,
        )
    gate = release.get("gate") or {}
    if gate.get("status") == "inconsistent":
        landed = ""
        if reached:
            winner = min(reached, key=lambda a: a.best or 0.0)
            landed = (
                f"{winner.name} came within a {_noun(release)} of {winner.best:.2g} of the auditor's batch all the same, so "
                "treat the update as leaking and find out why it does not fit. "
            )
        return Verdict(
            item=item,
            verdict=VerdictKind.INCONCLUSIVE,
            reason="inconsistent_update",
            explanation=f"{landed}The update is not what the stated model, protocol and defenses make of the auditor's batch. "
            + " ".join(f"{cause[:1].upper()}{cause[1:]}." for cause in gate.get("causes", ())),
            details=details,
        )
    if reached and not any(map(proof.bears_out, reached)):
        return Verdict(
            item=item,
            verdict=VerdictKind.INCONCLUSIVE,
            reason="control_not_run",
            explanation=f"{reached[0].name} came within a {_noun(release)} of {reached[0].best:.2g}, but its noise control "
            "could not be run, so the result cannot be trusted.",
            details=details,
        )
    reached = [attempt for attempt in reached if proof.bears_out(attempt)]
    if reached:
        winner = min(reached, key=lambda a: a.best or 0.0)
        details |= {"best_attack": winner.attack, "pixel_rmse": winner.best}
        details |= {"adversary": winner.adversary} if winner.adversary else {}
        return Verdict(
            item=item,
            verdict=VerdictKind.LEAKS,
            reason="attack_reached_threshold",
            explanation=f"{winner.name} rebuilt {_what(release, winner, thresholds, baselines, chance)} (limits: "
            f"{thresholds.pixel_rmse:g}, and {thresholds.baseline_ratio:g} of the blind adversary's).{proof.needless}",
            details=details,
        )
    bound = bound_on(
        release,
        rows,
        Limits(
            error=thresholds.pixel_rmse,
            baseline_ratio=thresholds.baseline_ratio,
            probability=thresholds.reconstruction_probability,
            reached=details["pixel_rmse"],
            blind=details["baseline_pixel_rmse"],
            noun=_noun(release),
        ),
    )
    if bound is not None:
        details |= bound.details
    if bound is not None and bound.holds and not proof.broken:
        return Verdict(
            item=item, verdict=VerdictKind.BOUNDED, reason=bound.reason, explanation=bound.text, details=details
        )
    reason, explanation = _why_inconclusive(release, attempts, best, thresholds)
    if near and reason in ("no_attack_reached_threshold", "no_better_than_blind"):
        reason, explanation = "no_better_than_chance", _by_luck(release, near, thresholds, baselines, chance)
    elif near:
        explanation = f"{explanation} Besides: {_by_luck(release, near, thresholds, baselines, chance)}"
    wrong = _wrong_derivative(release, rows)
    if wrong:
        reason, explanation = "wrong_derivative", f"{explanation} {wrong}"
    untried = _untried(attempts)
    if untried:
        explanation = f"{explanation} {untried}"
    if bound is not None:
        explanation = f"{explanation} {bound.text}"
    if refused:
        details["refused"] = True
    else:
        explanation += proof.needless
    return Verdict(item=item, verdict=VerdictKind.INCONCLUSIVE, reason=reason, explanation=explanation, details=details)


def _wrong_derivative(release: Line, rows: Sequence[Line]) -> str:
    """What to say where the derivative of the release was found wrong, or ""."""
    place = (release["scenario"], release["example"])
    for row in rows:
        mine = row["type"] == "item" and (row.get("scenario"), row.get("example")) == place
        if mine and row.get("kind") == "derivative" and row.get("check") == "wrong":
            return (
                "Besides, the derivative of this release is not what differences of its values say, so that its "
                "closed-form scores are unsupported and attacks that follow the derivative are weak."
            )
    return ""


def _why_inconclusive(
    release: Line, attempts: Sequence[_Attempt], best: _Attempt | None, thresholds: Thresholds
) -> tuple[str, str]:
    if not attempts:
        return "no_attack_ran", "No attack was run on this release; closed-form risk alone gives no verdict."
    if all(attempt.outcome == "no_signal" for attempt in attempts):
        return "no_signal", "The update is zero, so there is nothing to match. " + attempts[0].note
    if all(attempt.status != "done" for attempt in attempts):
        by_note: dict[str, list[str]] = {}
        for attempt in attempts:
            by_note.setdefault(attempt.note, []).append(attempt.name)
        reasons = "; ".join(f"{', '.join(names)}: {note}" for note, names in by_note.items())
        return "no_attack_finished", f"No attack could run, so nothing was tested: {reasons}"
    loss = release.get("client_loss")
    if loss is not None and loss < CONVERGED_LOSS and release.get("loss_name") == "cross_entropy":
        return (
            "converged_model",
            f"The client's loss is {loss:.2g}: the model has learned this batch, its gradients are almost zero, and "
            "attacks are uninformative here. Audit an early round instead; this is not low risk.",
        )
    if best is None:
        return "no_attack_finished", "No attack gave a reconstruction: " + "; ".join(
            f"{a.name}: {a.outcome} {a.note}".strip() for a in attempts
        )
    if best.best is not None and best.best <= thresholds.pixel_rmse:
        return (
            "no_better_than_blind",
            f"{best.name} ended at a {_noun(release)} of {best.best:.2g}, but guessing blindly does nearly as well on this "
            f"example ({_constant(release)}), so the update cannot be shown to have given it away.",
        )
    return (
        "no_attack_reached_threshold",
        f"The best attack ({best.name}) ended at a {_noun(release)} of {best.best:.2g}. A stronger attacker may do better: "
        "a failed attack is no evidence of safety.",
    )


def _what(
    release: Line, winner: _Attempt, thresholds: Thresholds, baselines: Sequence[float | None], chance: Sequence[float]
) -> str:
    """What an attack rebuilt, and to what: one example, or as many as are together more than luck."""
    rebuilt = thresholds.rebuilt(winner.errors, baselines)
    together = beyond_luck(rebuilt, chance) if chance else 1
    name = _noun(release)
    if together <= 1:
        beyond = f", below the {chance[0]:.2g} that luck reaches" if chance else ""
        return f"an example from the update alone, to a {name} of {rebuilt[0]:.2g}{beyond}"
    return (
        f"{together} examples from the update alone, to a {name} of at most {rebuilt[together - 1]:.2g}, which luck does not "
        f"reach for so many at once"
    )


def _by_luck(
    release: Line,
    near: Sequence[_Attempt],
    thresholds: Thresholds,
    baselines: Sequence[float | None],
    chance: Sequence[float],
) -> str:
    """What to say of attacks that came near, as blind guesses do, too."""
    winner = min(near, key=lambda a: a.best or 0.0)
    size = int(release.get("batch_size") or 1)
    if chance[0] == 0:
        told = "such values are guessed exactly, so that no single error tells"
    else:
        told = f"a single error tells only below {chance[0]:.2g}"
    examples = f"one of {size} such examples" if size > 1 else "such an example"
    rebuilt = thresholds.rebuilt(winner.errors, baselines)
    if len(rebuilt) > 1:
        last = chance[len(rebuilt) - 1]
        told += f", and {len(rebuilt)} at once, as many as came near, only if all are below {last:.2g}"
    return (
        f"{winner.name} ended at a {_noun(release)} of {winner.best:.2g}, but blind guesses come as near to {examples} by luck: "
        f"{told}."
    )


def _constant(release: Line) -> str:
    """Why guessing does so well: the example is almost constant, or its declared range makes it look so."""
    note = str(release.get("range_note") or "")
    return f"it is almost constant in units of its range: {note}" if note else "it is almost constant"


def _untried(attempts: Sequence[_Attempt]) -> str:
    """That nobody who knows the defenses attacked, where only those who do not know them did, or ""."""
    refused = [a for a in attempts if a.adversary == Adversary.ADAPTIVE and a.status != "done"]
    told = [a for a in attempts if a.adversary == Adversary.ADAPTIVE and a.status == "done"]
    done = [a for a in attempts if a.adversary == Adversary.STATIC and a.status == "done"]
    if not done or told:
        return ""
    if not refused:
        return "No adversary who knows the defenses was tried; one may do better."
    return f"No adversary who knows the defenses could be tried: {refused[0].note}"


def _noun(release: Line) -> str:
    """What the error is called for the data behind a release; records of old state no kind."""
    return error_name(release.get("domain_kind") or "image")


def _attempts(release: Line, rows: Sequence[Line]) -> list[_Attempt]:
    found = []
    for row in rows:
        same = row.get("scenario") == release["scenario"] and row.get("example") == release["example"]
        if row["type"] == "item" and row.get("kind") == "attack" and same:
            found.append(
                _Attempt(
                    attack=str(row["attack"]),
                    adversary=row.get("adversary"),
                    errors=tuple(_per_example(rows, str(row["item"]), str(row["attack"]))),
                    outcome=str(row.get("outcome")),
                    status=str(row.get("status")),
                    note=str(row.get("note") or ""),
                    # A refined claim stands and falls with the controls of the attack that it began with.
                    base=str(row.get("refines") or row["attack"]),
                )
            )
    return found


def _chance(rows: Sequence[Line], item: str) -> list[float]:
    """The limits that luck sets, smallest error first; empty where it gives nothing, and in records from before they were."""
    for row in rows:
        if row["type"] == "score" and row["item"] == item and row["name"] == "chance_pixel_rmse":
            return list((row.get("details") or {}).get("limits") or ())
    return []


def _per_example(rows: Sequence[Line], item: str, attack: str | None) -> list[float | None]:
    """The pixel RMSE of every example behind an item; scores of an attack carry its name, those of others none."""
    for row in rows:
        mine = row["type"] == "score" and row["item"] == item and row.get("attack") == attack
        if mine and row["name"] == "pixel_rmse":
            listed = (row.get("details") or {}).get("per_example")
            if listed is not None:
                return list(listed)
            return [row["value"]]
    return []
