"""The top-level command group, and the mapping of errors to exit codes."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import NoReturn

import click

from chronotile import __version__, starting
from chronotile.cli import admin, backup, completion, copy, cql, define, historian, index, ingest, jobs, plugins, query
from chronotile.cli.common import remove_empty_files
from chronotile.errors import (
    AccessDeniedError,
    ArchiveNotFoundError,
    BatchConflictError,
    BatchNotFoundError,
    BusyError,
    ChronotileError,
    DamagedError,
    DataFileError,
    DatasetExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    NotAnArchiveError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageFullError,
    TagNotFoundError,
    UnavailableError,
)

FAILED, USAGE, NOT_FOUND, CONFLICT, DAMAGED, REPEAT, STORAGE, CLUSTER = 1, 2, 3, 4, 5, 6, 7, 8

EPILOG = """\b
Exit codes:
    0  done
    1  other failure
    2  wrong usage, arguments or rows
    3  archive, dataset, batch, tag, file or cluster not found, or not an archive
    4  conflict: the dataset, batch, index, file or cluster exists already,
       or with different content
    5  damage found
    6  busy, or outcome unknown: repeat the command
    7  the disk is full or read-only
    8  the cluster is unavailable or denies access
    9  ops check: warnings
   10  ops check: critical findings
  130  interrupted

\b
The archive is a URL (sqlite:survey.db) or a path (survey.db). Set
CHRONOTILE_ARCHIVE, or give -a, to leave it out:
    export CHRONOTILE_ARCHIVE=survey.db
    chronotile count detections
"""


_LAZY = {
    "apdb": "chronotile.cli.apdb",
    "events": "chronotile.cli.events",
    "serve": "chronotile.cli.serve",
}
"""Command groups by name, with their modules."""


class _Commands(plugins.LateGroup):
    """Loads command groups on demand, so that a command imports only what it needs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_LAZY, *plugins.commands()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None
        if cmd_name in _LAZY:
            command = getattr(importlib.import_module(_LAZY[cmd_name]), cmd_name)
        else:
            command = super().get_command(ctx, cmd_name) or plugins.command(cmd_name)
        if command is not None and completion.VARIABLE in os.environ:
            completion.complete_files(command)
        return command


@click.group(
    cls=_Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="chronotile")
def cli() -> None:
    """An archive for time-ordered records that are read back by place and period.

    \b
    Examples:
        chronotile create survey.db detections --like night1.parquet \\
            --sky ra,dec --time jd --id candid
        chronotile ingest survey.db detections night*.parquet
        chronotile read survey.db detections --circle 150.1,2.2,0.1 \\
            --start 2026-01-01 --columns candid,jd,mag
    """


for _command in (
    define.create,
    admin.datasets,
    ingest.ingest,
    query.read,
    query.latest,
    query.count,
    cql.cql,
    historian.historian,
    admin.info,
    admin.consolidate,
    admin.prepare,
    admin.retire,
    admin.verify,
    admin.drop,
    define.add_columns,
    copy.copy,
    backup.backup,
    backup.restore,
    index.index,
    jobs.jobs,
    admin.demo,
    completion.completion,
):
    cli.add_command(_command)


def exit_code(error: ChronotileError) -> int:
    """Documented exit code for an error. Errors of other distributions may set `exit_code`."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return own
    match error:
        case InvalidInputError(kind="index-exists"):
            return CONFLICT
        case InvalidInputError():
            return USAGE
        case DatasetNotFoundError() | BatchNotFoundError() | TagNotFoundError():
            return NOT_FOUND
        case ArchiveNotFoundError() | NotAnArchiveError():
            return NOT_FOUND
        case DatasetExistsError() | BatchConflictError():
            return CONFLICT
        case DamagedError():
            return DAMAGED
        case BusyError() | OutcomeUnknownError():
            return REPEAT
        case StorageFullError() | ReadOnlyError():
            return STORAGE
        case UnavailableError() | AccessDeniedError():
            return CLUSTER
        case DataFileError(kind="file-not-found"):
            return NOT_FOUND
        case DataFileError(kind="file-exists"):
            return CONFLICT
        case DataFileError(kind="file-format" | "file-content" | "file-damaged" | "file-too-large"):
            return USAGE
    return FAILED


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    _replace_closed_streams()
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        starting.end_imports()
        code = cli.main(args=arguments, prog_name="chronotile", standalone_mode=False)
        sys.stdout.flush()
        _end(code if isinstance(code, int) else 0)
    except click.exceptions.Exit as end:
        _end(end.exit_code)
    except click.Abort:
        click.echo("chronotile: interrupted", err=True)
        _end(starting.INTERRUPTED)
    except KeyboardInterrupt:
        if debug:
            raise
        click.echo("\nchronotile: interrupted", err=True)
        _end(starting.INTERRUPTED)
    except click.ClickException as error:
        error.show()
        _end(error.exit_code)
    except BrokenPipeError:
        _quiet()
    except ChronotileError as error:
        if error.kind == "broken-pipe":
            _quiet()
        if debug:
            raise
        click.echo(f"chronotile: {error}", err=True)
        _end(exit_code(error))
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError):
            needed = plugins.missing_module_text(error)
            if needed is None:
                raise
            click.echo(f"chronotile: {needed}", err=True)
            _end(FAILED)
        if isinstance(error, OSError) and error.filename is not None and error.errno in _OF_FILES:
            code, advice = _OF_FILES[error.errno]
            click.echo(f"chronotile: {os.fsdecode(error.filename)}: {error.strerror}: {advice}", err=True)
            _end(code)
        if isinstance(error, OSError) and error.filename is None and error.errno in _OF_OUTPUT:
            closed = error.errno == errno.EBADF
            reason = "it is closed" if closed else f"{error.strerror}; free some space or write elsewhere"
            click.echo(f"chronotile: writing standard output failed: {reason}", err=True)
            _discard_output()
            _end(FAILED)
        text = str(error) or type(error).__name__
        click.echo(f"chronotile: {type(error).__name__}: {text} (--debug shows where)", err=True)
        _end(FAILED)


_ELSEWHERE = "choose another folder, or change its permissions"
_OF_FILES = {
    errno.EROFS: (STORAGE, _ELSEWHERE),
    errno.EACCES: (STORAGE, _ELSEWHERE),
    errno.EPERM: (STORAGE, _ELSEWHERE),
    errno.ENOSPC: (STORAGE, "free space, then repeat the command"),
    errno.EDQUOT: (STORAGE, "free space, then repeat the command"),
    errno.ENOENT: (NOT_FOUND, "check the spelling and the current folder"),
    errno.ENOTDIR: (NOT_FOUND, "a part of the path is a file; choose another folder"),
    errno.EISDIR: (USAGE, "give the name of a file"),
    errno.ENAMETOOLONG: (USAGE, "choose a shorter name"),
}
"""Exit code and advice for errors of the operating system that name a file."""
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF, errno.EIO)
"""Write errors of standard output, which name no file."""


def _end(code: int) -> NoReturn:
    if code:
        remove_empty_files()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _quiet()
    sys.exit(code)


def _quiet() -> NoReturn:
    """Exit silently after the reader of standard output has closed it, as `| head` does."""
    _discard_output()
    sys.exit(0)


def _discard_output() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    # Python flushes standard output at its exit, which would fail again.
    os.dup2(devnull, sys.stdout.fileno())


def _replace_closed_streams() -> None:
    """Open the null device for each closed standard stream: otherwise the next open file, such as an archive, would
    get its descriptor. Writing to a closed standard output still fails; messages to standard error are lost.
    """
    for name, flags, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, flags), mode))  # noqa: SIM115
