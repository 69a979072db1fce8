"""The command line: audit, report, list, explain."""

from gradleak.cli.main import app, main

__all__ = ["app", "main"]
