"""``chronotile completion``, and completion of arguments: files, datasets, tags, columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

VARIABLE = "_CHRONOTILE_COMPLETE"
"""Environment variable that click sets during completion."""

_TAGS_MAX = 200
_FILE_METAVARS = ("FILE", "DIR", "FOLDER")
_FILE_ARGUMENTS = ("FILE", "FILES", "PATHS", "PATH", "DIR")

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completer(*, dataset: bool, rest: str | None) -> Completer:
    """Return a completer for a command that takes ``[ARCHIVE] DATASET REST``."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        words = [str(word) for word in ctx.params.get("words") or ()]
        given = ctx.params.get("archive")
        # If an option or the environment sets the archive, the first word is a dataset or another archive.
        fallback = given or os.environ.get("CHRONOTILE_ARCHIVE")
        if not words and not fallback:
            return _files(incomplete)
        url = str(given) if given else words[0] if words and not fallback else str(fallback)
        place = len(words) - (0 if fallback else 1)
        try:
            if dataset and place == 0:
                return _items(_datasets(url), incomplete)
            name = words[-place] if dataset and place else ""
            return _rest(url, name, rest or "", incomplete)
        except Exception:
            # Completion must stay silent: any error of the archive means no suggestions.
            return []

    return complete


def _rest(url: str, dataset: str, rest: str, incomplete: str) -> list[CompletionItem]:
    kind = rest.strip("[].").split("=")[0].rstrip(".").strip("[]")
    if kind in _FILE_ARGUMENTS:
        return _files(incomplete)
    if kind == "TAG":
        return _items(_tags(url, incomplete), incomplete)
    if kind == "COLUMN":
        return _items([f"{column}=" for column in _columns(url, dataset)], incomplete)
    if kind == "INDEX":
        return _items(_indexes(url, dataset), incomplete)
    return []


def _items(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _files(incomplete: str) -> list[CompletionItem]:
    # The shell itself lists files.
    return [CompletionItem(incomplete, type="file")]


def _datasets(url: str) -> list[str]:
    from chronotile.archive import open as open_archive

    with open_archive(url, create=False, read_only=True, timeout_s=2) as archive:
        return list(archive)


def _columns(url: str, dataset: str) -> list[str]:
    from chronotile.archive import open as open_archive

    with open_archive(url, create=False, read_only=True, timeout_s=2) as archive:
        return list(archive[dataset].column_types)


def _indexes(url: str, dataset: str) -> list[str]:
    from chronotile.archive import open as open_archive

    with open_archive(url, create=False, read_only=True, timeout_s=2) as archive:
        return [found.name for found in archive[dataset].indexes()]


def _tags(url: str, incomplete: str) -> list[str]:
    from chronotile import historian

    if url.startswith(("http://", "https://")):
        with historian.connect(url, timeout=2) as service:
            return [tag.name for tag in service.tags(f"{incomplete}*", limit=_TAGS_MAX)]
    with historian.open(url, create=False) as h:
        return [tag.name for tag in h.tags(f"{incomplete}*", limit=_TAGS_MAX)]


def complete_files(command: click.Command) -> click.Command:
    """Complete file options and arguments of a command and its subcommands as files."""
    for parameter in command.params:
        if (parameter.metavar or "").strip("[].") in _FILE_METAVARS and parameter.name != "words":
            parameter._custom_shell_complete = lambda ctx, param, incomplete: _files(incomplete)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            complete_files(below)
    return command


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for completion of commands, options, files, datasets, columns and tags.

    \b
    Examples:
        eval "$(chronotile completion bash)"
        chronotile completion fish > ~/.config/fish/completions/chronotile.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"Completion is not available for {shell}.")
    click.echo(found(context.find_root().command, {}, "chronotile", VARIABLE).source())
