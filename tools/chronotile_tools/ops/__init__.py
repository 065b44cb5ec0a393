"""Monitor a small Cassandra cluster: its state, and early warnings.

>>> from chronotile_tools import ops
>>> access = ops.Access(["127.0.0.1"])
>>> snapshot = ops.observe(access)  # doctest: +SKIP
>>> [finding.rule for finding in ops.check(snapshot).findings]  # doctest: +SKIP
[]

These functions never change a cluster. `procedures` and `repair` do, with checks before and verification after each
step.
"""

from __future__ import annotations

from chronotile_tools.ops.access import Access, CommandRunner, JolokiaRunner, LabRunner, Runner, for_lab
from chronotile_tools.ops.observing import PendingRequests, observe
from chronotile_tools.ops.rules import RULES, Baseline, Finding, Result, Rule, check
from chronotile_tools.ops.state import Node, Snapshot, Unobserved

__all__ = [
    "RULES",
    "Access",
    "Baseline",
    "CommandRunner",
    "Finding",
    "JolokiaRunner",
    "LabRunner",
    "Node",
    "PendingRequests",
    "Result",
    "Rule",
    "Runner",
    "Snapshot",
    "Unobserved",
    "check",
    "for_lab",
    "observe",
]
