"""Take a node down temporarily, for planned work or after a failure, and bring it back in sync.

The downtime determines what is needed. Within the hint window, the other nodes deliver their hints. Beyond it, the node
must be repaired. Beyond gc_grace, tombstones that the node missed may be purged, and deleted rows would reappear: the
node must not return.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from chronotile.errors import BusyError, InvalidInputError
from chronotile_tools.ops.procedures import statements, steps
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import any_serving, is_system
from chronotile_tools.ops.procedures.preflight import copies, preflight
from chronotile_tools.ops.procedures.restarts import known_addresses, unreplicated
from chronotile_tools.ops.repair import reading
from chronotile_tools.ops.repair.running import grouped, preview_differences, repair_tables

MARGIN_S = 3600.0
"""Margin before the end of gc_grace for running a repair, in seconds."""
_WINDOW = re.compile(r"max hint window: (\d+) ms")


@dataclass(frozen=True)
class Disruption(Procedure):
    """Take a node down for maintenance, and bring it back in sync.

    The node is drained and stopped, and the command exits with code 6. Do your work, then run "chronotile ops resume":
    the node is started, receives its hints, and is compared with the other replicas. If it was down for longer than the
    hint window, it is repaired; for longer than gc_grace, it must not return.
    """

    name: ClassVar[str] = "disrupt"
    needs: ClassVar[tuple[str, ...]] = ("stop", "start")
    address: str
    minutes: float
    """Expected duration of the work in minutes."""

    @classmethod
    def of(cls, context: Context, address: str, minutes: float) -> Disruption:
        """Create the procedure for a node of the cluster."""
        return cls(known_addresses(context, [address])[0], minutes)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, and whether the work ends in time."""
        found = [*super().checks(context), *unreplicated(context)]
        away_s = self.minutes * 60
        if any(finding.level == "refused" for finding in found):
            return found
        return [*found, _time_finding(context, away_s)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return ["The other nodes keep hints for the node, and deliver them afterwards."]

    def steps(self, context: Context) -> list[Step]:
        """Stop, work, start, sync."""
        return [
            *_with_time_recorded(context, steps.down_steps(context, self.address)),
            _work_step(context, self.address),
            *return_steps(context, self.address),
        ]


@dataclass(frozen=True)
class Return(Procedure):
    """Bring back a node that was down, and sync it. Refused if it was down for longer than gc_grace, because rows
    deleted meanwhile would reappear.
    """

    name: ClassVar[str] = "return"
    needs: ClassVar[tuple[str, ...]] = ("start",)
    address: str
    down_since: float
    """When it went down, in seconds since 1970-01-01T00:00 UTC."""

    @classmethod
    def of(cls, context: Context, address: str, down_since: datetime) -> Return:
        """Create the procedure for a node that is down."""
        known_addresses(context, [address])
        moment = down_since if down_since.tzinfo is not None else down_since.replace(tzinfo=UTC)
        if moment.timestamp() > time.time():
            raise InvalidInputError(
                f"{moment:%F %T} is in the future: give the time at which {address} went down", kind="refused"
            )
        return cls(address, moment.timestamp())

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks without the node, and whether it may return."""
        found = preflight(context.nodes, down=[self.address])
        return [*found, _time_finding(context, time.time() - self.down_since)]

    def steps(self, context: Context) -> list[Step]:
        """Start and sync."""
        return return_steps(context, self.address, self.down_since)


def return_steps(context: Context, address: str, down_since: float | None = None) -> list[Step]:
    """Start a node that was down, wait for hints, and repair if hints are incomplete."""

    def away_s() -> float:
        since = down_since if down_since is not None else context.notes["down_since"]
        until = context.notes.get("up_again", time.time())
        return float(until - since)

    def check() -> None:
        finding = _time_finding(context, away_s())
        if finding.level == "refused":
            raise InvalidInputError(f"{address} stays down: {finding.text}", kind="refused")

    def start() -> None:
        # Check on every attempt: an interruption may have lasted for days.
        if "up_again" not in context.notes:
            check()
        steps.start(context, address)

    def confirmed() -> str:
        seen = steps.await_up(context, address)
        if "up_again" not in context.notes:
            context.note(up_again=time.time())
        return seen

    def repair_if_needed() -> None:
        if away_s() > hint_window_s(context):
            repair_tables(context, reading.repairable(context.nodes, [], []), "return")

    return [
        Step(f"start {address}", f"start {address}", start, confirmed, check),
        steps.hints_step(context, address),
        sync_step(context, address, repair_if_needed),
    ]


def sync_step(context: Context, address: str, repair_first: Callable[[], None] = lambda: None) -> Step:
    """Compare a node with the other replicas, and repair differences."""
    return Step(
        f"whole {address}",
        f"compare {address} with the other replicas, and repair differences",
        repair_first,
        lambda: _await_in_sync(context),
    )


def _with_time_recorded(context: Context, down: list[Step]) -> list[Step]:
    """Record the time before the node stops, so that an interruption cannot shorten the downtime."""
    drain, *rest = down

    def do() -> None:
        if "down_since" not in context.notes:
            context.note(down_since=time.time())
        drain.do()

    return [Step(drain.name, drain.text, do, drain.prove, drain.check), *rest]


def _work_step(context: Context, address: str) -> Step:
    def wait() -> None:
        if "work" in context.notes:
            return
        context.note(work="begun")
        raise BusyError(
            f"{address} is stopped: do your work, then run chronotile ops resume. After more than "
            f"{hint_window_s(context) / 3600:.1f} h, a repair will be needed",
            kind="operator-needed",
        )

    return Step(f"work {address}", f"your work on {address}; then resume", wait, lambda: "the operator resumed")


def _await_in_sync(context: Context) -> str:
    """Preview a repair of every table; repair differences and preview again."""
    differing = []
    for group in grouped(context, reading.repairable(context.nodes, [], [])):
        if preview_differences(context, group):
            # Use a new purpose for each attempt: tables repaired earlier may differ again.
            repair_tables(context, group, f"proof {time.time()}")
            again = preview_differences(context, group)
            if again:
                differing.append(f"{', '.join(group)} ({again})")
    if differing:
        return f"repaired; clients write to {'; '.join(differing)}, so replicas differ briefly: preview without writes"
    return "a preview of a repair has nothing to stream"


def _time_finding(context: Context, away_s: float) -> Finding:
    return downtime_finding(away_s, hint_window_s(context), gc_grace_s(context))


def downtime_finding(away_s: float, window_s: float, grace_s: float) -> Finding:
    """Whether a node may return after a downtime, and what it needs."""
    text = f"down for {away_s / 60:.0f} min"
    if away_s > grace_s - MARGIN_S:
        return Finding(
            "refused", "time",
            f"{text}, and gc_grace is {grace_s / 3600:.1f} h: tombstones that it missed may be purged, and "
            "deleted rows would reappear. Replace the node by an empty one (chronotile ops replace)",
        )  # fmt: skip
    kept = f"hints are kept ({window_s / 3600:.1f} h)"
    if away_s > window_s:
        return Finding("warning", "time", f"{text}, longer than {kept}: the node will be repaired")
    return Finding("ok", "time", f"{text}, less than {kept}")


def hint_window_s(context: Context) -> float:
    """Shortest hint window of the live nodes, in seconds."""
    asked = any_serving(context.nodes)
    found = _WINDOW.search(context.nodes.nodetool(asked, "getmaxhintwindow", timeout_s=60))
    return int(found[1]) / 1000 if found else 0.0


def gc_grace_s(context: Context) -> float:
    """Shortest gc_grace of a replicated table, in seconds."""
    asked = any_serving(context.nodes)
    copied = {name for name, centres in copies(context.nodes, asked).items() if sum(centres.values()) > 1}
    rows = context.nodes.query(asked, statements.select("keyspace_name, gc_grace_seconds", "system_schema.tables"))
    times = [int(row["gc_grace_seconds"]) for row in rows
             if row["keyspace_name"] in copied and not is_system(row["keyspace_name"])]  # fmt: skip
    return float(min(times, default=864_000))
