"""Registers all procedures on import, so that journals can recreate them."""

from __future__ import annotations

from chronotile_tools.ops.backups import making, restoring
from chronotile_tools.ops.procedures import disruptions, growing, leftovers, membership, restarts, upgrades
from chronotile_tools.ops.repair import running

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
