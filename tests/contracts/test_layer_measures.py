"""What every exported measure of gradients keeps; a new one is found by itself and needs one example below."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any

import pytest
import torch

import gradleak
import gradleak.risk
from gradleak.results import Citation, InputError, Outcome, Score
from gradleak.risk import MINE, GradientMeasure, NeighborInformation, SubspaceDistance

EXAMPLES: dict[type[GradientMeasure], GradientMeasure] = {
    MINE: MINE(hidden=8, steps=20, batch_size=16),
    NeighborInformation: NeighborInformation(),
    SubspaceDistance: SubspaceDistance(dimension=2, permutations=19),
}
EXPORTED: list[Any] = [
    item
    for item in vars(gradleak.risk).values()
    if inspect.isclass(item) and issubclass(item, GradientMeasure) and item is not GradientMeasure
]


def _layers() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(60) % 2
    rows = torch.randn(60, 12, generator=generator)
    return {"first": rows, "last": rows[:, :6] + 3 * target[:, None]}, target


@pytest.mark.parametrize("measure", EXPORTED)
class TestGradientMeasure:
    def test_is_documented_cited_and_frozen(self, measure: type[GradientMeasure]) -> None:
        doc = inspect.getdoc(measure) or ""
        assert all(part in doc for part in ("**Assumptions**", "**Cost**", "**Source**"))
        assert measure.summary
        assert measure.citations
        assert all(isinstance(citation, Citation) for citation in measure.citations)
        assert measure.__call__ is GradientMeasure.__call__
        assert getattr(gradleak.risk, measure.__name__) is measure
        for field in dataclasses.fields(measure):
            assert field.kw_only
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(EXAMPLES[measure], field.name, None)

    def test_scores_every_layer_for_a_record_and_twice_the_same(self, measure: type[GradientMeasure]) -> None:
        gradients, target = _layers()
        before = {layer: matrix.clone() for layer, matrix in gradients.items()}
        scores = EXAMPLES[measure](gradients, target)
        assert list(scores) == ["first", "last"]
        for score in scores.values():
            assert score.name == measure.name
            assert score.value is not None
            assert Score.from_dict(json.loads(json.dumps(score.to_dict(), allow_nan=False))) == score
        assert EXAMPLES[measure](gradients, target, generator=torch.Generator().manual_seed(0)) == scores
        assert all(torch.equal(before[layer], matrix) for layer, matrix in gradients.items())

    def test_does_not_depend_on_the_other_layers(self, measure: type[GradientMeasure]) -> None:
        gradients, target = _layers()
        assert (
            EXAMPLES[measure]({"last": gradients["last"]}, target)["last"]
            == EXAMPLES[measure](gradients, target)["last"]
        )

    def test_says_in_a_word_what_has_no_number(self, measure: type[GradientMeasure]) -> None:
        gradients, target = _layers()
        gradients["first"][3, 2] = torch.nan
        gradients["last"] = torch.zeros(60, 6)
        scores = EXAMPLES[measure](gradients, target)
        assert [score.value for score in scores.values()] == [None, None]
        assert [score.outcome for score in scores.values()] == [Outcome.NOT_FINITE, Outcome.NO_SIGNAL]

    def test_refuses_rows_that_do_not_match(self, measure: type[GradientMeasure]) -> None:
        gradients, target = _layers()
        with pytest.raises(InputError, match=r"gradients\['first'\]: expected 59 rows"):
            EXAMPLES[measure](gradients, target[:59])
        with pytest.raises(InputError, match="without any"):
            EXAMPLES[measure]({}, target)
        with pytest.raises(InputError, match="expected a real matrix"):
            EXAMPLES[measure]({"first": torch.zeros(60)}, target)
        with pytest.raises(InputError, match="target: expected a tensor"):
            EXAMPLES[measure](gradients, [0, 1] * 30)  # type: ignore[arg-type]
