"""Layout `rows` on a real cluster: the results of layout `chunks` and of a file, in tables that other tools read."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import random
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.compute as pc
from support_data import assert_same_rows, run_cli
from support_lab import keyspace_of

import chronotile as ct
from chronotile_tools import lab

DAY_US = 86_400_000_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("place", pa.int32()),
        ("t", pa.timestamp("us", "UTC")),
        ("revision", pa.int32()),
        ("mag", pa.float64()),
        ("note", pa.string()),
        ("pair", pa.list_(pa.float32())),
    ]
)


@pytest.fixture
def keyspace(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return keyspace_of(request)


@pytest.fixture
def url(single_node: lab.Cluster, keyspace: str) -> str:
    """A keyspace of its own on a node."""
    return f"{single_node.url(keyspace)}?catalog_buckets=16"


@pytest.fixture
def cql(single_node: lab.Cluster, keyspace: str) -> Iterator[Callable[..., pa.Table]]:
    """Asks the node as any other tool would."""
    with contextlib.ExitStack() as stack:
        sessions: list[ct.CqlSession] = []

        def query(text: str, *values: Any) -> pa.Table:
            if not sessions:
                # The archive makes the keyspace.
                sessions.append(stack.enter_context(ct.cql(f"{single_node.url(keyspace)}?consistency=ALL")))
            if text.startswith("SELECT"):
                return sessions[0].query(text, list(values)).to_arrow()
            sessions[0].execute(text, list(values))
            return pa.table({})

        yield query


def records(ids: range, revision: int, step: int = 1) -> pa.Table:
    """Rows whose values follow from id and revision: some null, some not a number, over five places and six days."""
    numbers = list(ids)
    return pa.table(
        {
            "id": numbers,
            "place": [n % 5 for n in numbers],
            "t": [(n * 7_919_000_017 * step) % (6 * DAY_US) for n in numbers],
            "revision": [revision if n % 11 else None for n in numbers],
            "mag": [
                None if n % 7 == 0 else float("nan") if n % 13 == 0 else (n - 50) * 0.1 * revision for n in numbers
            ],
            "note": [None if n % 3 == 0 else "" if n % 5 == 0 else f"ä {n} of {revision}" for n in numbers],
            "pair": [None if n % 6 == 0 else [n * 0.5] * (n % 3) for n in numbers],
        },
        schema=SCHEMA,
    )


def create(archive: ct.Archive, layout: str, merge: str = "latest", version: str | None = "revision") -> ct.Dataset:
    return archive.create(
        "visits", schema=SCHEMA, cell=ct.key("place"), time="t", window="1d", slice=3, id=["id"],
        merge=merge, version=version, layout=layout,
    )  # fmt: skip


Step = tuple[str, Callable[[ct.Dataset], Any]]


def history(seed: int) -> list[Step]:
    """What users may do to a dataset, at random but the same for one seed."""
    choose = random.Random(seed)
    steps: list[Step] = []

    def write(number: int, count: int, revision: int, replace: bool) -> Step:
        first = choose.randrange(0, 120)
        rows = records(range(first, first + count), revision, choose.choice([1, 3]))

        def run(ds: ct.Dataset) -> Any:
            table = rows
            if "more" in ds.column_types and number % 2:
                table = rows.append_column("more", rows["id"])
            try:
                return ds.write(table, batch=f"b{number}", replace=replace).rows
            except ct.BatchConflictError:
                return "conflict"

        return f"write b{number} x {count}, replace {replace}", run

    for step in range(16):
        kind = choose.choice(["new", "new", "new", "again", "replace", "remove", "consolidate", "nameless", "late"])
        number = choose.randrange(8)
        if kind in ("new", "late"):
            steps.append(write(number, choose.choice([3, 40, 200]), choose.randrange(1, 5), False))
        elif kind in ("again", "replace"):
            steps.append(write(number, choose.choice([5, 60]), choose.randrange(1, 5), kind == "replace"))
        elif kind == "remove":

            def remove(ds: ct.Dataset, number: int = number) -> Any:
                try:
                    return ds.remove_batch(f"b{number}")
                except ct.BatchNotFoundError:
                    return "none"

            steps.append((f"remove b{number}", remove))
        elif kind == "consolidate":
            steps.append(("consolidate", lambda ds: ds.consolidate().tiles))
        else:
            rows = records(range(step * 10, step * 10 + 30), 2)
            steps.append(("nameless", lambda ds, rows=rows: ds.write(rows.slice(0, 20)).rows))  # type: ignore[misc]
    added = choose.randrange(4, 10)
    steps.insert(added, ("add", lambda ds: ds.add_columns({"more": "int64"}, defaults={"more": 7})))
    return steps


def views(ds: ct.Dataset) -> list[tuple[str, pa.Table]]:
    """What readers may ask for."""
    start = dt.datetime(1970, 1, 2, tzinfo=dt.UTC)
    return [
        ("all", ds.read().to_arrow()),
        ("history", ds.read(history=True).to_arrow()),
        ("part", ds.read(keys=[1, 3], start=start, columns=["id", "mag", "note"]).to_arrow()),
        ("where", ds.read(where=("mag", ">", 1.5), columns=["pair", "id", "t"]).to_arrow()),
        ("ids", ds.read(ids=[5, 17, 44, 1_000]).to_arrow()),
        ("latest", ds.latest(by=["place"]).to_arrow()),
        ("finished", ds.read().to_arrow()),
    ]


@pytest.mark.parametrize(("seed", "merge"), [(1, "latest"), pytest.param(2, "append", marks=pytest.mark.slow)])
def test_every_layout_and_engine_returns_the_same_after_the_same_history(
    url: str, tmp_path: Path, seed: int, merge: str
) -> None:
    with ct.open(url) as first, ct.open(url.replace("?", "_c?")) as second, ct.open(tmp_path / "a.db") as third:
        version = "revision" if merge == "latest" else None
        rows = create(first, "rows", merge, version)
        others = [create(second, "chunks", merge, version), create(third, "chunks", merge, version)]
        for number, (name, step) in enumerate(history(seed)):
            got = step(rows)
            assert [step(other) for other in others] == [got, got], f"{number}: {name}"
            if number % 5 and number < 16:
                continue
            seen = views(rows)
            for wanted in map(views, others):
                for (view, table), (_, want) in zip(seen, wanted, strict=True):
                    assert table.equals(want) or _same_bits(table, want), f"{number}: {name}, {view}"
        assert rows.verify().ok
        assert [b.rows for b in rows.batches()] == [b.rows for b in others[1].batches()]
        assert rows.info().rows == others[1].info().rows
        assert rows.info().chunks == others[0].info().chunks


def _same_bits(a: pa.Table, b: pa.Table) -> bool:
    """NaN equals NaN here."""
    return a.schema == b.schema and str(a.to_pylist()) == str(b.to_pylist())


def floats(kind: pa.DataType, bits: list[int]) -> pa.Array:
    """Floats of given bits: a NaN keeps its payload."""
    whole = {pa.float32(): pa.uint32(), pa.float64(): pa.uint64()}[kind]
    return pa.array(bits, whole).view(kind)


def all_types() -> pa.Table:
    """A column of every type that a dataset may have, with its extremes, zeros, nulls and empty values."""

    def integers(kind: pa.DataType) -> pa.Array:
        width, signed = kind.bit_width, not str(kind).startswith("u")
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if signed else (0, 2**width - 1)
        return pa.array([low, high, None, 0], kind)

    def ticks(kind: pa.DataType, low: int, high: int) -> pa.Array:
        whole = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([low, high, None, 0], whole).view(kind)

    i32, i64, day = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1), 86_400
    inner = pa.struct([("n", pa.uint64()), ("s", pa.string()), ("d", pa.decimal128(30, 3))])
    outer = pa.struct([("x", pa.float64()), ("deep", inner), ("many", pa.list_(pa.int16()))])
    nested = {"x": -0.0, "deep": {"n": 2**64 - 1, "s": "", "d": Decimal("-1.005")}, "many": [1, -1]}
    hollow = {"x": None, "deep": None, "many": None}
    columns: dict[str, pa.Array] = {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "t": pa.array([0, 1, 2, 3], pa.timestamp("ns")),
        "Mixed \"Case\" ü": pa.array(["", "x", None, "\0"], pa.string()),
        "flag": pa.array([True, False, None, True]),
        **{str(kind): integers(kind) for kind in [pa.int8(), pa.int16(), pa.int32(), pa.int64()]},
        **{str(kind): integers(kind) for kind in [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]},
        "f32": floats(pa.float32(), [0x8000_0000, 0x7FC0_0001, 0xFF80_0000, 0xFFC1_2345]),
        "f64": floats(pa.float64(), [1 << 63, 0x7FF8_0000_0000_0001, 0xFFF0_0000_0000_0000, 0xFFF8_1234_5678_9ABC]),
        "blob": pa.array([b"", b"\0\xff", None, b"x" * 5_000]),
        "fixed": pa.array([b"abc", b"\0\0\0", None, b"\xff\xff\xff"], pa.binary(3)),
        "d32": ticks(pa.date32(), *i32),
        "d64": ticks(pa.date64(), -day * 1_000, day * 1_000),
        "t32s": ticks(pa.time32("s"), 0, day - 1),
        "t32ms": ticks(pa.time32("ms"), 0, day * 1_000 - 1),
        "t64us": ticks(pa.time64("us"), 0, day * 1_000_000 - 1),
        "t64ns": ticks(pa.time64("ns"), 0, day * 1_000_000_000 - 1),
        "ts_s": ticks(pa.timestamp("s"), -(2**63) // 1_000 + 1, (2**63) // 1_000),
        "ts_ms": ticks(pa.timestamp("ms", "Europe/Paris"), *i64),
        "ts_us": ticks(pa.timestamp("us"), *i64),
        "ts_ns": ticks(pa.timestamp("ns", "UTC"), *i64),
        **{f"dur_{unit}": ticks(pa.duration(unit), *i64) for unit in ("s", "ms", "us", "ns")},
        "price": pa.array([Decimal("-0.01"), Decimal(10**36 - 1), None, Decimal(0)], pa.decimal128(38, 2)),
        "whole": pa.array([Decimal(-(10**38) + 1), Decimal(128), None, Decimal(-128)], pa.decimal128(38, 0)),
        "list": pa.array([[], [1.5, -0.0], None, [float("inf")]], pa.list_(pa.float64())),
        "lists": pa.array([[[]], [["a", ""], []], None, []], pa.list_(pa.list_(pa.string()))),
        "struct": pa.array([nested, hollow, None, nested], outer),
        "structs": pa.array([[nested, hollow], [], None, [nested]], pa.list_(outer)),
        "dict": pa.array(["a", "b", None, "a"]).dictionary_encode(),
    }  # fmt: skip
    return pa.table(columns)


def test_every_type_comes_back_bit_for_bit(url: str) -> None:
    table = all_types()
    plain = table.set_column(table.num_columns - 1, "dict", table["dict"].cast(pa.string()))
    with ct.open(url) as archive:
        ds = archive.create(
            "types", schema=table.schema, cell=ct.single(), time="t", id=["id"], window="1d", layout="rows"
        )
        ds.write(table.slice(0, 2), batch="first")
        ds.write(table.take([2, 3]), batch="second")
        assert_same_rows(ds.read().to_arrow(), plain, ["id"])
        assert ds.consolidate().chunks_after == 1
        assert_same_rows(ds.read().to_arrow(), plain, ["id"])
        assert ds.verify().ok
        # Rows without ids of their own know their place in their batch.
        ungrouped = archive.create("ungrouped", schema=SCHEMA, cell=ct.single(), time="t", layout="rows")
        for _ in range(2):
            ungrouped.write(records(range(10), 1))
        assert ungrouped.consolidate().tiles > 0
        assert ungrouped.count() == 20


def test_other_tools_read_native_columns(url: str, cql: Callable[..., pa.Table]) -> None:
    with ct.open(url, superseded_kept_s=0) as archive:
        ds = create(archive, "rows")
        rows = records(range(300), 1)
        ds.write(rows, batch="one")
        ds.write(records(range(20), 2), batch="two")
        assert (ds.layout, archive["visits"].layout) == ("rows", "rows")
        tables = cql("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", url_keyspace(url))
        assert sorted(n for n in tables["table_name"].to_pylist() if n.startswith("r_")) == ["r_visits_0", "r_visits_1"]
        found = pa.concat_tables(
            cql(f'SELECT id, place, t, revision, mag, note, pair, ct_cell, ct_batch FROM "{name}"')
            for name in ("r_visits_0", "r_visits_1")
        )
        assert found.num_rows == 320
        assert found.schema.field("mag").type == pa.float64()
        assert found["ct_cell"].to_pylist() == found["place"].to_pylist()
        first = found.filter(pc.equal(found["ct_batch"], _batch_of(found, 299)))
        native = first.select(SCHEMA.names).set_column(2, "t", first["t"].cast(pa.timestamp("us", "UTC")))
        assert_same_rows(native.cast(SCHEMA), rows, ["id"])
        # One place at one time is one partition.
        day = cql('SELECT id FROM "r_visits_0" WHERE ct_cell = 3 AND ct_window = 1')
        start, end = (dt.datetime(1970, 1, d, tzinfo=dt.UTC) for d in (2, 3))
        assert sorted(day["id"].to_pylist()) == sorted(
            ds.read(keys=[3], start=start, end=end, history=True).to_arrow()["id"].to_pylist()
        )
        ds.remove_batch("two")
        assert sum(cql(f'SELECT id FROM "{name}"').num_rows for name in ("r_visits_0", "r_visits_1")) == 300


def _batch_of(table: pa.Table, id_: int) -> bytes:
    return bytes(table.filter(pc.equal(table["id"], id_))["ct_batch"][0].as_py())


def url_keyspace(url: str) -> str:
    return url.rsplit("/", 1)[1].split("?")[0]


def test_what_layout_rows_cannot_keep_is_refused_in_one_sentence(url: str, tmp_path: Path) -> None:
    for place in (tmp_path / "a.db", "memory:"):
        with ct.open(place) as file, pytest.raises(ct.InvalidInputError, match="cluster") as refused:
            create(file, "rows")
        assert refused.value.kind == "invalid-definition"
    with ct.open(url) as archive:
        with pytest.raises(ct.InvalidInputError, match='"chunks" or "rows"'):
            create(archive, "columns")
        with pytest.raises(ct.InvalidInputError, match=r"partition_cells is 4: .* with layout rows 1"):
            archive.create("no", schema=SCHEMA, cell=ct.key("place"), time="t", layout="rows", partition_cells=4)
        for name, kind in [("ct_mag", pa.float64()), ("tens", pa.decimal128(20, -2))]:
            with pytest.raises(ct.InvalidInputError, match=name):
                archive.create(
                    "no", schema=SCHEMA.append(pa.field(name, kind)), cell=ct.single(), time="t", layout="rows"
                )
        ds = create(archive, "rows")
        with pytest.raises(ct.InvalidInputError, match="ct_more"):
            ds.add_columns({"ct_more": "int32"})
        hole = records(range(1, 2), 1).set_column(6, "pair", pa.array([[1.0, None]], pa.list_(pa.float32())))
        with pytest.raises(ct.InvalidInputError, match='"pair": a list has a null element'):
            ds.write(hole, batch="hole")
        assert (ds.count(), ds.batches()) == (0, [])
        with pytest.raises(ct.DatasetExistsError, match="layout"):
            archive.create(
                "visits", schema=SCHEMA, cell=ct.key("place"), time="t", window="1d", slice=3, id=["id"],
                merge="latest", version="revision", exist_ok=True,
            )  # fmt: skip


@pytest.mark.slow
def test_columns_are_added_while_others_write_with_the_old_ones(url: str, cql: Callable[..., pa.Table]) -> None:
    with ct.open(url) as archive, ct.open(url) as other:
        ds = create(archive, "rows")
        ds.write(records(range(50), 1), batch="old")
        behind = other["visits"]
        ds.add_columns({"flux": "float64", "band": "utf8"}, defaults={"band": "r"})
        new = records(range(50, 80), 1)
        new = new.append_column("flux", new["id"].cast(pa.float64())).append_column("band", new["note"])
        failures: list[BaseException] = []

        def write(dataset: ct.Dataset, table: pa.Table, batch: str) -> None:
            try:
                dataset.write(table, batch=batch)
            except BaseException as error:
                failures.append(error)

        # Two that find the columns missing at once, and one that knows nothing of them.
        third = other["visits"]
        jobs = [(ds, new, "new"), (third, new.slice(0, 5), "also"), (behind, records(range(80, 99), 1), "behind")]
        threads = [threading.Thread(target=write, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert failures == []
        for dataset in (ds, behind, other["visits"]):
            got = dataset.read(columns=["id", "flux", "band"]).to_arrow().sort_by("id")
            assert got.num_rows == 99
            assert got["flux"].to_pylist() == [float(i) if 50 <= i < 80 else None for i in range(99)]
            assert got["band"][0].as_py() == got["band"][98].as_py() == "r"
        assert ds.consolidate().tiles > 0
        assert ds.count() == 99
        assert ds.verify().ok
        assert cql('SELECT flux FROM "r_visits_0"').num_rows > 0


@pytest.mark.slow
def test_two_consolidations_and_a_scan_at_once_lose_and_double_nothing(url: str) -> None:
    with ct.open(url) as archive:
        ds = create(archive, "rows", "append", None)
        for batch in range(12):
            ds.write(records(range(batch * 40, batch * 40 + 40), 1), batch=f"b{batch}")
        stop, failures = threading.Event(), []

        def scan() -> None:
            reads = 0
            with ct.open(url, read_only=True) as mine:
                while not stop.is_set() or reads < 2:
                    got = mine["visits"].read(columns=["id"]).to_arrow()["id"].to_pylist()
                    reads += 1
                    if sorted(got)[:480] != list(range(480)):
                        failures.append(sorted(got)[:480])
                        return

        def consolidate() -> None:
            try:
                with ct.open(url) as mine:
                    for _ in range(2):
                        mine["visits"].consolidate()
            except BaseException as error:
                failures.append(error)

        scanner = threading.Thread(target=scan)
        workers = [threading.Thread(target=consolidate) for _ in range(2)]
        for thread in (scanner, *workers):
            thread.start()
        ds.write(records(range(480, 520), 1), batch="late")
        for thread in workers:
            thread.join(240)
        stop.set()
        scanner.join(120)
        assert failures == []
        assert ds.consolidate().tiles >= 0
        tuned = ds.tuned("ALL")
        assert sorted(tuned.read(columns=["id"]).to_arrow()["id"].to_pylist()) == list(range(520))
        report = tuned.verify()
        assert (report.ok, report.rows) == (True, 520)
        assert ds.info().tile_chunks.max <= 2


@pytest.mark.slow
def test_rows_that_others_change_or_delete_are_damage_that_is_named(url: str, cql: Callable[..., pa.Table]) -> None:
    with ct.open(url) as archive:
        ds = create(archive, "rows", "append", None)
        ds.write(records(range(100), 1), batch="one")
        table = '"r_visits_0"'
        found = cql(f"SELECT ct_cell, ct_window, ct_chunk, ct_row, id, mag FROM {table}")
        first, second = (found.filter(pc.equal(found["ct_row"], 1)).slice(n, 1).to_pylist()[0] for n in (0, 1))
        where = "ct_cell = ? AND ct_window = ? AND ct_chunk = ? AND ct_row = ?"
        key = [first[name] for name in ("ct_cell", "ct_window", "ct_chunk", "ct_row")]
        cql(f"UPDATE {table} SET revision = 77 WHERE {where}", *key)
        key = [second[name] for name in ("ct_cell", "ct_window", "ct_chunk", "ct_row")]
        cql(f"DELETE FROM {table} WHERE {where}", *key)
        with pytest.raises(ct.DamagedError, match=r"chunk [0-9a-f]{32} of dataset visits, cell"):
            ds.read().to_arrow()
        report = ds.verify()
        assert sorted(d.chunk for d in report.damage) == sorted(row["ct_chunk"].hex() for row in (first, second))
        # What is whole is still read, and the damage is mended as the message says.
        whole = next(n for n in range(5) if n not in (first["ct_cell"], second["ct_cell"]))
        assert ds.read(keys=[whole]).to_arrow().num_rows == 20
        ds.write(records(range(100), 1).slice(0, 99), batch="one", replace=True)
        ds.write(records(range(100), 1), batch="one", replace=True)
        assert ds.count() == 100
        assert ds.verify().ok


@pytest.mark.slow
def test_a_copy_takes_rows_to_a_cluster_and_to_a_file(url: str, tmp_path: Path) -> None:
    with ct.open(url) as archive, ct.open(url.replace("?", "_2?")) as cluster, ct.open(tmp_path / "a.db") as file:
        ds = create(archive, "rows")
        for batch in range(4):
            ds.write(records(range(batch * 30, batch * 30 + 50), batch + 1), batch=f"b{batch}")
        ds.consolidate()
        ds.add_columns({"more": "int32"})
        for target, layout in ((cluster, "rows"), (file, "chunks")):
            ct.copy(archive, target)
            assert target["visits"].layout == layout
            assert _same_bits(target["visits"].read().to_arrow(), ds.read().to_arrow())
        late = records(range(100, 130), 9).append_column("more", pa.array([5] * 30, pa.int32()))
        ds.write(late, batch="late")
        for target in (cluster, file):
            assert ct.copy(archive, target).ok
            assert _same_bits(target["visits"].read().to_arrow(), ds.read().to_arrow())


def test_the_command_line_makes_and_shows_the_layout(url: str, tmp_path: Path) -> None:
    definition = ["--schema", "id:int64,t:timestamp[us]", "--single", "--time", "t", "--layout", "rows"]
    run_cli("create", url, "points", *definition)
    assert json.loads(run_cli("info", url, "points", "--json"))["layout"] == "rows"
    assert "layout rows" in run_cli("info", url, "points")
    run_cli("create", tmp_path / "a.db", "points", *definition, code=2)
