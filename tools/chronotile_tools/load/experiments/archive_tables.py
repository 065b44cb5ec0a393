"""CQL of the study of read repair: an option of an archive's tables that no URL parameter sets, and a small table."""

from __future__ import annotations

from chronotile_tools import lab

__all__ = ["COLUMNS", "create_pairs", "read_pair", "read_repairs", "set_read_repair", "write_pair"]

_PAIRS = "pairs.pairs"
COLUMNS = {"one of two columns": "first", "both columns": "first, second"}
"""Columns of the small table to read, by name of the case."""


def read_repairs(cluster: lab.Cluster, keyspace: str) -> dict[str, str]:
    """Value of the option ``read_repair``, by table of a keyspace."""
    with cluster.nodes[0].connect() as connection:
        found = connection.select("keyspace_name, table_name, read_repair", "system_schema.tables")
    return {table: mode for owner, table, mode in found if owner == keyspace}


def set_read_repair(cluster: lab.Cluster, keyspace: str, mode: str) -> None:
    """Set the option of all existing tables of a keyspace. Tables that are created later have Cassandra's default."""
    tables = [table for table, found in read_repairs(cluster, keyspace).items() if found != mode]
    with cluster.nodes[0].connect() as connection:
        for table in tables:
            connection.run(f'ALTER TABLE "{keyspace}"."{table}" WITH read_repair = \'{mode}\'')


def create_pairs(node: lab.Node) -> str:
    """Create the small table with replication factor 3; return its keyspace."""
    keyspace, _, _ = _PAIRS.partition(".")
    with node.connect() as connection:
        copies = f"{{'class': 'NetworkTopologyStrategy', '{node.dc}': 3}}"
        connection.run(f"CREATE KEYSPACE {keyspace} WITH replication = {copies}")
        connection.run(f"CREATE TABLE {_PAIRS} (id int PRIMARY KEY, first int, second int)")
    return keyspace


def write_pair(node: lab.Node, id: int) -> None:
    """Write a row at QUORUM."""
    with node.connect() as connection:
        connection.run(f"INSERT INTO {_PAIRS} (id, first, second) VALUES ({id}, 1, 2)", consistency="QUORUM")


def read_pair(node: lab.Node, id: int, columns: str) -> int:
    """Read these columns of a row at QUORUM; return the number of rows."""
    with node.connect() as connection:
        return len(connection.run(f"SELECT {columns} FROM {_PAIRS} WHERE id = {id}", consistency="QUORUM").rows)
