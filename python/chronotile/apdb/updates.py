"""Change stored records: each change is a newer version of a row, so readers see the old version or the new one.

Any number of processes may change records (:mod:`chronotile.apdb.changes`): each change reads the newest versions and
writes newer ones, as one batch over all tables and the replication feed. Stores and reads continue meanwhile.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import layout as layouts
from chronotile.apdb import names, values
from chronotile.apdb.changes import Change, changing
from chronotile.apdb.cold import ColdStorage, locked, of_records
from chronotile.apdb.rows import Rows, arrow_table, drop_deleted, newest, set_column
from chronotile.apdb.slice_status import SliceKey, archived_error, check_not_archived_since
from chronotile.apdb.source_counts import SourceCounts, differ, occurrences
from chronotile.apdb.tables import SurveyTables
from chronotile.errors import InvalidInputError
from chronotile.times import Moment

_DEDUP_KEY = "apdb:dedup_mjd_tai"
_NEAR_DAYS = 15 / 1_440
"""Largest difference between the time given for a record and its stored time: a quarter of an hour."""
_ARCHIVED_REMEDY = "pass archived=FOLDER to delete them there too, else archived=False"


class Updates:
    """Changes stored records.

    A table (or dict of arrays) of ids names the records to change. Include the location columns: positions (``ra``,
    ``dec``) and times (``midpointMjdTai``) of the records, accurate to 5 arc seconds and a quarter of an hour. Without
    positions, the index of objects finds objects and forced sources, and a scan of the whole sky finds sources.
    """

    def __init__(self, tables: SurveyTables, cold: ColdStorage) -> None:
        self._tables, self._cold = tables, cold
        self._counts = SourceCounts(tables)

    def reassociate(
        self, assignments: Any, *, start: Moment = None, end: Moment = None, time: Moment = None,
        object_id: int | None = None, missing: str = "error",
    ) -> int:  # fmt: skip
        """Assign sources to solar-system objects, and remove their association with other objects.

        Parameters
        ----------
        assignments : table, or dict of source id to object id
            Columns ``diaSourceId`` and ``ssObjectId``, and the location columns ``ra``, ``dec``, ``midpointMjdTai``.
        start, end : time, optional
            Period of the sources, such as a night; narrows the search if the table has no times.
        time : time, optional
            Time of the change; now by default.
        object_id : int, optional
            New ``diaObjectId`` of the sources; null by default. The LSST writes 0.
        missing : {"error", "ignore"}
            How to handle sources that are not stored.

        Returns
        -------
        int
            Number of changed sources; those already assigned to the object are not counted.

        Raises
        ------
        InvalidInputError
            Kind ``unknown-id``: some sources are not stored. Nothing was changed.
        """
        given = associated(assignments)
        return self.give(given, start=start, end=end, time=time, object_id=object_id, missing=missing)[0]

    @changing
    def give(
        self, change: Change, given: Any, *, start: Moment = None, end: Moment = None, time: Moment = None,
        object_id: int | None = None, missing: str = "error",
    ) -> tuple[int, int]:  # fmt: skip
        """Assign sources to solar-system objects; return how many were changed, and how many are stored."""
        rows = self._find(names.SOURCE, given, [names.SOURCE_ID], start, end, missing)
        stored = rows.num_rows
        wanted = _mapped(given, names.SOURCE_ID, names.SS_OBJECT_ID, rows)
        rows, wanted = _only(rows, _differ(rows[names.SS_OBJECT_ID], wanted), wanted)
        moment = _moment(time)
        changed = set_column(rows, names.SS_OBJECT_ID, wanted)
        changed = set_column(changed, names.OBJECT_ID, pa.repeat(pa.scalar(object_id, pa.int64()), rows.num_rows))
        if names.REASSOCIATED in self._tables.schema[names.SOURCE]:
            changed = set_column(changed, names.REASSOCIATED, np.full(rows.num_rows, moment))
        more = {names.SS_OBJECT_ID: wanted, names.REASSOCIATED: np.full(rows.num_rows, moment)}
        self._change(change, names.SOURCE, changed, "reassign_diasource_to_ssobject", more, moment)
        return int(rows.num_rows), int(stored)

    @changing
    def reassign(
        self, change: Change, assignments: Any, *, increment: bool = True, decrement: bool = True, time: Moment = None
    ) -> int:
        """Assign sources to other objects, typically to merge duplicates, and set the source counts of both.

        ``nDiaSources`` becomes the number of stored sources of the object within an arc minute, withdrawn ones
        included, so a count that was wrong is right afterwards. An object that may have had sources in slices that were
        retired or archived, restored or not, may have more sources than are stored: its count is never lowered below
        the previous one, plus gained, minus lost sources. The index of objects tells which objects are younger than
        these slices.

        Parameters
        ----------
        assignments : table, or dict of source id to object id
            Columns ``diaSourceId`` and ``diaObjectId``, and the location columns ``ra``, ``dec``, ``midpointMjdTai``.
            The objects must be within 5 arc seconds of the sources.
        increment, decrement : bool
            Whether to set ``nDiaSources`` of the objects that gain sources, and of those that lose sources.
        time : time, optional
            Time of the change; now by default.

        Returns
        -------
        int
            Number of changed sources.

        Raises
        ------
        InvalidInputError
            Kind ``unknown-id``: some sources or objects are not stored. Nothing was changed.
        """
        given = _pairs(assignments, names.SOURCE_ID, names.OBJECT_ID)
        sources = self._find(names.SOURCE, given, [names.SOURCE_ID], None, None)
        wanted = _mapped(given, names.SOURCE_ID, names.OBJECT_ID, sources)
        sources, wanted = _only(sources, _differ(sources[names.OBJECT_ID], wanted), wanted)
        if not sources.num_rows:
            return 0
        lost = pc.drop_null(sources[names.OBJECT_ID]).to_numpy()
        objects, counted = self._counts.objects(np.union1d(wanted, lost), sources)
        missing = np.setdiff1d(wanted, objects[names.OBJECT_ID].to_numpy())
        if len(missing):
            raise _unknown(names.OBJECT, missing)
        moment = _moment(time)
        self._change(
            change, names.SOURCE, set_column(sources, names.OBJECT_ID, wanted), "reassign_diasource_to_diaobject",
            {names.OBJECT_ID: wanted}, moment,
        )  # fmt: skip
        if self._counts.kept:
            ids = objects[names.OBJECT_ID].to_numpy()
            gains, losses = occurrences(wanted, ids), occurrences(lost, ids)
            chosen = ((gains > 0) & increment) | ((losses > 0) & decrement)
            objects, difference = _only(objects, chosen, gains - losses)
            # The counts follow the sources in the feed, which sorts changes of the same time by `update_order`.
            self._set_counts(change, objects, counted[chosen], difference, moment, sources.num_rows)
        return int(sources.num_rows)

    @changing
    def correct_counts(self, change: Change, objects: Any) -> int:
        """Set ``nDiaSources`` of objects to their stored sources; return how many differed.

        `objects` is a table with ``diaObjectId``, ``ra`` and ``dec``, and the rules are those of :meth:`reassign`.
        """
        found, counted = self._counts.objects(objects[names.OBJECT_ID].to_numpy(), objects)
        return self._set_counts(change, found, counted, 0, _moment(None), 0)

    def _set_counts(
        self, change: Change, objects: Any, counted: Any, difference: Any, moment: float, order: int
    ) -> int:  # fmt: skip
        """Update the counts of objects where they are not right after a change; return how many."""
        counts = self._counts.settled(objects, counted, difference)
        rows, counts = _only(objects, differ(objects, counts), counts)
        changed = set_column(rows, names.SOURCE_COUNT, counts)
        self._change(
            change, names.OBJECT, changed, "update_n_dia_sources", {names.SOURCE_COUNT: counts}, moment, order
        )  # fmt: skip
        return int(rows.num_rows)

    @changing
    def close_validity(
        self, change: Change, objects: Any, at: Moment, *, missing: str = "error", time: Moment = None
    ) -> int:
        """Close the validity of objects: reads of the newest versions exclude them from then on.

        Parameters
        ----------
        objects : table, or iterable of int
            Column ``diaObjectId``, and the location columns ``ra`` and ``dec``.
        at : time
            End of the validity.
        missing : {"error", "ignore"}
            How to handle objects that are not stored.
        time : time, optional
            Time of the change; now by default.

        Returns
        -------
        int
            Number of closed objects; those closed before stay unchanged.
        """
        given = _pairs(objects, names.OBJECT_ID, None)
        rows = self._find(names.OBJECT, given, [names.OBJECT_ID], None, None, missing)
        rows = rows.filter(pc.is_null(rows[names.VALID_TO]))
        ends = np.full(rows.num_rows, values.mjd_tai(at, "at"))
        changed = set_column(rows, names.VALID_TO, ends)
        self._change(change, names.OBJECT, changed, "close_diaobject_validity", {names.VALID_TO: ends}, _moment(time))
        return int(rows.num_rows)

    def withdraw_sources(self, sources: Any, at: Moment = None, *, time: Moment = None) -> int:
        """Mark sources as withdrawn; return how many. Sources withdrawn before keep their time.

        `sources` is a table with ``diaSourceId`` and the location columns ``ra``, ``dec``, ``midpointMjdTai``, or an
        iterable of ids; `at` is the time of withdrawal, now by default.
        """
        given = _pairs(sources, names.SOURCE_ID, None)
        return self._withdraw(names.SOURCE, given, [names.SOURCE_ID], "withdraw_diasource", at, time)

    def withdraw_forced_sources(self, sources: Any, at: Moment = None, *, time: Moment = None) -> int:
        """Mark forced sources as withdrawn; return how many.

        `sources` is a table with ``diaObjectId``, ``visit``, ``detector`` and the location columns ``ra``, ``dec``,
        ``midpointMjdTai``.
        """
        key = [names.OBJECT_ID, names.VISIT, names.DETECTOR]
        return self._withdraw(names.FORCED, arrow_table(sources, "sources"), key, "withdraw_diaforcedsource", at, time)

    @changing
    def _withdraw(
        self, change: Change, table: str, given: Any, key: list[str], kind: str, at: Moment, time: Moment
    ) -> int:
        if names.WITHDRAWN not in self._tables.schema[table]:
            raise InvalidInputError(
                f"table {table} has no column {names.WITHDRAWN}: migrate the schema first", kind="invalid-request"
            )
        rows = self._find(table, given, key, None, None)
        rows = rows.filter(pc.is_null(rows[names.WITHDRAWN]))
        moments = np.full(rows.num_rows, _moment(at))
        changed = set_column(rows, names.WITHDRAWN, moments)
        self._change(change, table, changed, kind, {names.WITHDRAWN: moments}, _moment(time))
        return int(rows.num_rows)

    def delete(
        self, table: str, records: Any, *, archived: str | os.PathLike[str] | Literal[False] | None = None
    ) -> int:
        """Permanently delete records; return how many. Records that are not stored are skipped.

        Deleted records are excluded from every read; their bytes are freed with their slice.

        Parameters
        ----------
        table : str
            DiaObject, DiaSource or DiaForcedSource.
        records : table
            Key columns of the table, and the location columns ``ra``, ``dec``, ``midpointMjdTai``.
        archived : path or False, optional
            The folder of :meth:`archive_before`, from whose files the records are removed too, also those that only
            files have. False if the records are in no file.

        Raises
        ------
        InvalidInputError
            Kind ``archived-records``: slices of the records were written to files, from which the records could be
            restored, and `archived` is not given. Nothing was deleted.
        OutcomeUnknownError
            Another process wrote the slices to files meanwhile. The records are deleted from the database; repeat with
            `archived`.
        """
        if table not in names.MAIN_TABLES:
            raise InvalidInputError(
                f"cannot delete single records of {table}: use DiaObject, DiaSource or DiaForcedSource",
                kind="invalid-request",
            )
        key = {
            names.OBJECT: [names.OBJECT_ID],
            names.SOURCE: [names.SOURCE_ID],
            names.FORCED: [names.OBJECT_ID, names.VISIT, names.DETECTOR],
        }[table]
        given = _pairs(records, key[0], None)
        folder = None if archived is False else archived
        with nullcontext() if folder is None else locked(folder):
            rows, in_files = self._delete(table, given, key, archived)
            count = int(rows.num_rows)
            if folder is not None and table != names.OBJECT:
                everything = (float("-inf"), float("inf"))
                # Count records that the database had, even if a file still has them.
                self._cold.drop(table, folder, *everything, lambda found: of_records(found, rows, key))
                count += self._cold.drop(table, folder, *everything, lambda found: of_records(found, given, key))
        if archived is not False:
            # Look for notes again: another process notes a slice before it reads the slice's rows for a file.
            now = self._tables.slice_status.archived(self._slices_of(table, rows))
            check_not_archived_since(in_files, now, f"repeat, and {_ARCHIVED_REMEDY}")
        return count

    @changing
    def _delete(
        self, change: Change, table: str, given: Any, key: list[str], archived: str | os.PathLike[str] | bool | None
    ) -> tuple[Any, dict[SliceKey, list[str]]]:
        """Delete records; return them, and their slices that were written to files."""
        rows = self._find(table, given, key, None, None, "ignore")
        in_files = self._tables.slice_status.archived(self._slices_of(table, rows))
        if archived is None and in_files:
            raise archived_error(in_files, rows.num_rows, _ARCHIVED_REMEDY)
        change.add(names.dataset_name(table), deleted(table, rows))
        return rows, in_files

    def _slices_of(self, table: str, rows: Any) -> set[SliceKey]:
        """Slices of rows of a table, if archive_before writes it to files."""
        return set() if table == names.OBJECT else self._tables.slices_of(table, rows[names.TIME].to_numpy())

    # ------------------------------------------------------------------ duplicates

    def dedup_feed(self, since: Moment = None, *, columns: Iterable[str] | None = None, versions: bool = False) -> Rows:
        """Objects stored since the last deduplication: the newest versions, or all with `versions`.

        `since` is by default the time given to :meth:`reset_dedup`, else the beginning.
        """
        if since is None:
            noted = self._tables.metadata.get(_DEDUP_KEY)
            since = None if noted is None else float(noted)
        start = None if since is None else values.mjd_tai(since, "since")
        wanted = self._tables.columns(names.OBJECT, columns)
        decoded = list(dict.fromkeys([*wanted, names.OBJECT_ID, names.VALID_FROM, names.VERSION]))
        rows = self._tables.datasets[names.OBJECT].read(start=start, columns=decoded, history=versions).to_arrow()
        rows = drop_deleted(rows)
        if versions:
            # A changed version is stored again with the same start of validity: keep the last of each.
            rows = newest(rows, [names.OBJECT_ID, names.VALID_FROM], names.VERSION)
        return Rows(rows.select(wanted))

    def reset_dedup(self, time: Moment = None) -> None:
        """Record that deduplication has covered everything up to `time`, now by default."""
        self._tables.metadata.set(_DEDUP_KEY, repr(_moment(time)), force=True)

    def sources_of(
        self, objects: Any, *, start: Moment = None, columns: Iterable[str] | None = None, radius: Any = values.NEAR_DEG
    ) -> Rows:
        """Sources of objects anywhere on the sky, in one read.

        `objects` is a table with ``diaObjectId``, ``ra`` and ``dec``; all their sources within `radius` of them (5 arc
        seconds) are found.
        """
        given = arrow_table(objects, "objects")
        wanted = self._tables.columns(names.SOURCE, columns)
        if not given.num_rows:
            return Rows(self._tables.datasets[names.SOURCE].schema.empty_table().select(wanted))
        ids = given[names.OBJECT_ID].to_pylist()
        where: list[Any] = [(names.OBJECT_ID, "in", ids), names.not_deleted(names.SOURCE)]
        rows = self._tables.datasets[names.SOURCE].read(
            cells=self._tables.cells_of(given, values.degrees(radius)), where=where, columns=wanted,
            start=None if start is None else values.mjd_tai(start, "start"),
        )  # fmt: skip
        return Rows(rows.to_arrow())

    def count_unassociated(self) -> int:
        """Number of valid objects with exactly one source. Scans all objects."""
        rows = self._tables.datasets[names.OBJECT].read(
            columns=[names.VALID_TO], where=[(names.SOURCE_COUNT, "==", 1), names.not_deleted(names.OBJECT)]
        )  # fmt: skip
        # An object is valid while the end of its validity is null.
        return sum(batch.column(0).null_count for batch in rows.batches())

    # ------------------------------------------------------------------ implementation

    def _find(self, table: str, given: Any, key: list[str], start: Moment, end: Moment, missing: str = "error") -> Any:
        """Stored rows with the keys in `given`, with all columns; raises an error if any is missing."""
        for name in key:
            if name not in given.schema.names:
                raise InvalidInputError(f"the rows to change lack column {name}", kind="invalid-rows")
        dataset = self._tables.datasets[table]
        if not given.num_rows:
            return dataset.schema.empty_table()
        place: dict[str, Any] = {}
        if names.RA in given.schema.names and names.DEC in given.schema.names:
            place["cells"] = self._tables.cells_of(given, values.NEAR_DEG)
        elif names.OBJECT_ID in key:
            place["cells"] = self._tables.object_index.pixels_of(pc.unique(given[names.OBJECT_ID]).cast(pa.int64()))
        # Objects are stored at the start of their validity, which times of measurements do not narrow.
        if names.TIME in given.schema.names and table != names.OBJECT:
            limits = pc.min_max(given[names.TIME]).as_py()
            place["start"], place["end"] = limits["min"] - _NEAR_DAYS, limits["max"] + _NEAR_DAYS
        else:
            place["start"] = None if start is None else values.mjd_tai(start, "start")
            place["end"] = None if end is None else values.mjd_tai(end, "end")
        parts = [given[name].cast(dataset.schema.field(name).type).combine_chunks() for name in key]
        ids = parts[0] if len(parts) == 1 else tuple(parts)
        rows = dataset.read(ids=ids, where=[names.not_deleted(table)], **place).to_arrow()
        if missing == "error":
            # Keys that are given twice count once.
            wanted = given.select(key).group_by(key).aggregate([])
            if rows.num_rows < wanted.num_rows:
                kinds = pa.schema([rows.schema.field(name) for name in key])
                # Arrow joins only key columns of equal type.
                absent = wanted.cast(kinds).join(rows.select(key), key, join_type="left anti")
                raise _unknown(table, absent[key[0]].to_numpy())
        return rows

    def _change(
        self, change: Change, table: str, rows: Any, kind: str, values_: Mapping[str, Any], moment: float,
        order: int = 0,
    ) -> None:  # fmt: skip
        """Add newer versions of rows to a change, and to the feed."""
        if not rows.num_rows:
            return
        if self._tables.layout.feed:
            change.add(layouts.UPDATES, self._listed(table, rows, kind, values_, moment, order))
        hidden = names.version_column(table)
        # Sources take the time, or the version that was read plus one if that is later. Objects only count up: their
        # versions derive from the start of validity, and a change must stay below the version of the next visit.
        stamps = rows[hidden].to_numpy() + 1
        if table != names.OBJECT:
            stamps = np.maximum(stamps, time.time_ns())
        change.add(names.dataset_name(table), set_column(rows, hidden, stamps))

    def _listed(self, table: str, rows: Any, kind: str, values_: Mapping[str, Any], moment: float, order: int) -> Any:
        """Changes of one kind as rows of the replication feed."""
        ids = {
            names.OBJECT: [names.OBJECT_ID, names.RA, names.DEC],
            names.SOURCE: [names.SOURCE_ID, names.RA, names.DEC, names.TIME],
            names.FORCED: [names.OBJECT_ID, names.VISIT, names.DETECTOR, names.RA, names.DEC, names.TIME],
        }[table]
        seconds = values.unix_tai(moment)
        chunk = int(seconds) // self._tables.layout.feed_chunk_s * self._tables.layout.feed_chunk_s
        columns = {name: rows[name] for name in ids} | dict(values_)
        return listed_changes(columns, kind, round(seconds * 1e9), moment, chunk, order)


def deleted(table: str, rows: Any) -> Any:
    """Deletion markers: versions of the rows of a main table that delete their records."""
    return set_column(rows, names.version_column(table), np.full(rows.num_rows, names.GONE))


def listed_changes(
    columns: Mapping[str, Any], kind: str, time_ns: int, moment: float, chunk: int, order: int
) -> Any:  # fmt: skip
    """Changes of one kind as rows of the replication feed."""
    count = len(next(iter(columns.values())))
    given = {
        **columns,
        "operation": pa.repeat(uuid.uuid4().hex, count),
        "update_order": np.arange(order, order + count),
        "update_time_ns": np.full(count, time_ns),
        "update_mjd_tai": np.full(count, moment),
        "kind": pa.repeat(kind, count),
        "chunk": np.full(count, chunk),
        "done": np.zeros(count, bool),
    }
    fields = [field for field in layouts.UPDATE_SCHEMA if field.name in given]
    arrays = [_array(given[field.name], field.type) for field in fields]
    return pa.table(arrays, pa.schema(fields))


def _array(given: Any, kind: Any) -> Any:
    return given.cast(kind) if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given).cast(kind)


def _pairs(given: Any, key: str, value: str | None) -> Any:
    """Ids, or ids with their new values, as a table."""
    if isinstance(given, Mapping) and not any(isinstance(name, str) for name in given):
        ids = np.fromiter(given.keys(), np.int64, len(given))
        return pa.table({key: ids, value or "": np.fromiter(given.values(), np.int64, len(given))})
    if value is None and isinstance(given, list | tuple | set | frozenset | np.ndarray):
        return pa.table({key: pa.array(list(given), pa.int64())})
    table = arrow_table(given, "the rows to change")
    if value is not None and value not in table.schema.names:
        raise InvalidInputError(f"the rows to change lack column {value}", kind="invalid-rows")
    return table


def associated(given: Any) -> Any:
    """Sources and their solar-system objects, as a table."""
    return _pairs(given, names.SOURCE_ID, names.SS_OBJECT_ID)


def _mapped(given: Any, key: str, value: str, rows: Any) -> Any:
    """Look up the new value of each row in `given`."""
    ids, wanted = given[key].to_numpy(), given[value].to_numpy()
    order = np.argsort(ids, kind="stable")
    # If an id is given twice, its last value counts: the sort is stable, and the search ends after equal ids.
    places = np.searchsorted(ids[order], rows[key].to_numpy(), side="right") - 1
    return wanted[order][places].astype(np.int64) if rows.num_rows else np.empty(0, np.int64)


def _differ(have: Any, wanted: Any) -> Any:
    """Mark the values that are null or differ from the wanted ones."""
    same = pc.equal(have, pa.array(wanted, pa.int64()))
    return ~pc.fill_null(same, False).to_numpy()


def _only(rows: Any, keep: Any, wanted: Any) -> tuple[Any, Any]:
    return rows.filter(pa.array(keep)), wanted[keep]


def _unknown(table: str, ids: Any) -> InvalidInputError:
    ids = np.unique(ids)
    shown = ", ".join(str(int(each)) for each in ids[:5])
    more = "" if len(ids) <= 5 else f" and {len(ids) - 5} more"
    return InvalidInputError(
        f"ids not found in {table} (at the given positions and times): {shown}{more}; nothing was changed",
        kind="unknown-id",
        ids=[int(each) for each in ids],
    )


def _moment(value: Moment) -> float:
    """Convert a time, now by default, to MJD in TAI."""
    return values.mjd_tai(datetime.now(UTC) if value is None else value, "time")
