"""Writes docs/reference/support-matrix.md from a fresh sweep over the layers."""

from __future__ import annotations

from pathlib import Path

import torch

from gradleak.testing.support_matrix import as_markdown, sweep

if __name__ == "__main__":
    torch.set_num_threads(1)
    page = Path(__file__).parent / "reference" / "support-matrix.md"
    page.write_text(as_markdown(list(sweep())), encoding="utf-8")
