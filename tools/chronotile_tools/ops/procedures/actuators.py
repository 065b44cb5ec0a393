"""Actuators: how a node's process is stopped, started and changed.

Three kinds: laboratory nodes, command templates, and instructions to an operator.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile_tools import lab
from chronotile_tools.ops.procedures.nodes import Echo
from chronotile_tools.ops.templates import Template

COMMAND_S = 3600.0
VERBS = ("stop", "start", "install", "join", "replace", "retire", "configure", "send", "fetch")
_FIELDS = {"host", "release", "replaced", "setting", "value"}


class Job(Protocol):
    """A job on a node's files, run on its machine. May be repeated."""

    @property
    def verb(self) -> str:
        """One of `VERBS`."""

    @property
    def words(self) -> list[str]:
        """Arguments of the command that runs the job on the node's machine."""

    def run(self, echo: Echo) -> None:
        """Run the job in this process."""


class Actuator(Protocol):
    """Actions on machines. Every action may be repeated: if already done, it has no effect.

    Actions need not wait for their effect: procedures check the nodes themselves.
    """

    def can(self, verb: str) -> bool:
        """Whether it supports one of `VERBS`."""

    def stop(self, address: str) -> None:
        """Stop a node gracefully."""

    def start(self, address: str) -> None:
        """Start a node on its data."""

    def install(self, address: str, release: str) -> None:
        """Install another release, with its settings, on a stopped node."""

    def join(self, address: str) -> str:
        """Start a new node that joins the cluster; return its address. `address` is the wanted one, empty to let the
        actuator choose.
        """

    def replace(self, dead: str, address: str) -> str:
        """Start a new, empty node that replaces a dead one; return its address. With the same address, the machine was
        rebuilt and its data emptied.
        """

    def retire(self, address: str) -> None:
        """Disable a node that has permanently left."""

    def configure(self, address: str, setting: str, value: str) -> None:
        """Change a setting of cassandra.yaml, effective at the next start."""

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Run a job on a node's machine."""


class Commands:
    """Command templates: ``{"stop": "ssh {host} systemctl stop cassandra"}``.

    ``{host}`` is the node's address, ``{release}`` the release to install, ``{replaced}`` the address of a dead node,
    ``{setting}`` and ``{value}`` the setting to write to cassandra.yaml. The arguments of the job are appended to
    ``send`` and ``fetch``, quoted for a remote shell unless the template ends with ``{words}``
    (:mod:`chronotile_tools.ops.templates`). A command runs without a shell, must be safe to repeat, and signals failure
    by a non-zero exit code.
    """

    def __init__(self, templates: Mapping[str, str], *, timeout_s: float = COMMAND_S) -> None:
        for verb in templates:
            if verb not in VERBS:
                raise InvalidInputError(f"unknown action {verb}", kind="invalid-request")
        self.templates = {verb: Template(text, f"--{verb}-command", _FIELDS) for verb, text in templates.items()}
        self.timeout_s = timeout_s

    def can(self, verb: str) -> bool:
        """Whether there is a template."""
        return verb in self.templates

    def stop(self, address: str) -> None:
        """Run the template."""
        self._run("stop", host=address)

    def start(self, address: str) -> None:
        """Run the template."""
        self._run("start", host=address)

    def install(self, address: str, release: str) -> None:
        """Run the template."""
        self._run("install", host=address, release=release)

    def join(self, address: str) -> str:
        """Run the template."""
        self._run("join", host=_required_address(address))
        return address

    def replace(self, dead: str, address: str) -> str:
        """Run the template."""
        self._run("replace", host=_required_address(address), replaced=dead)
        return address

    def retire(self, address: str) -> None:
        """Run the template."""
        self._run("retire", host=address)

    def configure(self, address: str, setting: str, value: str) -> None:
        """Run the template."""
        self._run("configure", host=address, setting=setting, value=value)

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Run the template with the arguments of the job."""
        self._run(job.verb, job.words, timeout_s, host=address)

    def _run(self, verb: str, more: Sequence[str] = (), timeout_s: float | None = None, **fields: str) -> str:
        if not self.can(verb):
            raise InvalidInputError(f"no command to {verb} a node: pass --{verb}-command", kind="invalid-request")
        words = self.templates[verb].command(more, **fields)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ChronotileError(f"{shlex.join(words)} failed: {error}", kind="command-failed") from error
        if done.returncode != 0:
            output = (done.stderr or done.stdout).strip()[-1000:]
            raise ChronotileError(f"{shlex.join(words)} ended with {done.returncode}: {output}", kind="command-failed")
        return done.stdout.strip()


class Manual:
    """Prints instructions for an operator; the procedure waits until the nodes show the result."""

    def __init__(self, echo: Echo) -> None:
        self.echo = echo

    def can(self, verb: str) -> bool:
        """An operator can perform all actions."""
        return verb in VERBS

    def stop(self, address: str) -> None:
        """Print the instruction."""
        self.echo(f"PLEASE stop Cassandra on {address}")

    def start(self, address: str) -> None:
        """Print the instruction."""
        self.echo(f"PLEASE start Cassandra on {address}")

    def install(self, address: str, release: str) -> None:
        """Print the instruction."""
        self.echo(f"PLEASE install Cassandra {release} on {address}, with the merged settings, without starting it")

    def join(self, address: str) -> str:
        """Print the instruction."""
        self.echo(
            f"PLEASE start a new node at {_required_address(address)}: empty, not its own seed, auto_bootstrap on"
        )
        return address

    def replace(self, dead: str, address: str) -> str:
        """Print the instruction."""
        if address == dead:
            # Other nodes do not gossip to a hibernating node unless it is a seed.
            self.echo(f"PLEASE make {dead} a seed of another node, and run nodetool reloadseeds there")
        self.echo(
            f"PLEASE start an empty node at {_required_address(address)}, not among its own seeds, "
            f"with -Dcassandra.replace_address_first_boot={dead}"
        )
        return address

    def retire(self, address: str) -> None:
        """Print the instruction."""
        self.echo(f"PLEASE make sure that Cassandra on {address} is never started again with its data")

    def configure(self, address: str, setting: str, value: str) -> None:
        """Print the instruction."""
        self.echo(f"PLEASE write {setting}: {value} into cassandra.yaml of {address}")

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Print the instruction."""
        group = "backup" if job.verb == "send" else "restore"
        self.echo(f"PLEASE run on {address}: chronotile ops {group} {job.verb} {shlex.join(job.words)}")


class Laboratory:
    """Laboratory nodes."""

    def __init__(self, cluster: lab.Cluster, echo: Echo = str) -> None:
        self.cluster = cluster
        self.echo = echo

    def can(self, verb: str) -> bool:
        """Supports all actions."""
        return verb in VERBS

    def stop(self, address: str) -> None:
        """Stop the node."""
        self.cluster.node(address).stop()

    def start(self, address: str) -> None:
        """Start the node's process."""
        self.cluster.node(address).start(wait=False)

    def install(self, address: str, release: str) -> None:
        """Switch the node to another release at its next start."""
        self.cluster.node(address).install(release)

    def join(self, address: str) -> str:
        """Add a node."""
        for node in self.cluster.nodes:
            # Reuse a node started by an interrupted run.
            if not node.state.joined and node.state.replaces is None:
                return node.join(echo=self.echo).address
        return self.cluster.add(echo=self.echo).address

    def replace(self, dead: str, address: str) -> str:
        """Replace a dead node by a new one, optionally at the same address."""
        for node in self.cluster.nodes:
            if not node.state.joined and node.state.replaces == dead:
                return node.join(echo=self.echo).address
        return self.cluster.node(dead).replace(same_address=address == dead, echo=self.echo).address

    def retire(self, address: str) -> None:
        """Remove the node from the laboratory."""
        if address in self.cluster.contact_points:
            self.cluster.node(address).forget()

    def configure(self, address: str, setting: str, value: str) -> None:
        """Change the setting for all nodes, effective at their next start."""
        self.cluster.configure(**{setting: value})

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Run the job in this process: the nodes' files are on this machine."""
        job.run(self.echo)


def _required_address(address: str) -> str:
    if not address:
        raise InvalidInputError("the new node's address is required", kind="invalid-request")
    return address
