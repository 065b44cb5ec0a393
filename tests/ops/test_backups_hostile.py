"""Backups that somebody else wrote: what their manifests name, what their schema says, and whose they are."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_backups import FakeNode, back_up, fetched
from support_commands import run_command

import chronotile as ct
from chronotile_tools.ops.backups import manifests, restoring, schema_text
from chronotile_tools.ops.backups.jobs import Fetch, Send, part_key
from chronotile_tools.ops.backups.making import default_name
from chronotile_tools.ops.backups.schema_text import checked_statements, flat_map
from chronotile_tools.ops.backups.signing import Key, make_key
from chronotile_tools.ops.backups.stores import Store

Body = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    made = FakeNode(tmp_path / "node", "host-0")
    made.write()
    return made


def rewrite(store: Store, change: Callable[[Body], object], name: str = "b1") -> None:
    """Change a manifest as somebody does who may write to the store: its digest is right."""
    body = copy.deepcopy(store.get_json(f"backups/{name}/manifest.json"))
    change(body)
    store.put_json(f"backups/{name}/manifest.json", body)


def first_file(body: Body) -> Body:
    found: Body = body["parts"][0]["files"][0]
    return found


def keyspace_renamed(name: str) -> Callable[[Body], object]:
    def change(body: Body) -> None:
        body["schema"]["replication"] = {name: {"dc1": 3}}
        body["schema"]["tables"][0]["keyspace"] = name
        for file in body["parts"][0]["files"]:
            file["keyspace"] = name

    return change


HOSTILE: dict[str, Callable[[Body], object]] = {
    "file above": lambda body: first_file(body).update(name="../../../evil"),
    "file elsewhere": lambda body: first_file(body).update(name="/tmp/evil"),
    "file within": lambda body: first_file(body).update(name="nb-1-big-x/../../evil"),
    "file of no SSTable": lambda body: first_file(body).update(name="authorized_keys"),
    "table above": lambda body: first_file(body).update(table="../x"),
    "table id above": lambda body: first_file(body).update(table_id="../" * 10 + "xx"),
    "keyspace above": keyspace_renamed(".."),
    "keyspace elsewhere": keyspace_renamed("/etc"),
    "keyspace of the cluster": keyspace_renamed("system_auth"),
    "keyspace of procedures": keyspace_renamed("chronotile_ops"),
    "keyspace not in the schema": lambda body: first_file(body).update(keyspace="other"),
    "node above": lambda body: body["parts"][0].update(host_id="../../x"),
    "node elsewhere": lambda body: body["parts"][0].update(host_id="/tmp"),
    "digest above": lambda body: first_file(body).update(sha256="../../../../etc/passwd"),
    "bytes below 0": lambda body: first_file(body).update(bytes=-1),
    "bytes as a text": lambda body: first_file(body).update(bytes="1/../../x"),
    "name above": lambda body: body.update(name="../x"),
    "name of another": lambda body: body.update(name="b2"),
    "release with a path": lambda body: body.update(release="../5.0.8"),
    "copies as a text": lambda body: body["schema"]["replication"]["field"].update(dc1="3} AND durable_writes = {"),
    "strategy with more": lambda body: body["schema"].update(strategies={"field": "{'class': 'x'} AND a = 1"}),
    "statement of a number": lambda body: body["schema"]["statements"].append(
        {"keyspace": "field", "type": "table", "name": "x", "statement": 1}
    ),
    "terminal sequence": lambda body: body.update(cluster="\x1b]0;evil\x07"),
    "no text": lambda body: body["parts"][0].update(tokens=[1]),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_manifest_with_names_that_lead_elsewhere_is_refused(
    what: str, store: Store, node: FakeNode, tmp_path: Path
) -> None:
    back_up(store, [node], "b1")
    before = sorted(tmp_path.rglob("*"))
    rewrite(store, HOSTILE[what])
    with pytest.raises(ct.DamagedError) as refused:
        Fetch(store.url, "b1", ("host-0", "../../x", "/tmp"), ("field", "..", "/etc"), str(tmp_path / "back")).run(str)
    assert refused.value.kind == "damaged-backup"
    assert sorted(tmp_path.rglob("*")) == before
    assert manifests.read_all(store) == ([], ["b1"])


def test_a_part_of_a_node_is_read_as_carefully_as_a_manifest(store: Store, node: FakeNode) -> None:
    back_up(store, [node], "b1", finish=False)
    record = store.get_json(part_key("b1", "host-0"))
    record["files"][0]["name"] = "../x"
    with pytest.raises(ct.InvalidInputError, match="not a valid file of an SSTable"):
        manifests.part_of({key: record[key] for key in ("host_id", "address", "dc", "rack", "tokens", "files")})
    with pytest.raises(ct.InvalidInputError, match="not a valid id of a node"):
        part_key("b1", "../../b2/manifest")


def test_folders_that_are_no_backups_are_passed_over(store: Store, node: FakeNode) -> None:
    back_up(store, [node], "b1")
    store.put("backups/lost+found/manifest.json", b"{}")
    assert (manifests.names(store), manifests.unfinished(store)) == (["b1"], [])
    assert restoring.find_backup(store, "newest").name == "b1"


# ---------------------------------------------------------------- statements


def record(statement: str, type: str = "table", name: str = "rows") -> dict[str, str]:
    return {"keyspace": "field", "type": type, "name": name, "statement": statement}


TABLE = 'CREATE TABLE field.rows (id int PRIMARY KEY, "Text" text) WITH ID = 5a1c395e-b41f-11e5-9f22-ba0be0483c18\n'
TABLE += "    AND comment = 'a; b -- ''c'' WITH ID = x AND '"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            record(f"{TABLE};ALTER TABLE field.rows DROP gone USING TIMESTAMP 17;\nALTER TABLE field.rows ADD gone x"),
            [
                "CREATE TABLE field.rows (id int PRIMARY KEY, \"Text\" text) "
                "WITH comment = 'a; b -- ''c'' WITH ID = x AND '",
                "ALTER TABLE field.rows DROP gone USING TIMESTAMP 17",
                "ALTER TABLE field.rows ADD gone x",
            ],
        ),
        (record("CREATE TABLE field.rows (id int PRIMARY KEY) WITH ID = 5a1c395e-b41f-11e5-9f22-ba0be0483c18"),
         ["CREATE TABLE field.rows (id int PRIMARY KEY)"]),
        (record("create table if not exists Field.\"rows\" (a int primary key) -- ; DROP KEYSPACE x\n"),
         ["create table if not exists Field.\"rows\" (a int primary key)"]),
        (record("CREATE TYPE field.place (x double, y double);", "type", "place"),
         ["CREATE TYPE field.place (x double, y double)"]),
        (record("CREATE FUNCTION field.f (x int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS $$ a'; \"b; */ $$;",
                "function", "f(int)"),
         ["CREATE FUNCTION field.f (x int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS $$ a'; \"b; */ $$"]),
        (record("CREATE AGGREGATE field.s(int) SFUNC f STYPE int;", "aggregate", "s(int)"),
         ["CREATE AGGREGATE field.s(int) SFUNC f STYPE int"]),
        (record("CREATE INDEX by_text ON field.rows (\"Text\");", "index", "by_text"),
         ["CREATE INDEX by_text ON field.rows (\"Text\")"]),
        (record("CREATE CUSTOM INDEX IF NOT EXISTS ON field.rows (a) USING 'sai';", "index", "x"),
         ["CREATE CUSTOM INDEX IF NOT EXISTS ON field.rows (a) USING 'sai'"]),
        (record("CREATE TABLE field.rows (id int PRIMARY KEY); CREATE INDEX i ON field.rows (a);"),
         ["CREATE TABLE field.rows (id int PRIMARY KEY)", "CREATE INDEX i ON field.rows (a)"]),
    ],
)  # fmt: skip
def test_what_makes_the_schema_of_a_keyspace_is_run(written: dict[str, str], expected: list[str]) -> None:
    assert checked_statements(written) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ROLE evil WITH SUPERUSER = true AND LOGIN = true AND PASSWORD = 'x'",
        "CREATE USER evil",
        "GRANT ALL ON ALL KEYSPACES TO evil",
        "DROP KEYSPACE field",
        "DROP TABLE field.rows",
        "TRUNCATE field.rows",
        "CREATE KEYSPACE field WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "ALTER KEYSPACE field WITH replication = {}",
        "CREATE TRIGGER t ON field.rows USING 'evil'",
        "CREATE MATERIALIZED VIEW field.rows AS SELECT * FROM other.x",
        "CREATE OR REPLACE FUNCTION field.rows () RETURNS NULL ON NULL INPUT RETURNS int LANGUAGE java AS ''",
        "INSERT INTO field.rows (id) VALUES (1)",
        "UPDATE field.rows SET a = 1 WHERE id = 1",
        "DELETE FROM field.rows WHERE id = 1",
        "BEGIN BATCH INSERT INTO field.rows (id) VALUES (1); APPLY BATCH",
        "SELECT * FROM field.rows",
        "USE other",
        "CREATE TABLE other.rows (id int PRIMARY KEY)",
        "CREATE TABLE \"Field\".rows (id int PRIMARY KEY)",
        "CREATE TABLE rows (id int PRIMARY KEY)",
        "CREATE TABLE field.other (id int PRIMARY KEY)",
        "CREATE TABLE system_auth.roles (id int PRIMARY KEY)",
        "CREATE INDEX i ON other.rows (a)",
        "CREATE INDEX i ON field.other (a)",
        "CREATE TYPE field.rows (a int)",
        "ALTER TABLE field.rows WITH gc_grace_seconds = 0",
        "ALTER TABLE field.rows ADD a int WITH gc_grace_seconds = 0",
        "ALTER TABLE field.rows DROP a",
        "ALTER TABLE other.rows DROP a USING TIMESTAMP 1",
        "ALTER TABLE field.rows RENAME a TO b",
        "ALTER ROLE cassandra WITH PASSWORD = 'x'",
        "CREATE",
        "CREATE TABLE",
        "CREATE CUSTOM",
        "CREATE INDEX i",
        "ALTER",
        "'CREATE TABLE field.rows'",
        "CREATE TABLE field.rows (id int PRIMARY KEY) WITH comment = 'no end",
        "CREATE TABLE field.rows /* no end",
        "$$ no end",
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "CREATE TABLE field.rows (id int PRIMARY KEY); ", "/* x */ -- y\r"])
def test_whatever_else_a_schema_says_is_refused(before: str, statement: str) -> None:
    with pytest.raises(ct.InvalidInputError, match="contains a forbidden statement") as refused:
        checked_statements(record(before + statement))
    assert refused.value.kind == "refused"
    assert list(schema_text.refusals([record(before + statement)])) == [str(refused.value)]


def quoted(text: str, quote: str) -> str:
    return quote + text.replace(quote, quote * 2) + quote


@given(st.lists(st.tuples(st.sampled_from("'\"$/-"), st.text(max_size=12))))
def test_whatever_is_within_quotes_and_comments_parts_nothing(pieces: list[tuple[str, str]]) -> None:
    wanted: list[tuple[str, str]] = []
    text = ""
    for kind, inner in pieces:
        if kind in "'\"":
            wanted.append(("text" if kind == "'" else "name", inner))
            text += quoted(inner, kind) + " "
        elif kind == "$":
            body = inner.replace("$", "")
            wanted.append(("text", body))
            text += f"$${body}$$ "
        elif kind == "/":
            text += f"/*{inner.replace('*', '')}*/ "
        else:
            text += "--" + inner.replace("\n", "").replace("\r", "") + "\n"
    assert [(one.kind, one.value) for one in schema_text.tokens(text)] == wanted
    assert len(schema_text.split_statements(f"a {text}; b")) == 2


def test_replication_is_a_map_of_constants_and_nothing_more() -> None:
    assert flat_map("{'class': 'a.b.SimpleStrategy', 'replication_factor': 3}") == {
        "class": "a.b.SimpleStrategy",
        "replication_factor": "3",
    }
    for text in (
        "",
        "{",
        "{}; DROP KEYSPACE x",
        "{'a': 'b', }",
        "{'a'}",
        "{'a': {'b': 'c'}}",
        "{'a': b.c}",
        '{"a": 1}',
    ):
        with pytest.raises(ct.InvalidInputError, match="not a map"):
            flat_map(text)


# ---------------------------------------------------------------- signatures and digests


@pytest.fixture
def key(tmp_path: Path) -> Key:
    make_key(tmp_path / "key")
    return Key.read(tmp_path / "key")


def sign(store: Store, name: str, key: Key) -> None:
    manifests.save(store, manifests.load(store, name), key)


def test_with_a_key_only_what_it_signed_is_taken(store: Store, node: FakeNode, key: Key, tmp_path: Path) -> None:
    back_up(store, [node], "b1")
    with pytest.raises(ct.DamagedError, match="is not signed with") as unsigned:
        restoring.find_backup(store, "b1", key)
    assert unsigned.value.kind == "unsigned-backup"
    sign(store, "b1", key)
    assert restoring.find_backup(store, "newest", key).name == "b1"
    # Without a key a signed one is as good as any.
    assert restoring.find_backup(store, "b1").name == "b1"
    make_key(tmp_path / "other")
    with pytest.raises(ct.DamagedError, match="signed with another key"):
        restoring.find_backup(store, "b1", Key.read(tmp_path / "other"))


def test_what_is_changed_after_it_was_signed_is_refused(store: Store, node: FakeNode, key: Key) -> None:
    back_up(store, [node], "b1")
    sign(store, "b1", key)
    record = json.loads(store.get("backups/b1/manifest.json"))
    rewrite(store, lambda body: first_file(body).update(sha256="0" * 64))
    changed = json.loads(store.get("backups/b1/manifest.json"))
    # The old signature beside the new body and its digest.
    store.put("backups/b1/manifest.json", json.dumps({**changed, "hmac_sha256": record["hmac_sha256"]}).encode())
    with pytest.raises(ct.DamagedError, match="another key"):
        restoring.find_backup(store, "b1", key)


def test_a_newest_backup_without_a_signature_is_not_passed_over(store: Store, node: FakeNode, key: Key) -> None:
    back_up(store, [node], "b1")
    sign(store, "b1", key)
    back_up(store, [node], "b2")
    with pytest.raises(ct.DamagedError, match=r"b2 in .* is not signed"):
        restoring.find_backup(store, "newest", key)
    # Its digests are not taken for files of the next backup either.
    found = manifests.newest(store, "plant", key)
    assert found is not None
    assert found.name == "b1"


def test_what_was_looked_at_is_what_nodes_fetch(store: Store, node: FakeNode, tmp_path: Path) -> None:
    held = back_up(store, [node], "b1")["host-0"]
    pinned = manifests.pinned(store, "b1")
    assert fetched(store, pinned, "host-0", tmp_path / "back") == held
    rewrite(store, lambda body: body.update(remarks=["another"]))
    with pytest.raises(ct.DamagedError, match="was replaced since"):
        Fetch(store.url, pinned, ("host-0",), ("field",), str(tmp_path / "again")).run(str)
    # A base that was replaced gives no digests: the files are read.
    node.write()
    back_up(store, [node], "b2", finish=False)
    Send(store.url, "b2", "host-0", (str(node.folder),), base=pinned).run(str)
    assert not manifests.check_files(store, [manifests.part_of(_part(store, "b2"))])


def _part(store: Store, name: str) -> dict[str, Any]:
    record = store.get_json(part_key(name, "host-0"))
    return {key: record[key] for key in ("host_id", "address", "dc", "rack", "tokens", "files")}


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    make_key(path)
    path.chmod(0o640)
    with pytest.raises(ct.AccessDeniedError, match="chmod 600"):
        Key.read(path)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(ct.InvalidInputError, match="not a key of 32 bytes"):
        Key.read(path)
    for unreadable in (tmp_path / "absent", tmp_path):
        with pytest.raises(ct.DataFileError, match="cannot read key"):
            Key.read(unreadable)
    with pytest.raises(ct.DataFileError, match=r"cannot write key .*: File exists"):
        make_key(path)


def test_commands_make_keys_and_tell_signed_backups(store: Store, node: FakeNode, tmp_path: Path) -> None:
    made = ops_backup("key", str(tmp_path / "key"))
    assert (made.returncode, (tmp_path / "key").stat().st_mode & 0o777) == (0, 0o600)
    back_up(store, [node], "b1")
    sign(store, "b1", Key.read(tmp_path / "key"))
    back_up(store, [node], "b2")
    output = ops_backup("list", store.url, "--sign-key", str(tmp_path / "key")).stdout.splitlines()
    assert output[-1] == f"UNSIGNED: b2: not signed with {tmp_path / 'key'}"
    assert not any(line.startswith("b2") for line in output)
    assert ops_backup("verify", store.url, "b1", "--sign-key", str(tmp_path / "key")).returncode == 0
    refused = ops_backup("verify", store.url, "newest", "--sign-key", str(tmp_path / "key"))
    assert (refused.returncode, "is not signed with" in refused.stderr) == (5, True)


def ops_backup(*words: str) -> subprocess.CompletedProcess[str]:
    return run_command("ops", "backup", *words)


@pytest.mark.parametrize("cluster", ["plant", "Ölmühle 7", "../x", "a/b", "¹²", "-" * 200])
def test_a_name_that_follows_from_the_cluster_is_one(cluster: str) -> None:
    assert manifests.folder(default_name(cluster)).startswith("backups/2")
