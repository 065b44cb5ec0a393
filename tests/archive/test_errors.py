"""Errors: classes, kinds, messages, and what survives them."""

from __future__ import annotations

import ast
import os
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import chronotile as ct
import chronotile_tools
from chronotile import _native, errors
from chronotile_tools import errors as tools_errors

SCHEMA = {"tag": "int64", "t": "timestamp[us]", "value": "float64"}


def definition(**changes: object) -> dict[str, object]:
    return {"schema": SCHEMA, "cell": ct.key("tag"), "time": "t", **changes}


def test_every_exception_is_a_chronotile_error_and_most_a_builtin_one() -> None:
    parents = {
        "InvalidInputError": ValueError,
        "DatasetNotFoundError": KeyError,
        "BatchNotFoundError": KeyError,
        "TagNotFoundError": KeyError,
        "DatasetExistsError": ValueError,
        "BatchConflictError": ValueError,
        "ArchiveNotFoundError": FileNotFoundError,
        "NotAnArchiveError": OSError,
        "ReadOnlyError": PermissionError,
        "StorageFullError": OSError,
        "BusyError": TimeoutError,
        "OutcomeUnknownError": TimeoutError,
        "UnavailableError": ConnectionError,
        "AccessDeniedError": PermissionError,
        "DamagedError": OSError,
        "DamagedChunkError": errors.DamagedError,
        "DataFileError": OSError,
        "ClosedError": RuntimeError,
        "MissingPackageError": ImportError,
    }
    assert {"ChronotileError", *parents} == set(errors.__all__)
    for name, parent in parents.items():
        cls = getattr(errors, name)
        assert issubclass(cls, ct.ChronotileError)
        assert issubclass(cls, parent)
        assert getattr(ct, name) is cls


def test_each_kind_is_named_where_its_class_is_described() -> None:
    for kind, name in _native.error_kinds().items():
        assert f"``{kind}``" in (getattr(errors, name).__doc__ or ""), (kind, name)


def raised(path: Path) -> set[tuple[str, str]]:
    """Exception classes that a module makes, with the kinds it gives them."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return {
        (call.func.id, keyword.value.value)
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in errors.__all__
        for keyword in call.keywords
        if keyword.arg == "kind" and isinstance(keyword.value, ast.Constant)
    }


def test_python_raises_the_kinds_of_the_table() -> None:
    table = _native.error_kinds()
    modules = list(Path(ct.__file__).parent.rglob("*.py"))
    found = set().union(*(raised(path) for path in modules))
    assert len(found) > 30
    assert {(name, kind) for name, kind in found if table.get(kind) != name} == set()


def kinds_in(path: Path) -> set[str]:
    """Kinds that a module gives to exceptions, in calls and as defaults of classes."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name.endswith("Error"):
                given = [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
            case ast.FunctionDef(name="__init__", args=arguments):
                pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
                given = [default for argument, default in pairs if argument.arg == "kind" and default is not None]
            case ast.Assign(targets=[ast.Name("default_kind")], value=value):
                given = [value]
            case ast.AnnAssign(target=ast.Name("default_kind"), value=ast.expr() as value):
                given = [value]
            case _:
                continue
        found |= {each.value for each in given if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return found


def test_every_kind_is_in_the_table_of_the_product_or_of_the_tools() -> None:
    table, tools = set(_native.error_kinds()), set(tools_errors.KINDS)
    assert table & tools == set()
    product, own = (
        set().union(*map(kinds_in, Path(package.__file__).parent.rglob("*.py"))) for package in (ct, chronotile_tools)
    )
    assert product - table == set()
    assert own - table == tools


@pytest.mark.parametrize("name", errors.__all__)
def test_exceptions_show_their_message_as_it_is_and_can_be_pickled(name: str) -> None:
    error = getattr(errors, name)("no 'thing' here", kind="some-kind", dataset="d", chunk="ab")
    again = pickle.loads(pickle.dumps(error))
    for one in (error, again):
        assert str(one) == "no 'thing' here"
        assert one.kind == "some-kind"
        assert one.details == {"dataset": "d", "chunk": "ab"}
    assert type(again) is type(error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "Bad-Name"}, "1 to 48 characters"),
        ({"window": "30x"}, "not a duration"),
        ({"window": 30}, 'give text such as "30d"'),
        ({"retention": "soon"}, "not a duration"),
        ({"time": "nope"}, '"nope" is not in the schema'),
        ({"time": 5}, "name of the time column"),
        ({"time_format": "unix"}, "use timestamp, mjd or jd"),
        ({"time_scale": "tt"}, "use utc or tai"),
        ({"time": ct.mjd("t")}, "float64 days"),
        ({"cell": ct.key("value")}, "an integer column"),
        ({"cell": ct.id_bucket("tag", 0)}, "1 to 1000000000"),
        ({"cell": ct.hash("tag", buckets=0)}, "at least one bucket"),
        ({"cell": ct.sky("value", "value", scheme="cube")}, "mq3c, q3c, htm, healpix"),
        ({"cell": ct.sky("value", "value", level=99)}, "level 99"),
        ({"cell": "tag"}, "use ct.sky"),
        ({"id": ["nope"]}, "nope"),
        ({"merge": "newest"}, 'use "append" or "latest"'),
        ({"merge": "latest"}, "id columns"),
        ({"version": "value"}, 'use merge="latest"'),
        ({"slice": 0}, "1 to 100000"),
        ({"schema": {"t": "timestamp[us]", "x": "complex128"}}, "complex128"),
        ({"schema": {}}, "no columns"),
        ({"schema": 5}, "cannot take a schema from an object of type int"),
        ({"schema": pa.schema({"t": pa.timestamp("us"), "half": pa.float16()})}, '"half"'),
    ],
)
def test_a_definition_that_cannot_be_used_names_its_part(
    memory: ct.Archive, changes: dict[str, object], message: str
) -> None:
    given = definition(**changes)
    with pytest.raises(ct.InvalidInputError) as caught:
        memory.create(str(given.pop("name", "d")), **given)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert memory.datasets() == []


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"tag": [1], "t": [1], "value": [1.0], "more": [1]}, '"more" is not in the dataset'),
        ({"tag": [1, 2], "t": [1], "value": [1.0]}, "equal length"),
        ({"tag": [1], "t": [None], "value": [1.0]}, '"t"'),
        ({"tag": ["a"], "t": [1], "value": [1.0]}, "column 'tag' is Int64 and takes a number, not \"a\""),
        (
            {"tag": [1.5], "t": [1], "value": [1.0]},
            "column 'tag': Float64 values do not fit Int64: value 0, 1.5, is not a whole",
        ),
        ({"tag": [2**70], "t": [1], "value": [1.0]}, "more than 64 bits"),
        ({"tag": [1, 2], "t": [1, 2], "value": [1.0, "x"]}, "value 1 is 'x', of type str, but the others are float"),
        ({"tag": 1, "t": 1, "value": 1.0}, "give an array or a list, even for one value"),
        ([{"tag": 1, "t": 1, "value": 1.0}], "give an array or a list, even for one value"),
        ([1, 2], "yielded an object of type int"),
        ("table.csv", "cannot store an object of type str"),
        (5, "cannot store an object of type int"),
        (pa.table({"tag": ["1"], "t": pa.array([1], pa.timestamp("us"))}), "cast it first"),
        (pa.chunked_array([[1, 2]]), "cannot be taken as a table"),
    ],
)
def test_rows_that_do_not_fit_are_refused_whole(memory: ct.Archive, rows: object, message: str) -> None:
    dataset = memory.create("d", **definition())  # type: ignore[arg-type]
    with pytest.raises(ct.InvalidInputError) as caught:
        dataset.write(rows, batch="b")
    assert message in str(caught.value)
    assert dataset.count() == 0


@pytest.mark.parametrize(
    ("time", "counts", "example"),
    [
        (ct.mjd("t"), "counts Modified Julian Dates", "such as 61071.5"),
        (ct.jd("t"), "counts Julian Dates", "such as 2461072.0"),
    ],
)
def test_times_in_a_column_of_days_are_refused_with_what_it_counts(
    memory: ct.Archive, time: ct.TimeAxis, counts: str, example: str
) -> None:
    schema = pa.schema([("t", pa.float64()), ("value", pa.float64())])
    dataset = memory.create("days", schema=schema, time=time, cell=ct.single())
    text, moments = ["2026-01-31T12:00:00"], pa.array([0], pa.timestamp("us"))
    for values, held in ((text, f"text, such as \"{text[0]}\""), (pa.array([None, *text]), "text, such as"),
                         (moments, "times of type")):  # fmt: skip
        for rows in (
            {"t": values, "value": [1.0] * len(values)},
            pa.table({"t": values, "value": [1.0] * len(values)}),
        ):
            with pytest.raises(ct.InvalidInputError) as caught:
                dataset.write(rows)
            for words in (f'"t" holds {held}', counts, example, "time column of timestamps"):
                assert words in str(caught.value)
    with pytest.raises(ct.InvalidInputError, match='"value" has type Utf8'):
        dataset.write({"t": [61_071.5], "value": ["x"]})


def test_an_unknown_batch_is_answered_with_the_nearest(memory: ct.Archive) -> None:
    dataset = memory.create("d", **definition())  # type: ignore[arg-type]
    with pytest.raises(ct.BatchNotFoundError, match='no batch "night-1" in dataset d; it has no named batches'):
        dataset.remove_batch("night-1")
    for number in range(25):
        dataset.write({"tag": [1], "t": ["2026-01-01"], "value": [1.0]}, f"night-{number:02}")
    for given, near in (("nihgt-07", "night-07"), ("Night_24", "night-24"), ("night-1", "night-01 or night-10")):
        with pytest.raises(ct.BatchNotFoundError, match=f"; did you mean {near}.*It has night-00, .*25 in all"):
            dataset.remove_batch(given)
    dataset.remove_batch("night-07")
    with pytest.raises(ct.BatchNotFoundError) as caught:
        dataset.remove_batch("night-07")
    assert "did you mean night-07" not in str(caught.value)
    with pytest.raises(ct.BatchNotFoundError, match="; it has night-00"):
        dataset.remove_batch("z")


def test_an_error_of_the_callers_generator_comes_back_as_it_was(memory: ct.Archive) -> None:
    dataset = memory.create("d", **definition())  # type: ignore[arg-type]

    class MineError(Exception):
        pass

    def rows() -> object:
        yield {"tag": [1], "t": [1], "value": [1.0]}
        raise MineError("broke")

    with pytest.raises(MineError, match="broke"):
        dataset.write(rows(), batch="b")
    assert dataset.count() == 0
    # The name is not burnt by the failed attempt.
    assert dataset.write({"tag": [1], "t": [1], "value": [1.0]}, batch="b").stored


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["nope"]}, "nope"),
        ({"where": [("nope", "<", 1)]}, "unknown column 'nope'"),
        ({"where": [("value", "~", 1)]}, "unknown comparison '~'"),
        ({"where": ["value~1"]}, "invalid condition"),
        ({"where": ("value", "in", 5)}, "takes a list"),
        ({"where": ("value", "between", (1, 2, 3))}, "takes two values"),
        ({"where": ("value", "==", None)}, "is never true"),
        ({"where": ("value", "<", "x")}, "value"),
        ({"region": "circle"}, "give ct.circle"),
        ({"region": ct.circle(1, 2, 3)}, "sky"),
        ({"keys": 1, "cells": [1]}, "give only one of region, cells and keys"),
        ({"keys": "x"}, "keys"),
        ({"ids": 1}, "no id columns"),
        ({"start": "yesterday"}, "ISO 8601"),
        ({"start": object()}, "ISO 8601 text"),
        ({"start": True}, "ISO 8601 text"),
        (
            {"start": "2026-01-02", "end": "2026-01-01"},
            "inverted: start 2026-01-02T00:00:00 is after end 2026-01-01T00:00:00",
        ),
    ],
)
def test_a_request_that_makes_no_sense_says_what_to_give(
    memory: ct.Archive, arguments: dict[str, object], message: str
) -> None:
    dataset = memory.create("d", **definition())  # type: ignore[arg-type]
    with pytest.raises(ct.InvalidInputError) as caught:
        dataset.read(**arguments).to_arrow()  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_missing_dataset_lists_those_there_are(memory: ct.Archive) -> None:
    memory.create("here", **definition())  # type: ignore[arg-type]
    with pytest.raises(ct.DatasetNotFoundError) as caught:
        memory["there"]
    assert str(caught.value) == 'no dataset "there" in the archive; did you mean here? It has here'
    assert (caught.value.kind, caught.value.details) == ("dataset-not-found", {"dataset": "there"})


def test_opening_what_is_no_archive_touches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ct.ArchiveNotFoundError):
        ct.open(tmp_path / "none.db", create=False)
    with pytest.raises(ct.ArchiveNotFoundError):
        ct.open(tmp_path / "no" / "folder" / "a.db")
    assert list(tmp_path.iterdir()) == []
    text = tmp_path / "text.db"
    text.write_text("no database at all, just a text of some length " * 40)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("create table t (x)")
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        with pytest.raises(ct.NotAnArchiveError) as caught:
            ct.open(path)
        assert caught.value.kind == "not-an-archive"
        assert path.read_bytes() == before
    for url in ("mysql://host/x", "memory:x", ""):
        with pytest.raises(ct.InvalidInputError) as refused:
            ct.open(url)
        assert refused.value.kind == "invalid-url"


def test_a_read_only_archive_refuses_writes(path: Path) -> None:
    with ct.open(path) as archive:
        archive.create("d", **definition())  # type: ignore[arg-type]
    with ct.open(path, read_only=True) as archive:
        with pytest.raises(ct.ReadOnlyError):
            archive["d"].write({"tag": [1], "t": [1], "value": [1.0]})
        with pytest.raises(ct.ReadOnlyError):
            archive.create("e", **definition())  # type: ignore[arg-type]


# Locks of SQLite hold between processes, not between two copies of the library in one process.
HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("begin immediate")
print("held", flush=True)
sys.stdin.readline()
"""


def test_a_held_archive_is_busy_and_nothing_is_written(path: Path) -> None:
    with ct.open(path, timeout_s=0) as archive:
        dataset = archive.create("d", **definition())  # type: ignore[arg-type]
        command = [sys.executable, "-c", HOLD, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(ct.BusyError) as caught:
                dataset.write({"tag": [1], "t": [1], "value": [1.0]}, batch="b")
            holder.communicate("\n", timeout=30)
        assert caught.value.kind == "busy"
        assert dataset.batch("b") is None
        assert dataset.write({"tag": [1], "t": [1], "value": [1.0]}, batch="b").stored


def flip_a_chunk_byte(path: Path) -> None:
    """Changes one byte in the middle of the largest piece of a chunk in the file."""
    connection = sqlite3.connect(path)
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    pieces = []
    for table in tables:
        columns = [row[1] for row in connection.execute(f'pragma table_info("{table}")')]
        for column in set(columns) & {"head", "body"}:
            pieces += [
                (table, column, blob) for (blob,) in connection.execute(f'select "{column}" from "{table}"') if blob
            ]
    table, column, blob = max(pieces, key=lambda piece: len(piece[2]))
    changed = bytearray(blob)
    changed[len(changed) // 2] ^= 0x10
    done = connection.execute(f'update "{table}" set "{column}" = ? where "{column}" = ?', (bytes(changed), blob))
    assert done.rowcount == 1
    connection.commit()
    connection.close()


def test_damage_names_dataset_tile_and_chunk(path: Path) -> None:
    with ct.open(path) as archive:
        dataset = archive.create("d", **definition())  # type: ignore[arg-type]
        dataset.write({"tag": [7] * 1000, "t": list(range(1000)), "value": [k / 7 for k in range(1000)]}, batch="b")
    flip_a_chunk_byte(path)
    with ct.open(path) as archive:
        dataset = archive["d"]
        for draw in (
            lambda: dataset.read().to_arrow(),
            lambda: list(dataset.read().batches()),
            lambda: archive["d"].read().to_polars(),
        ):
            with pytest.raises(ct.DamagedChunkError) as caught:
                draw()
            error = caught.value
            assert (error.kind, error.dataset, error.cell, error.window) == ("damaged-chunk", "d", 7, 0)
            assert len(error.chunk) == 32
            assert error.chunk in str(error)
        copy = archive.create("copy", **definition())  # type: ignore[arg-type]
        with pytest.raises(ct.DamagedChunkError):
            copy.write(dataset.read())
        report = dataset.verify()
    assert not report.ok
    assert [damage.tile for damage in report.damage] == [ct.Tile(7, 0)]
    assert report.damage[0].chunk == error.chunk
    assert not report.damage[0].missing


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_folder_that_may_not_be_written_is_said_so(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(ct.ChronotileError):
        ct.open(folder / "a.db")
