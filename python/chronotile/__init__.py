"""An archive for time-ordered records that are read back by place and period."""

from chronotile._native import __version__

__all__ = ["__version__"]
