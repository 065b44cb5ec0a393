"""CQL statements of procedures: system tables, the lease, replication. No other module of ``ops`` contains CQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MEMBER = "host_id, data_center, rack, release_version, tokens, schema_version"
KEYSPACE = "chronotile_ops"


def quoted(text: str) -> str:
    """Quote text as a constant."""
    return "'" + text.replace("'", "''") + "'"


def name(text: str) -> str:
    """Quote a name, preserving its case."""
    return '"' + text.replace('"', '""') + '"'


def select(columns: str, table: str, where: str = "") -> str:
    """All rows of a small table, or those that match a condition."""
    return f"SELECT {columns} FROM {table}" + (f" WHERE {where}" if where else "")


def server_time() -> str:
    """The node's clock, in milliseconds since 1970-01-01T00:00 UTC, as column ``now``."""
    return "SELECT toUnixTimestamp(now()) AS now FROM system.local"


def identity_time() -> str:
    """Time at which a node wrote its host id, in microseconds since 1970-01-01T00:00 UTC, as column ``made``. Restarts
    keep it; a node that starts with empty folders writes it again, even if it takes over an id.
    """
    return "SELECT writetime(host_id) AS made FROM system.local"


def replication(copies: Mapping[str, int]) -> str:
    """A map of replication by data centre."""
    centres = ", ".join(f"{quoted(dc)}: {count}" for dc, count in copies.items())
    return f"{{'class': 'NetworkTopologyStrategy', {centres}}}"


def constants(values: Mapping[str, str]) -> str:
    """A map of texts."""
    return "{" + ", ".join(f"{quoted(key)}: {quoted(value)}" for key, value in values.items()) + "}"


def create_keyspace(keyspace: str, copies: Mapping[str, int]) -> str:
    return create_keyspace_as(keyspace, replication(copies))


def create_keyspace_as(keyspace: str, replicated: str) -> str:
    """Create a keyspace with replication in the form of `system_schema.keyspaces`."""
    return f"CREATE KEYSPACE IF NOT EXISTS {name(keyspace)} WITH replication = {replicated}"


def alter_keyspace(keyspace: str, copies: Mapping[str, int]) -> str:
    return f"ALTER KEYSPACE {name(keyspace)} WITH replication = {replication(copies)}"


def create_leases() -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.leases (name text PRIMARY KEY, holder text, about text) "
        "WITH gc_grace_seconds = 864000"
    )


def take_lease(lease: str, holder: str, about: str, seconds: int | None) -> str:
    """Take a lease, permanent without `seconds`. Returns a column ``[applied]``."""
    life = "" if seconds is None else f" USING TTL {seconds}"
    values = ", ".join(map(quoted, (lease, holder, about)))
    return f"INSERT INTO {KEYSPACE}.leases (name, holder, about) VALUES ({values}) IF NOT EXISTS{life}"


def renew_lease(lease: str, holder: str, about: str, seconds: int, before: str) -> str:
    """Renew for `holder` if `before` holds the lease. Returns a column ``[applied]``."""
    return (
        f"UPDATE {KEYSPACE}.leases USING TTL {seconds} SET holder = {quoted(holder)}, about = {quoted(about)} "
        f"WHERE name = {quoted(lease)} IF holder = {quoted(before)}"
    )


def drop_lease(lease: str, holder: str) -> str:
    return f"DELETE FROM {KEYSPACE}.leases WHERE name = {quoted(lease)} IF holder = {quoted(holder)}"


def read_lease(lease: str) -> str:
    return select("holder, about", f"{KEYSPACE}.leases", f"name = {quoted(lease)}")


def describe(keyspace: str) -> str:
    """Statements that recreate a keyspace with all objects, including table ids: columns ``type``, ``name``,
    ``create_statement``.
    """
    return f"DESCRIBE KEYSPACE {name(keyspace)} WITH INTERNALS"


def full(keyspace: str, table: str) -> str:
    """The name of a table in CQL syntax."""
    return f"{name(keyspace)}.{name(table)}"


def drop_table(table: str) -> str:
    return f"DROP TABLE IF EXISTS {table}"


def any_row(table: str, key: str) -> str:
    """Any one row of a table; `key` is a column of the partition key."""
    return f"SELECT {name(key)} FROM {table} LIMIT 1"


def count_rows(table: str, keys: Sequence[str], first: int, last: int) -> str:
    """The number of rows whose tokens are above `first` and at most `last`, as column ``count``."""
    token = f"token({', '.join(map(name, keys))})"
    return f"SELECT COUNT(*) AS count FROM {table} WHERE {token} > {first} AND {token} <= {last}"
