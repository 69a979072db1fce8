"""Pages in headless Chromium: what a script finds out about one at a width, in light and in dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# What may be wrong with what is seen: `wide`, `pale`, `blind` (no focus is seen), `deaf` (scrolls by no key),
# `nameless` (a control without a name), `mute` (a picture without a text), `leaps` (levels of headings that skip one).
LOOK = """
const look = () => {
const width = document.documentElement.clientWidth;
const told = one => `${one.tagName}.${one.getAttribute('class') ?? ''} ${one.textContent.trim().slice(0, 40)}`;
const seen = one => one.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
const every = [...document.querySelectorAll('body *')].filter(seen);
const scrolls = one => ['auto', 'scroll'].includes(getComputedStyle(one).overflowX);
const boxed = one => one.parentElement !== null && (scrolls(one.parentElement) || boxed(one.parentElement));
const drawn = one => one.closest('svg') && one.tagName !== 'svg';
const wide = every.filter(one => !drawn(one) && one.getBoundingClientRect().right > width + 1 && !boxed(one));
// Of what is cut off, or scrolls without a shadow at its edge.
const over_full = one => one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1;
const cut = every.filter(one => !drawn(one) && over_full(one) && getComputedStyle(one).overflowX !== 'visible'
  && !one.matches('.scroll, pre, input, select, .zoomed *'));
const numbers = text => [...(text.match(/[\\d.]+/g) ?? [0, 0, 0]).map(Number), 1].slice(0, 4);
const over = (top, below) => below.map((value, place) => place < 3 ? top[place] * top[3] + value * (1 - top[3]) : 1);
const ground = one => {
  const layers = [];
  for (let at = one; at; at = at.parentElement) layers.push(numbers(getComputedStyle(at).backgroundColor));
  const page = matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0, 1] : [255, 255, 255, 1];
  return layers.reverse().reduce((below, top) => over(top, below), page);
};
const light = color => {
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const [r, g, b] = color.map(value => linear(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const probe = document.createElement('i');
probe.style.color = 'var(--on-heat)';
document.body.append(probe);
const onHeat = String(numbers(getComputedStyle(probe).color)), pale = [];
for (const one of every) {
  const text = [...one.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
  const style = getComputedStyle(one), color = numbers(one.closest('svg') ? style.fill : style.color);
  // The words on a heat map stand on cells of a drawing.
  if (!text || one.matches('title, desc, style') || (one.closest('svg') && String(color) === onHeat)) continue;
  const below = ground(one), [a, b] = [light(over(color, below)), light(below)].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < (large ? 3 : 4.5)) pale.push(`${ratio.toFixed(2)} ${told(one)}`);
}
const keyed = every.concat([...document.querySelectorAll('.steps > input')]).filter(one =>
  one.matches('a[href], button, input, select, summary, [tabindex]'));
const blind = keyed.filter(one => {
  one.focus();
  const shown = one.matches('.steps > input') ? one.nextElementSibling : one, style = getComputedStyle(shown);
  return document.activeElement !== one || style.outlineStyle === 'none' || parseFloat(style.outlineWidth) < 1;
});
// A heading may be one level below the one before it, not two; what is folded away counts as well.
const levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map(one => Number(one.tagName[1]));
const leaps = levels.filter((level, place) => level > (levels[place - 1] ?? 0) + 1);
const mute = [...document.querySelectorAll('img:not([alt]), svg:not([role="img"]):not([aria-label]):not([aria-hidden])')];
const deaf = every.filter(one => scrolls(one) && over_full(one) && one.tabIndex < 0);
const nameless = keyed.filter(one => one.matches('button, input, select') &&
  !(one.ariaLabel || one.labels?.length || one.textContent.trim()));
const told_all = found => found.map(told);
return { width, dark: matchMedia('(prefers-color-scheme: dark)').matches, wide: told_all(wide), cut: told_all(cut), pale,
  blind: told_all(blind), deaf: told_all(deaf),
  nameless: told_all(nameless), mute: told_all(mute), leaps,
  loaded: performance.getEntriesByType('resource').map(one => one.name), keyed: keyed.length };
};
const folded = look();
document.querySelectorAll('details').forEach(one => { one.open = true; });
answer({ folded, opened: look() });
"""


def asked(page: str, folder: Path, script: str, *, width: int = 1200, dark: bool = False) -> dict[str, Any]:
    """What a script answers (`answer({...})`) in a page.

    Args:
        page: its HTML.
        folder: for files.
        script: put into a copy of the page without its policy, and run there behind those of the page.
        width: of the frame that the page stands in; a window cannot be that narrow.
        dark: the scheme that the reader prefers.
    """
    assert CHROMIUM is not None
    bare = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    asking = f"""<script>addEventListener('load', () => {{
        const answer = one => parent.postMessage(JSON.stringify(one), '*');
        {script}
        }})</script></body>"""
    (folder / "page.html").write_text(bare.replace("</body>", asking), encoding="utf-8")
    (folder / "frame.html").write_text(
        f'<iframe width="{width}" height="900" src="page.html"></iframe><pre id="told"></pre>'
        "<script>addEventListener('message', one => { document.getElementById('told').textContent = one.data; })</script>",
        encoding="utf-8",
    )
    shown = visited((folder / "frame.html").as_uri(), folder, dark=dark)
    told = re.search(r'<pre id="told">(.+?)</pre>', shown, re.DOTALL)
    assert told is not None, "the page did not answer"
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    return found


def visited(address: str, folder: Path, *, dark: bool = False, budget: int = 5000) -> str:
    """The document of an address as it is after so many milliseconds, which go by quickly."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--window-size=1400,1000"]
    command += [f"--virtual-time-budget={budget}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
