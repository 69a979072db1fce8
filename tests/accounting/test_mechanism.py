from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from tests.defenses.setting import batch, objective
from torch import Tensor, nn

from gradleak.accounting import Accounting, exact_gaussian_epsilon, guarantee_of, mechanism_of
from gradleak.core import (
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    GaussianMechanism,
    Guarantee,
    NoGuarantee,
    Protocol,
    Release,
    Unit,
)
from gradleak.defenses import (
    DPSGD,
    AdversarialPerturbation,
    Clip,
    ClipPerExample,
    ClipPerLayer,
    GaussianNoise,
    LaplaceNoise,
    LayerNoise,
    Prune,
    Sign,
    SpectralNoise,
)
from gradleak.privacy.theory import total_epsilons
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation
from gradleak.results import Evidence

PER_EXAMPLE = DPSGD(clip_norm=0.5, noise_std=0.1, noise="per_example")
ON_SUM = DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum")
PUBLIC = DPSGD(clip_norm=0.5, noise_std=0.1, noise="sum", expected_batch_size=16)


def found(protocol: Protocol, *defenses: Defense, examples: int = 9) -> GaussianMechanism | NoGuarantee:
    return mechanism_of(Release(protocol, defenses), objective(), examples)


@pytest.mark.parametrize(
    ("protocol", "defenses", "expected"),
    [
        (FedSGD(), [PER_EXAMPLE], {"std": 0.3, "fixed": False}),
        (FedSGD(), [ON_SUM], {"std": 0.1, "fixed": False}),
        (FedSGD(), [PUBLIC], {"std": 0.1, "fixed": True}),
        (FedSGD(), [PUBLIC, Prune(0.9), Sign()], {"std": 0.1, "fixed": True}),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.1)], {"std": 0.9, "fixed": False}),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.3), GaussianNoise(std=0.4), Prune(0.1)], {"std": 4.5}),
        (FedSGD(), [ClipPerExample(0.5), LayerNoise(std={"0": 0.1}, default=0.2)], {"std": 0.9, "fixed": False}),
        (FedAvg(learning_rate=0.1), [ClipPerExample(0.5), GaussianNoise(std=0.01)], {"std": 0.9, "fixed": False}),
        (FedAvg(learning_rate=0.1, epochs=3), [PUBLIC], {"std": 0.1, "steps": 3, "fixed": True}),
        (FedAvg(learning_rate=0.1, batch_size=9), [PUBLIC], {"std": 0.1, "fixed": False}),
        (LocalAdam(batch_size=40), [PUBLIC], {"std": 0.1, "fixed": False}),
        (SecureAggregation(protocol=FedSGD(), examples=[9]), [PUBLIC], {"std": 0.1, "fixed": False}),
        (FedAvg(learning_rate=0.1, epochs=3, batch_size=4), [PER_EXAMPLE], {"std": 0.1, "steps": 3, "fixed": False}),
        (LocalAdam(epochs=2), [ON_SUM], {"std": 0.1, "steps": 2, "fixed": False}),
        (SecureAggregation(protocol=FedSGD(), examples=[4, 5]), [PER_EXAMPLE], {"std": 0.2, "fixed": False}),
        (SecureAggregation(protocol=FedSGD(), examples=[4, 5]), [ClipPerExample(0.5), GaussianNoise(std=0.1)], {"std": 0.9}),
        (FedAvg(learning_rate=0.1, epochs=5), [Clip(0.5), GaussianNoise(std=0.1)], {"std": 0.1, "unit": Unit.CLIENT}),
        (FedSGD(), [ClipPerExample(1.0), Clip(0.5), GaussianNoise(std=0.1)], {"std": 0.1, "unit": Unit.CLIENT}),
    ],
    ids=repr,
)  # fmt: skip
def test_the_noise_on_what_an_example_adds(
    protocol: Protocol, defenses: list[Defense], expected: dict[str, Any]
) -> None:
    mechanism = found(protocol, *defenses)
    assert isinstance(mechanism, GaussianMechanism)
    assert mechanism.sensitivity == 0.5
    for name, value in expected.items():
        assert getattr(mechanism, name) == (pytest.approx(value) if isinstance(value, float) else value)
    assert mechanism.noise_multiplier == pytest.approx(mechanism.std / 0.5)


@pytest.mark.parametrize(
    ("protocol", "defenses", "why"),
    [
        (FedSGD(), [PER_EXAMPLE], ""),
        (FedAvg(learning_rate=0.1), [ON_SUM], ""),
        (SecureAggregation(protocol=FedSGD(), examples=[9]), [PER_EXAMPLE], ""),
        (SecureAggregation(protocol=FedSGD(), examples=[4, 5]), [ClipPerExample(0.5), GaussianNoise(std=0.1)], ""),
        (FedAvg(learning_rate=0.1, epochs=5), [Clip(0.5), GaussianNoise(std=0.1)], ""),
        (SecureAggregation(protocol=FedSGD(), examples=[4, 5]), [PER_EXAMPLE], "noise of the other clients is not counted"),
        (FedAvg(learning_rate=0.1, batch_size=5), [ON_SUM], "as if each of the client's noisy steps were seen"),
        (LocalAdam(batch_size=3), [PER_EXAMPLE], "as if each of the client's noisy steps were seen"),
        (FedSGD(), [PER_EXAMPLE, GaussianNoise(std=0.1)], "of the update before GaussianNoise"),
        (FedSGD(), [ON_SUM, Prune(0.9), Sign()], "of the update before Prune, Sign"),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.1), Prune(0.5)], "of the update before Prune"),
        (FedSGD(), [Clip(0.5), GaussianNoise(std=0.1), Sign()], "of the update before Sign"),
        (FedSGD(), [ClipPerExample(0.5), LayerNoise(std={"0": 0.1}, default=0.2)], "by the smallest noise of all layers"),
        (FedSGD(), [ClipPerExample(0.2), ON_SUM], "an earlier defense already bounds what an example adds by 0.2"),
        (FedSGD(), [ClipPerExample(0.2), ClipPerExample(0.5), GaussianNoise(std=0.1)], "already bounds .* by 0.2"),
    ],
    ids=repr,
)  # fmt: skip
def test_an_epsilon_is_exact_only_where_nothing_else_hides_the_example(
    protocol: Protocol, defenses: list[Defense], why: str
) -> None:
    """Two clients with DP-SGD each: the epsilon of one client's noise is an upper bound on what their sum loses."""
    mechanism = found(protocol, *defenses)
    assert isinstance(mechanism, GaussianMechanism)
    assert re.search(why, mechanism.loose) if why else mechanism.loose == ""
    release = Release(protocol, defenses)
    scores = {score.name: score for score in Accounting(delta=1e-5)(release, objective(), 9)}
    expected = Evidence.UPPER_BOUND if why else Evidence.EXACT
    for name in ("gaussian_epsilon", "pld_epsilon"):
        assert scores[name].evidence is expected
        assert mechanism.loose in scores[name].note
    if mechanism.unit is Unit.EXAMPLE:
        total = total_epsilons(release, objective(), examples=9, attributes=None, delta=1e-5)
        assert [score.evidence for score in total[1:]] == [expected, expected]


def test_the_sum_of_two_clients_loses_less_than_the_noise_of_one() -> None:
    """σ = 1 at clip norm 1 each, one example a client: 4.377 for the noise of one, 2.943 for that of the sum."""
    each = DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")
    release = Release(SecureAggregation(protocol=FedSGD(), examples=[1, 1]), [each])
    stated = Accounting(delta=1e-5)(release, objective(), 2)[1]
    law = release.noise(objective(), examples=2)
    assert isinstance(law, DiagonalGaussian)
    (std,) = set(law.std.values())
    of_sum = exact_gaussian_epsilon(0.5, std, 1e-5)
    assert stated.value == pytest.approx(4.377, abs=5e-4)
    assert of_sum.value == pytest.approx(2.943, abs=5e-4)
    assert stated.evidence is Evidence.UPPER_BOUND


def test_a_bound_on_layers_counts_for_the_client() -> None:
    mechanism = found(FedSGD(), ClipPerLayer(0.5), GaussianNoise(std=0.1))
    assert isinstance(mechanism, GaussianMechanism)
    assert mechanism.sensitivity == pytest.approx(0.5 * 2**0.5)


@dataclass(frozen=True)
class Unbounded(ExampleDefense):
    """Noise without a clip."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    closes: ClassVar[bool] = True

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(gradients)

    def law(self, shapes: Mapping[str, Tensor], examples: int) -> DiagonalGaussian:
        return DiagonalGaussian(std=dict.fromkeys(shapes, 0.1))


@pytest.mark.parametrize(
    ("protocol", "defenses", "reason"),
    [
        (FedSGD(), [], "nothing bounds or hides"),
        (FedSGD(), [Clip(1.0)], "Clip: heuristic, no noise with a guarantee"),
        (FedSGD(), [ClipPerExample(1.0)], "ClipPerExample: heuristic, no noise"),
        (FedSGD(), [GaussianNoise(std=0.1)], "no bound on the part of one example or client comes right before"),
        (FedSGD(), [ClipPerExample(1.0), Prune(0.5), GaussianNoise(std=0.1)], "no bound .* right before"),
        (FedSGD(), [ClipPerExample(1.0), LaplaceNoise(scale=0.1)], "no noise with a guarantee"),
        (FedSGD(), [ClipPerExample(1.0), LayerNoise(std={"0": 0.1})], "some layers .* no noise"),
        (FedSGD(), [ClipPerExample(1.0), GaussianNoise(std=0.1), SpectralNoise(norm=0.1)], "looks at the private batch"),
        (FedSGD(), [ON_SUM, SpectralNoise(norm=0.1)], "SpectralNoise looks at the private batch"),
        (FedSGD(), [ON_SUM, AdversarialPerturbation(classifier=nn.Identity())], "looks at the private batch"),
        (FedSGD(), [Unbounded()], "adds noise and bounds no example's gradient"),
        (FedAvg(learning_rate=0.1, epochs=2), [ClipPerExample(1.0), GaussianNoise(std=0.1)], "after the local steps of FedAvg"),
        (SecureAggregation(protocol=FedSGD(), examples=[4, 5]), [Clip(1.0), GaussianNoise(std=0.1)], "the sum over clients"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_has_no_guarantee_says_why(protocol: Protocol, defenses: list[Defense], reason: str) -> None:
    gap = found(protocol, *defenses)
    assert isinstance(gap, NoGuarantee)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(gap.reason)


@pytest.mark.parametrize(
    ("protocol", "defenses"),
    [
        (FedSGD(), [ON_SUM]),
        (FedSGD(), [PER_EXAMPLE]),
        (FedSGD(), [PUBLIC]),
        (FedSGD(), [ClipPerExample(0.5), GaussianNoise(std=0.1)]),
        (FedAvg(learning_rate=0.1), [ClipPerExample(0.5), GaussianNoise(std=0.1)]),
        (SecureAggregation(protocol=FedSGD(), examples=[1, 3]), [ClipPerExample(0.5), GaussianNoise(std=0.1)]),
    ],
    ids=repr,
)
def test_the_worst_neighbor_moves_the_update_by_as_much_noise_as_is_stated(
    protocol: Protocol, defenses: list[Defense]
) -> None:
    """A far too large example against none in its place: the distance in units of the noise is 1/multiplier."""
    known, release, data = objective(), Release(protocol, defenses), batch(4)
    mechanism, law = mechanism_of(release, known, 4), release.noise(known, examples=4)
    assert isinstance(mechanism, GaussianMechanism)
    assert isinstance(law, DiagonalGaussian)
    (std,) = set(law.std.values())
    scale = getattr(protocol, "learning_rate", 1.0) / (16 if defenses == [PUBLIC] else 4)
    clipped = []
    for place in range(4):
        gradient = known.flatten(known.gradient(known.params, data.example(place)))
        clipped.append(scale * gradient * min(1.0, 0.5 / float(gradient.norm())))
    moves = []
    for place in range(4):
        loud = data.inputs.clone()
        loud[place] *= 1e4
        with_it = known.flatten(release.mean(known, known.params, data.with_inputs(loud)))
        without = torch.stack([row for other, row in enumerate(clipped) if other != place]).sum(dim=0)
        moves.append(float((with_it - without).norm()) / std)
    assert max(moves) == pytest.approx(1 / mechanism.noise_multiplier, rel=1e-6)


@dataclass(frozen=True)
class ClipAndNoise(Clip):
    """A bound and noise in one defense, labeled formal."""

    guarantee: ClassVar[Guarantee] = Guarantee.FORMAL
    std: float = 0.1

    def noise(self, shapes: Mapping[str, Tensor]) -> DiagonalGaussian | None:
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.std)) if self.std else None


def test_a_bound_and_noise_in_one_defense_hide_a_client() -> None:
    together = found(FedSGD(), ClipAndNoise(0.5))
    assert together == found(FedSGD(), Clip(0.5), GaussianNoise(std=0.1))
    assert isinstance(together, GaussianMechanism)
    assert together.unit is Unit.CLIENT
    more = found(FedSGD(), ClipAndNoise(0.5), GaussianNoise(std=0.1), Prune(0.5))
    assert isinstance(more, GaussianMechanism)
    assert more.std == pytest.approx(0.1 * 2**0.5)


def test_a_formal_label_alone_is_no_epsilon_and_the_reason_says_so() -> None:
    gap = found(FedSGD(), ClipAndNoise(0.5, std=0.0))
    assert isinstance(gap, NoGuarantee)
    assert "labeled formal by ClipAndNoise, which is not enough for an epsilon" in gap.reason


@pytest.mark.parametrize(
    ("defenses", "expected"),
    [
        ([], ""),
        ([ON_SUM], "formal, hides an example"),
        ([ON_SUM, Prune(0.9), Sign()], "formal, hides an example"),
        ([ClipPerExample(0.5), GaussianNoise(std=0.1)], "formal, hides an example"),
        ([Clip(0.5), GaussianNoise(std=0.1)], "formal, hides a client"),
        ([GaussianNoise(std=0.1), Clip(0.5)], "heuristic"),
        ([GaussianNoise(std=0.1)], "heuristic"),
        ([ON_SUM, SpectralNoise(norm=0.1)], "heuristic"),
        ([ON_SUM, AdversarialPerturbation(classifier=nn.Identity())], "heuristic"),
        ([Prune(0.9)], "heuristic"),
    ],
    ids=repr,
)
def test_a_release_is_formal_or_not_as_a_whole(defenses: list[Defense], expected: str) -> None:
    release = Release(FedSGD(), defenses)
    assert guarantee_of(release, objective(), 9) == expected
    has_epsilon = isinstance(mechanism_of(release, objective(), 9), GaussianMechanism)
    assert has_epsilon == expected.startswith("formal")
