"""Import survey alerts into a database.

An alert contains a detection, its object and part of their history. Alerts of one detector-visit overlap, so rows with
equal ids are one record, whichever alert contained them, and importing a file again changes nothing.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.apdb import names
from chronotile.apdb.alert_files import (
    PARTS,
    Tables,
    convert_radians,
    exact_ids,
    first_non_integer,
    mjd_of_timestamps,
    read_alerts,
)
from chronotile.apdb.rows import newest
from chronotile.apdb.schema import Table
from chronotile.apdb.survey import Apdb
from chronotile.apdb.values import ztf_object_ids
from chronotile.casts import first_misfit, fitting
from chronotile.errors import InvalidInputError

__all__ = ["Import", "Tables", "import_alerts", "read_alerts", "ztf_object_ids"]

_ROUNDED_KEY = "apdb:rounded-ids"
"""Metadata key that marks a database which contains sources with rounded ids."""


@dataclass(frozen=True)
class Import:
    """Report of an import.

    Attributes
    ----------
    objects, sources, forced_sources : int
        Distinct records in the alerts, including those already in the database.
    detector_visits : int
        Detector-visits that the records belong to.
    left_out : tuple of str
        Everything that was not imported: the names in `no_column`, then counts of rows and values with the reason.
    no_column : tuple of str
        Parts and columns of the alerts that the schema has no column for.
    notes : tuple of str
        Changes made to the rows that a user should know about.
    stored : bool
        Whether any of the records is new to the database.
    """

    objects: int
    sources: int
    forced_sources: int
    detector_visits: int
    left_out: tuple[str, ...]
    no_column: tuple[str, ...]
    notes: tuple[str, ...]
    stored: bool


def import_alerts(
    database: Apdb,
    paths: Iterable[str | os.PathLike[str]],
    *,
    archived: str | os.PathLike[str] | Literal[False] | None = None,
) -> Import:
    """Import alert files: Avro packets, or Parquet files of packets or of flattened tables.

    Supported packets: ZTF, and LSST from alert schema 7.0 on. Avro files may be compressed or in an archive, and a
    folder stands for all files in it. Give the flattened tables of one stream (objects, sources, forced sources) in one
    call.

    Sources with rounded ids are deleted when their exact ids arrive; `archived` is as for :meth:`Apdb.delete`.

    Raises
    ------
    DataFileError
        A file cannot be read.
    InvalidInputError
        The files contain no alerts, or the alerts lack required columns of the schema.
    """
    seen = {name: _Distinct() for _, name in PARTS}
    visits: set[tuple[int, int]] = set()
    no_column: set[str] = set()
    dropped: Counter[str] = Counter()
    rounded = 0
    stored = False
    notes: list[str] = []
    for tables in read_alerts(paths):
        _convert_positions(database, tables)
        fitted = Tables()
        for attribute, name in PARTS:
            rows = getattr(tables, attribute)
            if rows is None:
                continue
            rows = _with_current_names(rows, database.schema[name])
            known = [column for column in rows.schema.names if column in database.schema[name]]
            no_column.update(f"{name}.{column}" for column in rows.schema.names if column not in known)
            with _naming(tables.path):
                rows = _of_schema(rows.select(known), database, name, dropped)
            if name == names.SOURCE:
                rows, inexact = _with_exact_ids(database, rows, tables.rounded, dropped, archived)
                rounded += inexact
            setattr(fitted, attribute, rows)
            seen[name].add(rows, _KEYS[name])
        here, new = _store(database, fitted, tables.path)
        visits |= here
        stored = stored or new
        no_column |= tables.no_column
        dropped.update(tables.dropped)
        notes += [note for note in tables.notes if note not in notes]
    if rounded:
        notes.append(
            f"the file rounded the ids of {rounded:,} detections to 53 bits: they are stored under the "
            "rounded id until an alert with the exact id is imported"
        )
    counts = [seen[name].count for _, name in PARTS]
    unstored = tuple(sorted(no_column))
    left_out = (*unstored, *(f"{count:,} {part}" for part, count in sorted(dropped.items())))
    if not any(counts):
        why = f"; left out: {', '.join(left_out)}" if left_out else ""
        raise InvalidInputError(f"no alert imported: no complete alert in the files{why}", kind="invalid-rows")
    return Import(counts[0], counts[1], counts[2], len(visits), left_out, unstored, tuple(notes), stored)


def _convert_positions(database: Apdb, tables: Tables) -> None:
    """Determine whether forced sources without objects have positions in degrees or radians, from the objects in the
    database; convert radians.
    """
    if tables.forced_unit_known:
        return
    ids = pc.unique(tables.forced_sources[names.OBJECT_ID])
    columns = [names.OBJECT_ID, names.RA, names.DEC]
    known = database.dataset(names.OBJECT).read(
        ids=ids.to_pylist(), columns=columns, where=[names.not_deleted(names.OBJECT)]
    )
    convert_radians(tables, known.to_arrow())
    if not tables.forced_unit_known:
        raise InvalidInputError(
            "forced sources rejected: their positions may be in radians, and none of their objects is known: give the "
            "files of their objects or sources in the same command",
            kind="invalid-rows",
        )


_KEYS = {
    names.OBJECT: [names.OBJECT_ID],
    names.SOURCE: [names.SOURCE_ID],
    names.FORCED: [names.OBJECT_ID, names.VISIT, names.DETECTOR],
}


class _Distinct:
    """Counts distinct keys over several tables."""

    def __init__(self) -> None:
        self._keys: Any = None

    def add(self, rows: Any, key: list[str]) -> None:
        more = rows.select(key).group_by(key).aggregate([])
        both = more if self._keys is None else pa.concat_tables([self._keys, more]).group_by(key).aggregate([])
        self._keys = both

    @property
    def count(self) -> int:
        return 0 if self._keys is None else int(self._keys.num_rows)


_DETECTION = [names.OBJECT_ID, names.VISIT, names.DETECTOR, "rounded"]
"""Columns that identify a detection when one of two ids is rounded."""


def _with_exact_ids(
    database: Apdb, sources: Any, rounded: Any, dropped: Counter[str],
    archived: str | os.PathLike[str] | Literal[False] | None,
) -> tuple[Any, int]:  # fmt: skip
    """Replace rounded source ids by exact ids from the database; also return how many stay rounded.

    If rounding gives several detections the same id, the first is kept and the others are counted in `dropped`. A
    stored source with a rounded id is deleted when its exact id arrives.
    """
    flagged = database.metadata.get(_ROUNDED_KEY) is not None
    if not sources.num_rows or (rounded is None and not flagged):
        return sources, 0
    inexact = pc.is_in(sources[names.SOURCE_ID], pa.array([] if rounded is None else rounded, pa.int64()))
    # Exact ids may replace rounded ids in the database, so if it has any, look around exact sources too.
    stored = _stored_near(database, sources if flagged else sources.filter(inexact))
    # From here on, `sources` has the exact id of each detection that the database knows by it.
    sources = _identified_by(sources, inexact, stored)
    if flagged:
        given = _detections(sources)
        exact = given.filter(pc.not_equal(given["id"], given["rounded"])).select(_DETECTION)
        there = _detections(stored)
        stale = there.filter(pc.equal(there["id"], there["rounded"])).join(exact, _DETECTION, join_type="left semi")
        if stale.num_rows:
            replaced = stored.filter(pc.is_in(stored[names.SOURCE_ID], stale["id"].combine_chunks()))
            database.delete(names.SOURCE, replaced, archived=archived)
    ids = sources[names.SOURCE_ID].to_numpy()
    # An id that was replaced by its exact form differs from the rounded one.
    still_rounded = inexact.to_numpy(zero_copy_only=False) & (ids == _rounded(ids))
    others = _belong_to_other_detections(sources, still_rounded, stored)
    if others.any():
        dropped["detections whose rounded id belongs to another detection"] += int(others.sum())
        sources, ids, still_rounded = sources.filter(pa.array(~others)), ids[~others], still_rounded[~others]
    still = np.unique(ids[still_rounded])
    if len(still) and not flagged:
        # Set the mark before the rows are stored, so that an interrupted import leaves no unmarked rounded ids.
        database.metadata.set(_ROUNDED_KEY, "1", force=True)
    return sources, len(still)


_DETECTION_COLUMNS = [names.VISIT, names.DETECTOR, names.RA, names.DEC]
"""Columns that are equal in two rows of the same detection, and differ if rounding merged two ids."""


def _belong_to_other_detections(sources: Any, rounded: Any, stored: Any) -> Any:
    """Mark the sources whose rounded id is already taken by another detection."""
    owners: dict[int, tuple[Any, ...]] = {}
    others = np.zeros(sources.num_rows, bool)
    if not rounded.any():
        return others
    wanted = sources[names.SOURCE_ID].filter(pa.array(rounded)).combine_chunks()
    known = pc.is_in(stored[names.SOURCE_ID], wanted)
    for id, *seen in _lines(stored.filter(known)):
        owners[id] = tuple(seen)
    places = np.flatnonzero(rounded)
    for place, (id, *seen) in zip(places, _lines(sources.take(pa.array(places))), strict=True):
        others[place] = owners.setdefault(id, tuple(seen)) != tuple(seen)
    return others


def _lines(rows: Any) -> Iterable[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in (names.SOURCE_ID, *_DETECTION_COLUMNS)), strict=True)


def _rounded(ids: Any) -> Any:
    """Convert 64-bit integers to floats and back."""
    return ids.astype(np.float64).astype(np.int64)


def _detections(sources: Any) -> Any:
    ids = sources[names.SOURCE_ID].to_numpy()
    return (
        sources.select(_DETECTION[:3])
        .append_column("rounded", pa.array(_rounded(ids)))
        .append_column("id", pa.array(ids))
    )


def _stored_near(database: Apdb, sources: Any) -> Any:
    """Read ids, positions and times of stored sources in the pixels and period of `sources`."""
    columns = [names.SOURCE_ID, *_DETECTION[:3], names.RA, names.DEC, names.TIME]
    kept = (names.version_column(names.SOURCE), "!=", names.GONE)
    # Periods exclude their end: `nextafter` includes the last time.
    time = pc.min_max(sources[names.TIME]).as_py()
    rows = database.dataset(names.SOURCE).read(
        cells=database.cells_of(sources), start=time["min"], end=float(np.nextafter(time["max"], np.inf)),
        columns=columns, where=[kept],
    )  # fmt: skip
    return pa.table(rows)


def _identified_by(sources: Any, inexact: Any, stored: Any) -> Any:
    """`sources` with the `inexact` ids replaced by the exact id of the same detection in `stored`."""
    known = _detections(stored)
    known = known.filter(pc.not_equal(known["id"], known["rounded"]))
    if not known.num_rows:
        return sources
    known = known.group_by(_DETECTION).aggregate([("id", "min")])
    given = _detections(sources).append_column("row", pa.array(np.arange(sources.num_rows)))
    # Arrow joins return rows in any order: restore that of `sources`, because `inexact` marks rows by position.
    resolved = given.join(known, _DETECTION, join_type="left outer").sort_by("row")
    ids = pc.if_else(pc.and_(inexact, pc.is_valid(resolved["id_min"])), resolved["id_min"], resolved["id"])
    place = sources.schema.get_field_index(names.SOURCE_ID)
    return sources.set_column(place, sources.schema.field(place), ids)


_CURRENT_NAMES = {"is_negative": "isNegative", "time_processed": "timeProcessedMjdTai"}
"""Columns of LSST alerts before schema 9, with the name that the same column has since."""


def _with_current_names(rows: Any, table: Table) -> Any:
    """Rename columns of early LSST alerts where the schema has the current name alone; timestamps become MJD (TAI)."""
    for early, current in _CURRENT_NAMES.items():
        if early not in rows.schema.names or early in table or current not in table or current in rows.schema.names:
            continue
        column = rows[early]
        if pa.types.is_timestamp(column.type):
            column = mjd_of_timestamps(column)
        rows = rows.set_column(rows.schema.get_field_index(early), current, column)
    return rows


def _of_schema(rows: Any, database: Apdb, name: str, dropped: Counter[str]) -> Any:
    """Cast columns to the types of the schema, so that rows of different packets compare.

    Integers that lost bits as floats become null and are counted in `dropped`.
    """
    fields = [database.schema[name][column].arrow for column in rows.schema.names]
    for place, wanted in enumerate(fields):
        if pa.types.is_integer(wanted.type) and pa.types.is_floating(rows[wanted.name].type):
            if (first := first_non_integer(rows[wanted.name])) is not None:
                raise _misfit(rows, wanted, name, first, "give whole numbers")
            ids, inexact = exact_ids(rows[wanted.name], np.array([], np.int64), wanted.name)
            if inexact.any():
                dropped[f"values of {name}.{wanted.name}, rounded in the file"] += int(inexact.sum())
            rows = rows.set_column(place, wanted.name, pc.if_else(pa.array(inexact), None, ids))
    return pa.table([_cast(rows, wanted, name) for wanted in fields], schema=pa.schema(fields))


def _cast(rows: Any, wanted: Any, table: str) -> Any:
    """Cast a column to the type of the schema; only floats may lose digits."""
    column, safe = rows[wanted.name], not pa.types.is_floating(wanted.type)
    try:
        return fitting(column, wanted.type, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _misfit(rows, wanted, table, first_misfit(column, wanted.type, safe=safe), str(error)) from None


def _misfit(rows: Any, wanted: Any, table: str, row: int | None, reason: str) -> InvalidInputError:
    """Error for a column that does not fit the schema; it shows a value and the ids of its record."""
    if row is not None:
        keys = [f"{key} {rows[key][row].as_py()}" for key in _KEYS[table] if key in rows.schema.names]
        of_record = f" in the record with {', '.join(keys)}" if keys else ""
        reason = f"{rows[wanted.name][row].as_py()!r}{of_record} does not fit {wanted.type}: {reason}"
    return InvalidInputError(
        f"{table}.{wanted.name} in the alerts does not match the schema: {reason}", kind="invalid-rows"
    )


def _store(database: Apdb, tables: Tables, path: Path | None) -> tuple[set[tuple[int, int]], bool]:
    """Store rows by detector-visit; return the detector-visits, and whether anything is new."""
    with _naming(path):
        return _store_visits(database, tables)


@contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    """Name the file in errors of its rows."""
    try:
        yield
    except InvalidInputError as error:
        if path is None:
            raise
        raise InvalidInputError(f"{path}: {error}", kind=error.kind) from None


def _store_visits(database: Apdb, tables: Tables) -> tuple[set[tuple[int, int]], bool]:
    stored = False
    sources = None if tables.sources is None else _once(tables.sources, [names.SOURCE_ID])
    key = [names.OBJECT_ID, names.VISIT, names.DETECTOR]
    forced = None if tables.forced_sources is None else _once(tables.forced_sources, key)
    groups = _by_visit(sources), _by_visit(forced)
    objects = _object_versions(tables, sources)
    for visit, detector in sorted({*groups[0], *groups[1]}):
        mine, measured = (each.get((visit, detector)) for each in groups)
        rows: Any = mine if mine is not None else measured
        time = pc.min(rows[names.TIME]).as_py()
        # Objects whose validity starts with this visit are stored with it; those that remain are stored by time.
        stored |= database.store_again(time, objects.pop(time, None), mine, measured).stored
    for time, versions in objects.items():
        stored |= database.store_again(time, versions).stored
    return {*groups[0], *groups[1]}, stored


def _once(rows: Any, key: list[str]) -> Any:
    """Keep the last row of each key, sorted by key."""
    numbered = rows.append_column("_row", pa.array(np.arange(rows.num_rows)))
    return newest(numbered, key, "_row").drop_columns(["_row"])


def _by_visit(rows: Any) -> dict[tuple[int, int], Any]:
    if rows is None or not rows.num_rows:
        return {}
    ordered = rows.sort_by([(names.VISIT, "ascending"), (names.DETECTOR, "ascending")])
    visits, detectors = ordered[names.VISIT].to_numpy(), ordered[names.DETECTOR].to_numpy()
    cuts = np.flatnonzero((np.diff(visits) != 0) | (np.diff(detectors) != 0)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), ordered.num_rows]
    return {
        (int(visits[start]), int(detectors[start])): ordered.slice(start, end - start)
        for start, end in zip(starts, ends, strict=True)
    }


def _object_versions(tables: Tables, sources: Any) -> dict[float, Any]:
    """Group objects by the start of their validity."""
    rows = tables.objects
    if rows is None or not rows.num_rows:
        return {}
    if names.VALID_FROM not in rows.schema.names:
        if sources is None:
            raise InvalidInputError(
                "objects without sources have no start of validity: also give the file with their sources",
                kind="invalid-rows",
            )
        rows = _once(rows, [names.OBJECT_ID])
        return {pc.max(sources[names.TIME]).as_py(): rows}
    rows = _once(rows, [names.OBJECT_ID, names.VALID_FROM]).sort_by(names.VALID_FROM)
    times = rows[names.VALID_FROM].to_numpy()
    cuts = np.flatnonzero(np.diff(times) != 0) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), rows.num_rows]
    whole = rows.drop_columns([names.VALID_FROM])
    return {float(times[s]): whole.slice(s, e - s) for s, e in zip(starts, ends, strict=True)}
