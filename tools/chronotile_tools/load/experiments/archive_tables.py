"""Tables of an archive on a cluster: options that no URL sets."""

from __future__ import annotations

from chronotile_tools import lab

__all__ = ["read_repairs", "set_read_repair"]


def read_repairs(cluster: lab.Cluster, keyspace: str) -> dict[str, str]:
    """The option ``read_repair`` of each table of a keyspace."""
    with cluster.nodes[0].connect() as connection:
        found = connection.select("keyspace_name, table_name, read_repair", "system_schema.tables")
    return {table: mode for owner, table, mode in found if owner == keyspace}


def set_read_repair(cluster: lab.Cluster, keyspace: str, mode: str) -> None:
    """Give all tables that a keyspace has now this option. Tables that are created later have Cassandra's default."""
    tables = [table for table, found in read_repairs(cluster, keyspace).items() if found != mode]
    with cluster.nodes[0].connect() as connection:
        for table in tables:
            connection.run(f'ALTER TABLE "{keyspace}"."{table}" WITH read_repair = \'{mode}\'')
