"""Reports in headless Chromium: what a reader sees at three widths, in light and dark and on paper, and may do with it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from tests.reporting import toy_kind
from tests.reporting.browser import LOOK, asked, needs_chromium
from tests.reporting.test_first_screen import GAME, IMAGES, LAYERS, PRIVACY, SENTENCES, TABLE

from gradleak.auditing import run_plan
from gradleak.auditing.plan_file import build_plan
from gradleak.reporting.html import render_html
from gradleak.reporting.page import assemble
from gradleak.results import Record

pytestmark = [pytest.mark.browser, needs_chromium]
NOISY = """
[[scenarios]]
name = "noisy"
defenses = [{ use = "GaussianNoise", std = 0.1 }]
attacks = { gauss_newton = "all" }
"""
FAULTS = ("wide", "cut", "pale", "blind", "deaf", "nameless", "mute", "leaps", "loaded")
PLANS = {
    "images": IMAGES + NOISY,
    "rows": TABLE,
    "sentences": SENTENCES,
    "game": GAME,
    "privacy": PRIVACY,
    "layers": LAYERS,
}


@pytest.fixture(scope="module", params=PLANS)
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp(request.param)
    return run_plan(build_plan(tomllib.loads(PLANS[request.param]), folder=folder), folder / "out", jobs=1)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1200])
def test_nothing_is_cut_off_pale_or_out_of_reach(record: Record, width: int, dark: bool, tmp_path: Path) -> None:
    """Folded and unfolded: contrast of WCAG AA, a focus that is seen, names of controls, no request, no width beyond."""
    told = asked(render_html(assemble(record)), tmp_path, LOOK, width=width, dark=dark)
    for found in (told["folded"], told["opened"]):
        assert {name: found[name] for name in FAULTS if found[name]} == {}
        assert found["width"] > 0.9 * width
        assert found["dark"] is dark
        assert found["keyed"] > 5


def test_paper_has_what_is_folded_and_no_controls(record: Record, tmp_path: Path) -> None:
    page = render_html(assemble(record)).replace("@media print", "@media screen")
    script = """
        const folds = [...document.querySelectorAll('details')], seen = one => one.lastElementChild.checkVisibility();
        const shut = folds.filter(one => !one.matches('.print-open'));
        const found = chosen => [...document.querySelectorAll(chosen)].filter(one => one.checkVisibility());
        const beyond = one => one.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
        const closed = folds.filter(one => !shut.includes(one) && !shut.includes(one.parentElement) && !seen(one));
        const left = shut.filter(one => one.checkVisibility());
        answer({ closed: closed.length, printed: folds.filter(seen).length, left: left.length,
          controls: found('.filter, .enlarge, nav').length, steps: found('.step').length,
          wide: found('body *').filter(one => !one.closest('svg, pre') && beyond(one)).map(one => one.outerHTML) });"""
    # A4 without its margins is 182 mm wide.
    found = asked(page, tmp_path, script, width=688)
    assert found["printed"] > 3
    assert (found["closed"], found["left"], found["controls"]) == (0, 0, 0)
    assert found["steps"] == page.count('class="step"')
    assert found["wide"] == []


def test_a_poor_page_is_found_out(tmp_path: Path) -> None:
    page = """<!DOCTYPE html><html lang="en"><body style="background:#fff;margin:0"><main>
        <h1>one</h1><h3>three</h3><p style="color:#999">pale</p>
        <div style="width:2000px">wide</div><input style="outline:none"><button></button>
        <img src="http://127.0.0.1:9/x.png">
        <div style="overflow:hidden;width:100px;white-space:nowrap">words that go on and on and on</div>
        <div style="overflow-x:auto;width:80px"><div style="width:300px">deaf</div></div></main></body></html>"""
    found = asked(page, tmp_path, LOOK)["opened"]
    assert {name for name in FAULTS if found[name]} == set(FAULTS)
    assert (len(found["wide"]), len(found["pale"]), len(found["nameless"]), len(found["blind"])) == (1, 1, 2, 1)


@pytest.fixture
def toy_page(toy: None) -> str:
    """A report with a list of 31 layers that is folded after twelve."""
    return render_html(assemble(toy_kind.record(*(toy_kind.found(place * 7 % 31) for place in range(31)))))


LIST = """
const tables = [...document.querySelectorAll('#dead table')];
const rows = () => tables.flatMap(one => [...one.tBodies[0].rows]).filter(row => !row.hidden);
const shown = () => rows().map(row => row.cells[0].textContent);
"""


@pytest.mark.parametrize("column", [0, 1], ids=["names", "numbers"])
def test_a_list_is_sorted_over_its_fold_and_back(column: int, toy_page: str, tmp_path: Path) -> None:
    script = f"""{LIST}
        const heads = tables.map(one => one.tHead.rows[0].cells[{column}]), told = [[shown(), heads[0].ariaSort]];
        for (const turn of [1, 2, 3]) {{ heads[1].querySelector('button').click(); told.push([shown(), heads[0].ariaSort]); }}
        answer({{ told, sizes: tables.map(one => one.tBodies[0].rows.length) }});"""
    found = asked(toy_page, tmp_path, script)
    first, up, down, last = (rows for rows, _ in found["told"])
    assert [said for _, said in found["told"]] == [None, "ascending", "descending", None]
    # "a/example 2/dead" stands before "a/example 10/dead".
    assert up == [f"a/example {place}/dead" for place in range(31)]
    assert down == up[::-1]
    assert first == last != up
    assert found["sizes"] == [12, 19]


def test_a_list_is_filtered_by_words(toy_page: str, tmp_path: Path) -> None:
    script = f"""{LIST}
        const box = document.querySelector('#dead .filter'), words = box.querySelector('input'), told = [];
        for (const text of ['Example 30', 'example 3', 'nothing', '']) {{
          words.value = text;
          words.dispatchEvent(new Event('input', {{ bubbles: true }}));
          told.push([shown(), box.querySelector('output').textContent, tables[1].closest('details').open]);
        }}
        answer({{ told }});"""
    one, two, none, every = asked(toy_page, tmp_path, script)["told"]
    assert one == [["a/example 30/dead"], "1 of 31 rows", True]
    assert set(two[0]) == {"a/example 3/dead", "a/example 30/dead"}
    assert none[:2] == [[], "0 of 31 rows"]
    assert (len(every[0]), every[1]) == (31, "")


def test_scenarios_are_stepped_through_and_pictures_enlarged(tmp_path: Path) -> None:
    plan = build_plan(tomllib.loads(IMAGES + NOISY), folder=tmp_path)
    page = render_html(assemble(run_plan(plan, tmp_path / "out", jobs=1)))
    script = """
        const shown = () => [...document.querySelectorAll('.step')].map(one => getComputedStyle(one).display !== 'none');
        const first = shown(); document.querySelector('.steps > label:last-of-type').click(); const then = shown();
        const figures = [...document.querySelectorAll('figure')], boxed = document.querySelector('dialog');
        const sizes = [], later = () => new Promise(done => setTimeout(done, 50));
        const ask = async () => { for (const kind of ['img', 'svg']) {
          const some = figures.filter(one => one.querySelector(kind));
          const figure = some.find(one => one.checkVisibility()) ?? some[0];
          const size = one => one.querySelector(kind)?.getBoundingClientRect().width ?? null, small = size(figure);
          figure.querySelector('button').click();
          sizes.push([small, size(boxed), boxed.open, size(figure) === null]);
          boxed.querySelector('button').click();
          await later();
        } };
        ask().then(() => answer({ first, then, sizes, back: figures.every(one => one.querySelector('img, svg, .no-picture')),
          names: figures.map(one => one.querySelector('button')?.ariaLabel ?? '') }));"""
    found = asked(page, tmp_path, script)
    assert found["first"] == [True, False]
    assert found["then"] == [False, True]
    for small, large, opened, moved in found["sizes"]:
        assert large > small
        assert opened
        assert moved
    assert found["back"]
    assert all(name.startswith("Enlarge: ") and len(name) > 15 for name in found["names"] if name)
