"""The gate tells sentences apart whose updates agree as a whole, and refuses no honest update for a single tensor."""

from __future__ import annotations

import pytest
import torch
from tests.tokens import TinyTransformer, sentences, tiny
from torch import nn

from gradleak.audits.released import GateStatus, check_update
from gradleak.audits.released.gate import GateResult
from gradleak.core import Batch, Domain, Objective, Release, Update
from gradleak.defenses import Clip, GaussianNoise, Prune, Quantize, Sign
from gradleak.protocols import FedAvg, FedSGD, LocalAdam

PLAIN = Release(FedSGD())
MINE, OTHER = sentences(7, seed=0), sentences(7, seed=1)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def text_model() -> TinyTransformer:
    """A model whose head is nearly all of the update: the first place hardly sees the other words."""
    model = tiny()
    with torch.no_grad():
        model.value.weight *= 1e-2
        model.mix.weight *= 0.1
    return model


def scaled(update: Update, factor: float) -> Update:
    return Update(tensors={name: factor * tensor for name, tensor in update.tensors.items()}, kind=update.kind)


def checked(sent: Update, release: Release = PLAIN, batch: Batch = MINE) -> GateResult:
    return check_update(Objective.from_module(text_model()), release, batch, sent)


def sent_by(batch: Batch, release: Release = PLAIN) -> Update:
    return release(Objective.from_module(text_model()), batch, generator(3))


@pytest.mark.parametrize(
    "release",
    [PLAIN, Release(FedSGD(), [Clip(0.1)]), Release(FedAvg(learning_rate=0.1, epochs=2))],
    ids=["gradient", "clip", "local training"],
)
def test_another_sentence_is_told_by_the_rows_of_its_words(release: Release) -> None:
    result = checked(sent_by(OTHER, release), release)
    assert result.cosine is not None
    assert result.cosine > 0.999
    assert result.scale == pytest.approx(1.0, abs=0.01)
    assert result.status is GateStatus.INCONSISTENT
    apart = sorted(set(OTHER.inputs[0].tolist()) - set(MINE.inputs[0].tolist()))
    rows = ", ".join(map(str, apart))
    assert result.causes[0].startswith(
        f"other words than in the stated batch: rows {rows} of the word table words.weight are not zero"
    )
    assert result.causes[1].startswith("tensors that do not agree: ")
    assert len(result.causes) == 2
    assert checked(sent_by(MINE, release), release).status is GateStatus.CONSISTENT


@pytest.mark.parametrize("defense", [Prune(0.5), Quantize(bits=16, stochastic=False)], ids=["prune", "quantize"])
def test_another_sentence_is_told_by_its_tensors_where_entries_are_set_to_zero(defense: Prune | Quantize) -> None:
    release = Release(FedSGD(), [defense])
    result = checked(sent_by(OTHER, release), release)
    assert result.status is GateStatus.INCONSISTENT
    assert result.causes[0].startswith("tensors that do not agree: ")
    assert checked(sent_by(MINE, release), release).status is GateStatus.CONSISTENT


def test_another_sentence_is_told_under_noise_that_leaves_its_words_standing() -> None:
    quiet, loud = (Release(FedSGD(), [GaussianNoise(std=std)]) for std in (5e-6, 3.5e-3))
    result = checked(sent_by(OTHER, quiet), quiet)
    assert result.status is GateStatus.INCONSISTENT
    apart = ", ".join(map(str, sorted(set(OTHER.inputs[0].tolist()) ^ set(MINE.inputs[0].tolist()))))
    assert result.causes[0].startswith(f"other words than in the stated batch: rows {apart}")
    result = checked(sent_by(OTHER, loud), loud)
    assert result.chi_square_z is not None
    assert abs(result.chi_square_z) < 5
    assert result.status is GateStatus.INCONSISTENT
    assert result.causes[0].startswith("tensors that do not agree: value.weight")
    for release in (quiet, loud):
        assert checked(sent_by(MINE, release), release).status is GateStatus.CONSISTENT


def test_a_factor_is_named_alone() -> None:
    (cause,) = checked(scaled(sent_by(MINE), 2.0)).causes
    assert cause.startswith("the direction agrees, but the update is 2 times as long")


@pytest.mark.parametrize("name", ["query.weight", "key.weight"])
def test_a_small_weight_that_is_transposed_is_named_alone(name: str) -> None:
    sent = sent_by(MINE)
    turned = Update(tensors={key: one.T.clone() if key == name else one for key, one in sent.tensors.items()})
    result = checked(turned)
    assert result.status is GateStatus.INCONSISTENT
    (cause,) = result.causes
    assert cause.startswith(f"{name} is transposed (cosine 1.0000 after turning it, ")


def test_another_sentence_of_the_other_class_is_no_reversed_sign() -> None:
    other = Batch(OTHER.inputs, 1 - OTHER.targets, OTHER.domain)
    result = checked(sent_by(other))
    assert result.cosine is not None
    assert result.cosine < -0.9
    assert result.status is GateStatus.INCONSISTENT
    assert "other words than in the stated batch" in result.causes[0]
    assert not any("the sign is reversed" in cause for cause in result.causes)
    (cause,) = checked(scaled(sent_by(MINE), -1.0)).causes
    assert cause.startswith("the sign is reversed")


def pictures() -> tuple[nn.Module, Batch]:
    """BatchNorm behind a bias, whose true gradient is zero in train mode, and dropout."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(384, 5)
    )
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            if parameter.dim() > 1:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator(place)))
    inputs = torch.rand((4, 3, 8, 8), generator=generator(1))
    return model, Batch(inputs, torch.tensor([0, 1, 2, 4]), Domain.image(channels=3, height=8, width=8))


@pytest.mark.parametrize("auditor", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "release",
    [
        PLAIN,
        Release(FedSGD(), [Clip(1e-3)]),
        Release(FedSGD(), [Prune(0.9)]),
        Release(FedSGD(), [Quantize(bits=8, stochastic=False)]),
        Release(FedSGD(), [GaussianNoise(std=1e-3)]),
        Release(FedAvg(learning_rate=0.05, epochs=2, weight_decay=0.01, momentum=0.5)),
        Release(LocalAdam(learning_rate=1e-3, epochs=2)),
    ],
    ids=["plain", "clip", "prune", "quantize", "noise", "local", "adam"],
)
def test_honest_updates_of_other_formats_stay_consistent(release: Release, auditor: torch.dtype) -> None:
    model, batch = pictures()
    clients = ((Objective.from_module(text_model()), MINE), (Objective.from_module(model, mode="train"), batch))
    for believed, private in clients:
        for made_in in (torch.float32, torch.float64):
            update = release(believed.to(made_in), private.to(made_in), generator(5))
            for stored in (made_in, torch.float16):
                tensors = {name: tensor.to(stored) for name, tensor in update.tensors.items()}
                sent = Update(tensors=tensors, kind=update.kind)
                result = check_update(believed.to(auditor), release, private, sent)
                assert result.status is GateStatus.CONSISTENT, (made_in, stored, result)


def test_honest_signs_and_shared_tables_stay_consistent() -> None:
    sign = Release(FedSGD(), [Sign()])
    assert checked(sent_by(MINE, sign), sign).status is GateStatus.CONSISTENT
    tied, batch = Objective.from_module(tiny(classes=None), loss="masked_lm"), sentences(8, language=True)
    sent = PLAIN(tied.to(torch.float64), batch, generator())
    assert check_update(tied, PLAIN, batch, sent).status is GateStatus.CONSISTENT
