"""From the lines of privacy audits to verdicts: a lower bound on epsilon breaks a claim, and proves none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradleak.results import Evidence, Outcome, Verdict, VerdictKind

Line = Mapping[str, Any]
_BOUNDS = (Evidence.LOWER_BOUND.value, Evidence.EXACT.value)


def judge_privacy(rows: Sequence[Line], allowed: float) -> list[Verdict]:
    """A verdict on every privacy audit of every scenario.

    *leaks* where a lower bound lies above the claimed epsilon (the claim is broken), where there is no noise and the two
    hypotheses give different updates, or where a lower bound lies above `allowed`; *bounded* where the guarantee of the
    release has an epsilon of at most `allowed` and nothing contradicts it; else *inconclusive*. A lower bound alone, however
    small, bounds nothing.

    Args:
        rows: the item and score lines of a record.
        allowed: the largest epsilon of a release that does not leak.
    """
    controls = {
        str(row.get("audit_name")): row
        for row in reversed(rows)
        if row.get("kind") == "control" and row.get("audit_name") is not None and row.get("passed") is not True
    }
    audits: dict[str, list[Line]] = {}
    for row in rows:
        if row["type"] == "item" and row.get("kind") == "privacy":
            audits.setdefault(str(row["item"]), []).append(row)
    found = [
        (items[0], _judge(item, items, rows, (controls.get(str(items[0].get("audit_name"))), allowed)))
        for item, items in audits.items()
    ]
    return [replace(verdict, details={**verdict.details, "audit": line.get("audit_name")}) for line, verdict in found]


def _judge(item: str, items: Sequence[Line], rows: Sequence[Line], rules: tuple[Line | None, float]) -> Verdict:
    broken, allowed = rules
    if any(row.get("status") == "failed" for row in items):
        return _inconclusive(item, "item_failed", f"The audit could not be finished: {items[0].get('note')}.")
    if all(row.get("status") != "done" for row in items):
        return _inconclusive(item, "audit_refused", f"The privacy loss could not be measured: {items[0].get('note')}")
    if broken is not None:
        return _inconclusive(
            item,
            "control_failed",
            f"{broken['item']} did not give what it had to ({broken.get('expects') or broken.get('note')}), so no bound of "
            "this audit can be read.",
        )
    found = [
        row
        for row in rows
        if row["type"] == "score" and row["item"] == item and row.get("estimator") and row["evidence"] in _BOUNDS
    ]
    known = [row for row in found if row["value"] is not None]
    if not known:
        note = next((row.get("note") for row in [*found, *items] if row.get("note")), "no bound has a value")
        reason = str(found[0]["outcome"]) if found else "no_score"
        return _inconclusive(item, reason, f"The audit has no bound: {note}")
    best = max(known, key=_number)
    return _measured(item, items[0], best, allowed)


def _measured(item: str, line: Line, best: Line, allowed: float) -> Verdict:
    value, claim = _number(best), line.get("claim") or {}
    claimed = None if claim.get("epsilon") is None else float(claim["epsilon"])
    details = _details(best, line, allowed)
    if math.isinf(value):
        return _leaks(
            item,
            "no_noise",
            "The release adds no noise, and its updates differ between the two hypotheses: whoever knows the rest tells them "
            f"apart without error, and no epsilon is finite. {_broken_too(claimed, claim)}",
            details,
        )
    if claimed is not None and value > claimed:
        return _leaks(
            item,
            "claim_broken",
            f"THE CLAIM IS BROKEN: epsilon is at least {value:.3g} at a confidence of {_confidence(line)} "
            f"({_by(best)}), and {claimed:.3g} is claimed ({claim.get('of')}; δ = {claim.get('delta'):g}). The release "
            "loses more than it says.",
            details,
        )
    said = f"epsilon is at least {value:.3g} at a confidence of {_confidence(line)} ({_by(best)}{_ceiling(best)})"
    if value > allowed:
        return _leaks(
            item,
            "epsilon_above_threshold",
            f"Whoever knows the rest tells the two hypotheses apart: {said}, above the limit of {allowed:g}. "
            f"{_beside(claimed, claim)}",
            details,
        )
    if claimed is not None and claimed <= allowed and claim.get("proven"):
        return Verdict(
            item=item,
            verdict=VerdictKind.BOUNDED,
            reason="epsilon_bounded",
            explanation=(
                f"Differential privacy leaves an epsilon of {claimed:.3g} at most for one release ({claim.get('of')}; δ = "
                f"{claim.get('delta'):g}; the limit is {allowed:g}), and nothing contradicts it: "
                f"{said if value > 0.0 else 'no lower bound above 0 was found'}. The bound is the guarantee, not the "
                "measurement, and more releases lose more."
            ),
            details=details | {"bound_margin": allowed / max(claimed, 1e-12)},
        )
    if value > 0.0:
        reason = "epsilon_within_claim" if claimed is not None else "epsilon_below_threshold"
        text = (
            f"The two hypotheses are told apart: {said}. {_beside(claimed, claim)} A lower bound proves no guarantee."
        )
        return _inconclusive(item, reason, text, details)
    return _inconclusive(
        item,
        "nothing_told_apart",
        f"The two hypotheses were not told apart: the lower bound on epsilon is 0{_ceiling(best)}. {_beside(claimed, claim)} "
        "Another record, another statistic or more trials may do better: this is no evidence of safety.",
        details,
    )


def _number(row: Line) -> float:
    """The value of a score line; records hold infinities as words."""
    return float(row["value"])


def _by(row: Line) -> str:
    statistic = str(row.get("statistic")).replace("_", " ").replace("likelihood ratio", "log likelihood ratio")
    return f"{statistic}, {row.get('estimator')}, {row.get('n')} trials"


def _confidence(line: Line) -> str:
    return f"{float(line.get('confidence') or 0.95):.3g}"


def _ceiling(row: Line) -> str:
    most = (row.get("details") or {}).get("largest_certifiable")
    if most is None:
        return ""
    saturated = "saturated: " if row.get("outcome") == Outcome.SATURATED.label else ""
    return f"; {saturated}so many trials certify {float(most):.3g} at most"


def _beside(claimed: float | None, claim: Line) -> str:
    if claimed is None:
        return f"No epsilon is claimed: {claim.get('reason') or 'none is known'}."
    return f"Claimed is {claimed:.3g} ({claim.get('of')}; δ = {claim.get('delta'):g}), which this does not contradict."


def _broken_too(claimed: float | None, claim: Line) -> str:
    return "" if claimed is None else f"THE CLAIM IS BROKEN: {claimed:.3g} is claimed ({claim.get('of')})."


def _details(row: Line, line: Line, allowed: float) -> dict[str, Any]:
    claim = line.get("claim") or {}
    return {
        "best_attack": f"{row.get('estimator')} on {row.get('statistic')}",
        "epsilon": row["value"],
        "claimed_epsilon": claim.get("epsilon"),
        "delta": claim.get("delta"),
        "threshold_epsilon": allowed,
        "pair": row.get("pair"),
    }


def _leaks(item: str, reason: str, explanation: str, details: Mapping[str, Any]) -> Verdict:
    return Verdict(
        item=item, verdict=VerdictKind.LEAKS, reason=reason, explanation=explanation.strip(), details=details
    )


def _inconclusive(item: str, reason: str, explanation: str, details: Mapping[str, Any] | None = None) -> Verdict:
    return Verdict(
        item=item, verdict=VerdictKind.INCONCLUSIVE, reason=reason, explanation=explanation, details=details or {}
    )


__all__ = ["judge_privacy"]
