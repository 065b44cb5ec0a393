"""The replication feed: detector-visits and updates by replica chunk, and their rows.

The feed records which rows changed and where they are; the rows themselves are read from the tables.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import layout as layouts
from chronotile.apdb import names, values
from chronotile.apdb.rows import drop_deleted, newest, set_column
from chronotile.apdb.survey import Apdb
from chronotile.apdb.updates import listed_changes
from chronotile.errors import InvalidInputError

__all__ = ["Chunk", "Feed"]

_CELLS = {names.OBJECT: "object_cells", names.SOURCE: "source_cells", names.FORCED: "forced_cells"}
_DAY_S = 86_400


@dataclass(frozen=True)
class Chunk:
    """A unit of replication: everything stored or changed in one interval.

    Attributes
    ----------
    id : int
        Start of the interval: seconds since 1970 in TAI, rounded down to the chunk length.
    last_mjd_tai : float
        Time of the last visit or change in the chunk.
    unique_id : uuid.UUID
        Changes whenever the chunk gets more content.
    visits, changes : int
        Detector-visits and changes in the chunk.
    """

    id: int
    last_mjd_tai: float
    unique_id: uuid.UUID
    visits: int
    changes: int


class Feed:
    """The changes of a database that was created with ``feed=True``.

    Raises
    ------
    InvalidInputError
        The database was created without a feed.
    """

    def __init__(self, database: Apdb) -> None:
        if not database.layout.feed:
            raise InvalidInputError("the database was created without feed=True", kind="invalid-request")
        self._apdb = database
        self._visits = database.archive[names.FEED]
        self._updates = database.archive[layouts.UPDATES]

    def chunks(self) -> list[Chunk]:
        """The chunks in the feed, oldest first."""
        columns = {"key": "key", "time": "visit_mjd_tai"}
        visits = self._pending(self._visits, columns)
        updates = self._pending(self._updates, {"key": "operation", "time": "update_mjd_tai"})
        found = []
        both = pa.concat_tables([visits, updates])
        for chunk in pc.unique(both["chunk"]).sort().to_pylist() if both.num_rows else []:
            mine = both.filter(pc.equal(both["chunk"], chunk))
            digest = hashlib.blake2b("\n".join(sorted(mine["key"].to_pylist())).encode(), digest_size=16).digest()
            count = pc.sum(pc.equal(visits["chunk"], chunk)).as_py() or 0
            last = pc.max(mine["time"]).as_py()
            found.append(Chunk(chunk, last, uuid.UUID(bytes=digest), count, mine.num_rows - count))
        return found

    @staticmethod
    def _pending(dataset: Any, columns: Mapping[str, str]) -> Any:
        rows = dataset.read(columns=["chunk", *columns.values()], where=[("done", "==", False)]).to_arrow()
        return rows.rename_columns(["chunk", *columns])

    def rows(self, table: str, chunks: Iterable[int]) -> Any:
        """Rows of DiaObject, DiaSource or DiaForcedSource that were stored in `chunks`.

        Returns
        -------
        pyarrow.Table
            ``apdb_replica_chunk``, then the columns of the table, with their present values.
        """
        schema = self._apdb.schema[table]
        wanted = [int(chunk) for chunk in chunks]
        parts = [self._rows_of(table, chunk, visits) for chunk, visits in self._visits_of(wanted)]
        fields = [pa.field("apdb_replica_chunk", pa.int64(), False), *(column.arrow for column in schema.columns)]
        empty = pa.schema(fields).empty_table()
        return pa.concat_tables([empty, *(part.select(empty.schema.names).cast(empty.schema) for part in parts)])

    def _visits_of(self, chunks: list[int]) -> list[tuple[int, Any]]:
        if not chunks:
            return []
        rows = self._visits.read(keys=chunks, where=[("done", "==", False)]).to_arrow()
        each = [(chunk, rows.filter(pc.equal(rows["chunk"], chunk))) for chunk in sorted(set(chunks))]
        return [(chunk, visits) for chunk, visits in each if visits.num_rows]

    def _rows_of(self, table: str, chunk: int, visits: Any) -> Any:
        cells = pc.unique(pc.list_flatten(visits[_CELLS[table]])).to_pylist()
        dataset = self._apdb.dataset(table)
        if not cells:
            return _marked(dataset.schema.empty_table(), chunk)
        if table == names.OBJECT:
            limits = pc.min_max(visits["visit_mjd_tai"]).as_py()
        else:
            first, last = pc.min(visits["time_first"]).as_py(), pc.max(visits["time_last"]).as_py()
            limits = {"min": first, "max": last}
        # Later visits may have stored newer versions of an object: read all, and select those of these visits below.
        rows = dataset.read(
            cells=cells, start=limits["min"] - values.TICK_DAYS, end=limits["max"] + values.TICK_DAYS,
            history=table == names.OBJECT,
        ).to_arrow()  # fmt: skip
        hidden = names.version_column(table)
        if table == names.OBJECT:
            rows = newest(drop_deleted(rows), [names.OBJECT_ID, names.VALID_FROM], hidden)
            rows = rows.filter(pc.is_in(rows[names.VALID_FROM], visits["visit_mjd_tai"].combine_chunks()))
        else:
            within = _within(rows[names.TIME].to_numpy(), visits["time_first"], visits["time_last"])
            rows = rows.filter(pa.array(within)).filter(pc.field(hidden) < names.GONE)
        return _marked(rows, chunk)

    def changes(self, chunks: Iterable[int]) -> Any:
        """Updates of stored records in `chunks`, in order, as a `pyarrow.Table`; unused columns are null."""
        wanted = [int(chunk) for chunk in chunks]
        if not wanted:
            return layouts.UPDATE_SCHEMA.empty_table()
        rows = self._updates.read(keys=wanted, where=[("done", "==", False)]).to_arrow()
        return rows.sort_by([("update_time_ns", "ascending"), ("update_order", "ascending")])

    def add_changes(self, columns: Mapping[str, Any], kind: str, time_ns: int, chunk: int, order: int) -> None:
        """Add changes that were made elsewhere to the feed."""
        moment = 40_587 + time_ns / 1e9 / _DAY_S
        given = {name: column for name, column in columns.items() if column[0] is not None}
        self._updates.write(listed_changes(given, kind, time_ns, moment, chunk, order))

    def forget(self, chunks: Iterable[int]) -> None:
        """Remove replicated chunks from the feed. Their rows stay in the tables."""
        wanted = [int(chunk) for chunk in chunks]
        if not wanted:
            return
        for dataset in (self._visits, self._updates):
            rows = dataset.read(keys=wanted, where=[("done", "==", False)]).to_arrow()
            if rows.num_rows:
                dataset.write(set_column(rows, "done", np.ones(rows.num_rows, bool)))


def _marked(rows: Any, chunk: int) -> Any:
    return rows.append_column(pa.field("apdb_replica_chunk", pa.int64(), False), pa.repeat(chunk, rows.num_rows))


def _within(times: Any, first: Any, last: Any) -> Any:
    """Mark the times within any of the closed intervals."""
    spans = pa.table({"first": first, "last": last}).drop_null().sort_by("first")
    # Intervals may overlap: the running maximum is the latest end of all intervals that start at or before a time.
    starts, ends = spans["first"].to_numpy(), np.maximum.accumulate(spans["last"].to_numpy())
    place = np.searchsorted(starts, times, side="right") - 1
    return (place >= 0) & (times <= ends[np.maximum(place, 0)]) if len(starts) else np.zeros(len(times), bool)
