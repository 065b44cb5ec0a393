"""Options of chunk tables on a cluster: compaction, compression, and speculative retry.

    ./dev bench tables [--visits N] [--repeat N]

Starts three nodes with `chronotile lab` (1 GiB of heap each), and stores the visits of `./dev bench survey` once for
each choice of options at QUORUM and RF 3, in turns of some visits each. After each turn the nodes flush their memory to
files, as a busy node does by itself, so that compaction has work. The first choice occurs twice, as an A/A control: the
difference between the two shows the noise of the figures. Then a footprint of 12 tiles is read over 12 months, in
turns, before and after the chunks are consolidated. Finally one node is paused several times, and footprints are read
while the other nodes have not yet noticed. Answers are compared bit for bit before reads are timed. A warm-up runs
everything once first, so that the nodes' code is compiled. Writes tables.md, tables.svg and tables.json to
bench/results/.
"""

from __future__ import annotations

import argparse
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import common
from cluster import Chronotile, Measured, check_equal, disk_bytes, measured
from survey import Workload, footprint, make_visits

import chronotile as ct
from chronotile_tools import lab

CHOICES: dict[str, dict[str, object]] = {
    "as made": {},
    "size-tiered": {"compaction": "SizeTieredCompactionStrategy"},
    "time-window": {"compaction": "TimeWindowCompactionStrategy"},
    "unified": {"compaction": "UnifiedCompactionStrategy"},
    "LZ4": {"compression": "LZ4Compressor"},
    "as made, again": {},
}
RETRIES: dict[str, dict[str, object]] = {
    f"{retry}, client {client}": {"speculative_retry": retry, "speculative_ms": client}
    for retry in ("99p", "NONE")
    for client in (0, 500)
}
TURNS = 6
PAUSES = 3
QUIET_S = 120
Samples = dict[str, dict[str, Measured]]


def into(samples: Samples, what: str, name: str) -> Measured:
    return samples.setdefault(what, {}).setdefault(name, Measured())


def on_all(cluster: lab.Cluster, *arguments: str) -> list[str]:
    """Output of a nodetool command on each node."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(lambda node: node.nodetool(*arguments), cluster.nodes))


def settle(cluster: lab.Cluster) -> None:
    """Wait until no node compacts."""
    deadline = time.monotonic() + QUIET_S
    while not all(re.search(r"pending tasks\W+0\b", output) for output in on_all(cluster, "compactionstats")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the nodes still compact after {QUIET_S} s")


def store_in_turns(cluster: lab.Cluster, systems: list[Chronotile], visits: list[Any], samples: Samples) -> None:
    """Store all visits in each system; also measures whole turns, which include flushes and compactions."""
    length = max(1, len(visits) // TURNS)
    for turn, start in enumerate(range(0, len(visits), length)):
        for system in common.rotated(systems, turn):
            with measured(cluster, into(samples, "store a turn, files and compactions included", system.name)):
                for number, rows in enumerate(visits[start : start + length], start):
                    with measured(cluster, into(samples, "store a visit", system.name)):
                        system.store(number, rows)
                on_all(cluster, "flush", system.keyspace)
                settle(cluster)


def files(cluster: lab.Cluster, system: Chronotile) -> int:
    """Number of data files with chunks on all nodes."""
    folders = [node.folder / "data" / "data" / system.keyspace for node in cluster.nodes]
    return sum(1 for folder in folders for _ in folder.glob("[ch]_*/*-Data.db"))


def read(
    cluster: lab.Cluster, systems: list[Chronotile], work: Workload, repeat: int, samples: Samples, what: str
) -> None:
    for number in range(repeat + 1):
        for system in common.rotated(list(systems), number):
            cells = footprint(work, number)
            # The first round warms caches and is discarded.
            with measured(cluster, into(samples, what, system.name) if number else Measured()):
                system.read(cells)


def read_while_paused(cluster: lab.Cluster, systems: list[Chronotile], work: Workload, samples: Samples) -> None:
    """In turns: pause one node, and read footprints in the two seconds before the others notice."""
    for turn in range(PAUSES):
        for system in common.rotated(systems, turn):
            system.read(footprint(work, 0))
            cluster.nodes[2].pause()
            try:
                end, number = time.monotonic() + 2, 1
                while time.monotonic() < end:
                    with measured(cluster, into(samples, "read while a node hangs, unnoticed yet", system.name)):
                        system.read(footprint(work, number))
                    number += 1
            finally:
                cluster.nodes[2].resume()
            cluster.wait_until_ready()


def run(cluster: lab.Cluster, work: Workload, repeat: int) -> tuple[Samples, dict[str, Any]]:
    visits = make_visits(work)
    samples: Samples = {}
    extra: dict[str, Any] = {"rows": sum(rows.num_rows for rows in visits)}
    common.say("warming the nodes up")
    warm = Chronotile(cluster, "warm-up")
    store_in_turns(cluster, [warm], visits, {})
    read(cluster, [warm], work, repeat, {}, "")
    warm.consolidate()
    warm.close()
    common.say(f"storing {extra['rows']:,} rows in {len(CHOICES)} systems")
    systems = [Chronotile(cluster, name, **options) for name, options in CHOICES.items()]
    store_in_turns(cluster, systems, visits, samples)
    check_equal(list(systems), work)
    for when in ("before", "after"):
        if when == "after":
            common.say("consolidating")
            for system in systems:
                with measured(cluster, into(samples, "consolidate, once", system.name)):
                    system.consolidate()
            settle(cluster)
            check_equal(list(systems), work)
        extra[f"bytes, {when}"] = disk_bytes(cluster, list(systems))
        extra[f"files, {when}"] = {system.name: files(cluster, system) for system in systems}
        common.say(f"reading {when} consolidation")
        read(cluster, systems, work, repeat, samples, f"read a footprint, 12 months ({when} consolidation)")
    for system in systems:
        system.close()
    common.say("reading while a node hangs")
    retrying = [Chronotile(cluster, name, **options) for name, options in RETRIES.items()]
    store_in_turns(cluster, retrying, visits[: len(visits) // 4], {})
    read_while_paused(cluster, retrying, work, samples)
    for system in retrying:
        system.close()
    return samples, extra


def report(work: Workload, repeat: int, load: float, samples: Samples, extra: dict[str, Any]) -> str:
    names = list(CHOICES)
    chosen = {what: found for what, found in samples.items() if names[0] in found}

    def rows_of(part: str) -> list[list[str]]:
        return [
            [what, *(common.spread(getattr(found[name], part)) for name in names)] for what, found in chosen.items()
        ]

    counts = [
        [f"bytes a row on disk, all copies, {when} consolidation"]
        + [f"{extra[f'bytes, {when}'][name] / extra['rows']:.0f}" for name in names]
        for when in ("before", "after")
    ]
    counts += [
        [f"data files on three nodes, {when} consolidation", *(str(extra[f"files, {when}"][name]) for name in names)]
        for when in ("before", "after")
    ]
    hung = samples["read while a node hangs, unnoticed yet"]
    paused = [[name, str(len(found.ms)), common.spread(found.ms)] for name, found in hung.items()]
    return f"""# Options of the tables of chunks

{work.text}.
Three nodes of Cassandra {lab.versions.DEFAULT} on this machine, 1 GiB of heap each; RF 3, QUORUM.
Median (least-largest) of {repeat} samples, of {work.visits} for stores.
All choices returned the same rows, compared bit for bit.

{common.table(["wall ms", *names], rows_of("ms"))}

{common.table(["server CPU ms, all nodes", *names], rows_of("server_cpu_ms"))}

{common.table(["", *names], counts)}

One node hangs; reads in the two seconds after that (speculative retry of servers, and of the client in ms; 0: never):

{common.table(["speculation", "reads ended", "wall ms"], paused)}

chronotile {ct.__version__}, {common.versions("pyarrow", "numpy")}, commit {common.commit()}.
{common.hardware()}. Load average at the start {load:.1f}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=60, help="visits stored (default 60, over 12 months)")
    parser.add_argument("--repeat", type=int, default=11, help="samples of each read (default 11)")
    arguments = parser.parse_args()
    work = Workload(48, arguments.visits)
    load = common.load_average()
    with lab.up("tables", nodes=3, heap="1g", echo=common.say) as cluster:
        samples, extra = run(cluster, work, arguments.repeat)
    text = report(work, arguments.repeat, load, samples, extra)
    title = f"Table options: {work.visits} visits, ms"
    common.save_report("tables", title, text, samples, workload=work.text, **extra)


if __name__ == "__main__":
    main()
