"""``chronotile apdb simulate|report|pixels``: simulate a survey, and study its layout."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from chronotile.cli.apdb import SCHEMA_HELP, STORAGE, STORAGE_HELP
from chronotile.cli.common import CountProgress, Target, angles, json_option, target
from chronotile.conditions import names
from chronotile.errors import ArchiveNotFoundError, DataFileError, DatasetNotFoundError
from chronotile.terminal import count_text


@click.command(short_help="Simulate a survey on a database.")
@target(dataset=False)
@click.option("--visits", type=click.IntRange(1), default=100, show_default=True, help="Total number of visits.")
@click.option("--detectors", type=click.IntRange(1, 189), default=4, show_default=True, help="Number of detectors.")
@click.option("--nights", type=click.IntRange(1), help="Number of nights. Default: 800 visits per night.")
@click.option("--days-between", type=float, default=1.0, show_default=True, help="Days from one night to the next.")
@click.option(
    "--patch",
    default="150,2,0",
    show_default=True,
    metavar="RA,DEC,RADIUS",
    help="Sky patch to observe: RA,DEC,RADIUS.",
)
@click.option("--variables", type=float, default=10_000, show_default=True, help="Variable objects per field of view.")
@click.option(
    "--transients", type=float, default=5_150, show_default=True, help="New sources per visit and field of view."
)
@click.option(
    "--density", metavar="FILE", help="Parquet file of positions (ra, dec) that sets the density. Default: uniform."
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Random seed; the same seed gives the same survey."
)
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Processes that read and store.")
@click.option("--readers", type=click.IntRange(0), default=0, show_default=True, help="Processes that only read.")
@click.option("--first-visit", type=click.IntRange(0), default=0, help="First visit, to continue a simulation.")
@click.option("--log", default="apdb-log", show_default=True, metavar="DIR", help="Folder for logs, JSON lines.")
@click.option("--peer", is_flag=True, help="ARCHIVE is the configuration file of any lsst.dax.apdb.Apdb.")
@click.option("--schema", metavar="FILE", help=f"Create the database if it does not exist. {SCHEMA_HELP}")
@click.option("--layout", "storage", type=STORAGE, help=f"Storage of the database, if it is created. {STORAGE_HELP}")
@json_option
def simulate(
    target: Target, visits: int, detectors: int, nights: int | None, days_between: float, patch: str, variables: float,
    transients: float, density: str | None, seed: int, workers: int, readers: int, first_visit: int, log: str,
    peer: bool, schema: str | None, storage: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Simulate a survey on a database: for each visit, every detector reads its footprint, finds sources and stores
    them.

    The workload is that published for the LSST: 10,000 variable objects and 5,150 new sources in a field of view,
    forced sources of objects seen within 30 days, 189 detectors. The database must exist, or is created with --schema
    or --layout; an existing one must match them. `report` plots the logs.

    \b
    Examples:
        chronotile apdb simulate survey.db --visits 200 --nights 200 --days-between 1.8 --workers 2 --log run1
        chronotile apdb simulate peer.yaml --peer --visits 200 --nights 200 --log run2
        chronotile apdb simulate cassandra://node1/rows --layout rows --visits 200 --nights 200 --log run3
    """
    from chronotile_tools.survey.simulate import Run, Survey, run

    if schema is not None or storage is not None:
        if peer:
            raise click.UsageError(
                "--schema and --layout cannot be combined with --peer: they create a Chronotile database."
            )
        _make(target.url, schema, storage)

    ra, dec, radius = angles(patch, (3,), "--patch", "RA,DEC,RADIUS", {0})
    survey = Survey(visits, detectors, nights, days_between, ra, dec, radius, variables, transients, density, seed=seed)
    plan = Run(survey, target.url, Path(log), workers, readers, peer, first_visit)
    with CountProgress("simulating", "detector-visits") as progress:
        files = run(plan, progress)
    if as_json:
        click.echo(json.dumps({"visits": visits - first_visit, "detectors": detectors, "logs": list(map(str, files))}))
        return
    visits_text, detectors_text = count_text(visits - first_visit, "visit"), count_text(detectors, "detector")
    click.echo(f"{visits_text} of {detectors_text}; logs: {log} ({count_text(len(files), 'file')})")


def _make(url: str, schema: str | None, storage: str | None) -> None:
    """Create the database if it does not exist; reject an existing one that differs."""
    from chronotile import apdb as own

    try:
        with own.open(url, read_only=True) as found:
            kept = found.layout.storage
            same = schema is None or found.schema.migration_to(own.Schema.read(schema)).empty
    except (ArchiveNotFoundError, DatasetNotFoundError):
        own.create(url, schema, storage=storage or "chunks").close()
        return
    if storage not in (None, kept) or not same:
        raise click.UsageError(
            f"{url} exists with layout {kept} or another schema: omit these options, or give another database."
        )


@click.command(short_help="Plot logs of simulations.")
@click.argument("logs", nargs=-1, required=True, metavar="DIR...")
@click.option("--out", "-o", default="apdb-report.html", show_default=True, metavar="FILE", help="Output file.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def report(logs: tuple[str, ...], out: str, overwrite: bool, as_json: bool) -> None:
    """Plot logs of simulations: times by visit with linear fits, scatter and extrapolation. Several folders are
    compared; if their names contain node counts (nodes-3), also the scaling with nodes.

    \b
    Example:
        chronotile apdb report run1 run2 --out report.html
    """
    from chronotile_tools.survey import report as reports

    page = Path(out)
    if page.exists() and not overwrite:
        raise DataFileError(f"{page} exists: give --overwrite to replace it", kind="file-exists")
    found = [reports.read_logs(Path(folder)) for folder in logs]
    page.write_text(reports.page(found), encoding="utf-8")
    if as_json:
        scaled = [dataclasses.asdict(each) for each in reports.scaling(found)]
        click.echo(json.dumps({"simulations": [reports.figures(each) for each in found], "nodes": scaled}, indent=2))
        return
    for each in found:
        click.echo(reports.text(each))
    for size in reports.scaling(found):
        click.echo(
            f"{count_text(size.nodes, 'node')}: {size.seconds:.3f} s at {reports.TARGETS[0]:,} visits, "
            f"{size.share:.2f} of 1/N"
        )
    click.echo(f"the page: {page.resolve()}")


@click.command(short_help="Find the sky pixels that suit a detector.")
@click.option("--detector", type=float, default=0.225, show_default=True, help="Side of a square detector, degrees.")
@click.option("--padding", type=float, default=52.0, show_default=True, help="Padding around it, arc seconds.")
@click.option(
    "--count", type=click.IntRange(10, 100_000), default=1_000, show_default=True, help="Number of random detectors."
)
@click.option("--levels", default="6-12", show_default=True, metavar="FIRST-LAST", help="Levels of mq3c, q3c, healpix.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Random seed; the same seed gives the same detectors."
)
@click.option("--out", "-o", default="apdb-pixels.html", show_default=True, metavar="FILE", help="Output file.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option(
    "--measure", "url", metavar="ARCHIVE", help="Also measure layouts, in new databases next to this archive."
)
@click.option("--measure-levels", default="8-10", show_default=True, metavar="FIRST-LAST", help="Levels to measure.")
@click.option(
    "--windows", default="120d,30d,60d,360d", show_default=True, metavar="LENGTHS", help="Windows to measure."
)
@click.option("--slices", default="120d,360d", show_default=True, metavar="LENGTHS", help="Slices to measure.")
@click.option("--schema", default="lsst", show_default=True, metavar="FILE", help=SCHEMA_HELP)
@click.option("--visits", type=click.IntRange(2), default=24, show_default=True, help="Visits, over twelve months.")
@click.option("--detectors", type=click.IntRange(1, 189), default=1, show_default=True, help="Detectors of a visit.")
@click.option("--repeat", type=click.IntRange(1), default=5, show_default=True, help="Number of reads of each kind.")
def pixels(
    detector: float, padding: float, count: int, levels: str, seed: int, out: str, overwrite: bool, as_json: bool,
    url: str | None, measure_levels: str, windows: str, slices: str, schema: str, visits: int, detectors: int,
    repeat: int,
) -> None:  # fmt: skip
    """Find the sky pixels that suit a detector: place detectors at random, and count the pixels they touch at each
    level.

    Prints, for each pixelization and level, the pixels that a detector touches, the ratio of their area to the
    detector's, and the detectors per pixel, with a recommendation. With --measure, the same survey is stored in one
    database per layout, and footprints are read with one request for all cells and with one request per cell. This
    measures the cost of levels, windows and slices (each a table) on this engine. The databases are kept.

    \b
    Examples:
        chronotile apdb pixels --detector 0.225 --levels 7-11 --out pixels.html
        chronotile apdb pixels --measure sqlite:study.db --windows 120d,30d,60d --slices 120d,360d
        chronotile apdb pixels --measure cassandra://node1,node2/study --measure-levels 9-10
    """
    from chronotile import apdb as own
    from chronotile_tools.survey import partitioning
    from chronotile_tools.survey import pixels as study
    from chronotile_tools.survey.simulate import Survey

    page = Path(out)
    if page.exists() and not overwrite:
        raise DataFileError(f"{page} exists: give --overwrite to replace it", kind="file-exists")
    found = study.throw(detector, padding / 3600, count, _span(levels, "--levels"), seed)
    measured: list[partitioning.Measured] = []
    if url is not None:
        tried = partitioning.layouts(
            "mq3c", 9, _span(measure_levels, "--measure-levels"), names(windows) or [], names(slices) or []
        )
        survey = Survey(visits, detectors, visits, max(360 / visits, 1.0), seed=seed)
        with CountProgress("measuring", "detector-visits") as progress:
            measured = partitioning.measure(url, survey, tried, own.Schema.read(schema), repeat, progress)
    more = partitioning.sections(measured) if measured else []
    page.write_text(study.page(found, detector, padding, more), encoding="utf-8")
    if as_json:
        record = {"levels": found, "recommended": study.recommended(found), "measured": measured}
        click.echo(json.dumps(record, indent=2, default=dataclasses.asdict))
        return
    click.echo(study.text(found))
    if measured:
        click.echo("\n" + partitioning.text(measured))
    click.echo(f"the page: {page.resolve()}")


def _span(text: str, option: str) -> range:
    """Levels from ``FIRST-LAST``."""
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit():
        raise click.BadParameter(f"{text!r} is not FIRST-LAST", param_hint=option)
    return range(int(first), int(last or first) + 1)
