from __future__ import annotations

import pytest
import torch

from gradleak.models import transformer
from gradleak.results import InputError

IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
SEEN = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("classes", [3, 0])
def test_padding_does_not_reach_a_sentence(causal: bool, classes: int) -> None:
    model = transformer(causal=causal, classes=classes, std=0.3).double()
    padded = model(IDS, SEEN)
    alone = model(IDS[1:, :3])
    torch.testing.assert_close(padded[1] if classes else padded[1, :3], alone[0])
    assert padded.shape == ((2, 3) if classes else (2, 5, 200))


def test_a_decoder_sees_no_later_token_and_an_encoder_does() -> None:
    later = IDS.clone()
    later[:, 3] = 7
    for causal in (True, False):
        model = transformer(causal=causal, classes=0, std=0.3).double()
        same = torch.equal(model(IDS)[:, :3], model(later)[:, :3])
        assert same is causal


def test_a_tied_head_is_the_table_and_the_same_seed_gives_the_same_weights() -> None:
    model, twin = (transformer(classes=0, tied=True) for _ in range(2))
    assert model.head.weight is model.word.weight
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert float(model.word.weight.detach().std()) == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize("wrong", [{"width": 30}, {"classes": -1}, {"tied": True}, {"std": 0.0}])
def test_refuses_sizes_that_do_not_fit(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match="heads that divide the width"):
        transformer(**wrong)
