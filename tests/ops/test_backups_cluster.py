"""Backups of real nodes under load, and what comes back: in place, on fewer nodes, in a restore test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import support_history
import support_lab
from support_faults import archive_on, check_all_done
from support_history import Batch, History, Load
from support_lab import Releases
from support_procedures import context, run_apart, run_cut_off

import chronotile as ct
from chronotile_tools import lab, ops
from chronotile_tools.ops.backups import manifests, rehearsing, schemas
from chronotile_tools.ops.backups.making import Backup
from chronotile_tools.ops.backups.restoring import STAGING, Restore
from chronotile_tools.ops.backups.signing import make_key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures import engine, plan, run
from chronotile_tools.ops.procedures.nodes import Row
from chronotile_tools.ops.procedures.reaching import AccessNodes

pytestmark = pytest.mark.timeout(1200)
KEYSPACES = ["faults_guarded", "field", "single"]
ROWS = 500
FIELD = (
    "CREATE KEYSPACE field WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}",
    "CREATE TYPE field.place (x double, y double)",
    "CREATE TABLE field.rows (id int PRIMARY KEY, \"Text\" text, gone int, place frozen<place>) WITH comment = 'a; b'",
    "ALTER TABLE field.rows DROP gone",
    'CREATE INDEX by_text ON field.rows ("Text")',
    "CREATE TABLE field.counts (id int PRIMARY KEY, n counter)",
    "CREATE KEYSPACE single WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    "CREATE TABLE single.rows (id int PRIMARY KEY)",
)


@dataclass
class Source:
    """A cluster of three nodes that was backed up twice while clients wrote, and then restored in place."""

    store: Store
    history: History
    """Of the archive that was backed up."""
    begun: tuple[float, float]
    """When each backup began."""
    refused: str
    """Why a restore without leave to replace rows was refused."""
    bystanders: History
    """Of clients of another archive while this one was restored."""
    rows: list[tuple[str, ...]]
    """Of the other tables after the restoration in place."""
    seen: tuple[dict[str, int], int]
    """Rows of each batch after the restoration in place, and the number of those that are wrong."""
    left: list[str]
    """What the nodes keep of snapshots and fetched files."""


@pytest.fixture(scope="module")
def source(lab_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Source:
    support_lab.require_software()
    folder = tmp_path_factory.mktemp("backups")
    with lab.up("guarded", nodes=3, **support_lab.QUICK | {"heap": "450m"}) as cluster:
        return _made(cluster, folder)


def _made(cluster: lab.Cluster, folder: Path) -> Source:
    store, url = Store(str(folder / "store")), archive_on(cluster, "guarded")
    _fill(cluster)
    with Load(url, folder / "load", processes=2, day_s=25) as load:
        load.work(10)
        first = time.monotonic()
        work = Backup.of(context(cluster), store.url, KEYSPACES, "first", create=True)
        # Killed before the snapshot, before and within the sending, and before the manifest.
        run_cut_off(cluster, folder / "j1", work, [3, 4, 4, 4])
        load.work(3)
        second = time.monotonic()
        make_key(folder / "key")
        signed = Backup.of(context(cluster), store.url, KEYSPACES, "second", key_file=str(folder / "key"))
        run(signed, context(cluster), folder / "j2")
        load.work(3)
        history = load.stop()
    refused = str(plan(Restore.of(context(cluster), store.url, "second"), context(cluster)))
    _spoil(cluster, url)
    other = archive_on(cluster, "bystander")
    with Load(other, folder / "bystanders", processes=2, day_s=60) as load:
        work_back = Restore.of(context(cluster), store.url, "second", replace=True, key_file=str(folder / "key"))
        assert work_back.in_place
        run_cut_off(cluster, folder / "j3", work_back, [2, 4, 7, 5])
        bystanders = load.stop()
    left = [node.nodetool("listsnapshots") for node in cluster.nodes]
    left += [str(path) for node in cluster.nodes for path in (node.folder / "data/data" / STAGING).rglob("*.db")]
    with ct.open(url, create=False) as archive:
        seen = support_history.read(archive["history"].tuned("ALL", timeout_s=60))
    return Source(store, history, (first, second), refused, bystanders, _field_rows(cluster), seen, left)


def _fill(cluster: lab.Cluster) -> None:
    with cluster.nodes[0].connect(timeout_s=60) as connection:
        for statement in FIELD:
            connection.run(statement)
    _fill_rows(cluster)


def _fill_rows(cluster: lab.Cluster) -> None:
    with cluster.nodes[0].connect() as connection:
        for number in range(ROWS):
            connection.run(
                f"INSERT INTO field.rows (id, \"Text\", place) VALUES ({number}, 't{number % 7}', {{x: 1.5, y: 2}})",
                consistency="QUORUM",
            )
            connection.run(f"INSERT INTO single.rows (id) VALUES ({number})")
        for number in range(20):
            connection.run(f"UPDATE field.counts SET n = n + {number} WHERE id = {number % 5}", consistency="QUORUM")


def _spoil(cluster: lab.Cluster, url: str) -> None:
    """Rows and tables go, others come."""
    with cluster.nodes[1].connect(timeout_s=60) as connection:
        connection.run("TRUNCATE field.rows")
        connection.run("DROP KEYSPACE single")
        connection.run("DROP TABLE field.counts")
        connection.run("CREATE TABLE field.later (id int PRIMARY KEY)")
        connection.run("INSERT INTO field.rows (id, \"Text\") VALUES (1, 'later')", consistency="ALL")
        tables = connection.run(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'faults_guarded'"
        ).rows
        slices = sorted(name for (name,) in tables if name.startswith("c_"))
        connection.run(f"TRUNCATE faults_guarded.{slices[0]}")
        with ct.open(url, create=False) as archive:
            assert not archive["history"].verify().ok
        connection.run(f"DROP TABLE faults_guarded.{slices[-1]}")


def _field_rows(cluster: lab.Cluster) -> list[tuple[str, ...]]:
    with cluster.nodes[-1].connect(timeout_s=60) as connection:
        rows = connection.run('SELECT id, "Text", place FROM field.rows', consistency="ALL").rows
        rows += connection.run("SELECT id, n FROM field.counts", consistency="ALL").rows
        rows += connection.run("SELECT id FROM single.rows", consistency="ALL").rows
        indexed = connection.run("SELECT id FROM field.rows WHERE \"Text\" = 't3'").rows
        tables = connection.run("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'field'").rows
    return sorted(tuple(row) for row in [*rows, ["indexed", str(len(indexed))], *tables])


def expected_rows() -> list[tuple[str, ...]]:
    found = [(str(k), f"t{k % 7}", "{x: 1.5, y: 2.0}") for k in range(ROWS)]
    counts = [(str(k), str(sum(n for n in range(20) if n % 5 == k))) for k in range(5)]
    indexed = ("indexed", str(sum(k % 7 == 3 for k in range(ROWS))))
    return sorted([*found, *counts, *((str(k),) for k in range(ROWS)), indexed, ("counts",), ("rows",)])


def kept(cluster: lab.Cluster) -> int:
    """Partitions of the table of one copy on all nodes, as they estimate it."""
    output = [node.nodetool("tablestats", "single.rows") for node in cluster.nodes]
    return sum(int(text.partition("Number of partitions (estimate): ")[2].split()[0]) for text in output)


def check_batches(history: History, began: float, seen: dict[str, int], wrong: int) -> None:
    """All that was acknowledged before a backup began is whole, and nothing is there in part."""
    assert wrong == 0
    parts = {key: rows for key, rows in seen.items() if rows != len(Batch.of(key).ids)}
    assert not parts
    acknowledged = {o.batch for o in history.of("write") if o.outcome == "done" and o.end < began}
    assert len(acknowledged) > 10
    assert not acknowledged - seen.keys()
    assert not seen.keys() - history.outcomes().keys()


@pytest.mark.slow
def test_clients_at_quorum_see_no_failed_operation_while_a_backup_is_made(source: Source) -> None:
    check_all_done(source.history)
    assert len([o for o in source.history.operations if source.begun[0] < o.start]) > 20


@pytest.mark.slow
def test_a_second_backup_of_nodes_sends_new_files_only(source: Source) -> None:
    first, second = (manifests.load(source.store, name) for name in ("first", "second"))
    assert {part.host_id for part in first.parts} == {part.host_id for part in second.parts}
    of_field = [file for part in second.parts for file in part.files if file.keyspace == "field"]
    known = {file.key for part in first.parts for file in part.files}
    # Nothing was written to it in between; what a snapshot flushes is only the catalogs and slices in use.
    assert {file.key for file in of_field} <= known
    new = [file.key for part in second.parts for file in part.files if file.key not in known]
    # Nodes that send at the same time may send the same content twice.
    assert len(set(new)) <= second.sent_files <= len(new) < second.files
    assert not manifests.verify(source.store, "second")
    sent, whole = second.sent_bytes / 2**20, second.bytes / 2**20
    print(f"first {first.bytes / 2**20:.1f} MiB; second sent {sent:.1f} of {whole:.1f} MiB")


@pytest.mark.slow
def test_a_restore_in_place_brings_back_what_was(source: Source) -> None:
    assert "would be replaced: pass --replace" in source.refused
    assert source.rows == expected_rows()
    check_batches(source.history, source.begun[1], *source.seen)
    assert not [line for line in source.left if "first." in line or "second." in line or STAGING in line]


@pytest.mark.slow
def test_clients_of_other_keyspaces_see_no_failed_operation_while_one_is_restored(source: Source) -> None:
    check_all_done(source.bystanders)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "backup", "number"), [(1, "first", 0), (2, "second", 1)])
def test_a_backup_of_three_nodes_is_restored_into_fewer(
    source: Source, lab_home: Path, tmp_path: Path, nodes: int, backup: str, number: int
) -> None:
    with lab.up("smaller", nodes=nodes, **support_lab.QUICK | {"heap": "450m"}) as cluster:
        work = Restore.of(context(cluster), source.store.url, backup)
        assert not work.in_place
        assert f"3 copies in dc1 and gets {nodes} copies in dc1" in str(plan(work, context(cluster)))
        run_cut_off(cluster, tmp_path / "j", work, [2, 6])
        assert _field_rows(cluster) == expected_rows()
        # Each node got all files, and kept what it owns.
        assert kept(cluster) == pytest.approx(ROWS, rel=0.1)
        with ct.open(cluster.url("faults_guarded"), create=False) as archive:
            ds = archive["history"]
            assert ds.verify().ok
            check_batches(source.history, source.begun[number], *support_history.read(ds))
            # It is an archive like any other: writers go on.
            batch = Batch(9, 1, 0)
            assert ds.write(batch.columns(), batch=batch.key).stored


@pytest.mark.slow
def test_a_restore_test_passes_for_a_whole_backup_and_fails_for_a_damaged_one(source: Source, lab_home: Path) -> None:
    output: list[str] = []
    report = rehearsing.rehearse(source.store.url, "newest", ["field"], heap="300m", echo=output.append)
    assert (report.backup, report.rows) == ("second", {"field.rows": ROWS, "field.counts": 5})
    manifest = manifests.load(source.store, "first")
    file = max((f for part in manifest.parts for f in part.files if f.keyspace == "field"), key=lambda f: f.bytes)
    content = source.store.get(file.key)
    source.store.put(file.key, bytes([content[0] ^ 1]) + content[1:])
    try:
        with pytest.raises(ct.DamagedError, match=r"field\.\w+ nb-.* was changed in"):
            rehearsing.rehearse(source.store.url, "first", ["field"], heap="300m", echo=output.append)
    finally:
        source.store.put(file.key, content)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.0", "4.1"])
def test_older_releases_are_backed_up_and_restored(one_node: Releases, version: str, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    with one_node(version) as cluster:
        with cluster.nodes[0].connect(timeout_s=60) as connection:
            for statement in FIELD:
                connection.run(statement.replace("'dc1': 3", "'dc1': 1"))
        _fill_rows(cluster)
        given_up(cluster, store, tmp_path / "j0")
        run(Backup.of(context(cluster), store.url, KEYSPACES[1:], create=True), context(cluster), tmp_path / "j1")
        with cluster.nodes[0].connect(timeout_s=60) as connection:
            connection.run("TRUNCATE field.rows")
            connection.run("DROP TABLE field.counts")
        work = Restore.of(context(cluster), store.url, "newest", replace=True)
        assert work.in_place
        run(work, context(cluster), tmp_path / "j2")
        assert _field_rows(cluster) == expected_rows()


def given_up(cluster: lab.Cluster, store: Store, journals: Path) -> None:
    """A backup that is cut off once snapshots were taken, and given up: nothing of it stays."""
    work = Backup.of(context(cluster), store.url, KEYSPACES[1:], "never", create=True)
    assert run_apart(cluster, journals, work, 5).returncode == -9
    assert manifests.unfinished(store) == ["never"]
    assert "never.all" in cluster.nodes[0].nodetool("listsnapshots")
    assert engine.abandon(context(cluster), journals) is not None
    assert not manifests.unfinished(store)
    assert "never" not in cluster.nodes[0].nodetool("listsnapshots")


@pytest.fixture
def small(shared_cluster: lab.Cluster) -> Iterator[str]:
    """A keyspace with one table and a row."""
    with shared_cluster.nodes[0].connect() as connection:
        connection.run("CREATE KEYSPACE small WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
        connection.run("CREATE TABLE small.rows (id int PRIMARY KEY)")
        connection.run("INSERT INTO small.rows (id) VALUES (1)", consistency="ALL")
    yield "small"
    with shared_cluster.nodes[0].connect(timeout_s=60) as connection:
        connection.run("DROP KEYSPACE small")


class ConcurrentCreator(AccessNodes):
    """Nodes on which somebody makes one of these tables each time after their schema was described."""

    def __init__(self, cluster: lab.Cluster, names: list[str]) -> None:
        super().__init__(ops.for_lab(cluster.name))
        self.names = names

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        rows = super().query(address, statement, consistency=consistency, timeout_s=timeout_s)
        if statement.startswith("DESCRIBE") and self.names:
            super().query(address, f"CREATE TABLE small.{self.names.pop()} (id int PRIMARY KEY)", timeout_s=60)
        return rows


def test_a_schema_is_that_of_one_moment_while_tables_are_made(
    shared_cluster: lab.Cluster, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schemas.read(ConcurrentCreator(shared_cluster, ["one", "two"]), [small])
    names = {"rows", "one", "two"}
    assert {table["name"] for table in schema.tables} == {one["name"] for one in schema.statements} == names
    monkeypatch.setattr(schemas, "TRIES", 1)
    with pytest.raises(ct.BusyError, match="tables of small keep being created or changed: resume"):
        schemas.read(ConcurrentCreator(shared_cluster, ["three"]), [small])


def test_a_backup_is_made_and_what_cannot_be_is_refused(
    shared_cluster: lab.Cluster, small: str, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "store"))
    with pytest.raises(ct.InvalidInputError, match="is a system keyspace"):
        Backup.of(context(shared_cluster), store.url, ["system_auth"])
    with pytest.raises(ct.InvalidInputError, match="does not exist"):
        Backup.of(context(shared_cluster), store.url, ["nowhere"])
    (tmp_path / "file").write_text("")
    blocked = Backup.of(context(shared_cluster), str(tmp_path / "file" / "x"), [small])
    assert "refused  store: " in str(plan(blocked, context(shared_cluster)))
    # A store that is not there is refused unless it is to be made, and no plan makes it.
    absent = Backup.of(context(shared_cluster), store.url, [small])
    assert "mount its disk" in str(plan(absent, context(shared_cluster)))
    wanted = Backup.of(context(shared_cluster), store.url, [small], create=True)
    assert not plan(wanted, context(shared_cluster)).refused
    assert not (tmp_path / "store").exists()
    with pytest.raises(ct.InvalidInputError, match="mount its disk"):
        run(absent, context(shared_cluster), tmp_path / "j")
    assert not (tmp_path / "store").exists()
    run(wanted, context(shared_cluster), tmp_path / "j")
    (name,) = manifests.names(store)
    assert name.endswith("-shared")
    manifest = manifests.load(store, name)
    assert len(manifest.parts) == 3
    assert all(part.files for part in manifest.parts)
    with shared_cluster.nodes[0].connect(timeout_s=60) as connection:
        connection.run("DROP TABLE small.rows")
        connection.run("CREATE TABLE small.rows (id int PRIMARY KEY)")
        connection.run("INSERT INTO small.rows (id) VALUES (2)", consistency="ALL")
        connection.run("CREATE TABLE small.later (id int PRIMARY KEY)")
    in_the_way = str(plan(Restore.of(context(shared_cluster), store.url, name), context(shared_cluster)))
    assert "the rows of small.rows would be replaced: pass --replace" in in_the_way
    assert "small.later, which the backup does not have, would be dropped" in in_the_way
    key = f"backups/{name}/manifest.json"
    record = store.get_json(key)
    store.put_json(key, {**record, "release": "9.0.1"})
    newer = plan(Restore.of(context(shared_cluster), store.url, name), context(shared_cluster))
    assert "an older release can read neither its files nor its schema" in str(newer)
    more = {"keyspace": small, "type": "table", "name": "rows", "statement": "CREATE ROLE evil WITH SUPERUSER = true"}
    schema = {**record["schema"], "statements": [*record["schema"]["statements"], more]}
    store.put_json(key, {**record, "schema": schema})
    hostile = Restore.of(context(shared_cluster), store.url, name, replace=True)
    assert "contains a forbidden statement: 'CREATE ROLE evil" in str(plan(hostile, context(shared_cluster)))
    with pytest.raises(ct.InvalidInputError, match="contains a forbidden statement"):
        run(hostile, context(shared_cluster), tmp_path / "j")
    store.put_json(key, record)
    store.delete(max(store.sizes("files")))
    lacking = plan(Restore.of(context(shared_cluster), store.url, name), context(shared_cluster))
    assert ": missing (files/" in str(lacking)
    assert "use another backup" in str(lacking)
