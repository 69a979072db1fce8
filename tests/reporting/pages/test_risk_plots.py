"""Plots of closed-form risk."""

from __future__ import annotations

import re

import pytest
from tests.audits.released.evidence import release
from tests.reporting.pages.made_up_risk import context, digits, place
from tests.reporting.parsed import Page

from gradleak.reporting.blocks import Figure, Text
from gradleak.reporting.pages.risk import spectrum_plot
from gradleak.reporting.pages.risk.noise import noise_section
from gradleak.results import Finding
from gradleak.results.findings.risk import RiskFinding

SPECTRA = {f"example {place}": [2.0 + place, 1.0, 0.5] for place in range(6)}


def noise(sample: list[Finding]) -> str:
    """The drawing of the section on noise, "" where there is none."""
    section = noise_section([one for one in sample if isinstance(one, RiskFinding)], context(sample))
    return "".join(block.draw() for block in section.blocks if isinstance(block, Figure))


def spectrum(spectra: dict[str, list[float]]) -> str:
    return "".join(figure.draw() for figure in spectrum_plot(spectra))


@pytest.fixture(scope="module")
def sample() -> list[Finding]:
    return digits()


def test_plots_take_their_colors_from_the_page(sample: list[Finding]) -> None:
    for text in (noise(sample), spectrum(SPECTRA)):
        Page(text)
        bare = re.sub(r"var\(--[a-z0-9-]+, #[0-9a-f]+\)", "", text)
        assert re.findall(r"#[0-9a-f]{6}\b", bare) == []
        assert "currentColor" in text
        assert "<style" not in text
        assert "DejaVu" not in text


def test_plots_are_the_same_each_time_and_hold_no_date(sample: list[Finding]) -> None:
    for first, second in ((noise(sample), noise(sample)), (spectrum(SPECTRA), spectrum(SPECTRA))):
        assert first == second
        assert "<metadata" not in first
        assert re.search(r"20\d\d-\d\d", first) is None


def test_every_series_is_named(sample: list[Finding]) -> None:
    text = noise(sample)
    for name in ("predicted by I²F", "perfect attacker", "real attack", "lower bound", "blind guess"):
        assert name in text


def test_without_data_there_is_no_plot() -> None:
    assert noise([RiskFinding(**place("a", 0, "risk"))]) == ""
    assert spectrum({}) == ""
    assert spectrum({"dead": [0.0, 0.0]}) == ""


def test_names_are_text_and_no_formula() -> None:
    text = spectrum({"<b>$\\frac$&": [3.0, 2.0, 0.0]})
    Page(text)
    assert "&lt;b&gt;$\\frac$&amp;" in text


def test_many_spectra_do_without_legend() -> None:
    assert "example 1" not in spectrum({f"example {k}": [2.0, 1.0] for k in range(13)})


def test_a_run_without_a_measure_of_releases_is_not_told_to_add_noise() -> None:
    """Releases carried noise, and the section asked for scenarios with noise."""
    bare = [RiskFinding(**place("a", 0, "setting"))]
    for findings, told in (
        (bare, "No release of this run carries Gaussian noise"),
        (
            [*bare, release("a", noise_std=0.01)],
            "Releases of this run carry Gaussian noise, but the plan has no measure",
        ),
    ):
        section = noise_section(bare, context(findings))
        said = [part for block in section.blocks if isinstance(block, Text) for part in block.parts]
        assert len(said) == 1
        assert str(said[0]).startswith(told)
