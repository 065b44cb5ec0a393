"""A lease in the cluster, taken by lightweight transactions, that admits one operator at a time.

Two rows of ``chronotile_ops.leases`` matter. ``work`` marks a running procedure; it expires by the nodes' clocks unless
its holder renews it. ``unfinished`` stays until the work is finished or abandoned; it marks a cluster in an
intermediate state and names the journal.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

from chronotile.errors import BusyError, ChronotileError, OutcomeUnknownError
from chronotile_tools.ops.procedures import journal, statements
from chronotile_tools.ops.procedures.nodes import Nodes, Row, any_serving, members

LIFE_S = 60
"""Lifetime of a lease without renewal, in seconds."""
COPIES = 3
_TRIES = 5
_WORK, _UNFINISHED = "work", "unfinished"


class Lease:
    """The exclusive right to work on a cluster. A context manager that renews and releases it.

    Parameters
    ----------
    nodes : Nodes
        Access to the nodes.
    about : dict
        Description of the work: ``procedure``, ``id`` (of its journal), ``host`` and ``journal``.
    life_s : int
        Lifetime without renewal, in seconds.
    """

    def __init__(self, nodes: Nodes, about: dict[str, str], *, life_s: int = LIFE_S) -> None:
        self.nodes = nodes
        self.about = {**about, "who": f"{getpass.getuser()}@{socket.gethostname()}"}
        self.life_s = life_s
        self.holder = f"{self.about['who']}:{os.getpid()}:{secrets.token_hex(4)}"
        self._until = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> Self:
        prepare(self.nodes)
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        try:
            self._ask(statements.drop_lease(_WORK, self.holder))
        except ChronotileError:
            # The lease expires by itself.
            return

    def check(self) -> None:
        """Check that no other operator works on the cluster.

        If too few replicas are up to decide, for example because one of two nodes is stopped, no other operator can
        start either, and the ``unfinished`` mark blocks others afterwards.

        Raises
        ------
        BusyError
            Kind ``lease-lost``: it expired, and another operator holds it. Stop all work.
        """
        if time.monotonic() <= self._until:
            return
        try:
            self._take(tries=1)
        except OutcomeUnknownError:
            return
        except BusyError as error:
            raise BusyError(f"stopped, because the lease expired: {error}", kind="lease-lost") from None

    def begin(self, *, take_over: bool) -> None:
        """Mark this work as unfinished in the cluster.

        Raises
        ------
        BusyError
            Kind ``unfinished``: other work is unfinished, and `take_over` is False.
        """
        about = json.dumps(self.about)
        for _ in range(_TRIES):
            row = self._ask(statements.take_lease(_UNFINISHED, self.about["id"], about, None))
            if _applied(row) or row.get("holder") == self.about["id"]:
                return
            other = json.loads(row["about"])
            if not take_over and not _is_over(other):
                raise BusyError(
                    f"{describe(other)} Or check the nodes and plan again (--again)",
                    kind="unfinished",
                )
            self._ask(statements.drop_lease(_UNFINISHED, row["holder"]))
        raise BusyError(
            "another operator started work on the cluster at the same moment: repeat the command", kind="lost-race"
        )

    def finish(self) -> None:
        """Mark this work as finished or abandoned in the cluster."""
        self._ask(statements.drop_lease(_UNFINISHED, self.about["id"]))

    def _take(self, *, tries: int = _TRIES) -> None:
        # Count from before the request: the nodes start the lifetime later, so the lease outlives `_until`.
        began, about = time.monotonic(), json.dumps(self.about)
        row = self._ask(statements.take_lease(_WORK, self.holder, about, self.life_s), tries=tries)
        if not _applied(row):
            other = json.loads(row["about"])
            # The lease is still ours; or we hold the journal of the same work, so its former holder has ended.
            if other["id"] == self.about["id"]:
                row = self._ask(
                    statements.renew_lease(_WORK, self.holder, about, self.life_s, row["holder"]), tries=tries
                )
        if not _applied(row):
            raise BusyError(
                f"{other['who']} is working on the cluster ({other['procedure']}): wait until it has "
                f"finished. If that process has crashed, its lease expires within {self.life_s} s",
                kind="busy",
            )
        self._until = began + self.life_s

    def _renew(self) -> None:
        while not self._stop.wait(self.life_s / 4):
            began = time.monotonic()
            try:
                about = json.dumps(self.about)
                renew = statements.renew_lease(_WORK, self.holder, about, self.life_s, self.holder)
                row = self._ask(renew, tries=1)
            except ChronotileError:
                continue
            # If the lease expires while renewal fails, the next check takes it again.
            self._until = began + self.life_s if _applied(row) else 0.0

    def _ask(self, statement: str, *, tries: int = _TRIES) -> Row:
        """Run a conditional statement. Repeating it is safe, because the holder shows whose statement took effect."""
        last: ChronotileError | None = None
        for attempt in range(tries):
            try:
                rows = self.nodes.query(any_serving(self.nodes), statement, consistency="QUORUM", timeout_s=15)
                return rows[0]
            except ChronotileError as error:
                last = error
                time.sleep(min(0.2 * 2**attempt, 2))
        raise OutcomeUnknownError(
            f"the cluster could not decide on the lease: {last}", kind="outcome-unknown"
        ) from last


def prepared(nodes: Nodes) -> bool:
    """Whether keyspace and table of the lease exist."""
    where = f"keyspace_name = {statements.quoted(statements.KEYSPACE)}"
    return bool(nodes.query(any_serving(nodes), statements.select("table_name", "system_schema.tables", where)))


def prepare(nodes: Nodes) -> None:
    """Create keyspace and table of the lease if missing."""
    if prepared(nodes):
        return
    asked = any_serving(nodes)
    counts = Counter(member.dc for member in members(nodes, asked))
    copies = {dc: min(count, COPIES) for dc, count in counts.items()}
    nodes.query(asked, statements.create_keyspace(statements.KEYSPACE, copies), timeout_s=30)
    nodes.query(asked, statements.create_leases(), timeout_s=30)


def unfinished(nodes: Nodes) -> dict[str, Any] | None:
    """Work marked as unfinished in the cluster."""
    if not prepared(nodes):
        return None
    # A serial read also sees a transaction that was accepted but not completed.
    rows = nodes.query(any_serving(nodes), statements.read_lease(_UNFINISHED), consistency="SERIAL")
    return json.loads(rows[0]["about"]) if rows else None


def unfinished_elsewhere(nodes: Nodes) -> dict[str, Any] | None:
    """Work that is marked as unfinished in the cluster and is not over; None also if the cluster cannot decide."""
    try:
        other = unfinished(nodes)
    except ChronotileError:
        return None
    return None if other is None or _is_over(other) else other


def describe(other: dict[str, str]) -> str:
    """Describe unfinished work and how to resume it."""
    return (
        f"{other['procedure']}, started by {other['who']}, is unfinished; its journal is {other['journal']} "
        f"on {other['host']}. Resume it there: chronotile ops resume."
    )


def _is_over(other: dict[str, str]) -> bool:
    """Whether work on this machine was interrupted before its first step or after its last."""
    if other["host"] != socket.gethostname():
        return False
    # The mark is set before its journal exists, and cleared after the last entry of the journal.
    path = Path(other["journal"])
    return not path.exists() or journal.ended(path)


def _applied(row: Row) -> bool:
    return row["[applied]"] == "True"
