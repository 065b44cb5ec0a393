"""Options for access to the nodes of a cluster."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from chronotile.cli.common import Command, debug_option, in_place_of
from chronotile.errors import InvalidInputError

if TYPE_CHECKING:
    import ssl

    # Imported for types only: serving an archive does not need it.
    from chronotile_tools.ops import Access, Runner

_WORDS = ("user", "password_file", "ca", "cert", "key", "nodetool", "jolokia", "shell")


def access_options(command: Command, *, optional: bool = False) -> Command:
    """Add the argument and options for access to a cluster; the command gets `access`, or None if no cluster is given
    and it is `optional`.
    """

    def run(contact_points: tuple[str, ...], lab_name: str | None, timeout_s: float, debug: bool, **given: Any) -> Any:
        access: Access | None = None
        words = {name: given.pop(name) for name in _WORDS}
        if not (given.get("explain") or (optional and lab_name is None and not contact_points)):
            if lab_name is None and not contact_points:
                raise click.UsageError("Missing argument 'NODE...': addresses of nodes, or --lab NAME.")
            if lab_name is not None and contact_points:
                raise click.UsageError("Give contact points or --lab, not both.")
            access = _access(contact_points, lab_name, words, timeout_s=timeout_s)
        return command(access=access, **given)

    return in_place_of(
        command,
        run,
        click.argument("contact_points", nargs=-1, metavar="NODE..."),
        click.option("--lab", "lab_name", metavar="NAME", help="Use a laboratory cluster instead."),
        *_options(""),
        click.option("--timeout", "timeout_s", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True,
                     metavar="SECONDS", help="Timeout for a node's answer over CQL."),
        debug_option,
    )  # fmt: skip


def nodes_options(command: Command) -> Command:
    """Add `--nodes` and related options to a command about something else; the command gets `nodes`, or None."""

    def run(nodes: str | None, nodes_lab: str | None, **given: Any) -> Any:
        words = {name: given.pop(f"nodes_{name}") for name in _WORDS}
        access: Access | None = None
        if nodes is not None or nodes_lab is not None:
            if nodes is not None and nodes_lab is not None:
                raise click.UsageError("Give --nodes or --nodes-lab, not both.")
            points = tuple(word.strip() for word in (nodes or "").split(",") if word.strip())
            access = _access(points, nodes_lab, words)
        elif any(words.values()):
            raise click.UsageError("Options --nodes-... require --nodes.")
        return command(nodes=access, **given)

    return in_place_of(
        command,
        run,
        click.option("--nodes", metavar="NODE,NODE", help="Also store metrics of these Cassandra nodes."),
        click.option("--nodes-lab", metavar="NAME", help="Use a laboratory cluster instead."),
        *_options("nodes-"),
    )


def _options(prefix: str) -> list[Callable[[Command], Command]]:
    return [
        click.option(f"--{prefix}user", metavar="USER", help="User name for CQL. [env: CHRONOTILE_CASSANDRA_USER]"),
        click.option(
            f"--{prefix}password-file",
            metavar="FILE",
            help="File with the password. [env: ..._PASSWORD, the password itself]",
        ),
        click.option(f"--{prefix}ca", metavar="FILE", help="Use TLS; certificate authorities of the nodes (PEM)."),
        click.option(f"--{prefix}cert", metavar="FILE", help="Client certificate, if nodes require one (PEM)."),
        click.option(f"--{prefix}key", metavar="FILE", help="Private key of the client certificate (PEM)."),
        click.option(
            f"--{prefix}nodetool",
            metavar="COMMAND",
            help="Command that runs nodetool for a node: 'ssh {host} nodetool'.",
        ),
        click.option(
            f"--{prefix}jolokia", metavar="URL", help="Jolokia URL for JMX over HTTP: 'http://{host}:8778/jolokia'."
        ),
        click.option(
            f"--{prefix}shell", metavar="COMMAND", help="Shell on a node's machine, to see its disks: 'ssh {host}'."
        ),
    ]


def _access(points: Sequence[str], lab_name: str | None, words: dict[str, str | None], **more: float) -> Access:
    from chronotile_tools import ops
    from chronotile_tools.ops.access import read_credentials

    if lab_name is not None:
        return ops.for_lab(lab_name)
    _warn_of_readers(words["password_file"])
    return ops.Access(
        points,
        credentials=read_credentials(words["user"], words["password_file"]),
        tls=_tls(words["ca"], words["cert"], words["key"]),
        runner=_runner(words["nodetool"], words["jolokia"], words["shell"]),
        **more,
    )


def _warn_of_readers(path: str | None) -> None:
    """Warn if every user of the machine can read the password file."""
    if path is None:
        return
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # The reader of the file reports the error.
        return
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        click.echo(f"chronotile: every user of this machine can read {path}: chmod 600 {path}", err=True)


def _tls(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if ca is None:
        if cert or key:
            raise click.UsageError("--cert and --key require --ca.")
        return None
    # Import here: loading ssl takes a fifth of a command's startup time.
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise InvalidInputError(f"--ca, --cert or --key: {error}", kind="invalid-request") from None
    return context


def _runner(nodetool: str | None, jolokia: str | None, shell: str | None) -> Runner | None:
    from chronotile_tools import ops

    if nodetool and jolokia:
        raise click.UsageError("Give --nodetool or --jolokia, not both.")
    if nodetool:
        return ops.CommandRunner(nodetool, shell)
    if jolokia:
        return ops.JolokiaRunner(jolokia, shell=shell)
    if shell:
        raise click.UsageError("--shell requires --nodetool or --jolokia, which report the data folders.")
    return None
