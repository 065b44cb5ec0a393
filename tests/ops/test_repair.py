"""Repair: replicas that differ are brought together on nodes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import support_lab
from support_procedures import context, run_apart, wait_until_seen_down

import chronotile as ct
from chronotile_tools import lab, ops
from chronotile_tools.lab import network
from chronotile_tools.ops.procedures import journal, plan, run
from chronotile_tools.ops.procedures.reaching import AccessNodes
from chronotile_tools.ops.repair import Repair, preview_differences, reading, running
from chronotile_tools.ops.repair.reading import streams_of_preview
from chronotile_tools.ring import SIZE, width


def test_a_preview_is_read_as_what_it_says_and_nothing_else() -> None:
    assert not streams_of_preview("Previewed data was in sync")
    assert streams_of_preview("Total estimated streaming: 3 ranges, 5 sstables, 2KiB bytes") == "3 ranges differ"
    with pytest.raises(ct.ChronotileError, match="ended without a result"):
        streams_of_preview("Repair command #1 finished with error")


def test_what_cannot_be_repaired_is_refused_by_name(shared_cluster: lab.Cluster) -> None:
    work = context(shared_cluster)
    with pytest.raises(ct.InvalidInputError, match="the cluster has no plant"):
        Repair.of(work, keyspaces=["plant"])
    with pytest.raises(ct.InvalidInputError, match="system_auth has a single replica"):
        Repair.of(work, keyspaces=["system_auth"])


@pytest.mark.slow
def test_nodes_that_repair_by_themselves_are_left_to_it(lab_home: Path) -> None:
    support_lab.require_software()
    options = [*support_lab.QUICK["java_options"], "-Dcassandra.autorepair.enable=true"]
    quick = support_lab.QUICK | {"java_options": options}
    with lab.up("selfmade", nodes=1, settings={"auto_repair": {"enabled": True}}, **quick) as cluster:
        with cluster.nodes[0].connect() as connection:
            connection.run(
                "CREATE KEYSPACE two WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}"
            )
            connection.run("CREATE TABLE two.rows (id int PRIMARY KEY)")
        for anyway, level in ((False, "refused"), (True, "warning")):
            made = plan(Repair.of(context(cluster), keyspaces=["two"], anyway=anyway), context(cluster))
            (finding,) = [one for one in made.findings if one.what == "scheduler"]
            assert (finding.level, finding.text.split()[0]) == (level, cluster.nodes[0].address)


# ---------------------------------------------------------------- on nodes

ROWS = 4_000
TABLE = "uneven.rows"
"""Too large to be repaired a node at a time: it is repaired in segments."""
SMALL = "uneven.few"
FILLING = 100_000
"""Rows of the large table that no node lacks; their numbers are below 0."""


@pytest.fixture(scope="module")
def uneven(lab_home: Path) -> Iterator[lab.Cluster]:
    """Three nodes of which one will lack rows of two tables, without hints to bring them."""
    support_lab.require_software()
    with lab.up("uneven", nodes=3, settings={"hinted_handoff_enabled": False}, **support_lab.QUICK) as cluster:
        with cluster.nodes[0].connect() as connection:
            connection.run("CREATE KEYSPACE uneven WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
            for table in (TABLE, SMALL):
                connection.run(f"CREATE TABLE {table} (id int PRIMARY KEY, text text) WITH read_repair = 'NONE'")
        insert(cluster, TABLE, range(-FILLING, 0), "x", "ALL")
        for node in cluster.nodes:
            node.nodetool("flush", "uneven")
        assert not running._is_small(reading.estimates(AccessNodes(ops.for_lab(cluster.name)), [TABLE])[TABLE])
        yield cluster


@pytest.mark.cluster
def test_few_large_partitions_are_estimated_at_their_true_size(uneven: lab.Cluster) -> None:
    partitions, chunks, size = 8, 4, 256 << 10
    with uneven.nodes[0].connect() as connection:
        connection.run("CREATE KEYSPACE wide WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}")
        connection.run("CREATE TABLE wide.tiles (tile int, chunk int, body blob, PRIMARY KEY (tile, chunk))")
        for tile, chunk in itertools.product(range(partitions), range(chunks)):
            body = random.Random(tile * chunks + chunk).randbytes(size).hex()
            connection.run(f"INSERT INTO wide.tiles (tile, chunk, body) VALUES ({tile}, {chunk}, 0x{body})")
    # In memtables, then in files.
    for flushed in (False, True):
        for node in uneven.nodes if flushed else ():
            node.nodetool("flush", "wide")
        (known,) = reading.estimates(AccessNodes(ops.for_lab(uneven.name)), ["wide.tiles"])["wide.tiles"]
        # Nodes count partitions by a sketch.
        assert abs(known.partitions - partitions) <= 1, flushed
        assert 0.95 < known.bytes / (partitions * chunks * size) < 1.1, flushed


def insert(cluster: lab.Cluster, table: str, numbers: range, text: str, consistency: str) -> None:
    with cluster.nodes[0].connect() as connection:
        for first in range(numbers.start, numbers.stop, 100):
            rows = "".join(
                f"INSERT INTO {table} (id, text) VALUES ({number}, '{text}');" for number in range(first, first + 100)
            )
            connection.run(f"BEGIN UNLOGGED BATCH {rows} APPLY BATCH", consistency=consistency)


def make_uneven(cluster: lab.Cluster, table: str, begin: int) -> None:
    """Write rows while the last node is away, and bring it back."""
    node = cluster.nodes[2]
    node.stop()
    wait_until_seen_down(cluster, node)
    insert(cluster, table, range(begin, begin + ROWS), "x" * 200, "ONE")
    node.start()


def rows_of(cluster: lab.Cluster, node: lab.Node, table: str) -> set[str]:
    """The rows that a node has itself."""
    statement = f"SELECT id FROM {table} WHERE id >= 0 ALLOW FILTERING"
    return {row[0] for row in support_lab.read_alone(cluster, node, statement)}


@pytest.mark.slow
def test_replicas_that_differ_agree_after_a_repair_that_was_killed_and_lost_a_node(
    uneven: lab.Cluster, tmp_path: Path
) -> None:
    make_uneven(uneven, TABLE, 0)
    work = Repair.of(context(uneven), tables=[TABLE], capacity_mbit=100)
    assert "differ" in preview_differences(context(uneven), [TABLE])
    journals = tmp_path / "journals"

    def segments_done() -> list[tuple[int, int]]:
        (path,) = journals.glob("*.jsonl")
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        return [(entry["start"], entry["end"]) for entry in entries if entry["event"] == "segment"]

    # Killed after some segments: a line each, after those of the limit and the beginning.
    assert run_apart(uneven, journals, work, 8).returncode == -9
    before = segments_done()
    assert before
    output: list[str] = []

    def echo(line: str) -> None:
        output.append(line)
        if len(segments_done()) == len(before) + 3 and not lost.is_set():
            lost.set()
            uneven.nodes[1].kill()
            threading.Timer(8, lambda: uneven.nodes[1].start(wait=False)).start()

    lost = threading.Event()
    kept = run(work, context(uneven, echo), journals)
    assert lost.is_set()
    done = segments_done()
    assert len(done) == len(set(done)), "no segment is repaired twice"
    assert done[: len(before)] == before
    assert sum(width(*one) for one in done) == SIZE
    assert any(entry["event"] == "segment-failed" for entry in kept.entries) or any(
        "waiting" in line for line in output
    )
    assert "a preview has nothing to stream" in "".join(entry["seen"] for entry in kept.of("done"))
    assert not preview_differences(context(uneven), [TABLE])
    assert rows_of(uneven, uneven.nodes[2], TABLE) == {str(number) for number in range(ROWS)}
    for node in uneven.nodes:
        assert "201.326592" in node.nodetool("getstreamthroughput", "-d"), "the limit is what it was"


@pytest.mark.slow
def test_a_small_table_is_repaired_a_node_at_a_time_and_none_twice(uneven: lab.Cluster, tmp_path: Path) -> None:
    make_uneven(uneven, SMALL, 0)
    work = Repair.of(context(uneven), tables=[SMALL])
    assert "3 nodes." in plan(work, context(uneven)).cost[0]
    # Killed when the first of them is done.
    assert run_apart(uneven, tmp_path, work, 2).returncode == -9
    (path,) = tmp_path.glob("*.jsonl")
    assert '"event": "node"' in path.read_text()
    kept = run(work, context(uneven), tmp_path)
    addresses = sorted(node.address for node in uneven.nodes)
    assert [entry["address"] for entry in kept.of("node")] == addresses
    assert not list(kept.of("segment"))
    assert not preview_differences(context(uneven), [SMALL])
    assert rows_of(uneven, uneven.nodes[2], SMALL) == {str(number) for number in range(ROWS)}


@contextlib.contextmanager
def bytes_towards(cluster: lab.Cluster, node: lab.Node) -> Iterator[list[tuple[float, int]]]:
    """What the wire to a node has carried, as times and bytes, looked at five times a second."""
    seen: list[tuple[float, int]] = []
    ended = threading.Event()
    veth = network.Namespaces(cluster.state.prefix).veth(node.index)
    # What the end in the bridge sends is what the node receives.
    counter = Path("/sys/class/net", veth, "statistics/tx_bytes")

    def look() -> None:
        while not ended.wait(0.2):
            seen.append((time.monotonic(), int(counter.read_text())))

    worker = threading.Thread(target=look)
    worker.start()
    try:
        yield seen
    finally:
        ended.set()
        worker.join()


def mbit_in_windows(seen: list[tuple[float, int]], seconds: float) -> list[float]:
    """The mean rate of each window of so many seconds, in Mbit/s."""
    found = []
    for number, (began, before) in enumerate(seen):
        after = next(((t, count) for t, count in seen[number:] if t >= began + seconds), None)
        if after is not None:
            found.append((after[1] - before) * 8e-6 / (after[0] - began))
    return found


BLOB_BYTES = 32 << 10
BLOBS = 480


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [2, 1], ids=["parts-of-files", "whole-files"])
def test_what_a_repair_streams_to_a_node_stays_within_the_capacity(
    uneven: lab.Cluster, tmp_path: Path, partitions: int
) -> None:
    if uneven.state.network != "namespaces":
        pytest.skip("NO NETWORK OF ITS OWN: what goes to a node cannot be counted")
    capacity_mbit, table, node = 20.0, f"uneven.blobs{partitions}", uneven.nodes[2]

    def limits() -> list[str]:
        return [one.nodetool("getstreamthroughput", word) for one in uneven.nodes for word in ("-d", "-e")]

    with uneven.nodes[0].connect() as connection:
        connection.run(f"CREATE TABLE {table} (part int, id int, blob blob, PRIMARY KEY (part, id))")
        node.stop()
        wait_until_seen_down(uneven, node)
        for number in range(BLOBS):
            values = f"{number % partitions}, {number}, 0x{os.urandom(BLOB_BYTES).hex()}"
            connection.run(f"INSERT INTO {table} (part, id, blob) VALUES ({values})", consistency="TWO")
        node.start()
    before = limits()
    work = Repair.of(context(uneven), tables=[table], capacity_mbit=capacity_mbit)
    with bytes_towards(uneven, node) as seen:
        run(work, context(uneven), tmp_path / "journals")
    assert seen[-1][1] - seen[0][1] > BLOBS * BLOB_BYTES
    seconds = 3.0
    rates = mbit_in_windows(seen, seconds)
    assert max(rates) > capacity_mbit / 4, "no stream was seen"
    # A node that has sent nothing for a while has saved up what it may send in a second.
    assert max(rates) < capacity_mbit * (1 + 1 / seconds) * 1.05
    assert not preview_differences(context(uneven), [table])
    assert limits() == before


class SelectedRanges(AccessNodes):
    """Tells of the ring only the ranges in which some tokens lie: a repair of the others would take minutes for
    nothing."""

    def __init__(self, cluster: lab.Cluster, tokens: list[int]) -> None:
        super().__init__(ops.for_lab(cluster.name))
        self.tokens = tokens

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        output = super().nodetool(address, *arguments, timeout_s=timeout_s)
        return "\n".join(filter(self._near, output.splitlines())) if arguments[0] == "describering" else output

    def _near(self, line: str) -> bool:
        ends = [int(found) for found in re.findall(r"_token:(-?\d+)", line)]
        return bool(ends) and any(width(ends[0], token) <= width(*ends) for token in self.tokens)


class Hanging(SelectedRanges):
    """A node hangs from the first repair on, for longer than that may take."""

    def __init__(self, cluster: lab.Cluster, tokens: list[int], node: lab.Node, seconds: float) -> None:
        super().__init__(cluster, tokens)
        self.node, self.seconds = node, seconds
        self.hung = False

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        if arguments[0] == "repair" and not self.hung:
            self.hung = True
            self.node.pause()
            threading.Timer(self.seconds, self.node.resume).start()
        return super().nodetool(address, *arguments, timeout_s=timeout_s)


LATE_S = 10.0
"""Sooner than nodes end a repair themselves because one of them does not answer."""


def repaired_while_a_node_hangs(cluster: lab.Cluster, table: str, begin: int, journals: Path) -> journal.Journal:
    """Repair where some rows lie that a node lacks; the first command is late. Checks that it ended well."""
    make_uneven(cluster, table, begin)
    numbers = [begin, begin + 1, begin + 2]
    with cluster.nodes[0].connect() as connection:
        found = connection.run(f"SELECT token(id) FROM {table} WHERE id IN {tuple(numbers)}", consistency="ALL").rows
    assert len(found) == len(numbers)
    hanging = Hanging(cluster, [int(token) for (token,) in found], cluster.nodes[1], LATE_S + 5)
    work = Repair.of(context(cluster), tables=[table], segment_s=LATE_S)
    kept = run(work, dataclasses.replace(context(cluster), nodes=hanging), journals)
    assert hanging.hung
    ranges = reading.ring(hanging, table.partition(".")[0])
    assert sum(entry["width"] for entry in kept.of("segment")) == sum(one.width for one in ranges)
    assert rows_of(cluster, cluster.nodes[2], table) >= set(map(str, numbers))
    return kept


@pytest.mark.slow
def test_a_repair_that_is_late_is_ended_and_goes_on_in_smaller_segments(uneven: lab.Cluster, tmp_path: Path) -> None:
    kept = repaired_while_a_node_hangs(uneven, TABLE, ROWS, tmp_path)
    # On a busy machine others may be late, too.
    late = next(entry for entry in kept.of("segment-failed") if entry["timed_out"])
    done = [entry for entry in kept.of("segment") if entry["start"] == late["start"]]
    assert done
    assert done[0]["width"] <= width(late["start"], late["end"]) // 2 + 1


@pytest.mark.slow
def test_a_small_table_that_is_late_is_repaired_in_segments(uneven: lab.Cluster, tmp_path: Path) -> None:
    kept = repaired_while_a_node_hangs(uneven, SMALL, ROWS, tmp_path)
    assert not list(kept.of("node"))
