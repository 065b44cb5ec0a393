"""``chronotile bench``: load tests of clusters, and capacity plans."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chronotile.cli.common import json_option
from chronotile.cli.plugins import LateGroup
from chronotile.conditions import names
from chronotile.terminal import bytes_text, count_text, table_text

EXPERIMENTS = (
    "consistency", "expansion", "growing-reads", "outage", "overload", "requests", "scaling", "versions", "windows",
)  # fmt: skip
"""Names of experiments, listed here so that other commands need not import them."""


@click.group(cls=LateGroup, short_help="Run load tests of clusters, and plan capacity.")
def bench() -> None:
    """Load tests of clusters, and capacity plans.

    \b
    Examples:
        chronotile bench cluster consistency --quick --out report
        chronotile bench cluster scaling --out scaling
        chronotile bench plan --nodes 12 --disks 4
    """


Command = Callable[..., Any]


def _measure(name: str, words: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=click.FloatRange(min=0), metavar="NUMBER", help=words)


@bench.command(short_help="Run an experiment on nodes of its own.")
@click.argument("experiment", type=click.Choice(EXPERIMENTS))
@click.option("--quick", is_flag=True, help="Finish within about three minutes: less data, shorter runs.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Output folder for samples, results and the report.  [default: EXPERIMENT in the working directory]",
)  # fmt: skip
@click.option(
    "--url", metavar="URL", help="Use an empty keyspace of an existing cluster (consistency and growing-reads only)."
)
@click.option("--heap", default="400m", show_default=True, metavar="SIZE", help="Heap of each node.")
@click.option(
    "--versions",
    default="4.1,5.0",
    show_default=True,
    metavar="OLD,NEW",
    help="Versions to compare: two of 3.11, 4.0, 4.1, 5.0, 6.0.",
)
@click.option("--run-seconds", "run_s", type=click.FloatRange(0.4), metavar="SECONDS", help="Length of each run.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Random seed of schedules.")
@json_option
def cluster(experiment: str, out: Path | None, versions: str, as_json: bool, **options: Any) -> None:
    """Run an experiment and write samples.jsonl, worker-N.hlog, results.json and report.html.

    \b
    requests       requests A to D on 1, 3, 3 (2 live), 4 and 4 (3 live) nodes
    overload       none to three of three nodes starved of CPU time
    growing-reads  long reads until the cluster falls behind
    outage         a node down, and the delivery of its hints
    expansion      a fourth node, and the cleanup after it
    consistency    ONE, QUORUM and ALL
    versions       two versions under the same load
    scaling        survey reads by nodes and replicas; input of plan
    windows        three ways to partition time

    The command starts laboratory nodes and stops them at the end. Figures from one machine are relative.

    \b
    Examples:
        chronotile bench cluster consistency --quick
        chronotile bench cluster versions --versions 3.11,4.0 --out upgrade
        chronotile bench cluster growing-reads --url cassandra://10.0.0.1/try
    """
    from chronotile_tools.load import experiments

    pair = tuple(names(versions) or [])
    if len(pair) != 2:
        raise click.BadParameter("give two, such as 4.1,5.0", param_hint="--versions")
    settings = experiments.Settings(versions=pair, **options)
    folder = out or Path(experiment)
    done = experiments.run(experiment, folder, settings, lambda line: click.echo(line, err=True))
    if as_json:
        click.echo((folder / "results.json").read_text(encoding="utf-8"), nl=False)
        return
    click.echo(done.report.text(table_text))
    click.echo(f"\nreport: {folder / 'report.html'}")


@bench.command(short_help="Plan the capacity of a cluster.")
@click.argument("results", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[RESULTS]")
@click.option(
    "--costs",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with costs that replace those of Chronotile's benchmarks.",
)
@click.option(
    "--cores",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Processors per node, used with the benchmarks' costs.",
)
@click.option("--nodes", type=int, default=12, show_default=True, help="Number of nodes.")
@click.option("--replication", type=int, default=3, show_default=True, help="Replication factor.")
@click.option("--consistency", default="QUORUM", show_default=True, help="Consistency level of reads.")
@click.option(
    "--speed",
    "core_speed",
    type=float,
    default=1.0,
    show_default=True,
    help="Speed of a node relative to the measured one.",
)
@click.option("--disks", type=int, default=1, show_default=True, help="Disks per node.")
@click.option("--disk-tb", type=float, default=4.0, show_default=True, help="Size of a disk, 10^12 bytes.")
@click.option("--disk-fill-max", type=float, default=0.5, show_default=True, help="Largest share of a disk for data.")
@click.option(
    "--busy-max", type=float, default=0.5, show_default=True, help="Largest share of time for which a node may be busy."
)
@click.option(
    "--maintenance-hours",
    "maintenance_h_max",
    type=float,
    default=8.0,
    show_default=True,
    help="Hours available for one day's maintenance.",
)
@click.option(
    "--tiles-per-day",
    type=click.FloatRange(min=0),
    metavar="NUMBER",
    help="Tiles that maintenance rewrites per day.  [default: those of the published survey]",
)
@click.option("--clients", type=int, default=189, show_default=True, help="Concurrent clients.")
@click.option(
    "--visits-per-day", type=float, default=800.0, show_default=True, help="Visits per day, averaged over the year."
)
@click.option("--visit-s", type=float, default=45.0, show_default=True, help="Seconds from one visit to the next.")
@click.option(
    "--history-days", type=float, default=360.0, show_default=True, help="Days for which rows are read and kept."
)
@click.option(
    "--after-visits", type=float, metavar="NUMBER", help="Plan for this many visits. Default: a full history."
)
@_measure("measured-visits", "Visits in the history of the measured read.")
@_measure("read-node-s", "Node seconds per read of a client.")
@_measure("store-node-s", "Node seconds per store of a client.")
@_measure("read-alone-s", "Seconds of a read on an idle cluster.")
@_measure("store-rows", "Rows per store.")
@_measure("bytes-per-row", "Bytes per row on disk, in one replica.")
@_measure("partition-bytes", "Size of the largest partition in bytes.")
@_measure("tile-s", "Process seconds per tile that maintenance rewrites.")
@_measure("tile-node-s", "Node seconds per tile that maintenance rewrites.")
@click.option("--measured-replication", type=int, metavar="COPIES", help="Replication factor of the measurement.")
@click.option("--measured-consistency", metavar="LEVEL", help="Consistency level of the measurement.")
@json_option
def plan(
    results: Path | None, costs: Path | None, cores: int, after_visits: float | None, as_json: bool, **given: Any
) -> None:
    """Plan the capacity of a cluster: read times, load of its nodes, bytes on its disks, daily maintenance.

    RESULTS is results.json of `chronotile bench cluster scaling`. Without it, the costs are those of Chronotile's
    benchmarks, unless --measured-visits and --read-node-s give others. Options replace single measures. Prints all
    assumptions. The exit code is 1 if the cluster does not suffice.

    \b
    Examples:
        chronotile bench plan --nodes 12 --disks 4 --maintenance-hours 6
        chronotile bench plan scaling/results.json --nodes 12
        chronotile bench plan --measured-visits 180000 --read-node-s 0.16 --replication 1 --consistency ONE
    """
    from chronotile_tools import load

    measured = _measured(results, costs, cores, given)
    survey = load.SurveyLoad()
    names = ("clients", "visits_per_day", "visit_s", "history_days", "tiles_per_day")
    demand = load.Demand(**{**{name: given[name] for name in names}, "tiles_per_day": (
        survey.tiles_a_night if given["tiles_per_day"] is None else given["tiles_per_day"]
    )})  # fmt: skip
    cluster = load.Cluster(**{part.name: given[part.name] for part in dataclasses.fields(load.Cluster)})
    found = load.plan(measured, demand, cluster, visits=after_visits)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        click.echo(_text(found, cluster))
    if found.problems:
        raise click.exceptions.Exit(1)


def _measured(results: Path | None, costs: Path | None, cores: int, given: dict[str, Any]) -> Any:
    from chronotile_tools import load

    options = {part.name: part.name for part in dataclasses.fields(load.Measured)}
    options |= {name: f"measured_{name}" for name in ("visits", "replication", "consistency")}
    values = {name: given[option] for name, option in options.items() if given[option] is not None}
    if results is not None:
        if costs is not None:
            raise click.UsageError("Give RESULTS of an experiment or --costs, not both.")
        return load.Measured.from_results(results, values)
    needed = [name for name in ("visits", "read_node_s") if name in values]
    if costs is not None or not needed:
        return load.Measured.from_costs(load.Costs.read(costs), values, cores=cores)
    missing = [f"--{options[name].replace('_', '-')}" for name in ("visits", "read_node_s") if name not in values]
    if missing:
        raise click.UsageError(
            f"Also give {' and '.join(missing)}: a cost is valid only for the history it was measured with."
        )
    return load.Measured(**values)


def _text(found: Any, cluster: Any) -> str:
    needed = "no number suffices" if found.nodes_needed is None else f"{found.nodes_needed:,}"
    rows = [["visits in the history", f"{found.visits:,.0f}"], ["read, all clients at once", _seconds(found.read_s)]]
    if found.store_s:
        rows.append(["store, all clients at once", _seconds(found.store_s)])
    rows.append(["time a node is busy", f"{found.busy:.1%} of {cluster.busy_max:.0%}"])
    if found.bytes_per_node:
        rows.append(["data of a node", bytes_text(found.bytes_per_node)])
        rows.append(["disks filled", f"{found.disk_fill:.1%} of {cluster.disk_fill_max:.0%}"])
    if found.partition_bytes:
        rows.append(["largest partition", bytes_text(found.partition_bytes)])
    if found.maintenance:
        work = found.maintenance
        rows.append(["tiles rewritten per day", f"{work.tiles:,.0f}"])
        rows.append(
            [
                f"maintenance within {cluster.maintenance_h_max:g} h",
                f"{work.processes:,} process{'es' if work.processes > 1 else ''}",
            ]
        )
        rows.append(["time a node is busy with maintenance", f"{work.busy:.1%} of {cluster.busy_max:.0%}"])
    rows.append(["fewest nodes that suffice", needed])
    text = table_text([f"{count_text(cluster.nodes, 'node')}", ""], rows, frozenset({1}))
    lines = [text, "", *(f"problem: {problem}" for problem in found.problems), "Assumed:"]
    return "\n".join([*lines, *(f"- {line}" for line in found.assumptions)])


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
