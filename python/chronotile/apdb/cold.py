"""Old slices as Parquet files in a folder: kept beside the database, read through it when asked, restored.

A file holds one slice of a table, under ``TABLE/slice=NUMBER/``: hive partitions, which pyarrow, polars, DuckDB and
Spark read as one table. Rows lie in the order of pixels, so that the statistics of row groups narrow a search on the
sky.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from chronotile.apdb import names, values
from chronotile.apdb.base import Base
from chronotile.apdb.rows import newest
from chronotile.errors import DamagedError, DataFileError
from chronotile.reports import SliceInfo
from chronotile.sky import Region
from chronotile.times import Moment

__all__ = ["ColdSlice"]

_ROW_GROUP_ROWS = 50_000
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


class Cold(Base):
    """The part of :class:`chronotile.apdb.Apdb` that keeps old slices in files."""

    def archive_before(
        self, before: Moment, folder: str | os.PathLike[str], *, keep: bool = False, dry_run: bool = False
    ) -> list[ColdSlice]:
        """Write slices of sources and forced sources that end by then to Parquet files, then drop them.

        A slice is dropped when the files of all are written, durable and counted. Ended anywhere it can be repeated:
        files are replaced, and what is dropped already is not touched.

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
            A file has not the rows that were read; nothing was dropped.
        """
        limit, root = values.mjd_tai(before, "before"), Path(folder)
        written = []
        for table in _TABLES:
            dataset = self._datasets[table]
            for part in dataset.retire(before=limit, dry_run=True):
                path = _path(root, table, part.slice)
                if dry_run:
                    written.append(ColdSlice(table, part.slice, path, part.rows, part.bytes))
                else:
                    written.append(self._write_slice(table, part, path))
        if not dry_run and not keep:
            for table in _TABLES:
                self._datasets[table].retire(before=limit)
        return written

    def _write_slice(self, table: str, part: SliceInfo, path: Path) -> ColdSlice:
        dataset = self._datasets[table]
        where = [(names.version_column(table), "<", names.GONE)]
        stream = dataset.read(start=part.start, end=part.end, where=where)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        rows = 0
        with fresh.open("wb") as file:
            with pq.ParquetWriter(file, stream.schema, compression="zstd") as writer:
                for batch in _groups(stream.batches()):
                    writer.write_table(batch, row_group_size=_ROW_GROUP_ROWS)
                    rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        found = pq.read_metadata(fresh).num_rows
        if found != rows:
            raise DamagedError(
                f"{fresh} has {found} rows, {rows} were written; nothing was dropped", kind="damaged-file"
            )
        fresh.replace(path)
        return ColdSlice(table, part.slice, path, rows, path.stat().st_size)

    def archived(self, folder: str | os.PathLike[str]) -> list[ColdSlice]:
        """The slices that a folder holds, by table and number."""
        found = []
        for table in _TABLES:
            for path in sorted((Path(folder) / names.dataset_name(table)).glob("slice=*/rows.parquet")):
                number = int(path.parent.name.partition("=")[2])
                found.append(ColdSlice(table, number, path, pq.read_metadata(path).num_rows, path.stat().st_size))
        return sorted(found, key=lambda each: (each.table, each.slice))

    def restore(self, folder: str | os.PathLike[str], start: Moment = None, end: Moment = None) -> list[ColdSlice]:
        """Bring slices of a folder back that hold something of a half-open period; repeating it is harmless.

        Records changed since they were restored stay as changed.
        """
        first, last = _span(start, end)
        back = []
        for part in self.archived(folder):
            times = pq.read_table(part.path, columns=[names.TIME])[names.TIME]
            limits = pc.min_max(times).as_py()
            if part.rows and limits["max"] >= first and limits["min"] < last:
                reader = pq.ParquetFile(part.path).iter_batches()
                self._datasets[part.table].write(reader, restored_batch(part.slice), replace=True)
                back.append(part)
        return back

    def _cold_rows(
        self, table: str, folder: str | os.PathLike[str], region: Region | None, start: float | None,
        end: float | None, object_ids: list[int] | None,
    ) -> Any:  # fmt: skip
        """Rows of the files of a table, with the columns of the dataset; columns added since are null."""
        schema = self._datasets[table].schema
        files = [str(part.path) for part in self.archived(folder) if part.table == table]
        if not files:
            if not Path(folder).is_dir():
                raise DataFileError(f"there is no folder {folder}", kind="file-not-found")
            return schema.empty_table()
        condition = pc.scalar(True)
        if start is not None:
            condition &= pc.field(names.TIME) >= start
        if end is not None:
            condition &= pc.field(names.TIME) < end
        if object_ids is not None:
            condition &= pc.field(names.OBJECT_ID).isin(object_ids)
        # Columns are taken by name, so that files of an older schema serve.
        loose = pa.schema([field.with_nullable(True) for field in schema])
        rows = pads.dataset(files, schema=loose, format="parquet").to_table(filter=condition)
        if region is not None and rows.num_rows:
            inside = pa.array(region.contains(rows[names.RA].to_numpy(), rows[names.DEC].to_numpy()))
            rows = rows.filter(inside)
        return rows


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


def merged(live: Any, cold: Any, key: list[str], order: str) -> Any:
    """Rows of the database and of files; of the same record the newest, of equal ones that of the database."""
    if not cold.num_rows:
        return live
    marked = [
        rows.append_column("_live", pa.repeat(pa.scalar(rank, pa.int8()), rows.num_rows))
        for rank, rows in enumerate((cold, live))
    ]
    both = pa.concat_tables([each.select(marked[1].schema.names) for each in marked], promote_options="permissive")
    both = both.set_column(both.schema.get_field_index(order), order, pc.fill_null(both[order], 0))
    both = both.sort_by([(order, "ascending"), ("_live", "ascending")])
    ranked = both.append_column("_rank", pa.array(np.arange(both.num_rows)))
    return newest(ranked, key, "_rank").drop_columns(["_live", "_rank"])
