"""`python -m studies`."""

from __future__ import annotations

from gradleak.cli.main import carry_out
from studies.runner import app

if __name__ == "__main__":
    carry_out(app)
