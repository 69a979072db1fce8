"""`python -m studies`."""

from __future__ import annotations

from gradleak.cli.process import carry_out


def commands() -> None:
    """Run the command line of the studies."""
    from studies.runner import app

    app()


if __name__ == "__main__":
    carry_out(commands)
