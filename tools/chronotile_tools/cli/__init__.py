"""The commands that the tools add to ``chronotile``."""
