"""Spots: what is drawn, what is left out, and which axes it stands on."""

from __future__ import annotations

import re

from studies.spots import spots


def test_every_series_has_its_place_in_the_legend_and_intervals_their_lines() -> None:
    panels = {
        "one": {"first": [(1.0, 0.5, 0.25, 0.75), (2.0, None, None, None)]},
        "two": {"second": [(1.0, 0.5, None, None)]},
    }
    svg = spots(panels, x="k", y="score", title="Scores", description="What it shows.", beside=0.1)
    assert "<desc" in svg
    assert "What it shows." in svg
    assert [name for name in ("first", "second") if re.search(rf">{name}</text>", svg)] == ["first", "second"]


def test_what_is_not_positive_is_left_out_of_a_logarithmic_axis() -> None:
    panels = {"": {"errors": [(0.1, 0.1, None, None), (0.2, 0.0, None, None), (0.4, 0.4, None, None)]}}
    steep = spots(panels, x="bound", y="error", title="Errors", description="-", steep=True)
    flat = spots(panels, x="bound", y="error", title="Errors", description="-")
    # A marker that is placed is a "use" of it.
    assert [_markers(svg) for svg in (steep, flat)] == [2, 3]


def test_a_dot_on_the_diagonal_has_its_place_on_both_axes() -> None:
    panels = {"": {"errors": [(0.01, 0.01, None, None), (1.0, 1.0, None, None)]}}
    svg = spots(panels, x="bound", y="error", title="Errors", description="-", diagonal=True)
    dots = [
        tuple(map(float, place)) for place in re.findall(r'<use [^>]*?x="([0-9.]+)" y="([0-9.]+)"[^>]*#0072b2', svg)
    ]
    (line,) = re.findall(r'd="M ([0-9.]+) ([0-9.]+) \nL ([0-9.]+) ([0-9.]+) \n"[^>]*dasharray: 2,3', svg)
    ends = [tuple(map(float, line[:2])), tuple(map(float, line[2:]))]
    assert [end for end in ends if end in dots] == ends


def _markers(svg: str) -> int:
    # One of them is in the legend.
    return len(re.findall(r"<use [^>]*#0072b2", svg)) - 1
