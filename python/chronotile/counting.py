"""Count equal rows while they are read. Memory grows only with the number of distinct rows."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.errors import InvalidInputError

__all__ = ["count_equal", "refuse_names"]

_PARTS_MAX = 64
"""Number of partial counts merged at once."""


def count_equal(tables: Iterable[pa.Table], schema: pa.Schema, bounds: Bounds = UNBOUNDED) -> pa.Table:
    """Count equal rows of a stream of tables.

    Parameters
    ----------
    tables : iterable of pyarrow.Table
        Tables of this schema.
    schema : pyarrow.Schema
        Columns by which rows are compared. Nulls equal each other.
    bounds : Bounds
        Limits of the memory held and of the number of distinct rows.

    Returns
    -------
    pyarrow.Table
        The distinct rows in no particular order, then ``count`` (int64).

    Raises
    ------
    InvalidInputError
        There are more distinct rows than `bounds` allows (``too-large``).
    """
    # Name columns by position: one may itself be called "count".
    keys = [str(position) for position in range(len(schema))]
    names = [*keys, "count"]

    def merged(parts: list[pa.Table]) -> pa.Table:
        summed = pa.concat_tables(parts).group_by(keys).aggregate([("count", "sum")])
        bounds.check_groups(summed.num_rows)
        return summed.rename_columns(names)

    parts = [pa.table([*(pa.array([], kind) for kind in schema.types), pa.array([], pa.int64())], names=names)]
    for table in tables:
        counted = table.rename_columns(keys).group_by(keys).aggregate([([], "count_all")])
        parts.append(counted.rename_columns(names))
        # Merging needs memory for a second copy.
        bounds.hold(2 * sum(part.nbytes for part in parts))
        if len(parts) > _PARTS_MAX:
            parts = [merged(parts)]
    return merged(parts).rename_columns([*schema.names, "count"])


def refuse_names(by: list[str], own: list[str]) -> None:
    """Refuse to group by a column that has the name of another column of the result."""
    for name in by:
        if name in own:
            raise InvalidInputError(
                f"column {name!r} cannot be grouped by: the result has its own column of that name",
                kind="invalid-request",
            )
