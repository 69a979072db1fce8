"""Reports in headless Chromium: nothing wider than its box without a cue, and a control that steps through scenarios."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.reporting.test_first_screen import IMAGES, LAYERS, PRIVACY, TABLE

from gradleak.auditing import run_plan
from gradleak.auditing.plan_file import build_plan
from gradleak.reporting.html import render_html
from gradleak.reporting.page import assemble

pytestmark = pytest.mark.browser
CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
NOISY = """
[[scenarios]]
name = "noisy"
defenses = [{ use = "GaussianNoise", std = 0.1 }]
attacks = { gauss_newton = "all" }
"""
# Put into a copy of the page without its policy, and run there.
ASK = """
<script>
document.querySelectorAll('details').forEach(fold => { fold.open = OPEN; });
const width = document.documentElement.clientWidth, wide = [];
document.querySelectorAll('body *').forEach(one => {
  if (one.closest('svg') && one.tagName !== 'svg') return;
  if (one.getBoundingClientRect().right > width + 1 && !one.closest('.scroll, pre')) wide.push(one.className || one.tagName);
});
const shown = () => [...document.querySelectorAll('.step')].map(one => getComputedStyle(one).display !== 'none');
const first = shown(), last = document.querySelector('.steps > label:last-of-type');
if (last) last.click();
parent.postMessage(JSON.stringify({ width, wide, first, then: shown() }), '*');
</script></body>"""


def asked(page: str, folder: Path, *, width: int, opened: bool) -> dict[str, Any]:
    """Answers of a page in a frame of this width."""
    assert CHROMIUM is not None
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    asking = ASK.replace("OPEN", json.dumps(opened))
    (folder / "page.html").write_text(bare.replace("</body>", asking), encoding="utf-8")
    (folder / "frame.html").write_text(
        f'<iframe width="{width}" height="900" src="page.html"></iframe><pre id="told"></pre>'
        "<script>addEventListener('message', one => { document.getElementById('told').textContent = one.data; })</script>",
        encoding="utf-8",
    )
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    told = re.search(r'<pre id="told">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert told is not None
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("plan", [IMAGES + NOISY, TABLE, PRIVACY, LAYERS], ids=["images", "rows", "privacy", "layers"])
def test_nothing_is_wider_than_its_box_and_steps_show_one_scenario(plan: str, tmp_path: Path) -> None:
    record = run_plan(build_plan(tomllib.loads(plan), folder=tmp_path), tmp_path / "out", jobs=1)
    page = render_html(assemble(record))
    for width in (390, 1200):
        for opened in (False, True):
            found = asked(page, tmp_path, width=width, opened=opened)
            assert found["width"] > 0.9 * width
            assert found["wide"] == []
    scenarios = page.count('name="step"')
    assert found["first"] == [place == 0 for place in range(scenarios)]
    assert found["then"] == [place == scenarios - 1 for place in range(scenarios)]
