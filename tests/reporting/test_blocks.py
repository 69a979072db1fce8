from __future__ import annotations

import pytest

from gradleak.reporting.blocks import Badge, Span, as_is, pieces, run, spans
from gradleak.reporting.numerals import Quantity
from gradleak.results import Evidence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a **b c** d", [Span("a "), Span("b c", "strong"), Span(" d")]),
        ("`a_b` is *so*.", [Span("a_b", "code"), Span(" is "), Span("so", "em"), Span(".")]),
        ("(**ok**)", [Span("("), Span("ok", "strong"), Span(")")]),
        ("**name**: note", [Span("name", "strong"), Span(": note")]),
        ("layer.*.weight, *.bias", [Span("layer.*.weight, *.bias")]),
        ("2 * 3 * 4", [Span("2 * 3 * 4")]),
        ("a*b*c", [Span("a*b*c")]),
        ("**never closed", [Span("**never closed")]),
        ("``", [Span("``")]),
        ("", []),
    ],
)
def test_marks_at_the_edges_of_words_are_read(text: str, expected: list[Span]) -> None:
    assert spans(text) == expected


@pytest.mark.parametrize("name", ["**x**", "*x*", "`x`", "a\\b", "\\*x\\*", "\\", "*" * 50, "x` **y"])
def test_names_of_a_record_stay_as_they_are_even_within_marks(name: str) -> None:
    def plain(text: str) -> str:
        return "".join(span.text for span in spans(text))

    assert plain(as_is(name)) == name
    assert {span.dress for span in spans(as_is(name))} == {""}
    assert plain(f"on **{as_is(name)}**: so") == f"on {name}: so"


def test_long_texts_without_an_end_are_read_in_no_time() -> None:
    text = "**a *b " * 5000
    assert "".join(span.text for span in spans(text)) == text


def test_pieces_stand_apart_but_for_punctuation() -> None:
    number = Quantity(value=0.5, text="0.5", evidence="attack")

    def show(piece: object) -> str:
        return {Quantity: "0.5", Badge: "[attack]"}.get(type(piece), str(piece))

    assert run(["between ", number, "and", number, ", or (", number, ")"], show) == "between 0.5 and 0.5, or (0.5)"
    assert run([number, Badge(Evidence.ATTACK), "."], show) == "0.5 [attack]."
    assert run("alone", show) == "alone"
    assert run(["", number, ""], show) == "0.5"
    assert pieces("") == []
    assert pieces(number) == [number]
