"""Closed-form risk as an audit: the derivative is checked first, and settings are measured beside releases."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audits.risk.small_site import digits, found, read, site
from tests.tokens import sentences, tiny

import gradleak as gl
from gradleak.audits.base import Scenario, Site
from gradleak.audits.risk import RiskAudit
from gradleak.core import Batch, Objective, Release
from gradleak.results import Evidence, Grounds, InputError, Outcome, PlanError, Status, Subject
from gradleak.results.findings.risk import Confirmation, RiskFinding
from gradleak.risk import BayesianCramerRao, ReconstructionProbability

ISOTROPIC = BayesianCramerRao(prior_std=0.3, unit="pixel_rmse", samples=16)
VAN_TREES = {
    "use": "BayesianCramerRao",
    "unit": "pixel_rmse",
    "samples": 16,
    "public": {"use": "scikit_digits", "count": 200},
}


@pytest.fixture(scope="module")
def quiet() -> dict[str, RiskFinding]:
    """Two digits under noise that hides nothing, measured."""
    influence = gl.InversionInfluence(unit="pixel_rmse")
    return found(site(defenses=[gl.GaussianNoise(std=1e-6)]), influence, ISOTROPIC)


@pytest.fixture(scope="module")
def wrong() -> dict[str, RiskFinding]:
    """A digit through a model whose second derivative is silently wrong."""
    about = site("substitute_gradient_model", batches=digits(1))
    return found(about, gl.InversionInfluence(), gl.GradientNorm(), ISOTROPIC)


def test_a_finding_for_the_check_the_release_the_validation_and_the_setting(quiet: dict[str, RiskFinding]) -> None:
    names = ("derivative", "risk", "perfect_attacker")
    releases = [f"noisy/example {index}/{name}" for index in (0, 1) for name in names]
    assert list(quiet) == [*releases, "noisy/example 0/setting", "noisy/example 1/setting"]
    for one in quiet.values():
        assert (one.kind, one.audit, one.scenario, one.status) == ("risk", "risk", "noisy", Status.DONE)
        assert one.subject == Subject(noun="example", name=one.item.split("/")[1].split()[1])
        assert RiskFinding.from_dict(one.to_dict()).to_dict() == one.to_dict()


def test_a_right_derivative_is_confirmed(quiet: dict[str, RiskFinding]) -> None:
    checks = [one for one in quiet.values() if one.derivative is not None]
    assert [one.derivative.check for one in checks if one.derivative] == [Confirmation.CONFIRMED] * 2
    for one in checks:
        assert one.value("derivative_error") < 1e-3
        assert one.derivative is not None
        assert one.derivative.relative_error == one.value("derivative_error")


def test_the_perfect_attacker_is_a_validation_and_never_an_attack(quiet: dict[str, RiskFinding]) -> None:
    perfect, risk = quiet["noisy/example 0/perfect_attacker"], quiet["noisy/example 0/risk"]
    assert perfect.validation is not None
    assert perfect.validation.steps > 0
    assert [score.name for score in perfect.scores] == ["mse", "pixel_rmse", "psnr"]
    assert {score.evidence for score in perfect.scores} == {Evidence.ESTIMATE}
    assert "never an attack" in perfect.note
    assert perfect.value("pixel_rmse") == pytest.approx(risk.value("inversion_influence", "pixel_rmse"), rel=0.05)
    assert risk.spectrum is not None
    assert (risk.spectrum.unknowns, len(risk.spectrum.eigenvalues or ())) == (64, 64)
    assert risk.noise_std == 1e-6


def test_a_wrong_second_derivative_takes_closed_form_scores_out(wrong: dict[str, RiskFinding]) -> None:
    check = wrong["noisy/example 0/derivative"]
    assert check.derivative is not None
    assert (check.status, check.outcome, check.derivative.check) == (
        Status.REFUSED,
        Outcome.UNSUPPORTED,
        Confirmation.WRONG,
    )
    assert "custom autograd function" in check.note
    assert (check.derivative.relative_error or 0.0) > 0.01
    scores = {
        score.name: score for name, one in wrong.items() if not name.endswith("derivative") for score in one.scores
    }
    reading = {"inversion_influence", "gaussian_reconstruction_error", "bayesian_cramer_rao"}
    assert set(scores) == {*reading, "gradient_norm"}
    for name in reading:
        assert (scores[name].value, scores[name].outcome.label) == (None, "unsupported")
        assert re.search(r"the second derivative of .* is wrong: .*\(relative error", scores[name].note)
    assert (scores["gradient_norm"].value or 0.0) > 0  # reads no derivative
    spectrum = wrong["noisy/example 0/risk"].spectrum
    assert spectrum is not None
    assert spectrum.eigenvalues is None


def test_a_verdict_sees_a_wrong_derivative_without_knowing_of_checks(wrong: dict[str, RiskFinding]) -> None:
    grounds = Grounds(findings=list(wrong.values()))
    ((_, score),) = grounds.scores("derivative_error", "noisy", Subject(noun="example", name="0"))
    assert (score.value, score.outcome, score.evidence) == (None, Outcome.INCONSISTENT, Evidence.ESTIMATE)
    assert list(RiskAudit().judge(list(wrong.values()), grounds)) == []


def test_releases_with_the_same_labels_share_one_measurement() -> None:
    first, second = digits()
    twin = replace(second, inputs=second.inputs.flip(-1), targets=first.targets)
    about = site(batches=[first, twin], below=None)
    tasks = list(RiskAudit(measures=[ISOTROPIC]).tasks(about))
    assert [task.name for task in tasks] == ["risk/example 0", "risk/example 1", "setting/noisy/example 0"]
    both = tasks[-1].run(about, Path())
    assert [one.item for one in both] == ["noisy/example 0/setting", "noisy/example 1/setting"]
    assert both[0].scores == both[1].scores
    assert both[1].seconds == 0.0 < both[0].seconds


def test_differential_privacy_needs_no_derivative() -> None:
    dp = [gl.DPSGD(clip_norm=1.0, noise_std=40.0, noise="sum")]
    measure = ReconstructionProbability(candidates=1000)
    about = site("substitute_gradient_model", batches=digits(1), defenses=dp)
    made = found(about, measure)
    check = made["noisy/example 0/derivative"].derivative
    assert check is not None
    assert check.check is Confirmation.WRONG
    score = made["noisy/example 0/setting"].score("reconstruction_probability")
    assert score is not None
    assert score.evidence is Evidence.UPPER_BOUND
    cheap, none = (RiskAudit(measures=measures) for measures in ([measure], []))
    assert sum(task.cost for task in cheap.tasks(about)) - sum(task.cost for task in none.tasks(about)) < 1.0


def test_the_cost_of_a_bound_is_estimated() -> None:
    about = site()
    cheap, dear = (
        sum(task.cost for task in read({"van_trees": {**VAN_TREES, "samples": count}}, about).tasks(about))
        for count in (16, 64)
    )
    assert dear - cheap == pytest.approx(2 * 0.5 * 64 * 48)


def test_releases_that_differ_by_noise_alone_share_a_check() -> None:
    about = site(defenses=[])
    louder = replace(about.scenarios[0], name="louder", release=gl.Release(gl.FedSGD(), [gl.GaussianNoise(std=2.0)]))
    clipped = replace(about.scenarios[0], name="clipped", release=gl.Release(gl.FedSGD(), [gl.Clip(max_norm=1.0)]))
    alone, shared, apart = (
        next(iter(RiskAudit().tasks(replace(about, scenarios=[about.scenarios[0], *more])))).cost
        for more in ([], [louder], [clipped])
    )
    assert shared == alone
    assert apart - alone == pytest.approx(0.3 * 64 + 14.0)


def test_an_audit_of_some_scenarios_leaves_the_others_out() -> None:
    about = site()
    other: Scenario = replace(about.scenarios[0], name="other", examples=[0])
    both = replace(about, scenarios=[*about.scenarios, other])
    tasks = list(RiskAudit(scenarios=["other"], measures=[ISOTROPIC]).tasks(both))
    assert [task.name for task in tasks] == ["risk/example 0", "setting/other/example 0"]
    assert {one.scenario for one in tasks[0].run(both, Path())} == {"other"}


def test_public_examples_of_a_plan_leave_the_private_ones_out() -> None:
    about = site()
    (measure,) = read({"a": {**VAN_TREES, "public": {"use": "scikit_digits", "count": 1797}}}, about).measures
    assert isinstance(measure, BayesianCramerRao)
    assert measure.public_inputs is not None
    assert measure.public_inputs.shape[0] == 1797 - 2
    pair = {"use": "tests.auditing.small_model:pair_data", "count": 2}
    (named,) = read({"a": {**VAN_TREES, "public": pair}}, about).measures
    assert isinstance(named, BayesianCramerRao)
    assert named.public is not None
    assert named.public.targets.tolist() == [0, 1]


def test_private_examples_among_the_public_ones_are_refused() -> None:
    about = site()
    mine = BayesianCramerRao(public=Batch(torch.cat([b.inputs for b in about.batches]), torch.tensor([0, 1])))
    with pytest.raises(InputError, match=r"BayesianCramerRao.public: .* got 2 of the private ones"):
        RiskAudit(measures=[mine]).check(about)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"public": {"use": "nothing"}}, r"measures.van_trees.public: nothing is called 'nothing'"),
        ({"public": 3.0}, r"measures.van_trees.public"),
        ({"noise_std": -1.0}, r"noise_std: expected a finite positive number"),
        ({"prior_std": 0.3}, r"expected one of public, prior and prior_std"),
        ({"sampels": 3}, r"did you mean 'samples'"),  # codespell:ignore
    ],
)
def test_a_bad_bound_is_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read({"van_trees": {**VAN_TREES, **fields}}, site())


def test_a_measure_is_one_of_two_kinds() -> None:
    with pytest.raises(PlanError, match="os:getcwd to return a Measure or a SettingMeasure, and it does not say"):
        read({"a": {"use": "os:getcwd"}}, site())


def test_groups_of_a_sensitivity_are_checked_with_the_plan() -> None:
    audit = read({"a": {"use": "Sensitivity", "by": {"head": ["1.0.weights"]}}}, site())
    with pytest.raises(PlanError, match=r"by: group 'head' names '1\.0\.weights', .*is it '1\.0\.weight'"):
        audit.fit(site())


def test_a_measure_that_refuses_does_not_take_the_others_with_it() -> None:
    foreign = gl.risk.GaussianPrior(mean=torch.zeros(3), covariance=torch.eye(3))
    measures = [gl.LinearizedPosteriorError(noise_std=0.1, prior=foreign), gl.GradientNorm(), gl.Vulnerability()]
    one = found(site(batches=digits(1)), *measures)["noisy/example 0/risk"]
    refused = one.score("linearized_posterior_error")
    assert refused is not None
    assert refused.outcome is Outcome.UNSUPPORTED
    assert "expected a Gaussian of the 64 entries of an example, got 3" in refused.note
    assert one.value("gradient_norm") > 0.0
    assert one.value("vulnerability") > 0.0


def test_a_derivative_that_is_not_finite_leaves_what_needs_none_and_a_line_for_the_rest() -> None:
    (first,) = digits(1)
    dark = replace(first, inputs=torch.zeros_like(first.inputs))
    measures = (gl.GradientNorm(), gl.Vulnerability(), gl.InversionInfluence())
    for noisy in (True, False):
        defenses = [gl.GaussianNoise(std=0.3)] if noisy else []
        every = found(site("root_mlp", batches=[dark], defenses=defenses), *measures)
        one, check = every["noisy/example 0/risk"], every["noisy/example 0/derivative"]
        assert check.derivative is not None
        assert (check.outcome, check.derivative.check) == (Outcome.NOT_FINITE, Confirmation.INFINITE)
        assert one.value("gradient_norm") > 0.0
        lost = {score.name: score for score in one.scores if score.name != "gradient_norm"}
        noise = {"inversion_influence", "gaussian_reconstruction_error"} if noisy else {"noise_std_for_threshold"}
        assert set(lost) == {"vulnerability", *noise}
        for score in lost.values():
            assert (score.value, score.outcome) == (None, Outcome.NOT_FINITE)
            assert "infinite or NaN at the private batch" in score.note


def test_sentences_in_mini_batches_have_the_measures_that_need_no_derivative() -> None:
    release = Release(gl.FedAvg(learning_rate=0.1, epochs=1, batch_size=1), [gl.GaussianNoise(std=0.05)])
    scenario = Scenario(name="noisy", release=release, examples=range(1))
    about = Site(
        name="small",
        seed=3,
        objective=Objective.from_module(tiny()),
        batches=[sentences(6, 5, length=6)],
        scenarios=[scenario],
    )
    one = found(about, gl.risk.TokenError(most_places=1, most_candidates=4), gl.Vulnerability())["noisy/example 0/risk"]
    assert one.value("token_error_bound") >= one.value("least_token_error") > 0.0
    assert one.value("noise_std_for_token_error") > 0.0
    lost = one.score("vulnerability")
    assert lost is not None
    assert (lost.value, lost.outcome) == (None, Outcome.UNSUPPORTED)
    assert "cannot be taken one by one" in lost.note
    assert found(about, gl.Vulnerability())["noisy/example 0/risk"].status is Status.REFUSED


def test_a_measure_that_the_audit_takes_anyway_or_that_stands_twice_is_in_the_record_once() -> None:
    asked = gl.GaussianReconstructionError(std=0.3, unit="input")
    twice = (asked, gl.GradientNorm(), gl.GradientNorm(), replace(asked, std=0.2))
    one = found(site(batches=digits(1)), *twice)["noisy/example 0/risk"]
    assert [(score.name, score.unit, score.details.get("std")) for score in one.scores] == [
        ("gaussian_reconstruction_error", "input^2", 0.3),
        ("gradient_norm", "gradient", None),
        ("gaussian_reconstruction_error", "input^2", 0.2),
        ("gaussian_reconstruction_error", "pixel_rmse", 0.3),
    ]


def test_a_plan_without_measures_has_its_derivatives_checked() -> None:
    about = site()
    assert read({}, about).measures == ()
    assert [task.name for task in RiskAudit().tasks(about)] == ["risk/example 0", "risk/example 1"]


def test_an_isotropic_prior_and_a_network_that_jumps(quiet: dict[str, RiskFinding]) -> None:
    smooth = quiet["noisy/example 0/setting"].score("bayesian_cramer_rao")
    jumps = found(site("relu_mlp"), ISOTROPIC)["noisy/example 0/setting"].score("bayesian_cramer_rao")
    assert smooth is not None
    assert jumps is not None
    assert (smooth.evidence, jumps.evidence) == (Evidence.LOWER_BOUND, Evidence.ESTIMATE)
    assert "isotropic Gaussian, mean 0.5 and std 0.3 of the valid range" in smooth.details["prior"]["origin"]


def test_more_candidates_than_the_data_have_room_for_are_refused_before_anything_runs() -> None:
    tiny = gl.Domain(shape=(1,), low=0.0, high=1.0, kind="tabular")
    words = gl.Domain.tokens(gl.Vocabulary(size=12), 4)
    about = site()
    for domain, told in (
        (tiny, "no 40 candidates more than 0.2 apart"),
        (words, "no 40 sentences that agree at no place"),
    ):
        batches = [replace(about.batches[0], inputs=torch.zeros(1, *domain.shape, dtype=torch.long), domain=domain)]
        here = replace(about, batches=batches)
        with pytest.raises(PlanError, match=f"measure ReconstructionProbability: {told}"):
            RiskAudit(measures=[ReconstructionProbability(candidates=40)]).fit(here)
    RiskAudit(measures=[ReconstructionProbability(candidates=40)]).fit(about)
