"""``chronotile lab``: real Cassandra clusters on this machine."""

from __future__ import annotations

import json
from typing import Any

import click

from chronotile import lab as laboratory
from chronotile.cli.common import bytes_text, table_text
from chronotile.lab import cluster as clusters
from chronotile.lab import config, making, state
from chronotile.lab.errors import LabError, LabNotFoundError

ENVIRONMENT = "CHRONOTILE_LAB"
NAME_DEFAULT = "lab"

Command = Any


def _echo(line: str) -> None:
    click.echo(line, err=True)


def cluster_option(command: Command) -> Command:
    """The option that names the cluster; without it the only one there is."""
    return click.option(
        "-c", "--cluster", "name", metavar="NAME", envvar=ENVIRONMENT,
        help=f"The cluster; not needed when there is only one. [env: {ENVIRONMENT}]",
    )(command)  # fmt: skip


def _find(name: str | None) -> laboratory.Cluster:
    if name is not None:
        return laboratory.attach(name)
    names = state.names()
    if not names:
        raise LabNotFoundError("there is no cluster: chronotile lab up starts one")
    if len(names) > 1:
        raise click.UsageError(f"Say which cluster with -c: {', '.join(names)}.")
    return laboratory.attach(names[0])


@click.group(short_help="Run real Cassandra clusters on this machine.")
def lab() -> None:
    """Run real Cassandra clusters of several nodes on this machine, to develop, test, measure and rehearse on.

    \b
    Examples:
        chronotile lab up --nodes 3
        chronotile lab status
        chronotile lab down
    """


@lab.command(short_help="Start a cluster.")
@click.argument("name", default=NAME_DEFAULT)
@click.option("--nodes", type=click.IntRange(1, 60), help="Nodes of one data centre.  [default: 3]")
@click.option("--dc", metavar="CENTRES", help="Data centres instead: 2x3 (two of three nodes) or east:3,west:2.")
@click.option("--racks", type=click.IntRange(1, 60), default=1, show_default=True, help="Racks a data centre.")
@click.option("--version", metavar="VERSION", help="5.0, 4.1, 4.0, 3.11, or a full number.")
@click.option("--heap", default="512m", show_default=True, metavar="SIZE", help="Heap of each node.")
@click.option("--auth", is_flag=True, help="Ask clients for user and password.")
@click.option("--tls", is_flag=True, help="Encrypt clients' connections.")
@click.option("--client-certificates", is_flag=True, help="Refuse clients without a certificate too.")
@click.option(
    "--network", type=click.Choice(["auto", "loopback", "namespaces"]), default="auto", show_default=True,
    help="Nodes can be cut off only with namespaces, which needs root.",
)  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of cassandra.yaml; may repeat.")
@click.option("--timeout", "timeout_s", type=click.IntRange(1), default=300, show_default=True, metavar="SECONDS")
def up(name: str, settings: tuple[str, ...], client_certificates: bool, tls: bool, **options: Any) -> None:
    """Start a cluster and wait until all its nodes serve.

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
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(name: str | None, as_json: bool) -> None:
    """Show the nodes of a cluster: process, memory, and whether they take clients.

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
            row["node"],
            row["address"],
            row["status"],
            "yes" if row["serves"] else "no",
            f"{row['dc']}/{row['rack']}",
            row["version"],
            str(row["pid"] or "-"),
            bytes_text(row["memory_bytes"]),
            f"{row['cpu_s']:.0f}",
        ]
        for row in rows
    ]
    click.echo(table_text(header, table, frozenset({6, 7, 8})))


def _node_facts(node: laboratory.Node) -> dict[str, Any]:
    known = node.status
    return {
        "node": node.name,
        "address": node.address,
        "status": known,
        "serves": known == "up" and node.serves(),
        "dc": node.dc,
        "rack": node.rack,
        "version": node.version,
        "pid": node.pid,
        "memory_bytes": node.memory_bytes,
        "cpu_s": node.cpu_s,
    }


def _cluster_facts(cluster: laboratory.Cluster) -> dict[str, Any]:
    found = cluster.state
    return {
        "name": found.name,
        "status": found.status,
        "version": found.version,
        "network": found.network,
        "url": cluster.url(),
        "folder": str(cluster.folder),
        "auth": found.auth,
        "tls": found.tls,
    }


@lab.command(short_help="End a cluster and remove its data.")
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every cluster of this user.")
def down(name: str | None, every: bool) -> None:
    """End all processes of a cluster and remove its folder, with all data.

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
            raise click.UsageError(f"Say which cluster: {', '.join(names)}." if names else "There is no cluster.")
        names = [name or names[0]]
    for one in names:
        clusters.take_down(one)
        click.echo(f"cluster {one} is down, its folder removed")


@lab.command("list", short_help="List the clusters.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_clusters(as_json: bool) -> None:
    """List the clusters of this user, those that were never finished too.

    \b
    Example:
        chronotile lab list
    """
    rows = making.survey()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif not rows:
        _echo("no clusters: chronotile lab up starts one")
    else:
        header = ["name", "status", "nodes", "running", "version", "network", "addresses"]
        table = [[str(row[column]) for column in header] for row in rows]
        click.echo(table_text(header, table, frozenset({2, 3})))


__all__ = ["LabError", "lab"]
