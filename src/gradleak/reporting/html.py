"""The report as one HTML page that carries everything inside itself."""

from __future__ import annotations

import os
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradleak.reporting import inference_view, layers_words, privacy_view, words
from gradleak.reporting.adversaries import adversaries, notes
from gradleak.reporting.inference_plots import inference_plots
from gradleak.reporting.inference_view import defense_rows, inferences, merged, noted
from gradleak.reporting.layers_plots import heat_maps
from gradleak.reporting.layers_view import layer_maps, leading_maps
from gradleak.reporting.numerals import count, decimal, percent
from gradleak.reporting.plots import noise_plot, spectrum_plot
from gradleak.reporting.privacy_plots import privacy_plots
from gradleak.reporting.privacy_view import broken, privacies, shown_theory
from gradleak.reporting.reading import load
from gradleak.reporting.report import Report, build
from gradleak.reporting.utility_view import TEXT, utilities, warnings
from gradleak.results import Record

# Longer tables and galleries fold the rest away, if it is worth folding.
ROWS_SHOWN = 12
EXHIBITS_SHOWN = 9
LEAST_FOLDED = 4


def write_html(record: Record | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """A self-contained HTML page on a record: no network, no scripts, light and dark, printable.

    Pictures are taken from beside the record and embedded. All text of the record is escaped: it is not trusted.
    The same record gives the same bytes.

    Args:
        record: the record, or its file or folder.
        path: where the page is written; its folder must exist.

    Returns:
        The path.

    Raises:
        InputError: there is no record.
    """
    target = Path(path)
    target.write_text(render_html(build(load(record))), encoding="utf-8")
    return target


def render_html(report: Report) -> str:
    """The page as text.

    Args:
        report: what to show.
    """
    sides, games, worths = adversaries(report), merged(inferences(report.reading)), utilities(report.reading)
    losses, maps = privacies(report.reading), layer_maps(report.reading)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            words=words,
            rows_shown=_shown(len(report.attempts), ROWS_SHOWN),
            exhibits_shown=_shown(len(report.exhibits), EXHIBITS_SHOWN),
            # Made by this package alone: untrusted names in it are escaped by the SVG writer.
            noise_svg=Markup(noise_plot(report.noise, report.error)),
            spectrum_svg=Markup(spectrum_plot(report.spectra)),
            adversaries=sides,
            adversaries_shown=_shown(len(sides), ROWS_SHOWN),
            adversary_notes=notes(sides),
            utilities=worths,
            utility_text=TEXT,
            utility_warnings=warnings(worths),
            inferences=games,
            inference_defenses=defense_rows(games),
            inference_figures={caption: Markup(svg) for caption, svg in inference_plots(games).items()},
            inference_notes=noted(games),
            inference_text=inference_view,
            privacies=losses,
            privacies_broken=broken(losses),
            privacy_theory=shown_theory(losses),
            privacy_figures={caption: Markup(svg) for caption, svg in privacy_plots(losses).items()},
            privacy_notes=privacy_view.noted(losses),
            privacy_text=privacy_view,
            layer_maps=maps,
            layer_figures=[[Markup(svg) for svg in figures] for figures in heat_maps(maps)],
            layer_leading=leading_maps(maps),
            layer_advised=any(one.advice for one in maps),
            layer_meanings=layers_words.meanings(column.measure for one in maps for column in one.columns),
            layer_text=layers_words,
        )
    )


def _shown(size: int, most: int) -> int:
    return size if size < most + LEAST_FOLDED else most


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gradleak.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "count": count,
        "decimal": decimal,
        "percent": percent,
        "breakable": breakable,
        "called": layers_words.called,
        "few": layers_words.few,
        "sentence": words.sentence,
    }
    return environment


def breakable(name: str) -> Markup:
    """A name that may break after an underscore where a column is narrow; escaped.

    Args:
        name: an untrusted name.
    """
    return Markup("_<wbr>").join(str(name).split("_"))
