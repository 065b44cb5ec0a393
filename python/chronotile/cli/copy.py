"""``chronotile copy``."""

from __future__ import annotations

import dataclasses
import json
import time

import click

from chronotile import copying
from chronotile.cli.common import debug_option, json_option
from chronotile.copying import CopyProgress, DatasetCopyReport
from chronotile.terminal import ProgressLine, bar, bytes_text, count_text

DIFFERENCES_SHOWN = 20


class _Progress:
    """Progress line: tiles, bytes and rate."""

    def __init__(self) -> None:
        self._now: CopyProgress | None = None
        self._phase: tuple[str, bool, int] = ("", False, 0)
        self._began, self._bytes = time.monotonic(), 0

    def __call__(self, now: CopyProgress) -> None:
        phase = (now.dataset, now.verifying, now.pass_number)
        if phase != self._phase:
            same_work = phase[:2] == self._phase[:2]
            self._phase, self._began = phase, time.monotonic()
            self._bytes = now.bytes if same_work else 0
        self._now = now

    def text(self) -> str:
        """The progress line."""
        now = self._now
        if now is None:
            return "looking"
        what = "verifying" if now.verifying else f"copying, pass {now.pass_number},"
        rate = (now.bytes - self._bytes) / max(time.monotonic() - self._began, 1e-3)
        return (
            f"{what} {now.dataset}  {bar(now.tiles_done, now.tiles_total)}  {now.tiles_done:,} of {now.tiles_total:,} "
            f"tiles  {bytes_text(now.bytes)}  {bytes_text(rate)}/s"
        )


@click.command(short_help="Copy an archive to another engine or place.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("datasets", nargs=-1, metavar="[DATASET]...")
@click.option("--verify-only", is_flag=True, help="Compare the archives; change nothing.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
    help="Groups of chunks copied concurrently, of up to 4 MiB each.",
)  # fmt: skip
@click.option(
    "--passes-max", type=click.IntRange(1), default=10, show_default=True, metavar="N",
    help="Stop after this many passes if the source is still being written.",
)  # fmt: skip
@json_option
@debug_option
@click.pass_context
def copy(
    context: click.Context, source: str, target: str, datasets: tuple[str, ...], verify_only: bool, workers: int,
    passes_max: int, as_json: bool, debug: bool,
) -> None:  # fmt: skip
    """Copy all datasets, or the named ones, to another archive, and verify every tile of the copy. The exit code is 5
    if the two differ or a chunk is damaged. Running the command again, also after an interruption, copies only what is
    missing. Meanwhile, others may write to FROM and read TO, where a batch counts as finished once it is complete.
    Nobody else may write to the datasets in TO.

    \b
    Examples:
        chronotile copy survey.db cassandra://h1,h2/survey
        chronotile copy survey.db backup.db detections
        chronotile copy survey.db cassandra://h1,h2/survey --verify-only --json
    """
    progress = _Progress()
    with ProgressLine(progress.text):
        report = copying.copy(
            source, target, list(datasets) or None, verify_only=verify_only, workers=workers, passes_max=passes_max,
            progress=progress,
        )  # fmt: skip
    if as_json:
        found = [{**dataclasses.asdict(dataset), "ok": dataset.ok} for dataset in report.datasets]
        click.echo(json.dumps({"ok": report.ok, "datasets": found}, indent=2))
    elif not report.datasets:
        click.echo("no datasets to copy", err=True)
    else:
        click.echo("\n".join(_text(dataset) for dataset in report.datasets))
    if not report.ok:
        context.exit(5)


def _text(report: DatasetCopyReport) -> str:
    lines = []
    if not report.verify_only:
        copied = (
            f"copied {count_text(report.batches_copied, 'batch')}, {count_text(report.chunks_copied, 'chunk')} with "
            f"{count_text(report.rows_copied, 'row')} ({bytes_text(report.bytes_copied)})"
        )
        if report.chunks_removed or report.batches_removed or report.slices_dropped:
            copied += (
                f", removed {count_text(report.chunks_removed, 'chunk')}, "
                f"{count_text(report.batches_removed, 'batch')} and {count_text(report.slices_dropped, 'slice')} "
                "that the source no longer has"
            )
        nothing = not (report.batches_copied or report.chunks_copied or report.chunks_removed or report.batches_removed)
        lines.append(f"{report.dataset}: {'nothing to copy' if nothing and not report.slices_dropped else copied}")
    verdict = "the archives are equal" if report.ok else "the archives DIFFER"
    lines.append(
        f"{report.dataset}: {verdict}; compared {count_text(report.tiles_verified, 'tile')}, "
        f"{count_text(report.chunks_verified, 'chunk')}, {count_text(report.rows_verified, 'row')}, "
        f"{bytes_text(report.bytes_verified)}; {count_text(report.batches, 'batch')} on the target"
    )
    return "\n".join([*lines, *_notes(report)])


def _notes(report: DatasetCopyReport) -> list[str]:
    notes = []
    if not report.verify_only and not report.caught_up:
        notes.append(
            f"  the source is still being written: stopped after {count_text(report.passes, 'pass')}; run the command "
            "again to continue"
        )
    if report.tiles_moved:
        notes.append(
            f"  {count_text(report.tiles_moved, 'tile')} changed during the comparison: run the command again later"
        )
    if report.batches_left:
        notes.append(f"  {count_text(report.batches_left, 'finished batch')} not on the target yet")
    if report.batches_foreign:
        notes.append(f"  {count_text(report.batches_foreign, 'batch')} of the target unknown to the source")
    if report.batches_unfinished:
        names = ", ".join(report.batches_unfinished[:DIFFERENCES_SHOWN])
        more = len(report.batches_unfinished) - DIFFERENCES_SHOWN
        notes.append(f"  unfinished on the source: {names}{f' and {more} more' if more > 0 else ''}")
    notes += [
        f"  {tile.tile}: {count_text(tile.missing, 'chunk')} missing, {tile.superfluous} superfluous, "
        f"{tile.differing} differing: {', '.join(tile.chunks)}"
        for tile in report.differences[:DIFFERENCES_SHOWN]
    ]
    if report.tiles_differing > DIFFERENCES_SHOWN:
        notes.append(f"  and {count_text(report.tiles_differing - DIFFERENCES_SHOWN, 'more tile')}; --json lists them")
    notes += [f"  {found.tile}: damaged on the source: chunk {found.chunk}: {found.reason}" for found in report.damage]
    return notes
