"""Privacy audits in a plan: for every scenario, with their controls, claims, verdicts and resume."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cloudpickle import dumps, loads

from gradleak.auditing import Plan, build_plan, estimate, load_plan, run_plan, tasks
from gradleak.audits.privacy import PrivacyAudit
from gradleak.audits.privacy.claims import claim_of
from gradleak.audits.privacy.controls import PrivacyControl, control_blank
from gradleak.audits.privacy.trials import Hypotheses
from gradleak.privacy import AuditPart, PairResult
from gradleak.privacy import PrivacyAudit as TrainedAudit
from gradleak.privacy.lower_bounds import Reading, SplitThresholdEpsilon, TrialScores, gaussian_dp_epsilon
from gradleak.results import Evidence, PlanError, Record, Score, Status, VerdictKind
from gradleak.results.findings.privacy import Claim, PrivacyFinding
from gradleak.training import Trajectory

ROOT = Path(__file__).parents[3]
PAIRS = "tests.auditing.own_pairs:"
MEMBER = {
    "use": "MembershipAudit",
    "population": {"use": "tests.auditing.small_population:two_groups"},
    "members": 4,
    "epochs": [0],
    "private_rows": 50,
    "public_rows": 50,
    "trials": 2000,
    "delta": 1e-3,
}
ATTRIBUTE = {
    "use": "AttributeAudit",
    "table": {"use": PAIRS + "small_table"},
    "target": "paid",
    "attribute": "group",
    "canary": {"iterations": 5, "starts": 3},
    "epochs": [0, 1],
    "private_rows": 60,
    "public_rows": 60,
    "trials": 1000,
    "delta": 1e-3,
}
DPSGD = {"use": "DPSGD", "clip_norm": 1.0, "noise_std": 1.0, "noise": "sum"}


def content(**changes: Any) -> dict[str, Any]:
    """A plan of one audit of membership against several releases."""
    return {
        "name": "audits",
        "seed": 3,
        "model": {"use": "mlp", "features": 6, "hidden": [8], "classes": 2},
        "privacy": {"member": MEMBER},
        "scenarios": [
            {"name": "plain"},
            {"name": "actual size", "defenses": [DPSGD]},
            {"name": "expected size", "defenses": [DPSGD | {"expected_batch_size": 4}]},
            {"name": "much noise", "defenses": [DPSGD | {"expected_batch_size": 4, "noise_std": 10.0}]},
            {"name": "no bound", "defenses": [{"use": "GaussianNoise", "std": 0.1}]},
            {"name": "signs", "defenses": [{"use": "Sign"}]},
        ],
    } | changes


def plan(**changes: Any) -> Plan:
    return build_plan(content(**changes), folder=ROOT)


def own(name: str, **keys: Any) -> dict[str, Any]:
    """A plan of one own pair against one release."""
    return {"privacy": {"mine": {"use": PAIRS + name, "trials": 2000} | keys}, "scenarios": [{"name": "one"}]}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(plan(), tmp_path_factory.mktemp("audits"), jobs=1)


def audits(of: Plan) -> dict[str, PrivacyAudit]:
    return {audit.name: audit for audit in of.audits if isinstance(audit, PrivacyAudit)}


def audited(record: Record) -> list[PrivacyFinding]:
    return [one for one in record.findings if isinstance(one, PrivacyFinding) and one.control is None]


def scores(record: Record, item: str, **about: str) -> list[Score]:
    return [
        score
        for finding in record.findings if finding.item == item
        for score in finding.scores if all(score.about.get(key) == value for key, value in about.items())
    ]  # fmt: skip


def bounds(record: Record, item: str) -> list[Score]:
    return [score for score in scores(record, item) if score.evidence is Evidence.LOWER_BOUND]


def test_an_audit_is_carried_out_for_every_scenario_with_both_controls(record: Record) -> None:
    assert [one.item for one in audited(record)] == [
        f"{scenario['name']}/member" for scenario in content()["scenarios"]
    ]
    controls = {one.item: one.control.passed for one in record.findings if one.control is not None}
    assert controls == {"control/positive/member": True, "control/negative/member": True}


def test_a_divisor_that_tells_the_size_breaks_the_claim_and_a_public_one_does_not(record: Record) -> None:
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    broken = verdicts["actual size/member"]
    assert (broken.verdict, broken.reason) == (VerdictKind.LEAKS, "claim_broken")
    assert "THE CLAIM IS BROKEN" in broken.explanation
    # Claimed is the analytic Gaussian mechanism of sensitivity 1 and noise 1: mu = 1.
    assert broken.details["claimed_epsilon"] == pytest.approx(gaussian_dp_epsilon(1.0, 1e-3), rel=1e-4)
    assert broken.details["epsilon"] > broken.details["claimed_epsilon"]
    assert verdicts["expected size/member"].reason != "claim_broken"
    assert verdicts["expected size/member"].details["epsilon"] < gaussian_dp_epsilon(1.0, 1e-3)
    assert verdicts["run"].reason == "claim_broken"


def test_without_noise_nothing_is_estimated(record: Record) -> None:
    for scenario in ("plain", "signs"):
        (only,) = [score for score in scores(record, f"{scenario}/member") if "estimator" in score.about]
        assert (only.value, only.evidence, only.note) == (
            math.inf,
            Evidence.EXACT,
            "no noise: perfectly distinguishable",
        )
        verdict = next(verdict for verdict in record.verdicts if verdict.item == f"{scenario}/member")
        assert (verdict.verdict, verdict.reason) == (VerdictKind.LEAKS, "no_noise")


def test_without_noise_every_seed_and_epoch_speaks_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Names of pairs begin alike (epoch 1, epoch 10), and a release can differ for one of them alone.
    monkeypatch.setattr(
        "gradleak.audits.privacy.measured.apart", lambda pair: pair.name.endswith("epoch 1") and pair.seconds == 1.0
    )
    chosen = plan(privacy={"member": MEMBER | {"seeds": 2, "epochs": [1, 10]}}, scenarios=[{"name": "plain"}])
    read = TrainedAudit.read
    seeds: list[int] = []

    def timed(self: TrainedAudit, part: AuditPart, training: Trajectory) -> list[PairResult]:
        seeds.append(training.seed)
        return [replace(pair, seconds=float(training.seed == seeds[0])) for pair in read(self, part, training)]

    monkeypatch.setattr(TrainedAudit, "read", timed)
    (task,) = [task for task in tasks(chosen) if task.name == "privacy/plain/member"]
    (found,) = task.run(chosen.site, tmp_path)
    told = {
        str(score.about["pair"]): score.value for score in found.scores if score.about.get("estimator") == "no noise"
    }
    ends = {pair.split(", ", 1)[1]: value for pair, value in told.items()}
    assert ends == {
        "epoch 1, seed 1": math.inf, "epoch 10, seed 1": 0.0, "epoch 1, seed 2": 0.0, "epoch 10, seed 2": 0.0,
    }  # fmt: skip
    assert isinstance(found, PrivacyFinding)
    assert all(pair.note.count("no noise") == 1 and not pair.histograms for pair in found.pairs)


def test_a_guarantee_bounds_and_a_small_bound_alone_does_not(record: Record) -> None:
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    assert (verdicts["much noise/member"].verdict, verdicts["much noise/member"].reason) == (
        VerdictKind.BOUNDED,
        "epsilon_bounded",
    )
    unclaimed = verdicts["no bound/member"]
    assert unclaimed.details["claimed_epsilon"] is None
    assert "No epsilon is claimed" in unclaimed.explanation


def test_bounds_of_an_audit_hold_together(record: Record) -> None:
    # Six scenarios, one pair, two statistics, two estimators.
    assert {one.bounds for one in audited(record)} == {24}
    found = [score for one in audited(record) for score in bounds(record, one.item)]
    assert {score.details["comparisons"] for score in found} == {24}
    assert {score.details["confidence"] for score in found} == {0.95}
    assert all(", for 24 of them" in one.terms and "6 settings were tried" in one.terms for one in audited(record))


def test_a_record_holds_counts_and_no_single_trial(record: Record) -> None:
    (one,) = [one for one in audited(record) if one.item == "expected size/member"]
    (pair,) = one.pairs
    assert {entry.statistic for entry in pair.histograms} == {"distance", "likelihood_ratio"}
    for entry in pair.histograms:
        assert (sum(c or 0 for c in entry.null), sum(c or 0 for c in entry.alternative)) == (2000, 2000)
        assert len(entry.edges) == 61
    assert not any(
        len(value) > 100 for value in (one.scores, one.pairs, *pair.facts.values()) if isinstance(value, list | tuple)
    )


def test_a_task_gives_the_same_numbers_in_another_process(record: Record, tmp_path: Path) -> None:
    task, site = loads(dumps(next((task, of.site) for of in [plan()] for task in tasks(of) if "expected" in task.name)))
    (found,) = task.run(site, tmp_path)
    assert [score.value for score in found.scores] == [score.value for score in scores(record, "expected size/member")]


@pytest.mark.slow
def test_a_record_is_the_same_whatever_the_number_of_workers(record: Record, tmp_path: Path) -> None:
    again = run_plan(plan(), tmp_path, jobs=2)
    assert again.canonical() == record.canonical()


def test_a_killed_run_is_continued_to_the_same_record(record: Record, tmp_path: Path) -> None:
    assert record.path is not None
    lines = record.path.read_bytes().splitlines(keepends=True)
    private = record.path.parent / ".private-data"
    (tmp_path / ".private-data").write_bytes(private.read_bytes())
    (tmp_path / "record.jsonl").write_bytes(b"".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40])
    done: list[tuple[int, str]] = []
    found = run_plan(plan(), tmp_path, jobs=1, progress=lambda number, _, what: done.append((number, what)))
    assert found.canonical() == record.canonical()
    assert done[0] == (done[0][0], "resumed")


def test_other_rows_are_not_continued(record: Record) -> None:
    assert record.path is not None
    other = MEMBER | {"population": {**MEMBER["population"], "gap": 2.0}}
    with pytest.raises(PlanError, match="nothing was written"):
        run_plan(plan(privacy={"member": other}), record.path.parent, jobs=1)


def test_an_attribute_is_audited_by_canary_and_random_record_at_every_epoch(tmp_path: Path) -> None:
    chosen = plan(
        model={"use": "mlp", "features": 4, "hidden": [8], "classes": 2},
        privacy={
            "group": ATTRIBUTE | {"seeds": 2, "estimators": [{"use": "GaussianFitEpsilon"}, {"use": "PlugInEpsilon"}]}
        },
        scenarios=[{"name": "dp", "defenses": [DPSGD | {"noise_std": 0.5}]}],
    )
    found = run_plan(chosen, tmp_path, jobs=1)
    (one,) = audited(found)
    names = [pair.name for pair in one.pairs]
    assert len(set(names)) == len(names) == 8
    assert {"canary, epoch 0, seed 1", "random record, epoch 1, seed 2"} <= set(names)
    assert one.status is Status.DONE
    # Three values: the alternatives are a mixture, for which the Gaussian fit is no bound.
    assert bounds(found, "dp/group") == []
    notes = {score.note for score in scores(found, "dp/group", estimator="GaussianFitEpsilon")}
    assert all("not known to be two Gaussians" in note for note in notes)
    exact = [score for score in one.scores if score.name == "per_attribute_epsilon"]
    assert len(exact) == 8
    assert all((score.value or 0.0) > 0 for score in exact)
    verdict = next(verdict for verdict in found.verdicts if verdict.item == "dp/group")
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "no_score")
    # One record in place of another moves a clipped sum by 2: mu = 4.
    assert one.claim is not None
    assert one.claim.epsilon == pytest.approx(gaussian_dp_epsilon(4.0, 1e-3), rel=1e-4)


def test_a_pair_of_one_s_own_is_held_to_what_the_plan_claims(tmp_path: Path) -> None:
    chosen = plan(**own("RandomizedResponse", epsilon=2.0, claimed_epsilon=1.0, delta=1e-6))
    found = run_plan(chosen, tmp_path, jobs=1)
    verdict = found.verdicts[0]
    assert (verdict.item, verdict.reason) == ("one/mine", "claim_broken")
    assert 1.0 < float(verdict.details["epsilon"]) <= 2.0
    honest = plan(
        **own("RandomizedResponse", epsilon=2.0, claimed_epsilon=2.5, delta=1e-6), thresholds={"epsilon": 3.0}
    )
    again = run_plan(honest, tmp_path / "honest", jobs=1).verdicts[0]
    # A number that the plan states proves nothing, even below the threshold.
    assert (again.verdict, again.reason) == (VerdictKind.INCONCLUSIVE, "epsilon_within_claim")


def test_a_pair_that_takes_a_release_gets_that_of_every_scenario(tmp_path: Path) -> None:
    noise = [{"name": str(std), "defenses": [{"use": "GaussianNoise", "std": std}]} for std in (0.5, 5.0)]
    chosen = plan(privacy={"mine": {"use": PAIRS + "ReleasedNothing", "trials": 3000}}, scenarios=noise)
    found = run_plan(chosen, tmp_path, jobs=1)
    small, large = (max(score.value or 0.0 for score in bounds(found, f"{name}/mine")) for name in ("0.5", "5.0"))
    assert small > 2.0 > large
    assert all(bound <= gaussian_dp_epsilon(mu, 1e-5) for bound, mu in ((small, 2.0), (large, 0.2)))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NoScores", r"privacy\.mine: NoScores\.trials: expected TrialScores"),
        ("Stubborn", r"privacy\.mine: Stubborn\.trials\(2\): expected 2 trials of each hypothesis, got \(5, 5\)"),
        ("Crashing", r"privacy\.mine: a first trial raised ZeroDivisionError: no trial here"),
    ],
)
def test_a_pair_that_gives_something_else_is_refused_before_anything_runs(
    name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=message):
        run_plan(plan(**own(name)), tmp_path, jobs=1)
    assert not (tmp_path / "record.jsonl").exists()


def test_what_goes_wrong_later_is_a_failed_item_and_no_verdict(tmp_path: Path) -> None:
    found = run_plan(plan(**own("Faltering")), tmp_path, jobs=1)
    (one,) = audited(found)
    assert one.status is Status.FAILED
    assert "RuntimeError" in one.note
    assert {verdict.reason for verdict in found.verdicts} == {"item_failed"}


def test_trials_that_know_their_place_fail_the_control_and_nothing_can_be_read(tmp_path: Path) -> None:
    found = run_plan(plan(**own("Leaky")), tmp_path, jobs=1)
    passed = {one.item: one.control.passed for one in found.findings if one.control is not None}
    assert passed == {"control/positive/mine": True, "control/negative/mine": False}
    verdict = next(verdict for verdict in found.verdicts if verdict.item == "one/mine")
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, "control_failed")


def planted(estimator: SplitThresholdEpsilon) -> PrivacyFinding:
    """The planted control of an own pair that one estimator reads."""
    (own_audit,) = audits(plan(**own("RandomizedResponse"))).values()
    hypotheses = replace(own_audit.hypotheses, reading=[estimator])
    blank = control_blank("mine", planted=True)
    (found,) = PrivacyControl(hypotheses=hypotheses, scenarios=["one"], seed=0, blank=blank)(plan().site, Path())
    return found


def test_a_bound_that_is_too_large_fails_the_planted_control() -> None:
    found = planted(_TooLarge(delta=1e-5))
    assert found.control is not None
    assert found.control.passed is False
    assert (found.value(found.control.measure) or 0.0) > gaussian_dp_epsilon(0.5, 1e-5)


def test_a_bound_that_finds_nothing_fails_the_planted_control() -> None:
    control = planted(_Blind(delta=1e-5)).control
    assert control is not None
    assert control.passed is False


class _TooLarge(SplitThresholdEpsilon):
    """Two more than what is shown."""

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        found = super()._read(scores, generator)
        return replace(found, value=(found.value or 0.0) + 2.0)


class _Blind(SplitThresholdEpsilon):
    """Never looks."""

    def _read(self, scores: TrialScores, generator: np.random.Generator) -> Reading:
        return replace(super()._read(scores, generator), value=0.0)


@pytest.mark.parametrize(
    ("trials", "outcome"),
    [(1, "not_resolvable"), (2, "not_resolvable")],
)
def test_too_few_trials_are_not_resolvable(trials: int, outcome: str, tmp_path: Path) -> None:
    found = run_plan(plan(**own("RandomizedResponse", trials=trials)), tmp_path, jobs=1)
    assert {score.outcome.label for score in bounds(found, "one/mine")} == {outcome}
    assert all(score.value is None for score in bounds(found, "one/mine"))
    verdict = found.verdicts[0]
    assert (verdict.verdict, verdict.reason) == (VerdictKind.INCONCLUSIVE, outcome)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trils": 3}, "did you mean 'trials'"),
        ({"trials": 0}, "expected a whole number of at least 1, got 0"),
        ({"trials": "many"}, r"privacy\.member\.trials: expected a whole number.*, got 'many'"),
        ({"trials": True}, r"privacy\.member\.trials: expected a whole number.*, got True"),
        ({"delta": 0}, r"delta: expected a number between 0 and 1, got 0"),
        ({"delta": 1.0}, "expected a number between 0 and 1"),
        ({"delta": "tiny"}, r"privacy\.member\.delta: expected a number"),
        ({"confidence": 1.5}, "confidence: expected a number between 0 and 1"),
        ({"seeds": 0}, "seeds: expected a whole number of at least 1"),
        ({"claimed_epsilon": -1.0}, "claimed_epsilon: expected a finite positive number"),
        ({"claimed_epsilon": "one"}, r"privacy\.member\.claimed_epsilon: "),
        ({"model": {"use": "mlp"}}, r"takes it from \[model\]"),
        ({"release": {"use": "FedSGD"}}, r"takes it from \[\[scenarios\]\]"),
        ({"scenarios": ["planes"]}, "did you mean 'plain'"),
        ({"scenarios": []}, "expected \"all\" or a list of different names"),
        ({"estimators": "GaussianFitEpsilon"}, r"estimators: expected a list"),
        ({"estimators": [{"use": "GaussianFit"}]}, "did you mean 'GaussianFitEpsilon'"),
        ({"estimators": [{"use": "GaussianFitEpsilon", "delta": 1e-3}]}, r"write it once, as delta of \[privacy\.member\]"),
        ({"estimators": [{"use": "GaussianFitEpsilon", "comparisons": 2}]}, "the audit counts them itself"),
        ({"estimators": [{"use": "MembershipAudit"}]}, r"it stands in a table \[privacy\.NAME\]"),
        ({"use": "MembershipAudi"}, "did you mean 'MembershipAudit'"),
        ({"use": "PropertyGame"}, r"it stands in a table \[inference\.NAME\]"),
        ({"use": "tests.auditing.small_model:small_mlp"}, "small_mlp to return a PrivacyAudit or a HypothesisPair, and it says"),
        ({"use": 3}, "expected a name after 'use'"),
        ({"population": "rows"}, r"privacy\.member\.population: expected a table of keys"),
        ({"population": {"use": PAIRS + "small_table"}}, "to return a Population, and it says that it returns a Table"),
        ({"population": None}, r"privacy\.member\.population: expected a table of keys"),
        ({"adjacency": "remove"}, "expected one of add_or_remove, replace|adjacency"),
        ({"members": 1}, "members: expected a whole number of at least 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as refusal:
        plan(privacy={"member": MEMBER | changes})
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {}}, "at least one batch or one section with rows of its own"),
        ({"privacy": {"a/b": MEMBER}}, "without '/'"),
        ({"privacy": {"member": {k: v for k, v in MEMBER.items() if k != "use"}}}, "names one of AttributeAudit, Member"),
        ({"privacy": {"mine": {"use": PAIRS + "RandomizedResponse"}}}, "expected .* to take a release"),
        ({"privacy": {"group": ATTRIBUTE | {"canary": {"iteration": 3}}}}, "did you mean 'iterations'"),
        ({"privacy": {"group": ATTRIBUTE | {"attribute": "number"}}}, "expected a category or one-hot group"),
        ({"privacy": 3}, "privacy: expected a table"),
        ({"scenarios": [{"name": "p", "perturbation": {"gamma": 0.1}}]}, "expected scenarios without a perturbation"),
        ({"thresholds": {"epsilon": 0.0}}, "thresholds.epsilon: expected a finite positive number"),
        ({"thresholds": {"epsilon": math.inf}}, "thresholds.epsilon"),
    ],
)  # fmt: skip
def test_sections_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan(**changes)


def test_rows_and_models_that_do_not_fit_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for wrong in ({"privacy": {"member": MEMBER | {"private_rows": 5000}}},
                  {"model": {"use": "mlp", "features": 7, "hidden": [8], "classes": 2}}):  # fmt: skip
        with pytest.raises(PlanError, match=r"privacy\.member: "):
            run_plan(plan(**wrong), tmp_path, jobs=1)
        assert not (tmp_path / "record.jsonl").exists()


def test_a_scenario_that_an_audit_cannot_take_is_refused_and_the_others_are_done(tmp_path: Path) -> None:
    secure = {"use": "SecureAggregation", "protocol": {"use": "FedSGD"}, "examples": [5, 5], "clients": 4}
    found = run_plan(
        plan(scenarios=[{"name": "secure", "protocol": secure}, {"name": "dp", "defenses": [DPSGD]}]), tmp_path, jobs=1
    )
    by_scenario = {one.scenario: one for one in audited(found)}
    assert (by_scenario["secure"].status, by_scenario["dp"].status) == (Status.REFUSED, Status.DONE)
    assert "10" in by_scenario["secure"].note
    verdicts = {verdict.item: verdict.reason for verdict in found.verdicts}
    assert (verdicts["secure/member"], verdicts["dp/member"]) == ("audit_refused", "claim_broken")
    assert all(one.control.passed for one in found.findings if one.control is not None)


def test_the_claim_follows_from_release_and_audit() -> None:
    chosen = plan()
    hypotheses = audits(chosen)["member"].hypotheses
    releases = {scenario.name: scenario.release for scenario in chosen.site.scenarios}

    def claim(name: str, of: Hypotheses = hypotheses, stated: float | None = None) -> Claim:
        return claim_of(of, releases[name], chosen.site.objective, stated)

    there = claim("expected size")
    assert (there.proven, there.reason) == (True, "")
    assert there.epsilon == pytest.approx(gaussian_dp_epsilon(1.0, 1e-3), rel=1e-4)
    assert not claim("actual size").proven
    assert hypotheses.audit is not None
    replaced = replace(hypotheses, audit=replace(hypotheses.audit, adjacency="replace"))
    assert claim("actual size", replaced).epsilon == pytest.approx(gaussian_dp_epsilon(2.0, 1e-3), rel=1e-4)
    assert claim("no bound").epsilon is None
    stated = claim("plain", stated=0.1)
    assert (stated.epsilon, stated.of, stated.proven, stated.evidence) == (0.1, "as the plan states", False, None)
    assert there.evidence is Evidence.UPPER_BOUND


def test_no_canary_is_had_by_false() -> None:
    chosen = plan(
        model={"use": "mlp", "features": 4, "hidden": [8], "classes": 2},
        privacy={"group": ATTRIBUTE | {"canary": False}},
    )
    audit = audits(chosen)["group"]
    assert audit.audit is not None
    assert audit.audit.canary is None


def test_the_estimate_counts_canaries_training_and_trials() -> None:
    assert estimate(plan(**own("RandomizedResponse"))) == pytest.approx(4000)
    model = {"use": "mlp", "features": 4, "hidden": [8], "classes": 2}
    once = estimate(plan(model=model, privacy={"group": ATTRIBUTE}))
    assert estimate(plan(model=model, privacy={"group": ATTRIBUTE | {"seeds": 2}})) == pytest.approx(2 * once)
    assert estimate(plan(model=model, privacy={"group": ATTRIBUTE | {"scenarios": ["plain"]}})) == pytest.approx(
        once / 6
    )


def test_the_example_plan_is_one_that_can_be_carried_out() -> None:
    pytest.importorskip("xai", reason="the Adult census comes with the package xai")
    loaded = load_plan(ROOT / "examples" / "adult_privacy.toml")
    audits(loaded)["sex"].check(loaded.site)
    assert loaded.site.scenarios[0].name == "no defense"


def test_the_estimators_of_an_audit_are_part_of_the_digest_and_its_rows_are_not() -> None:
    digest = plan().digest()
    assert plan(privacy={"member": MEMBER | {"confidence": 0.9}}).digest() != digest
    (audit,) = audits(plan()).values()
    assert audit.audit is not None
    assert not any(part is getattr(audit.audit, "population", None) for part in audit.parts())
    assert list(audit.private()) != []


def test_a_delta_that_is_not_below_one_over_the_rows_proves_nothing() -> None:
    chosen = plan()
    audit = audits(chosen)["member"].audit
    assert audit is not None
    release = next(one.release for one in chosen.site.scenarios if one.name == "expected size")
    for delta, said in ((1 / audit.private_rows, "which protects nobody"), (0.99 / audit.private_rows, "")):
        hypotheses = Hypotheses(audit=replace(audit, delta=delta, estimators=None), reading=(), delta=delta)
        for stated in (None, 0.5):
            claim = claim_of(hypotheses, release, chosen.site.objective, stated)
            assert bool(said) == ("protects nobody" in claim.of)
            assert claim.proven is (stated is None and not said)
