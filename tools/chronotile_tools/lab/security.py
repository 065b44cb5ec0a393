"""Users of a cluster with authentication."""

from __future__ import annotations

import secrets
import ssl
import time

from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.lab import config, launching, places, state
from chronotile_tools.lab.errors import LabError
from chronotile_tools.lab.state import ClusterState

SUPERUSER = "lab"
_DEFAULT = ("cassandra", "cassandra")
_KEYSPACE = "system_auth"
_RETRY_S = 0.2


def replace_default_superuser(cluster: ClusterState, *, timeout_s: float) -> None:
    """Create a superuser with a random password, store both in the file ``credentials``, and drop the default user.

    The keyspace of users is first replicated to all nodes, so that logins work while a node is down.

    Raises
    ------
    LabError
        No node accepts the default user within `timeout_s`.
    """
    context = launching.client_context(cluster)
    address = cluster.nodes[0].address
    password = secrets.token_urlsafe(18)
    with _login_with_retries(cluster, timeout_s) as connection:
        connection.run(f"ALTER KEYSPACE {_KEYSPACE} WITH replication = {_replication(cluster)}")
        options = f"PASSWORD = '{password}' AND SUPERUSER = true AND LOGIN = true"
        connection.run(f"CREATE ROLE IF NOT EXISTS {SUPERUSER} WITH {options}")
    # Store the new login before the default user is dropped: an interruption in between would leave no known login.
    path = state.folder(cluster.name) / "credentials"
    places.write_whole(path, f"{SUPERUSER}\n{password}\n", mode=0o600)
    login = (SUPERUSER, password)
    with wire.Connection(address, config.NATIVE_PORT, tls=context, credentials=login) as connection:
        connection.run(f"DROP ROLE {_DEFAULT[0]}")
    # The node caches the login of the default user for a while.
    deadline = time.monotonic() + timeout_s
    while _default_user_can_log_in(address, context):
        if time.monotonic() > deadline:
            raise LabError("the default user can still log in", kind="lab-cql")
        time.sleep(_RETRY_S)


def _default_user_can_log_in(address: str, context: ssl.SSLContext | None) -> bool:
    try:
        wire.Connection(address, config.NATIVE_PORT, tls=context, credentials=_DEFAULT).close()
    except CqlError as error:
        return not error.bad_credentials
    return True


def _login_with_retries(cluster: ClusterState, timeout_s: float) -> wire.Connection:
    """Log in as the default user, which the nodes create some time after startup."""
    context = launching.client_context(cluster)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            address = cluster.nodes[0].address
            return wire.Connection(address, config.NATIVE_PORT, tls=context, credentials=_DEFAULT)
        except (OSError, CqlError) as error:
            if time.monotonic() > deadline:
                raise LabError(f"the default user cannot log in: {error}", kind="lab-cql") from error
        time.sleep(_RETRY_S)


def _replication(cluster: ClusterState) -> str:
    counts: dict[str, int] = {}
    for node in cluster.nodes:
        counts[node.dc] = min(3, counts.get(node.dc, 0) + 1)
    centres = ", ".join(f"'{dc}': {count}" for dc, count in counts.items())
    return "{'class': 'NetworkTopologyStrategy', " + centres + "}"
