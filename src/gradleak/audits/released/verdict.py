"""The verdict on each release, from all that is known about it; thresholds are plan values and are printed with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradleak.audits.base import Adversary
from gradleak.audits.released.bound import Limits, bound_on
from gradleak.core import DomainKind
from gradleak.results import (
    Attempt,
    Finding,
    Grounds,
    Outcome,
    Score,
    Status,
    Thresholds,
    Verdict,
    VerdictKind,
    beyond_luck,
    by_example,
    error_name,
    error_score,
)
from gradleak.results.findings.released import ReleaseFinding

CONVERGED_LOSS = 0.01
# Of the words of a batch, found and right.
BAG = 0.5
# A row or signal that is rebuilt so well is hardly another one of the same kind.
UNLIKE = 0.01
NOUN = "attacked releases"
NOT_TRIED = "no_attack_ran"
LEFT_OUT = "left_out_by_budget"
WRONG_DERIVATIVE = (
    "Besides, the derivative of this release is not what differences of its values say, so that its closed-form scores are "
    "unsupported and attacks that follow the derivative are weak."
)


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """The evidence of the controls on the attacks.

    Attributes:
        broken: sentences without their end on controls that take every result away.
        noise: whether the noise control of an attack and an adversary passed, None where it could not run; the adversary
            is "" for the control that speaks of everyone who has none of its own.
        needless: that no leak was planted, since the attack that was to find it never runs; "" where one was.
        cut: the releases and controls that a time budget left out for want of time.
    """

    broken: tuple[str, ...]
    noise: Mapping[tuple[str, str], bool | None]
    needless: str
    cut: tuple[str, ...]

    def bears_out(self, attempt: Attempt) -> bool:
        """True if no noise control of this attack and adversary was left undone."""
        own = (attempt.base, attempt.adversary)
        return self.noise.get(own if own in self.noise else (attempt.base, ""), True) is not None


def judge(releases: Sequence[ReleaseFinding], grounds: Grounds) -> list[Verdict]:
    """The verdicts on releases, those that could not be made last.

    *leaks* comes from an attack that never saw the truth, of the adaptive adversary or of the static one; *bounded* from
    differential privacy that leaves every attacker at most the stated chance, or from a van Trees bound above the same
    limit, where no attack leaks (`bound_on`) and no time budget left out its attacks, a control or a release; everything else is
    *inconclusive*, with the reason. Noise that leaks, or no
    planted leak that was found, makes every verdict inconclusive; where all attacks were refused, that is the reason, and a
    planted leak that was refused because its attack is refused everywhere counts as none.

    Args:
        releases: of the plan.
        grounds: the attempts on them, the controls of the audits that made them, and the bounds.
    """
    left = [one for one in releases if one.status is Status.LEFT_OUT]
    proof = _proof(grounds, left)
    verdicts = [_tried(_judge_release(one, grounds, proof), grounds) for one in releases if one.status is Status.DONE]
    verdicts += [_unjudged(release) for release in releases if release.status is Status.FAILED]
    return [*verdicts, *(verdict for release in left for verdict in _not_begun(release, grounds))]


def _proof(grounds: Grounds, left: Sequence[ReleaseFinding]) -> _Proof:
    """The controls of all audits that attack releases, and the releases that a time budget left out."""
    every = [finding for finding in grounds.findings if isinstance(finding, Attempt)]
    controls = [one for audit in dict.fromkeys(one.audit for one in every) for one in grounds.controls(audit)]
    # A noise control that could not run takes its own attack out; without any planted leak found nothing can be read.
    planted = [one for one in controls if one.control is not None and one.control.planted]
    noise = [one for one in controls if one.control is not None and not one.control.planted]
    needless = [one for one in planted if _needless(one, every)]
    found = {one.audit for one in planted if _passed(one)}
    failed = [one for one in planted if one.audit not in found and one not in needless]
    failed += [one for one in noise if _passed(one) is False]
    return _Proof(
        broken=tuple(_what_failed(one) for one in failed),
        noise={(one.attack, one.adversary): _passed(one) for one in noise if isinstance(one, Attempt)},
        needless=next((_no_leak_planted(one) for one in needless if one.audit not in found), ""),
        cut=tuple(one.item for one in (*left, *controls) if _cut(one)),
    )


def _cut(finding: Finding) -> bool:
    """True if a time budget left it out for want of time, and not since it could tell nothing."""
    return finding.status is Status.LEFT_OUT and finding.outcome is Outcome.BUDGET_SPENT


def _left_out(attempts: Sequence[Attempt], proof: _Proof) -> str:
    """Work that a time budget left out, without which no bound makes a release *bounded*, or ""."""
    left = [one for one in attempts if one.status is Status.LEFT_OUT]
    if left and not any(one.status is Status.DONE for one in attempts):
        return f"No attack was run on this release: the time budget left out {_named([one.title for one in left])}."
    names = [*(one.title for one in left if _cut(one)), *proof.cut]
    return f"The time budget left out {_named(names)}." if names else ""


def _named(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    some = list(dict.fromkeys(names))
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def _passed(finding: Finding) -> bool | None:
    return None if finding.control is None else finding.control.passed


def _needless(control: Finding, attempts: Sequence[Attempt]) -> bool:
    """True if a planted leak was refused or left out like every attack that it speaks of: no result needs to be borne out."""
    assert control.control is not None
    every = [one for one in attempts if one.control is None]
    own = [one for one in every if one.attack == control.control.of]
    if control.status is Status.LEFT_OUT:
        return bool(every) and all(one.status is not Status.DONE for one in every)
    return _passed(control) is None and bool(own) and {one.status for one in (control, *own)} == {Status.REFUSED}


def _no_leak_planted(control: Finding) -> str:
    if control.status is Status.LEFT_OUT:
        return " No leak was planted, since no attack ran."
    attack = "" if control.control is None else control.control.of
    return (
        f" No leak was planted, since {attack}, which was to find it, is refused everywhere; name another attack "
        "under controls to see that a leak would be found."
    )


def _what_failed(control: Finding) -> str:
    note = control.note.rstrip(".")
    if _passed(control) is None and note:
        return f"{control.item} could not be run ({note})"
    if isinstance(control, Attempt) and control.control is not None and control.control.planted:
        # Controls run what the plan has, and a weak attack misses an easy leak as well.
        settings = getattr(control, "settings", {})
        steps = [f"{key} = {settings[key]}" for key in ("iterations", "max_steps") if settings.get(key) is not None]
        own = f"the plan's own {control.attack}" + (f" ({', '.join(steps)})" if steps else "")
        return f"{control.item} failed: {own} did not find the planted leak, so it may be too weak to find any"
    return f"{control.item} failed"


def _verdict(
    release: ReleaseFinding,
    verdict: VerdictKind,
    reason: str,
    explanation: str,
    details: Mapping[str, Any] | None = None,
) -> Verdict:
    return Verdict(
        item=release.item,
        audit=release.audit,
        scenario=release.scenario,
        subject=release.subject,
        verdict=verdict,
        reason=reason,
        explanation=explanation,
        details=details or {},
        noun=NOUN,
        tested=reason != NOT_TRIED,
    )


def _unjudged(release: ReleaseFinding) -> Verdict:
    """The verdict on a release that could not even be made."""
    explanation = f"The release could not be made: {release.note}."
    return _verdict(release, VerdictKind.INCONCLUSIVE, "item_failed", explanation)


def _not_begun(release: ReleaseFinding, grounds: Grounds) -> Iterator[Verdict]:
    """The verdicts on a release that a time budget left out, in every scenario that an attack on it was planned for."""
    attempts = (one for one in grounds.findings if isinstance(one, Attempt) and one.subject == release.subject)
    for scenario in dict.fromkeys(one.scenario for one in attempts) or (None,):
        place = release.item if scenario is None else f"{scenario}/{release.item.removeprefix('release/')}"
        here = release.but(item=place, scenario=scenario)
        verdict = _verdict(here, VerdictKind.INCONCLUSIVE, LEFT_OUT, f"The release was {release.note}.")
        yield replace(verdict, tested=False)


def _tried(verdict: Verdict, grounds: Grounds) -> Verdict:
    """The verdict, as one on what was never tested where every attack on the release was left out."""
    about = grounds.about(verdict.scenario, verdict.subject)
    every = [one for one in about if isinstance(one, Attempt)]
    left = bool(every) and all(one.status is Status.LEFT_OUT for one in every)
    return replace(verdict, tested=False) if left else verdict


def _judge_release(release: ReleaseFinding, grounds: Grounds, proof: _Proof) -> Verdict:
    thresholds, noun = grounds.thresholds.for_data(release.domain_kind), error_name(release.domain_kind)
    measure = error_score(release.domain_kind)
    about = grounds.about(release.scenario, release.subject)
    attempts = [finding for finding in about if isinstance(finding, Attempt)]
    baselines = by_example(release.score(measure))
    luck = release.score(f"chance_{measure}")
    chance = [] if luck is None else list(luck.details.get("limits") or ())
    near = [a for a in attempts if baselines and a.best is not None and thresholds.leaks(a.errors, baselines)]
    reached = [a for a in near if thresholds.leaks(a.errors, baselines, chance)]
    best = min((a for a in attempts if a.best is not None), key=lambda a: a.best or 0.0, default=None)
    details: dict[str, Any] = {
        f"threshold_{measure}": thresholds.pixel_rmse,
        "threshold_baseline_ratio": thresholds.baseline_ratio,
        "best_attack": best.attack if best else None,
        **({"adversary": best.adversary} if best and best.adversary else {}),
        measure: best.best if best else None,
        f"baseline_{measure}": min((b for b in baselines if b is not None), default=None),
        **({f"chance_{measure}": chance[0]} if chance else {}),
        **({"bag": bag} if (bag := _bag(attempts)) else {}),
    }
    refused = bool(attempts) and all(attempt.status is not Status.DONE for attempt in attempts)
    if proof.broken and not refused:
        explanation = f"{' and '.join(proof.broken)}, so no result of this audit can be read."
        return _verdict(release, VerdictKind.INCONCLUSIVE, "control_failed", explanation, details)
    if release.gate.status == "inconsistent":
        landed = ""
        if reached:
            winner = min(reached, key=lambda a: a.best or 0.0)
            landed = (
                f"{winner.title} came within a {noun} of {winner.best:.3g} of the auditor's batch all the same, so "
                "treat the update as leaking and find out why it does not fit. "
            )
        explanation = (
            f"{landed}The update is not what the stated model, protocol and defenses make of the auditor's batch. "
            + " ".join(f"{cause[:1].upper()}{cause[1:]}." for cause in release.gate.causes)
        )
        return _verdict(release, VerdictKind.INCONCLUSIVE, "inconsistent_update", explanation, details)
    if reached and not any(map(proof.bears_out, reached)):
        explanation = (
            f"{reached[0].title} came within a {noun} of {reached[0].best:.3g}, but its noise control "
            "could not be run, so the result cannot be trusted."
        )
        return _verdict(release, VerdictKind.INCONCLUSIVE, "control_not_run", explanation, details)
    reached = [attempt for attempt in reached if proof.bears_out(attempt)]
    if reached:
        winner = min(reached, key=lambda a: a.best or 0.0)
        details |= {"best_attack": winner.attack, measure: winner.best}
        details |= {"adversary": winner.adversary} if winner.adversary else {}
        explanation = (
            f"{winner.title} rebuilt {_what(noun, winner, thresholds, baselines, chance)}.{_of_sentences(winner)} An error of "
            f"up to {thresholds.pixel_rmse:g} counts as rebuilt, where that is at most {_share(thresholds.baseline_ratio)}the "
            f"error of a blind guess.{_alike(release, winner, luck)}{proof.needless}"
        )
        return _verdict(release, VerdictKind.LEAKS, "attack_reached_threshold", explanation, details)
    bound = bound_on(
        release,
        grounds,
        Limits(
            error=thresholds.pixel_rmse,
            baseline_ratio=thresholds.baseline_ratio,
            probability=thresholds.reconstruction_probability,
            reached=details[measure],
            blind=details[f"baseline_{measure}"],
            noun=noun,
        ),
    )
    if bound is not None:
        details |= bound.details
    left = _left_out(attempts, proof)
    holds = bound is not None and bound.holds
    if bound is not None and holds and not proof.broken and not left:
        return _verdict(release, VerdictKind.BOUNDED, bound.reason, bound.text, details)
    reason, explanation = _why_inconclusive(release, attempts, best, thresholds)
    if left and (reason == "no_attack_finished" or (holds and reason != "no_attack_had_a_chance")):
        reason, explanation = LEFT_OUT, f"{left} {explanation}"
    if near:
        by_luck = _by_luck(release, near, thresholds, baselines, chance)
        if reason in ("no_attack_reached_threshold", "no_better_than_blind"):
            reason, explanation = "no_better_than_chance", by_luck
        else:
            explanation = f"{explanation} Besides: {by_luck}"
    if _wrong_derivative(grounds, release):
        reason, explanation = "wrong_derivative", f"{explanation} {WRONG_DERIVATIVE}"
    bag = details.get("bag")
    if bag and reason in (
        "no_attack_finished",
        "no_attack_reached_threshold",
        "no_better_than_blind",
        "no_better_than_chance",
    ):
        reason, explanation = "words_leak", f"{_words_leak(bag)} {explanation}"
    untried = _untried(attempts)
    if untried:
        explanation = f"{explanation} {untried}"
    if bound is not None:
        alone = "The bound alone gives no verdict while that is left out: " if holds and left else ""
        explanation = f"{explanation} {alone}{bound.text}"
    if refused:
        details["refused"] = True
    else:
        explanation += proof.needless
    return _verdict(release, VerdictKind.INCONCLUSIVE, reason, explanation, details)


def _share(ratio: float) -> str:
    """A share of something in words, to stand before it."""
    return "" if ratio == 1 else f"{ratio:g} times "


def _bag(attempts: Sequence[Attempt]) -> dict[str, Any] | None:
    """The best claim of the words of a batch without places, where at least half are right and half were found."""
    found = [
        (
            min(recall, precision),
            {"attack": one.title, "recall": recall, "precision": precision, "different": _different(one)},
        )
        for one in attempts
        if (recall := one.value("bag_recall")) is not None and (precision := one.value("bag_precision")) is not None
    ]
    best = max(found, key=lambda pair: pair[0], default=None)
    return best[1] if best is not None and best[0] >= BAG else None


def _different(attempt: Attempt) -> str:
    """The different words that were named, of those that there are, in words."""
    score = attempt.score("bag_recall")
    details = {} if score is None else score.details
    named, every = details.get("different_named"), details.get("different")
    return f"{named} of {every} different words" if every else "different words were not counted"


def _words_leak(bag: Mapping[str, Any]) -> str:
    return (
        f"The bag of words leaks: {bag['attack']} named {bag['recall']:.0%} of the words of the batch, each counted as often as "
        f"it stands there ({bag['different']}), from the update alone, and {bag['precision']:.0%} of what it named is there. "
        "Whose sentence they stand in, and where, was not shown."
    )


def _of_sentences(winner: Attempt) -> str:
    """Number of sentences that came out whole, in words; "" for other data."""
    whole = None if winner.score("token_error") is None else winner.score("exact_hits")
    listed = by_example(whole) if whole is not None else ()
    right = sum(map(bool, listed))
    return (
        f" {right} of {len(listed)} sentences {'is' if right == 1 else 'are'} exact, word for word." if listed else ""
    )


def _wrong_derivative(grounds: Grounds, release: ReleaseFinding) -> bool:
    """True if the derivative of the release was found wrong."""
    checks = grounds.scores("derivative_error", release.scenario, release.subject)
    return any(score.outcome is Outcome.INCONSISTENT for _, score in checks)


def _why_inconclusive(
    release: ReleaseFinding, attempts: Sequence[Attempt], best: Attempt | None, thresholds: Thresholds
) -> tuple[str, str]:
    if not attempts:
        return NOT_TRIED, "No attack was run on this release; closed-form risk alone gives no verdict."
    if all(attempt.outcome is Outcome.NO_SIGNAL for attempt in attempts):
        return "no_signal", _nothing_found(attempts)
    if all(attempt.status is Status.LEFT_OUT and attempt.outcome is None for attempt in attempts):
        told = attempts[0].note.removeprefix("left out: ")
        return (
            "no_attack_had_a_chance",
            f"No attack was begun: {told}. This is no evidence of safety against a stronger one.",
        )
    if all(attempt.status is not Status.DONE for attempt in attempts):
        return "no_attack_finished", f"No attack could run, so nothing was tested: {_by_note(attempts)}"
    loss, noun = release.client_loss, error_name(release.domain_kind)
    if loss is not None and loss < CONVERGED_LOSS and release.loss_name == "cross_entropy":
        return (
            "converged_model",
            f"The client's loss is {loss:.2g}: the model has learned this batch, its gradients are almost zero, and "
            "attacks are uninformative here. Audit an early round instead; this is not low risk.",
        )
    if release.model_note:
        return (
            "model_out_of_scale",
            f"The model is broken: {release.model_note}. Attacks are uninformative here; this is not low risk.",
        )
    if best is None:
        return "no_attack_finished", "No attack gave a reconstruction: " + "; ".join(
            ": ".join(part for part in (a.title, _ended(a), a.note) if part) for a in attempts
        )
    if best.best is not None and best.best <= thresholds.pixel_rmse:
        return (
            "no_better_than_blind",
            f"{best.title} ended at a {noun} of {best.best:.3g}, but a blind guess does nearly as well on this "
            f"example ({_constant(release)}), so the update cannot be shown to have given it away.",
        )
    return (
        "no_attack_reached_threshold",
        f"The best attack ({best.title}) ended at a {noun} of {best.best:.3g}. A stronger attacker may do better: "
        "a failed attack is no evidence of safety.",
    )


def _nothing_found(attempts: Sequence[Attempt]) -> str:
    """Reason why no attack had anything to match: zeros, or noise that nothing stands out of, as its own note says."""
    told = _by_note(attempts).rstrip(".")
    end = "" if "no evidence of safety" in told else " This is no evidence of safety."
    return f"No attack found anything in the update to match: {told}.{end}"


def _by_note(attempts: Sequence[Attempt]) -> str:
    """Notes of attacks in a sentence, each once behind the names of those that say it."""
    found: dict[str, list[str]] = {}
    for attempt in attempts:
        found.setdefault(attempt.note, []).append(attempt.title)
    return "; ".join(": ".join(part for part in (", ".join(names), note) if part) for note, names in found.items())


def _ended(attempt: Attempt) -> str:
    return "" if attempt.outcome is None else attempt.outcome.label.replace("_", " ")


def _what(
    noun: str, winner: Attempt, thresholds: Thresholds, baselines: Sequence[float | None], chance: Sequence[float]
) -> str:
    """Examples that an attack rebuilt, in words: one example, or as many as are together more than luck."""
    rebuilt = thresholds.rebuilt(winner.errors, baselines)
    example = "a sentence" if winner.score("token_error") is not None else "an example"
    together = beyond_luck(rebuilt, chance) if chance else 1
    if together <= 1:
        beyond = f", below the {chance[0]:.3g} that guesses without the update reach by luck" if chance else ""
        return f"{example} from the update alone, to a {noun} of {rebuilt[0]:.3g}{beyond}"
    return (
        f"{together} examples from the update alone, to a {noun} of at most {rebuilt[together - 1]:.3g}, which luck does not "
        f"reach for so many at once"
    )


def _by_luck(
    release: ReleaseFinding,
    near: Sequence[Attempt],
    thresholds: Thresholds,
    baselines: Sequence[float | None],
    chance: Sequence[float],
) -> str:
    """Note on attacks that came near, as blind guesses do, too."""
    winner = min(near, key=lambda a: a.best or 0.0)
    size, noun = release.batch_size, error_name(release.domain_kind)
    if chance[0] == 0:
        told = "such values are guessed exactly, so that no single error is evidence"
    else:
        told = f"a single error is evidence only below {chance[0]:.3g}"
    examples = f"one of {size} such examples" if size > 1 else "such an example"
    rebuilt = thresholds.rebuilt(winner.errors, baselines)
    if len(rebuilt) > 1:
        last = chance[len(rebuilt) - 1]
        told += f", and {len(rebuilt)} at once, as many as came near, only if all are below {last:.3g}"
    return (
        f"{winner.title} ended at a {noun} of {winner.best:.3g}, but guesses without the update come as near to {examples} by "
        f"luck: {told}."
    )


def _alike(release: ReleaseFinding, winner: Attempt, luck: Score | None) -> str:
    """Note that another row or signal may lie as near as this claim, where nothing tells how alike they are, or ""."""
    public = luck is not None and "public" in luck.details.get("guesses", ())
    alike = release.domain_kind in (DomainKind.TABULAR, DomainKind.SIGNAL) and (winner.best or 0.0) > UNLIKE
    if public or not alike:
        return ""
    return (
        " How alike such examples are is not known here, and one of another client may lie as near: state public rows in the "
        "threat model to have them compared."
    )


def _constant(release: ReleaseFinding) -> str:
    """The reason why guessing does so well: the example is almost constant, or its declared range makes it look so."""
    note = release.range_note
    return f"it is almost constant in units of its range: {note}" if note else "it is almost constant"


def _untried(attempts: Sequence[Attempt]) -> str:
    """Note that nobody who knows the defenses attacked, where only those who do not know them did, or ""."""
    refused = [a for a in attempts if a.adversary == Adversary.ADAPTIVE and a.status is not Status.DONE]
    told = [a for a in attempts if a.adversary == Adversary.ADAPTIVE and a.status is Status.DONE]
    done = [a for a in attempts if a.adversary == Adversary.STATIC and a.status is Status.DONE]
    if not done or told:
        return ""
    if not refused:
        return "No adversary who knows the defenses was tried; one may do better."
    return f"No adversary who knows the defenses could be tried: {refused[0].note}"
