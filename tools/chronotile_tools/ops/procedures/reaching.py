"""`Nodes` through an operator's access to a cluster."""

from __future__ import annotations

from chronotile.errors import AccessDeniedError, ChronotileError, InvalidInputError, UnavailableError
from chronotile_tools.errors import CqlError
from chronotile_tools.ops.access import Access, Host, Runner
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.nodes import Row


class AccessNodes:
    """Nodes of an `Access`, discovered from those that answer.

    Raises
    ------
    InvalidInputError
        The access does not include nodetool, which procedures need.
    """

    def __init__(self, access: Access) -> None:
        if access.runner is None:
            raise InvalidInputError(
                "nodetool is required: pass --nodetool 'ssh {host} nodetool' or --lab NAME",
                kind="invalid-request",
            )
        self.access = access
        self._runner: Runner = access.runner
        self._hosts: dict[str, Host] = {}

    def addresses(self) -> list[str]:
        """Addresses of all nodes, from the runner or else from a node."""
        given = self._runner.hosts()
        if given:
            return given
        for point in [*self._hosts, *self.access.contact_points]:
            try:
                self._learn(point)
                break
            except ChronotileError:
                continue
        return list(self._hosts) or list(self.access.contact_points)

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool."""
        return self._runner.nodetool(self._host(address), *arguments, timeout_s=timeout_s)

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        """Run a statement."""
        try:
            with self.access.connect(address, timeout_s=timeout_s) as connection:
                answer = connection.run(statement, consistency=consistency)
        except CqlError as error:
            if error.unauthorized:
                raise self.access.explained(error, address) from error
            # Codes from 0x2000 on concern the statement itself; lower ones, temporary failures of the coordinator.
            if (error.details.get("code") or 0) >= 0x2000:
                raise InvalidInputError(f"{address} rejects the statement: {error}", kind="invalid-cql") from error
            raise UnavailableError(f"{address}: {error}", kind="too-few-replicas") from error
        except AccessDeniedError:
            # It is also an OSError, but has its own meaning.
            raise
        except OSError as error:
            raise UnavailableError(f"{address} does not answer: {error}", kind="no-node") from error
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]

    def shell(self, address: str, *command: str, timeout_s: float = 60) -> str:
        """Run a command on the node's machine."""
        return self._runner.shell(self._host(address), *command, timeout_s=timeout_s)

    def archive_url(self, keyspace: str) -> str:
        """The URL of an archive in a keyspace. User and password of the environment are used with it."""
        hosts = ",".join(f"{point}:{self.access.port}" for point in self.access.contact_points)
        return f"cassandra://{hosts}/{keyspace}"

    def _host(self, address: str) -> Host:
        return self._hosts.get(address) or Host(address, address)

    def _learn(self, point: str) -> None:
        """Query one node for all addresses; forget nodes that have left."""
        local = self.query(point, statements.select("broadcast_address, rpc_address", "system.local"))
        peers = self.query(point, statements.select("peer, native_address", "system.peers_v2"))
        pairs = [(row["broadcast_address"], row["rpc_address"]) for row in local]
        pairs += [(row["peer"], row["native_address"]) for row in peers]
        self._hosts = {native: Host(address, native) for address, native in pairs}
