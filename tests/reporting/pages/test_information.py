"""What each attack went by stands in the report, once for attacks that went by the same."""

from __future__ import annotations

from pathlib import Path

from gradleak.reporting.information import information
from gradleak.reporting.reading import read
from tests.reporting.sample_record import Row, SampleRecord

from gradleak.reporting import write_html, write_markdown
from gradleak.results import Record

FACTS = {
    "dlg": ["update rule: FedSGD()", "labels: optimized"],
    "idlg": ["update rule: FedSGD()", "labels: optimized"],
    "grad_inversion": ["update rule: FedAvg(learning_rate=0.1), assumed, not known", "labels: <b>disclosed</b>"],
    "blind": [],
}


def _record(folder: Path) -> Record:
    sample = SampleRecord(folder, pictures=False)
    lines: list[Row] = []
    for attack, facts in FACTS.items():
        for index in range(2):
            rows = sample.attempt("s", index, attack, 0.1)
            rows[0]["details"] = {"information": facts} if facts else {}
            lines += rows
    return Record(run={}, lines=lines)


def test_each_list_stands_once_with_the_attacks_that_went_by_it(tmp_path: Path) -> None:
    views = information(read(_record(tmp_path)))
    assert [(view.attacks, list(view.facts)) for view in views] == [
        (["dlg", "idlg"], FACTS["dlg"]),
        (["grad_inversion"], FACTS["grad_inversion"]),
    ]


def test_both_pages_show_it_and_escape_it(tmp_path: Path) -> None:
    record = _record(tmp_path)
    write_markdown(record, tmp_path / "page.md")
    write_html(record, tmp_path / "page.html")
    markdown, html = ((tmp_path / name).read_text(encoding="utf-8") for name in ("page.md", "page.html"))
    assert "dlg, idlg: update rule: FedSGD" in markdown
    assert "<strong>dlg, idlg</strong>: update rule: FedSGD(); labels: optimized" in html
    assert "labels: &lt;b&gt;disclosed&lt;/b&gt;" in html
    assert "<b>disclosed</b>" not in html
