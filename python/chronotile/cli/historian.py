"""``chronotile historian``: tags, points and aggregates on an archive or a service."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chronotile import _native, scanning
from chronotile import historian as library
from chronotile.cli.common import Target, confirm, json_option, note_definitions, target, with_options, yes_option
from chronotile.cli.historian_points import PointFiles, chart
from chronotile.cli.plugins import LateGroup
from chronotile.cli.query import Output, output_options
from chronotile.errors import InvalidInputError, TagNotFoundError
from chronotile.hints import name_hint
from chronotile.result import ReadResult
from chronotile.terminal import count_text, table_text

if TYPE_CHECKING:
    from chronotile.historian.remote import RemoteHistorian

_FUTURE_NS = 86_400 * 10**9
"""Points further ahead of the clock are rejected, as by :func:`chronotile.historian.open`."""

_period = with_options(
    click.option(
        "--start", required=True, metavar="TIME",
        help="Start: ISO 8601 (UTC), nanoseconds since 1970, now or now-6h.",
    ),
    click.option("--end", default="now", show_default=True, metavar="TIME", help="End, exclusive."),
)  # fmt: skip
_STATUS = click.option(
    "--status", type=click.Choice(["words", "codes"]), help="Format of qualities. Default: words in tables."
)


@click.group(cls=LateGroup, short_help="Store and read the points of tags, and compute aggregates.")
def historian() -> None:
    """Process history: tags, points with qualities, and the aggregates of OPC UA Part 13.

    ARCHIVE may be the URL of a service (chronotile serve): http://127.0.0.1:8086. Set its token in CHRONOTILE_TOKEN,
    and a file of trusted certificates in CHRONOTILE_CA.

    \b
    Examples:
        chronotile historian tags plant.db --define boiler.temp --unit degC
        chronotile historian write plant.db points.csv
        chronotile historian latest plant.db boiler.temp
        chronotile historian aggregate plant.db boiler.temp --start 2026-01-01 \\
            --end 2026-01-02 --interval 1h --aggregate TimeAverage
    """


def _moment(text: str) -> Any:
    tick = scanning.whole_number(text, 19)
    return tick if tick is not None and len(text.lstrip("+-")) >= 9 else text


def _keys(h: library.Historian | RemoteHistorian, words: list[str]) -> list[library.TagKey]:
    """Resolve tags: names, ``#NUMBER``, or patterns with * and ?."""
    found: dict[library.TagKey, None] = {}
    for word in words:
        if not ("*" in word or "?" in word):
            found[_key(word)] = None
            continue
        names = [tag.name for tag in h.tags(word)]
        if not names:
            raise TagNotFoundError(
                f"no tag matches {word!r}: list tags with chronotile historian tags", kind="tag-not-found"
            )
        found.update(dict.fromkeys(names))
    return list(found)


def _one_key(h: library.Historian | RemoteHistorian, words: list[str]) -> library.TagKey:
    if len(words) != 1:
        raise click.UsageError("Give exactly one tag.")
    return _keys(h, words)[0]


def _status_text(status: str | None, output: Output) -> Callable[[int], str] | None:
    """Function that describes qualities in words, if requested; in tables by default."""
    shown_as_table = output.format in (None, "table") and output.file in (None, "-")
    wanted = status == "words" or (status is None and shown_as_table)
    return _quality if wanted else None


def _quality(status: int) -> str:
    """Describe a quality in words; unknown codes get the severity of their two highest bits."""
    text = library.status_text(status)
    return f"{('Good', 'Uncertain', 'Bad', 'Bad')[status >> 30]} {text}" if text.startswith("0x") else text


_NUMBER_MAX = 2**63 - 1
"""Largest number of a tag."""


def _key(word: str) -> library.TagKey:
    number = scanning.whole_number(word[1:], 19) if word.startswith("#") and word[1:2].isdigit() else None
    return word if number is None or number > _NUMBER_MAX else number


def _open(found: Target, *, create: bool = False, missing_ok: bool = False) -> library.Historian | RemoteHistorian:
    """Open a historian: for writing with `create`, creating what is missing with `missing_ok`."""
    if found.url.startswith(("http://", "https://")):
        return library.connect(found.url, ca=os.environ.get("CHRONOTILE_CA"))
    archive = found.open(create=missing_ok, read_only=not create)
    try:
        return library.Historian(archive, _native.Historian.open(archive._native, create, _FUTURE_NS), True)
    except BaseException:
        archive.close()
        raise


@historian.command(short_help="List tags, or define one.")
@target(dataset=False)
@click.option(
    "--name", "pattern", default="*", metavar="PATTERN", help="Tags whose names match a pattern with * and ?."
)
@click.option("--define", metavar="NAME", help="Define this tag or change its definition.")
@click.option("--type", "data_type", type=click.Choice(["float", "integer", "bool", "string"]), default="float")
@click.option("--unit", default="", help="Engineering unit.")
@click.option("--description", default="", help="Description.")
@click.option("--group", default="main", show_default=True, help="Group; its tags share their retention.")
@click.option("--stepped", is_flag=True, help="Values are constant until the next one.")
@click.option("--number", type=click.IntRange(0), help="Number of the tag. Default: derived from the name.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per tag and line.")
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N tags.")
def tags(
    target: Target, pattern: str, define: str | None, data_type: str, unit: str, description: str, group: str,
    stepped: bool, number: int | None, as_json: bool, limit: int | None,
) -> None:  # fmt: skip
    """List tags, or define one."""
    with _open(target, create=define is not None, missing_ok=define is not None) as h:
        if define is not None:
            properties = {"data_type": data_type, "unit": unit, "description": description, "group": group}
            found = [h.define(define, stepped=stepped, number=-1 if number is None else number, **properties)]
        else:
            found = h.tags(pattern, limit=limit)
    if as_json:
        for tag in found:
            click.echo(json.dumps(vars(tag)))
        return
    if not found:
        none = "no tags: define one with --define" if pattern == "*" else f"no tag matches {pattern!r}"
        click.echo(none, err=True)
        return
    header = ["name", "number", "type", "unit", "group", "description"]
    rows = [[tag.name, str(tag.number), tag.data_type, tag.unit, tag.group, tag.description] for tag in found]
    click.echo(table_text(header, rows, frozenset([1])))


@historian.command(short_help="Store points from files.")
@target(dataset=False, rest="FILE...")
@click.option(
    "--format", "format_", type=click.Choice(["csv", "tsv", "ndjson", "parquet", "arrow"]), help="Format of the files."
)
@click.option("--batch", metavar="KEY", help="Batch name; repeating it with the same points stores them once.")
@click.option("--define", is_flag=True, help="Define unknown tags, with type float.")
@click.option("--bad-values", is_flag=True, help="Store invalid numbers as Bad instead of rejecting the file.")
@click.option("--tag", metavar="NAME", help="Tag of all points, if the files have no tag column.")
@click.option("--zone", metavar="NAME", help="Time zone of times without one: Europe/Berlin. Default: UTC.")
@click.option("--clock-change", type=click.Choice(["earlier", "later"]), default="earlier", show_default=True,
              help="Which instant to take for local times that occur twice in --zone.")  # fmt: skip
@click.option("--delimiter", metavar="CHAR", help="CSV delimiter; `tab` for a tab. Default: a comma.")
@click.option("--tag-column", metavar="NAME", help="Name of the tag column in the files.")
@click.option("--time-column", metavar="NAME", help="Name of the time column.")
@click.option("--value-column", metavar="NAME", help="Name of the value column.")
@click.option("--status-column", metavar="NAME", help='Name of the status column; "" for none.')
@json_option
def write(
    target: Target, format_: str | None, batch: str | None, define: bool, bad_values: bool, tag: str | None,
    zone: str | None, clock_change: str, delimiter: str | None, as_json: bool, **columns: str | None,
) -> None:  # fmt: skip
    """Store the points of FILEs with columns tag, time, value and optionally status; - is standard input. Each file is
    one batch: all of its points are stored or none. They are durable when the command ends.

    \b
    Examples:
        chronotile historian write plant.db points.csv
        chronotile historian write plant.db oven.csv --tag oven.temperature --zone Europe/Berlin --delimiter ';' \\
            --time-column Zeit --value-column Wert --define
    """
    renamed = {
        own: name for own in ("tag", "time", "value", "status") if (name := columns[f"{own}_column"]) is not None
    }
    if tag is not None and "tag" in renamed:
        raise click.UsageError("Give only one of --tag and --tag-column.")
    between = {"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter)
    reading = PointFiles(format_, between, renamed, tag, zone, clock_change == "later")
    # Read the first file before creating the archive: if it cannot be read, none is created.
    first = reading.table(target.rest[0])
    with _open(target, create=True, missing_ok=True) as h:
        for file in target.rest:
            points = first if file == target.rest[0] else reading.table(file)
            if define:
                note_definitions()
                _define_missing(h, points)
            key = batch if batch is None or len(target.rest) == 1 else f"{batch}:{file}"
            with _named(file):
                done = h.write(points, batch=key, not_finite="bad" if bad_values else "refuse")
            if as_json:
                click.echo(json.dumps({"file": file, "points": done.points, "stored": done.stored}))
                continue
            click.echo(f"{file}: {_outcome(done)}", err=True)


def _outcome(done: library.PointsReport) -> str:
    if not done.points:
        return "no points in the file"
    points = count_text(done.points, "point")
    return f"{points} stored" if done.stored else f"{points} {'was' if done.points == 1 else 'were'} already stored"


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Prefix errors about points with the file name, and name the options of the command."""
    try:
        yield
    except TagNotFoundError as error:
        unknown = str(error).partition(": define it first")[0]
        advice = "correct the name, or pass --define to define unknown tags"
        raise TagNotFoundError(f"{file}: {unknown}: {advice}", kind=error.kind, **error.details) from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{file}: {error}", kind=error.kind, **error.details) from None


def _define_missing(h: library.Historian | RemoteHistorian, points: _native.Table) -> None:
    known = {tag.name for tag in h.tags()}
    missing = [name for name in points.distinct_texts("tag") if name not in known]
    if missing:
        h.define_many([{"name": name} for name in missing])


@historian.command(short_help="Read points.")
@target(dataset=False, rest="TAG...")
@_period
@click.option("--bounds", is_flag=True, help="Include the points before and after the period.")
@_STATUS
@output_options
def read(target: Target, start: str, end: str, bounds: bool, status: str | None, output: Output) -> None:
    """Read the points of tags in a period. TAG is a name, a pattern such as 'boiler.*', or #NUMBER.

    \b
    Example:
        chronotile historian read plant.db 'boiler.*' --start now-6h
    """
    _no_columns(output)
    with _open(target) as h:
        result = h.raw(_keys(h, target.rest), _moment(start), _moment(end), bounds=bounds)
        output.write(result, status_label=_status_text(status, output))


@historian.command(short_help="Read the newest points.")
@target(dataset=False, rest="TAG...")
@_STATUS
@output_options
def latest(target: Target, status: str | None, output: Output) -> None:
    """Read the newest point of each tag. TAG is a name, a pattern, or #NUMBER."""
    _no_columns(output)
    with _open(target) as h:
        result = h.latest(_keys(h, target.rest))
        rows = ReadResult(_native.ReadResult.of_table(result._native))
        output.write(rows, status_label=_status_text(status, output))


@historian.command(short_help="Compute aggregates.")
@target(dataset=False, rest="TAG...")
@_period
@click.option("--interval", metavar="LENGTH", help="Interval: 1h, 15m, 500ms, ... Default: the whole period.")
@click.option("--aggregate", "name", default="TimeAverage", show_default=True, metavar="NAME",
              help="Aggregate of OPC UA Part 13, or Percentile, Rate, Distinct.")  # fmt: skip
@click.option("--stepped/--sloped", default=None, help="Interpolation between points. Default: the tag's.")
@click.option(
    "--uncertain-as-bad/--uncertain-as-good", default=None, help="Treat Uncertain as Bad. Default: the tag's setting."
)
@click.option("--percent-good", type=click.FloatRange(0, 100), help="Least percentage of Good for a Good result.")
@click.option("--percent-bad", type=click.FloatRange(0, 100), help="Least percentage of Bad for a Bad result.")
@click.option(
    "--sloped-extrapolation/--stepped-extrapolation", default=None, help="Extrapolation after the last point."
)
@click.option(
    "--percent", type=click.FloatRange(0, 100), default=50.0, show_default=True, help="Percentage for Percentile."
)
@_STATUS
@output_options
def aggregate(
    target: Target, start: str, end: str, interval: str | None, name: str, stepped: bool | None,
    uncertain_as_bad: bool | None, percent_good: float | None, percent_bad: float | None,
    sloped_extrapolation: bool | None, percent: float, status: str | None, output: Output,
) -> None:  # fmt: skip
    """Compute an aggregate of each tag for each interval of a period. TAG is a name, a pattern, or #NUMBER."""
    _no_columns(output)
    with _open(target) as h:
        result = h.aggregate(
            _keys(h, target.rest),
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
        output.write(result, status_label=_status_text(status, output))


@historian.command(short_help="Plot a tag, or print a reduced set of its points.")
@target(dataset=False, rest="TAG")
@_period
@click.option(
    "--points", type=click.IntRange(2), metavar="N", help="Number of points. Default: 1000, or the width of the chart."
)
@click.option("--method", type=click.Choice(["minmax", "lttb"]), default="minmax", show_default=True,
              help="Reduction method; minmax keeps every spike.")  # fmt: skip
@_STATUS
@output_options
def plot(
    target: Target, start: str, end: str, points: int | None, method: str, status: str | None, output: Output
) -> None:
    """Plot TAG over a period; with --format or --out, print a reduced set of points for a plot.

    \b
    Examples:
        chronotile historian plot plant.db boiler.temp --start now-1d
        chronotile historian plot plant.db boiler.temp --start 2026-01-01 --points 500 --format csv
    """
    _no_columns(output)
    draws = output.format is None and output.file is None
    width = shutil.get_terminal_size().columns
    with _open(target) as h:
        key = _one_key(h, target.rest)
        count = points or (2 * width if draws else 1_000)
        result = h.plot(key, _moment(start), _moment(end), points=count, method=method)
        if draws:
            click.echo(chart(result, str(key), width))
            return
        rows = ReadResult(_native.ReadResult.of_table(result._native))
        output.write(rows, status_label=_status_text(status, output))


@historian.command(short_help="Add an annotation to a tag, or list annotations.")
@target(dataset=False, rest="TAG")
@click.option("--text", metavar="TEXT", help="Text of the annotation. Without it, annotations of a period are listed.")
@click.option("--time", "at", default="now", show_default=True, metavar="TIME", help="Time of the annotation.")
@click.option("--author", default="", metavar="NAME", help="Author of the annotation.")
@click.option("--start", default="1970-01-01", metavar="TIME", help="Start of the listed period.")
@click.option("--end", default="now", metavar="TIME", help="End of the listed period, exclusive.")
@output_options
def annotate(target: Target, text: str | None, at: str, author: str, start: str, end: str, output: Output) -> None:
    """Add an annotation to TAG at a time, or list its annotations.

    \b
    Examples:
        chronotile historian annotate plant.db boiler.temp --text "sensor replaced" --author ann
        chronotile historian annotate plant.db boiler.temp --start now-30d
    """
    with _open(target, create=text is not None) as h:
        if text is None:
            notes = h.annotations(_keys(h, target.rest), _moment(start), _moment(end))
            output.write(notes)
            return
        key = _one_key(h, target.rest)
        h.annotate(key, _moment(at), text, author=author)
    click.echo(f"annotated {key} at {at}", err=True)


@historian.command(short_help="Delete the points of a period.")
@target(dataset=False, rest="TAG...")
@_period
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@yes_option
@json_option
def delete(target: Target, start: str, end: str, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Permanently delete the points of tags in a period. Shows how many and asks for confirmation, unless --yes is
    given.

    \b
    Example:
        chronotile historian delete plant.db boiler.temp --start 2026-01-01 --end 2026-01-02 --dry-run
    """
    since, until = _moment(start), _moment(end)
    with _open(target, create=not dry_run) as h:
        keys = _keys(h, target.rest)
        count = _count_rows(h.raw(keys, since, until))
        if count and not dry_run:
            tags = count_text(len(keys), "tag")
            confirm(f"Permanently delete {count_text(count, 'point')} of {tags}?", yes)
            count = sum(h.delete(key, since, until) for key in keys)
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "points": count}))
    else:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {count_text(count, 'point')}")


def _count_rows(result: ReadResult) -> int:
    count = 0
    while (table := result._native.next_batch()) is not None:
        count += table.num_rows
    return count


@historian.command(short_help="Set the retention of points, and drop older ones.")
@target(dataset=False, rest="GROUP LENGTH")
@click.option("--dry-run", is_flag=True, help="Show what would be dropped; change nothing.")
@yes_option
@json_option
def retain(target: Target, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Set the retention of a GROUP of tags to LENGTH (`never` keeps all points), and drop older slices. Shows how many
    and asks for confirmation, unless --yes is given.

    \b
    Examples:
        chronotile historian retain plant.db main 365d --dry-run
        chronotile historian retain plant.db main 365d --yes
    """
    if len(target.rest) != 2:
        raise click.UsageError("Give a group and a duration, such as main 365d; main is the default group.")
    group, length = target.rest
    kept = None if length == "never" else length
    with _open(target, create=not dry_run) as h:
        slices = _older_slice_count(h, group, kept)
        if slices and not dry_run:
            confirm(
                f"Permanently drop {count_text(slices, 'slice')} of group {group} that are older than {length}?", yes
            )
        if not dry_run:
            h.set_retention(group, kept)
            slices = h.retire(group) if kept is not None else 0
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run, "group": group, "retention": kept, "slices": slices}))
        return
    verb = "would be" if dry_run else "are"
    click.echo(f"points of group {group} {verb} kept {'forever' if kept is None else f'for {kept}'}")
    click.echo(f"{'would drop' if dry_run else 'dropped'} {count_text(slices, 'slice')}")


def _older_slice_count(h: library.Historian | RemoteHistorian, group: str, kept: str | None) -> int:
    """Number of slices of a group that a retention of `kept` would drop."""
    if group not in h.groups():
        raise InvalidInputError(f"no group {group!r}{name_hint(group, h.groups())}", kind="invalid-tag")
    if kept is None:
        return 0
    if not isinstance(h, library.Historian):
        raise click.UsageError("A service cannot preview what it would drop: run this command on the archive itself.")
    names = [name for name in h.archive if name.startswith(f"historian_{group}_")]
    return sum(len(h.archive[name].retire(older_than=kept, dry_run=True)) for name in names)


@historian.command(short_help="Merge chunks and update statistics.")
@target(dataset=False)
@json_option
@click.pass_context
def maintain(context: click.Context, target: Target, as_json: bool) -> None:
    """Merge small chunks and compute the hourly statistics that speed up aggregates. Run it regularly. Names tiles that
    were skipped, for example because of damage; the exit code is then 5.
    """
    with _open(target, create=True) as h:
        done = h.maintain()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
    else:
        click.echo(
            f"{count_text(done.tiles_consolidated, 'tile')} consolidated, "
            f"{count_text(done.tiles_summarized)} summarized, {count_text(done.hours, 'hour')}"
        )
    for failure in done.failed:
        click.echo(f"skipped: {failure}", err=True)
    if done.failed:
        context.exit(5)


def _no_columns(output: Output) -> None:
    if output.columns is not None:
        raise click.UsageError("--columns is not supported here: points have columns tag, time, value and status.")
