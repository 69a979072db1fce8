"""`python -m gradleak.cli`."""

from gradleak.cli import main

main()
