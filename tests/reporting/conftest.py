from __future__ import annotations

from pathlib import Path

import pytest
from tests.reporting.parsed import Page
from tests.reporting.sample_record import digits_audit

from gradleak.reporting.html import render_html
from gradleak.reporting.report import Report, build
from gradleak.results import Record


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a realistic record of the digits audit."""
    return digits_audit(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="session")
def report(digits: Path) -> Report:
    return build(Record.load(digits))


@pytest.fixture(scope="session")
def page(report: Report) -> Page:
    return Page(render_html(report))
