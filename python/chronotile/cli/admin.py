"""``chronotile datasets``, ``info``, ``consolidate``, ``retire``, ``verify`` and ``demo``."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

import click

from chronotile import cells
from chronotile.archive import Archive
from chronotile.cli import levels
from chronotile.cli.common import (
    CountProgress,
    Target,
    axis_text,
    confirm,
    iso_text,
    json_option,
    moment,
    sharing_options,
    target,
    tell_wait,
    timeout_option,
    yes_option,
)
from chronotile.cli.define import definition_record
from chronotile.dataset import Dataset
from chronotile.errors import DamagedError
from chronotile.reports import ConsolidateReport, DatasetInfo, SliceInfo, VerifyReport
from chronotile.terminal import bytes_text, count_text, table_text


@click.command(short_help="List the datasets.")
@target(dataset=False)
@json_option
@click.pass_context
def datasets(context: click.Context, target: Target, as_json: bool) -> None:
    """List the datasets of an archive. Names datasets with a damaged definition; the exit code is then 5.

    \b
    Example:
        chronotile datasets survey.db
    """
    with target.open(read_only=True) as archive:
        opened, damaged = _for_each_dataset(archive, target, lambda dataset: dataset)
        found = list(opened.values())
        if as_json:
            click.echo(json.dumps([definition_record(dataset) for dataset in found], indent=2))
        elif found:
            click.echo(_datasets_text(found))
        elif not damaged:
            click.echo("no datasets: create one with chronotile create", err=True)
    if damaged:
        context.exit(5)


def _datasets_text(found: list[Dataset]) -> str:
    header = ["name", "columns", "cell", "time", "window", "id", "merge", "retention"]
    rows = [
        [
            dataset.name,
            str(len(dataset.column_types)),
            _cell_text(dataset),
            axis_text(dataset.time),
            dataset.window,
            ",".join(dataset.id) or "-",
            dataset.merge,
            dataset.retention or "-",
        ]
        for dataset in found
    ]
    return table_text(header, rows, frozenset({1}))


def _cell_text(dataset: Dataset) -> str:
    parts = dataclasses.asdict(dataset.cell)
    name = cells.rule_name(dataset.cell)
    values = [
        "+".join(value) if isinstance(value, tuple | list) else f"level {value}" if part == "level" else str(value)
        for part, value in parts.items()
        if value is not None
    ]
    return f"{name}({', '.join(values)})" if values else name


T = TypeVar("T")


def _for_each_dataset(
    archive: Archive, target: Target, work: Callable[[Dataset], T]
) -> tuple[dict[str, T], dict[str, str]]:
    """Run `work` on the named dataset, or on all; return results by dataset, and an error for each dataset whose
    definition or catalog records are damaged.
    """
    if target.dataset:
        return {target.dataset: work(archive[target.dataset])}, {}
    results, damaged = {}, {}
    for name in archive:
        try:
            results[name] = work(archive[name])
        except DamagedError as error:
            damaged[name] = str(error)
            click.echo(f"{name}: {error}", err=True)
    return results, damaged


def _time_text(time: datetime | float | int) -> str:
    if isinstance(time, datetime):
        return time.strftime("%Y-%m-%d" if (time.hour, time.minute, time.second) == (0, 0, 0) else "%Y-%m-%dT%H:%M:%S")
    return f"{time:.6f}".rstrip("0").rstrip(".") if isinstance(time, float) else str(time)


@click.command(short_help="Show statistics.")
@target(optional=True)
@json_option
@click.pass_context
def info(context: click.Context, target: Target, as_json: bool) -> None:
    """Show the definition and statistics of a dataset, or of all: slices, and the distribution of chunks, rows and
    bytes over tiles. Damage to one dataset does not stop the others; the exit code is then 5.

    \b
    Examples:
        chronotile info survey.db detections
        chronotile info survey.db --json
    """
    with target.open(read_only=True) as archive:
        if as_json:
            found, damaged = _for_each_dataset(
                archive, target, lambda each: {**definition_record(each), "statistics": _statistics(each.info())}
            )
            reports = list(found.values())
            click.echo(json.dumps(reports[0] if target.dataset else reports, indent=2, default=iso_text))
        else:
            texts, damaged = _for_each_dataset(archive, target, _info_text)
            click.echo("\n\n".join(texts.values()))
    if damaged:
        context.exit(5)


def _statistics(info: DatasetInfo) -> dict[str, Any]:
    totals = {"rows": info.rows, "tiles": info.tiles, "chunks": info.chunks, "bytes": info.bytes}
    return {**totals, **dataclasses.asdict(info)}


def _info_text(dataset: Dataset) -> str:
    info = dataset.info()
    per_row = f", {info.bytes / info.rows:.1f} bytes per row" if info.rows else ""
    lines = [
        f"{dataset.name}: {count_text(info.rows, 'row')} in {count_text(info.tiles, 'tile')}, "
        f"{count_text(info.chunks, 'chunk')}, {bytes_text(info.bytes)}{per_row}",
        f"  cell {_cell_text(dataset)}, time {axis_text(dataset.time)}, window {dataset.window}, "
        f"slice {count_text(dataset.windows_per_slice, 'window')}",
        f"  id {','.join(dataset.id) or '-'}, merge {dataset.merge}, retention {dataset.retention or '-'}, "
        f"{count_text(len(dataset.column_types), 'column')}, layout {dataset.layout}"
        + (f", {dataset.partition_cells} cells per partition" if dataset.partition_cells > 1 else "")
        + (f", records move up to {dataset.moves * 3600:g} arcsec" if dataset.moves else "")
        + (f", group {dataset.group}" if dataset.group else ""),
    ]
    if not info.slices:
        return "\n".join(lines)
    spreads = [
        ("chunks per tile", info.tile_chunks),
        ("rows per tile", info.tile_rows),
        ("bytes per tile", info.tile_bytes),
    ]
    cells = [[name, *(count_text(value) for value in dataclasses.astuple(spread))] for name, spread in spreads]
    lines += ["", table_text(["", "min", "median", "p99", "max"], cells, frozenset({1, 2, 3, 4}))]
    if info.tile_largest is not None:
        lines.append(f"largest tile: {info.tile_largest}")
    lines += ["", _slices_text(info.slices)]
    found = levels.advice(dataset, info)
    lines += [] if found is None else [f"advice: {found}"]
    lines += [
        f"warning: {part.cells_oversized} partitions of slice {part.slice} are larger than 10 MiB (up to "
        f"{bytes_text(part.cell_bytes_max)}), which slows reads, compaction and repair; use a dataset with "
        "finer cells, fewer cells per partition, or shorter slices"
        for part in info.slices
        if part.cells_oversized
    ]
    return "\n".join(lines)


def _slices_text(slices: Iterable[SliceInfo]) -> str:
    rows = [
        [
            str(part.slice),
            _time_text(part.start),
            _time_text(part.end),
            count_text(part.tiles),
            count_text(part.chunks),
            count_text(part.rows),
            bytes_text(part.bytes),
        ]
        for part in slices
    ]
    return table_text(["slice", "start", "end", "tiles", "chunks", "rows", "size"], rows, frozenset({0, 3, 4, 5, 6}))


@click.command(short_help="Merge small chunks into large ones.")
@target(optional=True)
@click.option("--before", metavar="TIME", help="Only windows that end at or before this time.")
@click.option("--chunks-min", type=click.IntRange(1), metavar="N", help="Skip tiles with fewer chunks. Default 2.")
@click.option("--dry-run", is_flag=True, help="Count what would be done; change nothing.")
@sharing_options
@json_option
@timeout_option
@click.pass_context
def consolidate(
    context: click.Context, target: Target, before: str | None, chunks_min: int | None, dry_run: bool,
    shard: tuple[int, int] | None, tiles_per_second: float | None, as_json: bool, timeout_s: int,
) -> None:  # fmt: skip
    """Merge the many small chunks of a tile into few large ones, in one dataset or all. Safe while others read and
    write. Names each tile that cannot be rewritten and each dataset with a damaged definition, and continues with the
    others; the exit code is then 5.

    \b
    Examples:
        chronotile consolidate survey.db
        chronotile consolidate survey.db detections --before 2026-01-01
        chronotile consolidate cassandra://node1/survey --shard 2/8 --tiles-per-second 100
    """

    def work(dataset: Dataset) -> ConsolidateReport:
        with CountProgress(f"consolidating {dataset.name}", "tiles") as progress:
            report = dataset.consolidate(
                before=moment(before, dataset), chunks_min=chunks_min, dry_run=dry_run, shard=shard,
                tiles_per_s=tiles_per_second, progress=progress,
            )  # fmt: skip
        if not as_json:
            click.echo(f"{dataset.name}: {_consolidate_text(report, dry_run)}")
        for failure in report.failed:
            click.echo(f"  {failure.tile} not rewritten: {failure.reason}", err=True)
        return report

    with target.open(timeout_s=timeout_s) as archive:
        reports, damaged = _for_each_dataset(archive, target, work)
    if as_json:
        click.echo(json.dumps({name: dataclasses.asdict(report) for name, report in reports.items()}, indent=2))
    if damaged or any(report.failed for report in reports.values()):
        context.exit(5)


def _consolidate_text(report: ConsolidateReport, dry_run: bool) -> str:
    text = f"{'would rewrite' if dry_run else 'rewrote'} {count_text(report.tiles, 'tile')}"
    if report.tiles:
        text += (
            f", {count_text(report.chunks_before, 'chunk')} ({bytes_text(report.bytes_before)}) as "
            f"{count_text(report.chunks_after)} ({bytes_text(report.bytes_after)})"
        )
    if report.tiles_contended:
        text += f"; {count_text(report.tiles_contended, 'tile')} skipped, because other processes changed them"
    return text


@click.command(short_help="Create the slices of a period in advance.")
@target()
@click.option("--start", metavar="TIME", required=True, help="Start of the period.")
@click.option("--end", metavar="TIME", required=True, help="End of the period, exclusive.")
@json_option
@timeout_option
def prepare(target: Target, start: str, end: str, as_json: bool, timeout_s: int) -> None:
    """Create the slices of a period in advance, so that its first writers need not wait for them. Existing slices are
    not changed.

    \b
    Examples:
        chronotile prepare cassandra://node1/survey sources --start 2026-12-01 --end 2027-02-01
    """
    with target.open(timeout_s=timeout_s) as archive:
        dataset = archive[target.dataset]
        slices = dataset.prepare(moment(start, dataset), moment(end, dataset))
        if as_json:
            click.echo(json.dumps({"slices": list(slices)}))
            return
        numbers = f": {slices[0]} to {slices[-1]}" if slices else ""
        click.echo(f"{dataset.name}: {count_text(len(slices), 'slice')} ready{numbers}")


@click.command(short_help="Drop old slices.")
@target()
@click.option("--older-than", metavar="TIME", help="Slices that ended at least this long ago: 365d.")
@click.option("--before", metavar="TIME", help="Slices that end at or before this time.")
@click.option("--together", is_flag=True, help="Also drop the rows that other datasets store in these slices.")
@click.option("--dry-run", is_flag=True, help="Show what would be dropped; drop nothing.")
@yes_option
@json_option
@timeout_option
def retire(
    target: Target,
    older_than: str | None,
    before: str | None,
    together: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    timeout_s: int,
) -> None:
    """Drop whole slices past an age, before a time, or by default past the dataset's retention. Shows the slices and
    asks for confirmation, unless --yes is given.

    \b
    Examples:
        chronotile retire survey.db detections --dry-run
        chronotile retire plant.db values --older-than 365d --yes
    """
    if older_than and before:
        raise click.UsageError("Give only one of --older-than and --before.")
    with target.open(timeout_s=timeout_s) as archive:
        dataset = archive[target.dataset]
        others = dataset.shares_slices_with
        if others and not together and not dry_run:
            raise click.UsageError(
                f"The slices of {dataset.name} also hold rows of {' and '.join(others)}, which are dropped with them: "
                "add --together."
            )
        if older_than is None and before is None and dataset.retention is None:
            raise click.UsageError(
                f"Dataset {dataset.name} has no retention: give --older-than LENGTH or --before TIME."
            )
        limits = {"before": moment(before, dataset), "older_than": older_than}
        found = _retire(archive, dataset, dry_run=True, **limits)
        slices = found[dataset.name]
        if not as_json and not slices:
            click.echo(f"{dataset.name}: no slice is old enough")
            return
        if not as_json:
            click.echo(_slices_text(slices))
        if dry_run or not slices:
            dropped = found
        else:
            confirm(f"Permanently drop {_totals(found)}?", yes)
            tell_wait(archive)
            # Drop only slices that have not changed since they were shown.
            dropped = _retire(archive, dataset, unchanged=slices)
        if as_json:
            parts = {name: [dataclasses.asdict(part) for part in parts] for name, parts in dropped.items()}
            report: dict[str, Any] = {"dry_run": dry_run, "slices": parts.pop(dataset.name)}
            click.echo(json.dumps(report | ({"shared": parts} if parts else {}), indent=2, default=iso_text))
            return
        click.echo(f"{'would drop' if dry_run else 'dropped'} {_totals(dropped)}")
        if len(dropped[dataset.name]) < len(slices):
            kept = len(slices) - len(dropped[dataset.name])
            raise click.ClickException(
                f"{count_text(kept, 'slice')} of {dataset.name} changed meanwhile and were not dropped: run "
                "the command again"
            )


def _retire(archive: Archive, dataset: Dataset, **limits: Any) -> dict[str, list[SliceInfo]]:
    """Retire slices of a dataset, with those of datasets that share them; by dataset."""
    if not dataset.shares_slices_with:
        return {dataset.name: dataset.retire(**limits)}
    return archive.group(str(dataset.group)).retire([dataset.name, *dataset.shares_slices_with], **limits)


@click.command(short_help="Drop a dataset.")
@target()
@yes_option
@json_option
@timeout_option
def drop(target: Target, yes: bool, as_json: bool, timeout_s: int) -> None:
    """Permanently drop a dataset, or a group with all its datasets, with all rows, batches and indexes. Shows the size
    and asks for confirmation, unless --yes is given. On a cluster, writers notice within ten seconds.

    \b
    Example:
        chronotile drop survey.db detections_try1
    """
    with target.open(timeout_s=timeout_s) as archive:
        name = target.dataset
        is_group = name in archive.groups()
        sizes = {}
        for dataset in archive.group(name).datasets.values() if is_group else [archive[name]]:
            info = dataset.info()
            sizes[dataset.name] = {"rows": info.rows, "slices": len(info.slices), "bytes": info.bytes}
            slices = count_text(len(info.slices), "slice")
            text = f"{dataset.name}: {count_text(info.rows, 'row')} in {slices}, {bytes_text(info.bytes)}"
            click.echo(text, err=as_json)
        confirm(f"Permanently drop {'group' if is_group else 'dataset'} {name}?", yes)
        archive.drop(name)
        click.echo(json.dumps({"dropped": name, "datasets": sizes}) if as_json else f"{name}: dropped")


def _totals(slices: dict[str, list[SliceInfo]]) -> str:
    """Slices and rows, by dataset."""
    return ", ".join(
        f"{count_text(len(parts), 'slice')} with {count_text(sum(part.rows for part in parts), 'row')} of {name}"
        for name, parts in slices.items()
    )


@click.command(short_help="Check every chunk.")
@target(optional=True)
@click.option(
    "--remove-foreign",
    is_flag=True,
    help="Remove rows of batches that are not in the catalog. Asks first, unless --yes is given.",
)
@yes_option
@json_option
@click.pass_context
def verify(context: click.Context, target: Target, remove_foreign: bool, yes: bool, as_json: bool) -> None:
    """Read and check every chunk of a dataset, or of all. Also finds missing rows of stored batches, chunks of batches
    that are not in the catalog, and damaged catalog records. Checks all datasets even if one is damaged; the exit code
    is then 5.

    \b
    Examples:
        chronotile verify survey.db
        chronotile verify survey.db detections --json
        chronotile verify survey.db --remove-foreign
    """

    def verified(dataset: Dataset) -> VerifyReport:
        with CountProgress(f"verifying {dataset.name}", "tiles") as progress:
            return dataset.verify(progress=progress)

    def work(dataset: Dataset) -> VerifyReport:
        report = verified(dataset)
        if not (remove_foreign and report.foreign):
            return report
        rows, batches = sum(chunk.rows for chunk in report.foreign), {chunk.batch for chunk in report.foreign}
        what = f"{count_text(rows, 'row')} of {count_text(len(batches), 'batch')} not in the catalog"
        confirm(f"Permanently remove {what} from {dataset.name}?", yes)
        dataset.remove_foreign()
        click.echo(f"{dataset.name}: removed {what}", err=True)
        return verified(dataset)

    with target.open(read_only=not remove_foreign) as archive:
        reports, damaged = _for_each_dataset(archive, target, work)
    if as_json:
        found = {name: {"ok": report.ok, **dataclasses.asdict(report)} for name, report in reports.items()}
        unread = {name: {"ok": False, "error": error} for name, error in damaged.items()}
        click.echo(json.dumps(found | unread, indent=2))
    else:
        for name, report in reports.items():
            click.echo(_verify_text(name, report))
    if damaged or not all(report.ok for report in reports.values()):
        context.exit(5)


def _verify_text(name: str, report: VerifyReport) -> str:
    found = {
        "damaged": len(report.damage),
        "rows missing": sum(missing.rows for missing in report.rows_missing),
        "foreign chunks": len(report.foreign),
        "catalog records damaged": len(report.records),
    }
    verdict = ", ".join(f"{count_text(count)} {what}" for what, count in found.items() if count) or "no damage"
    lines = [
        f"{name}: {verdict}; checked {count_text(report.chunks, 'chunk')}, {count_text(report.rows, 'row')}, "
        f"{bytes_text(report.bytes)}, {count_text(report.batches, 'batch')}"
    ]
    if report.batches_unfinished:
        lines.append(
            f"  {count_text(report.batches_unfinished, 'unfinished batch')}: still being written, or "
            "interrupted (repeat the write)"
        )
    lines += [
        f"  {damage.tile}: chunk {damage.chunk} ({count_text(damage.rows, 'row')}): {damage.reason}"
        for damage in report.damage
    ]
    lines += [
        f"  {missing.tile}: {count_text(missing.rows, 'row')} of batch {missing.key or missing.batch} are "
        "missing: restore a backup, or remove the batch and write it again"
        for missing in report.rows_missing
    ]
    lines += [f"  {chunk.tile}: chunk {chunk.chunk}: {chunk.reason}" for chunk in report.foreign]
    lines += [f"  catalog record {record.key}: {record.reason}" for record in report.records]
    return "\n".join(lines)


@click.command(short_help="Simulate a small survey and draw it.")
@click.option(
    "--nights", type=click.IntRange(1, 100), metavar="N", default=1, show_default=True, help="Nights to simulate."
)
@click.option(
    "--out",
    metavar="DIR",
    default="chronotile-demo",
    show_default=True,
    help="Output folder for the archive and the page.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Random seed; the same seed gives the same survey."
)
@click.option("--visits", type=click.IntRange(4, 800), default=60, show_default=True, help="Visits per night.")
@json_option
def demo(nights: int, out: str, seed: int, visits: int, as_json: bool) -> None:
    """Simulate a small sky survey: store every detector-visit, read every footprint back and check it, print tables and
    write a page with plots.

    \b
    Example:
        chronotile demo --nights 3 --out demo --seed 7
    """
    # Imported on demand: the other commands do not need these packages.
    from chronotile import demo as survey

    outcome = survey.run(nights, out, seed, visits, echo=functools.partial(click.echo, err=as_json))
    if as_json:
        click.echo(json.dumps(outcome.figures(), indent=2))
