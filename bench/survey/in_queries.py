"""Ways to query the cells of a footprint in the CQL tables of a survey.

    ./dev bench in_queries [--visits N] [--repeat N]

Starts three nodes with `chronotile lab` (1 GiB of heap each, RF 3) and stores twelve months of a simulated detector's
visits. For each of several slice lengths (a slice is a table on the nodes) there are two databases: one with a
partition for each cell, and one where neighbouring cells share partitions. Then the chunks of a footprint are read with
cassandra-driver at QUORUM, all requests concurrently: from the first with `WHERE cell IN ?` for each table and with
`WHERE cell = ?` for each partition, from the second with `WHERE part = ? AND cell IN ?` for each partition. All must
return the same number of rows. Writes in_queries.md and in_queries.json to bench/results/."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import re
import statistics
from typing import Any

import common
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from cluster import Measured, measured

from chronotile import apdb
from chronotile.apdb import names
from chronotile.apdb.layout import Layout
from chronotile_tools import lab
from chronotile_tools.survey.simulate import ChronotileDriver, Survey, Universe
from chronotile_tools.survey.simulate.universe import PADDING_DEG

SLICES = ("30d", "120d", "360d")
KINDS = ("one by partition", "IN", "shared partitions")


def layout_of(length: str, shared: bool) -> Layout:
    """A layout with slices of this length, with or without shared partitions."""
    window = length if length == "30d" else "120d"
    layout = Layout(window=window, slice=length)
    return layout if shared else dataclasses.replace(layout, partition_levels=0, object_partition_levels=0)


def fill(cluster: lab.Cluster, universe: Universe, length: str, shared: bool) -> str:
    """Fill and maintain a database; returns its keyspace."""
    survey, keyspace = universe.survey, f"{'shared' if shared else 'alone'}_{length}"
    url = cluster.url(keyspace)
    apdb.create(url, universe.schema, layout_of(length, shared)).close()
    driver = ChronotileDriver(url)
    for visit in range(survey.visits):
        e = survey.exposure(visit, 0)
        known = driver.read(e.footprint(PADDING_DEG), e.mjd).known
        driver.store(e, driver.rows(universe.observe(e, known)))
    driver.close()
    with apdb.open(url) as database:
        database.maintain()
    return keyspace


def chunk_tables(session: Any, keyspace: str) -> dict[str, str]:
    """The chunk tables of objects, sources and forced sources, each with the survey table that it belongs to."""
    found = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", [keyspace])
    of = {names.dataset_name(table): table for table in names.MAIN_TABLES}
    matched = (re.fullmatch(rf"c_({'|'.join(of)})_m?\d+", row.table_name) for row in found)
    return {match[0]: of[match[1]] for match in matched if match}


class Reader:
    """One way to query the cells of a footprint, in one keyspace."""

    def __init__(self, session: Any, keyspace: str, kind: str, layout: Layout, cells: list[int]) -> None:
        self.session = session
        self.requests: list[tuple[Any, list[Any]]] = []
        for name, table in sorted(chunk_tables(session, keyspace).items()):
            select = f"SELECT chunk_id, row_count, head, body FROM {keyspace}.{name}"
            if kind == "IN":
                self.requests.append((session.prepare(f"{select} WHERE cell IN ?"), [cells]))
            elif kind == "shared partitions":
                many, together = (
                    session.prepare(f"{select} WHERE part = ? AND cell IN ?"),
                    layout.partition_cells(table),
                )
                for part, some in itertools.groupby(cells, lambda cell, together=together: cell // together):
                    self.requests.append((many, [part, list(some)]))
            else:
                one = session.prepare(f"{select} WHERE cell = ?")
                self.requests += [(one, [cell]) for cell in cells]

    def read(self) -> int:
        """Read the chunks; returns their number of rows."""
        answers = execute_concurrent(
            self.session, self.requests, concurrency=len(self.requests), raise_on_first_error=True
        )
        chunks = {row.chunk_id: row.row_count for answer in answers for row in answer.result_or_exc if row.head}
        return sum(chunks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=24)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    load = common.load_average()
    universe = Universe(Survey(arguments.visits, 1, arguments.visits, 360 / arguments.visits), apdb.Schema.read())
    footprint = universe.survey.footprint(0, 0, PADDING_DEG)
    cells = [cell for low, high in footprint.cover("mq3c", Layout().level) for cell in range(low, high)]
    with lab.up(nodes=3, heap="1g") as cluster:
        keyspaces = {
            (length, shared): fill(cluster, universe, length, shared) for length in SLICES for shared in (False, True)
        }
        profile = ExecutionProfile(
            consistency_level=ConsistencyLevel.QUORUM, request_timeout=60,
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
        )  # fmt: skip
        driver = Cluster(cluster.contact_points, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        session = driver.connect()
        readers = {}
        for length, kind in itertools.product(SLICES, KINDS):
            shared = kind == "shared partitions"
            layout = layout_of(length, shared)
            readers[length, kind] = Reader(session, keyspaces[length, shared], kind, layout, cells)
        samples = {key: Measured() for key in readers}
        for number in range(arguments.repeat + 1):
            common.say(f"turn {number} of {arguments.repeat}")
            for length in SLICES:
                if not number and len({readers[length, kind].read() for kind in KINDS}) != 1:
                    raise SystemExit("the kinds of request gave different rows")
                for kind in common.rotated(list(KINDS), number):
                    with measured(cluster, samples[length, kind] if number else Measured()):
                        readers[length, kind].read()
        requests = {key: len(reader.requests) for key, reader in readers.items()}
        driver.shutdown()
    lines = [
        [
            length, kind, str(requests[length, kind]), common.spread(each.ms),
            common.digits(statistics.median(each.server_cpu_ms)), common.digits(statistics.median(each.client_cpu_ms)),
        ]
        for (length, kind), each in samples.items()
    ]  # fmt: skip
    header = ["slices", "requests", "how many", "ms", "processor of the nodes, ms", "of the client, ms"]
    text = "\n\n".join([
        "# Ways to query the cells of a footprint",
        f"The chunks of {len(cells)} cells of a footprint, twelve months of {arguments.visits} visits, after "
        "maintenance; three nodes, RF 3, QUORUM; cassandra-driver. Medians (least-largest).",
        common.table(header, lines),
        f"{common.versions('cassandra-driver')}, commit {common.commit()}.\n{common.hardware()}. Load average at the "
        f"start {load:.1f}.",
    ])  # fmt: skip
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "in_queries.md").write_text(text + "\n")
    record = [{"slices": length, "requests": kind, **vars(each)} for (length, kind), each in samples.items()]
    (common.RESULTS / "in_queries.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
