"""A small audit that takes a second: scikit-learn digits through a tanh MLP."""

from __future__ import annotations

from pathlib import Path

import pytest

SMALL_PLAN = """
name = "small"
seed = 3

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 2

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 20

[attacks.inverting_gradients]
use = "InvertingGradients"
iterations = 20

[measures.influence]
use = "InversionInfluence"
unit = "pixel_rmse"

[measures.influence_lower_bound]
use = "InversionInfluenceLowerBound"
unit = "pixel_rmse"

[[scenarios]]
name = "undefended"
attacks = { gauss_newton = "all", inverting_gradients = [0] }

[[scenarios]]
name = "noisy"
examples = [0]
defenses = [{ use = "Clip", max_norm = 100.0 }, { use = "GaussianNoise", std = 1e-6 }]
attacks = { gauss_newton = [0] }
perfect_attacker = { below = 0.05 }
"""


@pytest.fixture
def small_plan(tmp_path: Path) -> Path:
    file = tmp_path / "plan.toml"
    file.write_text(SMALL_PLAN, encoding="utf-8")
    return file
