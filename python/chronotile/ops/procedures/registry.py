"""Importing this makes all procedures known, so that a journal's can be made again."""

from __future__ import annotations

from chronotile.ops.backups import making, restoring
from chronotile.ops.procedures import disruptions, growing, leftovers, membership, restarts, upgrades
from chronotile.ops.repair import running

__all__ = [
    "disruptions",
    "growing",
    "leftovers",
    "making",
    "membership",
    "restarts",
    "restoring",
    "running",
    "upgrades",
]
