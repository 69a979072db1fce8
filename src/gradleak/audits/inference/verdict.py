"""From the findings of inference games to verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.results import Grounds, Score, Status, Verdict, VerdictKind
from gradleak.results.findings.inference import InferenceFinding
from gradleak.scoring.classification import ADVANTAGE, AUROC, leaks

NOUN = "games"
FANO = "fano_advantage"


def judge_games(found: Sequence[InferenceFinding], grounds: Grounds) -> list[Verdict]:
    """A verdict on every game against every scenario.

    *leaks* where an adversary, adaptive or static, has an advantage over the best blind guess whose interval, not clipped
    at 0, lies above 0; *bounded* where Fano's inequality, with an upper bound on the information of all observed rounds,
    leaves every adversary an advantage of at most the plan's threshold; else *inconclusive*, with the reason: an adversary
    that finds nothing proves nothing, and one that is right with a dozen users says little of others (`too_few_rows`).

    Args:
        found: the findings of games, controls among them.
        grounds: whose thresholds hold.
    """
    broken = {one.audit: one for one in reversed(found) if one.control is not None and one.control.passed is not True}
    allowed = grounds.thresholds.advantage
    return [_judge(one, broken.get(one.audit), allowed) for one in found if one.control is None]


def _judge(found: InferenceFinding, broken: InferenceFinding | None, allowed: float) -> Verdict:
    if found.status is Status.FAILED:
        return _inconclusive(found, "item_failed", f"The game could not be finished: {found.note}.")
    if found.status is not Status.DONE:
        return _inconclusive(found, "game_refused", f"The game could not be played: {found.note}")
    if broken is not None:
        wanted = broken.control.expects if broken.control and broken.status is Status.DONE else broken.note
        text = f"{broken.item} failed ({wanted}), so no result of this game can be read."
        return _inconclusive(found, "control_failed", text)
    reached = [(who, score) for who in found.adversaries if (score := found.known(ADVANTAGE, who)) is not None]
    leaking = [(who, score) for who, score in reached if leaks(score)]
    if leaking:
        who, score = max(leaking, key=lambda pair: _value(pair[1]))
        text = _sentence(found, who, score)
        return _verdict(found, VerdictKind.LEAKS, "advantage_above_zero", text, _details(who, score))
    bounds = [score for who in found.adversaries if (score := found.known(FANO, who)) is not None]
    bounds = [score for score in bounds if score.evidence == "upper_bound"]
    bound = next((score for score in bounds if _value(score) <= allowed), None)
    if bound is not None:
        return _bounded(found, bound, allowed)
    if not reached:
        outcome = found.outcome.label if found.outcome else "no_score"
        return _inconclusive(found, outcome, f"The game has no result: {found.note or 'no score has a value'}")
    who, score = max(reached, key=lambda pair: float(pair[1].details.get("unclipped", _value(pair[1]))))
    low, high = score.details["unclipped_interval"]
    gained = float(score.details.get("unclipped", _value(score)))
    here = score.details.get("unclipped_trial_interval") or [0.0, 0.0]
    if here[0] > 0.0:
        # Batches of the same few rows or users err together: what holds for these need not hold for others.
        of = "users" if found.game.get("use") == "UserGame" else "rows"
        text = (
            f"With the private {of} of this game the best adversary ({who}) is right more often than a blind guess (advantage "
            f"{gained:.2g}, interval {here[0]:.2g} to {here[1]:.2g}), but they are too few to say so of others: over {of} and "
            f"trials the interval is {low:.2g} to {high:.2g}, not clipped at 0. {_nearly(bounds, allowed)}"
            f"Play it with more private {of}. Until then take it for a leak that is not shown, and not for safety."
        )
        return _verdict(found, VerdictKind.INCONCLUSIVE, "too_few_rows", text, _details(who, score))
    text = (
        f"No adversary is shown to have done better than a blind guess: the best one ({who}) has an advantage of "
        f"{gained:.2g} (interval {low:.2g} to {high:.2g}, not clipped at 0). {_ordering(found, who)}{_nearly(bounds, allowed)}"
        "A stronger adversary, more public rows or more rounds may do better: this is no evidence of safety."
    )
    return _verdict(found, VerdictKind.INCONCLUSIVE, "no_advantage_found", text, _details(who, score))


def _bounded(found: InferenceFinding, bound: Score, allowed: float) -> Verdict:
    value = _value(bound)
    text = (
        f"No adversary who sees the updates of one batch in these rounds has an advantage above {value:.2g} over the best "
        f"blind guess ({bound.details['blind']:.1%}), whatever it computes: the noise bounds what they tell (Fano's "
        f"inequality; the limit is {allowed:g}). This holds on average over batches drawn by the prior, and for no more "
        "rounds than were counted."
    )
    details = {
        "advantage_bound": value,
        "threshold_advantage": allowed,
        "bound_margin": allowed / max(value, 1e-12),
    }
    return _verdict(found, VerdictKind.BOUNDED, "fano_bound", text, details)


def _ordering(found: InferenceFinding, adversary: str) -> str:
    """Note on an adversary that ranks batches correctly while its guesses are no better than blind, or ""."""
    auroc = found.known(AUROC, adversary)
    if auroc is None or auroc.interval is None or auroc.interval[0] <= 0.5:
        return ""
    return (
        f"But it ranks the batches correctly (AUROC {_value(auroc):.3f}, interval above 0.5): another decision threshold "
        "would turn this into a leak. "
    )


def _nearly(bounds: Sequence[Score], allowed: float) -> str:
    """Note on the chance that Fano's inequality leaves to any adversary where it is more than allowed, or ""."""
    if not bounds or _value(bounds[0]) >= 1.0:
        return ""
    most = f"{_value(bounds[0]):.2g}"
    return f"Fano's inequality allows any adversary an advantage of up to {most}, above the limit of {allowed:g}. "


def _sentence(found: InferenceFinding, adversary: str, score: Score) -> str:
    auroc = found.known(AUROC, adversary)
    area = "" if auroc is None else f", with an AUROC of {_value(auroc):.3f}"
    rounds = len(found.observed)
    who = "An adaptive" if adversary == "adaptive" else "A static" if _defended(found) else "An"
    low, high = score.details["unclipped_interval"]
    return (
        f"{who} adversary inferred {_what(found)} from the updates of {rounds} round{'s' if rounds > 1 else ''}: it is right "
        f"more often than the best blind guess (success rate {score.details['blind']:.3f}){area}; its advantage is "
        f"{_value(score):.3f} (interval {low:z.3f} to {high:z.3f})."
    )


def _what(found: InferenceFinding) -> str:
    """The variable and its values, in words."""
    if found.game.get("use") == "UserGame":
        return f"which of {len(found.values)} candidates the rows belong to ({found.audit})"
    return f"{found.audit} ({', '.join(found.values)})" if 0 < len(found.values) <= 6 else found.audit


def _defended(found: InferenceFinding) -> bool:
    """True if there is anything to know about the release; taken so where the finding does not say."""
    release = found.game.get("release")
    return not isinstance(release, Mapping) or release.get("use") != "Release" or bool(release.get("defenses"))


def _value(score: Score) -> float:
    assert score.value is not None
    return score.value


def _details(adversary: str, score: Score) -> dict[str, Any]:
    return {
        "adversary": adversary,
        "best_attack": f"{adversary} adversary",
        "advantage": score.value,
        "advantage_interval": list(score.details["unclipped_interval"]),
        "blind": score.details["blind"],
    }


def _inconclusive(found: InferenceFinding, reason: str, text: str) -> Verdict:
    return _verdict(found, VerdictKind.INCONCLUSIVE, reason, text, {})


def _verdict(
    found: InferenceFinding, verdict: VerdictKind, reason: str, text: str, details: Mapping[str, Any]
) -> Verdict:
    return Verdict(
        item=found.item,
        audit=found.audit,
        scenario=found.scenario,
        verdict=verdict,
        reason=reason,
        explanation=text,
        details=details,
        noun=NOUN,
    )
