"""Whole audits: what they find, what they keep to themselves, and their controls."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.games.setting import population
from tests.privacy.setting import FEATURES, dp_sgd, small, table
from torch import nn

from gradleak.accounting import exact_gaussian_epsilon
from gradleak.audits.privacy import finding_of_audit
from gradleak.core import Batch, Objective, Release
from gradleak.data import Population
from gradleak.defenses import DPSGD, Clip, LaplaceNoise
from gradleak.models import mlp
from gradleak.privacy import (
    AttributeAudit,
    AuditResult,
    Canary,
    Histogram,
    HypothesisPair,
    MembershipAudit,
    MembershipPair,
    audit_pair,
)
from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    GaussianFitEpsilon,
    SplitThresholdEpsilon,
    TrialScores,
)
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Outcome, Score

DELTA = 1e-5


@pytest.fixture(scope="module")
def played() -> AuditResult:
    return AttributeAudit(table(), **small()).play(3)


def bounds(result: AuditResult) -> list[Score]:
    return [
        score
        for pair in result.pairs
        for scores in pair.scores.values()
        for score in scores
        if score.evidence is Evidence.LOWER_BOUND
    ]


def test_an_attribute_audit_has_a_canary_and_a_random_record_an_epoch(played: AuditResult) -> None:
    assert [pair.name for pair in played.pairs] == [
        "canary, epoch 0", "random record, epoch 0", "canary, epoch 1", "random record, epoch 1",
    ]  # fmt: skip
    assert played.outcome is Outcome.CONVERGED
    for epoch in (0, 1):
        crafted, drawn = (played.pair(f"{name}, epoch {epoch}") for name in ("canary", "random record"))
        exact = [pair.known("per_attribute_epsilon").value for pair in (crafted, drawn)]
        assert exact[0] > exact[1] > 0  # type: ignore[operator]
        assert crafted.known("classical_gaussian_epsilon").value == pytest.approx(
            0.5 * math.sqrt(2 * math.log(1.25 / DELTA)) / 0.1
        )
        # Four columns are inputs.
        assert crafted.known("gaussian_epsilon_share").details["attributes"] == 4
    # A mistake in one of twenty is allowed to each; this seed makes none.
    for pair in played.pairs:
        exact_one = pair.known("per_attribute_epsilon").value
        for scores in pair.scores.values():
            assert all(score.value <= exact_one for score in scores if score.evidence is Evidence.LOWER_BOUND)  # type: ignore[operator]


def test_an_audit_is_the_same_for_the_same_seed(played: AuditResult) -> None:
    again = AttributeAudit(table(), **small(epochs=(0,))).play(3)
    for pair in again.pairs:
        before = played.pair(pair.name)
        for name, scores in pair.samples.items():
            assert np.array_equal(scores.null, before.samples[name].null)


def test_the_finding_of_an_audit_is_json_and_holds_no_trial_and_no_record(played: AuditResult) -> None:
    found = finding_of_audit(played, item="mine")
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert [pair.name for pair in found.pairs] == [pair.name for pair in played.pairs]
    for pair in found.pairs:
        assert {histogram.statistic for histogram in pair.histograms} == {"distance", "likelihood_ratio"}
        assert sum(count or 0 for count in pair.histograms[0].null) == pair.trials == 1500
    assert all(score.unit == "epsilon" for score in found.scores)
    assert {score.about["estimator"] for score in found.scores if "statistic" in score.about} == {
        "SplitThresholdEpsilon", "CorrectedThresholdEpsilon", "GaussianFitEpsilon", "PlugInEpsilon",
    }  # fmt: skip
    # All lower bounds hold together.
    bounds = [score for score in found.scores if score.evidence is Evidence.LOWER_BOUND]
    assert {score.details["comparisons"] for score in bounds} == {found.bounds} == {3 * 2 * len(found.pairs)}
    # Every number of a list is a count, an edge or a fact; the longest lists are the histograms'.
    sample = played.pairs[0].samples["distance"].null
    assert repr(float(sample[0])) not in text
    assert len(text) < 120_000


def test_the_largest_of_many_bounds_keeps_its_confidence(played: AuditResult) -> None:
    for estimator in played.estimators[:3]:
        largest = played.largest(estimator)
        assert largest.details["comparisons"] == 8
        place = list(played.estimators).index(estimator)
        alone = [scores[place].value or 0.0 for pair in played.pairs for scores in pair.scores.values()]
        assert largest.value is not None
        assert largest.value <= max(alone) + 1e-9
        assert largest.details["pair"] in [pair.name for pair in played.pairs]
    with pytest.raises(InputError, match="estimator of this audit"):
        played.largest(SplitThresholdEpsilon(delta=1e-3))


def test_controls_find_nothing_and_everything() -> None:
    audit = AttributeAudit(table(), **small())
    nothing = audit.null_control(1)
    assert [score.value for score in bounds(nothing)] == [0.0] * len(bounds(nothing))
    everything = audit.planted_control(1)
    assert {score.outcome for score in bounds(everything)} == {Outcome.SATURATED}
    assert {pair.trials for pair in (*nothing.pairs, *everything.pairs)} == {1500}


def test_valid_canaries_and_several_records() -> None:
    audit = AttributeAudit(
        table(), **small(epochs=(0,), valid=True, canaries=2, random_records=3, attributes=14, trials=100)
    )
    setup = audit.set_up(0)
    assert [entry.name for entry in setup.pairs] == [
        "canary 1, epoch 0", "canary 2, epoch 0",
        "random record 1, epoch 0", "random record 2, epoch 0", "random record 3, epoch 0",
    ]  # fmt: skip
    assert [entry.facts.get("valid") for entry in setup.pairs] == [True, True, None, None, None]
    assert setup.pairs[0].note.startswith("the canary is a valid record")
    assert setup.pairs[0].theory[-1].details["attributes"] == 14
    assert audit.describe()["canary"]["valid"] is True
    assert "400 rows" in json.dumps(audit.describe())


def test_parts_of_an_audit_are_read_in_any_order() -> None:
    audit = AttributeAudit(table(), **small(epochs=(0, 1), trials=60))
    setup, training = audit.set_up(2), audit.train(2)
    assert [(part.epoch, part.crafted) for part in audit.parts] == [(0, True), (0, False), (1, True), (1, False)]
    assert [part.crafted for part in replace(audit, canary=None).parts] == [False, False]
    read = {pair.name: pair for part in reversed(audit.parts) for pair in audit.read(part, training)}
    assert sorted(read) == sorted(entry.name for entry in setup.pairs)
    for entry in setup.pairs:
        wanted = entry.read(audit.reading, trials=60, delta=audit.delta, seed=2)
        assert dict(read[entry.name].scores) == dict(wanted.scores)
        assert read[entry.name].theory == wanted.theory


def test_an_audit_of_another_release_encodes_its_table_once() -> None:
    audit = AttributeAudit(table(), **small())
    other = audit.through(Release(FedSGD()))
    assert other.rows() is audit.rows()
    assert not other.release.defenses


def test_an_audit_is_rehearsed_without_training() -> None:
    AttributeAudit(table(), **small(private_rows=300, epochs=(0, 1000))).rehearse()
    wrong = small(model=lambda generator: nn.Linear(FEATURES + 1, 2))
    with pytest.raises(InputError, match="does not accept"):
        AttributeAudit(table(), **wrong).rehearse()


def test_a_training_that_diverges_is_said_and_later_epochs_are_left_out() -> None:
    found = AttributeAudit(table(), **small(learning_rate=1e38, trials=50, canary=None)).play(0)
    assert found.outcome is Outcome.NOT_FINITE
    assert [pair.name for pair in found.pairs] == ["random record, epoch 0"]
    assert "diverged" in finding_of_audit(found).pairs[0].note


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Linear(7, 2)}, "function of a generator"),
        ({"epochs": ()}, "at least one"),
        ({"epochs": (1, 1)}, "different"),
        ({"epochs": (-1,)}, "epochs"),
        ({"delta": 0.0}, "delta"),
        ({"trials": 0}, "trials"),
        ({"estimators": ()}, "at least one"),
        ({"estimators": (SplitThresholdEpsilon(delta=1e-3),)}, "delta of the audit"),
        ({"attribute": "age"}, "category"),
        ({"attribute": "paid"}, "category"),
        ({"canaries": 5}, "at most 4"),
        ({"random_records": 0}, "random_records"),
    ],
    ids=str,
)
def test_settings_that_make_no_audit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AttributeAudit(table(), **small(**changes))


def members(**changes: object) -> MembershipAudit:
    given: dict[str, object] = {
        "model": perceptron_of_games, "release": dp_sgd(noise="sum"), "members": 4, "epochs": (0,), "private_rows": 64,
        "public_rows": 64, "trials": 2000,
    }  # fmt: skip
    return MembershipAudit(population(rows=300), **(given | changes))  # type: ignore[arg-type]


def perceptron_of_games(generator: torch.Generator) -> nn.Module:
    return mlp(features=6, hidden=(4,), classes=2, generator=generator)


def test_replacing_a_member_has_the_distance_of_its_clipped_gradient() -> None:
    known = Objective.from_module(nn.Linear(6, 2).double())
    draws = torch.Generator().manual_seed(0)
    rows = Batch(torch.randn(5, 6, generator=draws, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1]))
    release = dp_sgd(clip=0.3, std=0.2, noise="sum")
    others = Batch(rows.inputs[:3], rows.targets[:3])
    pair = MembershipPair(
        objective=known, release=release, example=rows.example(3), others=others, replacement=rows.example(4)
    )
    clipped = []
    for number in (3, 4):
        gradient = known.flatten(known.gradient(known.params, rows.example(number)))
        clipped.append(gradient * min(1.0, 0.3 / float(gradient.norm())))
    assert pair.facts["distances"] == pytest.approx([float((clipped[0] - clipped[1]).norm()) / 4])
    exact = exact_gaussian_epsilon(float((clipped[0] - clipped[1]).norm()), 0.2, DELTA).value
    assert pair.theory(delta=DELTA)[0].value == pytest.approx(exact)
    assert pair.facts["neighbors"] == "another in its place"


def test_a_divisor_by_the_number_of_examples_breaks_the_claim_and_a_public_one_does_not() -> None:
    # U55: with σ/k on the mean of k and σ/(k + 1) on that of k + 1, the size of the noise tells k.
    own = Release(FedSGD(), [DPSGD(clip_norm=0.1, noise_std=1.0, noise="sum")])
    public = Release(FedSGD(), [DPSGD(clip_norm=0.1, noise_std=1.0, noise="sum", expected_batch_size=4)])
    by_rows, by_constant = (
        replace(members(members=3), model=_wide, release=release).play(0).pairs[0] for release in (own, public)
    )
    claimed = by_rows.known("gaussian_epsilon").value
    assert claimed is not None
    assert by_rows.known("pair_epsilon").outcome is Outcome.UNSUPPORTED
    broken = by_rows.scores["likelihood_ratio"][:2]
    kept = by_constant.scores["likelihood_ratio"][:2]
    assert all(score.value > claimed + 1 for score in broken)  # type: ignore[operator]
    assert all(score.value <= claimed for score in kept)  # type: ignore[operator]
    assert by_constant.known("pair_epsilon").value == pytest.approx(claimed, rel=1e-5)


def _wide(generator: torch.Generator) -> nn.Module:
    del generator
    return nn.Linear(6, 40)


def test_membership_audits_draw_members_and_refuse_a_batch_of_none() -> None:
    found = members(adjacency="replace", members=1, examples=2, trials=200).play(0)
    assert [pair.name for pair in found.pairs] == ["example 1, epoch 0", "example 2, epoch 0"]
    assert found.pairs[0].facts["others"] == 0
    assert found.kind == "membership"
    assert json.dumps(finding_of_audit(found).to_dict(), allow_nan=False)
    with pytest.raises(InputError, match="members"):
        members(members=1)
    with pytest.raises(InputError, match="adjacency"):
        members(adjacency="swap")
    with pytest.raises(InputError, match="neither"):
        MembershipPair(
            objective=Objective.from_module(nn.Linear(6, 2)),
            release=dp_sgd(),
            example=Batch(torch.zeros(1, 6), torch.zeros(1, dtype=torch.int64)),
        )


def test_a_client_with_a_bounded_update_has_no_epsilon_of_an_example() -> None:
    release = Release(FedSGD(), [Clip(0.5), DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")][:1])
    (pair,) = members(release=release, trials=100).play(0).pairs
    assert pair.known("gaussian_epsilon").value is None
    assert pair.facts["law"] == "drawn"


class Randomized(HypothesisPair):
    """Randomized response: the truth with probability 3/4; epsilon is ln 3."""

    def trials(self, count: int, *, generator: torch.Generator) -> Mapping[str, TrialScores]:
        heads = torch.rand(2, count, generator=generator, dtype=torch.float64) < torch.tensor([[0.25], [0.75]])
        null, alternative = heads.double().numpy()
        return {"answer": TrialScores(null=null, alternative=alternative, name="answer")}


def test_a_pair_that_a_user_writes_is_audited_like_any_other() -> None:
    estimators = [SplitThresholdEpsilon(delta=DELTA), CorrectedThresholdEpsilon(delta=DELTA)]
    found = audit_pair(Randomized(), estimators=estimators, trials=20_000, seed=1, name="randomized response")
    for score in found.scores["answer"]:
        assert 0.9 * math.log(3) < score.value <= math.log(3)  # type: ignore[operator]
    assert found.theory == ()
    with pytest.raises(InputError, match="at least one estimator"):
        audit_pair(Randomized(), estimators=[])


@pytest.mark.parametrize("release", [Release(FedSGD(), [LaplaceNoise(scale=0.1)]), dp_sgd(std=0.2, noise="sum")])
def test_a_bound_for_two_gaussians_is_an_estimate_of_other_releases(release: Release) -> None:
    # Laplace noise, and a divisor by which the noise of H0 is another than that of H1.
    estimators = (SplitThresholdEpsilon(delta=DELTA), GaussianFitEpsilon(delta=DELTA))
    found = members(release=release, estimators=estimators, trials=200).play(0)
    for split, fit in found.pairs[0].scores.values():
        assert split.evidence is Evidence.LOWER_BOUND
        assert (fit.name, fit.evidence) == ("epsilon_estimate", Evidence.ESTIMATE)
        assert "not known to be two Gaussians" in fit.note
    assert found.largest(estimators[1]).evidence is Evidence.ESTIMATE
    same = members(release=dp_sgd(std=0.2, noise="sum"), adjacency="replace", estimators=estimators, trials=200).play(0)
    assert same.largest(estimators[1]).evidence is Evidence.LOWER_BOUND


def test_histograms_count_every_trial_once() -> None:
    draws = np.random.default_rng(0)
    scores = TrialScores(null=draws.normal(size=500), alternative=draws.normal(2, size=300), name="x")
    histogram = Histogram.of(scores, bins=20)
    assert sum(histogram.null) == 500
    assert sum(histogram.alternative) == 300
    expected, edges = np.histogram(scores.null, bins=20, range=(min(scores.null), max(scores.alternative)))
    assert list(histogram.null) == expected.tolist()
    assert histogram.edges == pytest.approx(edges.tolist())
    constant = Histogram.of(TrialScores(null=np.zeros(3), alternative=np.zeros(2), name="x"))
    assert sum(constant.null) == 3
    assert json.dumps(histogram.to_dict())


def test_a_gaussian_fit_of_the_ratio_comes_near_the_truth_where_thresholds_saturate() -> None:
    audit = AttributeAudit(
        table(),
        **small(
            epochs=(0,), canary=Canary(iterations=15, starts=4), trials=4000, release=dp_sgd(clip=0.5, std=0.2),
            estimators=(GaussianFitEpsilon(delta=DELTA),),
        ),
    )  # fmt: skip
    for pair in audit.play(0).pairs:
        exact = pair.known("per_attribute_epsilon").value
        (score,) = pair.scores["likelihood_ratio"]
        assert 0.85 * exact < score.value <= exact  # type: ignore[operator]


def test_a_population_needs_no_sensitive_column_in_its_inputs() -> None:
    people = table().population(target="paid", sensitive="sex", keep_sensitive=False)
    assert isinstance(people, Population)
    audit = MembershipAudit(
        people, model=lambda generator: nn.Linear(5, 2), epochs=(0,), private_rows=50, public_rows=50, trials=50
    )
    assert audit.play(0).pairs[0].facts["others"] == 15


def test_too_few_rows_name_the_arguments_and_the_counts() -> None:
    audit = replace(AttributeAudit(table(), **small()), private_rows=5000, public_rows=1000)
    message = (
        r"AttributeAudit\.private_rows, AttributeAudit\.public_rows: expected at most \d+ together.* got 5000 and 1000"
    )
    with pytest.raises(InputError, match=message):
        audit.set_up()
