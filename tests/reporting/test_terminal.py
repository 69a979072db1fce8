from __future__ import annotations

import pytest
from tests.reporting import toy_kind

from gradleak.reporting.page import Report, assemble
from gradleak.reporting.terminal import render_terminal, verdict_lines

pytestmark = pytest.mark.usefixtures("toy")


def test_scenarios_and_run_have_a_line_each() -> None:
    assert verdict_lines(toy_kind.record()) == [
        "b: bounded (dp_bound) By its noise.",
        "a: leaks (dead_units_found) A unit of a/example 0 is dead.",
        "run: leaks (dead_units_found) A unit of a/example 0 is dead.",
    ]


def test_the_first_screen_is_told(report: Report) -> None:
    text = render_terminal(report).replace("\N{NO-BREAK SPACE}", " ")
    assert "\nrun: leaks (dead_units_found) A unit of a/example 0 is dead.\n" in text
    assert "  Largest share: 25 % [exact] (of a layer)\n" in text
    assert "The claim is broken." in text
    assert "\nWhat to do next. Do not share" in text
    assert text.endswith('stand under "What may I ship?" in the report.')


def test_control_characters_of_a_record_are_not_obeyed() -> None:
    record = toy_kind.record(toy_kind.found(note="a\x1b[31m\x07b"), name="x\x1b]0;y")
    assert "\x1b" not in render_terminal(assemble(record))
    assert "\x07" not in render_terminal(assemble(record))
    hostile = "\n".join([*verdict_lines(toy_kind.hostile()), render_terminal(assemble(toy_kind.hostile()))])
    assert "\n# e" not in hostile
