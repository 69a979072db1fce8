"""`python -m gradleak.cli`."""

from gradleak.cli.main import main

main()
