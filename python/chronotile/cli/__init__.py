"""The command line: ``chronotile``."""

from chronotile.cli.main import main

__all__ = ["main"]
