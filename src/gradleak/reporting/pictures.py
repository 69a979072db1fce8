"""Pictures of the sidecar folder as data that a page can carry inside itself."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

LARGEST_PICTURE = 4 * 2**20
_PNG = b"\x89PNG\r\n\x1a\n"


def data_uri(folder: Path | None, name: Any) -> str | None:
    """A PNG file beside the record as a `data:` address, or None if there is none that may be shown.

    A record is untrusted: only PNG files inside its own folder are read, links out of it and files above 4 MiB are
    not.

    Args:
        folder: folder of the record.
        name: path relative to it, as the record says.
    """
    if folder is None or not isinstance(name, str) or not name or "\0" in name:
        return None
    root = folder.resolve()
    try:
        file = (root / name).resolve()
        if not file.is_relative_to(root) or not file.is_file() or file.stat().st_size > LARGEST_PICTURE:
            return None
        content = file.read_bytes()
    except OSError:
        return None
    if not content.startswith(_PNG):
        return None
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
