"""The command line: audit, report, list, explain."""

from gradleak.cli.process import carry_out

__all__ = ["main"]


def main() -> None:
    """Run the command line."""

    def commands() -> None:
        from gradleak.cli.commands import app
        from gradleak.cli.view import view

        app.command()(view)
        # By whatever name it was called: shell completion goes by this one.
        app(prog_name="gradleak")

    carry_out(commands)
