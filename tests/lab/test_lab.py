"""The laboratory: real nodes come up, fail, are disturbed and go, and nothing of them stays behind."""

from __future__ import annotations

import json
import os
import signal
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support_lab import QUICK, Releases, require_software
from support_waiting import wait_until

from chronotile.errors import InvalidInputError
from chronotile_tools import lab
from chronotile_tools.client import values, wire
from chronotile_tools.errors import CqlError, NotCqlError
from chronotile_tools.lab import (
    config,
    layout,
    network,
    places,
    processes,
    resources,
    shell,
    software,
    state,
    versions,
)

Run = Callable[..., subprocess.CompletedProcess[str]]

INSERT_ROWS = 40


def daemons(folder: Path) -> list[processes.Process]:
    """The processes of a cluster's nodes, found without its state file."""
    return [
        process
        for number in range(1, 9)
        for process in processes.with_argument(f"{config.NODE_ARGUMENT}{folder}/node{number}")
    ]


def up_seen_by(node: lab.Node) -> set[str]:
    """Addresses on nodetool's own lines that begin with UN."""
    lines = [line.split() for line in node.nodetool("status").splitlines()]
    return {words[1] for words in lines if words[:1] == ["UN"]}


def rows(node: lab.Node, consistency: str) -> int:
    """Rows of the test's table, read through this node; timeouts of a cluster in change are repeated."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with node.connect(timeout_s=15) as connection:
                return len(connection.run("SELECT a FROM lab_test.t", consistency=consistency).rows)
        except (OSError, CqlError):
            if time.monotonic() > deadline:
                raise


def write(node: lab.Node, replicas: int, consistency: str = "ALL") -> None:
    """Make the test's table with some rows."""
    with node.connect() as connection:
        factor = f"{{'class': 'NetworkTopologyStrategy', 'dc1': {replicas}}}"
        connection.run(f"CREATE KEYSPACE IF NOT EXISTS lab_test WITH replication = {factor}")
        connection.run("CREATE TABLE IF NOT EXISTS lab_test.t (a int PRIMARY KEY, b text)")
        for k in range(INSERT_ROWS):
            connection.run(f"INSERT INTO lab_test.t (a, b) VALUES ({k}, 'x')", consistency=consistency)


# ---------------------------------------------------------------- without a cluster


def test_places_are_read_from_both_notations_and_racks_take_turns() -> None:
    assert layout.places(None, None, 1) == [layout.NodeLocation("dc1", "rack1")] * 3
    assert [place.dc for place in layout.places(None, "2x2", 1)] == ["dc1", "dc1", "dc2", "dc2"]
    wide = layout.places(None, "east:3,west:1", 2)
    assert [(place.dc, place.rack) for place in wide] == [
        ("east", "rack1"),
        ("east", "rack2"),
        ("east", "rack1"),
        ("west", "rack1"),
    ]


@pytest.mark.parametrize(("nodes", "dc", "racks"), [(0, None, 1), (99, None, 1), (3, "1x3", 1), (None, "east", 1),
                                                    (None, "a:1,a:2", 1), (None, "0x3", 1), (3, None, 0)])  # fmt: skip
def test_places_that_cannot_be_are_refused(nodes: int | None, dc: str | None, racks: int) -> None:
    with pytest.raises(InvalidInputError):
        layout.places(nodes, dc, racks)


@pytest.mark.parametrize(("dc", "racks"), [("1x1", 1), ("1x3", 1), ("1x6", 3), ("2x3", 3), ("east:5,west:2", 2)])
def test_nodes_of_a_data_centre_own_equal_shares_of_the_ring(dc: str, racks: int) -> None:
    locations = layout.places(None, dc, racks)
    tokens = layout.tokens(locations)
    flat = [token for own in tokens for token in own]
    assert len(set(flat)) == len(flat)
    assert all(-(2**63) < token < 2**63 for token in flat)
    for name in {place.dc for place in locations}:
        owners = sorted((t, k) for k, place in enumerate(locations) if place.dc == name for t in tokens[k])
        share = dict.fromkeys([k for _, k in owners], 0)
        for (before, _), (after, owner) in zip([(owners[-1][0] - 2**64, 0), *owners], owners, strict=False):
            share[owner] += after - before
        assert sum(share.values()) == 2**64
        assert max(share.values()) - min(share.values()) < 2**64 / 1e6


@pytest.mark.parametrize(("text", "megabytes"), [("512m", 512), ("1g", 1024), (400, 400), ("2 GiB", 2048)])
def test_heap_is_read_in_mebibytes(text: str | int, megabytes: int) -> None:
    assert resources.read_heap(text) == megabytes


@pytest.mark.parametrize("text", ["", "lots", "-1g", "100m", "1.5g"])
def test_heap_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="heap"):
        resources.read_heap(text)


def test_unknown_version_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match=r"4\.1 \(4\.1\.\d+\)"):
        versions.release("2.2")
    assert versions.release("5.0.3").version == "5.0.3"
    preview = versions.release("6.0")
    assert preview.series == (6, 0)
    assert versions.release(preview.version) == preview
    for wrong in ("5.0-alpha1", "5.0.8.1", "5.", "x5.0", ""):
        with pytest.raises(InvalidInputError, match="unsupported version"):
            versions.release(wrong)
    assert versions.release("3.11.18").extra_jars[0].endswith("cassandra-thrift:3.11.18")


def test_what_does_not_fit_in_memory_is_refused_with_what_would(lab_home: Path, chronotile: Run) -> None:
    available = resources.available_mb()
    with pytest.raises(lab.LabError, match="would fit") as refused:
        lab.up("huge", nodes=2, heap=available)
    assert refused.value.kind == "lab-memory"
    assert f"a heap of {available // 2 - resources.OFF_HEAP_MB}m" in str(refused.value)
    done = chronotile("lab", "up", "huge", "--nodes", 60, "--heap", "64g")
    assert done.returncode == 1
    assert "not even one would fit" in done.stderr
    assert not (lab_home / "huge").exists()


def test_settings_are_json_where_they_can_be_and_nest_at_dots(tmp_path: Path) -> None:
    given = config.read_settings(["a=1", "b=text", "c.d=true", 'e=["x"]', "f=1=2"])
    assert given == {"a": 1, "b": "text", "c.d": True, "e": ["x"], "f": "1=2"}
    with pytest.raises(InvalidInputError, match="name=value"):
        config.read_settings(["novalue"])
    plan = config.NodePlan(
        "c", tmp_path, "127.77.9.1", ["127.77.9.1"], layout.NodeLocation("dc1", "rack1"), 7199, 300, [1], False, None,
        False, None, paxos_v2=True, settings={**given, "num_tokens": 4}, java_options=[],
    )  # fmt: skip
    written = config.cassandra_yaml(plan, software.Server(versions.release("5.0"), tmp_path))
    assert written["c"] == {"d": True}
    assert written["num_tokens"] == 4
    assert written["auto_bootstrap"] is False


def test_statements_end_at_semicolons_that_are_not_inside_something() -> None:
    text = "INSERT 'a;''b' -- no; \n; begin batch x; y; apply batch; $$ ; $$ /* ; */ \"c;\""
    assert list(shell.statements(text)) == [
        ("INSERT 'a;''b'", True),
        ("begin batch x; y; apply batch", True),
        ('$$ ; $$   "c;"', False),
    ]


@pytest.mark.parametrize(
    ("code", "content", "text"),
    [
        (0x09, b"\xff\xff\xff\xfe", "-2"),
        (0x06, b"\x00\x00\x00\x02\xff\x85", "-1.23"),
        (0x06, b"\x00\x00\x00\x03\x05", "0.005"),
        (0x11, (2**31 - 1).to_bytes(4), "1969-12-31"),
        (0x12, (3_661_000_000_001).to_bytes(8), "01:01:01.000000001"),
        (0x0B, (-1).to_bytes(8, signed=True), "1969-12-31 23:59:59.999+0000"),
        (0x15, b"\x02\x04\x01", "1mo2d-1ns"),
        (0x10, bytes([127, 0, 0, 1]), "127.0.0.1"),
        (0x04, b"\0", "False"),
        (0x03, b"\xca\xfe", "0xcafe"),
    ],
)
def test_values_are_decoded(code: int, content: bytes, text: str) -> None:
    assert values.text_of(values.Type(code), content) == text


def test_truncated_message_is_an_error() -> None:
    with pytest.raises(ValueError, match="is truncated"):
        values.Reader(b"\x00\x00\x00\x05abc").content()


def test_only_the_process_of_the_right_moment_is_ended(tmp_path: Path) -> None:
    process = processes.start(["/bin/sleep", "60"], tmp_path / "output", os.environ)
    later = processes.Process(process.pid, process.start_ticks + 1, process.boot)
    other_boot = processes.Process(process.pid, process.start_ticks, "another")
    for stranger in (later, other_boot):
        assert not stranger.alive()
        stranger.kill()
    time.sleep(0.05)
    assert process.alive()
    process.kill()
    assert not Path(f"/proc/{process.pid}").exists()


def test_paused_process_is_told_apart_and_still_ends_in_order(tmp_path: Path) -> None:
    process = processes.start(["/bin/sleep", "60"], tmp_path / "output", os.environ)
    process.signal(signal.SIGSTOP)
    wait_until(process.stopped, "the process to stop")
    assert process.alive()
    process.end(10)
    assert not process.alive()


def test_lock_names_its_holder_and_is_free_when_that_is_killed(lab_home: Path) -> None:
    code = "import time; from chronotile_tools.lab import places\n"
    code += "with places.locked('held', timeout_s=1, what='x'): print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        with (
            pytest.raises(lab.LabBusyError, match=rf"cannot start it: process {child.pid}"),
            places.locked("held", timeout_s=0.1, what="start it"),
        ):
            pass
        child.kill()
        child.wait()
    with places.locked("held", timeout_s=1, what="start it"):
        pass


def test_two_builders_of_the_same_cached_folder_end_with_one_that_is_whole(tmp_path: Path) -> None:
    both = threading.Barrier(2)

    def build(folder: Path) -> None:
        both.wait(10)
        (folder / "part").write_text("whole")

    target = tmp_path / "made"
    threads = [threading.Thread(target=places.build_once, args=(target, build)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (target / "part").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    places.build_once(target, lambda folder: pytest.fail("it is there"))


def test_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise lab.LabError("no")

    with pytest.raises(lab.LabError):
        places.build_once(tmp_path / "made", fail)
    assert list(tmp_path.iterdir()) == []


def test_missing_maven_is_named_with_the_command_to_install_it(chronotile: Run, lab_home: Path, tmp_path: Path) -> None:
    surroundings = {"PATH": "/nowhere", "CHRONOTILE_LAB_CACHE": str(tmp_path)}
    done = chronotile("lab", "up", "none", "--nodes", 1, env=surroundings)
    assert done.returncode == 1
    assert "apt-get install maven" in done.stderr
    assert "CASSANDRA_HOME" in done.stderr
    assert not (lab_home / "none").exists()


def test_cassandra_home_is_used_and_a_wrong_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASSANDRA_HOME", str(tmp_path))
    with pytest.raises(InvalidInputError, match="CASSANDRA_HOME"):
        software.default_version()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "apache-cassandra-5.0.3.jar").touch()
    assert software.default_version() == "5.0.3"
    assert software.server(versions.release("5.0.3")).jars == tmp_path / "lib"


def test_unknown_cluster_and_node_are_not_found(chronotile: Run, lab_home: Path) -> None:
    with pytest.raises(KeyError):
        lab.attach("nowhere")
    done = chronotile("lab", "status", "-c", "nowhere")
    assert done.returncode == 3
    assert "no cluster 'nowhere'" in done.stderr
    assert chronotile("lab", "up", "Bad Name").returncode == 2


def test_half_made_cluster_shows_in_the_list_and_goes_with_down(chronotile: Run, lab_home: Path) -> None:
    (lab_home / "half" / "node1").mkdir(parents=True)
    listed = json.loads(chronotile("lab", "list", "--json").stdout)
    assert [row["status"] for row in listed if row["name"] == "half"] == ["half-made"]
    assert chronotile("lab", "down", "half").returncode == 0
    assert not (lab_home / "half").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "nodes": [1]}', "[" * 100_000])
def test_a_cluster_whose_file_is_damaged_is_named_and_goes_with_down(
    chronotile: Run, lab_home: Path, content: str
) -> None:
    (lab_home / "hurt").mkdir(parents=True)
    (lab_home / "hurt" / places.STATE_FILE).write_text(content)
    with pytest.raises(lab.LabError, match="hurt") as error:
        state.load("hurt")
    assert error.value.kind == "lab-state"
    assert chronotile("lab", "down", "hurt").returncode == 0
    assert not (lab_home / "hurt").exists()


def test_every_verb_has_help_with_an_example(chronotile: Run) -> None:
    top = chronotile("lab", "--help").stdout
    verbs = (
        "up status add stop start kill pause resume cut heal drain decommission remove replace restart nodetool logs"
    )
    for verb in [*verbs.split(), "cql", "down", "list"]:
        assert f"  {verb} " in top
        assert "Example" in chronotile("lab", verb, "--help").stdout


# ---------------------------------------------------------------- starting and ending


def test_node_that_cannot_start_shows_its_own_last_error_and_leaves_nothing(lab_home: Path) -> None:
    require_software()
    began = time.monotonic()
    with pytest.raises(lab.NodeFailedError, match="nonsense") as failed:
        lab.up("broken", nodes=1, settings={"commitlog_sync": "nonsense"}, **QUICK)
    assert failed.value.node == "node1"
    assert "commitlog_sync" in failed.value.log or "CommitLogSync" in failed.value.log
    assert time.monotonic() - began < 30
    assert not (lab_home / "broken").exists()
    assert daemons(lab_home / "broken") == []


@pytest.mark.slow
def test_failed_start_from_the_command_line_keeps_its_logs_until_the_next(lab_home: Path, chronotile: Run) -> None:
    require_software()
    done = chronotile("lab", "up", "broken", "--nodes", 1, "--java-option", "-XX:NoSuchOption")
    assert done.returncode == 1
    assert "NoSuchOption" in done.stderr
    assert state.load("broken").status == "failed"
    assert "NoSuchOption" in chronotile("lab", "logs", "1", "-c", "broken", "--output").stdout
    again = chronotile("lab", "up", "broken", "--nodes", 1, "--java-option", "-XX:NoOtherOption")
    assert "removing the remains" in again.stderr
    assert "NoOtherOption" in again.stderr
    assert chronotile("lab", "down", "broken").returncode == 0


def test_cluster_ends_with_its_owner_even_when_that_is_killed(lab_home: Path) -> None:
    require_software()
    code = f"""
from chronotile_tools import lab; import time
lab.up("owned", nodes=1, heap={QUICK["heap"]!r}, java_options={QUICK["java_options"]!r})
print("up", flush=True); time.sleep(600)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(daemons(lab_home / "owned")) == 1
        owner.kill()
        owner.wait()
    wait_until(lambda: not (lab_home / "owned").exists(), "the folder to go", 30)
    assert daemons(lab_home / "owned") == []


@pytest.mark.slow
def test_start_that_is_killed_half_way_is_cleared_away(lab_home: Path, chronotile: Run) -> None:
    require_software()
    command = [sys.executable, "-m", "chronotile", "lab", "up", "torn", "--nodes", "1", "--heap", "300m"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as starter:
        wait_until(lambda: daemons(lab_home / "torn") != [], "a node")
        assert "starting" in chronotile("lab", "list").stdout
        starter.kill()
        starter.wait()
    assert "half-made" in chronotile("lab", "list").stdout
    assert chronotile("lab", "down", "torn").returncode == 0
    assert daemons(lab_home / "torn") == []
    assert not (lab_home / "torn").exists()


def test_three_nodes_serve_and_each_sees_all(shared_cluster: lab.Cluster) -> None:
    addresses = set(shared_cluster.contact_points)
    assert len(addresses) == 3
    assert all(node.serves() for node in shared_cluster.nodes)
    assert up_seen_by(shared_cluster.nodes[2]) == addresses
    with shared_cluster.nodes[0].connect() as connection:
        assert len(connection.select("peer", "system.peers")) == 2
        (version,) = connection.select("release_version", "system.local")[0]
    assert version == versions.RELEASES["5.0"].version
    assert shared_cluster.url("survey").startswith(f"cassandra://{shared_cluster.contact_points[0]}:9042,")


def test_name_that_is_taken_is_a_conflict(shared_cluster: lab.Cluster, chronotile: Run) -> None:
    with pytest.raises(lab.LabExistsError):
        lab.up(shared_cluster.name, nodes=1)
    assert chronotile("lab", "up", shared_cluster.name, "--nodes", 1).returncode == 4
    assert len(daemons(shared_cluster.folder)) == 3


def test_command_line_shows_nodes_logs_tools_and_rows(shared_cluster: lab.Cluster, chronotile: Run) -> None:
    on = ("-c", shared_cluster.name)
    shown = json.loads(chronotile("lab", "status", *on, "--json").stdout)
    assert [(node["status"], node["serves"]) for node in shown["nodes"]] == [("up", True)] * 3
    assert shown["nodes"][0]["pid"] == shared_cluster.nodes[0].pid
    shown_last = chronotile("lab", "logs", *on, "node2", "--tail", 2).stdout.splitlines()
    whole = chronotile("lab", "logs", *on, "node2", "--tail", 10**6).stdout
    assert len(shown_last) == 2
    assert set(shown_last) <= set(whole.splitlines())
    assert "Starting listening for CQL clients" in whole
    assert chronotile("lab", "nodetool", *on, 3, "version").stdout.strip().endswith(shared_cluster.nodes[0].version)
    failed = chronotile("lab", "nodetool", *on, 3, "nonsense")
    assert failed.returncode == 1
    assert "nonsense" in failed.stderr
    answer = chronotile("lab", "cql", *on, "-e", "SELECT rack FROM system.local; SELECT cql_version FROM system.local")
    assert "rack1" in answer.stdout
    assert answer.stdout.count("(1 row)") == 2
    refused = chronotile("lab", "cql", *on, 2, stdin="SELECT nonsense;")
    assert refused.returncode == 1
    assert refused.stderr.startswith("chronotile: line ")


# ---------------------------------------------------------------- disturbing


def test_killed_node_is_missed_and_comes_back_with_its_data(cluster: lab.Cluster) -> None:
    write(cluster.nodes[0], replicas=3)
    victim = cluster.nodes[2]
    pid = victim.pid
    assert pid is not None
    victim.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert (victim.status, victim.pid, victim.serves()) == ("down", None, False)
    assert rows(cluster.nodes[0], "QUORUM") == INSERT_ROWS
    with cluster.nodes[0].connect() as connection, pytest.raises(CqlError):
        connection.run("SELECT a FROM lab_test.t", consistency="ALL")
    victim.start()
    assert up_seen_by(victim) == set(cluster.contact_points)
    assert rows(victim, "ALL") == INSERT_ROWS


@pytest.mark.slow
def test_paused_node_does_not_answer_until_it_is_resumed(cluster: lab.Cluster) -> None:
    node = cluster.nodes[1]
    node.pause()
    assert node.status == "paused"
    assert not node.serves(timeout_s=1)
    node.resume()
    assert node.status == "up"
    wait_until(node.serves, "the node to serve", 20)


def test_cut_node_is_lost_to_clients_and_others_and_comes_back(cluster: lab.Cluster) -> None:
    if cluster.network != "namespaces":
        pytest.skip(f"NODES CANNOT BE CUT OFF HERE: {network.namespaces_obstacle()}")
    write(cluster.nodes[0], replicas=3)
    node, others = cluster.nodes[2], {cluster.nodes[0].address, cluster.nodes[1].address}
    pid = node.pid
    node.cut()
    assert node.status == "cut"
    assert not node.serves(timeout_s=1)
    assert rows(cluster.nodes[0], "QUORUM") == INSERT_ROWS
    wait_until(lambda: up_seen_by(cluster.nodes[0]) == others, "the others to see it down", every_s=0.1)
    # Nodetool goes the node's own way, so the other side of the cut can be looked at too.
    wait_until(lambda: up_seen_by(node) == {node.address}, "it to see the others down", every_s=0.1)
    node.heal()
    node.wait_until_ready()
    assert node.pid == pid
    assert rows(node, "ALL") == INSERT_ROWS


def test_cut_on_the_loopback_network_says_what_is_missing(lab_home: Path) -> None:
    with pytest.raises(lab.LabError, match="--network namespaces") as refused:
        network.Loopback("127.77.1").cut(1)
    assert refused.value.kind == "lab-network"


@pytest.mark.slow
def test_node_gets_another_address_and_stays_the_same_node(cluster: lab.Cluster) -> None:
    node = cluster.nodes[1]
    before, host_id = node.address, node.state.host_id
    with pytest.raises(lab.LabError, match="stop it"):
        node.start(address="new")
    node.stop()
    with pytest.raises(InvalidInputError, match="not in the cluster's network"):
        node.start(address="192.0.2.1")
    node.start(address="new")
    assert node.address != before
    assert node.state.host_id == host_id
    assert up_seen_by(cluster.nodes[0]) == set(cluster.contact_points)


@pytest.mark.slow
def test_node_joins_is_replaced_and_leaves_while_rows_stay(cluster: lab.Cluster) -> None:
    write(cluster.nodes[0], replicas=3)
    first = cluster.nodes[0]
    joined = cluster.add()
    assert up_seen_by(first) == set(cluster.contact_points)
    assert len(cluster.nodes) == 4
    with pytest.raises(InvalidInputError, match="runs"):
        joined.replace()
    dead_address = joined.address
    joined.kill()
    fresh = joined.replace()
    assert (fresh.index, joined.index) == (5, 4)
    assert up_seen_by(first) == set(cluster.contact_points)
    assert dead_address not in cluster.contact_points
    folder = fresh.folder
    fresh.decommission()
    assert up_seen_by(first) == set(cluster.contact_points)
    assert [node.index for node in cluster.nodes] == [1, 2, 3]
    assert not folder.exists()
    assert rows(first, "ALL") == INSERT_ROWS


# ---------------------------------------------------------------- security; two clusters


@pytest.fixture
def stranger(tmp_path: Path) -> lab.Tls:
    """Certificates of another authority."""
    return lab.make_authority(tmp_path / "stranger", mutual=True)


def greet(node: lab.Node, context: ssl.SSLContext | None, credentials: tuple[str, str] | None) -> None:
    with wire.Connection(node.address, 9042, tls=context, credentials=credentials) as connection:
        connection.select("release_version", "system.local")


def test_secure_nodes_let_in_only_who_has_certificate_and_password(
    secure_cluster: lab.Cluster, stranger: lab.Tls
) -> None:
    files, login = secure_cluster.tls, secure_cluster.credentials
    assert files is not None
    assert login is not None
    for node in secure_cluster.nodes:
        greet(node, files.context(), login)
    node = secure_cluster.nodes[1]
    for user in [(login[0], "wrong"), ("cassandra", "cassandra")]:
        with pytest.raises(CqlError) as refused:
            greet(node, files.context(), user)
        assert refused.value.bad_credentials
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(node, stranger.context(), login)
    without = ssl.create_default_context(cafile=str(files.ca))
    with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|eof"):
        greet(node, without, login)
    with pytest.raises((NotCqlError, OSError), match=r"(?i)reset|close|timed out"):
        greet(node, None, login)


def test_secrets_are_for_the_owner_only(secure_cluster: lab.Cluster) -> None:
    assert secure_cluster.credentials is not None
    password = secure_cluster.credentials[1]
    assert stat.S_IMODE(secure_cluster.credentials_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(secure_cluster.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((secure_cluster.folder / "tls" / "client.key").stat().st_mode) == 0o600
    commands = [(Path("/proc") / str(node.pid) / "cmdline").read_text() for node in secure_cluster.nodes]
    assert password not in "".join(commands) + (secure_cluster.folder / places.STATE_FILE).read_text()


@pytest.mark.slow
def test_two_clusters_stand_side_by_side_and_one_goes_without_the_other(
    shared_cluster: lab.Cluster, secure_cluster: lab.Cluster, chronotile: Run
) -> None:
    assert not set(shared_cluster.contact_points) & set(secure_cluster.contact_points)
    assert up_seen_by(shared_cluster.nodes[0]) == set(shared_cluster.contact_points)
    assert up_seen_by(secure_cluster.nodes[0]) == set(secure_cluster.contact_points)
    ambiguous = chronotile("lab", "status")
    assert ambiguous.returncode == 2
    assert "shared" in ambiguous.stderr
    # The last test with the second cluster: it loses a node, then ends.
    dead = secure_cluster.nodes[1]
    dead.kill()
    dead.remove()
    assert up_seen_by(secure_cluster.nodes[0]) == set(secure_cluster.contact_points)
    assert len(secure_cluster.nodes) == 1
    secure_cluster.down()
    assert daemons(secure_cluster.folder) == []
    assert len(daemons(shared_cluster.folder)) == 3
    assert all(node.serves() for node in shared_cluster.nodes)


# ---------------------------------------------------------------- other releases


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.0", "3.11"])
def test_older_release_serves(one_node: Releases, version: str) -> None:
    with one_node(version) as cluster:
        write(cluster.nodes[0], replicas=1)
        assert rows(cluster.nodes[0], "ONE") == INSERT_ROWS
        assert cluster.nodetool(1, "version").split()[-1] == versions.RELEASES[version].version
        assert cluster.nodes[0].version == versions.RELEASES[version].version


@pytest.mark.slow
def test_node_is_upgraded_on_the_same_data(one_node: Releases) -> None:
    require_software("5.0")
    with one_node("4.1") as cluster:
        write(cluster.nodes[0], replicas=1)
        cluster.restart(version="5.0")
        assert cluster.nodes[0].version == cluster.state.version == versions.RELEASES["5.0"].version
        assert rows(cluster.nodes[0], "ONE") == INSERT_ROWS


@pytest.fixture(autouse=True)
def _own_home(lab_home: Path) -> None:
    """No test of this file sees the user's clusters."""
    assert os.environ[places.HOME_VARIABLE] == str(lab_home)
