"""``chronotile serve``: an archive over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from datetime import UTC, datetime
from typing import Any

import click

from chronotile import _native
from chronotile.archive import Archive
from chronotile.cli.common import ParamType, Size, Target, target, timeout_option, with_options
from chronotile.cli.plugins import node_diagnostics
from chronotile.errors import ArchiveNotFoundError, ChronotileError
from chronotile.service import FrontEnds
from chronotile.times import duration_ns


class Duration(ParamType[float]):
    """A duration in seconds."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        try:
            return duration_ns(value, "it") / 10**9
        except ValueError:
            known = "w, d, h, m, s, ms"
            message = f"invalid duration {value!r}: give a number and one of {known}, such as 30s"
            raise click.BadParameter(message, ctx, param) from None


def _nodes_options(command: Any) -> Any:
    """Add options for storing metrics of nodes, if chronotile-tools is installed."""
    hook = node_diagnostics()
    return command if hook is None else hook.options(command)


def _limit(option: str, default: Any, type: Any, help: str) -> Any:
    return click.option(option, default=default, type=type, show_default=True, help=help)


_AT_LEAST_ONE = click.IntRange(1)
_limits = with_options(
    click.option("--memory", type=Size(), metavar="SIZE",
                 help="Memory for request bodies, queries and answers together; more requests get 503. Default: half "
                 "of the machine's memory, or of its control group's limit."),
    _limit("--max-body", "64MiB", Size(), "Largest request body, before and after decompression."),
    _limit("--max-points", 10_000_000, _AT_LEAST_ONE, "Most rows in an answer."),
    _limit("--max-tags", 10_000, _AT_LEAST_ONE, "Most tags in a request."),
    _limit("--max-range", "3660d", Duration(), "Longest period of a request; its intervals are summed."),
    _limit("--max-queries", 64, _AT_LEAST_ONE, "Most queries at a time."),
    _limit("--max-writes", 64, _AT_LEAST_ONE, "Most writes at a time."),
    click.option("--max-connections", type=_AT_LEAST_ONE,
                 help="Most connections at a time; a further one replaces an idle one. Default: 1024, or less if the "
                 "limit of open files requires."),
    _limit("--query-time", "60s", Duration(), "Longest time for a query, including its answer."),
    _limit("--client-time", "30s", Duration(),
           "Longest time for a client to send a request, or to read a part of an answer."),
    _limit("--stop-time", "30s", Duration(), "Longest time to finish requests after SIGTERM."),
    _limit("--definitions-time", "5m", Duration(), "Time after which definitions changed by other processes are seen."),
    _limit("--max-future", "1d", Duration(), "Reject points further ahead of this machine's clock."),
)  # fmt: skip


@click.command(short_help="Serve an archive over HTTP: process history, events, jobs.")
@target(dataset=False)
@click.option("--listen", default="127.0.0.1:8086", show_default=True, metavar="ADDRESS:PORT",
              help="Address to listen on; port 0 chooses a free port.")  # fmt: skip
@click.option("--create", is_flag=True, help="Create the archive if it does not exist.")
@click.option("--tokens", type=click.Path(), metavar="FILE",
              help="Tokens, one per line: NAME ROLES EXPIRES TOKEN. Roles: read, write, define, admin.")  # fmt: skip
@click.option("--tls-cert", type=click.Path(), metavar="FILE", help="Certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Its private key, PEM.")
@click.option("--log-format", type=click.Choice(["json", "text", "off"]), default="json", show_default=True)
@click.option("--diagnostics", type=Duration(), metavar="LENGTH",
              help="Store metrics of the service as points of tags, at this interval.")  # fmt: skip
@_nodes_options
@_limits
@timeout_option
def serve(target: Target, listen: str, create: bool, timeout_s: int, **given: Any) -> None:
    """Serve an archive over HTTP until SIGTERM or SIGINT.

    Serves process history, events and jobs. The page at / finds and plots tags; /openapi.json describes the API.
    Without --tokens, the service listens on this machine only. SIGHUP reloads tokens and certificate. Any number of
    services may serve the same archive.

    \b
    Examples:
        chronotile serve plant.db --create
        chronotile serve cassandra://h1,h2/plant --listen 0.0.0.0:8086 \\
            --tokens tokens.txt --tls-cert cert.pem --tls-key key.pem
    """
    options = {
        "listen": listen,
        "tokens": given["tokens"],
        "tls_cert": given["tls_cert"],
        "tls_key": given["tls_key"],
        "log_format": given["log_format"],
        "memory_bytes_max": given["memory"],
        "body_bytes_max": given["max_body"],
        "points_max": given["max_points"],
        "tags_max": given["max_tags"],
        "range_s_max": int(given["max_range"]),
        "queries_max": given["max_queries"],
        "writes_max": given["max_writes"],
        "connections_max": given["max_connections"],
        "query_s_max": given["query_time"],
        "client_s_max": given["client_time"],
        "stop_s_max": given["stop_time"],
        "definitions_s": given["definitions_time"],
        "future_ns_max": int(given["max_future"] * 10**9),
        "diagnostics_s": given["diagnostics"],
    }
    scheme = "https" if given["tls_cert"] else "http"
    # The service handles signals itself and shuts down gracefully.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        opened = target.open(create=create, timeout_s=timeout_s)
    except ArchiveNotFoundError as error:
        raise ArchiveNotFoundError(
            f"{error}; correct the path, or pass --create to create it", kind=error.kind
        ) from None
    with opened as archive, _recording(archive, given):
        listening = lambda address: click.echo(f"listening on {scheme}://{address}")  # noqa: E731
        front_ends = FrontEnds(archive)
        front_ends.prepare()
        _native.serve(archive._native, options, listening, front_ends)
    # Threads may still compute for disconnected clients; finalizing the interpreter beside them would abort.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _recording(archive: Archive, given: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Store metrics of nodes in the archive while the context lasts."""
    nodes = given.get("nodes")
    if nodes is None:
        return contextlib.nullcontext()
    if given["diagnostics"] is None:
        raise click.UsageError("--nodes requires --diagnostics, which sets the interval.")
    hook = node_diagnostics()
    assert hook is not None, "the hook defines the option"

    def failed(error: ChronotileError) -> None:
        _log(given["log_format"], f"metrics of the nodes were not stored: {error}")

    return hook.recording(archive, nodes, given["diagnostics"], failed)


def _log(form: str, message: str) -> None:
    """Write a warning to the service's log."""
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {"timestamp": now, "level": "WARN", "message": message}
    lines = {"json": json.dumps(line), "text": f"{now}  WARN {message}"}
    click.echo(lines.get(form, f" WARN {message}"), err=True)
