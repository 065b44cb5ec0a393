"""Verify restored tables: count their rows, and verify Chronotile archives."""

from __future__ import annotations

from collections import deque

import chronotile as ct
from chronotile.errors import AccessDeniedError, BusyError, UnavailableError
from chronotile.terminal import count_text
from chronotile_tools.errors import DamagedError
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.engine import Context
from chronotile_tools.ops.procedures.nodes import Nodes, any_serving
from chronotile_tools.ring import TOKEN_MAX, TOKEN_MIN, TokenRange

COUNT_S = 60.0
PIECES = 8
"""Initial number of token ranges for counting rows; a range that takes too long is halved."""
WIDTH_MIN = 2**32


def count_rows(nodes: Nodes, keyspace: str, table: str) -> int:
    """Count the rows of a table at consistency ALL.

    Raises
    ------
    UnavailableError
        A replica does not answer, even for the smallest range.
    """
    where = f"keyspace_name = {statements.quoted(keyspace)} AND table_name = {statements.quoted(table)}"
    asked = any_serving(nodes)
    columns = nodes.query(asked, statements.select("column_name, kind, position", "system_schema.columns", where))
    keys = [
        row["column_name"]
        for row in sorted(columns, key=lambda row: int(row["position"]))
        if row["kind"] == "partition_key"
    ]
    full = statements.full(keyspace, table)
    left, count = deque(TokenRange(TOKEN_MIN, TOKEN_MAX).split(PIECES)), 0
    while left:
        part = left.popleft()
        try:
            answer = nodes.query(
                asked, statements.count_rows(full, keys, part.start, part.end), consistency="ALL", timeout_s=COUNT_S
            )
        except (UnavailableError, BusyError):
            if part.width < WIDTH_MIN:
                raise
            left.extendleft(reversed(part.split(2)))
        else:
            count += int(answer[0]["count"])
    return count


def verify_archive(context: Context, keyspace: str) -> str:
    """Verify all datasets of a restored archive, and describe the result.

    The catalog was snapshotted before the chunks, so the backup may contain rows of batches that started in between.
    They are removed: the backup's catalog does not list them, so they may be incomplete.

    Raises
    ------
    DamagedError
        Chunks are damaged or missing; the message names the first.
    """
    if context.archive_url is None:
        return f"archive {keyspace} was not verified: run chronotile verify --remove-foreign"
    try:
        archive = ct.open(context.archive_url(keyspace), create=False)
    except (AccessDeniedError, UnavailableError) as error:
        return f"archive {keyspace} was not verified ({error}): run chronotile verify --remove-foreign"
    with archive:
        chunks = datasets = removed = 0
        for name in archive.datasets():
            report = archive[name].verify()
            if report.foreign:
                removed += sum(chunk.rows for chunk in archive[name].remove_foreign())
                report = archive[name].verify()
            if not report.ok:
                first = report.damage[0] if report.damage else report
                raise DamagedError(
                    f"dataset {name} of {keyspace} was not restored completely: {first}", kind="damaged-archive"
                )
            chunks, datasets = chunks + report.chunks, datasets + 1
    begun_later = f"; {removed:,} rows of batches that began during the backup were removed" if removed else ""
    return (
        f"archive {keyspace} is intact: {count_text(datasets, 'dataset')}, {count_text(chunks, 'chunk')}{begun_later}"
    )
