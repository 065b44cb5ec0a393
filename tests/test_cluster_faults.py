"""What holds when nodes die, hang, lose their network, come, go and move: shown on real nodes, three copies, QUORUM.

Four processes write and read all the while and log each operation (`support_history`), and a checker looks for what
contradicts the promises: acknowledged batches are there once and whole, refused ones are not, a read misses nothing
that was known before it began.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import support_history
from support_history import History, Load, Operation

import chronotile as ct
from chronotile import lab

BEFORE_S, FAULT_S, AFTER_S = 3.0, 11.0, 3.0
SLOWEST_S = 20.0
"""No operation may take longer, on a machine with other work; the client gives up after 30 s."""
RECOVERED = 5.0
"""How many times slower the median operation may be when a node has been away for some seconds..."""
FAST_S = 2.5
"""...and what is fast enough on any machine."""


def archive_on(cluster: lab.Cluster, name: str, timeout_s: int = 30) -> str:
    """URL of an archive of its own for a test."""
    return f"{cluster.url(f'faults_{name}')}?catalog_buckets=16&timeout_s={timeout_s}"


def check(url: str, history: History) -> None:
    """Read everything from all replicas and compare it with what was said."""
    with ct.open(url, create=False) as archive:
        ds = archive["history"]
        final, wrong = support_history.read(ds.tuned("ALL", timeout_s=60))
        report = ds.verify()
    assert report.ok, report
    violations = history.violations(final, wrong)
    assert not violations, "\n".join([f"{len(violations)} violations", *violations[:20]])
    assert final


def check_all_done(history: History) -> None:
    assert not history.failed, "\n".join([f"{len(history.failed)} failed operations", *history.failed[:20]])
    assert history.slowest_s < SLOWEST_S, f"{history.slowest_s:.1f} s"


def check_recovered(history: History, fault: float, end: float) -> None:
    """The last seconds of the fault are as fast as it was before, or nearly."""
    before, late = history.median_s(fault - BEFORE_S, fault), history.median_s(end - 3, end)
    assert late <= max(RECOVERED * before, FAST_S), f"median {before:.3f} s before, {late:.3f} s with a node away"


def hints_are_delivered(cluster: lab.Cluster) -> bool:
    """Whether no node holds writes back for another."""
    for node in cluster.nodes:
        with node.connect() as connection:
            if connection.run("SELECT host_id FROM system_views.pending_hints").rows:
                return False
    return True


def wait_for(what: str, holds: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.3)


# ---------------------------------------------------------------- the checker itself

WHOLE = support_history.ROWS


def did(
    kind: str, start: float, outcome: str = "done", batch: str = "", seen: dict[str, int] | None = None
) -> Operation:
    return Operation(kind, 0, start, start + 1, outcome, batch, (0, 9), seen or {})


@pytest.mark.parametrize(
    ("operations", "final", "violation"),
    [
        ([did("write", 0, batch="0-0-0-small")], {"0-0-0-small": WHOLE}, None),
        ([did("write", 0, batch="0-0-0-small")], {}, "acknowledged and has 0"),
        ([did("write", 0, "unknown", "0-0-0-small")], {}, None),
        ([did("write", 0, "unknown", "0-0-0-small")], {"0-0-0-small": WHOLE}, None),
        ([did("write", 0, "unknown", "0-0-0-small")], {"0-0-0-small": 3}, "in part"),
        ([did("write", 0, "refused", "0-0-0-small")], {"0-0-0-small": WHOLE}, "was refused"),
        ([], {"0-0-0-small": WHOLE}, "never written"),
        ([did("write", 0, batch="0-0-0-small"), did("read", 2)], {"0-0-0-small": WHOLE}, "misses"),
        ([did("write", 0, batch="0-0-0-small"), did("read", 0.5)], {"0-0-0-small": WHOLE}, None),
        (
            [
                did("write", 0, "unknown", "0-0-0-small"),
                did("read", 2, seen={"0-0-0-small": WHOLE}),
                did("read", 4),
            ],
            {"0-0-0-small": WHOLE},
            "misses",
        ),
        (
            [did("write", 0, batch="0-0-0-small"), did("read", 2, seen={"0-0-0-small": 3})],
            {"0-0-0-small": WHOLE},
            "saw 3 of",
        ),
        (
            [did("write", 5, batch="0-0-0-small"), did("read", 0, seen={"0-0-0-small": WHOLE})],
            {"0-0-0-small": WHOLE},
            "before anybody",
        ),
    ],
)
def test_the_checker_finds_what_is_wrong_and_only_that(
    operations: list[Operation], final: dict[str, int], violation: str | None
) -> None:
    found = History(operations).violations(final, 0)
    if violation is None:
        assert not found
    else:
        assert violation in "\n".join(found)
    assert "doubled" in History(operations).violations(final, 1)[0]


# ---------------------------------------------------------------- one node


@pytest.mark.parametrize("fault", ["killed", "paused", "cut"])
def test_one_node_away_fails_no_operation_and_loses_nothing(cluster: lab.Cluster, tmp_path: Path, fault: str) -> None:
    if fault == "cut" and cluster.network != "namespaces":
        pytest.skip("NO NODE IS CUT OFF: that needs root and network namespaces")
    url = archive_on(cluster, fault)
    node = cluster.nodes[1]
    with Load(url, tmp_path / "load") as load:
        load.work(BEFORE_S)
        away = time.monotonic()
        {"killed": node.kill, "paused": node.pause, "cut": node.cut}[fault]()
        load.work(FAULT_S)
        end = time.monotonic()
        {"killed": lambda: node.start(wait=False), "paused": node.resume, "cut": node.heal}[fault]()
        load.work(AFTER_S)
        history = load.stop()
    check_all_done(history)
    check_recovered(history, away, end)
    cluster.wait_until_ready()
    wait_for("hints are delivered", lambda: hints_are_delivered(cluster), 60)
    check(url, history)
