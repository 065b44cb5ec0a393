"""``chronotile ops``: monitor and maintain a Cassandra cluster."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import click

from chronotile.cli.common import ParamType, debug_option, json_option
from chronotile.cli.plugins import LateGroup
from chronotile.errors import DataFileError, InvalidInputError, UnavailableError
from chronotile.terminal import ProgressLine, count_text
from chronotile_tools import ops as library
from chronotile_tools.cli.access import access_options
from chronotile_tools.cli.live import live, ticks
from chronotile_tools.ops.access import JMX_SECONDS
from chronotile_tools.ops.exporting import Exporter
from chronotile_tools.ops.exporting import dashboard as grafana
from chronotile_tools.ops.metrics import prometheus
from chronotile_tools.ops.recording import Recorder, read_baseline, scrape
from chronotile_tools.ops.rules import ABOVE_ZERO, select_rules, with_limits
from chronotile_tools.ops.screen import screen, watched

WARNING, CRITICAL = 9, 10
WAITING_LINE_S = 10.0
"""Seconds between progress lines of a snapshot, without a terminal."""


jmx_option = click.option(
    "--jmx-timeout", "jmx_timeout_s", type=click.FloatRange(0.1, 3600), default=JMX_SECONDS, show_default=True,
    metavar="SECONDS", help="Timeout of each JMX request.",
)  # fmt: skip


class Time(ParamType[datetime]):
    """A time in ISO 8601, with an offset or in UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"invalid time {value!r}: give ISO 8601, such as 2026-03-01T08:30 or 2026-03-01T08:30:00+01:00",
                param,
                ctx,
            )
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


class WorkGroup(LateGroup):
    """A group whose help separates read-only commands from those that change a cluster."""

    read_only = ("status", "check", "watch", "record", "report", "export", "dashboard", "journal", "settings")
    """Names of read-only commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, command) for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))]
        for title, listed in (
            ("Read-only commands", [one for one in commands if one[0] in self.read_only]),
            ("Commands that change a cluster (except \"plan\" and \"status\")",
             [one for one in commands if one[0] not in self.read_only]),
        ):  # fmt: skip
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(80)) for name, command in listed])


class WaitingLine(ProgressLine):
    """Shows on standard error what a snapshot is waiting for; without a terminal, prints a line at intervals."""

    def __init__(self, waits: library.PendingRequests) -> None:
        super().__init__(lambda: str(waits))
        self._waits = waits
        self._lines = threading.Thread(target=self._write_lines, daemon=True)

    def __enter__(self) -> Self:
        if not self._shown:
            self._lines.start()
        return super().__enter__()

    def _write_lines(self) -> None:
        while not self._stop.wait(WAITING_LINE_S):
            if text := str(self._waits):
                click.echo(text, err=True)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        super().__exit__()


@click.group(cls=WorkGroup, short_help="Monitor and maintain a Cassandra cluster.")
def ops() -> None:
    """Monitor a small Cassandra cluster, get early warnings, and perform maintenance on its nodes.

    \b
    Examples:
        chronotile ops status 10.0.0.1 --nodetool 'ssh {host} nodetool'
        chronotile ops status --lab lab --json
        chronotile ops check --lab lab
        chronotile ops check --explain
        chronotile ops watch --lab lab
        chronotile ops record --lab lab --to ops.db --every 60
        chronotile ops report ops.db --out report.html

    Each node is queried over CQL; nodetool or a Jolokia agent adds what CQL does not provide. Missing data are listed.
    """


@ops.command(short_help="Show the state of the cluster on one screen.")
@access_options
@jmx_option
@click.option("--json", "as_json", is_flag=True, help="Print the whole snapshot as JSON.")
def status(access: library.Access, jmx_timeout_s: float, as_json: bool) -> None:
    """Show the state of the cluster on one screen.

    \b
    status   U up, D down; N normal, J joining, L leaving, M moving, as
             seen by the other nodes; ! if they disagree
    heap     in use after the last garbage collection
    hints    hint files kept for nodes that were down
    pending  compactions that wait
    clock    ok: no offset from this machine beyond the round-trip
             uncertainty
    """
    waits = library.PendingRequests()
    with WaitingLine(waits):
        snapshot = library.observe(access, jmx_timeout_s=jmx_timeout_s, waits=waits)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    click.echo(json.dumps(snapshot.to_dict(), indent=1) if as_json else screen(snapshot, width=width))


def _limits(texts: tuple[str, ...]) -> dict[str, tuple[float | None, float | None]]:
    limits: dict[str, tuple[float | None, float | None]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        try:
            warning, critical = (float(part) if part else None for part in (values + ",").split(",")[:2])
        except ValueError:
            equals = ""
        if not equals or values.count(",") > 1:
            raise click.BadParameter(f"{text!r} is not RULE=WARNING[,CRITICAL]", param_hint="--limit")
        limits[name] = warning, critical
    return limits


def _rules_text(rules: list[library.Rule]) -> str:
    parts = []
    for rule in rules:
        limits = ", ".join(
            f"{level} {'above 0' if limit == ABOVE_ZERO else f'from {limit:g}'} {rule.unit}".rstrip()
            for level, limit in (("warning", rule.warning), ("critical", rule.critical))
            if limit is not None
        )
        marks = "".join(
            f", {mark}"
            for mark, set_ in (
                ("needs JMX", rule.jmx),
                ("needs a baseline", rule.needs_baseline),
            )
            if set_
        )
        parts.append(f"{rule.name}: {limits}{marks}\n  {rule.means}\n  What to do: {rule.do}")
    return "\n".join(parts)


def _finding_text(finding: library.Finding) -> str:
    rule = library.RULES[finding.rule]
    return (
        f"{finding.level.upper():8}  {finding.rule}  {finding.where}: {finding.message}\n"
        f"          {rule.means}\n          What to do: {rule.do}"
    )


@ops.command(short_help="Check the cluster for early warnings.")
@access_options
@jmx_option
@click.option("--rule", "names", multiple=True, metavar="RULE", help="Check only this rule; repeatable.")
@click.option(
    "--limit", "limits", multiple=True, metavar="RULE=WARNING[,CRITICAL]", help="Change limits of a rule; repeatable."
)
@click.option("--interval", "interval_s", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True,
              metavar="SECONDS", help="Time between the two snapshots that rate rules need.")  # fmt: skip
@click.option("--baseline", metavar="ARCHIVE", help="Archive of ops record, for the usual values.")
@click.option("--explain", is_flag=True, help="Explain the rules without querying the cluster.")
@json_option
def check(
    access: library.Access | None, jmx_timeout_s: float, names: tuple[str, ...], limits: tuple[str, ...],
    interval_s: float, baseline: str | None, explain: bool, as_json: bool,
) -> None:  # fmt: skip
    """Check the cluster against rules. The exit code is 9 for warnings, 10 for critical findings. Rate rules take two
    snapshots. Checks that were not possible are listed, and do not count as warnings.
    """
    rules = with_limits(select_rules(names), _limits(limits))
    if explain:
        click.echo(_rules_text(rules))
        return
    assert access is not None
    jmx = any(rule.jmx for rule in rules)
    before = None
    if any(rule.two_snapshots for rule in rules):
        before = library.observe(access, jmx=jmx, jmx_timeout_s=jmx_timeout_s)
        time.sleep(interval_s)
    now = library.observe(access, jmx=jmx, jmx_timeout_s=jmx_timeout_s)
    usual = None if baseline is None else read_baseline(baseline, now.cluster or "unknown", now.taken)
    result = library.check(now, before, baseline=usual, rules=rules)
    if as_json:
        click.echo(json.dumps({"level": result.level, **dataclasses.asdict(result)}, indent=1))
    else:
        for finding in result.findings:
            click.echo(_finding_text(finding))
        for line in result.unchecked:
            click.echo(f"not checked: {line}")
        found, asked = count_text(len(result.findings), "finding"), count_text(len(result.rules), "rule")
        click.echo(f"{result.level}: {found} from {asked}")
    if result.findings:
        raise click.exceptions.Exit(CRITICAL if result.level == "critical" else WARNING)


every_option = click.option(
    "--every", "every_s", type=click.FloatRange(0.1, 86_400), default=10.0, show_default=True, metavar="SECONDS",
    help="Time between the starts of two snapshots.",
)  # fmt: skip
count_option = click.option(
    "--count", type=click.IntRange(1), metavar="N", help="Stop after this many. Default: never."
)


@ops.command(short_help="Show the state of the cluster, live.")
@access_options
@jmx_option
@every_option
@count_option
def watch(access: library.Access, jmx_timeout_s: float, every_s: float, count: int | None) -> None:
    """Show the state of the cluster and the findings of the rules, updated continuously. `q` or Ctrl-C stops it. On a
    terminal, findings come first, and columns that do not fit are hidden. In a pipe, screens are printed one after
    another.
    """
    before: library.Snapshot | None = None

    def draw() -> str:
        nonlocal before
        try:
            now = library.observe(access, jmx_timeout_s=jmx_timeout_s)
        except UnavailableError as error:
            text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {error}"
            return textwrap.fill(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text
        findings = library.check(now, before).findings
        before = now
        lines = [f"{finding.level.upper()} {finding.rule} {finding.where}: {finding.message}" for finding in findings]
        if sys.stdout.isatty():
            size = shutil.get_terminal_size()
            return watched(now, lines, width=size.columns, height=size.lines - 1)
        return "\n".join([screen(now), "", *(lines or ["no findings"])])

    live(draw, every_s, count)


@ops.command(short_help="Export metrics for Prometheus.")
@access_options
@jmx_option
@click.option("--once", is_flag=True, help="Print them once instead of serving them.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=9103,
    show_default=True,
    help="Port on 127.0.0.1; 0 for any free port.",
)
@click.option("--age", "age_s", type=click.FloatRange(0, 3600), default=10.0, show_default=True, metavar="SECONDS",
              help="Reuse a snapshot up to this age.")  # fmt: skip
def export(access: library.Access, jmx_timeout_s: float, once: bool, port: int, age_s: float) -> None:
    """Serve the cluster's metrics at http://127.0.0.1:9103/metrics in Prometheus' text format, until interrupted."""

    def observe() -> library.Snapshot:
        return library.observe(access, jmx_timeout_s=jmx_timeout_s)

    if once:
        click.echo(prometheus(observe()), nl=False)
        return
    try:
        exporter = Exporter(observe, port, age_s)
    except OSError as error:
        raise InvalidInputError(f"--port {port}: {error.strerror}", kind="invalid-request") from None
    click.echo(f"metrics at {exporter.url}", err=True)
    exporter.serve()


@ops.command(short_help="Write a Grafana dashboard.")
@click.option("--out", metavar="FILE", help="Output file. Default: standard output.")
@click.option("--title", default="Cassandra, by Chronotile", show_default=True)
def dashboard(out: str | None, title: str) -> None:
    """Write a Grafana dashboard to import, with a panel for each metric of `ops export`."""
    _write(json.dumps(grafana(title), indent=1) + "\n", out)


@ops.command(short_help="Record metrics in an archive.")
@access_options
@jmx_option
@click.option("--to", "archive", required=True, metavar="ARCHIVE", help="Archive; created if it does not exist.")
@every_option
@count_option
@click.option("--scrape", "sources", multiple=True, metavar="NAME=URL",
              help="Also record metrics of a client or machine, in Prometheus format; repeatable.")  # fmt: skip
def record(
    access: library.Access, jmx_timeout_s: float, archive: str, every_s: float, count: int | None,
    sources: tuple[str, ...],
) -> None:  # fmt: skip
    """Record all metrics of the cluster as process history, until interrupted: tags ops/CLUSTER/NODE/METRIC.

    Each snapshot is stored completely and durably. A snapshot is skipped with a message if no node answers or the
    previous one took too long.
    """
    scraped = dict(_source(text) for text in sources)
    with Recorder(archive) as recorder:
        for number in ticks(every_s, count):
            began = time.monotonic()
            try:
                snapshot = library.observe(access, jmx_timeout_s=jmx_timeout_s)
                points = recorder.write(snapshot, _scraped(scraped))
            except UnavailableError as error:
                click.echo(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} nothing recorded: {error}", err=True)
            else:
                click.echo(f"{snapshot.taken:%Y-%m-%d %H:%M:%S} recorded {points} points")
            last = number + 1 == count
            if not last and (behind := _overrun_warning(time.monotonic() - began, every_s)):
                click.echo(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {behind}", err=True)


def _overrun_warning(spent_s: float, every_s: float) -> str:
    """Message about skipped snapshots if one takes longer than the interval; empty if none was skipped."""
    missed = int(spent_s / every_s)
    if missed < 1:
        return ""
    skipped = "one snapshot was" if missed == 1 else f"{missed} snapshots were"
    return (
        f"behind: this snapshot took {spent_s:.1f} s, so {skipped} skipped; use --every "
        f"{math.ceil(spent_s * 1.2)}, or JMX over HTTP (--jolokia), which is faster than nodetool"
    )


def _source(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not (name and equals and url) or "/" in name:
        raise click.BadParameter(f"{text!r} is not NAME=URL", param_hint="--scrape")
    return name, url


def _scraped(sources: dict[str, str]) -> dict[str, dict[str, float]]:
    found = {}
    for name, url in sources.items():
        try:
            found[name] = scrape(url)
        except UnavailableError as error:
            click.echo(f"{name} not recorded: {error}", err=True)
    return found


@ops.command(short_help="Plot a recorded period.")
@click.argument("archive")
@click.option("--cluster", metavar="NAME", help="Cluster name; optional if only one was recorded.")
@click.option("--start", type=Time(), metavar="TIME", help="Start, ISO 8601 (UTC). Default: a day before the end.")
@click.option("--end", type=Time(), metavar="TIME", help="End, exclusive. Default: the end of the record.")
@click.option("--out", metavar="FILE", help="Output file. Default: standard output.")
@debug_option
def report(
    archive: str, cluster: str | None, start: datetime | None, end: datetime | None, out: str | None, debug: bool
) -> None:
    """Write an HTML report about a period recorded by `ops record`: latencies, load, heap, disk, hints and more.
    Default: the last recorded day.
    """
    from chronotile_tools.ops.report import html

    _write(html(archive, cluster, start, end), out)


def _write(text: str, out: str | None) -> None:
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        Path(out).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataFileError(f"{out}: {error.strerror}", kind="file-access") from None
    click.echo(f"wrote {out}", err=True)
