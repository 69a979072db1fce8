"""Picture of the first screen of a report for the documentation, by headless Chromium.

    make audit
    python -m tools.report_picture runs/digits/report.html

writes `docs/assets/report.webp`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "assets" / "report.webp"
WIDTH, HEIGHT = 1200, 920


def main(report: Path) -> Path:
    """Draw the top of a report, 1,200 pixels wide; the path of the picture.

    Raises:
        SystemExit: no Chromium on this machine.
    """
    chromium = next((found for name in ("chromium", "google-chrome") if (found := shutil.which(name))), None)
    if chromium is None:
        raise SystemExit("report_picture: expected chromium or google-chrome on the path, found none; install one")
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / "report.png"
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={folder}/profile", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={drawn}"]
        subprocess.run([*command, report.resolve().as_uri()], check=True, capture_output=True, timeout=300)
        with Image.open(drawn) as picture:
            picture.convert("RGB").save(PICTURE, quality=80, method=6)
    return PICTURE


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]))}\n")
