"""Names of a record as pages print them."""

from __future__ import annotations

from gradleak.reporting.context import Context
from gradleak.results import Record, Subject, UnknownFinding


def test_a_verdict_calls_a_batch_what_the_tables_call_it() -> None:
    batch = Subject(noun="batch", name="1")
    attacked = UnknownFinding(kind="left", item="a/example 1", audit="release", scenario="a", subject=batch)
    context = Context(record=Record.of([attacked]))
    assert context.printed("Worst, a/example 1: gn rebuilt an example.") == "Worst, a/batch 1: gn rebuilt an example."
    assert context.printed("Worst, a/example 0, one example.") == "Worst, a/example 0, one example."
    assert context.title(attacked) == "a/batch 1"
