"""Checks after a load on a cluster that must hold despite faults of nodes."""

from __future__ import annotations

import support_history
from support_history import History

import chronotile as ct
from chronotile_tools import lab

SLOWEST_S = 20.0
"""Time limit of an operation, on a machine with other load; the client gives up after 30 s."""


def archive_on(cluster: lab.Cluster, name: str, timeout_s: int = 30) -> str:
    """URL of a separate archive for a test."""
    return f"{cluster.url(f'faults_{name}')}?catalog_buckets=16&timeout_s={timeout_s}"


def check(url: str, history: History) -> None:
    """Read everything from all replicas and compare it with the logged operations."""
    with ct.open(url, create=False) as archive:
        ds = archive["history"]
        final, wrong = support_history.read(ds.tuned("ALL", timeout_s=60))
        report = ds.verify()
    assert report.ok, report
    violations = history.violations(final, wrong)
    assert not violations, "\n".join([f"{len(violations)} violations", *violations[:20]])
    assert final


def check_all_done(history: History) -> None:
    """Assert that no operation failed or took too long."""
    assert not history.failed, "\n".join([f"{len(history.failed)} failed operations", *history.failed[:20]])
    assert history.slowest_s < SLOWEST_S, f"{history.slowest_s:.1f} s"
