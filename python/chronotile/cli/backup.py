"""``chronotile backup`` and ``restore``: copies of an archive in a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import click

from chronotile import backups
from chronotile.cli.common import debug_option, json_option
from chronotile.terminal import ProgressLine, bar, bytes_text, count_text

_OPTIONS = [
    click.option("--no-verify", is_flag=True, help="Do not read and check every chunk of the new file."),
    json_option,
    debug_option,
]


def _copying(
    source: str, to: str, no_verify: bool, as_json: bool, make: Callable[..., backups.BackupReport], verb: str
) -> None:
    pages = [0, 0]

    def progress(done: int, total: int) -> None:
        pages[:] = done, total

    def text() -> str:
        done, total = pages
        return f"{verb} {source}  checking" if total and done == total else f"{verb} {source}  {bar(done, total)}"

    with ProgressLine(text):
        report = make(source, to, verify=not no_verify, progress=progress)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
        return
    checked = f", {count_text(report.rows, 'row')} checked" if not no_verify else ", not verified"
    count = count_text(report.datasets, "dataset")
    click.echo(f"{report.path}: {count}, {bytes_text(report.bytes)}{checked}")


@click.command(short_help="Back up an archive in a file while it is in use.")
@click.argument("file")
@click.argument("to")
def backup(file: str, to: str, no_verify: bool, as_json: bool, debug: bool) -> None:
    """Copy a consistent snapshot of the archive FILE to the new file TO. Writers may continue meanwhile.

    The copy is made under a temporary name, checked, synced, and then renamed to TO, with the mode of FILE. An existing
    TO is never overwritten. To back up an archive on a cluster, use `chronotile ops backup`.

    \b
    Example:
        chronotile backup survey.db /backups/survey-2026-07-01.db
    """
    del debug
    _copying(file, to, no_verify, as_json, backups.backup, "copying")


@click.command(short_help="Restore an archive from a backup.")
@click.argument("backup_file", metavar="BACKUP")
@click.argument("file")
def restore(backup_file: str, file: str, no_verify: bool, as_json: bool, debug: bool) -> None:
    """Restore the archive FILE from BACKUP, and check it before it gets its name. BACKUP is not changed.

    FILE must not exist, nor a -wal, -shm or -journal beside it, which would damage the new archive. First move an old
    archive away with all of its files.

    \b
    Example:
        mkdir old && mv survey.db survey.db-* old/
        chronotile restore /backups/survey-2026-07-01.db survey.db
    """
    del debug
    _copying(backup_file, file, no_verify, as_json, backups.restore, "restoring")


for _command in (backup, restore):
    for _option in _OPTIONS:
        _option(_command)
