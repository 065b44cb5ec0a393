"""The archive of jobs in PostgreSQL."""

from __future__ import annotations

import importlib
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa

from chronotile.errors import MissingPackageError
from chronotile_tools.load.job_archive.generated import DAY_US

__all__ = ["INDEXES", "PostgreSQL", "driver"]

INDEXES = {
    "job_id": "job_id", "user, cloud, status": '"user", cloud, status, submitted', "cloud, status": "cloud, status",
    "task": "task", "user, jobset": '"user", jobset',
}  # fmt: skip
_TYPES = {"int64": "bigint", "int32": "int", "double": "float8", "string": "text"}
_COPY_BYTES = 1 << 20


def driver() -> Any:
    """The package psycopg.

    Raises
    ------
    MissingPackageError
        It cannot be imported.
    """
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise MissingPackageError(
            f"asking PostgreSQL needs the driver psycopg ({error}): pip install 'psycopg[binary]'",
            kind="missing-package",
        ) from None


class PostgreSQL:
    """One table with an ordinary index for each kind of question, loaded from a CSV file; an older one is replaced.

    Parameters
    ----------
    url : str
        URL of the database, as accepted by psycopg.
    schema : pyarrow.Schema
        Columns of the jobs.
    csv : Path
        The jobs, with a header.
    rows : int
        Number of jobs.

    Attributes
    ----------
    load_rows_s, index_s : float
        Rows loaded per second by one connection; seconds for building indexes and statistics afterwards.
    version : str
        Release of the server.
    """

    name = "PostgreSQL"

    def __init__(self, url: str, schema: pa.Schema, csv: Path, rows: int) -> None:
        self._url, self._connect = url, driver().connect
        self._idle: deque[Any] = deque()
        columns = ", ".join(f'"{field.name}" {_TYPES.get(str(field.type), "timestamptz")}' for field in schema)
        began = time.perf_counter()
        with self._connect(url) as connection:
            connection.execute("DROP TABLE IF EXISTS jobs")
            connection.execute(f"CREATE TABLE jobs ({columns})")
            with (
                connection.cursor().copy("COPY jobs FROM STDIN (FORMAT csv, HEADER true)") as copy,
                csv.open("rb") as file,
            ):
                while part := file.read(_COPY_BYTES):
                    copy.write(part)
        self.load_rows_s = rows / (time.perf_counter() - began)
        began = time.perf_counter()
        with self._connect(url) as connection:
            for columns in INDEXES.values():
                connection.execute(f"CREATE INDEX ON jobs ({columns})")
            connection.execute("ANALYZE jobs")
            self.version = connection.info.parameter_status("server_version").split()[0]
        self.index_s = time.perf_counter() - began

    def sizes(self) -> tuple[int, dict[str, int]]:
        """Bytes of the table, and of each index."""
        of_table = self._ask("SELECT pg_table_size('jobs')")
        of_indexes = self._ask(
            "SELECT pg_relation_size(indexrelid) FROM pg_index WHERE indrelid = 'jobs'::regclass ORDER BY indexrelid"
        )
        return of_table[0][0], dict(zip(INDEXES, (size for (size,) in of_indexes), strict=True))

    def close(self) -> None:
        """Close the connections."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, question: str, *parameters: Any) -> list[Any]:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(self._url, autocommit=True)
        found = list(connection.execute(question, parameters, prepare=True, binary=True).fetchall())
        self._idle.append(connection)
        return found

    def by_ids(self, ids: list[int]) -> Any:
        return self._ask("SELECT * FROM jobs WHERE job_id = ANY(%s)", ids)

    def _five_days(self, what: str, user: str, cloud: str, start: int) -> list[Any]:
        question = f"""SELECT {what} FROM jobs WHERE "user" = %s AND cloud = %s AND status = 'failed'
                       AND submitted >= to_timestamp(%s) AND submitted < to_timestamp(%s)"""
        return self._ask(question, user, cloud, start / 1e6, (start + 5 * DAY_US) / 1e6)

    def count(self, user: str, cloud: str, start: int) -> Any:
        return int(self._five_days("count(*)", user, cloud, start)[0][0])

    def rows(self, user: str, cloud: str, start: int) -> Any:
        return self._five_days("*", user, cloud, start)

    def jobsets(self, user: str, jobsets: list[int]) -> Any:
        return self._ask('SELECT * FROM jobs WHERE "user" = %s AND jobset = ANY(%s)', user, jobsets)

    def tasks(self, tasks: list[int]) -> Any:
        return self._ask("SELECT * FROM jobs WHERE task = ANY(%s)", tasks)

    def year(self) -> Any:
        found = self._ask("SELECT sum(n)::bigint FROM (SELECT cloud, status, count(*) n FROM jobs GROUP BY 1, 2) x")
        return int(found[0][0])
