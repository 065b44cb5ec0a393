"""What is known of a cluster, kept in one JSON file in its folder."""

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
"""How long a command waits for another that changes which nodes the cluster has."""

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
    """Tokens it was given because it began together with the cluster."""
    joined: bool = False
    """Whether it has served, and so has data and tokens of its own."""
    host_id: str = ""
    replaces: str | None = None
    """Address of the dead node whose place it takes when it first starts."""
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
    """The process with whose end the cluster ends; None for one that stays."""
    failure: str = ""
    """Why it could not be started."""
    format: int = field(default=FORMAT)

    def node(self, index: int) -> NodeState:
        """The node of this number.

        Raises
        ------
        LabNotFoundError
            When the cluster has none, or no longer.
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
        When there is no such cluster.
    LabError
        When its file cannot be read (``lab-state``).
    """
    path = folder(places.checked_name(name)) / places.STATE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LabNotFoundError(
            f"there is no cluster {name!r} in {places.home()}: chronotile lab list shows those there are"
        ) from None
    except (OSError, ValueError) as error:
        raise LabError(f"{path} cannot be read: {error}", kind="lab-state") from error
    if content.get("format") != FORMAT:
        raise LabError(f"{path} is of another release of the laboratory: take the cluster down", kind="lab-state")
    nodes = [NodeState(**{**node, "process": _process(node["process"])}) for node in content.pop("nodes")]
    return ClusterState(**{**content, "nodes": nodes, "owner": _process(content["owner"])})


def save(state: ClusterState) -> None:
    """Write a cluster's state. The caller holds the cluster's state lock, or is the only one that knows of it."""
    text = json.dumps(dataclasses.asdict(state), indent=2)
    places.write_whole(folder(state.name) / places.STATE_FILE, text + "\n", mode=0o600)


@contextlib.contextmanager
def changing(name: str) -> Iterator[ClusterState]:
    """Read the state, let the caller change it, and write it, while nobody else does. Short: others wait."""
    with places.locked(f"{name}.state", timeout_s=LOCK_SECONDS_MAX, what=f"change cluster {name}"):
        state = load(name)
        yield state
        save(state)


def names() -> list[str]:
    """The clusters of this home, half-made ones too."""
    if not places.home().is_dir():
        return []
    return sorted(path.name for path in places.home().iterdir() if path.is_dir() and not path.name.startswith("."))


def _process(fields: dict[str, Any] | None) -> Process | None:
    return None if fields is None else Process(**fields)


@contextlib.contextmanager
def operating(name: str, what: str, *, timeout_s: float = OPERATION_SECONDS) -> Iterator[None]:
    """Be the only one who changes which nodes the cluster has."""
    with places.locked(f"{name}.nodes", timeout_s=timeout_s, what=f"{what} (cluster {name})"):
        yield
