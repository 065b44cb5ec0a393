"""The store of backups, on a folder and on an object store: what is kept, what is sent, what is found damaged."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_backups import FakeNode, back_up, fetched
from support_commands import run_command
from support_durable import SyncedNames

import chronotile as ct
from chronotile_tools.errors import NotFoundError
from chronotile_tools.ops.backups import manifests, restoring, schemas, stores
from chronotile_tools.ops.backups.jobs import Fetch, Progress, Send, part_key
from chronotile_tools.ops.backups.manifests import Manifest, NodeBackup, Schema
from chronotile_tools.ops.backups.stores import RateLimiter, Store
from chronotile_tools.ops.procedures.actuators import Commands
from chronotile_tools.ops.procedures.nodes import Member


@pytest.fixture(scope="module")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that speaks the protocol of S3, with a bucket; gives the URL's query."""
    pytest.importorskip("moto", reason="NO OBJECT STORE: install requirements/dev.txt")
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stdout=out, stderr=out
        )
    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        place = _address(log, server)
        urllib.request.urlopen(urllib.request.Request(f"{place}/backups", method="PUT"), timeout=10).close()
        host = place.removeprefix("http://")
        yield f"region=us-east-1&scheme=http&endpoint_override={host}"
    finally:
        os.environ.clear()
        os.environ |= before
        server.terminate()
        server.wait(20)


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        for line in log.read_text().splitlines():
            if "Running on http://" in line:
                return line.partition("Running on ")[2].strip()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of either kind."""
    if request.param == "folder":
        return Store(str(tmp_path / "store"))
    query = request.getfixturevalue("object_store")
    return Store(f"s3://backups/{tmp_path.name}?{query}")


@pytest.fixture
def nodes(tmp_path: Path) -> list[FakeNode]:
    """Two nodes with two SSTables each."""
    made = [FakeNode(tmp_path / f"node{k}", f"host-{k}", choose=random.Random(k)) for k in range(2)]
    for node in made:
        node.write()
        node.write()
    return made


def some_key(store: Store, name: str) -> str:
    return max(manifests.users_of(manifests.load(store, name).parts), key=lambda key: int(key.rpartition("-")[2]))


# ---------------------------------------------------------------- sending and fetching


def test_a_backup_comes_back_byte_by_byte(store: Store, nodes: list[FakeNode], tmp_path: Path) -> None:
    held = back_up(store, nodes, "b1")
    assert manifests.names(store) == ["b1"]
    assert not manifests.verify(store, "b1")
    for node in nodes:
        assert fetched(store, "b1", node.host_id, tmp_path / "back") == held[node.host_id]


def test_a_second_backup_sends_new_files_only(store: Store, nodes: list[FakeNode], tmp_path: Path) -> None:
    back_up(store, nodes, "b1")
    before = store.sizes("files")
    nodes[0].write()
    held = back_up(store, nodes, "b2")
    new = store.sizes("files").keys() - before.keys()
    manifest = manifests.load(store, "b2")
    assert manifest.sent_files == len(new) == 4
    assert manifest.sent_bytes == sum(store.sizes("files")[key] for key in new)
    assert manifest.files == 20
    assert fetched(store, "b2", "host-0", tmp_path / "back") == held["host-0"]


def test_files_known_by_their_time_are_not_read_again(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    path = next(nodes[0].table.glob("nb-1-big-Data.db"))
    status = path.stat()
    # Changed by the disk, not by Cassandra: the copy that is there stays the one of the manifest.
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    back_up(store, nodes, "b2")
    first, second = (manifests.load(store, name).parts[0].files for name in ("b1", "b2"))
    assert {file.key for file in first} == {file.key for file in second}


def test_what_was_cut_short_is_sent_again(store: Store, nodes: list[FakeNode], tmp_path: Path) -> None:
    back_up(store, nodes, "b1", finish=False)
    key = max(store.sizes("files"), key=lambda key: store.sizes("files")[key])
    store.put(key, b"half")
    for node in nodes:
        Send(store.url, "b1", node.host_id, (str(node.folder),)).run(str)
    assert store.sizes("files")[key] == int(key.rpartition("-")[2])


def test_what_a_killed_writer_left_is_no_object_and_is_removed_with_the_backup(
    store: Store, nodes: list[FakeNode]
) -> None:
    if store.folder is None:
        pytest.skip("an object store shows objects when they are complete")
    back_up(store, nodes, "b1", finish=False)
    objects, left = store.sizes(), []
    for key in (part_key("b1", nodes[0].host_id), next(iter(store.sizes("files")))):
        path = store.folder / key
        left.append(path.with_name(f".{path.name}.0a1b2c3d.part"))
        left[-1].write_bytes(path.read_bytes())
    assert store.sizes() == objects
    assert store.sizes(unfinished=True).keys() == {str(path.relative_to(store.folder)) for path in left}
    manifests.remove(store, ["b1"])
    assert not any(path.exists() for path in left)


def test_a_fetch_goes_on_where_it_was(store: Store, nodes: list[FakeNode], tmp_path: Path) -> None:
    held = back_up(store, nodes, "b1")["host-0"]
    fetched(store, "b1", "host-0", tmp_path / "back")
    path = next((tmp_path / "back").rglob("nb-1-big-Data.db"))
    path.write_bytes(b"half")
    assert fetched(store, "b1", "host-0", tmp_path / "back") == held


def test_a_limit_is_kept(tmp_path: Path) -> None:
    store, node = Store(str(tmp_path / "store")), FakeNode(tmp_path / "node", "host-0")
    store.create()
    node.table.mkdir(parents=True)
    (node.table / "nb-1-big-Data.db").write_bytes(bytes(300_000))
    pace, began = RateLimiter(1_000_000), time.monotonic()
    for path in node.table.iterdir():
        store.put_file("files/x", path, pace=pace)
    assert time.monotonic() - began >= 0.29


def test_a_backup_and_what_is_fetched_of_it_survive_a_crash_of_the_machine(
    nodes: list[FakeNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = SyncedNames(monkeypatch)
    disk, back = tmp_path / "disk", tmp_path / "back"
    back_up(Store(str(disk / "plant" / "store")), nodes, "b1")
    fetched(Store(str(disk / "plant" / "store")), "b1", nodes[0].host_id, back / "staging")
    assert synced.lost(disk) == synced.lost(back) == []
    assert {disk, back}.isdisjoint(synced.lost(tmp_path))


class _SlowCount(int):
    """A number of bytes whose addition takes long enough for other threads to run."""

    def __radd__(self, before: int) -> int:
        time.sleep(0.1)
        return before + int(self)


def test_progress_counts_the_bytes_of_all_threads() -> None:
    progress = Progress(lambda _: None, "sent", 3)
    threads = [threading.Thread(target=progress.add, args=(_SlowCount(1),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.done == 3


# ---------------------------------------------------------------- damage


def test_damage_is_found_and_named(store: Store, nodes: list[FakeNode], tmp_path: Path) -> None:
    back_up(store, nodes, "b1")
    keys = sorted(manifests.users_of(manifests.load(store, "b1").parts), key=lambda key: int(key.rpartition("-")[2]))
    gone, cut, changed = keys[-3:]
    store.delete(gone)
    store.put(cut, store.get(cut)[:-1])
    content = store.get(changed)
    store.put(changed, bytes([content[0] ^ 1]) + content[1:])
    found = {one.key: one for one in manifests.verify(store, "b1")}
    assert found.keys() == {gone, cut, changed}
    assert (found[gone].what, found[changed].what) == ("missing", "its content differs")
    assert all("field.rows nb-" in str(one) and " of host-" in str(one) for one in found.values())
    # A listing finds two of them already; a fetch names the third.
    assert {one.key for one in manifests.check_files(store, manifests.load(store, "b1").parts)} == {gone, cut}
    with pytest.raises(ct.DamagedError, match=r"was changed in|is missing in") as damaged:
        Fetch(store.url, "b1", ("host-0", "host-1"), ("field",), str(tmp_path / "back")).run(str)
    assert damaged.value.kind == "damaged-backup"


def test_a_damaged_file_that_is_dropped_comes_back_with_the_next_backup(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    key = some_key(store, "b1")
    store.put(key, bytes(len(store.get(key))))
    done = command("verify", store.url, "newest", "--drop")
    assert (done.returncode, "DAMAGED  field.rows nb-" in done.stdout) == (5, True), done.stderr
    back_up(store, nodes, "b2")
    assert manifests.load(store, "b2").sent_files == 1
    assert not manifests.verify(store, "b1")


def test_a_changed_manifest_is_no_backup(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    key = "backups/b1/manifest.json"
    store.put(key, store.get(key).replace(b"5.0.8", b"5.0.7"))
    with pytest.raises(ct.DamagedError, match="is damaged"):
        manifests.load(store, "b1")
    # Its files may be needed: nothing is removed for another, but it can be removed itself.
    back_up(store, nodes, "b2")
    with pytest.raises(ct.DamagedError):
        manifests.remove(store, ["b2"])
    assert not manifests.verify(store, "b2")
    manifests.remove(store, ["b1"])
    assert not manifests.verify(store, "b2")


# ---------------------------------------------------------------- maintenance


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_backed_up_and_removed_each_backup_stays_whole(data: st.DataObject, tmp_path: Path) -> None:
    # Of its own, since an example may end anywhere; random numbers are the same for each.
    root = Path(tempfile.mkdtemp(dir=tmp_path))
    store = Store(str(root / "store"))
    made = [FakeNode(root / f"node{k}", f"host-{k}", choose=random.Random(k)) for k in range(2)]
    held: dict[str, dict[str, dict[str, bytes]]] = {}
    for number in range(data.draw(st.integers(2, 12))):
        what = data.draw(st.sampled_from(["write", "compact", "back up", "back up", "cut off", "remove", "retain"]))
        node = data.draw(st.sampled_from(made))
        if what == "write":
            node.write()
        elif what == "compact" and node.generation:
            node.compact()
        elif what == "back up":
            held[f"b{number:02}"] = back_up(store, made, f"b{number:02}")
        elif what == "cut off":
            back_up(store, made, f"b{number:02}", finish=False)
        elif what == "remove" and held:
            _removed(store, held, data.draw(st.lists(st.sampled_from(sorted(held)), min_size=1, unique=True)))
        elif what == "retain" and held:
            _removed(store, held, sorted(held)[: -data.draw(st.integers(1, 3))])
    assert manifests.names(store) == sorted(held)
    for name, nodes_held in held.items():
        assert not manifests.verify(store, name)
        for host_id, files in nodes_held.items():
            assert fetched(store, name, host_id, root / "back" / name) == files
    shutil.rmtree(root, ignore_errors=True)


def _removed(store: Store, held: dict[str, dict[str, dict[str, bytes]]], names: list[str]) -> None:
    try:
        manifests.remove(store, names)
    except ct.BusyError:
        # One is unfinished: it is given up first, as the message says.
        manifests.remove(store, [*names, *manifests.unfinished(store)])
    for name in names:
        del held[name]
    needed = {key for name in held for key in manifests.users_of(manifests.load(store, name).parts)}
    assert store.sizes("files").keys() == needed


def test_the_newest_is_told_by_time_and_damaged_manifests_are_passed_over(store: Store, nodes: list[FakeNode]) -> None:
    for name in ("z-first", "a-second", "m-third"):
        back_up(store, nodes, name)
        record = store.get_json(f"backups/{name}/manifest.json")
        at = {"z-first": "2026-01-01", "a-second": "2026-01-02", "m-third": "2026-01-03"}[name]
        store.put_json(f"backups/{name}/manifest.json", {**record, "ended_utc": at})
    store.put("backups/m-third/manifest.json", b"{}")
    assert restoring.find_backup(store, "newest").name == "a-second"
    found, damaged = manifests.read_all(store)
    assert ([one.name for one in found], damaged) == (["z-first", "a-second"], ["m-third"])


def test_retain_keeps_the_newest_of_each_cluster(store: Store, nodes: list[FakeNode]) -> None:
    for name in ("b1", "b2", "b3"):
        nodes[0].compact()
        back_up(store, nodes, name)
    done = manifests.retain(store, 2)
    assert done.backups == ["b1"]
    assert (done.files, done.bytes > 0) == (4, True)
    assert manifests.names(store) == ["b2", "b3"]
    assert not manifests.verify(store, "b2") + manifests.verify(store, "b3")
    assert manifests.retain(store, 2) == manifests.RemovalReport([], 0, 0)


def test_backups_and_removals_keep_out_of_each_others_way(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    back_up(store, nodes, "b2", finish=False)
    with pytest.raises(ct.BusyError, match="b2 is unfinished") as busy:
        manifests.remove(store, ["b1"])
    assert busy.value.kind == "unfinished"
    assert not manifests.verify(store, "b1")
    # A removal that was cut off keeps backups away until it is finished.
    store.put_json(manifests.REMOVING, {"mark": "x", "host": "elsewhere", "at": "then"})
    with pytest.raises(ct.BusyError, match="elsewhere since then"):
        back_up(store, nodes, "b3")
    manifests.remove(store, ["b2", "b3"])
    back_up(store, nodes, "b4")
    assert manifests.names(store) == ["b1", "b4"]


def test_names_that_are_not_there_are_said(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    for call in (lambda: manifests.load(store, "b9"), lambda: manifests.remove(store, ["b9"])):
        with pytest.raises(NotFoundError, match="no backup b9 in") as unknown:
            call()
        assert unknown.value.kind == "backup-not-found"
    with pytest.raises(ct.InvalidInputError, match=r"already exists in .*: use another name"):
        back_up(store, nodes, "b1")
    with pytest.raises(ct.InvalidInputError, match="invalid backup name"):
        manifests.load(store, "../b1")


def test_a_store_that_is_not_there_is_said(store: Store, nodes: list[FakeNode]) -> None:
    for call in (store.require_there, lambda: manifests.retain(store, 1), lambda: manifests.remove(store, ["b1"]),
                 lambda: restoring.find_backup(store, "newest")):  # fmt: skip
        with pytest.raises(NotFoundError, match="no store of backups at") as missing:
            call()
        assert missing.value.kind == "store-not-found"
    back_up(store, nodes, "b1")
    store.require_there()


# ---------------------------------------------------------------- URLs and commands


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """What a command of ``chronotile ops backup`` does."""
    return run_command("ops", "backup", *words)


def test_commands_list_and_remove_backups(tmp_path: Path, nodes: list[FakeNode]) -> None:
    store = Store(str(tmp_path / "store"))
    back_up(store, nodes, "b1")
    nodes[1].write()
    back_up(store, nodes, "b2")
    back_up(store, nodes, "b3", finish=False)
    output = [json.loads(line) for line in command("list", store.url, "--json").stdout.splitlines()]
    assert [(one["name"], one["files"], one["sent_files"]) for one in output] == [("b1", 16, 16), ("b2", 20, 4)]
    text = command("list", store.url).stdout.splitlines()
    assert text[0].split()[:2] == ["backup", "cluster"]
    assert text[-1] == "UNFINISHED: b3"
    busy = command("retain", store.url, "--keep", "1", "--yes")
    assert (busy.returncode, "b3 is unfinished" in busy.stderr) == (6, True)
    assert command("remove", store.url, "b3", "b1", "--yes").stdout.startswith("removed b3\nremoved b1\n0 files")
    unknown = command("verify", store.url, "b1")
    assert unknown.returncode == 3
    assert re.search(r"no backup b1 in .*; the newest there: b2", unknown.stderr)
    assert command("verify", store.url, "newest").stdout.endswith("b2: 20 files of 2 nodes intact\n")


@pytest.mark.parametrize("words", [["list"], ["verify", "newest"]])
def test_commands_on_no_store_end_with_an_error(tmp_path: Path, words: list[str]) -> None:
    done = command(words[0], str(tmp_path / "absent"), *words[1:])
    assert (done.returncode, done.stdout) == (3, "")
    assert "no store of backups at" in done.stderr
    (tmp_path / "file").write_text("")
    assert command(words[0], str(tmp_path / "file"), *words[1:]).returncode == 1


def test_a_store_without_a_backup_is_said_to_have_none(tmp_path: Path) -> None:
    Store(str(tmp_path)).create()
    done = command("list", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, f"no backups in {tmp_path.as_uri()}\n")


def test_secrets_stay_out_of_urls_and_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("s3://key:secret@bucket/x", "s3://bucket/x?access_key=a&secret_key=b"):
        with pytest.raises(ct.InvalidInputError, match="keep keys out"):
            stores.normal(url)
    monkeypatch.chdir(tmp_path)
    assert stores.normal("store") == (tmp_path / "store").as_uri()
    with pytest.raises(ct.InvalidInputError, match="could not be opened"):
        Store("nowhere://x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(ct.AccessDeniedError, match="permissions"):
        Store(str(tmp_path / "store")).require_writable()


def test_a_store_in_the_place_of_a_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ct.DataFileError, match="could not be made"):
        Store(str(tmp_path / "file" / "store")).create()
    with pytest.raises(ct.DataFileError, match="is a file"):
        Store(str(tmp_path / "file")).put("files/x", b"")


def test_a_store_is_made_only_when_asked(store: Store) -> None:
    """A folder where a disk should be mounted is no store, and nothing is written to it."""
    if store.folder is not None:
        with pytest.raises(NotFoundError, match="mount its disk"):
            store.put("files/x", b"")
        assert not store.folder.exists()
        store.folder.mkdir()
    with pytest.raises(NotFoundError, match="no store of backups at") as missing:
        store.require_there()
    assert missing.value.kind == "store-not-found"
    assert not store.sizes()
    store.create()
    store.require_there()
    store.create()


def test_a_store_of_before_stores_had_a_mark_is_one(store: Store, nodes: list[FakeNode]) -> None:
    back_up(store, nodes, "b1")
    store.delete("store.json")
    store.require_there()


def test_only_the_owner_may_read_a_store(tmp_path: Path, nodes: list[FakeNode]) -> None:
    store = Store(str(tmp_path / "store"))
    previous = os.umask(0)
    try:
        back_up(store, nodes, "b1")
    finally:
        os.umask(previous)
    assert modes_of(tmp_path / "store") == {0o600, 0o700}


def test_a_group_shares_a_folder_with_the_set_group_id_bit(tmp_path: Path, nodes: list[FakeNode]) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o2770)
    back_up(Store(str(tmp_path / "store")), nodes, "b1")
    assert modes_of(tmp_path / "store") == {0o660, 0o2770}


def modes_of(folder: Path) -> set[int]:
    """Modes of a folder and all in it."""
    return {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


def test_jobs_go_to_machines_as_words(tmp_path: Path, nodes: list[FakeNode]) -> None:
    """The same part, sent by a command of the operator's."""
    store = Store(str(tmp_path / "store"))
    back_up(store, nodes, "b1", finish=False)
    before = store.get_json(part_key("b1", "host-0"))
    store.delete(part_key("b1", "host-0"))
    hands = Commands({"send": f"{sys.executable} -m chronotile ops backup send {{words}}"})
    hands.work("host-0", Send(store.url, "b1", "host-0", (str(nodes[0].folder),), 500.0), timeout_s=60)
    after = store.get_json(part_key("b1", "host-0"))
    assert after["files"] == before["files"]
    assert after["sent_files"] == 0
    job = Fetch(store.url, "b 1", ("host-0",), ("field",), "/data/x")
    echoed = Commands({"fetch": "echo {words}"})._run("fetch", job.words, host="h")
    assert echoed == f"--from {store.url} --backup b 1 --into /data/x --node host-0 --keyspace field"


# ---------------------------------------------------------------- schemas


def member(number: int, dc: str) -> Member:
    return Member(f"10.0.0.{number}", f"host-{number}", dc, "r1", "5.0.8", (str(number),), "schema")


def test_nodes_are_the_same_only_with_their_tokens_and_places() -> None:
    def part(one: Member) -> NodeBackup:
        return NodeBackup(one.host_id, "moved", one.dc, one.rack, list(one.tokens), [])

    three = [member(k, "dc1") for k in range(3)]
    made = Manifest("b", "c", "5.0.8", "", "", Schema({}, [], [], {}), [part(one) for one in three])
    assert restoring.is_same_ring(made, three[::-1])
    assert not restoring.is_same_ring(made, three[:2])
    assert not restoring.is_same_ring(made, [*three[:2], dataclasses.replace(three[2], tokens=("9",))])
    assert not restoring.is_same_ring(made, [*three[:2], dataclasses.replace(three[2], rack="r2")])
    assert not restoring.is_same_ring(made, [*three[:2], dataclasses.replace(three[2], host_id="new")])


@pytest.mark.parametrize(
    ("centres", "expected"),
    [
        (["dc1"] * 3, {"dc1": 3}),
        (["dc1"], {"dc1": 1}),
        (["dc1", "dc1", "dc2"], {"dc1": 2}),
        (["east", "east", "west"], {"east": 2, "west": 1}),
    ],
)
def test_copies_are_fitted_to_the_nodes(centres: list[str], expected: dict[str, int]) -> None:
    assert schemas.fitting_replication({"dc1": 3}, [member(k, dc) for k, dc in enumerate(centres)]) == expected


def test_differences_of_schemas_are_told() -> None:
    def schema(columns: dict[str, str], type: str = "x int") -> Schema:
        made = {"keyspace": "k", "type": "type", "name": "p", "statement": f"CREATE TYPE k.p ({type});"}
        return Schema({}, [made], [{"keyspace": "k", "name": "t", "id": "1" * 32}], {"k.t": columns})

    backup = schema({"a": "partition_key int", "b": "regular text"})
    assert not schemas.differences(backup, backup, ["k"])
    assert schemas.differences(backup, Schema({}, [], [], {}), ["k"]) == ["k.t does not exist"]
    assert schemas.differences(Schema({}, [], [], {}), backup, ["k"]) == ["k.t is not in the backup"]
    found = schemas.differences(
        backup, schema({"a": "partition_key int", "b": "regular blob", "c": "static int"}), ["k"]
    )
    assert found == ["column b of k.t is regular blob, not regular text", "column c of k.t is static int, not there"]
    assert not schemas.type_differences(backup, schema({}))
    (other,) = schemas.type_differences(backup, schema({}, "x text"))
    assert other.startswith("type k.p differs from the backup")


def test_manifests_of_other_releases_are_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.create()
    manifests.save(store, Manifest("b1", "c", "5.0.8", "", "", Schema({}, [], [], {}), []))
    record = store.get_json("backups/b1/manifest.json")
    store.put_json("backups/b1/manifest.json", {**record, "format": 2})
    with pytest.raises(ct.DamagedError, match="another release"):
        manifests.load(store, "b1")
