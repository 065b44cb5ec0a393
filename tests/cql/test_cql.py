"""Any CQL table as Arrow, on real nodes: all types, parameters, pages, scans that are interrupted, and errors."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_commands import run_command

import chronotile as ct
from chronotile_tools import lab

UTC = dt.UTC
ROWS = 3_000
BIG = "x" * 200


@pytest.fixture(scope="module")
def url(shared_cluster: lab.Cluster) -> str:
    return shared_cluster.url("cqltest") + "?consistency=QUORUM"


@pytest.fixture(scope="module")
def session(shared_cluster: lab.Cluster, url: str) -> Iterator[ct.CqlSession]:
    with ct.cql(shared_cluster.url()) as first:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
        first.execute(f"CREATE KEYSPACE cqltest WITH replication = {replication}")
    with ct.cql(url) as session:
        session.execute("CREATE TABLE rows (p int, c int, body text, half float, PRIMARY KEY (p, c))")
        insert = "INSERT INTO rows (p, c, body, half) VALUES (?, ?, ?, ?);"
        for first_row in range(0, ROWS, 50):
            values: list[Any] = []
            for row in range(first_row, first_row + 50):
                values += [row // 10, row % 10, f"{row}{BIG}", row / 2 if row % 7 else None]
            store(session, f"BEGIN UNLOGGED BATCH {insert * 50} APPLY BATCH", values)
        yield session


def store(session: ct.CqlSession, statement: str, parameters: Sequence[Any] | dict[str, Any] = ()) -> None:
    """Store rows for a test, again where a busy machine answers too late."""
    session.execute(statement, parameters, idempotent=True)


# Each type with what is written, and what is read where that differs.
VALUES: dict[str, list[Any]] = {
    "ascii": ["", "abc"],
    "text": ["", "tä\U0001f30c"],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "varint": [0, -(2**200), 2**63],
    "decimal": [Decimal("1.50"), Decimal("-1E+5"), Decimal("1E-9"), Decimal(0)],
    "float": [1.5, float("-inf")],
    "double": [0.1, -0.0, float("inf")],
    "boolean": [True, False],
    "blob": [b"", b"\x00\xff"],
    "inet": [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("2001:db8::1")],
    "uuid": [uuid.UUID(int=2**127 + 1)],
    "timeuuid": [uuid.uuid1()],
    "timestamp": [dt.datetime(1900, 1, 1, tzinfo=UTC), dt.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "time": [dt.time(0), dt.time(23, 59, 59, 999_999)],
    "list<int>": [[1, 2, 1]],
    "set<text>": [["a", "b"]],
    "map<text, double>": [{"a": 1.0, "b": 2.0}],
    "tuple<int, text>": [(1, "a"), (None, "b")],
    "frozen<person>": [{"name": "n", "tags": ["t"]}, {"name": None, "tags": None}],
    "list<frozen<map<int, frozen<tuple<text, int>>>>>": [[{1: ("a", 2)}, {2: ("b", 3)}]],
    "vector<float, 3>": [[1.0, 2.0, 3.5]],
    "vector<text, 2>": [["a", ""]],
}


def read_form(kind: str, value: Any) -> Any:
    """A value as pyarrow gives it back."""
    match value:
        case Decimal() | ipaddress.IPv4Address() | ipaddress.IPv6Address():
            return str(value)
        case int() if kind == "varint":
            return str(value)
        case tuple():
            return {str(place): part for place, part in enumerate(value)}
        case dict() if kind.startswith("map"):
            return list(value.items())
        case list() if kind.startswith("list<frozen<map"):
            return [[(key, read_form("", part)) for key, part in element.items()] for element in value]
    return value


@pytest.fixture(scope="module")
def types_table(session: ct.CqlSession) -> str:
    session.execute("CREATE TYPE person (name text, tags frozen<list<text>>)")
    columns = ", ".join(f"v{place} {kind}" for place, kind in enumerate(VALUES))
    session.execute(f"CREATE TABLE types (k int PRIMARY KEY, {columns})")
    return "types"


def test_every_type_comes_back_as_it_was_written(session: ct.CqlSession, types_table: str) -> None:
    places = range(max(map(len, VALUES.values())))
    written = {place: [values[place % len(values)] for values in VALUES.values()] for place in places}
    marks = ", ".join("?" * (len(VALUES) + 1))
    names = ", ".join(f"v{place}" for place in range(len(VALUES)))
    for place, values in written.items():
        store(session, f"INSERT INTO types (k, {names}) VALUES ({marks})", [place, *values])
    store(session, "INSERT INTO types (k) VALUES (-1)")
    found = {row["k"]: row for row in session.query("SELECT * FROM types").to_arrow().to_pylist()}
    for place, values in written.items():
        for column, (kind, value) in enumerate(zip(VALUES, values, strict=True)):
            assert found[place][f"v{column}"] == read_form(kind, value), kind
    assert all(value is None for name, value in found[-1].items() if name != "k")
    assert set(found) == {-1, *places}


def test_counters_durations_and_empty_numbers_are_read(session: ct.CqlSession) -> None:
    session.execute("CREATE TABLE counts (k int PRIMARY KEY, n counter)")
    session.execute("UPDATE counts SET n = n + ? WHERE k = 1", [5])
    assert session.query("SELECT n FROM counts").to_arrow().to_pylist() == [{"n": 5}]
    session.execute("CREATE TABLE odd (k int PRIMARY KEY, d duration, n int)")
    store(session, "INSERT INTO odd (k, d, n) VALUES (1, -1mo2d3ns, blobAsInt(0x))")
    store(session, "INSERT INTO odd (k, d) VALUES (2, ?)", [dt.timedelta(hours=1)])
    rows = session.query("SELECT d, n FROM odd WHERE k = 1").to_arrow()
    assert rows["d"].type == pa.month_day_nano_interval()
    assert rows.to_pylist() == [{"d": pa.MonthDayNano([-1, -2, -3]), "n": None}]
    texts = session.query("SELECT d FROM odd", duration="text").to_polars()
    assert sorted(texts["d"].to_list()) == ["-1mo2d3ns", "3600000000000ns"]


def test_decimals_varints_and_uuids_become_numbers_and_text_where_asked(
    session: ct.CqlSession, types_table: str
) -> None:
    store(session, "INSERT INTO types (k, v6, v7, v13) VALUES (77, 12, 1.25, 00000000-0000-0000-0000-000000000001)")
    statement = "SELECT v6, v7, v13 FROM types WHERE k = 77"
    rows = session.query(statement, decimal=(10, 3), varint="int64", uuid="text").to_arrow()
    assert rows.schema.types == [pa.int64(), pa.decimal128(10, 3), pa.string()]
    assert rows.to_pylist() == [{"v6": 12, "v7": Decimal("1.250"), "v13": "00000000-0000-0000-0000-000000000001"}]
    with pytest.raises(ct.InvalidInputError, match=r'"v7".*1.25 does not fit decimal\(10, 1\)') as caught:
        session.query(statement, decimal=(10, 1)).to_arrow()
    assert caught.value.kind == "value-range"


def whole_milliseconds(moment: dt.datetime) -> dt.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


NESTED = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), st.lists(st.integers(-9, 9)), max_size=3)


@pytest.fixture(scope="module")
def random_table(session: ct.CqlSession) -> str:
    session.execute(
        "CREATE TABLE random (k int PRIMARY KEY, n varint, a decimal, d double, m timestamp, "
        "e map<text, frozen<list<int>>>, t text)"
    )
    return "random"


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    number=st.none() | st.integers(-(2**300), 2**300),
    amount=st.none() | st.decimals(allow_nan=False, allow_infinity=False),
    double=st.none() | st.floats(allow_nan=False),
    moment=st.none() | st.datetimes(timezones=st.just(UTC)).map(whole_milliseconds),
    nested=st.none() | NESTED.filter(bool),
    text=st.none() | st.text(st.characters(codec="utf-8")),
)  # fmt: skip
def test_random_rows_come_back_as_they_were_written(
    session: ct.CqlSession,
    random_table: str,
    number: Any,
    amount: Any,
    double: Any,
    moment: Any,
    nested: Any,
    text: Any,
) -> None:
    values = {"n": number, "a": amount, "d": double, "m": moment, "e": nested, "t": text}
    store(session, f"INSERT INTO {random_table} (k, n, a, d, m, e, t) VALUES (1, :n, :a, :d, :m, :e, :t)", values)
    (row,) = session.query("SELECT n, a, d, m, e, t FROM random WHERE k = ?", [1]).to_arrow().to_pylist()
    assert row["n"] == (None if number is None else str(number))
    assert row["a"] == (None if amount is None else str(amount))
    assert row["d"] == double
    assert row["m"] == moment
    assert (None if row["e"] is None else dict(row["e"])) == nested
    assert row["t"] == text


@pytest.mark.parametrize(
    ("statement", "parameters", "message"),
    [
        ("SELECT * FROM rows WHERE p = ?", ["x"], r"parameter 1 \(p\): text was given for int"),
        ("SELECT * FROM rows WHERE p = ?", [2**40], "does not fit int"),
        ("SELECT * FROM rows WHERE p = ?", [True], "a boolean was given"),
        ("SELECT * FROM rows WHERE p = ?", [1.0], "a float was given"),
        ("SELECT * FROM rows WHERE p = ?", [object()], "parameter 1: CQL has no type for object"),
        ("SELECT * FROM rows WHERE p = ?", [1, 2], r"values \(2\) differs from the number of markers \(1\)"),
        ("SELECT * FROM rows WHERE p = :q", {"p": 1}, 'no marker "p"; it has: q'),
        ("SELECT * FROM rows WHERE p = ?", "x", "give a sequence"),
        ("SELECT * FROM rows WHERE half = ? ALLOW FILTERING", [2**24 + 1], "more digits"),
        ("SELECT nope FROM rows", [], "nope"),
        ("SELEC", [], "SELEC"),
        ("INSERT INTO rows (p, c) VALUES (1, 1)", [], "use execute"),
    ],
)
def test_what_cannot_be_run_says_why(session: ct.CqlSession, statement: str, parameters: Any, message: str) -> None:
    with pytest.raises(ct.InvalidInputError, match=message):
        session.query(statement, parameters)


def test_missing_tables_keyspaces_and_nodes_have_their_own_errors(
    session: ct.CqlSession, shared_cluster: lab.Cluster
) -> None:
    for ask in (lambda: session.query("SELECT * FROM nope"), lambda: session.table("cqltest", "nope")):
        with pytest.raises(ct.InvalidInputError) as caught:
            ask()
        assert caught.value.kind == "table-not-found"
    with pytest.raises(ct.InvalidInputError, match="keyspace nokeyspace"):
        ct.cql(shared_cluster.url("nokeyspace"))
    with pytest.raises(ct.UnavailableError) as unavailable:
        ct.cql("cassandra://127.0.0.1:1")
    assert unavailable.value.kind == "no-node"
    with pytest.raises(ct.InvalidInputError, match="tables of its own"):
        session.table("system", "local")


def test_conditional_writes_tell_whether_they_were_applied(session: ct.CqlSession) -> None:
    def insert() -> Any:
        result = session.execute("INSERT INTO rows (p, c) VALUES (?, 0) IF NOT EXISTS", [-1])
        assert result is not None
        return result.to_arrow()["[applied]"].to_pylist()

    assert [insert(), insert()] == [[True], [False]]
    session.execute("DELETE FROM rows WHERE p = -1")


def expected(rows: pa.Table) -> None:
    assert sorted(rows["body"].to_pylist()) == sorted(f"{row}{BIG}" for row in range(ROWS))
    whole = {
        p * 10 + c: half for p, c, half in zip(*(rows[name].to_pylist() for name in ("p", "c", "half")), strict=True)
    }
    assert whole == {row: row / 2 if row % 7 else None for row in range(ROWS)}


def test_queries_and_scans_give_every_row_once_whatever_the_pages(session: ct.CqlSession) -> None:
    for page_bytes in (1024, 30_000, None):
        expected(session.query("SELECT * FROM rows", page_bytes=page_bytes).to_arrow())
        expected(session.table("cqltest", "rows", page_bytes=page_bytes).to_arrow())
    expected(session.table("cqltest", "rows", ranges=1, concurrency=1).to_arrow())
    expected(session.table("cqltest", "rows", ranges=500, concurrency=16).to_arrow())


def test_scans_take_columns_and_conditions(session: ct.CqlSession) -> None:
    rows = session.table("cqltest", "rows", columns=["c", "p"], where="c = ?", parameters=[3]).to_arrow()
    assert rows.column_names == ["c", "p"]
    assert sorted(rows["p"].to_pylist()) == list(range(ROWS // 10))
    assert set(rows["c"].to_pylist()) == {3}


def test_pages_come_while_they_are_drawn(session: ct.CqlSession) -> None:
    result = session.query("SELECT * FROM rows", page_bytes=20_000)
    sizes = [batch.num_rows for batch in result.batches()]
    assert len(sizes) > 10
    assert max(sizes[2:]) < 200
    with pytest.raises(ct.ClosedError):
        result.to_arrow()


def test_an_altered_table_is_not_misread(session: ct.CqlSession) -> None:
    session.execute("CREATE TABLE altered (p int, c int, b text, PRIMARY KEY (p, c))")
    insert = "INSERT INTO altered (p, c, b) VALUES (1, ?, ?);"
    for first_row in range(0, 400, 100):
        values = [value for row in range(first_row, first_row + 100) for value in (row, BIG)]
        store(session, f"BEGIN UNLOGGED BATCH {insert * 100} APPLY BATCH", values)
    batches = session.query("SELECT * FROM altered", page_bytes=2_000).batches()
    next(batches)
    session.execute("ALTER TABLE altered ADD a int")
    with pytest.raises(ct.BusyError, match="read it again") as caught:
        list(batches)
    assert caught.value.kind == "table-altered"
    assert session.query("SELECT * FROM altered WHERE p = ?", [1]).to_arrow().column_names == ["p", "c", "a", "b"]


SCAN = """
    import sys, os, pyarrow as pa, chronotile as ct
    url, checkpoint, out = sys.argv[1:]
    with ct.cql(url) as session:
        result = session.table("cqltest", "rows", checkpoint=checkpoint, page_bytes=4_000, ranges=20)
        for number, batch in enumerate(result.batches()):
            keys = zip(batch["p"].to_pylist(), batch["c"].to_pylist())
            with open(out, "a") as file:
                file.writelines(f"{number} {p * 10 + c}\\n" for p, c in keys)
            print(number, flush=True)
"""


def test_a_killed_scan_goes_on_and_repeats_its_last_batch_at_most(
    session: ct.CqlSession, url: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "scan.json"
    script = textwrap.dedent(SCAN)
    drawn: Counter[int] = Counter()
    may_repeat: set[int] = set()
    for kill_at in (3, 17, 40, None):
        out = tmp_path / f"rows-{kill_at}.txt"
        command = [sys.executable, "-c", script, url, str(checkpoint), str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if kill_at is not None and int(line) >= kill_at:
                    os.kill(process.pid, signal.SIGKILL)
        assert process.returncode == (0 if kill_at is None else -signal.SIGKILL)
        lines = [line.split() for line in out.read_text().splitlines()]
        assert lines
        drawn.update(int(row) for _, row in lines)
        # Whether the last batch was acknowledged before the end is not known: it may come again, and nothing else does.
        last = max(int(number) for number, _ in lines)
        may_repeat |= {int(row) for number, row in lines if int(number) == last}
    assert set(drawn) == set(range(ROWS))
    assert {row for row, times in drawn.items() if times > 1} <= may_repeat
    assert len(may_repeat) < ROWS / 2
    with_all = json.loads(checkpoint.read_text())
    assert {record["state"] for record in with_all["ranges"]} == {"done"}
    assert session.table("cqltest", "rows", checkpoint=checkpoint, ranges=20).to_arrow().num_rows == 0
    with pytest.raises(ct.InvalidInputError, match="another scan"):
        session.table("cqltest", "rows", columns=["p"], checkpoint=checkpoint)


@pytest.mark.slow
def test_a_scan_survives_the_death_of_a_node(cluster: lab.Cluster, session: ct.CqlSession) -> None:
    result = session.table("cqltest", "rows", page_bytes=2_000, ranges=200, timeout_s=60)
    batches = result.batches()
    parts = [next(batches)]
    cluster.nodes[1].kill()
    parts += batches
    expected(pa.Table.from_batches(parts))


def test_the_command_line_reads_queries_and_tables(session: ct.CqlSession, url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command("cql", *arguments)

    one = run(url, "SELECT c, half FROM rows WHERE p = ? AND c < :c", "-p", "3", "-p", "2", "--format", "csv")
    assert one.stdout.splitlines() == ["c,half", "0,15.0", "1,15.5"], one.stderr
    out = tmp_path / "rows.csv"
    assert run(url, "--table", "cqltest.rows", "--columns", "p,c,body,half", "--out", str(out)).returncode == 0
    assert pyarrow.csv.read_csv(out).num_rows == ROWS
    assert run(url, "INSERT INTO rows (p, c) VALUES (-2, 1)").returncode == 0
    assert run(url, "DELETE FROM rows WHERE p = -2").returncode == 0
    assert run("cassandra://127.0.0.1:1", "SELECT * FROM t").returncode == 8
    assert run(url, "SELECT * FROM nope").returncode == 2
    assert run(url).returncode == 2
