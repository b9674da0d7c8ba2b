"""`python -m service.cli` is the command `oncelog` for a clone in which the command is not installed."""

from service.cli.root import main

main()
