"""Results of privacy audits that were carried out in Python as findings and as a record, and what reports make of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.games.setting import population
from tests.privacy.setting import dp_sgd

import gradleak as gl
from gradleak.core import Release
from gradleak.models import mlp
from gradleak.privacy import AuditResult, MembershipAudit
from gradleak.protocols import FedSGD
from gradleak.results import InputError, VerdictKind
from gradleak.results.findings.privacy import PrivacyFinding


def member(release: Release, trials: int) -> AuditResult:
    return MembershipAudit(
        population(rows=300),
        model=lambda generator: mlp(features=6, hidden=(4,), classes=2, generator=generator),
        release=release,
        members=4,
        epochs=(0,),
        private_rows=64,
        public_rows=64,
        trials=trials,
    ).play(0)


@pytest.fixture(scope="module")
def noisy() -> AuditResult:
    return member(dp_sgd(noise="sum"), 500)


@pytest.fixture(scope="module")
def plain() -> AuditResult:
    return member(Release(FedSGD()), 200)


def test_results_by_scenario_stand_side_by_side(noisy: AuditResult, plain: AuditResult, tmp_path: Path) -> None:
    findings = gl.audits.privacy.findings_of_audits({"noise": noisy, "none": plain}, claims={"noise": 1e-3})
    record = gl.auditing.record_of(findings, name="two")
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    assert (verdicts["noise/membership"].verdict, verdicts["noise/membership"].reason) == (
        VerdictKind.LEAKS,
        "claim_broken",
    )
    assert verdicts["none/membership"].reason == "no_noise"
    assert verdicts["run"].reason == "claim_broken"
    assert [one.to_dict() for one in record.findings] == [one.to_dict() for one in findings]
    page = gl.write_html(record, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "The claim is broken." in page
    assert "no noise: perfectly distinguishable" in page


def test_all_bounds_of_a_record_hold_together(noisy: AuditResult, plain: AuditResult) -> None:
    noise, none = gl.audits.privacy.findings_of_audits({"noise": noisy, "none": plain})
    assert noise.bounds == none.bounds > 1
    comparisons = {score.details["comparisons"] for score in noise.scores if score.name == "epsilon_lower_bound"}
    assert comparisons == {noise.bounds}
    assert f", for {noise.bounds} of them" in noise.terms
    assert "2 settings were tried" in noise.terms


def test_one_result_needs_no_name_and_none_is_refused(noisy: AuditResult) -> None:
    (found,) = gl.audits.privacy.findings_of_audits(noisy)
    assert (found.item, found.audit, found.scenario, found.claim) == (
        "release/membership",
        "membership",
        "release",
        None,
    )
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert PrivacyFinding.from_dict(json.loads(text)).to_dict() == found.to_dict()
    with pytest.raises(InputError, match="at least one result"):
        gl.audits.privacy.findings_of_audits({})
    with pytest.raises(InputError, match=r"claims: expected some of release, got noise"):
        gl.audits.privacy.findings_of_audits(noisy, claims={"noise": 1.0})
