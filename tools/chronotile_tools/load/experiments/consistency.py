"""Cost of consistency levels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from chronotile_tools import published
from chronotile_tools.load.arms import Arm, Comparison, run_arms
from chronotile_tools.load.experiments.base import Bench, with_parameters
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["run"]

LEVELS = ("ONE", "QUORUM", "ALL")


def run(bench: Bench) -> None:
    """Reads and writes at ONE, QUORUM and ALL on three nodes with replication factor 3."""
    quick = bench.settings.quick
    seconds = bench.seconds(3, 20)
    reads, writes = (10.0, 3.0) if quick else (40.0, 10.0)
    bench.measure_harness(reads + writes, clients=16)
    with bench.url(nodes=3) as (url, _):
        history = History(url, tags=20, days=2 if quick else 10, step_s=10)
        bench.echo(f"storing {history.values:,} values")
        history.store()

        fresh = itertools.count()

        def streams(level: str, number: int) -> Sequence[Stream]:
            at, seed = with_parameters(url, consistency=level), bench.settings.seed + number
            warm_up = min(1.0, seconds / 3)
            asked = Schedule.poisson(reads, seconds, warm_up_s=warm_up, seed=seed)
            given = Schedule.fixed(writes, seconds, warm_up_s=warm_up)
            return [
                Stream("read", Ranges(at, history, days=1), asked, clients=16),
                Stream("write", Writes(at, history, 100, run=next(fresh)), given, clients=8),
            ]

        arms = [Arm(level, functools.partial(streams, level)) for level in LEVELS]
        runs = run_arms(bench.generator, arms, done=bench.keep)
    bench.show_latencies("Reads of a day of a tag, writes of 100 values", runs, LEVELS)
    found = bench.show_comparisons(runs, LEVELS)
    _compare_with_published(bench, found)


def _compare_with_published(bench: Bench, found: Sequence[Comparison]) -> None:
    ours = {(each.arm, each.stream): each.difference for each in found if each.what == "mean" and not each.is_control}
    rows = []
    for level, ratios in published.CONSISTENCY.items():
        for stream, ratio in ratios.items():
            here = ours.get((level, stream))
            cells = ["", ""] if here is None else [f"{here.ratio:.2f}", f"{here.low:.2f} to {here.high:.2f}"]
            rows.append([f"{level} over ONE, {stream}", f"{ratio:.2f}", *cells])
    words = (
        "Ratios of mean response times. A write here is a batch, whose record is written by lightweight transaction at "
        "every level, so levels differ less than for single rows."
    )
    bench.report.table("Comparison with published figures", words, ["", "published", "here", "95 % interval"], rows)
