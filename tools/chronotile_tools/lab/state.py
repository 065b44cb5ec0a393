"""State of a cluster, stored in a JSON file in its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from chronotile_tools.lab import places
from chronotile_tools.lab.errors import LabError, LabNotFoundError
from chronotile_tools.lab.processes import Process

FORMAT = 1
LOCK_SECONDS_MAX = 30
OPERATION_SECONDS = 60.0
"""Timeout in seconds for another command that changes the cluster's membership."""

Status = Literal["starting", "ready", "failed"]
Encryption = Literal["none", "server", "mutual"]


@dataclass
class NodeState:
    """One node."""

    index: int
    """Its number, from 1; never given to another node of the cluster."""
    dc: str
    rack: str
    address: str
    jmx_port: int
    version: str
    heap_mb: int
    tokens: list[int] | None = None
    """Initial tokens, if the node started together with the cluster."""
    joined: bool = False
    """Whether the node has served clients, and so has its own data and tokens."""
    host_id: str = ""
    replaces: str | None = None
    """Address of the dead node that it replaces at its first start."""
    cut: bool = False
    process: Process | None = None

    @property
    def name(self) -> str:
        """For example ``node2``."""
        return f"node{self.index}"


@dataclass
class ClusterState:
    """A cluster."""

    name: str
    status: Status
    created_utc: str
    version: str
    network: str
    prefix: str
    """The first three numbers of its nodes' addresses."""
    heap_mb: int
    auth: bool
    tls: Encryption
    settings: dict[str, Any]
    java_options: list[str]
    nodes: list[NodeState]
    index_next: int
    """The number the next new node gets."""
    owner: Process | None = None
    """Process whose end takes the cluster down; None for a cluster that is kept."""
    failure: str = ""
    """Error of a failed start."""
    format: int = field(default=FORMAT)

    def node(self, index: int) -> NodeState:
        """The node of this number.

        Raises
        ------
        LabNotFoundError
            No such node, or it was removed.
        """
        for node in self.nodes:
            if node.index == index:
                return node
        names = ", ".join(node.name for node in self.nodes) or "none"
        raise LabNotFoundError(f"cluster {self.name} has no node{index}; it has {names}")


def folder(name: str) -> Path:
    """The folder of a cluster."""
    return places.home() / name


def load(name: str) -> ClusterState:
    """Read a cluster's state.

    Raises
    ------
    LabNotFoundError
        The cluster does not exist.
    LabError
        Its file cannot be read (``lab-state``).
    """
    path = folder(places.checked_name(name)) / places.STATE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except FileNotFoundError:
        raise LabNotFoundError(
            f"no cluster {name!r} in {places.home()}: list clusters with chronotile lab list"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"{path} cannot be read: {error}", kind="lab-state") from error
    if content.get("format") != FORMAT:
        raise LabError(f"{path} was written by another release: take the cluster down", kind="lab-state")
    try:
        nodes = [NodeState(**{**node, "process": _process(node["process"])}) for node in content.pop("nodes")]
        return ClusterState(**{**content, "nodes": nodes, "owner": _process(content["owner"])})
    except (KeyError, TypeError) as error:
        raise LabError(f"{path} is damaged: {error}; take the cluster down", kind="lab-state") from error


def save(state: ClusterState) -> None:
    """Write a cluster's state. The caller holds the cluster's state lock, or has just created the cluster."""
    text = json.dumps(dataclasses.asdict(state), indent=2)
    places.write_whole(folder(state.name) / places.STATE_FILE, text + "\n", mode=0o600)


@contextlib.contextmanager
def changing(name: str) -> Iterator[ClusterState]:
    """Read, change and write the state under its lock. Keep the block short, because others wait."""
    with places.locked(f"{name}.state", timeout_s=LOCK_SECONDS_MAX, what=f"change cluster {name}"):
        state = load(name)
        # An exception in the block leaves the stored state as it was.
        yield state
        save(state)


def names() -> list[str]:
    """Names of the clusters of this home, including unfinished ones."""
    if not places.home().is_dir():
        return []
    return sorted(path.name for path in places.home().iterdir() if path.is_dir() and not path.name.startswith("."))


def _process(fields: dict[str, Any] | None) -> Process | None:
    return None if fields is None else Process(**fields)


@contextlib.contextmanager
def operating(name: str, what: str, *, timeout_s: float = OPERATION_SECONDS) -> Iterator[None]:
    """Hold the lock for changing the cluster's membership."""
    with places.locked(f"{name}.nodes", timeout_s=timeout_s, what=f"{what} (cluster {name})"):
        yield
