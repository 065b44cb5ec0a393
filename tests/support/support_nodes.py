"""Fake nodes in memory, for tests of decisions of procedures; they answer the queries of these tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from chronotile.errors import ChronotileError, UnavailableError
from chronotile_tools.ops.procedures.nodes import Row

_LEASE_INSERT = re.compile(r"INSERT INTO \S+ \(name, holder, about\) VALUES \('(.*?)', '(.*?)', '(.*)'\) IF NOT EXISTS")
_LEASE_UPDATE = re.compile(
    r"UPDATE \S+ USING TTL \d+ SET holder = '(.*?)', about = '(.*)' WHERE name = '(.*?)' IF holder = '(.*?)'"
)
_LEASE_DELETE = re.compile(r"DELETE FROM \S+ WHERE name = '(.*?)' IF holder = '(.*?)'")


def host_id(address: str) -> str:
    """A host id made from the last part of the address."""
    return "00000000-0000-0000-0000-{:0>12}".format(address.rpartition(".")[2])


@dataclass
class MemoryNodes:
    """A cluster whose nodes are all up and agree on the schema."""

    members: list[str]
    """Addresses of its members."""
    answers: dict[str, list[Row]] = field(default_factory=dict)
    """Rows to return for statements that contain the key."""
    tools: dict[str, Callable[[str, tuple[str, ...]], str]] = field(default_factory=dict)
    """Fake nodetool commands, called with the node's address and the arguments; they return the output."""
    leases: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Holder and description of each lease by name."""
    ran: list[tuple[str, ...]] = field(default_factory=list)
    """Nodetool commands in order, each with the node's address first."""

    def addresses(self) -> list[str]:
        return list(self.members)

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        self.ran.append((address, *arguments))
        if arguments[0] in self.tools:
            return self.tools[arguments[0]](address, arguments[1:])
        if arguments[0] == "status":
            return "\n".join(f"UN  {one}  1 KiB  16  100%  {host_id(one)}  r1" for one in self.members)
        raise ChronotileError(f"no fake for nodetool {arguments[0]}", kind="command-failed")

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        if address not in self.members:
            raise UnavailableError(f"no node accepts clients at {address}", kind="no-connection")
        for part, rows in self.answers.items():
            if part in statement:
                return rows
        return self._of_leases(statement) or self._of_system(address, statement)

    def shell(self, address: str, *command: str, timeout_s: float = 60) -> str:
        raise UnavailableError("no access to the machine", kind="no-connection")

    def _of_system(self, address: str, statement: str) -> list[Row]:
        if statement.startswith("SELECT key FROM system.local"):
            return [{"key": "local"}]
        if "system.peers_v2" in statement:
            return [self._member(one) for one in self.members if one != address]
        if "FROM system.local" in statement:
            return [self._member(address)]
        if "FROM system_schema.tables WHERE keyspace_name = 'chronotile_ops'" in statement:
            return [{"table_name": "leases"}]
        if "system_schema.keyspaces" in statement:
            return [{"keyspace_name": "field", "replication": "{'class': 'NetworkTopologyStrategy', 'dc1': '3'}"}]
        return []

    def _member(self, address: str) -> Row:
        return {
            "host_id": host_id(address), "data_center": "dc1", "rack": "r1", "release_version": "5.0.8",
            "tokens": "['1']", "schema_version": "one", "native_address": address, "cluster_name": "memory",
        }  # fmt: skip

    def _of_leases(self, statement: str) -> list[Row]:
        if statement.startswith("SELECT holder, about FROM"):
            name = statement.rpartition("name = '")[2].rstrip("'")
            held = self.leases.get(name)
            return [] if held is None else [{"holder": held[0], "about": held[1]}]
        if found := _LEASE_INSERT.match(statement):
            name, holder, about = found.groups()
            if name in self.leases:
                return [_refused(*self.leases[name])]
            self.leases[name] = (holder, about.replace("''", "'"))
            return [{"[applied]": "True"}]
        if found := _LEASE_UPDATE.match(statement):
            holder, about, name, before = found.groups()
            if self.leases.get(name, ("", ""))[0] != before:
                return [_refused(*self.leases.get(name, ("", "{}")))]
            self.leases[name] = (holder, about.replace("''", "'"))
            return [{"[applied]": "True"}]
        if found := _LEASE_DELETE.match(statement):
            name, holder = found.groups()
            if self.leases.get(name, ("", ""))[0] == holder:
                del self.leases[name]
            return [{"[applied]": "True"}]
        return []


def _refused(holder: str, about: str) -> Row:
    return {"[applied]": "False", "holder": holder, "about": about}


class RecordingActuator:
    """An actuator that records all calls and does nothing, except that the verb `fail` raises an error."""

    def __init__(self, nodes: MemoryNodes, fail: str = "") -> None:
        self.nodes, self.fail = nodes, fail
        self.done: list[tuple[str, ...]] = []

    def can(self, verb: str) -> bool:
        return verb != "retire"

    def _do(self, *what: str) -> None:
        if what[0] == self.fail:
            raise ChronotileError(f"{what[0]} failed", kind="command-failed")
        self.done.append(what)

    def stop(self, address: str) -> None:
        self._do("stop", address)

    def start(self, address: str) -> None:
        self._do("start", address)

    def install(self, address: str, release: str) -> None:
        self._do("install", address, release)

    def join(self, address: str) -> str:
        self._do("join", address)
        return address

    def replace(self, dead: str, address: str) -> str:
        self._do("replace", dead, address)
        return address

    def retire(self, address: str) -> None:
        self._do("retire", address)

    def configure(self, address: str, setting: str, value: str) -> None:
        self._do("configure", address, setting, value)

    def work(self, address: str, job: Any, *, timeout_s: float) -> None:
        self._do(job.verb, address)
        job.run(str)
