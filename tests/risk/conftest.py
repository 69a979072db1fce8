from __future__ import annotations

from pathlib import Path

import pytest
from tests.oracles import NAMES, Oracle, load_oracle

from gradleak.operators import GradientJacobian


@pytest.fixture(scope="session")
def mlp(shared: Path) -> Oracle:
    return load_oracle(shared, "mlp_tanh_batch4")


@pytest.fixture(scope="session")
def mlp_operator(mlp: Oracle) -> GradientJacobian:
    return GradientJacobian(mlp.exposure)


@pytest.fixture(scope="session", params=NAMES)
def reference(request: pytest.FixtureRequest, shared: Path) -> tuple[Oracle, GradientJacobian]:
    """Each reference case in turn, with its spectrum computed."""
    oracle = load_oracle(shared, request.param)
    operator = GradientJacobian(oracle.exposure)
    operator.gram_spectrum()
    return oracle, operator


@pytest.fixture(scope="session")
def lenet(shared: Path) -> Oracle:
    return load_oracle(shared, "lenet_sigmoid_uniform")


@pytest.fixture(scope="session")
def lenet_operator(lenet: Oracle) -> GradientJacobian:
    operator = GradientJacobian(lenet.exposure)
    operator.gram_spectrum()
    return operator
