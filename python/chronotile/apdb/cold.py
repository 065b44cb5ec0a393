"""Cold storage: archive old slices as Parquet files in a folder, read them through the database, and restore them.

A file holds one slice of a table, under ``TABLE/slice=NUMBER/``: hive partitions, which pyarrow, polars, DuckDB and
Spark read as one table. Rows are sorted by pixel, so that row-group statistics narrow a search on the sky; rows merged
from an earlier file follow, sorted in the same way.

If a record is in a file and in the database, the newest version counts; a deletion is newer than any version.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from chronotile import arguments, durable
from chronotile.apdb import names, values
from chronotile.apdb.rows import newest
from chronotile.apdb.slice_files import LIST, SliceFile, has_list, list_slices, require_listed, seal
from chronotile.apdb.slice_status import SliceKey
from chronotile.apdb.tables import SurveyTables
from chronotile.dataset import Dataset
from chronotile.errors import BusyError, DamagedError, DataFileError
from chronotile.reports import SliceInfo
from chronotile.sky import Region
from chronotile.times import Moment

__all__ = ["ColdSlice"]

_ROW_GROUP_ROWS = 50_000
_TRIES = 5
_LOCK_WAIT_S = 10.0
_TABLES = (names.SOURCE, names.FORCED)


@dataclass(frozen=True)
class ColdSlice:
    """A slice of a table, archived in a file.

    Attributes
    ----------
    table : str
        The table.
    slice : int
        Number of the slice.
    path : Path
        The file.
    rows, bytes : int
        Its rows and size.
    """

    table: str
    slice: int
    path: Path
    rows: int
    bytes: int


class ColdStorage:
    """Archives and restores old slices of a database."""

    def __init__(self, tables: SurveyTables) -> None:
        self._tables = tables

    def archive_before(
        self, before: Moment, folder: str | os.PathLike[str], *, keep: bool = False, dry_run: bool = False
    ) -> list[ColdSlice]:
        """Move slices of sources and forced sources that end at or before a time to Parquet files.

        Each slice is written to a file, synced and counted, then dropped if it still holds exactly what was written; if
        others wrote to it meanwhile, it is written again. If a slice already has a file and got late rows or changes
        since, the new file contains both. Deleted records are left out. The call may be interrupted and repeated at any
        point. Only one call at a time may replace files of a folder. On a cluster, it takes at least 12 s, in which
        writers learn that slices will be dropped.

        Parameters
        ----------
        before : time
            Slices that end at or before it.
        folder : path
            Where the files go; read them with ``archived=folder``.
        keep : bool
            Write the files and drop nothing.
        dry_run : bool
            Report what would be done; change nothing.

        Raises
        ------
        DamagedError
            A file does not hold the rows that were read; its slice was not dropped.
        BusyError
            Kind ``slice-in-use``: other processes kept writing to a slice. Its file is written, its rows also stay in
            the database, and earlier slices are moved. Kind ``folder-in-use``: another call is replacing files of the
            folder.
        """
        limit, root = values.mjd_tai(before, "before"), Path(folder)
        with nullcontext() if dry_run else _lock(root):
            return self._archive_before(limit, root, keep, dry_run)

    def _archive_before(self, limit: float, root: Path, keep: bool, dry_run: bool) -> list[ColdSlice]:
        written: list[ColdSlice] = []
        if root.is_dir():
            # Fail if a listed file is missing: a new file would hold only the late rows of its slice.
            self._archived(root)
        if not dry_run:
            # The list identifies the folder as one of archived slices, even before the first slice is written.
            list_slices(root, ())
        for tables in self._table_groups():
            if dry_run:
                for parts in self._slices_before(tables, limit).values():
                    written += [
                        ColdSlice(table, part.slice, _path(root, table, part.slice), part.rows, part.bytes)
                        for table, part in parts.items()
                        if part.rows
                    ]
            else:
                with ExitStack() as opened:
                    written += self._move(tables, limit, root, keep, opened)
        return sorted(written, key=lambda each: (_TABLES.index(each.table), each.slice))

    def _table_groups(self) -> list[tuple[str, ...]]:
        """The tables, grouped by the slices that they share."""
        shared = self._tables.datasets[names.FORCED].shares_slices_with
        return [_TABLES] if shared else [(table,) for table in _TABLES]

    def _slices_before(self, tables: tuple[str, ...], limit: float) -> dict[int, dict[str, SliceInfo]]:
        """Slices that end at or before a time: by number, then by table."""
        by_name = {names.dataset_name(table): table for table in tables}
        slices: dict[int, dict[str, SliceInfo]] = {}
        for name, parts in self._tables.group.retire(by_name, before=limit, dry_run=True).items():
            for part in parts:
                slices.setdefault(part.slice, {})[by_name[name]] = part
        return slices

    def _move(
        self, tables: tuple[str, ...], limit: float, root: Path, keep: bool, opened: ExitStack
    ) -> list[ColdSlice]:
        """Write the files of slices that tables share, and drop the slices that are completely archived."""
        written: dict[SliceKey, ColdSlice] = {}
        earlier: dict[SliceKey, Any] = {}
        group, shared = self._tables.group, [names.dataset_name(table) for table in tables]
        if not keep:
            # Finish interrupted drops: their rows are already archived.
            group.retire(shared, unchanged=[])
        remaining = self._slices_before(tables, limit)
        for _ in range(_TRIES):
            wanted: dict[SliceKey, SliceInfo] = {}
            for number, parts in remaining.items():
                for table, part in parts.items():
                    path, place = _path(root, table, number), SliceKey(table, number)
                    if place not in earlier:
                        # Start each attempt from the original file: rows written by a failed attempt may have been
                        # removed since.
                        earlier[place] = opened.enter_context(SliceFile(path)) if path.exists() else None
                    # A table may have no rows in a slice that it shares.
                    if part.rows or earlier[place] is not None or place in written:
                        wanted[place] = part
            # Note the slices before reading their rows: a removal looks for notes after it removed rows, so either the
            # files lack these rows, or the removal finds the note.
            self._tables.slice_status.add_archived(wanted, str(root.resolve()))
            for place, part in wanted.items():
                written[place] = self._write_slice(place.table, part, _path(root, *place), earlier[place])
            if written:
                # List the files before their slices are dropped: from then on, a missing file is an error.
                list_slices(root, written)
            if keep or not remaining:
                return list(written.values())
            # Tables that share a slice are dropped together, so the fingerprint of one of them stands for all.
            unchanged = [next(iter(parts.values())) for parts in remaining.values()]
            retired = group.retire(shared, unchanged=unchanged)
            dropped = {part.slice for parts in retired.values() for part in parts}
            now = self._slices_before(tables, limit)
            remaining = {number: now[number] for number in remaining if number not in dropped and number in now}
        if remaining:
            numbers = ", ".join(str(number) for number in remaining)
            raise BusyError(
                f"slices {numbers} of {' and '.join(tables)} were archived but not dropped, because other processes "
                f"keep writing to them: repeat when the writers have ended",
                kind="slice-in-use",
            )
        return list(written.values())

    def _write_slice(self, table: str, part: SliceInfo, path: Path, earlier: Any) -> ColdSlice:
        """Write the file of a slice: rows of the database, then rows that only the earlier file has."""
        # A replica that lacks chunks would leave out rows that are then dropped: read at a level that overlaps with
        # that of writes.
        dataset = self._tables.datasets[table].seeing_every_write()
        stream = dataset.read(start=part.start, end=part.end, where=[names.not_deleted(table)])
        schema = stream.schema

        def parts() -> Iterator[Any]:
            if earlier is None:
                yield from _groups(stream.batches())
                return
            hidden, key = names.version_column(table), list(dataset.id)
            # Of equal versions, the row of the database is taken and that of the earlier file left out, so each record
            # is written once.
            known = earlier.read([*key, hidden])
            for group in _groups(stream.batches()):
                yield group.filter(pa.array(~_outdated(group, known, key, hidden, equal=False)))
            for group in _groups(earlier.batches()):
                yield self._only_cold(dataset, table, self._fitted(table, group, schema))

        return ColdSlice(table, part.slice, path, *_replace(path, schema, parts))

    def archived(self, folder: str | os.PathLike[str]) -> list[ColdSlice]:
        """Archived slices in a folder, by table and number.

        Raises
        ------
        DataFileError
            Kind ``file-not-found``: no such folder; no slice was ever archived to it; or it lacks files of slices that
            were archived to it.
        """
        return self._archived(require_folder(folder))

    def _archived(self, root: Path) -> list[ColdSlice]:
        """Archived slices in a folder; none if none was ever archived to it."""
        found = []
        for table in _TABLES:
            for path in sorted(_paths(root, table)):
                number = int(path.parent.name.partition("=")[2])
                with SliceFile(path) as file:
                    found.append(ColdSlice(table, number, path, file.rows, path.stat().st_size))
        require_listed(root, (SliceKey(each.table, each.slice) for each in found))
        return sorted(found, key=lambda each: (each.table, each.slice))

    def restore(self, folder: str | os.PathLike[str], start: Moment = None, end: Moment = None) -> list[ColdSlice]:
        """Restore the archived slices that overlap a half-open period. The call may be repeated.

        Records changed since they were restored stay as changed.
        """
        first, last = _span(start, end)
        back = []
        with locked(folder) as root:
            for part in self._archived(root):
                limits = _limits(part)
                if part.rows and limits["max"] >= first and limits["min"] < last:
                    back.append(part)
            # The database may be a backup from before the slices were archived.
            self._tables.slice_status.add_archived([SliceKey(part.table, part.slice) for part in back], str(root))
            for part in back:
                self._restore(part)
        return back

    def _restore(self, part: ColdSlice) -> None:
        dataset = names.dataset_name(part.table)
        with SliceFile(part.path) as file:
            places = file.read([names.OBJECT_ID, names.RA, names.DEC, names.TIME])
            # Replace an earlier restore: the file may have lost or gained rows since.
            self._tables.write(
                {dataset: file.batches()}, restored_batch(part.table, part.slice), replace=True,
                indexed={dataset: places},
            )  # fmt: skip

    def drop(
        self, table: str, folder: str | os.PathLike[str], first: float, last: float, gone: Callable[[Any], Any]
    ) -> int:
        """Remove the rows that `gone` selects from the files of a table that overlap `first` to `last`; return their
        number. The caller has locked the folder.
        """
        dropped = 0
        for part in self.archived(folder):
            if part.table != table or not part.rows:
                continue
            limits = _limits(part)
            if limits["max"] < first or limits["min"] > last:
                continue
            with SliceFile(part.path) as file:

                def parts(file: SliceFile = file) -> Iterator[Any]:
                    for group in _groups(file.batches()):
                        yield group.filter(pc.invert(gone(group)))

                # Count first, in a pass of its own: a file without such rows is not rewritten.
                found = sum(pc.sum(gone(group)).as_py() or 0 for group in _groups(file.batches()))
                if found:
                    _replace(part.path, file.schema, parts)
                    dropped += found
        return dropped

    def detector_visits(self, folder: str | os.PathLike[str], where: Any) -> Any:
        """Detector-visits of the rows in files that meet a condition of pyarrow, with their first and last time."""
        kinds = pa.schema([(names.VISIT, pa.int64()), (names.DETECTOR, pa.int32()), (names.TIME, pa.float64())])
        parts = [kinds.empty_table()]
        for part in self.archived(folder):
            with SliceFile(part.path) as file:
                parts.append(file.select(where, kinds.names).cast(kinds))
        by_detector = pa.concat_tables(parts).group_by([names.VISIT, names.DETECTOR])
        found = by_detector.aggregate([(names.TIME, "min"), (names.TIME, "max")])
        return found.rename_columns(["visit", "detector", "time_first", "time_last"])

    def rows(
        self, table: str, folder: str | os.PathLike[str], region: Region | None, start: float | None,
        end: float | None, object_ids: Any,
    ) -> Any:  # fmt: skip
        """Rows that only the files of a table hold, with the columns of the dataset; columns added later have their
        default or null.

        `object_ids` is None or an array of int64.
        """
        schema = self._tables.datasets[table].schema
        files = [part.path for part in self.archived(folder) if part.table == table]
        if not files:
            return schema.empty_table()
        condition = pc.scalar(True)
        if start is not None:
            condition &= pc.field(names.TIME) >= start
        if end is not None:
            condition &= pc.field(names.TIME) < end
        if object_ids is not None:
            condition &= pc.field(names.OBJECT_ID).isin(pa.array(object_ids))
        parts = []
        for path in files:
            with SliceFile(path) as file:
                parts.append(self._fitted(table, file.select(condition), schema))
        rows = pa.concat_tables(parts)
        if region is not None and rows.num_rows:
            inside = pa.array(region.contains(rows[names.RA].to_numpy(), rows[names.DEC].to_numpy()))
            rows = rows.filter(inside)
        return self._only_cold(self._tables.datasets[table], table, rows)

    def _fitted(self, table: str, rows: Any, schema: Any) -> Any:
        """Convert rows of a file to a schema: a column that was added later has its default or null."""
        known = self._tables.schema[table]

        def added(field: Any) -> Any:
            # Another process may have added the column after this one opened the database.
            default = known[field.name].default if field.name in known else None
            return pa.repeat(pa.scalar(default, field.type), rows.num_rows)

        own = rows.schema.names
        return pa.table(
            [rows[each.name].cast(each.type) if each.name in own else added(each) for each in schema], schema
        )

    def _only_cold(self, dataset: Dataset, table: str, rows: Any) -> Any:
        """Keep the rows of a file for which the database has no equal or newer version, deletions included.

        Compare with all versions in the database, not only those that the read selects: a record may have been
        reassigned to an object that the read excludes, and the row in the file is outdated then too.
        """
        if not rows.num_rows:
            return rows
        hidden, key = names.version_column(table), list(dataset.id)
        limits = pc.min_max(rows[names.TIME]).as_py()
        parts = [rows[name].cast(dataset.schema.field(name).type).combine_chunks() for name in key]
        known = dataset.read(
            ids=parts[0] if len(parts) == 1 else tuple(parts), columns=[*key, hidden],
            cells=self._tables.cells_of(rows, values.NEAR_DEG), start=limits["min"] - values.TICK_DAYS,
            end=limits["max"] + values.TICK_DAYS,
        ).to_arrow()  # fmt: skip
        return rows.filter(pa.array(~_outdated(rows, known, key, hidden, equal=True)))


def require_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the folder as a path; raise an error if it is missing, or if no slice was ever archived to it."""
    arguments.instance(folder, (str, os.PathLike), "archived", "the folder with the files of archived slices")
    root = Path(folder)
    if not os.fspath(folder) or not root.is_dir():
        raise DataFileError(f"no such folder: {folder or repr(folder)}", kind="file-not-found")
    # Folders that an earlier release wrote have files but no list.
    if not has_list(root) and not any(path for table in _TABLES for path in _paths(root, table)):
        raise DataFileError(
            f"{folder} holds no archived slices: give the folder that archive_before (apdb archive) wrote to; it has "
            f"{LIST} and files such as {_path(Path(), names.SOURCE, 3)}",
            kind="file-not-found",
        )
    return root


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Lock a folder of archived slices while its files are replaced, and return its absolute path. Raises an error if
    the folder has no archived slices.
    """
    root = require_folder(folder)
    with _lock(root):
        yield root.resolve()


@contextmanager
def _lock(root: Path) -> Iterator[None]:
    """Lock a folder against other calls that replace its files. A new file merges the previous file with rows of the
    database. Without the lock, the later of two concurrent calls would lose rows that the earlier one archived and
    dropped.
    """
    durable.make_folder(root)
    deadline = time.monotonic() + _LOCK_WAIT_S
    with (root / ".lock").open("a") as lock:
        while not _locked_now(lock):
            if time.monotonic() > deadline:
                raise BusyError(
                    f"another process is replacing files in {root}: repeat when it has ended", kind="folder-in-use"
                )
            time.sleep(0.05)
        yield


def _locked_now(lock: IO[str]) -> bool:
    """Try to lock a file; return False if another process holds the lock."""
    try:
        # The kernel releases the lock when the file is closed, also if the process is killed.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise DataFileError(f"cannot lock {lock.name}: {error}", kind="file-access") from error
    return True


def restored_batch(table: str, number: int) -> str:
    """Name of the batch that restores a slice of a table."""
    return f"restored-{table}-slice-{number}"


def _path(root: Path, table: str, number: int) -> Path:
    return root / names.dataset_name(table) / f"slice={number}" / "rows.parquet"


def _paths(root: Path, table: str) -> Iterator[Path]:
    """Files of a table's slices."""
    return (root / names.dataset_name(table)).glob("slice=*/rows.parquet")


def _span(start: Moment, end: Moment) -> tuple[float, float]:
    first = float("-inf") if start is None else values.mjd_tai(start, "start")
    return first, float("inf") if end is None else values.mjd_tai(end, "end")


def _limits(part: ColdSlice) -> dict[str, float]:
    """The first and last time of the rows of a file."""
    with SliceFile(part.path) as file:
        return dict(pc.min_max(file.read([names.TIME])[names.TIME]).as_py())


def _groups(batches: Iterator[Any]) -> Iterator[Any]:
    """Collect batches into tables of about one row group each."""
    buffered: list[Any] = []
    for batch in batches:
        buffered.append(batch)
        if sum(each.num_rows for each in buffered) >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(buffered)
            buffered = []
    if buffered:
        yield pa.Table.from_batches(buffered)


def _outdated(rows: Any, others: Any, key: list[str], version: str, *, equal: bool) -> Any:
    """Mark the rows with a newer version in `others`; with `equal`, also those with an equal version."""
    if not rows.num_rows or not others.num_rows:
        return np.zeros(rows.num_rows, bool)
    own = pa.table(
        [*(rows[name].cast(pa.int64()) for name in key), rows[version], np.arange(rows.num_rows)],
        [*key, "_own", "_row"],
    )  # fmt: skip
    known = pa.table([*(others[name].cast(pa.int64()) for name in key), others[version]], [*key, "_other"])
    pairs = own.join(known, key, join_type="inner")
    newer = (pc.greater_equal if equal else pc.greater)(pairs["_other"], pairs["_own"])
    outdated = np.zeros(rows.num_rows, bool)
    outdated[pairs["_row"].to_numpy()[newer.to_numpy()]] = True
    return outdated


def of_records(rows: Any, records: Any, key: list[str]) -> Any:
    """Mark the rows that belong to the records with these keys."""
    own = pa.table([*(rows[name].cast(pa.int64()) for name in key), np.arange(rows.num_rows)], [*key, "_row"])
    wanted = pa.table([records[name].cast(pa.int64()) for name in key], key)
    found = np.zeros(rows.num_rows, bool)
    found[own.join(wanted, key, join_type="left semi")["_row"].to_numpy()] = True
    return pa.array(found)


def merged(live: Any, cold: Any, key: list[str], order: str) -> Any:
    """Merge rows of the database and of files; the newest version of each record wins."""
    if not cold.num_rows:
        return live
    both = pa.concat_tables([live, cold.select(live.schema.names)], promote_options="permissive")
    return newest(both, key, order)


def _replace(path: Path, schema: Any, parts: Callable[[], Iterator[Any]]) -> tuple[int, int]:
    """Replace a file atomically once the new one is complete and durable; return its rows and bytes."""
    durable.make_folder(path.parent)
    fresh = path.with_suffix(".new")
    rows = 0
    with fresh.open("w+b") as file:
        with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            for part in parts():
                if part.num_rows:
                    writer.write_table(part, row_group_size=_ROW_GROUP_ROWS)
                    rows += part.num_rows
        seal(file)
        file.flush()
        os.fsync(file.fileno())
    # Read the row count back before the rename: until then, the previous file is still in place.
    with SliceFile(fresh) as written:
        found = written.rows
    if found != rows:
        raise DamagedError(
            f"{fresh} holds {found} rows but {rows} were written; nothing was dropped", kind="damaged-file"
        )
    # The rename must be durable before anything is dropped.
    durable.rename(fresh, path)
    return rows, path.stat().st_size
