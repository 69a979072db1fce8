from __future__ import annotations

import pytest

from gradleak.auditing import LayerAudit
from gradleak.core import Objective, Release, derive_generator
from gradleak.defenses import LayerNoise
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.results import InputError
from gradleak.risk import Sensitivity
from tests.auditing.small_population import two_groups


def test_noise_on_a_layer_that_is_not_there_is_refused_beside_a_release_that_works() -> None:
    """`Sensitivity` reads the mean alone and would never meet the noise."""
    objective = Objective.from_module(mlp(features=6, hidden=(8,), classes=2, generator=derive_generator(0, "model")))
    audit = LayerAudit(
        rows=two_groups(generator=derive_generator(0, "rows")), measures=[Sensitivity()], count=20, releases=2
    )
    plain, noisy = Release(FedSGD()), Release(FedSGD(), [LayerNoise(std={"0": 0.1})])
    audit.check(objective, [plain, noisy])
    with pytest.raises(InputError, match="expected names of layers, got '9'; the update has '0', '2'"):
        audit.check(objective, [plain, Release(FedSGD(), [LayerNoise(std={"9": 0.1})])])
