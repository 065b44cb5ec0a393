"""Steps shared by procedures: taking a node down and bringing it back."""

from __future__ import annotations

import re
import time

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.engine import Context, Step
from chronotile_tools.ops.procedures.nodes import (
    Member,
    all_members,
    answers,
    any_serving,
    members,
    node_statuses,
    wait_for,
)

DISPATCH_S = 12.0
"""Seconds between rounds of the hints dispatcher."""
_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)


def down_steps(context: Context, address: str) -> list[Step]:
    """Drain and stop a node."""
    return [
        Step(
            f"drain {address}",
            f"drain {address}: it flushes memory to disk and notifies clients and nodes",
            lambda: drain(context, address),
            lambda: await_drained(context, address),
            lambda: require_others_up(context, address),
        ),
        Step(
            f"stop {address}",
            f"stop {address}",
            lambda: context.actuator.stop(address),
            lambda: await_down(context, address),
        ),
    ]


def up_step(context: Context, address: str, *, release: str = "", changes: tuple[str, ...] = ()) -> Step:
    """Start a node; verified when all nodes see each other up and normal."""
    return Step(
        f"start {address}",
        f"start {address}" + (f" with Cassandra {release}" if release else ""),
        lambda: start(context, address),
        lambda: await_up(context, address, release),
        changes=changes,
    )


def hints_step(context: Context, address: str) -> Step:
    """Wait until the other nodes have delivered their hints for a node."""
    return Step(
        f"hints {address}",
        f"wait until the other nodes have delivered their hints for {address}",
        lambda: None,
        lambda: await_hints_delivered(context, address),
    )


def member(context: Context, address: str) -> Member:
    """Find the node at an address.

    Raises
    ------
    InvalidInputError
        No node has this address.
    """
    known = all_members(context.nodes)
    for one in known:
        if one.address == address:
            return one
    there = ", ".join(one.address for one in known)
    raise InvalidInputError(f"the cluster has no node {address}; it has {there}", kind="node-not-found")


def require_others_up(context: Context, address: str) -> None:
    """Raise an error if another node is down."""
    asked = any_serving(context.nodes, without=[address])
    bad = [seen.address for seen in node_statuses(context.nodes, asked) if not seen.normal and seen.address != address]
    if bad:
        raise InvalidInputError(
            f"{', '.join(bad)} is not up and normal: with {address} down too, writes would fail. Bring it back first",
            kind="refused",
        )


def drain(context: Context, address: str) -> None:
    """Drain a node, unless it is down or drained."""
    try:
        seen = mode(context, address)
    except ChronotileError:
        await_down(context, address)
        return
    if seen not in ("DRAINED", "DRAINING"):
        context.nodes.nodetool(address, "drain", timeout_s=context.node_s)


def await_drained(context: Context, address: str) -> str:
    """Wait until a node is drained, or down."""

    def missing() -> str:
        try:
            seen = mode(context, address)
        except ChronotileError:
            return _sees_up(context, address)
        return "" if seen == "DRAINED" else f"it is {seen}"

    wait_for(f"draining {address}", missing, timeout_s=context.node_s)
    return f"{address} is drained"


def await_down(context: Context, address: str) -> str:
    """Wait until the others see a node down and it accepts no clients."""

    def missing() -> str:
        return f"{address} accepts clients" if answers(context.nodes, address) else _sees_up(context, address)

    wait_for(f"the end of {address}", missing, timeout_s=context.node_s)
    return f"the other nodes see {address} down"


def start(context: Context, address: str) -> None:
    """Start a node, unless it serves clients."""
    if not answers(context.nodes, address):
        context.actuator.start(address)


def await_up(context: Context, address: str, release: str = "") -> str:
    """Wait until a node serves clients and it and all others see each other up and normal."""

    def missing() -> str:
        if not answers(context.nodes, address):
            return f"{address} accepts no clients"
        known = members(context.nodes, address)
        if release and known[0].release != release:
            return f"{address} runs {known[0].release}, not {release}"
        others = [one.address for one in known[1:]]
        for asked in [address, *others]:
            seen = {one.address for one in node_statuses(context.nodes, asked) if one.normal}
            # Ask the others only about this node: meanwhile they may see another one down.
            lost = {address, *others} - seen if asked == address else {address} - seen
            if lost:
                return f"{asked} does not see {', '.join(sorted(lost))} up and normal"
        return ""

    wait_for(f"the start of {address}", missing, timeout_s=context.node_s)
    return f"{address} serves, and all nodes see each other up and normal"


def await_hints_delivered(context: Context, address: str) -> str:
    """Wait until no other node holds hints for a node."""
    host = member(context, address).host_id
    others = [one.address for one in all_members(context.nodes) if one.address != address]
    quiet_since = time.monotonic()

    def missing() -> str:
        nonlocal quiet_since
        holders = [one for one in others if _keeps_hints(context, one, host)]
        if holders:
            quiet_since = time.monotonic()
            return f"hints held by {', '.join(holders)}"
        # If pending hints cannot be queried, wait for one idle round of the dispatcher.
        return "" if time.monotonic() - quiet_since >= _rest_s(context, others) else "waiting for a round of hints"

    wait_for(f"the hints for {address}", missing, timeout_s=context.stream_s)
    return f"no node holds hints for {address}"


def _keeps_hints(context: Context, address: str, host_id: str) -> bool:
    try:
        rows = context.nodes.query(address, statements.select("host_id", "system_views.pending_hints"))
    except ChronotileError as error:
        if error.kind in ("no-node", "no-connection"):
            raise
        pools = context.nodes.query(
            address, statements.select("name, active_tasks, pending_tasks", "system_views.thread_pools")
        )
        return any(
            row["name"] == "HintsDispatcher" and (row["active_tasks"], row["pending_tasks"]) != ("0", "0")
            for row in pools
        )
    return any(row["host_id"] == host_id for row in rows)


def _rest_s(context: Context, others: list[str]) -> float:
    known = {one.address: one.release for one in all_members(context.nodes)}
    return DISPATCH_S if any(known.get(other, "").startswith("4.0.") for other in others) else 0.0


def mode(context: Context, address: str) -> str:
    """Operation mode reported by a node: ``NORMAL``, ``JOINING``, ``DRAINED`` and so on."""
    return activity(context, address)[0]


def activity(context: Context, address: str) -> tuple[str, bool]:
    """Operation mode of a node, and whether it has active streams."""
    output = context.nodes.nodetool(address, "netstats", timeout_s=60)
    found = _MODE.search(output)
    return (found[1] if found else "UNKNOWN", "Not sending any streams" not in output)


def _sees_up(context: Context, address: str) -> str:
    asked = any_serving(context.nodes, without=[address])
    up = [seen for seen in node_statuses(context.nodes, asked) if seen.address == address and seen.up]
    return f"{asked} sees {address} up" if up else ""
