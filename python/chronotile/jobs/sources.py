"""Read a table of jobs from a relational database: its columns, its rows by time, and times stored as text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import casts, optional, times
from chronotile.dataset import Dataset
from chronotile.errors import DataFileError, InvalidInputError, MissingPackageError, UnavailableError
from chronotile.hints import name_hint

__all__ = ["Database", "Source", "schema_of", "utc"]

_DRIVER_PACKAGES = {
    # Without its extra `binary`, psycopg needs the system's libpq.
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "MySQLdb": "mysqlclient",
    "mysql": "mysql-connector-python",
}
"""Packages of the driver modules whose package has another name."""

_DAY = timedelta(days=1)
_MOMENT = "timestamp[us, UTC]"


class Database:
    """A relational database, accessed through SQLAlchemy."""

    def __init__(self, url: str) -> None:
        sqlalchemy = optional.module("sqlalchemy", "reading a database of jobs", "sync")
        self.sql = sqlalchemy
        self.plain = _plain(url)
        try:
            self.engine = sqlalchemy.create_engine(url)
        except (sqlalchemy.exc.ArgumentError, ValueError):
            # SQLAlchemy's message would repeat the URL with its password.
            raise InvalidInputError(
                f"invalid database URL {self.plain!r}: write dialect+driver://user@host/database, or sqlite:///file.db",
                kind="invalid-url",
            ) from None
        except ImportError as error:
            driver = error.name or sqlalchemy.engine.make_url(url).get_driver_name()
            reason = "" if isinstance(error, ModuleNotFoundError) else f", which cannot be imported ({error})"
            raise MissingPackageError(
                f"reading {self.plain} needs the driver {driver}{reason}: "
                f"pip install '{_DRIVER_PACKAGES.get(driver, driver)}'",
                kind="missing-package",
            ) from None

        # SQLite would create an empty database if the file does not exist.
        file = self.engine.url.database if self.engine.dialect.name == "sqlite" else None
        if file and not file.startswith((":memory:", "file:")) and not Path(file).exists():
            raise DataFileError(f"no database at {file}: the file does not exist", kind="file-not-found")

    def close(self) -> None:
        """Close the connection."""
        self.engine.dispose()

    def table(self, name: str) -> Any:
        """Look up a table with its columns."""
        schema, _, plain = name.rpartition(".")
        try:
            with self.converted_errors():
                return self.sql.Table(plain, self.sql.MetaData(), schema=schema or None, autoload_with=self.engine)
        except self.sql.exc.NoSuchTableError:
            with self.converted_errors():
                known = self.sql.inspect(self.engine).get_table_names(schema or None)
            hint = name_hint(plain, known) if known else "; it has no tables"
            raise InvalidInputError(f"the database has no table {name!r}{hint}", kind="table-not-found") from None

    @contextmanager
    def converted_errors(self) -> Iterator[None]:
        """Convert database errors to errors of this package."""
        try:
            yield
        except (self.sql.exc.OperationalError, self.sql.exc.InterfaceError) as error:
            reason = str(error.orig or error).strip().splitlines()[0]
            raise UnavailableError(f"the database failed: {reason}; run the command again", kind="database") from error


def schema_of(url: str, table: str, moments: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Columns of a table with archive types as text, and those of unsupported types, each with its type.

    Parameters
    ----------
    url, table : str
        As for :func:`chronotile.jobs.sync`.
    moments : iterable of str
        Time columns, even if the database stores them as text.
    """
    database = Database(url)
    try:
        columns = {column.name: column.type for column in database.table(table).columns}
    finally:
        database.close()
    found = {name: _type_of(kind, database.sql) for name, kind in columns.items()}
    found |= {name: _MOMENT for name in moments if name in found}
    left_out = [f"{name} ({columns[name]})" for name, kind in found.items() if kind is None]
    return {name: kind for name, kind in found.items() if kind is not None}, left_out


def _type_of(kind: Any, sql: Any) -> str | None:
    types = sql.types
    for classes, name in (
        (types.Boolean, "bool"), (types.Integer, "int64"), ((types.Numeric, types.Float), "float64"),
        (types.DateTime, _MOMENT), (types.Date, "date32"), ((types.Enum, types.String, types.Uuid), "utf8"),
    ):  # fmt: skip
        if isinstance(kind, classes):
            return name
    return None


class Source:
    """A table of jobs in a database, with the columns of the archive.

    Times may be stored as ISO 8601 text, as in SQLite. Such text sorts in time order only by date, because one time has
    several text forms. Queries therefore select by date, with a margin of a day for time zones, and rows outside the
    period are filtered here.
    """

    def __init__(self, url: str, table: str, dataset: Dataset) -> None:
        self._database = Database(url)
        self.name = f"{self._database.plain}/{table}"
        self.schema = dataset.schema
        try:
            self.table = self._database.table(table)
            self.columns = [name for name in self.schema.names if name in self.table.columns]
            needed = dict.fromkeys([*dataset.id, dataset.time.column, *filter(None, [dataset.version])])
            missing = [column for column in needed if column not in self.columns]
            if missing:
                raise InvalidInputError(
                    f"table {table} lacks column {missing[0]!r}, which the archive requires",
                    kind="invalid-request",
                )
            self._texts = {name for name in self.columns if self._is_text_of_times(name)}
        except BaseException:
            self.close()
            raise

    def _is_text_of_times(self, name: str) -> bool:
        if not pa.types.is_temporal(self.schema.field(name).type):
            return False
        sql, kind = self._database.sql, self.table.columns[name].type
        return self._database.engine.dialect.name == "sqlite" or isinstance(kind, sql.String | sql.types.NullType)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def order_error(self, name: str) -> timedelta:
        """Largest step back in time between rows that the database sorts by a time column. Times stored as text are
        sorted by their dates, in any time zone.
        """
        return 3 * _DAY if name in self._texts else timedelta(0)

    def _column(self, name: str) -> Any:
        """Column of a query; times stored as text are read as text."""
        column, sql = self.table.columns[name], self._database.sql
        return sql.type_coerce(column, sql.String).label(name) if name in self._texts else column

    def rows(
        self, column: str, start: datetime | None, end: datetime | None, rows: int, order: tuple[str, ...] = ()
    ) -> Generator[pa.Table]:
        """Rows with ``start <= column < end``, as tables of about `rows` rows; from one snapshot if the database
        isolates readers.
        """
        sql = self._database.sql
        query = sql.select(*(self._column(name) for name in self.columns))
        asked = self._column(column)
        if start is not None:
            query = query.where(asked >= self._bound(column, start, -_DAY))
        if end is not None:
            # Text of a date sorts after the bare date: one day is for the date of the end itself, one for time zones.
            query = query.where(asked < self._bound(column, end, 2 * _DAY))
        query = query.order_by(*(self._column(name) for name in order))
        with self._database.converted_errors(), self._database.engine.connect() as connection:
            options = connection.execution_options(stream_results=True, max_row_buffer=min(rows, 10_000))
            with closing(options.execute(query)) as found:
                while part := found.fetchmany(rows):
                    table = self._table(part)
                    if column in self._texts:
                        table = _within(table, column, start, end)
                    if table.num_rows:
                        yield table

    def extremes(self, column: str) -> tuple[datetime, datetime] | None:
        """Least and greatest value of a time column; None if the table is empty."""
        given, sql = self._column(column), self._database.sql
        with self._database.converted_errors(), self._database.engine.connect() as connection:
            first, last = connection.execute(sql.select(sql.func.min(given), sql.func.max(given))).one()
            if first is None or last is None:
                return None
            first, last = utc(first, column), utc(last, column)
            if column in self._texts:
                # Text sorts in time order only by date, in any time zone: compare the times of all dates nearby.
                early = given < self._bound(column, first, 2 * _DAY)
                late = given >= self._bound(column, last, -_DAY)
                near = [utc(value, column) for value in connection.scalars(sql.select(given).where(early | late))]
                first, last = min(near), max(near)
        return first, last

    def _bound(self, column: str, moment: datetime, spare: timedelta) -> Any:
        """Convert a time to the form of the column: text is compared by date, and times without a zone are UTC."""
        moment = moment.astimezone(UTC)
        if column in self._texts:
            return (moment + spare).date().isoformat()
        zoned = getattr(self.table.columns[column].type, "timezone", False)
        return moment if zoned else moment.replace(tzinfo=None)

    def _table(self, rows: Sequence[Any]) -> pa.Table:
        columns = []
        for name, values in zip(self.columns, zip(*rows, strict=True), strict=True):
            kind = self.schema.field(name).type
            try:
                given = [_ns(value, name) for value in values] if name in self._texts else list(values)
                columns.append(_array(given, kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"column {name!r} of the database does not fit the archive's {kind}: {error}", kind="invalid-rows"
                ) from error
        return pa.table(columns, names=self.columns)


def _ns(value: Any, name: str) -> Any:
    """Convert a time stored by SQLite to nanoseconds since 1970 UTC."""
    if value is None or isinstance(value, str):
        return None if value is None else times.exact_text_ns(value, name)
    if isinstance(value, date):
        return times.exact_text_ns(value.isoformat(), name)
    raise TypeError(f"invalid time {value!r}: expected text such as 2026-01-31 12:00:00")


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert driver values to the archive's type; times stored as text are given in nanoseconds."""
    array = pa.array(values)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_temporal(kind) and pa.types.is_integer(array.type):
        return array.cast(pa.timestamp("ns", getattr(kind, "tz", None))).cast(kind)
    # Arrow takes times without a zone as UTC.
    return casts.fitting(array, kind)


def _within(table: pa.Table, column: str, start: datetime | None, end: datetime | None) -> pa.Table:
    """Rows of a period; rows without a time belong to no period."""
    for bound, compare in ((start, pc.greater_equal), (end, pc.less)):
        if bound is not None:
            moments = table[column].cast(pa.timestamp("us", getattr(table[column].type, "tz", None)))
            table = table.filter(compare(moments, pa.scalar(bound, moments.type)))
    return table


def utc(value: Any, column: str) -> datetime:
    """Convert a database time to an aware datetime.

    Raises
    ------
    InvalidInputError
        The value is not a time.
    """
    if isinstance(value, str):
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=times.exact_text_ns(value, column) // 1_000)
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise InvalidInputError(
            f"column {column!r} of the database holds {value!r}, expected a time", kind="invalid-request"
        )
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _plain(url: str) -> str:
    """The URL without user, password and parameters, for batch names."""
    scheme, slashes, rest = url.partition("//")
    # SQLAlchemy takes a password to end at the first @, and it may contain slashes.
    login, at, after = rest.partition("@")
    if at and "/" not in login.partition(":")[0]:
        rest = after
    authority, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{authority.rpartition('@')[2]}{slash}{path}".split("?")[0]
