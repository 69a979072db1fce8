from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.oracles import NAMES, Oracle, load_oracle
from tests.risk.cases import color, signed

from gradleak.operators import GradientJacobian
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


def test_beyond_the_dense_limit(mlp: Oracle) -> None:
    score = Sensitivity(dense_limit=10)(mlp.exposure)
    assert (score.value, score.outcome) == (None, Outcome.UNSUPPORTED)
    assert "d = 48 columns" in score.note


def test_bad_fields(mlp: Oracle) -> None:
    with pytest.raises(InputError, match="norm: expected one of frobenius, one, inf, got 'two'"):
        Sensitivity(norm="two")
    with pytest.raises(InputError, match="by: expected one of tensor, layer or named groups, got 'block'"):
        Sensitivity(by="block")
    with pytest.raises(InputError, match="by: expected groups such as"):
        Sensitivity(by={"head": []})
    with pytest.raises(InputError, match=r"names '0\.weights', no shared tensor; is it '0\.weight'"):
        Sensitivity(by={"first": ["0.weights"]})(mlp.exposure)
