"""TabLeak and its parts: rows of a table as unknowns, starts pooled by cell, and what the attacker holds certain."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import gradleak as gl
from gradleak.attacks import Inversion, PoolBy, Pooling, Space, TabLeak, TableRows
from gradleak.core import Batch, Domain, DomainKind
from gradleak.models import mlp
from gradleak.results import InputError, Outcome, UnsupportedError
from gradleak.scoring import score_cells
from tests.attacks.setting import rows, setting, small_net

# Age in years, a ward of three, hours as the model sees them normalized, sex.
TABLE = Domain(
    shape=(7,),
    low=(16.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    high=(90.0, 1.0, 1.0, 1.0, 99.0, 1.0, 1.0),
    kind=DomainKind.TABULAR,
    mean=(50.0, 0.0, 0.0, 0.0, 40.0, 0.0, 0.0),
    std=(20.0, 1.0, 1.0, 1.0, 10.0, 1.0, 1.0),
    columns=(1, 3, 1, 2),
)
SPACE = Space(domain=TABLE, batch_size=2, targets=None, dtype=torch.float64, device=torch.device("cpu"))


def table_rows(*targets: int, seed: int = 0) -> Batch:
    """Rows of the table with these labels."""
    generator = torch.Generator().manual_seed(seed)
    pixels = TABLE.decided(torch.rand(len(targets), 7, generator=generator, dtype=torch.float64))
    return Batch(TABLE.from_pixels(pixels), torch.tensor(targets), TABLE)


def test_a_category_is_a_softmax_and_a_number_a_sigmoid_within_its_range() -> None:
    flat = TableRows().initialize(SPACE, 3, torch.Generator().manual_seed(0))
    assert flat.shape == (3, 14)
    assert float(flat.abs().max()) <= 1
    found = TABLE.to_pixels(TableRows().inputs(SPACE, 5 * flat[0], None)).numpy()
    z = (5 * flat[0]).reshape(2, 7).numpy()
    assert found[:, [0, 4]] == pytest.approx(scipy.special.expit(z[:, [0, 4]]))
    assert found[:, 1:4] == pytest.approx(scipy.special.softmax(z[:, 1:4], axis=1))
    assert found[:, 5:] == pytest.approx(scipy.special.softmax(z[:, 5:], axis=1))


def test_encoding_rows_and_decoding_them_gives_the_rows() -> None:
    inputs = TableRows().inputs(SPACE, torch.randn(14, generator=torch.Generator().manual_seed(1)).double(), None)
    again = TableRows().inputs(SPACE, TableRows().encode(SPACE, inputs, torch.zeros(2)), None)
    torch.testing.assert_close(again, inputs)
    # Rows themselves lie on the border, 1e-6 away.
    truth = table_rows(0, 1)
    near = TableRows().inputs(SPACE, TableRows().encode(SPACE, truth.inputs, truth.targets), None)
    assert float((TABLE.to_pixels(near) - TABLE.to_pixels(truth.inputs)).abs().max()) < 1e-5


@pytest.mark.parametrize("by", PoolBy)
def test_starts_are_aligned_like_the_cheapest_of_all_orders_and_pooled_entry_by_entry(by: PoolBy) -> None:
    generator = torch.Generator().manual_seed(2)
    base = torch.rand(4, 7, generator=generator, dtype=torch.float64)
    # L1 distances of unrelated rows tie now and then.
    orders = [torch.randperm(4, generator=generator) for _ in range(5)]
    pixels = torch.stack([base[order] for order in orders]) + 0.2 * torch.rand(5, 4, 7, generator=generator)
    widths = (1, 3, 1, 2)
    weights = np.concatenate([[1.0] if width == 1 else [0.5] * width for width in widths])
    aligned = []
    for start in pixels.numpy():
        costs = {
            order: (np.abs(start[list(order)] - pixels[1].numpy()) * weights).sum()
            for order in itertools.permutations(range(4))
        }
        aligned.append(start[list(min(costs, key=lambda order: costs[order]))])
    stacked = np.stack(aligned)
    middle = np.median(stacked, axis=0) if by is PoolBy.MEDIAN else stacked.mean(axis=0)
    found = Pooling(by=by)(TABLE, pixels, 1, [[0, 1, 2, 3]])
    assert found.pixels[:, [0, 4]].numpy() == pytest.approx(middle[:, [0, 4]])
    assert found.pixels[:, 1:4].argmax(dim=1).tolist() == middle[:, 1:4].argmax(axis=1).tolist()
    assert found.pixels[:, 1:4].sum(dim=1).tolist() == [1.0] * 4
    ward = [scipy.stats.entropy(row) / math.log(3) for row in middle[:, 1:4]]
    assert [row[1] for row in found.entropies] == pytest.approx(ward)
    age = [scipy.stats.norm(scale=std).entropy() for std in stacked[:, :, 0].std(axis=0, ddof=1)]
    assert [row[0] for row in found.entropies] == pytest.approx(age)


def test_rows_that_labels_tell_apart_are_never_exchanged() -> None:
    one = torch.rand(2, 7, generator=torch.Generator().manual_seed(3)).double()
    starts = torch.stack([one, one.flip(0)])
    assert torch.equal(Pooling(by="mean")(TABLE, starts, 0, [[0, 1]]).pixels[:, 0], one[:, 0])
    kept = Pooling(by="mean")(TABLE, starts, 0, [[0], [1]]).pixels[:, 0]
    torch.testing.assert_close(kept, one[:, 0].mean().expand(2))


def test_starts_that_agree_are_certain_and_one_start_alone_has_no_spread() -> None:
    same = TABLE.decided(torch.rand(1, 2, 7, generator=torch.Generator().manual_seed(4)).double())
    for starts in (same, same.expand(4, -1, -1)):
        found = Pooling()(TABLE, starts, 0, [[0, 1]])
        assert all(row[1] == row[3] == 0 for row in found.entropies)
        assert all(row[0] == pytest.approx(0.5 + 0.5 * math.log(2 * math.pi * 1e-12)) for row in found.entropies)


def test_a_batch_of_rows_is_rebuilt_cell_by_cell() -> None:
    plain = Domain(shape=(7,), kind="tabular", columns=(1, 3, 1, 2))
    pixels = torch.rand(2, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    truth = Batch(plain.decided(pixels), torch.tensor([0, 1]), plain)
    model = mlp(features=7, hidden=(32,), classes=2, activation="tanh", generator=torch.Generator().manual_seed(0))
    case = setting(model, truth, dtype=torch.float64)
    attack = TabLeak(iterations=120, restarts=3)
    found = attack(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))
    assert score_cells(found, case.truth).details["mean"] == 1.0
    assert torch.equal(plain.decided(found.inputs), found.inputs)
    assert found.plain_gradients == attack.estimate(case.knowledge)
    assert found.loss >= min(found.details["start_losses"])
    assert [len(row) for row in found.details["entropies"]] == [4, 4]
    assert all(0 <= row[1] <= 1 for row in found.details["entropies"])


def test_where_columns_are_not_stated_every_entry_is_a_number() -> None:
    case = setting(small_net(), rows(1), dtype=torch.float32)
    found = TabLeak(iterations=4, restarts=2)(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))
    assert "the domain states no columns" in found.note
    assert found.outcome is Outcome.BUDGET_SPENT


def test_a_start_at_round_off_is_the_claim_alone() -> None:
    case = setting(small_net(), rows(1), dtype=torch.float32)
    settings = TabLeak(iterations=4, restarts=3).compose()
    found = settings(case.update, case.knowledge, generator=torch.Generator().manual_seed(1))
    alone = Inversion(matching=settings.matching, variables=settings.variables, stages=settings.stages, restarts=3)(
        case.update, case.knowledge, generator=torch.Generator().manual_seed(1)
    )
    # Without round-off the middle of three starts is another row than the best one.
    assert not torch.equal(found.inputs, alone.inputs)
    assert found.details["start_losses"] == alone.details["start_losses"]


def test_images_are_refused_and_columns_that_make_no_row_too() -> None:
    image = Domain.image(channels=1, height=3, width=4)
    truth = Batch(torch.rand(1, 1, 3, 4), torch.tensor([1]), image)
    model = torch.nn.Sequential(torch.nn.Flatten(), small_net())
    case = setting(model, truth, dtype=torch.float32)
    with pytest.raises(UnsupportedError, match="rows of a table, and the examples are image"):
        TabLeak(iterations=2)(case.update, case.knowledge, generator=torch.Generator())
    with pytest.raises(InputError, match=r"Domain\.columns: expected the entries of each column"):
        Domain(shape=(7,), kind="tabular", columns=(1, 3))
    with pytest.raises(InputError, match=r"Domain\.columns"):
        Domain(shape=(3, 4, 4), columns=(3,))
    assert gl.Domain(shape=(3,), kind="tabular", columns=[1, 2]).columns == (1, 2)
