"""`python -m service.cli` is the command `oncelog` for whoever has the code but not the installed command."""

from service.cli.root import main

main()
