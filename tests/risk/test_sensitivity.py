from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.oracles import NAMES, Oracle, load_oracle
from tests.risk.cases import color, signed
from torch import nn

from gradleak.core import Batch, Exposure, Objective, Release
from gradleak.models import initialize_uniform, lenet_dlg
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import Evidence, InputError, Leakier, Outcome
from gradleak.risk import Sensitivity

KEYS = {"frobenius": "frobenius", "one": "one_norm", "inf": "inf_norm"}


@pytest.mark.parametrize("name", NAMES)
def test_reference_values(shared: Path, name: str) -> None:
    oracle = load_oracle(shared, name)
    wanted = oracle.values["sensitivity_per_parameter"]
    assert isinstance(wanted, dict)
    operator = GradientJacobian(oracle.exposure)
    operator.dense()  # one pass for the three norms
    for norm, key in KEYS.items():
        want = {tensor: values[key] for tensor, values in wanted.items()}
        score = Sensitivity(norm=norm)(oracle.exposure, operator=operator)
        assert score.details["values"] == pytest.approx(want, rel=1e-6)
        assert score.value == pytest.approx(max(want.values()), rel=1e-6)
        assert want[score.details["leakiest"]] == max(want.values())
        assert (score.evidence, score.leakier) == (Evidence.EXACT, Leakier.HIGHER)


def _numpy_norm(matrix: np.ndarray, norm: str) -> float:
    return float(np.linalg.norm(matrix, {"frobenius": None, "one": 1, "inf": np.inf}[norm]))


@pytest.mark.parametrize("norm", KEYS)
@pytest.mark.parametrize("chunk", [None, 5])
def test_layers_groups_and_blocks_of_columns(norm: str, chunk: int | None) -> None:
    exposure = color(torch.Generator().manual_seed(0))
    matrix = GradientJacobian(exposure).dense().numpy()
    sizes = [tensor.numel() for tensor in exposure.objective.params.values()]
    rows = dict(zip(exposure.objective.params, np.split(matrix, np.cumsum(sizes)[:-1]), strict=True))
    operator = GradientJacobian(exposure, chunk=chunk)  # 36 columns in uneven blocks; A is never held
    layers = Sensitivity(norm=norm, by="layer")(exposure, operator=operator).details["values"]
    assert layers == pytest.approx({
        "1": _numpy_norm(np.concatenate([rows["1.weight"], rows["1.bias"]]), norm),
        "3": _numpy_norm(np.concatenate([rows["3.weight"], rows["3.bias"]]), norm),
    })  # fmt: skip
    groups = {"all": list(rows), "biases": ("1.bias", "3.bias", "1.bias")}
    named = Sensitivity(norm=norm, by=groups)(exposure, operator=operator).details["values"]
    biases = np.concatenate([rows["1.bias"], rows["3.bias"]])
    assert named == pytest.approx({"all": _numpy_norm(matrix, norm), "biases": _numpy_norm(biases, norm)})


def test_a_zero_map_has_no_value(mlp: Oracle) -> None:
    score = Sensitivity()(signed(mlp.exposure))
    assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)


@pytest.mark.parametrize("by", ["tensor", "layer"])
def test_beyond_the_dense_limit_frobenius_norms_are_sampled(mlp: Oracle, by: str) -> None:
    exact = Sensitivity(by=by)(mlp.exposure)
    operator = GradientJacobian(mlp.exposure)
    score = Sensitivity(by=by, dense_limit=10)(mlp.exposure, operator=operator)
    assert (score.evidence, score.outcome, score.n) == (Evidence.ESTIMATE, Outcome.CONVERGED, 64)
    assert operator.matvecs == 64
    assert "d = 48 is above 10" in score.note
    assert score.details["values"] == pytest.approx(exact.details["values"], rel=0.2)
    assert score.value == score.details["values"][score.details["leakiest"]]
    assert score.interval == score.details["intervals"][score.details["leakiest"]]


def test_intervals_of_sampled_norms_cover(mlp: Oracle) -> None:
    operator = GradientJacobian(mlp.exposure)
    operator.dense()
    want = Sensitivity()(mlp.exposure, operator=operator).details["values"]
    covered = dict.fromkeys(want, 0)
    for seed in range(300):
        intervals = Sensitivity(dense_limit=0, samples=16, seed=seed)(mlp.exposure, operator=operator).details[
            "intervals"
        ]
        for name, (low, high) in intervals.items():
            covered[name] += low <= want[name] <= high
    # Squares are skewed to the right, so Student's interval falls a little short of 95 %.
    assert min(covered.values()) / 300 > 0.9 - 3 * (0.9 * 0.1 / 300) ** 0.5


@pytest.mark.parametrize("norm", ["one", "inf"])
def test_the_other_norms_stay_exact_at_any_size(mlp: Oracle, norm: str) -> None:
    exact, small = (Sensitivity(norm=norm, dense_limit=limit)(mlp.exposure) for limit in (4096, 1))
    assert small.evidence is Evidence.EXACT
    assert small.details["values"] == exact.details["values"]


@pytest.mark.parametrize("norm", KEYS)
def test_fewer_rows_than_columns_go_by_rows(norm: str) -> None:
    model = nn.Sequential(nn.Linear(9, 3).requires_grad_(False), nn.Tanh(), nn.Linear(3, 2)).double()
    x = torch.rand(2, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exposure = Exposure(Objective.from_module(model), Batch(x, torch.tensor([0, 1])), Release(FedSGD()))
    matrix = GradientJacobian(exposure).dense().numpy()
    assert matrix.shape == (8, 18)
    operator = GradientJacobian(exposure, chunk=5)
    values = Sensitivity(norm=norm)(exposure, operator=operator).details["values"]
    assert operator.matvecs == 8
    assert values == pytest.approx({"2.weight": _numpy_norm(matrix[:6], norm), "2.bias": _numpy_norm(matrix[6:], norm)})


def test_a_sampled_zero_map_has_no_value(mlp: Oracle) -> None:
    score = Sensitivity(dense_limit=0)(signed(mlp.exposure))
    assert (score.value, score.outcome) == (None, Outcome.NOT_INFORMATIVE)


@pytest.mark.slow
def test_sampled_norms_on_a_larger_network() -> None:
    generator = torch.Generator().manual_seed(0)
    model = initialize_uniform(lenet_dlg(classes=10), low=-0.5, high=0.5, generator=generator)
    batch = Batch(torch.rand((1, 3, 32, 32), generator=generator), torch.tensor([3]))
    exposure = Exposure(Objective.from_module(model), batch, Release(FedSGD()))
    want = Sensitivity()(exposure).details["values"]
    found = Sensitivity(dense_limit=1000)(exposure).details
    assert found["values"] == pytest.approx(want, rel=0.1)
    assert sum(low <= want[name] <= high for name, (low, high) in found["intervals"].items()) >= len(want) - 1


def test_bad_fields(mlp: Oracle) -> None:
    with pytest.raises(InputError, match="norm: expected one of frobenius, one, inf, got 'two'"):
        Sensitivity(norm="two")
    with pytest.raises(InputError, match="by: expected one of tensor, layer or lists of texts by name, got 'block'"):
        Sensitivity(by="block")
    with pytest.raises(InputError, match="samples: expected a whole number of at least 2, got 1"):
        Sensitivity(samples=1)
    with pytest.raises(InputError, match="by: expected groups such as"):
        Sensitivity(by={"head": []})
    with pytest.raises(InputError, match=r"names '0\.weights', no shared tensor; is it '0\.weight'"):
        Sensitivity(by={"first": ["0.weights"]})(mlp.exposure)
