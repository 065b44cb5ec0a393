"""Store detector-visits, and rows of other tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import layout as layouts
from chronotile.apdb import names, values
from chronotile.apdb.rows import Rows, arrow_table, conform
from chronotile.apdb.slice_status import SliceKey, archived_error, check_not_archived_since
from chronotile.apdb.tables import SurveyTables, detector_visit_key
from chronotile.errors import BatchConflictError, InvalidInputError
from chronotile.reports import BatchInfo, GroupBatchInfo, WriteReport
from chronotile.times import Moment

__all__ = ["StoreReport"]

_IN_SLICES = {names.dataset_name(table): table for table in (names.SOURCE, names.FORCED)}
"""Datasets whose slices are archived and retired, with their tables."""
_CLOCKS_DIFFER = timedelta(hours=1)
"""Largest clock difference between processes: a retirement up to this long before a store may have followed it."""
_REPLACE_REMEDY = (
    "remove the detector-visit with remove_visit(visit, detector, archived=FOLDER) (apdb remove --archived FOLDER), "
    "then store it"
)


@dataclass(frozen=True)
class StoreReport:
    """Report of a store.

    Attributes
    ----------
    stored : bool
        Whether anything was stored; False if the same detector-visit was already stored.
    objects, sources, forced_sources : int
        Rows in each table.
    bytes : int
        Bytes of their chunks.
    """

    stored: bool
    objects: int
    sources: int
    forced_sources: int
    bytes: int


class Stores:
    """Stores detector-visits, and rows of other tables."""

    def __init__(self, tables: SurveyTables) -> None:
        self._tables = tables

    def store(
        self,
        visit_time: Moment,
        objects: Any = None,
        sources: Any = None,
        forced_sources: Any = None,
        *,
        visit: int | None = None,
        detector: int | None = None,
        replace: bool = False,
    ) -> StoreReport:
        """Store the results of one detector in one visit. They are durable when this returns.

        A detector-visit is one batch: it is in all tables or in none, and it is stored once, however often the call is
        repeated. If slices with its rows were retired or archived since, its rows are stored again. Reads never see
        rows of a failed store, and the next store of the detector-visit replaces them.

        Parameters
        ----------
        visit_time : time
            Time of the visit, and start of validity of its object versions.
        objects, sources, forced_sources : table or dict of arrays, optional
            Rows of DiaObject, DiaSource and DiaForcedSource: Arrow, pandas, polars, astropy tables. Quantities are
            converted to the units of the schema. The store fills in the validity of objects.
        visit, detector : int, optional
            The detector-visit; by default taken from the sources or forced sources.
        replace : bool
            Whether to replace a stored detector-visit that has other rows.

        Raises
        ------
        InvalidInputError
            The rows do not match the schema, or belong to several detector-visits. Kind ``archived-records``: with
            `replace`, slices of the other rows were written to files, from which these could be restored. Nothing was
            stored.
        BatchConflictError
            The detector-visit is stored with other rows.
        OutcomeUnknownError
            With `replace`: another process wrote the replaced rows to files meanwhile.
        """
        return self._store(visit_time, objects, sources, forced_sources, visit, detector, replace)

    def store_again(
        self, visit_time: Moment, objects: Any = None, sources: Any = None, forced_sources: Any = None
    ) -> StoreReport:
        """As :meth:`store`, for pipelines that add rows to a stored detector-visit.

        The store is identified by its time and, where they differ, its ids: repeating it changes nothing, and other
        rows are added to those already stored. Records with the same ids are replaced.
        """
        tables = (objects, sources, forced_sources)
        try:
            return self._store(visit_time, *tables, None, None, False, timed=True)
        except BatchConflictError as error:
            if error.kind != "batch-differs":
                raise
            keyed = [(objects, names.OBJECT_ID), (sources, names.SOURCE_ID), (forced_sources, names.OBJECT_ID)]
            digest = _digest(keyed)
            return self._store(visit_time, *tables, None, None, False, timed=True, suffix=f"-{digest}")

    def _store(
        self, visit_time: Moment, objects: Any, sources: Any, forced: Any, visit: int | None, detector: int | None,
        replace: bool, timed: bool = False, suffix: str = "",
    ) -> StoreReport:  # fmt: skip
        time = values.within_versions(values.mjd_tai(visit_time, "visit_time"))
        filled = {n: v for n, v in ((names.VISIT, visit), (names.DETECTOR, detector)) if v is not None}
        schema = self._tables.schema
        given = {
            name: None if rows is None else conform(rows, schema[name], filled, what)
            for name, rows, what in ((names.SOURCE, sources, "sources"), (names.FORCED, forced, "forced_sources"))
        }
        visit, detector = _detector_visit(given, visit, detector, lenient=timed)
        if visit == names.NO_VISIT and objects is None:
            raise InvalidInputError(
                "there are no rows to store: give visit and detector (--visit, --detector) to record a detector-visit "
                "without detections",
                kind="invalid-rows",
            )
        for name, rows in given.items():
            if rows is not None:
                # Version 0 marks rows as they were stored: changes write greater versions, by which removals find them.
                given[name] = _constant(rows, names.UPDATE, 0, pa.int64())
        given[names.OBJECT] = None if objects is None else self._versions(objects, time)
        key = _key(visit, detector, time, given[names.OBJECT], timed) + suffix
        # The records of the detector-visit and of the feed are in the batch of the rows, so all are removed together.
        row = self._visit_row(key, visit, detector, time, given)
        tables = {names.dataset_name(name): rows for name, rows in given.items() if rows is not None}
        main = list(tables)
        tables[names.VISITS] = pa.table(row, layouts.VISIT_SCHEMA)
        if self._tables.layout.feed:
            chunk = int(values.unix_tai(time)) // self._tables.layout.feed_chunk_s * self._tables.layout.feed_chunk_s
            tables[names.FEED] = pa.table({**row, "chunk": [chunk], "done": [False]}, layouts.FEED_SCHEMA)
        with _conflicts_named(visit, detector):
            reports = self._replace(tables, key) if replace else self._tables.write(tables, key)
        counts = {name: 0 if rows is None else rows.num_rows for name, rows in given.items()}
        return StoreReport(
            reports[names.VISITS].stored, counts[names.OBJECT], counts[names.SOURCE], counts[names.FORCED],
            sum(reports[name].bytes for name in main),
        )  # fmt: skip

    def _replace(self, rows: dict[str, Any], key: str) -> dict[str, WriteReport]:
        """Replace a detector-visit, unless files may hold its earlier rows, which a restore would bring back."""
        slices, count = self._stored_in(key)
        in_files = self._tables.slice_status.archived(slices)
        try:
            # If files may have the earlier rows, write without `replace`: equal rows are accepted, others conflict.
            reports = self._tables.write(rows, key, replace=not in_files)
        except BatchConflictError as error:
            if error.kind != "batch-differs" or not in_files:
                raise
            raise archived_error(in_files, count, _REPLACE_REMEDY) from error
        # Look for notes again: another process notes a slice before it reads the slice's rows for a file.
        check_not_archived_since(in_files, self._tables.slice_status.archived(slices), _REPLACE_REMEDY)
        return reports

    def _stored_in(self, key: str) -> tuple[set[SliceKey], int]:
        """Slices of the stored sources and forced sources of a detector-visit, and the number of those rows."""
        stored = self._tables.group.batch(key)
        parts = (
            {} if stored is None else {name: stored.datasets[name] for name in _IN_SLICES if name in stored.datasets}
        )
        slices = {each for name, part in parts.items() for each in self._slices_in(_IN_SLICES[name], part)}
        return slices, sum(part.rows for part in parts.values())

    def _slices_in(self, table: str, part: BatchInfo) -> set[SliceKey]:
        """Slices with rows of a batch in a table."""
        return self._tables.slices_between(table, *cast(tuple[float, float], part.period)) if part.period else set()

    def _versions(self, objects: Any, time: float) -> Any:
        """Convert objects to versions that are valid from `time` on."""
        table = self._tables.schema[names.OBJECT]
        given = arrow_table(objects, "objects")
        stale = [name for name in (names.VALID_FROM, names.VALID_TO) if name in given.schema.names]
        rows = conform(given.drop_columns(stale), table, {names.VALID_FROM: time}, "objects")
        return _constant(rows, names.VERSION, values.version_of(time), pa.int64())

    def _visit_row(
        self, key: str, visit: int, detector: int, time: float, given: Mapping[str, Any]
    ) -> dict[str, list[Any]]:
        cells = {name: [] if rows is None else self._tables.cells_of(rows) for name, rows in given.items()}
        times = [given[name][names.TIME].to_numpy() for name in (names.SOURCE, names.FORCED) if given[name] is not None]
        moments = [float(limit) for each in times if len(each) for limit in (np.nanmin(each), np.nanmax(each))]
        return {
            "key": [key],
            "visit": [visit],
            "detector": [detector],
            "visit_mjd_tai": [time],
            "objects": [0 if given[names.OBJECT] is None else given[names.OBJECT].num_rows],
            "sources": [0 if given[names.SOURCE] is None else given[names.SOURCE].num_rows],
            "forced_sources": [0 if given[names.FORCED] is None else given[names.FORCED].num_rows],
            "time_first": [min(moments, default=None)],
            "time_last": [max(moments, default=None)],
            "object_cells": [cells[names.OBJECT]],
            "source_cells": [cells[names.SOURCE]],
            "forced_cells": [cells[names.FORCED]],
        }

    def contains(self, visit: int, detector: int) -> bool:
        """Whether a detector-visit is stored with all its rows, in the database or in files of :meth:`archive_before`.

        False once :meth:`retire` dropped slices with its sources or forced sources; :meth:`store` then stores it again.
        """
        stored = self._tables.group.batch(detector_visit_key(visit, detector))
        if (
            stored is not None
            and names.VISITS in stored.datasets
            and not _datasets_with_retired_rows(stored, [names.VISITS, *_IN_SLICES])
        ):
            return True
        # The LSST adapter includes the time in its keys.
        where = [("visit", "==", visit), ("detector", "==", detector)]
        keys = self._tables.visits.read(keys=[visit], where=where, columns=["key"]).to_arrow()["key"].to_pylist()
        return bool(keys) and not any(self._retired(key) for key in keys)

    def _retired(self, key: str) -> bool:
        """Whether a stored detector-visit has lost sources or forced sources with retired slices."""
        stored = self._tables.group.batch(key)
        if stored is None:
            return True
        # Archived slices are dropped too, so lost rows alone do not mean that these are gone: the notes of `retire` do.
        lost = _datasets_with_retired_rows(stored, _IN_SLICES)
        slices = {part for name in lost for part in self._slices_in(_IN_SLICES[name], stored.datasets[name])}
        since = stored.written - _CLOCKS_DIFFER
        return any(moment >= since for moment in self._tables.slice_status.retired(slices).values())

    def visits(self, start: Moment = None, end: Moment = None) -> Rows:
        """Records of the detector-visits that were stored in a half-open period, with their row counts. They are
        retired later than the rows: :meth:`contains` says whether a detector-visit still has these.
        """
        columns = ["visit", "detector", "visit_mjd_tai", "objects", "sources", "forced_sources", "key"]
        return Rows(self._tables.visits.read(start=start, end=end, columns=columns).to_arrow().sort_by("visit_mjd_tai"))

    # ------------------------------------------------------------------ other tables

    def store_table(self, table: str, rows: Any, *, batch: str | None = None) -> int:
        """Store rows of a table that does not belong to detector-visits, such as SSObject; return their number. Rows
        replace stored rows with the same key. `batch` names the rows: repeating the call changes nothing.
        """
        if table in names.MAIN_TABLES:
            raise InvalidInputError(f"{table} is stored by detector-visits: use store", kind="invalid-request")
        given = conform(rows, self._tables.schema[table], {}, table)
        # A repeated batch must have equal content, so it takes the time of the first write.
        moment = pa.scalar(0 if batch is not None else _now_us(), pa.timestamp("us", "UTC"))
        given = given.append_column(names.STORED, pa.repeat(moment, given.num_rows))
        return self._tables.datasets[table].write(given, batch).rows

    def table(self, table: str, *, ids: Any = None, columns: Iterable[str] | None = None) -> Rows:
        """Read rows of a table that does not belong to detector-visits, by key or all."""
        dataset = self._tables.dataset(table)
        return Rows(dataset.read(ids=ids, columns=self._tables.columns(table, columns)).to_arrow())


def _datasets_with_retired_rows(stored: GroupBatchInfo, datasets: Iterable[str]) -> list[str]:
    """Datasets in which a batch has lost rows with retired slices."""
    parts = stored.datasets
    return [name for name in datasets if name in parts and parts[name].rows_retired]


def _constant(rows: Any, name: str, value: int, kind: Any) -> Any:
    """Append a constant column to `rows`."""
    return rows.append_column(name, pa.repeat(pa.scalar(value, kind), rows.num_rows))


@contextmanager
def _conflicts_named(visit: int, detector: int) -> Iterator[None]:
    """Name the detector-visit in conflicts, instead of its batch and dataset."""
    try:
        yield
    except BatchConflictError as error:
        if error.kind != "batch-differs" or visit == names.NO_VISIT:
            raise
        raise BatchConflictError(
            f"visit {visit}, detector {detector} is stored with other rows: pass replace=True (--replace) to replace "
            "them",
            kind=error.kind,
            **error.details,
        ) from error


def _detector_visit(
    given: Mapping[str, Any], visit: int | None, detector: int | None, lenient: bool
) -> tuple[int, int]:
    """Determine the detector-visit of the rows; unless `lenient`, rows of several are rejected."""
    found = {names.VISIT: visit, names.DETECTOR: detector}
    for name, rows in given.items():
        if rows is None or not rows.num_rows:
            continue
        for column in found:
            limits = pc.min_max(rows[column]).as_py()
            here = limits["min"] if found[column] is None else found[column]
            if not lenient and (limits["min"] != here or limits["max"] != here):
                several = limits["min"] != limits["max"]
                there = f"{column}s {limits['min']} to {limits['max']}" if several else f"{column} {limits['min']}"
                raise InvalidInputError(
                    f"rows of {name} belong to {there}, expected {here}: store each detector-visit in its own call",
                    kind="invalid-rows",
                )
            found[column] = here
    number, on = found[names.VISIT], found[names.DETECTOR]
    if (number is None) != (on is None):
        raise InvalidInputError("visit and detector must be given together", kind="invalid-request")
    return (names.NO_VISIT, names.NO_VISIT) if number is None or on is None else (int(number), int(on))


def _digest(tables: Iterable[tuple[Any, str]]) -> str:
    """Digest of the ids in several tables, independent of row order."""
    hashed = hashlib.blake2b(digest_size=12)
    for table, key in tables:
        ids = b"" if table is None else np.sort(arrow_table(table, "rows")[key].to_numpy()).tobytes()
        # The length separates the tables: the same ids, split otherwise between tables, have another digest.
        hashed.update(len(ids).to_bytes(8, "little") + ids)
    return hashed.hexdigest()


def _key(visit: int, detector: int, time: float, objects: Any, timed: bool) -> str:
    if visit == names.NO_VISIT:
        # Objects do not name a visit, so a store of objects alone is identified by their ids and the time.
        return f"objects-{values.version_of(time)}-{_digest([(objects, names.OBJECT_ID)])}"
    key = detector_visit_key(visit, detector)
    return f"{key}-{values.version_of(time) // 1_000}" if timed else key


def _now_us() -> int:
    import time

    return time.time_ns() // 1_000
