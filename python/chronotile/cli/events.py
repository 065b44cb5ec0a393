"""``chronotile events``: log records and security events."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from chronotile import scanning
from chronotile.cli.common import (
    Command,
    Target,
    confirm,
    echo_count,
    end_load,
    equalities,
    first_reject_text,
    in_place_of,
    iso_text,
    json_option,
    moment,
    pace,
    progress_text,
    target,
    timeout_option,
    typed_conditions,
    yes_option,
)
from chronotile.cli.plugins import LateGroup
from chronotile.cli.query import Output, output_options
from chronotile.conditions import names
from chronotile.hints import name_hint
from chronotile.terminal import ReportedProgress, bytes_text, count_text, table_text

_LAST_MAX_S = 999_999 * 604_800


@click.group(cls=LateGroup, short_help="Ingest and search log records and security events.")
def events() -> None:
    """Log records and security events: ingest lines as they arrive, search them by time, field and text.

    \b
    Examples:
        chronotile events create logs.db web --field status=int64 --field level=utf8 --stream-field host --ttl 30d
        tail -F app.ndjson | chronotile events ingest logs.db web -
        chronotile events search logs.db web level=error --last 1h --text timeout
        chronotile events histogram logs.db web level=error --interval 10m --by stream
        chronotile events ttl logs.db web 14d --dry-run
    """


def question_options(command: Command) -> Command:
    """Add the target and options of period and condition; the command gets `found`, the `Events`, and `question`, the
    keyword arguments for its query methods.
    """

    def run(
        target: Target, start: str | None, end: str | None, last: str | None, streams: str | None,
        where: tuple[str, ...], text: str | None, **options: Any,
    ) -> Any:  # fmt: skip
        if last is not None and (start is not None or end is not None):
            raise click.UsageError("Give either --last, or --start and --end.")
        with _open(target, read_only=True) as found:
            dataset = found.dataset
            question = {
                "start": moment(start, dataset) if last is None else datetime.now(UTC) - _length(last),
                "end": moment(end, dataset),
                "streams": names(streams),
                "where": typed_conditions([*equalities(target.rest), *where], dataset),
                "text": text,
            }
            return command(found=found, question=question, **options)

    return target(rest="[COLUMN=VALUE]...")(in_place_of(
        command,
        run,
        click.option("--start", metavar="TIME", help="Start: ISO 8601 (UTC)."),
        click.option("--end", metavar="TIME", help="End, exclusive."),
        click.option("--last", metavar="LENGTH", help="Period up to now: 15m, 1h, 7d, ..."),
        click.option("--streams", metavar="NAMES", help="Only these streams."),
        click.option(
            "--where",
            multiple=True,
            metavar="CONDITION",
            help='"status>=500", "message contains timeout", "user exists false"; repeatable.',
        ),
        click.option("--text", metavar="TEXT", help="Text that the document must contain."),
    ))  # fmt: skip


def _length(text: str) -> timedelta:
    seconds = scanning.length_of_time(text)
    if seconds is None or seconds > _LAST_MAX_S:
        raise click.UsageError(f"Invalid --last {scanning.shown(text)}: give a duration such as 15m, 1h or 7d.")
    return timedelta(seconds=seconds)


@contextmanager
def _open(target: Target, **options: Any) -> Iterator[Any]:
    from chronotile import events as library

    with target.open(**options) as archive:
        yield library.open(archive, target.dataset)


# ---------------------------------------------------------------- create, ingest


@events.command("create", short_help="Create an archive of events.")
@target()
@click.option(
    "--field", "fields", multiple=True, metavar="NAME=TYPE[@PATH]",
    help="Field to store as a column: status=int64, process.pid=int64, origin=utf8@source; repeatable.",
)  # fmt: skip
@click.option("--syslog", is_flag=True, help="Declare the fields of syslog messages.")
@click.option(
    "--time-field", default="time", show_default=True, metavar="PATH", help="Path of the time in JSON documents."
)
@click.option("--time-format", default="iso8601", show_default=True, metavar="FORMAT",
              help="iso8601, epoch_s, epoch_ms, epoch_us, epoch_ns, or a strptime pattern.")  # fmt: skip
@click.option("--stream-field", metavar="PATH", help="Path of the stream name in JSON documents.")
@click.option("--ttl", metavar="LENGTH", help="Time to live of a document, from its own time: 30d. Default: forever.")
@click.option("--text", default="body", show_default=True, metavar="NAMES",
              help="Text columns with filters; empty for none.")  # fmt: skip
@click.option("--buckets", type=click.IntRange(0), default=8, show_default=True, metavar="N",
              help="Number of cells that streams share; 0 for one cell per stream.")  # fmt: skip
@click.option("--window", default="1h", show_default=True, metavar="LENGTH", help="Window length.")
@click.option(
    "--slice",
    "slice_",
    default="1d",
    show_default=True,
    metavar="LENGTH",
    help="Slice length: the unit of reclaimed storage.",
)
@json_option
@timeout_option
def create(
    target: Target, fields: tuple[str, ...], syslog: bool, time_field: str, time_format: str, stream_field: str | None,
    ttl: str | None, text: str, buckets: int, window: str, slice_: str, as_json: bool, timeout_s: int,
) -> None:  # fmt: skip
    """Create an archive of events.

    \b
    Examples:
        chronotile events create logs.db web --field status=int64 --field level=utf8 --stream-field host --ttl 30d
        chronotile events create logs.db hosts --syslog --ttl 90d
    """
    from chronotile import events as library

    types: dict[str, str] = dict(library.SYSLOG_FIELDS) if syslog else {}
    paths: dict[str, str] = {}
    for item in fields:
        name, equals, rest = item.partition("=")
        kind, at, path = rest.partition("@")
        if not (name and equals and kind):
            raise click.UsageError(f"Invalid --field {item!r}: give NAME=TYPE or NAME=TYPE@PATH.")
        types[name] = kind
        if at:
            paths[name] = path
    with target.open(create=True, timeout_s=timeout_s) as archive:
        library.create(
            archive, target.dataset, fields=types, paths=paths, time_field=time_field, time_format=time_format,
            stream_field=stream_field, ttl=ttl, text=names(text) or [], buckets=buckets or None, window=window,
            slice=slice_,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"name": target.dataset, "fields": types, "ttl": ttl}))
        return
    kept = "forever" if ttl is None else f"for {ttl}"
    click.echo(f"created events {target.dataset} with {count_text(len(types), 'field')}; documents are kept {kept}")


@events.command("ingest", short_help="Ingest files or a pipe.")
@target(rest="PATHS...")
@click.option("--format", "format_", type=click.Choice(["ndjson", "syslog", "lines"]), default="ndjson",
              show_default=True, help="Format of the lines.")  # fmt: skip
@click.option(
    "--pattern", metavar="REGEX", help="With --format lines: regular expression with groups time, stream and fields."
)
@click.option("--time-field", metavar="PATH", help="Path of the time in JSON. Default: as created.")
@click.option("--time-format", metavar="FORMAT", help="As for create. Default for lines: iso8601.")
@click.option("--year", type=click.IntRange(1970, 9999), help="Year for times without one.")
@click.option("--stream-field", metavar="NAME", help="Source of the stream name: a path, host, app, or a group.")
@click.option(
    "--stream", metavar="NAME", help="Stream of documents without one. Default: the file name up to the first dot."
)
@click.option("--ttl", metavar="LENGTH", help="Time to live of these documents, instead of the archive's.")
@click.option("--source", default="-", metavar="NAME", help="Name of standard input as a source.")
@click.option("--batch-seconds", type=click.FloatRange(0.05, 3_600), default=2.0, show_default=True, metavar="S",
              help="Standard input: longest time before lines are stored.")  # fmt: skip
@click.option("--batch-bytes", type=click.IntRange(1), default=4 << 20, show_default=True, metavar="N",
              help="Standard input: store lines once there are this many bytes.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Threads. Default: one per core, at most 8.")
@json_option
@timeout_option
def ingest(
    target: Target, format_: str, pattern: str | None, time_field: str | None, time_format: str | None,
    year: int | None, stream_field: str | None, stream: str | None, ttl: str | None, source: str, batch_seconds: float,
    batch_bytes: int, workers: int | None, as_json: bool, timeout_s: int,
) -> None:  # fmt: skip
    """Ingest files of lines and folders of such files, gzipped or not; or, with `-`, standard input until it ends.
    Running the command again on files stores only new lines. Invalid lines go to the dead letters. The command exits
    with 6 if a stream on standard input exceeds its limit.

    \b
    Examples:
        chronotile events ingest logs.db web app.ndjson old/
        tail -F /var/log/syslog | chronotile events ingest logs.db hosts - --format syslog --stream-field host
        chronotile events ingest logs.db web access.log --format lines --stream web1 \\
            --pattern '(?P<host>\\S+) \\S+ \\S+ \\[(?P<time>[^]]+)\\] "(?P<request>[^"]*)" (?P<status>\\d+)' \\
            --time-format "%d/%b/%Y:%H:%M:%S %z"
    """
    from chronotile import events as library

    piped = "-" in target.rest
    if piped and len(target.rest) > 1:
        raise click.UsageError("Give files, or - for standard input.")
    with _open(target, create=False, timeout_s=timeout_s) as found:
        read_options = found.read_options(
            format_, pattern=pattern, time_field=time_field, time_format=time_format, year=year,
            stream_field=stream_field, stream="stdin" if piped and stream is None else stream,
        )  # fmt: skip
        with ReportedProgress("waiting for lines", _progress_text) as progress:
            if piped:
                # Treat SIGTERM like an interrupt: store all lines read so far before exiting.
                signal.signal(signal.SIGTERM, signal.default_int_handler)
                report = library.feed(
                    found, sys.stdin.fileno(), read_options, source=source, batch_bytes=batch_bytes,
                    batch_s=batch_seconds, ttl=ttl, progress=progress,
                )  # fmt: skip
            else:
                report = library.load(found, target.rest, read_options, ttl=ttl, workers=workers, progress=progress)
    hint = _guess_text(report.guess)
    if not hint and read_options.format == "ndjson":
        hint = ". For lines of plain text, give --format lines and --pattern, as in the examples of --help"
    end_load(report, _report_text(report), as_json, "document", "line", hint)


def _progress_text(state: Any) -> str:
    return f"{state.file}  {progress_text(state, state.report.documents, 'documents')}"


def _report_text(report: Any) -> str:
    size = bytes_text(report.bytes)
    parts = [
        f"stored {count_text(report.documents, 'document')} ({size}) {pace(report, report.documents, 'documents')}"
    ]
    if report.expired:
        them = "it" if report.expired == 1 else "them"
        parts.append(f"{count_text(report.expired, 'document')} had already expired, so searches do not return {them}")
    if report.documents_before:
        parts.append(f"{count_text(report.documents_before, 'document')} already stored")
    if report.rejected:
        parts.append(f"{count_text(report.rejected, 'line')} rejected, see `chronotile events dead`")
        if not report.all_rejected:
            parts.append(first_reject_text(report) + _guess_text(report.guess))
    return "; ".join(parts)


def _guess_text(guess: Any) -> str:
    return "" if guess is None else f". This looks like {guess.what}: {guess.options}"


# ---------------------------------------------------------------- search


@events.command("search", short_help="Find documents by time, field and text.")
@question_options
@click.option("--oldest-first", is_flag=True, help="Oldest first; --limit then keeps the oldest documents.")
@click.option("--raw", is_flag=True, help="Print the original documents, byte for byte, one per line.")
@click.option("--follow", is_flag=True, help="Keep printing documents as they are stored, until interrupted.")
@click.option("--interval", type=click.FloatRange(0.05, 3_600), default=1.0, show_default=True, metavar="S",
              help="With --follow: seconds between polls.")  # fmt: skip
@output_options
def search(
    found: Any, question: dict[str, Any], oldest_first: bool, raw: bool, follow: bool,
    interval: float, output: Output,
) -> None:  # fmt: skip
    """Print documents sorted by time, newest first, up to --limit (100 by default, 0 for all). With --follow, print the
    newest documents in ascending order, then new ones as they are stored.

    \b
    Examples:
        chronotile events search logs.db web level=error,fatal --last 1h --text timeout
        chronotile events search logs.db web --where "message matches (?i)locked" --raw --limit 0 > locked.ndjson
        chronotile events search logs.db web status=502 --follow
    """
    wanted = 100 if output.limit is None else output.limit or None
    if (raw or follow) and (output.columns, output.format, output.file) != (None, None, None):
        raise click.UsageError("--raw and --follow print lines: omit --columns, --format and --out.")
    if not (raw or follow):
        table = found.search(**question, columns=output.column_names, limit=wanted, newest_first=not oldest_first)
        shown_rows = table.select(_readable_columns(table)) if output.is_table and output.columns is None else table
        dataclasses.replace(output, limit=None if wanted is None else table.num_rows).write(shown_rows)
        _note_unknown_streams(found, question, table)
        return
    shown = ["body"] if raw else ["time", "stream", "body"]
    # Start following before the search: documents stored in between are shown twice rather than missed.
    follower = found.follow(**question) if follow else None
    table = found.search(**question, columns=shown, limit=wanted, newest_first=not oldest_first)
    _print_lines(table.take(list(range(table.num_rows))[::-1]) if follow and not oldest_first else table, raw=raw)
    if follower is not None:
        for more in follower.tables(interval):
            _print_lines(more, raw=raw)


def _readable_columns(table: Any) -> list[str]:
    """Columns for a table of documents: time, stream and text first, then the other columns of the documents."""
    text = "message" if "message" in table.column_names and table["message"].null_count < table.num_rows else "body"
    first = ["time", "stream", text]
    others = (name for name in table.column_names if name not in (*first, "body"))
    return first + [name for name in others if not table.num_rows or table[name].null_count < table.num_rows]


def _note_unknown_streams(found: Any, asked: dict[str, Any], table: Any) -> None:
    """If nothing was found, name the requested streams that have no document in the period."""
    if table.num_rows or not asked["streams"]:
        return
    known = found.top("stream", _STREAMS_MAX, start=asked["start"], end=asked["end"])["stream"].to_pylist()
    for name in asked["streams"]:
        if name not in known and len(known) < _STREAMS_MAX:
            click.echo(f"note: no documents of stream {name!r} in this period{name_hint(name, known)}", err=True)


_STREAMS_MAX = 1_000
"""Largest number of streams to compare a name with; with more, no stream is reported as unknown."""


def _print_lines(table: Any, *, raw: bool) -> None:
    out = sys.stdout.buffer
    for row in table.to_pylist():
        body = row["body"].encode()
        out.write(
            body + b"\n" if raw else f"{row['time']:%Y-%m-%dT%H:%M:%S.%fZ}  {row['stream']}  ".encode() + body + b"\n"
        )
    out.flush()


@events.command("count", short_help="Count documents.")
@question_options
@json_option
def count(found: Any, question: dict[str, Any], as_json: bool) -> None:
    """Print the number of documents.

    \b
    Example:
        chronotile events count logs.db web level=error --last 24h
    """
    echo_count(found.count(**question), as_json)


@events.command("histogram", short_help="Count documents over time.")
@question_options
@click.option("--interval", default="1h", show_default=True, metavar="LENGTH", help="1h, 15m, 10s, ...")
@click.option("--by", metavar="NAMES", help="Count separately by the values of these columns.")
@output_options
def histogram(found: Any, question: dict[str, Any], interval: str, by: str | None, output: Output) -> None:
    """Count documents over time, in intervals counted from 1970.

    \b
    Example:
        chronotile events histogram logs.db web level=error --interval 10m --by stream --last 24h
    """
    table = found.histogram(interval, by=names(by) or [], **question)
    output.write_table(table)


@events.command("top", short_help="Show the most frequent values.")
@question_options
@click.option("--by", required=True, metavar="NAMES", help="Columns to count values of.")
@output_options
def top(found: Any, question: dict[str, Any], by: str, output: Output) -> None:
    """Print the most frequent values of columns with their share, up to --limit (10 by default).

    \b
    Example:
        chronotile events top logs.db web --by host,status --last 1h
    """
    output.write_top(found, by, question)


@events.command("streams", short_help="Show volume and rate of each stream.")
@question_options
@output_options
def streams(found: Any, question: dict[str, Any], output: Output) -> None:
    """Print documents, bytes, first and last time, and rates of each stream.

    \b
    Example:
        chronotile events streams logs.db web --last 24h
    """
    output.write_table(found.streams(**question))


# ---------------------------------------------------------------- retention


@events.command("dead", short_help="Show invalid lines.")
@target()
@click.option("--raw", is_flag=True, help="Print the original lines, byte for byte, to correct and ingest them.")
@output_options
def dead(target: Target, raw: bool, output: Output) -> None:
    """Print the dead letters: invalid lines with the reason, newest first.

    \b
    Examples:
        chronotile events dead logs.db web --limit 20
        chronotile events dead logs.db web --raw | sed 's/.../.../' | chronotile events ingest logs.db web -
    """
    with _open(target, read_only=True) as found:
        table = found.dead_letters(limit=output.limit or None)
    if raw:
        for record in table["record"].to_pylist():
            sys.stdout.buffer.write(record + b"\n")
        return
    text = output.format in (None, "table", "csv", "tsv", "ndjson")
    if text and not (output.file or "").endswith((".parquet", ".arrow")):
        # Show invalid UTF-8 as escaped bytes.
        texts = [record.decode(errors="backslashreplace") for record in table["record"].to_pylist()]
        table = table.drop_columns("record").append_column("record", [texts])
    output.write_table(table)


@events.command("ttl", short_help="Show or change how long documents are visible.")
@target(rest="[LENGTH]")
@click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")
@yes_option
@json_option
@timeout_option
def ttl(target: Target, dry_run: bool, yes: bool, as_json: bool, timeout_s: int) -> None:
    """Show the time to live of documents without a TTL of their own, or change it; `never` keeps them forever. If
    documents would expire, shows how many and asks for confirmation, unless --yes is given: expired documents stay
    hidden even if the TTL is raised again.

    \b
    Examples:
        chronotile events ttl logs.db web
        chronotile events ttl logs.db web 14d --dry-run
        chronotile events ttl logs.db web 14d --yes
    """
    if len(target.rest) > 1:
        raise click.UsageError("Give one duration, such as 14d.")
    with _open(target, read_only=dry_run or not target.rest, timeout_s=timeout_s) as found:
        if not target.rest:
            click.echo(json.dumps({"ttl": found.ttl}) if as_json else found.ttl or "never")
            return
        wanted = None if target.rest[0] == "never" else target.rest[0]
        report = found.set_ttl(wanted, dry_run=True)
        if not dry_run:
            if report.documents_expiring:
                if not as_json:
                    _print_ttl(report, dry_run=True)
                confirm(
                    f"Permanently expire {count_text(report.documents_expiring, 'document')} of {target.dataset}?", yes
                )
            report = found.set_ttl(wanted)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=iso_text))
    else:
        _print_ttl(report, dry_run=dry_run)


def _print_ttl(report: Any, *, dry_run: bool) -> None:
    verb = "would be" if dry_run else "is"
    click.echo(f"TTL {verb} {report.ttl_after or 'never'}, {'is' if dry_run else 'was'} {report.ttl_before or 'never'}")
    click.echo(
        f"{count_text(report.documents_expiring, 'document')} {'would expire' if dry_run else 'expired'} at once, "
        f"{count_text(report.documents_visible)} {'would stay' if dry_run else 'are'} visible"
    )
    size = sum(part.bytes for part in report.slices)
    click.echo(
        f"`chronotile events reclaim` {'would drop' if dry_run else 'drops'} {_slices_text(report.slices, size)}"
    )


def _slices_text(slices: Any, size: int) -> str:
    return f"{count_text(len(slices), 'slice')}, {bytes_text(size)}"


@events.command("reclaim", short_help="Free the storage of expired documents.")
@target()
@click.option("--dry-run", is_flag=True, help="Show what would be dropped; drop nothing.")
@yes_option
@json_option
@timeout_option
def reclaim(target: Target, dry_run: bool, yes: bool, as_json: bool, timeout_s: int) -> None:
    """Drop slices in which all documents have expired. Shows them and asks for confirmation, unless --yes is given.

    \b
    Examples:
        chronotile events reclaim logs.db web --dry-run
        chronotile events reclaim logs.db web --yes
    """
    with _open(target, read_only=dry_run, timeout_s=timeout_s) as found:
        gone = found.reclaim(dry_run=True)
        for part in () if as_json else gone:
            click.echo(f"{part.start:%Y-%m-%dT%H:%M}  {part.end:%Y-%m-%dT%H:%M}  {count_text(part.rows, 'document')}")
        if gone and not dry_run:
            size = sum(part.bytes for part in gone)
            confirm(f"Permanently drop {_slices_text(gone, size)} of {target.dataset}?", yes)
        if not dry_run:
            gone = found.reclaim()
    if as_json:
        slices = [dataclasses.asdict(part) for part in gone]
        click.echo(json.dumps({"dry_run": dry_run, "slices": slices}, default=iso_text))
        return
    size = sum(part.bytes for part in gone)
    click.echo(f"{'would drop' if dry_run else 'dropped'} {_slices_text(gone, size)}")


@events.command("limits", short_help="Show or change the limits of streams.")
@target()
@click.option("--documents-per-s", type=float, metavar="N", help="Documents per second; 0 for no limit.")
@click.option("--bytes-per-s", type=float, metavar="N", help="Bytes per second; 0 for no limit.")
@click.option(
    "--period",
    "period_s",
    type=click.FloatRange(0, min_open=True),
    metavar="S",
    help="Length of the counting period in seconds.",
)
@json_option
@timeout_option
def limits(
    target: Target, documents_per_s: float | None, bytes_per_s: float | None, period_s: float | None, as_json: bool,
    timeout_s: int,
) -> None:  # fmt: skip
    """Show or change the rate limits of a stream, per ingesting process.

    \b
    Example:
        chronotile events limits logs.db web --documents-per-s 500 --bytes-per-s 1000000
    """
    given = {"documents_per_s": documents_per_s, "bytes_per_s": bytes_per_s, "period_s": period_s}
    changes: dict[str, Any] = {name: value or None for name, value in given.items() if value is not None}
    with _open(target, read_only=not changes, timeout_s=timeout_s) as found:
        if changes:
            found.set_limits(dataclasses.replace(found.settings.limits, **changes))
        known = found.settings.limits
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(known)))
        return
    rates = [
        ["documents", "any number" if known.documents_per_s is None else f"{known.documents_per_s:g}"],
        ["bytes", "any number" if known.bytes_per_s is None else f"{known.bytes_per_s:g}"],
    ]
    click.echo(f"Rates are averaged over {known.period_s:g} s.")
    click.echo(table_text(["limit", "per second"], rates))
