from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
import torch

from gradleak.results import InputError, Outcome, Score
from gradleak.risk import GrassmannMetric, SubspaceDistance, principal_angles
from gradleak.risk.layer_measure import coordinates


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class TestPrincipalAngles:
    @pytest.mark.parametrize(("first", "second"), [(3, 3), (2, 5), (5, 2), (1, 1), (8, 6)])
    def test_are_those_of_scipy(self, first: int, second: int) -> None:
        one, other = _random(10, first), _random(10, second, seed=1)
        expected = scipy.linalg.subspace_angles(one.numpy(), other.numpy())[::-1]
        # Theirs is off by 2e-8 at an angle of 0.
        np.testing.assert_allclose(principal_angles(one, other).numpy(), expected, atol=1e-7)

    @pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 0.7, math.pi / 4, 1.5, math.pi / 2])
    def test_of_a_rotated_plane(self, angle: float) -> None:
        plane = torch.eye(4, 2, dtype=torch.float64)
        turned = plane.clone()
        turned[:, 1] = torch.tensor([0.0, math.cos(angle), math.sin(angle), 0.0])
        mixed = turned @ _random(2, 2)  # another basis of the same plane
        assert principal_angles(plane, mixed).tolist() == pytest.approx([0.0, angle], abs=1e-12, rel=1e-6)

    def test_leave_out_directions_that_the_columns_do_not_span(self) -> None:
        line = _random(6, 1)
        assert len(principal_angles(torch.cat([line, 2 * line], dim=1), _random(6, 3, seed=1))) == 1

    def test_refuse_what_spans_nothing_or_lies_elsewhere(self) -> None:
        with pytest.raises(InputError, match="second: expected finite columns that are not all zero"):
            principal_angles(_random(4, 2), torch.zeros(4, 2))
        with pytest.raises(InputError, match="second: expected 4 rows"):
            principal_angles(_random(4, 2), _random(5, 2))


def test_metrics_of_known_angles() -> None:
    angles = torch.tensor([0.3, 1.2], dtype=torch.float64)
    assert GrassmannMetric.GEODESIC.of(angles) == pytest.approx(math.hypot(0.3, 1.2))
    assert GrassmannMetric.CHORDAL.of(angles) == pytest.approx(math.hypot(math.sin(0.3), math.sin(1.2)))
    assert GrassmannMetric.ASIMOV.of(angles) == pytest.approx(1.2)
    assert [metric.largest(4) for metric in GrassmannMetric] == pytest.approx([math.pi, 2.0, math.pi / 2])


def test_coordinates_keep_every_inner_product() -> None:
    rows = _random(5, 200_000)
    flat = coordinates(rows)
    assert flat.shape == (5, 5)
    torch.testing.assert_close(flat @ flat.T, rows @ rows.T)
    narrow = coordinates(rows[:, :3])
    torch.testing.assert_close(narrow @ narrow.T, rows[:, :3] @ rows[:, :3].T)


class TestSubspaceDistance:
    @pytest.mark.parametrize("metric", list(GrassmannMetric))
    @pytest.mark.parametrize("entries", [9, 300])
    def test_is_that_of_the_leading_directions_by_scipy(self, metric: GrassmannMetric, entries: int) -> None:
        rows, target = _random(40, entries), torch.arange(40) % 2
        spans = [np.linalg.svd(rows[target == value].numpy().T)[0][:, :3] for value in (0, 1)]
        angles = scipy.linalg.subspace_angles(*spans)
        expected = {
            GrassmannMetric.GEODESIC: np.linalg.norm(angles),
            GrassmannMetric.CHORDAL: np.linalg.norm(np.sin(angles)),
            GrassmannMetric.ASIMOV: angles.max(),
        }[metric]
        score = SubspaceDistance(metric=metric, dimension=3, permutations=19)({"layer": rows}, target)["layer"]
        assert score.value == pytest.approx(expected, rel=1e-9)
        assert score.details["angles"] == pytest.approx(sorted(angles))
        assert score.unit == ("1" if metric is GrassmannMetric.CHORDAL else "rad")

    def test_finds_a_planted_direction_and_not_where_there_is_none(self) -> None:
        target = torch.arange(60) % 2
        rows = _random(60, 30)
        planted = rows + 4 * target[:, None] * torch.eye(30)[0]
        scores = SubspaceDistance(dimension=1, permutations=99)({"none": rows, "planted": planted}, target)
        assert scores["planted"].details["p_value"] == 0.01 == scores["planted"].details["p_value_smallest"]
        assert scores["planted"].details["effect_size"] > 3
        assert scores["none"].details["p_value"] > 0.05

    def test_p_values_are_uniform_where_the_attribute_is_random(self) -> None:
        measure, found = SubspaceDistance(dimension=2, permutations=19), []
        for seed in range(120):
            rows = _random(16, 6, seed=seed) ** 3  # heavy tails, one group as the other
            score = measure({"layer": rows}, torch.arange(16) % 2, generator=torch.Generator().manual_seed(seed))
            found.append(score["layer"].details["p_value"])
        # p has the values 1/20, 2/20 ... 1: spread over each twentieth it is continuous.
        spread = np.random.default_rng(0).random(len(found)) / 20
        assert scipy.stats.kstest(np.array(found) - spread, "uniform").pvalue > 0.01

    def test_every_layer_meets_the_same_permutations(self) -> None:
        rows, target = _random(20, 9), torch.arange(20) % 2
        first, second = SubspaceDistance(dimension=2, permutations=19)({"a": rows, "b": 7.0 * rows}, target).values()
        assert second.details["null_mean"] == pytest.approx(first.details["null_mean"])
        assert second.value == pytest.approx(first.value)

    def test_states_and_balances_the_columns(self) -> None:
        target = torch.tensor([0] * 30 + [1] * 10)
        score = SubspaceDistance(dimension=2, permutations=19)({"a": _random(40, 9)}, target)["a"]
        assert (score.details["columns"], score.n) == (10, 20)
        fewer = SubspaceDistance(dimension=2, columns=5, permutations=19)({"a": _random(40, 9)}, target)["a"]
        assert (fewer.details["columns"], fewer.n) == (5, 10)
        with pytest.raises(InputError, match="at least 11 rows with 0 and with 1, got 10"):
            SubspaceDistance(columns=11)({"a": _random(40, 9)}, target)

    def test_says_what_few_entries_force(self) -> None:
        target = torch.arange(20) % 2
        scores = SubspaceDistance(dimension=4, permutations=19)({"all": _random(20, 4), "some": _random(20, 6)}, target)
        assert scores["all"].outcome is Outcome.NOT_INFORMATIVE
        some = scores["some"].details
        assert some["forced_zeros"] == 2
        assert some["angles"][:2] == pytest.approx([0.0, 0.0], abs=1e-9)
        assert some["largest"] == pytest.approx(math.pi)

    def test_a_group_without_gradients_has_no_span(self) -> None:
        target = torch.arange(20) % 2
        score: Score = SubspaceDistance(dimension=2)({"a": _random(20, 6) * target[:, None]}, target)["a"]
        assert score.outcome is Outcome.NO_SIGNAL

    def test_refuses_other_attributes_and_arguments(self) -> None:
        with pytest.raises(InputError, match="for an attribute of more values compare one of them"):
            SubspaceDistance()({"a": _random(9, 9)}, torch.arange(9) % 3)
        with pytest.raises(InputError, match="metric: expected one of geodesic, chordal, asimov"):
            SubspaceDistance(metric="projection")
        with pytest.raises(InputError, match="permutations"):
            SubspaceDistance(permutations=5)


def test_equal_subspaces_are_at_distance_0_and_not_at_that_of_round_off() -> None:
    """Gradients of rank 2 in ten entries: both groups span the same plane, and random groups as well."""
    generator = torch.Generator().manual_seed(100)
    plane = torch.randn(24, 2, generator=generator, dtype=torch.float64) @ torch.randn(
        2, 10, generator=generator, dtype=torch.float64
    )
    score = SubspaceDistance(dimension=2, permutations=39)({"0": plane}, torch.arange(24) % 2)["0"]
    assert score.value == 0.0
    assert score.details["p_value"] == 1.0
    assert score.details["effect_size"] is None
