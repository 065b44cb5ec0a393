"""``chronotile read``, ``latest`` and ``count``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from chronotile import _native
from chronotile.cli.common import (
    Command,
    Target,
    angles,
    echo_count,
    in_place_of,
    json_option,
    moment,
    numbers,
    target,
    typed_conditions,
    with_options,
)
from chronotile.conditions import literal, names
from chronotile.dataset import Dataset
from chronotile.dataset.keys import cell_columns
from chronotile.hints import name_hint
from chronotile.result import ReadResult
from chronotile.sky import Region
from chronotile.sky import box as sky_box
from chronotile.sky import circle as sky_circle
from chronotile.sky import polygon as sky_polygon

_FORMATS = ["table", "csv", "tsv", "ndjson", "parquet", "arrow", "arrow-stream"]


def place_options(command: Command) -> Command:
    """Add options of place, period and condition; the command gets `place`, a function of the dataset."""

    def run(
        circle: str | None, box: str | None, polygon: str | None, cells: str | None, keys: str | None, ids: str | None,
        start: str | None, end: str | None, where: tuple[str, ...], history: bool, **options: Any,
    ) -> Any:  # fmt: skip
        def place(dataset: Dataset) -> dict[str, Any]:
            return {
                "region": region_of(circle, box, polygon),
                "cells": None
                if cells is None
                else [int(cell) for cell in numbers(cells, _any_count(cells), "--cells", "CELL,...")],
                "keys": None if keys is None else _values(keys, dataset, cell_columns(dataset)),
                "ids": None if ids is None else _values(ids, dataset, dataset.id),
                "start": moment(start, dataset),
                "end": moment(end, dataset),
                "where": typed_conditions(where, dataset),
                "history": history,
            }

        return command(place=place, **options)

    return in_place_of(
        command,
        run,
        *_REGION_OPTIONS,
        click.option("--cells", metavar="CELL,...", help="Whole cells by number."),
        click.option("--keys", metavar="VALUE,...", help="Values of the key, id bucket or hash column."),
        click.option("--ids", metavar="VALUE,...", help="Record ids; for several id columns as a:b,..."),
        click.option("--start", metavar="TIME", help="Start: ISO 8601 (UTC), or a number in the column's unit."),
        click.option("--end", metavar="TIME", help="End, exclusive."),
        click.option(
            "--where",
            multiple=True,
            metavar="CONDITION",
            help='"mag<18", "band in g,r", "x between 1,2", "line contains TEXT", "line prefix TEXT", '
            '"line matches REGEX", "x exists", "x exists false"; repeatable.',
        ),
        click.option("--history", is_flag=True, help="With merge rule latest, return all versions."),
    )


def region_options(command: Command) -> Command:
    """Add options of a sky region; the command passes them to :func:`region_of`."""
    return with_options(*_REGION_OPTIONS)(command)


_REGION_OPTIONS: list[Callable[[Command], Command]] = [
    click.option(
        "--circle", metavar="RA,DEC,RADIUS", help="Sky circle RA,DEC,RADIUS: degrees, or 10h20m,-5d20m,3arcsec."
    ),
    click.option("--box", metavar="RA1,RA2,DEC1,DEC2", help="Sky box, degrees; RA1 > RA2 crosses ra 0."),
    click.option("--polygon", metavar="RA,DEC,RA,DEC,...", help="Convex sky polygon, degrees."),
]


def _any_count(text: str) -> tuple[int, ...]:
    return (len([word for word in text.replace(",", " ").split() if word]),)


def region_of(circle: str | None, box: str | None, polygon: str | None) -> Region | None:
    """The region given by options, if any."""
    given = [text for text in (circle, box, polygon) if text is not None]
    if len(given) > 1:
        raise click.UsageError("Give only one of --circle, --box and --polygon.")
    if circle is not None:
        ra, dec, radius = angles(circle, (3,), "--circle", "RA,DEC,RADIUS", {0})
        return sky_circle(ra, dec, radius)
    if box is not None:
        ra_min, ra_max, dec_min, dec_max = angles(box, (4,), "--box", "RA1,RA2,DEC1,DEC2", {0, 1})
        return sky_box(ra_min, ra_max, dec_min, dec_max)
    if polygon is not None:
        counts = tuple(range(6, 2_002, 2))
        flat = angles(polygon, counts, "--polygon", "RA,DEC of three or more corners", set(range(0, 2_002, 2)))
        return sky_polygon(list(zip(flat[::2], flat[1::2], strict=True)))
    return None


def _values(text: str, dataset: Dataset, columns: tuple[str, ...]) -> Any:
    """Parse values: ``a,b`` for one column, ``a:1,b:2`` for several."""
    types = dataset.column_types
    rows = [word.strip() for word in text.split(",") if word.strip()]
    if len(columns) <= 1:
        return [_value(word, types[columns[0]]) if columns else word for word in rows]
    split = [word.split(":") for word in rows]
    width = len(split[0]) if split else 0
    if any(len(words) != width for words in split):
        raise click.UsageError(f"Each of {text!r} needs the same number of parts: {':'.join(columns)}.")
    return tuple(
        [_value(words[place], types[columns[min(place, len(columns) - 1)]]) for words in split]
        for place in range(width)
    )


def _value(text: str, kind: str) -> Any:
    return text if kind.startswith(("utf8", "decimal")) else literal(text)


@dataclass(frozen=True)
class Output:
    """Output format and destination of a command's rows."""

    columns: str | None
    format: str | None
    file: str | None
    overwrite: bool
    limit: int | None

    @property
    def is_table(self) -> bool:
        """Whether the rows are printed as a table."""
        return self.format == "table" or (self.format is None and self.file in (None, "-"))

    @property
    def column_names(self) -> list[str] | None:
        """The columns, in order; None for all."""
        return names(self.columns)

    def write(self, result: Any, *, status_label: Callable[[int], str] | None = None) -> None:
        """Write a result or a `pyarrow.Table`; `status_label` converts the codes of the column `status` to words."""
        to_stdout = self.file in (None, "-")
        format = self.format or ("table" if to_stdout else _native.format_of_path(str(self.file)))
        rows: Any = result._native if isinstance(result, ReadResult) else result
        if self.limit is not None and isinstance(result, ReadResult):
            rows.limit(self.limit)
        elif self.limit is not None:
            rows = rows.slice(0, self.limit)
        to_terminal = to_stdout and sys.stdout.isatty()
        if to_terminal and format in ("parquet", "arrow", "arrow-stream"):
            raise click.UsageError(f"Format {format} is binary: write it to --out FILE, or pipe it.")
        _native.write_records(
            rows,
            self.file or "-",
            format,
            overwrite=self.overwrite,
            table_rows=40 if self.limit is None else max(self.limit, 1),
            table_width=shutil.get_terminal_size().columns if to_terminal else None,
            status_label=status_label,
        )

    def write_table(self, table: Any) -> None:
        """Write the requested columns of a `pyarrow.Table`."""
        chosen = self.column_names
        for name in chosen or ():
            if name not in table.column_names:
                raise click.UsageError(f"No column {name!r}{name_hint(name, table.column_names)}.")
        self.write(table if chosen is None else table.select(chosen))

    def write_top(self, found: Any, by: str, question: dict[str, Any]) -> None:
        """Write the most frequent values of columns, 10 by default."""
        most = 10 if self.limit is None else max(self.limit, 1)
        self.write_table(found.top(names(by) or [], most, **question))


def output_options(command: Command) -> Command:
    """Add output options; the command gets `output`."""

    def run(
        columns: str | None, format_: str | None, as_json: bool, out: str | None, overwrite: bool, limit: int | None,
        **given: Any,
    ) -> Any:  # fmt: skip
        if as_json and format_ not in (None, "ndjson"):
            raise click.UsageError(f"Give only one of --json and --format {format_}.")
        output = Output(columns, "ndjson" if as_json else format_, out, overwrite, limit)
        return command(output=output, **given)

    return in_place_of(
        command,
        run,
        click.option("--columns", metavar="NAMES", help="Columns to print, in this order."),
        click.option(
            "--format",
            "format_",
            type=click.Choice(_FORMATS),
            help="Output format. Default: by the extension of --out, else table.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Same as --format ndjson: one JSON object per line."),
        click.option("--out", "-o", metavar="FILE", help="Write to a file instead of standard output."),
        click.option("--overwrite", is_flag=True, help="Replace the file if it exists."),
        click.option("--limit", type=click.IntRange(0), metavar="N", help="At most N rows."),
    )


@click.command(short_help="Read records by place and period.")
@target()
@place_options
@click.option("--order-by", metavar="NAMES", help="Sort by these columns; -jd sorts in descending order.")
@output_options
def read(target: Target, place: Callable[[Dataset], dict[str, Any]], order_by: str | None, output: Output) -> None:
    """Read records by place, period, id and condition.

    \b
    Examples:
        chronotile read survey.db detections --circle 150.1,2.2,0.1 --start 2026-01-01 --limit 20
        chronotile read survey.db detections --circle 10h00m24s,2d12m,30arcsec --order-by -jd --limit 5
        chronotile read survey.db detections --where "mag<18" --where "band in g,r" --out bright.parquet
        chronotile read plant.db values --keys 17 --start 2026-01-01T00:00 --format csv > tag17.csv
        chronotile read logs.db lines --where "line matches (?i)invalid user|failed password"
    """
    with target.open(read_only=True) as archive:
        dataset = archive[target.dataset]
        output.write(
            dataset.read(columns=output.column_names, order_by=names(order_by), limit=output.limit, **place(dataset))
        )


@click.command(short_help="Read the newest record of each key.")
@target()
@click.option(
    "--by", metavar="NAMES", help="Return one row per distinct value of these columns. Default: the key or id columns."
)
@place_options
@output_options
def latest(target: Target, by: str | None, place: Callable[[Dataset], dict[str, Any]], output: Output) -> None:
    """Read the newest record, by time, of each key.

    \b
    Examples:
        chronotile latest plant.db values
        chronotile latest plant.db values --keys 17,18 --end 2026-01-01
        chronotile latest survey.db detections --by object --columns object,jd,mag
    """
    with target.open(read_only=True) as archive:
        dataset = archive[target.dataset]
        output.write(dataset.latest(by=names(by), columns=output.column_names, **place(dataset)))


@click.command(short_help="Count records.")
@target()
@place_options
@json_option
def count(target: Target, place: Callable[[Dataset], dict[str, Any]], as_json: bool) -> None:
    """Print the number of records that `read` would return.

    \b
    Examples:
        chronotile count survey.db detections
        chronotile count survey.db detections --box 149,151,1,3 --where "mag<18"
    """
    with target.open(read_only=True) as archive:
        dataset = archive[target.dataset]
        echo_count(dataset.count(**place(dataset)), as_json)
