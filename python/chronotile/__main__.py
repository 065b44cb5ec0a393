"""``python -m chronotile``: the command line."""

from chronotile.cli import main

main()
