"""`python -m gradleak`, the same as the command."""

from gradleak.cli import main

main()
