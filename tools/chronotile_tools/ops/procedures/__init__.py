"""Procedures: cluster maintenance in steps that are checked, verified, journalled, and resumable."""

from __future__ import annotations

from chronotile_tools.ops.procedures.engine import Context, Plan, Procedure, Step, plan, run
from chronotile_tools.ops.procedures.findings import Finding, Level
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.lease import Lease

__all__ = ["Context", "Finding", "Journal", "Lease", "Level", "Plan", "Procedure", "Step", "plan", "run"]
