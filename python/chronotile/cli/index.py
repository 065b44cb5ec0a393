"""``chronotile index``: indexes of a dataset."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import click

from chronotile.cli.common import CountProgress, Target, confirm, iso_text, json_option, moment, target, yes_option
from chronotile.cli.plugins import LateGroup
from chronotile.cli.query import place_options
from chronotile.conditions import names
from chronotile.dataset import Dataset
from chronotile.reports import IndexBuildReport, IndexInfo
from chronotile.terminal import bytes_text, count_text, table_text


@click.group(cls=LateGroup, short_help="Create, build, show and drop indexes.")
def index() -> None:
    """Indexes on combinations of columns, for any dataset. Reads and counts use them automatically. An index is built
    window by window, at any time after the rows are written. It never changes a result: windows that are not indexed or
    out of date are read directly.

    \b
    Examples:
        chronotile index create jobs.db jobs --columns user,cloud,status
        chronotile index build jobs.db jobs --every 60
        chronotile index status jobs.db jobs
    """


@index.command("create", short_help="Define an index.")
@target()
@click.option("--columns", required=True, metavar="NAMES", help="Columns, separated by commas.")
@click.option("--name", metavar="NAME", help="Name of the index. Default: the columns' names, joined by _.")
def create(target: Target, columns: str, name: str | None) -> None:
    """Define an index. Build it with `index build`.

    \b
    Example:
        chronotile index create jobs.db jobs --columns user,cloud,status --name who_where
    """
    with target.open() as archive:
        dataset = archive[target.dataset]
        before = {found.name for found in dataset.indexes()}
        dataset.create_index(names(columns) or [], name)
        made = next(found.name for found in dataset.indexes() if found.name not in before)
        click.echo(f"defined index {made} of {dataset.name}; build it with: chronotile index build")


@index.command("build", short_help="Bring indexes up to date.")
@target()
@click.option("--name", metavar="NAME", help="Only this index.")
@click.option("--start", metavar="TIME", help="Only windows from this time on.")
@click.option("--end", metavar="TIME", help="Only windows before this time.")
@click.option("--lease", "lease_s", type=click.IntRange(1, 3_600), default=60, show_default=True, metavar="SECONDS",
              help="Time after which other builders take over the work of a silent one.")  # fmt: skip
@click.option("--no-wait", is_flag=True, help="Do not wait for windows that other builders work on.")
@click.option("--rebuild", is_flag=True, help="Rebuild every window.")
@click.option(
    "--every", type=click.IntRange(1), metavar="SECONDS", help="Repeat forever, with this pause after each build."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per build.")
def build(
    target: Target, name: str | None, start: str | None, end: str | None, lease_s: int, no_wait: bool, rebuild: bool,
    every: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Bring indexes up to date by reading what has changed. Run it on any number of machines; they share the work.

    \b
    Examples:
        chronotile index build jobs.db jobs
        chronotile index build cassandra://h1,h2/grid jobs --start 2026-01-01 --every 60
    """
    with target.open() as archive:
        dataset = archive[target.dataset]
        while True:
            with CountProgress("indexing", "windows") as progress:
                report = dataset.build_indexes(
                    name, start=moment(start, dataset), end=moment(end, dataset), lease_s=lease_s, wait=not no_wait,
                    rebuild=rebuild, progress=progress,
                )  # fmt: skip
            click.echo(json.dumps(dataclasses.asdict(report)) if as_json else _built(report))
            if every is None:
                return
            time.sleep(every)


def _built(report: IndexBuildReport) -> str:
    if not report.windows_built and not report.windows_elsewhere:
        if not report.windows:
            return "nothing to do: no index, or no rows to index"
        state = "window is" if report.windows == 1 else "windows are"
        return f"nothing to do: {count_text(report.windows)} {state} up to date"
    parts = [
        f"built {count_text(report.windows_built)} of {count_text(report.windows, 'window')}: read "
        f"{count_text(report.tiles_read, 'tile')}, {count_text(report.rows, 'row')}; stored {bytes_text(report.bytes)}"
    ]
    if report.windows_elsewhere:
        parts.append(f"other builders are building {count_text(report.windows_elsewhere, 'window')}")
    if report.tiles_left_out:
        parts.append(f"left out {count_text(report.tiles_left_out, 'tile')}, damaged or with too many distinct values")
    return "; ".join(parts)


@index.command("status", short_help="Show indexes and their state.")
@target()
@json_option
def status(target: Target, as_json: bool) -> None:
    """Show the indexes of a dataset and the state of each.

    \b
    Example:
        chronotile index status jobs.db jobs
    """
    with target.open(read_only=True) as archive:
        dataset = archive[target.dataset]
        found = dataset.indexes()
        if as_json:
            click.echo(json.dumps([dataclasses.asdict(info) for info in found], indent=2, default=iso_text))
            return
        if not found:
            click.echo(f"{dataset.name} has no index: create one with chronotile index create", err=True)
            return
        size = max(dataset.info().bytes, 1)
        header = ["name", "columns", "windows", "tiles", "rows", "values", "size", "of data", "built"]
        rows = [_row(info, size) for info in found]
        click.echo(table_text(header, rows, frozenset(range(2, 8))))


def _row(info: IndexInfo, size: int) -> list[str]:
    counts = [count_text(count) for count in (info.windows, info.tiles, info.rows, info.values)]
    built = "never" if info.built is None else info.built.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [info.name, ",".join(info.columns), *counts, bytes_text(info.bytes), f"{info.bytes / size:.2%}", built]


@index.command("drop", short_help="Drop an index.")
@target(rest="INDEX")
@yes_option
def drop(target: Target, yes: bool) -> None:
    """Drop an index and everything built for it. Results of reads stay the same.

    \b
    Example:
        chronotile index drop jobs.db jobs user_cloud_status --yes
    """
    if len(target.rest) != 1:
        raise click.UsageError("Give exactly one index.")
    with target.open() as archive:
        confirm(f"Drop {target.rest[0]} of {target.dataset}? To use it again, you must rebuild it.", yes)
        windows = archive[target.dataset].drop_index(target.rest[0])
        click.echo(f"dropped index {target.rest[0]} with {count_text(windows, 'window')}")


@index.command("explain", short_help="Show how a query uses an index.")
@target()
@click.option("--count", "counts", is_flag=True, help="Explain a count instead of a read.")
@click.option("--by", metavar="NAMES", help="Explain a count by these columns.")
@json_option
@place_options
def explain(
    target: Target, place: Callable[[Dataset], dict[str, Any]], counts: bool, by: str | None, as_json: bool
) -> None:
    """Show which windows a query answers from an index, and which it reads directly.

    \b
    Example:
        chronotile index explain jobs.db jobs --where user=ann --where status=failed --count
    """
    with target.open(read_only=True) as archive:
        dataset = archive[target.dataset]
        used = dataset.explain(by=names(by) or ([] if counts else None), **place(dataset))
        if as_json:
            click.echo(json.dumps(dataclasses.asdict(used), indent=2, default=iso_text))
            return
        click.echo(str(used))
        if used.index is not None and used.windows_direct:
            shown = ", ".join(iso_text(start)[:19] for start in used.windows_direct[:10])
            more = len(used.windows_direct) - 10
            click.echo(f"windows read directly: {shown}{f' and {more} more' if more > 0 else ''}")
