"""Run nodetool for a node, and parse its output."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from chronotile_tools.lab import network, software, state, versions
from chronotile_tools.lab.config import module_options
from chronotile_tools.lab.errors import LabError, LabTimeoutError

_STATUS_LINE = re.compile(
    r"^(?P<up>[UD?])(?P<state>[NLJM])\s+(?P<address>\S+)\s.*?(?P<host>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s"
)

_WRAPPER = Path(__file__).with_name("OldNodetool.java")


@dataclass(frozen=True)
class NodeStatus:
    """Status of a node as seen by another one."""

    address: str
    host_id: str
    up: bool
    state: str
    """``N`` normal, ``J`` joining, ``L`` leaving, ``M`` moving."""

    @property
    def normal(self) -> bool:
        """Up and normal."""
        return self.up and self.state == "N"


def parse_status(text: str) -> list[NodeStatus]:
    """Parse the output of ``nodetool status``."""
    matches = map(_STATUS_LINE.match, text.splitlines())
    return [NodeStatus(m["address"], m["host"], m["up"] == "U", m["state"]) for m in matches if m is not None]


def nodetool_command(cluster: state.ClusterState, node: state.NodeState, arguments: Sequence[str]) -> list[str]:
    """The command line of nodetool for a node, in the node's network."""
    release = versions.release(node.version)
    server = software.server(release)
    folder = state.folder(cluster.name) / node.name
    return [
        *network.existing(cluster.network, cluster.prefix).command_prefix(node.index),
        str(software.java(17)),
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        *module_options(17),
        # The node's registry returns a name that newer Java versions refuse to parse.
        "-Dcom.sun.jndi.rmiURLParsing=legacy",
        f"-Dcassandra.logdir={folder}/logs",
        f"-Dlogback.configurationFile={folder}/conf/logback-tools.xml",
        f"-Dcassandra.config=file://{folder}/conf/cassandra.yaml",
        "-cp",
        f"{folder}/conf:{server.jars}/*",
        str(_WRAPPER) if release.nodetool_wrapped else "org.apache.cassandra.tools.NodeTool",
        "-p",
        str(node.jmx_port),
        *arguments,
    ]


def nodetool(
    cluster: state.ClusterState, node: state.NodeState, arguments: Sequence[str], *, timeout_s: float = 600
) -> str:
    """Run nodetool on a node and return its output.

    Raises
    ------
    LabError
        nodetool failed; the message has its output.
    LabTimeoutError
        nodetool took longer than `timeout_s`.
    """
    what = f"nodetool {' '.join(arguments)} on {node.name}"
    try:
        done = subprocess.run(
            nodetool_command(cluster, node, arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabTimeoutError(f"{what} took longer than {timeout_s:g} s") from None
    if done.returncode != 0:
        output = [line for line in (done.stderr or done.stdout).splitlines() if line.strip() and "\tat " not in line]
        raise LabError(f"{what} failed: " + " ".join(output[:6]), status=done.returncode)
    return done.stdout


def node_statuses(cluster: state.ClusterState, node: state.NodeState, *, timeout_s: float = 60) -> list[NodeStatus]:
    """The nodes of the cluster as seen by one node."""
    return parse_status(nodetool(cluster, node, ["status"], timeout_s=timeout_s))
