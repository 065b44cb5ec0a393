"""Read schemas of keyspaces, compare them with a backup, and recreate them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from chronotile.errors import BusyError, InvalidInputError
from chronotile_tools.ops.backups import schema_text
from chronotile_tools.ops.backups.manifests import Schema
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.nodes import Member, Nodes, any_serving, is_system
from chronotile_tools.ops.procedures.preflight import copies

ARCHIVE_TABLES = frozenset({"meta", "leases", "slices", "catalog"})
"""Catalog tables of a Chronotile archive, which describe the content of all others."""
SCHEMA_S = 120.0
TRIES = 20


def user_keyspaces(nodes: Nodes, wanted: Sequence[str]) -> list[str]:
    """Check keyspace names, or list all user keyspaces.

    Raises
    ------
    InvalidInputError
        A keyspace does not exist or may not be backed up; or the cluster has no user keyspace.
    """
    rows = nodes.query(any_serving(nodes), statements.select("keyspace_name", "system_schema.keyspaces"))
    known = sorted(row["keyspace_name"] for row in rows)
    able = [name for name in known if not is_system(name) and name != statements.KEYSPACE]
    for name in wanted:
        if name not in able:
            why = "is a system keyspace" if name in known else "does not exist"
            raise InvalidInputError(
                f"keyspace {name} {why}; choose from {', '.join(able) or 'none'}", kind="table-not-found"
            )
    if not able:
        raise InvalidInputError("the cluster has no user keyspaces", kind="table-not-found")
    return sorted(set(wanted)) or able


def read(nodes: Nodes, keyspaces: Collection[str]) -> Schema:
    """Read a consistent schema of keyspaces, without materialized views.

    Raises
    ------
    BusyError
        The schema kept changing while it was read.
    """
    asked = any_serving(nodes)
    found = _without_statements(nodes, asked, keyspaces)
    for _ in range(TRIES):
        # The statements belong to the schema only if it is the same before and after they are read.
        described = _described(nodes, asked, keyspaces)
        before, found = found, _without_statements(nodes, asked, keyspaces)
        if found == before:
            return replace(found, statements=described)
    raise BusyError(
        f"tables of {', '.join(sorted(keyspaces))} keep being created or changed: resume when that has ended",
        kind="busy",
    )


def _described(nodes: Nodes, asked: str, keyspaces: Collection[str]) -> list[dict[str, str]]:
    return [
        {"keyspace": keyspace, "type": row["type"], "name": row["name"], "statement": row["create_statement"]}
        for keyspace in sorted(keyspaces)
        for row in nodes.query(asked, statements.describe(keyspace), timeout_s=SCHEMA_S)
        if row["type"] not in ("keyspace", "materialized_view")
    ]


def _without_statements(nodes: Nodes, asked: str, keyspaces: Collection[str]) -> Schema:
    replication = {name: dict(found) for name, found in copies(nodes, asked).items() if name in keyspaces}
    columns = _columns(nodes, asked, keyspaces)
    return Schema(replication, [], tables_of(nodes, keyspaces), columns, strategies_of(nodes, keyspaces))


def strategies_of(nodes: Nodes, keyspaces: Collection[str]) -> dict[str, str]:
    """Replication of existing keyspaces, in CQL syntax."""
    rows = nodes.query(any_serving(nodes), statements.select("keyspace_name, replication", "system_schema.keyspaces"))
    return {row["keyspace_name"]: row["replication"] for row in rows if row["keyspace_name"] in keyspaces}


def tables_of(nodes: Nodes, keyspaces: Collection[str]) -> list[dict[str, str]]:
    """Keyspace, name and id of each table."""
    rows = nodes.query(any_serving(nodes), statements.select("keyspace_name, table_name, id", "system_schema.tables"))
    return [
        {"keyspace": row["keyspace_name"], "name": row["table_name"], "id": row["id"].replace("-", "")}
        for row in rows
        if row["keyspace_name"] in keyspaces
    ]


def views_of(nodes: Nodes, keyspaces: Collection[str]) -> list[str]:
    """Full names of materialized views."""
    rows = nodes.query(any_serving(nodes), statements.select("keyspace_name, view_name", "system_schema.views"))
    return [f"{row['keyspace_name']}.{row['view_name']}" for row in rows if row["keyspace_name"] in keyspaces]


def _columns(nodes: Nodes, asked: str, keyspaces: Collection[str]) -> dict[str, dict[str, str]]:
    wanted = "keyspace_name, table_name, column_name, kind, type"
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in nodes.query(asked, statements.select(wanted, "system_schema.columns")):
        if row["keyspace_name"] in keyspaces:
            found[f"{row['keyspace_name']}.{row['table_name']}"][row["column_name"]] = f"{row['kind']} {row['type']}"
    return dict(found)


def archives(tables: Sequence[Mapping[str, str]]) -> list[str]:
    """Keyspaces that contain a Chronotile archive."""
    names: dict[str, set[str]] = defaultdict(set)
    for table in tables:
        names[table["keyspace"]].add(table["name"])
    return sorted(keyspace for keyspace, found in names.items() if found >= ARCHIVE_TABLES)


def differences(backup: Schema, found: Schema, keyspaces: Collection[str]) -> list[str]:
    """Differences between existing tables and those of a backup."""
    wanted = {f"{table['keyspace']}.{table['name']}" for table in backup.tables if table["keyspace"] in keyspaces}
    there = {f"{table['keyspace']}.{table['name']}" for table in found.tables}
    differences = [f"{table} does not exist" for table in sorted(wanted - there)]
    differences += [f"{table} is not in the backup" for table in sorted(there - wanted)]
    for table in sorted(wanted & there):
        before, now = backup.columns.get(table, {}), found.columns.get(table, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                differences.append(
                    f"column {name} of {table} is {now.get(name, 'missing')}, not {before.get(name, 'there')}"
                )
    return differences


def type_differences(backup: Schema, found: Schema) -> list[str]:
    """Existing types and functions that differ from those of a backup, and cannot be recreated."""
    before = {_place(one): one["statement"] for one in backup.statements}
    return [
        f"{one['type']} {one['keyspace']}.{one['name']} differs from the backup: first drop it, or the keyspace"
        for one in found.statements
        if one["type"] in ("type", "function", "aggregate")
        and before.get(_place(one), one["statement"]) != one["statement"]
    ]


def _place(statement: Mapping[str, str]) -> tuple[str, str, str]:
    return statement["keyspace"], statement["type"], statement["name"]


def fitting_replication(replication: Mapping[str, int], members: Sequence[Member]) -> dict[str, int]:
    """Replication factors by data centre that the cluster's nodes can hold.

    Data centres of the same name keep their factor, limited by their nodes. If no name matches, each gets the largest
    factor of the backup.
    """
    nodes_of: dict[str, int] = defaultdict(int)
    for member in members:
        nodes_of[member.dc] += 1
    most = max(replication.values(), default=1)
    wanted = {dc: count for dc, count in replication.items() if dc in nodes_of} or dict.fromkeys(nodes_of, most)
    return {dc: min(count, nodes_of[dc]) for dc, count in wanted.items()}


def refusals(backup: Schema, keyspaces: Collection[str]) -> list[str]:
    """Reasons why statements of a backup would be rejected, one sentence each."""
    return list(schema_text.refusals(one for one in backup.statements if one["keyspace"] in keyspaces))


def make(nodes: Nodes, backup: Schema, keyspaces: Collection[str], replication: Mapping[str, str]) -> None:
    """Create missing keyspaces, types, functions, tables and indexes of a backup.

    `replication` of created keyspaces is in CQL syntax. Tables get new ids.

    Raises
    ------
    InvalidInputError
        Kind ``refused``: a statement of the backup is forbidden; none was run.
    """
    wanted = [one for one in backup.statements if one["keyspace"] in keyspaces]
    checked = [(one, schema_text.checked_statements(one)) for one in wanted]
    copies = {keyspace: statements.constants(schema_text.flat_map(replication[keyspace])) for keyspace in keyspaces}
    asked = any_serving(nodes)
    for keyspace in keyspaces:
        nodes.query(asked, statements.create_keyspace_as(keyspace, copies[keyspace]), timeout_s=SCHEMA_S)
    there = {(table["keyspace"], table["name"]) for table in tables_of(nodes, keyspaces)}
    for one, parts in checked:
        if one["type"] == "table" and (one["keyspace"], one["name"]) in there:
            continue
        for statement in parts:
            try:
                nodes.query(asked, statement, timeout_s=SCHEMA_S)
            except InvalidInputError as error:
                # A repeated step finds what an interrupted one has created.
                if "already exist" not in str(error).lower():
                    raise
