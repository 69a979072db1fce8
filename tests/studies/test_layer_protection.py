from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from gradleak.core import Batch
from gradleak.results import Evidence, InputError, Leakier, Score
from gradleak.risk import LayerProfile
from studies import LayerProtection, ProtectedSetting
from studies.layer_protection import Compared
from studies.layer_protection_cells import LEAST, NOTHING, OTHERS, PROFILE, SCATTERED, Chosen, telling_entries
from studies.summaries import student

SMALL = LayerProtection(draws=1, examples=2, profiled=1, iterations=2, seeds=2, batches=40, steps=20, hidden=(8,))


def _profile(**values: float) -> LayerProfile:
    scores = {
        name: Score(name="leak", value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ESTIMATE)
        for name, value in values.items()
    }
    return LayerProfile(measure="leak", scores=scores, groups={name: (f"{name}.weight",) for name in values})


def test_every_set_has_the_same_size_and_none_has_an_entry_of_the_profiles() -> None:
    params = {name: torch.zeros(size) for name, size in (("a.weight", 4), ("b.weight", 50), ("c.weight", 46))}
    chosen = Chosen.by(_profile(a=3.0, b=1.0, c=2.0), params, budget=0.1, draws=2, seed=0)
    assert chosen.order == ["a", "c", "b"]
    assert chosen.words() == "a, 13% of c"
    assert list(chosen.sets) == [PROFILE, LEAST, SCATTERED, f"{OTHERS} (1)", f"{OTHERS} (2)"]
    flat = {name: torch.cat(list(masks.values())) for name, masks in chosen.sets.items()}
    assert all(int(mask.sum()) == 10 for mask in flat.values())
    assert not any(bool((mask & flat[PROFILE]).any()) for name, mask in flat.items() if name != PROFILE)
    assert int(chosen.sets[LEAST]["b.weight"].sum()) == 10
    assert not chosen.split


def test_differences_are_paired_and_their_interval_is_students() -> None:
    values = {
        NOTHING: [9.0, 8.0, 9.5],
        PROFILE: [1.0, 2.0, 3.0],
        LEAST: [1.0, 2.0, 3.5],
        SCATTERED: [2.0, 2.5, None],
        f"{OTHERS} (1)": [4.0, 5.0, 7.0],
        f"{OTHERS} (2)": [6.0, 5.0, 5.0],
    }
    compared = Compared(setting="s", kind="hide", quantity="PSNR (dB)", pairs="images", values=values, beside=values)
    assert compared.of(OTHERS) == [5.0, 5.0, 6.0]
    gap = compared.gap(OTHERS)
    assert gap is not None
    oracle = stats.ttest_rel([5.0, 5.0, 6.0], [1.0, 2.0, 3.0]).confidence_interval(0.95)
    assert gap[0] == pytest.approx(10 / 3)
    assert gap[1] == pytest.approx((oracle.low, oracle.high))
    scattered = compared.gap(SCATTERED)
    assert scattered is not None
    assert scattered[2] == 2
    assert "helps against other layers (+3.33" in compared.sentence()
    assert "is not told apart against least leaky" in compared.sentence()
    assert student([1.0]) is None
    full = {name: [0.99, 1.0, 1.0] for name in values}
    ceiling = Compared(setting="s", kind="hide", quantity="AUROC", pairs="seeds", values=full, beside=full)
    assert "at its ceiling (0.997 at least)" in ceiling.sentence()
    assert "ceiling" not in compared.sentence()


def test_telling_entries_are_those_of_the_largest_welch_statistic() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients, values = torch.randn(40, 30, generator=generator), torch.arange(40) % 2
    gradients[:, 7] += 0.8 * values
    statistic = stats.ttest_ind(
        gradients[values == 0].numpy(), gradients[values == 1].numpy(), equal_var=False
    ).statistic
    gradients[:, 3] = values.float()  # constant in both groups
    gradients[:, 4] = 1.0
    statistic[3], statistic[4] = np.inf, 0.0
    expected = set(np.argsort(-np.abs(statistic))[:5].tolist())
    assert set(telling_entries(gradients, values, 5).nonzero()[:, 0].tolist()) == expected


@pytest.mark.slow
def test_the_census_runs_and_hides_nothing_where_nothing_is_protected() -> None:
    study = dataclasses.replace(SMALL, settings=(ProtectedSetting.CENSUS_ATTRIBUTE,))
    result = study.run(say=lambda _: None)
    values = {kind: result.details[f"census_attribute, {kind}"]["values"] for kind in ("hide", "noise, static")}
    assert values["hide"][NOTHING] == values["noise, static"][NOTHING]
    # The inputs hold the attribute, so that the first layer's gradient does.
    assert np.mean(values["hide"][NOTHING]) > 0.8
    assert len(result.findings) == 3 * 6
    assert all(finding.n == 2 for finding in result.findings)
    assert "entries are protected" in result.conclusion[0]


def test_images_are_kept_and_read_again(tmp_path: Path) -> None:
    said: list[str] = []
    study = dataclasses.replace(
        SMALL, settings=(ProtectedSetting.RELU_CONVNET,), shrink=4, cells=str(tmp_path / "cells.jsonl")
    )
    first = study.run(say=said.append)
    kept = (tmp_path / "cells.jsonl").read_text()
    assert len(kept.splitlines()) == 1 + 2 * 4 + 1  # the line of the record first
    again = study.run(say=said.append)
    assert (tmp_path / "cells.jsonl").read_text() == kept
    assert again.findings == first.findings
    assert first.tables[0].rows[0][:3] == ["relu_convnet", "hide", NOTHING]


def test_networks_of_images() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = Batch(torch.rand(2, 3, 32, 32, generator=generator), torch.tensor([3, 99]))
    for setting in (ProtectedSetting.LENET5, ProtectedSetting.RELU_CONVNET, ProtectedSetting.SIGMOID_LENET):
        assert setting.network(batch, 0)(batch.inputs).shape == (2, 100)
    gray = Batch(torch.rand(2, 1, 28, 28, generator=generator), torch.tensor([3, 9]))
    assert ProtectedSetting.SIGMOID_LENET.network(gray, 0)(gray.inputs).shape == (2, 10)
    with pytest.raises(InputError, match="a setting of images"):
        ProtectedSetting.CENSUS_PROPERTY.network(gray, 0)


@pytest.mark.parametrize(("field", "value"), [("budget", 0.6), ("examples", 1), ("noise", 0.0), ("draws", 0)], ids=str)
def test_refuses_numbers_out_of_range(field: str, value: float) -> None:
    with pytest.raises(InputError, match=field):
        dataclasses.replace(SMALL, **{field: value})
