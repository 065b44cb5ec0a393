"""Reading a table of jobs: columns and types of a database, and rows of a period, in whatever form it has times."""

from __future__ import annotations

import itertools
import re
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support_engines import record_disposals

import chronotile as ct
from chronotile.jobs import sources

DAY = timedelta(days=1)
FIRST = datetime(2026, 1, 30, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "job_id": pa.int64(),
        "submitted": pa.timestamp("us", "UTC"),
        "modified": pa.timestamp("us", "UTC"),
        "ended": pa.timestamp("s"),
        "status": pa.string(),
        "memory": pa.float32(),
        "absent": pa.string(),
    }
)
Make = Callable[..., str]


def archive_of(schema: pa.Schema = SCHEMA, version: str | None = "modified") -> Any:
    """What a source asks of the dataset of an archive."""
    return SimpleNamespace(schema=schema, id=["job_id"], time=SimpleNamespace(column="submitted"), version=version)


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Makes a database in a file; gives its URL."""

    def make(*statements: str, rows: list[tuple[Any, ...]] | None = None) -> str:
        file = tmp_path / "jobs.db"
        file.unlink(missing_ok=True)
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA synchronous = OFF")
            for statement in statements:
                database.execute(statement)
            for row in rows or []:
                database.execute(f"INSERT INTO jobs VALUES ({', '.join('?' for _ in row)})", row)
            database.commit()
        return f"sqlite:///{file}"

    return make


TABLE = "CREATE TABLE jobs (job_id, submitted TEXT, modified TEXT, ended TEXT, status TEXT, memory REAL, secret TEXT)"


def row(number: int, submitted: Any = "2026-01-30", modified: Any = "2026-01-30", **others: Any) -> tuple[Any, ...]:
    return (number, submitted, modified, *(others.get(name) for name in ("ended", "status", "memory", "secret")))


def read(url: str, *arguments: Any, archive: Any = None, table: str = "jobs", **options: Any) -> list[pa.Table]:
    source = sources.Source(url, table, archive or archive_of())
    try:
        return list(source.rows(*arguments, **options))
    finally:
        source.close()


def test_texts_of_times_go_back_by_days_at_most_in_their_order(made: Make) -> None:
    texts = ["2026-01-30 23:59:59.999999-12:00", "2026-01-30T00:00:00+14:00"]
    url = made(TABLE, rows=[row(number, modified=text) for number, text in enumerate(texts)])
    [table] = read(url, "modified", None, None, 9, ("modified",))
    first, second = table["modified"].to_pylist()
    source = sources.Source(url, "jobs", archive_of())
    # These are the zones that are farthest apart.
    assert first - second <= source.order_error("modified") < first - second + DAY
    assert source.order_error("job_id") == timedelta(0)
    source.close()


# ---------------------------------------------------------------- databases and tables


def test_a_driver_that_cannot_be_imported_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_library(_: str) -> None:
        raise ImportError("no pq wrapper available")

    monkeypatch.setattr(sa, "create_engine", without_library)
    with pytest.raises(ct.MissingPackageError) as caught:
        sources.Database("postgresql+psycopg://grid:s3cret@db1/production")
    assert str(caught.value) == (
        "reading postgresql+psycopg://db1/production needs the driver psycopg, which cannot be imported (no pq wrapper "
        "available): pip install 'psycopg[binary]'"
    )


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql+psycopg://ann:p/s3cret@h:5432/db?sslmode=require", "postgresql+psycopg://h:5432/db"),
        ("postgresql://ann:p@s3cret@h/db", "postgresql://h/db"),
        ("postgresql://ann@h/db", "postgresql://h/db"),
        ("mysql://h:1/db", "mysql://h:1/db"),
        ("sqlite:///jobs@home.db", "sqlite:///jobs@home.db"),
        ("sqlite:////srv/jobs.db", "sqlite:////srv/jobs.db"),
    ],
)
def test_names_of_databases_have_no_password(url: str, plain: str) -> None:
    assert sources._plain(url) == plain


@pytest.mark.parametrize("url", ["sqlite:///{}/none.db", "sqlite:///{}/none/jobs.db"])
def test_a_file_that_does_not_exist_is_not_made(tmp_path: Path, url: str) -> None:
    with pytest.raises(ct.DataFileError, match=r"no database at .*: the file does not exist"):
        sources.Database(url.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_needs_no_file(url: str) -> None:
    database = sources.Database(url)
    with pytest.raises(ct.InvalidInputError, match=re.escape("no table 'jobs'; it has no tables")):
        database.table("jobs")
    database.close()


def test_a_table_may_have_a_schema_and_an_unknown_one_is_answered_with_the_nearest(made: Make) -> None:
    database = sources.Database(made(TABLE, "CREATE TABLE other (a)"))
    assert database.table("jobs").schema is None
    assert (database.table("main.jobs").schema, database.table("main.jobs").name) == ("main", "jobs")
    for name in ("job", "main.job"):
        with pytest.raises(ct.InvalidInputError, match=f"no table '{name}'; did you mean jobs") as refused:
            database.table(name)
        assert refused.value.kind == "table-not-found"
    database.close()


def test_an_invalid_address_is_told_without_its_password() -> None:
    with pytest.raises(ct.InvalidInputError, match="invalid database URL 'what is this'") as refused:
        sources.Database("what is this")
    assert refused.value.kind == "invalid-url"
    with pytest.raises(ct.InvalidInputError) as refused:
        sources.Database("postgresql://ann:s3cret@host:port/db")
    assert "s3cret" not in str(refused.value)


def test_a_database_needs_the_package_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ct.MissingPackageError, match=r"reading a database of jobs needs .*chronotile\[sync\]"):
        sources.Database("sqlite://")


def test_each_connection_is_closed(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    url = made(TABLE)
    closed = record_disposals(monkeypatch)
    sources.schema_of(url, "jobs", [])
    with pytest.raises(ct.InvalidInputError):
        sources.schema_of(url, "none", [])
    with pytest.raises(ct.InvalidInputError):
        sources.Source(url, "none", archive_of())
    assert len(closed) == 3
    source = sources.Source(url, "jobs", archive_of())
    assert source.name == f"{url}/jobs"
    assert len(closed) == 3
    source.close()
    assert len(closed) == 4


def test_a_failure_of_the_database_is_told_by_its_first_line(made: Make) -> None:
    database = sources.Database(made(TABLE))
    for error in (sa.exc.OperationalError, sa.exc.InterfaceError):
        with pytest.raises(ct.UnavailableError) as failed, database.converted_errors():
            raise error("SELECT 1", {}, Exception(" server closed\nthe connection\n"))
        assert str(failed.value) == "the database failed: server closed; run the command again"
    with pytest.raises(sa.exc.ProgrammingError), database.converted_errors():
        raise sa.exc.ProgrammingError("SELECT 1", {}, Exception("no such column"))
    database.close()


def test_columns_of_a_database_have_types_of_the_archive_or_are_left_out(made: Make) -> None:
    url = made(
        "CREATE TABLE jobs (a BOOLEAN, b INTEGER, c BIGINT, d NUMERIC, e FLOAT, f TIMESTAMP, g DATE, h TEXT, "
        "i CHAR(3), j BLOB, k JSON, l TEXT, m TIME)"
    )
    kinds, left_out = sources.schema_of(url, "jobs", ["l", "f", "none"])
    moment = "timestamp[us, UTC]"
    assert kinds == {
        "a": "bool", "b": "int64", "c": "int64", "d": "float64", "e": "float64", "f": moment, "g": "date32",
        "h": "utf8", "i": "utf8", "l": moment,
    }  # fmt: skip
    assert left_out == ["j (BLOB)", "k (JSON)", "m (TIME)"]


@pytest.mark.parametrize("column", ["job_id", "submitted", "modified"])
def test_a_table_needs_the_columns_that_tell_states_apart(made: Make, column: str) -> None:
    url = made(TABLE.replace(column, "other"))
    with pytest.raises(ct.InvalidInputError, match=f"table jobs lacks column '{column}', which the archive requires"):
        sources.Source(url, "jobs", archive_of())
    if column == "modified":
        with closing(sources.Source(url, "jobs", archive_of(version=None))) as source:
            assert source.columns == ["job_id", "submitted", "ended", "status", "memory"]


# ---------------------------------------------------------------- rows of a period


def test_rows_have_the_columns_and_types_of_the_archive_in_the_order_that_is_asked(made: Make) -> None:
    rows = [
        row(3, "2026-01-30 01:02:03.000004", "2026-01-31", ended="2026-01-30T01:00:00+01:00", memory=1.5, secret="x"),
        row(1, "2026-01-30", "2026-02-01"),
        row(2, "2026-01-30T00:00:00.000001000Z", "2026-01-31", status="done"),
    ]
    url = made(TABLE, rows=rows)
    [table] = read(url, "modified", None, None, 10, ("modified", "job_id"))
    assert table.schema == pa.schema([SCHEMA.field(name) for name in SCHEMA.names if name != "absent"])
    assert [tuple(found.values()) for found in table.drop_columns("modified").to_pylist()] == [
        (2, FIRST.replace(hour=0, microsecond=1), None, "done", None),
        (3, datetime(2026, 1, 30, 1, 2, 3, 4, UTC), datetime(2026, 1, 30), None, 1.5),
        (1, FIRST.replace(hour=0), None, None, None),
    ]
    parts = read(url, "modified", None, None, 2, ("modified", "job_id"))
    assert [part["job_id"].to_pylist() for part in parts] == [[2, 3], [1]]
    found = {tuple(part["job_id"].to_pylist()) for part in read(url, "submitted", None, None, 3, ("job_id",))}
    assert found == {(1, 2, 3)}


def forms_of(moment: datetime) -> list[str]:
    """Forms that SQLite may hold of a time; without a zone it is UTC."""
    zones = [UTC, *(timezone(timedelta(hours=hours)) for hours in (-12, -5, 14))]
    texts = [moment.astimezone(zone).isoformat() for zone in zones]
    return [*texts, moment.isoformat(" ").removesuffix("+00:00"), moment.isoformat(timespec="microseconds")[:-6]]


BOUNDS = [None, FIRST, FIRST + timedelta(microseconds=1), FIRST + timedelta(hours=11), FIRST + timedelta(hours=12)]


def test_rows_of_a_period_are_found_whatever_the_form_of_their_times(made: Make) -> None:
    moments = [FIRST + timedelta(hours=hours) for hours in range(-40, 60)]
    moments += [FIRST + timedelta(microseconds=micros) for micros in (-1, 1)]
    times = [(moment, text) for moment in moments for text in forms_of(moment)]
    rows = [row(number, modified=text) for number, (_, text) in enumerate(times)]
    source = sources.Source(made(TABLE, rows=[row(-1, modified=None), *rows]), "jobs", archive_of())
    with closing(source):
        for start, end in itertools.product(BOUNDS, BOUNDS):
            wanted = [
                number
                for number, (moment, _) in enumerate(times)
                if (start is None or start <= moment) and (end is None or moment < end)
            ]
            parts = list(source.rows("modified", start, end, 100))
            found = sorted(number for part in parts for number in part["job_id"].to_pylist())
            # What has no time is in no period.
            assert found == ([-1, *wanted] if start is end is None else wanted)
            assert all(part.num_rows for part in parts)


def test_times_are_read_as_text_whatever_the_type_of_their_column(made: Make) -> None:
    url = made(TABLE.replace(" TEXT", " TIMESTAMP"), rows=[row(1, "2026-01-30T14:00:00+02:00", "2026-01-30 13:00")])
    [table] = read(url, "modified", FIRST, None, 9, ("modified",))
    assert table["submitted"].to_pylist() == [FIRST]
    assert read(url, "submitted", FIRST + timedelta(seconds=1), None, 9) == []


def test_periods_of_a_database_that_has_times_are_in_utc(made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.Source, "_is_text_of_times", lambda source, name: False)
    rows = [row(hour, f"2026-01-30 {hour:02}:00:00.000000", "2026-01-30 00:00:00.000000") for hour in range(24)]
    url = made(TABLE.replace(" TEXT", " TIMESTAMP"), rows=rows)
    local = timezone(timedelta(hours=2))
    start, end = datetime(2026, 1, 30, 5, tzinfo=local), datetime(2026, 1, 30, 8, tzinfo=local)
    [table] = read(url, "submitted", start, end, 50, ("job_id",))
    assert table["job_id"].to_pylist() == [3, 4, 5]


def test_a_column_of_times_without_a_zone_has_periods_in_utc(made: Make) -> None:
    schema = SCHEMA.set(1, pa.field("submitted", pa.timestamp("ms")))
    url = made(TABLE, rows=[row(hour, f"2026-01-30 {hour:02}:00:00") for hour in range(24)])
    local = timezone(timedelta(hours=2))
    start, end = datetime(2026, 1, 30, 5, tzinfo=local), datetime(2026, 1, 30, 8, tzinfo=local)
    [table] = read(url, "submitted", start, end, 50, ("job_id",), archive=archive_of(schema))
    assert table["job_id"].to_pylist() == [3, 4, 5]


def test_a_period_of_another_column_is_asked_of_the_database(made: Make) -> None:
    url = made(TABLE, rows=[row(number, status=str(number)) for number in range(9)])
    parts = read(url, "submitted", FIRST - DAY, FIRST + DAY, 4, ("status",))
    assert [part["job_id"].to_pylist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (row(1, "yesterday"), "column 'submitted' of the database does not fit the archive's timestamp[us, tz=UTC]"),
        (row(1, 17), "invalid time 17: expected text such as 2026-01-31 12:00:00"),
        (row("one"), "column 'job_id' of the database does not fit the archive's int64"),
        (row(1, memory=1e39), "column 'memory' of the database does not fit the archive's float"),
        (row(2**63 - 1, ended="9999-12-31"), "column 'ended'"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_column(made: Make, given: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ct.InvalidInputError, match=re.escape(says)) as refused:
        # Columns without a type hold numbers as they are given.
        read(made(TABLE.replace(" TEXT", ""), rows=[given]), "modified", None, None, 10)
    assert refused.value.kind == "invalid-rows"


def test_the_first_and_last_time_are_found_whatever_zones_their_texts_have(made: Make) -> None:
    def extremes(*texts: str | None) -> Any:
        source = sources.Source(made(TABLE, rows=[row(n, text) for n, text in enumerate(texts)]), "jobs", archive_of())
        with closing(source):
            return source.extremes("submitted")

    assert extremes() is extremes(None) is None
    plain = datetime(2026, 1, 30, tzinfo=UTC), datetime(2026, 2, 1, 10, 0, 0, 7, UTC)
    assert extremes("2026-01-31", "2026-02-01 10:00:00.000007", None, "2026-01-30") == plain
    for texts in (("2026-01-30T02:00:00+02:00", "2026-02-01 10:00:00.000007"),
                  ("2026-01-30", "2026-02-01T11:00:00.000007+01:00", "2026-02-01T11:00:00.000006+01:00"),
                  # The first or last text is not the first or last time.
                  ("2026-01-30T00:00:01Z", "2026-01-30T14:00:00+14:00", "2026-01-31T14:00:00+14:00",
                   "2026-01-31T22:00:00.000007-12:00", "2026-02-01T23:00:00+14:00")):  # fmt: skip
        assert extremes(*texts) == plain
    # The first time has a date after that of the first text.
    texts = "2026-01-30T23:59:59Z", "2026-01-31T13:58:00+14:00", "2026-02-20"
    assert extremes(*texts)[0] == datetime(2026, 1, 30, 23, 58, tzinfo=UTC)


# ---------------------------------------------------------------- values


NAIVE, ZONED = datetime(2026, 1, 30, 12, 0, 0, 5), datetime(2026, 1, 30, 14, 0, 0, 5, timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([NAIVE, None], pa.timestamp("us", "UTC"), [NAIVE.replace(tzinfo=UTC), None]),
        ([ZONED], pa.timestamp("us", "UTC"), [NAIVE.replace(tzinfo=UTC)]),
        ([ZONED], pa.timestamp("us"), [NAIVE]),
        ([str(NAIVE)], pa.timestamp("us"), [NAIVE]),
        ([datetime(2026, 1, 30)], pa.date32(), [date(2026, 1, 30)]),
        ([NAIVE], pa.timestamp("us"), [NAIVE]),
        ([None, None], pa.timestamp("us", "UTC"), [None, None]),
        ([], pa.int32(), []),
        ([date(2026, 1, 30)], pa.date32(), [date(2026, 1, 30)]),
        ([1_769_774_400_000_005_000], pa.timestamp("us"), [NAIVE]),
        ([1_769_774_400_000_005_000, None], pa.timestamp("us", "UTC"), [NAIVE.replace(tzinfo=UTC), None]),
        ([1_769_731_200_000_000_000], pa.date32(), [date(2026, 1, 30)]),
        ([7, None], pa.int8(), [7, None]),
        ([7], pa.float64(), [7.0]),
    ],
)
def test_values_of_drivers_become_those_of_the_archive(values: list[Any], kind: pa.DataType, wanted: list[Any]) -> None:
    found = sources._array(values, kind)
    assert (found.type, found.to_pylist()) == (kind, wanted)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("2026-01-30 12:00:00.000005", NAIVE.replace(tzinfo=UTC)),
        ("2026-01-30T14:00:00.000005999+02:00", NAIVE.replace(tzinfo=UTC)),
        ("1969-12-31T23:59:59.999999", datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        (date(2026, 1, 30), datetime(2026, 1, 30, tzinfo=UTC)),
        (NAIVE, NAIVE.replace(tzinfo=UTC)),
        (ZONED, NAIVE.replace(tzinfo=UTC)),
    ],
)
def test_a_time_of_a_database_is_utc_unless_it_has_a_zone(value: Any, wanted: datetime) -> None:
    found = sources.utc(value, "submitted")
    assert (found, found.tzinfo) == (wanted, UTC)


def test_a_driver_may_give_times_where_the_database_has_text() -> None:
    assert sources._ns(NAIVE, "submitted") == sources._ns(str(NAIVE), "submitted") == 1_769_774_400_000_005_000
    assert sources._ns(date(2026, 1, 30), "submitted") == 1_769_731_200_000_000_000
    assert sources._ns(None, "submitted") is None


def test_what_is_no_time_is_refused_with_its_column() -> None:
    with pytest.raises(ct.InvalidInputError, match="column 'submitted' of the database holds 17, expected a time"):
        sources.utc(17, "submitted")
