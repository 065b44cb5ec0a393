"""``chronotile historian``: tags, points and aggregates on an archive or a service."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chronotile import _native, scanning
from chronotile import historian as library
from chronotile.cli.common import Target, count_text, table_text, target
from chronotile.cli.query import output_options, write_out
from chronotile.errors import InvalidInputError, TagNotFoundError
from chronotile.result import ReadResult

if TYPE_CHECKING:
    from chronotile.remote import RemoteHistorian

_FUTURE_NS = 86_400 * 10**9
"""Points further ahead of the clock are refused, as by :func:`chronotile.historian.open`."""

_PERIOD = [
    click.option(
        "--start", required=True, metavar="TIME", help="First time: ISO 8601 (UTC), or nanoseconds since 1970."
    ),
    click.option("--end", required=True, metavar="TIME", help="First time after the period."),
]


@click.group(short_help="Process data: tags, points, aggregates.")
def historian() -> None:
    """Process history on an archive: tags, their values with qualities, and the aggregates of OPC UA Part 13.

    Instead of an archive, give the address of a service (chronotile serve): http://127.0.0.1:8086. Its token is
    taken from CHRONOTILE_TOKEN, and certificates to trust from the file that CHRONOTILE_CA names.

    \b
    Examples:
        chronotile historian tags plant.db --define boiler.temp --unit degC
        chronotile historian write plant.db points.csv
        chronotile historian latest plant.db boiler.temp
        chronotile historian aggregate plant.db boiler.temp --start 2026-01-01 \\
            --end 2026-01-02 --interval 1h --aggregate TimeAverage
    """


def _period(command: Any) -> Any:
    for option in reversed(_PERIOD):
        command = option(command)
    return command


def _moment(text: str) -> Any:
    tick = scanning.whole_number(text, 19)
    return tick if tick is not None and len(text.lstrip("+-")) >= 9 else text


def _keys(words: list[str]) -> list[library.TagKey]:
    """Tags as typed: names, or ``#NUMBER``."""
    return [_key(word) for word in words]


def _key(word: str) -> library.TagKey:
    number = scanning.whole_number(word[1:], 18) if word.startswith("#") and word[1:2].isdigit() else None
    return word if number is None else number


def _open(found: Target, *, create: bool = False) -> library.Historian | RemoteHistorian:
    if found.url.startswith(("http://", "https://")):
        return library.connect(found.url, ca=os.environ.get("CHRONOTILE_CA"))
    archive = found.open(create=create, read_only=not create)
    try:
        return library.Historian(archive, _native.Historian.open(archive._native, create, _FUTURE_NS), True)
    except BaseException:
        archive.close()
        raise


@historian.command(short_help="List tags, or define one.")
@target(dataset=False)
@click.option(
    "--name", "pattern", default="*", metavar="PATTERN", help="Tags whose names fit; * and ? stand for characters."
)
@click.option("--define", metavar="NAME", help="Define this tag, or change its definition.")
@click.option("--type", "data_type", type=click.Choice(["float", "integer", "bool", "string"]), default="float")
@click.option("--unit", default="", help="Engineering unit.")
@click.option("--description", default="", help="What it is.")
@click.option("--group", default="main", show_default=True, help="Tags of a group share their retention.")
@click.option("--stepped", is_flag=True, help="Values hold until the next one.")
@click.option("--number", type=click.IntRange(0), help="Its number; by default one that follows from the name.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each tag, a line each.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N tags.")
def tags(
    target: Target, pattern: str, define: str | None, data_type: str, unit: str, description: str, group: str,
    stepped: bool, number: int | None, as_json: bool, limit: int | None,
) -> None:  # fmt: skip
    """List the tags there are, or define one."""
    with _open(target, create=define is not None) as h:
        if define is not None:
            properties = {"data_type": data_type, "unit": unit, "description": description, "group": group}
            found = [h.define(define, stepped=stepped, number=-1 if number is None else number, **properties)]
        else:
            found = h.tags(pattern, limit=limit)
    if as_json:
        for tag in found:
            click.echo(json.dumps(vars(tag)))
        return
    header = ["name", "number", "type", "unit", "group", "description"]
    rows = [[tag.name, str(tag.number), tag.data_type, tag.unit, tag.group, tag.description] for tag in found]
    click.echo(table_text(header, rows, frozenset([1])))


@historian.command(short_help="Store points of files.")
@target(dataset=False, rest="FILE...")
@click.option(
    "--format", "format_", type=click.Choice(["csv", "tsv", "ndjson", "parquet", "arrow"]), help="Of the files."
)
@click.option("--batch", metavar="KEY", help="Name of the batch: repeating it with the same points stores them once.")
@click.option("--define", is_flag=True, help="Define tags that are not known, of type float.")
@click.option("--bad-values", is_flag=True, help="Store values that are no numbers as Bad, instead of refusing all.")
def write(target: Target, format_: str | None, batch: str | None, define: bool, bad_values: bool) -> None:
    """Store the points of FILEs, which have columns tag, time, value and, perhaps, status; - is standard input.

    Each file is one batch: all of its points are stored or none. They are durable when the command ends.
    """
    with _open(target, create=True) as h:
        for file in target.rest:
            points = _file_table(file, format_)
            if define:
                _define_missing(h, points)
            key = batch if batch is None or len(target.rest) == 1 else f"{batch}:{file}"
            with _named(file):
                done = h.write(points, batch=key, not_finite="bad" if bad_values else "refuse")
            state = "stored" if done.stored else "were there already"
            click.echo(f"{file}: {count_text(done.points)} points {state}", err=True)


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Errors about points say of which file they are."""
    try:
        yield
    except (InvalidInputError, TagNotFoundError) as error:
        raise type(error)(f"{file}: {error}", kind=error.kind, **error.details) from None


def _file_table(file: str, format_: str | None) -> _native.Table:
    path = "/dev/stdin" if file == "-" else file
    types = [("time", "timestamp[ns]"), ("tag", "utf8")]
    given = _native.RecordFile.open(path, format=format_ or ("csv" if file == "-" else None), types=types)
    return _native.Table.of(given)


def _define_missing(h: library.Historian | RemoteHistorian, points: _native.Table) -> None:
    known = {tag.name for tag in h.tags()}
    missing = [name for name in points.distinct_texts("tag") if name not in known]
    if missing:
        h.define_many([{"name": name} for name in missing])


@historian.command(short_help="Read points.")
@target(dataset=False, rest="TAG...")
@_period
@click.option("--bounds", is_flag=True, help="Also the points before and behind the period.")
@output_options
def read(
    target: Target, start: str, end: str, bounds: bool, columns: str | None, format_: str | None, out: str | None,
    overwrite: bool, limit: int | None,
) -> None:  # fmt: skip
    """Read the points of TAGs in a period: names, or #NUMBER."""
    _no_columns(columns)
    with _open(target) as h:
        result = h.raw(_keys(target.rest), _moment(start), _moment(end), bounds=bounds)
        write_out(result, format_, out, overwrite, limit)


@historian.command(short_help="The newest point of tags.")
@target(dataset=False, rest="TAG...")
@output_options
def latest(
    target: Target, columns: str | None, format_: str | None, out: str | None, overwrite: bool, limit: int | None
) -> None:
    """Read the newest point of each TAG: a name, or #NUMBER."""
    _no_columns(columns)
    with _open(target) as h:
        result = h.latest(_keys(target.rest))
        write_out(ReadResult(result._native.stream()), format_, out, overwrite, limit)


@historian.command(short_help="Compute aggregates.")
@target(dataset=False, rest="TAG...")
@_period
@click.option("--interval", metavar="LENGTH", help="1h, 15m, 500ms, ...; without it one interval over the period.")
@click.option("--aggregate", "name", default="TimeAverage", show_default=True, metavar="NAME",
              help="An aggregate of OPC UA Part 13, or Percentile, Rate, Distinct.")  # fmt: skip
@click.option("--stepped/--sloped", default=None, help="How values go on between points. Default: as the tag.")
@click.option("--uncertain-as-bad/--uncertain-as-good", default=None, help="Default: as the tag.")
@click.option("--percent-good", type=click.FloatRange(0, 100), help="Percent of Good from which a result is Good.")
@click.option("--percent-bad", type=click.FloatRange(0, 100), help="Percent of Bad from which a result is Bad.")
@click.option("--sloped-extrapolation/--stepped-extrapolation", default=None, help="Past the last point.")
@click.option("--percent", type=click.FloatRange(0, 100), default=50.0, show_default=True, help="For Percentile.")
@output_options
def aggregate(
    target: Target, start: str, end: str, interval: str | None, name: str, stepped: bool | None,
    uncertain_as_bad: bool | None, percent_good: float | None, percent_bad: float | None,
    sloped_extrapolation: bool | None, percent: float, columns: str | None, format_: str | None, out: str | None,
    overwrite: bool, limit: int | None,
) -> None:  # fmt: skip
    """Compute an aggregate of each TAG (a name, or #NUMBER) for each interval of a period."""
    _no_columns(columns)
    with _open(target) as h:
        result = h.aggregate(
            _keys(target.rest),
            _moment(start),
            _moment(end),
            interval,
            name,
            stepped=stepped,
            treat_uncertain_as_bad=uncertain_as_bad,
            percent_good=percent_good,
            percent_bad=percent_bad,
            sloped_extrapolation=sloped_extrapolation,
            percent=percent,
        )
        write_out(result, format_, out, overwrite, limit)


@historian.command(short_help="Join chunks and keep statistics.")
@target(dataset=False)
@click.pass_context
def maintain(context: click.Context, target: Target) -> None:
    """Join small chunks and compute the statistics of hours that make aggregates fast. Run it now and then. Tiles that
    have to be left as they are, for damage say, are named; the exit code is then 5."""
    with _open(target, create=True) as h:
        done = h.maintain()
    click.echo(
        f"{count_text(done.tiles_consolidated)} tiles consolidated, {count_text(done.tiles_summarized)} summarized, "
        f"{count_text(done.hours)} hours"
    )
    for failure in done.failed:
        click.echo(f"left as it is: {failure}", err=True)
    if done.failed:
        context.exit(5)


def _no_columns(columns: str | None) -> None:
    if columns is not None:
        raise click.UsageError("--columns does not apply: points have columns tag, time, value and status.")
