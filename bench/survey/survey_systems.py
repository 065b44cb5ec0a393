"""The systems that `survey.py` compares, each with the layout that suits the workload best.

In each, a visit survives loss of power once `store` has returned, and reads return Arrow tables.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

import chronotile as ct


class System(ABC):
    """One system under test."""

    name: str
    durability: str
    maintenance: str
    """What `consolidate` does."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self.schema = folder, schema
        folder.mkdir()

    @abstractmethod
    def store(self, visit: int, rows: pa.Table) -> None:
        """Store a visit durably."""

    @abstractmethod
    def consolidate(self) -> None:
        """Periodic maintenance by an operator, to keep reads fast."""

    @abstractmethod
    def read(self, cells: list[int], start: float, end: float, columns: list[str] | None = None) -> pa.Table:
        """Rows of cells and a half-open period."""

    @abstractmethod
    def by_id(self, ids: list[int]) -> pa.Table:
        """Rows of these ids."""

    @abstractmethod
    def count(self, cells: list[int], start: float, end: float) -> int:
        """Number of rows of cells and a half-open period."""

    def latest(self, cells: list[int]) -> pa.Table | None:
        """The newest row of each object in cells; None if the system has no such query."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Write everything to the files and close them."""

    @abstractmethod
    def open(self) -> None:
        """Open again."""

    def bytes_on_disk(self) -> int:
        """Bytes of all files after a close."""
        self.close()
        total = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        self.open()
        return total


def one_of(column: str, values: list[int]) -> str:
    """The SQL condition that a column has one of the values."""
    return f"{column} IN ({','.join(map(str, values))})"


class SqlSystem(System):
    """A system with rows in a table and queries in SQL."""

    db: Any

    @abstractmethod
    def rows(self, columns: list[str], where: str, parameters: list[Any]) -> pa.Table:
        """Columns of the rows that meet a condition."""

    def read(self, cells: list[int], start: float, end: float, columns: list[str] | None = None) -> pa.Table:
        condition = f"{one_of('cell', cells)} AND mjd >= ? AND mjd < ?"
        return self.rows(columns or self.schema.names, condition, [start, end])

    def by_id(self, ids: list[int]) -> pa.Table:
        return self.rows(self.schema.names, one_of("source_id", ids), [])

    def count(self, cells: list[int], start: float, end: float) -> int:
        sql = f"SELECT count(*) FROM sources WHERE {one_of('cell', cells)} AND mjd >= ? AND mjd < ?"
        return int(self.db.execute(sql, [start, end]).fetchall()[0][0])


class Chronotile(System):
    name = "Chronotile"
    durability = "SQLite, WAL, synchronous FULL: one fsync a visit"
    maintenance = "`consolidate()`"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        with ct.open(folder / "survey.db") as archive:
            archive.create(
                "sources",
                schema=schema,
                cell=ct.key("cell"),
                time=ct.mjd("mjd"),
                window="30d",
                id="source_id",
                slice=13,
            )
        self.open()

    def open(self) -> None:
        self.archive = ct.open(self.folder / "survey.db")
        self.ds = self.archive["sources"]

    def close(self) -> None:
        self.archive.close()
        del self.ds

    def store(self, visit: int, rows: pa.Table) -> None:
        self.ds.write(rows, batch=f"visit-{visit}")

    def consolidate(self) -> None:
        self.ds.consolidate()

    def read(self, cells: list[int], start: float, end: float, columns: list[str] | None = None) -> pa.Table:
        return self.ds.read(keys=cells, start=start, end=end, columns=columns).to_arrow()

    def by_id(self, ids: list[int]) -> pa.Table:
        return self.ds.read(ids=ids).to_arrow()

    def count(self, cells: list[int], start: float, end: float) -> int:
        return self.ds.count(keys=cells, start=start, end=end)

    def latest(self, cells: list[int]) -> pa.Table:
        return self.ds.latest(by=["object_id"], keys=cells).to_arrow()

    def bytes_on_disk(self) -> int:
        """Bytes of pages in use; later visits reuse the pages that consolidation freed."""
        self.close()
        with sqlite3.connect(self.folder / "survey.db") as raw:
            size, pages, free = (
                raw.execute(f"PRAGMA {what}").fetchone()[0] for what in ("page_size", "page_count", "freelist_count")
            )
        raw.close()
        self.open()
        return int(size * (pages - free))


class DuckDb(SqlSystem):
    name = "DuckDB table"
    durability = "autocommit: its log is synced with each visit"
    maintenance = "rewritten in order of cell and time, index on id"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self.file = folder / "rows.duckdb"
        self.open()
        empty = schema.empty_table()
        self.db.register("empty", empty)
        self.db.execute("CREATE TABLE sources AS SELECT * FROM empty")
        self.db.unregister("empty")
        self.db.execute("CREATE INDEX sources_id ON sources(source_id)")

    def open(self) -> None:
        self.db = duckdb.connect(str(self.file))

    def close(self) -> None:
        self.db.execute("CHECKPOINT")
        self.db.close()

    def store(self, visit: int, rows: pa.Table) -> None:
        self.db.execute("INSERT INTO sources SELECT * FROM rows")

    def consolidate(self) -> None:
        ordered = self.folder / "ordered.duckdb"
        self.db.execute(f"ATTACH '{ordered}' AS ordered")
        self.db.execute("CREATE TABLE ordered.sources AS SELECT * FROM sources ORDER BY cell, mjd")
        self.db.execute("CREATE INDEX sources_id ON ordered.sources(source_id)")
        self.db.execute("DETACH ordered")
        self.db.close()
        self.file.unlink()
        self.file = ordered
        self.open()

    def rows(self, columns: list[str], where: str, parameters: list[Any]) -> pa.Table:
        sql = f"SELECT {', '.join(columns)} FROM sources WHERE {where}"
        return self.db.sql(sql, params=parameters).to_arrow_table()

    def latest(self, cells: list[int]) -> pa.Table:
        newest = "QUALIFY row_number() OVER (PARTITION BY object_id ORDER BY mjd DESC, source_id DESC) = 1"
        return self.rows(["*"], f"{one_of('cell', cells)} {newest}", [])


class ParquetFiles(System):
    name = "Parquet files"
    durability = "file and folder synced with each visit"
    maintenance = "rewritten as one file for each cell and month"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self.rows = folder / "visits"
        self.rows.mkdir()
        self.partitioned = False

    def open(self) -> None:
        self._open()

    def _open(self) -> pads.Dataset:
        # Files are listed at each read, because visits arrive meanwhile.
        if not self.partitioned:
            return pads.dataset(self.rows, schema=self.schema, format="parquet")
        kinds = pads.partitioning(pa.schema([("part", pa.int64()), ("month", pa.int64())]), flavor="hive")
        schema = self.schema.append(pa.field("part", pa.int64())).append(pa.field("month", pa.int64()))
        return pads.dataset(self.rows, schema=schema, format="parquet", partitioning=kinds)

    def close(self) -> None:
        """No files stay open."""

    def store(self, visit: int, rows: pa.Table) -> None:
        path = self.rows / f"visit-{visit:05d}.parquet"
        with path.open("wb") as file:
            pq.write_table(rows.sort_by("cell"), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(self.rows, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def consolidate(self) -> None:
        table = self._open().to_table()
        month = pc.cast(pc.floor(pc.divide(table["mjd"], 30.0)), pa.int64())
        table = table.append_column("part", table["cell"]).append_column("month", month)
        ordered = self.folder / "ordered"
        pads.write_dataset(
            table.sort_by([("cell", "ascending"), ("mjd", "ascending")]),
            ordered,
            format="parquet",
            partitioning=pads.partitioning(pa.schema([("part", pa.int64()), ("month", pa.int64())]), flavor="hive"),
            file_options=pads.ParquetFileFormat().make_write_options(compression="zstd"),
            max_partitions=100_000,
        )
        shutil.rmtree(self.rows)
        self.rows, self.partitioned = ordered, True

    def _filter(self, cells: list[int], start: float, end: float) -> pads.Expression:
        chosen = (pads.field("mjd") >= start) & (pads.field("mjd") < end) & pads.field("cell").isin(cells)
        if self.partitioned:
            chosen &= pads.field("part").isin(cells)
            chosen &= (pads.field("month") >= int(start // 30)) & (pads.field("month") <= int(end // 30))
        return chosen

    def read(self, cells: list[int], start: float, end: float, columns: list[str] | None = None) -> pa.Table:
        return self._open().to_table(columns=columns or self.schema.names, filter=self._filter(cells, start, end))

    def by_id(self, ids: list[int]) -> pa.Table:
        return self._open().to_table(columns=self.schema.names, filter=pads.field("source_id").isin(ids))

    def count(self, cells: list[int], start: float, end: float) -> int:
        return int(self._open().count_rows(filter=self._filter(cells, start, end)))


class SqliteRows(SqlSystem):
    name = "SQLite rows"
    durability = "SQLite, WAL, synchronous FULL: one fsync a visit"
    maintenance = "none: an index on cell and time is kept at each visit"

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        super().__init__(folder, schema)
        self.open()
        kinds = {"string": "TEXT", "float": "REAL", "double": "REAL"}
        columns = ", ".join(f"{field.name} {kinds.get(str(field.type), 'INTEGER')}" for field in schema)
        self.db.execute(f"CREATE TABLE sources({columns}, PRIMARY KEY(source_id))")
        self.db.execute("CREATE INDEX place ON sources(cell, mjd)")
        self.insert = f"INSERT INTO sources VALUES ({','.join('?' * len(schema))})"

    def open(self) -> None:
        self.db = sqlite3.connect(self.folder / "rows.db", isolation_level=None)
        for pragma in ("page_size = 16384", "journal_mode = WAL", "synchronous = FULL", "mmap_size = 1073741824"):
            self.db.execute(f"PRAGMA {pragma}")

    def close(self) -> None:
        self.db.close()

    def store(self, visit: int, rows: pa.Table) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.db.executemany(self.insert, zip(*(column.to_pylist() for column in rows.columns), strict=True))
        self.db.execute("COMMIT")

    def consolidate(self) -> None:
        self.db.execute("ANALYZE")

    def rows(self, columns: list[str], where: str, parameters: list[Any]) -> pa.Table:
        rows = self.db.execute(f"SELECT {', '.join(columns)} FROM sources WHERE {where}", parameters).fetchall()
        kinds = [self.schema.field(name).type for name in columns]
        values = list(zip(*rows, strict=True)) or [()] * len(columns)
        arrays = [
            pa.array([None if v is None else v == 1 for v in column] if pa.types.is_boolean(kind) else column, kind)
            for column, kind in zip(values, kinds, strict=True)
        ]
        return pa.table(arrays, names=columns)

    def latest(self, cells: list[int]) -> pa.Table:
        inner = (
            "SELECT source_id, row_number() OVER (PARTITION BY object_id ORDER BY mjd DESC, source_id DESC) AS place "
            f"FROM sources WHERE {one_of('cell', cells)}"
        )
        return self.rows(self.schema.names, f"source_id IN (SELECT source_id FROM ({inner}) WHERE place = 1)", [])


SYSTEMS: list[type[System]] = [Chronotile, DuckDb, ParquetFiles, SqliteRows]
