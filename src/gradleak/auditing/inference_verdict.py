"""From the lines of inference games to verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.results import Verdict, VerdictKind
from gradleak.scoring.classification import ADVANTAGE, AUROC, leaks

Line = Mapping[str, Any]
FANO = "fano_advantage"


def judge_games(rows: Sequence[Line], allowed: float) -> list[Verdict]:
    """A verdict on every game against every scenario.

    *leaks* where an adversary, adaptive or static, has an advantage over the best blind guess whose interval, not clipped
    at 0, lies above 0; *bounded* where Fano's inequality, with an upper bound on the information of all observed rounds,
    leaves every adversary an advantage of at most `allowed`; else *inconclusive*, with the reason. An adversary that finds
    nothing proves nothing.

    Args:
        rows: the item and score lines of a record.
        allowed: the largest advantage of a game that is *bounded*.
    """
    controls = {
        str(row.get("game_name")): row
        for row in reversed(rows)
        if row.get("kind") == "control" and row.get("game_name") is not None and row.get("passed") is not True
    }
    games: dict[str, list[Line]] = {}
    for row in rows:
        if row["type"] == "item" and row.get("kind") == "inference":
            games.setdefault(str(row["item"]), []).append(row)
    return [
        _judge(item, items, rows, (controls.get(str(items[0].get("game_name"))), allowed))
        for item, items in games.items()
    ]


def _judge(item: str, items: Sequence[Line], rows: Sequence[Line], rules: tuple[Line | None, float]) -> Verdict:
    broken, allowed = rules
    done = [row for row in items if row.get("status") == "done"]
    if any(row.get("status") == "failed" for row in items):
        return _inconclusive(item, "item_failed", f"The game could not be finished: {items[0].get('note')}.")
    if not done:
        return _inconclusive(item, "game_refused", f"The game could not be played: {items[0].get('note')}")
    if broken is not None:
        return _inconclusive(
            item,
            "control_failed",
            f"{broken['item']} did not give what it had to ({broken.get('expects') or broken.get('note')}), so no result of "
            "this game can be read.",
        )
    found = [(row, score) for row in done if (score := _combined(row, rows, ADVANTAGE)) is not None]
    leaking = [(row, score) for row, score in found if leaks(score)]
    if leaking:
        row, score = max(leaking, key=lambda pair: float(pair[1]["value"]))
        return Verdict(
            item=item,
            verdict=VerdictKind.LEAKS,
            reason="advantage_above_zero",
            explanation=_sentence(row, score, _combined(row, rows, AUROC)),
            details=_details(row, score),
        )
    bound = next((score for row in done if (score := _combined(row, rows, FANO)) and _bounds(score, allowed)), None)
    if bound is not None:
        return Verdict(
            item=item,
            verdict=VerdictKind.BOUNDED,
            reason="fano_bound",
            explanation=(
                f"No adversary who sees the updates of one batch in these rounds has an advantage above {bound['value']:.2g} "
                f"over the best blind guess ({bound['details']['blind']:.1%}), whatever it computes: the noise bounds what "
                f"they tell (Fano's inequality; the limit is {allowed:g}). This holds on average over batches drawn by the "
                "prior, and for no more rounds than were counted."
            ),
            details={
                "advantage_bound": bound["value"],
                "threshold_advantage": allowed,
                "bound_margin": allowed / max(bound["value"], 1e-12),
                "game": done[0].get("game_name"),
            },
        )
    if not found:
        note = next((row.get("note") for row in done if row.get("note")), "no score has a value")
        return _inconclusive(item, str(done[0].get("outcome") or "no_score"), f"The game has no result: {note}")
    row, score = max(found, key=lambda pair: float(pair[1]["details"].get("unclipped", pair[1]["value"])))
    low, high = score["details"]["unclipped_interval"]
    gained = float(score["details"].get("unclipped", score["value"]))
    explanation = (
        f"No adversary is shown to have done better than a blind guess: the best one ({row['attack']}) has an advantage of "
        f"{gained:.2g} (interval {low:.2g} to {high:.2g}, not clipped at 0). {_ordering(row, rows)}{_nearly(done, rows, allowed)}"
        "A stronger adversary, more public rows or more rounds may do better: this is no evidence of safety."
    )
    details = _details(row, score)
    return Verdict(
        item=item,
        verdict=VerdictKind.INCONCLUSIVE,
        reason="no_advantage_found",
        explanation=explanation,
        details=details,
    )


def _combined(item: Line, rows: Sequence[Line], name: str) -> Line | None:
    """The score of one adversary from all observed rounds together; None without a value. Bounds before estimates."""
    found = [
        row
        for row in rows
        if row["type"] == "score"
        and (row["item"], row.get("attack"), row["name"]) == (item["item"], item["attack"], name)
        and row.get("rounds") == item.get("observed")
        and row["value"] is not None
    ]
    return min(found, key=lambda row: row.get("evidence") != "upper_bound", default=None)


def _ordering(row: Line, rows: Sequence[Line]) -> str:
    """That an adversary orders batches rightly whose guesses are no better than blind, or ""."""
    auroc = _combined(row, rows, AUROC)
    if auroc is None or not auroc.get("interval") or float(auroc["interval"][0]) <= 0.5:
        return ""
    return (
        f"But it orders the batches rightly (AUROC {auroc['value']:.3f}, interval above 0.5), so that another threshold would "
        "make a leak of that. "
    )


def _nearly(done: Sequence[Line], rows: Sequence[Line], allowed: float) -> str:
    """What Fano's inequality leaves to any adversary where that is more than allowed, or ""."""
    scores = [score for row in done if (score := _combined(row, rows, FANO)) and score["evidence"] == "upper_bound"]
    if not scores or scores[0]["value"] >= 1.0:
        return ""
    return f"Any adversary has at most {scores[0]['value']:.2g} (Fano's inequality), above the limit of {allowed:g}. "


def _bounds(score: Line, allowed: float) -> bool:
    """Whether an upper bound on every adversary's advantage is at most what is allowed."""
    return score["evidence"] == "upper_bound" and score["value"] <= allowed


def _sentence(item: Line, score: Line, auroc: Line | None) -> str:
    details = score["details"]
    what = _what(item)
    area = "" if auroc is None else f", with an AUROC of {auroc['value']:.3f}"
    rounds = len(item.get("observed") or ())
    who = "An adaptive" if item["attack"] == "adaptive" else "A static" if _defended(item) else "An"
    low, high = details["unclipped_interval"]
    return (
        f"{who} adversary told {what} from the updates of {rounds} round{'s' if rounds > 1 else ''}: it is right more often "
        f"than the best blind guess ({details['blind']:.1%}){area}; its advantage is {score['value']:.3f} "
        f"(interval {low:.3f} to {high:.3f})."
    )


def _what(item: Line) -> str:
    """The variable and its values, in words."""
    values, use = [str(value) for value in item.get("values") or ()], str((item.get("game") or {}).get("use") or "")
    name = str(item.get("game_name") or "the sensitive variable")
    if use == "UserGame":
        return f"which of {len(values)} candidates the rows belong to ({name})"
    return f"{name} ({', '.join(values)})" if 0 < len(values) <= 6 else name


def _defended(item: Line) -> bool:
    """Whether there is anything to know about the release; taken so where the record does not say."""
    release = (item.get("game") or {}).get("release")
    return not isinstance(release, Mapping) or release.get("use") != "Release" or bool(release.get("defenses"))


def _details(item: Line, score: Line) -> dict[str, Any]:
    return {
        "adversary": item["attack"],
        "best_attack": f"{item['attack']} adversary",
        "advantage": score["value"],
        "advantage_interval": list(score["details"]["unclipped_interval"]),
        "blind": score["details"]["blind"],
        "game": item.get("game_name"),
    }


def _inconclusive(item: str, reason: str, explanation: str) -> Verdict:
    return Verdict(item=item, verdict=VerdictKind.INCONCLUSIVE, reason=reason, explanation=explanation)


__all__ = ["judge_games"]
