"""The site of the documentation: each exported name on one page, and search that works from the disk."""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.reference_pages import FURTHER, SUBJECTS, home, pages

ROOT = Path(__file__).parents[2]
CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)


@pytest.mark.parametrize("package", SUBJECTS)
def test_each_name_of_a_package_stands_on_one_page(package: str) -> None:
    listed = [one.name for names in pages(package).values() for one in names]
    assert sorted(listed) == sorted(importlib.import_module(f"gradleak.{package}").__all__)
    assert all(modules for modules in SUBJECTS[package].values())
    assert f"reference/{home(package)}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def test_pages_say_what_a_name_means() -> None:
    found = {one.name: one for subject, names in pages("core").items() if subject != FURTHER for one in names}
    assert found["Batch"].module == "batch"
    assert found["Batch"].summary.endswith(".")
    presets = pages("attacks")["Presets of papers"]
    assert {"DLG", "InvertingGradients"} <= {one.name for one in presets}


def test_the_map_names_all_that_stands_at_the_top() -> None:
    page = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", page)) - {"gradleak"}
    stub = ast.parse((ROOT / "src" / "gradleak" / "__init__.pyi").read_text(encoding="utf-8"))
    parts = [node for node in stub.body if isinstance(node, ast.ImportFrom) and node.module]
    top = {one.asname or one.name for node in parts for one in node.names}
    assert named == top


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_search_works_from_the_disk(tmp_path: Path) -> None:
    """With the theme, the plugins and the script of the real site, on two pages."""
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    script = "assets/iframe-worker.js"
    shutil.copy(ROOT / "docs" / script, tmp_path / "docs" / script)
    (tmp_path / "docs" / "index.md").write_text("# Home\n\nNothing here.\n", encoding="utf-8")
    (tmp_path / "docs" / "bounds.md").write_text("# Bounds\n\nThe van Trees inequality.\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(
        f"site_name: two\nuse_directory_urls: false\ntheme: {{ name: material, font: false }}\n"
        f"extra: {{ polyfills: [{script}] }}\nplugins: [search, offline]\n",
        encoding="utf-8",
    )
    assert script in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    subprocess.run(["mkdocs", "build", "-q", "-f", tmp_path / "mkdocs.yml"], check=True, timeout=120)
    home = (tmp_path / "site" / "index.html").as_uri()
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=10000", "--dump-dom", f"{home}?q=Trees"]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "1 matching document" in page
    assert re.search(r'<article class="md-search-result__article.*Bounds', page)
    assert not re.search(r'(src|href)="https?://(?!squidfunk)', page)
