"""``chronotile create``, and the options that define a dataset."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from chronotile import _native, cells, inputs, scanning, times
from chronotile.archive import Archive
from chronotile.cli import levels
from chronotile.cli.common import Command, Target, in_place_of, json_option, target
from chronotile.conditions import literal, names
from chronotile.dataset import Dataset
from chronotile.terminal import count_text


@dataclass
class Definition:
    """Definition of a dataset, from command-line options."""

    sky: str | None
    scheme: str
    level: int | None
    rows: int | None
    key: str | None
    id_bucket: str | None
    hash: str | None
    single: bool
    time: str | None
    window: str
    id: str | None
    merge: str
    version: str | None
    retention: str | None
    slice: str | None
    layout: str
    partition_cells: int
    text: str | None
    moves: str | None
    group: str | None
    slices_of: str | None

    @property
    def given(self) -> bool:
        """Whether any option of a definition is given."""
        return any([self.sky, self.key, self.id_bucket, self.hash, self.single, self.time])

    def create(
        self, archive: Archive, name: str, schema: _native.Schema, *, exist_ok: bool,
        sample: Callable[[], _native.RecordFile] | None = None,
    ) -> Dataset:  # fmt: skip
        """Create the dataset. Without a pixel level, choose one from the expected number of rows, or from the file that
        `sample` opens.
        """
        if self.time is None:
            raise click.UsageError(
                "Missing option '--time': give the time column, such as --time jd or --time t:mjd:tai."
            )
        column, format_, scale = _time_parts(self.time)
        schema = self._with_fractions(schema, column, format_)
        self._choose_level(archive, name, schema, sample)
        slice_: Any = self.slice
        if slice_ is not None and slice_.isdigit():
            slice_ = int(slice_)
        return archive.create(
            name,
            schema=schema,
            cell=self.cell_rule(),
            time=column,
            time_format=format_,
            time_scale=scale,
            window=self.window,
            id=names(self.id) or [],
            merge=self.merge,
            version=self.version,
            retention=self.retention,
            slice=slice_,
            layout=self.layout,
            partition_cells=self.partition_cells,
            text=names(self.text) or [],
            moves=self.moves or 0.0,
            group=self.group,
            slices_of=self.slices_of,
            exist_ok=exist_ok,
        )

    def _with_fractions(self, schema: _native.Schema, time: str, format_: str | None) -> _native.Schema:
        """Use float64 for columns of positions and days, even if the sample file has only integers in them."""
        wanted = set(names(self.sky) or [])
        if format_ in ("jd", "mjd") or (format_ is None and time.lower() in ("jd", "mjd")):
            wanted.add(time)
        columns = schema.columns()
        if not any(name in wanted and kind in _WHOLE for name, kind, _ in columns):
            return schema
        return _native.Schema.of_types(
            [(name, "float64" if name in wanted and kind in _WHOLE else kind) for name, kind, _ in columns]
        )

    def _choose_level(
        self, archive: Archive, name: str, schema: _native.Schema, sample: Callable[[], _native.RecordFile] | None
    ) -> None:
        columns = names(self.sky) or []
        if self.level is not None or len(columns) != 2 or self.time is None:
            return
        if name in archive and isinstance(cell := archive[name].cell, cells.SkyCell):
            # With --exist-ok, the existing dataset decides.
            self.level = cell.level
            return
        types = {column: kind for column, kind, _ in schema.columns()}
        axis = times.resolve_axis(*_time_parts(self.time), types)
        if self.rows is not None:
            found: levels.Choice | None = levels.for_rows(self.rows, self.scheme, self.window)
        else:
            place = (columns[0], columns[1], self.scheme)
            found = levels.choose(sample(), *place, axis, self.window, types) if sample else None
        found = found or levels.by_default(self.scheme, self.window)
        self.level = found.level
        if found.reason:
            click.echo(f"note: {name}: {found.reason}", err=True)

    def cell_rule(self) -> cells.CellRule:
        """Cell rule; exactly one of its options must be given."""
        given = [option for option in ("sky", "key", "id_bucket", "hash", "single") if getattr(self, option)]
        if len(given) != 1:
            found = " and ".join(f"--{option}" for option in given) or "none"
            raise click.UsageError(
                f"Give exactly one cell rule (given: {found}): --sky ra,dec, --key COLUMN, --id-bucket "
                "COLUMN:SIZE, --hash COLUMN or --single."
            )
        if self.sky:
            columns = names(self.sky) or []
            if len(columns) != 2:
                raise click.BadParameter(f"{self.sky!r} is not RA,DEC", param_hint="--sky")
            return cells.sky(
                columns[0],
                columns[1],
                scheme=self.scheme,
                level=levels.LEVEL_DEFAULT if self.level is None else self.level,
            )
        if self.key:
            return cells.key(self.key)
        if self.id_bucket:
            column, _, size = self.id_bucket.rpartition(":")
            if not column or not size.isdigit():
                raise click.BadParameter(
                    f"{self.id_bucket!r} is not COLUMN:SIZE, such as job_id:100", param_hint="--id-bucket"
                )
            return cells.id_bucket(column, int(size))
        if self.hash:
            columns_text, _, buckets = self.hash.partition(":")
            if buckets and not buckets.isdigit():
                raise click.BadParameter(f"{self.hash!r} is not COLUMN[:BUCKETS]", param_hint="--hash")
            return cells.hash(*(names(columns_text) or []), buckets=int(buckets) if buckets else None)
        return cells.single()


def _time_parts(text: str) -> tuple[str, str | None, str]:
    """``column[:format][:scale]``, format and scale in either order."""
    column, *words = text.split(":")
    format_, scale = None, "utc"
    for word in words:
        if word in ("utc", "tai"):
            scale = word
        elif word in ("timestamp", "mjd", "jd"):
            format_ = word
        else:
            raise click.BadParameter(f"{text!r} is not COLUMN[:timestamp|mjd|jd][:utc|tai]", param_hint="--time")
    if scale == "tai" and format_ is None and column.lower() not in ("jd", "mjd"):
        format_ = "timestamp"
    return column, format_, scale


def definition_options(command: Command) -> Command:
    """Add the options of a :class:`Definition`; the command gets it as `definition`."""

    def run(**options: Any) -> Any:
        parts = {part: options.pop(part) for part in Definition.__dataclass_fields__}
        return command(definition=Definition(**parts), **options)

    return in_place_of(
        command,
        run,
        click.option("--sky", metavar="RA,DEC", help="Cells are sky pixels of these columns (degrees)."),
        click.option(
            "--scheme", type=click.Choice(["mq3c", "q3c", "htm", "healpix"]), default="mq3c", show_default=True,
            help="Pixelization for --sky.",
        ),
        click.option("--level", type=int, help="Pixel level for --sky. Default: up to 10, by --rows or a file."),
        click.option(
            "--rows", type=click.IntRange(1), metavar="N",
            help="With --sky: rows that you expect per window over the whole sky; chooses the pixel level.",
        ),
        click.option("--key", metavar="COLUMN", help="Cells are values of an integer column."),
        click.option("--id-bucket", metavar="COLUMN:SIZE", help="Cells are ranges of SIZE consecutive ids."),
        click.option("--hash", metavar="COLUMN[:BUCKETS]", help="Cells are hashes of columns of any type: a,b."),
        click.option("--single", is_flag=True, help="All records share one cell."),
        click.option("--time", metavar="COLUMN[:FORMAT][:SCALE]", help="Time column; timestamp, mjd, jd; utc, tai."),
        click.option("--window", default="30d", show_default=True, metavar="TIME", help="Length of a window."),
        click.option("--id", metavar="COLUMNS", help="Columns that identify a record, separated by commas."),
        click.option(
            "--merge", type=click.Choice(["append", "latest"]), default="append", show_default=True,
            help="latest: records have versions, and reads return the newest.",
        ),
        click.option("--version", metavar="COLUMN", help="With --merge latest, the column that orders versions."),
        click.option("--retention", metavar="TIME", help="Age past which `retire` drops slices: 365d."),
        click.option("--slice", metavar="N|TIME", help="Windows per slice. Default: as many as fit in 30 days."),
        click.option(
            "--layout", type=click.Choice(["chunks", "rows"]), default="chunks", show_default=True,
            help="rows: on a cluster, one CQL row per record, for other tools.",
        ),
        click.option(
            "--partition-cells", type=click.IntRange(1, 256), default=1, show_default=True,
            help="On a cluster, number of neighbouring cells that share a partition.",
        ),
        click.option(
            "--text", metavar="COLUMNS", help="Text columns with filters: text searches skip chunks without a match."
        ),
        click.option(
            "--moves", metavar="ANGLE", help="With --sky, --merge latest: largest distance between versions: 5arcsec."
        ),
        click.option("--group", metavar="NAME", help="Group to join: datasets that share their batches."),
        click.option(
            "--slices-of", metavar="NAME", help="Dataset of the group whose slices, and so partitions, it shares."
        ),
    )  # fmt: skip


def schema_of_text(text: str) -> _native.Schema:
    """``name:type,...``; types may hold commas inside brackets."""
    parts = [part.strip() for part in scanning.outside_brackets(text) if part.strip()]
    columns = []
    for part in parts:
        name, colon, kind = part.partition(":")
        if not colon:
            raise click.BadParameter(f"{part!r} is not NAME:TYPE", param_hint="--schema")
        columns.append((name.strip(), kind.strip()))
    return _native.Schema.of_types(columns)


def describe(dataset: Dataset) -> str:
    """Describe a dataset in one line."""
    level = f"level {dataset.cell.level}, " if isinstance(dataset.cell, cells.SkyCell) else ""
    columns = count_text(len(dataset.column_types), "column")
    return f"{dataset.name}: {columns}, {level}window {dataset.window}, merge {dataset.merge}"


def definition_record(dataset: Dataset) -> dict[str, Any]:
    """Describe a dataset for JSON."""
    return {
        "name": dataset.name,
        "columns": dataset.column_types,
        "cell": {"rule": cells.rule_name(dataset.cell), **dataclasses.asdict(dataset.cell)},
        "time": dataclasses.asdict(dataset.time),
        "window": dataset.window,
        "windows_per_slice": dataset.windows_per_slice,
        "id": list(dataset.id),
        "merge": dataset.merge,
        "version": dataset.version,
        "retention": dataset.retention,
        "layout": dataset.layout,
        "partition_cells": dataset.partition_cells,
        "moves_deg": dataset.moves,
        "group": dataset.group,
    }


@click.command(short_help="Create a dataset.")
@target()
@click.option("--like", metavar="FILE", help="Data file to take the columns from.")
@click.option("--schema", metavar="NAME:TYPE,...", help="Columns: candid:int64,jd:float64,filter:utf8.")
@definition_options
@click.option("--exist-ok", is_flag=True, help="Succeed if the dataset exists with the same definition.")
@json_option
def create(
    target: Target, like: str | None, schema: str | None, definition: Definition, exist_ok: bool, as_json: bool
) -> None:  # fmt: skip
    """Create a dataset, and the archive if it does not exist.

    \b
    Examples:
        chronotile create survey.db detections --like night1.parquet \\
            --sky ra,dec --level 10 --time jd --id candid
        chronotile create plant.db values --schema tag:int64,t:timestamp[us],value:float64 \\
            --key tag --time t --window 1d --retention 365d
        chronotile create logs.db lines --schema "time:timestamp[us],line:utf8,line_number:int64,stream:utf8" \\
            --hash stream --time time --id stream,line_number --text line
    """
    if (like is None) == (schema is None):
        raise click.UsageError("Give the columns by either --like FILE or --schema NAME:TYPE,...")
    file = None if like is None else _native.RecordFile.open(like)
    columns = schema_of_text(schema or "") if file is None else inputs.schema(file.schema())
    with target.open(create=True) as archive:
        sample = None if file is None else lambda: file
        dataset = definition.create(archive, target.dataset, columns, exist_ok=exist_ok, sample=sample)
        click.echo(json.dumps(definition_record(dataset)) if as_json else f"created {describe(dataset)}")


@click.command(short_help="Add columns to a dataset.")
@target(rest="NAME:TYPE[=DEFAULT]...")
@json_option
def add_columns(target: Target, as_json: bool) -> None:
    """Add columns to a dataset. Existing rows get the default, or null.

    \b
    Examples:
        chronotile add-columns survey.db detections flux:float32 quality:int32=0
        chronotile add-columns logs.db lines "host:utf8=web 1"
    """
    columns, defaults = {}, {}
    for word in target.rest:
        definition, equals, default = word.partition("=")
        name, colon, kind = definition.partition(":")
        if not (colon and name and kind):
            raise click.BadParameter(f"{word!r} is not NAME:TYPE or NAME:TYPE=DEFAULT", param_hint="NAME:TYPE")
        columns[name] = kind
        if equals:
            defaults[name] = default if kind in _TEXT_TYPES else literal(default)
    with target.open() as archive:
        dataset = archive[target.dataset]
        dataset.add_columns(columns, defaults)
        text = f"{dataset.name}: added {', '.join(columns)}; {count_text(len(dataset.column_types), 'column')}"
        click.echo(json.dumps({"added": columns, **definition_record(dataset)}) if as_json else text)


_WHOLE = frozenset(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
_TEXT_TYPES = frozenset(["utf8", "string", "str", "text"])

__all__ = ["Definition", "add_columns", "create", "definition_options", "times"]
