"""The command line. `main` is what the installed command `oncelog` calls."""

from service.cli.root import main

__all__ = ["main"]
