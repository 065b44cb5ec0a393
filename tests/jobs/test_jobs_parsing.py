"""Blocks of files as tables of jobs: each record is a row of the dataset, or rejected with its line and reason."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chronotile.errors import DataFileError, InvalidInputError
from chronotile.jobs import SWF_COLUMNS, parsing
from chronotile.jobs.blocks import Block, File
from chronotile.jobs.parsing import ReadOptions, Reject, parse

SCHEMA = pa.schema(
    {
        "job_id": pa.int64(),
        "submitted": pa.timestamp("us", "UTC"),
        "ended": pa.timestamp("ms", "UTC"),
        "local": pa.timestamp("s"),
        "user": pa.string(),
        "load": pa.float32(),
    }
)
OPTIONS = ReadOptions(SCHEMA, ("job_id", "submitted"))
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


def block_of(text: bytes, format: str, *, header: bytes = b"", line: int = 1) -> Block:
    return Block(File(f"jobs.{format}", format, "hash", len(text)), 0, len(text), text, line, header=header)


def csv(lines: str, header: str = "job_id,submitted,user", **options: Any) -> tuple[pa.Table, list[Reject]]:
    """What the lines of a CSV file after its header give; the first is line 2."""
    return parse(block_of(lines.encode(), "csv", header=f"{header}\n".encode(), line=2), ReadOptions(
        SCHEMA, ("job_id", "submitted"), **options))  # fmt: skip


def ndjson(*records: Any) -> tuple[pa.Table, list[Reject]]:
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    return parse(block_of("\n".join(texts).encode(), "ndjson", line=11), OPTIONS)


def times(table: pa.Table, name: str = "submitted") -> list[datetime | None]:
    assert table[name].type == SCHEMA.field(name).type
    return list(table[name].to_pylist())


# ---------------------------------------------------------------- records

good = st.integers(0, 99).map(lambda number: (f'{number},2026-01-01,"a, ""b""\n{number}"', number))
bad = st.sampled_from(["x,2026-01-01,ann", "1,never,ann", "1,2026-01-01", "1,2026-01-01,ann,more", ",2026-01-01,ann",
                       "1,,ann"]).map(lambda text: (text, None))  # fmt: skip
blank = st.just(("", None))


@settings(max_examples=60)
@given(st.lists(good | bad | blank, max_size=20), st.booleans())
def test_each_record_of_a_block_is_a_row_or_rejected(records: list[tuple[str, int | None]], ends: bool) -> None:
    text = "\n".join(text for text, _ in records) + ("\n" if ends else "")
    table, rejects = csv(text)
    assert table["job_id"].to_pylist() == [number for _, number in records if number is not None]
    line, wanted = 2, []
    for record, number in records:
        if number is None and record:
            wanted.append((line, record))
        line += 1 + record.count("\n")
    assert [(reject.line, reject.record) for reject in rejects] == wanted
    assert all(reject.reason for reject in rejects)


def test_a_block_of_blank_lines_has_no_jobs() -> None:
    table, rejects = csv("\n \n\n")
    assert (table.schema, table.num_rows, rejects) == (SCHEMA, 0, [])
    table, rejects = csv("x,2026-01-01,ann\n")
    assert (table.schema, table.num_rows, len(rejects)) == (SCHEMA, 0, 1)


def test_a_rejected_record_is_shown_without_its_end_and_not_beyond_2000_characters() -> None:
    _, [short, long] = csv(f"x,2026-01-01,a\r\ny,2026-01-01,{'é' * 3_000}\n")
    assert short.record == "x,2026-01-01,a"
    assert long.record == "y,2026-01-01," + "é" * (2_000 - len("y,2026-01-01,"))
    _, [odd] = parse(block_of(b"\xff,2026-01-01,a\n", "csv", header=b"job_id,submitted,user"), OPTIONS)
    assert odd.record == "\ufffd,2026-01-01,a"
    _, [reject] = csv(f"{'x' * 5_000},2026-01-01,a\n")
    assert reject.reason.startswith("column 'job_id' cannot be read as int64: invalid value 'xxx")
    assert len(reject.reason) < 2_100


def test_a_job_that_lacks_two_required_values_is_rejected_once() -> None:
    table, rejects = csv("1,2026-01-01,a\n,,b\n2,,c\n,2026-01-01,d\n3,2026-01-03,e")
    assert table["job_id"].to_pylist() == [1, 3]
    assert rejects == [
        Reject(3, "job_id is missing", ",,b"), Reject(4, "submitted is missing", "2,,c"),
        Reject(5, "job_id is missing", ",2026-01-01,d"),
    ]  # fmt: skip


# ---------------------------------------------------------------- CSV


def test_values_that_stand_for_none_are_null_unless_they_are_quoted() -> None:
    table, _ = csv('1,2026-01-01,NULL\n2,2026-01-01,""\n3,2026-01-01,\n4,2026-01-01,none\n5,2026-01-01,\\N\n')
    assert table["user"].to_pylist() == [None, "", None, "none", None]
    table, _ = csv("1,2026-01-01,NULL\n2,2026-01-01,none\n", nulls=("none",))
    assert table["user"].to_pylist() == ["NULL", None]


def test_a_file_has_its_own_delimiter_and_names() -> None:
    table, rejects = csv("1|2026-01-01|a,b\n", "job_id|submitted|user", delimiter="|")
    assert (table["user"].to_pylist(), rejects) == (["a,b"], [])
    given = ("user", "job_id", "submitted")
    text = block_of(b"ann;1;2026-01-01\nx;y;z\n", "csv")
    table, [reject] = parse(text, ReadOptions(SCHEMA, ("job_id",), names=given, delimiter=";"))
    assert table.to_pylist() == [{"user": "ann", "job_id": 1, "submitted": FIRST}]
    assert (reject.line, reject.reason) == (2, "column 'job_id' cannot be read as int64: invalid value 'y'")
    assert parsing.csv_names(text, ReadOptions(SCHEMA, (), names=given)) == list(given)
    marked = block_of(b"", "csv", header=b'\xef\xbb\xbfjob_id,"a,b"\r\n')
    assert parsing.csv_names(marked, OPTIONS) == ["job_id", "a,b"]


@pytest.mark.parametrize("zone", ["Z", "+00:00", "+0000", "-05:00", "+0530", "", ".5", ".123456Z", ".5+01:00"])
@pytest.mark.parametrize("letter", " T")
def test_times_are_utc_unless_they_have_a_zone(zone: str, letter: str) -> None:
    text = f"2026-01-31{letter}12:00:00{zone}"
    wanted = datetime.fromisoformat(text)
    wanted = wanted if wanted.tzinfo else wanted.replace(tzinfo=UTC)
    table, rejects = csv(f"1,{text},a\n2,{text},b\n")
    assert (times(table), rejects) == ([wanted, wanted], [])
    table, rejects = ndjson({"job_id": 1, "submitted": text}, {"job_id": 2, "submitted": None})
    assert (times(table), [reject.reason for reject in rejects]) == ([wanted], ["submitted is missing"])


def test_a_dataset_needs_no_times_with_a_zone() -> None:
    options = ReadOptions(pa.schema({"job_id": pa.int64(), "local": pa.timestamp("s")}), ("job_id", "local"))
    table, [reject] = parse(block_of(b"1,2026-01-01 05:00:00\n2,x\n", "csv", header=b"job_id,local"), options)
    assert table.to_pylist() == [{"job_id": 1, "local": datetime(2026, 1, 1, 5)}]
    assert reject == Reject(2, "column 'local' cannot be read as timestamp[s]: invalid value 'x'", "2,x")


@pytest.mark.parametrize(("record", "fields"), [("1,2026-01-01", 2), ("1", 1), ("1,2026-01-01,a,b", 4)])
def test_a_record_with_too_few_or_too_many_fields_says_how_many(record: str, fields: int) -> None:
    for text in (record, f"{record}\n2,2026-01-01,b\n"):
        _, [reject] = csv(text)
        assert reject == Reject(2, f"Expected 3 columns, got {fields}: {record}", record)


def test_columns_with_zones_and_without_stand_side_by_side() -> None:
    header = "ended,job_id,local,submitted"
    table, rejects = csv("2026-01-01T02:00:00+01:00,1,2026-01-01 05:00:00,2026-01-01\n"
                         ",2,,2026-01-02\n", header)  # fmt: skip
    assert rejects == []
    assert table.column_names == header.split(",")
    assert times(table, "ended") == [FIRST + timedelta(hours=1), None]
    assert times(table, "local") == [datetime(2026, 1, 1, 5), None]
    assert times(table) == [FIRST, FIRST + timedelta(days=1)]
    # Each record may have times of its own form.
    mixed = "1,2026-01-01T02:00:00+02:00,a\n2,2026-01-01,b\n3,2026-01-01T01:00:00Z,c\n"
    table, rejects = csv(mixed)
    assert (sorted(times(table)), rejects) == ([FIRST, FIRST, FIRST + timedelta(hours=1)], [])  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("job_id,submitted,usr", "jobs.csv: unknown column 'usr'; did you mean user? It has job_id,"),
        ("job_id,submitted,usr,Load", "unknown columns 'usr', 'Load'; did you mean user, load? Known columns: job_id,"),
        ("job_id,submitted,qqqqqq,zzzzzz", "unknown columns 'qqqqqq', 'zzzzzz'; known columns: job_id,"),
        ("job_id,submitted,user,user", "jobs.csv has two columns named 'user': rename one of them"),
        ("job_id,user", "jobs.csv: required column 'submitted' is missing: the file has job_id, user"),
    ],
)  # fmt: skip
def test_columns_that_do_not_match_are_named(header: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(says)):
        csv("1,2026-01-01,a,b\n", header)


def test_the_nearest_of_two_near_names_is_told() -> None:
    schema = pa.schema({name: pa.int64() for name in ("job_id", "cores", "cored", "user")})
    with pytest.raises(InvalidInputError, match=r"'core', 'usr'; did you mean cores, user\? Known columns: job_id"):
        parse(block_of(b"1,2,3\n", "csv", header=b"job_id,core,usr"), ReadOptions(schema, ("job_id",)))


def test_the_nearest_names_are_told_of_twenty_unknown_columns_at_most() -> None:
    known = [f"{letter * 5}{other * 5}" for letter in "abcdef" for other in "uvwxyz"]
    schema = pa.schema([("job_id", pa.int64()), *((name, pa.int64()) for name in known)])
    header = ",".join(["job_id", *(f"{name}_" for name in known[:30])])
    with pytest.raises(InvalidInputError) as refused:
        parse(block_of(b"1\n", "csv", header=header.encode()), ReadOptions(schema, ("job_id",)))
    hint = str(refused.value).partition("did you mean ")[2].partition("?")[0]
    assert hint.split(", ") == known[:20]


# ---------------------------------------------------------------- NDJSON


def test_records_of_ndjson_have_the_columns_that_occur_in_the_order_of_the_dataset() -> None:
    table, rejects = ndjson(
        {"user": "ann", "submitted": "2026-01-01", "job_id": 1},
        {"submitted": "2026-01-02T00:00:00+01:00", "job_id": 2, "local": "2026-01-01 00:00:00"},
    )
    assert rejects == []
    found = table.to_pylist()
    assert [row["job_id"] for row in found] == [1, 2]
    assert [row["user"] for row in found] == ["ann", None]
    assert times(table) == [FIRST, FIRST + timedelta(hours=23)]
    order = [SCHEMA.names.index(name) for name in table.column_names]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"job_id": 1, "submitted": "2026-01-01", "usr": 1}', "unknown column 'usr'; did you mean user? It has"),
        ('{"job_id": 1, "submitted": "2026-01-01", "usr": 1, "lod": 2}', "unknown columns 'usr', 'lod'; did you mean"),
        ('{"job_id": "x", "submitted": "2026-01-01"}', "job_id"),
        ('{"job_id": 1, "submitted": "never"}', "never"),
        ('{"job_id": 1, "submitted": 5}', "submitted"),
        ('{"job_id": 1, "submitted": "2026-01-01", "load": 1e39}', "'load' holds a number that is out of the range"),
        ('{"submitted": "2026-01-01"}', "job_id is missing"),
        # It is nested too deeply to look for the field.
        (f'{{"job_id": 1, "submitted": "2026-01-01", "usr": {"[" * 40}{"]" * 40}}}', "unexpected field"),
        ('{"job_id": 1', ""),
        ('{"job_id": 1, "submitted": "2026-01-01"} {"job_id": 2, "submitted": "2026-01-01"}', "it reads as 2 records"),
    ],
)
def test_a_bad_record_of_ndjson_is_rejected_with_the_reason(record: str, reason: str) -> None:
    sound = {"job_id": 7, "submitted": "2026-01-01"}
    table, [reject] = ndjson(sound, record, sound, sound)
    assert table["job_id"].to_pylist() == [7, 7, 7]
    assert (reject.line, reject.record) == (12, record)
    assert reason in reject.reason


# ---------------------------------------------------------------- what parsers say


B = "column 'b' cannot be read as "


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("In CSV column #1: CSV conversion error to int64: invalid value 'x'", f"{B}int64: invalid value 'x'"),
        ("In CSV column #1: Row #3: CSV conversion error to date: invalid value 'x'", f"{B}date: invalid value 'x'"),
        ("In CSV column #2: CSV conversion error to int64", "In CSV column #2: CSV conversion error to int64"),
        ("CSV parse error: Expected 2 columns, got 1: x", "Expected 2 columns, got 1: x"),
        ("CSV parse error: Row #4: Expected 2 columns, got 1: x", "Expected 2 columns, got 1: x"),
        ("CSV parse error: Row #four: x", "Row #four: x"),
        ("CSV parse error: Row #4", "Row #4"),
        ("Expected 2 columns: Row #4: x", "Expected 2 columns: Row #4: x"),
        ("JSON parse error: Column(/a) changed from number in row 0", "Column(/a) changed from number"),
        ("JSON parse error: Column(/a in row b) changed", "Column(/a in row b) changed"),
        ("It is too long. If these", "It is too long. If these"),
        ("column #0: Missing value. ", "column 'a' Missing value"),
        ("Two lines\nof which the first says it", "Two lines"),
        ("No. 1: If these are ...", "No. 1"),
        ("not CSV conversion error to int64", "not CSV conversion error to int64"),
        ("", "ValueError"),
    ],
)  # fmt: skip
def test_a_reason_names_the_column_instead_of_its_number(message: str, reason: str) -> None:
    assert parsing._reason(ValueError(message), ["a", "b"]) == reason


# ---------------------------------------------------------------- numbers out of range


@pytest.mark.parametrize(
    ("text", "value"), [("1e38", 1e38), ("-inf", float("-inf")), ("Infinity", float("inf")), ("", None)]
)
def test_infinite_numbers_are_kept(text: str, value: float | None) -> None:
    table, rejects = csv(f"1,2026-01-01,{text}\n", "job_id,submitted,load")
    assert (table["load"].to_pylist(), rejects) == ([pytest.approx(value)], [])


def test_numbers_that_would_become_infinite_are_rejected() -> None:
    lines = [f"{number},2026-01-01,{text}" for number, text in enumerate(["inf", "1e39", "-1e39", "7"], 1)]
    table, rejects = csv("\n".join(lines), "job_id,submitted,load")
    assert table["job_id"].to_pylist() == [1, 4]
    assert rejects == [
        Reject(line, "column 'load' holds a number that is out of the range of float", record)
        for line, record in ((3, "2,2026-01-01,1e39"), (4, "3,2026-01-01,-1e39"))
    ]


# ---------------------------------------------------------------- logs in the Standard Workload Format

JOB = "{} 60 -1 17 128 3.5 -1 -1 -1 -1 1 4 1 -1 2 -1 -1 -1\n"
HEAD = b"; UnixStartTime: 1767225600"


def test_a_log_has_comments_anywhere_and_jobs_from_its_start() -> None:
    from chronotile import inputs

    schema = pa.schema(inputs.schema({name: SWF_COLUMNS[name] for name in ("job_id", "submitted", "run_s")}))
    lines = [
        ";  a comment\n",
        JOB.format(1),
        "; 1 2\n",
        JOB.format(2),
        "\n",
        "; no job\n",
        "what\n",
        JOB.format(3),
        JOB.format("x"),
    ]
    options = ReadOptions(schema, ("job_id", "submitted"))
    table, rejects = parse(block_of("".join(lines).encode(), "swf", header=HEAD, line=5), options)
    assert table.schema == schema
    assert table.to_pylist() == [
        {"job_id": number, "submitted": FIRST + timedelta(minutes=1), "run_s": 17} for number in (1, 2, 3)
    ]
    assert rejects == [
        Reject(11, "1 fields, a job has 18", "what"),
        Reject(13, "job_id is 'x', expected a number", JOB.format("x").rstrip()),
    ]
    table, rejects = parse(block_of(b"; only\n;comments\n", "swf", header=HEAD), options)
    assert (table.schema, table.num_rows, rejects) == (schema, 0, [])
    with pytest.raises(DataFileError, match=r"jobs\.swf: no UnixStartTime"):
        parse(block_of(JOB.format(1).encode(), "swf"), options)


# ---------------------------------------------------------------- Parquet


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """Ten jobs in groups of three rows; some lack their id or time."""
    ids = [None if number in (2, 8) else number for number in range(10)]
    moments = pa.array([None if n == 5 else 1_767_225_600 + n for n in range(10)], pa.timestamp("s", "UTC"))
    table = pa.table({"submitted": moments, "job_id": pa.array(ids, pa.int32()), "user": [f"u{n}" for n in range(10)]})
    pq.write_table(table, tmp_path / "jobs.parquet", row_group_size=3)
    return tmp_path / "jobs.parquet"


@pytest.mark.parametrize(("start", "rows"), [(0, 10), (0, 3), (2, 5), (3, 3), (4, 1), (5, 4), (9, 1)])
def test_a_block_of_parquet_has_its_rows_of_each_group(parquet: Path, start: int, rows: int) -> None:
    file = File(str(parquet), "parquet", "hash", 1)
    table, rejects = parse(Block(file, start, 1, None, start + 1, rows=rows), OPTIONS)
    block = range(start, start + rows)
    assert table.to_pylist() == [
        {"submitted": FIRST + timedelta(seconds=number), "job_id": number, "user": f"u{number}"}
        for number in block if number not in (2, 5, 8)
    ]  # fmt: skip
    assert [table[name].type for name in table.column_names] == [SCHEMA.field(name).type for name in table.column_names]
    assert sorted((reject.line, reject.reason) for reject in rejects) == [
        (number + 1, f"{'submitted' if number == 5 else 'job_id'} is missing")
        for number in block
        if number in (2, 5, 8)
    ]
    shown = {reject.line: reject.record for reject in rejects}
    if 5 in block:
        assert shown[6] == "{'job_id': 5, 'submitted': None}"


def test_columns_of_parquet_that_do_not_match_are_named(parquet: Path) -> None:
    block = Block(File(str(parquet), "parquet", "hash", 1), 0, 1, None, 1, rows=10)
    without = SCHEMA.remove(SCHEMA.names.index("user"))
    with pytest.raises(InvalidInputError, match=r"jobs\.parquet: unknown column 'user'"):
        parse(block, ReadOptions(without, ("job_id",)))
    other = without.append(pa.field("user", pa.int64()))
    with pytest.raises(DataFileError, match=r"jobs\.parquet: column 'user' does not fit the dataset: .*'u"):
        parse(block, ReadOptions(other, ("job_id",)))


@pytest.mark.parametrize(
    ("values", "kind", "fits"),
    [
        (pa.array([0, 1, None]), pa.bool_(), [False, True, None]), (pa.array([0, 2, None]), pa.bool_(), None),
        (pa.array([FIRST, None]), pa.date32(), [FIRST.date(), None]),
        (pa.array([FIRST + timedelta(hours=1), None]), pa.date32(), None),
        (pa.array([1_767_225_600, None]), pa.timestamp("us", "UTC"), None), (pa.array([1, None]), pa.date32(), None),
        (pa.array([FIRST.date(), None]), pa.timestamp("us", "UTC"), [FIRST, None]),
        (pa.array([17, None]), pa.utf8(), None), (pa.array([1.5, None]), pa.utf8(), None),
        (pa.array([True, None]), pa.large_utf8(), None), (pa.array([FIRST, None]), pa.utf8(), None),
        (pa.array(["17", None], pa.large_utf8()), pa.utf8(), ["17", None]),
        (pa.array(["a", None]).dictionary_encode(), pa.utf8(), ["a", None]), (pa.nulls(2), pa.utf8(), [None, None]),
    ],
    ids=str,
)  # fmt: skip
def test_values_of_parquet_do_not_turn_into_others(
    tmp_path: Path, values: pa.Array, kind: pa.DataType, fits: list[Any] | None
) -> None:
    """A number may count seconds or microseconds, a date has no time of day, 2 is not true, and 17 is no text."""
    count = len(values)
    table = pa.table({"job_id": list(range(count)), "submitted": [FIRST] * count, "x": values})
    pq.write_table(table, tmp_path / "jobs.parquet")
    block = Block(File(str(tmp_path / "jobs.parquet"), "parquet", "hash", 1), 0, 1, None, 1, rows=count)
    options = ReadOptions(pa.schema([*SCHEMA, pa.field("x", kind)]), ("job_id", "submitted"))
    if fits is None:
        with pytest.raises(DataFileError, match=r"jobs\.parquet: column 'x' does not fit the dataset"):
            parse(block, options)
    else:
        assert parse(block, options)[0]["x"].to_pylist() == fits
