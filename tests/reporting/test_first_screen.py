"""The first screen of reports of small audits, one of each kind of question: short, and every term with its meaning."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from tests.cli.test_layers import PLAN as LAYERS
from tests.cli.test_privacy import PLAN as PRIVACY
from tests.reporting.parsed import VOID

from gradleak.auditing import run_plan
from gradleak.auditing.plan_file import build_plan
from gradleak.audits.base import save_picture
from gradleak.core import Batch, Domain
from gradleak.reporting.html import render_html
from gradleak.reporting.page import assemble
from gradleak.reporting.words import GLOSSARY, explained
from tools.glossary import PAGE, glossary_page

MOST_WORDS = 1200
IMAGES = """
name = "digits"
pictures = true

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 1

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 5

[[scenarios]]
name = "undefended"
attacks = { gauss_newton = "all" }
"""
TABLE = """
name = "rows"
pictures = true

[model]
use = "mlp"
features = 6
hidden = [8]
classes = 2
activation = "tanh"

[data]
use = "tests.reporting.test_first_screen:rows"

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 10

[threat]
use = "HonestButCurious"
batch_size = true
domain = true

[[scenarios]]
name = "plain"
attacks = { gauss_newton = "all" }
"""
GAME = """
name = "game"

[model]
use = "mlp"
features = 6
hidden = [4]
classes = 2

[inference.group]
use = "PropertyGame"
population = { use = "tests.auditing.small_population:two_groups" }
batch_size = 2
rounds = 1
private_rows = 60
public_rows = 60
trials = 60
adversary = { use = "RandomForest", trees = 5 }

[[scenarios]]
name = "plain"
"""
SENTENCES = """
name = "sentences"
pictures = true

[model]
use = "transformer"
words = 204
length = 24
width = 48
blocks = 2
classes = 2
std = 0.1

[data]
use = "python_topics"
count = 2
batch_size = 2
words = 200
length = 24

[objective]
loss = "cross_entropy"

[attacks.spans]
use = "SpanSearch"

[attacks.rows]
use = "TokenRows"

[[scenarios]]
name = "undefended"
attacks = { spans = "all", rows = "all" }

[[scenarios]]
name = "DP-SGD"
adversaries = ["adaptive"]
defenses = [{ use = "DPSGD", clip_norm = 1.0, noise_std = 4.0, noise = "sum" }]
attacks = { rows = "all" }
"""


def rows() -> Batch:
    """One row whose columns have ranges of their own."""
    values = torch.tensor([[40.0, 1.0, 0.0, 1.0, 0.25, 0.5]])
    return Batch(values, torch.tensor([1]), Domain(shape=(6,), low=0.0, high=(90.0, 1, 1, 1, 1, 1), kind="tabular"))


class Seen(HTMLParser):
    """Words that a reader sees before anything is opened, and those of the whole page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.every: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "head" in self.open or "script" in self.open:
            return
        self.every += data.split()
        folds = self.open.count("details")
        if folds == 0 or (folds == 1 and "summary" in self.open):
            self.seen += data.split()


@pytest.mark.parametrize(
    ("plan", "evidence"),
    [
        (IMAGES, "What an attack rebuilt from the update alone"),
        (TABLE, "What an attack rebuilt from the update alone"),
        (SENTENCES, "What an attack rebuilt from the update alone"),
        (GAME, "What was inferred from the updates alone"),
        (PRIVACY, "What one release tells of a record"),
        (LAYERS, "Layers that leak most"),
    ],
    ids=["images", "rows", "sentences", "game", "privacy", "layers"],
)
def test_it_is_short_and_shows_evidence_first(plan: str, evidence: str, tmp_path: Path) -> None:
    record = run_plan(build_plan(tomllib.loads(plan), folder=tmp_path), tmp_path / "out", jobs=1)
    html = render_html(assemble(record))
    seen = Seen(html)
    assert 100 < len(seen.seen) <= MOST_WORDS
    assert len(seen.every) > 2 * len(seen.seen)
    text = " ".join(seen.seen)
    assert text.index(evidence) < text.index("What to do next.")
    assert "The terms of this screen" in text
    # All that is folded stands open on paper.
    assert '<details class="part">' not in html
    if plan in (IMAGES, TABLE):
        first = html.partition('<div class="step">')[2].partition("</fieldset>")[0]
        assert first.count("<img") == (2 if plan is IMAGES else 0)
        table = [line for line in first.splitlines() if "<td" in line]
        cells = [re.findall(r"<td[^>]*>([^<]*)</td>", line) for line in table]
        assert cells == ([["40", "1", "0", "1", "0.25", "0.5"]] * 2 if plan is TABLE else [])


def test_rows_are_kept_in_the_units_of_the_data(tmp_path: Path) -> None:
    batch = rows()
    assert batch.domain is not None
    normalized = replace(batch.domain, mean=(50.0,) + (0.0,) * 5)
    path = save_picture(tmp_path, "a row", batch.inputs - torch.tensor([50.0, 0, 0, 0, 0, 0]), normalized)
    assert path is not None
    assert (tmp_path / path).read_text() == "[[40.0, 1.0, 0.0, 1.0, 0.25, 0.5]]"
    assert save_picture(tmp_path, "a signal", torch.zeros(1, 1, 4), Domain(shape=(1, 4), kind="signal")) is None


def test_terms_carry_their_meaning_once_and_marks_are_told() -> None:
    shown, used = explained(
        '<p title="std">std</p><p>Updates: std, std. A pixel RMSE</p><span class="chip chip-leaks">Leaks</span>'
    )
    assert shown.startswith('<p title="std">std</p><p><abbr title="What a client sends')
    assert shown.count("<abbr") == 3
    assert ">Updates</abbr>: <abbr" in shown
    assert list(used) == ["leaks", "pixel RMSE", "std", "update"]
    assert used["leaks"] == GLOSSARY["leaks"]


def test_terms_of_headings_that_sort_stand_in_the_list_and_one_thing_has_one_name() -> None:
    shown, used = explained('<table><tr><th scope="col">Blind guess</th><td>No scenario is bounded.</td></tr></table>')
    assert '<th scope="col">Blind guess</th>' in shown
    assert '<abbr title="A formal guarantee' in shown
    assert list(used) == ["blind guess", "bounded", "scenario"]
    assert [term for term in GLOSSARY if "blind" in term] == ["blind guess"]
    assert {"luck", "token error", "bag of words", "batch", "ROUGE-L", "Google BLEU", "bounded"} <= set(GLOSSARY)


def test_the_page_of_the_documentation_is_made_of_the_tooltips() -> None:
    assert PAGE.read_text(encoding="utf-8") == glossary_page()
