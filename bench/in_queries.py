"""One query with IN against one query per partition, on the nodes' own tables of a survey.

    python bench/in_queries.py [--visits N] [--repeat N]

Starts three nodes with `chronotile lab` (1 GiB of heap each, RF 3) and stores a simulated detector's visits of twelve
months in databases whose slices (each a table on the nodes) are of several lengths. Then the chunks of a footprint are
read with cassandra-driver at QUORUM, all requests under way at once: `WHERE cell IN ?` once for each table, and `WHERE
cell = ?` once for each partition. The same bytes must come. Writes in_queries.md and in_queries.json to
bench/results/."""

from __future__ import annotations

import argparse
import json
import re
import statistics
from typing import Any

import common
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from cluster import Measured, measured, rotated
from survey import say

from chronotile import apdb, lab
from chronotile.apdb import names
from chronotile.apdb.layout import Layout
from chronotile.apdb.simulate import ChronotileDriver, Survey, Universe
from chronotile.apdb.simulate.universe import PADDING_DEG

SLICES = ("30d", "120d", "360d")
KINDS = ("IN", "one by partition")


def fill(cluster: lab.Cluster, universe: Universe, length: str) -> str:
    """A maintained database with slices of this length; its keyspace."""
    survey, keyspace = universe.survey, f"in_{length}"
    url = cluster.url(keyspace)
    window = length if length == "30d" else "120d"
    apdb.create(url, universe.schema, Layout(window=window, slice=length)).close()
    driver = ChronotileDriver(url)
    for visit in range(survey.visits):
        known, _, _ = driver.read(survey.footprint(visit, 0, PADDING_DEG), survey.time(visit))
        driver.store(survey.time(visit), visit, 0, universe.look(visit, 0, known))
    driver.close()
    with apdb.open(url) as database:
        database.maintain()
    return keyspace


def chunk_tables(session: Any, keyspace: str) -> list[str]:
    """The tables of the chunks of objects, sources and forced sources."""
    found = session.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", [keyspace])
    wanted = "|".join(names.dataset_name(table) for table in names.MAIN_TABLES)
    return sorted(row.table_name for row in found if re.fullmatch(rf"c_({wanted})_m?\d+", row.table_name))


class Reader:
    """Both kinds of request for the cells of a footprint."""

    def __init__(self, session: Any, keyspace: str, cells: list[int]) -> None:
        self.session, self.cells = session, cells
        self.tables = chunk_tables(session, keyspace)
        select = f"SELECT chunk_id, head, body FROM {keyspace}."
        self.many = [session.prepare(f"{select}{table} WHERE cell IN ?") for table in self.tables]
        self.one = [session.prepare(f"{select}{table} WHERE cell = ?") for table in self.tables]

    def read(self, kind: str) -> list[tuple[bytes, bytes, bytes]]:
        """Chunks, by id."""
        if kind == "IN":
            requests = [(statement, [self.cells]) for statement in self.many]
        else:
            requests = [(statement, [cell]) for statement in self.one for cell in self.cells]
        answers = execute_concurrent(self.session, requests, concurrency=len(requests), raise_on_first_error=True)
        chunks = {(row.chunk_id, row.head, row.body) for answer in answers for row in answer.result_or_exc}
        return sorted(chunk for chunk in chunks if chunk[1] is not None)


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
        keyspaces = {length: fill(cluster, universe, length) for length in SLICES}
        profile = ExecutionProfile(
            consistency_level=ConsistencyLevel.QUORUM, request_timeout=60,
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
        )  # fmt: skip
        driver = Cluster(cluster.contact_points, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        session = driver.connect()
        readers = {length: Reader(session, keyspace, cells) for length, keyspace in keyspaces.items()}
        samples = {(length, kind): Measured() for length in SLICES for kind in KINDS}
        for number in range(arguments.repeat + 1):
            say(f"turn {number} of {arguments.repeat}")
            for length, reader in readers.items():
                if not number and reader.read(KINDS[0]) != reader.read(KINDS[1]):
                    raise SystemExit("the two kinds of request gave different chunks")
                for kind in rotated(list(KINDS), number):
                    with measured(cluster, samples[length, kind] if number else Measured()):
                        reader.read(kind)
        requests = {length: (len(each.tables), len(each.tables) * len(cells)) for length, each in readers.items()}
        driver.shutdown()
    lines = [
        [
            length, kind, str(requests[length][kind != "IN"]), common.spread(each.ms),
            common.digits(statistics.median(each.server_cpu_ms)), common.digits(statistics.median(each.client_cpu_ms)),
        ]
        for (length, kind), each in samples.items()
    ]  # fmt: skip
    header = ["slices", "requests", "how many", "ms", "processor of the nodes, ms", "of the client, ms"]
    text = "\n\n".join([
        "# One query with IN against one query per partition",
        f"The chunks of {len(cells)} cells of a footprint, twelve months of {arguments.visits} visits, after upkeep; "
        "three nodes, RF 3, QUORUM; cassandra-driver. Medians (least-largest).",
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
