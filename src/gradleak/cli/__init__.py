"""The command line: audit, report, list, explain."""

from gradleak.cli.process import carry_out

__all__ = ["main"]


def main() -> None:
    """Run the command line."""

    def commands() -> None:
        from gradleak.cli.commands import app

        app()

    carry_out(commands)
