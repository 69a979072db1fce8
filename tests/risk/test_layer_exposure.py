from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.attacks import SignRule, recover_labels
from gradleak.core import Batch, DiagonalGaussian, Domain, Exposure, HonestButCurious, Objective, Release
from gradleak.defenses import DPSGD, AdversarialPerturbation, GaussianNoise, LayerNoise
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import InputError, UnsupportedError
from gradleak.risk import (
    GaussianReconstructionError,
    InversionInfluence,
    Sensitivity,
    VisibleLayers,
    measure_visible,
    what_ifs,
)

DOMAIN = Domain.image(channels=1, height=4, width=4)


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Sigmoid(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3))
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model.double()


def exposure_of(release: Release | None = None, examples: int = 3) -> Exposure:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(examples, 1, 4, 4, generator=generator, dtype=torch.float64)
    batch = Batch(inputs, torch.arange(examples) % 3, DOMAIN)
    return Exposure(Objective.from_module(network()), batch, release or Release(FedSGD()))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.table(tokens).mean(dim=1))


class TestSets:
    def test_names_of_every_kind(self) -> None:
        objective = exposure_of().objective
        assert VisibleLayers.last_bias(objective, DOMAIN).names == ("5.bias",)
        assert VisibleLayers.last_layer(objective, DOMAIN).names == ("5.weight", "5.bias")
        assert VisibleLayers.biases(objective).names == ("1.bias", "3.bias", "5.bias")
        assert VisibleLayers.of(objective, "3", "1.bias").names == ("1.bias", "3.weight", "3.bias")
        assert VisibleLayers.hiding(objective, "1", "3.weight").names == ("3.bias", "5.weight", "5.bias")

    def test_all_but_the_embedding(self) -> None:
        objective = Objective.from_module(Text())
        assert VisibleLayers.all_but_embedding(objective).names == ("head.weight", "head.bias")
        with pytest.raises(InputError, match="expected a model that shares an embedding"):
            VisibleLayers.all_but_embedding(exposure_of().objective)

    def test_the_usual_sets_are_listed_once(self) -> None:
        found = what_ifs(exposure_of().objective, DOMAIN)
        assert list(found) == [
            "everything",
            "last bias",
            "last layer",
            "biases",
            "first layer in an enclave",
            "last layer in an enclave",
        ]
        sets = [one.names for one in found.values()]
        assert len(set(sets)) == len(sets)

    def test_refuses_unknown_names_and_nothing(self) -> None:
        objective = exposure_of().objective
        with pytest.raises(InputError, match=r"names '5\.bias_', no shared tensor or layer; is it '5\.bias'"):
            VisibleLayers.of(objective, "5.bias_")
        with pytest.raises(InputError, match="expected a tensor that stays visible, and all of them are hidden"):
            VisibleLayers.hiding(objective, "1", "3", "5")
        with pytest.raises(InputError, match=r"names '9\.weight', no shared tensor"):
            VisibleLayers(names=("9.weight",)).objective(objective)


class TestRelease:
    @pytest.mark.parametrize(
        "release",
        [
            Release(FedSGD()),
            Release(FedAvg(learning_rate=0.5, epochs=3, batch_size=2)),
            Release(FedSGD(), [DPSGD(clip_norm=0.1, noise_std=1.0, noise="sum")]),
        ],
        ids=["gradient", "local training", "clipped examples"],
    )
    def test_the_visible_part_is_cut_out_of_the_whole_update(self, release: Release) -> None:
        """What hiding leaves is what autograd, local training and clipping over all tensors make of these."""
        exposure = exposure_of(release)
        visible = VisibleLayers.of(exposure.objective, "3", "5.bias")
        whole = exposure.objective.unflatten(exposure.released_mean())
        part = visible.exposure(exposure)
        found = part.objective.unflatten(part.released_mean())
        assert list(found) == list(visible.names)
        for name in visible.names:
            torch.testing.assert_close(found[name], whole[name], rtol=1e-12, atol=1e-14)

    def test_an_update_keeps_the_visible_tensors_alone(self) -> None:
        exposure = exposure_of()
        update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
        visible = VisibleLayers.last_layer(exposure.objective, DOMAIN)
        part = visible.update(update)
        assert list(part.tensors) == ["5.weight", "5.bias"]
        assert torch.equal(part.tensors["5.bias"], update.tensors["5.bias"])
        assert part.provenance["visible"] == ["5.weight", "5.bias"]
        assert list(update.tensors) == list(exposure.objective.params)

    def test_refuses_a_defense_that_looks_at_the_batch_again(self) -> None:
        exposure = exposure_of(Release(FedSGD(), [AdversarialPerturbation(classifier=nn.Linear(146, 2))]))
        with pytest.raises(UnsupportedError, match="AdversarialPerturbation looks at the private batch"):
            VisibleLayers.biases(exposure.objective).exposure(exposure)

    def test_nothing_of_the_whole_exposure_changes(self) -> None:
        exposure = exposure_of()
        before = exposure.released_mean()
        VisibleLayers.biases(exposure.objective).exposure(exposure).released_mean()
        assert torch.equal(exposure.released_mean(), before)


class TestMeasures:
    def test_the_derivative_has_the_rows_of_what_is_visible(self) -> None:
        """The Frobenius norm of A is that of the rows that torch's own jacobian has for these tensors."""
        exposure = exposure_of(examples=1)
        rows = torch.autograd.functional.jacobian(exposure.mean, exposure.inputs)
        sizes = [tensor.numel() for tensor in exposure.objective.params.values()]
        by_name = dict(zip(exposure.objective.params, rows.split(sizes), strict=True))
        sets = what_ifs(exposure.objective, DOMAIN)
        profile = measure_visible(exposure, sets, Sensitivity())
        for label, one in sets.items():
            values = profile.scores[label].details["values"]
            assert values == pytest.approx({name: float(by_name[name].norm()) for name in one.names}, rel=1e-9)

    def test_the_last_bias_determines_fewer_directions_than_classes(self) -> None:
        """The gradient of the last bias is p − y, whose entries add up to 0: at most c − 1 directions of the input."""
        exposure = exposure_of(Release(FedSGD(), [GaussianNoise(std=0.01)]), examples=1)
        visible = VisibleLayers.last_bias(exposure.objective, DOMAIN)
        score = GaussianReconstructionError(std=0.01)(visible.exposure(exposure))
        assert score.outcome.label == "not_identifiable"
        assert score.details["rank"] == 2
        assert score.details["null_dimension"] == 14

    def test_refuses_a_measure_that_needs_a_perturbation(self) -> None:
        exposure = exposure_of()
        with pytest.raises(InputError, match="expected a measure that needs no perturbation"):
            measure_visible(exposure, what_ifs(exposure.objective, DOMAIN), InversionInfluence())


class TestAttacks:
    def test_the_last_bias_alone_gives_the_label_away(self) -> None:
        """U69: p − y is negative at the true class alone, so that nobody is safe who shows the last bias."""
        exposure = exposure_of(examples=1)
        known = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
        update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
        visible = VisibleLayers.last_bias(exposure.objective, DOMAIN)
        found = SignRule()(visible.update(update), visible.knowledge(known))
        assert found.targets is not None
        assert found.targets.tolist() == exposure.batch.targets.tolist()

    def test_a_hidden_head_leaves_no_label_to_read(self) -> None:
        exposure = exposure_of(examples=1)
        known = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
        update = exposure.release(exposure.objective, exposure.batch, torch.Generator().manual_seed(0))
        visible = VisibleLayers.hiding(exposure.objective, "5")
        found = recover_labels(visible.update(update), visible.knowledge(known))
        assert found.targets is None

    def test_the_knowledge_says_what_is_shared(self) -> None:
        exposure = exposure_of()
        known = HonestButCurious().disclose(exposure.objective, exposure.release, exposure.batch)
        card = VisibleLayers.biases(exposure.objective).knowledge(known).card()
        assert list(card["objective"]["shared"]) == ["1.bias", "3.bias", "5.bias"]
        assert "1.weight" in card["objective"]["frozen"]


def test_noise_by_layer_says_nothing_of_layers_that_are_hidden() -> None:
    whole = exposure_of(Release(FedSGD(), [LayerNoise(std={"1": 0.5, "5": 0.25})]))
    head = VisibleLayers.of(whole.objective, "5")
    assert head.exposure(whole).noise == DiagonalGaussian(std={"5.weight": 0.25, "5.bias": 0.25})
    known = head.knowledge(HonestButCurious().disclose(whole.objective, whole.release, whole.batch))
    assert known.defenses == (LayerNoise(std={"5": 0.25}),)
    # A name that no layer has is refused as before.
    wrong = exposure_of(Release(FedSGD(), [LayerNoise(std={"9": 0.5})]))
    with pytest.raises(InputError, match="'9'"):
        _ = head.exposure(wrong).noise
