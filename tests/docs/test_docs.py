"""The README and the documentation run as written."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from mktestdocs import check_md_file

import gradleak as gl
from gradleak.auditing import catalog

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

# Pages whose blocks take more than 3 s of CPU time; `make test-all` runs them, too.
LONG_PAGES = {
    "README.md",
    "docs/explanation/fed-avg.md",
    "docs/explanation/utility.md",
    "docs/explanation/verdicts.md",
    "docs/how-to/saved-updates.md",
    "docs/index.md",
    "docs/tutorials/first-audit.md",
    "docs/tutorials/gate-releases.md",
    "docs/tutorials/is-this-round-safe.md",
    "docs/tutorials/reproduce-an-attack.md",
}

# Pages that run with their framework alone, in the environments of `make test-integrations`.
FRAMEWORKS = {
    "docs/how-to/audit-hugging-face.md": ("transformers", "peft"),
    "docs/how-to/gate-in-flower.md": ("flwr",),
    "docs/how-to/gate-in-nvflare.md": ("nvflare",),
    "docs/how-to/gate-in-opacus.md": ("opacus",),
    "docs/how-to/gate-in-trainers.md": ("transformers", "peft", "lightning", "accelerate"),
}


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_every_long_page_is_there() -> None:
    assert {_named(page) for page in PAGES} >= LONG_PAGES


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if _named(page) in LONG_PAGES else []) for page in PAGES],
    ids=[_named(page) for page in PAGES],
)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [name for name in FRAMEWORKS.get(_named(page), ()) if find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed; make test-integrations runs this page")
    monkeypatch.chdir(tmp_path)
    check_md_file(page, memory=True)


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_no_place_is_held_for_figures_to_come(page: Path) -> None:
    assert (
        re.findall(r"(?<!\$)\{\{.*?\}\}|<!--.*?-->|\b[A-Z]+_FIGURES\b|\bTODO\b", page.read_text(encoding="utf-8")) == []
    )


@pytest.mark.parametrize("page", PAGES, ids=_named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), target


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [
        page for page in (str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
        if page not in navigation
    ]  # fmt: skip
    assert not missing


def test_the_changelog_names_everything_a_plan_can_use() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    rooms = catalog()
    names = [name for room in ("attacks", "measures", "defenses", "protocols") for name in rooms[room]]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_public_names_resolve() -> None:
    names = [name for name in gl.__all__ if not inspect.ismodule(getattr(gl, name))]
    assert 40 <= len(names) <= 50
    assert set(dir(gl)) == set(gl.__all__)
