"""An archive on a real cluster: the engine keeps the contract of every store, and users get what a file gives."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import support_visits
import support_workers
from support_lab import Releases, keyspace_of
from support_visits import Visit

import chronotile as ct
from chronotile_tools import lab

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 16
WORKERS = 4


@pytest.fixture
def url(shared_cluster: lab.Cluster, request: pytest.FixtureRequest) -> str:
    """A keyspace of its own on the shared cluster."""
    return f"{shared_cluster.url(keyspace_of(request))}?catalog_buckets=16"


def suite_command() -> list[str]:
    """The command that runs the tests of the engine's crate: the program that `cargo test` of all crates has built, or,
    where there is none or an old one, cargo, which compiles what that would."""
    folder = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "deps"
    programs = [path for path in folder.glob("cassandra-*") if not path.suffix]
    newest = max(programs, key=lambda path: path.stat().st_mtime, default=None)
    sources = [path.stat().st_mtime for path in (ROOT / "crates").rglob("*.rs")]
    if newest is not None and newest.stat().st_mtime > max(sources):
        return [str(newest), "--nocapture"]
    if shutil.which("cargo") is None:
        pytest.skip("THE ENGINE'S CONFORMANCE SUITE IS NOT RUN: cargo is absent")
    return ["cargo", "test", "--workspace", "--test", "cassandra", "--", "--nocapture"]


def run_claims(cluster: lab.Cluster, module: str, only: str = "") -> str:
    """What a module of the engine's tests prints, on a cluster: all of it, or claims with this in their names."""
    environment = os.environ | {
        "CHRONOTILE_TEST_CASSANDRA": ",".join(cluster.contact_points),
        "CHRONOTILE_TEST_CLAIM": only,
    }
    command = [*suite_command(), f"{module}::every_claim" if only else f"{module}::"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1_500, check=False
    )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-3_000:]
    assert "SKIPPED" not in done.stderr
    return done.stdout


# Each claim makes and drops tables, which takes three nodes five times as long as one.
@pytest.mark.parametrize("nodes", ["single_node", pytest.param("shared_cluster", marks=pytest.mark.slow)])
def test_the_engine_keeps_the_contract_of_every_store(
    lab_home: Path, nodes: str, request: pytest.FixtureRequest
) -> None:
    claims = run_claims(request.getfixturevalue(nodes), "conformance")
    assert "claim a_scan_beside_replacements_returns_no_chunk_twice_or_half" in claims


def test_a_read_asks_for_no_more_replicas_than_it_was_told(
    single_node: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    """As while a cluster grows: a keyspace has three copies, and the two nodes to come are not there yet."""
    keyspace = keyspace_of(request)
    url = f"{single_node.url(keyspace)}?catalog_buckets=4"
    with ct.open(f"{url}&timeout_s=5") as archive:
        schema = {"id": "int64", "t": "timestamp[ms]"}
        values = archive.create("values", schema=schema, cell=ct.single(), time="t", window="30d", id="id")
        values.write({"id": [1, 2], "t": ["2026-03-01", "2026-03-02"]}, batch="first")
        with single_node.nodes[0].connect(timeout_s=60) as connection:
            copies = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
            connection.run(f"ALTER KEYSPACE {keyspace} WITH replication = {copies}")
        began = time.monotonic()
        at_one = values.tuned("ONE")
        assert at_one.count() == 2
        assert at_one.read().to_arrow()["id"].to_pylist() == [1, 2]
        assert at_one.batch("first") is not None
        assert time.monotonic() - began < 10
        with pytest.raises(ct.UnavailableError, match="QUORUM needs 2 replicas and 1"):
            values.tuned("QUORUM", timeout_s=1).count()
        # Nothing is written where the definition, which is looked at every ten seconds, cannot be read.
        with pytest.raises((ct.OutcomeUnknownError, ct.UnavailableError), match="QUORUM needs 2 replicas and 1"):
            values.tuned("QUORUM", timeout_s=1).write({"id": [3], "t": ["2026-03-03"]}, batch="second")
    # Somebody who knows nothing of the archive yet, and writes to slices that are there.
    with ct.open(f"{url}&consistency=ONE&timeout_s=5", create=False) as archive:
        values = archive["values"]
        assert values.count() == 2
        assert values.write({"id": [4], "t": ["2026-03-04"]}, batch="third").stored
        assert values.count() == 3
        with pytest.raises(ct.UnavailableError, match="QUORUM needs 2 replicas and 1"):
            values.write({"id": [5], "t": ["2027-09-01"]}, batch="fourth")


def test_what_many_do_at_once_is_decided_by_three_nodes(shared_cluster: lab.Cluster) -> None:
    claims = run_claims(shared_cluster, "conformance", "many")
    assert "claim of_many_that_expect_absence_one_wins" in claims


@pytest.mark.slow
def test_layout_rows_keeps_the_contract_of_every_store(shared_cluster: lab.Cluster) -> None:
    claims = run_claims(shared_cluster, "rows")
    assert "claim a_scan_beside_replacements_returns_no_chunk_twice_or_half" in claims


def tables_of(cluster: lab.Cluster, keyspace: str) -> list[str]:
    with cluster.nodes[0].connect() as connection:
        rows = connection.run(f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'").rows
        return sorted(row[0] for row in rows)


def test_sixteen_processes_on_an_empty_keyspace_end_with_one_correct_schema(
    shared_cluster: lab.Cluster, url: str
) -> None:
    support_workers.run(support_workers.begin, url, PROCESSES)
    keyspace = url.rsplit("/", 1)[1].split("?")[0]
    with ct.open(url, create=False) as archive:
        ds = archive["visits"]
        assert sorted(b.key or "" for b in ds.batches()) == sorted(Visit(n, 0).key for n in range(PROCESSES))
        assert ds.count() == PROCESSES * Visit(0, 0).rows
        slices = len(ds.info().slices)
    tables = tables_of(shared_cluster, keyspace)
    assert [name for name in tables if not name.startswith("c_visits")] == ["catalog", "leases", "meta", "slices"]
    assert len(tables) == 4 + slices
    # Two tables of one name would leave two folders; and all nodes have one version of the schema.
    for node in shared_cluster.nodes:
        folders = [folder.name.rsplit("-", 1)[0] for folder in (node.folder / "data" / "data" / keyspace).iterdir()]
        assert sorted(folders) == tables
    described = shared_cluster.nodetool(1, "describecluster")
    versions = described.split("Schema versions:")[1].split("Stats for all nodes")[0]
    assert versions.count("[") == 1, described


def test_processes_write_and_read_at_once_and_lose_and_double_nothing(url: str) -> None:
    with ct.open(url) as archive:
        support_visits.create(archive)
    support_workers.run(support_workers.work, url, WORKERS)
    own, shared = support_workers.visits_on(url)
    visits = [Visit(group, index) for group in range(WORKERS) for index in range(own)]
    visits += [Visit(support_workers.SHARED_GROUP, index) for index in range(shared)]
    with ct.open(url, create=False, read_only=True) as archive:
        ds = archive["visits"]
        got = ds.tuned("ALL").read(columns=["id"]).to_arrow()["id"].to_pylist()
        assert sorted(got) == sorted(record for visit in visits for record in visit.ids)
        report = ds.verify()
        assert report.ok
        assert (report.batches, report.batches_unfinished) == (len(visits), 0)


def changes(
    archive: ct.Archive, rows: pa.Table, layout: str = "chunks", partition_cells: int = 1
) -> Iterator[tuple[str, Any]]:
    """Does what users do, and tells what they see after each step."""
    ds = archive.create(
        "detections", schema=rows.schema, cell=ct.sky("ra", "dec"), time="jd", window="30d", slice="360d",
        id=["candid"], layout=layout, partition_cells=partition_cells,
    )  # fmt: skip

    def seen(dataset: ct.Dataset = ds) -> list[dict[str, Any]]:
        return dataset.read(region=ct.circle(150, 2, 0.8), start=2461050.0).to_arrow().sort_by("candid").to_pylist()

    for start in range(0, rows.num_rows, 100):
        ds.write(rows.slice(start, 100), batch=f"visit-{start // 100}")
    yield "written", seen()
    assert not ds.write(rows.slice(0, 100), batch="visit-0").stored
    with pytest.raises(ct.BatchConflictError):
        ds.write(rows.slice(0, 50), batch="visit-0")
    yield "consolidated", (ds.consolidate().tiles, seen())
    ds.write(rows.slice(10, 70), batch="visit-0", replace=True)
    yield "replaced", (ds.count(), seen())
    yield "removed", (ds.remove_batch("visit-2"), ds.count(), seen())
    ds.write(rows.slice(200, 100), batch="visit-2")
    yield "written again", (ds.count(), seen())
    yield "few columns", ds.read(columns=["mag"], where=("mag", ">", 19.0)).to_arrow().num_rows
    yield "latest", ds.latest(by=["band"]).to_arrow().num_rows
    ds.add_columns({"weight": "float32", "kind": "utf8"}, defaults={"kind": "new"})
    extra = {"weight": pa.array([0.5] * 100, pa.float32()), "kind": pa.array(["old"] * 100)}
    ds.write(pa.table(dict(zip(rows.column_names, rows.slice(100, 100).columns, strict=True)) | extra), batch="more")
    yield "widened", ds.read(columns=["candid", "weight", "kind"]).to_arrow().sort_by("candid").to_pylist()
    yield "ids", sorted(ds.read(ids=[5, 250, 499]).to_arrow()["candid"].to_pylist())
    report = ds.verify()
    yield "verified", (report.ok, report.rows, report.batches)
    yield "retired", (len(ds.retire(before=3000000.0)), ds.count())


@pytest.mark.parametrize(
    ("nodes", "layout", "partition_cells"),
    [("shared_cluster", "chunks", 1), ("single_node", "chunks", 16), ("single_node", "rows", 1)],
)
def test_a_cluster_shows_users_what_a_file_shows(
    nodes: str,
    layout: str,
    partition_cells: int,
    sqlite: ct.Archive,
    detections: pa.Table,
    request: pytest.FixtureRequest,
    lab_home: Path,
) -> None:
    cluster: lab.Cluster = request.getfixturevalue(nodes)
    url = f"{cluster.url(keyspace_of(request))}?catalog_buckets=16"
    with ct.open(url) as archive:
        assert archive.engine == "cassandra"
        seen = changes(archive, detections, layout, partition_cells)
        for ours, theirs in zip(seen, changes(sqlite, detections), strict=True):
            assert ours == theirs
            if ours[0] == "written":
                found = archive["detections"].info()
                partitions = partitions_of(cluster, url)
        assert archive["detections"].partition_cells == partition_cells
    tiles = sum(part.tiles for part in found.slices)
    assert (partitions < tiles / 2) == (partition_cells > 1), "cells that lie together share a partition"


def partitions_of(cluster: lab.Cluster, url: str) -> int:
    """Partitions in the tables of an archive's slices."""
    keyspace = url.rsplit("/", 1)[1].split("?")[0]
    total = 0
    with cluster.nodes[0].connect() as connection:
        for table in tables_of(cluster, keyspace):
            if table.startswith(("c_", "r_")):
                columns = f"keyspace_name = '{keyspace}' AND table_name = '{table}'"
                rows = connection.run(f"SELECT column_name, kind FROM system_schema.columns WHERE {columns}").rows
                (key,) = [name for name, kind in rows if kind == "partition_key"]
                total += len(connection.run(f"SELECT DISTINCT {key} FROM {keyspace}.{table}").rows)
    return total


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.1", "4.0"])
def test_older_releases_show_the_same(
    version: str, one_node: Releases, sqlite: ct.Archive, detections: pa.Table
) -> None:
    expected = list(changes(sqlite, detections))
    with one_node(version) as cluster:
        for layout in ("chunks", "rows"):
            with ct.open(f"{cluster.url(f'old_{layout}')}?catalog_buckets=4") as archive:
                for ours, theirs in zip(changes(archive, detections, layout), expected, strict=True):
                    assert ours == theirs


def test_each_call_may_have_its_own_consistency_and_time(url: str, detections: pa.Table, sqlite: ct.Archive) -> None:
    with ct.open(f"{url}&consistency=ONE") as archive:
        ds = archive.create("d", schema=detections.schema, cell=ct.sky("ra", "dec"), time="jd", id=["candid"])
        ds.tuned("ALL").write(detections, batch="all")
        ds.tuned(write_consistency="ANY").write(detections.slice(0, 10), batch="any")
        for level in ("ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"):
            assert ds.tuned(level, timeout_s=20).count() == detections.num_rows, level
        with pytest.raises(ct.InvalidInputError, match="not a consistency level"):
            ds.tuned("MOST")
        with pytest.raises(ct.InvalidInputError, match="writes only"):
            ds.tuned(read_consistency="ANY")
        with pytest.raises(ct.InvalidInputError, match="from 1 to 3600"):
            ds.tuned(timeout_s=0)
    other = sqlite.create("d", schema=detections.schema, cell=ct.sky("ra", "dec"), time="jd")
    with pytest.raises(ct.InvalidInputError, match="one copy"):
        other.tuned("ONE")


def test_a_column_that_one_adds_is_there_at_once_for_all_others(url: str, detections: pa.Table) -> None:
    with ct.open(url) as one, ct.open(url) as other:
        ds = one.create("d", schema=detections.schema, cell=ct.key("candid"), time=ct.jd("jd"), id=["candid"])
        ds.write(detections.slice(0, 3), batch="a")
        seen = other["d"]
        for turn in range(3):
            assert seen.read().to_arrow().column_names == ds.schema.names
            ds.add_columns({f"more_{turn}": "int32"})


@pytest.mark.parametrize("reached", [True, False])
def test_the_lease_of_a_keeper_whose_work_is_done_holds_up_nobody(
    shared_cluster: lab.Cluster, url: str, reached: bool
) -> None:
    """As it lies there where a keeper's try to take it was slow, and landed when the keeper had gone on."""
    keyspace, lease_s = url.rsplit("/", 1)[1].split("?")[0], 20
    with ct.open(url) as archive:
        schema = {"id": "int64", "time": "timestamp[us]"}
        ds = archive.create("beats", schema=schema, cell=ct.single(), time="time", window="1d", slice=1, id="id")
        ds.write({"id": [1], "time": [dt.datetime(2026, 1, 1)]})
        (made,) = (part.slice for part in ds.info().slices)
        holder = f"somebody ready beats {made if reached else made + 100}"
        with shared_cluster.nodes[0].connect() as connection:
            connection.run(
                f"INSERT INTO {keyspace}.leases (name, holder) VALUES ('schema', '{holder}') IF NOT EXISTS "
                f"USING TTL {lease_s}",
                consistency="QUORUM",
            )
        began = time.monotonic()
        ds.write({"id": [2], "time": [dt.datetime(2026, 1, 2)]})
        waited = time.monotonic() - began
        assert ds.count() == 2
    assert (waited < lease_s - 2) == reached, f"{waited:.1f} s"


def test_a_partition_that_outgrows_its_limit_is_counted_and_shown(url: str, chronotile: Callable[..., Any]) -> None:
    rng = np.random.default_rng(4)
    size = 200_000
    with ct.open(url) as archive:
        schema = {"id": "int64", "time": "timestamp[us]", "noise": "float64"}
        ds = archive.create("wide", schema=schema, cell=ct.single(), time="time", window="1d", id=["id"])
        for part in range(8):
            columns = {"id": np.arange(size) + part * size, "noise": rng.normal(size=size)}
            ds.write(columns | {"time": np.full(size, 10**15).astype("datetime64[us]")}, batch=str(part))
        [part] = ds.info().slices
    assert part.cells_oversized == 1
    assert part.cell_bytes_max > 10 << 20
    shown = chronotile("info", url, "wide")
    assert "larger than 10 MiB" in shown.stdout + shown.stderr


def test_datasets_that_share_slices_are_consolidated_together(url: str, sqlite: ct.Archive) -> None:
    def sharing(archive: ct.Archive) -> ct.Group:
        for name in ("sources", "forced"):
            archive.create(
                name, schema={"id": "int64", "mjd": "float64", "place": "int64"}, time=ct.mjd("mjd"), window="5d",
                cell=ct.key("place"), id=["id"], partition_cells=4, group="survey",
                slices_of=None if name == "sources" else "sources",
            )  # fmt: skip
        group = archive.group("survey")
        for part in range(5):
            ids = np.arange(120) + 100 * part
            given = {"id": ids, "mjd": 61_000.0 + ids % 37 % 11, "place": ids % 8}
            group.write({"sources": given, "forced": {name: values[:90] for name, values in given.items()}})
        return group

    def counted(reports: dict[str, Any]) -> dict[str, tuple[int, int, int]]:
        return {name: (r.tiles, r.chunks_before, r.chunks_after) for name, r in reports.items()}

    with ct.open(url) as archive:
        ours, theirs = sharing(archive), sharing(sqlite)
        before = {name: rows.sort_by("id") for name, rows in ours.read({"sources": {}, "forced": {}}).items()}
        planned = ours.consolidate(dry_run=True)
        assert counted(planned) == counted(theirs.consolidate(dry_run=True))
        assert counted(planned) == counted({name: ours[name].consolidate(dry_run=True) for name in ours})
        assert all(report.tiles > 8 for report in planned.values())
        done = ours.consolidate(shard=(1, 2)), ours.consolidate(shard=(2, 2))
        assert {name: sum(part[name].tiles for part in done) for name in ours} == {
            name: report.tiles for name, report in planned.items()
        }
        assert all(report.tiles == 0 for report in ours.consolidate(dry_run=True).values())
        theirs.consolidate()
        chunks = [{name: sum(s.chunks for s in i.slices) for name, i in g.info().items()} for g in (ours, theirs)]
        assert chunks[0] == chunks[1]
        after = {name: rows.sort_by("id") for name, rows in ours.read({"sources": {}, "forced": {}}).items()}
        assert after == before


def test_what_is_no_archive_is_refused_and_left_alone(shared_cluster: lab.Cluster, url: str) -> None:
    with pytest.raises(ct.ArchiveNotFoundError):
        ct.open(url, create=False)
    with pytest.raises(ct.ArchiveNotFoundError):
        ct.open(url, read_only=True)
    with ct.open(url):
        pass
    with ct.open(url, read_only=True) as archive, pytest.raises(ct.ReadOnlyError):
        archive.create("d", schema={"t": "timestamp[us]"}, cell=ct.single(), time="t")
    other = "somebody_elses"
    with shared_cluster.nodes[0].connect() as connection:
        connection.run(f"CREATE KEYSPACE {other} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 1}}")
        connection.run(f"CREATE TABLE {other}.users (id int PRIMARY KEY)")
    with pytest.raises(ct.NotAnArchiveError, match="name another keyspace"):
        ct.open(shared_cluster.url(other))
    assert tables_of(shared_cluster, other) == ["users"]
    with pytest.raises(ct.ChronotileError, match="has 3 nodes"):
        ct.open(f"{shared_cluster.url('too_many')}?replication=dc1:4")
    with pytest.raises(ct.ChronotileError, match="there are: dc1"):
        ct.open(f"{shared_cluster.url('nowhere')}?replication=mars:1")


def test_no_node_is_an_error_that_names_the_contact_points() -> None:
    with pytest.raises(ct.UnavailableError, match=r"127\.0\.0\.1:1"):
        ct.open("cassandra://127.0.0.1:1/k")


# ---------------------------------------------------------------- security


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def test_secure_clusters_let_in_who_may_and_tell_the_others_why(secure_cluster: lab.Cluster, tmp_path: Path) -> None:
    files, login = secure_cluster.tls, secure_cluster.credentials
    assert files is not None
    assert login is not None
    user, password = login
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text(password + "\n")
    wrong.write_text("n0tth3pa55w0rd")
    hosts = secure_cluster.url("safe").removeprefix("cassandra://")
    tls = f"ca={files.ca}&cert={files.client_certificate}&key={files.client_key}&tls_names=false"

    with ct.open(f"cassandra://{user}@{hosts}?{tls}&password_file={right}&replication=1") as archive:
        ds = archive.create("d", schema={"id": "int64", "t": "timestamp[us]"}, cell=ct.single(), time="t", id=["id"])
        ds.write({"id": [1, 2], "t": [0, 1]}, batch="b")
        assert ds.count() == 2
        assert password not in repr(archive) + archive.url
    variables = {"CHRONOTILE_CASSANDRA_USER": user, "CHRONOTILE_CASSANDRA_PASSWORD": password}
    with environment(**variables), ct.open(f"cassandra://{hosts}?{tls}") as archive:
        assert archive["d"].count() == 2

    with pytest.raises(ct.AccessDeniedError, match=f"login refused for {user}") as denied:
        ct.open(f"cassandra://{user}@{hosts}?{tls}&password_file={wrong}")
    assert "n0tth3pa55w0rd" not in str(denied.value)
    with pytest.raises(ct.AccessDeniedError, match="asks for user and password"):
        ct.open(f"cassandra://{hosts}?{tls}")
    stranger = lab.make_authority(tmp_path / "stranger", mutual=True)
    with pytest.raises(ct.AccessDeniedError, match="certificate was not accepted"):
        ct.open(f"cassandra://{user}@{hosts}?ca={stranger.ca}&password_file={right}")
    with pytest.raises(ct.InvalidInputError, match="does not belong in a URL"):
        ct.open(f"cassandra://{user}:secret@{hosts}")
    with pytest.raises(ct.ChronotileError, match="not a file"):
        ct.open(f"cassandra://{user}@{hosts}?ca={tmp_path / 'none.pem'}&password_file={right}")

    guest = tmp_path / "guest"
    guest.write_text("gu3st")
    with secure_cluster.nodes[0].connect() as connection:
        connection.run("CREATE ROLE guest WITH PASSWORD = 'gu3st' AND LOGIN = true")
        connection.run("GRANT SELECT ON KEYSPACE safe TO guest")
    with ct.open(f"cassandra://guest@{hosts}?{tls}&password_file={guest}", create=False) as archive:
        ds = archive["d"]
        assert ds.count() == 2
        with pytest.raises(ct.AccessDeniedError, match="MODIFY"):
            ds.write({"id": [3], "t": [2]}, batch="c")
