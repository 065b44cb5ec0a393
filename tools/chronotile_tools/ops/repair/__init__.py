"""Repair: compare and synchronize replicas, one sub-range of the ring at a time."""

from __future__ import annotations

from chronotile_tools.ops.repair.running import Repair, preview_differences, repair_tables
from chronotile_tools.ops.repair.segments import Estimate, RingRange, SegmentSizer

__all__ = ["Estimate", "Repair", "RingRange", "SegmentSizer", "preview_differences", "repair_tables"]
