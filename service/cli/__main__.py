"""`python -m service.cli` is the command `oncelog` for those who have the code but not the installed command."""

from service.cli.root import main

main()
