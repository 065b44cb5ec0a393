"""One operator at a time: a lease in the cluster itself, decided by lightweight transaction.

Two rows of ``chronotile_ops.leases`` matter. ``work`` expires by the nodes' clocks unless its holder renews it: it says
that somebody is at work. ``unfinished`` stays until the work is finished or given up: it says that the cluster may be
in between, and where the journal lies.
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
"""Seconds after which the lease of an operator who is gone ends."""
COPIES = 3
_TRIES = 5
_WORK, _UNFINISHED = "work", "unfinished"


class Lease:
    """The right to work on a cluster. A context manager that renews it and gives it back.

    Parameters
    ----------
    nodes : Nodes
        The way to the nodes.
    about : dict
        What the work is: ``procedure``, ``id`` (of its journal), ``host`` and ``journal``.
    life_s : int
        Seconds after which it ends when it is not renewed.
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
            # It ends by itself.
            return

    def check(self) -> None:
        """Make sure that nobody else works on the cluster.

        Where too few replicas are up to decide that, as when one of two nodes is stopped, nobody else can begin either,
        and what is said to be unfinished keeps others away when they are back.

        Raises
        ------
        BusyError
            Kind ``lease-lost``: it ended, and somebody else has it now. Nothing more may be done.
        """
        if time.monotonic() <= self._until:
            return
        try:
            self._take(tries=1)
        except OutcomeUnknownError:
            return
        except BusyError as error:
            raise BusyError(f"the work stops here, its lease ended: {error}", kind="lease-lost") from None

    def begin(self, *, take_over: bool) -> None:
        """Say in the cluster that this work is unfinished.

        Raises
        ------
        BusyError
            Kind ``unfinished``: other work is, and `take_over` does not say to give that up.
        """
        about = json.dumps(self.about)
        for _ in range(_TRIES):
            row = self._ask(statements.take_lease(_UNFINISHED, self.about["id"], about, None))
            if _applied(row) or row.get("holder") == self.about["id"]:
                return
            other = json.loads(row["about"])
            if not take_over and not _is_over(other):
                raise BusyError(
                    f"{told(other)} Or plan anew (--again) once you have looked at the nodes",
                    kind="unfinished",
                )
            self._ask(statements.drop_lease(_UNFINISHED, row["holder"]))
        raise BusyError("others begin work on the cluster at the same moment: repeat", kind="lost-race")

    def finish(self) -> None:
        """Say in the cluster that this work is finished, or was given up."""
        self._ask(statements.drop_lease(_UNFINISHED, self.about["id"]))

    def _take(self, *, tries: int = _TRIES) -> None:
        began, about = time.monotonic(), json.dumps(self.about)
        row = self._ask(statements.take_lease(_WORK, self.holder, about, self.life_s), tries=tries)
        if not _applied(row):
            other = json.loads(row["about"])
            # Ours still; or who holds the journal of the same work knows that its former holder is gone.
            if other["id"] == self.about["id"]:
                row = self._ask(
                    statements.renew_lease(_WORK, self.holder, about, self.life_s, row["holder"]), tries=tries
                )
        if not _applied(row):
            raise BusyError(
                f"{other['who']} works on the cluster ({other['procedure']}): wait for the end. "
                f"Where that process is gone, its lease ends within {self.life_s} s",
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
            # Where it ended while it could not be renewed, the next check takes it anew.
            self._until = began + self.life_s if _applied(row) else 0.0

    def _ask(self, statement: str, *, tries: int = _TRIES) -> Row:
        """Run a conditional statement; all of these may be repeated, as the holder tells whose effect it was."""
        last: ChronotileError | None = None
        for attempt in range(tries):
            try:
                rows = self.nodes.query(any_serving(self.nodes), statement, consistency="QUORUM", timeout_s=15)
                return rows[0]
            except ChronotileError as error:
                last = error
                time.sleep(min(0.2 * 2**attempt, 2))
        raise OutcomeUnknownError(
            f"the cluster did not decide about the lease: {last}", kind="outcome-unknown"
        ) from last


def prepared(nodes: Nodes) -> bool:
    """Whether the cluster has the keyspace and table of the lease."""
    where = f"keyspace_name = {statements.quoted(statements.KEYSPACE)}"
    return bool(nodes.query(any_serving(nodes), statements.select("table_name", "system_schema.tables", where)))


def prepare(nodes: Nodes) -> None:
    """Make the keyspace and table of the lease where they are missing."""
    if prepared(nodes):
        return
    asked = any_serving(nodes)
    counts = Counter(member.dc for member in members(nodes, asked))
    copies = {dc: min(count, COPIES) for dc, count in counts.items()}
    nodes.query(asked, statements.create_keyspace(statements.KEYSPACE, copies), timeout_s=30)
    nodes.query(asked, statements.create_leases(), timeout_s=30)


def unfinished(nodes: Nodes) -> dict[str, Any] | None:
    """What is said to be unfinished in the cluster."""
    if not prepared(nodes):
        return None
    rows = nodes.query(any_serving(nodes), statements.read_lease(_UNFINISHED), consistency="SERIAL")
    return json.loads(rows[0]["about"]) if rows else None


def unfinished_elsewhere(nodes: Nodes) -> dict[str, Any] | None:
    """What is said to be unfinished in the cluster and is not over; None also where the cluster cannot decide."""
    try:
        other = unfinished(nodes)
    except ChronotileError:
        return None
    return None if other is None or _is_over(other) else other


def told(other: dict[str, str]) -> str:
    """What unfinished work is, and how it is gone on with."""
    return (
        f"{other['procedure']}, begun by {other['who']}, was not finished; its journal is {other['journal']} on "
        f"{other['host']}. Go on with it there: chronotile ops resume."
    )


def _is_over(other: dict[str, str]) -> bool:
    """Whether work on this machine was cut off before its first step or after its last."""
    if other["host"] != socket.gethostname():
        return False
    path = Path(other["journal"])
    return not path.exists() or journal.ended(path)


def _applied(row: Row) -> bool:
    return row["[applied]"] == "True"
