"""``chronotile jobs``: finished jobs of a batch or grid system."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

from chronotile.cli.common import (
    Command,
    Target,
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
)
from chronotile.cli.define import definition_record, describe, schema_of_text
from chronotile.cli.plugins import LateGroup
from chronotile.cli.query import Output, output_options
from chronotile.conditions import aggregates, literal, names
from chronotile.conditions import days as day_period
from chronotile.errors import DatasetNotFoundError
from chronotile.terminal import ReportedProgress, count_text


@click.group(cls=LateGroup, short_help="Look up and count finished jobs of a batch system.")
def jobs() -> None:
    """Finished jobs of a batch or grid system: load, look up and count them.

    \b
    Examples:
        chronotile jobs load jobs.db jobs logs/ --create --index user,cloud,status
        chronotile jobs find jobs.db jobs user=ann status=failed --days 2026-01-01,2026-01-05
        chronotile jobs count jobs.db jobs user=ann cloud=cern status=failed --days 5
        chronotile jobs top jobs.db jobs --by user --days 30
        chronotile jobs histogram jobs.db jobs status=failed --interval 1d --plot
    """


def question_options(command: Command) -> Command:
    """Add the target and options of period and condition; the command gets `found`, the `Jobs`, and `question`, the
    keyword arguments for its query methods.
    """

    def run(
        target: Target, start: str | None, end: str | None, days: str | None, where: tuple[str, ...], **options: Any
    ) -> Any:
        for word in target.rest:
            if "=" not in word:
                raise click.UsageError(f"Invalid condition {word!r}: write COLUMN=VALUE, or use --where.")
        with _open(target, read_only=True) as found:
            dataset = found.dataset
            question = {
                "start": moment(start, dataset),
                "end": moment(end, dataset),
                "days": day_period(days),
                "where": typed_conditions([*equalities(target.rest), *where], dataset),
            }
            return command(found=found, question=question, **options)

    return target(rest="[COLUMN=VALUE]...")(in_place_of(
        command,
        run,
        click.option("--start", metavar="TIME", help="Start: ISO 8601 (UTC), or a number in the column's unit."),
        click.option("--end", metavar="TIME", help="End, exclusive."),
        click.option(
            "--days", metavar="DAYS", help="A day, a month (2026-01), FIRST,LAST, or the number of days up to today."
        ),
        click.option("--where", multiple=True, metavar="CONDITION", help='"run_s>3600", "x between 1,2"; repeatable.'),
    ))  # fmt: skip


_create_option = click.option(
    "--create", is_flag=True, help="Create the archive of jobs if it does not exist, with the options below."
)


def definition_options(command: Command) -> Command:
    """Add options that define an archive of jobs; the command gets `definition`."""

    def run(
        id_: str, time_: str, version: str | None, id_bucket: int, window: str, indexes: tuple[str, ...], **options: Any
    ) -> Any:
        definition = {
            "id": id_, "time": time_, "version": version, "id_bucket": id_bucket, "window": window,
            "indexes": [names(text) or [] for text in indexes],
        }  # fmt: skip
        return command(definition=definition, **options)

    return in_place_of(
        command,
        run,
        click.option("--id", "id_", default="job_id", show_default=True, metavar="COLUMN", help="Column of job ids."),
        click.option("--time", "time_", default="submitted", show_default=True, metavar="COLUMN",
                     help="Time column of jobs."),
        click.option("--version", metavar="COLUMN",
                     help="Column that orders the states of a job. Default: the time of writing."),
        click.option("--id-bucket", type=click.IntRange(1), default=100, show_default=True, metavar="N",
                     help="Ids in one cell."),
        click.option("--window", default="1d", show_default=True, metavar="LENGTH", help="Window length."),
        click.option("--index", "indexes", multiple=True, metavar="NAMES",
                     help="Columns of an index to define; repeatable."),
    )  # fmt: skip


@contextmanager
def _open(target: Target, **options: Any) -> Iterator[Any]:
    from chronotile import jobs as library

    with target.open(**options) as archive:
        yield library.open(archive, target.dataset)


@jobs.command("create", short_help="Create an archive of jobs.")
@target()
@click.option("--like", metavar="FILE", help="File of jobs to take the columns from.")
@click.option("--schema", metavar="NAME:TYPE,...", help="Columns: job_id:int64,submitted:timestamp[us],user:utf8.")
@click.option("--database", nargs=2, metavar="URL TABLE", help="Database table to take the columns from.")
@definition_options
@json_option
@timeout_option
def create(
    target: Target, definition: dict[str, Any], like: str | None, schema: str | None, database: tuple[str, str] | None,
    as_json: bool, timeout_s: int,
) -> None:  # fmt: skip
    """Create a dataset of jobs, and the archive if it does not exist.

    \b
    Examples:
        chronotile jobs create jobs.db jobs --like dump.csv --version modified --index user,status
        chronotile jobs create jobs.db jobs --database postgresql+psycopg://grid@db1/production jobs --version modified
    """
    from chronotile.jobs import create as create_jobs
    from chronotile.jobs.loading import infer_schema

    columns: Any
    match (like, schema, database):
        case (str(), None, None):
            columns = infer_schema(like, None, None, ",")
        case (None, str(), None):
            columns = schema_of_text(schema)
        case (None, None, (url, table)):
            columns = _database_schema(url, table, definition)
        case _:
            raise click.UsageError("Give the columns by one of --like, --schema and --database.")
    with target.open(create=True, timeout_s=timeout_s) as archive:
        made = create_jobs(archive, target.dataset, schema=columns, **definition)
        found = made.dataset
        click.echo(json.dumps(definition_record(found)) if as_json else f"created jobs {describe(found)}")


def _database_schema(url: str, table: str, definition: dict[str, Any]) -> dict[str, str]:
    from chronotile.jobs.sources import schema_of

    columns, left_out = schema_of(url, table, filter(None, [definition["time"], definition["version"]]))
    if left_out:
        click.echo(f"left out, as an archive has no type for them: {', '.join(left_out)}", err=True)
    return columns


@jobs.command("load", short_help="Load files of jobs.")
@target(rest="PATHS...")
@click.option("--format", "format_", type=click.Choice(["csv", "ndjson", "parquet", "swf"]), help="Default: by name.")
@click.option("--names", "column_names", metavar="NAMES", help="Column names for CSV files without a header.")
@click.option("--delimiter", default=",", metavar="CHAR", help="CSV delimiter; `tab` for a tab.")
@click.option(
    "--workers", type=click.IntRange(1), metavar="N", help="Worker processes. Default: one per core, at most 8."
)
@click.option("--rejects", metavar="FILE", help="Write rejected records to this file, as NDJSON.")
@click.option("--rejects-max", type=click.IntRange(0), default=100_000, show_default=True, metavar="N",
              help="Stop after this many rejected records.")  # fmt: skip
@_create_option
@definition_options
@json_option
@timeout_option
def load(
    target: Target, definition: dict[str, Any], format_: str | None, column_names: str | None, delimiter: str,
    workers: int | None, rejects: str | None, rejects_max: int, create: bool, as_json: bool, timeout_s: int,
) -> None:  # fmt: skip
    """Load files of jobs, and folders of such files: CSV, NDJSON (both also as .gz), Parquet, Standard Workload Format.
    Running the command again changes nothing; an interrupted load continues where it stopped.

    \b
    Examples:
        chronotile jobs load jobs.db jobs NASA.swf.gz --create --index user,status
        chronotile jobs load jobs.db jobs dump/ --workers 4 --rejects bad.ndjson
    """
    from chronotile import jobs as library
    from chronotile.jobs.loading import infer_schema

    given, delimiter = names(column_names), {"\\t": "\t", "tab": "\t"}.get(delimiter, delimiter)
    with target.open(create=create, timeout_s=timeout_s) as archive:
        try:
            found = library.open(archive, target.dataset)
        except DatasetNotFoundError:
            if not create:
                raise
            schema = infer_schema(target.rest[0], format_, given, delimiter)
            found = library.create(archive, target.dataset, schema=schema, exist_ok=True, **definition)
        with ReportedProgress("examining the files", _progress_text) as progress:
            report = library.load(
                found, target.rest, url=archive.url, format=format_, names=given, delimiter=delimiter, workers=workers,
                rejects=rejects, rejects_max=rejects_max, progress=progress,
            )  # fmt: skip
    end_load(report, _load_text(report), as_json, "job", "record")


def _load_text(report: Any) -> str:
    files = count_text(report.files, "file")
    parts = [f"stored {count_text(report.rows, 'job')} of {files} {pace(report, report.rows, 'jobs')}"]
    if report.rows_before:
        parts.append(f"{count_text(report.rows_before, 'job')} already stored")
    if report.duplicates:
        parts.append(f"{count_text(report.duplicates, 'record')} skipped, because a later record has the same id")
    if report.rejected:
        parts.append(
            f"{count_text(report.rejected, 'record')} rejected" + (f", see {report.rejects}" if report.rejects else "")
        )
        if not report.all_rejected and report.first_reject:
            parts.append(first_reject_text(report))
    return "; ".join(parts)


def _progress_text(state: Any) -> str:
    left = "" if state.seconds_left is None else f"  {_clock(state.seconds_left)} left"
    return f"{progress_text(state, state.report.records, 'jobs')}{left}"


def _differing_text(days: int) -> str:
    return "1 day differs" if days == 1 else f"{count_text(days)} days differ"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@jobs.command("get", short_help="Look up jobs by id.")
@target(rest="IDS...")
@click.option("--history", is_flag=True, help="Return all states instead of only the newest.")
@output_options
def get(target: Target, history: bool, output: Output) -> None:
    """Look up jobs by id, whenever they ran. Separate ids by blanks or commas.

    \b
    Example:
        chronotile jobs get jobs.db jobs 4711 4712 --columns job_id,status
    """
    words = [word for text in target.rest for word in text.split(",") if word]
    ids = [literal(word) for word in words]
    if not all(isinstance(id, int) for id in ids):
        raise click.UsageError("Invalid id: ids are whole numbers.")
    with _open(target, read_only=True) as found:
        output.write(found.get(ids, columns=output.column_names, history=history))


@jobs.command("find", short_help="Find jobs by period and condition.")
@question_options
@click.option("--history", is_flag=True, help="Return all states instead of only the newest.")
@output_options
def find(found: Any, question: dict[str, Any], history: bool, output: Output) -> None:
    """Find jobs by period and condition. ``COLUMN=VALUE,VALUE`` matches any of the values.

    \b
    Examples:
        chronotile jobs find jobs.db jobs user=ann status=failed --days 2026-01-01,2026-01-05
        chronotile jobs find jobs.db jobs --where "run_s>86400" --out long.parquet
    """
    rows = found.find(columns=output.column_names, history=history, **question)
    output.write(rows)


@jobs.command("count", short_help="Count jobs.")
@question_options
@json_option
def count(found: Any, question: dict[str, Any], as_json: bool) -> None:
    """Print the number of jobs.

    \b
    Example:
        chronotile jobs count jobs.db jobs user=ann cloud=cern status=failed --days 5
    """
    echo_count(found.count(**question), as_json)


@jobs.command("top", short_help="Show the most frequent values.")
@question_options
@click.option("--by", required=True, metavar="NAMES", help="Columns to count values of.")
@output_options
def top(found: Any, question: dict[str, Any], by: str, output: Output) -> None:
    """Print the most frequent values of columns with their share, up to --limit (10 by default).

    \b
    Example:
        chronotile jobs top jobs.db jobs --by user,status --days 30 --limit 5
    """
    output.write_top(found, by, question)


@jobs.command("group", short_help="Group jobs: counts, sums and averages.")
@question_options
@click.option("--by", metavar="NAMES", help="Group by these columns. Default: one row for all jobs.")
@click.option("--aggregate", "functions", multiple=True, metavar="FUNCTION",
              help="sum(run_s), mean(run_s), min, max, stddev, count_distinct; repeatable.")  # fmt: skip
@output_options
def group(found: Any, question: dict[str, Any], by: str | None, functions: tuple[str, ...], output: Output) -> None:
    """Group jobs by columns, with counts and aggregates of other columns, largest groups first.

    \b
    Examples:
        chronotile jobs group jobs.db jobs --by user --aggregate "sum(run_s)" --aggregate "mean(run_s)"
        chronotile jobs group jobs.db jobs status=done --aggregate "sum(run_s)" --days 2026-01
    """
    table = found.group_by(names(by) or [], aggregates=aggregates(functions), **question)
    output.write_table(table)


@jobs.command("histogram", short_help="Count jobs over time.")
@question_options
@click.option("--interval", default="1d", show_default=True, metavar="LENGTH",
              help="1d, 6h, 15m, ...; 1mo, 3mo, 1y of the calendar.")  # fmt: skip
@click.option("--by", metavar="NAMES", help="Count separately by the values of these columns.")
@click.option("--plot", is_flag=True, help="Draw a bar chart.")
@output_options
def histogram(found: Any, question: dict[str, Any], interval: str, by: str | None, plot: bool, output: Output) -> None:
    """Count jobs over time, in intervals counted from 1970, or in calendar months and years (UTC).

    \b
    Examples:
        chronotile jobs histogram jobs.db jobs status=failed --interval 1d --plot
        chronotile jobs histogram jobs.db jobs --interval 1mo
        chronotile jobs histogram jobs.db jobs --interval 1h --by cloud --out hours.csv
    """
    table = found.histogram(interval, by=names(by) or [], **question)
    if plot:
        click.echo(_bars(table))
        return
    output.write_table(table)


@jobs.command("percentiles", short_help="Compute percentiles of a duration.")
@question_options
@click.option("--of", "of", required=True, metavar="COLUMN", help="A numeric column, or FROM,TO: two time columns.")
@click.option("--by", metavar="NAMES", help="Group by these columns.")
@click.option("-q", "percents", default="50,90,99", show_default=True, metavar="LIST", help="Percentiles.")
@output_options
def percentiles(found: Any, question: dict[str, Any], of: str, by: str | None, percents: str, output: Output) -> None:
    """Compute exact percentiles of a duration.

    \b
    Example:
        chronotile jobs percentiles jobs.db jobs --of run_s --by user status=done --days 30
    """
    parts = names(of) or []
    wanted = [literal(word) for word in names(percents) or []]
    if len(parts) not in (1, 2) or not all(isinstance(value, int | float) for value in wanted):
        raise click.UsageError("--of takes one or two columns, -q numbers.")
    duration = parts[0] if len(parts) == 1 else (parts[0], parts[1])
    table = found.percentiles(duration, wanted, by=names(by) or [], **question)
    output.write_table(table)


def _bars(table: Any, width: int = 50) -> str:
    counts = table["count"].to_pylist()
    most = max(counts, default=1)
    labels = [
        " ".join(_label(value) for value in row)
        for row in zip(*(table[name].to_pylist() for name in table.column_names[:-1]), strict=True)
    ]
    left = max((len(label) for label in labels), default=0)
    lines = [
        f"{label.ljust(left)}  {'#' * max(round(width * count / most), 1)} {count:,}"
        for label, count in zip(labels, counts, strict=True)
    ]
    return "\n".join(lines) or "no jobs"


def _label(value: object) -> str:
    if isinstance(value, datetime):
        return value.strftime(
            "%Y-%m-%d" if (value.hour, value.minute, value.second) == (0, 0, 0) else "%Y-%m-%dT%H:%M:%S"
        )
    return "-" if value is None else str(value)


@jobs.command("sync", short_help="Copy changes from a database.")
@target(rest="DATABASE TABLE")
@click.option(
    "--overlap",
    default="10m",
    show_default=True,
    metavar="LENGTH",
    help="Read again from this long before the end of the last sync.",
)
@click.option(
    "--batch-rows", type=click.IntRange(1), default=100_000, show_default=True, metavar="N", help="Rows per batch."
)
@_create_option
@definition_options
@json_option
@timeout_option
def sync(
    target: Target, definition: dict[str, Any], overlap: str, batch_rows: int, create: bool, as_json: bool,
    timeout_s: int,
) -> None:  # fmt: skip
    """Copy the rows of a database table that changed since the last sync, each state once. DATABASE is a SQLAlchemy
    URL.

    \b
    Examples:
        chronotile jobs sync jobs.db jobs postgresql+psycopg://grid@db1/production jobs --create --version modified
        chronotile jobs sync jobs.db jobs sqlite:///production.db jobs
    """
    from chronotile import jobs as library

    database, table = _database(target)
    if create and definition["version"] is None:
        raise click.UsageError("A sync follows modification times: name their column with --version COLUMN.")
    with target.open(create=create, timeout_s=timeout_s) as archive:
        if create and target.dataset not in archive:
            columns = _database_schema(database, table, definition)
            library.create(archive, target.dataset, schema=columns, exist_ok=True, **definition)
        found = library.open(archive, target.dataset)
        describe = "{:,} rows read, up to {:%Y-%m-%dT%H:%M:%S}".format
        with ReportedProgress("looking", describe) as progress:
            report = library.sync(found, database, table, overlap=overlap, batch_rows=batch_rows, progress=progress)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=iso_text))
        return
    until = "no rows in the table" if report.until is None else f"up to {report.until:%Y-%m-%dT%H:%M:%S}Z"
    click.echo(
        f"stored {count_text(report.rows, 'new state')} of {count_text(report.rows_seen)} read, {until}, "
        f"in {report.seconds:.1f} s"
    )


@jobs.command("compare", short_help="Compare jobs with a database.")
@target(rest="DATABASE TABLE")
@click.option(
    "--days",
    metavar="DAYS",
    help="A day, a month (2026-01), FIRST,LAST, or the number of days up to today. Default: all.",
)
@json_option
@click.pass_context
def compare(context: click.Context, target: Target, days: str | None, as_json: bool) -> None:
    """Compare the newest states of jobs with a database table, day by day. The exit code is 5 if they differ.

    \b
    Example:
        chronotile jobs compare jobs.db jobs postgresql+psycopg://grid@db1/production jobs --days 30
    """
    from chronotile.jobs import compare as compare_jobs

    database, table = _database(target)
    with _open(target, read_only=True) as found, ReportedProgress("looking", "compared {}".format) as progress:
        report = compare_jobs(found, database, table, days=day_period(days), progress=progress)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(report), "ok": report.ok}, default=iso_text))
    else:
        for each in report.differences:
            click.echo(
                f"{each.day}: {count_text(each.rows_database, 'job')} in the database, "
                f"{count_text(each.rows_archive)} in the archive{_some('missing', each.missing)}"
                f"{_some('superfluous', each.superfluous)}{_some('differing', each.differing)}"
            )
        verdict = "the same" if report.ok else _differing_text(len(report.differences))
        click.echo(f"compared {count_text(report.days, 'day')}, {count_text(report.rows, 'job')}: {verdict}")
    if not report.ok:
        context.exit(5)


def _database(target: Target) -> tuple[str, str]:
    if len(target.rest) != 2:
        raise click.UsageError("Give the URL of the database and the table.")
    return target.rest[0], target.rest[1]


def _some(what: str, ids: tuple[int, ...]) -> str:
    if not ids:
        return ""
    return f"; {what}: {', '.join(map(str, ids[:10]))}{' ...' if len(ids) > 10 else ''}"
