"""The schema of keyspaces: read, compared with that of a backup, and made anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from chronotile.errors import BusyError, InvalidInputError
from chronotile_tools.ops.backups import schema_text
from chronotile_tools.ops.backups.manifests import Schema
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.gate import copies
from chronotile_tools.ops.procedures.nodes import Member, Nodes, any_serving, is_system

ARCHIVE_TABLES = frozenset({"meta", "leases", "slices", "catalog"})
"""Tables that every archive of Chronotile has. They say what is stored in all others."""
SCHEMA_S = 120.0
TRIES = 20


def user_keyspaces(nodes: Nodes, wanted: Sequence[str]) -> list[str]:
    """These keyspaces, or all but Cassandra's own and that of procedures.

    Raises
    ------
    InvalidInputError
        For one that is not there or may not be backed up; or there is none.
    """
    rows = nodes.query(any_serving(nodes), statements.select("keyspace_name", "system_schema.keyspaces"))
    known = sorted(row["keyspace_name"] for row in rows)
    able = [name for name in known if not is_system(name) and name != statements.KEYSPACE]
    for name in wanted:
        if name not in able:
            why = "is the cluster's own" if name in known else "is not there"
            raise InvalidInputError(
                f"keyspace {name} {why}; choose of {', '.join(able) or 'none'}", kind="table-not-found"
            )
    if not able:
        raise InvalidInputError("the cluster has no keyspace of users", kind="table-not-found")
    return sorted(set(wanted)) or able


def read(nodes: Nodes, keyspaces: Collection[str]) -> Schema:
    """The schema of keyspaces at one moment. Materialized views are left out.

    Raises
    ------
    BusyError
        It was changed each time it was read.
    """
    asked = any_serving(nodes)
    found = _without_statements(nodes, asked, keyspaces)
    for _ in range(TRIES):
        described = _described(nodes, asked, keyspaces)
        before, found = found, _without_statements(nodes, asked, keyspaces)
        if found == before:
            return replace(found, statements=described)
    raise BusyError(
        f"tables of {', '.join(sorted(keyspaces))} are made or changed all the while: resume when that has ended",
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
    """Replication of keyspaces that are there, as statements have it."""
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
    """Keyspaces that hold an archive of Chronotile."""
    names: dict[str, set[str]] = defaultdict(set)
    for table in tables:
        names[table["keyspace"]].add(table["name"])
    return sorted(keyspace for keyspace, found in names.items() if found >= ARCHIVE_TABLES)


def differences(backup: Schema, found: Schema, keyspaces: Collection[str]) -> list[str]:
    """In what the tables that are there differ from those of a backup; empty where they do not."""
    wanted = {f"{table['keyspace']}.{table['name']}" for table in backup.tables if table["keyspace"] in keyspaces}
    there = {f"{table['keyspace']}.{table['name']}" for table in found.tables}
    said = [f"{table} is not there" for table in sorted(wanted - there)]
    said += [f"{table} is not in the backup" for table in sorted(there - wanted)]
    for table in sorted(wanted & there):
        before, now = backup.columns.get(table, {}), found.columns.get(table, {})
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                said.append(f"column {name} of {table} is {now.get(name, 'missing')}, not {before.get(name, 'there')}")
    return said


def type_differences(backup: Schema, found: Schema) -> list[str]:
    """Types and functions that are there by the same name and are not those of a backup: they cannot be made anew."""
    before = {_place(one): one["statement"] for one in backup.statements}
    return [
        f"{one['type']} {one['keyspace']}.{one['name']} is not as in the backup: drop it, or the keyspace, first"
        for one in found.statements
        if one["type"] in ("type", "function", "aggregate")
        and before.get(_place(one), one["statement"]) != one["statement"]
    ]


def _place(statement: Mapping[str, str]) -> tuple[str, str, str]:
    return statement["keyspace"], statement["type"], statement["name"]


def fitting(replication: Mapping[str, int], members: Sequence[Member]) -> dict[str, int]:
    """Copies by data centre that a cluster of these nodes can keep.

    Data centres of the same names keep their numbers, as far as they have nodes. Where none has the same name, each
    gets as many as the largest number of the backup.
    """
    nodes_of: dict[str, int] = defaultdict(int)
    for member in members:
        nodes_of[member.dc] += 1
    most = max(replication.values(), default=1)
    wanted = {dc: count for dc, count in replication.items() if dc in nodes_of} or dict.fromkeys(nodes_of, most)
    return {dc: min(count, nodes_of[dc]) for dc, count in wanted.items()}


def refusals(backup: Schema, keyspaces: Collection[str]) -> list[str]:
    """Why statements of a backup would not be run, a sentence each."""
    return list(schema_text.refusals(one for one in backup.statements if one["keyspace"] in keyspaces))


def make(nodes: Nodes, backup: Schema, keyspaces: Collection[str], replication: Mapping[str, str]) -> None:
    """Make keyspaces, types, functions, tables and indexes of a backup that are not there.

    `replication` is that of keyspaces that are made, as statements have it. Tables get new ids.

    Raises
    ------
    InvalidInputError
        Kind ``refused``: a statement of the backup would do something else. None was run then.
    """
    wanted = [one for one in backup.statements if one["keyspace"] in keyspaces]
    admitted = [(one, schema_text.admitted(one)) for one in wanted]
    copies = {keyspace: statements.constants(schema_text.flat_map(replication[keyspace])) for keyspace in keyspaces}
    asked = any_serving(nodes)
    for keyspace in keyspaces:
        nodes.query(asked, statements.create_keyspace_as(keyspace, copies[keyspace]), timeout_s=SCHEMA_S)
    there = {(table["keyspace"], table["name"]) for table in tables_of(nodes, keyspaces)}
    for one, parts in admitted:
        if one["type"] == "table" and (one["keyspace"], one["name"]) in there:
            continue
        for statement in parts:
            try:
                nodes.query(asked, statement, timeout_s=SCHEMA_S)
            except InvalidInputError as error:
                if "already exist" not in str(error).lower():
                    raise
