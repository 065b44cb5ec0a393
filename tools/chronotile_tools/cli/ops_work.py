"""Shared parts of procedure commands: access, commands on machines, ``plan`` and ``run``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from chronotile.cli.common import Command, in_place_of, json_option, with_options
from chronotile.cli.plugins import LateGroup
from chronotile_tools.cli.access import access_options
from chronotile_tools.ops.access import Access, LabRunner
from chronotile_tools.ops.procedures import Context, Procedure, engine, journal, statements
from chronotile_tools.ops.procedures.actuators import VERBS, Actuator, Commands, Laboratory, Manual
from chronotile_tools.ops.procedures.nodes import Echo, any_serving
from chronotile_tools.ops.procedures.reaching import AccessNodes

_HELP = {
    "stop": "Command that stops a node: 'ssh {host} systemctl stop cassandra'.",
    "start": "Command that starts a node.",
    "install": "Command that installs {release} and its settings on a stopped node.",
    "join": "Command that starts a new, empty node.",
    "replace": "Command that starts an empty node to replace {replaced}.",
    "retire": "Command that disables a node that has left.",
    "configure": "Command that writes {setting}: {value} to a node's cassandra.yaml.",
    "send": "Command that sends a snapshot: 'ssh {host} chronotile ops backup send'.",
    "fetch": "Command that fetches files: 'ssh {host} sudo -u cassandra chronotile ops restore fetch'.",
}


class Session:
    """Context of a procedure, and the folder of its journals."""

    def __init__(
        self, access: Access, folder: str | None, manual: bool, commands: dict[str, str], *, quiet: bool = False
    ) -> None:
        nodes = AccessNodes(access)
        # For JSON output, print progress and instructions to standard error.
        echo = functools.partial(click.echo, err=quiet)
        self.context = Context(nodes, _actuator(access, manual, commands, echo), echo, archive_url=nodes.archive_url)
        self.folder = journal.default_folder(cluster_name(access)) if folder is None else Path(folder)


def cluster_name(access: Access) -> str:
    """The name of the cluster as a node reports it."""
    nodes = AccessNodes(access)
    return nodes.query(any_serving(nodes), statements.select("cluster_name", "system.local"))[0]["cluster_name"]


def session_options(command: Command) -> Command:
    """Add the options for access to the cluster and those of all procedures; the command gets `session`."""

    @access_options
    def run(access: Access, journal_folder: str | None, manual: bool, **options: Any) -> Any:
        commands = {verb: options.pop(f"{verb}_command") for verb in VERBS}
        given = {verb: text for verb, text in commands.items() if text is not None}
        if manual and given:
            raise click.UsageError("Give commands or --manual, not both.")
        quiet = bool(options.get("as_json"))
        return command(session=Session(access, journal_folder, manual, given, quiet=quiet), **options)

    return in_place_of(
        command,
        run,
        click.option("--journal", "journal_folder", metavar="FOLDER", type=click.Path(file_okay=False),
                     help="Folder of journals. [default: ~/.local/state/chronotile/ops/CLUSTER]"),
        click.option("--manual", is_flag=True, help="Print instructions for an operator, and wait for the result."),
        *(click.option(f"--{verb}-command", metavar="COMMAND", help=_HELP[verb]) for verb in VERBS),
    )  # fmt: skip


def _actuator(access: Access, manual: bool, commands: dict[str, str], echo: Echo) -> Actuator:
    if manual:
        return Manual(echo)
    if not commands and isinstance(access.runner, LabRunner):
        return Laboratory(access.runner.cluster, echo)
    return Commands(commands)


def _first_sentence(text: str) -> str:
    return " ".join(text.split()).partition(". ")[0].rstrip(".") + "."


def procedure(kind: type[Procedure], *options: Callable[[Command], Command]) -> click.Group:
    """A group with the commands ``plan`` and ``run``. `kind.of` gets the context and the values of `options`; the
    docstring of `kind` is the help.
    """
    text = kind.__doc__ or ""
    group = LateGroup(kind.name, help=text, short_help=_first_sentence(text))

    @group.command(short_help="Show the steps, checks and costs.")
    @session_options
    @with_options(*options)
    @json_option
    def plan(session: Session, as_json: bool, **values: Any) -> None:
        """Show the steps, checks and costs of the procedure. Changes nothing; exits with 1 if refused."""
        work = engine.create_procedure(lambda: kind.of(session.context, **values), session.context, session.folder)
        made = engine.plan(work, session.context)
        click.echo(json.dumps(made.to_dict(), indent=2) if as_json else str(made))
        if made.refused:
            raise click.exceptions.Exit(1)

    @group.command(short_help="Run the procedure, or resume it.")
    @session_options
    @click.option("--again", is_flag=True, help="Abandon unfinished work, and plan again.")
    @with_options(*options)
    def run(session: Session, again: bool, **values: Any) -> None:
        """Run the procedure step by step. After an interruption, run it again or resume it to continue where it
        stopped.
        """
        kept = engine.run_request(
            kind.name, values, lambda: kind.of(session.context, **values), session.context, session.folder, again=again
        )
        click.echo(f"finished; journal: {kept.path}")

    return group
