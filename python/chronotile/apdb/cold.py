"""Old slices as Parquet files in a folder: kept beside the database, read through it when asked, restored.

A file holds one slice of a table, under ``TABLE/slice=NUMBER/``: hive partitions, which pyarrow, polars, DuckDB and
Spark read as one table. Rows lie in the order of pixels, so that the statistics of row groups narrow a search on the
sky; those that came from an earlier file follow, in the same order.

Of a record that is in a file and in the database the newest version counts; that it was deleted is the newest of all.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from chronotile.apdb import names, values
from chronotile.apdb.rows import newest
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
    """One slice of a table in a file.

    Attributes
    ----------
    table : str
        The table.
    slice : int
        Number of the slice.
    path : Path
        The file.
    rows, bytes : int
        What it holds.
    """

    table: str
    slice: int
    path: Path
    rows: int
    bytes: int


class Cold:
    """Keeps old slices of a database in files."""

    def __init__(self, tables: SurveyTables) -> None:
        self._tables = tables

    def archive_before(
        self, before: Moment, folder: str | os.PathLike[str], *, keep: bool = False, dry_run: bool = False
    ) -> list[ColdSlice]:
        """Move slices of sources and forced sources that end by then to Parquet files.

        The file of each slice is written, durable and counted first; then the slice is dropped, if it holds exactly
        what was written. Where others stored or changed something meanwhile it is written again. A slice that has a
        file already, and got late rows or changes since, gets a file with both; deleted records are in none. Ended
        anywhere it can be repeated. One call at a time replaces files of a folder. On a cluster each table takes 12 s
        or more, in which writers learn that its slices are to be dropped.

        Parameters
        ----------
        before : time
            Slices that end at or before it.
        folder : path
            Where the files go; read them with ``archived=folder``.
        keep : bool
            Write the files and drop nothing.
        dry_run : bool
            Say what would be done and do nothing.

        Raises
        ------
        DamagedError
            A file has not the rows that were read; its slice was not dropped.
        BusyError
            Kind ``slice-in-use``: others kept writing to a slice. Its file is written, its rows stay in the database
            too, and what came before it is moved. Kind ``folder-in-use``: another call replaces files of the folder.
        """
        limit, root = values.mjd_tai(before, "before"), Path(folder)
        with nullcontext() if dry_run else _locked(root):
            return self._archive_before(limit, root, keep, dry_run)

    def _archive_before(self, limit: float, root: Path, keep: bool, dry_run: bool) -> list[ColdSlice]:
        written: list[ColdSlice] = []
        for table in _TABLES:
            dataset = self._tables.datasets[table].seeing_every_write()
            if dry_run:
                left = dataset.retire(before=limit, dry_run=True)
                written += [
                    ColdSlice(table, each.slice, _path(root, table, each.slice), each.rows, each.bytes) for each in left
                ]
            else:
                with ExitStack() as opened:
                    written += self._move(dataset, table, limit, root, keep, opened)
        return written

    def _move(
        self, dataset: Dataset, table: str, limit: float, root: Path, keep: bool, opened: ExitStack
    ) -> list[ColdSlice]:
        """Write the files of a table's slices, and drop those of which they have all."""
        written: dict[int, ColdSlice] = {}
        earlier: dict[int, Any] = {}
        if not keep:
            # Ends drops that were cut off: whoever began one has their rows.
            dataset.retire(unchanged=[])
        left = dataset.retire(before=limit, dry_run=True)
        for _ in range(_TRIES):
            for part in left:
                path = _path(root, table, part.slice)
                if part.slice not in earlier:
                    # As it is now, and not with what a try writes that others may take out again before the next.
                    earlier[part.slice] = opened.enter_context(pq.ParquetFile(path)) if path.exists() else None
                written[part.slice] = self._write_slice(dataset, table, part, path, earlier[part.slice])
            if keep or not left:
                return list(written.values())
            dropped = {part.slice for part in dataset.retire(unchanged=left)}
            known = {part.slice for part in left} - dropped
            left = [part for part in dataset.retire(before=limit, dry_run=True) if part.slice in known]
        if left:
            numbers = ", ".join(str(part.slice) for part in left)
            raise BusyError(
                f"slices of {table} were not dropped, since others keep writing to them: {numbers}; their files "
                "are written: repeat it when the writers have ended",
                kind="slice-in-use",
            )
        return list(written.values())

    def _write_slice(self, dataset: Dataset, table: str, part: SliceInfo, path: Path, earlier: Any) -> ColdSlice:
        """Write the file of a slice: what the database has, then what only the earlier file has."""
        stream = dataset.read(start=part.start, end=part.end, where=[names.kept(table)])
        schema = stream.schema

        def parts() -> Iterator[Any]:
            if earlier is None:
                yield from _groups(stream.batches())
                return
            hidden, key = names.version_column(table), list(dataset.id)
            known = earlier.read(columns=[*key, hidden])
            for group in _groups(stream.batches()):
                yield group.filter(pa.array(~_outdated(group, known, key, hidden, equal=False)))
            for group in _groups(earlier.iter_batches()):
                yield self._only_cold(dataset, table, _fitted(group, schema))

        return ColdSlice(table, part.slice, path, *_replace(path, schema, parts))

    def archived(self, folder: str | os.PathLike[str]) -> list[ColdSlice]:
        """The slices that a folder holds, by table and number."""
        found = []
        for table in _TABLES:
            for path in sorted((Path(folder) / names.dataset_name(table)).glob("slice=*/rows.parquet")):
                number = int(path.parent.name.partition("=")[2])
                found.append(ColdSlice(table, number, path, pq.read_metadata(path).num_rows, path.stat().st_size))
        return sorted(found, key=lambda each: (each.table, each.slice))

    def _held(self, folder: str | os.PathLike[str]) -> list[ColdSlice]:
        """The slices of a folder that has to be there."""
        return self.archived(require_folder(folder))

    def restore(self, folder: str | os.PathLike[str], start: Moment = None, end: Moment = None) -> list[ColdSlice]:
        """Bring slices of a folder back that hold something of a half-open period; repeating it is harmless.

        Records changed since they were restored stay as changed.
        """
        first, last = _span(start, end)
        back = []
        with _locked(require_folder(folder)):
            for part in self.archived(folder):
                times = pq.read_table(part.path, columns=[names.TIME])[names.TIME]
                limits = pc.min_max(times).as_py()
                if part.rows and limits["max"] >= first and limits["min"] < last:
                    reader = pq.ParquetFile(part.path).iter_batches()
                    self._tables.datasets[part.table].write(reader, restored_batch(part.slice), replace=True)
                    back.append(part)
        return back

    def drop(
        self, table: str, folder: str | os.PathLike[str], first: float, last: float, gone: Callable[[Any], Any]
    ) -> int:
        """Take rows out of the files of a table that hold something from `first` to `last`: those of which `gone` says
        so. How many there were."""
        with _locked(require_folder(folder)):
            return self._drop(table, folder, first, last, gone)

    def _drop(
        self, table: str, folder: str | os.PathLike[str], first: float, last: float, gone: Callable[[Any], Any]
    ) -> int:
        dropped = 0
        for part in self._held(folder):
            if part.table != table or not part.rows:
                continue
            limits = pc.min_max(pq.read_table(part.path, columns=[names.TIME])[names.TIME]).as_py()
            if limits["max"] < first or limits["min"] > last:
                continue
            file = pq.ParquetFile(part.path)
            schema = file.schema_arrow

            def parts(file: Any = file) -> Iterator[Any]:
                for group in _groups(file.iter_batches()):
                    yield group.filter(pc.invert(gone(group)))

            found = sum(pc.sum(gone(group)).as_py() or 0 for group in _groups(file.iter_batches()))
            if found:
                _replace(part.path, schema, parts)
                dropped += found
        return dropped

    def rows(
        self, table: str, folder: str | os.PathLike[str], region: Region | None, start: float | None,
        end: float | None, object_ids: list[int] | None,
    ) -> Any:  # fmt: skip
        """Rows of the files of a table that the database has not, with the columns of the dataset; columns added since
        are null."""
        schema = self._tables.datasets[table].schema
        files = [str(part.path) for part in self._held(folder) if part.table == table]
        if not files:
            return schema.empty_table()
        condition = pc.scalar(True)
        if start is not None:
            condition &= pc.field(names.TIME) >= start
        if end is not None:
            condition &= pc.field(names.TIME) < end
        if object_ids is not None:
            condition &= pc.field(names.OBJECT_ID).isin(object_ids)
        # Columns are taken by name, so that files of an older schema serve.
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        rows = pads.dataset(files, schema=nullable, format="parquet").to_table(filter=condition)
        if region is not None and rows.num_rows:
            inside = pa.array(region.contains(rows[names.RA].to_numpy(), rows[names.DEC].to_numpy()))
            rows = rows.filter(inside)
        return self._only_cold(self._tables.datasets[table], table, rows)

    def _only_cold(self, dataset: Dataset, table: str, rows: Any) -> Any:
        """Those of the rows of a file of which the database has no version as new, deleted ones included.

        The record may belong to another object there, which a condition of the read leaves out: the row of the file
        is outdated all the same.
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
    """The folder of files, which must be there."""
    if not Path(folder).is_dir():
        raise DataFileError(f"there is no folder {folder}", kind="file-not-found")
    return Path(folder)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Keep others from replacing files of a folder. A file is made of the one before and of what the database has: of
    two that are made at once the later would lack rows that went with their slice when the earlier was there."""
    root.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + _LOCK_WAIT_S
    with (root / ".lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BusyError(
                        f"somebody else moves slices to files in {root}, or out of them: repeat it when that has ended",
                        kind="folder-in-use",
                    ) from None
            except OSError as error:
                raise DataFileError(f"{lock.name} cannot be locked: {error}", kind="file-access") from error
            time.sleep(0.05)
        yield


def restored_batch(number: int) -> str:
    """Name of the batch that brings a slice back."""
    return f"restored-slice-{number}"


def _path(root: Path, table: str, number: int) -> Path:
    return root / names.dataset_name(table) / f"slice={number}" / "rows.parquet"


def _span(start: Moment, end: Moment) -> tuple[float, float]:
    first = float("-inf") if start is None else values.mjd_tai(start, "start")
    return first, float("inf") if end is None else values.mjd_tai(end, "end")


def _groups(batches: Iterator[Any]) -> Iterator[Any]:
    """Batches put together to tables of about a row group."""
    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _ROW_GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _fitted(rows: Any, schema: Any) -> Any:
    """Rows of a file of an older schema, with the columns that were added since."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema)


def _outdated(rows: Any, others: Any, key: list[str], version: str, *, equal: bool) -> Any:
    """Of which rows `others` have a newer version, or with `equal` one as new."""
    if not rows.num_rows or not others.num_rows:
        return np.zeros(rows.num_rows, bool)
    kinds = [pa.int64()] * len(key)
    own = pa.table(
        [*(rows[name].cast(kind) for name, kind in zip(key, kinds, strict=True)), pc.fill_null(rows[version], 0),
         np.arange(rows.num_rows)], [*key, "_own", "_row"],
    )  # fmt: skip
    known = pa.table(
        [*(others[name].cast(kind) for name, kind in zip(key, kinds, strict=True)), pc.fill_null(others[version], 0)],
        [*key, "_other"],
    )
    pairs = own.join(known, key, join_type="inner")
    newer = (pc.greater_equal if equal else pc.greater)(pairs["_other"], pairs["_own"])
    outdated = np.zeros(rows.num_rows, bool)
    outdated[pairs["_row"].to_numpy()[newer.to_numpy()]] = True
    return outdated


def of_records(rows: Any, records: Any, key: list[str]) -> Any:
    """Which rows are of the records with these keys."""
    own = pa.table([*(rows[name].cast(pa.int64()) for name in key), np.arange(rows.num_rows)], [*key, "_row"])
    wanted = pa.table([records[name].cast(pa.int64()) for name in key], key)
    found = np.zeros(rows.num_rows, bool)
    found[own.join(wanted, key, join_type="left semi")["_row"].to_numpy()] = True
    return pa.array(found)


def merged(live: Any, cold: Any, key: list[str], order: str) -> Any:
    """Rows of the database and of files; of the same record the newest."""
    if not cold.num_rows:
        return live
    both = pa.concat_tables([live, cold.select(live.schema.names)], promote_options="permissive")
    both = both.set_column(both.schema.get_field_index(order), order, pc.fill_null(both[order], 0))
    return newest(both, key, order)


def _replace(path: Path, schema: Any, parts: Callable[[], Iterator[Any]]) -> tuple[int, int]:
    """Write a file in place of another, if there is one, once it is whole and durable; its rows and bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    rows = 0
    with fresh.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for part in parts():
                if part.num_rows:
                    writer.write_table(part, row_group_size=_ROW_GROUP_ROWS)
                    rows += part.num_rows
        file.flush()
        os.fsync(file.fileno())
    found = pq.read_metadata(fresh).num_rows
    if found != rows:
        raise DamagedError(f"{fresh} has {found} rows, {rows} were written; nothing was dropped", kind="damaged-file")
    fresh.replace(path)
    # The new name must outlive a power cut before anything is dropped.
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return rows, path.stat().st_size
