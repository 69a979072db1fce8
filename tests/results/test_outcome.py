from __future__ import annotations

import pytest

from gradleak.results import Outcome


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_carries_explanation_and_remedy_and_survives_its_label(outcome: Outcome) -> None:
    assert outcome.explanation.endswith(".")
    assert outcome.remedy.endswith(".")
    assert outcome.label == outcome.name.lower()
    assert Outcome.from_label(outcome.label) is outcome


def test_labels_are_unique_and_unknown_ones_refused() -> None:
    assert len({outcome.label for outcome in Outcome}) == len(Outcome)
    # Members with equal payloads would become aliases of each other.
    assert len(Outcome.__members__) == len(list(Outcome))
    with pytest.raises(KeyError):
        Outcome.from_label("safe")


def test_no_outcome_reads_as_safe() -> None:
    assert not any("safe" in outcome.label for outcome in Outcome)
    assert Outcome.NOT_INFORMATIVE.has_value is False
    assert Outcome.BUDGET_SPENT.has_value is True
    assert Outcome.NOT_IDENTIFIABLE.has_value is None
