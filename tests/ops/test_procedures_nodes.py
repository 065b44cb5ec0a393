"""Procedures that take nodes away, bring them back and change which there are, with clients at work all the while."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import support_lab
from support_faults import archive_on, check, check_all_done
from support_history import Load
from support_procedures import KillPoint, context, nodes_of, run_apart, run_cut_off, wait_until_seen_down

import chronotile as ct
from chronotile_tools import lab
from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.lab import launching
from chronotile_tools.ops.procedures import journal, plan, run
from chronotile_tools.ops.procedures.actuators import Laboratory
from chronotile_tools.ops.procedures.disruptions import Disruption, Return
from chronotile_tools.ops.procedures.engine import abandon
from chronotile_tools.ops.procedures.growing import Grow
from chronotile_tools.ops.procedures.leftovers import Leftovers
from chronotile_tools.ops.procedures.membership import Add, Decommission, Remove, Replace
from chronotile_tools.ops.procedures.nodes import all_members, node_statuses, wait_for
from chronotile_tools.ops.procedures.preflight import copies
from chronotile_tools.ops.repair import preview_differences
from chronotile_tools.ops.repair.reading import repairable
from chronotile_tools.ops.repair.running import grouped


@pytest.fixture(scope="module")
def plant(lab_home: Path) -> Iterator[lab.Cluster]:
    """Three nodes of its own, of which some come and go."""
    support_lab.require_software()
    with lab.up("plant", nodes=3, **support_lab.QUICK) as cluster:
        yield cluster


def fresh_archive(cluster: lab.Cluster, name: str) -> str:
    """URL of an archive; those of tests before are dropped: each table makes changes of the ring take longer."""
    with cluster.nodes[0].connect(timeout_s=60) as connection:
        for (keyspace,) in connection.select("keyspace_name", "system_schema.keyspaces"):
            if keyspace == "busy" or keyspace.startswith("faults_"):
                connection.run(f"DROP KEYSPACE {keyspace}")
    return archive_on(cluster, name)


def addresses(cluster: lab.Cluster) -> set[str]:
    return {one.address for one in all_members(nodes_of(cluster))}


def check_well(cluster: lab.Cluster, count: int) -> None:
    for node in cluster.nodes:
        seen = node_statuses(nodes_of(cluster), node.address)
        assert len(seen) == count
        assert all(one.normal for one in seen)


@pytest.mark.slow
def test_too_long_away_is_refused_and_the_node_stays_down(cluster: lab.Cluster, tmp_path: Path) -> None:
    with cluster.nodes[0].connect() as connection:
        connection.run(
            "CREATE KEYSPACE IF NOT EXISTS brief WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        connection.run("CREATE TABLE IF NOT EXISTS brief.rows (id int PRIMARY KEY) WITH gc_grace_seconds = 36000")
    try:
        node = cluster.nodes[2]
        node.kill()
        wait_until_seen_down(cluster, node)
        work = Return.of(context(cluster), node.address, datetime.now(UTC) - timedelta(hours=9.5))
        with pytest.raises(ct.InvalidInputError, match="deleted rows would reappear") as refused:
            run(work, context(cluster), tmp_path)
        assert refused.value.kind == "refused"
        assert node.pid is None
        assert not journal.paths(tmp_path)
        shorter = plan(
            Return.of(context(cluster), node.address, datetime.now(UTC) - timedelta(hours=4)), context(cluster)
        )
        assert not shorter.refused
        assert any(finding.level == "warning" and "will be repaired" in finding.text for finding in shorter.findings)
    finally:
        with cluster.nodes[0].connect() as connection:
            connection.run("DROP KEYSPACE brief")


def test_fewer_nodes_than_copies_are_refused(shared_cluster: lab.Cluster) -> None:
    with shared_cluster.nodes[0].connect() as connection:
        connection.run(
            "CREATE KEYSPACE IF NOT EXISTS three WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
    made = plan(Decommission.of(context(shared_cluster), shared_cluster.nodes[0].address), context(shared_cluster))
    assert made.refused
    assert "2 nodes would remain in dc1, but" in str(made)
    assert "three has replication factor 3" in str(made)


@pytest.mark.slow
def test_a_short_disruption_fails_no_operation_and_leaves_the_node_whole(plant: lab.Cluster, tmp_path: Path) -> None:
    url = fresh_archive(plant, "disruption")
    node = plant.nodes[1]
    work = Disruption(node.address, 5)
    with Load(url, tmp_path / "load", processes=2) as load:
        with pytest.raises(ct.BusyError, match="is stopped: do your work, then run") as paused:
            run(work, context(plant), tmp_path / "journals")
        assert paused.value.kind == "operator-needed"
        assert node.pid is None
        load.work(5)
        run_cut_off(plant, tmp_path / "journals", work, [2, 3], failures=1)
        history = load.stop()
    check_well(plant, 3)
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_a_node_that_was_away_for_longer_than_hints_are_kept_is_repaired_under_load(
    plant: lab.Cluster, tmp_path: Path
) -> None:
    url = fresh_archive(plant, "extended")
    node, others = plant.nodes[1], [plant.nodes[0], plant.nodes[2]]
    kept = others[0].nodetool("getmaxhintwindow")
    for other in others:
        other.nodetool("setmaxhintwindow", "5000")
    try:
        with Load(url, tmp_path / "load", processes=2) as load:
            node.kill()
            since = datetime.now(UTC)
            wait_until_seen_down(plant, node)
            time.sleep(6)
            load.work(5)
            work = Return.of(context(plant), node.address, since)
            # Killed when the node was started, and when the repair begins.
            run_cut_off(plant, tmp_path / "journals", work, [2, 4])
            history = load.stop()
    finally:
        for other in others:
            other.nodetool("setmaxhintwindow", str(3 * 3_600_000))
    assert others[0].nodetool("getmaxhintwindow") == kept
    (path,) = journal.paths(tmp_path / "journals")
    with journal.Journal(path) as entries:
        assert any(entry["tables"].startswith("faults_extended.") for entry in entries.of("node")), "it was repaired"
    for tables in grouped(context(plant), repairable(nodes_of(plant), ["faults_extended"], [])):
        assert not preview_differences(context(plant), tables)
    check_well(plant, 3)
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_a_node_is_added_under_load_and_the_others_keep_what_is_theirs_only(plant: lab.Cluster, tmp_path: Path) -> None:
    url = fresh_archive(plant, "added")
    before = addresses(plant)
    with Load(url, tmp_path / "load", processes=2) as load:
        # Killed when the node begins to join, and when the first cleanup begins.
        run_cut_off(plant, tmp_path / "journals", Add.of(context(plant)), [1, 4])
        history = load.stop()
    assert len(addresses(plant) - before) == 1
    check_well(plant, len(before) + 1)
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_a_dead_node_is_removed_under_load(plant: lab.Cluster, tmp_path: Path) -> None:
    if len(plant.nodes) == 3:
        plant.add()
    url = fresh_archive(plant, "removed")
    count, dead = len(plant.nodes), plant.nodes[0]
    address = dead.address
    with Load(url, tmp_path / "load", processes=2) as load:
        dead.kill()
        wait_until_seen_down(plant, dead)
        run_cut_off(plant, tmp_path / "journals", Remove.of(context(plant), address), [1, 2])
        history = load.stop()
    assert address not in addresses(plant)
    assert dead.index not in {node.index for node in plant.nodes}
    check_well(plant, count - 1)
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
@pytest.mark.parametrize("same_address", [False, True])
def test_a_dead_node_is_replaced_under_load(plant: lab.Cluster, tmp_path: Path, same_address: bool) -> None:
    url = fresh_archive(plant, f"replaced_{same_address}".lower())
    count, dead = len(plant.nodes), plant.nodes[-1]
    host_id, address = dead.state.host_id, dead.address
    with Load(url, tmp_path / "load", processes=2) as load:
        dead.kill()
        wait_until_seen_down(plant, dead)
        work = Replace.of(context(plant), address, address if same_address else "")
        run_cut_off(plant, tmp_path / "journals", work, [])
        history = load.stop()
    assert (address in addresses(plant)) == same_address
    # At the same address a node takes over the dead one's id, too.
    assert (host_id in {one.host_id for one in all_members(nodes_of(plant))}) == same_address
    assert dead.index not in {node.index for node in plant.nodes}
    check_well(plant, count)
    check_all_done(history)
    check(url, history)


@contextlib.contextmanager
def unreadable(nodes: Sequence[lab.Node]) -> Iterator[Callable[[], None]]:
    """A table whose files these nodes cannot send to another; what is given mends it."""
    with nodes[0].connect(timeout_s=60) as connection:
        connection.run("DROP KEYSPACE IF EXISTS busy")
        connection.run("CREATE KEYSPACE busy WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
        connection.run("CREATE TABLE busy.rows (id int PRIMARY KEY)")
        for number in range(300):
            connection.run(f"INSERT INTO busy.rows (id) VALUES ({number})", consistency="ALL")
    for node in nodes:
        node.nodetool("flush", "busy")
    files = [path for node in nodes for path in (node.folder / "data/data/busy").glob("rows-*/*-Data.db")]
    assert len(files) >= len(nodes)

    def restore_files() -> None:
        for path in files:
            away = path.with_suffix(".away")
            if away.exists():
                away.rename(path)

    for path in files:
        path.rename(path.with_suffix(".away"))
    try:
        yield restore_files
    finally:
        restore_files()


def check_whole(cluster: lab.Cluster) -> None:
    check_well(cluster, 3)
    for tables in grouped(context(cluster), repairable(nodes_of(cluster), ["busy"], [])):
        assert not preview_differences(context(cluster), tables)


@pytest.mark.slow
def test_a_node_that_fails_to_fetch_its_data_is_started_again(plant: lab.Cluster, tmp_path: Path) -> None:
    fresh_archive(plant, "told")
    output: list[str] = []
    dead = plant.nodes[-1]
    address = dead.address
    with unreadable(plant.nodes[:2]) as restore_files:

        def echo(line: str) -> None:
            output.append(line)
            if "streaming failed" in line:
                restore_files()

        dead.kill()
        wait_until_seen_down(plant, dead)
        run(Replace.of(context(plant), address, address), context(plant, echo), tmp_path)
    assert [line for line in output if "again: streaming failed" in line], output
    check_whole(plant)


class UnattendedActuator(Laboratory):
    """Starts a node and does not look after it, as commands of one's own do."""

    started: threading.Thread

    def replace(self, dead: str, address: str) -> str:
        """Begin it."""

        def start() -> None:
            with contextlib.suppress(lab.NodeFailedError):
                super(UnattendedActuator, self).replace(dead, address)

        self.started = threading.Thread(target=start)
        self.started.start()
        return address


@pytest.mark.slow
def test_a_node_that_failed_to_fetch_its_data_is_told_and_set_up_anew_by_hand(
    plant: lab.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh_archive(plant, "by_hand")
    dead = plant.nodes[-1]
    address = dead.address
    hands = UnattendedActuator(plant)
    with unreadable(plant.nodes[:2]), monkeypatch.context() as blind:
        dead.kill()
        wait_until_seen_down(plant, dead)
        work = Replace.of(context(plant), address, address)
        blind.setattr(launching, "FETCH_FAILED", "never said")
        with pytest.raises(ct.ChronotileError, match="empty its data folders, then run chronotile ops resume"):
            run(work, dataclasses.replace(context(plant), actuator=hands), tmp_path)
    plant.node(address).kill()
    hands.started.join()
    run(work, context(plant), tmp_path)
    check_whole(plant)


@pytest.mark.slow
def test_a_node_of_an_older_release_that_fetches_nothing_is_told(
    lab_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support_lab.require_software("4.1")
    failed = launching.FETCH_FAILED
    with lab.up("silent", nodes=3, version="4.1", **support_lab.QUICK) as cluster:
        dead = cluster.nodes[-1]
        address = dead.address
        hands = UnattendedActuator(cluster)

        def echo(line: str) -> None:
            if "has streamed nothing for 1 min" in line:
                assert failed in (cluster.node(address).folder / "logs/system.log").read_text()
                raise InterruptedError

        with unreadable(cluster.nodes[:2]), monkeypatch.context() as blind:
            dead.kill()
            wait_until_seen_down(cluster, dead)
            work = Replace.of(context(cluster), address, address)
            blind.setattr(launching, "FETCH_FAILED", "never said")
            with pytest.raises(InterruptedError):
                run(work, dataclasses.replace(context(cluster, echo), actuator=hands, quiet_s=60), tmp_path)
        cluster.node(address).kill()
        hands.started.join()
        run(work, context(cluster), tmp_path)
        check_whole(cluster)


class Restarting(Laboratory):
    """Starts a dead node again with its data, where it should be replaced."""

    def replace(self, dead: str, address: str) -> str:
        """Start it."""
        self.cluster.node(dead).start()
        return dead


@pytest.mark.slow
def test_a_node_that_is_back_with_its_old_data_was_not_replaced(cluster: lab.Cluster, tmp_path: Path) -> None:
    dead = cluster.nodes[2]
    dead.kill()
    wait_until_seen_down(cluster, dead)
    work = Replace.of(context(cluster), dead.address, dead.address)
    wrong = dataclasses.replace(context(cluster), actuator=Restarting(cluster), stream_s=5)
    with pytest.raises(ct.BusyError, match="back with its old data"):
        run(work, wrong, tmp_path)
    assert abandon(context(cluster), tmp_path) is not None


@pytest.mark.slow
def test_a_node_leaves_under_load_once_another_was_added(plant: lab.Cluster, tmp_path: Path) -> None:
    url = fresh_archive(plant, "left")
    count, leaving = len(plant.nodes), plant.nodes[0].address
    plant.add()
    with Load(url, tmp_path / "load", processes=2) as load:
        run_cut_off(plant, tmp_path / "journals", Decommission.of(context(plant), leaving), [1, 2])
        history = load.stop()
    assert leaving not in addresses(plant)
    check_well(plant, count)
    check_all_done(history)
    check(url, history)


# ---------------------------------------------------------------- one node becomes three


def field(cluster: lab.Cluster) -> None:
    """A keyspace of 300 rows in one copy."""
    with cluster.nodes[0].connect() as connection:
        connection.run("CREATE KEYSPACE field WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        connection.run("CREATE TABLE field.rows (id int PRIMARY KEY, text text)")
        for number in range(300):
            connection.run(f"INSERT INTO field.rows (id, text) VALUES ({number}, 'x')")


@contextlib.contextmanager
def read_all_the_while(cluster: lab.Cluster) -> Iterator[list[str]]:
    """Log in to every node that serves, and read all rows there at ONE, again and again; what was wrong."""
    wrong: list[str] = []
    ended = threading.Event()

    def read_on() -> None:
        while not ended.is_set():
            for node in cluster.nodes:
                if not node.serves():
                    continue
                try:
                    with node.connect() as connection:
                        found = len(connection.run("SELECT id FROM field.rows", consistency="ONE").rows)
                except (CqlError, OSError) as error:
                    wrong.append(f"{node.name}: {error}")
                    continue
                if found != 300:
                    wrong.append(f"{node.name} read {found} rows")

    reader = threading.Thread(target=read_on)
    reader.start()
    try:
        yield wrong
    finally:
        ended.set()
        reader.join()


GROWN: list[tuple[str, dict[str, str], tuple[int, ...]]] = [
    ("5.0", {}, (2, 3)),
    ("5.0", {"auth_read_consistency_level": "LOCAL_ONE"}, ()),
    ("4.0", {}, ()),
]
"""A release, its settings, and the copies that users get one after the other when the nodes are there."""


@pytest.mark.slow
@pytest.mark.parametrize(("version", "settings", "late"), GROWN, ids=["majority", "one-copy", "4.0"])
def test_three_nodes_are_made_of_one_and_no_login_or_read_is_wrong(
    lab_home: Path, tmp_path: Path, version: str, settings: dict[str, str], late: tuple[int, ...]
) -> None:
    support_lab.require_software(version)
    with lab.up("growing", nodes=1, version=version, auth=True, settings=settings, **support_lab.QUICK) as cluster:
        field(cluster)
        work = Grow.of(context(cluster))
        steps = [step.name for step in work.steps(context(cluster))]
        assert [name for name in steps if name.startswith("repair system_auth")] == [
            f"repair system_auth {count}" for count in late
        ]
        with read_all_the_while(cluster) as wrong:
            with pytest.raises(ct.BusyError, match="LOCAL_QUORUM"):
                run(work, context(cluster), tmp_path)
            run(work, context(cluster), tmp_path)
        assert not wrong, wrong[:5]
        check_grown(cluster)


def check_grown(cluster: lab.Cluster) -> None:
    """Three nodes have three copies of everything, and know who logs in."""
    check_well(cluster, 3)
    found = copies(nodes_of(cluster), cluster.nodes[0].address)
    assert {name: dict(found[name]) for name in ("field", "system_auth", "system_traces", "chronotile_ops")} == {
        name: {"dc1": 3} for name in ("field", "system_auth", "system_traces", "chronotile_ops")
    }
    assert not preview_differences(context(cluster), ["field.rows"]) + preview_differences(
        context(cluster), ["system_auth.roles"]
    )
    for node in cluster.nodes:
        with node.connect() as connection:
            assert len(connection.run("SELECT id FROM field.rows", consistency="ALL").rows) == 300


@pytest.mark.slow
def test_growing_that_is_killed_at_every_step_goes_on_and_no_login_or_read_is_wrong(
    lab_home: Path, tmp_path: Path
) -> None:
    support_lab.require_software()
    with lab.up("killed", nodes=1, auth=True, **support_lab.QUICK) as cluster:
        field(cluster)
        work = Grow.of(context(cluster))
        steps = [step.name for step in work.steps(context(cluster))]
        with read_all_the_while(cluster) as wrong:
            for step in steps:
                # A node that joins is begun, is about to have its data, and has it.
                for seconds in (3.0, 12.0) if step.startswith("join") else ():
                    assert run_apart(cluster, tmp_path, work, KillPoint(step, seconds)).returncode == -9
                if step == "clients":
                    output = run_apart(cluster, tmp_path, work, 0)
                    assert "LOCAL_QUORUM" in output.stderr, output.stderr
                done = run_apart(cluster, tmp_path, work, KillPoint(step))
                assert done.returncode == -9, done.stdout + done.stderr
            kept = run(work, context(cluster), tmp_path)
        assert not wrong, wrong[:5]
        assert [entry["step"] for entry in kept.of("done")] == steps
        check_grown(cluster)


@pytest.mark.slow
def test_growing_is_refused_while_the_default_user_would_be_locked_out(lab_home: Path) -> None:
    support_lab.require_software()
    settings = {"auth_read_consistency_level": "LOCAL_ONE"}
    with lab.up("default", nodes=1, auth=True, settings=settings, **support_lab.QUICK) as cluster:
        node = cluster.nodes[0]
        with node.connect() as connection:
            connection.run("CREATE ROLE cassandra WITH PASSWORD = 'secret' AND LOGIN = true")
        login = ("cassandra", "secret")

        def refused() -> str:
            # The node remembers for a while that there was no such user.
            try:
                wire.Connection(node.address, cluster.native_port, credentials=login).close()
            except CqlError as error:
                return str(error)
            return ""

        wait_for("logging in", refused, timeout_s=30)
        with wire.Connection(node.address, cluster.native_port, credentials=login) as connection:
            connection.select("key", "system.local")
            made = plan(Grow.of(context(cluster)), context(cluster))
            assert [finding.what for finding in made.findings if finding.level == "refused"] == ["users"]
        assert not plan(Grow.of(context(cluster)), context(cluster)).refused


# ---------------------------------------------------------------- leftovers


@pytest.mark.slow
def test_folders_of_dropped_tables_are_listed_and_removed_only_when_confirmed(
    cluster: lab.Cluster, tmp_path: Path
) -> None:
    node = cluster.nodes[1]
    with node.connect() as connection:
        connection.run(
            "CREATE KEYSPACE IF NOT EXISTS old WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        for name in ("dropped", "stays"):
            connection.run(f"CREATE TABLE old.{name} (id int PRIMARY KEY)")
            connection.run(f"INSERT INTO old.{name} (id) VALUES (1)", consistency="ALL")
        node.nodetool("snapshot", "-t", "kept", "old")
        connection.run("DROP TABLE old.dropped")
    made = plan(Leftovers.of(context(cluster), node.address), context(cluster))
    assert [finding.what for finding in made.findings if finding.level == "refused"] == ["confirmation"]
    (folder,) = [path for path in (node.folder / "data/data/old").iterdir() if path.name.startswith("dropped-")]
    assert str(folder) in "".join(made.cost)
    assert "stays" not in "".join(made.cost)
    with pytest.raises(ct.InvalidInputError, match="--confirm"):
        run(Leftovers.of(context(cluster), node.address), context(cluster), tmp_path)
    assert folder.is_dir()
    run(Leftovers.of(context(cluster), node.address, True), context(cluster), tmp_path)
    assert not folder.exists()
    with node.connect() as connection:
        assert connection.run("SELECT id FROM old.stays", consistency="ALL").rows == [["1"]]
        connection.run("DROP KEYSPACE old")
