"""Images for studies at tiny size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight 6×6 color images of four classes, in a file as studies take it."""
    path: Path = tmp_path_factory.mktemp("tiny") / "images.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (8, 6, 6, 3), dtype=np.uint8)
    np.savez(path, x=pixels, y=np.arange(8) % 4)
    return str(path)
