"""Consolidation of a survey's tiles on three nodes: each dataset by itself, or those that share slices together.

    ./dev bench maintenance [--visits N] [--detectors N] [--repeat N]

Starts three nodes with `chronotile lab` (1 GiB of heap each, RF 3) and stores a simulated night with the LSST's schema
in one database for each kind of consolidation and repetition, detector-visit by detector-visit. Then each database is
consolidated once, the kinds in turn: `Dataset.consolidate` of one dataset of the survey's group after the other, or one
`Group.consolidate` of all. The reports must be the same. The first database of each kind is discarded. Writes
maintenance.md and maintenance.json to bench/results/."""

from __future__ import annotations

import argparse
import json
import statistics
import time

import common
from cluster import Measured, measured

from chronotile import apdb
from chronotile.apdb import names
from chronotile.reports import ConsolidateReport
from chronotile_tools import lab
from chronotile_tools.survey.simulate import ChronotileDriver, Survey, Universe
from chronotile_tools.survey.simulate.universe import PADDING_DEG

SETTLES_S = 20.0
"""Time between the last write and the consolidation, which takes twice as long right after a write."""
KINDS = ("each dataset by itself", "datasets that share slices together")


def fill(cluster: lab.Cluster, universe: Universe, keyspace: str) -> None:
    """Store all detector-visits."""
    url = cluster.url(keyspace)
    apdb.create(url, universe.schema).close()
    driver = ChronotileDriver(url)
    for visit in range(universe.survey.visits):
        for detector in range(universe.survey.detectors):
            e = universe.survey.exposure(visit, detector)
            known = driver.read(e.footprint(PADDING_DEG), e.mjd).known
            driver.store(e, driver.rows(universe.observe(e, known)))
    driver.close()


def consolidate(cluster: lab.Cluster, keyspace: str, kind: str, into: Measured) -> dict[str, ConsolidateReport]:
    """Consolidate the datasets of the group; returns the report of each."""
    with apdb.open(cluster.url(keyspace)) as database:
        group = database.archive.group(names.GROUP)
        with measured(cluster, into):
            if kind == KINDS[0]:
                return {name: group[name].consolidate() for name in group}
            return group.consolidate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=4)
    parser.add_argument("--detectors", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=4)
    arguments = parser.parse_args()
    load = common.load_average()
    universe = Universe(Survey(arguments.visits, arguments.detectors, 1), apdb.Schema.read())
    samples = {kind: Measured() for kind in KINDS}
    with lab.up(nodes=3, heap="1g") as cluster:
        for number in range(arguments.repeat + 1):
            common.say(f"turn {number} of {arguments.repeat}")
            # The order of filling changes in every other turn, so that it is independent of the order of consolidation.
            for place, _ in common.rotated(list(enumerate(KINDS)), number // 2):
                fill(cluster, universe, f"survey_{number}_{place}")
            time.sleep(SETTLES_S)
            reports = {}
            for place, kind in common.rotated(list(enumerate(KINDS)), number):
                into = samples[kind] if number else Measured()
                reports[kind] = consolidate(cluster, f"survey_{number}_{place}", kind, into)
            counts = [
                sorted((name, each.tiles, each.chunks_before, each.chunks_after) for name, each in found.items())
                for found in reports.values()
            ]
            if counts[0] != counts[1] or any(report.failed for found in reports.values() for report in found.values()):
                raise SystemExit(f"the kinds did different work: {counts}")
    tiles = {name: report.tiles for name, report in reports[KINDS[1]].items()}
    total = sum(tiles.values())
    lines = [
        [
            kind, common.spread(each.ms), common.digits(statistics.median(each.ms) / total),
            common.digits(statistics.median(each.server_cpu_ms) / total),
            common.digits(statistics.median(each.client_cpu_ms) / total),
        ]
        for kind, each in samples.items()
    ]  # fmt: skip
    header = [
        "consolidation of",
        "ms",
        "ms for a tile",
        "processor of the nodes, ms a tile",
        "of the client, ms a tile",
    ]
    text = "\n\n".join([
        "# Consolidation of a survey",
        f"{total:,} tiles ({', '.join(f'{count:,} of {name}' for name, count in tiles.items() if count)}) after "
        f"{arguments.visits} visits of {arguments.detectors} detectors; three nodes, RF 3, QUORUM. Medians "
        "(least-largest).",
        common.table(header, lines),
        f"{common.versions()}, commit {common.commit()}.\n{common.hardware()}. Load average at the start {load:.1f}.",
    ])  # fmt: skip
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "maintenance.md").write_text(text + "\n")
    record = [{"consolidation": kind, "tiles": total, **vars(each)} for kind, each in samples.items()]
    (common.RESULTS / "maintenance.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
