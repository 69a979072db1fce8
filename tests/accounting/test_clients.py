"""Epsilon of clients: central and local DP-FedAvg, with and without secure aggregation, against dp-accounting."""

from __future__ import annotations

import math
import re

import dp_accounting
import pytest
import torch
from dp_accounting import pld
from torch import nn

from gradleak.accounting import Accounting, mechanism_of, next_clip_norm, with_clip_query
from gradleak.attacks import InvertingGradients
from gradleak.core import (
    Batch,
    DiagonalGaussian,
    Domain,
    GaussianMechanism,
    HonestButCurious,
    NoGuarantee,
    NotGaussian,
    Objective,
    Release,
    Unit,
)
from gradleak.defenses import DPSGD, Clip, ClipPerLayer, GaussianNoise, LayerNoise, Sign
from gradleak.protocols import FedAvg, FedSGD, SecureAggregation
from gradleak.results import Evidence, InputError, Outcome, Score, UnsupportedError

LOCAL = FedAvg(learning_rate=0.1, epochs=2, batch_size=1)
CLIP, NOISE = Clip(0.5), GaussianNoise(std=0.5)


def objective() -> Objective:
    return Objective.from_module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double())


def together(*defenses: object, weights: object = None, honest: int = 0, clients: int = 4) -> SecureAggregation:
    return SecureAggregation(protocol=LOCAL, examples=[2] * clients, defenses=defenses, weights=weights, honest=honest)


def scores(release: Release, **settings: object) -> dict[str, Score]:
    found = Accounting(delta=1e-5, **settings)(release, objective(), 8)
    return {score.name: score for score in found}


def exact(multiplier: float) -> float:
    return float(dp_accounting.get_epsilon_gaussian(multiplier, 1e-5))


def test_central_dp_fedavg_hides_a_client_exactly() -> None:
    """Clients clip, the server adds noise to the mean of four: sensitivity C/4."""
    release = Release(together(CLIP), [GaussianNoise(std=0.125)])
    mechanism = mechanism_of(release, objective(), 8)
    assert mechanism == GaussianMechanism(sensitivity=0.125, std=0.125, unit=Unit.CLIENT, fixed=False)
    found = scores(release)
    assert found["gaussian_epsilon"].value == pytest.approx(exact(1.0), rel=1e-9)
    assert found["gaussian_epsilon"].evidence is Evidence.EXACT
    assert found["pld_epsilon"].evidence is Evidence.EXACT
    assert found["pld_epsilon"].details["unit"] == "client"


def test_rounds_of_sampled_clients_are_those_of_dp_accounting() -> None:
    """Public weights (one over the expected number) and noise of the server: 100 rounds, a tenth of the clients each."""
    release = Release(together(CLIP, weights=[0.25] * 4), [GaussianNoise(std=0.125)])
    found = scores(release, rounds=100, sampling_rate=0.1)["pld_epsilon"]
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    event = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    expected = accountant.compose(dp_accounting.SelfComposedDpEvent(event, 100)).get_epsilon(1e-5)
    assert found.value == pytest.approx(expected, rel=5e-3)
    assert found.evidence is Evidence.UPPER_BOUND
    # Weights that depend on who takes part give it away.
    assert scores(Release(together(CLIP), [GaussianNoise(std=0.125)]), sampling_rate=0.1)["pld_epsilon"].value is None


@pytest.mark.parametrize(("honest", "multiplier"), [(0, 1.0), (1, 2**0.5), (3, 2.0)])
def test_local_dp_counts_the_noise_of_honest_clients(honest: int, multiplier: float) -> None:
    """Without secure aggregation, or with all others at the server's, it is that of one client; else that of the sum."""
    found = scores(Release(together(CLIP, NOISE, honest=honest)))["gaussian_epsilon"]
    assert found.value == pytest.approx(exact(multiplier), rel=1e-9)
    assert found.evidence is (Evidence.EXACT if honest == 3 else Evidence.UPPER_BOUND)
    assert ("not counted, as if they colluded" in found.note) == (honest < 3)


def test_one_client_alone_is_local_dp() -> None:
    found = scores(Release(LOCAL, [CLIP, NOISE]))["gaussian_epsilon"]
    assert found.value == pytest.approx(exact(1.0), rel=1e-9)
    assert found.evidence is Evidence.EXACT


def test_the_client_that_weighs_most_is_the_least_hidden() -> None:
    release = Release(together(CLIP, NOISE, weights=[0.7, 0.1, 0.1, 0.1], honest=3))
    mechanism = mechanism_of(release, objective(), 8)
    assert isinstance(mechanism, GaussianMechanism)
    assert mechanism.sensitivity == pytest.approx(0.35)
    assert mechanism.std == pytest.approx(0.5 * math.sqrt(0.49 + 0.03))
    law = release.noise(objective(), examples=8)
    assert isinstance(law, DiagonalGaussian)
    assert law.level == pytest.approx(mechanism.std)


def test_two_clients_with_dp_sgd_lose_what_their_sum_loses_only_where_both_are_honest() -> None:
    """σ = 1 at clip norm 1, one example a client: 4.377 where the other may collude, exactly 2.943 where it does not."""
    each = DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")
    alone, both = (
        scores(Release(SecureAggregation(protocol=FedSGD(), examples=[1, 1], honest=honest), [each]))[
            "gaussian_epsilon"
        ]
        for honest in (0, 1)
    )
    assert (alone.value, alone.evidence) == (pytest.approx(4.377, abs=5e-4), Evidence.UPPER_BOUND)
    assert (both.value, both.evidence) == (pytest.approx(2.943, abs=5e-4), Evidence.EXACT)


@pytest.mark.parametrize(
    ("inside", "after", "why"),
    [
        ([CLIP, NOISE], [GaussianNoise(std=0.1)], "the noise of 3 other clients is not counted"),
        ([CLIP, NOISE, Sign()], [], "of the update before Sign"),
        ([CLIP], [LayerNoise(std={"0": 0.1}, default=0.2)], "by the smallest noise of all layers"),
        ([ClipPerLayer(0.5)], [GaussianNoise(std=0.1), Sign()], "of the update before Sign"),
    ],
)
def test_an_epsilon_of_clients_is_an_upper_bound_where_something_else_hides_them(
    inside: list[object], after: list[object], why: str
) -> None:
    mechanism = mechanism_of(Release(together(*inside), after), objective(), 8)
    assert isinstance(mechanism, GaussianMechanism)
    assert mechanism.unit is Unit.CLIENT
    assert re.search(why, mechanism.loose)


@pytest.mark.parametrize(("inside", "after"), [([CLIP], []), ([NOISE], []), ([NOISE, CLIP], [])])
def test_there_is_no_epsilon_without_a_bound_and_noise_after_it(inside: list[object], after: list[object]) -> None:
    assert isinstance(mechanism_of(Release(together(*inside), after), objective(), 8), NoGuarantee)


def test_what_clients_do_to_their_updates_is_in_the_mean_and_the_draw() -> None:
    client, protocol = objective(), together(Clip(1e-3), GaussianNoise(std=1e-6), weights=[1.0, 2.0, 1.0, 1.0])
    batch = Batch(torch.rand(8, 3, generator=torch.Generator().manual_seed(0)).double(), torch.arange(8) % 2)
    mean = client.flatten(Release(protocol).mean(client, client.params, batch))
    parts = [
        client.flatten(
            Release(LOCAL, [Clip(1e-3)]).mean(
                client, client.params, Batch(batch.inputs[i : i + 2], batch.targets[i : i + 2])
            )
        )
        for i in range(0, 8, 2)
    ]
    torch.testing.assert_close(mean, parts[0] + 2 * parts[1] + parts[2] + parts[3])
    draws = [
        client.flatten(Release(protocol)(client, batch, torch.Generator().manual_seed(seed)).tensors) for seed in (1, 2)
    ]
    # √7 times the noise of one, and the difference of two draws.
    assert float((draws[0] - draws[1]).std()) == pytest.approx(1e-6 * math.sqrt(14), rel=0.4)
    law = Release(protocol).noise(client, examples=8)
    assert isinstance(law, DiagonalGaussian)
    assert law.level == pytest.approx(1e-6 * math.sqrt(7))
    bent = Release(together(Clip(1.0)), [DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")])
    assert isinstance(bent.noise(client, examples=8), NotGaussian)


def test_attacks_follow_what_can_be_followed_and_refuse_the_rest_by_name() -> None:
    client = objective()
    batch = Batch(torch.rand(8, 3).double(), torch.arange(8) % 2, Domain(shape=(3,), kind="tabular"))
    release = Release(together(Clip(1e-3)))
    update = release(client, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious(targets=True).disclose(client, release, batch)
    found = InvertingGradients(iterations=3)(update, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.inputs is not None
    assert release.protocol.mini_batch_weights(8) is None
    signs = HonestButCurious(targets=True).disclose(client, Release(together(Sign())), batch)
    with pytest.raises(UnsupportedError, match="Sign before the sum of clients"):
        InvertingGradients(iterations=3)(update, signs, generator=torch.Generator().manual_seed(0))


def test_adaptive_clipping_pays_for_its_query() -> None:
    """Andrew et al. 2021: the noise on updates that leaves z in all, with σ_b on the count, is (z⁻² − (2σ_b)⁻²)^−½."""
    z, query = 1.0, 5.0
    on_updates = (z**-2 - (2 * query) ** -2) ** -0.5
    release = Release(together(CLIP, weights=[0.25] * 4), [GaussianNoise(std=0.125 * on_updates)])
    without, with_it = scores(release)["pld_epsilon"], scores(release, clip_query_std=query)["pld_epsilon"]
    assert with_it.value == pytest.approx(exact(z), rel=1e-9)
    assert without.value == pytest.approx(exact(on_updates), rel=1e-9)
    assert without.value < with_it.value
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(on_updates), dp_accounting.GaussianDpEvent(2 * query)]
    )
    composed = pld.PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon(1e-5)
    assert with_it.value == pytest.approx(composed, rel=2e-3)
    assert next_clip_norm(2.0, 1.0) == pytest.approx(2.0 * math.exp(-0.1))
    with pytest.raises(InputError, match="clip_query_std"):
        with_clip_query(GaussianMechanism(sensitivity=1.0, std=1.0), 0.0)


def test_clients_and_defenses_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected a UpdateDefense, got DPSGD"):
        together(DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum"))
    with pytest.raises(InputError, match="honest: expected at most the 3 other clients, got 4"):
        together(honest=4)
    assert Outcome.NOT_INFORMATIVE is scores(Release(together(CLIP)))["pld_epsilon"].outcome
