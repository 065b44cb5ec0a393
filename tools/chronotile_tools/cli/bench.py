"""``chronotile bench``: what a cluster does under load, and what a larger one would carry."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chronotile.cli.common import json_option
from chronotile.conditions import names
from chronotile.terminal import bytes_text, table_text

EXPERIMENTS = ("consistency", "growing-reads", "overload", "requests", "scaling", "versions", "windows")
"""Their names; loading them takes what the other commands do without."""


@click.group(short_help="Load tests of clusters, and capacity plans.")
def bench() -> None:
    """Load tests of clusters, and capacity plans.

    \b
    Examples:
        chronotile bench cluster consistency --quick --out report
        chronotile bench cluster scaling --out scaling
        chronotile bench plan scaling/results.json --nodes 12 --disks 4
    """


Command = Callable[..., Any]


def _measure(name: str, words: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=click.FloatRange(min=0), metavar="NUMBER", help=words)


@bench.command(short_help="Run an experiment on nodes of its own.")
@click.argument("experiment", type=click.Choice(EXPERIMENTS))
@click.option("--quick", is_flag=True, help="Within about three minutes: less data, shorter runs.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
    help="Where samples, results and the report go.  [default: EXPERIMENT in the working directory]",
)  # fmt: skip
@click.option("--url", metavar="URL", help="An empty keyspace of a cluster that exists: consistency, growing-reads.")
@click.option("--heap", default="400m", show_default=True, metavar="SIZE", help="Heap of each node.")
@click.option(
    "--versions",
    default="4.1,5.0",
    show_default=True,
    metavar="OLD,NEW",
    help="What is compared: of 3.11, 4.0, 4.1, 5.0.",
)
@click.option("--run-seconds", "run_s", type=click.FloatRange(0.4), metavar="SECONDS", help="Length of each run.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of random schedules.")
def cluster(experiment: str, out: Path | None, versions: str, **options: Any) -> None:
    """Run an experiment and write samples.jsonl, worker-N.hlog, results.json and report.html.

    \b
    requests       requests A to D on 1, 3 (2 live), 3, 4 (3 live) and 4 nodes
    overload       one, two, three nodes without processor time
    growing-reads  long reads until overload
    consistency    ONE, QUORUM and ALL
    versions       two versions side by side
    scaling        copies and nodes, for the read of a survey; what plan starts from
    windows        three ways to divide time

    Nodes are those of `chronotile lab`, and end with the command. What is measured on one machine is relative.

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
    click.echo(done.report.text(table_text))
    click.echo(f"\nreport: {folder / 'report.html'}")


@bench.command(short_help="What a stated cluster would carry.")
@click.argument("results", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="[RESULTS]")
@click.option("--nodes", type=int, default=12, show_default=True, help="Nodes of the cluster.")
@click.option("--replication", type=int, default=3, show_default=True, help="Copies of each row.")
@click.option("--consistency", default="QUORUM", show_default=True, help="How many of them a read asks.")
@click.option(
    "--speed", "core_speed", type=float, default=1.0, show_default=True, help="A node's speed over the measured one's."
)
@click.option("--disks", type=int, default=1, show_default=True, help="Disks of a node.")
@click.option("--disk-tb", type=float, default=4.0, show_default=True, help="Size of a disk, 10^12 bytes.")
@click.option("--disk-fill-max", type=float, default=0.5, show_default=True, help="Share of a disk that data may take.")
@click.option("--busy-max", type=float, default=0.5, show_default=True, help="Share of its time a node may be busy.")
@click.option("--clients", type=int, default=189, show_default=True, help="Clients that ask at once.")
@click.option("--visits-per-day", type=float, default=800.0, show_default=True, help="Visits, averaged over the year.")
@click.option("--visit-s", type=float, default=45.0, show_default=True, help="Seconds from one visit to the next.")
@click.option("--history-days", type=float, default=360.0, show_default=True, help="How long rows are read and kept.")
@click.option(
    "--after-visits", type=float, metavar="NUMBER", help="After so many visits; by default with a full history."
)
@_measure("measured-visits", "Visits in the history that was read.")
@_measure("read-node-s", "Seconds of one node that a client's read takes.")
@_measure("store-node-s", "Seconds of one node that a client's store takes.")
@_measure("read-alone-s", "Seconds of a read when nothing else goes on.")
@_measure("store-rows", "Rows of a store.")
@_measure("bytes-per-row", "Bytes of a row on disk, one copy.")
@_measure("partition-bytes", "Bytes of the largest partition.")
@click.option("--measured-replication", type=int, metavar="COPIES", help="Copies when that was measured.")
@click.option("--measured-consistency", metavar="LEVEL", help="Consistency level when that was measured.")
@json_option
def plan(results: Path | None, after_visits: float | None, as_json: bool, **given: Any) -> None:
    """Say what a stated cluster would carry: seconds of a read, load of its nodes, bytes on its disks.

    RESULTS is results.json of `chronotile bench cluster scaling`. Each measure in it can be given instead; without
    RESULTS, --measured-visits and --read-node-s must be. All assumptions are printed. The exit code is 1 when the
    cluster would not do.

    \b
    Examples:
        chronotile bench plan scaling/results.json --nodes 12 --disks 4
        chronotile bench plan --measured-visits 180000 --read-node-s 0.16 --replication 1 --consistency ONE
    """
    from chronotile_tools import load

    measured = _measured(results, given)
    demand = load.Demand(**{name: given[name] for name in ("clients", "visits_per_day", "visit_s", "history_days")})
    cluster = load.Cluster(**{part.name: given[part.name] for part in dataclasses.fields(load.Cluster)})
    found = load.plan(measured, demand, cluster, visits=after_visits)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=2))
    else:
        click.echo(_text(found, cluster))
    if found.problems:
        raise click.exceptions.Exit(1)


def _measured(results: Path | None, given: dict[str, Any]) -> Any:
    from chronotile_tools import load

    options = {part.name: part.name for part in dataclasses.fields(load.Measured)}
    options |= {name: f"measured_{name}" for name in ("visits", "replication", "consistency")}
    values = {name: given[option] for name, option in options.items() if given[option] is not None}
    if results is not None:
        return load.Measured.from_results(results, values)
    missing = [f"--{options[name].replace('_', '-')}" for name in ("visits", "read_node_s") if name not in values]
    if missing:
        raise click.UsageError(f"Give RESULTS of an experiment, or {' and '.join(missing)}.")
    return load.Measured(**values)


def _text(found: Any, cluster: Any) -> str:
    needed = "no number would do" if found.nodes_needed is None else f"{found.nodes_needed:,}"
    rows = [["visits in the history", f"{found.visits:,.0f}"], ["read, all clients at once", _seconds(found.read_s)]]
    if found.store_s:
        rows.append(["store, all clients at once", _seconds(found.store_s)])
    rows.append(["time a node is busy", f"{found.busy:.1%} of {cluster.busy_max:.0%}"])
    if found.bytes_per_node:
        rows.append(["data of a node", bytes_text(found.bytes_per_node)])
        rows.append(["disks filled", f"{found.disk_fill:.1%} of {cluster.disk_fill_max:.0%}"])
    if found.partition_bytes:
        rows.append(["largest partition", bytes_text(found.partition_bytes)])
    rows.append(["fewest nodes that would do", needed])
    text = table_text([f"{cluster.nodes} nodes", ""], rows, frozenset({1}))
    lines = [text, "", *(f"problem: {problem}" for problem in found.problems), "Assumed:"]
    return "\n".join([*lines, *(f"- {line}" for line in found.assumptions)])


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
