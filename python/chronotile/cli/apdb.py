"""``chronotile apdb``: alert production databases of sky surveys."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from chronotile import _native
from chronotile.cli.common import (
    Target,
    angles,
    confirm,
    iso_text,
    json_option,
    sharing_options,
    target,
    tell_wait,
    timeout_option,
    yes_option,
)
from chronotile.cli.plugins import PluginGroup
from chronotile.cli.query import Output, output_options, region_of, region_options
from chronotile.errors import InvalidInputError
from chronotile.terminal import ReportedProgress, bytes_text, count_text, table_text

if TYPE_CHECKING:
    from chronotile import apdb as own
    from chronotile.apdb.alerts import Import
    from chronotile.apdb.maintenance import MaintenanceReport, RemovalReport

SCHEMA_HELP = "Felis file; or lsst, the APDB schema of lsst-sdm-schemas; or small, a built-in schema."
STORAGE = click.Choice(["chunks", "rows"])
STORAGE_HELP = "Storage on a cluster: rows lets other tools read its tables."
_TABLES = {"DiaObject": "objects", "DiaSource": "sources", "DiaForcedSource": "forced-sources"}


@click.group(cls=PluginGroup, short_help="Store and read the alert production databases of sky surveys.")
def apdb() -> None:
    """Alert production databases of sky surveys: objects, sources and forced sources of every detector-visit.

    \b
    Examples:
        chronotile apdb create survey.db --schema small
        chronotile apdb import survey.db ztf_detections.parquet
        chronotile apdb read survey.db sources --circle 150.1,2.2,0.1 --at 2026-02-01 --history 90d
    """


def _open(target: Target, *, read_only: bool = False, timeout_s: int = 60) -> own.Apdb:
    from chronotile import apdb as own

    return own.Apdb(target.open(read_only=read_only, timeout_s=timeout_s))


def _moment(text: str | None) -> Any:
    """Parse a time: a number is an MJD in TAI, other text is ISO 8601 (UTC)."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@apdb.command(short_help="Create a database.")
@target(dataset=False)
@click.option("--schema", default="lsst", show_default=True, metavar="FILE", help=SCHEMA_HELP)
@click.option("--relaxed", is_flag=True, help="Make all columns nullable except keys and positions.")
@click.option(
    "--scheme", type=click.Choice(["mq3c", "q3c", "htm", "healpix"]), default="mq3c", show_default=True, help="Pixels."
)
@click.option("--level", type=click.IntRange(0, 20), default=9, show_default=True, help="Pixel level.")
@click.option("--window", default="120d", show_default=True, help="Length of a window of sources.")
@click.option(
    "--slice",
    "slice_",
    metavar="LENGTH",
    help="Length of a slice of sources (on a cluster, a table). Default: 120 days.",
)
@click.option(
    "--partition-levels", type=click.IntRange(0, 4), default=2, show_default=True,
    help="Levels by which a partition of sources on a cluster is coarser than a pixel.",
)  # fmt: skip
@click.option(
    "--object-index-partitions", type=click.IntRange(0, 256), default=1, show_default=True,
    help="Partitions of a cluster over which the index of objects is spread; 0: no index.",
)  # fmt: skip
@click.option("--history", default="360d", show_default=True, help="Default history of footprint reads.")
@click.option("--feed", is_flag=True, help="Keep a feed of changes for replication.")
@click.option("--layout", "storage", type=STORAGE, default="chunks", show_default=True, help=STORAGE_HELP)
@click.option(
    "--density", metavar="FILE", help="Parquet file of positions (ra, dec) with the relative density of the objects."
)
@click.option("--objects", type=float, help="With --density: total number of variable objects.")
@click.option("--visits-a-month", type=float, help="With --density: visits per field in the busiest thirty days.")
@click.option("--transients", type=float, default=0.0, help="With --density: new objects per visit and square degree.")
@click.option("--cell-mib-max", type=float, default=10.0, show_default=True, help="Largest partition in a slice, MiB.")
@json_option
def create(
    target: Target, schema: str, relaxed: bool, scheme: str, level: int, window: str, slice_: str | None,
    partition_levels: int, object_index_partitions: int, history: str, feed: bool, storage: str, density: str | None,
    objects: float | None, visits_a_month: float | None, transients: float, cell_mib_max: float, as_json: bool,
) -> None:  # fmt: skip
    """Create a database in an archive, which is created if it does not exist. With --density, pixels, partitions and
    slices are made fine enough for the densest place: no partition then exceeds --cell-mib-max in any slice.

    \b
    Examples:
        chronotile apdb create survey.db
        chronotile apdb create survey.db --density stars.parquet --objects 4e7 --visits-a-month 30
        chronotile apdb create cassandra://node1/survey --schema my_survey.yaml --level 10
    """
    from chronotile import apdb as own
    from chronotile.apdb import values
    from chronotile.apdb.density import positions

    wanted = own.Schema.read(schema)
    days = values.days(history, "--history")
    layout = own.Layout(
        scheme, level, window, slice=slice_, partition_levels=partition_levels,
        object_partition_levels=max(0, partition_levels - 1), object_index_partitions=object_index_partitions,
        history_days=days, feed=feed, storage=storage, cell_bytes_max=int(cell_mib_max * 2**20),
    )  # fmt: skip
    expected = None
    if density is not None:
        if objects is None or visits_a_month is None:
            raise click.UsageError("--density requires --objects and --visits-a-month.")
        expected = own.Density(*positions(density), objects, visits_a_month, transients_deg2=transients)
    with own.create(target.url, wanted.relaxed() if relaxed else wanted, layout, density=expected) as made:
        most = None if expected is None else max(expected.cell_bytes(made.schema, made.layout).values())
        if as_json:
            record = {
                "schema": made.schema.name, "version": made.schema.version, "layout": dataclasses.asdict(made.layout),
                "columns": {table.name: len(table.columns) for table in made.schema.stored_tables},
                "cell_bytes_expected_max": most,
            }  # fmt: skip
            click.echo(json.dumps(record, indent=2))
            return
        if most is not None:
            click.echo(
                f"{made.layout.scheme} level {made.layout.level}, windows of {made.layout.window}: at most "
                f"{bytes_text(most)} expected per partition and slice"
            )
        tables = ", ".join(f"{table.name} {len(table.columns)}" for table in made.schema.stored_tables)
        click.echo(f"{target.url}: {made.schema.name} {made.schema.version}; columns: {tables}")


@apdb.command(short_help="Show the size and layout of a database.")
@target(dataset=False)
@json_option
def info(target: Target, as_json: bool) -> None:
    """Show rows, chunks and bytes of each table, the number of detector-visits, and the layout."""
    with _open(target, read_only=True) as database:
        found = database.info()
        layout, schema = dataclasses.asdict(database.layout), database.schema
        if as_json:
            tables = {
                name: {"rows": each.rows, "chunks": each.chunks, "tiles": each.tiles, "bytes": each.bytes}
                for name, each in found.items()
            }
            record = {"schema": schema.name, "version": schema.version, "layout": layout, "datasets": tables}
            click.echo(json.dumps(record, indent=2))
            return
        click.echo(f"schema  {schema.name} {schema.version}")
        settings = ", ".join(f"{name} {value}" for name, value in layout.items() if value is not None)
        width = shutil.get_terminal_size().columns
        click.echo(textwrap.fill(settings, width, initial_indent="layout  ", subsequent_indent=" " * 8))
        lines = [
            [
                name, count_text(each.rows), count_text(each.chunks), count_text(each.tiles), bytes_text(each.bytes),
                bytes_text(max((part.cell_bytes_max for part in each.slices), default=0)),
            ]
            for name, each in found.items()
        ]  # fmt: skip
        header = ["dataset", "rows", "chunks", "tiles", "bytes", "largest cell"]
        click.echo(table_text(header, lines, frozenset({1, 2, 3, 4, 5})))
        _show_crowded(database.crowded())


@apdb.command(short_help="Show the columns of the tables.")
@target(dataset=False, rest="[TABLE]...")
@json_option
def schema(target: Target, as_json: bool) -> None:
    """Show the tables of a database: columns, types, units and descriptions.

    \b
    Examples:
        chronotile apdb schema survey.db
        chronotile apdb schema survey.db DiaSource --json
    """
    with _open(target, read_only=True) as database:
        known = database.schema
        tables = [known[name] for name in target.rest] if target.rest else list(known.tables)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(table) for table in tables], indent=2))
        return
    for table in tables:
        click.echo(f"{table.name}: {table.description or ''}".rstrip(": "))
        lines = [
            [c.name + ("*" if c.name in table.key else ""), c.type, "" if c.nullable else "not null", c.unit or "",
             c.description or ""]
            for c in table.columns
        ]  # fmt: skip
        click.echo(table_text(["column", "type", "", "unit", "description"], lines))
        click.echo()


@apdb.command()
@target(dataset=False, rest="SCHEMA")
@click.option("--relaxed", is_flag=True, help="Pass this if the database was created with --relaxed.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
def migrate(target: Target, relaxed: bool, dry_run: bool) -> None:
    """Migrate a database to another schema in place. Tables and columns can be added; other changes are rejected.

    SCHEMA is a Felis file, lsst or small.

    \b
    Examples:
        chronotile apdb migrate survey.db apdb-11.yaml --dry-run
    """
    from chronotile import apdb as own

    wanted = own.Schema.read(target.rest[0])
    with _open(target) as database:
        plan = database.migrate(wanted.relaxed() if relaxed else wanted, dry_run=dry_run)
    lines = [f"new table {name}" for name in plan.tables]
    lines += [f"new columns of {name}: {', '.join(columns)}" for name, columns in plan.columns.items()]
    for reason in plan.refused:
        click.echo(f"refused: {reason}", err=True)
    if plan.refused:
        raise click.exceptions.Exit(2)
    click.echo("\n".join(lines) or "nothing to do")


def _table_file(path: str | None) -> Any:
    return None if path is None else _native.RecordFile.open(path)


@apdb.command()
@target(dataset=False)
@click.option("--time", "visit_time", required=True, metavar="TIME", help="Time of the visit: MJD (TAI), or ISO 8601.")
@click.option("--objects", metavar="FILE", help="Rows of DiaObject: Parquet, Arrow, CSV or NDJSON.")
@click.option("--sources", metavar="FILE", help="Rows of DiaSource.")
@click.option("--forced-sources", metavar="FILE", help="Rows of DiaForcedSource.")
@click.option("--visit", type=int, help="Visit, if the rows do not contain it.")
@click.option("--detector", type=int, help="Detector, if the rows do not contain it.")
@click.option("--replace", is_flag=True, help="Replace a stored detector-visit that has other rows.")
@timeout_option
@json_option
def store(
    target: Target, visit_time: str, objects: str | None, sources: str | None, forced_sources: str | None,
    visit: int | None, detector: int | None, replace: bool, timeout_s: int, as_json: bool,
) -> None:  # fmt: skip
    """Store one detector-visit from files. Repeating the command changes nothing.

    \b
    Example:
        chronotile apdb store survey.db --time 61041.2 --sources sources.parquet --objects objects.parquet
    """
    if not any([objects, sources, forced_sources]):
        raise click.UsageError("Nothing to store: give --objects, --sources or --forced-sources.")
    with _open(target, timeout_s=timeout_s) as database:
        report = database.store(
            _moment(visit_time), _table_file(objects), _table_file(sources), _table_file(forced_sources),
            visit=visit, detector=detector, replace=replace,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
        return
    verb = "stored" if report.stored else "already stored:"
    click.echo(f"{verb} {_records_text(report)}")


def _records_text(report: own.StoreReport | Import) -> str:
    counts = ((report.objects, "object"), (report.sources, "source"), (report.forced_sources, "forced source"))
    return ", ".join(count_text(count, noun) for count, noun in counts)


def _left_out_text(done: Import) -> str:
    """One line on what an import left out, with reasons."""
    columns = [f"{', '.join(done.no_column)} (no column in the schema)"] if done.no_column else []
    return "; ".join([*columns, *done.left_out[len(done.no_column) :]])


@apdb.command("import", short_help="Import alerts of the ZTF or the LSST.")
@target(dataset=False, rest="FILE...")
@click.option("--archived", metavar="DIR", help="Also replace rounded ids in files of archived slices in this folder.")
@timeout_option
@json_option
def import_(target: Target, archived: str | None, timeout_s: int, as_json: bool) -> None:
    """Import alerts of the ZTF or the LSST: Avro packets, also in archives, or Parquet files of packets or flattened
    tables. Give the flattened tables of one stream in one command. Importing a file again changes nothing. Alerts lack
    columns that a pipeline's schema requires: create the database with --relaxed.

    \b
    Examples:
        chronotile apdb create survey.db --relaxed
        chronotile apdb import survey.db ztf_public_20240101.tar.gz
        chronotile apdb import survey.db alerts/
        chronotile apdb import survey.db dia_objects.parquet dia_sources.parquet
    """
    from chronotile.apdb.alerts import import_alerts

    with _open(target, timeout_s=timeout_s) as database:
        done = import_alerts(database, target.rest, archived=archived)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
        return
    before = "" if done.stored else "; all were already stored"
    click.echo(f"{_records_text(done)} of {count_text(done.detector_visits, 'detector-visit')}{before}")
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    if done.left_out:
        click.echo(f"note: not imported: {_left_out_text(done)}", err=True)


@apdb.command(short_help="Read objects, sources or forced sources.")
@target(dataset=False, rest="TABLE")
@region_options
@click.option("--at", metavar="TIME", help="Latest time: MJD (TAI), or ISO 8601 (UTC).")
@click.option("--history", metavar="LENGTH", help="History before --at: 90d. Default: the database's setting.")
@click.option("--start", metavar="TIME", help="Earliest time, instead of --history.")
@click.option("--object-ids", metavar="ID,...", help="Only rows of these objects: ids, or ZTF names.")
@click.option("--archived", metavar="DIR", help="Also read files of archived slices.")
@output_options
def read(
    target: Target, circle: str | None, box: str | None, polygon: str | None, at: str | None, history: str | None,
    start: str | None, object_ids: str | None, archived: str | None, output: Output,
) -> None:  # fmt: skip
    """Read the objects, sources or forced-sources of a region or of objects; TABLE is one of these.

    \b
    Examples:
        chronotile apdb read survey.db objects --circle 150.1,2.2,0.1
        chronotile apdb read survey.db sources --circle 150.1,2.2,0.1 --at 2026-02-01 --history 90d --out s.parquet
    """
    name = _TABLES.get(target.rest[0], target.rest[0])
    if name not in _TABLES.values():
        near = "".join(f" Did you mean {each}?" for each in _native.nearest_names(name, list(_TABLES.values()))[:1])
        raise click.UsageError(f"Unknown TABLE {name!r}: use objects, sources or forced-sources.{near}")
    shared: dict[str, Any] = {"at": _moment(at), "columns": output.column_names}
    ids = None if object_ids is None else [word for word in object_ids.split(",") if word.strip()]
    region = region_of(circle, box, polygon)
    with _open(target, read_only=True) as database:
        if name == "objects":
            if ids is not None or history or start or archived:
                raise click.UsageError(
                    "TABLE objects reads the newest versions: of --object-ids and the time options, it takes only --at."
                )
            rows = database.objects(region, **shared)
        else:
            call: Callable[..., Any] = database.sources if name == "sources" else database.forced_sources
            rows = call(region, object_ids=ids, history=history, start=_moment(start), archived=archived, **shared)
        table = rows.to_arrow()
        output.write(table)


@apdb.command("light-curve", short_help="Print the measurements of objects by time.")
@target(dataset=False, rest="[OBJECT]...")
@click.option("--ids", type=click.File(), metavar="FILE", help="File of objects, one per line; - is standard input.")
@click.option("--near", metavar="RA,DEC", help="Approximate position of one object, degrees, instead of the index.")
@click.option(
    "--radius", metavar="ANGLE", help="Search radius around --near, such as 10arcsec. Default: one arc minute."
)
@click.option("--detections", is_flag=True, help="Exclude forced sources.")
@click.option("--start", metavar="TIME", help="Measurements from this time on: MJD (TAI), or ISO 8601 (UTC).")
@click.option("--end", metavar="TIME", help="Measurements before this time.")
@click.option("--archived", metavar="DIR", help="Also read files of archived slices.")
@output_options
def light_curve(
    target: Target, ids: TextIO | None, near: str | None, radius: str | None, detections: bool, start: str | None,
    end: str | None, archived: str | None, output: Output,
) -> None:  # fmt: skip
    """Print the measurements of objects anywhere on the sky, by object and time; OBJECT is an id or ZTF name.

    \b
    Examples:
        chronotile apdb light-curve survey.db 144594336015 --near 345.39,-0.32 --columns midpointMjdTai,band,psfFlux
        chronotile apdb light-curve survey.db ZTF18abvpqtz --archived cold
        chronotile apdb light-curve survey.db --ids objects.txt --out curves.parquet
    """
    objects = [*target.rest, *(ids.read().split() if ids is not None else ())]
    if not objects:
        raise click.UsageError("Give an OBJECT, or --ids FILE with one per line.")
    if near is not None and len(objects) > 1:
        raise click.UsageError("--near is the position of one OBJECT: leave it out to read several.")
    if radius is not None and near is None:
        raise click.UsageError("--radius requires --near.")
    wanted = output.column_names
    shared: dict[str, Any] = {
        "forced": not detections, "archived": archived, "start": _moment(start), "end": _moment(end),
        "columns": None if wanted is None else list(dict.fromkeys([*wanted, "diaObjectId"])),
    }  # fmt: skip
    with _open(target, read_only=True) as database:
        if near is None:
            table = database.light_curves(objects, **shared, missing="error" if len(objects) == 1 else "ignore")
        else:
            ra, dec = angles(near, (2,), "--near", "RA,DEC", {0})
            if radius is not None:
                (shared["radius"],) = angles(radius, (1,), "--radius", "ANGLE", set())
            table = database.light_curve(objects[0], near=(ra, dec), **shared)
    rows = table.to_arrow()
    _check_measured(objects, rows, near, archived)
    output.write(rows if wanted is None else rows.select(wanted))


def _check_measured(objects: list[str], rows: Any, near: str | None, archived: str | None) -> None:
    """Report objects without measurements; if none has any, raise an error."""
    from chronotile.apdb import values

    measured = set(rows["diaObjectId"].to_pylist())
    absent = [each for each in dict.fromkeys(objects) if values.object_id(each) not in measured]
    if not absent:
        return
    shown = ", ".join(absent[:5]) + (f" and {len(absent) - 5} more" if len(absent) > 5 else "")
    what = f"no measurements of object{'s' if len(absent) > 1 else ''} {shown}"
    if not rows.num_rows:
        where = "" if near is None else f" around {near}: give a larger --radius, or leave out --near"
        cold = "" if archived is not None else "; pass --archived DIR to also read archived slices"
        raise InvalidInputError(f"{what}{where}{cold}", kind="unknown-id")
    click.echo(f"note: {what}", err=True)


@apdb.command(short_help="Run daily maintenance.")
@target(dataset=False)
@click.option(
    "--before", metavar="TIME", help="Only windows that end at or before this time: MJD (TAI), or ISO 8601 (UTC)."
)
@click.option("--chunks-min", type=click.IntRange(2), help="Skip tiles with fewer chunks.")
@click.option(
    "--associations",
    metavar="FILE",
    help="File with sources and their solar-system objects: diaSourceId, ssObjectId, and optionally positions "
    "and times.",
)
@click.option("--counts", is_flag=True, help="Also correct nDiaSources of all objects. Scans objects and sources.")
@sharing_options
@timeout_option
@json_option
def maintain(
    target: Target, before: str | None, chunks_min: int | None, associations: str | None, counts: bool,
    shard: tuple[int, int] | None, tiles_per_second: float | None, timeout_s: int, as_json: bool,
) -> None:  # fmt: skip
    """Run daily maintenance: assign sources to solar-system objects, merge small chunks, and record statistics of the
    tables. May be interrupted and repeated, and run beside readers and writers. Include columns ra, dec and
    midpointMjdTai in the file of --associations: without them, the whole sky is scanned. With --shard, statistics are
    not recorded: run the command once more without it when all processes have ended.

    \b
    Examples:
        chronotile apdb maintain survey.db
        chronotile apdb maintain survey.db --associations night.parquet --before 2026-02-01
        chronotile apdb maintain cassandra://node1/survey --shard 2/8
    """
    given = _table_file(associations)
    line = ReportedProgress("looking for tiles", "{}  {:,} of {:,}".format)
    with _open(target, timeout_s=timeout_s) as database, line as progress:
        report = database.maintain(
            before=_moment(before), chunks_min=chunks_min, associations=given, counts=counts, shard=shard,
            tiles_per_s=tiles_per_second, progress=progress,
        )  # fmt: skip
    failed = [(name, failure) for name, r in report.consolidated.items() for failure in r.failed]
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), default=iso_text))
    else:
        _show_maintenance(report, associations, counts)
    for name, failure in failed:
        click.echo(f"{name}, {failure.tile} not rewritten: {failure.reason}", err=True)
    if failed:
        click.get_current_context().exit(5)


def _show_maintenance(report: MaintenanceReport, associations: str | None, counts: bool) -> None:
    lines = [
        [name, count_text(r.tiles), count_text(r.chunks_before), count_text(r.chunks_after), bytes_text(r.bytes_after)]
        for name, r in report.consolidated.items()
        if r.tiles
    ]
    header = ["dataset", "tiles", "chunks before", "after", "bytes after"]
    click.echo(table_text(header, lines, frozenset({1, 2, 3, 4})) if lines else "nothing to consolidate")
    if associations is not None:
        click.echo(f"{count_text(report.reassociated, 'source')} assigned to solar-system objects")
    if counts:
        click.echo(f"{count_text(report.counts_corrected, 'source count')} corrected")
    if report.unknown:
        click.echo(
            f"note: {associations} names {count_text(report.unknown, 'source')} that the database lacks", err=True
        )
    _show_crowded(report.crowded)


def _show_crowded(found: list[own.Crowded]) -> None:
    if not found:
        return
    worst = max(found, key=lambda each: each.expected)
    remedy = "finer pixels or shorter slices (create --density)"
    if worst.table not in _TABLES:
        remedy = "more --object-index-partitions"
    click.echo(
        f"note: {count_text(len(found), 'slice')} with a partition over the limit, now or when full; the largest "
        f"is in {worst.table} from MJD {worst.start:g} on, with {bytes_text(worst.expected)}. Large "
        f"partitions slow a cluster: create a database with {remedy}",
        err=True,
    )


@apdb.command()
@target(dataset=False)
@click.option("--visit", type=int, help="Visit to remove.")
@click.option("--detector", type=int, help="Only this detector. Default: all.")
@click.option("--night", metavar="DATE", help="Night to remove, by the day on which it began.")
@click.option("--changed", is_flag=True, help="Also delete records that were reassigned, withdrawn or closed since.")
@click.option("--archived", metavar="DIR", help="Also remove it from files of archived slices in this folder.")
@click.option("--not-archived", is_flag=True, help="Confirm that the rows are in no file of archived slices.")
@yes_option
@timeout_option
@json_option
def remove(
    target: Target, visit: int | None, detector: int | None, night: str | None, changed: bool, archived: str | None,
    not_archived: bool, yes: bool, timeout_s: int, as_json: bool,
) -> None:  # fmt: skip
    """Remove a visit, a detector-visit or a night. It can be stored again.

    \b
    Examples:
        chronotile apdb remove survey.db --visit 4711 --detector 42
        chronotile apdb remove survey.db --night 2026-02-01 --yes
    """
    if (visit is None) == (night is None) or (night is not None and detector is not None):
        raise click.UsageError("Give --visit, with or without --detector, or --night.")
    if archived is not None and not_archived:
        raise click.UsageError("Give only one of --archived and --not-archived.")
    files: str | Literal[False] | None = False if not_archived else archived
    on = "" if detector is None else f", detector {detector}"
    what = f"night {night}" if visit is None else f"visit {visit}{on}"
    with _open(target, timeout_s=timeout_s) as database:
        if visit is None:
            remove_it = functools.partial(database.remove_night, _moment(night), changed=changed, archived=files)
        else:
            remove_it = functools.partial(database.remove_visit, visit, detector, changed=changed, archived=files)
        stored = remove_it(dry_run=True)
        nothing = not stored.detector_visits and archived is None
        if not nothing:
            confirm(f"Remove {what} ({_removed_text(stored)}) from {target.url}?", yes)
        done = stored if nothing else remove_it()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
    else:
        click.echo(f"{what} is not stored: nothing to remove" if nothing else f"removed {_removed_text(done)}")


def _removed_text(part: RemovalReport) -> str:
    return f"{count_text(part.detector_visits, 'detector-visit')} with {count_text(part.rows, 'row')}"


@apdb.command(short_help="Move old slices to Parquet files.")
@target(dataset=False, rest="DIR")
@click.option(
    "--before",
    required=True,
    metavar="TIME",
    help="Slices that end at or before this time: MJD (TAI), or ISO 8601 (UTC).",
)
@click.option("--keep", is_flag=True, help="Write the files; drop nothing.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@yes_option
@timeout_option
@json_option
def archive(target: Target, before: str, keep: bool, dry_run: bool, yes: bool, timeout_s: int, as_json: bool) -> None:
    """Write old slices of sources and forced sources to Parquet files in DIR, then drop them from the database.

    \b
    Examples:
        chronotile apdb archive survey.db cold --before 2026-01-01 --dry-run
        chronotile apdb read survey.db sources --circle 150.1,2.2,0.1 --archived cold
    """
    folder = target.rest[0]
    with _open(target, timeout_s=timeout_s) as database:
        planned = database.archive_before(_moment(before), folder, dry_run=True)
        if planned and not (dry_run or keep):
            confirm(f"Archive {count_text(len(planned), 'slice')} to {folder} and drop the database's copies?", yes)
            tell_wait(database.archive)
        done = planned if dry_run else database.archive_before(_moment(before), folder, keep=keep)
    _show_slices(done, "would be archived" if dry_run else "written" if keep else "archived", as_json)


@apdb.command()
@target(dataset=False, rest="DIR")
@click.option("--start", metavar="TIME", help="Restore slices that overlap the period from this time ...")
@click.option("--end", metavar="TIME", help="... to this time, exclusive.")
@timeout_option
@json_option
def restore(target: Target, start: str | None, end: str | None, timeout_s: int, as_json: bool) -> None:
    """Restore archived slices from the Parquet files in DIR. The command may be repeated.

    \b
    Example:
        chronotile apdb restore survey.db cold --start 2025-10-01 --end 2025-11-01
    """
    with _open(target, timeout_s=timeout_s) as database:
        done = database.restore(target.rest[0], _moment(start), _moment(end))
    _show_slices(done, "restored", as_json)


def _show_slices(found: list[Any], verb: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(each) for each in found], default=iso_text))
        return
    lines = [[each.table, str(each.slice), count_text(each.rows), bytes_text(each.bytes)] for each in found]
    if lines:
        click.echo(table_text(["table", "slice", "rows", "bytes"], lines, frozenset({1, 2, 3})))
    click.echo(f"{count_text(len(found), 'slice')} {verb}")
