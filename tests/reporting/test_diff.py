"""Differences of two records, and what counts as worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import called

from gradleak.reporting.diff import Difference, ScoreChange, difference
from gradleak.reporting.html import render_html
from gradleak.reporting.markdown import render_markdown
from gradleak.reporting.terminal import render_text
from gradleak.results import Evidence, Finding, Leakier, Record, Score, Verdict, VerdictKind
from gradleak.results.record_lines import sealed

LEAKS, BOUNDED, OPEN = VerdictKind.LEAKS, VerdictKind.BOUNDED, VerdictKind.INCONCLUSIVE


def recorded(
    verdicts: dict[str, VerdictKind],
    auroc: float = 0.5,
    width: float | None = 0.1,
    *,
    steps: int = 3,
    reference: bool = False,
    model: str = "own:net",
    rate: float = 0.1,
    digest: str = "a",
) -> Record:
    """A game in scenario "noise", with the verdict on it and on the run."""
    interval = None if width is None else (auroc - width, auroc + width)
    score = Score(
        name="auroc", value=auroc, unit="1", leakier=Leakier.HIGHER, evidence=Evidence.ATTACK, interval=interval
    )
    finding = Finding(kind="dead_units", item="noise/game", audit="game", scenario="noise", scores=(score,))
    given = [
        Verdict(item=item, verdict=kind, reason=kind.value, explanation="", scenario=None if item == "run" else item)
        for item, kind in verdicts.items()
    ]
    made = Record.of([finding], given, name="a|b")
    scenarios: list[dict[str, Any]] = [{"name": "noise", "reference": reference, "release": {"std": 0.5}}]
    plan = {"seed": 1, "scenarios": scenarios, "audits": {"game": {"steps": steps, "rate": rate}}}
    plan["source"] = {"model": {"use": model}, "data": {"path": f"{model}_*.npz"}, "audits": {"game": {"steps": steps}}}
    header = {key: value for key, value in made.run.items() if key != "checksum"}
    return Record(run=sealed({**header, "plan": plan, "plan_digest": digest}), lines=made.lines)


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [
        ({"noise": OPEN}, {"noise": LEAKS}, ["noise: inconclusive → leaks"]),
        ({"noise": BOUNDED}, {"noise": OPEN}, ["noise: bounded → inconclusive"]),
        ({"noise": BOUNDED}, {}, ["noise: bounded → no verdict"]),
        ({"gone": LEAKS}, {}, []),
        ({"noise": LEAKS}, {"noise": OPEN}, []),
        ({}, {"noise": LEAKS, "run": LEAKS}, []),
    ],
)
def test_verdicts_are_worse_in_one_direction(before: dict[str, Any], after: dict[str, Any], worse: list[str]) -> None:
    found = Difference(before=recorded(before), after=recorded(after))
    assert list(found.worse) == worse
    assert len(found.verdicts) == len({*before, *after})


def test_a_score_is_not_named_by_a_setting_that_changed() -> None:
    def made(std: float) -> Score:
        return Score(
            name="pixel_rmse", value=std, unit="pixel_rmse", leakier=Leakier.LOWER, evidence=Evidence.ATTACK,
            details={"noise_std": std},
        )  # fmt: skip

    assert ScoreChange(item="a", before=made(0.1), after=made(0.1)).named == made(0.1)
    assert ScoreChange(item="a", before=made(0.1), after=made(0.2)).named.details == {}


def test_scores_are_worse_beyond_both_intervals_alone() -> None:
    def change(after: float, width: float | None) -> Difference:
        return Difference(before=recorded({}), after=recorded({}, after, width))

    assert list(change(0.65, 0.1).worse) == []
    assert change(0.65, 0.1).scores[0].beyond is False
    assert list(change(0.75, 0.1).worse) == ["noise/game: AUROC of an adversary leaks more, beyond both intervals"]
    assert list(change(0.25, 0.1).worse) == []
    assert change(0.25, 0.1).scores[0].beyond is True
    assert change(0.9, None).scores[0].beyond is None
    assert list(change(0.9, None).worse) == []
    assert change(0.5, 0.1).scores == []


def test_no_reference_is_worse() -> None:
    after = recorded({"noise": LEAKS}, 0.9, reference=True)
    assert list(Difference(before=recorded({"noise": OPEN}), after=after).worse) == []


def test_plans_are_compared_key_by_key() -> None:
    def plans(**changed: Any) -> list[tuple[str, str, str]]:
        return list(Difference(before=recorded({}), after=recorded({}, **changed)).plan)

    assert plans() == []
    # A key as it was written is told once, whatever default it stands for.
    assert plans(steps=4, reference=True) == [
        ("audits.game.steps", "3", "4"), ("scenarios[noise].reference", "no", "yes"),
    ]  # fmt: skip
    assert plans(model="other:net") == [
        ("model.use", "own:net", "other:net"), ("data.path", "own:net_*.npz", "other:net_*.npz"),
    ]  # fmt: skip
    assert plans(digest="b") == [("plan_digest", "a", "b")]
    # No rounding hides a difference.
    assert plans(rate=0.1000001) == [("audits.game.rate", "0.1", "0.1000001")]


def test_a_key_is_in_one_plan_alone() -> None:
    before, after = recorded({}), recorded({})
    del after.run["plan"]["source"]["data"]  # type: ignore[index]
    assert list(Difference(before=before, after=after).plan) == [("data.path", "own:net_*.npz", "not there")]


def test_the_terminal_has_no_marks_of_markdown() -> None:
    text = render_text(difference(recorded({"noise": OPEN}), recorded({"noise": LEAKS}, 0.8, model="o*r:my_net")))
    assert "\\" not in text
    assert "`" not in text
    assert "  model.use: before own:net; after o*r:my_net" in text
    assert "noise: before Inconclusive; after Leaks; change worse; why " in text
    assert "AUROC of an adversary; before 0.5 0.4 to 0.6; after 0.8 0.7 to 0.9; direction leaks more" in text


def test_the_pages_tell_of_it() -> None:
    report = difference(recorded({"run": OPEN, "noise": OPEN}), recorded({"run": LEAKS, "noise": LEAKS}, 0.8, steps=4))
    text = render_markdown(report)
    assert "3 things are worse. The verdict on the run was inconclusive and is leaks." in text
    assert "2 verdicts changed; of 1 scores in both records 1 have other values, 1 beyond their intervals." in text
    assert "| `audits.game.steps` | 3 | 4 |" in text
    assert "beyond the intervals" in render_html(report)
    same = render_markdown(difference(recorded({"noise": OPEN}), recorded({"noise": OPEN})))
    assert "Nothing that is compared is worse." in same
    assert "Both plans are the same." in same


def test_the_command_fails_on_worse(tmp_path: Path) -> None:
    for name, record in (("a", recorded({"noise": OPEN})), ("b", recorded({"noise": LEAKS}))):
        (tmp_path / name).mkdir()
        record.save(tmp_path / name)
    folders = (str(tmp_path / "a"), str(tmp_path / "b"))
    for name in ("d.html", "d.md"):
        assert called("diff", *folders, "--out", str(tmp_path / name)).returncode == 0
        assert "worse" in (tmp_path / name).read_text(encoding="utf-8")
    ended = called("diff", *folders, "--fail-on", "worse")
    assert ended.returncode == 1
    assert "noise: inconclusive → leaks" in ended.stdout
    assert "| --- |" not in ended.stdout
    assert "| --- |" in called("diff", *folders, "--markdown").stdout
    assert called("diff", *reversed(folders), "--fail-on", "worse").returncode == 0
    assert called("diff", *folders, "--out", str(tmp_path / "d.pdf")).returncode == 2


def test_a_name_of_either_run_that_looks_like_a_number_stays_as_it_is() -> None:
    odd = Finding(kind="dead_units", item="std 1e-4/game", audit="game", scenario="std 1e-4")
    for runs in ((Record.of([odd]), recorded({})), (recorded({}), Record.of([odd]))):
        found = Difference(before=runs[0], after=runs[1])
        assert found.printed("std 1e-4/game") == "std 1e-4/game"
        assert found.printed("noise/game") == "noise/game"
