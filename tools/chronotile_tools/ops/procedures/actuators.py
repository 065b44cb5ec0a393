"""Hands on the machines: how a node's process is stopped, started and changed.

Three ways: the laboratory's nodes, commands given as templates, and an operator who is told what to do.
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
    """Work on a node's files, done where they are. May be repeated."""

    @property
    def verb(self) -> str:
        """One of `VERBS`."""

    @property
    def words(self) -> list[str]:
        """Arguments of the command that does it on the node's machine."""

    def run(self, echo: Echo) -> None:
        """Do it in this process."""


class Actuator(Protocol):
    """What a procedure does to machines. Every verb may be repeated: done already, it changes nothing.

    The verbs bring a change about and need not wait for it: a procedure looks at the nodes itself.
    """

    def can(self, verb: str) -> bool:
        """Whether it knows how to do one of `VERBS`."""

    def stop(self, address: str) -> None:
        """End a node's process in order."""

    def start(self, address: str) -> None:
        """Start a node's process on its data."""

    def install(self, address: str, release: str) -> None:
        """Put the software of another release, with its settings, in place of a stopped node's."""

    def join(self, address: str) -> str:
        """Start a new node with the cluster's settings, which joins it; return its address.

        `address` is the one it should have, empty where the actuator chooses.
        """

    def replace(self, dead: str, address: str) -> str:
        """Start a new, empty node in the place of a dead one; return its address.

        With the address of the dead one its machine was set up anew, its data emptied.
        """

    def retire(self, address: str) -> None:
        """Keep a node that has left for good from being started again."""

    def configure(self, address: str, setting: str, value: str) -> None:
        """Set a setting of cassandra.yaml, which the node takes up at its next start."""

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Have a job done on a node's machine."""


class Commands:
    """Commands of the operator's own: ``{"stop": "ssh {host} systemctl stop cassandra"}``.

    ``{host}`` is the node's address, ``{release}`` the release to install, ``{replaced}`` the address of a dead node,
    ``{setting}`` and ``{value}`` what to write into cassandra.yaml. ``send`` and ``fetch`` get the words of their job
    at their end, quoted for a remote shell unless the template ends with ``{words}``
    (:mod:`chronotile_tools.ops.templates`).
    A command runs without a shell, must be safe to repeat, and fails with an exit code other than 0.
    """

    def __init__(self, templates: Mapping[str, str], *, timeout_s: float = COMMAND_S) -> None:
        for verb in templates:
            if verb not in VERBS:
                raise InvalidInputError(f"no command is ever run to {verb} a node", kind="invalid-request")
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
        self._run("join", host=_given(address))
        return address

    def replace(self, dead: str, address: str) -> str:
        """Run the template."""
        self._run("replace", host=_given(address), replaced=dead)
        return address

    def retire(self, address: str) -> None:
        """Run the template."""
        self._run("retire", host=address)

    def configure(self, address: str, setting: str, value: str) -> None:
        """Run the template."""
        self._run("configure", host=address, setting=setting, value=value)

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Run the template, with the words of the job at its end."""
        self._run(job.verb, job.words, timeout_s, host=address)

    def _run(self, verb: str, more: Sequence[str] = (), timeout_s: float | None = None, **fields: str) -> str:
        if not self.can(verb):
            raise InvalidInputError(f"nothing says how to {verb} a node: give --{verb}-command", kind="invalid-request")
        words = self.templates[verb].command(more, **fields)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ChronotileError(f"{shlex.join(words)} did not run to its end: {error}", kind="command") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip()[-1000:]
            raise ChronotileError(f"{shlex.join(words)} ended with {done.returncode}: {said}", kind="command")
        return done.stdout.strip()


class Manual:
    """An operator's own hands: it says what to do, and the procedure waits until the nodes show that it is done."""

    def __init__(self, echo: Echo) -> None:
        self.echo = echo

    def can(self, verb: str) -> bool:
        """An operator can do all of them."""
        return verb in VERBS

    def stop(self, address: str) -> None:
        """Say so."""
        self.echo(f"PLEASE stop Cassandra on {address}")

    def start(self, address: str) -> None:
        """Say so."""
        self.echo(f"PLEASE start Cassandra on {address}")

    def install(self, address: str, release: str) -> None:
        """Say so."""
        self.echo(f"PLEASE install Cassandra {release} on {address}, with the merged settings, without starting it")

    def join(self, address: str) -> str:
        """Say so."""
        self.echo(f"PLEASE start a new node at {_given(address)}: empty, not among its own seeds, auto_bootstrap on")
        return address

    def replace(self, dead: str, address: str) -> str:
        """Say so."""
        if address == dead:
            # To a node that hibernates in their eyes others tell nothing, unless it is a seed of theirs.
            self.echo(f"PLEASE see that {dead} is among the seeds of another node, and run nodetool reloadseeds there")
        self.echo(
            f"PLEASE start an empty node at {_given(address)}, not among its own seeds, "
            f"with -Dcassandra.replace_address_first_boot={dead}"
        )
        return address

    def retire(self, address: str) -> None:
        """Say so."""
        self.echo(f"PLEASE see to it that Cassandra on {address} is never started again with its data")

    def configure(self, address: str, setting: str, value: str) -> None:
        """Say so."""
        self.echo(f"PLEASE write {setting}: {value} into cassandra.yaml of {address}")

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Say so."""
        group = "backup" if job.verb == "send" else "restore"
        self.echo(f"PLEASE run on {address}: chronotile ops {group} {job.verb} {shlex.join(job.words)}")


class Laboratory:
    """Nodes of the laboratory."""

    def __init__(self, cluster: lab.Cluster, echo: Echo = str) -> None:
        self.cluster = cluster
        self.echo = echo

    def can(self, verb: str) -> bool:
        """It can do all of them."""
        return verb in VERBS

    def stop(self, address: str) -> None:
        """End the node's process."""
        self.cluster.node(address).stop()

    def start(self, address: str) -> None:
        """Start the node's process."""
        self.cluster.node(address).start(wait=False)

    def install(self, address: str, release: str) -> None:
        """Let the node run another release from its next start on."""
        self.cluster.node(address).install(release)

    def join(self, address: str) -> str:
        """Add a node."""
        for node in self.cluster.nodes:
            # One that was begun before somebody was cut off.
            if not node.state.joined and node.state.replaces is None:
                return node.join(echo=self.echo).address
        return self.cluster.add(echo=self.echo).address

    def replace(self, dead: str, address: str) -> str:
        """Replace a dead node by a new one, at the same address where that is asked for."""
        for node in self.cluster.nodes:
            if not node.state.joined and node.state.replaces == dead:
                return node.join(echo=self.echo).address
        return self.cluster.node(dead).replace(same_address=address == dead, echo=self.echo).address

    def retire(self, address: str) -> None:
        """Strike the node from the laboratory's list."""
        if address in self.cluster.contact_points:
            self.cluster.node(address).forget()

    def configure(self, address: str, setting: str, value: str) -> None:
        """Set it for all nodes, each of which takes it up when it starts."""
        self.cluster.configure(**{setting: value})

    def work(self, address: str, job: Job, *, timeout_s: float) -> None:
        """Do it in this process: the nodes' files are on this machine."""
        job.run(self.echo)


def _given(address: str) -> str:
    if not address:
        raise InvalidInputError("say which address the new node has", kind="invalid-request")
    return address
