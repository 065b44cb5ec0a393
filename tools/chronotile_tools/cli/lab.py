"""``chronotile lab``: real Cassandra clusters on this machine."""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, overload

import click

from chronotile.cli.common import confirm, json_option, yes_option
from chronotile.cli.plugins import LateGroup
from chronotile.terminal import bytes_text, table_text
from chronotile_tools import lab as laboratory
from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.lab import cluster as clusters
from chronotile_tools.lab import config, launching, making, shell, state
from chronotile_tools.lab.errors import LabError, LabNotFoundError, LabTimeoutError

ENVIRONMENT = "CHRONOTILE_LAB"
NAME_DEFAULT = "lab"
FOLLOW_S = 0.3

Command = Any


def _echo(line: str) -> None:
    click.echo(line, err=True)


def cluster_option(command: Command) -> Command:
    """Add the option that selects a cluster; by default the only one."""
    return click.option(
        "-c", "--cluster", "name", metavar="NAME", envvar=ENVIRONMENT,
        help=f"Cluster name; optional if there is only one cluster. [env: {ENVIRONMENT}]",
    )(command)  # fmt: skip


def _find(name: str | None) -> laboratory.Cluster:
    if name is not None:
        return laboratory.attach(name)
    names = state.names()
    if not names:
        raise LabNotFoundError("no clusters: start one with chronotile lab up")
    if len(names) > 1:
        raise click.UsageError(f"Select a cluster with -c: {', '.join(names)}.")
    return laboratory.attach(names[0])


class Nodes(Sequence[laboratory.Node]):
    """The nodes selected by a command, and their cluster."""

    def __init__(self, cluster: laboratory.Cluster, which: Sequence[str]) -> None:
        self.cluster = cluster
        self._nodes = [cluster.node(one) for one in which]

    def __len__(self) -> int:
        return len(self._nodes)

    @overload
    def __getitem__(self, place: int) -> laboratory.Node: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[laboratory.Node]: ...

    def __getitem__(self, place: int | slice) -> laboratory.Node | Sequence[laboratory.Node]:
        return self._nodes[place]


def nodes_arguments(command: Command) -> Command:
    """Add the arguments ``NODE...`` and the cluster option; the command gets `nodes`."""
    required = command.__name__ != "restart"

    @functools.wraps(command)
    def run(name: str | None, which: tuple[str, ...], **options: Any) -> Any:
        return command(nodes=Nodes(_find(name), which), **options)

    metavar = "NODE..." if required else "[NODE]..."
    return cluster_option(click.argument("which", nargs=-1, required=required, metavar=metavar)(run))


wait_option = click.option(
    "--wait/--no-wait", default=True, help="Wait until the node serves clients.  [default: wait]"
)


@click.group(cls=LateGroup, short_help="Run real Cassandra clusters on this machine.")
def lab() -> None:
    """Run real multi-node Cassandra clusters on this machine, for development, tests, measurements and rehearsals.

    \b
    Examples:
        chronotile lab up --nodes 3
        chronotile lab status
        chronotile lab kill 2
        chronotile lab start 2
        chronotile lab cql -e "DESCRIBE KEYSPACES"
        chronotile lab down

    NODE is a number, a name (node2) or an address.
    """


@lab.command(short_help="Start a cluster.")
@click.argument("name", default=NAME_DEFAULT)
@click.option("--nodes", type=click.IntRange(1, 60), help="Number of nodes in one data centre.  [default: 3]")
@click.option("--dc", metavar="CENTRES", help="Data centres instead: 2x3 (two of three nodes) or east:3,west:2.")
@click.option("--racks", type=click.IntRange(1, 60), default=1, show_default=True, help="Racks per data centre.")
@click.option("--version", metavar="VERSION", help="5.0, 4.1, 4.0, 3.11, or a full number.")
@click.option("--heap", default="512m", show_default=True, metavar="SIZE", help="Heap of each node.")
@click.option("--auth", is_flag=True, help="Require user and password.")
@click.option("--tls", is_flag=True, help="Encrypt client connections.")
@click.option("--client-certificates", is_flag=True, help="Also require a client certificate.")
@click.option(
    "--network", type=click.Choice(["auto", "loopback", "namespaces"]), default="auto", show_default=True,
    help="Kind of network. Cutting nodes off requires namespaces, which need root.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Setting of cassandra.yaml; repeatable.")
@click.option(
    "--java-option", "java_options", multiple=True, metavar="OPTION", help="Java option of the nodes; repeatable."
)
@click.option("--timeout", "timeout_s", type=click.IntRange(1), default=300, show_default=True, metavar="SECONDS")
def up(name: str, settings: tuple[str, ...], client_certificates: bool, tls: bool, **options: Any) -> None:
    """Start a cluster and wait until all nodes serve clients.

    \b
    Examples:
        chronotile lab up
        chronotile lab up old --nodes 1 --version 4.0
        chronotile lab up secure --auth --tls --heap 400m
        chronotile lab up wide --dc 2x3 --set hinted_handoff_enabled=false
    """
    cluster = laboratory.up(
        name,
        settings=config.read_settings(settings),
        tls="mutual" if client_certificates else tls,
        keep=True,
        echo=_echo,
        **options,
    )
    click.echo(cluster.url())


@lab.command(short_help="Show a cluster's nodes.")
@cluster_option
@json_option
def status(name: str | None, as_json: bool) -> None:
    """Show the nodes of a cluster: process, memory, and whether they accept clients.

    \b
    Example:
        chronotile lab status
    """
    cluster = _find(name)
    rows = [_node_facts(node) for node in cluster.nodes]
    if as_json:
        click.echo(json.dumps({**_cluster_facts(cluster), "nodes": rows}, indent=2))
        return
    found = cluster.state
    click.echo(f"cluster {found.name}: Cassandra {found.version}, {found.network} network, {found.status}")
    if found.failure:
        click.echo(found.failure)
    header = ["node", "address", "status", "clients", "place", "version", "pid", "memory", "cpu_s"]
    table = [
        [
            row["node"], row["address"], row["status"], "yes" if row["serves"] else "no", f"{row['dc']}/{row['rack']}",
            row["version"], str(row["pid"] or "-"), bytes_text(row["memory_bytes"]), f"{row['cpu_s']:.0f}",
        ]
        for row in rows
    ]  # fmt: skip
    click.echo(table_text(header, table, frozenset({6, 7, 8})))


def _node_facts(node: laboratory.Node) -> dict[str, Any]:
    facts: dict[str, Any] = {"node": node.name, "address": node.address, "status": node.status}
    facts["serves"] = facts["status"] == "up" and node.serves()
    return facts | {name: getattr(node, name) for name in ("dc", "rack", "version", "pid", "memory_bytes", "cpu_s")}


def _cluster_facts(cluster: laboratory.Cluster) -> dict[str, Any]:
    found = cluster.state
    facts = {name: getattr(found, name) for name in ("name", "status", "version", "network", "auth", "tls")}
    return facts | {"url": cluster.url(), "folder": str(cluster.folder)}


@lab.command(short_help="Add a node.")
@cluster_option
@click.option("--dc", metavar="NAME", help="Data centre. [default: that of the first node]")
@click.option("--rack", metavar="NAME", help="Rack. [default: the one with the fewest nodes]")
@click.option("--heap", metavar="SIZE", help="Heap size. [default: that of the cluster]")
def add(name: str | None, **options: Any) -> None:
    """Add a node and wait until it has streamed its data and serves clients.

    \b
    Example:
        chronotile lab add --rack rack2
    """
    node = _find(name).add(**options, echo=_echo)
    click.echo(f"{node.name} serves at {node.address}")


@lab.command(short_help="Start a node that is down.")
@nodes_arguments
@click.option("--address", metavar="ADDRESS", help="Change its address; `new` chooses a free one.")
@click.option("--version", metavar="VERSION", help="Run another version of Cassandra on the same data.")
@wait_option
def start(nodes: Nodes, address: str | None, version: str | None, wait: bool) -> None:
    """Start nodes that are down, and wait until they serve clients.

    \b
    Examples:
        chronotile lab start 2
        chronotile lab start 2 --address new
        chronotile lab start 1 --version 5.0
    """
    if address is not None and len(nodes) > 1:
        raise click.UsageError("Set the address of one node at a time.")
    for node in nodes:
        # Start all at once: a node may need another one to start.
        node.start(address=address, version=version, wait=False, echo=_echo)
    for node in nodes if wait else ():
        node.wait_until_ready(echo=_echo)


def _add_simple(name: str, short: str, about: str, example: str, done: str, act: Callable[..., object]) -> None:
    """Add a command that performs one action on each node."""

    def run(nodes: Nodes) -> None:
        for node in nodes:
            act(node)
            click.echo(f"{node.name} is {done}")

    run.__name__, run.__doc__ = name, f"{about}\n\n\b\nExample:\n    chronotile lab {name} {example}\n"
    lab.command(name, short_help=short)(nodes_arguments(run))


for _simple in (
    ("stop", "Stop a node.", "Stop nodes gracefully (SIGTERM).", "2", "stopped", laboratory.Node.stop),
    ("kill", "Kill a node.", "Kill nodes (SIGKILL), like a crash or a power cut.", "2 3",
     "killed", laboratory.Node.kill),
    ("pause", "Suspend a node.", "Suspend nodes (SIGSTOP): connections stay open without answers.", "2", "paused",
     laboratory.Node.pause),
    ("resume", "Resume a paused node.", "Resume paused nodes (SIGCONT).", "2", "resumed", laboratory.Node.resume),
    ("cut", "Cut a node off the network.",
     "Cut nodes off from the other nodes and from clients. Requires a cluster with network namespaces.", "3",
     "cut off", laboratory.Node.cut),
    ("heal", "Reconnect nodes that were cut off.", "Reconnect a node.", "3", "reconnected", laboratory.Node.heal),
    ("drain", "Flush a node and stop it from serving.",
     "Flush nodes to disk and stop serving clients; their processes keep running.", "2", "drained",
     laboratory.Node.drain),
    ("remove", "Remove a dead node.",
     "Permanently remove nodes that are down; the others restore their replicas from each other.", "3", "removed",
     laboratory.Node.remove),
):  # fmt: skip
    _add_simple(*_simple)


@lab.command(short_help="Decommission a node.")
@nodes_arguments
@click.option("--force", is_flag=True, help="Proceed even if fewer nodes remain than a keyspace's replication factor.")
def decommission(nodes: Nodes, force: bool) -> None:
    """Permanently remove live nodes after they have streamed their data to the others.

    \b
    Example:
        chronotile lab decommission 4
    """
    for node in nodes:
        node.decommission(force=force)
        click.echo(f"{node.name} has left")


@lab.command(short_help="Replace a dead node.")
@nodes_arguments
@click.option("--same-address", is_flag=True, help="Reuse the address of the old node.")
def replace(nodes: Nodes, same_address: bool) -> None:
    """Permanently replace nodes that are down by new ones.

    \b
    Example:
        chronotile lab replace 3
    """
    for node in nodes:
        fresh = node.replace(same_address=same_address, echo=_echo)
        click.echo(f"{fresh.name} at {fresh.address} replaced {node.name}")


@lab.command(short_help="Restart nodes one at a time.")
@nodes_arguments
@click.option("--version", metavar="VERSION", help="Switch to another version: a rolling upgrade.")
@click.option("--new-addresses", is_flag=True, help="Give each node a new address.")
def restart(nodes: Nodes, version: str | None, new_addresses: bool) -> None:
    """Restart nodes one at a time, waiting for each to serve clients again. Default: all nodes.

    \b
    Examples:
        chronotile lab restart
        chronotile lab restart --version 5.0
    """
    nodes.cluster.restart(list(nodes) or None, version=version, new_addresses=new_addresses, echo=_echo)
    click.echo("restarted")


@lab.command(
    short_help="Run nodetool on a node.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@cluster_option
@click.argument("node")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def nodetool(name: str | None, node: str, arguments: tuple[str, ...]) -> None:
    """Run nodetool on a node.

    \b
    Examples:
        chronotile lab nodetool 1 status
        chronotile lab nodetool 2 repair --full survey
    """
    click.echo(_find(name).node(node).nodetool(*(arguments or ("help",))), nl=False)


@lab.command(short_help="Show a node's log.")
@cluster_option
@click.argument("node")
@click.option("--tail", "lines", type=click.IntRange(0), default=50, show_default=True, metavar="LINES")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until interrupted.")
@click.option("--output", is_flag=True, help="Show its standard output instead of its log.")
def logs(name: str | None, node: str, lines: int, follow: bool, output: bool) -> None:
    """Show the end of a node's log.

    \b
    Examples:
        chronotile lab logs 2 --tail 200
        chronotile lab logs 2 -f
    """
    found = _find(name).node(node)
    path = found.folder / "logs" / "output.log" if output else found.log
    shown, end = launching.tail(path, 0)
    for line in shown[len(shown) - min(lines, len(shown)) :]:
        click.echo(line)
    while follow:
        time.sleep(FOLLOW_S)
        if path.exists() and path.stat().st_size < end:
            end = 0
        shown, end = launching.tail(path, end)
        for line in shown:
            click.echo(line)


@lab.command(short_help="Run CQL statements.")
@cluster_option
@click.argument("node", default="")
@click.option("-e", "--execute", "text", metavar="CQL", help="Statements to run. Default: read from standard input.")
@click.option(
    "--consistency", type=click.Choice(list(wire.CONSISTENCIES), case_sensitive=False), default="ONE", show_default=True
)
@click.option("--timeout", "timeout_s", type=click.IntRange(1), default=30, show_default=True, metavar="SECONDS")
def cql(name: str | None, node: str, text: str | None, consistency: str, timeout_s: int) -> None:
    """Run CQL statements as superuser, on the first node that serves clients by default. Without statements, start a
    simple shell.

    \b
    Examples:
        chronotile lab cql -e "DESCRIBE KEYSPACES"
        chronotile lab cql 2 --consistency ALL < statements.cql
    """
    cluster = _find(name)
    found = cluster.node(node) if node else _serving(cluster)
    try:
        with found.connect(timeout_s=timeout_s) as connection:
            if text is None and sys.stdin.isatty():
                _converse(connection, found, consistency)
                return
            for statement, _ in shell.statements(sys.stdin.read() if text is None else text):
                _show(connection.run(statement, consistency=consistency))
    except OSError as error:
        raise LabTimeoutError(f"{found.name} at {found.address}: {error}") from error


def _serving(cluster: laboratory.Cluster) -> laboratory.Node:
    for node in cluster.nodes:
        if node.status == "up" and node.serves():
            return node
    raise LabError(f"no node of cluster {cluster.name} serves clients: see chronotile lab status", kind="lab-cql")


def _converse(connection: wire.Connection, node: laboratory.Node, consistency: str) -> None:
    """Read statements from a terminal and answer each, until the end of input."""
    _echo(f"{node.name} at {node.address}; statements end with ;  and ^D ends")
    pending = ""
    while True:
        try:
            pending += input("   ... " if pending else "cql> ") + "\n"
        except EOFError:
            click.echo()
            return
        found = list(shell.statements(pending))
        if found and not found[-1][1]:
            continue
        pending = ""
        for statement, _ in found:
            if statement.lower() in ("exit", "quit"):
                return
            try:
                _show(connection.run(statement, consistency=consistency))
            except CqlError as error:
                _echo(f"error: {error}")


def _show(rows: wire.Rows) -> None:
    for warning in rows.warnings:
        _echo(f"warning: {warning}")
    if rows.columns:
        click.echo(shell.table(rows))


@lab.command(short_help="Stop a cluster and delete its data.")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="All clusters of this user.")
@yes_option
def down(name: str | None, every: bool, yes: bool) -> None:
    """Stop all processes of a cluster and delete its folder with all data. On a terminal, asks for confirmation.

    \b
    Examples:
        chronotile lab down
        chronotile lab down --all
    """
    if every and name is not None:
        raise click.UsageError("Give a name or --all, not both.")
    names = state.names()
    if not every:
        if name is None and len(names) != 1:
            raise click.UsageError(f"Select a cluster: {', '.join(names)}." if names else "No clusters.")
        names = [name or names[0]]
    # Without a terminal, do not ask: a script only takes down clusters that it started.
    if names and sys.stdin.isatty():
        confirm(f"Stop {', '.join(names)} and delete all data?", yes)
    for one in names:
        clusters.take_down(one)
        click.echo(f"cluster {one} is down, and its folder was removed")


@lab.command("list", short_help="List the clusters.")
@json_option
def list_clusters(as_json: bool) -> None:
    """List the clusters of this user, including unfinished ones.

    \b
    Example:
        chronotile lab list
    """
    rows = making.survey()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        _echo("no clusters: start one with chronotile lab up")
    else:
        header = ["name", "status", "nodes", "running", "version", "network", "addresses"]
        table = [[str(row[column]) for column in header] for row in rows]
        click.echo(table_text(header, table, frozenset({2, 3})))
