"""`python -m relay` is the console script."""

from relay.cli import main

main()
